//! Makes an [`Architecture`] out of a [`Decoder`]: the one place that turns a batch into rows of logits.

mod media;
#[cfg(test)]
mod metal_tests;
mod texts;

use candle_core::Tensor;
use std::marker::PhantomData;

use super::{
    Loader, ModelOptions, ModelPlan, Ops, Runtime, Shape, Step,
    adapters::Adapters,
    backend::{Computed, Taken},
    loading::dense::Dense,
    memory::kv::KvCache,
    vision::{Processor, Queue, Tower},
};
use crate::{
    AdapterData, Architecture, Batch, CandidateRows, Card, Encode, Error, KvTransfer, LoadRequest, Merged, Model,
    Output, Outputs, Prepare, Resident, Result, Services, Source, Span, Timeline,
    abi::Extension,
    weights::{Checkpoint, GgufFamily, RowsKind, RowsUse, Tokenizer},
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
    /// The model offers [`Decoder::features`], as all of the shipped ones do.
    const FEATURES: bool = false;
    /// It has neither caches nor an output layer, and its spans are whole texts; set by [`Encoder`](super::Encoder).
    #[doc(hidden)]
    const IS_ENCODER: bool = false;
    /// How the images of the family's checkpoints are prepared, if it reads images.
    const PROCESSOR: Option<&'static dyn Processor> = None;
    /// Names of the model's own options, which [`Decoder::config_with`] reads; any other name but the SDK's is refused.
    const OPTIONS: &'static [&'static str] = &[];

    /// The settings that the model needs, read from `config.json` or GGUF metadata.
    type Config;

    /// The conventions of the GGUF files of an architecture that it claims.
    fn gguf_family(architecture: &str) -> GgufFamily {
        GgufFamily::of(architecture)
    }

    /// Reads the configuration. [`Error::declined`] leaves the checkpoint to another architecture.
    fn config(checkpoint: &Checkpoint) -> Result<Self::Config>;

    /// Reads the configuration together with the values that the user has set for [`Decoder::OPTIONS`].
    fn config_with(checkpoint: &Checkpoint, options: &ModelOptions) -> Result<Self::Config> {
        let _ = options;
        Self::config(checkpoint)
    }

    /// Returns true for tensors that stay in their file, for [`Loader::table`]. They do not count as weights, and may be
    /// larger than memory.
    fn is_mapped(config: &Self::Config, tensor: &str) -> bool {
        let _ = (config, tensor);
        false
    }

    /// The sizes by which memory is planned.
    fn shape(config: &Self::Config) -> Shape;

    /// Loads the layers.
    fn load(loader: &Loader<'_>, config: &Self::Config) -> Result<Self>;

    /// Runs the layers over the step's tokens and returns the hidden states, `[tokens, width]`.
    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor>;

    /// The layers that turn images into rows; `None` if the checkpoint has none, or [`Loader::reads_items`] is false.
    fn tower(&self) -> Option<&dyn Tower> {
        None
    }

    /// The logits of `hidden`, which has only the rows whose logits are wanted: `[rows, vocabulary]`.
    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor>;

    /// The features for embeddings, scores and draft heads: rows of `hidden` after the final norm.
    fn features(&self, _hidden: &Tensor, _step: &Step<'_>) -> Result<Tensor> {
        Err(Error::unsupported(format!("{} does not offer its hidden rows", Self::NAME)))
    }

    /// The width of [`Decoder::features`] where it is not the configuration's `hidden_size`.
    fn features_width(_config: &Self::Config) -> Option<usize> {
        None
    }

    /// The use of the checkpoint's features. The default is what its files say, or else embeddings by the last
    /// token.
    fn rows(checkpoint: &Checkpoint, tokenizer: &Tokenizer, _config: &Self::Config) -> Result<RowsUse> {
        RowsUse::read(checkpoint, tokenizer)
    }

    /// The width of [`Decoder::finish`]; 0 if nothing follows the pooling of features.
    fn finish_width(&self) -> usize {
        0
    }

    /// Applies what follows pooling, such as dense layers or a classifier, to pooled `rows`. The step has no tokens.
    fn finish(&self, rows: &Tensor, _step: &Step<'_>) -> Result<Tensor> {
        Ok(rows.clone())
    }

    /// An extension of the author's own that a loaded model offers. Its functions reach the decoder by
    /// [`extension::decoder`](crate::extension::decoder).
    fn extension(&self, id: &str) -> Option<Extension> {
        let _ = id;
        None
    }

    /// An extension of the author's own that the architecture offers before anything is loaded.
    fn architecture_extension(id: &str) -> Option<Extension> {
        let _ = id;
        None
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
        let (plan, _) = Self::plan(source)?;
        Ok(Card { formats: D::FORMATS.into(), ..plan.card()? })
    }

    fn load(&self, request: &LoadRequest, services: &Services) -> Result<Box<dyn Model>> {
        self.load_merged(request, services, &[])
    }

    fn rows(&self, source: &Source) -> Result<String> {
        let (plan, config) = Self::plan(source)?;
        let width = Self::features_width(plan.checkpoint(), &config);
        if width == 0 {
            return Ok(String::new());
        }
        let mut rows = D::rows(plan.checkpoint(), &plan.checkpoint().tokenizer()?, &config)?;
        if let Some(last) = plan.checkpoint().dense().last() {
            rows.finish = Some(last.outputs);
        }
        if rows.kind != RowsKind::Embed && rows.finish.is_none() {
            let message = format!("{} does not compute what gives this checkpoint's scores", D::NAME);
            return Err(Error::unsupported(message));
        }
        Ok(rows.to_json(width))
    }

    fn media(&self) -> Option<&dyn Prepare> {
        D::PROCESSOR.is_some().then_some(self)
    }

    fn merges(&self) -> bool {
        true
    }

    fn load_merged(&self, request: &LoadRequest, services: &Services, merged: &[Merged]) -> Result<Box<dyn Model>> {
        let (plan, config) = Self::plan(&request.source)?;
        let features = Self::features_width(plan.checkpoint(), &config);
        let loaded = plan.load(request, services, merged, |loader| {
            let decoder = D::load(loader, &config)?;
            let pooled = if decoder.finish_width() > 0 { decoder.finish_width() } else { features };
            Ok((decoder, Dense::load(loader, pooled, plan.checkpoint().dense())?))
        })?;
        Ok(Box::new(PagedModel::new(loaded)?))
    }

    fn extension(&self, id: &str) -> Option<Extension> {
        D::architecture_extension(id)
    }
}

