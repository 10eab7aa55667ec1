//! Compares kernels with the formulas on their device when a model loads.

use candle_core::{DType, Tensor};
use half::{bf16, f16};
use pensieve_kernels::{Activation, Glu};

use super::{CudaKernels, locked, memory::failed};
use crate::{
    Batch, Output, Result, Span, StateCopy, Table, Want,
    nn::{
        KvType,
        backend::{
            Backend, Form, Matrix, PixelPatches, Routing,
            cases::{self, Activations, CASES, Case, PACKED, Part, RECURRENT, Recurrent, TEXTS},
            formulas_attention, formulas_chosen, formulas_recurrence,
        },
        memory::{kv::KvCache, pass::Pass, store::StoreShape},
        spec::{Attention, KvShape, Rotation},
    },
    weights::{Bytes, Dtype, RawTensor, RopeStyle},
};

impl CudaKernels {
    /// Compares kernels with their formulas.
    pub(super) fn prove(&self) -> Result<()> {
        let wave = |rows, columns| self.formulas.wave(rows, columns);
        let same =
            |what: &str, ours: Result<Tensor>, formula: Result<Tensor>| -> Result<()> { same(what, &ours?, &formula?) };
        let (x, y, weight) = (wave(5, 96)?, wave(5, 96)?, wave(1, 96)?.squeeze(0)?);
        same("rms_norm", self.rms_norm(&x, &weight, 1e-5), self.formulas.rms_norm(&x, &weight, 1e-5))?;
        same(
            "layer_norm",
            self.layer_norm(&x, &weight, &weight, 1e-5),
            self.formulas.layer_norm(&x, &weight, &weight, 1e-5),
        )?;
        for kind in
            [Activation::Silu, Activation::GeluErf, Activation::GeluTanh, Activation::Sigmoid, Activation::Softplus]
        {
            same("gate", self.gate(&x, &y, kind), self.formulas.gate(&x, &y, kind))?;
            let (add, times) = (Some(&weight), Some(&weight));
            let formula = self.formulas.bias_act_scale(&x, add, Some(kind), times);
            same("bias_act_scale", self.bias_act_scale(&x, add, Some(kind), times), formula)?;
        }
        let parts = [(3, 50), (0, 96), (95, 1), (0, 1), (60, 7)];
        for (ours, formula) in self.columns(&x, &parts)?.into_iter().zip(self.formulas.columns(&x, &parts)?) {
            same("columns", Ok(ours), Ok(formula))?;
        }
        let (indices, weights) = ([4, 0, 2, 2, 1, 3], [0.5, -1.0, 2.0, 0.0, 1.0, 0.25]);
        let formula = self.formulas.combine(&x, &indices, &weights, 3);
        same("combine", self.combine(&x, &indices, &weights, 3), formula)?;
        let bytes: Vec<u8> = (0..=255).cycle().step_by(7).take(2 * 3 * 25).collect();
        let values: Vec<f32> = (0..3 * 256).map(|index| (index as f32 / 100.0).sin()).collect();
        for is_planar in [false, true] {
            let patches = PixelPatches { bytes: &bytes, area: 25, values: &values, is_planar };
            same("pixels", self.pixels(&patches), Backend::pixels(&self.formulas, &patches))?;
        }
        for style in [RopeStyle::NeoX, RopeStyle::Interleaved] {
            let rotation = Rotation { cos: wave(5, 8)?, sin: wave(5, 8)?, style };
            same("rotate", self.rotate(&x, 32, &rotation), self.formulas.rotate(&x, 32, &rotation))?;
        }
        Ok(())
    }

