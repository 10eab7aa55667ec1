//! Reads a checkpoint's architecture name, which decides which plugins are asked about it.
//!
//! Only child processes call this, as checkpoints are untrusted and the server opens no model file. It is all that the host
//! knows about the formats; everything else is up to plugins.

use serde::{Deserialize, Serialize};
use std::{
    fs::File,
    io::{self, BufReader, Read},
    path::{Path, PathBuf},
};

use crate::{outside::Outside, python_numbers};

const NAME_BYTES_MAX: u64 = 512;
const CONFIG_BYTES_MAX: u64 = 8 << 20;
/// How far into a GGUF file to search for the name, which may come after the vocabulary.
const HEADER_BYTES_MAX: u64 = 256 << 20;
const ARRAYS_NESTED_MAX: u32 = 4;

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointName {
    /// A GGUF file's `general.architecture`.
    Gguf(String),
    /// The first of the `architectures` in a `config.json`.
    Class(String),
}

impl CheckpointName {
    /// Reads the name from a `.gguf` file or a folder with a `config.json`. The error is a message for the user.
    pub fn read(source: &Path) -> Result<Self, String> {
        let metadata = source.metadata().map_err(|error| format!("'{}': {error}", Outside::path(&source)))?;
        if metadata.is_dir() {
            let path = source.join("config.json");
            if !path.exists()
                && let Some(file) = gguf_in(source)
            {
                let help = format!("name one of the GGUF files in it: '{}'", Outside::path(&file));
                return Err(format!("'{}': the folder has no config.json; {help}", Outside::path(&source)));
            }
            return class(&path).map_err(|what| format!("'{}': {what}", Outside::path(&path)));
        }
        let gguf = open(source).and_then(|file| {
            architecture(&mut BufReader::new(file.take(HEADER_BYTES_MAX))).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => "it ends before general.architecture".into(),
                _ => error.to_string(),
            })
        });
        gguf.map(Self::Gguf).map_err(|what| format!("'{}': {what}", Outside::path(&source)))
    }

    pub fn as_str(&self) -> &str {
        match self {
            Self::Gguf(name) | Self::Class(name) => name,
        }
    }
}

/// Opens a regular file. A FIFO or a device would block its reader.
fn open(path: &Path) -> Result<File, String> {
    let metadata = path.metadata().map_err(|error| error.to_string())?;
    if metadata.is_file() {
        File::open(path).map_err(|error| error.to_string())
    } else {
        Err("not a regular file".into())
    }
}

/// The first GGUF file in a folder, by name.
fn gguf_in(folder: &Path) -> Option<PathBuf> {
    let files = folder.read_dir().ok()?.flatten().map(|entry| entry.path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "gguf")).min()
}

fn class(path: &Path) -> Result<CheckpointName, String> {
    #[derive(Deserialize)]
    struct Config {
        #[serde(default)]
        architectures: Vec<String>,
    }
    let mut text = Vec::new();
    open(path)?.take(CONFIG_BYTES_MAX).read_to_end(&mut text).map_err(|error| error.to_string())?;
    let config: Config = serde_json::from_slice(&python_numbers::quoted(&text))
        .map_err(|error| format!("it is not a valid config.json: {error}"))?;
    let name = config.architectures.into_iter().next().ok_or("it lists no architecture in 'architectures'")?;
    let legal = (1..=NAME_BYTES_MAX).contains(&(name.len() as u64)) && !name.chars().any(char::is_control);
    if legal { Ok(CheckpointName::Class(name)) } else { Err("its architecture name is not valid".into()) }
}