impl<D: Decoder> Paged<D> {
    /// Opens a checkpoint, the common start of `describe` and `load`.
    fn plan(source: &Source) -> Result<(ModelPlan, D::Config)> {
        let options = ModelOptions::read(source, D::OPTIONS)?;
        let checkpoint = options.open(source, D::gguf_family)?;
        let architecture = checkpoint.architecture();
        if !D::GGUF.contains(&architecture) && !D::CLASSES.contains(&architecture) {
            return Err(Error::declined(format!("'{architecture}' is not an architecture that {} knows", D::NAME)));
        }
        let called = D::GGUF.iter().find(|name| **name == architecture);
        let family = D::gguf_family(called.or(D::GGUF.first()).copied().unwrap_or_default());
        let config = D::config_with(&checkpoint, &options)?;
        let width = Self::features_width(&checkpoint, &config);
        let plan = if D::IS_ENCODER { ModelPlan::of_encoder } else { ModelPlan::new };
        let plan = plan(D::NAME, checkpoint, D::shape(&config), options)?;
        let plan = plan.with_family(family).with_hidden(width).with_tower(D::PROCESSOR.is_some());
        Ok((plan.with_mapped(|tensor| D::is_mapped(&config, tensor)), config))
    }

    fn features_width(checkpoint: &Checkpoint, config: &D::Config) -> usize {
        if !D::FEATURES {
            return 0;
        }
        D::features_width(config).unwrap_or_else(|| checkpoint.config().usize_or("hidden_size", 0).unwrap_or(0))
    }
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

/// The masks of all wanted rows, where one of them has any.
fn masks(batch: &Batch<'_>, vocabulary: usize) -> Vec<u32> {
    if batch.spans.iter().all(|span| span.mask.is_empty()) {
        return Vec::new();
    }
    let of = |span: &Span<'_>| match span.mask {
        [] => vec![u32::MAX; span.rows() * vocabulary.div_ceil(32)],
        mask => mask.to_vec(),
    };
    batch.spans.iter().flat_map(of).collect()
}

