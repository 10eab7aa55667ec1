//! Releases of the program itself: `release.json`, a signed list of archives for all targets.
//!
//! Every archive holds one folder with `bin/pensieve`, `lib/pensieve`, and `origin.json` ([`Origin`](crate::Origin)).

mod unpack;

use semver::Version;
use serde::{Deserialize, Serialize};

use crate::{
    Document, PackageError, PackageErrorKind, PublicKey, Sha256Hex,
    error::Result,
    manifest::{name, text},
};

pub use unpack::unpack;

/// The version of the format that this program reads.
const FORMAT: u32 = 1;
const ARCHIVES_MAX: usize = 64;
const ARCHIVE_BYTES_MAX: u64 = 4 << 30;
/// Limit on `release.json`.
pub const RELEASE_BYTES_MAX: u64 = 256 << 10;
pub const RELEASE: &str = "release.json";
pub const RELEASE_SIGNATURE: &str = "release.json.minisig";

/// One version of the program, for all targets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramRelease {
    /// The format's version.
    pub release: u32,
    pub version: Version,
    pub archives: Vec<ReleaseArchive>,
}

/// An archive of a release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseArchive {
    /// Operating system and processor: `linux-x86_64`.
    pub target: String,
    /// `full`, with all plugins, or `minimal`.
    pub kind: String,
    pub file: String,
    pub sha256: Sha256Hex,
    pub bytes: u64,
    pub unpacked_bytes: u64,
    /// The oldest C library that its programs run with, such as `glibc 2.28`; empty where there is one for all.
    #[serde(default)]
    pub needs: String,
}

impl ProgramRelease {
    /// Checks the signature, then reads the list.
    pub fn open(bytes: &[u8], signature: &str, key: &PublicKey) -> Result<Self> {
        key.verify(Document::Release, bytes, signature, &format!("'{RELEASE}'"))?;
        Self::parse(bytes)
    }

    /// Reads and checks a list whose signature was checked.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let damaged = |why: String| PackageError::damaged(format!("'{RELEASE}' {why}"));
        #[derive(Deserialize)]
        struct Head {
            release: u32,
        }
        let unreadable = |error: serde_json::Error| damaged(format!("cannot be read: {error}"));
        let head: Head = serde_json::from_slice(bytes).map_err(unreadable)?;
        if head.release != FORMAT {
            let error = damaged(format!("has format {}, and this program reads format {FORMAT}", head.release));
            return Err(error.help("install the new version by its installer"));
        }
        let release: Self = serde_json::from_slice(bytes).map_err(unreadable)?;
        release.check().map_err(damaged)?;
        Ok(release)
    }

    fn check(&self) -> Result<(), String> {
        if self.archives.len() > ARCHIVES_MAX {
            return Err(format!("lists more than {ARCHIVES_MAX} archives"));
        }
        for archive in &self.archives {
            name("target", &archive.target)?;
            name("kind", &archive.kind)?;
            text(&archive.needs)?;
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'+');
            if archive.file.is_empty() || archive.file.starts_with('.') || !archive.file.bytes().all(plain) {
                return Err(format!("names the archive '{}', which is no plain name", archive.file.escape_debug()));
            }
            if archive.bytes > ARCHIVE_BYTES_MAX || archive.unpacked_bytes > ARCHIVE_BYTES_MAX {
                return Err(format!("says that '{}' has more than {ARCHIVE_BYTES_MAX} bytes", archive.file));
            }
        }
        Ok(())
    }

    /// The archive for a target; `kind` is `full` or `minimal`.
    pub fn archive(&self, target: &str, kind: &str) -> Result<&ReleaseArchive> {
        let found = self.archives.iter().find(|archive| (&*archive.target, &*archive.kind) == (target, kind));
        found.ok_or_else(|| {
            let known: Vec<String> = self.archives.iter().map(|one| format!("{} ({})", one.target, one.kind)).collect();
            let message = format!("Pensieve {} has no archive for {target} ({kind})", self.version);
            PackageError::new(PackageErrorKind::Unfit, message).help(format!("it has {}", known.join(", ")))
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::SecretKey;
    use serde_json::{Value, json};

    /// The fault of a list that is signed.
    type Change = fn(&mut Value);

    fn list() -> Value {
        let archive = json!({
            "target": "linux-x86_64", "kind": "full", "file": "pensieve-1.0.0-linux-x86_64.tar.xz",
            "sha256": "0".repeat(64), "bytes": 10, "unpacked_bytes": 20, "needs": "glibc 2.28",
        });
        json!({"release": 1, "version": "1.0.0", "archives": [archive]})
    }

    #[test]
    fn a_list_is_taken_only_as_it_was_signed_and_only_if_it_makes_sense() {
        let key = SecretKey::generate().unwrap();
        let open = |list: &Value, document: Document| {
            let bytes = serde_json::to_vec(list).unwrap();
            let signature = key.sign(document, &bytes).unwrap();
            ProgramRelease::open(&bytes, &signature, &key.public()).map_err(|error| error.to_string())
        };
        let release = open(&list(), Document::Release).unwrap();
        assert_eq!(release.archive("linux-x86_64", "full").unwrap().bytes, 10);
        let absent = release.archive("macos-aarch64", "full").unwrap_err();
        assert_eq!(absent.kind, PackageErrorKind::Unfit);
        assert!(open(&list(), Document::Index).unwrap_err().contains("another kind of document"));
        let changes: &[(&str, Change)] = &[
            ("has format 2", |list| list["release"] = 2.into()),
            ("cannot be read", |list| list["version"] = "newest".into()),
            ("cannot be read", |list| list["archives"] = 7.into()),
            ("no plain name", |list| list["archives"][0]["file"] = "../x".into()),
            ("no plain name", |list| list["archives"][0]["file"] = ".hidden".into()),
            ("no plain name", |list| list["archives"][0]["file"] = "".into()),
            ("the target", |list| list["archives"][0]["target"] = "..".into()),
            ("the kind", |list| list["archives"][0]["kind"] = "Full".into()),
            ("64 of the characters", |list| list["archives"][0]["sha256"] = "x".into()),
            ("control characters", |list| list["archives"][0]["needs"] = "\u{1b}[2J".into()),
            ("has more than 4294967296 bytes", |list| list["archives"][0]["bytes"] = (1_u64 << 40).into()),
            ("more than 64 archives", |list| {
                let one = list["archives"][0].clone();
                list["archives"] = vec![one; 65].into();
            }),
        ];
        for (words, change) in changes {
            let mut list = list();
            change(&mut list);
            let refused = open(&list, Document::Release).unwrap_err();
            assert!(refused.contains(words), "'{words}' is not in: {refused}");
        }
    }
}
