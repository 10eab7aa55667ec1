//! Mamba (arXiv 2312.00752) as candle-transformers has it, which hard-codes the published sizes: a wrapped model whose state can
//! be copied.

use pensieve_sdk::{
    Result,
    bridge::{
        Parts, Pristine, Shape, Tensor, Wrapped,
        candle::{self, DType},
        models::mamba::{Config, Model, State},
    },
    weights::Checkpoint,
};

const EMBEDDINGS: &str = "backbone.embeddings.weight";
/// Kernel size of the convolution.
const KERNEL: usize = 4;
/// State size per inner value.
const STATE: usize = 16;

pub struct Mamba {
    model: Model,
    state: State,
}

impl Wrapped for Mamba {
    const NAME: &'static str = "mamba";
    const CLASSES: &'static [&'static str] = &["MambaForCausalLM"];

    fn shape(checkpoint: &Checkpoint) -> Result<Shape> {
        let config = checkpoint.config();
        let (width, layers) = (config.usize("hidden_size")?, config.usize("num_hidden_layers")?);
        config.only("state_size", STATE)?;
        config.only("conv_kernel", KERNEL)?;
        config.only("expand", 2)?;
        config.only("intermediate_size", 2 * width)?;
        config.only("time_step_rank", width.div_ceil(16))?;
        config.only("layer_norm_epsilon", 1e-5)?;
        config.only("use_bias", false)?;
        config.only("use_conv_bias", true)?;
        config.only("hidden_act", "silu")?;
        config.only("tie_word_embeddings", true)?;
        Ok(Shape {
            vocabulary: vocabulary(checkpoint)?,
            context: usize::MAX,
            widest: 4 * width,
            heads: 0,
            token_bytes: 0,
            // candle computes a convolution input together with its gate, so keeping one keeps both.
            fixed_bytes: 4 * layers * 2 * width * (STATE + 2 * KERNEL),
        })
    }

    fn load(parts: &Parts<'_>) -> Result<Pristine<Self>> {
        let (settings, device) = (parts.checkpoint().config(), parts.device().clone());
        let config = Config {
            d_model: settings.usize("hidden_size")?,
            n_layer: settings.usize("num_hidden_layers")?,
            vocab_size: vocabulary(parts.checkpoint())?,
            pad_vocab_size_multiple: 1,
        };
        let tensors = parts.tensors(&[("backbone.embedding.weight", EMBEDDINGS)]);
        let model = Model::new(&config, tensors.pp("backbone"))?;
        Ok(Pristine::made_by(move || {
            Ok(Self { model: model.clone(), state: State::new(1, &config, DType::F32, &device)? })
        }))
    }

    fn forward(&mut self, tokens: &Tensor, past: usize) -> candle::Result<Tensor> {
        self.state.pos = past;
        self.model.forward(&tokens.flatten_all()?, &mut self.state)
    }

    fn state(&self) -> Vec<Tensor> {
        self.state.hs.iter().chain(self.state.prev_xs.iter().flatten()).cloned().collect()
    }

    fn set_state(&mut self, state: Vec<Tensor>) {
        let places = self.state.hs.iter_mut().chain(self.state.prev_xs.iter_mut().flatten());
        places.zip(state).for_each(|(place, tensor)| *place = tensor);
    }
}

/// Number of embeddings, which may exceed the configured vocabulary.
fn vocabulary(checkpoint: &Checkpoint) -> Result<usize> {
    Ok(checkpoint.weights().get(EMBEDDINGS)?.shape.first().copied().unwrap_or(0))
}
