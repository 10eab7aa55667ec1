//! Everything that keeps an installer from installing: a clear line each, and nothing left behind.

use std::{fs, os::unix::fs::symlink, path::Path};

use super::{User, release, text};
use crate::{artifacts::write_script, cli::files};

/// A copy of the release after a change.
fn changed(change: impl Fn(&Path)) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    release::copy(&root.path().join("release"));
    change(&root.path().join("release"));
    root
}

/// The small archive's path.
fn archive(folder: &Path) -> std::path::PathBuf {
    let mut found = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    found.find(|path| path.to_str().unwrap().ends_with("-minimal.tar.gz")).unwrap()
}

/// Changes a file of the release.
fn edit(path: &Path, change: impl Fn(Vec<u8>) -> Vec<u8>) {
    let bytes = fs::read(path).unwrap();
    let edited = change(bytes.clone());
    assert_ne!(bytes, edited, "nothing was changed");
    fs::write(path, edited).unwrap();
}

fn edit_installer(folder: &Path, from: &str, to: &str) {
    let replaced = |bytes| String::from_utf8(bytes).unwrap().replace(from, to).into_bytes();
    edit(&folder.join("install.sh"), replaced);
}

/// Runs the installer, which refuses with these words on its last line and leaves nothing.
fn refuses(user: &User, releases: &Path, arguments: &[&str], words: &str) {
    refuses_with(user, releases, arguments, "/usr/bin:/bin", words);
}

fn refuses_with(user: &User, releases: &Path, arguments: &[&str], path: &str, words: &str) {
    let before = files(user.home.path());
    let mut command = user.command("sh", releases);
    let tried =
        command.env("PATH", path).arg(releases.join("install.sh")).arg("--minimal").args(arguments).output().unwrap();
    let said = text(&tried.stderr);
    assert!(!tried.status.success(), "it was installed, and should not be: {words}");
    let last = said.lines().last().unwrap_or_default();
    assert!(last.starts_with("install.sh: ") && last.contains(words), "'{words}' is not in the last line of: {said}");
    assert_eq!(files(user.home.path()), before, "{words}: files are left");
    let folders =
        fs::read_dir(user.home.path()).unwrap().filter(|entry| entry.as_ref().unwrap().file_name() == ".local");
    assert!(!before.is_empty() || folders.count() == 0, "{words}: folders are left");
}

#[test]
fn an_archive_that_is_not_the_one_of_the_release_is_refused() {
    let user = User::new();
    let flipped = |mut bytes: Vec<u8>| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        bytes
    };
    let release = changed(|folder| edit(&archive(folder), flipped));
    let releases = release.path().join("release");
    refuses(&user, &releases, &[], "its digest is wrong; nothing of it was run");
    let release = changed(|folder| edit(&archive(folder), |bytes| [bytes, vec![0]].concat()));
    refuses(&user, &release.path().join("release"), &[], "its digest is wrong");
    let release = changed(|folder| edit(&archive(folder), |bytes| bytes[..bytes.len() / 3].to_vec()));
    refuses(&user, &release.path().join("release"), &[], "is cut off: it has ");
    let release = changed(|folder| fs::write(archive(folder), "").unwrap());
    refuses(&user, &release.path().join("release"), &[], "is cut off: it has 0 of ");
    let release = changed(|folder| fs::remove_file(archive(folder)).unwrap());
    refuses(&user, &release.path().join("release"), &[], "has no file 'pensieve-");
    // The digest in the script is another one.
    let digest = crate::hub::sha256(&fs::read(archive(release::release())).unwrap());
    let release = changed(|folder| edit_installer(folder, &digest, &"0".repeat(64)));
    refuses(&user, &release.path().join("release"), &[], "its digest is wrong");
    // The right digest of something that is no archive, and of one whose program is another.
    let release = changed(|folder| {
        let path = archive(folder);
        let bytes = fs::metadata(&path).unwrap().len();
        let junk = vec![b'x'; usize::try_from(bytes).unwrap()];
        edit_installer(folder, &digest, &crate::hub::sha256(&junk));
        fs::write(path, junk).unwrap();
    });
    refuses(&user, &release.path().join("release"), &[], "cannot be unpacked");
}

