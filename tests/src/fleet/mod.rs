//! The fleet with real workers: requests wait for loads, streams survive what happens to others, and models come back.
//!
//! The model is `faults`: its prompts can make `forward` crash, loop, exit or panic, and its output depends on every
//! previous token, so that a stream that lost or gained one produces different output.

mod adapters;
mod kills;

use pensieve_protocol::{
    job::{Event, Failure, FailureCode, Finish, Job},
    wire::ModelSpec,
};
use pensieve_server::fleet::{Config, EventStream, Fleet, ModelConfig, ModelState, ModelStats, Update};
use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tempfile::TempDir;

use crate::{
    artifacts::{library_name, program, test_plugin},
    processes::is_alive,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// A fleet of `faults` models, each with a separate checkpoint.
struct Home {
    fleet: Fleet,
    root: TempDir,
}

impl Home {
    async fn open(models: &[&str], prepare: impl FnOnce(&mut Config)) -> Self {
        let root = tempfile::tempdir().unwrap();
        let mut config = Config::new(&[], root.path());
        let folder = root.path().join("plugins");
        fs::create_dir(&folder).unwrap();
        fs::copy(test_plugin("faults"), folder.join(library_name("faults"))).unwrap();
        config.plugins.folders = vec![folder];
        config.plugins.program = program();
        config.program = program();
        config.plugins.limits.settle = Duration::from_millis(50);
        (config.restart.pause, config.restart.pause_max) = (Duration::from_millis(10), Duration::from_millis(40));
        config.models = models.iter().map(|id| model(root.path(), id)).collect();
        prepare(&mut config);
        Self { fleet: Fleet::start(config).await.unwrap(), root }
    }

    fn submit(&self, name: &str, tokens: &[u32], max_tokens: u32) -> EventStream {
        let job = Job { tokens: tokens.to_vec(), max_tokens, ignore_end_of_turn: true, ..Job::default() };
        self.fleet.submit_to(name, job).unwrap()
    }

    async fn ask(&self, name: &str, tokens: &[u32], max_tokens: u32) -> Result<Vec<u32>, Failure> {
        answer(self.submit(name, tokens, max_tokens)).await
    }

    async fn model(&self, index: usize) -> ModelStats {
        self.fleet.stats(true).await.models.remove(index)
    }

    async fn until(&self, index: usize, what: &str, holds: impl Fn(&ModelStats) -> bool) -> ModelStats {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let model = self.model(index).await;
            if holds(&model) {
                return model;
            }
            assert!(Instant::now() < deadline, "not {what}: {model:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Replaces the plugin by one with different bytes after its end.
    fn replace_plugin(&self, version: &str) {
        let mut bytes = fs::read(test_plugin("faults")).unwrap();
        bytes.extend(version.bytes());
        let partial = self.root.path().join("partial");
        fs::write(&partial, bytes).unwrap();
        fs::rename(partial, self.plugin()).unwrap();
    }

    fn plugin(&self) -> PathBuf {
        self.root.path().join("plugins").join(library_name("faults"))
    }
}

fn model(root: &Path, id: &str) -> ModelConfig {
    let source = root.join(id);
    fs::create_dir(&source).unwrap();
    fs::write(source.join("config.json"), r#"{"architectures": ["FaultsForCausalLM"]}"#).unwrap();
    let options = r#"{"step_us": 2000}"#.to_owned();
    let spec = ModelSpec { options, kv_budget: Some(1 << 20), threads: 1, ..ModelSpec::default() };
    ModelConfig { id: id.into(), source, spec, ..ModelConfig::default() }
}

/// All tokens of a stream, which must end in time.
async fn answer(mut stream: EventStream) -> Result<Vec<u32>, Failure> {
    let mut tokens = Vec::new();
    loop {
        match tokio::time::timeout(PATIENCE, stream.next()).await.expect("an event in time").expect("a last event") {
            Update::Event(Event::Tokens(new)) => tokens.extend(new.ids),
            Update::Event(Event::Finished { reason, .. }) => {
                assert_eq!(reason, Finish::Length);
                return Ok(tokens);
            }
            Update::Event(Event::Failed(failure)) => return Err(failure),
            Update::Event(_) | Update::Loading { .. } => {}
        }
    }
}

/// Waits for a stream's first tokens; returns how many there are.
async fn begun(stream: &mut EventStream) -> usize {
    loop {
        match stream.next().await {
            Some(Update::Event(Event::Tokens(tokens))) => return tokens.ids.len(),
            Some(update) if !update.is_last() => {}
            other => panic!("it has not begun: {other:?}"),
        }
    }
}

async fn gone(pid: u32) {
    let deadline = Instant::now() + PATIENCE;
    while is_alive(pid) {
        assert!(Instant::now() < deadline, "process {pid} is still there");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_waits_for_the_load_and_hears_of_it() {
    let home = Home::open(&["one"], |_| ()).await;
    assert_eq!(home.model(0).await.state, ModelState::Idle);
    let mut stream = home.submit("one", &[1, 2, 3], 5);
    assert!(matches!(stream.next().await, Some(Update::Loading { .. })));
    let first = answer(stream).await.unwrap();
    assert_eq!(first.len(), 5);
    assert_eq!(home.ask("one", &[1, 2, 3], 5).await.unwrap(), first);
    let stats = home.model(0).await;
    assert_eq!((stats.state, stats.loads, stats.deaths), (ModelState::Ready, 1, 0));
    assert_eq!(home.fleet.target("one").await.unwrap().card.vocabulary, 264);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_loaded_fails_with_the_reason() {
    let home = Home::open(&["one", "two", "three"], |config| {
        config.models[0].source = PathBuf::from("/nowhere/model.gguf");
        fs::write(config.models[1].source.join("config.json"), r#"{"architectures": ["Qwen9"]}"#).unwrap();
        let like = r#"{"architectures": ["FaultsForEveryOtherUse"]}"#;
        fs::write(config.models[2].source.join("config.json"), like).unwrap();
    });
    let home = home.await;
    let failure = home.ask("one", &[1], 1).await.unwrap_err();
    assert!(
        failure.message.starts_with("model 'one': the source '/nowhere/model.gguf' cannot be looked at"),
        "{failure}"
    );
    let failure = home.ask("two", &[1], 1).await.unwrap_err();
    let expected = "model 'two': no plugin claims architecture 'Qwen9' (installed: faults); drop one into plugins/";
    assert_eq!(failure.to_string(), expected);
    let failure = home.ask("three", &[1], 1).await.unwrap_err();
    let expected = "plugin 'faults' comes closest, which claims 'FaultsForCausalLM' in safetensors";
    assert!(failure.message.contains(expected), "{failure}");
    assert_eq!(home.fleet.submit_to("four", Job::default()).unwrap_err().code, FailureCode::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_dropped_is_cancelled() {
    let home = Home::open(&["one"], |_| ()).await;
    let mut stream = home.submit("one", &[1], 30_000);
    begun(&mut stream).await;
    assert_eq!(home.model(0).await.streams, 1);
    drop(stream);
    let stats = home.until(0, "idle", |stats| stats.streams == 0).await;
    assert_eq!(stats.worker.unwrap().blocks_active, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_models_make_room_and_busy_ones_are_waited_for() {
    // Room for one: each takes 64 MiB plus 1 MiB of state.
    let home = Home::open(&["one", "two"], |config| config.memory_bytes = 100 << 20).await;
    home.ask("one", &[1], 1).await.unwrap();
    home.ask("two", &[1], 1).await.unwrap();
    assert_eq!(home.until(0, "evicted", |stats| stats.workers == 0).await.state, ModelState::Idle);
    let mut busy = home.submit("two", &[1], 300);
    begun(&mut busy).await;
    let waits = home.submit("one", &[1], 1);
    answer(busy).await.unwrap();
    answer(waits).await.unwrap();
    let stats = home.fleet.stats(true).await;
    assert!(stats.memory_used <= stats.memory_budget, "{stats:?}");
    assert_eq!((stats.models[0].loads, stats.models[1].loads, stats.models[0].deaths), (2, 1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_is_too_large_says_what_it_takes() {
    let home = Home::open(&["one"], |config| config.memory_bytes = 10 << 20).await;
    let failure = home.ask("one", &[1], 1).await.unwrap_err();
    assert!(failure.message.contains("takes 65 MiB") && failure.message.contains("may take 10 MiB"), "{failure}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unused_model_leaves_memory_and_comes_back() {
    let home = Home::open(&["one"], |config| config.idle_timeout = Some(Duration::from_millis(400))).await;
    let first = home.ask("one", &[1], 3).await.unwrap();
    let pid = home.model(0).await.pid.unwrap();
    home.until(0, "gone", |stats| stats.workers == 0 && stats.state == ModelState::Idle).await;
    gone(pid).await;
    assert_eq!(home.ask("one", &[1], 3).await.unwrap(), first);
    assert_eq!(home.model(0).await.deaths, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_plugin_serves_new_requests_while_old_streams_finish() {
    let home = Home::open(&["one"], |_| ()).await;
    let alone = home.ask("one", &[3], 1500).await.unwrap();
    let mut old = home.submit("one", &[3], 1500);
    let first = begun(&mut old).await;
    let pid = home.model(0).await.pid.unwrap();
    home.replace_plugin("two");
    home.until(0, "let go", |stats| stats.state == ModelState::Idle).await;
    home.ask("one", &[1], 1).await.unwrap();
    let stats = home.model(0).await;
    assert_eq!((stats.loads, stats.workers, stats.deaths), (2, 2, 0), "the old worker still streams");
    assert_ne!(stats.pid, Some(pid));
    assert_eq!(answer(old).await.unwrap(), alone[first..]);
    gone(pid).await;
    home.until(0, "alone", |stats| stats.workers == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_plugin_serves_its_last_streams_only() {
    let home = Home::open(&["one"], |_| ()).await;
    let mut old = home.submit("one", &[3], 500);
    let first = begun(&mut old).await;
    fs::remove_file(home.plugin()).unwrap();
    home.until(0, "let go", |stats| stats.state == ModelState::Idle).await;
    let failure = home.ask("one", &[1], 1).await.unwrap_err();
    assert!(failure.message.contains("(installed: none)"), "{failure}");
    assert_eq!(answer(old).await.unwrap().len() + first, 500);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_lets_streams_finish_and_leaves_nothing_behind() {
    let home = Home::open(&["one"], |_| ()).await;
    let mut stream = home.submit("one", &[1], 100);
    let first = begun(&mut stream).await;
    let pid = home.model(0).await.pid.unwrap();
    home.fleet.shutdown(Duration::from_secs(20)).await;
    assert_eq!(answer(stream).await.unwrap().len() + first, 100);
    assert!(!is_alive(pid));
    assert_eq!(home.fleet.submit_to("one", Job::default()).unwrap_err().code, FailureCode::Draining);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_fleet_ends_its_workers() {
    let home = Home::open(&["one"], |_| ()).await;
    let mut stream = home.submit("one", &[1], 30_000);
    begun(&mut stream).await;
    let pid = home.model(0).await.pid.unwrap();
    drop(home);
    gone(pid).await;
    assert!(answer(stream).await.is_err());
}
