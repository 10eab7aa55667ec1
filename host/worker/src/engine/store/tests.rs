//! The disk tier over real files, whole and damaged.

use super::*;

const TOKENS: usize = 4;
const BYTES: usize = 100;

fn open(folder: &Path, budget: u64) -> io::Result<Store> {
    Store::open(&DiskTier { folder: folder.into(), bytes: budget }, "a model", TOKENS, vec![BYTES])
}

fn record(number: u32) -> Record {
    let (key, parent) = (Key(u128::from(number) << 64), Key(7));
    Record {
        key,
        group: 0,
        parent,
        depth: number,
        tokens: [number; TOKENS].into(),
        media: (number % 2 == 1).then_some([7; 32]),
    }
}

fn block(number: u32) -> Vec<u8> {
    (0..BYTES as u32).map(|byte| (byte * number) as u8).collect()
}

fn file_of(store: &Store, number: u32) -> PathBuf {
    store.path(record(number).key, 0)
}

#[test]
fn blocks_come_back_after_a_restart_in_the_order_of_their_last_use() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(folder.path(), 1 << 20).unwrap();
    for number in 0..4 {
        store.write(&record(number), &block(number)).unwrap();
        let used = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1000 + u64::from(number));
        File::options().write(true).open(file_of(&store, number)).unwrap().set_modified(used).unwrap();
    }
    let mut bytes = vec![0; BYTES];
    store.read(record(1).key, 0, &mut bytes).unwrap();
    assert_eq!(bytes, block(1));
    let secret = *store.secret();
    drop(store);

    let store = open(folder.path(), 1 << 20).unwrap();
    assert_eq!(*store.secret(), secret);
    assert_eq!(store.records().unwrap(), [record(0), record(2), record(3), record(1)]);
    store.remove(record(2).key, 0);
    assert_eq!(store.records().unwrap(), [record(0), record(3), record(1)]);
    assert!(store.read(record(2).key, 0, &mut bytes).is_err());
}

#[test]
fn a_block_that_differs_by_one_bit_is_never_read() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(folder.path(), 1 << 20).unwrap();
    store.write(&record(3), &block(3)).unwrap();
    let whole = fs::read(file_of(&store, 3)).unwrap();
    assert_eq!(whole.len(), file::header_bytes(TOKENS) + BYTES);
    for place in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[place] ^= 1 << (place % 8);
        fs::write(file_of(&store, 3), &damaged).unwrap();
        assert!(store.read(record(3).key, 0, &mut [0; BYTES]).is_err(), "byte {place}");
    }
    fs::write(file_of(&store, 3), &whole).unwrap();
    store.read(record(3).key, 0, &mut [0; BYTES]).unwrap();
}

#[test]
fn what_is_no_whole_block_is_deleted_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(folder.path(), 1 << 20).unwrap();
    for number in 1..5 {
        store.write(&record(number), &block(number)).unwrap();
    }
    let files: Vec<PathBuf> = (1..5).map(|number| file_of(&store, number)).collect();
    File::options().write(true).open(&files[0]).unwrap().set_len(150).unwrap();
    let mut damaged = fs::read(&files[1]).unwrap();
    damaged[30] ^= 1;
    fs::write(&files[1], damaged).unwrap();
    fs::rename(&files[2], store.folder.join("0123")).unwrap();
    fs::write(store.folder.join("partial"), "half").unwrap();
    assert_eq!(store.records().unwrap(), [record(4)]);
    let mut left: Vec<_> = fs::read_dir(&store.folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, [files[3].file_name().unwrap(), "lock".as_ref()]);
}

#[test]
fn one_worker_at_a_time_has_a_models_folder_and_others_have_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(folder.path(), 1 << 20).unwrap();
    let mut next = open(folder.path(), 1 << 20).unwrap();
    assert_eq!((first.is_taken(), next.is_taken(), next.take().unwrap()), (true, false, false));
    let tier = DiskTier { folder: folder.path().into(), bytes: 1 << 20 };
    let other = Store::open(&tier, "another model", TOKENS, vec![BYTES]).unwrap();
    assert_ne!(first.folder, other.folder);
    assert_eq!(first.secret(), other.secret());
    drop(first);
    assert!(next.take().unwrap() && next.is_taken());
    assert!(!open(folder.path(), 1 << 20).unwrap().is_taken());
}

#[test]
fn a_worker_waits_a_little_for_the_one_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(folder.path(), 1 << 20).unwrap();
    let mut next = open(folder.path(), 1 << 20).unwrap();
    assert!(!next.take_within(Duration::from_millis(50)).unwrap());
    let ends = thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        drop(first);
    });
    assert!(next.take_within(Duration::from_secs(60)).unwrap() && next.is_taken());
    ends.join().unwrap();
}