    /// Compares quantized products of one row, two, a few and many.
    pub(super) fn prove_products(&self) -> Result<()> {
        let (outputs, inputs) = (40, 288);
        // Blocks of 32 values start with a scale, in some formats followed by a minimum. Any further bytes are valid.
        for (dtype, halves) in [(Dtype::Q8_0, 1), (Dtype::Q4_0, 1), (Dtype::Q4_1, 2)] {
            let block = |index: usize| {
                let half = f16::from_f32(0.01 + 0.001 * (index % 7) as f32).to_le_bytes();
                let rest = (0..dtype.block_bytes() - 2 * halves).map(move |at| (37 * (32 * index + at)) as u8);
                half.repeat(halves).into_iter().chain(rest)
            };
            let data: Vec<u8> = (0..outputs * inputs / 32).flat_map(block).collect();
            let (shape, data) = (vec![outputs, inputs], Bytes::copy_of(&data)?);
            let raw = RawTensor { name: String::new(), dtype, shape, data };
            let dense =
                Tensor::from_vec(pensieve_kernels::dequantize(&raw)?, (outputs, inputs), &self.formulas.device)?.t()?;
            let weight = Matrix { outputs, inputs, place: 0, form: self.matrix(&raw)? };
            // More than 32 rows are multiplied by cuBLAS.
            for rows in [1, 2, 5, 40] {
                let x = self.formulas.wave(rows, inputs)?;
                let (ours, formula) = (self.linear(&x, &weight, None)?, x.matmul(&dense)?);
                let (difference, size) = (largest(&(&ours - &formula)?)?, largest(&formula)?);
                if difference > 5e-3 * size {
                    let what = format!("a product of {rows} rows with {dtype} differs by {difference} of {size}");
                    return Err(failed(what));
                }
            }
        }
        self.prove_halves()
    }

    /// Compares products of many rows with weights in half precision whose rows are no whole number of blocks.
    fn prove_halves(&self) -> Result<()> {
        let (outputs, inputs, rows) = (40, 84, 40);
        for dtype in [DType::BF16, DType::F16] {
            let (x, sum) = (self.formulas.wave(rows, inputs)?, self.formulas.wave(rows, outputs)?);
            let (bias, weight) = (self.formulas.wave(1, outputs)?.squeeze(0)?, self.formulas.wave(outputs, inputs)?);
            let weight = weight.to_dtype(dtype)?;
            let formula = (x.matmul(&weight.to_dtype(DType::F32)?.t()?)?.broadcast_add(&bias)? + &sum)?;
            let weight = Matrix { outputs, inputs, place: 0, form: Form::Dense(weight) };
            let ours = self.add_linear(&sum, &x, &weight, Some(&bias))?;
            let (difference, size) = (largest(&(&ours - &formula)?)?, largest(&formula)?);
            if difference > 5e-3 * size {
                let what = format!("a product of {rows} rows with {dtype:?} differs by {difference} of {size}");
                return Err(failed(what));
            }
        }
        Ok(())
    }

    /// Compares the kernel's best logits; ties go to the first.
    pub(super) fn prove_best(&self) -> Result<()> {
        let (rows, width) = (3, 5000);
        let logits = (self.formulas.wave(rows, width)? * 8.0)?.round()?;
        let (ours, formula) = (self.best(&logits)?.to_vec2::<f32>()?, self.formulas.best(&logits)?.to_vec2::<f32>()?);
        let is_same =
            |(ours, formula): (&Vec<f32>, &Vec<f32>)| ours[..2] == formula[..2] && (ours[2] - formula[2]).abs() < 1e-3;
        let is_right = ours.len() == rows && ours.iter().zip(&formula).all(is_same);
        if is_right { Ok(()) } else { Err(failed("the best logits differ")) }
    }

