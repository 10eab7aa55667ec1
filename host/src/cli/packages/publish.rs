//! `pensieve plugins publish`: adds packages to an index in a folder, which is then uploaded or pushed.

use std::path::PathBuf;

use clap::Args;
use jiff::{SignedDuration, Timestamp};

use super::keys::read_key;
use crate::cli::{
    error::{CliError, CliResult, Exit},
    terminal::{say, tell},
};
use pensieve_packages::{IndexChange, NewIndex, PublicKey, Revocation, Sha256Hex, create_index, publish};

/// The longest time for which an index may be valid, in days.
const DAYS_MAX: i64 = 366;

/// Add packages to an index in a folder, revoke libraries, or renew the index.
///
/// The folder is the index: upload it, or push it as a git repository. Each change signs it anew, with a higher serial
/// number and a new time of expiry.
#[derive(Args)]
#[command(after_help = "Examples:
  pensieve plugins publish --folder ./index --key index.key --new-index team
  pensieve plugins publish mine-1.0.0.pensieve --folder ./index --key index.key --dry-run
  pensieve plugins publish --folder ./index --key index.key --revoke SHA256=\"wrong results on long prompts\"
  pensieve plugins publish mine-1.1.0.pensieve --folder ./index --key index.key --new-key --drop-key RWQ...")]
pub(in crate::cli) struct Publish {
    /// Packages to add.
    #[arg(value_name = "PACKAGE")]
    packages: Vec<PathBuf>,
    /// The folder of the index.
    #[arg(long, value_name = "DIR")]
    folder: PathBuf,
    /// The file with the secret key of the index.
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// Check everything and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Make a new index of this name.
    #[arg(long, value_name = "NAME", conflicts_with = "dry_run")]
    new_index: Option<String>,
    /// Take packages whose families have no certificate of correctness, or none that compares them with a reference.
    #[arg(long)]
    uncertified: bool,
    /// The library with this digest must not be used any more, and why; may be repeated.
    #[arg(long = "revoke", value_name = "SHA256=REASON", value_parser = revocation)]
    revoked: Vec<Revocation>,
    /// The library with this digest was revoked and may be used again; may be repeated.
    #[arg(long = "reinstate", value_name = "SHA256", value_parser = digest)]
    reinstated: Vec<Sha256Hex>,
    /// Take packages whose publisher is known and signs with another key now. Users take it for a successor, so be sure that
    /// it is.
    #[arg(long)]
    new_key: bool,
    /// Drop a publisher's key, for example one that was stolen, and the releases that it signed; may be repeated.
    #[arg(long = "drop-key", value_name = "KEY", value_parser = PublicKey::parse)]
    dropped_keys: Vec<PublicKey>,
    /// The packages lie at this https:// URL, or will, and not in the folder.
    #[arg(long = "at", value_name = "URL")]
    location: Option<String>,
    /// Days until the index has to be renewed.
    #[arg(long, value_name = "DAYS", default_value_t = 90, value_parser = clap::value_parser!(i64).range(1..=DAYS_MAX))]
    valid_days: i64,
}

impl Publish {
    pub(in crate::cli) fn run(self) -> CliResult {
        let key = read_key(&self.key)?;
        let (now, valid_for) = (Timestamp::now(), SignedDuration::from_hours(24 * self.valid_days));
        if let Some(name) = &self.new_index {
            let index = create_index(&self.folder, &NewIndex { name: name.clone(), valid_for }, &key, now)?;
            tell(format_args!("made the index '{}' with the key {}", index.name, key.public()));
            if self.packages.is_empty() && self.revoked.is_empty() {
                return Ok(());
            }
        }
        // Without packages there is one round, for revocations or a new time of expiry.
        let rounds: Vec<Option<&PathBuf>> =
            if self.packages.is_empty() { vec![None] } else { self.packages.iter().map(Some).collect() };
        for (round, package) in rounds.into_iter().enumerate() {
            let mut change = IndexChange {
                package: package.map(PathBuf::as_path),
                location: self.location.as_deref(),
                is_new_key: self.new_key,
                ..IndexChange::default()
            };
            if round == 0 {
                (change.revoked, change.reinstated) = (&self.revoked, &self.reinstated);
                change.dropped_keys = &self.dropped_keys;
            }
            let tried = publish(&self.folder, &change, (&key, valid_for, now, true))?;
            let lacks =
                [(&tried.uncertified, "no certificate"), (&tried.unreferenced, "no certificate with a reference")];
            if let Some((names, what)) = lacks.iter().find(|(names, _)| !names.is_empty() && !self.uncertified) {
                let message = format!("{what} for {}", names.join(", "));
                let help =
                    "make one with 'pensieve plugins check --reference --certify', or publish with --uncertified";
                return Err(CliError::new(Exit::Denied, format!("{message}; {help}")));
            }
            let what = package.map_or_else(|| "the index".to_owned(), |path| format!("'{}'", path.display()));
            if self.dry_run {
                tell(format_args!("{what} could be published with serial {}", tried.index.serial));
                continue;
            }
            let done = publish(&self.folder, &change, (&key, valid_for, now, false))?;
            for release in &done.dropped {
                tell(format_args!("{release} went with its key"));
            }
            say(&format!("{what} is published: serial {}, valid until {}", done.index.serial, done.index.expires))?;
        }
        Ok(())
    }
}

fn digest(text: &str) -> Result<Sha256Hex, String> {
    Sha256Hex::try_from(text.to_owned())
}

fn revocation(text: &str) -> Result<Revocation, String> {
    let (sha256, reason) = text.split_once('=').ok_or("it takes SHA256=REASON")?;
    let sha256 = digest(sha256)?;
    if reason.is_empty() {
        Err("it takes a reason".to_owned())
    } else {
        Ok(Revocation { sha256, reason: reason.to_owned() })
    }
}
