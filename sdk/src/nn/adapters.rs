//! Low-rank adapters (arXiv 2106.09685), applied unmerged: `y += scale · (x·Aᵀ)·Bᵀ` for the rows of the sequences that use one.
//!
//! The base weights are not changed, so they may be quantized, and one batch may use many adapters. A layer without adapters
//! costs one lookup.

pub(super) mod registry;

use candle_core::Tensor;
use std::{collections::HashMap, ops::Range};

use self::registry::{LayerId, Part, Registered, Registry};
use super::{backend::LowRank, ops::Ops};
use crate::{AdapterData, Error, LowRankPair, Result};

/// A larger rank indicates a corrupt file.
const RANK_MAX: usize = 1024;

/// The rows of an activation that one adapter applies to.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AdaptedRows {
    pub(super) rows: Range<usize>,
    pub(super) adapter: u32,
    pub(super) scale: f32,
}

/// The adapters attached to a model.
#[derive(Debug, Default)]
pub(super) struct Adapters {
    attached: HashMap<u32, HashMap<LayerId, LowRank>>,
    last: u32,
}

impl Adapters {
    /// Attaches an adapter to the layers of a registry and returns its id. On an error nothing is attached.
    pub(super) fn attach(&mut self, adapter: &AdapterData, registry: &Registry, ops: &Ops) -> Result<u32> {
        let mut layers = HashMap::new();
        for pair in &adapter.pairs {
            let placed = place(pair, registry, ops).map_err(|e| e.context(format!("'{}'", pair.target)))?;
            for (id, pair_on_device) in placed {
                if layers.insert(id, pair_on_device).is_some() {
                    return Err(Error::invalid(format!("'{}': the adapter changes this weight twice", pair.target)));
                }
            }
        }
        let id = self.last.checked_add(1).ok_or_else(|| Error::invalid("adapter ids are used up"))?;
        self.last = id;
        self.attached.insert(id, layers);
        Ok(id)
    }

    /// Removes an attached adapter and frees its memory.
    pub(super) fn detach(&mut self, id: u32) -> Result<()> {
        match self.attached.remove(&id) {
            Some(_) => Ok(()),
            None => Err(Error::not_found(format!("no adapter {id} is attached"))),
        }
    }

    /// Memory of all attached adapters.
    pub(super) fn bytes(&self) -> u64 {
        self.attached.values().flat_map(HashMap::values).map(LowRank::bytes).sum()
    }

    /// Adds the adapter terms of each group of rows to the output of a linear layer.
    pub(super) fn apply(
        &self,
        ops: &Ops,
        layer: LayerId,
        x: &Tensor,
        out: Tensor,
        groups: &[AdaptedRows],
    ) -> Result<Tensor> {
        ops.add_low_rank(x, out, &self.of(layer, groups))
    }

    /// Adds the adapter terms of each group of rows to the embeddings of `tokens`.
    pub(super) fn apply_to_table(
        &self,
        ops: &Ops,
        layer: LayerId,
        tokens: &[u32],
        out: Tensor,
        groups: &[AdaptedRows],
    ) -> Result<Tensor> {
        ops.add_low_rank_vectors(tokens, out, &self.of(layer, groups))
    }

    fn of<'a>(&'a self, layer: LayerId, groups: &[AdaptedRows]) -> Vec<(Range<usize>, &'a LowRank, f32)> {
        let of = |group: &AdaptedRows| {
            let pair = self.attached.get(&group.adapter)?.get(&layer)?;
            Some((group.rows.clone(), pair, group.scale))
        };
        groups.iter().filter_map(of).collect()
    }
}

/// Prepares a pair for its layer, or for the layers of a stack, which share its `a` and split the rows of its `b`.
fn place(pair: &LowRankPair, registry: &Registry, ops: &Ops) -> Result<Vec<(LayerId, LowRank)>> {
    let (order, layers) = registry.find(&pair.target);
    let Some((first, inputs)) = layers.first().map(|(_, layer)| (layer.part, layer.inputs)) else {
        return Err(no_such_layer());
    };
    let outputs: usize = layers.iter().map(|(_, layer)| layer.outputs).sum();
    check(pair, inputs, outputs)?;
    if first == Part::Table {
        let up = pair.a.iter().map(|value| value * pair.scale).collect();
        let [(id, layer)] = layers.as_slice() else { return Err(Error::unsupported("a stack of embeddings")) };
        return Ok(vec![(*id, ops.low_rank((pair.rank, layer.place), pair.b.clone(), up, layer.is_f32)?)]);
    }
    let mut rest = pair.b.as_slice();
    let part = |(id, layer): (LayerId, &Registered)| {
        let (rows, after) = rest.split_at(layer.outputs * pair.rank);
        rest = after;
        let rows = layer.in_order(order, rows, pair.rank);
        let up = transposed(&rows, pair.rank, pair.scale);
        Ok((id, ops.low_rank((pair.rank, layer.place), pair.a.clone(), up, layer.is_f32)?))
    };
    layers.into_iter().map(part).collect()
}

/// Error for a pair whose weight the model does not have.
pub(super) fn no_such_layer() -> Error {
    Error::not_found("the model has no such linear layer or embedding")
}

/// Checks a pair's shape and values against a weight of this size.
pub(super) fn check(pair: &LowRankPair, inputs: usize, outputs: usize) -> Result<()> {
    if (pair.inputs, pair.outputs) != (inputs, outputs) {
        let (found, expected) = (format!("{}→{}", pair.inputs, pair.outputs), format!("{inputs}→{outputs}"));
        return Err(Error::invalid(format!("the adapter maps {found}, the model's layer maps {expected}")));
    }
    if pair.rank == 0 || pair.rank > RANK_MAX {
        return Err(Error::unsupported(format!("rank {} is outside 1 to {RANK_MAX}", pair.rank)));
    }
    if (pair.a.len(), pair.b.len()) != (pair.rank * inputs, outputs * pair.rank) {
        return Err(Error::corrupt(format!("its factors have {} and {} values", pair.a.len(), pair.b.len())));
    }
    if !pair.a.iter().chain(&pair.b).all(|value| value.is_finite()) || !pair.scale.is_finite() {
        return Err(Error::corrupt("it holds values that are not numbers"));
    }
    Ok(())
}

/// Transposes `[outputs, rank]` to `[rank, outputs]` and multiplies it by a factor.
fn transposed(rows: &[f32], rank: usize, factor: f32) -> Vec<f32> {
    let column = |r: usize| rows.iter().skip(r).step_by(rank).map(|value| value * factor);
    (0..rank).flat_map(column).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_transposed_with_their_scale() {
        assert_eq!(transposed(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2, 2.0), [2.0, 6.0, 10.0, 4.0, 8.0, 12.0]);
    }
}
