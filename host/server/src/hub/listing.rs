//! The hub's listing of a repository, with the digest of every file.

use serde::Deserialize;

use super::{
    Hub, HubError, HubErrorKind, HubName,
    name::is_path,
    remote::{Digest, Remote, is_hex},
    transfer::HubClient,
};
use pensieve_protocol::outside::Outside;

const FILES_MAX: usize = 10_000;

/// A repository at one commit.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) commit: String,
    pub(super) files: Vec<Remote>,
}

#[derive(Deserialize)]
struct Repository {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

impl Listing {
    pub(super) fn fetch(hub: &Hub, client: &HubClient, name: &HubName) -> Result<Self, HubError> {
        let url = format!("{}/api/models/{}/revision/{}?blobs=true", hub.endpoint, name.repository(), name.revision());
        let text = client.text(&url, name)?;
        let wrong = |what: String| {
            HubError::new(HubErrorKind::Damaged, format!("the hub's answer about '{}' {what}", name.repository()))
                .help("check HF_ENDPOINT, and whether a proxy answers in the hub's place")
        };
        let repository: Repository =
            serde_json::from_slice(&text).map_err(|error| wrong(format!("cannot be parsed: {error}")))?;
        if !is_hex(&repository.sha, 40) {
            return Err(wrong("has no commit".into()));
        }
        if repository.siblings.len() > FILES_MAX {
            return Err(wrong(format!("lists {} files", repository.siblings.len())));
        }
        let mut files = Vec::new();
        for sibling in repository.siblings {
            if !is_path(&sibling.rfilename) {
                return Err(wrong(format!("names a file '{}'", Outside::new(&sibling.rfilename))));
            }
            let digest = match (&sibling.lfs, sibling.size, sibling.blob_id) {
                (Some(lfs), _, _) => Some((lfs.size, Digest::Sha256(lfs.sha256.to_ascii_lowercase()))),
                (None, Some(bytes), Some(id)) => Some((bytes, Digest::Git(id))),
                _ => None,
            };
            let legal =
                |digest: &Digest| is_hex(digest.as_str(), if matches!(digest, Digest::Git(_)) { 40 } else { 64 });
            let Some((bytes, digest)) = digest.filter(|(_, digest)| legal(digest)) else {
                return Err(wrong(format!("has no digest of '{}'", Outside::new(&sibling.rfilename))));
            };
            files.push(Remote { name: sibling.rfilename, bytes, digest });
        }
        Ok(Self { commit: repository.sha, files })
    }

    pub(super) fn bytes(&self, names: &[String]) -> u64 {
        let sizes = self.files.iter().filter(|file| names.contains(&file.name)).map(|file| file.bytes);
        sizes.fold(0, u64::saturating_add)
    }
}
