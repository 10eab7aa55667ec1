//! Files dropped into a plugin folder while the server's side is running: each becomes a plugin or a refusal with a
//! reason, and none affects this process, which plays the server.

use pensieve_protocol::{checkpoint::CheckpointName, refusal::RefusalKind};
use pensieve_server::fleet::plugins::{Catalogue, PluginFolder, PluginState, Settings, Status};
use std::{
    fs::{self, File, Permissions},
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use tempfile::TempDir;

use crate::{
    artifacts::{library_name, outside_plugin, plugin, program, test_plugin},
    processes,
    random::Random,
};

/// Time limit of anything here on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A home with two watched plugin folders.
struct Home {
    root: TempDir,
    folder: PluginFolder,
}

impl Home {
    async fn open() -> Self {
        Self::open_with(|_, _| ()).await
    }

    /// Prepares folders or settings before watching starts.
    async fn open_with(prepare: impl FnOnce(&Path, &mut Settings)) -> Self {
        let root = tempfile::tempdir().unwrap();
        let mut settings = Settings::new(&[], root.path());
        settings.folders = vec![root.path().join("first"), root.path().join("second")];
        settings.folders.iter().for_each(|folder| fs::create_dir(folder).unwrap());
        settings.program = program();
        settings.limits.settle = Duration::from_millis(100);
        settings.limits.patience = Duration::from_millis(400);
        prepare(root.path(), &mut settings);
        let folder = PluginFolder::open(settings).await.unwrap();
        Self { root, folder }
    }

    /// The file of a library in the first folder.
    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join("first").join(library_name(name))
    }

    /// Puts a complete file into the first folder at once, as a download manager would.
    fn put(&self, name: &str, bytes: &[u8]) {
        let partial = self.root.path().join("partial");
        fs::write(&partial, bytes).unwrap();
        fs::rename(partial, self.path(name)).unwrap();
    }

    /// Waits until the catalogue looks as expected.
    async fn until(&self, what: &str, holds: impl Fn(&Catalogue) -> bool) -> Arc<Catalogue> {
        let mut changes = self.folder.subscribe();
        let wait = changes.wait_for(|catalogue| holds(catalogue));
        let found = tokio::time::timeout(PATIENCE, wait).await.map(|found| found.unwrap().clone());
        found.unwrap_or_else(|_| panic!("not {what}: {:#?}", self.folder.snapshot()))
    }

    /// Waits for the verdict on a file.
    async fn verdict(&self, name: &str) -> PluginState {
        let path = self.path(name);
        let decided =
            |catalogue: &Catalogue| state(catalogue, &path).is_some_and(|state| state.status != Status::Pending);
        let catalogue = self.until(&format!("decided about {name}"), decided).await;
        state(&catalogue, &path).unwrap().clone()
    }

    /// Waits until a file is refused, by name and with help; returns the kind of reason.
    async fn refusal(&self, name: &str) -> String {
        match self.verdict(name).await.status {
            Status::Rejected(refusal) => {
                assert!(refusal.reason.contains(&library_name(name)) && !refusal.help.is_empty(), "{refusal}");
                refusal.kind.as_str().to_owned()
            }
            other => panic!("{name} is not refused but {other:?}"),
        }
    }

    /// Waits until the cache has this many copies.
    async fn copies(&self, expected: usize) {
        let count = || fs::read_dir(self.root.path().join("cache/plugins")).unwrap().count();
        let deadline = Instant::now() + PATIENCE;
        while count() != expected {
            assert!(Instant::now() < deadline, "{} copies instead of {expected}", count());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn state<'a>(catalogue: &'a Catalogue, path: &Path) -> Option<&'a PluginState> {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let live = |state: &&PluginState| !matches!(state.status, Status::Retired { .. });
    catalogue.states().iter().filter(live).find(|state| state.file == path)
}

fn retired(catalogue: &Catalogue) -> Vec<bool> {
    let in_use = |state: &PluginState| match state.status {
        Status::Retired { in_use, .. } => Some(in_use),
        _ => None,
    };
    catalogue.states().iter().filter_map(in_use).collect()
}

/// The plugin that tests drop, or the same with other bytes: bytes after a library's end are never read.
fn bigram(version: &str) -> Vec<u8> {
    let mut bytes = fs::read(plugin("bigram")).unwrap();
    bytes.extend(version.bytes());
    bytes
}

fn bigram_class() -> CheckpointName {
    CheckpointName::Class("BigramForCausalLM".into())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_dropped_in_is_ready_with_what_it_provides() {
    let home = Home::open().await;
    assert_eq!(home.folder.snapshot(), []);
    home.put("bigram", &bigram(""));
    let Status::Ready { plugin } = home.verdict("bigram").await.status else { panic!("not ready") };
    assert_eq!((plugin.id.as_str(), plugin.architectures[0].architecture.as_str()), ("bigram", "bigram"));
    let claimants = home.folder.claimants(&bigram_class());
    assert_eq!((claimants.len(), claimants[0].architecture.as_str()), (1, "bigram"));
    assert_eq!(home.folder.claimants(&CheckpointName::Gguf("bigram".into())).len(), 0);
    assert!(
        claimants[0].plugin.copy.path().starts_with(home.root.path().canonicalize().unwrap().join("cache/plugins"))
    );
    let shown = serde_json::to_value(home.folder.snapshot()).unwrap();
    assert_eq!((shown[0]["status"].as_str(), shown[0]["plugin"]["id"].as_str()), (Some("ready"), Some("bigram")));
    assert_eq!(shown[0]["sha256"].as_str().unwrap().len(), 64);
    home.put("panics", &fs::read(test_plugin("panics")).unwrap());
    home.verdict("panics").await;
    assert_eq!(
        (home.folder.samplers()[0].0.as_str(), home.folder.adapter_formats()[0].0.as_str()),
        ("panics", "panics")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn plugins_that_lie_there_are_ready_when_the_folder_is_open() {
    let home = Home::open_with(|root, _| {
        fs::write(root.join("second").join(library_name("bigram")), bigram("")).unwrap();
        fs::write(root.join("second").join(library_name("bad")), "no library").unwrap();
    });
    let home = home.await;
    assert_eq!(home.folder.claimants(&bigram_class()).len(), 1);
    assert_eq!(home.folder.snapshot().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn truncated_at_fifty_lengths_it_is_refused_as_truncated() {
    let (home, bytes, mut random) = (Home::open().await, bigram(""), Random(11));
    // The headers refer to the tables at its end.
    let lengths: Vec<usize> = (0..50).map(|_| 4 + random.below(bytes.len() - 4)).collect();
    for length in &lengths {
        home.put(&length.to_string(), &bytes[..*length]);
    }
    for length in &lengths {
        assert_eq!(home.refusal(&length.to_string()).await, "truncated", "{length} bytes");
    }
    home.put("bigram", &bytes);
    assert!(matches!(home.verdict("bigram").await.status, Status::Ready { .. }));
    home.copies(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_bytes_flipped_it_costs_a_child_at_most() {
    let (home, bytes, mut random) = (Home::open().await, bigram(""), Random(12));
    for case in 0..50 {
        let mut damaged = bytes.clone();
        // Half of them are damaged in the headers that the dynamic loader follows, the others anywhere; most of a debug build
        // is never loaded.
        let (end, count) = if case % 2 == 0 { (bytes.len(), 256) } else { (1024, 8) };
        for _ in 0..count {
            let place = random.below(end);
            damaged[place] ^= u8::try_from(1 + random.below(255)).unwrap();
        }
        home.put(&case.to_string(), &damaged);
    }
    let (mut ready, mut refused) = (0, 0);
    for case in 0..50 {
        match home.verdict(&case.to_string()).await.status {
            Status::Ready { .. } | Status::Shadowed { .. } => ready += 1,
            Status::Rejected(refusal) => {
                assert!(
                    refusal.reason.starts_with(&format!("plugin '{}' ", library_name(&case.to_string()))),
                    "{refusal}"
                );
                assert!(!refusal.help.is_empty() && refusal.reason.len() < 600, "{refusal}");
                refused += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    println!("50 damaged plugins: {ready} still load, {refused} refused");
    assert!(refused >= 25, "{refused} refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn written_slowly_it_is_pending_and_then_ready() {
    let home = Home::open().await;
    let (bytes, path) = (bigram(""), home.path("bigram"));
    let (mut file, mut pending) = (File::create(&path).unwrap(), 0);
    for part in bytes.chunks(bytes.len().div_ceil(12)) {
        file.write_all(part).unwrap();
        // Longer than a file has to be quiet: it is inspected, found incomplete and waited for.
        tokio::time::sleep(Duration::from_millis(150)).await;
        let catalogue = home.folder.catalogue();
        match state(&catalogue, &path).map(|state| &state.status) {
            Some(Status::Rejected(refusal)) => panic!("{refusal}"),
            Some(Status::Pending) => pending += 1,
            _ => {}
        }
    }
    assert!(pending > 3, "it was pending {pending} times");
    assert!(matches!(home.verdict("bigram").await.status, Status::Ready { .. }));
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_plugins_are_refused_each_with_its_reason() {
    let home = Home::open_with(|_, settings| settings.limits.inspection = Duration::from_secs(4)).await;
    let expected = [
        ("contract_two", "other-contract"),
        ("no_symbol", "not-a-plugin"),
        ("other_layout", "other-layout"),
        ("bad_manifest", "bad-manifest"),
        ("panics_at_start", "failed-to-start"),
        ("crashes_at_start", "crashed"),
        ("hangs_at_start", "timed-out"),
        ("exits_at_start", "exited"),
    ];
    for (name, _) in expected {
        home.put(name, &fs::read(test_plugin(name)).unwrap());
    }
    home.put("text", b"#!/bin/sh\n");
    for (name, kind) in expected {
        assert_eq!(home.refusal(name).await, kind, "{name}");
    }
    assert_eq!(home.refusal("text").await, "not-a-library");
    let Status::Rejected(refusal) = home.verdict("exits_at_start").await.status else { panic!() };
    assert!(refusal.reason.contains("exit status: 0; it said: licence server not found"), "{refusal}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_prints_and_leaves_processes_behind_is_ready_at_once_and_alone() {
    let home = Home::open().await;
    let bytes = fs::read(test_plugin("prints_at_start")).unwrap();
    let start = Instant::now();
    home.put("prints", &bytes);
    let state = home.verdict("prints").await;
    assert!(matches!(state.status, Status::Ready { .. }), "{state:?}");
    assert!(start.elapsed() < Duration::from_secs(8), "its child was waited for");
    let sleeping = || processes::all().iter().filter(|process| process.arguments == ["sleep", "31536"]).count();
    let deadline = Instant::now() + PATIENCE;
    while sleeping() > 0 {
        assert!(Instant::now() < deadline, "the plugin's process is still there");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_plugin_serves_new_loads_while_the_old_copy_stays() {
    let home = Home::open().await;
    home.put("bigram", &bigram("one"));
    home.verdict("bigram").await;
    let old = home.folder.claimants(&bigram_class()).remove(0).plugin;
    let content = fs::read(old.copy.path()).unwrap();
    // Copied over in place, which would change a mapped file.
    fs::write(home.path("bigram"), bigram("two, longer")).unwrap();
    let replaced = |catalogue: &Catalogue| {
        catalogue.claimants(&bigram_class()).iter().any(|claimant| claimant.plugin.copy.sha256() != old.copy.sha256())
    };
    let catalogue = home.until("replaced", replaced).await;
    assert_eq!(catalogue.claimants(&bigram_class()).len(), 1);
    assert_eq!(fs::read(old.copy.path()).unwrap(), content);
    home.until("retired and in use", |catalogue| retired(catalogue) == [true]).await;
    home.copies(2).await;
    drop((catalogue, old));
    home.until("forgotten", |catalogue| retired(catalogue).is_empty()).await;
    home.copies(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_file_is_replaced_new_loads_still_find_the_old_plugin() {
    let home = Home::open().await;
    home.put("bigram", &bigram("one"));
    home.verdict("bigram").await;
    let sha256 = |catalogue: &Catalogue| catalogue.plugins().first().map(|plugin| plugin.copy.sha256().to_owned());
    let old = sha256(&home.folder.catalogue());
    let (bytes, path) = (bigram("two"), home.path("bigram"));
    let mut file = File::create(&path).unwrap();
    for part in bytes.chunks(bytes.len().div_ceil(8)) {
        file.write_all(part).unwrap();
        tokio::time::sleep(Duration::from_millis(150)).await;
        assert_eq!(home.folder.claimants(&bigram_class()).len(), 1);
    }
    home.until("new", |catalogue| sha256(catalogue) != old && sha256(catalogue).is_some()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_touched_plugin_is_the_same_plugin() {
    let home = Home::open().await;
    home.put("bigram", &bigram(""));
    home.verdict("bigram").await;
    let old = home.folder.catalogue().plugins()[0].clone();
    let mut changes = home.folder.subscribe();
    changes.mark_unchanged();
    fs::write(home.path("bigram"), bigram("")).unwrap();
    changes.wait_for(|catalogue| catalogue.states()[0].status == Status::Pending).await.unwrap();
    home.verdict("bigram").await;
    assert!(Arc::ptr_eq(&home.folder.catalogue().plugins()[0], &old));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_plugin_retires_and_may_come_back() {
    let home = Home::open().await;
    home.put("bigram", &bigram(""));
    home.verdict("bigram").await;
    let used = home.folder.claimants(&bigram_class());
    fs::remove_file(home.path("bigram")).unwrap();
    home.until("retired and in use", |catalogue| retired(catalogue) == [true]).await;
    assert_eq!(home.folder.claimants(&bigram_class()).len(), 0);
    assert!(used[0].plugin.copy.path().exists());
    drop(used);
    home.until("retired and idle", |catalogue| retired(catalogue) == [false]).await;
    home.copies(0).await;
    home.put("bigram", &bigram(""));
    assert!(matches!(home.verdict("bigram").await.status, Status::Ready { .. }));
    home.until("no longer retired", |catalogue| retired(catalogue).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_plugins_with_one_id_the_first_folders_serves() {
    let home = Home::open().await;
    fs::write(home.root.path().join("second").join(library_name("bigram")), bigram("second")).unwrap();
    home.until("ready", |catalogue| catalogue.plugins().len() == 1).await;
    home.put("bigram", &bigram("first"));
    let [of_first, of_second] = ["first", "second"].map(|folder| Path::new(folder).join(library_name("bigram")));
    let shadowed = |catalogue: &Catalogue| {
        catalogue
            .states()
            .iter()
            .any(|state| matches!(&state.status, Status::Shadowed { by, .. } if by.ends_with(&of_first)))
    };
    let catalogue = home.until("shadowed", shadowed).await;
    assert!(catalogue.plugins().len() == 1 && catalogue.plugins()[0].file.ends_with(&of_first));
    fs::remove_file(home.path("bigram")).unwrap();
    let second =
        |catalogue: &Catalogue| catalogue.plugins().first().is_some_and(|plugin| plugin.file.ends_with(&of_second));
    home.until("served by the second", second).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_allowed_files_are_plugins() {
    let allowed = bigram("allowed");
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join(library_name("x")), &allowed).unwrap();
    let home = Home::open().await;
    home.put("x", &allowed);
    let sha256 = home.verdict("x").await.sha256.unwrap();
    let home = Home::open_with(|_, settings| settings.allow = Some(vec![sha256.to_uppercase()])).await;
    home.put("x", &allowed);
    assert!(matches!(home.verdict("x").await.status, Status::Ready { .. }));
    home.put("y", &bigram("another"));
    assert_eq!(home.refusal("y").await, "not-allowed");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_can_write_to_is_refused_until_it_is_mended() {
    let home = Home::open().await;
    home.put("bigram", &bigram(""));
    home.verdict("bigram").await;
    fs::set_permissions(home.path("bigram"), Permissions::from_mode(0o666)).unwrap();
    let untrusted = |catalogue: &Catalogue| {
        catalogue
            .states()
            .iter()
            .any(|state| matches!(&state.status, Status::Rejected(refusal) if refusal.kind == RefusalKind::Untrusted))
    };
    home.until("refused", untrusted).await;
    assert_eq!(home.folder.claimants(&bigram_class()).len(), 0);
    fs::set_permissions(home.path("bigram"), Permissions::from_mode(0o644)).unwrap();
    home.until("ready", |catalogue| catalogue.plugins().len() == 1).await;
    let first = home.root.path().join("first");
    fs::set_permissions(&first, Permissions::from_mode(0o777)).unwrap();
    let catalogue = home.until("refused", untrusted).await;
    assert_eq!((catalogue.plugins().len(), catalogue.states()[0].file.as_path()), (0, first.as_path()));
    fs::set_permissions(&first, Permissions::from_mode(0o755)).unwrap();
    home.until("ready", |catalogue| catalogue.plugins().len() == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_made_later_or_made_again_is_watched() {
    let home = Home::open_with(|root, settings| {
        fs::remove_dir(root.join("first")).unwrap();
        settings.limits.rescan = Duration::from_millis(300);
    });
    let home = home.await;
    for _ in 0..2 {
        fs::create_dir(home.root.path().join("first")).unwrap();
        home.put("bigram", &bigram(""));
        home.until("ready", |catalogue| catalogue.plugins().len() == 1).await;
        fs::remove_dir_all(home.root.path().join("first")).unwrap();
        home.until("gone", |catalogue| catalogue.plugins().is_empty()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_made_for_a_family_is_asked_before_a_collection() {
    let home = Home::open().await;
    let qwen2 = CheckpointName::Class("Qwen2ForCausalLM".into());
    let asked = || home.folder.claimants(&qwen2).into_iter().map(|claimant| claimant.plugin.manifest.id.clone());
    home.put("a", &fs::read(plugin("pensieve-qwen")).unwrap());
    home.verdict("a").await;
    assert_eq!(asked().collect::<Vec<_>>(), ["qwen"]);
    home.put("z", &fs::read(outside_plugin("qwen2-plugin")).unwrap());
    home.verdict("z").await;
    assert_eq!(asked().collect::<Vec<_>>(), ["qwen2", "qwen"]);
    fs::rename(home.path("z"), home.root.path().join("second").join(library_name("z"))).unwrap();
    let moved = |_: &Catalogue| asked().collect::<Vec<_>>() == ["qwen", "qwen2"];
    home.until("asked by folders first", moved).await;
}
