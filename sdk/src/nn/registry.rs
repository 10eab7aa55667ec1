//! The linear layers and embeddings of a model by name, as adapters look for them.

use std::collections::HashMap;

use crate::weights::{Names, names};

/// Names a linear layer within its model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerId(usize);

/// The weights of a model by name.
#[derive(Debug)]
pub(super) struct Registry {
    /// What the model's GGUF files have under names of their own.
    names: Names,
    layers: Vec<Registered>,
    by_name: HashMap<String, LayerId>,
    /// Names under which several layers stand one above the other.
    stacks: Vec<(String, Vec<LayerId>)>,
}

/// A linear layer as adapters see it.
#[derive(Debug)]
pub(super) struct Registered {
    pub(super) name: String,
    pub(super) part: Part,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    /// Whether its values are worth adapters of single precision.
    pub(super) is_f32: bool,
    /// The order of its rows.
    pub(super) order: RowOrder,
    /// The device of the model that the layer is computed on.
    pub(super) place: usize,
    /// The size of the heads within which that order matters; none where it does not.
    pub(super) rotated_heads: Option<usize>,
}

/// What a weight is used as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// A linear layer.
    Linear,
    /// A table of vectors, one for each token.
    Table,
}

/// Whose order the rows of queries and keys have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowOrder {
    /// That of Hugging Face's checkpoints.
    HuggingFace,
    /// That of GGUF files.
    Gguf,
}

impl Registry {
    /// `names` are the names of GGUF files that the architecture has of its own.
    pub(super) fn new(names: Names) -> Self {
        Self { names, layers: Vec::new(), by_name: HashMap::new(), stacks: Vec::new() }
    }

    /// Takes in a layer. Of two with one name, the first is found by it.
    pub(super) fn add(&mut self, layer: Registered) -> LayerId {
        let id = LayerId(self.layers.len());
        self.by_name.entry(layer.name.clone()).or_insert(id);
        self.layers.push(layer);
        id
    }

    /// Takes in a name under which layers stand one above the other.
    pub(super) fn add_stack(&mut self, name: String, layers: Vec<LayerId>) {
        self.stacks.push((name, layers));
    }

    /// A layer by its id.
    pub(super) fn get(&self, id: LayerId) -> Option<&Registered> {
        self.layers.get(id.0)
    }

    /// The layer of this name, or the layers of the stack of this name from top to bottom; nothing where there is neither.
    /// A name may be Hugging Face's or GGUF's, and tells the order of the rows that come with it.
    pub(super) fn find(&self, name: &str) -> (RowOrder, Vec<(LayerId, &Registered)>) {
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
    /// The rows of a `b` as they belong to the rows of this layer's weight.
    pub(super) fn in_order(&self, order: RowOrder, rows: &[f32], width: usize) -> Vec<f32> {
        match self.rotated_heads.filter(|_| order != self.order) {
            Some(head_dim) => reorder(rows, width, head_dim, self.order),
            None => rows.to_vec(),
        }
    }
}

/// Brings the rows of each head into the other order: in GGUF's, row `i` of Hugging Face's first half stands beside row `i`
/// of the second.
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
