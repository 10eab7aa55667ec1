//! All tensors of a checkpoint by name.
//!
//! A plugin's expectations are compared with the file here, once, so that a missing tensor or a wrong shape ends in a
//! message that names both sides instead of in arithmetic on the wrong numbers.

use std::{collections::BTreeMap, path::Path};

use super::{
    RawTensor,
    gguf::{self, Metadata},
    packed::Entry,
    quote, safetensors,
};
use crate::{Error, Result};

/// All tensors of a checkpoint, under Hugging Face's names.
#[derive(Clone, Debug, Default)]
pub struct Weights {
    tensors: BTreeMap<String, Entry>,
}

/// Takes the tensors out of all parts of a GGUF model.
pub(super) fn of_parts(parts: &mut [gguf::Gguf]) -> Vec<Entry> {
    let mut entries = Vec::new();
    for part in parts {
        entries.extend(std::mem::take(&mut part.tensors).into_iter().map(Entry::Plain));
        entries.extend(std::mem::take(&mut part.refused).into_iter().map(|(name, error)| Entry::Refused(name, error)));
    }
    entries
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

    /// Adds the tensors of another file.
    pub(super) fn add(&mut self, other: Self) -> Result<()> {
        for (name, entry) in other.tensors {
            if self.tensors.contains_key(&name) {
                return Err(Error::corrupt(format!("tensor {} is in the text model, too", quote(&name))));
            }
            self.tensors.insert(name, entry);
        }
        Ok(())
    }

    /// Opens one safetensors file, keeping its tensor names. Fails if any tensor is unusable.
    pub fn of_safetensors(path: &Path) -> Result<Self> {
        let shard = safetensors::open_file(path)?;
        Self::new(shard.tensors.into_iter().map(Entry::from))
            .and_then(Self::usable)
            .map_err(|error| error.context(path.display()))
    }

    /// Opens a GGUF file, keeping its tensor names, and returns its metadata too. Fails if any tensor is unusable.
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

    /// Returns the tensor of this name; the error suggests the most similar name, or says why this tensor is unusable.
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

    /// Returns the tensor of this name, if it exists and needs no assembling.
    pub fn find(&self, name: &str) -> Option<RawTensor> {
        match self.tensors.get(name)? {
            Entry::Plain(tensor) => Some(tensor.clone()),
            Entry::Packed(_) | Entry::Refused(..) => None,
        }
    }

    /// True if the checkpoint has a tensor of this name, even in an unusable format.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// All names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// All usable tensors, sorted by name. A tensor that has to be assembled comes with only part of its data.
    pub fn iter(&self) -> impl Iterator<Item = &RawTensor> {
        self.tensors.values().filter_map(Entry::described)
    }

    /// Total bytes of all tensors, after assembling.
    pub fn bytes(&self) -> u64 {
        let bytes = |tensor: &RawTensor| tensor.dtype.tensor_bytes(&tensor.shape).unwrap_or(tensor.data.len());
        self.iter().map(|tensor| bytes(tensor) as u64).sum()
    }

    fn nearest(&self, wanted: &str) -> Option<&str> {
        let distances = self.names().map(|name| (edit_distance(name, wanted), name));
        distances.min().filter(|(distance, _)| *distance <= wanted.len() / 2).map(|(_, name)| name)
    }
}

/// Levenshtein distance of two names. Only the start of long names counts.
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
    use crate::{Bytes, Code, Dtype};

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
    fn rejects_two_tensors_of_one_name() {
        let twice = [tensor("x", Dtype::F16, &[0], &[]), tensor("x", Dtype::F16, &[0], &[])];
        assert_eq!(Weights::new(twice).unwrap_err().message, "tensor 'x' appears twice");
    }
}
