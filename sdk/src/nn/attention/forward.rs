//! Attention as a layer of a model.

use candle_core::Tensor;

use super::Attention;
use crate::{
    Error, Result,
    nn::{Angles, Step},
};

impl Attention {
    /// Remembers the new tokens' `k` (`[tokens, kv_heads · head_dim]`) and `v` (`[tokens, kv_heads · value_dim]`), and has each
    /// token of `q` (`[tokens, heads · head_dim]`) attend to its sequence so far: `[tokens, heads · value_dim]`.
    pub fn forward(&self, q: &Tensor, k: &Tensor, v: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        self.check(&[(q, self.heads, self.head_dim), (k, self.kv_heads, self.head_dim)], &step.pass)?;
        self.check(&[(v, self.kv_heads, self.value_dim)], &step.pass)?;
        self.check_cache(self.value_dim, &step.pass)?;
        if self.value_dim == self.head_dim {
            step.ops().attention(self, q, k, v, &mut step.pass)
        } else {
            step.ops().attention_over(self, q, Some((k, Some(v))), &mut step.pass)
        }
    }

    /// The same of queries and keys that are rotated first. At once, which is faster than one after the other.
    pub fn forward_rotated(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        angles: &Angles,
        step: &mut Step<'_>,
    ) -> Result<Tensor> {
        if self.value_dim != self.head_dim {
            return self.forward(&angles.rotate(q, step)?, &angles.rotate(k, step)?, v, step);
        }
        self.check(&[(q, self.heads, self.head_dim), (k, self.kv_heads, self.head_dim)], &step.pass)?;
        self.check(&[(v, self.kv_heads, self.value_dim)], &step.pass)?;
        self.check_cache(self.value_dim, &step.pass)?;
        step.ops().rotated_attention(self, [q, k, v], angles.rotation(), &mut step.pass)
    }

    /// The same where the first `value_dim` values of a key are the values too, and only keys are remembered.
    pub fn forward_latent(&self, q: &Tensor, k: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        self.check(&[(q, self.heads, self.head_dim), (k, self.kv_heads, self.head_dim)], &step.pass)?;
        self.check_cache(0, &step.pass)?;
        if self.value_dim == 0 || self.value_dim > self.head_dim {
            let message = format!("values of {} are no view of keys of {}", self.value_dim, self.head_dim);
            return Err(Error::invalid(message));
        }
        step.ops().attention_over(self, q, Some((k, None)), &mut step.pass)
    }

    /// The same over what an earlier layer has remembered in this step and before.
    pub fn forward_shared(&self, q: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        self.check(&[(q, self.heads, self.head_dim)], &step.pass)?;
        self.check_cache(self.value_dim, &step.pass)?;
        if self.value_dim == 0 {
            return Err(Error::invalid("attention over values of no size"));
        }
        step.ops().attention_over(self, q, None, &mut step.pass)
    }
}
