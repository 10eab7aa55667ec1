//! The ops of layers beside attention and plain products, for a report: each op on a backend and by its formula on the CPU.

use candle_core::{Device, Tensor};
use half::f16;
use pensieve_kernels::Activation;

use super::products::FORMATS;
use crate::{
    CandidateRows, Result,
    nn::{
        backend::{
            Backend, FeedForward, Formulas, Layer, Matrix,
            cases::{MIXTURES, Mixture, RECURRENT, TEXTS, wave},
            noise,
        },
        memory::{kv::KvCache, pass::Pass},
        spec::{Elementwise, Expr, KvShape, KvType},
    },
    weights::{Bytes, Dtype, RawTensor},
    {Batch, VACANT},
};

/// An op with its inputs.
pub(super) struct Op {
    pub(super) name: String,
    /// The difference allowed, as a part of the largest value where that is above 1.
    pub(super) tolerance: f32,
    compute: Compute,
    /// The expected value; `None` if the formulas compute the op as well.
    expected: Option<Expected>,
}

/// `None` on a backend that leaves the op to layers.
type Compute = Box<dyn Fn(&dyn Backend) -> Result<Option<Tensor>>>;
type Expected = Box<dyn Fn() -> Result<Tensor>>;

impl Op {
    fn of(name: impl Into<String>, tolerance: f32, compute: impl Fn(&dyn Backend) -> Result<Tensor> + 'static) -> Self {
        let compute = Box::new(move |backend: &dyn Backend| compute(backend).map(Some));
        Self { name: name.into(), tolerance, compute, expected: None }
    }

    /// The op's output on a backend, and the expected one; `None` if the backend leaves the op to layers.
    pub(super) fn both(&self, backend: &dyn Backend) -> Result<Option<[Tensor; 2]>> {
        let Some(ours) = (self.compute)(backend)? else { return Ok(None) };
        backend.finish()?;
        let expected = match &self.expected {
            Some(expected) => expected()?,
            None => match (self.compute)(&Formulas::exact(Device::Cpu))? {
                Some(expected) => expected,
                None => return Ok(None),
            },
        };
        Ok(Some([ours, expected]))
    }
}

