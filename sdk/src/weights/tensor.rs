//! Tensors as they lie in their files, and all of a checkpoint's tensors by name.
//!
//! What a plugin asks for and what a file has are compared here, once, so that a missing tensor or a wrong shape ends in
//! a message that names both sides instead of in arithmetic on the wrong numbers.

use std::{collections::BTreeMap, ops::Range, path::Path};

use half::{bf16, f16};

use super::{
    Bytes, Dtype,
    gguf::{self, Metadata},
    packed::Packed,
    quote,
    safetensors::{self, Stored},
};
use crate::{Error, Result};

/// A tensor as it lies in its file.
#[derive(Clone, Debug)]
pub struct RawTensor {
    pub name: String,
    pub dtype: Dtype,
    /// The row length last: `[out, in]` for a linear layer.
    pub shape: Vec<usize>,
    /// Exactly as many bytes as shape and type ask for, at no particular alignment.
    pub data: Bytes,
}

/// All tensors of a checkpoint, under the names that Hugging Face gives them.
#[derive(Clone, Debug, Default)]
pub struct Weights {
    tensors: BTreeMap<String, Entry>,
}

/// A tensor under a name.
#[derive(Clone, Debug)]
pub(super) enum Entry {
    /// Can be used as it lies.
    Plain(RawTensor),
    /// Has to be put together first.
    Packed(Box<Packed>),
    /// Is there, and cannot be used: its name, and what to say to the reader who asks for it.
    Refused(String, Error),
}

impl Entry {
    fn name(&self) -> &str {
        match self {
            Self::Plain(tensor) => &tensor.name,
            Self::Packed(packed) => &packed.head.name,
            Self::Refused(name, _) => name,
        }
    }

    pub(super) fn rename(self, rename: impl Fn(&str) -> String) -> Self {
        match self {
            Self::Plain(tensor) => Self::Plain(RawTensor { name: rename(&tensor.name), ..tensor }),
            Self::Packed(packed) => Self::Packed(packed),
            Self::Refused(name, error) => Self::Refused(rename(&name), error),
        }
    }

    fn described(&self) -> Option<&RawTensor> {
        match self {
            Self::Plain(tensor) => Some(tensor),
            Self::Packed(packed) => Some(&packed.head),
            Self::Refused(..) => None,
        }
    }
}

impl From<RawTensor> for Entry {
    fn from(tensor: RawTensor) -> Self {
        Self::Plain(tensor)
    }
}

/// Takes the tensors of all parts of a GGUF model.
pub(super) fn of_parts(parts: &mut [gguf::Gguf]) -> Vec<Entry> {
    let mut entries = Vec::new();
    for part in parts {
        entries.extend(std::mem::take(&mut part.tensors).into_iter().map(Entry::Plain));
        entries.extend(std::mem::take(&mut part.refused).into_iter().map(|(name, error)| Entry::Refused(name, error)));
    }
    entries
}

impl RawTensor {
    /// The tensor itself, if it has this shape.
    pub fn expect_shape(self, expected: &[usize]) -> Result<Self> {
        if self.shape == expected {
            return Ok(self);
        }
        let (name, found) = (quote(&self.name), &self.shape);
        Err(Error::corrupt(format!("tensor {name} has the shape {found:?}, expected is {expected:?}"))
            .help("configuration and weights are of different models: download both again"))
    }

    /// Some rows: the tensor of these indices of the first dimension, read where it lies.
    pub fn rows(&self, rows: Range<usize>) -> Result<Self> {
        let count = self.shape.first().copied().unwrap_or_default();
        let row_bytes = self.data.len().checked_div(count).filter(|bytes| bytes * count == self.data.len());
        let data = row_bytes.and_then(|bytes| self.data.slice(rows.start * bytes..rows.end.checked_mul(bytes)?));
        let mut shape = self.shape.clone();
        match (data, shape.first_mut()) {
            (Some(data), Some(first)) if rows.start <= rows.end => {
                *first = rows.len();
                Ok(Self { name: self.name.clone(), dtype: self.dtype, shape, data })
            }
            _ => {
                let (name, shape) = (quote(&self.name), &self.shape);
                Err(Error::corrupt(format!("tensor {name} of shape {shape:?} has no rows {rows:?} to take apart")))
            }
        }
    }