/// A loaded decoder with its caches and adapters.
pub(crate) struct PagedModel<D> {
    decoder: D,
    dense: Option<Dense>,
    queue: Queue,
    runtime: Runtime,
}

impl<D: Decoder> PagedModel<D> {
    fn new(((decoder, dense), mut runtime): ((D, Option<Dense>), Runtime)) -> Result<Self> {
        let Runtime { ops, kv, adapters, resident, .. } = &mut runtime;
        if !D::IS_ENCODER {
            let before = ops.note();
            ops.warm_up(kv.groups().len(), &mut |batch| compute(&decoder, ops, kv, adapters, batch))?;
            // Whether a step is one launch is known now.
            resident.note = resident.note.replace(&before, &ops.note());
        }
        Ok(Self { decoder, dense, queue: Queue::default(), runtime })
    }

    /// The author's part of the model.
    pub(crate) fn decoder(&mut self) -> &mut D {
        &mut self.decoder
    }

    /// Positions of a step of text behind images, where they differ from the indices of its tokens.
    fn shifted(&self, batch: &Batch<'_>) -> Option<Vec<u32>> {
        let items = &self.runtime.items;
        if items.touch(batch) { None } else { items.shifted(batch) }
    }

    /// Computes a step whose wanted rows have outputs of any kinds.
    fn fill(&mut self, batch: &Batch<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        if D::IS_ENCODER {
            texts::check(batch, D::NAME)?;
            return self.run_with_hidden(batch, outputs);
        }
        let is_best = |span: &Span<'_>| span.rows() == 0 || span.output == Output::Candidates && span.mask.is_empty();
        if batch.top == 1 && batch.spans.iter().all(is_best) && self.runtime.ops.finds_best() {
            let mut best = vec![[f32::NAN; 3]; batch.spans.iter().map(Span::rows).sum()];
            self.run(batch, Taken::Best(&mut best))?;
            return outputs.take_best(&best);
        }
        let are_candidates = |span: &Span<'_>| span.rows() == 0 || span.output == Output::Candidates;
        if batch.spans.iter().all(are_candidates) && self.runtime.ops.finds_candidates(batch.top) {
            let (masks, CandidateRows { ids, scores, totals }) =
                (masks(batch, outputs.vocabulary()), &mut outputs.candidates);
            return self
                .run(batch, Taken::Candidates { top: batch.top, masks, rows: CandidateRows { ids, scores, totals } });
        }
        if batch.spans.iter().all(|span| span.output != Output::Hidden) {
            return outputs.fill_from_logits(batch, |batch, logits| self.run(batch, Taken::Logits(logits)));
        }
        self.run_with_hidden(batch, outputs)
    }

    /// Computes a step whose wanted rows all have the same kind of output.
    fn run(&mut self, batch: &Batch<'_>, mut taken: Taken<'_>) -> Result<()> {
        let wanted = batch.wanted();
        let (decoder, Runtime { ops, kv, adapters, items, .. }) = (&self.decoder, &mut self.runtime);
        let is_text = !items.touch(batch);
        if is_text && ops.decode(batch, &mut |batch| compute(decoder, ops, kv, adapters, batch), &mut taken)? {
            return Ok(());
        }
        let expected = (wanted.len(), self.runtime.resident.vocabulary as usize);
        let mut step = self.runtime.step(batch)?;
        let ops = step.ops();
        let hidden = self.decoder.hidden(&mut step)?;
        if wanted.is_empty() {
            return ops.finish();
        }
        let hidden = step.wanted(&hidden, &wanted)?;
        let rows = self.decoder.logits(&hidden, &step)?;
        if rows.dims() != [expected.0, expected.1] {
            return Err(Error::invalid(format!("the model made logits of {:?}, not {expected:?}", rows.dims())));
        }
        ops.take(&rows, &mut taken)
    }

