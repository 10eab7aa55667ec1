//! Microsoft's Phi, which is three architectures: `phi` has parallel attention and MLP, as GPT-J did; `phi3`, from Phi-3 to Phi-4,
//! is Llama with fused projections and LongRoPE; `phimoe` is a mixture of experts.

mod phi;
mod phi3;
mod phimoe;

use pensieve_sdk::{Plugin, export, nn::Paged};

export!(
    Plugin::new("phi", "Phi-1 to Phi-4")
        .architecture(Paged::<phi::Phi>::architecture())
        .architecture(Paged::<phi3::Phi3>::architecture())
        .architecture(Paged::<phimoe::PhiMoe>::architecture())
);