    /// The values of a dense tensor. Quantized ones stay as they are; the kernels read them in place.
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        match self.dtype {
            Dtype::F32 => self.values(f32::from_le_bytes),
            Dtype::F16 => self.values(|bytes| f16::from_le_bytes(bytes).to_f32()),
            Dtype::BF16 => self.values(|bytes| bf16::from_le_bytes(bytes).to_f32()),
            quantized => {
                let name = quote(&self.name);
                Err(Error::invalid(format!("tensor {name} is stored as {quantized}, not as F32, F16 or BF16")))
            }
        }
    }

    fn values<const N: usize>(&self, value: impl Fn([u8; N]) -> f32) -> Result<Vec<f32>> {
        let (values, rest) = self.data.as_chunks::<N>();
        let expected = self.dtype.tensor_bytes(&self.shape);
        if !rest.is_empty() || expected != Some(self.data.len()) {
            let (name, bytes, shape) = (quote(&self.name), self.data.len(), &self.shape);
            return Err(Error::invalid(format!("tensor {name} has {bytes} bytes, which is not its shape {shape:?}")));
        }
        Ok(values.iter().map(|bytes| value(*bytes)).collect())
    }
}

impl Weights {
    pub(super) fn new<E: Into<Entry>>(tensors: impl IntoIterator<Item = E>) -> Result<Self> {
        let mut named = BTreeMap::new();
        for entry in tensors {
            let entry = entry.into();
            if let Some(twice) = named.insert(entry.name().to_owned(), entry) {
                return Err(Error::corrupt(format!("tensor {} appears twice", quote(twice.name()))));
            }
        }
        Ok(Self { tensors: named })
    }

    /// The tensors of one safetensors file, under their names there. All of them can be used.
    pub fn of_safetensors(path: &Path) -> Result<Self> {
        let shard = safetensors::open_file(path)?;
        Self::new(shard.tensors.into_iter().map(Stored::into_entry))
            .and_then(Self::usable)
            .map_err(|error| error.context(path.display()))
    }

    /// The tensors of a GGUF file, under their names there, and what it says besides. All of them can be used.
    pub fn of_gguf(path: &Path) -> Result<(Self, Metadata)> {
        let mut parts = gguf::open(path)?;
        let entries = of_parts(&mut parts);
        let metadata = parts.into_iter().next().map(|first| first.metadata).unwrap_or_default();
        let weights = Self::new(entries).and_then(Self::usable).map_err(|error| error.context(path.display()))?;
        Ok((weights, metadata))
    }

    fn usable(self) -> Result<Self> {
        match self
            .tensors
            .values()
            .find_map(|entry| if let Entry::Refused(_, error) = entry { Some(error) } else { None })
        {
            Some(error) => Err(error.clone()),
            None => Ok(self),
        }
    }

    /// The tensor of this name; the error names the nearest one that is there, or says why this one cannot be used.
    pub fn get(&self, name: &str) -> Result<RawTensor> {
        match self.tensors.get(name) {
            Some(Entry::Plain(tensor)) => Ok(tensor.clone()),
            Some(Entry::Packed(packed)) => packed.unpack(),
            Some(Entry::Refused(_, error)) => Err(error.clone()),
            None => {
                let error = Error::not_found(format!("the checkpoint has no tensor {}", quote(name)));
                Err(match self.nearest(name) {
                    Some(nearest) => {
                        error.help(format!("the nearest of its {} is {}", self.tensors.len(), quote(nearest)))
                    }
                    None => error.help(format!("it has {} tensors, none of a similar name", self.tensors.len())),
                })
            }
        }
    }

    /// The tensor of this name, if there is one that can be used as it lies.
    pub fn find(&self, name: &str) -> Option<RawTensor> {
        match self.tensors.get(name)? {
            Entry::Plain(tensor) => Some(tensor.clone()),
            Entry::Packed(_) | Entry::Refused(..) => None,
        }
    }

    /// Whether the checkpoint has a tensor of this name, one that cannot be used included.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// All names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// All tensors that can be used, sorted by name. The data of those that have to be put together is only a part of it.
    pub fn iter(&self) -> impl Iterator<Item = &RawTensor> {
        self.tensors.values().filter_map(Entry::described)
    }

    /// Bytes of all tensors together, as they are used.
    pub fn bytes(&self) -> u64 {
        let bytes = |tensor: &RawTensor| tensor.dtype.tensor_bytes(&tensor.shape).unwrap_or(tensor.data.len());
        self.iter().map(|tensor| bytes(tensor) as u64).sum()
    }

    fn nearest(&self, wanted: &str) -> Option<&str> {
        let distances = self.names().map(|name| (edit_distance(name, wanted), name));
        distances.min().filter(|(distance, _)| *distance <= wanted.len() / 2).map(|(_, name)| name)
    }
}

