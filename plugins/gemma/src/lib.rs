//! Google's Gemma, as two architectures: `gemma` for Gemma 2 and 3, and `gemma4`.

mod gemma;
mod gemma4;
mod gguf;

use pensieve_sdk::{Plugin, export, nn::Paged};

export!(
    Plugin::new("gemma", "Gemma 2 to 4")
        .architecture(Paged::<gemma::Gemma>::architecture())
        .architecture(Paged::<gemma4::Gemma4>::architecture())
);
