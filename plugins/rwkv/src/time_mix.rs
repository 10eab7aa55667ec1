//! RWKV-7's mix over time, with the generalized delta rule: `S ← diag(w) · S − (a ⊙ κ̂)ᵀ (κ̂ · S) + kᵀ · v`.

use pensieve_sdk::{
    Result,
    nn::{
        Activation, Decay, Elementwise, Expr, LayerNorm, Linear, Loader, Recurrence, RmsNorm, ShortConv, Step, Tensor,
    },
};
use std::cell::RefCell;

use crate::{Config, vector};

/// The activation within a low-rank layer.
enum Inner {
    Formula(Elementwise<1, 1>),
    Identity,
}

/// Two layers with an activation between them, and a bias.
struct LowRank {
    down: Linear,
    inner: Inner,
    up: Linear,
}

impl LowRank {
    fn load(loader: &Loader<'_>, name: &str, (width, rank): (usize, usize), inner: Inner) -> Result<Self> {
        let here = loader.at(name);
        let up = here.linear("lora.2", rank, width)?;
        // In GGUF files the bias is a tensor of its own.
        let up = if here.has("bias.weight") { up.with_bias(Some(here.vector("bias.weight", width)?)) } else { up };
        Ok(Self { down: here.linear("lora.0", width, rank)?, inner, up })
    }

    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let inner = self.down.forward(x, step)?;
        match &self.inner {
            Inner::Formula(formula) => {
                let [inner] = formula.forward([&inner], step.ops())?;
                self.up.forward(&inner, step)
            }
            Inner::Identity => self.up.forward(&inner, step),
        }
    }
}

pub struct TimeMix {
    shift: ShortConv,
    /// Mixes each token with the one before, for receptance, decay, key, value, learning rate and gate.
    mix: Elementwise<2, 6>,
    r_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    w_lora: LowRank,
    a_lora: LowRank,
    /// None in the first layer, whose values the others mix into theirs.
    v_lora: Option<LowRank>,
    g_lora: LowRank,
    k_k: Tensor,
    /// `−exp(−1/2)`, the fastest decay, for each channel.
    fastest: Tensor,
    removed_norm: RmsNorm,
    /// The key, and the two vectors of the change of rank one, of the key, the learning rate and the removed key.
    keys: Elementwise<3, 3>,
    /// Takes a part of each value from the first layer's.
    values: Elementwise<3, 1>,
    recurrence: Recurrence,
    /// Of each head, without weights.
    g_norm: LayerNorm,
    /// Adds a token's share in its own output, its value times `r · k`, and applies the gate.
    gate: Elementwise<5, 1>,
}