/// Insertions, deletions and replacements that turn one name into the other. Only the start of long names counts.
fn edit_distance(a: &str, b: &str) -> usize {
    const COMPARED_MAX: usize = 128;
    let (a, b) = [a, b].map(|name| name.as_bytes().get(..COMPARED_MAX).unwrap_or(name.as_bytes())).into();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (y, cell) in b.iter().zip(row.iter_mut().skip(1)) {
            let replaced = diagonal + usize::from(x != y);
            diagonal = *cell;
            left = replaced.min(left + 1).min(diagonal + 1);
            *cell = left;
        }
        row[0] = i + 1;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Code;

    fn tensor(name: &str, dtype: Dtype, shape: &[usize], data: &[u8]) -> RawTensor {
        RawTensor { name: name.into(), dtype, shape: shape.into(), data: Bytes::copy_of(data).unwrap() }
    }

    fn weights(names: &[&str]) -> Weights {
        Weights::new(names.iter().map(|name| tensor(name, Dtype::F16, &[2], &[0; 4]))).unwrap()
    }

    #[test]
    fn a_missing_tensor_names_the_nearest() {
        let weights = weights(&[
            "model.layers.0.self_attn.q_proj.weight",
            "model.layers.0.mlp.up_proj.weight",
            "model.norm.weight",
        ]);
        let error = weights.get("model.layers.0.self_attn.qkv_proj.weight").unwrap_err();
        assert_eq!(error.code, Code::NotFound);
        assert_eq!(
            error.to_string(),
            "the checkpoint has no tensor 'model.layers.0.self_attn.qkv_proj.weight'; \
             the nearest of its 3 is 'model.layers.0.self_attn.q_proj.weight'"
        );
        assert_eq!(weights.get("xyz").unwrap_err().help, "it has 3 tensors, none of a similar name");
        assert_eq!(weights.get("model.norm.weight").unwrap().name, "model.norm.weight");
        assert_eq!(weights.bytes(), 12);
    }

    #[test]
    fn measures_edits() {
        for (a, b, expected) in [("", "", 0), ("", "abc", 3), ("abc", "", 3), ("kitten", "sitting", 3), ("ab", "ba", 2)]
        {
            assert_eq!(edit_distance(a, b), expected, "{a} {b}");
        }
    }

    #[test]
    fn a_wrong_shape_names_tensor_and_both_shapes() {
        let tensor = tensor("model.norm.weight", Dtype::F32, &[2], &[0; 8]);
        let error = tensor.clone().expect_shape(&[3]).unwrap_err();
        assert_eq!(error.message, "tensor 'model.norm.weight' has the shape [2], expected is [3]");
        assert!(tensor.expect_shape(&[2]).is_ok());
    }

    #[test]
    fn dense_values_become_f32() {
        let full: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        let half: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect();
        let brain: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect();
        for (dtype, data) in [(Dtype::F32, full), (Dtype::F16, half), (Dtype::BF16, brain)] {
            assert_eq!(tensor("x", dtype, &[2], &data).to_f32().unwrap(), [1.5, -2.0], "{dtype}");
        }
    }

    #[test]
    fn quantized_and_misshapen_values_do_not() {
        let quantized = tensor("x", Dtype::Q8_0, &[32], &[0; 34]).to_f32().unwrap_err();
        assert_eq!(quantized.message, "tensor 'x' is stored as Q8_0, not as F32, F16 or BF16");
        let misshapen = tensor("x", Dtype::F32, &[3], &[0; 8]).to_f32().unwrap_err();
        assert_eq!(misshapen.message, "tensor 'x' has 8 bytes, which is not its shape [3]");
    }

    #[test]
    fn rows_lie_where_the_tensor_lies() {
        let quantized = tensor("x", Dtype::Q8_0, &[3, 32], &[[1; 34], [2; 34], [3; 34]].concat());
        let rows = quantized.rows(1..3).unwrap();
        assert_eq!((rows.shape.as_slice(), &*rows.data), ([2, 32].as_slice(), &[[2; 34], [3; 34]].concat()[..]));
        assert!(std::ptr::eq(&*rows.data, &quantized.data[34..]), "copied");
        let error = quantized.rows(2..4).unwrap_err();
        assert_eq!(error.message, "tensor 'x' of shape [3, 32] has no rows 2..4 to take apart");
        let line = tensor("x", Dtype::Q8_0, &[32], &[0; 34]);
        assert!(line.rows(0..16).is_err(), "a block cannot be taken apart");
    }

    #[test]
    fn rejects_two_tensors_of_one_name() {
        let twice = [tensor("x", Dtype::F16, &[0], &[]), tensor("x", Dtype::F16, &[0], &[])];
        assert_eq!(Weights::new(twice).unwrap_err().message, "tensor 'x' appears twice");
    }
}
