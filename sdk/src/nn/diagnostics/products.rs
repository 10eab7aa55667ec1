//! Matrix products by format, shape and rows: how long they take, and how far they are from the weights in f32.

use candle_core::{
    Device, Tensor,
    quantized::{GgmlDType, QTensor},
};
use serde_json::{Value, json};

use super::{
    Bench, difference, figure,
    timing::{Timed, time},
};
use crate::{
    Result,
    nn::backend::{Backend, Matrix, cases::wave, noise},
    weights::{Bytes, Dtype, RawTensor},
};

/// Formats that kernels read, and what quantizes them; the rest have made-up blocks. The first ones, which most models have, are
/// measured in all shapes.
pub(super) const FORMATS: [(Dtype, Option<GgmlDType>); 18] = [
    (Dtype::Q4K, Some(GgmlDType::Q4K)),
    (Dtype::Q5K, Some(GgmlDType::Q5K)),
    (Dtype::Q6K, Some(GgmlDType::Q6K)),
    (Dtype::Q8_0, Some(GgmlDType::Q8_0)),
    (Dtype::Q4_0, Some(GgmlDType::Q4_0)),
    (Dtype::F16, None),
    (Dtype::F32, None),
    (Dtype::BF16, None),
    (Dtype::Q4_1, Some(GgmlDType::Q4_1)),
    (Dtype::Q5_0, Some(GgmlDType::Q5_0)),
    (Dtype::Q5_1, Some(GgmlDType::Q5_1)),
    (Dtype::Q2K, Some(GgmlDType::Q2K)),
    (Dtype::Q3K, Some(GgmlDType::Q3K)),
    (Dtype::MXFP4, None),
    (Dtype::IQ4NL, None),
    (Dtype::IQ4XS, None),
    (Dtype::Int4, None),
    (Dtype::Int8, None),
];
const IN_ALL_SHAPES: usize = 7;

/// Outputs and inputs: projections and both halves of the MLP of a model of 8 B.
const SHAPES: [[usize; 2]; 3] = [[4_096, 4_096], [14_336, 4_096], [4_096, 14_336]];
const QUICK_SHAPES: [[usize; 2]; 1] = [[256, 512]];

const ROWS: [usize; 6] = [1, 2, 4, 8, 20, 512];
const QUICK_ROWS: [usize; 3] = [1, 4, 20];

/// Largest error, relative to the largest value: activations are rounded to 8 bits on the CPU, weights to f16 in Metal's tiles.
/// The proof at load has the same.
const TOLERANCE: f32 = 5e-3;

/// Distinct rows of a weight, which repeat: quantizing whole ones would take longer than what is measured.
const DISTINCT: usize = 32;

pub(super) fn measure(bench: &Bench<'_>) -> Result<Value> {
    let backend = bench.backend();
    let (shapes, rows) = if bench.quick { (&QUICK_SHAPES[..], &QUICK_ROWS[..]) } else { (&SHAPES[..], &ROWS[..]) };
    let all = IN_ALL_SHAPES * shapes.len() + FORMATS.len() - IN_ALL_SHAPES;
    let (mut products, total) = (Vec::new(), all * rows.len());
    for (at, (dtype, ggml)) in FORMATS.into_iter().enumerate() {
        for &[outputs, inputs] in if at < IN_ALL_SHAPES { shapes } else { &shapes[..1] } {
            let weight = Weight::new(&*backend, dtype, ggml, outputs, inputs);
            for &count in rows {
                let name = format!("{dtype} {outputs} × {inputs}, {count} rows");
                bench.progress(products.len(), total, &name);
                let mut row =
                    json!({ "weights": dtype.to_string(), "outputs": outputs, "inputs": inputs, "rows": count });
                let measured =
                    weight.as_ref().map_err(Clone::clone).and_then(|weight| weight.measure(bench, &*backend, count));
                match measured {
                    Ok((Timed { ms, repeats, allocated_bytes }, [error, size], bytes)) => {
                        row["ms"] = figure(ms);
                        row["repeats"] = json!(repeats);
                        row["allocated_bytes"] = json!(allocated_bytes);
                        row["weight_bytes_per_s"] = figure(bytes as f64 / ms * 1e3);
                        row["multiply_adds_per_s"] = figure((outputs * inputs * count) as f64 / ms * 1e3);
                        row["largest_error"] = figure(error);
                        row["largest_value"] = figure(size);
                        row["tolerance"] = figure(TOLERANCE * size);
                    }
                    Err(error) => row["error"] = json!(error.message),
                }
                products.push(row);
            }
        }
    }
    Ok(json!({ "device": bench.name, "kernels": backend.note(), "products": products }))
}

struct Weight {
    matrix: Matrix,
    bytes: usize,
    /// Its distinct rows in f32, on the CPU.
    distinct: Tensor,
}

impl Weight {
    fn new(
        backend: &dyn Backend,
        dtype: Dtype,
        ggml: Option<GgmlDType>,
        outputs: usize,
        inputs: usize,
    ) -> Result<Self> {
        let rows = match ggml {
            Some(ggml) => QTensor::quantize(&wave(DISTINCT, inputs, &Device::Cpu)?, ggml)?.data()?.into_owned(),
            None => noise::weight(dtype, DISTINCT, inputs, 1),
        };
        let raw = |outputs: usize, data: &[u8]| -> Result<RawTensor> {
            let data = Bytes::copy_of(data)?;
            Ok(RawTensor { name: String::new(), dtype, shape: vec![outputs, inputs], data })
        };
        let dense = pensieve_kernels::dequantize(&raw(DISTINCT, &rows)?)?;
        let whole = raw(outputs, &rows.repeat(outputs / DISTINCT))?;
        let matrix = Matrix { outputs, inputs, place: 0, form: backend.matrix(&whole)? };
        let distinct = Tensor::from_vec(dense, (DISTINCT, inputs), &Device::Cpu)?;
        Ok(Self { matrix, bytes: whole.data.len(), distinct })
    }

    fn measure(&self, bench: &Bench<'_>, backend: &dyn Backend, rows: usize) -> Result<(Timed, [f32; 2], usize)> {
        let x = wave(rows, self.matrix.inputs(), &bench.device)?;
        let ours = backend.linear(&x, &self.matrix, None)?;
        backend.finish()?;
        let reference = x.to_device(&Device::Cpu)?.matmul(&self.distinct.t()?)?;
        let reference = reference.repeat((1, self.matrix.outputs() / DISTINCT))?;
        let error = difference(&ours, &reference)?;
        let timed = time(backend, bench.quick, |times| {
            (0..times).try_for_each(|_| backend.linear(&x, &self.matrix, None).map(drop))
        })?;
        Ok((timed, error, self.bytes))
    }
}
