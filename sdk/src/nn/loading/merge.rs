//! Adapters that are merged into the weights: `W + strength · scale · B·A`, computed once while a checkpoint is loaded.
//!
//! A merged adapter costs nothing afterwards, and cannot be detached. The sum is rounded to the weight's own type, so
//! only dense weights support merging: requantizing would lose the adapter's change.

use std::{cell::Cell, cell::RefCell};

use crate::{
    Error, LowRankPair, Merged, Result,
    nn::adapters::{
        self,
        registry::{Registered, RowOrder},
    },
    weights::{Dtype, Names, RawTensor, names, quote},
};

/// The adapters to merge while a model is loaded.
#[derive(Debug, Default)]
pub(in crate::nn) struct Merges<'a> {
    changes: Vec<Change<'a>>,
    /// The first error of a caller that cannot return it; [`Merges::finish`] returns it.
    error: RefCell<Option<Error>>,
}

/// One low-rank pair to add to a weight.
#[derive(Debug)]
struct Change<'a> {
    pair: &'a LowRankPair,
    factor: f32,
    /// The weight's Hugging Face name.
    name: String,
    /// The order of the pair's rows.
    order: RowOrder,
    used: Cell<bool>,
}

/// A layer's rows within a named stack of layers.
#[derive(Clone, Copy, Debug)]
pub(in crate::nn) struct StackPart<'a> {
    pub(in crate::nn) stack: &'a str,
    /// Rows of the whole stack.
    pub(in crate::nn) outputs: usize,
    /// The layer's first row.
    pub(in crate::nn) start: usize,
}

impl<'a> Merges<'a> {
    /// `own` are the architecture's own GGUF names, in addition to the shared ones.
    pub(in crate::nn) fn new(merged: &'a [Merged], own: Names) -> Self {
        let of = |pair: &'a LowRankPair, strength: f32| {
            let name = names::hugging_face(&format!("{}.weight", pair.target), own);
            let name = name.strip_suffix(".weight").unwrap_or(&name).to_owned();
            let order = if name == pair.target { RowOrder::HuggingFace } else { RowOrder::Gguf };
            Change { pair, factor: pair.scale * strength, name, order, used: Cell::new(false) }
        };
        let changes = merged.iter().flat_map(|one| one.adapter.pairs.iter().map(|pair| of(pair, one.strength)));
        Self { changes: changes.collect(), error: RefCell::default() }
    }

    /// Returns whether an adapter is to be merged into the weight `name`.
    pub(in crate::nn) fn changes(&self, name: &str) -> bool {
        self.changes.iter().any(|change| change.name == name)
    }

    /// Returns the layer's weight with its adapters merged; `None` if it has none.
    pub(in crate::nn) fn add(
        &self,
        layer: &Registered,
        raw: &RawTensor,
        stack_part: Option<StackPart<'_>>,
    ) -> Result<Option<RawTensor>> {
        let own = StackPart { stack: &layer.name, outputs: layer.outputs, start: 0 };
        let parts = [Some(own), stack_part];
        let mut values = None;
        for change in &self.changes {
            let Some(part) = parts.iter().flatten().find(|part| part.stack == change.name) else { continue };
            change.used.set(true);
            let here = |error: Error| error.context(format!("'{}'", change.pair.target));
            adapters::check(change.pair, layer.inputs, part.outputs).map_err(here)?;
            if raw.dtype.is_quantized() {
                let (name, dtype) = (quote(&raw.name), raw.dtype);
                let message =
                    format!("its weight, tensor {name}, is quantized ({dtype}), and a sum cannot be written to it");
                let help =
                    "leave 'merge' out to have the adapter applied beside the weights, or take a dense checkpoint";
                return Err(here(Error::unsupported(message).help(help)));
            }
            let values = match &mut values {
                Some(values) => values,
                none => none.insert(raw.to_f32()?),
            };
            change.add_to(values, layer, part.start);
        }
        values.map(|values| written(raw, &values)).transpose()
    }

    /// Makes [`Self::finish`] return this error.
    pub(in crate::nn) fn fail(&self, error: Error) {
        self.error.borrow_mut().get_or_insert(error);
    }

    /// Checks that every change has found its weight.
    pub(in crate::nn) fn finish(&self) -> Result<()> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        match self.changes.iter().find(|change| !change.used.get()) {
            Some(change) => Err(adapters::no_such_layer().context(format!("'{}'", change.pair.target))),
            None => Ok(()),
        }
    }
}

impl Change<'_> {
    /// Adds the change's rows, from `start` on, to the layer's values.
    fn add_to(&self, values: &mut [f32], layer: &Registered, start: usize) {
        let LowRankPair { rank, a, b, .. } = self.pair;
        let rows = layer.in_order(self.order, &b[start * rank..(start + layer.outputs) * rank], *rank);
        for (row, b) in values.chunks_exact_mut(layer.inputs).zip(rows.chunks_exact(*rank)) {
            for (b, a) in b.iter().zip(a.chunks_exact(layer.inputs)) {
                let factor = self.factor * b;
                row.iter_mut().zip(a).for_each(|(value, a)| *value += factor * a);
            }
        }
    }
}

