//! Where layers come from: a place in a checkpoint's tree of names, and the device that the weights go to.
//!
//! `loader.at("model").at("layers").at(3).linear("q_proj", …)` reads the checkpoint like the model's own module tree, and
//! remembers each linear layer under its full name, so that adapters find it without the model file's help.

use candle_core::Tensor;
use std::{
    cell::{Cell, RefCell},
    fmt::Display,
    sync::Arc,
};

use super::{
    Embedding, Linear,
    ops::{Matrix, Ops},
};
use crate::{
    Result, Services,
    weights::{Checkpoint, Format},
};

/// Names a linear layer within its model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerId(usize);

/// The linear layers of a model by name.
#[derive(Debug, Default)]
pub(super) struct Registry {
    layers: Vec<Registered>,
}

#[derive(Debug)]
struct Registered {
    name: String,
    inputs: usize,
    outputs: usize,
}

impl Registry {
    /// A layer's id, inputs and outputs.
    pub(super) fn find(&self, name: &str) -> Option<(LayerId, usize, usize)> {
        let index = self.layers.iter().position(|layer| layer.name == name)?;
        Some((LayerId(index), self.layers[index].inputs, self.layers[index].outputs))
    }
}

/// A place in a checkpoint that is being loaded.
#[derive(Clone)]
pub struct Loader<'a> {
    shared: &'a Shared<'a>,
    prefix: String,
}

/// What all places of one load share.
pub(super) struct Shared<'a> {
    checkpoint: &'a Checkpoint,
    services: &'a Services,
    ops: &'a Ops,
    context: usize,
    registry: RefCell<Registry>,
    loaded_bytes: Cell<u64>,
}

impl<'a> Shared<'a> {
    pub(super) fn new(checkpoint: &'a Checkpoint, services: &'a Services, ops: &'a Ops, context: usize) -> Self {
        Self { checkpoint, services, ops, context, registry: RefCell::default(), loaded_bytes: Cell::new(0) }
    }

    pub(super) fn root(&'a self) -> Loader<'a> {
        Loader { shared: self, prefix: String::new() }
    }

    pub(super) fn into_registry(self) -> Registry {
        self.registry.into_inner()
    }
}

impl Loader<'_> {
    /// The place `part` below this one.
    #[must_use]
    pub fn at(&self, part: impl Display) -> Self {
        Self { shared: self.shared, prefix: self.name(part) }
    }

    /// The longest sequence that the model is loaded for, in tokens.
    pub fn context(&self) -> usize {
        self.shared.context
    }

    /// The format of the checkpoint, for the few places where its conventions show.
    pub fn format(&self) -> Format {
        self.shared.checkpoint.format()
    }

    /// Whether the checkpoint has a tensor of this name here.
    pub fn has(&self, name: &str) -> bool {
        self.shared.checkpoint.weights().contains(&self.name(name))
    }

    /// The linear layer `name.weight`, of shape `[outputs, inputs]`, with `name.bias` where the checkpoint has one.
    pub fn linear(&self, name: &str, inputs: usize, outputs: usize) -> Result<Linear> {
        let here = self.at(name);
        let weight = Arc::new(here.matrix("weight", outputs, inputs)?);
        let bias = if here.has("bias") { Some(here.vector("bias", outputs)?) } else { None };
        let id = self.register(&here.prefix, &weight);
        Ok(Linear::new(weight, bias, id))
    }

    /// The embedding `name.weight`, of shape `[rows, width]`.
    pub fn embedding(&self, name: &str, rows: usize, width: usize) -> Result<Embedding> {
        let here = self.at(name);
        Ok(Embedding::new(Arc::new(here.matrix("weight", rows, width)?), here.prefix))
    }

    /// A small dense tensor of one dimension, as `f32`.
    pub fn vector(&self, name: &str, len: usize) -> Result<Tensor> {
        let raw = self.shared.checkpoint.weights().get(&self.name(name))?.expect_shape(&[len])?;
        self.count(&raw.name, raw.data.len())?;
        self.shared.ops.vector(&raw)
    }

    /// The values of a small dense tensor of one dimension, where the checkpoint has it.
    pub fn values(&self, name: &str) -> Result<Option<Vec<f32>>> {
        self.shared.checkpoint.weights().find(&self.name(name)).map(|raw| raw.to_f32()).transpose()
    }

    fn matrix(&self, name: &str, outputs: usize, inputs: usize) -> Result<Matrix> {
        let raw = self.shared.checkpoint.weights().get(&self.name(name))?.expect_shape(&[outputs, inputs])?;
        self.count(&raw.name, raw.data.len())?;
        self.shared.ops.matrix(&raw).map_err(|error| error.context(format!("tensor '{}'", raw.name)))
    }

    pub(super) fn register(&self, name: &str, weight: &Matrix) -> LayerId {
        let mut registry = self.shared.registry.borrow_mut();
        registry.layers.push(Registered { name: name.to_owned(), inputs: weight.inputs(), outputs: weight.outputs() });
        LayerId(registry.layers.len() - 1)
    }

    /// Reports progress, and stops when the host wants it.
    fn count(&self, name: &str, bytes: usize) -> Result<()> {
        let shared = self.shared;
        shared.services.go_on()?;
        shared.loaded_bytes.set(shared.loaded_bytes.get() + bytes as u64);
        shared.services.progress(shared.loaded_bytes.get(), shared.checkpoint.weights().bytes(), name);
        Ok(())
    }

    fn name(&self, part: impl Display) -> String {
        if self.prefix.is_empty() { part.to_string() } else { format!("{}.{part}", self.prefix) }
    }
}
