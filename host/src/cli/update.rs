//! `pensieve update`: is there a newer release of this program? It replaces nothing unless `--install` says so.
//!
//! A program that the installer put there lies in `ROOT/versions/VERSION/bin`, and `ROOT/current` is a link to the version in use, so
//! a new version is unpacked beside the old one, has to answer `--version`, and is then switched to in one step.

mod archive;
mod installed;

use clap::Args;
use serde_json::json;
use std::{cmp::Ordering, path::PathBuf};

use super::{
    error::{CliError, CliResult, Exit},
    terminal::{say, say_json, tell},
};
use pensieve_packages::{ProgramRelease, RELEASE, RELEASE_BYTES_MAX, RELEASE_SIGNATURE, unpack_release};
use pensieve_protocol::outside::Outside;

use archive::Location;
use installed::Installed;

/// Limit on what the installer has unpacked.
const UNPACKED_BYTES_MAX: u64 = 4 << 30;

/// Look for a newer release of this program, and replace it only if told to.
///
/// The list of a release has to be signed by the key that this program came with. `--install` compares the archive with the
/// list, unpacks it beside this version, has it answer, and only then switches to it. A running server goes on until it is
/// restarted. `pensieve plugins update` updates plugins that were added.
#[derive(Args)]
#[command(after_help = "Examples:
  pensieve update
  pensieve update --install
  pensieve update --from ./releases")]
pub(super) struct UpdateProgram {
    /// Install the newest release.
    #[arg(long)]
    install: bool,
    /// A folder or URL to look for releases in [default: PENSIEVE_RELEASES, else where this program came from].
    #[arg(long, value_name = "LOCATION")]
    from: Option<String>,
    /// Print one line of JSON.
    #[arg(long)]
    json: bool,
}

/// Unpack an archive of a release, for the installer on a system without xz.
#[derive(Args)]
pub(super) struct Unpack {
    archive: PathBuf,
    /// An empty folder.
    folder: PathBuf,
}

impl UpdateProgram {
    pub(super) fn run(self) -> CliResult {
        let installed = Installed::find()?;
        let location = Location::choose(self.from.as_deref(), &installed.origin.location)?;
        let release = self.release(&installed, &location)?;
        let (old, new) = (&installed.origin.version, &release.version);
        // Who has a stable release gets a pre-release only from a place that was named for it.
        let is_for_all = new.pre.is_empty() || !old.pre.is_empty() || self.from.is_some();
        let is_newer = is_for_all && new.cmp_precedence(old) == Ordering::Greater;
        let is_installed = self.install && is_newer;
        if is_installed {
            let archive = release.archive(&installed.origin.target, &installed.origin.kind)?;
            installed.replace(archive, new, &location)?;
        }
        if self.json {
            let line = json!({
                "installed": old.to_string(), "newest": new.to_string(), "is_newer": is_newer, "is_replaced": is_installed,
            });
            return say_json(&line.to_string());
        }
        match (is_newer, is_installed) {
            (false, _) => say(&format!("{old} is the newest release")),
            (true, true) => {
                say(&format!("updated from {old} to {new}"))?;
                tell("a running server is still the old one: restart it");
                Ok(())
            }
            (true, false) => {
                say(&format!("{new} is there, and this is {old}; 'pensieve update --install' replaces it"))
            }
        }
    }

    fn release(&self, installed: &Installed, location: &Location) -> Result<ProgramRelease, CliError> {
        let Some(key) = &installed.origin.key else {
            let line = "this program came without a key, so no release can be verified; install one by its installer";
            return Err(CliError::new(Exit::Denied, line));
        };
        let list = location.read(RELEASE, RELEASE_BYTES_MAX)?;
        let signature = location.read(RELEASE_SIGNATURE, RELEASE_BYTES_MAX)?;
        let signature = String::from_utf8_lossy(&signature);
        Ok(ProgramRelease::open(&list, &signature, key)?)
    }
}

impl Unpack {
    pub(super) fn run(self) -> CliResult {
        unpack_release(&self.archive, &self.folder, UNPACKED_BYTES_MAX)?;
        say(&Outside::path(&self.folder).to_string())
    }
}
