//! Whole models on the Metal backend, over the recording driver.

mod adapters;
mod chunks;
mod mixture;

use candle_core::Device;
use std::{path::Path, sync::Arc};

use super::{Ops, Paged, PagedModel, Shape};
use crate::{
    Batch, CandidateRows, LoadRequest, Model, Output, Outputs, Result, Services, Source, Span, Table, Want,
    nn::{
        Activation, Attention, BLOCK_TOKENS, Decoder, Embedding, GatedMlp, KvShape, Linear, Loader, Qkv, RmsNorm, Rope,
        Step, Tensor,
        backend::{Backend, Double, Formulas},
        device::Chosen,
    },
    testing::random_checkpoint,
    weights::{Checkpoint, RopeConfig},
};

const WIDTH: usize = 64;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = WIDTH / HEADS;
const INNER: usize = 128;
const VOCABULARY: usize = 96;
const CONTEXT: usize = 32_768;

/// A Llama.
struct Tiny<const LAYERS: usize> {
    embed_tokens: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    rope: Rope,
    lm_head: Linear,
}

struct Layer {
    input_norm: RmsNorm,
    qkv_proj: Qkv,
    o_proj: Linear,
    attention: Attention,
    post_norm: RmsNorm,
    mlp: GatedMlp,
}

impl<const LAYERS: usize> Decoder for Tiny<LAYERS> {
    const NAME: &'static str = "tiny";
    const GGUF: &'static [&'static str] = &[];
    const CLASSES: &'static [&'static str] = &["Tiny"];
    const FEATURES: bool = true;
    type Config = RopeConfig;

    fn config(checkpoint: &Checkpoint) -> Result<RopeConfig> {
        checkpoint.config().rope()
    }

    fn shape(_: &RopeConfig) -> Shape {
        let kv = KvShape::uniform(LAYERS, KV_HEADS, HEAD_DIM);
        Shape { vocabulary: VOCABULARY, context: CONTEXT, widest: INNER, kv }
    }

    fn load(loader: &Loader<'_>, rope: &RopeConfig) -> Result<Self> {
        let layer = |index| {
            let loader = loader.at("layers").at(index);
            let attention = Attention::new(index, HEADS, KV_HEADS, HEAD_DIM)?;
            Ok(Layer {
                input_norm: RmsNorm::load(&loader, "input_norm", WIDTH, 1e-5)?,
                qkv_proj: Qkv::load(&loader, WIDTH, &attention)?,
                o_proj: loader.linear("o_proj", WIDTH, WIDTH)?,
                attention,
                post_norm: RmsNorm::load(&loader, "post_norm", WIDTH, 1e-5)?,
                mlp: GatedMlp::load(&loader.at("mlp"), WIDTH, INNER, Activation::Silu)?,
            })
        };
        Ok(Self {
            embed_tokens: loader.embedding("embed_tokens", VOCABULARY, WIDTH)?,
            layers: (0..LAYERS).map(layer).collect::<Result<_>>()?,
            norm: RmsNorm::load(loader, "norm", WIDTH, 1e-5)?,
            rope: Rope::new(rope, HEAD_DIM, loader.context())?,
            lm_head: loader.linear("lm_head", WIDTH, VOCABULARY)?,
        })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let angles = self.rope.angles(step)?;
        let mut x = self.embed_tokens.forward(step)?;
        for layer in &self.layers {
            let [q, k, v] = layer.qkv_proj.forward(&layer.input_norm.forward(&x, step)?, step)?;
            x = layer.o_proj.add_to(&x, &layer.attention.forward(&q, &k, &v, Some(&angles), step)?, step)?;
            x = layer.mlp.add_to(&x, &layer.post_norm.forward(&x, step)?, step)?;
        }
        Ok(x)
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.lm_head.forward(&self.norm.forward(hidden, step)?, step)
    }

    fn features(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.norm.forward(hidden, step)
    }
}

