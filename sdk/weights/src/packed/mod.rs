//! Weights that a safetensors folder stores as several tensors: low-bit numbers, and their scales.
//!
//! `quantization_config` names the tool that made them, and the tensor names say the rest: AWQ and GPTQ have `qweight`,
//! `qzeros` and `scales`, compressed-tensors has `weight_packed` and `weight_scale`, FP8 checkpoints have `weight` and
//! `weight_scale_inv`, gpt-oss has `…_blocks` and `…_scales`. Each becomes one tensor `….weight` that the kernels can
//! read. That costs a pass over the weight, so it is done when a model asks for the weight, not when the folder is
//! opened. Unsupported formats of these tools are rejected by name, with an alternative.

mod entry;
mod fp8;
mod int;
mod mxfp4;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use ::safetensors::Dtype as StoredDtype;
use serde_json::Value;

pub(super) use entry::Entry;

use super::{Bytes, Dtype, RawTensor, quote, safetensors::Stored};
use crate::{Error, Result};

/// A weight made of several tensors.
#[derive(Clone, Debug)]
pub(super) struct Packed {
    /// Name, type and shape of the unpacked tensor. Its data is that of the largest part, for the checkpoint's
    /// fingerprint.
    pub(super) head: RawTensor,
    recipe: Recipe,
}

#[derive(Clone, Debug)]
enum Recipe {
    Int(int::Int),
    Fp8(fp8::Fp8),
    Mxfp4(mxfp4::Mxfp4),
}

impl Packed {
    /// Assembles the weight.
    pub(super) fn unpack(&self) -> Result<RawTensor> {
        let data = match &self.recipe {
            Recipe::Int(int) => int.unpack(&self.head),
            Recipe::Fp8(fp8) => fp8.unpack(&self.head),
            Recipe::Mxfp4(mxfp4) => mxfp4.unpack(&self.head),
        };
        let data = data.map_err(|error| error.context(format!("tensor {}", quote(&self.head.name))))?;
        Ok(RawTensor { data, ..self.head.clone() })
    }
}

/// The `quant_method` of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Awq,
    Gptq {
        is_v2: bool,
    },
    Compressed,
    /// Rows and columns of the blocks that share a scale, if there are any.
    Fp8 {
        block: (usize, usize),
    },
    Mxfp4,
}

const BLOCK: (usize, usize) = (128, 128);

/// Suffixes of scales for rounding activations or caches, which nothing here does.
const UNUSED: [&str; 6] =
    [".input_scale", ".activation_scale", ".output_scale", ".k_scale", ".v_scale", ".input_zero_point"];

/// Returns all tensors of a folder as a model will see them.
pub(super) fn entries(config: &Value, stored: Vec<Stored>) -> Result<Vec<Entry>> {
    let Some(method) = Method::of(config)? else {
        return Ok(stored.into_iter().map(Entry::from).collect());
    };
    let names: Vec<String> = stored.iter().map(|tensor| tensor.name.clone()).collect();
    let mut left: BTreeMap<String, Stored> = stored.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
    if left.len() < names.len() {
        // The caller reports the duplicate name.
        return Ok(left.into_values().map(Entry::from).collect());
    }
    let mut entries = Vec::new();
    for name in &names {
        if let Some((weight, found)) = method.assemble(name, &mut left) {
            entries.push(match found {
                Ok((head, recipe)) => Entry::Packed(Box::new(Packed { head, recipe })),
                Err(error) => {
                    let error = error.context(format!("tensor {}", quote(&weight)));
                    Entry::Refused(weight, if error.help.is_empty() { error.help(INSTEAD) } else { error })
                }
            });
        }
    }
    let is_used = |name: &str| !UNUSED.iter().any(|unused| name.ends_with(unused));
    entries.extend(left.into_values().filter(|tensor| is_used(&tensor.name)).map(Entry::from));
    Ok(entries)
}

const INSTEAD: &str = "choose a GGUF file of the model, or its version without quantization";

/// A weight's name and, if its tensors are consistent, how to assemble it.
type Assembled = (String, Result<(RawTensor, Recipe)>);

impl Method {
    fn of(config: &Value) -> Result<Option<Self>> {
        let keys = ["quantization_config", "compression_config", "quantization"];
        let Some(quantization) = keys.iter().find_map(|key| config.get(key)).filter(|value| value.is_object()) else {
            return Ok(None);
        };
        let text = |key: &str| quantization.get(key).and_then(Value::as_str).unwrap_or_default();
        let refused = |what: String| {
            Err(Error::unsupported(format!("the weights are quantized by {what}, which is not read")).help(INSTEAD))
        };
        let bits = quantization.get("bits").and_then(Value::as_u64);
        Ok(Some(match text("quant_method").to_ascii_lowercase().as_str() {
            "awq" if matches!(text("version").to_ascii_lowercase().as_str(), "" | "gemm") && bits == Some(4) => {
                Self::Awq
            }
            "awq" => {
                return refused(format!("AWQ in the version {} of {} bits", quote(text("version")), bits.unwrap_or(0)));
            }
            "gptq" if matches!(bits, Some(4 | 8)) => Self::Gptq { is_v2: text("checkpoint_format") == "gptq_v2" },
            "gptq" => return refused(format!("GPTQ of {} bits", bits.unwrap_or(0))),
            "fp8" | "fbgemm_fp8" => Self::Fp8 { block: block(quantization.get("weight_block_size")) },
            "mxfp4" => Self::Mxfp4,
            "compressed-tensors" => {
                let format = text("format");
                let known =
                    ["pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision"];
                let is_rotated = quantization
                    .get("transform_config")
                    .is_some_and(|it| it.as_object().is_some_and(|it| !it.is_empty()));
                if !known.contains(&format) || is_rotated {
                    let more = if is_rotated { " with transforms" } else { "" };
                    return refused(format!("compressed-tensors in the format {}{more}", quote(format)));
                }
                Self::Compressed
            }
            "" if bits.is_some() && quantization.get("group_size").is_some() => return refused("MLX".to_owned()),
            other => return refused(quote(other)),
        }))
    }

