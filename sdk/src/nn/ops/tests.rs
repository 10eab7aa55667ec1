//! The rules for a model spread over devices, with the CPU standing in for several.

use candle_core::{DType, Device, Tensor};
use pensieve_kernels::{ExpertTerms, Glu, Level};
use std::sync::Arc;

use super::{Ops, parts::Parts};
use crate::{
    Batch, Output, Result, Span, Table, Want,
    nn::{
        Activation, Attention, Elementwise, Expr, KvShape, KvType,
        backend::{Backend, CpuKernels, ExpertRows, Formulas, Interconnect, Matrix, PixelPatches, StandIns},
        memory::{kv::KvCache, pass::Pass, store::Store},
    },
    weights::{Bytes, Dtype, RawTensor},
};

/// Stand-ins that forget to move inputs.
#[derive(Default)]
struct Forgetful(StandIns);

impl Interconnect for Forgetful {
    fn place(&self, tensor: &Tensor) -> Result<Option<usize>> {
        self.0.place(tensor)
    }

    fn bring(&self, tensor: &Tensor, _to: usize) -> Result<Tensor> {
        Ok(tensor.clone())
    }

    fn made(&self, tensor: Tensor, at: usize) -> Result<Tensor> {
        self.0.made(tensor, at)
    }

    fn keeps(&self, tensor: Tensor, at: usize) -> Result<Tensor> {
        self.0.keeps(tensor, at)
    }

    fn clear(&self) {
        self.0.clear();
    }
}

fn two(interconnect: impl Interconnect + 'static) -> Ops {
    let part = || Arc::new(Formulas::plain(Device::Cpu)) as Arc<dyn Backend>;
    Ops { parts: Parts::several(vec![part(), part()], Arc::new(interconnect)), place: 0 }
}

fn ones(rows: usize) -> Tensor {
    Tensor::ones((rows, 32), DType::F32, &Device::Cpu).unwrap()
}

fn matrix(ops: &Ops, place: usize) -> Matrix {
    let data = Bytes::copy_of(&[0; 4 * 32 * 32]).unwrap();
    let raw = RawTensor { name: "w".into(), dtype: Dtype::F32, shape: vec![32, 32], data };
    ops.by_place()[place].matrix(&raw).unwrap()
}

/// A residual block whose weight is on the second device, with a stream from the first: the sum is computed by the
/// model file.
fn block(ops: &Ops) -> Result<Tensor> {
    let weight = matrix(ops, 1);
    let x = ops.linear(&ones(3), (&matrix(ops, 0), None))?;
    let out = ops.linear(&x, (&weight, None))?;
    let sum = (x + out)?;
    ops.linear(&sum, (&weight, None))
}

#[test]
fn a_stream_moves_to_the_device_that_reads_it_and_one_that_does_not_is_found() {
    block(&two(StandIns::default())).unwrap();
    let error = block(&two(Forgetful::default())).unwrap_err();
    assert!(error.message.contains("lies on device 0 of a model, and device 1 reads it"), "{error}");
}

#[test]
fn a_sum_over_two_devices_is_found() {
    let ops = two(StandIns::default());
    let x = ops.linear(&ones(3), (&matrix(&ops, 0), None)).unwrap();
    let y = ops.linear(&ones(3), (&matrix(&ops, 1), None)).unwrap();
    let error = ops.linear(&(x + y).unwrap(), (&matrix(&ops, 1), None)).unwrap_err();
    assert!(error.message.contains("computed of what lies on devices"), "{error}");
}

/// Attention on the second device with a cache created on `place`.
fn attend(place: usize) -> Result<Tensor> {
    let ops = two(StandIns::default());
    let formulas = Formulas::plain(Device::Cpu);
    let shape = KvShape::uniform(1, 2, 16);
    let mut cache = KvCache::new(
        &shape,
        KvType::F32,
        &[1],
        |_| 1,
        |_, shape, _| match formulas.store(shape)? {
            Store::Tensor(tensor) => Ok(Store::Tensor(ops.parts.keeps(tensor, place)?)),
            store => Ok(store),
        },
    )?;
    let spans = vec![Span {
        sequence: 0,
        start: 0,
        len: 3,
        past: 0,
        want: Want::Last,
        output: Output::Logits,
        mask: &[],
        adapter: 0,
        adapter_scale: 0.0,
        caches: vec![Table::Blocks((&[0][..]).into())],
    }];
    let batch = Batch { tokens: &[0, 1, 2], positions: &[0, 1, 2], spans, top: 0 };
    let q = ops.linear(&ones(3), (&matrix(&ops, 1), None))?;
    let spec = Attention::new(0, 2, 2, 16)?;
    ops.attention(&spec, &q, &q, &q, &mut Pass::new(&batch, &mut cache))
}

