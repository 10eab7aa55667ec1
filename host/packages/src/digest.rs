//! SHA-256 digests in hexadecimal.

use std::{
    fmt, fs,
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use pensieve_protocol::checkpoint_files::{BESIDE_WEIGHTS, WEIGHTS, numbered, parts};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// 64 lowercase hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Sha256Hex(String);

impl Sha256Hex {
    pub fn of(bytes: &[u8]) -> Self {
        Self(format!("{:x}", Sha256::digest(bytes)))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Sha256Hex {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_hex = text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if is_hex { Ok(Self(text)) } else { Err("a digest is 64 of the characters 0-9 and a-f".to_owned()) }
    }
}

impl fmt::Display for Sha256Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Copies everything and returns its digest and its length.
pub(crate) fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<(Sha256Hex, u64)> {
    let (mut digest, mut length, mut buffer) = (Sha256::new(), 0, vec![0; 1 << 16]);
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => return Ok((Sha256Hex(format!("{:x}", digest.finalize())), length)),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        digest.update(&buffer[..read]);
        to.write_all(&buffer[..read])?;
        length += read as u64;
    }
}

/// The digest and the length of a file.
pub fn of_file(path: &Path) -> io::Result<(Sha256Hex, u64)> {
    copy(&mut fs::File::open(path)?, &mut io::sink())
}

/// The digest of a checkpoint: of lines `DIGEST  NAME`, as `sha256sum` prints them, in the order of names. The files of a
/// folder are its weights and what the formats have beside them, those of a split GGUF file its parts; the name of a file
/// that is alone does not count.
pub fn of_checkpoint(path: &Path) -> io::Result<Sha256Hex> {
    let mut files: Vec<(String, PathBuf)> = Vec::new();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if BESIDE_WEIGHTS.contains(&&*name) || WEIGHTS.iter().any(|ending| name.ends_with(ending)) {
                files.push((name, entry.path()));
            }
        }
    } else if numbered(&name).is_some() {
        files.extend(parts(&name).into_iter().map(|name| (name.clone(), path.with_file_name(name))));
    } else {
        files.push(("checkpoint".to_owned(), path.to_owned()));
    }
    files.sort();
    let mut lines = String::new();
    for (name, file) in files {
        lines += &format!("{}  {name}\n", of_file(&file)?.0);
    }
    Ok(Sha256Hex::of(lines.as_bytes()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoints_digest_knows_every_byte_of_its_files_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("model.safetensors"), "weights").unwrap();
        fs::write(path("config.json"), "{}").unwrap();
        let digest = || of_checkpoint(folder.path()).unwrap();
        let whole = digest();
        let lines = |weights: &str| {
            let (config, weights) = (Sha256Hex::of(b"{}"), Sha256Hex::of(weights.as_bytes()));
            Sha256Hex::of(format!("{config}  config.json\n{weights}  model.safetensors\n").as_bytes())
        };
        assert_eq!(whole, lines("weights"));
        fs::create_dir(path("original")).unwrap();
        fs::write(path("README.md"), "text").unwrap();
        assert_eq!(digest(), whole);
        fs::write(path("model.safetensors"), "weighty").unwrap();
        assert_eq!(digest(), lines("weighty"));
        assert_ne!(digest(), whole);
        fs::write(path("model.safetensors"), "weights").unwrap();
        fs::rename(path("config.json"), path("tokenizer.json")).unwrap();
        assert_ne!(digest(), whole);

        fs::write(path("a.gguf"), "weights").unwrap();
        fs::write(path("b.gguf"), "weights").unwrap();
        assert_eq!(of_checkpoint(&path("a.gguf")).unwrap(), of_checkpoint(&path("b.gguf")).unwrap());
        assert!(of_checkpoint(&path("nowhere.gguf")).is_err());

        // Each part of a split one counts, and stands for all.
        let part = |number: u32| path(&format!("m-{number:05}-of-00002.gguf"));
        fs::write(part(1), "weights").unwrap();
        assert!(of_checkpoint(&part(1)).is_err());
        fs::write(part(2), "more").unwrap();
        let split = of_checkpoint(&part(1)).unwrap();
        assert_eq!(of_checkpoint(&part(2)).unwrap(), split);
        fs::write(part(2), "none").unwrap();
        assert_ne!(of_checkpoint(&part(1)).unwrap(), split);
    }
}
