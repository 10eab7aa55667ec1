//! Chooses the backend of each device: our kernels if they pass their self-test there, otherwise formulas.

use candle_core::Device;
use pensieve_kernels::Level;
use std::{env, sync::Arc};

use super::parts::Parts;
use crate::{
    Error, Result,
    nn::{
        backend::{Backend, CpuKernels, Formulas, StandIns},
        device::Chosen,
    },
};

/// The `kernels` option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::nn) enum Kernels {
    /// The fastest backend that passes its self-test.
    Auto,
    /// The same, on the CPU with this instruction set.
    Set(&'static str),
    /// Formulas in stock candle ops.
    Generic,
    /// Formulas over weights unpacked to `f32`, so that nothing is rounded on the way.
    Exact,
}

impl Kernels {
    /// Reads the environment's `PENSIEVE_KERNELS`, or else the option.
    pub(in crate::nn) fn choose(asked: Option<&str>) -> Result<Self> {
        let forced = env::var("PENSIEVE_KERNELS").ok().filter(|name| !name.is_empty());
        let (name, place) = match (&forced, asked) {
            (Some(name), _) => (name.as_str(), "PENSIEVE_KERNELS"),
            (None, asked) => (asked.unwrap_or("auto"), "option kernels"),
        };
        match name {
            "auto" => Ok(Self::Auto),
            "generic" => Ok(Self::Generic),
            "exact" => Ok(Self::Exact),
            _ => match Level::available().find(|level| level.name() == name) {
                Some(level) => Ok(Self::Set(level.name())),
                None => {
                    let sets: Vec<_> = Level::available().map(|level| format!("'{}'", level.name())).collect();
                    let sets = sets.join(", ");
                    Err(Error::invalid(format!("{place} is '{name}'")).help(format!(
                        "it is 'auto', 'generic', 'exact' or an instruction set of this machine: {sets}"
                    )))
                }
            },
        }
    }
}

/// The backends of the devices chosen for a model.
pub(super) fn parts(chosen: &Chosen, threads: usize, kernels: Kernels) -> Result<Parts> {
    match chosen.beside.is_empty() {
        true => Ok(Parts::one(backend(chosen.device.clone(), threads, kernels))),
        false => spread(chosen, threads, kernels),
    }
}

/// The backend of one device.
fn backend(device: Device, threads: usize, kernels: Kernels) -> Arc<dyn Backend> {
    match kernels {
        Kernels::Generic => Arc::new(Formulas::plain(device)),
        Kernels::Exact => Arc::new(Formulas::exact(device)),
        Kernels::Auto if device.is_cpu() => Arc::new(CpuKernels::new(threads, Level::best())),
        Kernels::Set(name) if device.is_cpu() => {
            let level = Level::available().find(|level| level.name() == name);
            Arc::new(CpuKernels::new(threads, level.unwrap_or_else(Level::best)))
        }
        Kernels::Auto | Kernels::Set(_) => best(device),
    }
}

/// The backend that a model on this device gets by default.
pub(in crate::nn) fn best_of(device: Device) -> Arc<dyn Backend> {
    backend(device, 0, Kernels::Auto)
}

/// The backends of several devices, and their interconnect.
fn spread(chosen: &Chosen, threads: usize, kernels: Kernels) -> Result<Parts> {
    let devices: Vec<Device> = std::iter::once(&chosen.device).chain(&chosen.beside).cloned().collect();
    #[cfg(feature = "cuda")]
    if devices.iter().all(Device::is_cuda) {
        let ours = match kernels {
            Kernels::Auto | Kernels::Set(_) => {
                devices.iter().map(crate::nn::backend::CudaKernels::proved).collect::<Result<Vec<_>>>().ok()
            }
            Kernels::Generic | Kernels::Exact => None,
        };
        let ours = ours.map(|ours| ours.into_iter().map(Arc::new).collect::<Vec<_>>());
        let interconnect = Arc::new(crate::nn::backend::CudaInterconnect::new(&devices, ours.clone())?);
        let parts = match ours {
            Some(ours) => ours.into_iter().map(|part| part as Arc<dyn Backend>).collect(),
            None => devices.into_iter().map(|device| backend(device, threads, kernels)).collect(),
        };
        return Ok(Parts::several(parts, interconnect));
    }
    if !devices.iter().all(Device::is_cpu) {
        return Err(Error::unsupported(format!("layers cannot be spread over {}", chosen.name)));
    }
    let parts: Vec<_> = devices.into_iter().map(|device| backend(device, threads, kernels)).collect();
    Ok(Parts::several(parts, Arc::new(StandIns::default())))
}

/// Our kernels if the device has some and they pass their self-test, otherwise formulas, with the reason.
fn best(device: Device) -> Arc<dyn Backend> {
    #[allow(unused_mut, reason = "without such a device nothing declines")]
    let mut declined = None;
    #[cfg(feature = "cuda")]
    if device.is_cuda() {
        match crate::nn::backend::CudaKernels::proved(&device) {
            Ok(kernels) => return Arc::new(kernels),
            Err(error) => declined = Some(error.message),
        }
    }
    #[cfg(target_os = "macos")]
    if device.is_metal() {
        match crate::nn::backend::metal_kernels(&device) {
            Ok(kernels) => return kernels,
            Err(error) => declined = Some(error.message),
        }
    }
    Arc::new(Formulas::probed(device, declined))
}
