//! Log lines of the fleet: formats the supervisor's notes.

use super::supervisor::Happening;

/// Writes a note about the model with this id.
pub(super) fn log(id: &str, what: &Happening) {
    match what {
        Happening::Loading { memory } => tracing::info!(model = id, "loading: {memory}"),
        Happening::NoChatTemplate => tracing::info!(
            model = id,
            "the checkpoint has no chat template: in conversations turns begin with 'User:' and 'Assistant:', and an answer ends \
                 where the model goes on with the user's"
        ),
        Happening::Loaded(loaded) => {
            let (device, state_bytes) = (&loaded.device, loaded.state_bytes);
            tracing::info!(model = id, device, state_bytes, "loaded: {}", loaded.note);
        }
        Happening::WorkerDied(failure) => tracing::error!(model = id, "{failure}"),
        Happening::AdapterAttached { name, adapter } => {
            let (format, pairs, bytes) = (&adapter.format, adapter.pairs, adapter.bytes);
            tracing::info!(model = id, format, pairs, bytes, "adapter '{name}' is there");
        }
        Happening::AdapterRefused { name, failure } => {
            let failure = pensieve_protocol::refusal::clean(&failure.to_string());
            tracing::error!(model = id, "adapter '{name}': {failure}");
        }
        Happening::AdapterDetached { name } => tracing::info!(model = id, "adapter '{name}' is taken away"),
    }
}
