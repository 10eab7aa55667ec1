//! Decides whether a file may become code in this user's processes: only if no user but this one and root can change it.
//!
//! The file itself and the folder it lies in must not be writable by a group or by others. Above the folder it is enough
//! that strangers cannot swap folders: group-writable homes of projects are common, and sticky folders such as `/tmp` let
//! no user rename what belongs to another. A group whose only member is this user counts as this user: many systems
//! give each user such a group, and let it write to whatever is built. On macOS the group of administrators counts as root, which
//! its members can become; Homebrew's folders are writable by it.
//!
//! A file that macOS has marked as downloaded (quarantined) is refused as well: the private copy would not have the mark, and would
//! run unseen by Gatekeeper.

use std::{
    fs::{File, Metadata},
    io::Read,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use pensieve_protocol::{
    outside::Outside,
    quarantine,
    refusal::{Refusal, RefusalKind},
};

const OTHERS_WRITE: u32 = 0o002;
const GROUP_WRITES: u32 = 0o020;
const ANYBODY_WRITES: u32 = OTHERS_WRITE | GROUP_WRITES;
const ACCOUNTS_BYTES_MAX: u64 = 16 << 20;
const STICKY: u32 = 0o1000;
/// The number of the group `admin` on every Mac.
const ADMINISTRATORS: u32 = 80;

/// Resolves a folder and checks it and all folders above it. None, if there is no such folder.
pub(super) fn folder(path: &Path) -> Result<Option<PathBuf>, Refusal> {
    let resolved = match path.canonicalize() {
        Ok(resolved) => resolved,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(path, &error)),
    };
    let metadata = resolved.metadata().map_err(|error| unreadable(path, &error))?;
    if !metadata.is_dir() {
        let reason = format!("'{}' is not a folder", Outside::path(&path));
        return Err(Refusal::new(RefusalKind::NotAFolder, reason, "name the folder that plugins lie in"));
    }
    check("plugin folder", &resolved, &metadata, ANYBODY_WRITES)?;
    for above in resolved.ancestors().skip(1) {
        let metadata = above.metadata().map_err(|error| unreadable(above, &error))?;
        let refused = if metadata.mode() & STICKY == 0 { OTHERS_WRITE } else { 0 };
        check("the plugin folder's parent", above, &metadata, refused)?;
    }
    Ok(Some(resolved))
}

/// Checks the permissions of an open plugin, and that it is not quarantined.
pub(super) fn file(path: &Path, file: &File, metadata: &Metadata) -> Result<(), Refusal> {
    check("plugin", path, metadata, ANYBODY_WRITES)?;
    refuse_marked(path, file, quarantine::ATTRIBUTE)
}

fn refuse_marked(path: &Path, file: &File, attribute: &str) -> Result<(), Refusal> {
    if rustix::fs::fgetxattr_query(file, attribute).is_err() {
        return Ok(());
    }
    let reason = format!("plugin '{}' {}", Outside::path(&path), quarantine::REASON);
    Err(Refusal::new(RefusalKind::Quarantined, reason, quarantine::help(path)))
}

fn check(what: &str, path: &Path, metadata: &Metadata, refused: u32) -> Result<(), Refusal> {
    let own = rustix::process::geteuid().as_raw();
    if metadata.uid() != own && metadata.uid() != 0 {
        let reason = format!("{what} '{}' belongs to another user (id {})", Outside::path(&path), metadata.uid());
        return Err(Refusal::new(RefusalKind::Untrusted, reason, "copy the plugin into a folder of your own"));
    }
    let group = metadata.gid();
    let is_trusted = || is_administrators(group, cfg!(target_os = "macos")) || is_own_group(group);
    if is_written_by_strangers(metadata.mode() & refused, is_trusted) {
        let mode = metadata.mode() & 0o7777;
        let reason = format!("{what} '{}' is writable by others (mode {mode:04o})", Outside::path(&path));
        return Err(Refusal::new(
            RefusalKind::Untrusted,
            reason,
            "take the right to write to it from others: chmod go-w",
        ));
    }
    Ok(())
}

/// `written` has the bits of those who may write, other than the owner.
fn is_written_by_strangers(written: u32, is_trusted_group: impl FnOnce() -> bool) -> bool {
    match written {
        0 => false,
        GROUP_WRITES => !is_trusted_group(),
        _ => true,
    }
}

/// Elsewhere the same number may mean any group.
fn is_administrators(group: u32, on_macos: bool) -> bool {
    on_macos && group == ADMINISTRATORS
}

/// True if a group has this user's name and no other member, as far as this machine's own lists tell. The lists are
/// read by hand: the system's functions, which crates wrap, may ask servers elsewhere, and tell nothing of other users.
fn is_own_group(group: u32) -> bool {
    let read = |path: &str| {
        let mut text = String::new();
        let read = File::open(path).and_then(|file| file.take(ACCOUNTS_BYTES_MAX).read_to_string(&mut text));
        read.map(|_| text).unwrap_or_default()
    };
    is_group_of_one(&read("/etc/passwd"), &read("/etc/group"), rustix::process::geteuid().as_raw(), group)
}

