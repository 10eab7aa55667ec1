//! `pensieve launch`: a coding agent on a local model, in one command.
//!
//! It uses the server at the configured address, or runs one in this process for as long as the client runs. The client
//! is configured through its environment, its flags and a temporary folder; the user's own files stay untouched.

mod clients;

pub(super) use clients::{Endpoint, claude_variables};

use clap::Args;
use serde::Deserialize;
use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::Write,
    os::unix::{
        fs::{OpenOptionsExt, PermissionsExt},
        process::ExitStatusExt,
    },
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    sync::{Arc, Mutex},
    time::Duration,
};
use tempfile::TempDir;
use tokio::{
    runtime::Runtime,
    signal::unix::{SignalKind, signal},
    sync::oneshot,
    task::JoinHandle,
};

use super::{
    common_args::{CommonArgs, ResolvedConfig},
    error::{CliError, Exit},
    log,
    serve::bind,
    server_client::{base_of, key_of},
    shell_integration::word,
    terminal::{self, end, tell},
};
use clients::{Client, Setup};
use pensieve_protocol::outside::Outside;
use pensieve_server::{
    fleet::Fleet,
    requests::{Chats, ImageLimits},
};

/// How long the server at the configured address may take to list its models.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_BYTES_MAX: u64 = 4 << 20;
/// Placeholder in printed setups for the folder that the printed script creates.
const PRINTED_FOLDER: &str = "/dev/null/pensieve-launch";
/// How long running answers may take to finish after the client has exited.
const DRAIN: Duration = Duration::from_secs(2);

/// Start a coding agent on a local model: Claude Code, Codex, Gemini CLI, opencode, Qwen Code or aider.
///
/// It uses the server at the configured address, or else runs one for as long as the client runs and logs to launch.log
/// in $PENSIEVE_HOME. The client's own configuration is left alone.
#[derive(Args)]
#[command(after_help = "Examples:
  pensieve launch claude
  pensieve launch codex --model hf:Qwen/Qwen2.5-Coder-7B-Instruct-GGUF
  pensieve launch claude --model coder -- -p \"Explain src/main.rs\"
  pensieve launch opencode --print")]
pub(super) struct Launch {
    /// The coding agent.
    #[arg(value_enum)]
    client: Client,
    /// A model's id, a .gguf file, a folder, hf:OWNER/REPO[/FILE], or 'starter' [default: the server's default model].
    #[arg(long, value_name = "SOURCE")]
    model: Option<String>,
    /// Only print a shell script with the environment, files and command.
    #[arg(long)]
    print: bool,
    #[command(flatten)]
    common: CommonArgs,
    /// Arguments for the client; put its flags after '--'.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<String>,
}

/// The fields of `GET /v1/models` that are used here.
#[derive(Deserialize)]
struct ModelList {
    data: Vec<ListedModel>,
}

#[derive(Deserialize)]
pub(super) struct ListedModel {
    pub(super) id: String,
    #[serde(default)]
    owned_by: String,
    pub(super) context_length: Option<u32>,
}

/// A server in this process.
struct OwnServer {
    runtime: Runtime,
    stop: oneshot::Sender<()>,
    running: JoinHandle<()>,
}

impl Launch {
    pub(super) fn run(self) -> ExitCode {
        match self.launch() {
            Ok(code) => code,
            Err(error) => end(Err(error)),
        }
    }

    fn launch(&self) -> Result<ExitCode, CliError> {
        let resolved = self.common.resolve(&[])?;
        if self.print {
            let endpoint = self.endpoint(&resolved)?.map_or_else(|| self.planned_endpoint(&resolved), Ok)?;
            let setup = self.client.setup(&endpoint, Path::new(PRINTED_FOLDER));
            terminal::print_exact(&script(self.client, &setup, &self.arguments))?;
            return Ok(ExitCode::SUCCESS);
        }
        let program = find_program(self.client)?;
        let (endpoint, own) = match self.endpoint(&resolved)? {
            Some(endpoint) => (endpoint, None),
            None => self.serve().map(|(endpoint, own)| (endpoint, Some(own)))?,
        };
        let folder = private_folder()?;
        let setup = self.client.setup(&endpoint, folder.path());
        for (name, text) in &setup.files {
            let path = folder.path().join(name);
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
            let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
            written.map_err(|error| CliError::system(Outside::path(&path), &error))?;
        }
        tell(format_args!("{} on '{}' at {}", self.client.program(), Outside::new(&endpoint.model), endpoint.base));
        let status = run_client(&program, &setup, &self.arguments);
        if let Some(own) = own {
            own.end();
        }
        status
    }

