//! Copies over the lives of several servers: who may delete one, and what stays.

#![allow(clippy::unwrap_used)]

use super::{
    expiry::{UNLOCKED_AGE_MAX, UNUSED_AGE_MAX},
    *,
};
use std::time::{Duration, SystemTime};

fn stamp(path: &Path) -> Stamp {
    Stamp::of(&path.metadata().unwrap())
}

fn copies(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

#[test]
fn keeps_the_old_content_when_the_file_is_written_over() {
    let root = tempfile::tempdir().unwrap();
    let (source, folder) = (root.path().join("libx.so"), root.path().join("cache"));
    let cache = Cache::open(&folder, 1 << 20).unwrap();
    fs::write(&source, b"one").unwrap();
    let one = cache.take(&source, stamp(&source)).unwrap();
    assert_eq!(one.sha256(), "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed");
    fs::write(&source, b"three").unwrap();
    let three = cache.take(&source, stamp(&source)).unwrap();
    assert_eq!(fs::read(one.path()).unwrap(), b"one");
    assert_eq!(fs::read(three.path()).unwrap(), b"three");
    assert_eq!(folder.metadata().unwrap().mode() & 0o777, 0o700);
}

#[test]
fn removes_a_copy_once_its_last_user_has_let_go() {
    let root = tempfile::tempdir().unwrap();
    let (source, folder) = (root.path().join("libx.so"), root.path().join("cache"));
    fs::write(&source, b"one").unwrap();
    let (cache, other) = (Cache::open(&folder, 9).unwrap(), Cache::open(&folder, 9).unwrap());
    let first = cache.take(&source, stamp(&source)).unwrap();
    let second = other.take(&source, stamp(&source)).unwrap();
    assert_eq!((first.path(), copies(&folder)), (second.path(), 1));
    drop(first);
    cache.sweep();
    assert_eq!(copies(&folder), 1, "the second user still has it");
    cache.sweep();
    drop(second);
    assert_eq!(copies(&folder), 1, "dropping a copy deletes nothing");
    cache.sweep();
    assert_eq!(copies(&folder), 1, "it is the other server's to delete");
    other.sweep();
    assert_eq!(copies(&folder), 0);
    let _third = cache.take(&source, stamp(&source)).unwrap();
    drop(cache);
    assert_eq!(copies(&folder), 0, "a server that ends takes copies with it that were no plugins");
}

#[test]
fn sweeps_what_a_killed_server_left_and_spares_what_is_in_use() {
    let root = tempfile::tempdir().unwrap();
    let (source, folder) = (root.path().join("libx.so"), root.path().join("cache"));
    fs::write(&source, b"one").unwrap();
    let cache = Cache::open(&folder, 9).unwrap();
    let used = cache.take(&source, stamp(&source)).unwrap();
    fs::write(folder.join("left.so"), b"left").unwrap();
    let partial = File::create(folder.join(".1-0.partial")).unwrap();
    partial.set_modified(SystemTime::now() - 2 * UNLOCKED_AGE_MAX).unwrap();
    drop(partial);
    Cache::open(&folder, 9).unwrap();
    assert_eq!(copies(&folder), 1);
    assert!(used.path().exists());
}

#[test]
fn leaves_a_damaged_copy_alone_and_makes_another() {
    let root = tempfile::tempdir().unwrap();
    let (source, folder) = (root.path().join("libx.so"), root.path().join("cache"));
    fs::write(&source, b"one").unwrap();
    let cache = Cache::open(&folder, 9).unwrap();
    let damaged = cache.take(&source, stamp(&source)).unwrap();
    fs::remove_file(damaged.path()).unwrap();
    fs::write(damaged.path(), b"two").unwrap();
    // A server that uses it has it locked.
    let user = File::open(damaged.path()).unwrap();
    user.lock_shared().unwrap();
    let sound = cache.take(&source, stamp(&source)).unwrap();
    drop(user);
    assert_eq!(fs::read(sound.path()).unwrap(), b"one");
    assert_eq!(fs::read(damaged.path()).unwrap(), b"two");
    drop((damaged, sound));
    cache.sweep();
    assert_eq!(copies(&folder), 1, "the damaged one is looked at when its content is wanted again");
    let healed = cache.take(&source, stamp(&source)).unwrap();
    assert_eq!((copies(&folder), fs::read(healed.path()).unwrap()), (1, b"one".to_vec()));
}

/// Many servers that start and end at once: each must find the copy that it was given, for as long as it has it.
#[test]
fn a_copy_stays_while_other_users_take_and_release_theirs() {
    const USERS: usize = 8;
    const ROUNDS: usize = 200;
    let root = tempfile::tempdir().unwrap();
    let (source, folder) = (root.path().join("libx.so"), root.path().join("cache"));
    fs::write(&source, b"one").unwrap();
    let stamp = stamp(&source);
    let take_and_release = || {
        let lost = (0..ROUNDS).filter(|_| {
            // Every round opens the cache as a server does that has just started.
            let cache = Cache::open(&folder, 9).unwrap();
            let copy = cache.take(&source, stamp).unwrap();
            std::thread::yield_now();
            fs::read(copy.path()).ok().as_deref() != Some(b"one".as_slice())
        });
        lost.count()
    };
    let lost: usize = std::thread::scope(|scope| {
        let users: Vec<_> = (0..USERS).map(|_| scope.spawn(take_and_release)).collect();
        users.into_iter().map(|user| user.join().unwrap()).sum()
    });
    assert_eq!(lost, 0, "of {} copies", USERS * ROUNDS);
    Cache::open(&folder, 9).unwrap();
    assert_eq!(copies(&folder), 0);
}

#[test]
fn a_plugin_is_copied_once_for_all_servers_that_come_after() {
    let root = tempfile::tempdir().unwrap();
    let (source, folder) = (root.path().join("libx.so"), root.path().join("cache"));
    fs::write(&source, b"one").unwrap();
    let first = Cache::open(&folder, 9).unwrap();
    let copy = first.take(&source, stamp(&source)).unwrap();
    assert!(copy.is_new());
    copy.stay();
    // As after a change of the file's times.
    let again = first.take(&source, stamp(&source)).unwrap();
    assert!(!again.is_new());
    let identity = |path: &Path| (path.metadata().unwrap().ino(), path.metadata().unwrap().modified().unwrap());
    let (path, before) = (copy.path().to_owned(), identity(copy.path()));
    drop((copy, again, first));
    let second = Cache::open(&folder, 9).unwrap();
    second.sweep();
    let copy = second.take(&source, stamp(&source)).unwrap();
    assert!(!copy.is_new());
    assert_eq!((copy.path(), identity(copy.path())), (&*path, before));
    // A new version replaces it while that server runs.
    fs::write(&source, b"three").unwrap();
    drop(copy);
    let copy = second.take(&source, stamp(&source)).unwrap();
    copy.stay();
    second.sweep();
    drop((copy, second));
    let left: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| fs::read(entry.unwrap().path()).unwrap()).collect();
    assert_eq!(left, [b"three"]);
}

