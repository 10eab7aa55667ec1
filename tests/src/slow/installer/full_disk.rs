//! Disks that are really full or read-only, in a file system of the test's own: what does not fit is said, and nothing stays.

use std::fs;

use super::{release, root::Root, text};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The size of the small archive, and of what is in it.
fn sizes() -> (u64, u64) {
    let name = format!("pensieve-{VERSION}-{}-{}.json", std::env::consts::OS, std::env::consts::ARCH);
    let facts: serde_json::Value = serde_json::from_slice(&fs::read(release::release().join(name)).unwrap()).unwrap();
    let minimal = facts.as_array().unwrap().iter().find(|archive| archive["kind"] == "minimal").unwrap();
    (minimal["bytes"].as_u64().unwrap(), minimal["unpacked_bytes"].as_u64().unwrap())
}

/// Installs on a disk like this, which is refused with these words and leaves nothing there.
fn refused_on(root: &Root, disk: &str, arguments: &str, words: &[&str]) {
    let line = format!(
        "export HOME=/srv/ada PATH=/usr/bin:/bin PENSIEVE_RELEASES=/release\n\
         sh {arguments} && echo installed\necho left: $(ls -A /srv/ada)"
    );
    let tried = root.shell_on(disk, &line).output().unwrap();
    let (said, errors) = (text(&tried.stdout), text(&tried.stderr));
    assert!(said.ends_with("left:\n") && !said.contains("installed"), "{disk}: {said}{errors}");
    let last = errors.lines().last().unwrap_or_default();
    assert!(last.starts_with("install.sh: "), "{disk}: {errors}");
    for words in words {
        assert!(last.contains(words), "{disk}: '{words}' is not in the last line of: {errors}");
    }
}

#[test]
fn a_disk_that_is_really_full_is_said_and_nothing_stays() {
    let Some(root) = Root::new(&["gzip", "openssl"]) else { return };
    let (packed, unpacked) = sizes();
    let mib = |bytes: u64| bytes >> 20;
    // It is known beforehand that it does not fit.
    let small = format!("size={}m", mib(packed + unpacked / 2));
    refused_on(&root, &small, "/release/install.sh --minimal", &["MiB are needed in '/srv/ada/.local", " are free"]);
    // The list of another version has no sizes, so the disk is full while it is written: by the archive, or by what is in it.
    let installer = fs::read_to_string(release::release().join("install.sh")).unwrap();
    let older = installer.replace(&format!("OWN_VERSION='{VERSION}'"), "OWN_VERSION='0.0.1'");
    fs::write(root.path("tmp/install.sh"), older).unwrap();
    let other = format!("/tmp/install.sh --minimal --version {VERSION}");
    let smaller = format!("size={}m", mib(packed) / 2 + 2);
    refused_on(&root, &smaller, &other, &["cannot be copied: the disk is full"]);
    refused_on(&root, &small, &other, &["cannot be unpacked: the disk is full"]);
    // There is room, but for no more files.
    let files = format!("size={}m,nr_inodes=14", mib(packed + unpacked) + 16);
    refused_on(&root, &files, "/release/install.sh --minimal", &["cannot be unpacked: "]);
    refused_on(&root, "size=64m,ro", "/release/install.sh --minimal", &["'/srv/ada/.local' cannot be made"]);
}

#[test]
fn a_folder_that_may_not_be_written_is_said_and_stays_as_it_is() {
    let Some(root) = Root::new(&["gzip", "chmod"]) else { return };
    for (made, closed, words) in [
        ("/srv/ada", "/srv/ada", "'/srv/ada/.local' cannot be made: is '/srv/ada' yours"),
        ("/srv/ada/.local/bin", "/srv/ada/.local/bin", "'/srv/ada/.local/bin' cannot be written to"),
        ("/srv/ada/.local/share/pensieve/versions", "/srv/ada/.local/share/pensieve/versions", "cannot be written to"),
    ] {
        let line = format!(
            "export HOME=/srv/ada PATH=/usr/bin:/bin PENSIEVE_RELEASES=/release\nrm -rf /srv/ada\nmkdir -p {made}\n\
             ls -AR /srv/ada >/tmp/before\nchmod 555 {closed}\nsh /release/install.sh --minimal && echo installed\n\
             chmod 755 {closed}\nls -AR /srv/ada >/tmp/after"
        );
        let tried = root.shell_without_rights(&line).output().unwrap();
        let (said, errors) = (text(&tried.stdout), text(&tried.stderr));
        assert!(!said.contains("installed"), "{closed}: {said}{errors}");
        assert!(errors.lines().last().is_some_and(|last| last.contains(words)), "{closed}: {errors}");
        let listed = |name: &str| fs::read_to_string(root.path(name)).unwrap();
        assert_eq!(listed("tmp/after"), listed("tmp/before"), "{closed}: something is left");
    }
}

#[test]
fn a_package_that_does_not_fit_on_the_disk_leaves_no_trace() {
    let Some(root) = Root::new(&["gzip"]) else { return };
    let package = format!("rwkv-{VERSION}.pensieve");
    fs::copy(release::index().join(&package), root.path("tmp").join(&package)).unwrap();
    let line = format!(
        "export HOME=/tmp/bob PATH=/usr/bin:/bin PENSIEVE_RELEASES=/release PENSIEVE_HOME=/srv/ada/own\nmkdir /tmp/bob\n\
         sh /release/install.sh --minimal >&2 || exit 1\n\
         /tmp/bob/.local/bin/pensieve plugins add /tmp/{package}\necho code $?\n\
         echo left: $(ls -A /srv/ada/own/plugins /srv/ada/own/plugins.lock /srv/ada/own/trust.json 2>/dev/null)"
    );
    let tried = root.shell_on("size=2m", &line).output().unwrap();
    let (said, errors) = (text(&tried.stdout), text(&tried.stderr));
    assert!(said == "code 6\nleft:\n" || said == "code 6\nleft: /srv/ada/own/plugins:\n", "{said}{errors}");
    assert!(errors.ends_with("pensieve: the library of 'rwkv': no storage space\n"), "{errors}");
}
