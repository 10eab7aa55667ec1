//! IBM's Granite, as two architectures: `granite`, dense or with experts, and `granite-hybrid`, most of whose layers
//! are Mamba-2.

mod granite;
mod hybrid;

use pensieve_sdk::{Plugin, export, nn::Paged};

export!(
    Plugin::new("granite", "Granite 3 and 4")
        .architecture(Paged::<granite::Granite>::architecture())
        .architecture(Paged::<hybrid::Hybrid>::architecture())
);
