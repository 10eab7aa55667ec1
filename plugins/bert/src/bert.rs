//! BERT (arXiv 1810.04805), RoBERTa (1907.11692), XLM-RoBERTa (1911.02116), DistilBERT (1910.01108) and MPNet
//! (2004.09297): learned positions, full attention in both directions, norms after each block. MPNet adds biases by
//! distance to the scores. With a head they score a query against a document, or a text against labels.
//!
//! Reference: `modeling_bert.py`, `modeling_xlm_roberta.py`, `modeling_distilbert.py` and `modeling_mpnet.py` in Hugging
//! Face transformers; fields are named as in BERT's checkpoints.

use pensieve_sdk::{
    Error, Result,
    nn::{
        Embedding, Encoder, EncoderShape, LayerNorm, Linear, Loader, Lookup, Mlp, Qkv, Sizes, Step, Tensor,
        TextAttention,
    },
    weights::{Checkpoint, Config as Settings, Format, GgufFamily, Pooling, RowsUse, Tokenizer},
};

use crate::{
    biases, gguf,
    head::{self, Head},
    names::{self, Names},
};

pub struct Config {
    names: Names,
    sizes: Sizes,
    layer_norm_eps: f64,
    /// 0 for models without types.
    type_vocab_size: usize,
    /// The position of a text's first token: RoBERTa counts from after its padding token's id.
    first_position: usize,
    /// Labels of the head, if there is one.
    labels: Option<usize>,
    /// The token behind which the second text of a pair begins, in models that give it another type.
    separator: Option<u32>,
}

/// Sums of word, position and, in most families, type.
struct Embeddings {
    word_embeddings: Embedding,
    position_embeddings: Lookup,
    token_type_embeddings: Option<Lookup>,
    norm: LayerNorm,
    first_position: u32,
}

impl Embeddings {
    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let Sizes { vocab_size, hidden_size, max_position_embeddings, .. } = config.sizes;
        let types = |types| Lookup::load(loader, "token_type_embeddings", types, hidden_size);
        Ok(Self {
            word_embeddings: loader.embedding("word_embeddings", vocab_size, hidden_size)?,
            position_embeddings: Lookup::load(loader, "position_embeddings", max_position_embeddings, hidden_size)?,
            token_type_embeddings: Some(config.type_vocab_size).filter(|count| *count > 0).map(types).transpose()?,
            norm: LayerNorm::load(loader, "LayerNorm", hidden_size, config.layer_norm_eps)?,
            first_position: config.first_position as u32,
        })
    }

    fn forward(&self, types: &[u32], step: &Step<'_>) -> Result<Tensor> {
        let positions: Vec<u32> = step.positions().iter().map(|position| position + self.first_position).collect();
        let mut x = self.word_embeddings.forward(step)?;
        if let Some(token_type_embeddings) = &self.token_type_embeddings {
            x = step.ops().add(&x, &token_type_embeddings.forward(types, step)?)?;
        }
        let x = step.ops().add(&x, &self.position_embeddings.forward(&positions, step)?)?;
        self.norm.forward(&x, step)
    }
}

struct SelfAttention {
    qkv: Qkv,
    attention: TextAttention,
    dense: Linear,
    norm: LayerNorm,
}

impl SelfAttention {
    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let Config { names: Names { qkv: [query, key, value], out, out_norm, .. }, .. } = *config;
        let Sizes { hidden_size, num_attention_heads: heads, head_dim, .. } = config.sizes;
        let linear = |name| loader.linear(name, hidden_size, hidden_size);
        Ok(Self {
            qkv: Qkv::of([linear(query)?, linear(key)?, linear(value)?]),
            attention: TextAttention::new(heads, heads, head_dim)?,
            dense: linear(out)?,
            norm: LayerNorm::load(loader, out_norm, hidden_size, config.layer_norm_eps)?,
        })
    }

    /// `norm(x + attention(x))`.
    fn forward(&self, x: &Tensor, biases: Option<&Tensor>, step: &Step<'_>) -> Result<Tensor> {
        let [q, k, v] = self.qkv.forward(x, step)?;
        let attn_out = match biases {
            Some(biases) => self.attention.forward_biased([&q, &k, &v], biases, step)?,
            None => self.attention.forward([&q, &k, &v], None, step)?,
        };
        self.norm.forward(&self.dense.add_to(x, &attn_out, step)?, step)
    }
}

struct Block {
    attention: SelfAttention,
    mlp: Mlp,
    norm: LayerNorm,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let Sizes { hidden_size, intermediate_size, hidden_act, .. } = config.sizes;
        let Names { mlp, mlp_norm, .. } = config.names;
        Ok(Self {
            attention: SelfAttention::load(loader, config)?,
            mlp: Mlp::load_named(loader, mlp, hidden_size, intermediate_size, hidden_act)?,
            norm: LayerNorm::load(loader, mlp_norm, hidden_size, config.layer_norm_eps)?,
        })
    }

    fn forward(&self, x: &Tensor, biases: Option<&Tensor>, step: &Step<'_>) -> Result<Tensor> {
        let x = self.attention.forward(x, biases, step)?;
        self.norm.forward(&self.mlp.add_to(&x, &x, step)?, step)
    }
}

pub struct Bert {
    embeddings: Embeddings,
    layers: Vec<Block>,
    /// Biases of scores by distance, the same in all layers.
    biases: Option<Tensor>,
    head: Option<Head>,
    separator: Option<u32>,
}