fn is_group_of_one(users: &str, groups: &str, own: u32, group: u32) -> bool {
    // NAME:PASSWORD:USER:GROUP:… and NAME:PASSWORD:GROUP:MEMBER,MEMBER
    let field = |line: &str, place: usize| line.split(':').nth(place).map(str::to_owned).unwrap_or_default();
    let is = |line: &&str, place: usize, number: u32| field(line, place).parse() == Ok(number);
    let mut primary = users.lines().filter(|line| is(line, 3, group)).peekable();
    let listed: Vec<&str> = groups.lines().filter(|line| is(line, 2, group)).collect();
    let names: Vec<String> = users.lines().filter(|line| is(line, 2, own)).map(|line| field(line, 0)).collect();
    let members = listed.iter().flat_map(|line| line.split(':').nth(3).unwrap_or_default().split(','));
    let mut members = members.map(str::trim).filter(|name| !name.is_empty());
    primary.peek().is_some()
        && primary.all(|line| is(&line, 2, own))
        && matches!(listed[..], [line] if names.contains(&field(line, 0)))
        && members.all(|member| names.iter().any(|name| name == member))
}

fn unreadable(path: &Path, error: &std::io::Error) -> Refusal {
    let reason = format!("plugin folder '{}' cannot be read: {error}", Outside::path(&path));
    Refusal::new(RefusalKind::Unreadable, reason, "check that this user may read it")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::{
        fs::{self, Permissions},
        os::unix::fs::PermissionsExt,
    };

    /// True if a folder of this mode, in a folder of that mode, is accepted.
    fn check_folder(mode: u32, above: u32) -> Result<Option<PathBuf>, Refusal> {
        let root = tempfile::tempdir().unwrap();
        let plugins = root.path().join("plugins");
        fs::create_dir(&plugins).unwrap();
        fs::set_permissions(&plugins, Permissions::from_mode(mode)).unwrap();
        fs::set_permissions(root.path(), Permissions::from_mode(above)).unwrap();
        folder(&plugins)
    }

    #[test]
    fn takes_a_folder_that_only_its_owner_writes_to() {
        check_folder(0o700, 0o700).unwrap().unwrap();
        check_folder(0o755, 0o775).unwrap().unwrap();
        check_folder(0o755, 0o1777).unwrap().unwrap();
    }

    #[test]
    fn refuses_folders_that_others_write_to_and_says_how_to_mend_them() {
        for (mode, above) in [(0o777, 0o755), (0o772, 0o755), (0o1777, 0o755), (0o755, 0o777)] {
            let refusal = check_folder(mode, above).unwrap_err();
            assert_eq!(refusal.kind, RefusalKind::Untrusted);
            assert!(refusal.reason.contains("is writable by others (mode "), "{refusal}");
            assert!(refusal.help.contains("chmod go-w"), "{refusal}");
        }
    }

    #[test]
    fn administrators_of_a_mac_may_write_to_homebrews_folders() {
        // /opt/homebrew/bin is 0775 and belongs to the group admin.
        let is_refused = |mode, group, on_macos| {
            is_written_by_strangers(mode & ANYBODY_WRITES, || is_administrators(group, on_macos))
        };
        assert!(!is_refused(0o775, 80, true));
        assert!(is_refused(0o775, 80, false), "elsewhere the group may be anybody's");
        assert!(is_refused(0o775, 20, true), "all users of a Mac are in the group staff");
        assert!(is_refused(0o777, 80, true) && is_refused(0o757, 80, true));
        assert!(!is_refused(0o755, 20, true));
    }

    #[test]
    fn a_marked_file_is_refused_with_the_command_that_takes_the_mark_away() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("it's.dylib");
        let file = File::create(&path).unwrap();
        // Linux knows no attributes but those of its own classes.
        let attribute = "user.quarantine";
        refuse_marked(&path, &file, attribute).unwrap();
        if rustix::fs::fsetxattr(&file, attribute, b"0083;65a0;Safari;", rustix::fs::XattrFlags::empty()).is_err() {
            return println!("SKIPPED: files in {} can have no attributes", root.path().display());
        }
        let refusal = refuse_marked(&path, &file, attribute).unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::Quarantined);
        let quoted = path.display().to_string().replace('\'', r"'\''");
        assert!(refusal.help.contains(&format!("xattr -d com.apple.quarantine '{quoted}'")), "{refusal}");
    }

    #[test]
    fn a_group_of_one_is_its_user() {
        let users =
            "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/srv/ann:/bin/sh\nbob:x:1001:1001:::\ncid:x:1002:100:::\n";
        let groups = "root:x:0:\nann:x:1000:\nbob:x:1001:bob,ann\nusers:x:100:\nwheel:x:10:ann\nodd:x:1003";
        let check = |own, group| is_group_of_one(users, groups, own, group);
        assert!(check(1000, 1000));
        assert!(check(0, 0));
        assert!(!check(1001, 1001), "ann is in it too");
        assert!(!check(1000, 1001) && !check(1001, 1000), "it is somebody else's");
        assert!(!check(1000, 10), "it is nobody's first group: others may be given it at any time");
        assert!(!check(1000, 1003) && !check(1000, 9999), "nothing is known of it");
        assert!(!check(1002, 100), "it is meant for many");
        assert!(!is_group_of_one("", "", 1000, 1000));
    }

    #[test]
    fn a_missing_folder_is_no_error() {
        assert_eq!(folder(Path::new("/nowhere/plugins")).unwrap(), None);
    }
}