    /// Computes a step of which some rows want hidden states, and others logits.
    fn run_with_hidden(&mut self, batch: &Batch<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let (features, wanted) =
            batch.spans.iter().partition::<Vec<&Span<'_>>, _>(|span| span.output == Output::Hidden);
        let rows = |spans: Vec<&Span<'_>>| -> Vec<u32> { spans.into_iter().flat_map(Span::wanted).collect() };
        let (features, wanted) = (rows(features), rows(wanted));
        let mut step = self.runtime.step(batch)?;
        let ops = step.ops();
        let hidden = self.decoder.hidden(&mut step)?;
        if !features.is_empty() {
            let rows = self.decoder.features(&ops.select_rows(&hidden, &features)?, &step)?;
            ops.read(&rows, outputs.hidden)?;
        }
        if wanted.is_empty() {
            return ops.finish();
        }
        let hidden = step.wanted(&hidden, &wanted)?;
        let rows = self.decoder.logits(&hidden, &step)?;
        let mut logits = vec![0.0; wanted.len() * outputs.vocabulary()];
        ops.read(&rows, &mut logits)?;
        outputs.take_logits(batch, &logits)
    }
}

impl<D: Decoder> Model for PagedModel<D> {
    fn resident(&self) -> Resident {
        self.runtime.resident()
    }

    fn forward(&mut self, batch: &Batch<'_>, logits: &mut [f32]) -> Result<()> {
        match self.shifted(batch) {
            Some(positions) => self.run(&Batch { positions: &positions, ..batch.clone() }, Taken::Logits(logits)),
            None => self.run(batch, Taken::Logits(logits)),
        }
    }

    fn forward_to(&mut self, batch: &Batch<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        match self.shifted(batch) {
            Some(positions) => self.fill(&Batch { positions: &positions, ..batch.clone() }, outputs),
            None => self.fill(batch, outputs),
        }
    }

    fn finish_width(&self) -> usize {
        self.dense.as_ref().map_or_else(|| self.decoder.finish_width(), Dense::width)
    }

    fn finish(&mut self, rows: &[f32], out: &mut [f32]) -> Result<()> {
        let (width, made) = (self.runtime.resident.hidden as usize, self.finish_width());
        let batch = Batch { tokens: &[], positions: &[], spans: Vec::new(), top: 0 };
        let step = self.runtime.step_begun(&batch);
        let (ops, count) = (step.ops(), rows.len() / width.max(1));
        let mut finished = ops.dense(rows.to_vec(), &[count, width])?;
        if self.decoder.finish_width() > 0 {
            finished = self.decoder.finish(&finished, &step)?;
        }
        if let Some(dense) = &self.dense {
            finished = dense.forward(finished, &step)?;
        }
        if finished.dims() != [count, made] {
            return Err(Error::invalid(format!(
                "the model finished rows of {:?}, not {:?}",
                finished.dims(),
                [count, made]
            )));
        }
        ops.read(&finished, out)
    }

    fn release(&mut self, sequence: u64) {
        // Its caches exist only in the host's block tables.
        self.runtime.items.release(sequence);
    }

    fn attach(&mut self, adapter: &AdapterData) -> Result<u32> {
        self.runtime.attach(adapter)
    }

    fn detach(&mut self, adapter: u32) -> Result<()> {
        self.runtime.detach(adapter)
    }

    fn kv_transfer(&mut self) -> Option<&mut dyn KvTransfer> {
        if D::IS_ENCODER { None } else { Some(self.runtime.kv_transfer()) }
    }

    fn media(&mut self) -> Option<&mut dyn Encode> {
        self.decoder.tower().is_some().then_some(self)
    }

    fn timeline(&mut self) -> Option<&mut dyn Timeline> {
        self.runtime.ops.has_threads().then_some(&mut self.runtime.ops)
    }

    fn extension(&self, id: &str) -> Option<Extension> {
        self.decoder.extension(id)
    }
}