impl Bert {
    /// The type of each token: 1 in the second text of a pair.
    fn types(&self, step: &Step<'_>) -> Vec<u32> {
        let mut types = vec![0; step.tokens().len()];
        let Some(separator) = self.separator else { return types };
        for span in &step.batch().spans {
            let text = span.start..span.start + span.len;
            let end = step.tokens()[text.clone()].iter().position(|token| *token == separator);
            if let Some(end) = end {
                types[text.start + end + 1..text.end].fill(1);
            }
        }
        types
    }
}

impl Encoder for Bert {
    const NAME: &'static str = "bert";
    const GGUF: &'static [&'static str] = &["bert"];
    const CLASSES: &'static [&'static str] = &[
        "BertModel",
        "BertForMaskedLM",
        "BertForSequenceClassification",
        "RobertaModel",
        "RobertaForMaskedLM",
        "RobertaForSequenceClassification",
        "CamembertModel",
        "XLMRobertaModel",
        "XLMRobertaForMaskedLM",
        "XLMRobertaForSequenceClassification",
        "DistilBertModel",
        "DistilBertForMaskedLM",
        "DistilBertForSequenceClassification",
        "MPNetModel",
        "MPNetForMaskedLM",
        "MPNetForSequenceClassification",
    ];

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        gguf::bert()
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let class = checkpoint.architecture();
        let (is_distilled, is_mpnet) = (class.starts_with("DistilBert"), class.starts_with("MPNet"));
        let config = &if is_distilled { distilled(checkpoint.config())? } else { checkpoint.config().clone() };
        config.only("position_embedding_type", "absolute")?;
        config.only("is_decoder", false)?;
        let from_zero = class.starts_with("Bert") || is_distilled || checkpoint.format() == Format::Gguf;
        let first_position = if from_zero { 0 } else { config.usize_or("pad_token_id", 1)? + 1 };
        let sizes = Sizes::read(config)?;
        if sizes.max_position_embeddings <= first_position {
            let message = format!("{} positions, the first being {first_position}", sizes.max_position_embeddings);
            return Err(Error::corrupt(message).help("the model's configuration is inconsistent"));
        }
        let has_types = !is_distilled && !is_mpnet;
        let types = if has_types { config.usize_or("type_vocab_size", 2)? } else { 0 };
        let (labels, type_vocab_size) = (head::labels(checkpoint), types);
        let separator = match labels {
            Some(_) if type_vocab_size > 1 => {
                RowsUse::read(checkpoint, &checkpoint.tokenizer()?)?.between.first().copied()
            }
            _ => None,
        };
        Ok(Config {
            names: match () {
                () if is_distilled => names::DISTILBERT,
                () if is_mpnet => names::MPNET,
                () => names::BERT,
            },
            sizes,
            layer_norm_eps: config.f64_or("layer_norm_eps", 1e-12)?,
            type_vocab_size,
            first_position,
            labels,
            separator,
        })
    }

    fn shape(config: &Config) -> EncoderShape {
        let Sizes { vocab_size, hidden_size, intermediate_size, max_position_embeddings, .. } = config.sizes;
        EncoderShape {
            vocabulary: vocab_size,
            context: max_position_embeddings - config.first_position,
            widest: intermediate_size.max(3 * hidden_size),
            width: hidden_size,
        }
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let has_words = |path: &&&str| loader.at(path).has("embeddings.word_embeddings.weight");
        let model = loader.at(config.names.model.iter().find(has_words).unwrap_or(&""));
        let is_gguf = loader.format() == Format::Gguf;
        let layers = if is_gguf { loader.at("model.layers") } else { model.at(config.names.layers) };
        let block = |index| Block::load(&layers.at(index), config);
        Ok(Self {
            embeddings: Embeddings::load(&model.at("embeddings"), config)?,
            layers: (0..config.sizes.num_hidden_layers).map(block).collect::<Result<_>>()?,
            biases: biases::load(&model.at("encoder"), config.sizes.num_attention_heads)?,
            head: config.labels.map(|labels| Head::load(loader, config.sizes.hidden_size, labels)).transpose()?,
            separator: config.separator,
        })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let x = self.embeddings.forward(&self.types(step), step)?;
        self.layers.iter().try_fold(x, |x, layer| layer.forward(&x, self.biases.as_ref(), step))
    }

    fn rows(checkpoint: &Checkpoint, tokenizer: &Tokenizer, config: &Config) -> Result<Option<RowsUse>> {
        config.labels.map(|labels| head::rows(checkpoint, tokenizer, Pooling::First, labels)).transpose()
    }

    fn finish_width(&self) -> usize {
        self.head.as_ref().map_or(0, Head::labels)
    }

    fn finish(&self, rows: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.head.as_ref().map_or_else(|| Ok(rows.clone()), |head| head.forward(rows, step))
    }
}

/// DistilBERT's configuration under BERT's names.
fn distilled(config: &Settings) -> Result<Settings> {
    let names = [
        ("hidden_size", "dim"),
        ("num_hidden_layers", "n_layers"),
        ("num_attention_heads", "n_heads"),
        ("intermediate_size", "hidden_dim"),
        ("hidden_act", "activation"),
    ];
    config
        .with_defaults(names.into_iter().filter_map(|(ours, theirs)| Some((ours, config.value().get(theirs)?.clone()))))
}