#[test]
fn a_copy_that_was_damaged_between_two_servers_is_written_anew() {
    let root = tempfile::tempdir().unwrap();
    let (source, folder) = (root.path().join("libx.so"), root.path().join("cache"));
    fs::write(&source, b"one").unwrap();
    let cache = Cache::open(&folder, 9).unwrap();
    let copy = cache.take(&source, stamp(&source)).unwrap();
    copy.stay();
    let path = copy.path().to_owned();
    drop((copy, cache));
    fs::remove_file(&path).unwrap();
    // As after a power failure: the length is right, and the content is not.
    fs::write(&path, b"\0\0\0").unwrap();
    let cache = Cache::open(&folder, 9).unwrap();
    let copy = cache.take(&source, stamp(&source)).unwrap();
    assert_eq!((copy.path(), fs::read(copy.path()).unwrap()), (&*path, b"one".to_vec()));
    assert!(copy.is_new());
}

#[test]
fn unused_copies_go_with_age_and_when_there_are_too_many() {
    let copy = |number: u8, days: u64| Unused {
        path: format!("/cache/{number:064x}{}", std::env::consts::DLL_SUFFIX).into(),
        bytes: 10,
        age: Duration::from_secs(days * 24 * 3600),
    };
    let numbers = |expired: Vec<PathBuf>| -> Vec<String> {
        let name =
            |path: PathBuf| digest(&path).map_or_else(|| path.display().to_string(), |digest| digest[62..].into());
        expired.into_iter().map(name).collect()
    };
    let copies = || vec![copy(1, 3), copy(2, 1), copy(3, 2), copy(4, 31)];
    assert_eq!(numbers(expired(copies(), 40)), ["04"], "none is too much, one is too old");
    assert_eq!(numbers(expired(copies(), 20)), ["01", "04"], "the one that was used longest ago goes first");
    let age = UNUSED_AGE_MAX - Duration::from_secs(1);
    assert!(expired(vec![Unused { age, ..copy(1, 0) }], 10).is_empty());
    let other = |name: &str, age| Unused { path: PathBuf::from("/cache").join(name), bytes: 0, age };
    let second = Duration::from_secs(1);
    let others = vec![other(".1-0.partial", second), other(".2-0.partial", UNLOCKED_AGE_MAX), other("left", second)];
    assert_eq!(numbers(expired(others, 10)), ["/cache/left", "/cache/.2-0.partial"]);
}

