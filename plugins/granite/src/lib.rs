//! IBM's Granite, which is two architectures: `granite`, dense and with experts, and `granite-hybrid`, most of whose layers are
//! Mamba-2.

mod granite;
mod hybrid;

use pensieve_sdk::{Plugin, export, nn::Paged};

export!(
    Plugin::new("granite", "Granite 3 and 4")
        .architecture(Paged::<granite::Granite>::architecture())
        .architecture(Paged::<hybrid::Hybrid>::architecture())
);
