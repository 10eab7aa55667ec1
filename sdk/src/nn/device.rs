//! Resolves a device name such as `auto`, `cuda:0` or `cuda:0+cuda:1` on this machine.
//!
//! `auto` takes the best device that passes a small computation, so a machine with a broken driver still serves. If a
//! device is requested by name and does not work, that is an error: the user does not want another one.

use candle_core::{DType, Device, Tensor};
use std::panic::catch_unwind;

use crate::{Code, Error, Result};

/// Limit on the devices of one model.
const DEVICES_MAX: usize = 64;

/// The devices of a model, and why they were chosen.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// The first, or only, device.
    pub device: Device,
    /// Further devices that the model's layers are spread over.
    pub beside: Vec<Device>,
    /// `cpu`, `cuda:0`, `metal:0`, `cuda:0+cuda:1`.
    pub name: String,
    /// The reason, for the log.
    pub note: String,
}

/// Resolves the device name of a configuration; an empty one means `auto`.
pub fn choose(requested: &str) -> Result<Chosen> {
    match requested {
        "" | "auto" => Ok(best()),
        "cpu" => Ok(Chosen::one(Device::Cpu, "cpu", "asked for".into())),
        "cuda:all" => all(),
        _ if requested.contains('+') => several(&requested.split('+').map(str::trim).collect::<Vec<_>>()),
        _ => Ok(Chosen::one(open(requested)?, requested, "asked for".into())),
    }
}

impl Chosen {
    fn one(device: Device, name: &str, note: String) -> Self {
        Self { device, beside: Vec::new(), name: name.into(), note }
    }

    /// The devices' names, in order.
    pub fn names(&self) -> Vec<&str> {
        self.name.split('+').collect()
    }

    /// Rejects several devices, for architectures that run on one.
    pub fn alone(self) -> Result<Self> {
        if self.beside.is_empty() {
            return Ok(self);
        }
        let message = format!("this architecture computes on one device, not on {}", self.name);
        Err(Error::unsupported(message).help("name one of them"))
    }
}

/// All CUDA devices of this machine.
fn all() -> Result<Chosen> {
    #[cfg(feature = "cuda")]
    let count = super::backend::cuda_count();
    #[cfg(not(feature = "cuda"))]
    let count = 0;
    // The first is opened even if none was found, as its error says what is missing.
    let names = (0..count.clamp(1, DEVICES_MAX)).map(|number| format!("cuda:{number}"));
    together(names.map(|name| open(&name).map(|device| (name, device))).collect::<Result<_>>()?)
}

/// Opens several devices by name, to spread a model over.
fn several(names: &[&str]) -> Result<Chosen> {
    let kind = |name: &str| name.split_once(':').map_or(name.to_owned(), |(kind, _)| kind.to_owned());
    let wrong = |what: String| {
        let error = Error::invalid(format!("'{}': {what}", names.join("+")));
        error.help("name each device once, as in cuda:0+cuda:1; all are of one kind")
    };
    if names.len() > DEVICES_MAX {
        return Err(wrong(format!("these are more than {DEVICES_MAX} devices")));
    }
    let mut opened: Vec<(String, Device)> = Vec::with_capacity(names.len());
    for name in names {
        if name.is_empty() {
            return Err(wrong("a device's name is missing".into()));
        }
        let numbered = name.split_once(':').and_then(|(_, number)| number.parse::<u16>().ok());
        if kind(name) != kind(names[0]) {
            return Err(wrong(format!("'{name}' is of another kind than '{}'", names[0])));
        }
        let full = match (kind(name).as_str(), numbered) {
            ("cpu" | "cuda", Some(number)) => format!("{}:{number}", kind(name)),
            ("metal", _) => return Err(wrong("there is one Metal device in a Mac".into())),
            _ => return Err(wrong(format!("'{name}' names no device by its number"))),
        };
        if opened.iter().any(|(other, _)| *other == full) {
            return Err(wrong(format!("{full} is named twice")));
        }
        // The CPU stands in for accelerators, so that spreading can be tested without any.
        let device = if full.starts_with("cpu") { Device::Cpu } else { open(&full)? };
        opened.push((full, device));
    }
    together(opened)
}

