//! A package's manifest: who publishes which plugin, what it takes to run it, and the digests of its libraries.

use std::collections::HashSet;

use pensieve_protocol::manifest::Manifest;
use semver::Version;
use serde::{Deserialize, Serialize};

use crate::{PackageError, PublicKey, Sha256Hex, error::Result};

/// The version of the format that this program writes, and the newest that it reads.
pub(crate) const FORMAT: u32 = 1;
pub(crate) const MANIFEST_BYTES_MAX: usize = 1 << 20;
const ARTIFACTS_MAX: usize = 64;
const CERTIFICATES_MAX: usize = 256;
const LIBRARY_BYTES_MAX: u64 = 1 << 30;
const NAME_LEN_MAX: usize = 64;
/// The longest name that fits into a header of an archive beside its folder's.
const FILE_LEN_MAX: usize = 100;
const TEXT_LEN_MAX: usize = 512;

/// The manifest of a package.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageManifest {
    /// The format's version.
    pub package: u32,
    pub publisher: Publisher,
    /// The URL of its sources; may be empty.
    #[serde(default)]
    pub repository: String,
    /// The licence, as an SPDX expression.
    pub license: String,
    /// The contract that its library for the packing machine was built with: `1.0`.
    pub contract: String,
    /// Extensions of the contract that it offers, for display.
    #[serde(default)]
    pub extensions: Vec<String>,
    /// The oldest version of the program that runs it.
    pub minimum_host: Version,
    /// What it needs beyond the fence around workers, for display; normally nothing.
    #[serde(default)]
    pub needs: Vec<String>,
    /// The plugin's own manifest: its id, its version, and the checkpoints that it claims.
    pub plugin: Manifest,
    /// Its libraries, at most one for each target and variant.
    pub artifacts: Vec<Artifact>,
    /// Statements that its families were tested.
    #[serde(default)]
    pub certificates: Vec<Certificate>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Publisher {
    /// Unique in an index: `ada`.
    pub name: String,
    /// The key that signed the manifest.
    pub key: PublicKey,
}

/// A library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// Operating system and processor: `linux-x86_64`, `macos-aarch64`.
    pub target: String,
    /// `cpu`, `cuda` or `metal`.
    pub variant: String,
    /// The name that it is installed under.
    pub file: String,
    pub sha256: Sha256Hex,
    pub bytes: u64,
}

/// A statement that a library computed a checkpoint correctly.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Certificate {
    /// The library.
    pub plugin: Sha256Hex,
    /// The architecture in it.
    pub architecture: String,
    /// The plugin's own word for the checkpoint, for people.
    pub fingerprint: String,
    /// The digest of the checkpoint's files, as [`of_checkpoint`](crate::of_checkpoint) computes it; an earlier version's
    /// certificates have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Sha256Hex>,
    /// A name of the checkpoint for people; may be empty.
    pub model: String,
    pub device: String,
    /// Number of laws that held.
    pub laws: u32,
    /// The largest difference of a logit from the reference, as a fraction of the range of the reference's logits; `None`
    /// without a reference.
    pub difference: Option<f64>,
    /// Tokens per second of one stream, decoded one at a time.
    pub tokens_per_second: Option<f64>,
}

// `f64` is never NaN here: JSON has no such number.
impl Eq for Certificate {}

