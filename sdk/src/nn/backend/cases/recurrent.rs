//! Short convolutions and recurrences.

use candle_core::{Device, Tensor};
use pensieve_kernels::Activation;

use super::wave;
use crate::{
    Batch, Output, Result, Span, StateCopy, Table, Want,
    nn::{
        backend::Backend,
        memory::{kv::KvCache, pass::Pass},
        spec::{Decay, Inputs, KvShape, KvType, Recurrence, ShortConv, Update},
    },
};

const TAPS: usize = 4;
const CHANNELS: usize = 36;
const HEADS: usize = 4;
const KEY_HEADS: usize = 2;
const VALUE_DIM: usize = 40;

/// The granularity of the decay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fades {
    Head,
    Key,
    Value,
    Element,
}

/// The rule by which a token is written into a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Adds {
    Sum,
    Delta,
    RankOne,
}

/// A recurrent layer.
#[derive(Clone, Copy, Debug)]
pub(in crate::nn) struct Recurrent {
    pub(in crate::nn) name: &'static str,
    key_dim: usize,
    fades: Fades,
    adds: Adds,
    interleaved_heads: bool,
    /// Scales and skips have a value per channel rather than one per head.
    by_channel: bool,
}

const SUM: Recurrent = Recurrent {
    name: "few keys, with bias and skip",
    key_dim: 24,
    fades: Fades::Head,
    adds: Adds::Sum,
    interleaved_heads: false,
    by_channel: false,
};
const DELTA: Recurrent = Recurrent { name: "the delta rule", key_dim: 128, adds: Adds::Delta, ..SUM };

/// Widths of keys that different kernels take, Mamba-2's and Qwen's among them; and every way to fade, as in Mamba, Kimi's delta
/// attention and RWKV-7.
pub(in crate::nn) const RECURRENT: [Recurrent; 12] = [
    Recurrent { name: "keys of 16", key_dim: 16, interleaved_heads: true, ..SUM },
    Recurrent { name: "keys of 64", key_dim: 64, ..DELTA },
    SUM,
    DELTA,
    Recurrent { name: "the delta rule, wide and interleaved", key_dim: 200, interleaved_heads: true, ..DELTA },
    Recurrent { name: "by key", key_dim: 64, fades: Fades::Key, interleaved_heads: true, ..SUM },
    Recurrent { name: "by key, the delta rule", fades: Fades::Key, ..DELTA },
    Recurrent { name: "by key, the delta rule by channel", key_dim: 24, fades: Fades::Key, by_channel: true, ..DELTA },
    Recurrent { name: "by key, rank one", key_dim: 64, fades: Fades::Key, adds: Adds::RankOne, ..SUM },
    Recurrent { name: "by value", key_dim: 1, fades: Fades::Value, by_channel: true, ..SUM },
    Recurrent { name: "by element", key_dim: 16, fades: Fades::Element, by_channel: true, ..SUM },
    Recurrent { name: "by element, the delta rule", key_dim: 24, fades: Fades::Element, ..DELTA },
];

/// Rows and past of a sequence, and its slots: read, written, and a copy behind some row.
type Going = (usize, usize, Option<u32>, u32, Option<(usize, u32)>);

/// New sequences, one of which keeps a state on the way; then each goes on.
const STEPS: [[Going; 2]; 2] = [
    [(9, 0, None, 0, Some((4, 2))), (2, 0, None, 1, None)],
    [(1, 9, Some(0), 0, Some((10, 4))), (1, 2, Some(1), 3, None)],
];

impl Recurrent {
    /// The outputs of both steps, of the convolution and of the recurrence, and their states.
    pub(in crate::nn) fn compute(&self, backend: &dyn Backend) -> Result<Vec<Tensor>> {
        let device = backend.device();
        let (spec, conv) = (self.spec()?, self.conv(device)?);
        let shape = self.shape();
        let mut cache = KvCache::new(&shape, KvType::F32, &[5], |_| 0, |_, shape, _| backend.state_store(shape))?;
        let mut outs = Vec::new();
        for step in STEPS {
            let ids = vec![0; step.iter().map(|(len, ..)| len).sum()];
            let batch = Batch { tokens: &ids, positions: &ids, spans: spans(&step), top: 0 };
            backend.begin(&batch)?;
            let pass = Pass::new(&batch, &mut cache);
            outs.push(backend.short_conv(&conv, &wave(ids.len(), CHANNELS, device)?, &pass)?);
            outs.push(backend.recurrence(&spec, &self.inputs(ids.len(), device)?, &pass)?);
        }
        for part in [0, 1] {
            outs.push(cache.states(0, part)?.clone());
        }
        Ok(outs)
    }

