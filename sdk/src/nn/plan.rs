//! From an opened checkpoint to a card and to a loaded model: the one place that turns sizes into a memory plan.

use candle_core::Device;
use std::collections::HashSet;

use super::{
    BLOCK_TOKENS, KvShape, KvType, Loader, ModelOptions, Ops, Runtime,
    adapters::Adapters,
    device::{self, Chosen},
    items::Items,
    loading::{
        layout::{self, Layout, Share},
        loader::{HostExperts, Shared},
    },
    memory::kv::KvCache,
    ops::Kernels,
    spec::kv_shape,
};
use crate::{
    Cache, Card, Error, Level, LoadRequest, Merged, Resident, Result, Services,
    weights::{Checkpoint, GgufFamily, RawTensor},
};

/// The sizes of a decoder that a host plans by.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Logits per token.
    pub vocabulary: usize,
    /// The longest sequence that the checkpoint supports, in tokens.
    pub context: usize,
    /// The widest activation of a token, such as an MLP's inner width.
    pub widest: usize,
    /// The caches of its layers; none for an encoder.
    pub kv: KvShape,
}

impl Shape {
    /// Sets each layer's sliding window in tokens, including the token itself; `None` for full attention.
    #[must_use]
    pub fn windowed(self, window: impl Fn(usize) -> Option<usize>) -> Self {
        Self { kv: self.kv.windowed(window), ..self }
    }
}

/// A checkpoint with everything that is needed to describe and load it.
///
/// [`Paged`](super::Paged) makes one for a [`Decoder`](super::Decoder). Authors who implement
/// [`Architecture`](crate::Architecture) and [`Model`](crate::Model) themselves make one here: `describe` returns
/// [`Self::card`], and `load` takes layers and a [`Runtime`] from [`Self::load`], which keeps quantized weights, paged
/// caches and adapters.
pub struct ModelPlan {
    architecture: &'static str,
    checkpoint: Checkpoint,
    shape: Shape,
    options: ModelOptions,
    family: GgufFamily,
    hidden: usize,
    /// Names of the tensors that are read in place, row by row.
    mapped: HashSet<String>,
    /// The layers that read images and sounds are loaded, too.
    reads_items: bool,
    kv: KvType,
    kernels: Kernels,
    groups: Vec<Cache>,
    /// It has no caches, and no output layer.
    is_encoder: bool,
}

impl ModelPlan {
    /// Plans a model of the architecture with these sizes, without hidden rows or mapped tables.
    pub fn new(
        architecture: &'static str,
        checkpoint: Checkpoint,
        shape: Shape,
        options: ModelOptions,
    ) -> Result<Self> {
        let (kv, kernels) = (options.kv_type(&checkpoint)?, options.kernels()?);
        if shape.kv.layers.is_empty() {
            return Err(Error::corrupt(format!("a checkpoint of {architecture} with 0 layers")));
        }
        let groups = shape.kv.groups(kv)?.0;
        let family = GgufFamily::of(checkpoint.architecture());
        let (hidden, mapped, is_encoder) = (0, HashSet::new(), false);
        Ok(Self {
            architecture,
            checkpoint,
            shape,
            options,
            family,
            hidden,
            mapped,
            reads_items: false,
            kv,
            kernels,
            groups,
            is_encoder,
        })
    }

    /// Plans an encoder, which has rows instead of logits, and no caches: those of the shape are left out.
    pub fn of_encoder(
        architecture: &'static str,
        checkpoint: Checkpoint,
        shape: Shape,
        options: ModelOptions,
    ) -> Result<Self> {
        let (kv, kernels) = (options.kv_type(&checkpoint)?, options.kernels()?);
        let mut shape = shape;
        shape.kv = KvShape::new(Vec::new());
        let groups = vec![Cache::Opaque { bytes: 0 }];
        let family = GgufFamily::of(checkpoint.architecture());
        let (hidden, mapped, is_encoder) = (0, HashSet::new(), true);
        Ok(Self {
            architecture,
            checkpoint,
            shape,
            options,
            family,
            hidden,
            mapped,
            reads_items: false,
            kv,
            kernels,
            groups,
            is_encoder,
        })
    }

    /// The conventions of the architecture's GGUF files, if they differ from the usual ones.
    #[must_use]
    pub fn with_family(self, family: GgufFamily) -> Self {
        Self { family, ..self }
    }

    /// The model gives hidden rows of this width.
    #[must_use]
    pub fn with_hidden(self, hidden: usize) -> Self {
        Self { hidden, ..self }
    }

    /// The family has a tower, which is loaded unless the user does without.
    #[must_use]
    pub(super) fn with_tower(self, has_tower: bool) -> Self {
        Self { reads_items: has_tower && self.options.vision, ..self }
    }

