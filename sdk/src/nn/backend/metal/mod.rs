//! The backend of Apple's GPUs. Everything but [`apple`] runs on every machine, tests included; see [`driver`].

#[cfg(target_os = "macos")]
mod apple;
mod arena;
mod attend;
mod attention;
#[cfg(test)]
mod double;
mod driver;
#[cfg_attr(not(test), allow(dead_code))]
mod elementwise;
#[cfg(test)]
mod elementwise_tests;
#[cfg_attr(not(test), allow(dead_code))]
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
#[cfg(test)]
mod mistakes;
#[cfg(test)]
mod ops;
#[cfg(test)]
mod product_mistakes;
#[cfg(test)]
mod product_tests;
#[cfg_attr(not(test), allow(dead_code))]
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
#[cfg(test)]
mod weights;
#[cfg(any(test, target_os = "macos"))]
mod window;

#[cfg(target_os = "macos")]
pub(in crate::nn) use apple::{free_bytes, proved};
#[cfg(test)]
pub(in crate::nn) use double::Double;
pub(in crate::nn) use layers::Weight;