fn together(opened: Vec<(String, Device)>) -> Result<Chosen> {
    let (names, mut devices): (Vec<String>, Vec<Device>) = opened.into_iter().unzip();
    let beside = devices.split_off(1);
    let device = devices.pop().ok_or_else(|| Error::invalid("no device is named"))?;
    Ok(Chosen { device, beside, name: names.join("+"), note: "asked for".into() })
}

/// Free memory of a device; `None` if it does not report it.
pub(super) fn free_bytes(device: &Device) -> Option<u64> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => super::backend::cuda_free_bytes(device),
        #[cfg(target_os = "macos")]
        Device::Metal(device) => Some(super::backend::metal_free_bytes(device)),
        _ => None,
    }
}

fn best() -> Chosen {
    let mut reasons = Vec::new();
    for name in ["cuda:0", "metal:0"] {
        match open(name) {
            Ok(device) => return Chosen::one(device, name, "best device that works".into()),
            Err(error) => reasons.push(error.message),
        }
    }
    Chosen::one(Device::Cpu, "cpu", format!("no other device works here ({})", reasons.join("; ")))
}

/// Opens a device by name and runs a small computation on it.
fn open(name: &str) -> Result<Device> {
    let unavailable = |why: String| {
        Error::new(Code::Device, format!("no '{name}': {why}"))
            .help("use 'auto' or 'cpu', or name a device that this machine has")
    };
    let (kind, ordinal) = name.split_once(':').unwrap_or((name, "0"));
    let ordinal: usize = ordinal.parse().map_err(|_| {
        Error::invalid(format!("'{name}' names no device"))
            .help("devices are auto, cpu, cuda:N and metal:N, and several as cuda:0+cuda:1")
    })?;
    let new: fn(usize) -> candle_core::Result<Device> = match kind {
        #[cfg(feature = "cuda")]
        "cuda" => super::backend::cuda_device,
        "metal" if candle_core::utils::metal_is_available() => {
            if let Some(why) = metal_refusal(has_residency_sets()) {
                return Err(unavailable(why.into()));
            }
            Device::new_metal
        }
        _ if ["cuda", "metal"].contains(&kind) => {
            return Err(unavailable(format!("this plugin was built without {kind}")));
        }
        _ => {
            let error = Error::invalid(format!("'{name}' names no device"));
            return Err(error.help("devices are auto, cpu, cuda:N and metal:N, and several as cuda:0+cuda:1"));
        }
    };
    // candle panics on an ordinal that does not exist.
    let opened = catch_unwind(|| new(ordinal).and_then(|device| smoke(&device).map(|()| device)));
    match opened {
        Ok(Ok(device)) => Ok(device),
        Ok(Err(error)) => Err(unavailable(error.to_string().lines().next().unwrap_or_default().to_owned())),
        Err(_) => Err(unavailable("its driver did not answer".into())),
    }
}

/// The reason why candle's Metal backend would panic on this system.
fn metal_refusal(has_residency_sets: bool) -> Option<&'static str> {
    (!has_residency_sets).then_some("Metal needs macOS 15 or newer here (residency sets)")
}

/// True if the system knows `MTLResidencySet`. The class is asked for: `available!` is constantly true of a version that the
/// build requires.
fn has_residency_sets() -> bool {
    #[cfg(target_os = "macos")]
    return objc2::runtime::AnyClass::get(c"MTLResidencySetDescriptor").is_some();
    #[cfg(not(target_os = "macos"))]
    true
}

fn smoke(device: &Device) -> candle_core::Result<()> {
    let ones = Tensor::ones((2, 32), DType::F32, device)?;
    let sum: f32 = ones.matmul(&ones.t()?)?.sum_all()?.to_scalar()?;
    if sum == 128.0 { Ok(()) } else { Err(candle_core::Error::Msg(format!("2×32 ones multiply to {sum}"))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_takes_something_and_says_why() {
        let chosen = choose("auto").unwrap();
        assert!(!chosen.note.is_empty());
    }

    #[test]
    fn an_older_macos_is_told_which_one_metal_needs() {
        assert!(metal_refusal(false).unwrap().contains("needs macOS 15"));
        assert_eq!(metal_refusal(true), None);
    }

    #[test]
    fn a_device_that_is_not_there_is_an_error_that_names_it() {
        let error = choose("cuda:93").unwrap_err();
        assert!(error.message.contains("'cuda:93'"), "{error}");
        assert!(choose("tpu").unwrap_err().help.contains("metal:N"));
        assert!(choose("cuda:x").is_err());
    }
}
