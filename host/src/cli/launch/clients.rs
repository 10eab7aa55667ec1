//! Variables, flags and files that point each client at a server. One function per client, so that a change in a client
//! is a change in one place; `docs/cli.md` lists the versions that were tested.

use clap::ValueEnum;
use serde_json::json;
use std::path::Path;

/// Largest output limit that is configured in a client.
const OUTPUT_TOKENS_MAX: u32 = 32_000;
/// An hour, for clients that give up on slow answers.
const TIMEOUT_MS: u32 = 3_600_000;
/// The window that the Gemini CLI takes every model to have, and the share of the real one at which it shall sum up.
const GEMINI_WINDOW: f64 = 1_048_576.0;
const GEMINI_FULL: f64 = 0.7;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Client {
    /// Claude Code.
    Claude,
    /// Codex CLI.
    Codex,
    /// Gemini CLI.
    Gemini,
    /// opencode.
    Opencode,
    /// Qwen Code.
    Qwen,
    /// aider.
    Aider,
}

/// A server and a model that it serves.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Endpoint {
    /// `http://HOST:PORT`.
    pub(in crate::cli) base: String,
    pub(in crate::cli) key: String,
    pub(in crate::cli) model: String,
    /// The model's context in tokens, if known.
    pub(in crate::cli) context: Option<u32>,
}

/// Everything that a client is started with.
#[derive(Debug, Default)]
pub(super) struct Setup {
    pub(super) variables: Vec<(&'static str, String)>,
    /// Variables in the user's environment that would point the client elsewhere.
    pub(super) unset: Vec<&'static str>,
    /// Name and content of files in the temporary folder.
    pub(super) files: Vec<(&'static str, String)>,
    pub(super) arguments: Vec<String>,
}

impl Client {
    pub(super) fn program(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::Codex => "codex",
            Self::Gemini => "gemini",
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
            Self::Gemini => "npm install -g @google/gemini-cli",
            Self::Opencode => "npm install -g opencode-ai",
            Self::Qwen => "npm install -g @qwen-code/qwen-code",
            Self::Aider => "python -m pip install aider-chat",
        }
    }

    pub(super) fn setup(self, endpoint: &Endpoint, folder: &Path) -> Setup {
        match self {
            Self::Claude => claude(endpoint),
            Self::Codex => codex(endpoint),
            Self::Gemini => gemini(endpoint, folder),
            Self::Opencode => opencode(endpoint, folder),
            Self::Qwen => qwen(endpoint, folder),
            Self::Aider => aider(endpoint, folder),
        }
    }
}

fn claude(endpoint: &Endpoint) -> Setup {
    let unset = vec!["ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX"];
    Setup { variables: claude_variables(endpoint), unset, ..Setup::default() }
}

/// Claude Code uses small models in the background, so all of its model names are set to this model. It asks the user
/// to approve an API key, but not an auth token. It gives up on a request after ten minutes, and on a stream after some
/// minutes of silence; a long prompt on a slow machine takes longer.
pub(in crate::cli) fn claude_variables(endpoint: &Endpoint) -> Vec<(&'static str, String)> {
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
    variables.extend(["API_TIMEOUT_MS", "CLAUDE_STREAM_IDLE_TIMEOUT_MS"].map(|name| (name, TIMEOUT_MS.to_string())));
    variables
}

/// Codex supports only the Responses API, and has no variables for its settings. In a home of its own it would not find its
/// sessions again, so they are given as arguments. It waits five minutes for each event.
fn codex(endpoint: &Endpoint) -> Setup {
    let Endpoint { base, key, model, context } = endpoint;
    let mut settings = vec![
        ("model", json!(model)),
        ("model_provider", json!("pensieve")),
        ("model_providers.pensieve.name", json!("Pensieve")),
        ("model_providers.pensieve.base_url", json!(format!("{base}/v1"))),
        ("model_providers.pensieve.wire_api", json!("responses")),
        ("model_providers.pensieve.env_key", json!("PENSIEVE_API_KEY")),
        ("model_providers.pensieve.stream_idle_timeout_ms", json!(TIMEOUT_MS)),
    ];
    settings.extend(context.map(|context| ("model_context_window", json!(context))));
    let arguments = settings.into_iter().flat_map(|(name, value)| ["-c".to_owned(), format!("{name}={value}")]);
    Setup { variables: vec![("PENSIEVE_API_KEY", key.clone())], arguments: arguments.collect(), ..Setup::default() }
}

/// With another address the Gemini CLI would choose a way to sign in that it then refuses, so the settings choose one. It
/// takes any model's window for a million tokens and sums up at a share of that, which is therefore small.
fn gemini(endpoint: &Endpoint, folder: &Path) -> Setup {
    let Endpoint { base, key, model, context } = endpoint;
    let mut settings = json!({ "security": { "auth": { "selectedType": "gemini-api-key" } } });
    if let Some(context) = context {
        let share = f64::from(*context) * GEMINI_FULL / GEMINI_WINDOW;
        settings["model"] = json!({ "compressionThreshold": share.min(GEMINI_FULL) });
    }
    let file = "settings.json";
    Setup {
        variables: vec![
            ("GOOGLE_GEMINI_BASE_URL", base.clone()),
            ("GEMINI_API_KEY", key.clone()),
            ("GEMINI_CLI_SYSTEM_SETTINGS_PATH", folder.join(file).display().to_string()),
        ],
        unset: vec!["GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_GCA"],
        files: vec![(file, format!("{settings:#}\n"))],
        arguments: vec!["-m".into(), model.clone()],
    }
}

/// opencode waits five minutes for the beginning of an answer, and as long for each piece of it.
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
            "options": {
                "baseURL": format!("{base}/v1"), "apiKey": key,
                "headerTimeout": TIMEOUT_MS, "chunkTimeout": TIMEOUT_MS,
            },
            "models": { model: entry },
        }},
    });
    Setup {
        variables: vec![("OPENCODE_CONFIG", folder.join("opencode.json").display().to_string())],
        files: vec![("opencode.json", format!("{config:#}\n"))],
        ..Setup::default()
    }
}

