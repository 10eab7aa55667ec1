//! What each client has to be told: variables, flags and files. One function a client, so that a change of one of them is a
//! change in one place; `docs/cli.md` says what was tried.

use clap::ValueEnum;
use serde_json::json;
use std::path::Path;

/// The longest answer that a client is told to expect.
const OUTPUT_TOKENS_MAX: u32 = 32_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Client {
    /// Claude Code.
    Claude,
    /// Codex CLI.
    Codex,
    /// opencode.
    Opencode,
    /// Qwen Code.
    Qwen,
    /// aider.
    Aider,
}

/// A server, and a model on it.
#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    /// `http://HOST:PORT`.
    pub(super) base: String,
    pub(super) key: String,
    pub(super) model: String,
    /// Tokens in the model's window, if the server said so.
    pub(super) context: Option<u32>,
}

/// What a client is started with.
#[derive(Debug, Default)]
pub(super) struct Setup {
    pub(super) variables: Vec<(&'static str, String)>,
    /// Variables of the user that would lead the client elsewhere.
    pub(super) unset: Vec<&'static str>,
    /// Names and texts of files in the temporary folder.
    pub(super) files: Vec<(&'static str, String)>,
    pub(super) arguments: Vec<String>,
}

impl Client {
    pub(super) fn program(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::Codex => "codex",
            Self::Opencode => "opencode",
            Self::Qwen => "qwen",
            Self::Aider => "aider",
        }
    }

    /// The command that installs it.
    pub(super) fn installation(self) -> &'static str {
        match self {
            Self::Claude => "npm install -g @anthropic-ai/claude-code",
            Self::Codex => "npm install -g @openai/codex",
            Self::Opencode => "npm install -g opencode-ai",
            Self::Qwen => "npm install -g @qwen-code/qwen-code",
            Self::Aider => "python -m pip install aider-chat",
        }
    }

    pub(super) fn setup(self, endpoint: &Endpoint, folder: &Path) -> Setup {
        match self {
            Self::Claude => claude(endpoint),
            Self::Codex => codex(endpoint, folder),
            Self::Opencode => opencode(endpoint, folder),
            Self::Qwen => qwen(endpoint),
            Self::Aider => aider(endpoint, folder),
        }
    }
}

/// Claude Code asks for small models in the background, so that all of its names stand for the one model. A token needs no
/// consent, which a key does.
fn claude(endpoint: &Endpoint) -> Setup {
    let mut variables = vec![
        ("ANTHROPIC_BASE_URL", endpoint.base.clone()),
        ("ANTHROPIC_AUTH_TOKEN", endpoint.key.clone()),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".into()),
    ];
    let names = [
        "ANTHROPIC_MODEL",
        "ANTHROPIC_SMALL_FAST_MODEL",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL",
        "ANTHROPIC_DEFAULT_SONNET_MODEL",
        "ANTHROPIC_DEFAULT_OPUS_MODEL",
    ];
    variables.extend(names.map(|name| (name, endpoint.model.clone())));
    variables.extend(endpoint.context.map(|context| ("CLAUDE_CODE_MAX_CONTEXT_TOKENS", context.to_string())));
    let unset = vec!["ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX"];
    Setup { variables, unset, ..Setup::default() }
}

/// Codex speaks nothing but the Responses API, and reads its provider from a file.
fn codex(endpoint: &Endpoint, folder: &Path) -> Setup {
    let Endpoint { base, key, model, context } = endpoint;
    let window = context.map(|context| format!("model_context_window = {context}\n")).unwrap_or_default();
    let config = format!(
        "model = {}\nmodel_provider = \"pensieve\"\n{window}\n[model_providers.pensieve]\nname = \"Pensieve\"\nbase_url = {}\n\
         wire_api = \"responses\"\nenv_key = \"PENSIEVE_API_KEY\"\n",
        json!(model),
        json!(format!("{base}/v1")),
    );
    Setup {
        variables: vec![("CODEX_HOME", folder.display().to_string()), ("PENSIEVE_API_KEY", key.clone())],
        files: vec![("config.toml", config)],
        ..Setup::default()
    }
}

