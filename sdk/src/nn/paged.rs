//! Makes an [`Architecture`] out of a [`Decoder`]: the one place that turns a checkpoint into a card, a budget into blocks
//! and a batch into rows of logits.

#[cfg(test)]
mod metal_tests;

use candle_core::{Device, Tensor};
use serde::Deserialize;
use std::marker::PhantomData;

use super::{
    BLOCK_TOKENS, KvShape, KvType, Loader, Ops, Step,
    adapters::{Adapters, registry::Registry},
    backend::{Computed, Taken},
    device::{self, Chosen},
    loading::{
        layout::{self, Layout, Share},
        loader::{HostExperts, Shared},
    },
    memory::kv::KvCache,
    ops::Kernels,
    spec::kv_shape,
};
use crate::{
    AdapterData, Architecture, Batch, Cache, Card, Error, KvTransfer, Level, LoadRequest, Merged, Model, Output,
    Outputs, Resident, Result, Services, Source, Span,
    weights::{Checkpoint, Dtype, GgufFamily, RawTensor},
};

/// A decoder-only language model: what an author writes.
pub trait Decoder: Sized + Send + 'static {
    /// The architecture's name in the plugin's manifest and in cards.
    const NAME: &'static str;
    /// Values of `general.architecture` in the GGUF files that it claims.
    const GGUF: &'static [&'static str];
    /// Values of `architectures` in the `config.json` files that it claims.
    const CLASSES: &'static [&'static str];
    /// The model's tool-call and reasoning forms, as the JSON of a card's `formats`; empty if its chat template shows them.
    const FORMATS: &'static str = "";

    /// The settings that the model needs, read from `config.json` or GGUF metadata.
    type Config;

    /// The conventions of the GGUF files of an architecture that it claims.
    fn gguf_family(architecture: &str) -> GgufFamily {
        GgufFamily::of(architecture)
    }

    /// Reads the configuration. [`Error::declined`] leaves the checkpoint to another architecture.
    fn config(checkpoint: &Checkpoint) -> Result<Self::Config>;

    /// The sizes by which memory is planned.
    fn shape(config: &Self::Config) -> Shape;

    /// Loads the layers.
    fn load(loader: &Loader<'_>, config: &Self::Config) -> Result<Self>;

    /// Runs the layers over the step's tokens and returns the hidden states, `[tokens, width]`.
    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor>;

    /// The logits of `hidden`, which has only the rows whose logits are wanted: `[rows, vocabulary]`.
    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor>;

    /// The width of [`Decoder::features`]; 0 if the model does not offer them.
    fn features_width(_config: &Self::Config) -> usize {
        0
    }

    /// The features for embeddings, scores and draft heads: rows of `hidden` after the final norm.
    fn features(&self, hidden: &Tensor, _step: &Step<'_>) -> Result<Tensor> {
        Ok(hidden.clone())
    }
}

/// The sizes of a decoder that a host plans by.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Logits per token.
    pub vocabulary: usize,
    /// The longest sequence that the checkpoint supports, in tokens.
    pub context: usize,
    /// The widest activation of a token, such as an MLP's inner width.
    pub widest: usize,
    /// The caches of its layers.
    pub kv: KvShape,
}

impl Shape {
    /// Sets each layer's sliding window in tokens, including the token itself; `None` for full attention.
    #[must_use]
    pub fn windowed(self, window: impl Fn(usize) -> Option<usize>) -> Self {
        Self { kv: self.kv.windowed(window), ..self }
    }
}

/// The architecture of a [`Decoder`].
pub struct Paged<D>(PhantomData<fn() -> D>);

impl<D: Decoder> Paged<D> {
    /// The architecture, to be put into a plugin.
    pub fn architecture() -> Self {
        Self(PhantomData)
    }
}

/// The model's `options` in the configuration.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Options {
    /// `f16` or `f32`; without it, `f32` for checkpoints in `f32` and `f16` for all others.
    kv: Option<String>,
    /// `auto`, `generic` or `exact`.
    kernels: Option<String>,
    /// Number of layers, counted from the first, whose experts stay in the host's memory and are computed there.
    n_cpu_moe: usize,
}

impl Options {
    fn read(source: &Source) -> Result<Self> {
        if source.options.trim().is_empty() {
            return Ok(Self::default());
        }
        let object: serde_json::Result<serde_json::Map<_, _>> = serde_json::from_str(&source.options);
        object.and_then(|object| serde_json::from_value(object.into())).map_err(|error| {
            Error::invalid(format!("the model's options: {error}"))
                .help("known are kv (f16, f32), kernels (auto, generic, exact) and n_cpu_moe (a number of layers)")
        })
    }