    /// Names the tensors that stay in their file, where [`Loader::table`] reads rows as they are needed: they count as
    /// mapped, not as weights.
    #[must_use]
    pub fn with_mapped(self, is_mapped: impl Fn(&str) -> bool) -> Self {
        let names = self.checkpoint.weights().names().filter(|name| is_mapped(name));
        let mapped = names.map(str::to_owned).collect();
        Self { mapped, ..self }
    }

    /// The checkpoint that it was made of, for its configuration and its tensors.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Describes the model for [`Architecture::describe`](crate::Architecture::describe).
    pub fn card(&self) -> Result<Card> {
        let tokenizer = self.checkpoint.tokenizer()?;
        let fingerprint = self.checkpoint.fingerprint(&tokenizer)?;
        let narrow = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let mut facts = facts(&self.checkpoint);
        if !self.mapped.is_empty() {
            facts["mapped_bytes"] = self.bytes(true).into();
        }
        Ok(Card {
            architecture: self.architecture.into(),
            vocabulary: narrow(self.shape.vocabulary),
            context: narrow(self.shape.context),
            block_tokens: BLOCK_TOKENS as u32,
            caches: self.groups.clone(),
            hidden: narrow(self.hidden),
            token_bytes: 4 * (if self.is_encoder { 0 } else { self.shape.vocabulary } + 4 * self.shape.widest) as u64,
            weight_bytes: self.weight_bytes(),
            tokenizer: tokenizer.json,
            chat_template: tokenizer.chat_template,
            bos: tokenizer.bos,
            add_bos: tokenizer.add_bos,
            eos: tokenizer.eos,
            formats: String::new(),
            facts: facts.to_string(),
            fingerprint,
        })
    }