#[test]
fn a_cache_on_the_wrong_device_is_found() {
    attend(1).unwrap();
    let error = attend(0).unwrap_err();
    assert!(error.message.contains("computed of what lies on devices"), "{error}");
}

/// A formula with every kind of step, by the CPU's kernel and by candle.
#[test]
fn a_formula_gives_the_same_by_kernel_and_by_tensor_operations() {
    let values = |rows: usize, width: usize, by: f32| {
        let values = (0..rows * width).map(|at| (at as f32 * by).sin()).collect();
        Tensor::from_vec(values, (rows, width), &Device::Cpu).unwrap()
    };
    let (x, y, weight) = (values(5, 300, 0.3), values(5, 300, 0.7), values(1, 300, 0.9).squeeze(0).unwrap());
    let columns = Expr::columns(&weight);
    let formula: Elementwise<2, 4> = Elementwise::new(|[x, y]| {
        let mixed = &x + (y - &x) * &columns;
        let sums = mixed.relu().sum_groups(60);
        [sums * &columns, Expr::from(0.5) - mixed.tanh(), columns.activate(Activation::Softplus), Expr::from(3.0)]
    });
    let on = |backend: Arc<dyn Backend>| formula.forward([&x, &y], &Ops::on(backend)).unwrap();
    let (ours, theirs) = (on(Arc::new(CpuKernels::new(2, Level::best()))), on(Arc::new(Formulas::plain(Device::Cpu))));
    for (ours, theirs) in ours.iter().zip(&theirs) {
        let far = (ours - theirs).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
        assert!(far < 1e-5, "{far}");
    }
    let expected: f32 = {
        let (x, y, weight) =
            (x.to_vec2::<f32>().unwrap(), y.to_vec2::<f32>().unwrap(), weight.to_vec1::<f32>().unwrap());
        let mixed = |at: usize| x[3][at] + (y[3][at] - x[3][at]) * weight[at];
        (60..120).map(|at| mixed(at).max(0.0)).sum::<f32>() * weight[70]
    };
    assert!((ours[0].to_vec2::<f32>().unwrap()[3][70] - expected).abs() < 1e-4);
}

#[test]
fn a_formula_is_refused_for_inputs_that_it_was_not_made_for() {
    let ops = Ops::on(Arc::new(CpuKernels::new(1, Level::best())));
    let refused = |formula: &Elementwise<1, 1>, x: &Tensor| formula.forward([x], &ops).unwrap_err().message;
    let wide = Expr::columns(&Tensor::zeros(33, DType::F32, &Device::Cpu).unwrap());
    assert_eq!(refused(&Elementwise::new(|[x]| [x + wide]), &ones(3)), "32 columns cannot have [33] values");
    let message = refused(&Elementwise::new(|[x]| [x.sum_groups(5)]), &ones(3));
    assert_eq!(message, "32 columns are no whole number of groups of 5");
    let mut other = None;
    let _: Elementwise<2, 0> = Elementwise::new(|[_, y]| {
        other = Some(y);
        []
    });
    let foreign = Elementwise::new(|[_]| [other.unwrap()]);
    assert_eq!(refused(&foreign, &ones(3)), "a formula of 1 inputs reads input 1 of another formula");
    let half = ones(3).to_dtype(DType::F16).unwrap();
    assert!(refused(&Elementwise::new(|[x]| [x.relu()]), &half).contains("not a dense f32 tensor"));
    let two: Elementwise<2, 1> = Elementwise::new(|[x, y]| [x + y]);
    assert!(two.forward([&ones(3), &ones(2)], &ops).unwrap_err().message.contains("a formula of [3, 32] and [2, 32]"));
}

/// The operations by the CPU's kernels, and by formulas alone.
fn kernels_and_formulas() -> [Ops; 2] {
    let backends: [Arc<dyn Backend>; 2] =
        [Arc::new(CpuKernels::new(2, Level::best())), Arc::new(Formulas::plain(Device::Cpu))];
    backends.map(Ops::on)
}

