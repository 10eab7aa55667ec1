//! The processor in the place of several devices, so that a model whose layers are spread can be tried without any.
//!
//! All tensors lie in the host's memory; which device each is on is only written down, and an activation that was not moved, or
//! a sum over two devices, is an error as it is on GPUs. What a model file makes of activations by candle's own operations
//! is followed through the record that candle keeps of operations on variables.

use candle_core::{Tensor, TensorId, Var};
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::Interconnect;
use crate::{Error, Result};

/// Which device each tensor is on.
#[derive(Default)]
pub(in crate::nn) struct StandIns {
    /// Activations of the present step.
    activations: Mutex<HashMap<TensorId, usize>>,
    /// Weights and caches, which do not move.
    kept: Mutex<HashMap<TensorId, usize>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a tensor was computed from, as far back as something is known of its device.
fn sources(tensor: &Tensor) -> Vec<TensorId> {
    tensor.sorted_nodes().into_iter().filter(|node| node.is_variable()).map(Tensor::id).collect()
}

/// The tensor as a variable, which is followed as other tensors are not.
fn followed(tensor: &Tensor) -> Result<Tensor> {
    Ok(Var::from_tensor(&tensor.detach())?.into_inner())
}

impl Interconnect for StandIns {
    fn place(&self, tensor: &Tensor) -> Result<Option<usize>> {
        let (activations, kept) = (locked(&self.activations), locked(&self.kept));
        let mut found = None;
        for source in sources(tensor) {
            match (found, activations.get(&source).or_else(|| kept.get(&source)).copied()) {
                (Some(before), Some(place)) if before != place => {
                    let dims = tensor.dims();
                    let message = format!("{dims:?} was computed of what lies on devices {before} and {place}");
                    let help = "what a layer joins without the SDK's layers has to come from layers of the same number";
                    return Err(Error::invalid(message).help(help));
                }
                (_, place) => found = place.or(found),
            }
        }
        Ok(found)
    }

    /// What an activation was computed from moves along: it belongs to layers before.
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

    /// Kernels of stock candle operations are followed, too.
    fn made(&self, tensor: Tensor, at: usize) -> Result<Tensor> {
        if let Some(place) = self.place(&tensor)?
            && place != at
        {
            return Err(Error::invalid(format!("device {at} has computed of what lies on device {place}")));
        }
        let tensor = followed(&tensor)?;
        locked(&self.activations).insert(tensor.id(), at);
        Ok(tensor)
    }

    fn keeps(&self, tensor: Tensor, at: usize) -> Result<Tensor> {
        let tensor = followed(&tensor)?;
        locked(&self.kept).insert(tensor.id(), at);
        Ok(tensor)
    }

    fn clear(&self) {
        locked(&self.activations).clear();
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};
    use std::sync::Arc;

    use super::*;
    use crate::{
        Batch, Output, Span, Table, Want,
        nn::{
            Attention, KvShape, KvType,
            backend::{Backend, Formulas, Matrix, Spread},
            memory::kv::KvCache,
            memory::pass::Pass,
        },
        weights::{Bytes, Dtype, RawTensor},
    };

    /// Stand-ins that forget to move what is read.
    #[derive(Default)]
    struct Forgetful(StandIns);

    impl Interconnect for Forgetful {
        fn place(&self, tensor: &Tensor) -> Result<Option<usize>> {
            self.0.place(tensor)
        }

        fn bring(&self, tensor: &Tensor, _to: usize) -> Result<Tensor> {
            Ok(tensor.clone())
        }

        fn made(&self, tensor: Tensor, at: usize) -> Result<Tensor> {
            self.0.made(tensor, at)
        }

        fn keeps(&self, tensor: Tensor, at: usize) -> Result<Tensor> {
            self.0.keeps(tensor, at)
        }

        fn clear(&self) {
            self.0.clear();
        }
    }

    fn two(interconnect: impl Interconnect + 'static) -> Spread {
        let part = || Arc::new(Formulas::plain(Device::Cpu)) as Arc<dyn Backend>;
        Spread::new(vec![part(), part()], Arc::new(interconnect))
    }

    fn ones(rows: usize) -> Tensor {
        Tensor::ones((rows, 32), DType::F32, &Device::Cpu).unwrap()
    }

    fn matrix(spread: &Spread, place: usize) -> Matrix {
        let data = Bytes::copy_of(&[0; 4 * 32 * 32]).unwrap();
        let raw = RawTensor { name: "w".into(), dtype: Dtype::F32, shape: vec![32, 32], data };
        Matrix { outputs: 32, inputs: 32, place, form: spread.parts()[place].matrix(&raw).unwrap() }
    }

    /// A residual block whose weight is on the second device, over a stream from the first: the sum is a model file's own.
    fn block(spread: &Spread) -> Result<Tensor> {
        let weight = matrix(spread, 1);
        let x = spread.linear(&ones(3), &matrix(spread, 0), None)?;
        let out = spread.linear(&x, &weight, None)?;
        let sum = (x + out)?;
        spread.linear(&sum, &weight, None)
    }

    #[test]
    fn a_stream_moves_to_the_device_that_reads_it_and_one_that_does_not_is_found() {
        block(&two(StandIns::default())).unwrap();
        let error = block(&two(Forgetful::default())).unwrap_err();
        assert!(error.message.contains("lies on device 0 of a model, and device 1 reads it"), "{error}");
    }

    #[test]
    fn a_sum_over_two_devices_is_found() {
        let spread = two(StandIns::default());
        let x = spread.linear(&ones(3), &matrix(&spread, 0), None).unwrap();
        let y = spread.linear(&ones(3), &matrix(&spread, 1), None).unwrap();
        let error = spread.linear(&(x + y).unwrap(), &matrix(&spread, 1), None).unwrap_err();
        assert!(error.message.contains("computed of what lies on devices"), "{error}");
    }

    /// Attention on the second device over a cache that was made on `place`.
    fn attend(place: usize) -> Result<Tensor> {
        let spread = two(StandIns::default());
        let formulas = Formulas::plain(Device::Cpu);
        let shape = KvShape::uniform(1, 2, 16);
        let mut cache = KvCache::new(
            &shape,
            KvType::F32,
            &[1],
            |_| 1,
            |_, shape, _| match formulas.store(shape)? {
                crate::nn::memory::store::Store::Tensor(tensor) => {
                    Ok(crate::nn::memory::store::Store::Tensor(Backend::keeps(&spread, tensor, place)?))
                }
                store => Ok(store),
            },
        )?;
        let spans = vec![Span {
            sequence: 0,
            start: 0,
            len: 3,
            past: 0,
            want: Want::Last,
            output: Output::Logits,
            mask: &[],
            adapter: 0,
            adapter_scale: 0.0,
            caches: vec![Table::Blocks((&[0][..]).into())],
        }];
        let batch = Batch { tokens: &[0, 1, 2], positions: &[0, 1, 2], spans, top: 0 };
        let q = spread.linear(&ones(3), &matrix(&spread, 1), None)?;
        let spec = Attention::new(0, 2, 2, 16)?;
        spread.attention(&spec, &q, &q, &q, &mut Pass::new(&batch, &mut cache))
    }

    #[test]
    fn a_cache_on_the_wrong_device_is_found() {
        attend(1).unwrap();
        let error = attend(0).unwrap_err();
        assert!(error.message.contains("computed of what lies on devices"), "{error}");
    }
}
