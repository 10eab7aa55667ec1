//! What a request names and only the plugins at hand have: samplers. They are looked up before anything is queued, so that a
//! mistake is a status with the name of its field even for a stream.

use super::{ApiError, ApiRequest, catalog, fields::Quote};
use crate::{chat::Request, requests::Chats};

/// The model that a name of a client means, without the prefix under which lists show it to Claude Code.
pub(crate) fn model_name<'a>(call: &ApiRequest, name: &'a str) -> &'a str {
    catalog::without_prefix(name, &call.shared.settings.claude_prefix)
}

/// Checks a request whose fields are right by themselves.
pub(crate) fn check(chats: &Chats, request: &Request) -> Result<(), ApiError> {
    tracing::Span::current().record("asked", tracing::field::display(Quote(&request.model)));
    if let Some(stages) = &request.sampling.stages {
        let offered = chats.fleet().plugins().samplers();
        let is_offered = |name: &str| offered.iter().any(|(known, _)| known == name);
        if let Some(place) = stages.iter().position(|stage| !is_offered(&stage.sampler)) {
            let mut names: Vec<&str> = offered.iter().map(|(name, _)| name.as_str()).collect();
            names.sort_unstable();
            let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let name = Quote(&stages[place].sampler);
            let why = format!("no sampler is called '{name}' (installed: {known}); drop its plugin into plugins/");
            return Err(ApiError::field(format!("pensieve.samplers.{place}"), why));
        }
    }
    Ok(())
}
