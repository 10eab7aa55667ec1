//! A small Llama that is wrong as its options say, `{"fault": "cache"}`, in the ways in which authors are: each must be named
//! by the law that it breaks. A Llama and not a toy, as a wrong rotation shows only against another implementation's
//! numbers, and the fixtures have those.
//!
//! The model itself is right but for its rotation, its epsilon and its window. Other faults are put between it and the host, by a wrapper that changes
//! what it is asked.

use pensieve_sdk::{
    AdapterData, Architecture, Batch, Card, Error, LoadRequest, Model, Plugin, Resident, Result, Services, Source,
    Table,
    nn::{
        Activation, Angles, Attention, Decoder, Embedding, GatedMlp, KvShape, Linear, Loader, Paged, Qkv, RmsNorm,
        Rope, Shape, Step, Tensor,
    },
    weights::{Checkpoint, RopeConfig, RopeStyle},
};
use std::{collections::HashMap, thread::sleep, time::Duration};

pensieve_sdk::export!(Plugin::new("wrong", "is wrong in the ways of authors").architecture(Wrong));

struct Wrong;

/// What is wrong with it.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// The other values of a head are rotated together.
    Rope,
    /// Norms add a hundred times too much.
    Epsilon,
    /// Attention reads only the last 48 tokens.
    Window,
    /// What has been read is taken for one token less.
    Cache,
    /// Every token stands at position 0.
    Positions,
    /// A new sequence sees the first block of the one before.
    Leaks,
    Panics,
    Crashes,
    Exits,
    Hangs,
}

impl Architecture for Wrong {
    fn name(&self) -> &'static str {
        "wrong"
    }

    fn gguf(&self) -> &'static [&'static str] {
        &["wrong"]
    }

    fn classes(&self) -> &'static [&'static str] {
        &["LlamaForCausalLM"]
    }

    fn describe(&self, source: &Source) -> Result<Card> {
        let card = Paged::<Llama<RIGHT>>::architecture().describe(&Source::new(&source.path))?;
        Ok(Card { architecture: self.name().into(), ..card })
    }

    fn load(&self, request: &LoadRequest, services: &Services) -> Result<Box<dyn Model>> {
        let fault = fault(&request.source.options)?;
        let request = LoadRequest { source: Source::new(&request.source.path), ..request.clone() };
        let right = match fault {
            Fault::Rope => Paged::<Llama<ROPE>>::architecture().load(&request, services)?,
            Fault::Epsilon => Paged::<Llama<EPSILON>>::architecture().load(&request, services)?,
            Fault::Window => Paged::<Llama<WINDOW>>::architecture().load(&request, services)?,
            _ => Paged::<Llama<RIGHT>>::architecture().load(&request, services)?,
        };
        Ok(Box::new(Spoiled { right, fault, before: HashMap::new(), last: None }))
    }
}

fn fault(options: &str) -> Result<Fault> {
    let faults = [
        ("none", Fault::None),
        ("rope", Fault::Rope),
        ("epsilon", Fault::Epsilon),
        ("window", Fault::Window),
        ("cache", Fault::Cache),
        ("positions", Fault::Positions),
        ("leaks", Fault::Leaks),
        ("panics", Fault::Panics),
        ("crashes", Fault::Crashes),
        ("exits", Fault::Exits),
        ("hangs", Fault::Hangs),
    ];
    let found = faults.iter().find(|(name, _)| options.contains(&format!("\"{name}\"")));
    found.map(|(_, fault)| *fault).ok_or_else(|| Error::invalid(format!("there is no such fault: {options}")))
}

/// A model that gets other calls than the host makes.
struct Spoiled {
    right: Box<dyn Model>,
    fault: Fault,
    /// The block that a sequence sees before its own.
    before: HashMap<u64, Option<u32>>,
    /// The first block of the last sequence that began.
    last: Option<u32>,
}

impl Spoiled {
    /// The blocks of each span, behind the one that leaked.
    fn leak(&mut self, batch: &Batch<'_>) -> Vec<Vec<u32>> {
        let spans = batch.spans.iter().map(|span| {
            let last = self.last;
            let before = *self.before.entry(span.sequence).or_insert(if span.past == 0 { last } else { None });
            if span.past == 0 {
                self.last = span.blocks(0).first().copied();
            }
            before.into_iter().chain(span.blocks(0).iter().copied()).collect()
        });
        spans.collect()
    }
}

impl Model for Spoiled {
    fn resident(&self) -> Resident {
        self.right.resident()
    }

