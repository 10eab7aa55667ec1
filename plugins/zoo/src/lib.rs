//! The zoo: families that candle-transformers has and that have no plugin of their own here, each wrapped in a file.
//!
//! Every one of them gives the numbers of Hugging Face transformers or declines the checkpoint. Where candle's model leaves
//! something out, its file says what, and takes the part that is right. Left out as a whole, as of candle-transformers
//! 0.11.1: Falcon, whose GELU is an approximation there; Gemma 3 in GGUF, whose gate is computed with SiLU; Qwen2 in GGUF,
//! which cannot be shared between sequences.

mod gemma2;
mod gemma3;
mod glm4;
mod mamba;
mod olmo2;
mod qwen2;
mod qwen3;
mod stablelm;
mod starcoder2;

use pensieve_sdk::{Plugin, bridge::Bridge, export};

export!(
    Plugin::new("zoo", "models of candle-transformers")
        .architecture(Bridge::<gemma2::Gemma2>::architecture())
        .architecture(Bridge::<gemma3::Gemma3>::architecture())
        .architecture(Bridge::<glm4::Glm4>::architecture())
        .architecture(Bridge::<mamba::Mamba>::architecture())
        .architecture(Bridge::<olmo2::Olmo2>::architecture())
        .architecture(Bridge::<qwen2::Qwen2>::architecture())
        .architecture(Bridge::<qwen3::Qwen3>::architecture())
        .architecture(Bridge::<stablelm::StableLm>::architecture())
        .architecture(Bridge::<starcoder2::StarCoder2>::architecture())
);
