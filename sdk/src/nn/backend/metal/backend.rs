//! The Metal backend: each op by its kernel, or by its formula where there is none.

use candle_core::{DType, Tensor};
use pensieve_kernels::{Activation, Glu};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use super::{
    attention::parts_values_max,
    driver::Driver,
    elementwise::{CandidatesShape, Norm},
    inputs::{Inputs, NO_SLOT},
    kernels::{MetalKernels, failed},
    products::{MATRICES, Use},
};
use crate::{
    Batch, CandidateRows, Code, Error, Output, Result, Span, Want,
    nn::{
        backend::{
            Backend, Changed, Columns, Compute, ExpertTable, Form, Formulas, Layer, LowRankForm, Matrix, Routed,
            Routing, formulas_attention, formulas_recurrence,
        },
        memory::{
            pass::Pass,
            store::{HostMemory, Store, StoreShape},
        },
        spec::{Attention, Inputs as Recurred, Recurrence, Rotation, ShortConv},
    },
    weights::{RawTensor, RopeStyle},
};

/// Rows of the step that a model begins with, and of the longest chunk of a prompt that the host makes on Metal.
const WARM_ROWS: usize = 64;
const CHUNK_ROWS: usize = 512;

impl<D: Driver> Backend for MetalKernels<D> {
    fn formulas(&self) -> &Formulas {
        &self.formulas
    }

    fn note(&self) -> String {
        match &self.declined {
            None => "our Metal kernels".into(),
            Some(why) => format!("our Metal kernels, but not all ({why}), {}", self.formulas.note()),
        }
    }

    fn begin(&self, batch: &Batch<'_>) -> Result<()> {
        let groups = batch.spans.first().map_or(0, |span| span.caches.len());
        self.set_inputs((0..groups).map(|group| Inputs::of(batch, group)))?;
        *self.states() = self.states_of(batch)?;
        Ok(())
    }

    /// Compiles what candle compiles at first use, and allocates what the longest chunk of a prompt takes.
    fn warm_up(&self, groups: usize, run: Compute<'_>) -> Result<()> {
        let made_up = [0; WARM_ROWS];
        let span = |start| Span {
            sequence: 0,
            start,
            len: 1,
            past: 0,
            want: Want::Last,
            output: Output::Logits,
            mask: &[],
            adapter: 0,
            adapter_scale: 0.0,
            caches: Vec::new(),
        };
        for rows in [WARM_ROWS, 1] {
            let nowhere = Inputs { slots: vec![NO_SLOT; rows], ..Inputs::default() };
            self.set_inputs((0..groups).map(|_| nowhere.clone()))?;
            let spans = (0..rows).map(span).collect();
            let (tokens, positions) = (&made_up[..rows], &made_up[..rows]);
            let logits = match run(&Batch { tokens, positions, spans, top: 0 }) {
                Ok(computed) => 4 * computed.rows.elem_count(),
                // Weights are placed as they are first used.
                Err(error) if matches!(error.code, Code::OutOfMemory | Code::Device) => return Err(error),
                // A model that looks for its sequences' tables finds none, and is as warm as it can be.
                Err(_) => 0,
            };
            self.finish()?;
            if rows == WARM_ROWS {
                self.arena.provide(CHUNK_ROWS / WARM_ROWS, logits)?;
            }
        }
        self.inputs().clear();
        // Contexts are divided among threadgroups where a step has few of them, or where sequences share a prefix; this suffices
        // for both.
        self.room(1, parts_values_max(self.driver.cores()))?;
        Ok(())
    }

    fn finish(&self) -> Result<()> {
        self.is_pending.store(false, Ordering::Relaxed);
        let finished = self.driver.finish();
        self.arena.release();
        finished
    }

    fn finds_best(&self) -> bool {
        true
    }

    fn read(&self, tensor: &Tensor, out: &mut [f32]) -> Result<()> {
        self.finish()?;
        let layout = tensor.layout();
        let is_plain = tensor.dtype() == DType::F32 && layout.is_contiguous() && tensor.elem_count() == out.len();
        if is_plain && self.driver.read(tensor, 4 * layout.start_offset(), bytemuck::cast_slice_mut(out))? {
            return Ok(());
        }
        crate::nn::memory::view::copy_to(&tensor.flatten_all()?, out)
    }

    fn rotation(
        &self,
        frequencies: &[f32],
        amplitude: f32,
        factors: Option<&[f32]>,
        style: RopeStyle,
        pass: &Pass<'_>,
    ) -> Result<Rotation> {
        let factor = |token: usize| amplitude * factors.map_or(1.0, |factors| factors[token]);
        let positions = pass.positions().iter().enumerate().map(|(token, &position)| (position, factor(token)));
        let dims = [positions.len(), frequencies.len()];
        let [cos, sin] = Formulas::angles(frequencies, positions);
        Ok(Rotation { cos: self.arena.values(&cos, &dims)?, sin: self.arena.values(&sin, &dims)?, style })
    }

