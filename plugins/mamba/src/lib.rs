//! Models of state-space layers only, whose memory for a sequence does not grow with its length.

mod backbone;
mod mamba;
mod mamba2;

use pensieve_sdk::{
    Plugin, export,
    nn::{Mamba, Mamba2, Paged},
};

use backbone::Model;

export!(
    Plugin::new("mamba", "Mamba, Falcon Mamba and Mamba-2")
        .architecture(Paged::<Model<Mamba>>::architecture())
        .architecture(Paged::<Model<Mamba2>>::architecture())
);
