//! Names of repositories and files on the hub, and validation of paths from the hub.

use std::{fmt, str::FromStr};

use super::{HubError, HubErrorKind};

const PART_LEN_MAX: usize = 96;
const PATH_LEN_MAX: usize = 512;

/// `hf:OWNER/REPO[@REVISION][/FILE]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HubName {
    pub owner: String,
    pub repo: String,
    /// A branch, tag or commit; `None` for `main`.
    pub revision: Option<String>,
    /// A file, if the repository has several checkpoints.
    pub file: Option<String>,
}

impl HubName {
    /// `OWNER/REPO`.
    pub fn repository(&self) -> String {
        format!("{}/{}", self.owner, self.repo)
    }

    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }
}

impl FromStr for HubName {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        let wrong = |what: &str| {
            HubError::new(HubErrorKind::Usage, format!("'{text}' is not a name on the hub: {what}"))
                .help("a name looks like hf:OWNER/REPO or hf:OWNER/REPO/FILE.gguf")
        };
        let rest = text.strip_prefix("hf:").ok_or_else(|| wrong("it does not begin with 'hf:'"))?;
        let mut parts = rest.splitn(3, '/');
        let owner = parts.next().unwrap_or_default();
        let repo = parts.next().ok_or_else(|| wrong("it has no repository"))?;
        let file = parts.next();
        let (repo, revision) = match repo.split_once('@') {
            Some((repo, revision)) => (repo, Some(revision)),
            None => (repo, None),
        };
        for part in [owner, repo] {
            if !is_part(part) {
                return Err(wrong(&format!("'{part}' is not a valid name")));
            }
        }
        if let Some(revision) = revision.filter(|revision| !is_part(revision)) {
            return Err(wrong(&format!("'{revision}' is not a valid revision")));
        }
        if let Some(file) = file.filter(|file| !is_path(file)) {
            return Err(wrong(&format!("'{file}' is not a valid file name")));
        }
        Ok(Self {
            owner: owner.into(),
            repo: repo.into(),
            revision: revision.map(str::to_owned),
            file: file.map(str::to_owned),
        })
    }
}

impl fmt::Display for HubName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf:{}/{}", self.owner, self.repo)?;
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        self.file.as_ref().map_or(Ok(()), |file| write!(f, "/{file}"))
    }
}

/// Validates an owner, repository or revision. As a path component, none can lead out of its folder.
fn is_part(text: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=PART_LEN_MAX).contains(&text.len())
        && text.bytes().all(legal)
        && !text.starts_with('.')
        && !text.contains("..")
}

/// True if a file path from the hub stays within its repository.
pub(super) fn is_path(text: &str) -> bool {
    (1..=PATH_LEN_MAX).contains(&text.len())
        && !text.contains('\\')
        && !text.chars().any(char::is_control)
        && text.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        for text in ["hf:a/b", "hf:a/b@v1.0", "hf:a/b/c.gguf", "hf:Own-er/re_po.2@refs-1/sub/file name.gguf"] {
            assert_eq!(text.parse::<HubName>().unwrap().to_string(), text);
        }
        let name: HubName = "hf:a/b@main/c/d.gguf".parse().unwrap();
        assert_eq!(
            (name.repository().as_str(), name.revision(), name.file.as_deref()),
            ("a/b", "main", Some("c/d.gguf"))
        );
    }

    #[test]
    fn refuses_names_that_lead_elsewhere() {
        for text in [
            "a/b",
            "hf:",
            "hf:a",
            "hf:a/",
            "hf:/b",
            "hf:../b",
            "hf:a/..",
            "hf:a/b/",
            "hf:a/b/../c",
            "hf:a/b//c",
            "hf:a/b/./c",
            "hf:a/b\\c",
            "hf:a/b/c\\d",
            "hf:a/b/c\nd",
            "hf:a/b@",
            "hf:a/b@../x",
            "hf:a b/c",
            "hf:.a/b",
            "hf:a/b/\u{0}",
        ] {
            let error = text.parse::<HubName>().unwrap_err();
            assert_eq!(error.kind, HubErrorKind::Usage, "{text:?}");
        }
        assert!(format!("hf:a/{}", "b".repeat(97)).parse::<HubName>().is_err());
    }
}
