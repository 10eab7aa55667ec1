//! The dense layers that follow pooling in some embedding models, whatever their family.

use candle_core::Tensor;

use super::loader::Loader;
use crate::{
    Error, Result,
    nn::{Linear, Step},
    weights::DenseLayer,
};

/// Dense layers, one after the other.
pub(in crate::nn) struct Dense {
    layers: Vec<(Linear, bool)>,
    width: usize,
}

impl Dense {
    /// Loads `layers`, which follow rows of `inputs` values; `None` if there are none.
    pub(in crate::nn) fn load(loader: &Loader<'_>, inputs: usize, layers: &[DenseLayer]) -> Result<Option<Self>> {
        let Some(last) = layers.last() else { return Ok(None) };
        let mut width = inputs;
        let mut loaded = Vec::with_capacity(layers.len());
        for layer in layers {
            if layer.inputs != width {
                let message =
                    format!("the dense layer '{}' takes {} values, and gets {width}", layer.path, layer.inputs);
                return Err(Error::corrupt(message));
            }
            loaded.push((loader.at(&layer.path).linear("linear", layer.inputs, layer.outputs)?, layer.tanh));
            width = layer.outputs;
        }
        Ok(Some(Self { layers: loaded, width: last.outputs }))
    }

    /// Values in a row of the output.
    pub(in crate::nn) fn width(&self) -> usize {
        self.width
    }

    pub(in crate::nn) fn forward(&self, rows: Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.layers.iter().try_fold(rows, |x, (linear, tanh)| {
            let x = linear.forward(&x, step)?;
            Ok(if *tanh { x.tanh()? } else { x })
        })
    }
}
