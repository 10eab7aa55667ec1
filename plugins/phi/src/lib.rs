//! Microsoft's Phi, as three architectures: `phi` has attention and MLP in parallel, like GPT-J; `phi3`, from Phi-3 to
//! Phi-4, is Llama with fused projections and LongRoPE; `phimoe` is a mixture of experts.

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
