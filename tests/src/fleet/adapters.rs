//! Adapters on their way to workers that are replaced, hang or no longer need them. The format in these tests keeps
//! reading a folder as long as it contains a file `wait`, so that everything here happens during a read.

use pensieve_protocol::job::{AdapterUse, Failure, FailureCode, Job};
use pensieve_server::fleet::{Adapter, AdapterFailure, AdapterState, Config, Culprit, Sources};
use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{Home, PATIENCE, answer, begun, gone};

/// Bytes counted per adapter in a model that does not report them.
const BYTES: u64 = 4096;

impl Home {
    /// A home with one model, which takes adapters from a folder of it.
    async fn with_adapters(prepare: impl FnOnce(&mut Config, &Path)) -> Self {
        let prepare = |config: &mut Config| {
            let folder = config.models[0].source.with_file_name("adapters");
            fs::create_dir(&folder).unwrap();
            prepare(config, &folder);
            // Its format writes down what it reads, and waits for files: more than a fence allows.
            config.unfenced = vec!["faults".into()];
            config.sources = Sources { folders: vec![folder], downloads: false };
        };
        Self::open(&["one"], prepare).await
    }

    fn adapter(&self, name: &str, files: &[&str]) -> PathBuf {
        write(&self.root.path().join("adapters"), name, files)
    }

    async fn attach(&self, name: &str, source: &str) -> Result<AdapterState, AdapterFailure> {
        tokio::time::timeout(PATIENCE, self.fleet.attach("one", name, source)).await.expect("an answer in time")
    }

    async fn ask_under(&self, adapter: &str) -> Result<Vec<u32>, Failure> {
        let adapter = Some(AdapterUse { name: adapter.into(), scale: 1.0 });
        let job = Job { tokens: vec![1], max_tokens: 3, ignore_end_of_turn: true, adapter, ..Job::default() };
        answer(self.fleet.submit_to("one", job)?).await
    }
}

/// Creates an adapter's folder with these files, each containing its own name.
fn write(folder: &Path, name: &str, files: &[&str]) -> PathBuf {
    let adapter = folder.join(name);
    fs::create_dir(&adapter).unwrap();
    files.iter().for_each(|file| fs::write(adapter.join(file), file).unwrap());
    adapter
}

