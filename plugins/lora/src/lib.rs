//! Low-rank adapters (arXiv 2106.09685) as published: PEFT folders, and the GGUF files that llama.cpp's converter makes
//! of them.
//!
//! A format reads pairs of factors and the names of their weights; the model applies them. An adapter with anything
//! else, such as biases or whole layers, is refused rather than loaded in part: half a fine-tune is worse than none.

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod fuzz_tests;
mod gguf;
mod pairs;
mod peft;

use pensieve_sdk::Plugin;

pensieve_sdk::export!(
    Plugin::new("lora", "low-rank adapters as PEFT folders and GGUF files")
        .adapter_format(peft::Peft)
        .adapter_format(gguf::Gguf)
);
