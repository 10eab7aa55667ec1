//! Loads layers from a checkpoint: a [`Loader`] is a path in the tree of names, together with the device of the weights
//! there.
//!
//! `loader.at("model").at("layers").at(3).linear("q_proj", …)` follows the model's module tree, and registers each
//! linear layer under its full name, so that adapters find it without help from the model file.

use candle_core::{Device, Tensor};
use std::{
    cell::{Cell, RefCell},
    collections::HashSet,
    fmt::Display,
    sync::Arc,
};

use super::{
    layout::{Layout, is_beside_text},
    merge::{Merges, StackPart},
    resident::Resident,
};
use crate::{
    Code, Error, Merged, Result, Services,
    nn::{
        adapters::registry::{LayerId, Part, Registered, Registry, RowOrder},
        backend::Matrix,
        linear::{Embedding, Linear},
        ops::Ops,
    },
    weights::{Checkpoint, Format, GgufFamily, GgufRope, RawTensor, Weights, quote},
};

/// Tensors that repeat the configuration, and so are not reported as unused: RoPE frequencies, which [`Config::rope`]
/// reads from GGUF files and which older checkpoints repeat in every layer.
///
/// [`Config::rope`]: crate::weights::Config::rope
const DERIVED: [&str; 4] =
    ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight", "rotary_emb.inv_freq"];

/// Paths of the text model: in text-only checkpoints, in multimodal ones, and in those without an output layer.
const TEXT_MODELS: [&str; 6] =
    ["model", "language_model.model", "model.language_model", "language_model", "model.text_model", ""];

/// Maximum number of unused tensors that a warning names.
const NAMED_MAX: usize = 4;

/// A path in a checkpoint being loaded.
#[derive(Clone)]
pub struct Loader<'a> {
    shared: &'a Shared<'a>,
    /// Computes on the device that the weights go to.
    ops: &'a Ops,
    /// The weights stay in host memory although the model is on an accelerator.
    on_host: bool,
    prefix: String,
}

/// Experts that stay in host memory.
pub(in crate::nn) struct HostExperts {
    /// Computes on the CPU.
    pub(in crate::nn) ops: Ops,
    /// Number of layers, counted from the first.
    pub(in crate::nn) layers: usize,
}

/// State shared by all loaders of one model.
pub(in crate::nn) struct Shared<'a> {
    checkpoint: &'a Checkpoint,
    services: &'a Services,
    /// One per device of the model.
    parts: &'a [Ops],
    layout: &'a Layout,
    host: Option<&'a HostExperts>,
    context: usize,
    /// The user wants images and sounds to be read.
    reads_items: bool,
    /// Rows of queries and keys are permuted relative to transformers', as in many GGUF files.
    is_permuted: bool,
    merges: Merges<'a>,
    registry: RefCell<Registry>,
    used: RefCell<HashSet<String>>,
    resident: RefCell<Resident>,
    loaded_bytes: Cell<u64>,
}

impl<'a> Shared<'a> {
    /// `family` describes the architecture's GGUF files, whose tensor names adapters may use.
    pub(in crate::nn) fn new(
        checkpoint: &'a Checkpoint,
        services: &'a Services,
        (parts, layout, host): (&'a [Ops], &'a Layout, Option<&'a HostExperts>),
        (context, reads_items): (usize, bool),
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
            reads_items,
            is_permuted: family.rope == GgufRope::Permuted,
            merges,
            registry,
            used,
            resident,
            loaded_bytes,
        }
    }

    pub(in crate::nn) fn root(&'a self) -> Loader<'a> {
        Loader { shared: self, ops: self.ops_of(""), on_host: false, prefix: String::new() }
    }

    /// Operations of the device of the weights at `path`.
    fn ops_of(&self, path: &str) -> &'a Ops {
        self.parts.get(self.layout.of_path(path)).unwrap_or(&self.parts[0])
    }

    pub(in crate::nn) fn unused(&self) -> Option<String> {
        let weights = self.checkpoint.weights();
        if !self.reads_items {
            let beside = weights.names().filter(|name| is_beside_text(name)).map(str::to_owned);
            self.used.borrow_mut().extend(beside);
        }
        unused(weights, &self.used.borrow())
    }

