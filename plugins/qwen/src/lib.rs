//! Alibaba's Qwen, as two architectures: `qwen` for Qwen2 to Qwen3, and `qwen-next` for Qwen3-Next to Qwen3.6, most of
//! whose layers are recurrent.

mod gguf;
mod next;
mod qwen;

use pensieve_sdk::{Plugin, export, nn::Paged};

export!(
    Plugin::new("qwen", "Qwen2 to Qwen3.6")
        .architecture(Paged::<qwen::Qwen>::architecture())
        .architecture(Paged::<next::QwenNext>::architecture())
);
