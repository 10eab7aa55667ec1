//! `pensieve keys`: keys with names and limits, for the people and programs that share a server.

use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};

use super::{
    common_args::CommonArgs,
    error::{CliError, CliResult, Exit},
    terminal::{print_exact, tell},
};
use crate::config::{self, Config};
use pensieve_protocol::outside::Outside;
use pensieve_server::http::{Key, check_key_name};

#[derive(Subcommand)]
pub(super) enum Keys {
    New(NewKey),
}

/// Make a key: print it, which is the only time that it is shown, and the entry for pensieve.toml with its hash.
///
/// A running server accepts the key as soon as the entry is in its configuration.
#[derive(Args)]
#[command(after_help = "Examples:
  pensieve keys new alice
  pensieve keys new ci --models 'pensieve-*' --tokens-per-day 2000000 --requests 4 --write")]
pub(super) struct NewKey {
    /// Whom it is for: letters, digits and -_. signs.
    #[arg(value_name = "NAME")]
    name: String,
    /// Ids of models that it may use, in which * matches any text; may be repeated [default: all].
    #[arg(long = "models", value_name = "ID")]
    models: Vec<String>,
    /// Tokens that it may use in a day, which begins at midnight in UTC [default: any number].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 50))]
    tokens_per_day: Option<u64>,
    /// Requests that may be computed for it at the same time [default: any number].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    requests: Option<u32>,
    /// Append the entry to the configuration file instead of printing it.
    #[arg(long)]
    write: bool,
    /// The configuration file [default: ./pensieve.toml, else pensieve.toml in $PENSIEVE_HOME].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Keys {
    pub(super) fn run(self) -> CliResult {
        match self {
            Self::New(new) => new.run(),
        }
    }
}

impl NewKey {
    fn run(self) -> CliResult {
        check_key_name(&self.name)
            .map_err(|what| CliError::new(Exit::Usage, format!("the name {what}; choose another")))?;
        let (text, key) = Key::random().map_err(|error| CliError::system("the system's random numbers", &error))?;
        let entry = self.entry(&key);
        if !self.write {
            return print_exact(&format!("{text}\n\n{entry}"));
        }
        let file = self.append(&entry)?;
        // After the entry is there, as a key without one is of no use.
        print_exact(&format!("{text}\n"))?;
        tell(format_args!("'{}' is in '{}'; the key is shown this once", self.name, Outside::path(&file)));
        Ok(())
    }

    fn entry(&self, key: &Key) -> String {
        let quoted = |text: &String| toml::Value::String(text.clone()).to_string();
        let mut entry = format!("[[keys]]\nname = \"{}\"\nhash = \"{}\"\n", self.name, key.hash());
        if !self.models.is_empty() {
            let models: Vec<String> = self.models.iter().map(quoted).collect();
            entry.push_str(&format!("models = [{}]\n", models.join(", ")));
        }
        if let Some(tokens) = self.tokens_per_day {
            entry.push_str(&format!("tokens_per_day = {tokens}\n"));
        }
        if let Some(requests) = self.requests {
            entry.push_str(&format!("requests = {requests}\n"));
        }
        entry
    }

    /// Appends the entry to the configuration, if the file is right with it; returns the file.
    fn append(&self, entry: &str) -> Result<PathBuf, CliError> {
        let home = std::path::absolute(config::home()).map_err(|error| CliError::system("PENSIEVE_HOME", &error))?;
        let named = CommonArgs::configured_by(self.config.clone()).file();
        let candidates = config::candidates(named.as_deref(), &home);
        // Where there is none yet, the home gets one.
        let file = candidates.iter().find(|path| path.is_file()).or(candidates.last()).cloned().unwrap_or_default();
        let failed = |error| CliError::system(format!("'{}'", Outside::path(&file)), &error);
        let before = if file.exists() { fs::read_to_string(&file).map_err(failed)? } else { String::new() };
        let gap = match before.as_str() {
            "" => "",
            text if text.ends_with("\n\n") => "",
            text if text.ends_with('\n') => "\n",
            _ => "\n\n",
        };
        let added = format!("{gap}{entry}");
        Config::read(&format!("{before}{added}"), &file, &home)?;
        if let Some(folder) = file.parent().filter(|folder| *folder != Path::new("")) {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        let mut open = OpenOptions::new().append(true).create(true).mode(0o600).open(&file).map_err(failed)?;
        open.write_all(added.as_bytes()).map_err(failed)?;
        Ok(file)
    }
}