    /// Returns the registry for adapters, and the layers' memory. Fails if a merged adapter has not found its weights.
    pub(in crate::nn) fn finish(self) -> Result<(Registry, Resident)> {
        self.merges.finish()?;
        Ok((self.registry.into_inner(), self.resident.into_inner()))
    }
}

/// Lists the tensors that were never loaded, for a warning: a part of the model that the plugin does not know, or a
/// misspelled name.
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
    /// The path `part` below this one.
    #[must_use]
    pub fn at(&self, part: impl Display) -> Self {
        let prefix = self.name(part);
        let ops = if self.on_host { self.ops } else { self.shared.ops_of(&prefix) };
        Self { shared: self.shared, ops, on_host: self.on_host, prefix }
    }

    /// Returns this path with its weights on the device that computes its layer's experts. The second value computes
    /// there, if that is not the model's device: pass it to [`Experts::computed_by`](crate::nn::Experts::computed_by).
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

    /// Returns the path of the text model: `model`, or its counterpart in multimodal checkpoints.
    #[must_use]
    pub fn text_model(&self) -> Self {
        let is_there = |path: &&&str| self.at(path).has("embed_tokens.weight");
        self.at(TEXT_MODELS.iter().find(is_there).unwrap_or(&TEXT_MODELS[0]))
    }

    /// Loads the layers `layers.0`, `layers.1` … below this path, each with `load`.
    pub fn layers<L>(&self, count: usize, load: impl Fn(&Self, usize) -> Result<L>) -> Result<Vec<L>> {
        (0..count).map(|index| load(&self.at("layers").at(index), index)).collect()
    }

    /// Loads the output layer `lm_head`; if `tied` and the checkpoint has none, uses the embedding's weight, and so too in a
    /// checkpoint of the model alone, as embedding models are published.
    pub fn lm_head(&self, embedding: &Embedding, tied: bool) -> Result<Linear> {
        let nested = "language_model.lm_head";
        let name = if self.at(nested).has("weight") { nested } else { "lm_head" };
        let here = self.at(name);
        let is_alone = self.at("embed_tokens").has("weight");
        if (tied || is_alone) && !here.has("weight") {
            let head = embedding.tied(self, name);
            // The table may be on another device than a separate `lm_head` would be; the bias must be on the same one.
            let beside = Self { ops: self.shared.parts.get(head.place()).unwrap_or(self.ops), ..here.clone() };
            let bias = if here.has("bias") { Some(beside.vector("bias", embedding.rows())?) } else { None };
            return Ok(head.with_bias(bias));
        }
        self.linear(name, embedding.width(), embedding.rows())
    }

    /// Index of the weights' device among the model's.
    fn place(&self) -> usize {
        self.shared.layout.of_path(&self.prefix)
    }

    /// The full name of this path, as in `model.layers.3`.
    pub fn path(&self) -> &str {
        &self.prefix
    }

    /// The context that the model is loaded with, in tokens.
    pub fn context(&self) -> usize {
        self.shared.context
    }

    /// Returns whether to load the layers that read images and sounds; the option `vision` turns them off.
    pub fn reads_items(&self) -> bool {
        self.shared.reads_items
    }

    /// The device of the weights.
    pub fn device(&self) -> &Device {
        self.ops.device()
    }

    /// The checkpoint's format, for the few models that must distinguish GGUF's conventions from Hugging Face's.
    pub fn format(&self) -> Format {
        self.shared.checkpoint.format()
    }

    /// Returns whether the tensor `name` exists below this path.
    pub fn has(&self, name: &str) -> bool {
        self.shared.checkpoint.weights().contains(&self.name(name))
    }

    /// Loads the linear layer `name.weight`, of shape `[outputs, inputs]`, with `name.bias` if the checkpoint has one.
    pub fn linear(&self, name: &str, inputs: usize, outputs: usize) -> Result<Linear> {
        self.linear_in(name, inputs, outputs, None)
    }

    /// Creates a linear layer from a weight `[outputs, inputs]` built by the model file, such as a part of a tensor or
    /// a transposed one. Adapters find it under `name`.
    pub fn linear_of(&self, name: &str, weight: &RawTensor) -> Result<Linear> {
        let (weight, id) = self.at(name).weight(weight, Part::Linear, None)?;
        Ok(Linear::new(weight, None, id))
    }

    fn linear_in(&self, name: &str, inputs: usize, outputs: usize, stack: Option<StackPart<'_>>) -> Result<Linear> {
        let here = self.at(name);
        let weight = here.raw("weight", &[outputs, inputs])?;
        let bias = if here.has("bias") { Some(here.vector("bias", outputs)?) } else { None };
        let (weight, id) = here.weight(&weight, Part::Linear, stack)?;
        Ok(Linear::new(weight, bias, id))
    }

    /// Loads linear layers with a common input, which the checkpoint has separately or stacked as the rows of
    /// `name.weight`: queries, keys and values as `qkv_proj`, gate and up as `gate_up_proj`. In either case adapters
    /// may name the parts or the stack.
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
                let stack_part = StackPart { stack: &stack.prefix, outputs: all, start };
                start = rows.end;
                let bias = bias.as_ref().map(|bias| self.vector_of(&bias.rows(rows.clone())?)).transpose()?;
                let (weight, id) = self.at(part).weight(&weight.rows(rows)?, Part::Linear, Some(stack_part))?;
                Ok(Linear::new(weight, bias, id))
            };
            parts.into_iter().map(part).collect::<Result<_>>()?
        } else {
            let part = |(part, outputs): (&str, usize)| {
                let stack_part = StackPart { stack: &stack.prefix, outputs: all, start };
                start += outputs;
                self.linear_in(part, inputs, outputs, Some(stack_part)).map_err(|mut error| {
                    if error.code == Code::NotFound {
                        error.message += &format!(", nor '{}.weight' that contains it", stack.prefix);
                    }
                    error
                })
            };
            parts.into_iter().map(part).collect::<Result<_>>()?
        };
        let ids = layers.iter().map(Linear::id).collect();
        self.shared.registry.borrow_mut().add_stack(stack.prefix, ids);
        layers.try_into().map_err(|_| Error::invalid(format!("'{name}' has other parts than were asked for")))
    }

    /// Loads the embedding `name.weight`, of shape `[rows, width]`.
    pub fn embedding(&self, name: &str, rows: usize, width: usize) -> Result<Embedding> {
        let here = self.at(name);
        let raw = here.raw("weight", &[rows, width])?;
        let (weight, id) = here.weight(&raw, Part::Table, None)?;
        Ok(Embedding::new(weight, raw, id))
    }

    /// Returns the output layer at this path. It shares the table's weight unless an adapter is merged into one of the
    /// two.
    fn tied(&self, table: LayerId, raw: &RawTensor, weight: &Arc<Matrix>) -> Linear {
        let merges = &self.shared.merges;
        let is_changed = |name: &str| merges.changes(name);
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

    /// Loads a one-dimensional tensor in `f32`, such as a bias or a norm's weight.
    pub fn vector(&self, name: &str, len: usize) -> Result<Tensor> {
        self.vector_of(&self.raw(name, &[len])?)
    }

    /// Loads a tensor of any format and shape, unpacked to `f32`, for weights that do not belong to a linear layer.
    pub fn dense(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let raw = self.raw(name, shape)?;
        self.shared.resident.borrow_mut().add_small(shape.iter().product(), self.place());
        self.ops.dense(pensieve_kernels::dequantize(&raw)?, shape)
    }

    /// Creates a small tensor with these values, on this path's device.
    pub(in crate::nn) fn tensor(&self, values: Vec<f32>, shape: &[usize]) -> Result<Tensor> {
        self.shared.resident.borrow_mut().add_small(values.len(), self.place());
        self.ops.dense(values, shape)
    }

    /// Like [`Self::vector`], for a tensor that the model file took from the checkpoint, such as a part of a bias.
    pub fn vector_of(&self, raw: &RawTensor) -> Result<Tensor> {
        let vector = self.ops.vector(raw)?;
        self.shared.resident.borrow_mut().add_small(vector.elem_count(), self.place());
        Ok(vector)
    }

    /// Reads a small tensor's values to host memory; `None` if the checkpoint does not have it.
    pub fn values(&self, name: &str) -> Result<Option<Vec<f32>>> {
        let name = self.name(name);
        let weights = self.shared.checkpoint.weights();
        let values = if weights.contains(&name) { Some(weights.get(&name)?.to_f32()?) } else { None };
        self.shared.used.borrow_mut().insert(name);
        Ok(values)
    }

    /// Returns a tensor as stored in the checkpoint; fails if its shape differs.
    pub fn raw(&self, name: &str, shape: &[usize]) -> Result<RawTensor> {
        let raw = self.shared.checkpoint.weights().get(&self.name(name))?.expect_shape(shape)?;
        self.count(&raw.name, raw.data.len())?;
        self.shared.used.borrow_mut().insert(raw.name.clone());
        Ok(raw)
    }

    /// Returns a tensor that lies in its file in one piece, to be read there.
    pub(in crate::nn) fn mapped(&self, name: &str, shape: &[usize]) -> Result<RawTensor> {
        let name = self.name(name);
        let weights = self.shared.checkpoint.weights();
        let Some(raw) = weights.find(&name) else {
            if !weights.contains(&name) {
                // Its error names the nearest tensor.
                return weights.get(&name);
            }
            let message =
                format!("tensor {} is not stored in one piece, so its rows cannot be read in place", quote(&name));
            return Err(Error::unsupported(message).help("store the table as one plain or GGUF-quantized tensor"));
        };
        let raw = raw.expect_shape(shape)?;
        self.shared.services.go_on()?;
        self.shared.resident.borrow_mut().add_table(raw.data.len());
        self.shared.used.borrow_mut().insert(name);
        Ok(raw)
    }

    /// Converts the weight of the layer at this path to the device's form, and registers the layer for adapters.
    fn weight(&self, raw: &RawTensor, part: Part, stack_part: Option<StackPart<'_>>) -> Result<(Arc<Matrix>, LayerId)> {
        let &[outputs, inputs] = raw.shape.as_slice() else {
            return Err(Error::corrupt(format!("tensor '{}' has shape {:?}, not two dimensions", raw.name, raw.shape)));
        };
        let layer = self.describe(part, inputs, outputs);
        let merged = self.shared.merges.add(&layer, raw, stack_part)?;
        let from = merged.as_ref().unwrap_or(raw);
        let matrix = self.ops.matrix(from);
        let matrix = matrix.map_err(|error| error.context(format!("tensor '{}'", raw.name)))?;
        self.shared.resident.borrow_mut().add_matrix(&matrix, part, self.on_host);
        let id = self.register(Registered { is_f32: matrix.is_f32(), ..layer });
        Ok((Arc::new(matrix), id))
    }

    /// Moves the matrices of heads, `[heads, outputs, inputs]`, to this path's device.
    pub(in crate::nn) fn head_matrix(&self, raw: &RawTensor) -> Result<Matrix> {
        let matrix = self.ops.head_matrix(raw).map_err(|error| error.context(format!("tensor '{}'", raw.name)))?;
        self.shared.resident.borrow_mut().add_matrix(&matrix, Part::Linear, self.on_host);
        Ok(matrix)
    }

    /// The registry's entry for the layer at this path, except for `is_f32`.
    fn describe(&self, part: Part, inputs: usize, outputs: usize) -> Registered {
        let order = if self.format() == Format::Gguf { RowOrder::Gguf } else { RowOrder::HuggingFace };
        let rotated_heads = self.rotated_heads(&self.prefix, outputs);
        let place = self.place();
        Registered { name: self.prefix.clone(), part, inputs, outputs, is_f32: false, order, place, rotated_heads }
    }

    fn register(&self, layer: Registered) -> LayerId {
        self.shared.registry.borrow_mut().add(layer)
    }

    /// Returns the head size if the layer projects queries or keys whose rotated pairs are adjacent in GGUF files.
    fn rotated_heads(&self, name: &str, outputs: usize) -> Option<usize> {
        let config = self.shared.checkpoint.config();
        let is_rotated = ["q_proj", "k_proj"].iter().any(|projection| name.ends_with(projection));
        let per_head = || config.usize("hidden_size").ok()?.checked_div(config.usize("num_attention_heads").ok()?);
        let head_dim = config.find_usize("head_dim").ok().flatten().or_else(per_head)?;
        let is_reordered = is_rotated && self.shared.is_permuted;
        (is_reordered && head_dim > 1 && outputs.is_multiple_of(head_dim)).then_some(head_dim)
    }

    /// Reports progress; fails if the host has cancelled the load.
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
    /// Creates the output layer `name` of a model with tied embeddings, which shares this table. An adapter for `name`
    /// changes the output only.
    pub fn tied(&self, loader: &Loader<'_>, name: &str) -> Linear {
        let (id, raw, weight) = self.parts();
        loader.at(name).tied(id, raw, weight)
    }
}
