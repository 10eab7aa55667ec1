//! A release of the tests' own build: the program and four plugins, stripped, packed by `.ci/release` with little effort; and the
//! index with two of its plugins, by `.ci/release-index`.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use crate::artifacts::{library, plugin, program, workspace_build};

/// Three plugins of the small archive, and one more.
const PLUGINS: [&str; 4] = ["pensieve-llama", "pensieve-lora", "pensieve-samplers", "pensieve-rwkv"];

struct Made {
    folder: PathBuf,
    key: PathBuf,
    index_key: PathBuf,
}

fn made() -> &'static Made {
    static MADE: OnceLock<Made> = OnceLock::new();
    MADE.get_or_init(|| {
        let folder = emptied("release");
        let (artifacts, out) = (folder.join("artifacts"), folder.join("release"));
        fs::create_dir(&artifacts).unwrap();
        for file in PLUGINS.iter().map(|package| plugin(package)).chain([program()]) {
            let stripped = artifacts.join(file.file_name().unwrap());
            run(Command::new("strip").arg("-o").arg(&stripped).arg(&file));
            fs::set_permissions(&stripped, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let (key, index_key) = (new_key(), new_key());
        let mut release = Command::new("python3");
        release.arg(root().join(".ci/release")).arg("--artifacts").arg(&artifacts).arg("--out").arg(&out);
        release.arg("--key").arg(&key).arg("--signer").arg(signer()).args(["--preset", "0"]);
        release.arg("--index").arg(folder.join("index")).args(["--index-key", &public(&index_key)]);
        run(&mut release);
        Made { folder, key, index_key }
    })
}

/// An empty folder under the target folder. What all tests share is never dropped, so a temporary one would stay on the disk.
fn emptied(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("installer").join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// The public key of a secret one.
pub fn public(key: &Path) -> String {
    let text = fs::read_to_string(key.with_extension("pub")).unwrap();
    text.lines().nth(1).unwrap().to_owned()
}

/// The index that the release names, with Llama's family and RWKV's.
pub fn index() -> &'static Path {
    static INDEX: OnceLock<PathBuf> = OnceLock::new();
    INDEX.get_or_init(|| {
        let (made, folder) = (made(), made().folder.join("index"));
        for _ in 0..2 {
            // The second time it has everything.
            let mut publish = Command::new("python3");
            publish.arg(root().join(".ci/release-index")).arg(release()).arg("--folder").arg(&folder);
            run(publish.arg("--key").arg(&made.index_key).args(["--certify", "--only", "llama", "--only", "rwkv"]));
        }
        folder
    })
}

/// The folder of the release, which no test may change.
pub fn release() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| made().folder.join("release"))
}

/// A copy of the release that a test may change.
pub fn copy(folder: &Path) {
    fs::create_dir(folder).unwrap();
    for entry in fs::read_dir(release()).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
    }
}

/// The secret key of the release.
pub fn key() -> &'static Path {
    &made().key
}

/// Another secret key.
pub fn new_key() -> PathBuf {
    static KEYS: OnceLock<PathBuf> = OnceLock::new();
    let folder = KEYS.get_or_init(|| emptied("keys"));
    let name = tempfile::Builder::new().tempdir_in(folder).unwrap().keep();
    run(Command::new(program()).args(["plugins", "key"]).arg(name.join("key")));
    name.join("key")
}

/// Signs files of a release.
pub fn sign(folder: &Path, key: &Path, files: &[&str]) {
    run(Command::new(signer()).arg(key).args(files).current_dir(folder));
}

/// Lists a release again, signed by one key, for programs that shall trust another one from then on.
pub fn list(folder: &Path, key: &Path, public_key: &str) {
    let mut release = Command::new("python3");
    release.arg(root().join(".ci/release")).arg("--list-only").arg("--out").arg(folder).arg("--key").arg(key);
    run(release.arg("--signer").arg(signer()).args(["--public-key", public_key]));
}

fn signer() -> PathBuf {
    library(&workspace_build(), "sign")
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