#[test]
fn a_system_that_cannot_run_it_is_told_why() {
    let user = User::new();
    let release = release::release();
    // Programs that say what an older or another system would.
    let stand_ins = tempfile::tempdir().unwrap();
    let says = |name: &str, script: &str| {
        let path = stand_ins.path().join(name);
        write_script(&path, script);
    };
    let path = format!("{}:/usr/bin:/bin", stand_ins.path().display());
    let forget = |name: &str| fs::remove_file(stand_ins.path().join(name)).unwrap();
    says("getconf", "echo glibc 2.17");
    refuses_with(&user, release, &[], &path, "this system has glibc 2.17, and Pensieve");
    says("getconf", "exit 1");
    says("ldd", "echo 'musl libc (x86_64)' >&2; exit 1");
    refuses_with(&user, release, &[], &path, "this system has no glibc");
    says("ldd", "echo 'ldd (GNU libc) 2.17.9000'");
    refuses_with(&user, release, &[], &path, "this system has glibc 2.17.9000, and Pensieve");
    forget("ldd");
    // A version of three numbers, as distributions build from glibc's development branch, is compared by two of them.
    says("getconf", "echo glibc 2.39.9000");
    says("df", "echo; echo '/dev/vda 100000 99000 1000 99% /'");
    refuses_with(&user, release, &[], &path, "0 are free");
    forget("df");
    forget("getconf");
    says("uname", "if [ \"$1\" = -s ]; then echo FreeBSD; else echo amd64; fi");
    refuses_with(&user, release, &[], &path, "there is no release for FreeBSD");
    says("uname", "if [ \"$1\" = -s ]; then echo Linux; else echo riscv64; fi");
    refuses_with(&user, release, &[], &path, "there is no release for the processor riscv64");
    forget("uname");
    says("df", "echo; echo '/dev/vda 100000 99000 1000 99% /'");
    refuses_with(&user, release, &[], &path, "0 are free");
    forget("df");
    // It is cut off while it is written, though there was room before.
    says("cp", "head -c 1000 \"$1\" >\"$2\"; echo 'cp: No space left on device' >&2; exit 1");
    refuses_with(&user, release, &[], &path, "cannot be copied: ");
}

#[test]
fn a_place_that_is_not_the_users_stays_as_it_is() {
    let user = User::new();
    let release = release::release();
    refuses(&user, release, &["--prefix", "/sys/pensieve"], "cannot be made: is '/sys' yours");
    refuses(&user, release, &["--prefix", "relative"], "is no absolute path");
    refuses(&user, release, &["--prefix"], "takes a value");
    refuses(&user, release, &["--frobnicate"], "there is no option --frobnicate");
    refuses(&user, release, &["--version", "../../x"], "is no version");
    refuses(&user, release, &["--version", "9.9.9"], "release 9.9.9 has no archive for");
    refuses(&user, release, &["--uninstall"], "nothing is installed in");
    let bin = user.path(".local/bin");
    fs::create_dir_all(&bin).unwrap();
    for own in [true, false] {
        match own {
            true => fs::write(bin.join("pensieve"), "the user's own").unwrap(),
            false => symlink("/usr/bin/true", bin.join("pensieve")).unwrap(),
        }
        refuses(&user, release, &[], "is there already, and this script did not put it there");
        fs::remove_file(bin.join("pensieve")).unwrap();
    }
    fs::write(user.path(".local/share"), "a file in the way").unwrap();
    refuses(&user, release, &[], "cannot be made");
}

/// A folder with a stand-in for a program, and the path that has it first.
fn stand_in(name: &str, script: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join(name);
    write_script(&program, &format!("{script}\nPATH=/usr/bin:/bin\nexec {name} \"$@\""));
    let path = format!("{}:/usr/bin:/bin", folder.path().display());
    (folder, path)
}

