//! The zoo: families that candle-transformers has and that have no plugin of their own here, each wrapped in a file.
//!
//! Every one of them gives the numbers of Hugging Face transformers or declines the checkpoint. Where candle's model leaves
//! something out, its file says what, and takes the part that is right. Left out as a whole, as of candle-transformers
//! 0.11.1: Falcon, whose GELU is an approximation there.

mod mamba;
mod stablelm;
mod starcoder2;

use pensieve_sdk::{Plugin, bridge::Bridge, export};

export!(
    Plugin::new("zoo", "models of candle-transformers")
        .architecture(Bridge::<mamba::Mamba>::architecture())
        .architecture(Bridge::<stablelm::StableLm>::architecture())
        .architecture(Bridge::<starcoder2::StarCoder2>::architecture())
);
