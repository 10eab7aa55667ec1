//! `pensieve setup claude`: writes what `launch claude` sets into the user's own settings of Claude Code, once, after
//! showing the change; `--undo` takes it back.

mod settings;

use clap::{Args, ValueEnum};
use std::{
    fs::{self, OpenOptions},
    io::{self, BufRead, IsTerminal, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use super::{
    error::{CliError, CliResult, Exit},
    launch::{self, Endpoint},
    server_client::{ServerArgs, base_of, key_of},
    shell_integration::word,
    terminal::{self, tell},
};
use pensieve_protocol::outside::Outside;
use settings::{Change, Record, Settings};

const FILE_BYTES_MAX: u64 = 4 << 20;
const FILE_MODE: u32 = 0o600;
/// How many of a server's models an error names.
const IDS_MAX: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Target {
    /// Claude Code, in ~/.claude/settings.json.
    Claude,
}

/// Point the user's own Claude Code at the local server, with its model, context window, time-outs and a status line.
///
/// It shows the change and asks before it writes anything, and keeps a copy of the file. 'launch claude' needs no setup.
#[derive(Args)]
#[command(after_help = "Examples:
  pensieve setup claude
  pensieve setup claude --model coder --yes
  pensieve setup claude --undo")]
pub(super) struct Setup {
    /// The client to set up.
    #[arg(value_enum)]
    client: Target,
    /// The model that it uses [default: the server's default model].
    #[arg(long, value_name = "ID")]
    model: Option<String>,
    /// Restore what the settings were before.
    #[arg(long, conflicts_with = "model")]
    undo: bool,
    /// Write without asking.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    server: ServerArgs,
}

impl Setup {
    pub(super) fn run(self) -> CliResult {
        let Target::Claude = self.client;
        let path = settings_file()?;
        let record = path.with_extension("json.by-pensieve");
        if self.undo { self.undo(&path, &record) } else { self.apply(&path, &record) }
    }

    fn apply(&self, path: &Path, record_path: &Path) -> CliResult {
        let text = read(path)?;
        let mut settings = parse(text.as_deref().unwrap_or("{}"), path)?;
        let mut record = read_record(record_path)?.unwrap_or_default();
        let (endpoint, before) = (self.endpoint()?, settings.clone());
        let changes = settings.merge(&launch::claude_variables(&endpoint), &status_line(&endpoint.base));
        if changes.is_empty() {
            return terminal::say(&format!("'{}' is set up already", Outside::path(&path)));
        }
        if !self.is_agreed(path, &changes)? {
            return terminal::say("nothing was changed");
        }
        let backup = path.with_extension("json.before-pensieve");
        // A second setup must not lose what was there before the first.
        if !backup.exists() {
            write(&backup, text.as_deref().unwrap_or("{}\n"))?;
        }
        record.add(&before, &changes);
        write(record_path, &record.to_text())?;
        write(path, &settings.to_text())?;
        let backup = Outside::path(&backup);
        terminal::say(&format!(
            "written; 'pensieve setup claude --undo' takes it back ('{backup}' has the file as it was)"
        ))
    }

    fn undo(&self, path: &Path, record_path: &Path) -> CliResult {
        let Some(record) = read_record(record_path)? else {
            let line = format!("there is nothing to undo: '{}' does not exist", Outside::path(&record_path));
            return Err(CliError::new(Exit::Absent, line));
        };
        let text = read(path)?;
        if let Some(text) = &text {
            let mut settings = parse(text, path)?;
            let changes = settings.restore(&record);
            if !changes.is_empty() && !self.is_agreed(path, &changes)? {
                return terminal::say("nothing was changed");
            }
            write(path, &settings.to_text())?;
        }
        for file in [record_path, &path.with_extension("json.before-pensieve")] {
            if let Err(error) = fs::remove_file(file)
                && error.kind() != io::ErrorKind::NotFound
            {
                return Err(CliError::system(Outside::path(&file), &error));
            }
        }
        if text.is_none() {
            let path = Outside::path(&path);
            return terminal::say(&format!("'{path}' does not exist any more, so there is nothing to take back in it"));
        }
        terminal::say("what the setup had written is taken back")
    }

    fn endpoint(&self) -> Result<Endpoint, CliError> {
        let resolved = self.server.resolve()?;
        let client = self.server.client()?;
        let wanted = self.model.as_deref().or(resolved.config.fleet.default_model.as_deref());
        let models = launch::ask_models(&client.base, &key_of(&resolved))?.unwrap_or_default();
        let listed = match wanted {
            Some(id) => models.iter().find(|model| model.id == id),
            None => models.first(),
        };
        if let (None, Some(id), false) = (listed, &self.model, models.is_empty()) {
            let ids: Vec<&str> = models.iter().map(|model| model.id.as_str()).take(IDS_MAX).collect();
            let line = format!("there is no model '{id}' at {}; its models are: {}", client.base, ids.join(", "));
            return Err(CliError::new(Exit::Absent, Outside::new(line).to_string()));
        }
        let (model, context) = match (listed, wanted) {
            (Some(listed), _) => (listed.id.clone(), listed.context_length),
            (None, Some(id)) => (id.to_owned(), None),
            (None, None) => (resolved.config.models[0].id.clone(), None),
        };
        if context.is_none() {
            tell(format_args!(
                "no server at {} tells the context of '{}'; run this again while it runs, so that Claude Code knows it",
                client.base,
                Outside::new(&model)
            ));
        }
        let base = if client.base.is_empty() { base_of(&resolved.config.server.listen[0]) } else { client.base };
        Ok(Endpoint { base, key: key_of(&resolved), model, context })
    }

    /// Shows the changes and asks.
    fn is_agreed(&self, path: &Path, changes: &[Change]) -> Result<bool, CliError> {
        let mut text = format!("{}\n", Outside::path(&path));
        for change in changes {
            text.push_str(&format!("  {change}\n"));
        }
        terminal::print(&text)?;
        if self.yes {
            return Ok(true);
        }
        if !io::stdin().is_terminal() {
            return Err(CliError::new(Exit::Usage, "this is no terminal to ask on; add --yes to write these changes"));
        }
        terminal::print("write this? [y/N] ")?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer).map_err(|error| CliError::system("standard input", &error))?;
        Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
    }
}

/// The command of a status line that shows the server at `base`. Claude Code runs it in a shell.
fn status_line(base: &str) -> String {
    let name = PathBuf::from("pensieve");
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let is_in_path = std::env::split_paths(&folders).any(|folder| folder.join(&name).is_file());
    let program = if is_in_path { name } else { std::env::current_exe().unwrap_or(name) };
    format!("{} statusline --url {}", word(&program.display().to_string()), word(base))
}

fn read_record(path: &Path) -> Result<Option<Record>, CliError> {
    let record = read(path)?.map(|text| Record::parse(&text)).transpose();
    record.map_err(|what| CliError::new(Exit::Damaged, format!("'{}' {what}", Outside::path(&path))))
}

fn settings_file() -> Result<PathBuf, CliError> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = named("CLAUDE_CONFIG_DIR").or_else(|| Some(named("HOME")?.join(".claude")));
    let folder =
        folder.ok_or_else(|| CliError::new(Exit::Usage, "there is no HOME to find Claude Code's settings in"))?;
    Ok(folder.join("settings.json"))
}