    /// Loads the layers by `load` onto the devices that the request names, and allocates their caches.
    pub fn load<L>(
        &self,
        request: &LoadRequest,
        services: &Services,
        merged: &[Merged],
        load: impl FnOnce(&Loader<'_>) -> Result<L>,
    ) -> Result<(L, Runtime)> {
        let chosen = device::choose(&request.device)?;
        let ops = Ops::new(&chosen, request.threads as usize, self.kernels)?;
        self.load_on((&chosen, ops), request, (services, merged), load)
    }

    /// [`Self::load`] onto devices that have been chosen.
    pub(super) fn load_on<L>(
        &self,
        (chosen, ops): (&Chosen, Ops),
        request: &LoadRequest,
        (services, merged): (&Services, &[Merged]),
        load: impl FnOnce(&Loader<'_>) -> Result<L>,
    ) -> Result<(L, Runtime)> {
        let (threads, n_cpu_moe) = (request.threads as usize, self.options.n_cpu_moe);
        let host = match n_cpu_moe {
            0 => None,
            _ if chosen.device.is_cpu() && chosen.beside.is_empty() => Some(ops.clone()),
            _ => Some(Ops::new(&device::choose("cpu")?, threads, self.kernels)?),
        };
        let host = host.map(|ops| HostExperts { ops, layers: n_cpu_moe });
        let (shape, asked) = (&self.shape, request.context as usize);
        let context = if asked == 0 { shape.context } else { asked.min(shape.context) };
        if asked > context {
            services.log(Level::Warn, format!("the model supports {context} tokens, not {asked}: using {context}"));
        }
        if self.is_encoder && !chosen.beside.is_empty() {
            let message = format!("an encoder is computed on one device, not on {}", chosen.name);
            return Err(Error::unsupported(message).help("name one of them"));
        }
        let counts = match self.is_encoder {
            true => Vec::new(),
            false => kv_shape::divide(request.state_bytes, &self.groups, context)?,
        };
        let parts = ops.by_place();
        let layout = self.layout(chosen, &counts)?;
        let target = (&parts[..], &layout, host.as_ref());
        let shared =
            Shared::new(&self.checkpoint, services, target, (context, self.options.vision), self.family, merged);
        let layers = load(&shared.root())?;
        if let Some(names) = shared.unused() {
            services.log(Level::Warn, format!("{} does not use {names}", self.architecture));
        }
        let (registry, mut taken) = shared.finish()?;
        let caches = shape.kv.layers.len();
        let kv = match self.is_encoder {
            true => KvCache::none(self.kv),
            false => ops.kv_cache(&shape.kv, self.kv, &counts, |cache| layout.of_cache(cache, caches))?,
        };
        taken.add_cache(&kv);
        services.log(Level::Info, format!("memory {}", taken.describe(&chosen.names(), self.kv)));
        let caches: Vec<(Cache, u32)> = kv.groups().iter().map(|(cache, count)| (*cache, *count as u32)).collect();
        let note = format!("{}; {}", chosen.note, ops.note());
        let resident = Resident {
            device: chosen.name.clone(),
            note: if chosen.beside.is_empty() { note } else { format!("{note}; {}", layout.describe(&chosen.names())) },
            weight_bytes: self.weight_bytes(),
            state_bytes: kv.state_bytes(),
            vocabulary: shape.vocabulary as u32,
            hidden: self.hidden as u32,
            context: context as u32,
            block_tokens: BLOCK_TOKENS as u32,
            caches,
        };
        let (adapters, items) = (Adapters::default(), Items::default());
        Ok((layers, Runtime { ops, kv, registry, adapters, resident, items }))
    }

    /// Assigns layers to devices, for `counts` blocks or slots of each group of caches.
    fn layout(&self, chosen: &Chosen, counts: &[usize]) -> Result<Layout> {
        if chosen.beside.is_empty() && device::free_bytes(&chosen.device).is_none() {
            return Ok(Layout::one());
        }
        let devices = std::iter::once(&chosen.device).chain(&chosen.beside);
        let share = |(name, device): (&str, _)| Share { name: name.to_owned(), free_bytes: device::free_bytes(device) };
        let shares: Vec<Share> = chosen.names().into_iter().zip(devices).map(share).collect();
        let is_read = |tensor: &&RawTensor| {
            !layout::is_on_host(&tensor.name, self.options.n_cpu_moe)
                && (self.reads_items || !layout::is_beside_text(&tensor.name))
                && !self.mapped.contains(&tensor.name)
        };
        let weights = self.checkpoint.weights().iter().filter(is_read);
        let weights = weights.map(|tensor| (tensor.name.as_str(), self.loaded_bytes(tensor, &chosen.device)));
        Layout::plan(&shares, weights, &self.shape.kv.layer_bytes(self.kv, counts)?)
    }

    /// Estimate of a weight's bytes once it is on a device.
    fn loaded_bytes(&self, tensor: &RawTensor, device: &Device) -> u64 {
        let values = tensor.shape.iter().fold(1_u64, |product, &n| product.saturating_mul(n as u64));
        let in_file = tensor.dtype.tensor_bytes(&tensor.shape).unwrap_or(tensor.data.len()) as u64;
        match self.kernels {
            Kernels::Exact => values.saturating_mul(4),
            // candle's CUDA kernels read only its own block formats; other quantized weights are unpacked to 16 bits.
            Kernels::Generic if tensor.dtype.is_quantized() && device.is_cuda() => {
                in_file.max(values.saturating_mul(2))
            }
            #[cfg(feature = "cuda")]
            Kernels::Auto | Kernels::Set(_) if device.is_cuda() && tensor.shape.len() > 1 => {
                let inputs = tensor.shape.last().copied().unwrap_or(1);
                let rows = usize::try_from(values / inputs.max(1) as u64).unwrap_or(usize::MAX);
                super::backend::cuda_loaded_bytes(tensor.dtype, rows, inputs)
            }
            Kernels::Auto | Kernels::Set(_) | Kernels::Generic => in_file,
        }
    }

    /// Bytes of the weights once loaded, without the mapped tables.
    fn weight_bytes(&self) -> u64 {
        self.bytes(false)
    }

    /// Bytes of the mapped tables, or of everything else.
    fn bytes(&self, mapped: bool) -> u64 {
        let is_left_out = |name: &str| !self.options.vision && layout::is_beside_text(name);
        let tensors = self.checkpoint.weights().iter().filter(|tensor| !is_left_out(&tensor.name));
        let tensors = tensors.filter(|tensor| self.mapped.contains(&tensor.name) == mapped);
        let bytes = tensors.map(|tensor| match self.kernels {
            Kernels::Exact if !mapped => tensor.shape.iter().map(|&n| n as u64).product::<u64>().saturating_mul(4),
            _ => tensor.dtype.tensor_bytes(&tensor.shape).unwrap_or(tensor.data.len()) as u64,
        });
        bytes.fold(0, u64::saturating_add)
    }
}

/// The facts of a card: the number of parameters and the weights' formats.
pub(crate) fn facts(checkpoint: &Checkpoint) -> serde_json::Value {
    let mut formats = Vec::new();
    for tensor in checkpoint.weights().iter() {
        if !formats.contains(&tensor.dtype.name()) {
            formats.push(tensor.dtype.name());
        }
    }
    let counts = checkpoint.weights().iter().map(|tensor| tensor.shape.iter().map(|&n| n as u64).product());
    let parameters: u64 = counts.fold(0, u64::saturating_add);
    serde_json::json!({ "parameters": parameters, "formats": formats })
}
