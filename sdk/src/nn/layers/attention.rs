//! Applying [`Attention`] to a step.

use candle_core::Tensor;

use crate::{
    Error, Result,
    nn::{Angles, Step, memory::pass::Pass, spec::Attention},
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

    fn check(&self, inputs: &[(&Tensor, usize, usize)], pass: &Pass<'_>) -> Result<()> {
        let tokens = pass.input().tokens.len();
        for (x, heads, dim) in inputs {
            if x.dims2()? != (tokens, heads * dim) {
                let dims = x.dims();
                let message = format!("attention over {heads} heads of {dim} was given {dims:?} for {tokens} tokens");
                return Err(Error::invalid(message));
            }
        }
        Ok(())
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