    /// Takes the tensors of a weight, given the one by which this method's weights are recognized; `None` for any other
    /// tensor.
    fn assemble(self, name: &str, left: &mut BTreeMap<String, Stored>) -> Option<Assembled> {
        let float8 =
            |left: &BTreeMap<String, Stored>| left.get(name).is_some_and(|it| it.dtype == StoredDtype::F8_E4M3);
        match self {
            Self::Awq | Self::Gptq { .. } => {
                let layer = name.strip_suffix(".qweight")?;
                Some((format!("{layer}.weight"), int::awq_or_gptq(self, layer, left)))
            }
            Self::Compressed => match name.strip_suffix(".weight_packed") {
                Some(layer) => Some((format!("{layer}.weight"), int::compressed(layer, left))),
                None => {
                    let layer = name.strip_suffix(".weight")?;
                    if float8(left) {
                        return Some((name.to_owned(), fp8::assemble(layer, BLOCK, left)));
                    }
                    let is_integer = left.get(name).is_some_and(|it| it.dtype == StoredDtype::I8);
                    is_integer.then(|| (name.to_owned(), int::bytes(layer, left)))
                }
            },
            Self::Fp8 { block } => {
                let layer = name.strip_suffix(".weight").filter(|_| float8(left))?;
                Some((name.to_owned(), fp8::assemble(layer, block, left)))
            }
            Self::Mxfp4 => {
                let stack = name.strip_suffix("_blocks")?;
                Some((format!("{stack}.weight"), mxfp4::assemble(stack, left)))
            }
        }
    }
}

fn block(sizes: Option<&Value>) -> (usize, usize) {
    let size = |at: usize| usize::try_from(sizes?.get(at)?.as_u64()?).ok();
    size(0).zip(size(1)).unwrap_or(BLOCK)
}

/// Takes the tensor of this name; fails if its type is not one of these.
fn take(left: &mut BTreeMap<String, Stored>, name: &str, dtypes: &[StoredDtype]) -> Result<Stored> {
    let Some(found) = left.remove(name) else {
        return Err(Error::corrupt(format!("the checkpoint has no {}", quote(name))));
    };
    if dtypes.contains(&found.dtype) {
        return Ok(found);
    }
    Err(Error::unsupported(format!("{} is stored as {}, which is not read", quote(name), found.dtype)))
}

const FLOATS: [StoredDtype; 3] = [StoredDtype::F32, StoredDtype::F16, StoredDtype::BF16];

/// Reads a tensor of scales.
fn floats(tensor: &Stored) -> Result<Vec<f32>> {
    let values = tensor.clone().into_plain()?.to_f32()?;
    match values.iter().all(|value| value.is_finite()) {
        true => Ok(values),
        false => Err(Error::corrupt(format!("{} has scales that are no numbers", quote(&tensor.name)))),
    }
}

/// Splits the bytes of a tensor of 32-bit integers into words.
fn words(bytes: &[u8]) -> &[[u8; 4]] {
    bytes.as_chunks().0
}

/// Fills a weight row by row, on all cores. `write` gets a range of rows and their bytes.
fn by_rows(head: &RawTensor, write: impl Fn(std::ops::Range<usize>, &mut [u8]) + Sync) -> Result<Bytes> {
    /// Rows written together; their parts of one block lie close to each other in memory.
    const ROWS: usize = 64;
    let cols = head.shape.last().copied().unwrap_or(1);
    let total = head.dtype.tensor_bytes(&head.shape);
    let (Some(row_bytes @ 1..), Some(total)) = (head.dtype.row_bytes(cols), total) else {
        return Err(Error::unsupported(format!(
            "rows of {cols} values cannot be cut into blocks of {}",
            head.dtype.block_len()
        )));
    };
    Bytes::write(total, |data| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let share = (data.len() / row_bytes).div_ceil(threads).next_multiple_of(ROWS);
        std::thread::scope(|scope| {
            for (part, data) in data.chunks_mut(share * row_bytes).enumerate() {
                let write = &write;
                scope.spawn(move || {
                    for (chunk, data) in data.chunks_mut(ROWS * row_bytes).enumerate() {
                        let start = part * share + chunk * ROWS;
                        write(start..start + data.len() / row_bytes, data);
                    }
                });
            }
        });
    })
}

/// Returns the description of an unpacked weight.
fn head(layer: &str, dtype: Dtype, shape: &[usize], data: &Bytes) -> RawTensor {
    RawTensor { name: format!("{layer}.weight"), dtype, shape: shape.to_vec(), data: data.clone() }
}
