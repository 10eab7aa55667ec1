//! The server's models as the dialects list them: each name once, with the context that requests really get.
//!
//! The context comes from the model's card, which a child process reads at the first request. Lists do not wait long
//! for that, and leave the context out while it is unknown.

use std::{
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{ApiError, ApiRequest, ApiResponse, Dialect, ErrorCode, fields::Quote};
use crate::{
    fleet::{Listed, Target},
    requests::Chats,
};
use pensieve_protocol::rows::Kind;

/// Claude Code's discovery gives up after 3 seconds.
const CARD_TIMEOUT: Duration = Duration::from_secs(2);

/// Limit of a tool's output that Codex is told to pass to the model.
const TOOL_OUTPUT_BYTES_MAX: usize = 10_000;

pub(super) struct ListedModel {
    pub(super) id: String,
    /// The checkpoint's file or folder.
    pub(super) source: PathBuf,
    pub(super) modified: Option<SystemTime>,
    pub(super) target: Option<Target>,
    /// The longest sequence in tokens, if it is known.
    pub(super) context: Option<u32>,
    /// Of a model that an upstream computes.
    pub(super) upstream_capabilities: Option<Vec<&'static str>>,
    /// The memory that it has needed so far.
    pub(super) measured: Option<u64>,
    /// It has no chat template.
    pub(super) is_base: bool,
}

/// The models that the client may use.
pub(super) async fn entries(chats: &Chats, call: &ApiRequest) -> Vec<ListedModel> {
    let client = call.client();
    let listed = chats.fleet().listed().into_iter().filter(|listed| chats.permit(&client, &listed.id).is_ok());
    join_all(listed.map(|listed| entry(chats, listed))).await
}

/// Finds a listed model that the client may use; names that are only routed to the default model do not count.
pub(super) async fn find(chats: &Chats, call: &ApiRequest, id: &str) -> Result<ListedModel, ApiError> {
    let listed = chats.fleet().find_listed(id).filter(|_| chats.permit(&call.client(), id).is_ok());
    let listed = listed.ok_or_else(|| {
        let message = format!("there is no model '{}'; GET /v1/models lists them", Quote(id));
        ApiError { field: Some("model".to_owned()), ..ApiError::new(ErrorCode::NotFound, message) }
    })?;
    Ok(entry(chats, listed).await)
}

async fn entry(chats: &Chats, Listed { id, source }: Listed) -> ListedModel {
    if let Ok(Some(elsewhere)) = chats.fleet().elsewhere(&id) {
        let upstreams = chats.upstreams();
        let asked = async {
            let (images, logprobs) =
                (upstreams.reads_images(&elsewhere).await, upstreams.gives_logprobs(&elsewhere).await);
            (upstreams.context(&elsewhere).await, images, logprobs)
        };
        let (context, images, logprobs) = timeout(CARD_TIMEOUT, asked).await.unwrap_or_default();
        let more = [images.then_some("vision"), logprobs.then_some("logprobs")];
        let upstream_capabilities =
            Some(["completion", "tools"].into_iter().chain(more.into_iter().flatten()).collect());
        return ListedModel {
            id,
            source,
            modified: None,
            target: None,
            context,
            upstream_capabilities,
            measured: None,
            is_base: false,
        };
    }
    let target = timeout(CARD_TIMEOUT, chats.fleet().target(&id)).await.ok().and_then(Result::ok);
    let measured = if target.is_some() { chats.fleet().measured(&id).await.ok().flatten() } else { None };
    let is_base = target.as_ref().is_some_and(|target| target.card.chat_template.is_none());
    let (context, modified) = (target.as_ref().map(Target::longest), modified(&source));
    ListedModel { target, context, modified, id, source, upstream_capabilities: None, measured, is_base }
}

/// Modification time of the weights.
fn modified(source: &Path) -> Option<SystemTime> {
    std::fs::metadata(source).and_then(|metadata| metadata.modified()).ok()
}

/// `GET /v1/models`, in the form of the client's API.
pub(crate) async fn models(chats: &Chats, call: &ApiRequest) -> Result<ApiResponse, ApiError> {
    let entries = entries(chats, call).await;
    Ok(ApiResponse::json(&match call.dialect {
        Dialect::Anthropic => anthropic_list(&entries, &call.shared.settings.claude_prefix),
        Dialect::Gemini => json!({ "models": entries.iter().map(gemini_entry).collect::<Vec<_>>() }),
        _ => {
            let data: Vec<Value> = entries.iter().map(openai_entry).collect();
            // Codex expects the list as `models`, in its own form.
            let codex = entries.iter().enumerate().map(|(index, entry)| codex_entry(entry, index));
            json!({ "object": "list", "data": data, "models": codex.collect::<Vec<_>>() })
        }
    }))
}

/// `GET /v1/models/ID`, in the form of the client's API.
pub(crate) async fn model(chats: &Chats, call: &ApiRequest) -> Result<ApiResponse, ApiError> {
    let id = without_prefix(&call.id, &call.shared.settings.claude_prefix);
    let entry = ListedModel { id: call.id.clone(), ..find(chats, call, id).await? };
    let form = match call.dialect {
        Dialect::Anthropic => anthropic_entry,
        Dialect::Gemini => gemini_entry,
        _ => openai_entry,
    };
    Ok(ApiResponse::json(&form(&entry)))
}

/// Strips the prefix that is added for Claude Code's model discovery.
pub(super) fn without_prefix<'a>(name: &'a str, prefix: &str) -> &'a str {
    name.strip_prefix(prefix).filter(|rest| !prefix.is_empty() && !rest.is_empty()).unwrap_or(name)
}

