//! Where layers come from: a place in a checkpoint's tree of names, and the device that the weights go to.
//!
//! `loader.at("model").at("layers").at(3).linear("q_proj", …)` reads the checkpoint like the model's own module tree, and
//! remembers each linear layer under its full name, so that adapters find it without the model file's help.

use candle_core::{Device, Tensor};
use std::{
    cell::{Cell, RefCell},
    collections::HashSet,
    fmt::Display,
    sync::Arc,
};

use super::{
    backend::Matrix,
    cpu,
    layout::Layout,
    linear::{Embedding, Linear},
    merge::{Merges, Storey},
    ops::Ops,
    registry::{LayerId, Part, Registered, Registry, RowOrder},
    resident::Resident,
};
use crate::{
    Error, Merged, Result, Services,
    weights::{Checkpoint, Format, GgufFamily, GgufRope, RawTensor, Weights, quote},
};

/// Tensors that hold nothing which a configuration does not say: RoPE's frequencies, which [`Config::rope`] has read from
/// GGUF files and older folders repeat in every layer.
///
/// [`Config::rope`]: crate::weights::Config::rope
const DERIVED: [&str; 4] =
    ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight", "rotary_emb.inv_freq"];

/// Where a text model lies: by itself, or within a model that also sees or hears.
const TEXT_MODELS: [&str; 4] = ["model", "language_model.model", "model.language_model", "language_model"];

/// How many unused tensors are named.
const NAMED_MAX: usize = 4;

/// A place in a checkpoint that is being loaded.
#[derive(Clone)]
pub struct Loader<'a> {
    shared: &'a Shared<'a>,
    /// The computations on the device that the weights go to.
    ops: &'a Ops,
    /// Whether that is the host's memory, while the model is on a device.
    on_host: bool,
    prefix: String,
}

/// Experts that stay in the host's memory.
pub(super) struct HostExperts {
    /// What computes them there.
    pub(super) ops: Ops,
    /// In how many layers, from the first on.
    pub(super) layers: usize,
}

/// What all places of one load share.
pub(super) struct Shared<'a> {
    checkpoint: &'a Checkpoint,
    services: &'a Services,
    /// The computations of each of the model's devices.
    parts: &'a [Ops],
    layout: &'a Layout,
    host: Option<&'a HostExperts>,
    context: usize,
    /// Whether GGUF files have the rows of queries and keys in another order than transformers.
    is_permuted: bool,
    merges: Merges<'a>,
    registry: RefCell<Registry>,
    used: RefCell<HashSet<String>>,
    resident: RefCell<Resident>,
    loaded_bytes: Cell<u64>,
}