    /// Compares small mixtures with their formula: a single row, and rows in tiles.
    pub(super) fn prove_mixture(&self) -> Result<()> {
        let (count, width, inner, top_k) = (8, 64, 32, 2);
        let layer = |index: usize, outputs: usize, inputs: usize| -> Result<(Matrix, Tensor)> {
            let values = self.formulas.wave(outputs, inputs)?.affine(0.1, 0.01 * index as f64)?.flatten_all()?;
            let values: Vec<bf16> = values.to_vec1::<f32>()?.into_iter().map(bf16::from_f32).collect();
            let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let (dtype, shape, data) = (Dtype::BF16, vec![outputs, inputs], Bytes::copy_of(&data)?);
            let raw = RawTensor { name: String::new(), dtype, shape, data };
            let dense = Tensor::from_vec(raw.to_f32()?, (outputs, inputs), &self.formulas.device)?;
            Ok((Matrix { outputs, inputs, place: 0, form: self.matrix(&raw)? }, dense))
        };
        let expert = |index: usize| -> Result<_> {
            Ok([
                layer(3 * index, inner, width)?,
                layer(3 * index + 1, inner, width)?,
                layer(3 * index + 2, width, inner)?,
            ])
        };
        let experts = (0..count).map(expert).collect::<Result<Vec<_>>>()?;
        let layers: Vec<_> = experts.iter().map(|layers| layers.each_ref().map(|(matrix, _)| (matrix, None))).collect();
        let table = self.table_of(&layers)?.ok_or_else(|| failed("experts in bf16 have no table"))?;
        let (scale, silu) = (1.5, Activation::Silu);
        let routing =
            Routing { top_k, is_sigmoid: true, renormalize: true, scale, correction: None, groups: Some([4, 2, 1]) };
        for rows in [1, 5] {
            let (x, logits) = (self.formulas.wave(rows, width)?, self.formulas.wave(rows, count)?);
            let routed = self.choose_experts(&logits, &routing)?.ok_or_else(|| failed("nothing was chosen"))?;
            let ours = self.mix(&x, &routed, &table, Glu::Plain(silu))?;
            let ours = ours.ok_or_else(|| failed("gated experts have no kernel"))?;
            let mut formula = Vec::with_capacity(rows);
            for (row, logits) in logits.to_vec2::<f32>()?.into_iter().enumerate() {
                let (x, mut order) = (x.narrow(0, row, 1)?, (0..count).collect::<Vec<_>>());
                order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
                let group = |expert: usize| expert / 2;
                let first = group(order[0]);
                let second = order.iter().map(|&expert| group(expert)).find(|&other| other != first);
                order.retain(|&expert| group(expert) == first || Some(group(expert)) == second);
                let score = |expert: usize| 1.0 / (1.0 + (-logits[expert]).exp());
                let total: f32 = order[..top_k].iter().map(|&expert| score(expert)).sum();
                let mut sum: Tensor = Tensor::zeros((1, width), x.dtype(), x.device())?;
                for &expert in &order[..top_k] {
                    let [gate, up, down] = experts[expert].each_ref().map(|(_, dense)| dense.t());
                    let hidden = self.formulas.gate(&x.matmul(&gate?)?, &x.matmul(&up?)?, silu)?;
                    let weight = f64::from(scale * score(expert) / total);
                    sum = (sum + (hidden.matmul(&down?)? * weight)?)?;
                }
                formula.push(sum);
            }
            let difference = largest(&(ours - Tensor::cat(&formula, 0)?)?)?;
            if difference > 1e-3 {
                return Err(failed(format!("experts differ by {difference}")));
            }
        }
        Ok(())
    }

    /// Compares attention within whole texts.
    pub(super) fn prove_texts(&self) -> Result<()> {
        TEXTS.iter().try_for_each(|case| {
            same(&format!("{}, within texts,", case.name), &case.compute(self)?, &case.compute(&self.formulas)?)
        })
    }

    /// Compares packed keys and values of two sequences with those that formulas write, and attention over them: in tiles,
    /// token by token, and in parts of a context.
    pub(super) fn prove_packed(&self) -> Result<()> {
        PACKED.iter().filter(|case| case.at_load).try_for_each(|case| self.prove_packed_case(case))
    }