/// Converts `values` back to the type and name of the tensor `raw`.
fn written(raw: &RawTensor, values: &[f32]) -> Result<RawTensor> {
    let sum = raw.with_values(values, raw.shape.clone())?;
    let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    let overflows = raw.dtype == Dtype::F16 && largest > half::f16::MAX.to_f32();
    if overflows || values.iter().any(|value| !value.is_finite()) {
        let message = format!("tensor {}: with the adapter, its values no longer fit {}", quote(&raw.name), raw.dtype);
        return Err(Error::unsupported(message).help("have the adapter applied beside the weights"));
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AdapterData, nn::adapters::registry::Part, weights::Bytes};

    const VALUES: [f32; 6] = [0.1, -2.5, 1000.5, 3.0e-5, 0.75, -0.3];

    fn layer(name: &str) -> Registered {
        let (order, rotated_heads) = (RowOrder::HuggingFace, None);
        Registered {
            name: name.into(),
            part: Part::Linear,
            inputs: 3,
            outputs: 2,
            is_f32: false,
            order,
            place: 0,
            rotated_heads,
        }
    }

    fn merged(target: &str, scale: f32) -> [Merged; 1] {
        let (a, b) = (vec![1.0, 2.0, 3.0], vec![0.5, -0.25]);
        let pair = LowRankPair { target: target.into(), rank: 1, inputs: 3, outputs: 2, scale, a, b };
        let adapter = AdapterData { base: String::new(), fingerprint: String::new(), pairs: vec![pair] };
        [Merged { adapter, strength: 0.1 }]
    }

    fn raw(dtype: Dtype) -> RawTensor {
        let shaped = RawTensor { name: "x".into(), dtype, shape: vec![2, 3], data: Bytes::copy_of(&[]).unwrap() };
        written(&shaped, &VALUES).unwrap()
    }

    #[test]
    fn a_sum_is_computed_in_single_precision_and_rounded_once() {
        let merged = merged("x", 3.0);
        for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
            let (merges, raw) = (Merges::new(&merged, &[]), raw(dtype));
            let change = [0.5, -0.25].into_iter().flat_map(|b| [1.0, 2.0, 3.0].map(|a| 3.0 * 0.1_f32 * b * a));
            let sum: Vec<f32> =
                raw.to_f32().unwrap().iter().zip(change).map(|(value, change)| value + change).collect();
            let expected: Vec<f32> = match dtype {
                Dtype::F16 => sum.iter().map(|value| half::f16::from_f32(*value).to_f32()).collect(),
                Dtype::BF16 => sum.iter().map(|value| half::bf16::from_f32(*value).to_f32()).collect(),
                _ => sum,
            };
            let found = merges.add(&layer("x"), &raw, None).unwrap().unwrap();
            assert_eq!((found.dtype, &found.shape), (dtype, &raw.shape));
            assert_eq!(found.to_f32().unwrap(), expected, "{dtype}");
            assert!(merges.finish().is_ok());
        }
    }

    #[test]
    fn a_change_of_a_stack_is_divided_among_its_storeys() {
        let mut merged = merged("qkv", 10.0);
        let pair = &mut merged[0].adapter.pairs[0];
        (pair.outputs, pair.b) = (4, vec![9.0, 9.0, 0.5, -0.25]);
        let merges = Merges::new(&merged, &[]);
        let stack_part = StackPart { stack: "qkv", outputs: 4, start: 2 };
        let found = merges.add(&layer("k"), &raw(Dtype::F32), Some(stack_part)).unwrap().unwrap().to_f32().unwrap();
        assert!((found[0] - 0.6).abs() < 1e-6 && (found[5] + 1.05).abs() < 1e-6, "{found:?}");
    }

    #[test]
    fn what_finds_no_weight_or_no_room_in_it_is_named() {
        let merged = merged("x", 1e6);
        let merges = Merges::new(&merged, &[]);
        assert!(merges.add(&layer("y"), &raw(Dtype::F32), None).unwrap().is_none());
        assert!(merges.finish().unwrap_err().message.starts_with("'x': the model has no such"));
        let error = merges.add(&layer("x"), &raw(Dtype::F16), None).unwrap_err();
        assert_eq!(error.message, "tensor 'x': with the adapter, its values no longer fit F16");
        let quantized = RawTensor { dtype: Dtype::Q8_0, ..raw(Dtype::F32) };
        let error = merges.add(&layer("x"), &quantized, None).unwrap_err();
        assert!(error.message.starts_with("'x': its weight, tensor 'x', is quantized (Q8_0)"), "{error}");
    }
}