    fn forward(&mut self, batch: &Batch<'_>, logits: &mut [f32]) -> Result<()> {
        let is_later = batch.spans.iter().any(|span| span.past > 0);
        match self.fault {
            Fault::None | Fault::Rope | Fault::Epsilon | Fault::Window => self.right.forward(batch, logits),
            Fault::Cache => {
                let mut batch = batch.clone();
                batch.spans.iter_mut().for_each(|span| span.past = span.past.saturating_sub(1));
                self.right.forward(&batch, logits)
            }
            Fault::Positions => {
                let positions = vec![0; batch.positions.len()];
                self.right.forward(&Batch { positions: &positions, ..batch.clone() }, logits)
            }
            Fault::Leaks => {
                let tables = self.leak(batch);
                let mut spans = batch.spans.clone();
                for (span, table) in spans.iter_mut().zip(&tables) {
                    span.past += 16 * (table.len() - span.blocks(0).len());
                    span.caches = vec![Table::Blocks(table.into())];
                }
                self.right.forward(&Batch { spans, ..*batch }, logits)
            }
            Fault::Panics if is_later => panic!("index out of bounds, as it happens"),
            Fault::Crashes if is_later => {
                eprintln!("about to crash");
                let nowhere = std::hint::black_box(std::ptr::without_provenance_mut::<u32>(64));
                // SAFETY: there is none: the crash is the point.
                unsafe { nowhere.write_volatile(1) };
                Ok(())
            }
            Fault::Exits if is_later => std::process::exit(3),
            Fault::Hangs if is_later => loop {
                sleep(Duration::from_secs(1));
            },
            Fault::Panics | Fault::Crashes | Fault::Exits | Fault::Hangs => self.right.forward(batch, logits),
        }
    }

    fn attach(&mut self, adapter: &AdapterData) -> Result<u32> {
        self.right.attach(adapter)
    }

    fn detach(&mut self, adapter: u32) -> Result<()> {
        self.right.detach(adapter)
    }

    fn release(&mut self, sequence: u64) {
        self.before.remove(&sequence);
        self.right.release(sequence);
    }
}

struct Config {
    vocab_size: usize,
    width: usize,
    inner: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    context: usize,
    eps: f64,
    window: Option<usize>,
    rope: RopeConfig,
}

/// A fault planted in a Llama.
const RIGHT: u8 = 0;
/// It rotates neighbours where it ought to rotate halves.
const ROPE: u8 = 1;
const EPSILON: u8 = 2;
const WINDOW: u8 = 3;

struct Llama<const WRONG: u8> {
    embed_tokens: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    lm_head: Linear,
    rope: Rope,
}

struct Layer {
    input_layernorm: RmsNorm,
    qkv_proj: Qkv,
    o_proj: Linear,
    attention: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: GatedMlp,
}

impl Layer {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let (width, eps) = (config.width, config.eps);
        let own = loader.at("self_attn");
        let attention = Attention::new(index, config.heads, config.kv_heads, config.head_dim)?;
        let attention = Attention { window: config.window, ..attention };
        Ok(Self {
            input_layernorm: RmsNorm::load(loader, "input_layernorm", width, eps)?,
            qkv_proj: Qkv::load(&own, width, &attention)?,
            o_proj: own.linear("o_proj", config.heads * config.head_dim, width)?,
            attention,
            post_attention_layernorm: RmsNorm::load(loader, "post_attention_layernorm", width, eps)?,
            mlp: GatedMlp::load(&loader.at("mlp"), width, config.inner, Activation::Silu)?,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let [q, k, v] = self.qkv_proj.forward(&self.input_layernorm.forward(x, step)?, step)?;
        let x = self.o_proj.add_to(x, &self.attention.forward(&q, &k, &v, Some(angles), step)?, step)?;
        self.mlp.add_to(&x, &self.post_attention_layernorm.forward(&x, step)?, step)
    }
}

impl<const WRONG: u8> Decoder for Llama<WRONG> {
    const NAME: &'static str = "wrong";
    const GGUF: &'static [&'static str] = &["wrong"];
    const CLASSES: &'static [&'static str] = &["LlamaForCausalLM"];

    type Config = Config;

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let config = checkpoint.config();
        let rope = config.rope()?;
        let style = if WRONG == ROPE { RopeStyle::Interleaved } else { rope.style };
        Ok(Config {
            vocab_size: config.usize("vocab_size")?,
            width: config.usize("hidden_size")?,
            inner: config.usize("intermediate_size")?,
            layers: config.usize("num_hidden_layers")?,
            heads: config.usize("num_attention_heads")?,
            kv_heads: config.usize("num_key_value_heads")?,
            head_dim: config.usize("head_dim")?,
            context: config.usize("max_position_embeddings")?,
            eps: config.f64_or("rms_norm_eps", 1e-6)? * if WRONG == EPSILON { 100.0 } else { 1.0 },
            window: (WRONG == WINDOW).then_some(48),
            rope: RopeConfig { style, ..rope },
        })
    }

    fn shape(config: &Config) -> Shape {
        let Config { layers, kv_heads, head_dim, .. } = *config;
        let kv = KvShape::uniform(layers, kv_heads, head_dim);
        Shape { vocabulary: config.vocab_size, context: config.context, widest: config.inner, kv }
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let model = loader.at("model");
        let layers = (0..config.layers).map(|index| Layer::load(&model.at("layers").at(index), config, index));
        Ok(Self {
            embed_tokens: model.embedding("embed_tokens", config.vocab_size, config.width)?,
            layers: layers.collect::<Result<_>>()?,
            norm: RmsNorm::load(&model, "norm", config.width, config.eps)?,
            lm_head: loader.linear("lm_head", config.width, config.vocab_size)?,
            rope: Rope::new(&config.rope, config.head_dim, loader.context())?,
        })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let angles = self.rope.angles(step)?;
        let x = self.embed_tokens.forward(step)?;
        self.layers.iter().try_fold(x, |x, layer| layer.forward(&x, &angles, step))
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.lm_head.forward(&self.norm.forward(hidden, step)?, step)
    }
}
