//! No work per sequence: a step that decodes is as many ops for 64 sequences as for one, so a GPU is launched as often.
//!
//! candle numbers tensors, views too, in the order in which the process makes them. So this test has a process of its own,
//! and one test function: the numbers between two steps are the ops of one.

#![allow(clippy::unwrap_used)] // Nothing here is untrusted.

use pensieve_sdk::{
    Architecture, Batch, LoadRequest, Output, Result, Services, Source, Span, Table, Want,
    nn::{
        Activation, Attention, Decoder, Embedding, GatedMlp, KvShape, Linear, Loader, Paged, Qkv, RmsNorm, Rope, Shape,
        Step, Tensor,
    },
    testing::random_checkpoint,
    weights::Checkpoint,
};

const WIDTH: usize = 64;
const HEADS: usize = 4;
const LAYERS: usize = 2;
const VOCABULARY: usize = 96;

struct Tiny {
    embed_tokens: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    rope: Rope,
    lm_head: Linear,
}

struct Layer {
    norm: RmsNorm,
    qkv_proj: Qkv,
    o_proj: Linear,
    attention: Attention,
    mlp: GatedMlp,
}

impl Decoder for Tiny {
    const NAME: &'static str = "tiny";
    const GGUF: &'static [&'static str] = &[];
    const CLASSES: &'static [&'static str] = &["Tiny"];
    const FEATURES: bool = true;
    type Config = pensieve_sdk::weights::RopeConfig;

    fn config(checkpoint: &Checkpoint) -> Result<Self::Config> {
        checkpoint.config().rope()
    }

    fn shape(_: &Self::Config) -> Shape {
        let kv = KvShape::uniform(LAYERS, HEADS, WIDTH / HEADS);
        Shape { vocabulary: VOCABULARY, context: 4096, widest: 4 * WIDTH, kv }
    }

    fn load(loader: &Loader<'_>, rope: &Self::Config) -> Result<Self> {
        let layer = |index| {
            let loader = loader.at("layers").at(index);
            // A window hides more of longer sequences: its mask is one tensor for all of them.
            let attention = Attention { window: Some(24), ..Attention::new(index, HEADS, HEADS, WIDTH / HEADS)? };
            Ok(Layer {
                norm: RmsNorm::load(&loader, "norm", WIDTH, 1e-5)?,
                qkv_proj: Qkv::load(&loader, WIDTH, &attention)?,
                o_proj: loader.linear("o_proj", WIDTH, WIDTH)?,
                attention,
                mlp: GatedMlp::load(&loader.at("mlp"), WIDTH, 4 * WIDTH, Activation::Silu)?,
            })
        };
        Ok(Self {
            embed_tokens: loader.embedding("embed_tokens", VOCABULARY, WIDTH)?,
            layers: (0..LAYERS).map(layer).collect::<Result<_>>()?,
            norm: RmsNorm::load(loader, "norm", WIDTH, 1e-5)?,
            rope: Rope::new(rope, WIDTH / HEADS, loader.context())?,
            lm_head: loader.linear("lm_head", WIDTH, VOCABULARY)?,
        })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let angles = self.rope.angles(step)?;
        let mut x = self.embed_tokens.forward(step)?;
        for layer in &self.layers {
            let normed = layer.norm.forward(&x, step)?;
            let [q, k, v] = layer.qkv_proj.forward(&normed, step)?;
            x = layer.o_proj.add_to(&x, &layer.attention.forward(&q, &k, &v, Some(&angles), step)?, step)?;
            x = layer.mlp.add_to(&x, &normed, step)?;
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

/// The same model with a mistake: what it does last, it does for each sequence by itself.
struct PerSequence(Tiny);

impl Decoder for PerSequence {
    const NAME: &'static str = Tiny::NAME;
    const GGUF: &'static [&'static str] = Tiny::GGUF;
    const CLASSES: &'static [&'static str] = Tiny::CLASSES;
    const FEATURES: bool = true;
    type Config = <Tiny as Decoder>::Config;

    fn config(checkpoint: &Checkpoint) -> Result<Self::Config> {
        Tiny::config(checkpoint)
    }

    fn shape(config: &Self::Config) -> Shape {
        Tiny::shape(config)
    }

    fn load(loader: &Loader<'_>, config: &Self::Config) -> Result<Self> {
        Ok(Self(Tiny::load(loader, config)?))
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let x = self.0.hidden(step)?;
        let parts = step.batch().spans.iter().map(|span| Ok((x.narrow(0, span.start, span.len)? * 2.0)?));
        Ok(Tensor::cat(&parts.collect::<Result<Vec<_>>>()?, 0)?)
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.0.logits(hidden, step)
    }

    fn features(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.0.features(hidden, step)
    }
}

