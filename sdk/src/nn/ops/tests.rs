//! The rules for a model spread over devices, with the CPU standing in for several.

use candle_core::{DType, Device, Tensor};
use std::sync::Arc;

use super::{Ops, parts::Parts};
use crate::{
    Batch, Output, Result, Span, Table, Want,
    nn::{
        Attention, KvShape, KvType,
        backend::{Backend, Formulas, Interconnect, Matrix, StandIns},
        memory::{kv::KvCache, pass::Pass, store::Store},
    },
    weights::{Bytes, Dtype, RawTensor},
};

/// Stand-ins that forget to move inputs.
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

fn two(interconnect: impl Interconnect + 'static) -> Ops {
    let part = || Arc::new(Formulas::plain(Device::Cpu)) as Arc<dyn Backend>;
    Ops { parts: Parts::several(vec![part(), part()], Arc::new(interconnect)), place: 0 }
}

fn ones(rows: usize) -> Tensor {
    Tensor::ones((rows, 32), DType::F32, &Device::Cpu).unwrap()
}

fn matrix(ops: &Ops, place: usize) -> Matrix {
    let data = Bytes::copy_of(&[0; 4 * 32 * 32]).unwrap();
    let raw = RawTensor { name: "w".into(), dtype: Dtype::F32, shape: vec![32, 32], data };
    ops.by_place()[place].matrix(&raw).unwrap()
}

/// A residual block whose weight is on the second device, with a stream from the first: the sum is computed by the
/// model file.
fn block(ops: &Ops) -> Result<Tensor> {
    let weight = matrix(ops, 1);
    let x = ops.linear(&ones(3), (&matrix(ops, 0), None))?;
    let out = ops.linear(&x, (&weight, None))?;
    let sum = (x + out)?;
    ops.linear(&sum, (&weight, None))
}

#[test]
fn a_stream_moves_to_the_device_that_reads_it_and_one_that_does_not_is_found() {
    block(&two(StandIns::default())).unwrap();
    let error = block(&two(Forgetful::default())).unwrap_err();
    assert!(error.message.contains("lies on device 0 of a model, and device 1 reads it"), "{error}");
}

#[test]
fn a_sum_over_two_devices_is_found() {
    let ops = two(StandIns::default());
    let x = ops.linear(&ones(3), (&matrix(&ops, 0), None)).unwrap();
    let y = ops.linear(&ones(3), (&matrix(&ops, 1), None)).unwrap();
    let error = ops.linear(&(x + y).unwrap(), (&matrix(&ops, 1), None)).unwrap_err();
    assert!(error.message.contains("computed of what lies on devices"), "{error}");
}

/// Attention on the second device with a cache created on `place`.
fn attend(place: usize) -> Result<Tensor> {
    let ops = two(StandIns::default());
    let formulas = Formulas::plain(Device::Cpu);
    let shape = KvShape::uniform(1, 2, 16);
    let mut cache = KvCache::new(
        &shape,
        KvType::F32,
        &[1],
        |_| 1,
        |_, shape, _| match formulas.store(shape)? {
            Store::Tensor(tensor) => Ok(Store::Tensor(ops.parts.keeps(tensor, place)?)),
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
    let q = ops.linear(&ones(3), (&matrix(&ops, 1), None))?;
    let spec = Attention::new(0, 2, 2, 16)?;
    ops.attention(&spec, &q, &q, &q, &mut Pass::new(&batch, &mut cache))
}

#[test]
fn a_cache_on_the_wrong_device_is_found() {
    attend(1).unwrap();
    let error = attend(0).unwrap_err();
    assert!(error.message.contains("computed of what lies on devices"), "{error}");
}
