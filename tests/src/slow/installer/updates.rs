//! `pensieve update`, from an installed version to the one of a release.

use serde_json::Value;
use std::{fs, path::PathBuf};

use super::{User, release, text, works};
use crate::cli::files;

const NEW: &str = env!("CARGO_PKG_VERSION");
const OLD: &str = "0.0.1";

/// A user with an older version: the program is the same, and its origin says so.
fn with_old_version() -> User {
    let user = User::new();
    works(user.install(release::release(), &["--minimal"]));
    let root = user.path(".local/share/pensieve");
    fs::rename(root.join("versions").join(NEW), root.join("versions").join(OLD)).unwrap();
    fs::remove_file(root.join("current")).unwrap();
    std::os::unix::fs::symlink(format!("versions/{OLD}"), root.join("current")).unwrap();
    let origin = root.join("current/origin.json");
    let text = fs::read_to_string(&origin).unwrap();
    fs::write(&origin, text.replace(NEW, OLD)).unwrap();
    user
}

fn version(user: &User) -> PathBuf {
    fs::read_link(user.path(".local/share/pensieve/current")).unwrap()
}

fn state(user: &User) -> Vec<String> {
    files(&user.path(".local"))
}

#[test]
fn an_update_is_looked_for_and_replaces_only_when_told() {
    let user = with_old_version();
    let before = state(&user);
    let said = works(user.pensieve(release::release(), &["update"]));
    assert!(said.contains(&format!("{NEW} is there, and this is {OLD}")) && said.contains("--install"), "{said}");
    let json: Value = serde_json::from_str(&works(user.pensieve(release::release(), &["update", "--json"]))).unwrap();
    assert_eq!((&json["newest"], &json["is_newer"], &json["is_replaced"]), (&NEW.into(), &true.into(), &false.into()));
    assert_eq!(state(&user), before);

    works(user.pensieve(release::release(), &["update", "--install"]));
    assert_eq!(version(&user), PathBuf::from("versions").join(NEW));
    // The old one stays for servers that run.
    assert!(user.path(".local/share/pensieve/versions").join(OLD).join("bin/pensieve").is_file());
    assert!(works(user.pensieve(release::release(), &["update"])).contains("is the newest release"));
    assert!(!state(&user).iter().any(|file| file.contains(".new-")));
    let answer = works(user.pensieve(release::release(), &["run", "--model", "starter", "list all files"]));
    assert!(answer.contains("ls -la"), "{answer}");
}

#[test]
fn an_update_that_cannot_be_trusted_changes_nothing() {
    let user = with_old_version();
    let before = state(&user);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("release");
    let refuses = |change: &dyn Fn(), code: i32, words: &str| {
        let _ = fs::remove_dir_all(&path);
        release::copy(&path);
        change();
        let tried = user.pensieve(&path, &["update", "--install"]);
        let said = text(&tried.stderr);
        assert_eq!(tried.status.code(), Some(code), "{words}: {said}");
        assert!(said.contains(words), "'{words}' is not in: {said}");
        assert_eq!((state(&user), version(&user)), (before.clone(), PathBuf::from("versions").join(OLD)), "{words}");
    };
    let list = || fs::read_to_string(path.join("release.json")).unwrap();
    let write = |text: String| fs::write(path.join("release.json"), text).unwrap();
    let sign = || release::sign(&path, release::key(), &["release.json"]);
    let archive =
        || path.join(format!("pensieve-{NEW}-{}-{}-minimal.tar.gz", std::env::consts::OS, std::env::consts::ARCH));

    refuses(&|| write(list().replace("minimal", "minimum")), 4, "it was changed after");
    refuses(&|| release::sign(&path, &release::new_key(), &["release.json"]), 4, "by another key");
    refuses(&|| fs::write(path.join("release.json.minisig"), "").unwrap(), 4, "the signature of");
    refuses(&|| fs::remove_file(path.join("release.json.minisig")).unwrap(), 3, "release.json.minisig");
    refuses(
        &|| drop(fs::copy(path.join("SHA256SUMS.minisig"), path.join("release.json.minisig"))),
        4,
        "it was changed after",
    );
    refuses(&|| fs::write(archive(), "short").unwrap(), 7, "is not the file that its release lists");
    refuses(
        &|| fs::write(archive(), vec![0; usize::try_from(fs::metadata(archive()).unwrap().len()).unwrap()]).unwrap(),
        7,
        "is not the file",
    );
    refuses(&|| fs::remove_file(archive()).unwrap(), 3, "minimal.tar.gz");
    let resigned = |from: &'static str, to: &'static str| {
        move || {
            write(list().replace(from, to));
            sign();
        }
    };
    refuses(&resigned("\"release\": 1", "\"release\": 2"), 7, "has format 2");
    refuses(&resigned("\"kind\": \"minimal\"", "\"kind\": \"other\""), 9, "has no archive for");
    refuses(&resigned("\"file\": \"", "\"file\": \"../"), 7, "no plain name");
    // Its program says another version than the list.
    refuses(
        &resigned(concat!("\"version\": \"", env!("CARGO_PKG_VERSION"), "\""), "\"version\": \"7.0.0\""),
        7,
        "the archive of 7.0.0 holds 'pensieve 0.1.0'",
    );

    // An older one is no update, even if it is signed.
    let _ = fs::remove_dir_all(&path);
    release::copy(&path);
    write(list().replace(&format!("\"version\": \"{NEW}\""), "\"version\": \"0.0.0\""));
    sign();
    assert!(works(user.pensieve(&path, &["update", "--install"])).contains("is the newest release"));
    assert_eq!(state(&user), before);
}

#[test]
fn an_update_and_an_installation_do_not_meet() {
    let user = with_old_version();
    let lock = user.path(".local/share/pensieve/versions/.lock");
    std::os::unix::fs::symlink(std::process::id().to_string(), &lock).unwrap();
    let tried = user.pensieve(release::release(), &["update", "--install"]);
    assert_eq!(tried.status.code(), Some(8), "{}", text(&tried.stderr));
    assert!(text(&tried.stderr).contains("another installation is at work"), "{}", text(&tried.stderr));
    assert_eq!(version(&user), PathBuf::from("versions").join(OLD));
    fs::remove_file(&lock).unwrap();
    // One of a process that is gone does not count.
    std::os::unix::fs::symlink("4194305", &lock).unwrap();
    works(user.pensieve(release::release(), &["update", "--install"]));
    assert_eq!(version(&user), PathBuf::from("versions").join(NEW));
    assert!(fs::symlink_metadata(&lock).is_err());
}

#[test]
fn a_new_key_comes_by_a_release_that_the_old_one_signed() {
    let user = with_old_version();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("release");
    release::copy(&path);
    let public = release::public(&release::new_key());
    release::list(&path, release::key(), &public);
    let installer = fs::read_to_string(path.join("install.sh")).unwrap();
    assert!(installer.contains(&format!("\nKEY='{public}'\n")), "the installer names the key that signed");
    works(user.pensieve(&path, &["update", "--install"]));
    assert_eq!(version(&user), PathBuf::from("versions").join(NEW));
}
