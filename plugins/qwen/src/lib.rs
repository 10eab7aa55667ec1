//! Alibaba's Qwen, as two architectures: `qwen` for Qwen2 to Qwen3 with its embedding models and
//! rerankers, and `qwen-next` for Qwen3-Next to Qwen3.6, most of whose layers are recurrent.

mod gguf;
mod next;
mod qwen;
mod rerank;
mod vision;

use pensieve_sdk::{Plugin, export, nn::Paged};

export!(
    Plugin::new("qwen", "Qwen2 to Qwen3.6")
        .architecture(Paged::<qwen::Qwen>::architecture())
        .architecture(Paged::<next::QwenNext>::architecture())
);
