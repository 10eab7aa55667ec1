//! Applying [`Attention`] and [`TextAttention`] to a step.

use candle_core::Tensor;

use crate::{
    Error, Result,
    nn::{
        Angles, Step,
        memory::pass::Pass,
        spec::{Attention, Positions, TextAttention},
    },
};

impl Attention {
    /// Writes the new tokens' `k` (`[tokens, kv_heads · head_dim]`) and `v` (`[tokens, kv_heads · value_dim]`) to the
    /// cache, and makes each token of `q` (`[tokens, heads · head_dim]`) attend to its sequence so far: `[tokens, heads
    /// · value_dim]`. `angles` rotate queries and keys in the same call, which is faster than rotating them first.
    pub fn forward(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        angles: Option<&Angles>,
        step: &mut Step<'_>,
    ) -> Result<Tensor> {
        self.check(&[(q, self.heads, self.head_dim), (k, self.kv_heads, self.head_dim)], &step.pass)?;
        self.check(&[(v, self.kv_heads, self.value_dim)], &step.pass)?;
        self.check_cache(self.value_dim, &step.pass)?;
        let is_uniform = self.value_dim == self.head_dim;
        if let Some(rotation) = angles.and_then(Angles::common).filter(|_| is_uniform) {
            return step.ops().rotated_attention(self, [q, k, v], rotation, &mut step.pass);
        }
        let rotated = match angles {
            Some(angles) => Some((angles.rotate_queries(q, step)?, angles.rotate(k, step)?)),
            None => None,
        };
        let (q, k) = rotated.as_ref().map_or((q, k), |(q, k)| (q, k));
        if is_uniform {
            step.ops().attention(self, q, k, v, &mut step.pass)
        } else {
            step.ops().attention_over(self, q, Some((k, Some(v))), &mut step.pass)
        }
    }

    /// Latent attention (MLA): the first `value_dim` values of a key are its value, so only keys are cached.
    pub fn forward_latent(&self, q: &Tensor, k: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        self.check(&[(q, self.heads, self.head_dim), (k, self.kv_heads, self.head_dim)], &step.pass)?;
        self.check_cache(0, &step.pass)?;
        if self.value_dim == 0 || self.value_dim > self.head_dim {
            let message = format!("values of {} are no view of keys of {}", self.value_dim, self.head_dim);
            return Err(Error::invalid(message));
        }
        step.ops().attention_over(self, q, Some((k, None)), &mut step.pass)
    }

    /// Attends to the cache of an earlier layer, which that layer has already written in this step.
    pub fn forward_shared(&self, q: &Tensor, angles: Option<&Angles>, step: &mut Step<'_>) -> Result<Tensor> {
        self.check(&[(q, self.heads, self.head_dim)], &step.pass)?;
        self.check_cache(self.value_dim, &step.pass)?;
        if self.value_dim == 0 {
            return Err(Error::invalid("attention over values of no size"));
        }
        let rotated = angles.map(|angles| angles.rotate_queries(q, step)).transpose()?;
        step.ops().attention_over(self, rotated.as_ref().unwrap_or(q), None, &mut step.pass)
    }

    /// Like [`Self::forward`] with rotated queries and keys, or without `v` like [`Self::forward_latent`], but each token
    /// attends only to the positions chosen for it. Only their keys and values are read.
    pub fn forward_chosen(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: Option<&Tensor>,
        chosen: &Positions,
        step: &mut Step<'_>,
    ) -> Result<Tensor> {
        self.check(&[(q, self.heads, self.head_dim)], &step.pass)?;
        self.check_cache(if v.is_some() { self.value_dim } else { 0 }, &step.pass)?;
        if self.value_dim == 0 || v.is_none() && self.value_dim > self.head_dim {
            let message = format!("values of {} are no view of keys of {}", self.value_dim, self.head_dim);
            return Err(Error::invalid(message));
        }
        let spans = &step.batch().spans;
        if chosen.are_all(spans) && self.window.is_none() {
            self.check(&[(k, self.kv_heads, self.head_dim)], &step.pass)?;
            return step.ops().attention_over(self, q, Some((k, v)), &mut step.pass);
        }
        chosen.check(spans, self.window)?;
        step.ops().remember(self.layer, k, v, &mut step.pass)?;
        step.ops().attention_chosen(self, q, chosen, &mut step.pass)
    }

    fn check(&self, inputs: &[(&Tensor, usize, usize)], pass: &Pass<'_>) -> Result<()> {
        let tokens = pass.input().tokens.len();
        inputs.iter().try_for_each(|(x, heads, dim)| check_heads(x, tokens, *heads, *dim))
    }

    fn check_cache(&self, value_dim: usize, pass: &Pass<'_>) -> Result<()> {
        let cache = pass.kv.attention(self.layer)?;
        if (cache.kv_heads, cache.key_dim, cache.value_dim) != (self.kv_heads, self.head_dim, value_dim) {
            let Self { kv_heads, head_dim, .. } = self;
            let message = format!("attention of {kv_heads} heads of {head_dim} and {value_dim} values over a cache of");
            let (heads, keys, values) = (cache.kv_heads, cache.key_dim, cache.value_dim);
            return Err(Error::invalid(format!("{message} {heads} heads of {keys} and {values}")));
        }
        if cache.window.is_some_and(|cache| self.window.is_none_or(|window| window > cache)) {
            return Err(Error::invalid(format!(
                "layer {} reads more than the window that its cache keeps",
                self.layer
            )));
        }
        Ok(())
    }
}

impl TextAttention {
    /// Makes each token of `q` (`[tokens, heads · head_dim]`) attend to the keys and values of its text, `k` and `v`
    /// (`[tokens, kv_heads · head_dim]`): `[tokens, heads · head_dim]`. `angles` rotate queries and keys first.
    pub fn forward(&self, [q, k, v]: [&Tensor; 3], angles: Option<&Angles>, step: &Step<'_>) -> Result<Tensor> {
        self.check([q, k, v], step)?;
        let Some(angles) = angles else { return step.ops().attention_within(self, [q, k, v], None, &step.pass) };
        let (q, k) = (angles.rotate_queries(q, step)?, angles.rotate(k, step)?);
        step.ops().attention_within(self, [&q, &k, v], None, &step.pass)
    }

    /// [`Self::forward`] with `biases` added to the scores of each head by the distance from a token to the one that it
    /// attends to, `[heads, 2 · far + 1]`: from `far` tokens before it to `far` behind it. What is further away counts as
    /// if it were there.
    pub fn forward_biased(&self, [q, k, v]: [&Tensor; 3], biases: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.check([q, k, v], step)?;
        step.ops().attention_within(self, [q, k, v], Some(biases), &step.pass)
    }

    fn check(&self, [q, k, v]: [&Tensor; 3], step: &Step<'_>) -> Result<()> {
        let tokens = step.pass.input().tokens.len();
        let inputs = [(q, self.heads), (k, self.kv_heads), (v, self.kv_heads)];
        inputs.into_iter().try_for_each(|(x, heads)| check_heads(x, tokens, heads, self.head_dim))
    }
}

fn check_heads(x: &Tensor, tokens: usize, heads: usize, dim: usize) -> Result<()> {
    if x.dims2()? != (tokens, heads * dim) {
        let dims = x.dims();
        let message = format!("attention over {heads} heads of {dim} was given {dims:?} for {tokens} tokens");
        return Err(Error::invalid(message));
    }
    Ok(())
}