    fn kv(&self, checkpoint: &Checkpoint) -> Result<KvType> {
        match self.kv.as_deref() {
            Some("f16") => Ok(KvType::F16),
            Some("f32") => Ok(KvType::F32),
            Some(other) => Err(Error::invalid(format!("option kv is '{other}'")).help("it is f16 or f32")),
            None => {
                let mut matrices = checkpoint.weights().iter().filter(|tensor| tensor.shape.len() == 2);
                Ok(if matrices.all(|tensor| tensor.dtype == Dtype::F32) { KvType::F32 } else { KvType::F16 })
            }
        }
    }
}

/// An opened checkpoint with its configuration: the common start of `describe` and `load`.
struct Opened<D: Decoder> {
    checkpoint: Checkpoint,
    config: D::Config,
    shape: Shape,
    kv: KvType,
    kernels: Kernels,
    n_cpu_moe: usize,
    groups: Vec<Cache>,
}

impl<D: Decoder> Opened<D> {
    fn open(source: &Source) -> Result<Self> {
        let options = Options::read(source)?;
        let checkpoint = Checkpoint::open_with(&source.path, D::gguf_family)?;
        let architecture = checkpoint.architecture();
        if !D::GGUF.contains(&architecture) && !D::CLASSES.contains(&architecture) {
            return Err(Error::declined(format!("'{architecture}' is not an architecture that {} knows", D::NAME)));
        }
        let config = D::config(&checkpoint)?;
        let shape = D::shape(&config);
        let kv = options.kv(&checkpoint)?;
        let kernels = Kernels::choose(options.kernels.as_deref())?;
        let (groups, _) = shape.kv.groups(kv)?;
        Ok(Self { checkpoint, config, shape, kv, kernels, n_cpu_moe: options.n_cpu_moe, groups })
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
            !layout::is_on_host(&tensor.name, self.n_cpu_moe) && !layout::is_beside_text(&tensor.name)
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
            Kernels::Auto if device.is_cuda() && tensor.shape.len() > 1 => {
                let inputs = tensor.shape.last().copied().unwrap_or(1);
                let rows = usize::try_from(values / inputs.max(1) as u64).unwrap_or(usize::MAX);
                super::backend::cuda_loaded_bytes(tensor.dtype, rows, inputs)
            }
            Kernels::Auto | Kernels::Generic => in_file,
        }
    }

    /// Bytes of all weights once loaded.
    fn weight_bytes(&self) -> u64 {
        match self.kernels {
            Kernels::Exact => parameters(&self.checkpoint).saturating_mul(4),
            Kernels::Auto | Kernels::Generic => self.checkpoint.weights().bytes(),
        }
    }
}

impl<D: Decoder> Architecture for Paged<D> {
    fn name(&self) -> &'static str {
        D::NAME
    }

    fn gguf(&self) -> &'static [&'static str] {
        D::GGUF
    }

    fn classes(&self) -> &'static [&'static str] {
        D::CLASSES
    }

    fn describe(&self, source: &Source) -> Result<Card> {
        let opened = Opened::<D>::open(source)?;
        let (checkpoint, shape) = (&opened.checkpoint, &opened.shape);
        let tokenizer = checkpoint.tokenizer()?;
        let fingerprint = checkpoint.fingerprint(&tokenizer)?;
        let weight_bytes = opened.weight_bytes();
        let narrow = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        Ok(Card {
            architecture: D::NAME.into(),
            vocabulary: narrow(shape.vocabulary),
            context: narrow(shape.context),
            block_tokens: BLOCK_TOKENS as u32,
            caches: opened.groups,
            hidden: narrow(D::features_width(&opened.config)),
            token_bytes: 4 * (shape.vocabulary + 4 * shape.widest) as u64,
            weight_bytes,
            tokenizer: tokenizer.json,
            chat_template: tokenizer.chat_template,
            bos: tokenizer.bos,
            add_bos: tokenizer.add_bos,
            eos: tokenizer.eos,
            formats: D::FORMATS.into(),
            facts: facts(checkpoint).to_string(),
            fingerprint,
        })
    }

    fn load(&self, request: &LoadRequest, services: &Services) -> Result<Box<dyn Model>> {
        self.load_merged(request, services, &[])
    }

    fn merges(&self) -> bool {
        true
    }

    fn load_merged(&self, request: &LoadRequest, services: &Services, merged: &[Merged]) -> Result<Box<dyn Model>> {
        let opened = Opened::<D>::open(&request.source)?;
        let chosen = device::choose(&request.device)?;
        let ops = Ops::new(&chosen, request.threads as usize, opened.kernels)?;
        Ok(Box::new(Self::load_on((&chosen, ops), &opened, request, services, merged)?))
    }
}