    /// The state fades by one factor per head.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(in crate::nn) fn is_by_head(&self) -> bool {
        self.fades == Fades::Head
    }

    pub(in crate::nn) fn spec(&self) -> Result<Recurrence> {
        let spec = Recurrence::new(0, HEADS, KEY_HEADS, self.key_dim, VALUE_DIM)?;
        Ok(Recurrence { interleaved_heads: self.interleaved_heads, ..spec })
    }

    /// The convolution before the recurrence, on other channels.
    pub(in crate::nn) fn conv(&self, device: &Device) -> Result<ShortConv> {
        let corrects = self.adds == Adds::Delta;
        Ok(ShortConv {
            layer: 0,
            part: 0,
            taps: wave(TAPS, CHANNELS, device)?,
            bias: if corrects { None } else { Some(wave(1, CHANNELS, device)?.squeeze(0)?) },
            activation: corrects.then_some(Activation::Silu),
        })
    }

    pub(in crate::nn) fn shape(&self) -> KvShape {
        KvShape::new(vec![Recurrence::cache((CHANNELS, TAPS), HEADS, self.key_dim, VALUE_DIM)])
    }

    /// The inputs of a step.
    pub(in crate::nn) fn inputs(&self, rows: usize, device: &Device) -> Result<Inputs> {
        let wave = |columns: usize| wave(rows, columns, device);
        let decay = |columns: usize| -> Result<Tensor> { Ok(wave(columns)?.abs()?.neg()?) };
        let (keys, values) = (KEY_HEADS * self.key_dim, HEADS * VALUE_DIM);
        let each = if self.by_channel { values } else { HEADS };
        let k = (wave(keys)? * 0.05)?;
        let rates = super::wave(HEADS * self.key_dim, VALUE_DIM, device)?.abs()?.neg()?;
        Ok(Inputs {
            q: (k.neg()? + 0.1)?,
            v: wave(values)?,
            decay: match self.fades {
                Fades::Head => Decay::Head(decay(HEADS)?),
                Fades::Key => Decay::Key(decay(HEADS * self.key_dim)?),
                Fades::Value => Decay::Value(decay(values)?),
                Fades::Element => Decay::Element {
                    steps: wave(values)?.abs()?,
                    rates: rates.reshape((HEADS, self.key_dim, VALUE_DIM))?,
                },
            },
            beta: if self.adds == Adds::RankOne { None } else { Some((wave(each)?.abs()? * 0.5)?) },
            update: match self.adds {
                Adds::Sum => Update::Sum,
                Adds::Delta => Update::Delta,
                Adds::RankOne => Update::RankOne { from: k.neg()?, into: (&k * 0.5)? },
            },
            skip: if self.adds == Adds::Sum { Some(super::wave(1, each, device)?.squeeze(0)?) } else { None },
            k,
        })
    }

    /// The outputs as one row on the CPU.
    pub(in crate::nn) fn compute_flat(&self, backend: &dyn Backend) -> Result<Tensor> {
        let outs = self.compute(backend)?;
        backend.finish()?;
        let flat =
            outs.iter().map(|out| Ok(out.flatten_all()?.to_device(&Device::Cpu)?)).collect::<Result<Vec<_>>>()?;
        Ok(Tensor::cat(&flat, 0)?)
    }
}

fn spans<'a>(step: &[Going]) -> Vec<Span<'a>> {
    let mut end = 0;
    let span = |(sequence, &(len, past, read, write, copy)): (usize, &Going)| {
        end += len;
        let copies = copy.into_iter().map(|(after, slot)| StateCopy { after, slot }).collect();
        Span {
            sequence: sequence as u64,
            start: end - len,
            len,
            past,
            want: Want::Last,
            output: Output::Logits,
            mask: &[],
            adapter: 0,
            adapter_scale: 0.0,
            caches: vec![Table::Slots { read, write, copies }],
        }
    };
    step.iter().enumerate().map(span).collect()
}
