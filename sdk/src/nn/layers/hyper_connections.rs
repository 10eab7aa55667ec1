//! Hyper-connections (arXiv 2409.19606), constrained to doubly stochastic mixing as in mHC (2512.24880): the residual
//! stream is several streams, which each half of a block reads as one, and writes back to all.
//!
//! Streams lie side by side in the rows of one activation, `[tokens, streams · width]`.

use candle_core::{D, Tensor};

use crate::{
    Error, Result,
    nn::{Linear, Loader, RmsNorm, Step},
};

/// The connections around one half of a block.
#[derive(Clone, Debug)]
pub struct HyperConnections {
    norm: RmsNorm,
    /// One row for each weight: reading, writing, then mixing.
    weights: Linear,
    base: Tensor,
    scale: Vec<f32>,
    streams: usize,
    width: usize,
    eps: f64,
    iterations: usize,
}

/// How the output of a half of a block is written back to its streams.
#[derive(Clone, Debug)]
pub struct HyperMix {
    streams: Tensor,
    /// `[tokens, streams]`.
    write: Tensor,
    /// `[tokens, from, to]`.
    mix: Tensor,
}

impl HyperConnections {
    /// Loads the tensors `fn`, `base` and `scale` below `loader`, for this number of streams of this width. `eps` is
    /// for the norm of all streams together.
    pub fn load(loader: &Loader<'_>, streams: usize, width: usize, eps: f64) -> Result<Self> {
        Self::load_rows(loader, ["fn", "base", "scale"], (streams, width), (streams * (streams + 2), 3), eps)
    }

    /// Loads the connections that read the streams a last time, in front of the final norm: tensors with these names
    /// (such as `["hc_fn", "hc_base", "hc_scale"]`) and only the rows for reading. [`Self::collapse`] applies them.
    pub fn load_head(loader: &Loader<'_>, names: [&str; 3], streams: usize, width: usize, eps: f64) -> Result<Self> {
        Self::load_rows(loader, names, (streams, width), (streams, 1), eps)
    }

    fn load_rows(
        loader: &Loader<'_>,
        [weights, base, scale]: [&str; 3],
        (streams, width): (usize, usize),
        (rows, scales): (usize, usize),
        eps: f64,
    ) -> Result<Self> {
        if streams == 0 {
            return Err(Error::corrupt("hyper-connections of no streams"));
        }
        let raw = loader.raw(weights, &[rows, streams * width])?;
        let scale = loader.raw(scale, &[scales])?.to_f32()?;
        Ok(Self {
            norm: RmsNorm::without_weight(loader, streams * width, eps)?,
            weights: loader.linear_of(weights, &raw)?,
            base: loader.vector(base, rows)?,
            scale,
            streams,
            width,
            eps: 1e-6,
            iterations: 20,
        })
    }

    /// Sets the number of Sinkhorn–Knopp iterations, 20 by default, and the epsilon of weights and divisors, 1e-6.
    #[must_use]
    pub fn with_sinkhorn(self, iterations: usize, eps: f64) -> Self {
        Self { iterations, eps, ..self }
    }

    /// Makes streams of embeddings, all the same.
    pub fn expand(x: &Tensor, streams: usize) -> Result<Tensor> {
        Ok(Tensor::cat(&vec![x; streams], 1)?)
    }

    /// Reads the streams as one input, `[tokens, width]`. The second value writes the output back.
    pub fn read(&self, streams: &Tensor, step: &Step<'_>) -> Result<(Tensor, HyperMix)> {
        let (weights, n) = (self.weights_of(streams, step)?, self.streams);
        if self.scale.len() != 3 {
            return Err(Error::invalid("the connections of the last reading write nothing").help("use collapse"));
        }
        let input = self.weighed(&self.reading(&weights)?, streams)?;
        let write = (sigmoid(&self.part(&weights, n, n, 1)?)? * 2.0)?;
        let mix = self.part(&weights, 2 * n, n * n, 2)?.reshape(((), n, n))?;
        Ok((input, HyperMix { streams: streams.clone(), write, mix: self.doubly_stochastic(&mix)? }))
    }

    /// Reads the streams a last time.
    pub fn collapse(&self, streams: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let weights = self.weights_of(streams, step)?;
        self.weighed(&self.reading(&weights)?, streams)
    }

    fn weights_of(&self, streams: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.weights.forward(&self.norm.forward(streams, step)?, step)
    }

    /// Some columns of the weights, scaled and shifted.
    fn part(&self, weights: &Tensor, start: usize, len: usize, scale: usize) -> Result<Tensor> {
        let scale = f64::from(self.scale.get(scale).copied().unwrap_or(1.0));
        Ok((weights.narrow(1, start, len)? * scale)?.broadcast_add(&self.base.narrow(0, start, len)?)?)
    }

    fn reading(&self, weights: &Tensor) -> Result<Tensor> {
        Ok((sigmoid(&self.part(weights, 0, self.streams, 0)?)? + self.eps)?)
    }

    /// The sum of the streams, each times its weight.
    fn weighed(&self, weights: &Tensor, streams: &Tensor) -> Result<Tensor> {
        let streams = streams.reshape(((), self.streams, self.width))?;
        Ok(weights.unsqueeze(1)?.contiguous()?.matmul(&streams)?.squeeze(1)?.contiguous()?)
    }

    /// Normalizes rows and columns in turn, until both sum to one.
    fn doubly_stochastic(&self, mix: &Tensor) -> Result<Tensor> {
        let exp = mix.broadcast_sub(&mix.max_keepdim(D::Minus1)?)?.exp()?;
        let mix = (exp.broadcast_div(&exp.sum_keepdim(D::Minus1)?)? + self.eps)?;
        let divided = |mix: &Tensor, dim: D| mix.broadcast_div(&(mix.sum_keepdim(dim)? + self.eps)?);
        let mut mix = divided(&mix, D::Minus2)?;
        for _ in 1..self.iterations {
            mix = divided(&divided(&mix, D::Minus1)?, D::Minus2)?;
        }
        Ok(mix)
    }
}

impl HyperMix {
    /// Mixes the streams, and adds `out` to each with its weight.
    pub fn write(&self, out: &Tensor) -> Result<Tensor> {
        let (tokens, n) = self.write.dims2()?;
        let width = out.dim(1)?;
        let streams = self.streams.reshape((tokens, n, width))?;
        let mixed = self.mix.transpose(1, 2)?.contiguous()?.matmul(&streams)?;
        let added = self.write.unsqueeze(2)?.contiguous()?.matmul(&out.unsqueeze(1)?)?;
        Ok((mixed + added)?.reshape((tokens, n * width))?)
    }
}

fn sigmoid(x: &Tensor) -> Result<Tensor> {
    Ok((x.neg()?.exp()? + 1.0)?.recip()?)
}
