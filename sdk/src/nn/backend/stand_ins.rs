//! The CPU standing in for several devices, so that a model with spread layers can be tested without them.
//!
//! All tensors are in host memory and their device is only recorded; as on GPUs, an activation that was not moved, or a
//! sum across two devices, is an error. Results of candle's own operations in a model file are traced through candle's
//! autograd graph, which records operations on variables.

use candle_core::{Tensor, TensorId, Var};
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::Interconnect;
use crate::{Error, Result};

/// The recorded device of each tensor.
#[derive(Default)]
pub(in crate::nn) struct StandIns {
    /// Activations of the current step.
    activations: Mutex<HashMap<TensorId, usize>>,
    /// Weights and caches, which do not move.
    kept: Mutex<HashMap<TensorId, usize>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The recorded tensors from which a tensor was computed.
fn sources(tensor: &Tensor) -> Vec<TensorId> {
    tensor.sorted_nodes().into_iter().filter(|node| node.is_variable()).map(Tensor::id).collect()
}

/// Wraps the tensor as a variable, so that candle traces its use.
fn traced(tensor: &Tensor) -> Result<Tensor> {
    Ok(Var::from_tensor(&tensor.detach())?.into_inner())
}

impl Interconnect for StandIns {
    fn place(&self, tensor: &Tensor) -> Result<Option<usize>> {
        let (activations, kept) = (locked(&self.activations), locked(&self.kept));
        let mut common = None;
        for source in sources(tensor) {
            match (common, activations.get(&source).or_else(|| kept.get(&source)).copied()) {
                (Some(before), Some(place)) if before != place => {
                    let dims = tensor.dims();
                    let message = format!("{dims:?} was computed of what lies on devices {before} and {place}");
                    let help = "what a layer joins without the SDK's layers has to come from layers of the same number";
                    return Err(Error::invalid(message).help(help));
                }
                (_, place) => common = place.or(common),
            }
        }
        Ok(common)
    }

    /// The tensors from which an activation was computed move along, as only earlier layers use them.
    fn bring(&self, tensor: &Tensor, to: usize) -> Result<Tensor> {
        self.place(tensor)?;
        let mut activations = locked(&self.activations);
        for source in sources(tensor) {
            if let Some(place) = activations.get_mut(&source) {
                *place = to;
            }
        }
        Ok(tensor.clone())
    }

    /// Checks that a kernel made of candle ops had all its inputs on its device.
    fn made(&self, tensor: Tensor, at: usize) -> Result<Tensor> {
        if let Some(place) = self.place(&tensor)?
            && place != at
        {
            return Err(Error::invalid(format!("device {at} has computed of what lies on device {place}")));
        }
        let tensor = traced(&tensor)?;
        locked(&self.activations).insert(tensor.id(), at);
        Ok(tensor)
    }

    fn keeps(&self, tensor: Tensor, at: usize) -> Result<Tensor> {
        let tensor = traced(&tensor)?;
        locked(&self.kept).insert(tensor.id(), at);
        Ok(tensor)
    }

    fn clear(&self) {
        locked(&self.activations).clear();
    }
}
