//! Asks a server what it is: which program, how long its context is, and whether it reads images. Lists of models tell most of
//! it, and every kind has one.

use std::time::Duration;

use serde_json::Value;

use super::client::{Broken, Client};
use crate::fleet::{Upstream, UpstreamKind, UpstreamUrl};

const ASK_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) kind: UpstreamKind,
    /// The longest sequence in tokens, if it is known.
    pub(super) context: Option<u32>,
    pub(super) images: bool,
    /// It reports log-probabilities.
    pub(super) logprobs: bool,
}

/// The facts that one server gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) facts: Facts,
    /// It has said nothing about itself, so that the facts are guesses.
    pub(super) is_guess: bool,
}

/// Asks one server. What the configuration says is not asked for.
pub(super) async fn ask(client: &Client, url: &UpstreamUrl, settings: &Upstream) -> Result<Asked, Broken> {
    if let (Some(kind), Some(context), Some(images)) = (settings.kind, settings.context, settings.images) {
        let facts = Facts { kind, context: Some(context), images, logprobs: kind != UpstreamKind::Anthropic };
        return Ok(Asked { facts, is_guess: false });
    }
    let first = settings.kind.unwrap_or(UpstreamKind::OpenAi);
    let mut listed = models(client, url, first).await?;
    if listed.is_none() && settings.kind.is_none() && settings.key.is_some() {
        // Anthropic's key stands in a header of its own.
        listed = models(client, url, UpstreamKind::Anthropic).await?;
    }
    let mut is_guess = listed.is_none();
    let list = listed.unwrap_or_default();
    let kind = settings.kind.unwrap_or_else(|| kind_of(&list, &settings.model));
    let mut facts = read(&list, &settings.model, kind);
    if kind == UpstreamKind::LlamaCpp {
        let asked = client.get(kind, &format!("{}/props", url.root()), ASK_TIMEOUT).await?;
        if asked.status.is_success() {
            is_guess = false;
            let props: Value = serde_json::from_slice(&asked.whole().await?).unwrap_or_default();
            facts.context = number(&props["default_generation_settings"]["n_ctx"]).or(facts.context);
            facts.images = props["modalities"]["vision"].as_bool().unwrap_or(false);
        }
    }
    facts.context = settings.context.or(facts.context);
    facts.images = settings.images.unwrap_or(facts.images);
    Ok(Asked { facts, is_guess })
}

/// A list of models; `None` if there is none for this server's key. One that cannot be had now is an error.
async fn models(client: &Client, url: &UpstreamUrl, kind: UpstreamKind) -> Result<Option<Value>, Broken> {
    let answer = client.get(kind, &format!("{url}/models"), ASK_TIMEOUT).await?;
    let status = answer.status;
    let body = answer.whole().await?;
    if status.is_server_error() || matches!(status.as_u16(), 408 | 429) {
        return Err(Broken::new(format!("its list of models is a {}", status.as_u16())));
    }
    Ok(serde_json::from_slice(&body).ok().filter(|_| status.is_success()))
}

/// The entries of a list.
fn entries(list: &Value) -> &[Value] {
    list["data"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The entry of a model. A server that lists only one has it under another name.
fn entry_of<'a>(list: &'a Value, model: &str) -> Option<&'a Value> {
    let all = entries(list);
    all.iter().find(|entry| entry["id"] == model).or(all.first().filter(|_| all.len() == 1))
}

/// Each engine names itself as the owner of its models. Without an entry for this one, all have to agree.
fn kind_of(list: &Value, model: &str) -> UpstreamKind {
    if let Some(entry) = entry_of(list, model) {
        return owner(entry);
    }
    let mut kinds = entries(list).iter().map(owner);
    let first = kinds.next().unwrap_or(UpstreamKind::OpenAi);
    if kinds.all(|kind| kind == first) { first } else { UpstreamKind::OpenAi }
}

