//! Google's Gemma, as three architectures: `gemma` for Gemma 2 and 3, `gemma4`, and the encoder `embedding-gemma`.

mod defaults;
mod embedding;
mod gemma;
mod gemma4;
mod gguf;
mod vision;

use pensieve_sdk::{
    Plugin, export,
    nn::{Packed, Paged},
};

export!(
    Plugin::new("gemma", "Gemma 2 to 4, EmbeddingGemma")
        .architecture(Paged::<gemma::Gemma>::architecture())
        .architecture(Paged::<gemma4::Gemma4>::architecture())
        .architecture(Packed::<embedding::EmbeddingGemma>::architecture())
);
