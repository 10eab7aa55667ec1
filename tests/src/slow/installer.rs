//! The installer of a release: in a file system without Rust, against everything that can go wrong, and from one version to
//! the next. The release is made by `.ci/release` of what the tests have built.

mod failures;
mod families;
mod full_disk;
mod release;
mod root;
mod updates;

use serde_json::json;
use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};
use tempfile::TempDir;

use crate::{cli::files, http::client::post};
use release::release;
use root::Root;

/// The promise of the installer, from the first byte of the script.
const FIRST_ANSWER_TIME_MAX: Duration = Duration::from_secs(60);

/// A user on this machine, with nothing installed.
struct User {
    home: TempDir,
}

impl User {
    fn new() -> Self {
        Self { home: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// A command with nothing in its environment but the user's home and the place of the releases.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>, releases: &Path) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", self.home.path()).stdin(Stdio::null());
        command.env("PENSIEVE_RELEASES", releases).current_dir(self.home.path());
        command
    }

    fn install(&self, releases: &Path, arguments: &[&str]) -> Output {
        self.command("sh", releases).arg(releases.join("install.sh")).args(arguments).output().unwrap()
    }

    fn pensieve(&self, releases: &Path, arguments: &[&str]) -> Output {
        self.command(self.path(".local/bin/pensieve"), releases).args(arguments).output().unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn works(output: Output) -> String {
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn a_release_is_installed_where_there_is_no_rust_and_answers_within_a_minute() {
    let Some(root) = Root::new(&["gzip", "xz"]) else { return };
    for (arguments, plugins) in [("", 4), ("--minimal", 3)] {
        let since = Instant::now();
        let line = format!(
            "export HOME=/srv/ada PATH=/srv/ada/.local/bin:/usr/bin:/bin PENSIEVE_RELEASES=/release\n\
             sh /release/install.sh {arguments} >&2 && exec pensieve serve --listen 127.0.0.1:0"
        );
        let mut child = root.shell(&line).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
        let address =
            said.trim_end().strip_prefix("pensieve is listening on http://").map(|text| text.parse().unwrap());
        let body =
            json!({"model": "any", "max_tokens": 60, "messages": [{"role": "user", "content": "list all files"}]});
        let answer = address.map(|address| post(address, "/v1/messages", &body));
        let took = since.elapsed();
        child.kill().unwrap();
        child.wait().unwrap();
        let answer = answer.unwrap_or_else(|| panic!("the server did not start: {said}"));
        assert!(answer.text().contains("ls -la"), "{answer:?}");
        assert!(took < FIRST_ANSWER_TIME_MAX, "the first answer took {took:?}");
        let installed = files(&root.path("srv/ada/.local/share/pensieve/versions"));
        assert_eq!(installed.iter().filter(|file| file.contains("lib/pensieve/")).count(), plugins, "{installed:?}");
        works(
            root.shell("HOME=/srv/ada PENSIEVE_RELEASES=/release sh /release/install.sh --uninstall").output().unwrap(),
        );
        assert!(!root.path("srv/ada/.local/share").exists(), "something is left");
    }
}

#[test]
fn without_xz_the_small_archive_unpacks_the_whole_one() {
    let Some(root) = Root::new(&["gzip"]) else { return };
    let line = "export HOME=/srv/ada PATH=/usr/bin:/bin PENSIEVE_RELEASES=file:///release\nsh /release/install.sh";
    let said = works(root.shell(line).output().unwrap());
    assert!(said.contains("the small archive comes first") && said.contains("is installed"), "{said}");
    let version = root.path("srv/ada/.local/share/pensieve/versions").join(env!("CARGO_PKG_VERSION"));
    let with_xz = User::new();
    works(with_xz.install(release(), &[]));
    let other = with_xz.path(".local/share/pensieve/current");
    assert_eq!(files(&version), files(&other));
    for file in files(&version) {
        assert_eq!(fs::read(version.join(&file)).unwrap(), fs::read(other.join(&file)).unwrap(), "{file}");
    }
}

#[test]
fn without_xz_another_version_is_whole_too() {
    let Some(root) = Root::new(&["gzip", "openssl"]) else { return };
    let version = env!("CARGO_PKG_VERSION");
    let installer = fs::read_to_string(release().join("install.sh")).unwrap();
    let older = installer.replace(&format!("OWN_VERSION='{version}'"), "OWN_VERSION='0.0.1'");
    assert_ne!(older, installer);
    fs::write(root.path("srv/ada/install.sh"), older).unwrap();
    let line = format!(
        "export HOME=/srv/ada PATH=/usr/bin:/bin PENSIEVE_RELEASES=/release\nsh /srv/ada/install.sh --version {version}"
    );
    let said = works(root.shell(&line).output().unwrap());
    assert!(said.contains("the small archive comes first") && said.contains("is installed"), "{said}");
    let installed = files(&root.path("srv/ada/.local/share/pensieve/versions"));
    assert_eq!(installed.iter().filter(|file| file.contains("lib/pensieve/")).count(), 4, "{installed:?}");
}

#[test]
fn only_the_service_of_this_installation_goes_with_it() {
    let user = User::new();
    let unit = user.path(".config/systemd/user/pensieve.service");
    let plist = user.path("Library/LaunchAgents/pensieve.plist");
    let (file, is_plist) = if cfg!(target_os = "macos") { (plist, true) } else { (unit, false) };
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    let own = user.home.path().canonicalize().unwrap().join(".local").display().to_string();
    for (prefix, stays) in [(format!("/opt{own}"), true), (own, false)] {
        works(user.install(release(), &["--minimal"]));
        let program = format!("{prefix}/share/pensieve/current/bin/pensieve");
        let command =
            if is_plist { format!("<string>{program}</string>") } else { format!("ExecStart={program} serve") };
        fs::write(&file, format!("# Written by 'pensieve service install'\n{command}\n")).unwrap();
        works(user.install(release(), &["--uninstall"]));
        assert_eq!(file.exists(), stays, "{command}");
    }
}

#[test]
fn another_version_is_installed_if_its_list_is_signed() {
    // A mirror with two versions, of which the older one's installer is at hand.
    let mirror = tempfile::tempdir().unwrap();
    let version = env!("CARGO_PKG_VERSION");
    let folder = mirror.path().join(format!("download/v{version}"));
    fs::create_dir_all(folder.parent().unwrap()).unwrap();
    release::copy(&folder);
    let installer = fs::read_to_string(folder.join("install.sh")).unwrap();
    let older = installer.replace(&format!("OWN_VERSION='{version}'"), "OWN_VERSION='0.0.1'");
    assert_ne!(older, installer);
    fs::write(mirror.path().join("install.sh"), older).unwrap();
    let user = User::new();
    works(user.install(mirror.path(), &["--minimal", "--version", version]));
    assert_eq!(works(user.pensieve(mirror.path(), &["--version"])).trim(), format!("pensieve {version}"));

    // The list is changed, and its signature with it, by somebody with another key.
    let sums = fs::read_to_string(folder.join("SHA256SUMS")).unwrap();
    for forged in [sums.replacen('a', "b", 1), sums.clone() + "\n"] {
        fs::write(folder.join("SHA256SUMS"), &forged).unwrap();
        let refused = User::new().install(mirror.path(), &["--version", version]);
        let said = text(&refused.stderr);
        assert!(
            !refused.status.success() && said.contains("signature of release") && said.contains("does not match"),
            "{said}"
        );
    }
    release::sign(&folder, &release::new_key(), &["SHA256SUMS"]);
    let refused = text(&User::new().install(mirror.path(), &["--version", version]).stderr);
    assert!(refused.contains("does not match"), "{refused}");
    // A signature of the right key for another document.
    fs::write(folder.join("SHA256SUMS"), fs::read(folder.join("release.json")).unwrap()).unwrap();
    fs::copy(folder.join("release.json.minisig"), folder.join("SHA256SUMS.minisig")).unwrap();
    let refused = text(&User::new().install(mirror.path(), &["--version", version]).stderr);
    assert!(refused.contains(&format!("release {version} has no archive")), "{refused}");
}