impl<D: Decoder> Paged<D> {
    /// Loads an opened checkpoint onto the chosen devices.
    fn load_on(
        (chosen, ops): (&Chosen, Ops),
        opened: &Opened<D>,
        request: &LoadRequest,
        services: &Services,
        merged: &[Merged],
    ) -> Result<PagedModel<D>> {
        let threads = request.threads as usize;
        let host = match opened.n_cpu_moe {
            0 => None,
            _ if chosen.device.is_cpu() && chosen.beside.is_empty() => Some(ops.clone()),
            _ => Some(Ops::new(&device::choose("cpu")?, threads, opened.kernels)?),
        };
        let host = host.map(|ops| HostExperts { ops, layers: opened.n_cpu_moe });
        let (shape, asked) = (&opened.shape, request.context as usize);
        let context = if asked == 0 { shape.context } else { asked.min(shape.context) };
        if asked > context {
            services.log(Level::Warn, format!("the model supports {context} tokens, not {asked}: using {context}"));
        }
        let called = D::GGUF.iter().find(|name| **name == opened.checkpoint.architecture());
        let family = D::gguf_family(called.or(D::GGUF.first()).copied().unwrap_or_default());
        let counts = kv_shape::divide(request.state_bytes, &opened.groups, context)?;
        let parts = ops.by_place();
        let layout = opened.layout(chosen, &counts)?;
        let target = (&parts[..], &layout, host.as_ref());
        let shared = Shared::new(&opened.checkpoint, services, target, context, family, merged);
        let decoder = D::load(&shared.root(), &opened.config)?;
        if let Some(names) = shared.unused() {
            services.log(Level::Warn, format!("{} does not use {names}", D::NAME));
        }
        let (registry, mut taken) = shared.finish()?;
        let caches = shape.kv.layers.len();
        let mut kv = ops.kv_cache(&shape.kv, opened.kv, &counts, |cache| layout.of_cache(cache, caches))?;
        let adapters = Adapters::default();
        ops.warm_up(counts.len(), &mut |batch| compute(&decoder, &ops, &mut kv, &adapters, batch))?;
        taken.add_cache(&kv);
        services.log(Level::Info, format!("memory {}", taken.describe(&chosen.names(), opened.kv)));
        let weight_bytes = opened.weight_bytes();
        let widths = (shape, D::features_width(&opened.config));
        let mut resident = resident(chosen, &ops, widths, context, weight_bytes, &kv);
        if !chosen.beside.is_empty() {
            resident.note = format!("{}; {}", resident.note, layout.describe(&chosen.names()));
        }
        Ok(PagedModel { decoder, resident, ops, kv, registry, adapters })
    }
}

