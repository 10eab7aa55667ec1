//! Checks of a request against the server's state: its samplers must exist. This happens before anything is queued, so
//! that even a streamed request fails with a status and the field's name.

use super::{ApiError, ApiRequest, catalog, fields::Quote};
use crate::{chat::Request, requests::Chats};

/// Strips the prefix under which model lists show a model to Claude Code.
pub(crate) fn model_name<'a>(call: &ApiRequest, name: &'a str) -> &'a str {
    catalog::without_prefix(name, &call.shared.settings.claude_prefix)
}

/// The name of the model that a client asks for, which is noted for the log.
pub(crate) fn asked_model(call: &ApiRequest, name: &str) -> String {
    tracing::Span::current().record("asked", tracing::field::display(Quote(name)));
    model_name(call, name).to_owned()
}

/// Checks a request whose fields are valid by themselves.
pub(crate) fn check(chats: &Chats, request: &Request) -> Result<(), ApiError> {
    tracing::Span::current().record("asked", tracing::field::display(Quote(&request.model)));
    if let Some(stages) = &request.sampling.stages {
        let offered = chats.fleet().plugins().samplers();
        let is_offered = |name: &str| offered.iter().any(|(known, _)| known == name);
        if let Some(index) = stages.iter().position(|stage| !is_offered(&stage.sampler)) {
            let mut names: Vec<&str> = offered.iter().map(|(name, _)| name.as_str()).collect();
            names.sort_unstable();
            let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let name = Quote(&stages[index].sampler);
            let why = format!("no sampler is called '{name}' (installed: {known}); drop its plugin into plugins/");
            return Err(ApiError::field(format!("pensieve.samplers.{index}"), why));
        }
    }
    Ok(())
}