    /// The server at the configured address, if one runs there and has the requested model.
    fn endpoint(&self, resolved: &ResolvedConfig) -> Result<Option<Endpoint>, CliError> {
        let config = &resolved.config;
        let (base, key) = (base_of(&config.server.listen[0]), key_of(resolved));
        let Some(models) = ask_models(&base, &key)? else { return Ok(None) };
        let requested = self.model.as_deref().or(config.fleet.default_model.as_deref());
        let selected = match requested {
            Some(id) => models.into_iter().find(|model| model.id == id),
            None => models.into_iter().next(),
        };
        Ok(selected.map(|model| Endpoint { base, key, model: model.id, context: model.context_length }))
    }

    /// The endpoint that a server at the configured address would have.
    fn planned_endpoint(&self, resolved: &ResolvedConfig) -> Result<Endpoint, CliError> {
        let (_, model) = self.common.resolve_one(self.model.as_deref())?;
        let base = base_of(&resolved.config.server.listen[0]);
        tell(format_args!("no server at {base} serves this model yet; 'pensieve serve' starts one"));
        Ok(Endpoint { base, key: key_of(resolved), model, context: None })
    }

    /// Runs a server in this process on a free port.
    fn serve(&self) -> Result<(Endpoint, OwnServer), CliError> {
        let (mut resolved, model) = self.common.resolve_one(self.model.as_deref())?;
        let server = &mut resolved.config.server;
        (server.listen, server.limits.drain) = (vec!["127.0.0.1:0".into()], DRAIN);
        // Its only client is this user's.
        server.named_keys.clear();
        let home = &resolved.config.home;
        let path = home.join("launch.log");
        let file = fs::create_dir_all(home).and_then(|()| File::create(&path));
        let file = file.map_err(|error| CliError::system(Outside::path(&path), &error))?;
        log::begin(log::LogFormat::Text, &resolved.config.server.log, Mutex::new(file))
            .map_err(|what| CliError::new(Exit::Usage, what))?;
        let fleet = resolved.fleet()?;
        let runtime = super::runtime()?;
        let (server, fleet, target) = runtime.block_on(async {
            let server = bind(&resolved, None).await?;
            let fleet = Arc::new(Fleet::start(fleet).await?);
            let target = fleet.target(&model).await?;
            Ok::<_, CliError>((server, fleet, target))
        })?;
        let base = format!("http://{}", server.address());
        let endpoint = Endpoint { base, key: key_of(&resolved), model, context: Some(target.context) };
        let (stop, stopped) = oneshot::channel();
        let chats = Arc::new(Chats::new(fleet, ImageLimits::default()));
        let running = runtime.spawn(server.run(chats, async { drop(stopped.await) }));
        tell(format_args!("no server is running; started one, which logs to '{}'", Outside::path(&path)));
        Ok((endpoint, OwnServer { runtime, stop, running }))
    }
}

impl OwnServer {
    fn end(self) {
        // Fails only if the server has ended already.
        let _ = self.stop.send(());
        let _ = self.runtime.block_on(self.running);
        self.runtime.shutdown_background();
    }
}

/// A temporary folder that only this user can read, removed on drop. Its name is random, since other users can write to
/// the parent folder and could take a predictable one first.
fn private_folder() -> Result<TempDir, CliError> {
    let created =
        tempfile::Builder::new().prefix("pensieve-launch.").permissions(Permissions::from_mode(0o700)).tempdir();
    created.map_err(|error| CliError::system("a temporary folder cannot be created", &error))
}

