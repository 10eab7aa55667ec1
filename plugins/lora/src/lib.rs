//! Low-rank adapters (arXiv 2106.09685) as they are published: the folders that PEFT writes, and the GGUF files that
//! llama.cpp's converter makes of them.
//!
//! A format reads pairs of factors and says which weight each changes; applying them is the model's work. What an adapter
//! does besides, such as a bias or whole layers of its own, cannot be said in pairs and is refused, never dropped: a
//! fine-tune that is served by half is worse than none.

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