fn checkpoint(folder: &Path, layers: usize) {
    let mut tensors = vec![
        ("embed_tokens.weight".to_owned(), vec![VOCABULARY, WIDTH]),
        ("norm.weight".to_owned(), vec![WIDTH]),
        ("lm_head.weight".to_owned(), vec![VOCABULARY, WIDTH]),
    ];
    for layer in 0..layers {
        let mut add = |name: &str, shape: Vec<usize>| tensors.push((format!("layers.{layer}.{name}.weight"), shape));
        add("input_norm", vec![WIDTH]);
        add("post_norm", vec![WIDTH]);
        for (name, outputs) in [("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS), ("o", HEADS)] {
            add(&format!("{name}_proj"), vec![outputs * HEAD_DIM, WIDTH]);
        }
        add("mlp.gate_proj", vec![INNER, WIDTH]);
        add("mlp.up_proj", vec![INNER, WIDTH]);
        add("mlp.down_proj", vec![WIDTH, INNER]);
    }
    random_checkpoint(folder, r#"{"architectures": ["Tiny"], "hidden_size": 64}"#, &tensors).unwrap();
}

/// A Llama on a backend, with caches of `state_bytes`.
fn load<const LAYERS: usize>(backend: Arc<dyn Backend>, state_bytes: u64) -> PagedModel<Tiny<LAYERS>> {
    let folder = tempfile::tempdir().unwrap();
    checkpoint(folder.path(), LAYERS);
    open(folder.path(), backend, state_bytes)
}

/// A checkpoint's model on a backend, with caches of `state_bytes`.
fn open<D: Decoder>(folder: &Path, backend: Arc<dyn Backend>, state_bytes: u64) -> PagedModel<D> {
    let source = Source { path: folder.to_owned(), options: r#"{"kv": "f16"}"#.into() };
    let request = LoadRequest { source, device: "cpu".into(), context: 0, state_bytes, threads: 1 };
    let (plan, config) = Paged::<D>::plan(&request.source).unwrap();
    let chosen = Chosen { device: Device::Cpu, beside: Vec::new(), name: "cpu".into(), note: String::new() };
    let (target, services) = ((&chosen, Ops::on(backend)), Services::silent());
    let loaded = plan.load_on(target, &request, (&services, &[]), |loader| Ok((D::load(loader, &config)?, None)));
    PagedModel::new(loaded.unwrap()).unwrap()
}

fn formulas<const LAYERS: usize>() -> PagedModel<Tiny<LAYERS>> {
    load(Arc::new(Formulas::plain(Device::Cpu)), 1 << 20)
}

/// A Llama on the recording driver, which has forgotten what loading took.
fn recorded<const LAYERS: usize>(state_bytes: u64) -> (PagedModel<Tiny<LAYERS>>, Double) {
    let double = Double::default();
    let model = load(double.untried(), state_bytes);
    *double.record() = Default::default();
    (model, double)
}

/// The new tokens of a sequence: how many there are, how many come before, and whether the last one's logits are wanted.
#[derive(Clone, Copy)]
struct New {
    sequence: u64,
    past: usize,
    len: usize,
    want: Want,
}

/// Blocks of each sequence.
const BLOCKS: u32 = 8;

/// The batch of a step; a token depends on its sequence and position. Blocks descend.
fn with_batch<T>(new: &[New], output: Output, run: impl FnOnce(&Batch<'_>) -> T) -> T {
    let (mut tokens, mut positions, mut spans) = (Vec::new(), Vec::new(), Vec::new());
    for New { sequence, past, len, want } in new {
        let blocks: Vec<u32> = match (past + len).div_ceil(BLOCK_TOKENS) as u32 {
            many if many > BLOCKS => (0..many).rev().collect(),
            few => (0..few).map(|block| (*sequence as u32 + 1) * BLOCKS - 1 - block).collect(),
        };
        spans.push(Span {
            sequence: *sequence,
            start: tokens.len(),
            len: *len,
            past: *past,
            want: *want,
            output,
            mask: &[],
            adapter: 0,
            adapter_scale: 0.0,
            caches: vec![Table::Blocks(blocks.into())],
        });
        tokens.extend((*past..past + len).map(|at| (at * 31 + *sequence as usize * 17) as u32 % VOCABULARY as u32));
        positions.extend((*past..past + len).map(|at| at as u32));
    }
    let top = usize::from(output == Output::Candidates);
    run(&Batch { tokens: &tokens, positions: &positions, spans, top })
}

/// The logits that a step wants.
fn step(model: &mut impl Model, new: &[New]) -> Result<Vec<f32>> {
    with_batch(new, Output::Logits, |batch| {
        let mut logits = vec![f32::NAN; batch.wanted().len() * VOCABULARY];
        model.forward(batch, &mut logits)?;
        Ok(logits)
    })
}

/// The best token of a decode.
fn greedy(model: &mut impl Model, past: usize) -> Result<u32> {
    with_batch(&[New { sequence: 0, past, len: 1, want: Want::Last }], Output::Candidates, |batch| {
        let (mut ids, mut scores, mut totals) = ([0], [0.0], [0.0; 2]);
        let candidates = CandidateRows { ids: &mut ids, scores: &mut scores, totals: &mut totals };
        let (logits, hidden, vocabulary) = (&mut [][..], &mut [][..], VOCABULARY);
        model.forward_to(batch, &mut Outputs { logits, candidates, hidden, vocabulary })?;
        Ok(ids[0])
    })
}

fn assert_close(ours: &[f32], formula: &[f32]) {
    assert_eq!(ours.len(), formula.len());
    for (at, (ours, formula)) in ours.iter().zip(formula).enumerate() {
        // What is no number is not close.
        assert!((ours - formula).abs() < 2e-2, "logit {at} is {ours}, not {formula}");
    }
}

const PROMPT: New = New { sequence: 0, past: 0, len: 40, want: Want::None };

/// A prompt in chunks, the first of them without an output, beside another sequence, and decodes.
const STEPS: [&[New]; 4] = [
    &[PROMPT],
    &[New { past: 40, len: 30, want: Want::Last, ..PROMPT }, New { sequence: 1, len: 5, want: Want::Last, ..PROMPT }],
    &[New { past: 70, len: 1, want: Want::Last, ..PROMPT }, New { sequence: 1, past: 5, len: 1, want: Want::Last }],
    &[New { past: 71, len: 1, want: Want::Last, ..PROMPT }],
];

/// Holds a Llama against the formulas, `is_deferred` as a GPU computes.
fn agrees_with_formulas<const LAYERS: usize>(is_deferred: bool) {
    let (mut ours, double) = recorded::<LAYERS>(1 << 20);
    double.record().is_deferred = is_deferred;
    let mut formula = formulas::<LAYERS>();
    for new in STEPS {
        assert_close(&step(&mut ours, new).unwrap(), &step(&mut formula, new).unwrap());
    }
    let record = double.record();
    assert_eq!(record.command_buffers.len(), STEPS.len(), "each step is one command buffer, and waited for");
    assert!(record.command_buffers.iter().all(|kernels| kernels.contains(&"attend_f16")), "{record:?}");
}

#[test]
fn a_llama_of_two_layers_computes_on_metal_what_the_formulas_compute() {
    agrees_with_formulas::<2>(false);
}

#[test]
fn a_llama_in_buffers_that_are_used_again_and_again_computes_what_the_formulas_compute() {
    agrees_with_formulas::<2>(true);
}

#[test]
fn a_llama_of_16_layers_computes_on_metal_what_the_formulas_compute() {
    agrees_with_formulas::<16>(true);
}

#[test]
fn formulas_stand_in_for_a_kernel_that_the_compiler_has_refused() {
    let (mut formulas, (mut model, double)) = (formulas::<2>(), recorded::<2>(1 << 20));
    double.record().missing = Some("attend_f16");
    let prompt = [New { sequence: 1, past: 0, len: 5, want: Want::Last }];
    assert_close(&step(&mut model, &prompt).unwrap(), &step(&mut formulas, &prompt).unwrap());
    let record = double.record();
    let kernels: Vec<&str> = record.command_buffers.iter().flatten().copied().collect();
    assert!(kernels.contains(&"product_8") && !kernels.contains(&"attend_f16"), "{kernels:?}");
}

#[test]
fn a_failed_command_buffer_fails_its_step_with_the_driver_s_words_and_no_other() {
    const WORDS: &str = "Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)";
    let (mut ours, double) = recorded::<2>(1 << 20);
    let expected = step(&mut formulas::<2>(), &[New { want: Want::Last, ..PROMPT }]).unwrap();
    // A chunk without an output, too, and wherever in it the fault is.
    for (dispatch, want) in [(0, Want::Last), (3, Want::Last), (1, Want::None)] {
        double.record().failure = Some((dispatch, WORDS));
        let error = step(&mut ours, &[New { want, ..PROMPT }]).unwrap_err();
        assert!(error.message.contains(WORDS), "{error}");
        assert_close(&step(&mut ours, &[New { want: Want::Last, ..PROMPT }]).unwrap(), &expected);
    }
}

#[test]
fn a_step_that_fails_while_it_is_encoded_does_not_write_over_a_cache_that_is_imported_next() {
    let (mut ours, double) = recorded::<2>(1 << 20);
    double.record().is_deferred = true;
    let decode = New { past: 40, len: 1, want: Want::Last, ..PROMPT };
    step(&mut ours, &[PROMPT]).unwrap();
    let expected = step(&mut ours, &[decode]).unwrap();
    let kv = ours.kv_transfer().unwrap();
    let mut blocks = vec![vec![0; kv.bytes(0)]; 3];
    for (block, bytes) in (0..).zip(&mut blocks) {
        kv.export(0, BLOCKS - 1 - block, bytes).unwrap();
    }
    // Another prompt into the same blocks, whose keys are on their way when it fails.
    double.record().refuses_after = Some(12);
    let other = with_batch(&[PROMPT], Output::Logits, |batch| {
        let tokens = vec![7; batch.tokens.len()];
        ours.forward(&Batch { tokens: &tokens, ..batch.clone() }, &mut [])
    });
    assert!(other.unwrap_err().message.contains("refused"), "it has to fail");
    double.record().refuses_after = None;
    let kv = ours.kv_transfer().unwrap();
    for (block, bytes) in (0..).zip(&blocks) {
        kv.import(0, BLOCKS - 1 - block, bytes).unwrap();
    }
    assert_eq!(step(&mut ours, &[decode]).unwrap(), expected);
}

#[test]
fn a_greedy_token_of_16_layers_is_one_command_buffer_of_9_dispatches_a_layer_and_one_small_read_back() {
    const LAYERS: usize = 16;
    let (mut model, double) = recorded::<LAYERS>(1 << 20);
    // As a GPU computes, so that an op of candle's between the kernels, which no record has, would read what is not there yet.
    double.record().is_deferred = true;
    let mut formula = formulas::<LAYERS>();
    step(&mut model, &[PROMPT]).unwrap();
    step(&mut formula, &[PROMPT]).unwrap();
    double.record().command_buffers.clear();
    for past in 40..43 {
        let token = greedy(&mut model, past).unwrap();
        let logits = step(&mut formula, &[New { past, len: 1, want: Want::Last, ..PROMPT }]).unwrap();
        let most = logits.iter().copied().fold(f32::MIN, f32::max);
        assert!(logits[token as usize] > most - 2e-2, "{token} of {logits:?}");
    }
    let record = double.record();
    // Every buffer is resident, so the residency set does not change either.
    assert_eq!((&record.allocations, &record.mapped), (&vec![], &vec![]));
    assert_eq!(record.reads, [3 * size_of::<f32>(); 3], "one small read-back for each token");
    assert_eq!(record.command_buffers.len(), 3);
    for kernels in &record.command_buffers {
        let of = |name: &str| kernels.iter().filter(|kernel| kernel.starts_with(name)).count();
        // What is not a layer's: embedding, norm, head and the best of its logits.
        assert!(kernels.len() <= 9 * LAYERS + 4, "{} dispatches: {kernels:?}", kernels.len());
        assert_eq!([of("product_1"), of("rms_norm"), of("embed"), of("best")], [4 * LAYERS + 1, 2 * LAYERS + 1, 1, 1]);
    }
}

#[test]
fn caches_take_exactly_their_size_and_no_power_of_two() {
    let double = Double::default();
    let model = load::<2>(double.untried(), 100 * 1024);
    let blocks = model.resident().caches[0].1 as usize;
    let bytes = blocks * BLOCK_TOKENS * KV_HEADS * HEAD_DIM * 2;
    assert!(!bytes.is_power_of_two(), "{blocks} blocks");
    let caches = double.record().allocations.iter().filter(|size| **size == bytes).count();
    assert_eq!(caches, 4, "keys and values of two layers: {:?}", double.record().allocations);
}

#[test]
fn a_block_is_exported_and_imported_without_the_device() {
    let (mut model, double) = recorded::<2>(1 << 20);
    let decode = New { past: 40, len: 1, want: Want::Last, ..PROMPT };
    step(&mut model, &[PROMPT]).unwrap();
    let expected = step(&mut model, &[decode]).unwrap();
    let submitted = double.record().command_buffers.len();
    let kv = model.kv_transfer().unwrap();
    let mut moved = vec![0; kv.bytes(0)];
    for block in 0..3 {
        // From the blocks of one sequence to those of another.
        kv.export(0, BLOCKS - 1 - block, &mut moved).unwrap();
        assert!(moved.iter().any(|byte| *byte != 0));
        kv.import(0, 2 * BLOCKS - 1 - block, &moved).unwrap();
    }
    assert_eq!(double.record().command_buffers.len(), submitted);
    // The token depends on the sequence; what comes before it does not.
    let logits = with_batch(&[decode], Output::Logits, |batch| {
        let mut batch = batch.clone();
        batch.spans[0].caches = vec![Table::Blocks((0..3).map(|block| 2 * BLOCKS - 1 - block).collect())];
        let mut logits = vec![f32::NAN; VOCABULARY];
        model.forward(&batch, &mut logits).map(|()| logits)
    });
    assert_eq!(logits.unwrap(), expected);
}