fn read(path: &Path) -> Result<Option<String>, CliError> {
    let failed = |error: &io::Error| CliError::system(Outside::path(&path), error);
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(&error)),
        Ok(metadata) if metadata.len() > FILE_BYTES_MAX => {
            return Err(CliError::new(Exit::Failed, format!("'{}' is larger than 4 MiB", Outside::path(&path))));
        }
        Ok(_) => {}
    }
    fs::read_to_string(path).map(Some).map_err(|error| failed(&error))
}

fn parse(text: &str, path: &Path) -> Result<Settings, CliError> {
    Settings::parse(text).map_err(|what| {
        let line = format!("'{}' {what}; nothing was changed: repair it, and try again", Outside::path(&path));
        CliError::new(Exit::Damaged, line)
    })
}

/// Replaces a file as a whole. One that is a link is replaced where the link leads, as settings often live elsewhere.
fn write(path: &Path, text: &str) -> CliResult {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let failed = |error: io::Error| CliError::system(Outside::path(&path), &error);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    let mode = fs::metadata(&path).map_or(FILE_MODE, |metadata| metadata.mode() & 0o777);
    let partial = path.with_extension(format!("pensieve-{}", std::process::id()));
    let created = OpenOptions::new().write(true).create_new(true).mode(mode).open(&partial);
    let written = created
        .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&partial, &path));
    if written.is_err() {
        let _ = fs::remove_file(&partial);
    }
    written.map_err(failed)
}
