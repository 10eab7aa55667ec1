//! The backend of Apple's GPUs. Everything but [`apple`] runs on every machine, tests included; see [`driver`].

#[cfg(any(feature = "metal", target_os = "macos"))]
mod apple;
mod arena;
mod attention;
mod dispatches;
#[cfg(test)]
mod double;
mod driver;
#[cfg(any(test, feature = "metal", target_os = "macos"))]
mod figures;
mod inputs;
mod kernels;
mod launch;
#[cfg(any(test, feature = "metal", target_os = "macos"))]
mod libraries;
#[cfg(test)]
mod mistakes;
mod norms;
#[cfg(test)]
mod ops;
#[cfg(test)]
mod program;
mod proofs;
#[cfg(test)]
mod readers;
#[cfg(any(feature = "metal", target_os = "macos"))]
pub(in crate::nn) mod report;
#[cfg(test)]
mod tests;

#[cfg(any(feature = "metal", target_os = "macos"))]
pub(in crate::nn) use apple::{free_bytes, proved};
#[cfg(test)]
pub(in crate::nn) use double::Double;