    fn matrix(&self, raw: &RawTensor) -> Result<Form> {
        self.weight(raw)?.map_or_else(|| self.formulas.matrix(raw), Ok)
    }

    fn linear(&self, x: &Tensor, weight: &Matrix, bias: Option<&Tensor>) -> Result<Tensor> {
        match self.product(x, &[(weight, bias)], None, Use::Plain)? {
            Some(out) => Ok(out),
            None => self.formulas.linear(x, weight, bias),
        }
    }

    fn linears(&self, x: &Tensor, layers: &[Layer<'_>]) -> Result<Vec<Tensor>> {
        let mut outs = Vec::with_capacity(layers.len());
        for layers in layers.chunks(MATRICES) {
            match self.products(x, layers, None, Use::Plain)? {
                Some(made) => outs.extend(made),
                None => {
                    let made = layers.iter().map(|(weight, bias)| self.linear(x, weight, *bias));
                    outs.extend(made.collect::<Result<Vec<_>>>()?);
                }
            }
        }
        Ok(outs)
    }

    fn add_linear(&self, residual: &Tensor, x: &Tensor, weight: &Matrix, bias: Option<&Tensor>) -> Result<Tensor> {
        match self.product(x, &[(weight, bias)], Some(residual), Use::Added)? {
            Some(out) => Ok(out),
            None => self.add(residual, &self.linear(x, weight, bias)?),
        }
    }

    fn linear_act(&self, x: &Tensor, weight: &Matrix, bias: Option<&Tensor>, kind: Activation) -> Result<Tensor> {
        match self.product(x, &[(weight, bias)], None, Use::Activated(kind))? {
            Some(out) => Ok(out),
            None => self.activate(&self.formulas.linear(x, weight, bias)?, kind),
        }
    }

    fn gated(&self, x: &Tensor, layers: [Layer<'_>; 2], kind: Activation) -> Result<Tensor> {
        if let Some(out) = self.gated_product(x, layers, kind)? {
            return Ok(out);
        }
        let [gate, up] = layers.map(|(weight, bias)| self.linear(x, weight, bias));
        self.gate(&gate?, &up?, kind)
    }

    fn route(&self, logits: &Tensor, routing: &Routing<'_>) -> Result<Option<Routed>> {
        self.choose(logits, routing)
    }

    fn expert_table(&self, experts: &[[Layer<'_>; 3]]) -> Result<ExpertTable> {
        Ok(self.table_of(experts)?.map_or(ExpertTable::None, ExpertTable::Metal))
    }

    fn mixture(&self, x: &Tensor, routed: &Routed, table: &ExpertTable, glu: Glu) -> Result<Option<Tensor>> {
        match table {
            ExpertTable::Metal(table) => self.mix(x, routed, table, glu),
            _ => Ok(None),
        }
    }

    fn add(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        self.pairwise("add", [x, y], None)?.map_or_else(|| Ok((x + y)?), Ok)
    }

    fn gate(&self, gate: &Tensor, up: &Tensor, kind: Activation) -> Result<Tensor> {
        match self.pairwise("gate", [gate, up], Some(kind))? {
            Some(out) => Ok(out),
            None => Ok((self.formulas.activate(gate, kind)? * up)?),
        }
    }

    fn activate(&self, x: &Tensor, kind: Activation) -> Result<Tensor> {
        self.each(x, None, Some(kind), None)?.map_or_else(|| self.formulas.activate(x, kind), Ok)
    }

    fn bias_act_scale(
        &self,
        x: &Tensor,
        bias: Option<&Tensor>,
        kind: Option<Activation>,
        factor: Option<&Tensor>,
    ) -> Result<Tensor> {
        match self.each(x, bias, kind, factor)? {
            Some(out) => Ok(out),
            None => self.formulas.bias_act_scale(x, bias, kind, factor),
        }
    }

    fn columns(&self, x: &Tensor, parts: &[Columns]) -> Result<Vec<Tensor>> {
        self.ranges(x, parts)?.map_or_else(|| self.formulas.columns(x, parts), Ok)
    }

    fn select_rows(&self, x: &Tensor, rows: &[u32]) -> Result<Tensor> {
        self.rows_at(x, rows)?.map_or_else(|| self.formulas.select_rows(x, rows), Ok)
    }

    fn embed(&self, weight: &Matrix, pass: &Pass<'_>) -> Result<Tensor> {
        let tokens = pass.tokens();
        self.look_up(weight, tokens)?.map_or_else(|| self.formulas.embed(weight, tokens), Ok)
    }

    fn best(&self, logits: &Tensor) -> Result<Tensor> {
        self.best_of(logits)?.map_or_else(|| self.formulas.best(logits), Ok)
    }

    fn finds_candidates(&self, top: usize) -> bool {
        let fits = CandidatesShape::new(1, top, false).is_some();
        fits && self.usable.logits && self.driver.takes(&CandidatesShape::launch(1))
    }

    fn candidates(&self, logits: &Tensor, masks: &[u32], top: usize, rows: &mut CandidateRows<'_>) -> Result<bool> {
        let Some(words) = self.candidates_of(logits, masks, top)? else { return Ok(false) };
        rows.take(&words).map(|()| true)
    }

    fn norm_heads(&self, x: [&Tensor; 2], weights: [&Tensor; 2], eps: f32) -> Result<(Tensor, Tensor)> {
        match self.usable.norms {
            true => self.norms_of_heads(x, weights, eps),
            false => self.formulas.norm_heads(x, weights, eps),
        }
    }

    fn low_rank(&self, rank: usize, down: Vec<f32>, up: Vec<f32>, _single: bool) -> Result<LowRankForm> {
        match self.usable.products {
            true => self.factors(rank, down, &up),
            false => self.formulas.low_rank(rank, down, up),
        }
    }

    fn add_low_rank(&self, x: &Tensor, out: Tensor, groups: &[Changed<'_>]) -> Result<Tensor> {
        match self.usable.products {
            true => self.add_changes(x, out, groups),
            false => self.formulas.add_low_rank(x, &out, groups),
        }
    }

    fn add_low_rank_vectors(&self, tokens: &[u32], out: Tensor, groups: &[Changed<'_>]) -> Result<Tensor> {
        match self.usable.products {
            true => self.add_vectors(tokens, out, groups),
            false => self.formulas.add_low_rank_vectors(tokens, &out, groups),
        }
    }

    fn rms_norm(&self, x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
        match self.usable.norms {
            true => self.norm_rows(Norm::Rms, x, &[weight], eps),
            false => self.formulas.rms_norm(x, weight, eps),
        }
    }

    fn layer_norm(&self, x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f32) -> Result<Tensor> {
        match self.usable.norms {
            true => self.norm_rows(Norm::Layer, x, &[weight, bias], eps),
            false => self.formulas.layer_norm(x, weight, bias, eps),
        }
    }

    /// Of the exact size: candle would round it up to a power of two.
    fn store(&self, shape: StoreShape) -> Result<Store> {
        let StoreShape { kv_heads, slots, head_dim, kind } = shape;
        kind.check_metal()?;
        let bytes = shape.bytes().ok_or_else(|| Error::out_of_memory("the size overflows"))?;
        let tensor = self.driver.tensor(&self.driver.allocate(bytes)?, kind.dtype(), &[kv_heads, slots, head_dim])?;
        self.driver.zero(&tensor)?;
        Ok(Store::Shared(
            tensor.clone(),
            Box::new(SharedStore { driver: self.driver.clone(), tensor, is_pending: self.is_pending.clone() }),
        ))
    }

    fn state_store(&self, shape: StoreShape) -> Result<Store> {
        self.store(shape)
    }

    fn short_conv(&self, conv: &ShortConv, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        match self.convolve(conv, x, pass)? {
            Some(out) => Ok(out),
            None => formulas_recurrence::short_conv(&self.formulas, conv, x, pass),
        }
    }

    fn recurrence(&self, spec: &Recurrence, x: &Recurred, pass: &Pass<'_>) -> Result<Tensor> {
        self.recur(spec, x, pass)?.map_or_else(|| formulas_recurrence::recurrence(spec, x, pass), Ok)
    }

    fn attention(&self, spec: &Attention, q: &Tensor, k: &Tensor, v: &Tensor, pass: &mut Pass<'_>) -> Result<Tensor> {
        match self.attend_step(spec, [q, k, v], None, pass)? {
            Some(out) => Ok(out),
            None => formulas_attention::attention(&self.formulas, spec, q, Some((k, Some(v))), pass),
        }
    }

    fn rotated_attention(
        &self,
        spec: &Attention,
        [q, k, v]: [&Tensor; 3],
        rotation: &Rotation,
        pass: &mut Pass<'_>,
    ) -> Result<Tensor> {
        match self.attend_step(spec, [q, k, v], Some(rotation), pass)? {
            Some(out) => Ok(out),
            None => self.formulas.rotated_attention(spec, [q, k, v], rotation, pass),
        }
    }
}

/// A cache in memory that the host shares. It is read and written in place once nothing runs.
struct SharedStore<D: Driver> {
    driver: Arc<D>,
    tensor: Tensor,
    is_pending: Arc<AtomicBool>,
}

impl<D: Driver> SharedStore<D> {
    /// A step that ended with an error has left dispatches behind, which would write over what comes now. Its error was reported.
    fn settle(&self) {
        if self.is_pending.swap(false, Ordering::Relaxed) {
            let _ = self.driver.finish();
        }
    }
}

impl<D: Driver> HostMemory for SharedStore<D> {
    fn read(&self, from: usize, bytes: &mut [u8]) -> Result<()> {
        self.settle();
        match self.driver.read(&self.tensor, from, bytes)? {
            true => Ok(()),
            false => Err(failed("a cache lies where the host cannot read it")),
        }
    }

    fn write(&self, to: usize, bytes: &[u8]) -> Result<()> {
        self.settle();
        self.driver.write(&self.tensor, to, bytes)
    }
}