fn opencode(endpoint: &Endpoint, folder: &Path) -> Setup {
    let Endpoint { base, key, model, context } = endpoint;
    let mut entry = json!({ "name": model });
    if let Some(context) = context {
        entry["limit"] = json!({ "context": context, "output": (context / 2).min(OUTPUT_TOKENS_MAX) });
    }
    let name = format!("pensieve/{model}");
    let config = json!({
        "$schema": "https://opencode.ai/config.json",
        "model": name,
        "small_model": name,
        "provider": { "pensieve": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Pensieve",
            "options": { "baseURL": format!("{base}/v1"), "apiKey": key },
            "models": { model: entry },
        }},
    });
    Setup {
        variables: vec![("OPENCODE_CONFIG", folder.join("opencode.json").display().to_string())],
        files: vec![("opencode.json", format!("{config:#}\n"))],
        ..Setup::default()
    }
}

fn qwen(endpoint: &Endpoint) -> Setup {
    Setup {
        variables: vec![
            ("OPENAI_BASE_URL", format!("{}/v1", endpoint.base)),
            ("OPENAI_API_KEY", endpoint.key.clone()),
            ("OPENAI_MODEL", endpoint.model.clone()),
        ],
        ..Setup::default()
    }
}

/// aider asks LiteLLM how large a model's window is, which knows of no local one.
fn aider(endpoint: &Endpoint, folder: &Path) -> Setup {
    let name = format!("openai/{}", endpoint.model);
    let arguments = ["--model", &name, "--weak-model", &name, "--no-show-model-warnings", "--no-check-update"];
    let mut setup = Setup {
        variables: vec![("OPENAI_API_BASE", format!("{}/v1", endpoint.base)), ("OPENAI_API_KEY", endpoint.key.clone())],
        arguments: arguments.map(str::to_owned).into(),
        ..Setup::default()
    };
    if let Some(context) = endpoint.context {
        let output = (context / 2).min(OUTPUT_TOKENS_MAX);
        let about = json!({ "max_input_tokens": context, "max_output_tokens": output, "litellm_provider": "openai", "mode": "chat" });
        let file = "models.json";
        setup.arguments.extend(["--model-metadata-file".into(), folder.join(file).display().to_string()]);
        setup.files.push((file, format!("{:#}\n", json!({ name: about }))));
    }
    setup
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn endpoint() -> Endpoint {
        let (base, key, model) = ("http://127.0.0.1:8000".into(), "the-key".into(), "a \"b\"".into());
        Endpoint { base, key, model, context: Some(8192) }
    }

    #[test]
    fn every_client_is_told_of_address_key_model_and_window() {
        for client in Client::value_variants() {
            let setup = client.setup(&endpoint(), Path::new("/tmp/x"));
            let told = format!("{setup:?}");
            let window = *client == Client::Qwen || told.contains("8192");
            assert!(told.contains("127.0.0.1:8000") && told.contains("the-key") && window, "{client:?}: {told}");
            let arguments = setup.arguments.join(" ");
            assert!(!arguments.contains("the-key"), "other users see a program's arguments: {arguments}");
        }
    }

    #[test]
    fn files_are_what_their_readers_parse_whatever_a_model_is_called() {
        let file = |client: Client| client.setup(&endpoint(), Path::new("/tmp/x")).files.remove(0).1;
        let text = file(Client::Codex);
        let codex = toml::de::DeTable::parse(&text).unwrap();
        assert_eq!(codex.get_ref()["model"].get_ref().as_str(), Some("a \"b\""));
        let opencode: serde_json::Value = serde_json::from_str(&file(Client::Opencode)).unwrap();
        assert_eq!(opencode["provider"]["pensieve"]["models"]["a \"b\""]["limit"]["context"], 8192);
        let aider: serde_json::Value = serde_json::from_str(&file(Client::Aider)).unwrap();
        assert_eq!(aider["openai/a \"b\""]["max_input_tokens"], 8192);
    }
}
