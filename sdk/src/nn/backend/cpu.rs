//! The CPU backend: kernels from `pensieve-kernels`, which read weights and the KV cache in place.

mod states;

use candle_core::{Device, Tensor};
use memmap2::MmapMut;
use pensieve_kernels::{self as kernels, Activation, Level, Operand, Pool, Step};
use std::sync::{Mutex, PoisonError};

use self::states::change_states;
use super::{
    Backend, Changed, Columns, ExpertRows, FeedForward, Form, Formulas, Layer, LowRankForm, Matrix, PixelPatches,
    StoreShape, foreign,
};
use crate::{
    Batch, Error, Result,
    nn::{
        memory::{
            pass::Pass,
            store::Store,
            view::{tensor, view},
        },
        spec::{Attention, Decay, Formula, Inputs, Positions, Recurrence, Rotation, ShortConv, TextAttention, Update},
    },
    weights::{Dtype, RawTensor},
};

/// Factors up to this magnitude are stored in half precision.
const HALF_MAX: f32 = 32_768.0;

/// The CPU kernels and the threads that run them.
pub(in crate::nn) struct CpuKernels {
    pool: Pool,
    formulas: Formulas,
    /// Numbers of rows of the step's sequences.
    stretches: Mutex<Vec<usize>>,
}

impl CpuKernels {
    /// Kernels for an instruction set on `threads` threads (0: all cores).
    pub(in crate::nn) fn new(threads: usize, level: Level) -> Self {
        let pool = Pool::with_level(threads, level);
        Self { pool, formulas: Formulas::plain(Device::Cpu), stretches: Mutex::default() }
    }

    /// Cuts rows into those of each sequence, so that whether a row counts as one of many does not depend on other sequences.
    /// Rows that are not all of the step's count as one each.
    fn stretches(&self, rows: usize) -> Vec<usize> {
        stretches_or_alone(&self.stretches.lock().unwrap_or_else(PoisonError::into_inner), rows)
    }

