//! Two designs that no shipped family has, on a decoder that is Llama's otherwise: `engram` has a memory of n-grams in a
//! table on disk, `streams` a residual of several streams. Copy the file that is like your model.

mod engram;
mod llama;
mod streams;

use pensieve_sdk::{Plugin, export, nn::Paged};

export!(
    Plugin::new("new-designs", "an n-gram memory, and hyper-connections")
        .architecture(Paged::<engram::Engram>::architecture())
        .architecture(Paged::<streams::Streams>::architecture())
);
