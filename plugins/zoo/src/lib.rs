//! The zoo: families that candle-transformers supports and that have no plugin here, each wrapped in one file.
//!
//! Each gives the same numbers as Hugging Face transformers or declines the checkpoint. If candle's model lacks
//! something, its file says what, and accepts only the part that is right. Omitted entirely, as of candle-transformers
//! 0.11.1: Falcon, whose GELU is an approximation there.

mod stablelm;
mod starcoder2;

use pensieve_sdk::{Plugin, bridge::Bridge, export};

export!(
    Plugin::new("zoo", "models of candle-transformers")
        .architecture(Bridge::<stablelm::StableLm>::architecture())
        .architecture(Bridge::<starcoder2::StarCoder2>::architecture())
);
