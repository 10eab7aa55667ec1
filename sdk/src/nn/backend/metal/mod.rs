//! The backend of Apple's GPUs. The kernels are tested on every machine; only the code that launches them needs Metal.
//!
//! `products`, `experts`, `elementwise` and `recurrence` describe dispatches that the backend takes up one by one; until it has, candle's ops
//! stand in their place.

#[cfg_attr(not(test), allow(dead_code))]
mod elementwise;
#[cfg(test)]
mod elementwise_tests;
#[cfg_attr(not(test), allow(dead_code))]
mod experts;
#[cfg(test)]
mod experts_tests;
mod inputs;
#[cfg(any(feature = "metal", target_os = "macos"))]
mod kernels;
mod launch;
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
#[cfg_attr(not(test), allow(dead_code))]
mod recurrence;
#[cfg(test)]
mod recurrence_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod weights;

#[cfg(any(feature = "metal", target_os = "macos"))]
pub(in crate::nn) use kernels::MetalKernels;