/// Waits until an adapter is being read, then resets the sign of it.
async fn is_read(adapter: &Path) {
    let deadline = Instant::now() + PATIENCE;
    while fs::remove_file(adapter.join("read")).is_err() {
        assert!(Instant::now() < deadline, "nobody reads {}", adapter.display());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_adapter_that_is_being_read_comes_to_the_next_worker_when_its_worker_goes() {
    let home = Home::with_adapters(|config, _| config.deadlines.drain = Duration::from_secs(2)).await;
    home.ask("one", &[1], 1).await.unwrap();
    let mut stream = home.submit("one", &[3], 1000);
    begun(&mut stream).await;
    let pid = home.model(0).await.pid.unwrap();
    let slow = home.adapter("slow", &["wait"]);
    let (attached, ()) = tokio::join!(home.attach("slow", "slow"), async {
        is_read(&slow).await;
        home.replace_plugin("two");
        is_read(&slow).await;
        // The first worker keeps its stream, and then exits although its format hangs.
        answer(stream).await.unwrap();
        gone(pid).await;
        fs::remove_file(slow.join("wait")).unwrap();
    });
    assert_eq!(attached.unwrap().name, "slow");
    let stats = home.model(0).await;
    assert_eq!((stats.loads, stats.deaths, stats.workers), (2, 0, 1));
    assert_eq!(home.ask_under("slow").await.unwrap().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_adapter_that_was_taken_away_while_it_was_read_says_nothing_of_the_next_one_of_its_name() {
    let home = Home::with_adapters(|config, folder| {
        let adapter = Adapter::at(write(folder, "first", &["wait", "broken"]));
        config.models[0].adapters = [("it".to_owned(), adapter)].into();
    });
    let home = home.await;
    home.adapter("second", &[]);
    let first = home.root.path().join("adapters/first");
    let stream = home.submit("one", &[1], 1);
    is_read(&first).await;
    home.fleet.detach("one", "it").await.unwrap();
    // The model no longer waits for it, and the name is free.
    answer(stream).await.unwrap();
    home.attach("it", "second").await.unwrap();
    home.ask_under("it").await.unwrap();
    let refused = home.attach("it", "second").await.unwrap_err();
    assert_eq!((refused.culprit, refused.failure.code), (Culprit::Name, FailureCode::Conflict));
    // Now the first one turns out to be broken.
    fs::remove_file(first.join("wait")).unwrap();
    for _ in 0..20 {
        let adapters = home.model(0).await.adapters;
        assert!(adapters.len() == 1 && adapters[0].refusal.is_none(), "{adapters:?}");
        home.ask_under("it").await.unwrap();
    }
    // The same, but the other one is attached only afterwards.
    home.fleet.detach("one", "it").await.unwrap();
    let refused = home.fleet.detach("one", "it").await.unwrap_err();
    assert_eq!((refused.culprit, refused.failure.code), (Culprit::Name, FailureCode::NotFound));
    assert_eq!(home.ask_under("it").await.unwrap_err().code, FailureCode::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_answer_of_one_attempt_does_not_settle_the_next() {
    let home = Home::with_adapters(|config, _| config.deadlines.load = Duration::from_secs(3)).await;
    let (first, second) = (home.adapter("first", &["wait", "broken"]), home.adapter("second", &["wait"]));
    let refused = home.attach("it", "first").await.unwrap_err();
    assert_eq!((refused.culprit, refused.failure.code), (Culprit::Other, FailureCode::Stalled));
    fs::remove_file(first.join("read")).unwrap();
    let (attached, ()) = tokio::join!(home.attach("it", "second"), async {
        is_read(&second).await;
        fs::remove_file(first.join("wait")).unwrap();
        // Twice there and back: the answer to the first attempt has arrived by then.
        for _ in 0..2 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            home.model(0).await;
        }
        fs::remove_file(second.join("wait")).unwrap();
    });
    assert_eq!(attached.unwrap().source, "second");
    home.ask_under("it").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_does_not_wait_for_ever_for_an_adapter_that_is_read_again() {
    let home = Home::with_adapters(|config, _| {
        config.deadlines.load = Duration::from_secs(3);
        config.models[0].spec.adapter_memory = BYTES;
    });
    let home = home.await;
    let first = home.adapter("first", &[]);
    home.adapter("second", &[]);
    home.attach("first", "first").await.unwrap();
    home.attach("second", "second").await.unwrap();
    fs::write(first.join("wait"), "").unwrap();
    let failure = home.ask_under("first").await.unwrap_err();
    assert!(failure.code == FailureCode::Stalled && failure.message.contains("adapter 'first'"), "{failure}");
    home.ask_under("second").await.unwrap();
    fs::remove_file(first.join("wait")).unwrap();
    // It is read again once the format has returned from the abandoned read.
    let mut asked = home.ask_under("first").await;
    for _ in 0..100 {
        if asked.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        asked = home.ask_under("first").await;
    }
    asked.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_that_was_set_aside_for_adapters_goes_back_when_none_has_come() {
    let home = Home::with_adapters(|_, _| ()).await;
    home.adapter("broken", &["broken"]);
    home.adapter("whole", &[]);
    home.ask("one", &[1], 1).await.unwrap();
    let before = home.model(0).await.bytes;
    let refused = home.attach("it", "broken").await.unwrap_err();
    assert!(refused.culprit == Culprit::Source && refused.failure.message.contains("broken"), "{refused:?}");
    assert_eq!(home.until(0, "as before", |stats| stats.bytes == before).await.loads, 1);
    home.attach("it", "whole").await.unwrap();
    assert!(home.model(0).await.bytes > before);
    home.fleet.detach("one", "it").await.unwrap();
    home.until(0, "as before", |stats| stats.bytes == before).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn adapters_on_their_way_count_among_those_that_a_model_takes() {
    let home = Home::with_adapters(|config, folder| {
        let adapter = Adapter::at(write(folder, "whole", &[]));
        config.models[0].adapters = (1..1024).map(|number| (format!("a{number}"), adapter.clone())).collect();
    });
    let home = home.await;
    let slow = home.adapter("slow", &["wait"]);
    let (attached, refused) = tokio::join!(home.attach("slow", "slow"), async {
        is_read(&slow).await;
        let refused = home.attach("late", "whole").await.unwrap_err();
        fs::remove_file(slow.join("wait")).unwrap();
        refused
    });
    attached.unwrap();
    assert_eq!((refused.culprit, refused.failure.code), (Culprit::Other, FailureCode::Conflict));
    assert!(refused.failure.message.contains("has 1023 adapters, and 1 are on their way"), "{refused:?}");
    home.ask_under("a1023").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_adapter_that_has_come_to_lead_out_of_its_folder_is_not_read_again() {
    let home = Home::with_adapters(|_, _| ()).await;
    let adapter = home.adapter("it", &["weights"]);
    home.attach("it", "it").await.unwrap();
    home.ask_under("it").await.unwrap();
    let outside = home.root.path().join("secret");
    fs::write(&outside, "").unwrap();
    fs::remove_file(adapter.join("weights")).unwrap();
    std::os::unix::fs::symlink(&outside, adapter.join("weights")).unwrap();
    let pid = home.model(0).await.pid.unwrap();
    home.replace_plugin("two");
    gone(pid).await;
    let failure = home.ask_under("it").await.unwrap_err();
    assert!(
        failure.code == FailureCode::Forbidden && failure.message.contains("is a link that leads out"),
        "{failure}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_on_its_way_can_be_taken_away_and_its_name_is_free() {
    let home = Home::with_adapters(|_, _| ()).await;
    let slow = home.adapter("slow", &["wait"]);
    home.adapter("quick", &[]);
    let (attached, ()) = tokio::join!(home.attach("it", "slow"), async {
        is_read(&slow).await;
        home.fleet.detach("one", "it").await.unwrap();
    });
    let refused = attached.unwrap_err();
    assert_eq!((refused.culprit, refused.failure.code), (Culprit::Name, FailureCode::NotFound));
    assert_eq!(home.fleet.detach("one", "it").await.unwrap_err().failure.code, FailureCode::NotFound);
    assert_eq!(home.attach("it", "quick").await.unwrap().source, "quick");
    // An adapter whose read ends after its deletion does not replace its successor.
    fs::remove_file(slow.join("wait")).unwrap();
    home.ask_under("it").await.unwrap();
    assert_eq!(home.fleet.adapters("one").await.unwrap()[0].source, "quick");
}

#[tokio::test(flavor = "multi_thread")]
async fn few_are_taken_in_at_once_and_none_with_a_file_that_is_too_large() {
    let home = Home::with_adapters(|config, _| config.models[0].spec.adapter_memory = BYTES).await;
    let large = home.adapter("large", &[]);
    fs::File::create(large.join("adapter.safetensors")).unwrap().set_len(4 << 20).unwrap();
    let refused = home.attach("large", "large").await.unwrap_err();
    assert_eq!((refused.culprit, refused.failure.code), (Culprit::Source, FailureCode::Unsupported));
    assert!(refused.failure.message.contains("has a file of 4194304 bytes") && !large.join("read").exists());
    let slow: Vec<PathBuf> = ["a", "b", "c", "d"].iter().map(|name| home.adapter(name, &["wait"])).collect();
    let attach = |name| home.attach(name, name);
    let _ = tokio::join!(attach("a"), attach("b"), attach("c"), attach("d"), async {
        for adapter in &slow {
            is_read(adapter).await;
        }
        let refused = home.attach("e", "large").await.unwrap_err();
        assert_eq!((refused.culprit, refused.failure.code), (Culprit::Other, FailureCode::Busy));
        slow.iter().for_each(|adapter| fs::remove_file(adapter.join("wait")).unwrap());
    });
}
