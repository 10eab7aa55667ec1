//! `pensieve plugins key` and `pack`: what an author needs to make a package.

use std::{
    fs::{self, OpenOptions, Permissions},
    io::Write,
    mem,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use clap::Args;
use semver::Version;

use super::{certificate, keys::read_key, target};
use crate::cli::{
    error::{CliError, CliResult, Exit},
    inspect::inspect,
    terminal::{say, tell},
};
use pensieve_packages::{Artifact, PackageManifest, Publisher, SecretKey, of_file, pack};

/// Make a key pair to sign packages and indexes with: FILE, which stays secret, and FILE.pub.
#[derive(Args)]
#[command(after_help = "Example:
  pensieve plugins key publisher.key

The keys are minisign's. The secret key has no password; to have one, make it with `minisign -G`, and set
PENSIEVE_KEY_PASSWORD where it is used.")]
pub(in crate::cli) struct MakeKey {
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Make a signed package of a plugin's libraries.
#[derive(Args)]
#[command(after_help = "Examples:
  pensieve plugins pack target/release/libmine.so --publisher ada --key ada.key --license MIT
  pensieve plugins pack target/release/libmine.so macos-aarch64:metal=libmine.dylib --publisher ada --key ada.key --license MIT")]
pub(in crate::cli) struct Pack {
    /// A library for this machine, or TARGET[:VARIANT]=LIBRARY, such as macos-aarch64:metal=libmine.dylib. One of them has to
    /// be for this machine, as its manifest becomes the package's.
    #[arg(required = true, value_name = "LIBRARY")]
    libraries: Vec<String>,
    /// Your name in indexes.
    #[arg(long, value_name = "NAME")]
    publisher: String,
    /// The file with your secret key.
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// The plugin's licence, as an SPDX expression.
    #[arg(long, value_name = "SPDX")]
    license: String,
    /// The URL of its sources.
    #[arg(long, value_name = "URL", default_value = "")]
    repository: String,
    /// The oldest version of Pensieve that runs it [default: this one].
    #[arg(long, value_name = "VERSION")]
    minimum_host: Option<Version>,
    /// Something that it needs beyond the fence around workers, in words; may be repeated.
    #[arg(long = "needs", value_name = "TEXT")]
    needs: Vec<String>,
    /// A certificate that `pensieve plugins check --certify` wrote; may be repeated.
    #[arg(long = "certificate", value_name = "FILE")]
    certificates: Vec<PathBuf>,
    /// The folder to write the package to.
    #[arg(long, value_name = "DIR", default_value = ".")]
    out: PathBuf,
}

impl MakeKey {
    pub(in crate::cli) fn run(self) -> CliResult {
        let public = PathBuf::from(format!("{}.pub", self.file.display()));
        let key = SecretKey::generate()?;
        write_new(&self.file, &key.to_text()?, 0o600)?;
        let text = format!("untrusted comment: public key of a publisher of Pensieve plugins\n{}\n", key.public());
        write_new(&public, &text, 0o644).inspect_err(|_| drop(fs::remove_file(&self.file)))?;
        tell(format_args!("'{}' signs for you: keep it secret, and keep a copy", self.file.display()));
        say(key.public().as_str())
    }
}

impl Pack {
    pub(in crate::cli) fn run(self) -> CliResult {
        let key = read_key(&self.key)?;
        let libraries = self.libraries.iter().map(|text| Library::parse(text)).collect::<Result<Vec<_>, _>>()?;
        let Some(own) = libraries.iter().find(|library| library.target == target()) else {
            let message = format!("none of the libraries is for {}, so none can be inspected here", target());
            return Err(CliError::new(Exit::Usage, message));
        };
        let mut plugin = inspect(&own.path)?;
        let (contract, extensions) = (mem::take(&mut plugin.contract), mem::take(&mut plugin.extensions));
        let own_version = Version::parse(env!("CARGO_PKG_VERSION"));
        let own_version = own_version.map_err(|error| CliError::new(Exit::Failed, error.to_string()))?;
        let manifest = PackageManifest {
            package: 1,
            publisher: Publisher { name: self.publisher, key: key.public() },
            repository: self.repository,
            license: self.license,
            contract,
            extensions,
            minimum_host: self.minimum_host.unwrap_or(own_version),
            needs: self.needs,
            plugin,
            artifacts: libraries.iter().map(Library::artifact).collect::<Result<_, _>>()?,
            certificates: self
                .certificates
                .iter()
                .map(|path| certificate::read(path, &key))
                .collect::<Result<_, _>>()?,
        };
        let path = self.out.join(manifest.file_name());
        let failed = |error| CliError::system(format!("'{}'", path.display()), &error);
        let mut file = tempfile::NamedTempFile::new_in(&self.out).map_err(failed)?;
        let paths: Vec<PathBuf> = libraries.into_iter().map(|library| library.path).collect();
        pack(&manifest, &key, &paths, file.as_file_mut())?;
        // It is for others, unlike other temporary files.
        file.as_file().set_permissions(Permissions::from_mode(0o644)).map_err(failed)?;
        file.persist(&path).map_err(|error| failed(error.error))?;
        tell(format_args!("packed {} {} for {}", manifest.name(), manifest.plugin.version, targets(&manifest)));
        say(&path.to_string_lossy())
    }
}

fn targets(manifest: &PackageManifest) -> String {
    manifest.artifacts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// One library of the command line.
struct Library {
    target: String,
    variant: String,
    path: PathBuf,
}

impl Library {
    fn parse(text: &str) -> Result<Self, CliError> {
        let (place, path) = text.split_once('=').map_or((None, text), |(place, path)| (Some(place), path));
        let own = target();
        let place = place.unwrap_or(&own);
        let (target, variant) = place.split_once(':').unwrap_or((place, "cpu"));
        Ok(Self { target: target.to_owned(), variant: variant.to_owned(), path: path.into() })
    }

    fn artifact(&self) -> Result<Artifact, CliError> {
        let shown = self.path.display();
        let (sha256, bytes) = of_file(&self.path).map_err(|error| CliError::system(format!("'{shown}'"), &error))?;
        let file = self.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(Artifact { target: self.target.clone(), variant: self.variant.clone(), file, sha256, bytes })
    }
}

/// Writes a file that must not be there yet.
fn write_new(path: &Path, text: &str, mode: u32) -> CliResult {
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| CliError::system(format!("'{}'", path.display()), &error))
}
