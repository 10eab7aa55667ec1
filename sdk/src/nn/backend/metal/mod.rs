//! The backend of Apple's GPUs. The kernels are tested on every machine; only the code that launches them needs Metal.

mod attention;
mod inputs;
#[cfg(any(feature = "metal", target_os = "macos"))]
mod kernels;
mod launch;
mod libraries;
#[cfg(test)]
mod mistakes;
mod norms;
#[cfg(test)]
mod ops;
#[cfg(test)]
mod program;
#[cfg(test)]
mod readers;
#[cfg(test)]
mod tests;

#[cfg(any(feature = "metal", target_os = "macos"))]
pub(in crate::nn) use kernels::MetalKernels;
