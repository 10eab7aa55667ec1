//! Which device a wish such as `auto` or `cuda:0` means here.
//!
//! `auto` takes the best device that really computes, so a machine with a broken driver still serves; a device asked for
//! by name that does not work is an error, as a user who names one does not want another.

use candle_core::{DType, Device, Tensor};
use std::panic::catch_unwind;

use crate::{Code, Error, Result};

/// A device, its name, and why it was taken.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// Where tensors live.
    pub device: Device,
    /// `cpu`, `cuda:0`, `metal:0`.
    pub name: String,
    /// Why, for a person.
    pub note: String,
}

/// Finds the device for a wish.
pub fn choose(wish: &str) -> Result<Chosen> {
    match wish {
        "" | "auto" => Ok(best()),
        "cpu" => Ok(Chosen { device: Device::Cpu, name: "cpu".into(), note: "asked for".into() }),
        _ => {
            let device = open(wish)?;
            Ok(Chosen { device, name: wish.into(), note: "asked for".into() })
        }
    }
}

fn best() -> Chosen {
    let mut reasons = Vec::new();
    for name in ["cuda:0", "metal:0"] {
        match open(name) {
            Ok(device) => return Chosen { device, name: name.into(), note: "best device that works".into() },
            Err(error) => reasons.push(error.message),
        }
    }
    Chosen {
        device: Device::Cpu,
        name: "cpu".into(),
        note: format!("the best that there is here ({})", reasons.join("; ")),
    }
}

/// Opens a device by name and has it compute something.
fn open(name: &str) -> Result<Device> {
    let unavailable = |why: String| {
        Error::new(Code::Device, format!("no '{name}': {why}"))
            .help("use 'auto' or 'cpu', or name a device that this machine has")
    };
    let (kind, ordinal) = name.split_once(':').unwrap_or((name, "0"));
    let ordinal: usize = ordinal.parse().map_err(|_| {
        Error::invalid(format!("'{name}' names no device")).help("devices are auto, cpu, cuda:N and metal:N")
    })?;
    let new: fn(usize) -> candle_core::Result<Device> = match kind {
        #[cfg(feature = "cuda")]
        "cuda" => super::backend::cuda_device,
        "metal" if candle_core::utils::metal_is_available() => Device::new_metal,
        _ if ["cuda", "metal"].contains(&kind) => {
            return Err(unavailable(format!("this plugin was built without {kind}")));
        }
        _ => {
            let error = Error::invalid(format!("'{name}' names no device"));
            return Err(error.help("devices are auto, cpu, cuda:N and metal:N"));
        }
    };
    // candle panics on an ordinal that is not there.
    let opened = catch_unwind(|| new(ordinal).and_then(|device| smoke(&device).map(|()| device)));
    match opened {
        Ok(Ok(device)) => Ok(device),
        Ok(Err(error)) => Err(unavailable(error.to_string().lines().next().unwrap_or_default().to_owned())),
        Err(_) => Err(unavailable("its driver did not answer".into())),
    }
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
    fn a_device_that_is_not_there_is_an_error_that_names_it() {
        let error = choose("cuda:93").unwrap_err();
        assert!(error.message.contains("'cuda:93'"), "{error}");
        assert!(choose("tpu").unwrap_err().help.contains("metal:N"));
        assert!(choose("cuda:x").is_err());
    }
}
