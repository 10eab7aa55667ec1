//! The files that make up a checkpoint or adapter, and the symbolic links among them that are followed.
//!
//! A checkpoint's folder is untrusted, and a link in it can point anywhere: a child that follows it could read the
//! user's secrets. So a link is followed only if it leads to a regular file whose name the formats use, inside the
//! folder itself or among the `blobs` of the same repository in the hub's cache; any other link is refused before
//! anything is opened. Resolved targets are returned, so that a fence built from them holds even if a link is replaced
//! later.

use std::{
    fs::{self, FileType},
    io,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
};

use crate::{
    job::{Failure, FailureCode},
    outside::Outside,
    towers,
};

/// Files of a checkpoint or adapter folder besides the weights.
pub const BESIDE_WEIGHTS: [&str; 14] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "adapter_config.json",
    "preprocessor_config.json",
    "processor_config.json",
];
/// Suffixes of weights and of the index of sharded weights.
pub const WEIGHTS: [&str; 3] = [".safetensors", ".safetensors.index.json", ".gguf"];
const TOKENIZER: &str = "tokenizer.json";
/// Entries per folder; a folder with more is most likely not a checkpoint.
const ENTRIES_MAX: usize = 4096;
const PARTS_MAX: u32 = 1000;
const LINK_CHARS_SHOWN: usize = 300;

/// Lists the paths that a child must be able to read: the folder and the targets of its links, or the file with its
/// other parts and the vision towers beside it. A missing source is returned unchanged; the reader reports the error.
pub fn readable(source: &Path) -> Result<Vec<PathBuf>, Failure> {
    let Ok(resolved) = source.canonicalize() else { return Ok(vec![source.to_path_buf()]) };
    if resolved.is_dir() { folder(source, &resolved) } else { file(source, &resolved) }
}

/// Returns the names of all parts of a split GGUF file, given one of them; for any other file, its own name.
pub fn parts(name: &str) -> Vec<String> {
    match numbered(name) {
        Some((stem, _, count)) => (1..=count).map(|number| format!("{stem}-{number:05}-of-{count:05}.gguf")).collect(),
        None => vec![name.to_owned()],
    }
}

/// Splits `STEM-00002-of-00005.gguf` into stem, number and count.
pub fn numbered(name: &str) -> Option<(&str, u32, u32)> {
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| (text.len() == 5).then(|| text.parse::<u32>().ok()).flatten();
    let (number, count) = (digits(number)?, digits(count)?);
    ((1..=count).contains(&number) && count <= PARTS_MAX).then_some((stem, number, count))
}

fn is_named(name: &str) -> bool {
    BESIDE_WEIGHTS.contains(&name) || WEIGHTS.iter().any(|ending| name.ends_with(ending))
}

/// Subfolders are not searched: the fence blocks links in them that lead out of the folder.
fn folder(source: &Path, resolved: &Path) -> Result<Vec<PathBuf>, Failure> {
    let blobs = blobs(resolved);
    let mut readable = vec![resolved.to_path_buf()];
    let entries = fs::read_dir(resolved).map_err(|error| unread(source, &error))?;
    for (index, entry) in entries.enumerate() {
        let entry = entry.map_err(|error| unread(source, &error))?;
        let name = entry.file_name();
        let path = source.join(&name);
        if index >= ENTRIES_MAX {
            let message = format!("'{}' holds more than {ENTRIES_MAX} files", Outside::path(source));
            return Err(invalid(message).with_help("name a folder with one checkpoint"));
        }
        let kind = entry.file_type().map_err(|error| unread(&path, &error))?;
        if !kind.is_symlink() {
            check_kind(&path, kind)?;
            continue;
        }
        // A dangling or circular link cannot be read anyway.
        let Ok(target) = path.canonicalize() else { continue };
        let is_inside = target.starts_with(resolved);
        let is_blob = blobs.as_deref().is_some_and(|blobs| target.parent() == Some(blobs));
        if !is_inside && !is_blob {
            return Err(leads_out(&path, &target, "the checkpoint's folder"));
        }
        let is_named = name.to_str().is_some_and(is_named);
        let kind = target.metadata().map_err(|error| unread(&path, &error))?.file_type();
        if (is_named || is_blob) && !kind.is_file() {
            return Err(irregular(&path));
        }
        check_kind(&path, kind)?;
        if is_named && !is_inside {
            readable.push(target);
        }
    }
    readable.sort();
    readable.dedup();
    Ok(readable)
}

