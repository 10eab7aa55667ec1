//! Hyper-connections constrained to doubly stochastic mixing (mHC, arXiv 2512.24880) around the halves of each block, as
//! in DeepSeek-V4; reference: `DeepseekV4HyperConnection` and `DeepseekV4HyperHead` in transformers.

use pensieve_sdk::{
    Result,
    nn::{CausalLm, Decoder, HyperConnections, Loader, Rope, Shape, Step, Tensor},
    weights::Checkpoint,
};

use crate::llama::{Block, Config};

pub struct Streams {
    model: CausalLm<Connected>,
    hc_head: HyperConnections,
    rope: Rope,
    hc_mult: usize,
}

struct Connected {
    block: Block,
    attn_hc: HyperConnections,
    ffn_hc: HyperConnections,
}

pub struct StreamsConfig {
    llama: Config,
    hc_mult: usize,
    hc_sinkhorn_iters: usize,
    hc_eps: f64,
}

impl StreamsConfig {
    fn connections(&self, loader: &Loader<'_>) -> Result<HyperConnections> {
        let (width, eps) = (self.llama.sizes.hidden_size, self.llama.sizes.rms_norm_eps);
        let connections = HyperConnections::load(loader, self.hc_mult, width, eps)?;
        Ok(connections.with_sinkhorn(self.hc_sinkhorn_iters, self.hc_eps))
    }
}

impl Decoder for Streams {
    const NAME: &'static str = "streams";
    const GGUF: &'static [&'static str] = &[];
    const CLASSES: &'static [&'static str] = &["StreamsForCausalLM"];
    type Config = StreamsConfig;

    fn config(checkpoint: &Checkpoint) -> Result<StreamsConfig> {
        let config = checkpoint.config();
        Ok(StreamsConfig {
            llama: Config::read(checkpoint)?,
            hc_mult: config.usize_or("hc_mult", 4)?,
            hc_sinkhorn_iters: config.usize_or("hc_sinkhorn_iters", 20)?,
            hc_eps: config.f64_or("hc_eps", 1e-6)?,
        })
    }

    fn shape(config: &StreamsConfig) -> Shape {
        let shape = config.llama.sizes.shape();
        Shape { widest: shape.widest.max(config.hc_mult * config.llama.sizes.hidden_size), ..shape }
    }

    fn load(loader: &Loader<'_>, config: &StreamsConfig) -> Result<Self> {
        let StreamsConfig { llama, hc_mult, .. } = config;
        let block = |loader: &Loader<'_>, layer: usize| {
            Ok(Connected {
                block: Block::load(loader, llama, layer)?,
                attn_hc: config.connections(&loader.at("attn_hc"))?,
                ffn_hc: config.connections(&loader.at("ffn_hc"))?,
            })
        };
        let (width, eps) = (llama.sizes.hidden_size, llama.sizes.rms_norm_eps);
        let (at, names) = (loader.text_model().at("hc_head"), ["hc_fn", "hc_base", "hc_scale"]);
        Ok(Self {
            model: CausalLm::load(loader, &llama.sizes, block)?,
            hc_head: HyperConnections::load_head(&at, names, *hc_mult, width, eps)?.with_sinkhorn(0, config.hc_eps),
            rope: Rope::new(&llama.rope, llama.sizes.head_dim, loader.context())?,
            hc_mult: *hc_mult,
        })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let angles = self.rope.angles(step)?;
        let streams = HyperConnections::expand(&self.model.embed_tokens.forward(step)?, self.hc_mult)?;
        let streams = self.model.hidden_from(streams, step, |layer, streams, step| {
            let (x, mix) = layer.attn_hc.read(streams, step)?;
            let streams = mix.write(&layer.block.attend(&x, &angles, step)?)?;
            let (x, mix) = layer.ffn_hc.read(&streams, step)?;
            mix.write(&layer.block.feed_forward(&x, step)?)
        })?;
        self.hc_head.collapse(&streams, step)
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.model.logits(hidden, step)
    }
}
