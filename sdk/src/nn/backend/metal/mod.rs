//! The backend of Apple's GPUs. Everything but [`apple`] runs on every machine, tests included; see [`driver`].

#[cfg(target_os = "macos")]
mod apple;
mod arena;
mod attend;
mod attention;
mod backend;
#[cfg(test)]
mod double;
mod driver;
mod elementwise;
#[cfg(test)]
mod elementwise_tests;
mod experts;
#[cfg(test)]
mod experts_tests;
#[cfg(any(test, target_os = "macos"))]
mod figures;
mod inputs;
mod kernels;
mod launch;
mod layers;
#[cfg(any(test, target_os = "macos"))]
mod libraries;
mod low_rank;
#[cfg(test)]
mod mistakes;
mod mixtures;
#[cfg(test)]
mod ops;
mod placement;
#[cfg(test)]
mod product_mistakes;
#[cfg(test)]
mod product_tests;
mod products;
#[cfg(test)]
mod program;
mod proofs;
#[cfg(test)]
mod readers;
mod recurrence;
#[cfg(test)]
mod recurrence_tests;
mod recurrent;
#[cfg(target_os = "macos")]
pub(in crate::nn) mod report;
#[cfg(test)]
mod tests;
#[cfg(any(test, target_os = "macos"))]
mod window;

#[cfg(target_os = "macos")]
pub(in crate::nn) use apple::{free_bytes, proved};
#[cfg(test)]
pub(in crate::nn) use double::{Double, kernels_beside_attention};
pub(in crate::nn) use mixtures::ExpertTable;
pub(in crate::nn) use placement::Weight;
