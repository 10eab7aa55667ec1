//! Ai2's OLMo, as two architectures: `olmo2` for OLMo 2 and 3, and `olmoe`, a mixture of experts.

mod olmo2;
mod olmoe;

use pensieve_sdk::{Plugin, export, nn::Paged};

export!(
    Plugin::new("olmo", "OLMo 2 and 3, and OLMoE")
        .architecture(Paged::<olmo2::Olmo2>::architecture())
        .architecture(Paged::<olmoe::Olmoe>::architecture())
);