#[test]
fn refuses_what_is_too_large_or_writable_by_others_or_has_changed() {
    let root = tempfile::tempdir().unwrap();
    let (source, folder) = (root.path().join("libx.so"), root.path().join("cache"));
    fs::write(&source, b"0123456789").unwrap();
    let cache = Cache::open(&folder, 9).unwrap();
    let refusal = |found| match found {
        Err(CopyError::Refused(refusal)) => refusal.kind,
        other => panic!("{other:?}"),
    };
    assert_eq!(refusal(cache.take(&source, stamp(&source))), RefusalKind::TooLarge);
    fs::write(&source, b"0").unwrap();
    fs::set_permissions(&source, Permissions::from_mode(0o666)).unwrap();
    assert_eq!(refusal(cache.take(&source, stamp(&source))), RefusalKind::Untrusted);
    let old = stamp(&source);
    fs::write(&source, b"01").unwrap();
    assert!(matches!(cache.take(&source, old), Err(CopyError::Changed)));
    assert_eq!(copies(&folder), 0);
}

#[test]
fn a_copy_without_room_names_the_folder_and_what_is_missing() {
    let root = tempfile::tempdir().unwrap();
    let (source, folder) = (root.path().join("libx.so"), root.path().join("cache"));
    fs::write(&source, vec![7; 3 << 20]).unwrap();
    let mut cache = Cache::open(&folder, 1 << 30).unwrap();
    cache.free_bytes_of = |_| Some(1 << 20);
    let CopyError::Refused(refusal) = cache.take(&source, stamp(&source)).unwrap_err() else { panic!("refused") };
    assert_eq!((&refusal.kind, copies(&folder)), (&RefusalKind::NoSpace, 0));
    let folder_shown = folder.canonicalize().unwrap().display().to_string();
    let expected = format!(
        "the private copy of plugin 'libx.so' finds no room in '{folder_shown}': it takes 3.0 MiB, and 1.0 MiB are free"
    );
    assert_eq!(refusal.reason, expected);
    // A copy that is there already needs no more room.
    cache.free_bytes_of = |_| None;
    let first = cache.take(&source, stamp(&source)).unwrap();
    cache.free_bytes_of = |_| Some(0);
    assert_eq!(cache.take(&source, stamp(&source)).unwrap().path(), first.path());
}