impl<'a> Shared<'a> {
    /// `family` is what the plugin knows of the architecture's GGUF files, which adapters may name tensors after.
    pub(super) fn new(
        checkpoint: &'a Checkpoint,
        services: &'a Services,
        (parts, layout, host): (&'a [Ops], &'a Layout, Option<&'a HostExperts>),
        context: usize,
        family: GgufFamily,
        merged: &'a [Merged],
    ) -> Self {
        let registry = RefCell::new(Registry::new(family.names));
        let merges = Merges::new(merged, family.names);
        let (used, resident, loaded_bytes) = (RefCell::default(), RefCell::default(), Cell::new(0));
        Self {
            checkpoint,
            services,
            parts,
            layout,
            host,
            context,
            is_permuted: family.rope == GgufRope::Permuted,
            merges,
            registry,
            used,
            resident,
            loaded_bytes,
        }
    }

    pub(super) fn root(&'a self) -> Loader<'a> {
        Loader { shared: self, ops: self.ops_of(""), on_host: false, prefix: String::new() }
    }

    /// The computations of the device that the weights of a place go to.
    fn ops_of(&self, path: &str) -> &'a Ops {
        self.parts.get(self.layout.of_path(path)).unwrap_or(&self.parts[0])
    }

    pub(super) fn unused(&self) -> Option<String> {
        unused(self.checkpoint.weights(), &self.used.borrow())
    }

    /// What adapters need, once all that was to be merged has found its weight, and what the layers take.
    pub(super) fn finish(self) -> Result<(Registry, Resident)> {
        self.merges.finish()?;
        Ok((self.registry.into_inner(), self.resident.into_inner()))
    }
}

/// Tensors of a checkpoint that nothing asked for, for a person: a part of the model that the plugin does not know, or a
/// name that it missed.
pub(crate) fn unused(weights: &Weights, used: &HashSet<String>) -> Option<String> {
    let is_unused = |name: &&str| !used.contains(*name) && !DERIVED.iter().any(|derived| name.ends_with(derived));
    let unused: Vec<_> = weights.names().filter(is_unused).collect();
    let named = unused.iter().take(NAMED_MAX).map(|name| quote(name)).collect::<Vec<_>>().join(", ");
    let more = unused.len().saturating_sub(NAMED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let (count, all) = (unused.len(), weights.names().count());
    (count > 0).then(|| format!("{count} of the checkpoint's {all} tensors: {named}{more}"))
}

impl Loader<'_> {
    /// The place `part` below this one.
    #[must_use]
    pub fn at(&self, part: impl Display) -> Self {
        let prefix = self.name(part);
        let ops = if self.on_host { self.ops } else { self.shared.ops_of(&prefix) };
        Self { shared: self.shared, ops, on_host: self.on_host, prefix }
    }

    /// This place, whose weights go to the device that experts of its layer are computed on, and what computes there if that
    /// is not the model's: for [`Experts::computed_by`](super::Experts::computed_by).
    pub fn for_experts(&self) -> (Self, Option<Ops>) {
        let layer = self.prefix.split('.').find_map(|part| part.parse::<usize>().ok());
        match self.shared.host.filter(|host| layer.is_some_and(|layer| layer < host.layers)) {
            Some(host) => {
                let on_host = !host.ops.device().same_device(self.ops.device());
                (Self { ops: &host.ops, on_host, ..self.clone() }, Some(host.ops.clone()))
            }
            None => (self.clone(), None),
        }
    }

    /// The place of the text model: `model`, or where a checkpoint that also sees or hears keeps it.
    #[must_use]
    pub fn text_model(&self) -> Self {
        let is_there = |place: &&&str| self.at(place).has("embed_tokens.weight");
        self.at(TEXT_MODELS.iter().find(is_there).unwrap_or(&TEXT_MODELS[0]))
    }

    /// The layers `layers.0`, `layers.1` … below this place, each loaded by `load`.
    pub fn layers<L>(&self, count: usize, load: impl Fn(&Self, usize) -> Result<L>) -> Result<Vec<L>> {
        (0..count).map(|index| load(&self.at("layers").at(index), index)).collect()
    }

    /// The output layer `lm_head`: the embedding's table, if `tied` and the checkpoint has no other.
    pub fn lm_head(&self, embedding: &Embedding, tied: bool) -> Result<Linear> {
        let nested = "language_model.lm_head";
        let name = if self.at(nested).has("weight") { nested } else { "lm_head" };
        let here = self.at(name);
        if tied && !here.has("weight") {
            let head = embedding.tied(self, name);
            // The bias goes where the table is, whose device is not that of a head of its own.
            let beside = Self { ops: self.shared.parts.get(head.place()).unwrap_or(self.ops), ..here.clone() };
            let bias = if here.has("bias") { Some(beside.vector("bias", embedding.rows())?) } else { None };
            return Ok(head.with_bias(bias));
        }
        self.linear(name, embedding.width(), embedding.rows())
    }

    /// Which of the model's devices the weights go to.
    fn place(&self) -> usize {
        self.shared.layout.of_path(&self.prefix)
    }

    /// The name of this place.
    pub fn path(&self) -> &str {
        &self.prefix
    }

    /// The longest sequence that the model is loaded for, in tokens.
    pub fn context(&self) -> usize {
        self.shared.context
    }

    /// The device that the weights go to.
    pub fn device(&self) -> &Device {
        self.ops.device()
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
        self.storey(name, inputs, outputs, None)
    }

    /// The linear layer of a weight `[outputs, inputs]` that an author has taken out of the checkpoint: a part of a tensor, or one
    /// that was transposed. Adapters find it under `name`.
    pub fn linear_of(&self, name: &str, weight: &RawTensor) -> Result<Linear> {
        let (weight, id) = self.at(name).weight(weight, Part::Linear, None)?;
        Ok(Linear::new(weight, None, id))
    }

    fn storey(&self, name: &str, inputs: usize, outputs: usize, storey: Option<Storey<'_>>) -> Result<Linear> {
        let here = self.at(name);
        let weight = here.raw("weight", &[outputs, inputs])?;
        let bias = if here.has("bias") { Some(here.vector("bias", outputs)?) } else { None };
        let (weight, id) = here.weight(&weight, Part::Linear, storey)?;
        Ok(Linear::new(weight, bias, id))
    }

    /// Linear layers of one input, which a checkpoint has each by itself or stacked as the rows of `name.weight`: queries,
    /// keys and values as `qkv_proj`, gate and up as `gate_up_proj`. Adapters find the parts and the stack in either case.
    pub fn stacked<const N: usize>(&self, name: &str, inputs: usize, parts: [(&str, usize); N]) -> Result<[Linear; N]> {
        let stack = self.at(name);
        let all = parts.iter().map(|(_, outputs)| outputs).sum();
        let mut start = 0;
        let layers: Vec<Linear> = if stack.has("weight") {
            let outputs = all;
            let weight = stack.raw("weight", &[outputs, inputs])?;
            let bias = if stack.has("bias") { Some(stack.raw("bias", &[outputs])?) } else { None };
            let part = |(part, outputs): (&str, usize)| {
                let rows = start..start + outputs;
                let storey = Storey { stack: &stack.prefix, outputs: all, start };
                start = rows.end;
                let bias = bias.as_ref().map(|bias| self.vector_of(&bias.rows(rows.clone())?)).transpose()?;
                let (weight, id) = self.at(part).weight(&weight.rows(rows)?, Part::Linear, Some(storey))?;
                Ok(Linear::new(weight, bias, id))
            };
            parts.into_iter().map(part).collect::<Result<_>>()?
        } else {
            let part = |(part, outputs): (&str, usize)| {
                let storey = Storey { stack: &stack.prefix, outputs: all, start };
                start += outputs;
                self.storey(part, inputs, outputs, Some(storey))
            };
            parts.into_iter().map(part).collect::<Result<_>>()?
        };
        let ids = layers.iter().map(Linear::id).collect();
        self.shared.registry.borrow_mut().add_stack(stack.prefix, ids);
        layers.try_into().map_err(|_| Error::invalid(format!("'{name}' has other parts than were asked for")))
    }

    /// The embedding `name.weight`, of shape `[rows, width]`.
    pub fn embedding(&self, name: &str, rows: usize, width: usize) -> Result<Embedding> {
        let here = self.at(name);
        let raw = here.raw("weight", &[rows, width])?;
        let (weight, id) = here.weight(&raw, Part::Table, None)?;
        Ok(Embedding::new(weight, raw, id))
    }

    /// The output layer of this place, which shares a table's weight unless an adapter was merged into one of the two.
    fn tied(&self, table: LayerId, raw: &RawTensor, weight: &Arc<Matrix>) -> Linear {
        let merges = &self.shared.merges;
        let is_changed = |name: &str| merges.concern(name);
        let table_is_changed = self.shared.registry.borrow().get(table).is_some_and(|it| is_changed(&it.name));
        if table_is_changed || is_changed(&self.prefix) {
            match self.weight(raw, Part::Linear, None) {
                Ok((weight, id)) => return Linear::new(weight, None, id),
                Err(error) => merges.fail(error),
            }
        }
        let layer = self.describe(Part::Linear, weight.inputs(), weight.outputs());
        let layer = Registered { is_f32: weight.is_f32(), place: weight.place, ..layer };
        Linear::new(weight.clone(), None, self.register(layer))
    }

    /// A small dense tensor of one dimension, as `f32`.
    pub fn vector(&self, name: &str, len: usize) -> Result<Tensor> {
        self.vector_of(&self.raw(name, &[len])?)
    }

    /// A tensor of any format and shape in single precision, for what is no linear layer by itself.
    pub fn dense(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let raw = self.raw(name, shape)?;
        self.shared.resident.borrow_mut().add_small(shape.iter().product(), self.place());
        self.ops.dense(cpu::dequantize(&raw)?, shape)
    }

    /// A small tensor of these values, on this place's device.
    pub(super) fn tensor(&self, values: Vec<f32>, shape: &[usize]) -> Result<Tensor> {
        self.shared.resident.borrow_mut().add_small(values.len(), self.place());
        self.ops.dense(values, shape)
    }

    /// The values of a small dense tensor that an author has taken out of the checkpoint, such as a bias, as `f32`.
    pub fn vector_of(&self, raw: &RawTensor) -> Result<Tensor> {
        let vector = self.ops.vector(raw)?;
        self.shared.resident.borrow_mut().add_small(vector.elem_count(), self.place());
        Ok(vector)
    }

    /// The values of a small dense tensor of one dimension, where the checkpoint has it.
    pub fn values(&self, name: &str) -> Result<Option<Vec<f32>>> {
        let name = self.name(name);
        let weights = self.shared.checkpoint.weights();
        let values = if weights.contains(&name) { Some(weights.get(&name)?.to_f32()?) } else { None };
        self.shared.used.borrow_mut().insert(name);
        Ok(values)
    }

    /// A tensor as it lies in the checkpoint, if it has this shape.
    pub fn raw(&self, name: &str, shape: &[usize]) -> Result<RawTensor> {
        let raw = self.shared.checkpoint.weights().get(&self.name(name))?.expect_shape(shape)?;
        self.count(&raw.name, raw.data.len())?;
        self.shared.used.borrow_mut().insert(raw.name.clone());
        Ok(raw)
    }

    /// The weight of the layer at this place, in the form that the device computes with, and the layer's name for adapters.
    fn weight(&self, raw: &RawTensor, part: Part, storey: Option<Storey<'_>>) -> Result<(Arc<Matrix>, LayerId)> {
        let &[outputs, inputs] = raw.shape.as_slice() else {
            return Err(Error::corrupt(format!("tensor '{}' has shape {:?}, not two dimensions", raw.name, raw.shape)));
        };
        let layer = self.describe(part, inputs, outputs);
        let merged = self.shared.merges.add(&layer, raw, storey)?;
        let from = merged.as_ref().unwrap_or(raw);
        let matrix = self.ops.matrix(from);
        let matrix = matrix.map_err(|error| error.context(format!("tensor '{}'", raw.name)))?;
        self.shared.resident.borrow_mut().add_matrix(&matrix, part, self.on_host);
        let id = self.register(Registered { is_f32: matrix.is_f32(), ..layer });
        Ok((Arc::new(matrix), id))
    }

    /// The layer at this place as adapters see it, but for the type of its weight.
    fn describe(&self, part: Part, inputs: usize, outputs: usize) -> Registered {
        let order = if self.format() == Format::Gguf { RowOrder::Gguf } else { RowOrder::HuggingFace };
        let rotated_heads = self.rotated_heads(&self.prefix, outputs);
        let place = self.place();
        Registered { name: self.prefix.clone(), part, inputs, outputs, is_f32: false, order, place, rotated_heads }
    }

    fn register(&self, layer: Registered) -> LayerId {
        self.shared.registry.borrow_mut().add(layer)
    }

    /// The size of the heads, where the rows of a layer are those of queries or keys whose rotating pairs are neighbours in
    /// GGUF files.
    fn rotated_heads(&self, name: &str, outputs: usize) -> Option<usize> {
        let config = self.shared.checkpoint.config();
        let is_rotated = ["q_proj", "k_proj"].iter().any(|projection| name.ends_with(projection));
        let per_head = || config.usize("hidden_size").ok()?.checked_div(config.usize("num_attention_heads").ok()?);
        let head_dim = config.find_usize("head_dim").ok().flatten().or_else(per_head)?;
        let is_reordered = is_rotated && self.shared.is_permuted;
        (is_reordered && head_dim > 1 && outputs.is_multiple_of(head_dim)).then_some(head_dim)
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

impl Embedding {
    /// The output layer `name` that shares this table, as in models with tied embeddings. An adapter for `name` changes the
    /// output alone.
    pub fn tied(&self, loader: &Loader<'_>, name: &str) -> Linear {
        let (id, raw, weight) = self.parts();
        loader.at(name).tied(id, raw, weight)
    }
}