/// The file named by the user may itself be a link. Its other parts and its tokenizer must be in the same folder as the link or
/// as its target.
fn file(source: &Path, resolved: &Path) -> Result<Vec<PathBuf>, Failure> {
    if !resolved.is_file() {
        return Err(irregular(source));
    }
    let name = source.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let mut readable = vec![resolved.to_path_buf()];
    if !name.ends_with(".gguf") {
        return Ok(readable);
    }
    let folders =
        [source.parent().and_then(|folder| named_folder(folder).ok()), resolved.parent().map(Path::to_path_buf)];
    let blobs = folders[0].as_deref().and_then(blobs);
    let siblings = parts(name).into_iter().filter(|part| part != name).chain([TOKENIZER.to_owned()]);
    let siblings = siblings.chain(towers::beside(source));
    for path in siblings.map(|sibling| source.with_file_name(sibling)) {
        let Ok(target) = path.canonicalize() else { continue };
        let is_in = |folder: &Option<PathBuf>| folder.is_some() && target.parent() == folder.as_deref();
        if !folders.iter().chain([&blobs]).any(is_in) {
            return Err(leads_out(&path, &target, "the folder of the named file"));
        }
        if !target.is_file() {
            return Err(irregular(&path));
        }
        readable.push(target);
    }
    readable.sort();
    readable.dedup();
    Ok(readable)
}

/// Resolves the folder of a file name; an empty one is the current folder.
fn named_folder(folder: &Path) -> io::Result<PathBuf> {
    if folder.as_os_str().is_empty() { Path::new(".") } else { folder }.canonicalize()
}

/// The `blobs` folder for a folder in the hub's cache, `models--X--Y/snapshots/REVISION/…`. It must not be a link itself.
fn blobs(folder: &Path) -> Option<PathBuf> {
    let is_repository =
        |path: &Path| path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("models--"));
    let snapshots = folder.ancestors().skip(1).find(|path| path.file_name().is_some_and(|name| name == "snapshots"))?;
    let blobs = snapshots.parent().filter(|repository| is_repository(repository))?.join("blobs");
    (blobs.canonicalize().ok()? == blobs).then_some(blobs)
}

fn check_kind(path: &Path, kind: FileType) -> Result<(), Failure> {
    let is_special = kind.is_fifo() || kind.is_socket() || kind.is_block_device() || kind.is_char_device();
    if is_special { Err(irregular(path)) } else { Ok(()) }
}

fn leads_out(link: &Path, target: &Path, home: &str) -> Failure {
    let (link, target) = (Outside::path(link), Outside::path(target).at_most(LINK_CHARS_SHOWN));
    let message = format!("'{link}' is a link that leads to '{target}', out of {home}");
    let failure = Failure::new(FailureCode::Forbidden, message);
    failure.with_help("put the file itself there, remove the link, or name the file or folder that it leads to")
}

fn irregular(path: &Path) -> Failure {
    invalid(format!("'{}': not a regular file", Outside::path(path))).with_help("put the file itself there")
}

fn unread(path: &Path, error: &io::Error) -> Failure {
    let code = if error.kind() == io::ErrorKind::NotFound { FailureCode::NotFound } else { FailureCode::Unsupported };
    Failure::new(code, format!("'{}' cannot be read: {error}", Outside::path(path))).with_help("check the path")
}

