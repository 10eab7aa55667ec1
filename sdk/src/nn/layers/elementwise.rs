//! Applying an [`Elementwise`] formula.

use candle_core::Tensor;

use crate::{
    Error, Result,
    nn::{Ops, spec::Elementwise},
};

impl<const IN: usize, const OUT: usize> Elementwise<IN, OUT> {
    /// Computes the formula for each value of inputs of the same shape, `[rows, width]`.
    pub fn forward(&self, inputs: [&Tensor; IN], ops: &Ops) -> Result<[Tensor; OUT]> {
        let outputs = ops.elementwise(&self.0, inputs)?;
        outputs.try_into().map_err(|outputs: Vec<Tensor>| {
            Error::invalid(format!("a formula of {OUT} outputs made {}", outputs.len()))
        })
    }
}