impl PackageManifest {
    /// Reads and checks a manifest.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let damaged = |why: String| PackageError::damaged(format!("the package's manifest {why}"));
        if bytes.len() > MANIFEST_BYTES_MAX {
            return Err(damaged(format!("has {} bytes, more than {MANIFEST_BYTES_MAX}", bytes.len())));
        }
        #[derive(Deserialize)]
        struct Head {
            package: u32,
        }
        let head: Head = serde_json::from_slice(bytes).map_err(|error| damaged(format!("cannot be read: {error}")))?;
        if head.package != FORMAT {
            let error = damaged(format!("has format {}, and this program reads format {FORMAT}", head.package));
            return Err(error.help("update Pensieve"));
        }
        let manifest: Self =
            serde_json::from_slice(bytes).map_err(|error| damaged(format!("cannot be read: {error}")))?;
        manifest.check().map_err(damaged)?;
        Ok(manifest)
    }

    /// Checks all restrictions; the error completes "the manifest …".
    pub(crate) fn check(&self) -> Result<(), String> {
        name("publisher", &self.publisher.name)?;
        self.plugin.check().map_err(|error| format!("describes a plugin that is not valid: {error}"))?;
        self.version()?;
        self.contract()?;
        if !self.repository.is_empty() && !self.repository.starts_with("https://") {
            return Err("names a repository that is not at https://".to_owned());
        }
        let texts = [&self.repository, &self.license].into_iter().chain(&self.extensions).chain(&self.needs);
        if self.extensions.len() > ARTIFACTS_MAX || self.needs.len() > ARTIFACTS_MAX {
            return Err(format!("lists more than {ARTIFACTS_MAX} extensions or needs"));
        }
        for value in texts {
            text(value)?;
        }
        if self.license.is_empty() {
            return Err("names no licence".to_owned());
        }
        if self.artifacts.is_empty() || self.artifacts.len() > ARTIFACTS_MAX {
            return Err(format!("lists {} libraries, not 1 to {ARTIFACTS_MAX}", self.artifacts.len()));
        }
        let mut seen = HashSet::new();
        for artifact in &self.artifacts {
            artifact.check()?;
            if !seen.insert((&artifact.target, &artifact.variant)) {
                return Err(format!("lists two libraries for {artifact}"));
            }
        }
        if self.certificates.len() > CERTIFICATES_MAX {
            return Err(format!("has more than {CERTIFICATES_MAX} certificates"));
        }
        self.certificates.iter().try_for_each(|certificate| certificate.check(self))
    }

    /// The plugin's id, which is the package's name.
    pub fn name(&self) -> &str {
        &self.plugin.id
    }

    pub fn version(&self) -> Result<Version, String> {
        let version = Version::parse(&self.plugin.version);
        version
            .map_err(|_| format!("has the version '{}', which is not like 1.2.3", self.plugin.version.escape_debug()))
    }

    /// Major and minor number of the contract.
    pub fn contract(&self) -> Result<(u32, u32), String> {
        let read = |text: &str| -> Option<(u32, u32)> {
            let (major, minor) = text.split_once('.')?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        };
        read(&self.contract).ok_or_else(|| format!("has the contract '{}', not like 1.0", self.contract.escape_debug()))
    }

    /// The file name of a package of this manifest.
    pub fn file_name(&self) -> String {
        format!("{}-{}.pensieve", self.name(), self.plugin.version)
    }
}

impl Artifact {
    /// Where it lies in a package.
    pub(crate) fn path(&self) -> String {
        format!("{}/{}/{}", self.target, self.variant, self.file)
    }

    fn check(&self) -> Result<(), String> {
        name("target", &self.target)?;
        name("variant", &self.variant)?;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        let is_plain = self.file.len() <= FILE_LEN_MAX && self.file.bytes().all(plain) && !self.file.starts_with('.');
        if !is_plain || !(self.file.ends_with(".so") || self.file.ends_with(".dylib")) {
            return Err(format!("names the library '{}', which is not a plain name", self.file.escape_debug()));
        }
        if self.bytes == 0 || self.bytes > LIBRARY_BYTES_MAX {
            return Err(format!("says that the library for {self} has {} bytes", self.bytes));
        }
        Ok(())
    }
}

impl std::fmt::Display for Artifact {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.target, self.variant)
    }
}

impl Certificate {
    fn check(&self, manifest: &PackageManifest) -> Result<(), String> {
        for value in [&self.architecture, &self.fingerprint, &self.model, &self.device] {
            text(value)?;
        }
        if !manifest.artifacts.iter().any(|artifact| artifact.sha256 == self.plugin) {
            return Err(format!("has a certificate of a library that it does not list ({})", self.plugin));
        }
        let known = manifest.plugin.architectures.iter().any(|claim| claim.architecture == self.architecture);
        if !known {
            return Err(format!("has a certificate of '{}', which its plugin does not provide", self.architecture));
        }
        for number in [self.difference, self.tokens_per_second].into_iter().flatten() {
            if !(number.is_finite() && number >= 0.0) {
                return Err(format!("has a certificate of '{}' with the number {number}", self.architecture));
            }
        }
        Ok(())
    }
}

/// Names are used in paths and messages.
pub(crate) fn name(what: &str, value: &str) -> Result<(), String> {
    let allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_');
    if value.is_empty() || value.len() > NAME_LEN_MAX || !value.bytes().all(allowed) {
        let shown: String = value.chars().take(NAME_LEN_MAX).collect();
        return Err(format!(
            "has the {what} '{}', not 1 to {NAME_LEN_MAX} of a-z, 0-9, '-' and '_'",
            shown.escape_debug()
        ));
    }
    Ok(())
}

pub(crate) fn text(value: &str) -> Result<(), String> {
    if value.len() > TEXT_LEN_MAX || value.chars().any(char::is_control) {
        return Err(format!("has a text of more than {TEXT_LEN_MAX} bytes, or with control characters"));
    }
    Ok(())
}
