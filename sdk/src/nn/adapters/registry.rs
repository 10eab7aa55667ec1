//! The linear layers and embeddings of a model, which adapters look up by name.

use std::collections::HashMap;

use crate::weights::{Names, names};

/// Index of a layer in its model's [`Registry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerId(usize);

/// The layers that adapters may apply to, by name.
#[derive(Debug)]
pub(in crate::nn) struct Registry {
    /// The architecture's own GGUF names, beside the shared ones.
    names: Names,
    layers: Vec<Registered>,
    by_name: HashMap<String, LayerId>,
    /// Names of weights that stack several layers, with the layers from top to bottom.
    stacks: Vec<(String, Vec<LayerId>)>,
}

/// A layer as adapters see it.
#[derive(Debug)]
pub(in crate::nn) struct Registered {
    pub(in crate::nn) name: String,
    pub(in crate::nn) part: Part,
    pub(in crate::nn) inputs: usize,
    pub(in crate::nn) outputs: usize,
    /// The weight is `f32`, so its adapters are kept in `f32`, too.
    pub(in crate::nn) is_f32: bool,
    /// The order of the weight's rows.
    pub(in crate::nn) order: RowOrder,
    /// Index of the layer's device in the model.
    pub(in crate::nn) place: usize,
    /// Size of a head, if `order` matters for this layer.
    pub(in crate::nn) rotated_heads: Option<usize>,
}

/// The use of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::nn) enum Part {
    /// Multiplied with activations.
    Linear,
    /// An embedding: one row per token.
    Table,
}

/// The order of the rows within a head of queries or keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::nn) enum RowOrder {
    /// First the first values of all rotated pairs, then the second values, as in Hugging Face checkpoints.
    HuggingFace,
    /// Pair by pair, as in GGUF files of permuted families.
    Gguf,
}

impl Registry {
    /// `names` are the architecture's own GGUF names, in addition to the shared ones.
    pub(in crate::nn) fn new(names: Names) -> Self {
        Self { names, layers: Vec::new(), by_name: HashMap::new(), stacks: Vec::new() }
    }

    /// Adds a layer. If two share a name, adapters find the first.
    pub(in crate::nn) fn add(&mut self, layer: Registered) -> LayerId {
        let id = LayerId(self.layers.len());
        self.by_name.entry(layer.name.clone()).or_insert(id);
        self.layers.push(layer);
        id
    }

    /// Adds a name for several layers stacked as rows.
    pub(in crate::nn) fn add_stack(&mut self, name: String, layers: Vec<LayerId>) {
        self.stacks.push((name, layers));
    }

    /// Looks up a layer by id.
    pub(in crate::nn) fn get(&self, id: LayerId) -> Option<&Registered> {
        self.layers.get(id.0)
    }

    /// Returns the layer `name`, or the layers of the stack `name` from top to bottom; empty if the model has neither.
    /// The name may be Hugging Face's or GGUF's, and that determines the order of the adapter's rows.
    pub(in crate::nn) fn find(&self, name: &str) -> (RowOrder, Vec<(LayerId, &Registered)>) {
        let found = self.find_named(name);
        if !found.is_empty() {
            return (RowOrder::HuggingFace, found);
        }
        let name = names::hugging_face(&format!("{name}.weight"), self.names);
        (RowOrder::Gguf, self.find_named(name.strip_suffix(".weight").unwrap_or(&name)))
    }

    fn find_named(&self, name: &str) -> Vec<(LayerId, &Registered)> {
        let of = |id: &LayerId| Some((*id, self.layers.get(id.0)?));
        if let Some(id) = self.by_name.get(name) {
            return of(id).into_iter().collect();
        }
        let stack = self.stacks.iter().find(|(stack, _)| stack == name);
        stack.into_iter().flat_map(|(_, parts)| parts.iter().filter_map(of)).collect()
    }
}

impl Registered {
    /// Reorders the rows of a pair's `b` from `order` to the order of this layer's weight.
    pub(in crate::nn) fn in_order(&self, order: RowOrder, rows: &[f32], width: usize) -> Vec<f32> {
        match self.rotated_heads.filter(|_| order != self.order) {
            Some(head_dim) => reorder(rows, width, head_dim, self.order),
            None => rows.to_vec(),
        }
    }
}

/// Permutes the rows of each head: in GGUF's order, row `i` of Hugging Face's first half is next to row `i` of the second.
fn reorder(rows: &[f32], width: usize, head_dim: usize, to: RowOrder) -> Vec<f32> {
    let half = head_dim / 2;
    let mut out = Vec::with_capacity(rows.len());
    for head in rows.chunks_exact(head_dim * width) {
        for i in 0..head_dim {
            let row = match to {
                RowOrder::Gguf => i / 2 + (i % 2) * half,
                RowOrder::HuggingFace => 2 * (i % half) + i / half,
            };
            out.extend_from_slice(&head[row * width..(row + 1) * width]);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_a_head_become_neighbours_and_halves_again() {
        let rows = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 10.0, 10.5, 11.0, 11.5, 12.0, 12.5, 13.0, 13.5];
        let expected = [0.0, 0.5, 2.0, 2.5, 1.0, 1.5, 3.0, 3.5, 10.0, 10.5, 12.0, 12.5, 11.0, 11.5, 13.0, 13.5];
        assert_eq!(reorder(&rows, 2, 4, RowOrder::Gguf), expected);
        assert_eq!(reorder(&expected, 2, 4, RowOrder::HuggingFace), rows);
    }
}
