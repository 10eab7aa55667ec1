//! Low-rank adapters (arXiv 2106.09685), applied unmerged: `y += scale · (x·Aᵀ)·Bᵀ` for the rows of the sequences that ask.
//!
//! The base weights stay as they are, so they may be quantized, and one batch may hold many adapters. A layer without
//! adapters costs one look-up.

use candle_core::Tensor;
use std::{collections::HashMap, ops::Range};

use super::{
    loader::{LayerId, Registered, Registry},
    ops::Ops,
};
use crate::{AdapterData, Error, LowRankPair, Result};

/// Ranks beyond this are taken for a mistake in the file.
const RANK_MAX: usize = 1024;

/// The rows of an activation that one adapter changes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AdaptedRows {
    pub(super) rows: Range<usize>,
    pub(super) adapter: u32,
    pub(super) scale: f32,
}

/// The adapters that a model holds.
#[derive(Debug, Default)]
pub(super) struct Adapters {
    attached: HashMap<u32, HashMap<LayerId, LowRank>>,
    last: u32,
}

/// One pair on the device, transposed as it is multiplied.
#[derive(Debug)]
struct LowRank {
    /// `[inputs, rank]`.
    a: Tensor,
    /// `[rank, outputs]`, the pair's own scale within.
    b: Tensor,
}

impl Adapters {
    /// Takes in an adapter for the layers of a registry; all of it or nothing.
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

    /// Drops an adapter.
    pub(super) fn detach(&mut self, id: u32) -> Result<()> {
        match self.attached.remove(&id) {
            Some(_) => Ok(()),
            None => Err(Error::not_found(format!("no adapter {id} is attached"))),
        }
    }

    /// Adds the changes of each group of rows to a layer's output.
    pub(super) fn apply(
        &self,
        ops: &Ops,
        layer: LayerId,
        x: &Tensor,
        out: Tensor,
        groups: &[AdaptedRows],
    ) -> Result<Tensor> {
        let mut parts = Vec::new();
        let mut next = 0;
        for group in groups {
            let Some(pair) = self.attached.get(&group.adapter).and_then(|layers| layers.get(&layer)) else { continue };
            let Range { start, end } = group.rows;
            if start > next {
                parts.push(out.narrow(0, next, start - next)?);
            }
            let change = ops.rows(x, start, end - start)?.matmul(&pair.a)?.matmul(&pair.b)?;
            parts.push((out.narrow(0, start, end - start)? + (change * f64::from(group.scale))?)?);
            next = end;
        }
        if parts.is_empty() {
            return Ok(out);
        }
        if next < out.dim(0)? {
            parts.push(out.narrow(0, next, out.dim(0)? - next)?);
        }
        Ok(Tensor::cat(&parts, 0)?)
    }
}

/// Brings a pair to its layer, or in parts to the layers of a stack, which share its `a` and divide the rows of its `b`.
fn place(pair: &LowRankPair, registry: &Registry, ops: &Ops) -> Result<Vec<(LayerId, LowRank)>> {
    let layers = registry.find(&pair.target);
    let Some(inputs) = layers.first().map(|(_, layer)| layer.inputs) else {
        return Err(Error::not_found("the model has no such linear layer"));
    };
    let outputs: usize = layers.iter().map(|(_, layer)| layer.outputs).sum();
    if (pair.inputs, pair.outputs) != (inputs, outputs) {
        let (found, expected) = (format!("{}→{}", pair.inputs, pair.outputs), format!("{inputs}→{outputs}"));
        return Err(Error::invalid(format!("the adapter maps {found}, the model's layer maps {expected}")));
    }
    if pair.rank == 0 || pair.rank > RANK_MAX {
        return Err(Error::unsupported(format!("rank {} is outside 1 to {RANK_MAX}", pair.rank)));
    }
    if !pair.a.iter().chain(&pair.b).all(|value| value.is_finite()) || !pair.scale.is_finite() {
        return Err(Error::corrupt("it holds values that are not numbers"));
    }
    let a = Tensor::from_slice(&pair.a, (pair.rank, inputs), ops.device())?.t()?.contiguous()?;
    let mut rest = pair.b.as_slice();
    let part = |(id, layer): (LayerId, &Registered)| {
        let values = layer.outputs * pair.rank;
        let rows = rest.get(..values).ok_or_else(|| Error::corrupt(format!("its b has {} values", pair.b.len())))?;
        rest = &rest[values..];
        let rows = match layer.paired_heads {
            Some(head_dim) => pair_up(rows, pair.rank, head_dim),
            None => rows.to_vec(),
        };
        let b = Tensor::from_vec(rows, (layer.outputs, pair.rank), ops.device())?.t()?.contiguous()?;
        Ok((id, LowRank { a: a.clone(), b: (b * f64::from(pair.scale))? }))
    };
    layers.into_iter().map(part).collect()
}

/// Reorders the rows of each head so that row `i` of its first half stands beside row `i` of its second.
fn pair_up(rows: &[f32], width: usize, head_dim: usize) -> Vec<f32> {
    let half = head_dim / 2;
    let mut out = Vec::with_capacity(rows.len());
    for head in rows.chunks_exact(head_dim * width) {
        for i in 0..half {
            for row in [i, half + i] {
                out.extend_from_slice(&head[row * width..(row + 1) * width]);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::pair_up;

    #[test]
    fn halves_of_a_head_become_neighbours() {
        let rows = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 10.0, 10.5, 11.0, 11.5, 12.0, 12.5, 13.0, 13.5];
        let expected = [0.0, 0.5, 2.0, 2.5, 1.0, 1.5, 3.0, 3.5, 10.0, 10.5, 12.0, 12.5, 11.0, 11.5, 13.0, 13.5];
        assert_eq!(pair_up(&rows, 2, 4), expected);
    }
}