#[test]
fn weighted_sums_of_rows_are_those_of_their_terms() {
    let x = Tensor::new(&[[1.0_f32, 2.0], [10.0, 20.0], [100.0, 200.0]], &Device::Cpu).unwrap();
    for ops in kernels_and_formulas() {
        let sums = |indices: &[u32], weights: &[f32], terms| ops.combine(&x, indices, weights, terms);
        let made = sums(&[0, 1, 2, 2], &[1.0, -1.0, 0.5, 0.25], 2).unwrap();
        assert_eq!(made.to_vec2::<f32>().unwrap(), [[-9.0, -18.0], [75.0, 150.0]]);
        for (indices, terms) in [(&[0, 3][..], 2), (&[0, 1], 0), (&[0, 1, 2], 2)] {
            assert!(sums(indices, &vec![1.0; indices.len()], terms).is_err(), "{indices:?} in terms of {terms}");
        }
        // More terms than are gathered at once.
        let wide = Tensor::ones((1, 1 << 20), DType::F32, &Device::Cpu).unwrap();
        let made = ops.combine(&wide, &[0; 24], &(0..24).map(|term| term as f32).collect::<Vec<_>>(), 3).unwrap();
        let firsts: Vec<f32> = made.to_vec2::<f32>().unwrap().iter().map(|row| row[1]).collect();
        assert_eq!(firsts, [3.0, 12.0, 21.0, 30.0, 39.0, 48.0, 57.0, 66.0]);
    }
}

#[test]
fn experts_take_rows_of_any_step_but_only_of_their_width() {
    let [ops, _] = kernels_and_formulas();
    let identity: Vec<u8> = (0..32 * 32).flat_map(|at| f32::from(at % 33 == 0).to_le_bytes()).collect();
    let data = Bytes::copy_of(&identity).unwrap();
    let raw = RawTensor { name: "w".into(), dtype: Dtype::F32, shape: vec![32, 32], data };
    let weight = ops.by_place()[0].matrix(&raw).unwrap();
    let terms = ExpertTerms { sources: &[0, 2, 1], places: &[0, 2, 1], weights: &[1.0, 2.0, 3.0], top_k: 1 };
    let sums = |x: &Tensor, stretches: [&[usize]; 2]| {
        let rows = [0..2, 2..3].into_iter().zip(stretches);
        let experts = rows.map(|(rows, stretches)| ExpertRows {
            layers: [(&weight, None); 3],
            rows,
            stretches: stretches.to_vec(),
        });
        ops.experts(x, &experts.collect::<Vec<_>>(), Glu::Plain(Activation::Silu), terms)
    };
    let x = (ones(3) * 2.0).unwrap();
    // Rows of one sequence, of two, and of none that the step has.
    for stretches in [[&[2][..], &[1]], [&[1, 1], &[1]], [&[], &[5]]] {
        let made = sums(&x, stretches).unwrap().unwrap().to_vec2::<f32>().unwrap();
        for (row, weight) in made.iter().zip([1.0, 2.0, 3.0]) {
            let expected = weight * 4.0 / (1.0 + (-2.0_f32).exp());
            assert!(row.iter().all(|value| (value - expected).abs() < 1e-5), "{row:?} for {expected}");
        }
    }
    for width in [16, 64] {
        let x = Tensor::ones((3, width), DType::F32, &Device::Cpu).unwrap();
        assert!(sums(&x, [&[2], &[1]]).is_err(), "rows of {width}");
    }
}

#[test]
fn pixels_become_values_by_color_in_either_order() {
    // Two patches of two pixels; the value of a byte is itself, plus a thousand for each color.
    let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
    let values: Vec<f32> = (0..3 * 256).map(|index| (index % 256 + 1000 * (index / 256)) as f32).collect();
    for ops in kernels_and_formulas() {
        let rows = |is_planar, area, bytes| {
            let patches = PixelPatches { bytes, area, values: &values, is_planar };
            ops.pixels(&patches).map(|rows| rows.to_vec2::<f32>().unwrap())
        };
        let pixels = [[1.0, 1002.0, 2003.0, 4.0, 1005.0, 2006.0], [7.0, 1008.0, 2009.0, 10.0, 1011.0, 2012.0]];
        assert_eq!(rows(false, 2, &bytes).unwrap(), pixels);
        let planes = [[1.0, 4.0, 1002.0, 1005.0, 2003.0, 2006.0], [7.0, 10.0, 1008.0, 1011.0, 2009.0, 2012.0]];
        assert_eq!(rows(true, 2, &bytes).unwrap(), planes);
        for (area, bytes) in [(0, &bytes[..]), (3, &bytes), (2, &[])] {
            assert!(rows(true, area, bytes).is_err(), "{} bytes as patches of {area}", bytes.len());
        }
    }
}