    /// `x · Wᵀ + b` of some layers with the same input, row by row.
    fn products(&self, x: &Tensor, layers: &[Layer<'_>]) -> Result<Vec<Vec<f32>>> {
        self.products_of(x, layers, &self.stretches(x.dim(0)?))
    }

    /// The same for so many rows of each sequence.
    fn products_of(&self, x: &Tensor, layers: &[Layer<'_>], stretches: &[usize]) -> Result<Vec<Vec<f32>>> {
        let weights = layers.iter().map(|layer| Ok(cpu_layer(*layer, None)?.weight));
        let weights = weights.collect::<Result<Vec<_>>>()?;
        let mut outs = kernels::matmul_all(&self.pool, &weights, &view(x)?, stretches);
        for ((weight, bias), out) in layers.iter().zip(&mut outs) {
            let Some(bias) = bias else { continue };
            let bias = view(bias)?;
            if bias.len() != weight.outputs {
                return Err(Error::invalid(format!("{} outputs cannot have {} biases", weight.outputs, bias.len())));
            }
            kernels::add_row(&self.pool, &bias, out);
        }
        Ok(outs)
    }

    /// The same of one layer.
    fn product(&self, x: &Tensor, layer: Layer<'_>) -> Result<Vec<f32>> {
        Ok(self.products(x, &[layer])?.swap_remove(0))
    }

    /// Attends to all positions in the cache, or to the chosen ones.
    fn attend(&self, spec: &Attention, q: &Tensor, chosen: Option<&Positions>, pass: &mut Pass<'_>) -> Result<Tensor> {
        let spans = spans(spec.layer, pass)?;
        let ([key_layout, value_layout], kind) = (pass.kv.layouts(spec.layer)?, pass.kv.kind);
        let seen = pass.seen(spec);
        let [keys, values] = pass.kv.layer(spec.layer)?;
        let sinks = spec.sinks.as_ref().map(view).transpose()?;
        let (scale, window, softcap) = (spec.scale, spec.window, spec.softcap);
        let (seen, sinks) = (seen.as_deref(), sinks.as_deref());
        let scores = kernels::Scores { scale, window, ahead: 0, seen, softcap, sinks, distances: None };
        let keys = (key_layout, keys.mapped(kind)?);
        let values = if value_layout.head_dim == 0 { keys } else { (value_layout, values.mapped(kind)?) };
        let (tokens, width) = (q.dim(0)?, spec.heads * spec.value_dim);
        let past = kernels::Past { keys, values, value_dim: spec.value_dim };
        // What is beyond the values of a packed row is cut afterwards.
        let value_dim = past.whole_values();
        let past = kernels::Past { value_dim, ..past };
        let mut out = self.pool.zeros(tokens * spec.heads * value_dim);
        match chosen {
            None => kernels::attention(&self.pool, past, &spans, scores, spec.heads, &view(q)?, &mut out),
            Some(chosen) => {
                let rows = (&spans[..], chosen.rows());
                kernels::attention_chosen(&self.pool, past, rows, scores, spec.heads, &view(q)?, &mut out);
            }
        }
        if value_dim > spec.value_dim {
            out = out.chunks_exact(value_dim).flat_map(|row| &row[..spec.value_dim]).copied().collect();
        }
        tensor(out, (tokens, width))
    }

    /// Runs the steps of a formula over inputs of the same shape.
    fn formula(
        &self,
        (steps, outputs): (&[Step], &[Operand]),
        columns: &[&Tensor],
        inputs: &[&Tensor],
    ) -> Result<Vec<Tensor>> {
        let Some(first) = inputs.first() else { return Err(Error::invalid("a formula without inputs")) };
        let (rows, width) = first.dims2()?;
        let inputs = inputs.iter().map(|x| view(x)).collect::<Result<Vec<_>>>()?;
        let columns = columns.iter().map(|x| view(x)).collect::<Result<Vec<_>>>()?;
        let inputs: Vec<&[f32]> = inputs.iter().map(|values| &**values).collect();
        let columns: Vec<&[f32]> = columns.iter().map(|values| &**values).collect();
        let values = kernels::Values { inputs: &inputs, columns: &columns, width };
        let outs = kernels::elementwise(&self.pool, steps, outputs, values);
        outs.into_iter().map(|out| tensor(out, (rows, width))).collect()
    }

    /// Adds `scale · inner · up` to groups of rows.
    fn add_changes<'a>(
        &self,
        out: &Tensor,
        groups: &'a [Changed<'_>],
        input: impl Fn(usize) -> kernels::Input<'a>,
    ) -> Result<Tensor> {
        let (rows, outputs) = out.dims2()?;
        let mut changes = Vec::new();
        for (range, change, scale) in groups {
            let LowRankForm::Rows { dtype, down, up } = &change.form else { return Err(foreign("a change")) };
            let factors = kernels::Factors { dtype: *dtype, rank: change.rank, down, up };
            changes.extend(range.clone().map(|row| kernels::Change { row, factors, scale: *scale, input: input(row) }));
        }
        let mut values = self.pool.copied(&view(out)?);
        kernels::low_rank(&self.pool, &changes, outputs, &mut values);
        tensor(values, (rows, outputs))
    }
}

/// The stretches, if they are so many rows together. Otherwise it is unknown which rows they are of, so each counts as one.
fn stretches_or_alone(stretches: &[usize], rows: usize) -> Vec<usize> {
    if stretches.iter().sum::<usize>() == rows { stretches.to_vec() } else { vec![1; rows] }
}

impl Backend for CpuKernels {
    fn formulas(&self) -> &Formulas {
        &self.formulas
    }

    fn note(&self) -> String {
        format!("{} kernels on {} threads", self.pool.level().name(), self.pool.threads())
    }

    fn threads(&self) -> Option<&Pool> {
        Some(&self.pool)
    }

    fn begin(&self, batch: &Batch<'_>) -> Result<()> {
        self.group_rows(&batch.spans.iter().map(|span| span.len).collect::<Vec<_>>());
        Ok(())
    }

    fn group_rows(&self, lens: &[usize]) {
        let mut stretches = self.stretches.lock().unwrap_or_else(PoisonError::into_inner);
        stretches.clear();
        stretches.extend_from_slice(lens);
    }

    fn matrix(&self, raw: &RawTensor) -> Result<Form> {
        Ok(Form::InPlace(raw.clone()))
    }

    fn linear(&self, x: &Tensor, weight: &Matrix, bias: Option<&Tensor>) -> Result<Tensor> {
        tensor(self.product(x, (weight, bias))?, (x.dim(0)?, weight.outputs))
    }

    fn linear_of(&self, x: &Tensor, weight: &Matrix, bias: Option<&Tensor>, stretches: &[usize]) -> Result<Tensor> {
        let stretches = stretches_or_alone(stretches, x.dim(0)?);
        let out = self.products_of(x, &[(weight, bias)], &stretches)?.swap_remove(0);
        tensor(out, (x.dim(0)?, weight.outputs))
    }