#[test]
fn what_no_worker_has_opened_for_weeks_is_deleted_unless_one_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let tier = DiskTier { folder: folder.path().into(), bytes: 1 << 20 };
    let of = |identity: &str| Store::open(&tier, identity, TOKENS, vec![BYTES]).unwrap();
    let mut replaced = of("replaced");
    replaced.write(&record(1), &block(1)).unwrap();
    let gone = replaced.folder.clone();
    drop(replaced);
    let (recent, busy) = (of("recent").folder.clone(), of("busy"));
    for folder in [&gone, &busy.folder] {
        let lock = File::options().write(true).open(folder.join(LOCK)).unwrap();
        lock.set_modified(SystemTime::now() - UNUSED_MAX - Duration::from_secs(60)).unwrap();
    }
    let current = of("current");
    assert_eq!((gone.exists(), recent.exists(), busy.folder.exists()), (false, true, true));
    assert!(current.folder.exists() && folder.path().join("secret").exists());
}

#[test]
fn each_group_has_files_of_its_own_length() {
    let folder = tempfile::tempdir().unwrap();
    let tier = DiskTier { folder: folder.path().into(), bytes: 1 << 20 };
    let mut store = Store::open(&tier, "a model", TOKENS, vec![BYTES, 7]).unwrap();
    let state = Record { group: 1, ..record(3) };
    store.write(&record(3), &block(3)).unwrap();
    store.write(&state, &[9; 7]).unwrap();
    let (mut bytes, mut other) = (vec![0; BYTES], vec![0; 7]);
    store.read(state.key, 0, &mut bytes).unwrap();
    store.read(state.key, 1, &mut other).unwrap();
    assert_eq!((bytes, other), (block(3), vec![9; 7]));
    assert!(store.read(state.key, 1, &mut [0; BYTES]).is_err(), "a length of another group");
    assert_eq!(store.records().unwrap().len(), 2);
    let length = fs::metadata(store.path(state.key, 1)).unwrap().len();
    assert_eq!((length, store.budget()), (store.file_bytes(1), 1 << 20));
    store.remove(state.key, 0);
    assert_eq!(store.records().unwrap(), [state]);
}

#[test]
fn nobody_else_may_look_into_the_folder() {
    use std::os::unix::fs::PermissionsExt;
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("cache");
    let store = open(&folder, 1).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&folder), mode(&store.folder), mode(&folder.join("secret"))), (0o700, 0o700, 0o600));
}

#[test]
fn a_secret_that_is_not_whole_is_replaced_and_the_cache_works_on() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(folder.path(), 1 << 20).unwrap();
    store.write(&record(1), &block(1)).unwrap();
    let before = *store.secret();
    drop(store);
    for damage in [&b""[..], b"short", b"longer than sixteen bytes"] {
        fs::write(folder.path().join("secret"), damage).unwrap();
        let mut store = open(folder.path(), 1 << 20).unwrap();
        assert_ne!(*store.secret(), before);
        assert_eq!(store.records().unwrap(), [], "blocks of another secret are deleted");
        store.write(&record(2), &block(2)).unwrap();
        let secret = *store.secret();
        drop(store);
        let store = open(folder.path(), 1 << 20).unwrap();
        assert_eq!((*store.secret(), store.records().unwrap()), (secret, vec![record(2)]));
    }
}

#[test]
fn workers_that_start_together_have_one_secret() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("secret"), "").unwrap();
    let read = || secret::read_or_make(folder.path()).unwrap();
    let secrets: Vec<[u8; 16]> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(read)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(secrets.iter().all(|secret| *secret == secrets[0]), "{secrets:?}");
}

#[test]
fn a_folder_in_which_others_may_write_is_not_used() {
    use std::os::unix::fs::{PermissionsExt, chown};
    let folder = tempfile::tempdir().unwrap();
    let with = |mode| {
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
        open(folder.path(), 1 << 20).map(drop).map_err(|error| error.to_string())
    };
    for mode in [0o777, 0o1777, 0o720] {
        assert!(with(mode).unwrap_err().contains("is writable by others (mode "), "{mode:o}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    for mode in [0o700, 0o755] {
        assert_eq!(with(mode), Ok(()), "{mode:o}");
    }
    // Only root can chown the folder, and then reads it as if it were its own.
    if chown(folder.path(), Some(65_534), None).is_ok() {
        assert!(with(0o700).unwrap_err().contains("belongs to another user (id 65534)"));
    }
}
