//! Rows of small tables by other ids than the step's tokens: learned positions, token types.

use candle_core::Tensor;

use crate::{
    Error, Result,
    nn::{Loader, Step},
};

/// A table of one vector per position or type, in `f32`. For token embeddings use [`Embedding`](crate::nn::Embedding),
/// which stays in the checkpoint's format.
#[derive(Clone, Debug)]
pub struct Lookup {
    table: Tensor,
}

impl Lookup {
    /// Loads `name.weight`, of shape `[rows, width]`.
    pub fn load(loader: &Loader<'_>, name: &str, rows: usize, width: usize) -> Result<Self> {
        Ok(Self { table: loader.at(name).dense("weight", &[rows, width])? })
    }

    /// Returns the rows with these ids, `[ids, width]`; fails if one is beyond the table.
    pub fn forward(&self, ids: &[u32], step: &Step<'_>) -> Result<Tensor> {
        let rows = self.table.dim(0)?;
        if let Some(id) = ids.iter().find(|&&id| id as usize >= rows) {
            return Err(Error::invalid(format!("row {id} of a table of {rows}")));
        }
        step.ops().select_rows(&self.table, ids)
    }
}
