//! Ops that read or write caches. They run on the device of the layer's cache, and their output is moved back to the
//! device of the layer's input.

use candle_core::Tensor;

use super::Ops;
use crate::{
    Error, Result,
    nn::{
        memory::{
            kv::KvCache,
            pass::Pass,
            store::{Store, StoreShape},
        },
        spec::{Attention, Decay, Inputs, KvShape, KvType, Positions, Recurrence, Rotation, ShortConv, TextAttention},
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

    /// Makes each token attend to its whole text, or to as much of it as `spec` reaches.
    pub(in crate::nn) fn attention_within(
        &self,
        spec: &TextAttention,
        qkv: [&Tensor; 3],
        biases: Option<&Tensor>,
        pass: &Pass<'_>,
    ) -> Result<Tensor> {
        for x in qkv.into_iter().chain(biases) {
            self.check(x, 2)?;
        }
        if let Some(biases) = biases
            && (biases.dim(0)? != spec.heads || biases.dim(1)?.is_multiple_of(2))
        {
            let message =
                format!("biases of {:?} are no odd number of distances of {} heads", biases.dims(), spec.heads);
            return Err(Error::invalid(message));
        }
        // An encoder lies on one device.
        self.parts.near(qkv, |part, qkv| part.attention_within(spec, qkv, biases, pass))
    }

    /// Writes the new tokens' keys, and values if the layer keeps some, to its cache.
    pub(in crate::nn) fn remember(
        &self,
        layer: usize,
        k: &Tensor,
        v: Option<&Tensor>,
        pass: &mut Pass<'_>,
    ) -> Result<()> {
        let (cache, tokens) = (pass.kv.attention(layer)?, pass.input().tokens.len());
        let dims = [(Some(k), cache.key_dim), (v, cache.value_dim)];
        for (x, dim) in dims {
            let Some(x) = x else { continue };
            self.check(x, 2)?;
            if x.dims2()? != (tokens, cache.kv_heads * dim) || dim == 0 {
                let message =
                    format!("{:?} for the cache of layer {layer}: {} heads of {dim}", x.dims(), cache.kv_heads);
                return Err(Error::invalid(message));
            }
        }
        if v.is_none() && cache.value_dim > 0 {
            return Err(Error::invalid(format!("layer {layer} keeps values, and was given none")));
        }
        let place = pass.kv.place(layer)?;
        let k = self.parts.bring(k, place)?;
        let v = self.parts.bring_some(v, place)?;
        self.parts.backend(place)?.remember(layer, &k, v.as_ref(), pass)
    }

    /// All cached keys (`part` 0) or values (1) of a sequence, on the device of the cache.
    pub(in crate::nn) fn cached(&self, layer: usize, part: usize, span: usize, pass: &mut Pass<'_>) -> Result<Tensor> {
        let cache = pass.kv.attention(layer)?;
        let (spans, dim) = (pass.batch().spans.len(), [cache.key_dim, cache.value_dim][part]);
        if span >= spans || dim == 0 || cache.window.is_some() {
            return Err(Error::invalid(format!(
                "the cache of layer {layer} cannot be read for span {span} of {spans}"
            ))
            .help("only caches of all tokens, without a window, can be read, and only what they keep"));
        }
        let place = pass.kv.place(layer)?;
        self.parts.at(place, [], |device, []| device.cached(layer, part, span, pass))
    }

    /// Makes each token of `q` attend to its chosen positions, which are in the cache.
    pub(in crate::nn) fn attention_chosen(
        &self,
        spec: &Attention,
        q: &Tensor,
        chosen: &Positions,
        pass: &mut Pass<'_>,
    ) -> Result<Tensor> {
        self.check(q, 2)?;
        let place = pass.kv.place(spec.layer)?;
        self.parts.and_back(place, [q], |part, [q]| part.attention_chosen(spec, q, chosen, pass))
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
    pub(in crate::nn) fn recurrence(&self, spec: &Recurrence, x: &Inputs, pass: &Pass<'_>) -> Result<Tensor> {
        x.by_token().try_for_each(|x| self.check(x, 2))?;
        if let Decay::Element { rates, .. } = &x.decay {
            self.check(rates, 3)?;
        }
        let place = pass.kv.place(spec.layer)?;
        let brought = x.try_map(|x| self.parts.bring(x, place))?;
        self.parts.and_back(place, [&x.q], |part, [_]| part.recurrence(spec, &brought, pass))
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