    fn head_matrix(&self, raw: &RawTensor, _heads: usize) -> Result<Form> {
        self.matrix(raw)
    }

    fn head_linear(&self, x: &Tensor, weight: &Matrix, heads: usize) -> Result<Tensor> {
        let Form::InPlace(raw) = &weight.form else { return Err(foreign("a weight")) };
        let rows = x.dim(0)?;
        let stretches = self.stretches(rows);
        let out = kernels::matmul_heads(&self.pool, &cpu_matrix(raw, weight), heads, &view(x)?, &stretches);
        tensor(out, (rows, weight.outputs))
    }

    fn linears(&self, x: &Tensor, layers: &[Layer<'_>]) -> Result<Vec<Tensor>> {
        let rows = x.dim(0)?;
        let outs = self.products(x, layers)?;
        outs.into_iter().zip(layers).map(|(out, (weight, _))| tensor(out, (rows, weight.outputs))).collect()
    }

    fn feed_forward(&self, residual: Option<&Tensor>, x: &Tensor, block: &FeedForward<'_>) -> Result<Tensor> {
        let biases = [block.gate.and_then(|gate| gate.1), block.up.1, block.down.1];
        let [gate_bias, up_bias, down_bias] = biases.map(|bias| bias.map(view).transpose());
        let (gate_bias, up_bias, down_bias) = (gate_bias?, up_bias?, down_bias?);
        let gate = block.gate.map(|gate| cpu_layer(gate, gate_bias.as_deref())).transpose()?;
        let (up, down) = (cpu_layer(block.up, up_bias.as_deref())?, cpu_layer(block.down, down_bias.as_deref())?);
        let residual = residual.map(view).transpose()?;
        let rows = x.dim(0)?;
        let block = kernels::FeedForward { gate, up, down, activation: block.act };
        let out = kernels::feed_forward(&self.pool, &block, &view(x)?, &self.stretches(rows), residual.as_deref());
        tensor(out, (rows, down.weight.rows))
    }

    fn finds_best(&self) -> bool {
        true
    }

    fn best(&self, logits: &Tensor) -> Result<Tensor> {
        let (rows, width) = logits.dims2()?;
        let best = kernels::best(&self.pool, &view(logits)?, width);
        tensor(best.into_flattened(), (rows, 3))
    }

    fn add_linear(&self, residual: &Tensor, x: &Tensor, weight: &Matrix, bias: Option<&Tensor>) -> Result<Tensor> {
        let mut out = self.product(x, (weight, bias))?;
        kernels::add(&self.pool, &view(residual)?, &mut out);
        tensor(out, (x.dim(0)?, weight.outputs))
    }

    fn add(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let sum = [Step::Add(Operand::Input(0), Operand::Input(1))];
        only(self.formula((&sum, &[Operand::Step(0)]), &[], &[x, y])?)
    }

    fn experts(
        &self,
        x: &Tensor,
        experts: &[ExpertRows<'_>],
        glu: kernels::Glu,
        terms: kernels::ExpertTerms<'_>,
    ) -> Result<Option<Tensor>> {
        let Some(first) = experts.first() else { return Ok(None) };
        let shape = (x.dim(0)?, first.layers[2].0.outputs);
        let views = experts.iter().flat_map(|expert| &expert.layers).map(|(_, bias)| bias.map(view).transpose());
        let views = views.collect::<Result<Vec<_>>>()?;
        let mut prepared = Vec::with_capacity(experts.len());
        for (expert, views) in experts.iter().zip(views.chunks_exact(3)) {
            let mut layers = Vec::with_capacity(3);
            for (layer, bias) in expert.layers.iter().zip(views) {
                layers.push(cpu_layer(*layer, bias.as_deref())?);
            }
            let rows = expert.rows.clone();
            let stretches = stretches_or_alone(&expert.stretches, rows.len());
            if let [gate, up, down] = layers[..] {
                prepared.push(kernels::Expert { gate, up, down, rows, stretches });
            }
        }
        tensor(kernels::experts(&self.pool, &prepared, glu, &view(x)?, terms), shape).map(Some)
    }

    fn combine(&self, x: &Tensor, indices: &[u32], weights: &[f32], terms: usize) -> Result<Tensor> {
        let width = x.dim(1)?;
        let out = kernels::combine(&self.pool, &view(x)?, width, indices, weights, terms);
        tensor(out, (indices.len() / terms, width))
    }

    fn pixels(&self, patches: &PixelPatches<'_>) -> Result<Tensor> {
        let mut values = self.pool.zeros(patches.bytes.len());
        self.pool.run_pieces(&mut values, patches.width(), |index, row| patches.write_row(index, row));
        tensor(values, patches.shape())
    }

    fn embed(&self, weight: &Matrix, pass: &Pass<'_>) -> Result<Tensor> {
        let ids = pass.tokens();
        let Form::InPlace(raw) = &weight.form else { return Err(foreign("an embedding")) };
        let mut out = self.pool.zeros(ids.len() * weight.inputs);
        let row_bytes = raw.data.len() / weight.outputs;
        self.pool.run_pieces(&mut out, weight.inputs, |index, row| {
            let start = ids[index] as usize * row_bytes;
            kernels::dequantize_row(raw.dtype, &raw.data[start..start + row_bytes], row);
        });
        tensor(out, (ids.len(), weight.inputs))
    }

    /// Factors for weights narrower than `f32` are kept in half precision if their values fit.
    fn low_rank(&self, _rank: usize, down: Vec<f32>, up: Vec<f32>, single: bool) -> Result<LowRankForm> {
        let is_half = !single && down.iter().chain(&up).all(|value| value.abs() < HALF_MAX);
        let pack = |values: Vec<f32>| -> Vec<u8> {
            if is_half {
                values.iter().flat_map(|value| half::f16::from_f32(*value).to_le_bytes()).collect()
            } else {
                values.iter().flat_map(|value| value.to_le_bytes()).collect()
            }
        };
        let dtype = if is_half { Dtype::F16 } else { Dtype::F32 };
        Ok(LowRankForm::Rows { dtype, down: pack(down), up: pack(up) })
    }

    fn add_low_rank(&self, x: &Tensor, out: Tensor, groups: &[Changed<'_>]) -> Result<Tensor> {
        let (values, inputs) = (view(x)?, x.dim(1)?);
        self.add_changes(&out, groups, |row| kernels::Input::Values(&values[row * inputs..(row + 1) * inputs]))
    }

    fn add_low_rank_vectors(&self, tokens: &[u32], out: Tensor, groups: &[Changed<'_>]) -> Result<Tensor> {
        self.add_changes(&out, groups, |row| kernels::Input::Token(tokens[row] as usize))
    }

    fn rms_norm(&self, x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        tensor(kernels::rms_norm(&self.pool, &view(x)?, rows, width, &view(weight)?, eps), (rows, width))
    }

    fn layer_norm(&self, x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f32) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        let (x, weight, bias) = (view(x)?, view(weight)?, view(bias)?);
        tensor(kernels::layer_norm(&self.pool, &x, rows, width, &weight, Some(&bias), eps), (rows, width))
    }

    fn rotate(&self, x: &Tensor, head_dim: usize, rotation: &Rotation) -> Result<Tensor> {
        let Rotation { cos, sin, style } = rotation;
        let (tokens, width) = x.dims2()?;
        let (heads, rotary_dim) = (width / head_dim, 2 * cos.dim(1)?);
        let mut out = self.pool.copied(&view(x)?);
        kernels::rope(&self.pool, &mut out, tokens, heads, head_dim, rotary_dim, *style, &view(cos)?, &view(sin)?);
        tensor(out, (tokens, width))
    }

    fn activate(&self, x: &Tensor, kind: Activation) -> Result<Tensor> {
        tensor(kernels::activate(&self.pool, kind, &view(x)?), x.dims2()?)
    }

    fn bias_act_scale(
        &self,
        x: &Tensor,
        bias: Option<&Tensor>,
        kind: Option<Activation>,
        factor: Option<&Tensor>,
    ) -> Result<Tensor> {
        let (mut steps, mut columns, mut last) = (Vec::new(), Vec::new(), Operand::Input(0));
        let mut add = |step: Step| {
            steps.push(step);
            Operand::Step(steps.len() - 1)
        };
        if let Some(bias) = bias {
            columns.push(bias);
            last = add(Step::Add(last, Operand::Columns(0)));
        }
        if let Some(kind) = kind {
            last = add(Step::Activate(kind, last));
        }
        if let Some(factor) = factor {
            columns.push(factor);
            last = add(Step::Mul(last, Operand::Columns(columns.len() - 1)));
        }
        only(self.formula((&steps, &[last]), &columns, &[x])?)
    }

    fn columns(&self, x: &Tensor, parts: &[Columns]) -> Result<Vec<Tensor>> {
        let (rows, width) = x.dims2()?;
        let values = view(x)?;
        let part =
            |&(start, len): &Columns| tensor(kernels::columns(&self.pool, &values, width, start, len), (rows, len));
        parts.iter().map(part).collect()
    }

    fn join(&self, parts: &[&Tensor]) -> Result<Tensor> {
        let views =
            parts.iter().map(|part| Ok::<_, Error>((view(part)?, part.dims2()?))).collect::<Result<Vec<_>>>()?;
        let rows = views.first().map_or(0, |(_, (rows, _))| *rows);
        let values: Vec<(&[f32], usize)> = views.iter().map(|(values, (_, width))| (&**values, *width)).collect();
        tensor(kernels::join(&self.pool, &values), (rows, values.iter().map(|(_, width)| width).sum::<usize>()))
    }

    fn elementwise(&self, formula: &Formula, columns: &[Tensor], inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        self.formula((&formula.steps, &formula.outputs), &columns.iter().collect::<Vec<_>>(), inputs)
    }

    fn gate(&self, gate: &Tensor, up: &Tensor, kind: Activation) -> Result<Tensor> {
        tensor(kernels::activate_mul(&self.pool, kind, &view(gate)?, &view(up)?), gate.dims2()?)
    }

    fn store(&self, shape: StoreShape) -> Result<Store> {
        let bytes = shape.bytes().ok_or_else(|| Error::out_of_memory("the size overflows"))?;
        let mapped = MmapMut::map_anon(bytes).map_err(|error| Error::out_of_memory(error.to_string()))?;
        Ok(Store::Mapped(mapped))
    }

    fn attention(&self, spec: &Attention, q: &Tensor, k: &Tensor, v: &Tensor, pass: &mut Pass<'_>) -> Result<Tensor> {
        self.attention_over(spec, q, Some((k, Some(v))), pass)
    }

    fn attention_over(
        &self,
        spec: &Attention,
        q: &Tensor,
        new: Option<(&Tensor, Option<&Tensor>)>,
        pass: &mut Pass<'_>,
    ) -> Result<Tensor> {
        if let Some((k, v)) = new {
            self.remember(spec.layer, k, v, pass)?;
        }
        self.attend(spec, q, None, pass)
    }

    fn remember(&self, layer: usize, k: &Tensor, v: Option<&Tensor>, pass: &mut Pass<'_>) -> Result<()> {
        let spans = spans(layer, pass)?;
        let ([key_layout, value_layout], kind) = (pass.kv.layouts(layer)?, pass.kv.kind);
        let [keys, values] = pass.kv.layer(layer)?;
        kernels::store_kv(&self.pool, key_layout, keys.mapped_mut(kind)?, &view(k)?, &spans);
        if let Some(v) = v {
            kernels::store_kv(&self.pool, value_layout, values.mapped_mut(kind)?, &view(v)?, &spans);
        }
        Ok(())
    }

    fn cached(&self, layer: usize, part: usize, span: usize, pass: &mut Pass<'_>) -> Result<Tensor> {
        let (span, kind) = (spans(layer, pass)?[span], pass.kv.kind);
        let (layout, positions) = (pass.kv.layouts(layer)?[part], span.past + span.len);
        let mut rows = self.pool.zeros(positions * layout.kv_heads * layout.head_dim);
        kernels::load_kv(layout, pass.kv.layer(layer)?[part].mapped(kind)?, span, &mut rows);
        tensor(rows, (positions, layout.kv_heads * layout.head_dim))
    }

    fn attention_chosen(
        &self,
        spec: &Attention,
        q: &Tensor,
        chosen: &Positions,
        pass: &mut Pass<'_>,
    ) -> Result<Tensor> {
        self.attend(spec, q, Some(chosen), pass)
    }

    fn attention_within(
        &self,
        spec: &TextAttention,
        [q, k, v]: [&Tensor; 3],
        biases: Option<&Tensor>,
        pass: &Pass<'_>,
    ) -> Result<Tensor> {
        let TextAttention { heads, kv_heads, head_dim, scale, reach } = *spec;
        let texts: Vec<_> = pass.batch().spans.iter().map(|span| span.start..span.start + span.len).collect();
        let mut out = self.pool.zeros(q.elem_count());
        let biases = biases.map(|biases| Ok::<_, Error>((view(biases)?, biases.dim(1)? / 2))).transpose()?;
        let distances = biases.as_ref().map(|(biases, far)| kernels::Distances { biases, far: *far });
        let of = kernels::TextHeads { heads, kv_heads, head_dim, scale, reach, distances };
        kernels::attention_within(&self.pool, of, &texts, [&view(q)?, &view(k)?, &view(v)?], &mut out);
        tensor(out, q.dims2()?)
    }

    fn short_conv(&self, conv: &ShortConv, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        let (taps, bias) = (view(&conv.taps)?, conv.bias.as_ref().map(view).transpose()?);
        let shape = kernels::Taps {
            channels: conv.taps.dim(1)?,
            taps: &taps,
            bias: bias.as_deref(),
            activation: conv.activation,
        };
        let values = view(x)?;
        let out = change_states(conv.layer, conv.part, pass, |sequences| {
            kernels::short_conv(&self.pool, shape, &values, sequences)
        })?;
        tensor(out, x.dims2()?)
    }

    /// Updates the state matrices in place.
    fn recurrence(&self, spec: &Recurrence, x: &Inputs, pass: &Pass<'_>) -> Result<Tensor> {
        let Recurrence { heads, key_heads, interleaved_heads, key_dim, value_dim, .. } = *spec;
        let shape = kernels::Heads { heads, key_heads, interleaved_heads, key_dim, value_dim };
        let (q, k, v) = (view(&x.q)?, view(&x.k)?, view(&x.v)?);
        let (beta, skip) = (x.beta.as_ref().map(view).transpose()?, x.skip.as_ref().map(view).transpose()?);
        let (decay, rates) = match &x.decay {
            Decay::Head(decay) | Decay::Key(decay) | Decay::Value(decay) => (view(decay)?, None),
            Decay::Element { steps, rates } => (view(steps)?, Some(view(rates)?)),
        };
        let decay = match (&x.decay, &rates) {
            (Decay::Head(_), _) => kernels::Decay::Head(&decay),
            (Decay::Key(_), _) => kernels::Decay::Key(&decay),
            (Decay::Value(_), _) | (_, None) => kernels::Decay::Value(&decay),
            (Decay::Element { .. }, Some(rates)) => kernels::Decay::Element { steps: &decay, rates },
        };
        let keys = match &x.update {
            Update::RankOne { from, into } => Some((view(from)?, view(into)?)),
            Update::Sum | Update::Delta => None,
        };
        let update = match (&x.update, &keys) {
            (Update::Delta, _) => kernels::Update::Delta,
            (Update::RankOne { .. }, Some((from, into))) => kernels::Update::RankOne { from, into },
            _ => kernels::Update::Sum,
        };
        let (beta, skip) = (beta.as_deref(), skip.as_deref());
        let rows = kernels::Recurred { q: &q, k: &k, v: &v, decay, beta, update, skip };
        let out = change_states(spec.layer, spec.part, pass, |sequences| {
            kernels::recurrence(&self.pool, shape, rows, sequences)
        })?;
        tensor(out, x.v.dims2()?)
    }
}

/// The step's sequences with their blocks for a layer's cache.
fn spans<'a>(layer: usize, pass: &Pass<'a>) -> Result<Vec<kernels::Span<'a>>> {
    let group = pass.kv.group(layer)?;
    let spans = pass.batch().spans.iter();
    Ok(spans
        .map(|span| kernels::Span { start: span.start, len: span.len, past: span.past, blocks: span.blocks(group) })
        .collect())
}

/// The output of a formula that has one.
fn only(outs: Vec<Tensor>) -> Result<Tensor> {
    outs.into_iter().next().ok_or_else(|| Error::invalid("a formula without outputs"))
}

fn cpu_layer<'a>((weight, _): Layer<'a>, bias: Option<&'a [f32]>) -> Result<kernels::Layer<'a>> {
    let Form::InPlace(raw) = &weight.form else { return Err(foreign("a weight")) };
    if let Some(bias) = bias.filter(|bias| bias.len() != weight.outputs) {
        return Err(Error::invalid(format!("{} outputs cannot have {} biases", weight.outputs, bias.len())));
    }
    Ok(kernels::Layer { weight: cpu_matrix(raw, weight), bias })
}

fn cpu_matrix<'a>(raw: &'a RawTensor, weight: &Matrix) -> kernels::Matrix<'a> {
    kernels::Matrix { dtype: raw.dtype, data: &raw.data, rows: weight.outputs, cols: weight.inputs }
}