impl TimeMix {
    pub fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let (width, head_dim, ranks) = (config.hidden_size, config.head_dim, config.ranks);
        let heads = width / head_dim;
        let linear = |name: &str| loader.linear(name, width, width);
        let low_rank = |name: &str, rank: usize, inner| LowRank::load(loader, name, (width, rank), inner);
        let constant = |value: f32, len: usize| Tensor::from_vec(vec![value; len], len, loader.device());
        let columns = |name: &str| -> Result<Expr> { Ok(Expr::columns(&vector(loader, name, width)?)) };
        let (mixes, k_a, r_k) = (mixes(loader, width)?, columns("k_a")?, columns("r_k")?);
        let (g_weight, g_bias) = (columns("g_norm.weight")?, columns("g_norm.bias")?);
        let sigmoid = || Inner::Formula(Elementwise::new(|[x]| [x.activate(Activation::Sigmoid)]));
        Ok(Self {
            shift: ShortConv::shift(loader, layer, width)?,
            mix: Elementwise::new(|[x, before]| {
                let delta = before - &x;
                mixes.each_ref().map(|mix| &x + &delta * Expr::columns(mix))
            }),
            r_proj: linear("r_proj")?,
            k_proj: linear("k_proj")?,
            v_proj: linear("v_proj")?,
            o_proj: linear("o_proj")?,
            w_lora: low_rank("w_lora", ranks.decay, Inner::Formula(Elementwise::new(|[x]| [x.tanh()])))?,
            a_lora: low_rank("a_lora", ranks.learning_rate, Inner::Identity)?,
            v_lora: if layer == 0 { None } else { Some(low_rank("v_lora", ranks.value, Inner::Identity)?) },
            g_lora: low_rank("g_lora", ranks.gate, sigmoid())?,
            k_k: vector(loader, "k_k", width)?,
            fastest: constant(-(-0.5_f32).exp(), width)?,
            removed_norm: RmsNorm::to_length(loader, head_dim, 1.0, 1e-24)?,
            keys: Elementwise::new(|[k, a, removed]| {
                let a = a.activate(Activation::Sigmoid);
                let key = &k + (&k * &a - &k) * k_a;
                [key, Expr::from(0.0) - &removed, removed * a]
            }),
            values: Elementwise::new(|[v, first, part]| [&v + (first - &v) * part.activate(Activation::Sigmoid)]),
            recurrence: Recurrence { part: 2, ..Recurrence::new(layer, heads, heads, head_dim, head_dim)? },
            g_norm: LayerNorm::of(
                constant(1.0, head_dim)?,
                constant(0.0, head_dim)?,
                head_dim as f64 * config.norm_eps,
            ),
            gate: Elementwise::new(|[normed, r, k, v, g]| {
                let share = (r * k * r_k).sum_groups(head_dim) * v;
                [(normed * g_weight + g_bias + share) * g]
            }),
        })
    }

    /// `residual + mix(x)`. The first layer leaves its values in `v_first`.
    pub fn add_to(
        &self,
        residual: &Tensor,
        x: &Tensor,
        v_first: &RefCell<Option<Tensor>>,
        step: &mut Step<'_>,
    ) -> Result<Tensor> {
        let before = self.shift.forward(x, step)?;
        let ops = step.ops();
        let [xr, xw, xk, xv, xa, xg] = self.mix.forward([x, &before], ops)?;
        // Each projection has an input of its own, so none can share a product.
        let project = |layer: &Linear, x: &Tensor| layer.forward(x, step);
        let (r, k, v) = (project(&self.r_proj, &xr)?, project(&self.k_proj, &xk)?, project(&self.v_proj, &xv)?);
        let v = self.mix_values(v, &xv, v_first, step)?;
        let w = self.w_lora.forward(&xw, step)?;
        let decay = ops.bias_act_scale(&w, None, Some(Activation::Sigmoid), Some(&self.fastest))?;
        let (a, g) = (self.a_lora.forward(&xa, step)?, self.g_lora.forward(&xg, step)?);
        let removed = ops.bias_act_scale(&k, None, None, Some(&self.k_k))?;
        let removed = self.removed_norm.forward_heads(&removed, step)?;
        let [k, from, into] = self.keys.forward([&k, &a, &removed], ops)?;
        let out = self.recurrence.rank_one([&r, &k, &v], Decay::Key(decay), [&from, &into], step)?;
        let normed = self.g_norm.forward(&out.reshape(((), self.recurrence.value_dim))?, step)?;
        let [out] = self.gate.forward([&normed.reshape(out.dims())?, &r, &k, &v, &g], step.ops())?;
        self.o_proj.add_to(residual, &out, step)
    }

    /// Takes a part of each value from the first layer.
    fn mix_values(&self, v: Tensor, x: &Tensor, v_first: &RefCell<Option<Tensor>>, step: &Step<'_>) -> Result<Tensor> {
        let Some(v_lora) = &self.v_lora else {
            v_first.replace(Some(v.clone()));
            return Ok(v);
        };
        let first = v_first.borrow();
        let Some(first) = first.as_ref() else { return Ok(v) };
        let [mixed] = self.values.forward([&v, first, &v_lora.forward(x, step)?], step.ops())?;
        Ok(mixed)
    }
}

/// The six mixes, which GGUF files have in one tensor.
fn mixes(loader: &Loader<'_>, width: usize) -> Result<[Tensor; 6]> {
    let names = ["x_r", "x_w", "x_k", "x_v", "x_a", "x_g"];
    let fused = if loader.has("x_fused.weight") { Some(vector(loader, "x_fused", 6 * width)?) } else { None };
    let mix = |index: usize| -> Result<Tensor> {
        match &fused {
            Some(fused) => Ok(fused.narrow(0, index * width, width)?.force_contiguous()?),
            None => vector(loader, names[index], width),
        }
    };
    Ok([mix(0)?, mix(1)?, mix(2)?, mix(3)?, mix(4)?, mix(5)?])
}