fn checkpoint(folder: &std::path::Path) {
    let mut tensors = vec![
        ("embed_tokens.weight".to_owned(), vec![VOCABULARY, WIDTH]),
        ("norm.weight".to_owned(), vec![WIDTH]),
        ("lm_head.weight".to_owned(), vec![VOCABULARY, WIDTH]),
    ];
    for layer in 0..LAYERS {
        let mut add = |name: &str, shape: Vec<usize>| tensors.push((format!("layers.{layer}.{name}.weight"), shape));
        add("norm", vec![WIDTH]);
        for name in ["q_proj", "k_proj", "v_proj", "o_proj"] {
            add(name, vec![WIDTH, WIDTH]);
        }
        add("mlp.gate_proj", vec![4 * WIDTH, WIDTH]);
        add("mlp.up_proj", vec![4 * WIDTH, WIDTH]);
        add("mlp.down_proj", vec![WIDTH, 4 * WIDTH]);
    }
    random_checkpoint(folder, r#"{"architectures": ["Tiny"], "hidden_size": 64}"#, &tensors).unwrap();
}

/// The number that the next tensor gets.
fn next_tensor() -> usize {
    let tensor = Tensor::new(0u32, &candle_core::Device::Cpu).unwrap();
    let id = format!("{:?}", tensor.id());
    let digits: String = id.chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

/// The ops of a step that decodes one token of each of so many sequences.
fn ops<D: Decoder, const N: usize>(folder: &std::path::Path, counts: [usize; N]) -> [usize; N] {
    let options = r#"{"kernels": "generic"}"#.to_owned();
    let source = Source { path: folder.to_owned(), options };
    let request = LoadRequest { source, device: "cpu".into(), context: 0, state_bytes: 8 << 20, threads: 1 };
    let mut model = Paged::<D>::architecture().load(&request, &Services::silent()).unwrap();
    let resident = model.resident();
    let (block_tokens, blocks) =
        (resident.block_tokens, resident.caches.iter().map(|(_, count)| *count).min().unwrap());
    counts.map(|sequences| {
        // Sequences of different lengths, some beyond the window.
        let pasts: Vec<usize> = (0..sequences).map(|sequence| 30 + sequence % 17).collect();
        let each = 48 / block_tokens;
        assert!(sequences as u32 * each <= blocks);
        let tables: Vec<Vec<u32>> =
            (0..sequences as u32).map(|sequence| (sequence * each..(sequence + 1) * each).collect()).collect();
        let spans = pasts.iter().zip(&tables).enumerate().map(|(start, (&past, blocks))| Span {
            sequence: start as u64,
            start,
            len: 1,
            past,
            want: Want::Last,
            output: Output::Logits,
            mask: &[],
            adapter: 0,
            adapter_scale: 1.0,
            caches: resident.caches.iter().map(|_| Table::Blocks(blocks.into())).collect(),
        });
        let tokens = vec![7; sequences];
        let positions: Vec<u32> = pasts.iter().map(|&past| past as u32).collect();
        let batch = Batch { tokens: &tokens, positions: &positions, spans: spans.collect(), top: 0 };
        let mut logits = vec![0.0; sequences * VOCABULARY];
        let before = next_tensor();
        model.forward(&batch, &mut logits).unwrap();
        assert!(logits.iter().all(|logit| logit.is_finite()));
        next_tensor() - before
    })
}

#[test]
fn a_step_that_decodes_is_as_many_ops_for_64_sequences_as_for_one() {
    let folder = tempfile::tempdir().unwrap();
    checkpoint(folder.path());
    let [one, two, eight, many] = ops::<Tiny, 4>(folder.path(), [1, 2, 8, 64]);
    assert_eq!([eight, many], [two, two], "ops of a step for 8 and 64 sequences, and for 2");
    // One sequence alone needs no padding, and so no more than that.
    assert!(one <= two);
    assert!(two > 20 * LAYERS, "{two} are not all ops");

    // Work that is done sequence by sequence shows: here a view and a product for each.
    let [two, eight, many] = ops::<PerSequence, 3>(folder.path(), [2, 8, 64]);
    assert_eq!([eight - two, many - eight], [2 * 6, 2 * 56]);
}