fn resident(
    chosen: &Chosen,
    ops: &Ops,
    (shape, features): (&Shape, usize),
    context: usize,
    weight_bytes: u64,
    kv: &KvCache,
) -> Resident {
    let caches: Vec<(Cache, u32)> = kv.groups().iter().map(|(cache, count)| (*cache, *count as u32)).collect();
    Resident {
        device: chosen.name.clone(),
        note: format!("{}; {}", chosen.note, ops.note()),
        weight_bytes,
        state_bytes: kv.groups().iter().enumerate().map(|(group, (_, count))| (kv.bytes(group) * count) as u64).sum(),
        vocabulary: shape.vocabulary as u32,
        hidden: features as u32,
        context: context as u32,
        block_tokens: BLOCK_TOKENS as u32,
        caches,
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
    serde_json::json!({ "parameters": parameters(checkpoint), "formats": formats })
}

fn parameters(checkpoint: &Checkpoint) -> u64 {
    let counts = checkpoint.weights().iter().map(|tensor| tensor.shape.iter().map(|&n| n as u64).product());
    counts.fold(0, u64::saturating_add)
}

/// Computes a step and the logits of all its rows.
fn compute<D: Decoder>(
    decoder: &D,
    ops: &Ops,
    kv: &mut KvCache,
    adapters: &Adapters,
    batch: &Batch<'_>,
) -> Result<Computed> {
    let mut step = Step::new(ops, batch, kv, adapters);
    let hidden = decoder.hidden(&mut step)?;
    let rows = decoder.logits(&hidden, &step)?;
    Ok(Computed { rows, was_read: step.pass.was_read() })
}

/// A loaded decoder with its caches and adapters.
struct PagedModel<D> {
    decoder: D,
    resident: Resident,
    ops: Ops,
    kv: KvCache,
    registry: Registry,
    adapters: Adapters,
}

impl<D: Decoder> PagedModel<D> {
    /// Computes a step whose wanted rows all have the same kind of output.
    fn run(&mut self, batch: &Batch<'_>, mut taken: Taken<'_>) -> Result<()> {
        let wanted = batch.wanted();
        let (decoder, ops, kv, adapters) = (&self.decoder, &self.ops, &mut self.kv, &self.adapters);
        if ops.decode(batch, &mut |batch| compute(decoder, ops, kv, adapters, batch), &mut taken)? {
            return Ok(());
        }
        self.ops.begin(batch)?;
        let mut step = Step::new(&self.ops, batch, &mut self.kv, &self.adapters);
        let hidden = self.decoder.hidden(&mut step)?;
        if wanted.is_empty() {
            return self.ops.finish();
        }
        let hidden = step.wanted(&hidden, &wanted)?;
        let rows = self.decoder.logits(&hidden, &step)?;
        let expected = (wanted.len(), self.resident.vocabulary as usize);
        if rows.dims() != [expected.0, expected.1] {
            return Err(Error::invalid(format!("the model made logits of {:?}, not {expected:?}", rows.dims())));
        }
        self.ops.take(&rows, &mut taken)
    }

    /// Computes a step of which some rows want hidden states, and others logits.
    fn run_with_hidden(&mut self, batch: &Batch<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let (features, wanted) =
            batch.spans.iter().partition::<Vec<&Span<'_>>, _>(|span| span.output == Output::Hidden);
        let rows = |spans: Vec<&Span<'_>>| -> Vec<u32> { spans.into_iter().flat_map(Span::wanted).collect() };
        let (features, wanted) = (rows(features), rows(wanted));
        self.ops.begin(batch)?;
        let mut step = Step::new(&self.ops, batch, &mut self.kv, &self.adapters);
        let hidden = self.decoder.hidden(&mut step)?;
        if !features.is_empty() {
            let rows = self.decoder.features(&self.ops.select_rows(&hidden, &features)?, &step)?;
            self.ops.read(&rows, outputs.hidden)?;
        }
        if wanted.is_empty() {
            return self.ops.finish();
        }
        let hidden = step.wanted(&hidden, &wanted)?;
        let rows = self.decoder.logits(&hidden, &step)?;
        let mut logits = vec![0.0; wanted.len() * outputs.vocabulary()];
        self.ops.read(&rows, &mut logits)?;
        outputs.take_logits(batch, &logits)
    }
}

impl<D: Decoder> Model for PagedModel<D> {
    fn resident(&self) -> Resident {
        let adapters = self.adapters.bytes();
        Resident { weight_bytes: self.resident.weight_bytes.saturating_add(adapters), ..self.resident.clone() }
    }

    fn forward(&mut self, batch: &Batch<'_>, logits: &mut [f32]) -> Result<()> {
        self.run(batch, Taken::Logits(logits))
    }

    fn forward_to(&mut self, batch: &Batch<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let is_best = |span: &Span<'_>| span.rows() == 0 || span.output == Output::Candidates && span.mask.is_empty();
        if batch.top == 1 && batch.spans.iter().all(is_best) && self.ops.finds_best() {
            let mut best = vec![[f32::NAN; 3]; batch.spans.iter().map(Span::rows).sum()];
            self.run(batch, Taken::Best(&mut best))?;
            return outputs.take_best(&best);
        }
        if batch.spans.iter().all(|span| span.output != Output::Hidden) {
            return outputs.fill_from_logits(batch, |batch, logits| self.forward(batch, logits));
        }
        self.run_with_hidden(batch, outputs)
    }

    fn release(&mut self, _sequence: u64) {
        // Sequences exist only in the host's block tables.
    }

    fn attach(&mut self, adapter: &AdapterData) -> Result<u32> {
        self.adapters.attach(adapter, &self.registry, &self.ops)
    }

    fn detach(&mut self, adapter: u32) -> Result<()> {
        self.adapters.detach(adapter)
    }

    fn kv_transfer(&mut self) -> Option<&mut dyn KvTransfer> {
        Some(&mut self.kv)
    }
}