fn owner(entry: &Value) -> UpstreamKind {
    match entry["owned_by"].as_str().unwrap_or_default() {
        "vllm" => UpstreamKind::Vllm,
        "sglang" => UpstreamKind::Sglang,
        "llamacpp" => UpstreamKind::LlamaCpp,
        "library" => UpstreamKind::Ollama,
        "pensieve" => UpstreamKind::Pensieve,
        "" if entry["type"] == "model" => UpstreamKind::Anthropic,
        _ => UpstreamKind::OpenAi,
    }
}

fn read(list: &Value, model: &str, kind: UpstreamKind) -> Facts {
    let entry = entry_of(list, model).unwrap_or(&Value::Null);
    let names = ["max_model_len", "context_length", "context_window", "max_input_tokens"];
    let context = names.iter().find_map(|name| number(&entry[*name])).or_else(|| number(&entry["meta"]["n_ctx_train"]));
    let words = entry["capabilities"].as_array().map(Vec::as_slice).unwrap_or_default();
    let lists = |word: &str| words.iter().any(|listed| listed == word);
    let images = match kind {
        UpstreamKind::Pensieve => lists("vision"),
        UpstreamKind::LlamaCpp => false,
        // They do not say it; one that does not read them refuses them.
        _ => true,
    };
    let logprobs = match kind {
        UpstreamKind::Pensieve => lists("logprobs"),
        UpstreamKind::Anthropic => false,
        _ => true,
    };
    Facts { kind, context, images, logprobs }
}

fn number(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|number| u32::try_from(number).ok()).filter(|number| *number > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_list_of_models_says_what_a_server_is() {
        let check = |entry: Value, kind, context, images, logprobs| {
            let list = json!({ "object": "list", "data": [entry] });
            assert_eq!(kind_of(&list, "m"), kind);
            assert_eq!(read(&list, "m", kind), Facts { kind, context, images, logprobs });
        };
        let vllm = json!({"id": "m", "owned_by": "vllm", "max_model_len": 2048});
        check(vllm, UpstreamKind::Vllm, Some(2048), true, true);
        let pensieve = json!({"id": "m", "owned_by": "pensieve", "context_length": 512, "capabilities": ["tools"]});
        check(pensieve, UpstreamKind::Pensieve, Some(512), false, false);
        let pensieve = json!({"id": "m", "owned_by": "pensieve", "capabilities": ["tools", "vision", "logprobs"]});
        check(pensieve, UpstreamKind::Pensieve, None, true, true);
        let llama = json!({"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx_train": 4096}});
        check(llama, UpstreamKind::LlamaCpp, Some(4096), false, true);
        check(json!({"id": "m", "owned_by": "library"}), UpstreamKind::Ollama, None, true, true);
        let anthropic = json!({"id": "m", "type": "model", "display_name": "M"});
        check(anthropic, UpstreamKind::Anthropic, None, true, false);
        check(json!({"id": "m", "owned_by": "system"}), UpstreamKind::OpenAi, None, true, true);
        check(Value::Null, UpstreamKind::OpenAi, None, true, true);
    }

    #[test]
    fn another_models_entry_says_nothing_about_this_one() {
        let entry = |id: &str, owner: &str, context| json!({"id": id, "owned_by": owner, "max_model_len": context});
        let check = |entries: Vec<Value>, kind, context| {
            let list = json!({ "data": entries });
            let found = kind_of(&list, "m");
            assert_eq!((found, read(&list, "m", found).context), (kind, context), "{list}");
        };
        check(vec![entry("a", "vllm", 10)], UpstreamKind::Vllm, Some(10));
        check(vec![entry("a", "vllm", 10), entry("b", "vllm", 20)], UpstreamKind::Vllm, None);
        check(vec![entry("a", "vllm", 10), entry("b", "sglang", 20)], UpstreamKind::OpenAi, None);
        check(vec![entry("a", "vllm", 10), entry("m", "sglang", 20)], UpstreamKind::Sglang, Some(20));
        check(vec![], UpstreamKind::OpenAi, None);
    }
}