/// All of them.
pub(super) fn ops() -> Vec<Op> {
    let mut ops = vec![
        Op::of("layer_norm, 3 × 300", 1e-4, |backend| {
            let weight = row(backend, 300)?;
            backend.layer_norm(&of(backend, 3, 300)?, &weight, &weight, 1e-5)
        }),
        Op::of("norms of heads", 1e-4, |backend| {
            let (q, k) = (of(backend, 5, 8 * 128)?, of(backend, 5, 2 * 128)?);
            let (q, k) = backend.norm_heads([&q, &k], [&row(backend, 128)?; 2], 1e-6)?;
            Ok(Tensor::cat(&[q, k], 1)?)
        }),
        Op::of("columns", 0.0, |backend| {
            Ok(Tensor::cat(&backend.columns(&of(backend, 3, 70)?, &[(0, 30), (30, 1), (31, 39)])?, 1)?)
        }),
        Op::of("bias_act_scale", 1e-4, |backend| {
            let row = row(backend, 70)?;
            backend.bias_act_scale(&of(backend, 5, 70)?, Some(&row), Some(Activation::Sigmoid), Some(&row))
        }),
        Op::of("an element-wise formula", 1e-4, |backend| {
            let formula = formula(&row(backend, 70)?).0;
            let outs =
                backend.elementwise(&formula, &formula.columns, &[&of(backend, 5, 70)?, &of(backend, 5, 70)?])?;
            Ok(Tensor::cat(&outs, 1)?)
        }),
        Op::of("add", 0.0, |backend| backend.add(&of(backend, 3, 200)?, &of(backend, 3, 200)?)),
        Op::of("best", 1e-4, |backend| backend.best(&of(backend, 3, 1500)?)),
    ];
    for rows in [1, 2, 3, 7, 40] {
        ops.push(Op::of(format!("an activated product of {rows} rows"), 5e-3, move |backend| {
            let (weight, bias) = (half(backend, HALF, 0.05)?, row(backend, HALF[0])?);
            backend.linear_act(&of(backend, rows, HALF[1])?, &weight, Some(&bias), Activation::GeluTanh)
        }));
        ops.push(Op::of(format!("a gated product of {rows} rows"), 5e-3, move |backend| {
            let weight = half(backend, HALF, 0.05)?;
            let layers: [Layer<'_>; 2] = [(&weight, None); 2];
            backend.gated(&of(backend, rows, HALF[1])?, layers, Activation::Silu)
        }));
        ops.push(Op::of(format!("a product of {rows} rows on a residual"), 5e-3, move |backend| {
            let weight = half(backend, HALF, 0.05)?;
            backend.add_linear(&of(backend, rows, HALF[0])?, &of(backend, rows, HALF[1])?, &weight, None)
        }));
        ops.push(Op::of(format!("a feed-forward block of {rows} rows"), 5e-3, move |backend| {
            let [outputs, inputs] = HALF;
            let (gate, up) = (half(backend, HALF, 0.05)?, half(backend, HALF, -0.03)?);
            let down = half(backend, [inputs, outputs], 0.05)?;
            let (of_up, of_down) = (row(backend, outputs)?, row(backend, inputs)?);
            let (up, down, act) = ((&up, Some(&of_up)), (&down, Some(&of_down)), Activation::Silu);
            let gated = FeedForward { gate: Some((&gate, None)), up, down, act };
            let plain = FeedForward { gate: None, ..gated };
            let x = of(backend, rows, inputs)?;
            let outs = [backend.feed_forward(Some(&x), &x, &gated)?, backend.feed_forward(None, &x, &plain)?];
            Ok(Tensor::cat(&outs, 0)?)
        }));
    }
    let embeddings =
        FORMATS.iter().map(|&(dtype, _)| Op::of(format!("embed: {dtype}"), 1e-3, move |b| embed(b, dtype)));
    ops.extend(embeddings);
    for case in RECURRENT {
        ops.push(Op::of(format!("recurrent: {}", case.name), 1e-3, move |backend| case.compute_flat(backend)));
    }
    for case in TEXTS {
        let name = format!("attention within texts: {}", case.name);
        ops.push(Op::of(name, 1e-4, move |backend| case.compute(backend)));
    }
    for (rows, glu) in MIXTURES {
        ops.push(Op {
            name: format!("experts of {rows} rows, {glu:?}"),
            tolerance: 2e-2,
            compute: Box::new(move |backend| Mixture::new(backend)?.compute(backend, rows, glu)),
            expected: Some(Box::new(move || Mixture::new(&Formulas::plain(Device::Cpu))?.formula(rows, glu))),
        });
    }
    for top in [1, 40, 512] {
        ops.push(Op {
            name: format!("{top} candidates"),
            tolerance: 1e-4,
            compute: Box::new(move |backend| candidates(backend, top)),
            expected: Some(Box::new(move || chosen(top))),
        });
    }
    ops
}

/// A formula with every kind of step.
fn formula(weight: &Tensor) -> Elementwise<2, 3> {
    let weight = Expr::columns(weight);
    Elementwise::new(|[x, y]| {
        let mixed = &x + (&y - &x) * &weight;
        let sums = (mixed.relu() * Expr::from(0.5)).sum_groups(14);
        [Expr::from(2.0) - mixed.tanh(), sums * y.activate(Activation::Silu), weight + Expr::from(1.0)]
    })
}

fn of(backend: &dyn Backend, rows: usize, columns: usize) -> Result<Tensor> {
    wave(rows, columns, backend.device())
}

fn row(backend: &dyn Backend, columns: usize) -> Result<Tensor> {
    Ok(of(backend, 1, columns)?.squeeze(0)?)
}

/// Outputs and inputs of a weight in f16.
const HALF: [usize; 2] = [50, 512];

fn half(backend: &dyn Backend, shape: [usize; 2], scale: f32) -> Result<Matrix> {
    let values = wave(shape[0], shape[1], &Device::Cpu)?.flatten_all()?.to_vec1::<f32>()?;
    let data: Vec<u8> = values.iter().flat_map(|value| f16::from_f32(scale * value).to_le_bytes()).collect();
    matrix(backend, Dtype::F16, shape, &data)
}

fn matrix(backend: &dyn Backend, dtype: Dtype, [outputs, inputs]: [usize; 2], data: &[u8]) -> Result<Matrix> {
    let data = Bytes::copy_of(data)?;
    let raw = RawTensor { name: String::new(), dtype, shape: vec![outputs, inputs], data };
    Ok(Matrix { outputs, inputs, place: 0, form: backend.matrix(&raw)? })
}

fn embed(backend: &dyn Backend, dtype: Dtype) -> Result<Tensor> {
    let matrix = matrix(backend, dtype, [7, 512], &noise::weight(dtype, 7, 512, 5))?;
    let ids = [3, 0, 6, 6, 1];
    let batch = Batch { tokens: &ids, positions: &ids, spans: Vec::new(), top: 0 };
    let shape = KvShape::uniform(1, 1, 64);
    let mut cache = KvCache::new(&shape, KvType::F16, &[1], |_| 0, |_, shape, _| backend.store(shape))?;
    backend.begin(&batch)?;
    backend.embed(&matrix, &Pass::new(&batch, &mut cache))
}

const LOGITS: [usize; 2] = [3, 1500];

fn masks() -> Vec<u32> {
    (0..LOGITS[0] * LOGITS[1].div_ceil(32)).map(|word| 0x9249_2492_u32.rotate_left(word as u32)).collect()
}

/// Ids, scores and totals of rows of logits under masks, all as values; `None` if the backend leaves them to the host.
fn candidates(backend: &dyn Backend, top: usize) -> Result<Option<Tensor>> {
    let (mut ids, mut scores, mut totals) = room(top);
    let mut rows = CandidateRows { ids: &mut ids, scores: &mut scores, totals: &mut totals };
    let logits = of(backend, LOGITS[0], LOGITS[1])?;
    let is_found = backend.finds_candidates(top) && backend.candidates(&logits, &masks(), top, &mut rows)?;
    if is_found { flat(&ids, &scores, &totals).map(Some) } else { Ok(None) }
}

/// The same as the host chooses them.
fn chosen(top: usize) -> Result<Tensor> {
    let (mut ids, mut scores, mut totals) = room(top);
    let mut rows = CandidateRows { ids: &mut ids, scores: &mut scores, totals: &mut totals };
    let logits = wave(LOGITS[0], LOGITS[1], &Device::Cpu)?.to_vec2::<f32>()?;
    let masks = masks();
    for (row, (logits, mask)) in logits.iter().zip(masks.chunks(LOGITS[1].div_ceil(32))).enumerate() {
        rows.choose(row, top, logits, mask);
    }
    flat(&ids, &scores, &totals)
}

fn room(top: usize) -> (Vec<u32>, Vec<f32>, Vec<f32>) {
    (vec![VACANT; LOGITS[0] * top], vec![f32::NAN; LOGITS[0] * top], vec![f32::NAN; 2 * LOGITS[0]])
}

/// Vacant entries become fixed numbers.
fn flat(ids: &[u32], scores: &[f32], totals: &[f32]) -> Result<Tensor> {
    let ids = ids.iter().map(|id| if *id == VACANT { -1.0 } else { *id as f32 });
    let scores = scores.iter().map(|score| if *score == f32::NEG_INFINITY { 0.0 } else { *score });
    let all: Vec<f32> = ids.chain(scores).chain(totals.iter().copied()).collect();
    let count = all.len();
    Ok(Tensor::from_vec(all, count, &Device::Cpu)?)
}