#[test]
fn an_installed_version_stays_if_it_cannot_be_replaced_by_itself() {
    let release = release::release();
    let failures = [
        ("mv", "case $1 in */unpacked) exit 1 ;; esac", "cannot be made: "),
        ("ln", "case $* in *share/pensieve/current) exit 1 ;; esac", "current' cannot be made: "),
        // The link is gone when the new one cannot be made.
        ("ln", "case $* in -sfn*share/pensieve/current) rm \"$3\"; exit 1 ;; esac", "current' cannot be made: "),
    ];
    for (name, script, words) in failures {
        let user = User::new();
        let (_folder, path) = stand_in(name, script);
        refuses_with(&user, release, &[], &path, words);
        let installed = user.install(release, &["--minimal"]);
        assert!(installed.status.success(), "{}", text(&installed.stderr));
        // A file by which the version is known again.
        let mark = user.path(".local/share/pensieve/current/mark");
        fs::write(&mark, "the first").unwrap();
        refuses_with(&user, release, &[], &path, words);
        let version = user.pensieve(release, &["--version"]);
        assert!(version.status.success() && mark.exists(), "{script}: {}", text(&version.stderr));
    }
    // The link in `bin`, which comes last.
    let (user, (_folder, path)) = (User::new(), stand_in("ln", "case $* in */bin/pensieve) exit 1 ;; esac"));
    refuses_with(&user, release, &[], &path, "bin/pensieve' cannot be made: ");
    // A signal between the version and its link.
    let (_folder, path) = stand_in("ln", "case $* in *share/pensieve/current) kill $PPID; sleep 1; exit 1 ;; esac");
    let mut command = user.command("sh", release);
    let killed = command.env("PATH", &path).arg(release.join("install.sh")).arg("--minimal").output().unwrap();
    assert!(!killed.status.success() && files(user.home.path()).is_empty(), "{}", text(&killed.stderr));
}

#[test]
fn a_folder_where_the_link_to_the_version_goes_is_left_alone() {
    let user = User::new();
    let current = user.path(".local/share/pensieve/current");
    fs::create_dir_all(&current).unwrap();
    fs::write(current.join("own"), "the user's").unwrap();
    refuses(&user, release::release(), &[], "current' is there already, and is no link");
}

#[test]
fn two_installations_at_once_do_not_meet() {
    let (user, release) = (User::new(), release::release());
    let installed = user.install(release, &["--minimal"]);
    assert!(installed.status.success(), "{}", text(&installed.stderr));
    let lock = user.path(".local/share/pensieve/versions/.lock");
    assert!(fs::symlink_metadata(&lock).is_err(), "the lock stays");
    // This process lives.
    symlink(std::process::id().to_string(), &lock).unwrap();
    let words = format!("another installation is at work in '{}'", user.path(".local/share/pensieve").display());
    refuses(&user, release, &[], &words);
    refuses(&user, release, &["--uninstall"], &words);
    fs::remove_file(&lock).unwrap();
    // One that is gone does not count.
    let mut gone = std::process::Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    symlink(gone.id().to_string(), &lock).unwrap();
    let again = user.install(release, &["--minimal"]);
    assert!(again.status.success() && fs::symlink_metadata(&lock).is_err(), "{}", text(&again.stderr));
    // Two that start together: one of them may be refused, and what is there works.
    let mut both: Vec<_> = (0..2)
        .map(|_| {
            let mut command = user.command("sh", release);
            command.arg(release.join("install.sh")).arg("--minimal").stdout(std::process::Stdio::null());
            command.stderr(std::process::Stdio::null()).spawn().unwrap()
        })
        .collect();
    let worked = both.iter_mut().filter_map(|child| child.wait().unwrap().success().then_some(())).count();
    assert!(worked >= 1);
    let version = user.path(".local/share/pensieve/versions").join(env!("CARGO_PKG_VERSION"));
    assert!(!version.join("unpacked").exists() && user.pensieve(release, &["--version"]).status.success());
}
