//! An index: `index.json` and its signature, in a folder or behind a URL.
//!
//! It says which releases there are, with their manifests, which keys their publishers have, and which libraries are
//! revoked. A serial number and an expiry keep a mirror from showing an old one.

use std::collections::BTreeMap;

use jiff::Timestamp;
use semver::Version;
use serde::{Deserialize, Serialize};

use crate::{
    PackageError, PackageErrorKind, PackageManifest, PublicKey, Sha256Hex,
    error::Result,
    manifest::{FORMAT, name, text},
};

pub(crate) const INDEX: &str = "index.json";
pub(crate) const INDEX_SIGNATURE: &str = "index.json.minisig";
/// The maintainer's public key, for the first use of an index.
pub(crate) const INDEX_KEY: &str = "index.pub";
/// Limit on the length of an index.
pub(crate) const INDEX_BYTES_MAX: usize = 32 << 20;
pub(crate) const PACKAGE_BYTES_MAX: u64 = 4 << 30;
const PLUGINS_MAX: usize = 10_000;
const REVOKED_MAX: usize = 100_000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Index {
    /// The format's version.
    pub index: u32,
    pub name: String,
    /// Grows with every change.
    pub serial: u64,
    /// After this time it is not used for anything new.
    pub expires: Timestamp,
    /// The keys of each publisher, the newest last.
    pub publishers: BTreeMap<String, Vec<PublicKey>>,
    /// The releases of each plugin.
    pub plugins: BTreeMap<String, Vec<Release>>,
    #[serde(default)]
    pub revoked: Vec<Revocation>,
}

/// One version of a plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// The package's file beside the index, or a URL.
    pub package: String,
    pub sha256: Sha256Hex,
    pub bytes: u64,
    pub manifest: PackageManifest,
}

/// A library that must not be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocation {
    pub sha256: Sha256Hex,
    pub reason: String,
}

impl Index {
    /// Reads and checks an index whose signature has been verified.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let damaged = |why: String| PackageError::damaged(format!("the index {why}"));
        #[derive(Deserialize)]
        struct Head {
            index: u32,
        }
        let head: Head = serde_json::from_slice(bytes).map_err(|error| damaged(format!("cannot be read: {error}")))?;
        if head.index != FORMAT {
            let error = damaged(format!("has format {}, and this program reads format {FORMAT}", head.index));
            return Err(error.help("update Pensieve"));
        }
        let index: Self = serde_json::from_slice(bytes).map_err(|error| damaged(format!("cannot be read: {error}")))?;
        index.check().map_err(damaged)?;
        Ok(index)
    }

    fn check(&self) -> Result<(), String> {
        name("name", &self.name)?;
        if self.plugins.len() > PLUGINS_MAX || self.publishers.len() > PLUGINS_MAX || self.revoked.len() > REVOKED_MAX {
            return Err("lists more than any index has".to_owned());
        }
        self.publishers.keys().try_for_each(|publisher| name("publisher", publisher))?;
        self.revoked.iter().try_for_each(|revoked| text(&revoked.reason))?;
        for (plugin, releases) in &self.plugins {
            for release in releases {
                let manifest = &release.manifest;
                manifest.check().map_err(|why| format!("has a release of '{}' that {why}", plugin.escape_debug()))?;
                if manifest.name() != plugin {
                    return Err(format!("has a release of '{}' under the name '{plugin}'", manifest.name()));
                }
                let known = self.publishers.get(&manifest.publisher.name);
                if !known.is_some_and(|keys| keys.contains(&manifest.publisher.key)) {
                    return Err(format!("has a release of '{plugin}' by a key that it does not list"));
                }
                if release.bytes == 0 || release.bytes > PACKAGE_BYTES_MAX || !is_location(&release.package) {
                    return Err(format!("has a release of '{plugin}' without a usable package"));
                }
            }
        }
        Ok(())
    }

    /// Refuses an index that is older than `serial`, or that has expired.
    pub(crate) fn check_age(&self, serial: u64, now: Timestamp) -> Result<()> {
        if self.serial < serial {
            let why = format!("the index '{}' has serial {}, and {serial} has been seen", self.name, self.serial);
            return Err(PackageError::untrusted(why).help("its mirror is behind, or shows an old state on purpose"));
        }
        if self.expires <= now {
            let why = format!("the index '{}' expired at {}", self.name, self.expires);
            return Err(
                PackageError::untrusted(why).help("ask its maintainer for a new one, or check this machine's clock")
            );
        }
        Ok(())
    }

    /// The releases of a plugin, the newest first.
    pub(crate) fn releases(&self, plugin: &str) -> Vec<(Version, &Release)> {
        let releases = self.plugins.get(plugin).into_iter().flatten();
        let mut releases: Vec<(Version, &Release)> =
            releases.filter_map(|release| Some((release.manifest.version().ok()?, release))).collect();
        releases.sort_by(|one, other| other.0.cmp(&one.0));
        releases
    }

    pub(crate) fn revocation(&self, sha256: &Sha256Hex) -> Option<&Revocation> {
        self.revoked.iter().find(|revoked| revoked.sha256 == *sha256)
    }

    /// The newest release of each plugin, if its name, description or claims have all of these words.
    pub(crate) fn search(&self, words: &[String]) -> Vec<&Release> {
        let words: Vec<String> = words.iter().map(|word| word.to_lowercase()).collect();
        let matches = |release: &&Release| {
            let plugin = &release.manifest.plugin;
            let claims = plugin.architectures.iter();
            let claims = claims.flat_map(|claim| claim.gguf.iter().chain(&claim.classes).chain([&claim.architecture]));
            let own = [&plugin.id, &plugin.description, &release.manifest.publisher.name];
            let names = claims.chain(own).chain(&plugin.samplers).chain(&plugin.adapter_formats);
            let text = names.map(|name| name.to_lowercase()).collect::<Vec<_>>().join("\n");
            words.iter().all(|word| text.contains(word))
        };
        let newest =
            self.plugins.keys().filter_map(|plugin| self.releases(plugin).first().map(|(_, release)| *release));
        newest.filter(matches).collect()
    }
}

/// A plain file name, or an HTTPS URL.
fn is_location(package: &str) -> bool {
    let is_url = package.starts_with("https://");
    let is_name = !package.starts_with('.') && !package.contains(['/', '\\', ':']);
    !package.is_empty() && text(package).is_ok() && (is_url || is_name)
}

pub(crate) fn no_such_plugin(plugin: &str, version: Option<&Version>, indexes: usize) -> PackageError {
    let what = version.map_or_else(|| format!("'{plugin}'"), |version| format!("'{plugin}' {version}"));
    let error = PackageError::new(PackageErrorKind::Absent, format!("no index has {what} ({indexes} were asked)"));
    error.help("'pensieve plugins search' lists what there is; a file or a URL can be added as well")
}