fn invalid(message: String) -> Failure {
    Failure::new(FailureCode::Unsupported, message)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const REVISION: &str = "hub/models--o--r/snapshots/main";

    /// Folders laid out as by users and by the hub's cache.
    fn home() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        for folder in ["model/sub", "other", "hub/models--o--r/blobs", "hub/models--o--other/blobs", REVISION] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        for file in ["model/config.json", "model/plain", "other/secret", "other/m.gguf", "hub/models--o--r/blobs/a"] {
            fs::write(root.join(file), "1234").unwrap();
        }
        fs::write(root.join("hub/models--o--other/blobs/b"), "").unwrap();
        (folder, root)
    }

    fn resolved(root: &Path, source: &str) -> Result<Vec<String>, Failure> {
        let strip = |path: PathBuf| path.strip_prefix(root).unwrap().display().to_string();
        Ok(readable(&root.join(source))?.into_iter().map(strip).collect())
    }

    #[test]
    fn links_inside_a_folder_and_to_the_blobs_of_its_repository_are_followed() {
        let (_folder, root) = home();
        symlink("sub/../plain", root.join("model/tokenizer.json")).unwrap();
        symlink("sub", root.join("model/alias")).unwrap();
        symlink("nowhere", root.join("model/chat_template.jinja")).unwrap();
        assert_eq!(resolved(&root, "model").unwrap(), ["model"]);
        symlink("../../blobs/a", root.join(REVISION).join("model.safetensors")).unwrap();
        symlink("../../blobs/a", root.join(REVISION).join("README.md")).unwrap();
        assert_eq!(resolved(&root, REVISION).unwrap(), ["hub/models--o--r/blobs/a", REVISION]);
        symlink("hub", root.join("cache")).unwrap();
        let through = REVISION.replacen("hub", "cache", 1);
        assert_eq!(resolved(&root, &through).unwrap(), ["hub/models--o--r/blobs/a", REVISION]);
        assert_eq!(resolved(&root, "nothing").unwrap(), ["nothing"]);
    }

    #[test]
    fn links_out_of_the_folder_are_refused_whatever_their_name() {
        for (name, target) in [
            ("docs", "/"),
            ("notes.txt", "../../../../other/secret"),
            ("chat_template.jinja", "../../../../other/secret"),
            ("model.safetensors", "../../../models--o--other/blobs/b"),
            ("tokenizer.json", "chain"),
            ("config.json", "../../blobs"),
            ("adapter_config.json", "/dev/zero"),
        ] {
            let (_folder, root) = home();
            symlink(root.join("other/secret"), root.join(REVISION).join("chain")).unwrap();
            fs::rename(root.join(REVISION).join("chain"), root.join("hub/chain")).unwrap();
            let target = if target == "chain" { "../../../chain" } else { target };
            symlink(target, root.join(REVISION).join(name)).unwrap();
            let failure = resolved(&root, REVISION).unwrap_err();
            assert!(failure.message.contains(name), "{failure}");
            assert!(failure.help.contains("put the file itself there"), "{failure}");
        }
    }

    #[test]
    fn a_blobs_folder_that_is_a_link_is_not_trusted() {
        let (_folder, root) = home();
        fs::rename(root.join("hub/models--o--r/blobs"), root.join("hub/away")).unwrap();
        symlink("../../other", root.join("hub/models--o--r/blobs")).unwrap();
        symlink("../../blobs/secret", root.join(REVISION).join("config.json")).unwrap();
        assert!(resolved(&root, REVISION).unwrap_err().message.contains("other/secret'"));
        // Outside of the hub's cache the same layout is not trusted.
        let stranger = "model/snapshots/main";
        fs::create_dir_all(root.join(stranger)).unwrap();
        fs::create_dir(root.join("model/blobs")).unwrap();
        fs::write(root.join("model/blobs/x"), "").unwrap();
        symlink("../../blobs/x", root.join(stranger).join("config.json")).unwrap();
        assert_eq!(resolved(&root, stranger).unwrap_err().code, FailureCode::Forbidden);
    }

    #[test]
    fn a_named_file_may_be_a_link_but_its_siblings_may_not_lead_elsewhere() {
        let (_folder, root) = home();
        let at = |name: &str| root.join(name);
        symlink("../other/m.gguf", at("model/named.gguf")).unwrap();
        assert_eq!(resolved(&root, "model/named.gguf").unwrap(), ["other/m.gguf"]);
        fs::write(at("model/tokenizer.json"), "").unwrap();
        assert_eq!(resolved(&root, "model/named.gguf").unwrap(), ["model/tokenizer.json", "other/m.gguf"]);
        for (name, target) in
            [("p-00001-of-00002.gguf", "../other/m.gguf"), ("p-00002-of-00002.gguf", "../other/secret")]
        {
            symlink(target, at("model").join(name)).unwrap();
        }
        let parts = resolved(&root, "model/p-00002-of-00002.gguf").unwrap();
        assert_eq!(parts, ["model/tokenizer.json", "other/m.gguf", "other/secret"]);
        // Unrelated files are not read.
        symlink("/etc/passwd", at("model/unrelated.gguf")).unwrap();
        assert!(resolved(&root, "model/p-00001-of-00002.gguf").is_ok());
        fs::remove_file(at("model/tokenizer.json")).unwrap();
        symlink("/etc/passwd", at("model/tokenizer.json")).unwrap();
        let failure = resolved(&root, "model/named.gguf").unwrap_err();
        assert!(failure.message.contains("tokenizer.json' is a link that leads to '/etc/passwd'"), "{failure}");
        // In a snapshot the file and its parts are links to blobs.
        symlink("../../blobs/a", at(REVISION).join("q.gguf")).unwrap();
        assert_eq!(resolved(&root, &format!("{REVISION}/q.gguf")).unwrap(), ["hub/models--o--r/blobs/a"]);
    }

    #[test]
    fn the_vision_towers_beside_a_file_are_read_with_it() {
        let (_folder, root) = home();
        symlink("../../blobs/a", root.join(REVISION).join("text.gguf")).unwrap();
        fs::write(root.join("hub/models--o--r/blobs/t"), "").unwrap();
        symlink("../../blobs/t", root.join(REVISION).join("mmproj-F16.gguf")).unwrap();
        let read = resolved(&root, &format!("{REVISION}/text.gguf")).unwrap();
        assert_eq!(read, ["hub/models--o--r/blobs/a", "hub/models--o--r/blobs/t"]);
        symlink(root.join("other/secret"), root.join(REVISION).join("mmproj-x.gguf")).unwrap();
        let failure = resolved(&root, &format!("{REVISION}/text.gguf")).unwrap_err();
        assert!(failure.message.contains("mmproj-x.gguf' is a link that leads to"), "{failure}");
    }

    #[test]
    fn pipes_and_devices_are_refused() {
        let (_folder, root) = home();
        let fifo = root.join("model/tokenizer.json");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        assert!(resolved(&root, "model").unwrap_err().message.ends_with("tokenizer.json': not a regular file"));
        fs::remove_file(&fifo).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(root.join("model/any")).unwrap();
        assert!(resolved(&root, "model").unwrap_err().message.ends_with("any': not a regular file"));
        assert!(readable(Path::new("/dev/zero")).is_err());
    }

    #[test]
    fn control_characters_in_a_link_s_name_are_escaped() {
        let (_folder, root) = home();
        symlink("/etc/passwd", root.join("model/\u{1b}]0;x\u{7}")).unwrap();
        let failure = resolved(&root, "model").unwrap_err();
        assert!(failure.message.contains("\\u{1b}]0;x\\u{7}'"), "{failure}");
    }
}