/// Qwen Code has no variables for the window and for its time limit of two minutes; settings of the system come before
/// the user's own.
fn qwen(endpoint: &Endpoint, folder: &Path) -> Setup {
    let mut generation = json!({ "timeout": TIMEOUT_MS });
    if let Some(context) = endpoint.context {
        generation["contextWindowSize"] = context.into();
    }
    let settings = json!({ "model": { "generationConfig": generation } });
    let file = "settings.json";
    Setup {
        variables: vec![
            ("OPENAI_BASE_URL", format!("{}/v1", endpoint.base)),
            ("OPENAI_API_KEY", endpoint.key.clone()),
            ("OPENAI_MODEL", endpoint.model.clone()),
            ("QWEN_CODE_SYSTEM_SETTINGS_PATH", folder.join(file).display().to_string()),
        ],
        files: vec![(file, format!("{settings:#}\n"))],
        ..Setup::default()
    }
}

/// aider takes context sizes from LiteLLM, which does not know local models and gives up after ten minutes.
fn aider(endpoint: &Endpoint, folder: &Path) -> Setup {
    let name = format!("openai/{}", endpoint.model);
    let timeout = (TIMEOUT_MS / 1000).to_string();
    let arguments = ["--model", &name, "--weak-model", &name, "--timeout", &timeout];
    let arguments = arguments.into_iter().chain(["--no-show-model-warnings", "--no-check-update"]);
    let mut setup = Setup {
        variables: vec![("OPENAI_API_BASE", format!("{}/v1", endpoint.base)), ("OPENAI_API_KEY", endpoint.key.clone())],
        arguments: arguments.map(str::to_owned).collect(),
        ..Setup::default()
    };
    if let Some(context) = endpoint.context {
        let output = (context / 2).min(OUTPUT_TOKENS_MAX);
        let metadata = json!({ "max_input_tokens": context, "max_output_tokens": output, "litellm_provider": "openai", "mode": "chat" });
        let file = "models.json";
        setup.arguments.extend(["--model-metadata-file".into(), folder.join(file).display().to_string()]);
        setup.files.push((file, format!("{:#}\n", json!({ name: metadata }))));
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
    fn every_client_gets_address_key_model_and_context() {
        for client in Client::value_variants() {
            let setup = client.setup(&endpoint(), Path::new("/tmp/x"));
            let shown = format!("{setup:?}");
            // 0.7 of 8192 tokens of a million.
            let window = shown.contains("8192") || shown.contains("0.00546875");
            assert!(shown.contains("127.0.0.1:8000") && shown.contains("the-key") && window, "{client:?}: {shown}");
            let arguments = setup.arguments.join(" ");
            assert!(!arguments.contains("the-key"), "other users can see a program's arguments: {arguments}");
        }
    }

    #[test]
    fn clients_wait_an_hour_for_a_slow_answer() {
        // The Gemini CLI has no limit.
        for client in Client::value_variants().iter().filter(|client| **client != Client::Gemini) {
            let shown = format!("{:?}", client.setup(&endpoint(), Path::new("/tmp/x")));
            assert!(shown.contains("3600"), "{client:?}: {shown}");
        }
    }

    #[test]
    fn files_parse_whatever_the_model_is_called() {
        let file = |client: Client| client.setup(&endpoint(), Path::new("/tmp/x")).files.remove(0).1;
        let codex = Client::Codex.setup(&endpoint(), Path::new("/tmp/x")).arguments;
        assert_eq!(codex[..2], ["-c", r#"model="a \"b\"""#]);
        for setting in codex.chunks(2) {
            assert!(setting[0] == "-c" && toml::de::DeTable::parse(&setting[1]).is_ok(), "{setting:?}");
        }
        let gemini: serde_json::Value = serde_json::from_str(&file(Client::Gemini)).unwrap();
        assert_eq!(gemini["security"]["auth"]["selectedType"], "gemini-api-key");
        let opencode: serde_json::Value = serde_json::from_str(&file(Client::Opencode)).unwrap();
        assert_eq!(opencode["provider"]["pensieve"]["models"]["a \"b\""]["limit"]["context"], 8192);
        let qwen: serde_json::Value = serde_json::from_str(&file(Client::Qwen)).unwrap();
        let expected = json!({ "contextWindowSize": 8192, "timeout": 3_600_000 });
        assert_eq!(qwen["model"]["generationConfig"], expected);
        let aider: serde_json::Value = serde_json::from_str(&file(Client::Aider)).unwrap();
        assert_eq!(aider["openai/a \"b\""]["max_input_tokens"], 8192);
    }
}
