//! Notes for the log. The supervisor writes nothing itself; the control loop logs them.

use pensieve_protocol::{
    job::Failure,
    wire::{AttachedAdapter, Loaded},
};

/// A line for the log about the model with this index.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::fleet) struct Note {
    pub(in crate::fleet) model: usize,
    pub(in crate::fleet) what: Happening,
}

#[derive(Clone, Debug, PartialEq)]
pub(in crate::fleet) enum Happening {
    /// A worker is about to be started; `memory` describes its memory plan.
    Loading {
        memory: String,
    },
    NoChatTemplate,
    Loaded(Box<Loaded>),
    WorkerDied(Failure),
    AdapterAttached {
        name: String,
        adapter: AttachedAdapter,
    },
    AdapterRefused {
        name: String,
        failure: Failure,
    },
    AdapterDetached {
        name: String,
    },
}