fn architecture(file: &mut impl Read) -> io::Result<String> {
    if number::<4>(file)?.to_le_bytes()[..4] != *b"GGUF" {
        return Err(wrong("it is neither a folder nor a GGUF file"));
    }
    let version = number::<4>(file)?;
    if !(2..=3).contains(&version) {
        return Err(wrong(&format!("it has GGUF version {version}; this host supports 2 and 3")));
    }
    let _tensors = number::<8>(file)?;
    for _ in 0..number::<8>(file)? {
        let key_bytes = number::<8>(file)?;
        let is_name = if key_bytes == b"general.architecture".len() as u64 {
            let mut key = [0; b"general.architecture".len()];
            file.read_exact(&mut key)?;
            &key == b"general.architecture"
        } else {
            skip(file, key_bytes)?;
            false
        };
        let kind = number::<4>(file)?;
        if is_name {
            return if kind == STRING { name(file) } else { Err(wrong("general.architecture is not a string")) };
        }
        skip_value(file, kind, 0)?;
    }
    Err(wrong("it has no general.architecture"))
}

const STRING: u64 = 8;
const ARRAY: u64 = 9;

fn name(file: &mut impl Read) -> io::Result<String> {
    let bytes = number::<8>(file)?;
    if !(1..=NAME_BYTES_MAX).contains(&bytes) {
        return Err(wrong(&format!("its architecture name has {bytes} bytes")));
    }
    let mut name = String::new();
    file.take(bytes).read_to_string(&mut name)?;
    if name.len() as u64 != bytes || name.chars().any(char::is_control) {
        return Err(wrong("its architecture name is not valid"));
    }
    Ok(name)
}

fn skip_value(file: &mut impl Read, kind: u64, depth: u32) -> io::Result<()> {
    if let Some(bytes) = fixed_bytes(kind) {
        return skip(file, bytes);
    }
    if kind == STRING {
        let bytes = number::<8>(file)?;
        return skip(file, bytes);
    }
    if kind != ARRAY || depth == ARRAYS_NESTED_MAX {
        return Err(wrong(&format!("it contains a value of unknown type {kind}")));
    }
    let kind = number::<4>(file)?;
    let count = number::<8>(file)?;
    if let Some(bytes) = fixed_bytes(kind) {
        return skip(file, bytes.saturating_mul(count));
    }
    for _ in 0..count {
        skip_value(file, kind, depth + 1)?;
    }
    Ok(())
}

fn fixed_bytes(kind: u64) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