/// Claude Code ignores ids without `claude` or `anthropic`, so these are listed a second time with the prefix, except for
/// base models: without a chat template they cannot serve it.
fn anthropic_list(entries: &[ListedModel], prefix: &str) -> Value {
    let mut data: Vec<Value> = entries.iter().map(anthropic_entry).collect();
    let is_hidden =
        |entry: &&ListedModel| !entry.is_base && !["claude", "anthropic"].iter().any(|word| entry.id.contains(word));
    if !prefix.is_empty() {
        data.extend(entries.iter().filter(is_hidden).map(|entry| {
            let mut value = anthropic_entry(entry);
            value["id"] = format!("{prefix}{}", entry.id).into();
            value
        }));
    }
    json!({
        "first_id": data.first().map(|entry| &entry["id"]),
        "last_id": data.last().map(|entry| &entry["id"]),
        "has_more": false,
        "data": data,
    })
}

fn anthropic_entry(entry: &ListedModel) -> Value {
    let created = entry.modified.and_then(|time| jiff::Timestamp::try_from(time).ok()).unwrap_or_default();
    let mut value = json!({
        "type": "model", "id": entry.id, "display_name": entry.id, "created_at": rfc3339(created),
    });
    if let Some(context) = entry.context {
        value["max_input_tokens"] = context.into();
        value["max_tokens"] = context.into();
    }
    value
}

fn openai_entry(entry: &ListedModel) -> Value {
    let created = entry.modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let created = created.map_or(0, |since| since.as_secs());
    let mut value = json!({ "id": entry.id, "object": "model", "created": created, "owned_by": "pensieve" });
    if let Some(context) = entry.context {
        // Different clients look for different names of the same number.
        for name in ["context_length", "context_window", "max_model_len", "max_input_tokens"] {
            value[name] = context.into();
        }
    }
    if let Some(target) = &entry.target {
        value["capabilities"] = capabilities(target).into();
    } else if let Some(words) = &entry.upstream_capabilities {
        value["capabilities"] = words.clone().into();
    }
    if let Some(bytes) = entry.measured {
        value["measured_bytes"] = bytes.into();
    }
    value
}

/// The words of Ollama's and OpenAI-like lists for what a model can do.
pub(super) fn capabilities(target: &Target) -> Vec<&'static str> {
    let mut words = match target.card.rows() {
        Some(rows) if !rows.generates => vec![rows.kind.word()],
        Some(rows) if rows.made_for => vec!["completion", "tools", rows.kind.word()],
        _ => vec!["completion", "tools"],
    };
    words.extend(reads_images(target).then_some("vision"));
    words.extend(words.contains(&"completion").then_some("logprobs"));
    words
}

fn reads_images(target: &Target) -> bool {
    target.card.media().is_some_and(|media| media.image.is_some())
}

fn gemini_entry(entry: &ListedModel) -> Value {
    let mut value = json!({
        "name": format!("models/{}", entry.id), "baseModelId": entry.id, "version": "1", "displayName": entry.id,
        "description": "", "supportedGenerationMethods": ["generateContent", "countTokens"],
    });
    if let Some(target) = &entry.target {
        let rows = target.card.rows();
        if rows.is_some_and(|rows| rows.kind == Kind::Embed) {
            let writes = rows.is_none_or(|rows| rows.generates);
            let methods: &[&str] =
                if writes { &["generateContent", "countTokens", "embedContent"] } else { &["embedContent"] };
            value["supportedGenerationMethods"] = json!(methods);
        }
    }
    if let Some(context) = entry.context {
        value["inputTokenLimit"] = context.into();
        value["outputTokenLimit"] = context.into();
    }
    value
}

