//! Encoders for embeddings, scores and classes, as three architectures: `bert` for BERT and the families close to it,
//! which learned their positions, and `modern-bert` and `nomic-bert`, which rotate them.

mod bert;
mod biases;
mod gguf;
mod head;
mod modern;
mod names;
mod nomic;

use pensieve_sdk::{Plugin, export, nn::Packed};

export!(
    Plugin::new("bert", "BERT, RoBERTa, XLM-RoBERTa, DistilBERT, MPNet, ModernBERT and Nomic's BERT")
        .architecture(Packed::<bert::Bert>::architecture())
        .architecture(Packed::<modern::ModernBert>::architecture())
        .architecture(Packed::<nomic::NomicBert>::architecture())
);