fn skip(file: &mut impl Read, bytes: u64) -> io::Result<()> {
    let skipped = io::copy(&mut file.take(bytes), &mut io::sink())?;
    if skipped == bytes { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn number<const BYTES: usize>(file: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact(&mut bytes[..BYTES])?;
    Ok(u64::from_le_bytes(bytes))
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A header with these metadata, given as keys and encoded values.
    fn header(metadata: &[(&str, Vec<u8>)]) -> Vec<u8> {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(7_u64.to_le_bytes());
        bytes.extend((metadata.len() as u64).to_le_bytes());
        for (key, value) in metadata {
            bytes.extend(text(key));
            bytes.extend(value);
        }
        bytes
    }

    fn text(text: &str) -> Vec<u8> {
        [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
    }

    fn value(kind: u32, bytes: &[u8]) -> Vec<u8> {
        [&kind.to_le_bytes(), bytes].concat()
    }

    fn array(kind: u32, count: u64, bytes: &[u8]) -> Vec<u8> {
        value(9, &[&kind.to_le_bytes()[..], &count.to_le_bytes(), bytes].concat())
    }

    fn check(bytes: &[u8], expect: Result<&str, &str>) {
        let actual = architecture(&mut &bytes[..]).map_err(|error| error.to_string());
        match (actual, expect) {
            (Ok(actual), Ok(expect)) => assert_eq!(actual, expect),
            (Err(actual), Err(expect)) => assert!(actual.contains(expect), "{actual:?} does not contain {expect:?}"),
            (actual, expect) => panic!("{actual:?} instead of {expect:?}"),
        }
    }

    #[test]
    fn finds_the_name_after_values_of_every_type() {
        let mut metadata: Vec<(&str, Vec<u8>)> = vec![("tokens", array(8, 2, &[text("a"), text("bc")].concat()))];
        let sizes = [(0, 1), (1, 1), (2, 2), (3, 2), (4, 4), (5, 4), (6, 4), (7, 1), (10, 8), (11, 8), (12, 8)];
        metadata.extend(sizes.map(|(kind, bytes)| ("a.key.of.twenty.char", value(kind, &vec![1; bytes]))));
        metadata.push(("scores", array(6, 3, &[0; 12])));
        metadata.push(("nested", array(9, 1, &array(4, 1, &[0; 4])[4..])));
        metadata.push(("general.architecture", value(8, &text("llama"))));
        check(&header(&metadata), Ok("llama"));
    }

    #[test]
    fn refuses_truncated_and_malformed_headers() {
        let whole = header(&[("a", array(8, 1, &text("b"))), ("general.architecture", value(8, &text("llama")))]);
        for length in 0..whole.len() {
            assert!(architecture(&mut &whole[..length]).is_err(), "cut to {length} bytes");
        }
        check(&header(&[("a", value(99, &[]))]), Err("unknown type 99"));
        check(&header(&[("a", array(8, u64::MAX, &[]))]), Err("fill"));
        check(&header(&[("a", array(4, u64::MAX, &[]))]), Err("end of file"));
        check(&header(&[("general.architecture", value(4, &[0; 4]))]), Err("is not a string"));
        check(&header(&[("general.architecture", value(8, &text("a\nb")))]), Err("is not valid"));
        check(&header(&[]), Err("has no general.architecture"));
        let deep = (0..6).fold(array(4, 0, &[]), |inner, _| array(9, 1, &inner[4..]));
        check(&header(&[("a", deep)]), Err("unknown type 9"));
        check(b"GGUF\x01\0\0\0", Err("version 1"));
        check(b"PK\x03\x04", Err("neither a folder nor a GGUF file"));
    }

    #[test]
    fn suggests_a_file_for_a_folder_with_only_gguf_files() {
        let folder = tempfile::tempdir().unwrap();
        let wrong = || CheckpointName::read(folder.path()).unwrap_err();
        assert!(wrong().contains("config.json': No such file"), "{}", wrong());
        for file in ["README.md", "m-Q8_0.gguf", "m-Q4_K_M.gguf"] {
            std::fs::write(folder.path().join(file), "").unwrap();
        }
        assert!(wrong().contains("has no config.json; name one of the GGUF files in it: '"), "{}", wrong());
        assert!(wrong().ends_with("/m-Q4_K_M.gguf'"), "{}", wrong());
        std::fs::write(folder.path().join("config.json"), r#"{"architectures": ["A"]}"#).unwrap();
        assert_eq!(CheckpointName::read(folder.path()).unwrap(), CheckpointName::Class("A".into()));
    }

    #[test]
    fn pipes_and_devices_are_refused_without_blocking() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("config.json");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        for source in [folder.path(), &fifo, Path::new("/dev/zero")] {
            let refused = CheckpointName::read(source).unwrap_err();
            assert!(refused.ends_with("not a regular file"), "{refused}");
        }
    }

    #[test]
    fn reads_the_class_from_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let config = |text: &str| {
            std::fs::write(folder.path().join("config.json"), text).unwrap();
            CheckpointName::read(folder.path())
        };
        assert_eq!(config(r#"{"architectures": ["A", "B"]}"#).unwrap(), CheckpointName::Class("A".into()));
        let bare = r#"{"time_step_limit": [0.0, Infinity], "architectures": ["A"]}"#;
        assert_eq!(config(bare).unwrap(), CheckpointName::Class("A".into()), "as transformers writes it");
        assert!(config("{}").unwrap_err().contains("lists no architecture"));
        assert!(config(r#"{"architectures": "#).unwrap_err().contains("not a valid config.json"));
        assert!(CheckpointName::read(&folder.path().join("nothing")).is_err());
    }
}
