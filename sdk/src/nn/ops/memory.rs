//! Ops that read or write caches. They run on the device of the layer's cache, and their output is moved back to the
//! device of the layer's input.

use candle_core::Tensor;

use super::Ops;
use crate::{
    Result,
    nn::{
        memory::{
            kv::KvCache,
            pass::Pass,
            store::{Store, StoreShape},
        },
        spec::{Attention, Inputs, KvShape, KvType, Recurrence, Rotation, ShortConv},
    },
};

impl Ops {
    /// Allocates `counts` zeroed blocks or slots of each cache group; `places` gives the device of each layer's cache.
    pub(in crate::nn) fn kv_cache(
        &self,
        shape: &KvShape,
        kind: KvType,
        counts: &[usize],
        places: impl Fn(usize) -> usize,
    ) -> Result<KvCache> {
        KvCache::new(
            shape,
            kind,
            counts,
            places,
            |place: usize, shape: StoreShape, by_kernels: bool| -> Result<Store> {
                let part = self.parts.backend(place)?;
                match if by_kernels { part.store(shape)? } else { part.state_store(shape)? } {
                    Store::Tensor(tensor) => Ok(Store::Tensor(self.parts.keeps(tensor, place)?)),
                    store => Ok(store),
                }
            },
        )
    }

    /// Writes `k` and `v` to the cache, and makes each token of `q` attend to its sequence so far.
    pub(in crate::nn) fn attention(
        &self,
        spec: &Attention,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        pass: &mut Pass<'_>,
    ) -> Result<Tensor> {
        for x in [q, k, v] {
            self.check(x, 2)?;
        }
        let place = pass.kv.place(spec.layer)?;
        self.parts.and_back(place, [q, k, v], |part, [q, k, v]| part.attention(spec, q, k, v, pass))
    }

    /// Writes `new` keys and values to the cache, if any, and makes each token of `q` attend to its sequence so far.
    /// Heads may be of any size, and values may be a view of the keys.
    pub(in crate::nn) fn attention_over(
        &self,
        spec: &Attention,
        q: &Tensor,
        new: Option<(&Tensor, Option<&Tensor>)>,
        pass: &mut Pass<'_>,
    ) -> Result<Tensor> {
        self.check(q, 2)?;
        for x in new.into_iter().flat_map(|(k, v)| [Some(k), v]).flatten() {
            self.check(x, 2)?;
        }
        let place = pass.kv.place(spec.layer)?;
        match new {
            None => self.parts.and_back(place, [q], |part, [q]| part.attention_over(spec, q, None, pass)),
            Some((k, None)) => {
                self.parts.and_back(place, [q, k], |part, [q, k]| part.attention_over(spec, q, Some((k, None)), pass))
            }
            Some((k, Some(v))) => self
                .parts
                .and_back(place, [q, k, v], |part, [q, k, v]| part.attention_over(spec, q, Some((k, Some(v))), pass)),
        }
    }

    /// Convolves the step's tokens with the previous ones of their sequences.
    pub(in crate::nn) fn short_conv(&self, conv: &ShortConv, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        self.check(x, 2)?;
        let place = pass.kv.place(conv.layer)?;
        let bias = self.parts.bring_some(conv.bias.as_ref(), place)?;
        self.parts.and_back(place, [x, &conv.taps], |part, [x, taps]| {
            part.short_conv(&ShortConv { taps: taps.clone(), bias, ..conv.clone() }, x, pass)
        })
    }

    /// Advances a recurrence over the step's tokens.
    pub(in crate::nn) fn recurrence(&self, spec: &Recurrence, x: Inputs<'_>, pass: &Pass<'_>) -> Result<Tensor> {
        for x in [x.q, x.k, x.v, x.decay, x.beta] {
            self.check(x, 2)?;
        }
        let place = pass.kv.place(spec.layer)?;
        let skip = self.parts.bring_some(x.skip, place)?;
        self.parts.and_back(place, [x.q, x.k, x.v, x.decay, x.beta], |part, [q, k, v, decay, beta]| {
            part.recurrence(spec, Inputs { q, k, v, decay, beta, skip: skip.as_ref(), ..x }, pass)
        })
    }

    /// [`Ops::attention`] with queries and keys rotated first.
    pub(in crate::nn) fn rotated_attention(
        &self,
        spec: &Attention,
        [q, k, v]: [&Tensor; 3],
        rotation: &Rotation,
        pass: &mut Pass<'_>,
    ) -> Result<Tensor> {
        for x in [q, k, v] {
            self.check(x, 2)?;
        }
        let place = pass.kv.place(spec.layer)?;
        let Rotation { cos, sin, style } = rotation;
        self.parts.and_back(place, [q, k, v, cos, sin], |part, [q, k, v, cos, sin]| {
            let rotation = Rotation { cos: cos.clone(), sin: sin.clone(), style: *style };
            part.rotated_attention(spec, [q, k, v], &rotation, pass)
        })
    }
}