    fn prove_packed_case(&self, case: &Case) -> Result<()> {
        let steps: [[Part; 2]; 2] = [[(0, 150), (0, 9)], [(150, 1), (9, 3)]];
        let tables = cases::tables([151, 12]);
        let shape = KvShape::uniform(1, case.kv_heads, case.head_dim);
        let blocks = tables.iter().map(Vec::len).sum();
        let cache =
            || KvCache::new(&shape, case.kv, &[blocks], |_| 0, |_, shape: StoreShape, _| self.formulas.store(shape));
        let (mut ours, mut theirs) = (cache()?, cache()?);
        for parts in steps {
            let tokens = vec![0; parts.iter().map(|(_, len)| len).sum()];
            let batch = Batch { tokens: &tokens, positions: &tokens, spans: cases::spans(&parts, &tables), top: 0 };
            locked(&self.inputs).set(&self.module, &batch, 0)?;
            let Activations { qkv: [q, k, v], spec, rotation } = Activations::of(*case, tokens.len(), self.device())?;
            let (mut ours, mut theirs) = (Pass::new(&batch, &mut ours), Pass::new(&batch, &mut theirs));
            let found = self.rotated_attention(&spec, [&q, &k, &v], &rotation, &mut ours)?;
            let [q, k] = [&q, &k].map(|x| self.formulas.rotate(x, case.head_dim, &rotation));
            formulas_attention::remember(&self.formulas, 0, [Some(&k?), Some(&v)], &mut theirs)?;
            for (part, span) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
                let rows = |pass: &mut Pass<'_>| formulas_chosen::cached(&self.formulas, 0, part, span, pass);
                let difference = largest(&(rows(&mut ours)? - rows(&mut theirs)?)?)?;
                if difference > case.packed_step() {
                    return Err(failed(format!("rows of {} differ by {difference}", case.name)));
                }
            }
            let formula = formulas_attention::attention(&self.formulas, &spec, &q?, None, &mut ours)?;
            let (difference, size) = (largest(&(found - &formula)?)?, largest(&formula)?);
            if difference > 5e-3 * size {
                return Err(failed(format!("attention of {} differs by {difference} of {size}", case.name)));
            }
        }
        Ok(())
    }

    /// Compares attention of two sequences with items that are seen as a whole, in tiles and token by token. Some items
    /// reach over the border of a tile, and some tokens see no further than themselves.
    pub(super) fn prove_seen(&self) -> Result<()> {
        let parts = [(0, 150), (20, 9)];
        let items = [3..40, 50..140, 152..157];
        let tables = cases::tables(parts.map(|(past, len)| past + len));
        let tokens = vec![0; 159];
        let batch = Batch { tokens: &tokens, positions: &tokens, spans: cases::spans(&parts, &tables), top: 0 };
        let mut seen: Vec<u32> =
            parts.iter().flat_map(|&(past, len)| past as u32 + 1..(past + len) as u32 + 1).collect();
        for item in items {
            let end = seen[item.end - 1];
            seen[item].fill(end);
        }
        locked(&self.inputs).set(&self.module, &batch, 0)?;
        for window in [None, Some(30)] {
            let case = Case { window, ..CASES[0] };
            let Activations { qkv: [q, k, v], spec, .. } = Activations::of(case, tokens.len(), self.device())?;
            let spec = Attention { whole_items: true, ..spec };
            let shape = KvShape::uniform(1, case.kv_heads, case.head_dim);
            let blocks = tables.iter().map(Vec::len).sum();
            let cache = || {
                KvCache::new(&shape, case.kv, &[blocks], |_| 0, |_, shape: StoreShape, _| self.formulas.store(shape))
            };
            let (mut ours, mut theirs) = (cache()?, cache()?);
            let (mut ours, mut theirs) = (Pass::new(&batch, &mut ours), Pass::new(&batch, &mut theirs));
            ours.see(seen.clone());
            theirs.see(seen.clone());
            let found = self.attend_step(&spec, [&q, &k, &v], None, &mut ours)?;
            let found = found.ok_or_else(|| failed("attention to whole items has no kernel"))?;
            let formula = formulas_attention::attention(&self.formulas, &spec, &q, Some((&k, Some(&v))), &mut theirs)?;
            let (difference, size) = (largest(&(found - &formula)?)?, largest(&formula)?);
            if difference > 5e-3 * size {
                return Err(failed(format!("attention to whole items differs by {difference} of {size}")));
            }
        }
        Ok(())
    }

    /// Compares convolutions and recurrences with their formulas: those that fade per head, or all others.
    pub(super) fn prove_recurrence(&self, by_head: bool) -> Result<()> {
        RECURRENT.iter().filter(|case| case.is_by_head() == by_head).try_for_each(|case| self.prove_states(case))
    }

    /// Compares over two steps: new sequences, one of which saves a copy midway, then each continued by one token
    /// beside a padding row.
    fn prove_states(&self, case: &Recurrent) -> Result<()> {
        let copy = |after: usize, slot: u32| Some(StateCopy { after, slot });
        let begin = [Sequence::new(9, 0, None, 0, copy(4, 2)), Sequence::new(2, 0, None, 1, None)];
        let go_on = [Sequence::new(1, 9, Some(0), 0, copy(10, 4)), Sequence::new(1, 2, Some(1), 3, None)];
        let device = self.device();
        let (spec, conv, shape) = (case.spec()?, case.conv(device)?, case.shape());
        let cache =
            || KvCache::new(&shape, KvType::F32, &[5], |_| 0, |_, shape: StoreShape, _| self.formulas.store(shape));
        let (mut ours, mut theirs) = (cache()?, cache()?);
        for (sequences, padding) in [(&begin, 0), (&go_on, 1)] {
            let tokens = vec![0; sequences.iter().map(|one| one.rows).sum()];
            let batch = Batch { tokens: &tokens, positions: &tokens, spans: spans(sequences), top: 0 };
            locked(&self.inputs).set(&self.module, &batch, tokens.len() + padding)?;
            let padded = vec![0; tokens.len() + padding];
            let padded = Batch { tokens: &padded, positions: &padded, spans: Vec::new(), top: 0 };
            let (ours, theirs) = (Pass::new(&padded, &mut ours), Pass::new(&batch, &mut theirs));
            // Only inputs with a row per token have two dimensions.
            let real = |x: &Tensor| -> Result<Tensor> {
                Ok(if x.rank() == 2 { x.narrow(0, 0, tokens.len())?.force_contiguous()? } else { x.clone() })
            };
            let x = self.formulas.wave(tokens.len() + padding, conv.taps.dim(1)?)?;
            let found = self.convolve(&conv, &x, &ours)?.ok_or_else(|| failed("a convolution has no kernel"))?;
            let formula = formulas_recurrence::short_conv(&self.formulas, &conv, &real(&x)?, &theirs)?;
            same("a convolution", &real(&found)?, &formula)?;
            let x = case.inputs(tokens.len() + padding, device)?;
            let found = self.recur(&spec, &x, &ours)?.ok_or_else(|| failed("a recurrence has no kernel"))?;
            let formula = formulas_recurrence::recurrence(&spec, &x.try_map(real)?, &theirs)?;
            same(&format!("a recurrence, {},", case.name), &real(&found)?, &formula)?;
        }
        for part in [0, 1] {
            same("a state", ours.states(0, part)?, theirs.states(0, part)?)?;
        }
        Ok(())
    }
}