/// Lists the models of the server at `base`; `None` if no Pensieve answers.
pub(super) fn ask_models(base: &str, key: &str) -> Result<Option<Vec<ListedModel>>, CliError> {
    let agent = ureq::Agent::config_builder().timeout_global(Some(ANSWER_TIMEOUT)).proxy(None).build().new_agent();
    let response = agent.get(format!("{base}/v1/models")).header("authorization", format!("Bearer {key}")).call();
    let text = match response {
        Ok(mut response) => response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string(),
        Err(ureq::Error::StatusCode(401)) => {
            let line =
                format!("the server at {base} needs its key; set PENSIEVE_API_KEY, or server.key in pensieve.toml");
            return Err(CliError::new(Exit::Denied, line));
        }
        Err(_) => return Ok(None),
    };
    let list = text.ok().and_then(|text| serde_json::from_str::<ModelList>(&text).ok());
    Ok(list.map(|list| list.data).filter(|models| models.iter().any(|model| model.owned_by == "pensieve")))
}

fn find_program(client: Client) -> Result<PathBuf, CliError> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let program =
        std::env::split_paths(&folders).map(|folder| folder.join(client.program())).find(|path| path.is_file());
    program.ok_or_else(|| {
        let line = format!("'{}' is not in PATH; install it with: {}", client.program(), client.installation());
        CliError::new(Exit::Absent, line)
    })
}

/// Runs the client on this terminal and waits for it. Ctrl-C goes to the client.
fn run_client(program: &Path, setup: &Setup, arguments: &[String]) -> Result<ExitCode, CliError> {
    let runtime = super::runtime()?;
    let guard = runtime.enter();
    // A handler, unlike ignoring the signal, is reset in the child by exec, so SIGINT ends the client and not this
    // process.
    let interrupt = signal(SignalKind::interrupt()).map_err(|error| CliError::system("signals", &error))?;
    drop(guard);
    let mut command = Command::new(program);
    command.args(&setup.arguments).args(arguments).envs(setup.variables.iter().map(|(name, value)| (name, value)));
    for name in &setup.unset {
        command.env_remove(name);
    }
    let status = command.status().map_err(|error| CliError::system(Outside::path(program), &error))?;
    drop(interrupt);
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// A shell script that starts the client by hand. The files may hold the server's key, so the script puts them into a
/// folder of mktemp, which only this user can read.
fn script(client: Client, setup: &Setup, arguments: &[String]) -> String {
    let mut lines: Vec<String> = setup.unset.iter().map(|name| format!("unset {name}")).collect();
    let values = setup.variables.iter().map(|(_, value)| value).chain(&setup.arguments);
    if !setup.files.is_empty() || values.into_iter().any(|value| Path::new(value).starts_with(PRINTED_FOLDER)) {
        lines.push(r#"PENSIEVE_LAUNCH=$(mktemp -d "${TMPDIR:-/tmp}/pensieve-launch.XXXXXXXXXX")"#.to_owned());
    }
    lines.extend(setup.variables.iter().map(|(name, value)| format!("export {name}={}", quoted(value))));
    for (name, text) in &setup.files {
        let path = quoted(&format!("{PRINTED_FOLDER}/{name}"));
        lines.push(format!("(umask 077; cat > {path}) <<'END_OF_FILE'\n{}\nEND_OF_FILE", text.trim_end()));
    }
    let command = std::iter::once(client.program()).chain(setup.arguments.iter().chain(arguments).map(String::as_str));
    lines.push(command.map(quoted).collect::<Vec<_>>().join(" "));
    lines.join("\n") + "\n"
}

/// Quotes a word for the shell and replaces the placeholder folder by the script's own; `:?` stops the script if that
/// is unset.
fn quoted(value: &str) -> String {
    match value.strip_prefix(PRINTED_FOLDER) {
        Some("") => "\"${PENSIEVE_LAUNCH:?}\"".to_owned(),
        Some(rest) if rest.starts_with('/') => format!("\"${{PENSIEVE_LAUNCH:?}}\"{}", word(rest)),
        _ => word(value),
    }
}
