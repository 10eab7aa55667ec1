//! A file system of its own that has a shell, the programs that an installer uses, and their libraries: no Rust, no compiler,
//! nothing of this machine's users. It takes namespaces, which some systems deny to tests.

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;

use super::release::release;
use crate::artifacts::copy_program;

/// Programs that every system has.
const PROGRAMS: [&str; 26] = [
    "awk",
    "cat",
    "cp",
    "cut",
    "df",
    "dirname",
    "getconf",
    "grep",
    "ln",
    "mkdir",
    "mktemp",
    "mv",
    "readlink",
    "rm",
    "rmdir",
    "sed",
    "sh",
    "sha256sum",
    "sleep",
    "tail",
    "tar",
    "tr",
    "uname",
    "wc",
    "id",
    "ls",
];

pub struct Root {
    folder: TempDir,
}

impl Root {
    /// A file system with these programs as well; `None`, said aloud, where there are no namespaces to put it in.
    pub fn new(more: &[&str]) -> Option<Self> {
        let root = Self { folder: tempfile::tempdir().unwrap() };
        for folder in ["dev", "proc", "tmp", "release", "srv/ada", "usr/bin", "etc"] {
            fs::create_dir_all(root.path(folder)).unwrap();
        }
        symlink("usr/bin", root.path("bin")).unwrap();
        for program in PROGRAMS.iter().chain(more) {
            let Some(path) = in_path(program) else { panic!("this machine has no '{program}'") };
            root.take(&path, &root.path("usr/bin").join(program));
        }
        // Of what the program links beside the C library.
        root.take_libraries(&crate::artifacts::program());
        let tried = root.shell("true").output();
        if tried.as_ref().is_ok_and(|tried| tried.status.success()) {
            return Some(root);
        }
        assert!(env::var_os("PENSIEVE_REQUIRE_NAMESPACES").is_none(), "no namespaces: {tried:?}");
        println!("skipped: this system gives tests no namespaces to install in: {tried:?}");
        None
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A shell inside, in which the release is at `/release`. The network is this machine's.
    pub fn shell(&self, line: &str) -> Command {
        self.shell_with("true", "", line)
    }

    /// A shell whose `/srv/ada` is a disk of its own, which takes these options of tmpfs, and goes with the shell.
    pub fn shell_on(&self, disk: &str, line: &str) -> Command {
        let root = self.folder.path().display();
        self.shell_with(&format!("mount -t tmpfs -o {disk} tmpfs '{root}/srv/ada'"), "", line)
    }

    /// A shell that the modes of files hold for, as for everybody but root.
    pub fn shell_without_rights(&self, line: &str) -> Command {
        self.shell_with("true", "setpriv --bounding-set=-dac_override,-dac_read_search", line)
    }

    fn shell_with(&self, before: &str, through: &str, line: &str) -> Command {
        let root = self.folder.path().display();
        let release = release().display();
        let outside = format!(
            "mount --rbind /dev '{root}/dev' && mount -t proc proc '{root}/proc' && mount -o bind,ro '{release}' '{root}/release' \
             && {before} && exec {through} chroot '{root}' /bin/sh -c \"$1\""
        );
        let mut command = Command::new("unshare");
        command.args([
            "--user",
            "--map-root-user",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "sh",
            "-c",
            &outside,
            "sh",
            line,
        ]);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command
    }

    fn take(&self, program: &Path, to: &Path) {
        copy_program(program, to);
        self.take_libraries(program);
    }

    /// Copies what the loader would map, to where it would look.
    fn take_libraries(&self, program: &Path) {
        let listed = Command::new("ldd").arg(program).output().unwrap();
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let words = listed.split_whitespace().filter(|word| word.starts_with('/'));
        for path in words.map(Path::new).filter(|path| path.is_file()) {
            let to = self.folder.path().join(path.strip_prefix("/").unwrap());
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            if !to.exists() {
                // The loader among them is a program as well.
                copy_program(path, &to);
            }
        }
    }
}

fn in_path(name: &str) -> Option<PathBuf> {
    let folders = env::var_os("PATH")?;
    env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file())
}