/// A sequence of a step in a proof.
struct Sequence {
    rows: usize,
    past: usize,
    table: Table<'static>,
}

impl Sequence {
    fn new(rows: usize, past: usize, read: Option<u32>, write: u32, copy: Option<StateCopy>) -> Self {
        Self { rows, past, table: Table::Slots { read, write, copies: copy.into_iter().collect() } }
    }
}

fn spans(sequences: &[Sequence]) -> Vec<Span<'static>> {
    let mut start = 0;
    let one = |(index, one): (usize, &Sequence)| {
        start += one.rows;
        Span {
            sequence: index as u64,
            start: start - one.rows,
            len: one.rows,
            past: one.past,
            want: Want::Last,
            output: Output::Logits,
            mask: &[],
            adapter: 0,
            adapter_scale: 0.0,
            caches: vec![one.table.clone()],
        }
    };
    sequences.iter().enumerate().map(one).collect()
}

fn same(what: &str, ours: &Tensor, formula: &Tensor) -> Result<()> {
    let difference = largest(&(ours - formula)?)?;
    if difference < 1e-4 { Ok(()) } else { Err(failed(format!("{what} differs by {difference}"))) }
}

/// The largest absolute value, infinite if any value is NaN: candle's own maximum ignores NaN.
fn largest(x: &Tensor) -> Result<f32> {
    let values = x.flatten_all()?.to_vec1::<f32>()?;
    Ok(values.into_iter().map(|value| if value.is_nan() { f32::INFINITY } else { value.abs() }).fold(0.0, f32::max))
}