/// Codex rejects a list that lacks one of these fields. `base_instructions` stays empty, as it would define the model's
/// persona.
fn codex_entry(entry: &ListedModel, index: usize) -> Value {
    let mut value = json!({
        "slug": entry.id, "display_name": entry.id, "description": null, "priority": index,
        "visibility": "list", "supported_in_api": true, "upgrade": null, "availability_nux": null,
        "base_instructions": "", "shell_type": "default", "apply_patch_tool_type": null, "experimental_supported_tools": [],
        "truncation_policy": { "mode": "bytes", "limit": TOOL_OUTPUT_BYTES_MAX },
        "supports_parallel_tool_calls": true, "supports_reasoning_summaries": false,
        "supported_reasoning_levels": [], "support_verbosity": false, "default_verbosity": null, "input_modalities": ["text"],
    });
    if let Some(context) = entry.context {
        value["context_window"] = context.into();
    }
    let upstream_images = entry.upstream_capabilities.as_ref().map(|words| words.contains(&"vision"));
    if upstream_images.unwrap_or_else(|| entry.target.as_ref().is_some_and(reads_images)) {
        value["input_modalities"] = json!(["text", "image"]);
    }
    value
}

/// RFC 3339 without fractions of a second, as the APIs write times.
pub(super) fn rfc3339(time: jiff::Timestamp) -> String {
    jiff::fmt::temporal::DateTimePrinter::new().precision(Some(0)).timestamp_to_string(&time)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn entry(id: &str, source: &Path) -> ListedModel {
        ListedModel {
            id: id.into(),
            source: source.into(),
            modified: modified(source),
            target: None,
            context: None,
            upstream_capabilities: None,
            measured: None,
            is_base: false,
        }
    }

    #[test]
    fn a_model_is_as_old_as_its_weights() {
        let folder = tempfile::tempdir().unwrap();
        let (large, gone) = (entry("large:poet", folder.path()), entry("gone", &folder.path().join("gone")));
        assert!(openai_entry(&large)["created"].as_u64().unwrap() > 0);
        let expected = json!({"id": "gone", "object": "model", "created": 0, "owned_by": "pensieve"});
        assert_eq!(openai_entry(&gone), expected);
        let expected =
            json!({"type": "model", "id": "gone", "display_name": "gone", "created_at": "1970-01-01T00:00:00Z"});
        assert_eq!(anthropic_entry(&gone), expected);
        assert!(anthropic_entry(&large)["created_at"].as_str().unwrap() > "2024");
    }

    #[test]
    fn ids_that_claude_code_would_hide_are_listed_under_a_prefix() {
        let nowhere = Path::new("/nowhere");
        let entries = [entry("small", nowhere), entry("claude-local", nowhere)];
        let base = ListedModel { is_base: true, ..entry("base", nowhere) };
        let bases = anthropic_list(&[base], "pensieve/claude-");
        assert_eq!((bases["data"].as_array().unwrap().len(), &bases["last_id"]), (1, &json!("base")));
        let list = anthropic_list(&entries, "pensieve/claude-");
        let ids: Vec<&str> =
            list["data"].as_array().unwrap().iter().map(|entry| entry["id"].as_str().unwrap()).collect();
        assert_eq!(ids, ["small", "claude-local", "pensieve/claude-small"]);
        assert_eq!((&list["first_id"], &list["last_id"]), (&json!("small"), &json!("pensieve/claude-small")));
        assert_eq!(anthropic_list(&entries, "")["data"].as_array().unwrap().len(), 2);
        let empty = json!({"first_id": null, "last_id": null, "has_more": false, "data": []});
        assert_eq!(anthropic_list(&[], "pensieve/claude-"), empty);
    }

    #[test]
    fn a_prefixed_name_stands_for_the_model() {
        assert_eq!(without_prefix("pensieve/claude-small", "pensieve/claude-"), "small");
        assert_eq!(without_prefix("pensieve/claude-", "pensieve/claude-"), "pensieve/claude-");
        assert_eq!(without_prefix("small", "pensieve/claude-"), "small");
        assert_eq!(without_prefix("small", ""), "small");
    }
}
