//! candle's ops on a device against the same ops on the CPU: every line of the table that says which ones the formulas call.

use candle_core::{
    DType, Device, Module, Result as CandleResult, Tensor,
    quantized::{GgmlDType, QMatMul, QTensor},
};
use serde_json::{Value, json};

use super::{Bench, difference, figure};
use crate::{Error, Result};

const TABLE: &str = include_str!("../backend/metal/ops.txt");

/// Sides of the operands: odd ones, so that a kernel which takes several values at a time has some left.
const ROWS: usize = 37;
const COLUMNS: usize = 67;
/// A whole number of blocks of every format.
const BLOCKED_COLUMNS: usize = 256;

/// Conversions of a number that candle makes in the host's memory, whatever device it is for.
const ON_THE_HOST: [&str; 1] = ["to_f32: f64 dense"];

pub(super) fn measure(bench: &Bench<'_>) -> Result<Value> {
    let lines: Vec<&str> = TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let rows = lines.iter().enumerate().map(|(done, line)| {
        bench.progress(done, lines.len(), line);
        let device = if ON_THE_HOST.contains(line) { &Device::Cpu } else { &bench.device };
        match run(line, device).and_then(|ours| difference(&ours, &run(line, &Device::Cpu)?)) {
            Ok([error, size]) => json!({
                "op": line, "largest_error": figure(error), "largest_value": figure(size),
                "tolerance": tolerance(line) * size.max(1.0),
            }),
            Err(error) => json!({ "op": line, "error": error.message }),
        }
    });
    let rows: Vec<Value> = rows.collect();
    Ok(json!({ "device": bench.name, "lines": rows }))
}

/// Allowed difference for each unit of the largest value: the rounding of the shortest type on the way.
fn tolerance(line: &str) -> f32 {
    match () {
        () if line.contains("bf16") => 2e-2,
        // Quantized products of many rows go through half precision on a GPU.
        () if line.contains("f16") || line.starts_with("qmatmul") => 5e-3,
        () => 1e-4,
    }
}

/// An operand of a line, such as `f32 transposed`.
struct Operand<'a> {
    dtype: &'a str,
    layout: &'a str,
}

/// Computes a line's op on a device.
fn run(line: &str, device: &Device) -> Result<Tensor> {
    let unknown = || Error::invalid(format!("no example of '{line}' is known"));
    let (name, operands) = line.split_once(": ").ok_or_else(unknown)?;
    let operand = |text| {
        let (dtype, layout) = str::split_once(text, ' ')?;
        Some(Operand { dtype, layout })
    };
    let operands: Option<Vec<Operand<'_>>> = operands.split(", ").map(operand).collect();
    compute(name, &operands.ok_or_else(unknown)?, device)?.ok_or_else(unknown)
}

