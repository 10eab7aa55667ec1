//! Short causal convolutions along a sequence, channel by channel: what hybrids have in place of attention (LFM2) or before a
//! recurrence (Mamba, Qwen3-Next). The state is the last inputs, and all sequences of a step are computed at once.

use candle_core::Tensor;

use super::{LayerCache, Loader, Step};
use crate::{Error, Result};

/// A convolution of each channel with its own few taps.
#[derive(Clone, Debug)]
pub struct ShortConv {
    layer: usize,
    channels: usize,
    /// From the oldest input to the token's own, a factor for each channel.
    taps: Vec<Tensor>,
    bias: Option<Tensor>,
}

impl ShortConv {
    /// What a convolution remembers of a sequence; it has two taps at least.
    pub fn cache(channels: usize, taps: usize) -> LayerCache {
        LayerCache::State(channels * taps.saturating_sub(1))
    }

    /// The convolution `name.weight` of this place, `[channels, 1, taps]` or `[channels, taps]`, with `name.bias` where the
    /// checkpoint has one. `layer` is the layer of the caches that is its.
    pub fn load(loader: &Loader<'_>, name: &str, layer: usize, channels: usize, taps: usize) -> Result<Self> {
        let here = loader.at(name);
        let values = here.values("weight")?;
        let values = values.ok_or_else(|| Error::corrupt(format!("no tensor '{}.weight'", here.path())))?;
        if taps < 2 || channels == 0 || channels.checked_mul(taps) != Some(values.len()) {
            let (path, count) = (here.path(), values.len());
            let message = format!("tensor '{path}.weight' has {count} values, not {channels} channels of {taps} taps");
            return Err(Error::corrupt(message));
        }
        let tap = |tap: usize| {
            let values: Vec<f32> = values.iter().skip(tap).step_by(taps).copied().collect();
            Ok(Tensor::from_vec(values, channels, loader.device())?)
        };
        let bias = if here.has("bias") { Some(here.vector("bias", channels)?) } else { None };
        Ok(Self { layer, channels, taps: (0..taps).map(tap).collect::<Result<_>>()?, bias })
    }

    /// What the convolution makes of the step's rows `[tokens, channels]`, each with the ones of its sequence before it.
    pub fn forward(&self, x: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        let (tokens, channels) = (step.tokens().len(), self.channels);
        if x.dims2()? != (tokens, channels) {
            let dims = x.dims();
            return Err(Error::invalid(format!("a convolution of {channels} channels was given {dims:?}")));
        }
        let before = self.taps.len() - 1;
        let states = step.ops().beside(&step.states(self.layer)?, x)?;
        if states.dim(1)? != before * channels {
            let message = format!("a state of {} values for {before} inputs of {channels} channels", states.dim(1)?);
            return Err(Error::invalid(message));
        }
        let states = states.reshape((states.dim(0)? * before, channels))?;
        let rows = Tensor::cat(&[&states, x], 0)?;
        let (read, last) = self.indices(&states, step)?;
        let mut out: Option<Tensor> = None;
        for (tap, read) in self.taps.iter().zip(&read) {
            let term = rows.index_select(read, 0)?.broadcast_mul(tap)?;
            out = Some(match out {
                Some(sum) => (sum + term)?,
                None => term,
            });
        }
        let kept = step.kept(self.layer)?;
        let last = rows.index_select(&last, 0)?.reshape((kept.len(), before * channels))?;
        step.keep(self.layer, &kept, &last)?;
        let out = out.ok_or_else(|| Error::invalid("a convolution without taps"))?;
        Ok(match &self.bias {
            Some(bias) => out.broadcast_add(bias)?,
            None => out,
        })
    }

    /// For each tap, which row each token reads, where the rows of all states stand before those of the step; and the rows
    /// that are kept. They lie where `beside` does.
    fn indices(&self, beside: &Tensor, step: &Step<'_>) -> Result<(Vec<Tensor>, Tensor)> {
        let before = self.taps.len() - 1;
        let key = (step.ops().place_of(beside)?, step.pass.kv.group(self.layer)?, before);
        if let Some(known) = step.pass.prepared.borrow().convolved.get(&key) {
            return Ok(known.clone());
        }
        let spans = &step.batch().spans;
        // The row that lies `back` rows before the one after `count` tokens of a span.
        let row = |span: usize, count: usize, back: usize| {
            let at = if count >= back {
                spans.len() * before + spans[span].start + count - back
            } else {
                span * before + before + count - back
            };
            at as u32
        };
        let mut read = Vec::with_capacity(self.taps.len());
        for back in (1..=self.taps.len()).rev() {
            let of =
                |(index, span): (usize, &crate::Span<'_>)| (1..=span.len).map(move |count| row(index, count, back));
            let ids: Vec<u32> = spans.iter().enumerate().flat_map(of).collect();
            read.push(step.ops().ids(&ids, beside)?);
        }
        let kept = step.kept(self.layer)?;
        let of = |one: &super::Kept| {
            let (span, count) = (one.span, one.end - spans[one.span].start);
            (1..=before).rev().map(move |back| row(span, count, back)).collect::<Vec<_>>()
        };
        let last: Vec<u32> = kept.iter().flat_map(of).collect();
        let found = (read, step.ops().ids(&last, beside)?);
        step.pass.prepared.borrow_mut().convolved.insert(key, found.clone());
        Ok(found)
    }
}