fn compute(name: &str, operands: &[Operand<'_>], device: &Device) -> CandleResult<Option<Tensor>> {
    let Some(first) = operands.first() else { return Ok(None) };
    let at = |index: usize| operands.get(index).unwrap_or(first);
    if name == "matmul" {
        let x = values(at(0), ROWS, COLUMNS, device)?;
        let w = match at(1).layout {
            "transposed" => values(&Operand { layout: "dense", ..*at(1) }, ROWS, COLUMNS, device)?.t()?,
            _ => values(at(1), COLUMNS, ROWS, device)?,
        };
        return x.matmul(&w).map(Some);
    }
    let x = if name == "log" || name == "sqrt" { positive(device)? } else { values(at(0), ROWS, COLUMNS, device)? };
    let computed = match name {
        "copy" if at(0).layout == "view" => x.force_contiguous()?,
        "copy" => x.copy()?,
        "copy2d" => Tensor::cat(&[&x, &x], 1)?,
        "affine" => x.affine(1.5, -0.25)?,
        "qmatmul" => return quantized(device).map(Some),
        "sum" => x.sum_keepdim(1)?,
        "max" => x.max_keepdim(1)?,
        "min" => x.min_keepdim(1)?,
        "index_select" => values(at(1), ROWS, COLUMNS, device)?.index_select(&ids(&[5, 0, 36, 5], device)?, 0)?,
        "scatter_set" => scattered(at(1), at(2), device)?,
        "where_cond" => x.where_cond(&values(at(1), ROWS, COLUMNS, device)?, &values(at(2), ROWS, COLUMNS, device)?)?,
        _ if name.starts_with("to_") => {
            let Some(dtype) = dtype(&name[3..]) else { return Ok(None) };
            x.to_dtype(dtype)?
        }
        _ => match unary(name, &x)? {
            Some(computed) => computed,
            None => {
                let y = second(at(1), device)?;
                return binary(name, &x, &y);
            }
        },
    };
    Ok(Some(computed))
}

fn unary(name: &str, x: &Tensor) -> CandleResult<Option<Tensor>> {
    Ok(Some(match name {
        "exp" => x.exp()?,
        "gelu" => x.gelu()?,
        "gelu_erf" => x.gelu_erf()?,
        "log" => x.log()?,
        "neg" => x.neg()?,
        "recip" => x.affine(0.1, 2.0)?.recip()?,
        "relu" => x.relu()?,
        "silu" => x.silu()?,
        "sqr" => x.sqr()?,
        "sqrt" => x.sqrt()?,
        "tanh" => x.tanh()?,
        _ => return Ok(None),
    }))
}

fn binary(name: &str, x: &Tensor, y: &Tensor) -> CandleResult<Option<Tensor>> {
    Ok(Some(match name {
        "add" => x.broadcast_add(y)?,
        "sub" => x.broadcast_sub(y)?,
        "mul" => x.broadcast_mul(y)?,
        "div" => x.broadcast_div(&y.affine(0.1, 3.0)?)?,
        "maximum" => x.broadcast_maximum(y)?,
        "minimum" => x.broadcast_minimum(y)?,
        "eq" => x.round()?.broadcast_eq(&y.round()?)?,
        _ => return Ok(None),
    }))
}

/// A second operand: a view is a row that is broadcast.
fn second(operand: &Operand<'_>, device: &Device) -> CandleResult<Tensor> {
    match operand.layout {
        "view" => values(&Operand { layout: "dense", ..*operand }, 1, COLUMNS, device),
        _ => values(operand, ROWS, COLUMNS, device),
    }
}

fn values(operand: &Operand<'_>, rows: usize, columns: usize, device: &Device) -> CandleResult<Tensor> {
    let value = |i: usize| (i as f32 * 0.73).sin() * 3.0 + (i as f32 * 0.19).cos();
    let is_whole = matches!(operand.dtype, "u8" | "u32");
    let value = |i: usize| if is_whole { (i % 7) as f32 } else { value(i) };
    let dtype = dtype(operand.dtype).unwrap_or(DType::F32);
    // Made on the host, so that a device's own conversion is not part of every line.
    let made = |rows: usize, columns: usize| -> CandleResult<Tensor> {
        Tensor::from_iter((0..rows * columns).map(value), &Device::Cpu)?.reshape((rows, columns))?.to_dtype(dtype)
    };
    match operand.layout {
        "dense" => made(rows, columns)?.to_device(device),
        "transposed" => made(columns, rows)?.to_device(device)?.t(),
        _ => made(rows, columns + 3)?.to_device(device)?.narrow(1, 2, columns),
    }
}

fn positive(device: &Device) -> CandleResult<Tensor> {
    let values = (0..ROWS * COLUMNS).map(|i| 0.1 + (i % 19) as f32);
    Tensor::from_iter(values, &Device::Cpu)?.reshape((ROWS, COLUMNS))?.to_device(device)
}

fn ids(ids: &[u32], device: &Device) -> CandleResult<Tensor> {
    Tensor::new(ids, device)
}

/// Rows written where ids say, as new keys into a cache.
fn scattered(into: &Operand<'_>, from: &Operand<'_>, device: &Device) -> CandleResult<Tensor> {
    let memory = values(into, ROWS, COLUMNS, device)?.force_contiguous()?;
    let rows = ids(&[7, 0, 36], device)?.reshape((3, 1))?.broadcast_as((3, COLUMNS))?.contiguous()?;
    memory.scatter_set(&rows, &values(from, 3, COLUMNS, device)?, 0)?;
    Ok(memory)
}

/// Quantized products of one row and of some, side by side; the weights of both devices hold the same blocks.
fn quantized(device: &Device) -> CandleResult<Tensor> {
    let dense = Operand { dtype: "f32", layout: "dense" };
    let mut products = Vec::new();
    for format in [GgmlDType::Q4_0, GgmlDType::Q8_0, GgmlDType::Q4K, GgmlDType::Q5K, GgmlDType::Q6K] {
        let weight = QTensor::quantize(&values(&dense, ROWS + 3, BLOCKED_COLUMNS, &Device::Cpu)?, format)?;
        // The CPU's own product rounds activations, so its side is computed with unpacked weights.
        let unpacked = weight.dequantize(&Device::Cpu)?;
        for rows in [1, 4, 33] {
            let x = values(&dense, rows, BLOCKED_COLUMNS, device)?;
            let product = if device.is_cpu() {
                x.matmul(&unpacked.t()?)?
            } else {
                let storage = candle_core::quantized::QStorage::from_data(weight.data()?, device, format)?;
                QMatMul::from_qtensor(QTensor::new(storage, (ROWS + 3, BLOCKED_COLUMNS))?)?.forward(&x)?
            };
            products.push(product.flatten_all()?);
        }
    }
    Tensor::cat(&products, 0)
}

fn dtype(name: &str) -> Option<DType> {
    Some(match name {
        "f32" => DType::F32,
        "f16" => DType::F16,
        "bf16" => DType::BF16,
        "f64" => DType::F64,
        "u32" => DType::U32,
        "u8" => DType::U8,
        _ => return None,
    })
}
