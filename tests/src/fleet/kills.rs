//! What happens when workers die, hang or misbehave: their streams end, everything else continues, and nothing is left
//! behind.

use pensieve_protocol::job::{Failure, FailureCode};
use pensieve_server::fleet::{Config, ModelState};
use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use super::{Home, PATIENCE, answer, begun, gone};
use crate::processes::memory;

// Tokens that the test model obeys.
const PANIC: u32 = 259;
const LOOP: u32 = 260;
const EXIT: u32 = 261;
const CRASH: u32 = 262;
const DEVICE: u32 = 263;

/// How a worker is killed.
#[derive(Clone, Copy, Debug)]
enum Kill {
    Signal,
    Prompt(u32),
}

/// Kills a model's worker many times while another model's stream runs.
async fn kill(kill: Kill, rounds: usize, limit: Duration) {
    let step_timeout = Duration::from_millis(500);
    let home = Home::open(&["victim", "bystander"], |config| {
        config.restart.deaths_max = 1000;
        config.models[0].spec.limits.step_timeout = step_timeout;
    });
    let home = home.await;
    let alone = home.ask("victim", &[5, 6], 8).await.unwrap();
    let undisturbed = home.ask("bystander", &[9, 9], 200).await.unwrap();
    for round in 0..rounds {
        let bystander = home.submit("bystander", &[9, 9], 200);
        let mut streams: Vec<_> = (0..3).map(|token| home.submit("victim", &[token], 20_000)).collect();
        for stream in &mut streams {
            begun(stream).await;
        }
        let pid = home.model(0).await.pid.unwrap();
        let start = Instant::now();
        let culprit = match kill {
            Kill::Signal => {
                let pid = i32::try_from(pid).unwrap();
                // SAFETY: the call takes plain numbers, and the process is this test's own.
                assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
                None
            }
            Kill::Prompt(token) => Some(home.submit("victim", &[1, token], 5)),
        };
        for stream in streams.into_iter().chain(culprit) {
            let failure = answer(stream).await.unwrap_err();
            assert!(start.elapsed() < limit, "{kill:?}, round {round}: {failure} after {:?}", start.elapsed());
            assert!(
                failure.message.starts_with("the worker of model 'victim' ") && !failure.help.is_empty(),
                "{failure}"
            );
        }
        assert_eq!(home.ask("victim", &[5, 6], 8).await.unwrap(), alone, "{kill:?}, round {round}");
        assert_eq!(answer(bystander).await.unwrap(), undisturbed, "{kill:?}, round {round}");
        gone(pid).await;
    }
    let stats = home.fleet.stats(true).await.models;
    assert_eq!((stats[0].deaths, stats[0].workers, stats[0].streams), (rounds as u64, 1, 0));
    assert_eq!((stats[1].deaths, stats[1].loads), (0, 1));
    let pids: Vec<u32> = stats.iter().filter_map(|model| model.pid).collect();
    home.fleet.shutdown(Duration::from_secs(5)).await;
    for pid in pids {
        gone(pid).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_worker_costs_its_own_streams() {
    kill(Kill::Signal, 20, Duration::from_secs(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_in_forward_costs_its_own_streams() {
    kill(Kill::Prompt(CRASH), 20, Duration::from_secs(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exit_in_forward_costs_its_own_streams() {
    kill(Kill::Prompt(EXIT), 20, Duration::from_secs(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loop_in_forward_costs_its_own_streams_after_the_deadline() {
    kill(Kill::Prompt(LOOP), 20, Duration::from_millis(1500)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_forward_ends_streams_and_nothing_else() {
    let home = Home::open(&["victim"], |_| ()).await;
    let alone = home.ask("victim", &[5, 6], 8).await.unwrap();
    for round in 0..20 {
        let failure = home.ask("victim", &[1, PANIC], 5).await.unwrap_err();
        assert_eq!(failure.code, FailureCode::Plugin, "{failure}");
        assert_eq!(home.ask("victim", &[5, 6], 8).await.unwrap(), alone, "round {round}");
    }
    assert_eq!(home.model(0).await.deaths, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_device_costs_one_worker_and_the_next_one_answers() {
    let home = Home::open(&["victim"], |config| config.models[0].spec.options = r#"{"gpu": 1}"#.into()).await;
    let alone = home.ask("victim", &[5, 6], 8).await.unwrap();
    for _ in 0..3 {
        let failure = home.ask("victim", &[1, DEVICE], 5).await.unwrap_err();
        assert_eq!(failure.code, FailureCode::Device, "{failure}");
    }
    home.until(0, "ended", |stats| stats.deaths == 1).await;
    assert_eq!(home.ask("victim", &[5, 6], 8).await.unwrap(), alone);
}

#[tokio::test(flavor = "multi_thread")]
async fn three_deaths_quarantine_a_model_until_its_plugin_is_replaced() {
    let home = Home::open(&["one"], |_| ()).await;
    for _ in 0..3 {
        home.ask("one", &[CRASH], 1).await.unwrap_err();
    }
    let stats = home.model(0).await;
    assert_eq!(stats.state, ModelState::Quarantined);
    assert!(stats.reason.unwrap().starts_with("model 'one' is in quarantine: its worker died 3 times within 60 s"));
    let start = Instant::now();
    let failure = home.ask("one", &[1], 1).await.unwrap_err();
    assert!(failure.message.contains("SIGSEGV") && failure.help.contains("replace the plugin"), "{failure}");
    assert!(start.elapsed() < Duration::from_secs(1));
    home.replace_plugin("mended");
    home.until(0, "free", |stats| stats.state != ModelState::Quarantined).await;
    home.ask("one", &[1], 1).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn quarantine_ends_with_time_or_by_release() {
    let home = Home::open(&["one"], |config| {
        config.restart.deaths_max = 1;
        config.restart.quarantine = Duration::from_millis(700);
    });
    let home = home.await;
    home.ask("one", &[CRASH], 1).await.unwrap_err();
    home.ask("one", &[1], 1).await.unwrap_err();
    tokio::time::sleep(Duration::from_millis(900)).await;
    home.ask("one", &[1], 1).await.unwrap();
    home.ask("one", &[CRASH], 1).await.unwrap_err();
    home.fleet.release("one").unwrap();
    home.ask("one", &[1], 1).await.unwrap();
}

/// A program that poses as a worker; see `bin/fake_worker.rs`.
fn fake_worker(config: &Config, behaviour: &str) -> PathBuf {
    let fake = config.cards.with_file_name(behaviour);
    fs::create_dir_all(fake.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_fake_worker"), &fake).unwrap();
    fake
}

/// Why such a worker's model is quarantined.
async fn quarantine_of(behaviour: &str) -> Failure {
    let home = Home::open(&["one"], |config| {
        config.program = fake_worker(config, behaviour);
        config.restart.deaths_max = 2;
        config.deadlines.silence = Duration::from_millis(300);
    });
    let home = home.await;
    let failure = home.ask("one", &[1], 1).await.unwrap_err();
    let stats = home.until(0, "gone", |stats| stats.workers == 0).await;
    assert_eq!((stats.state, stats.deaths, stats.waiting), (ModelState::Quarantined, 2, 0));
    failure
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_that_do_not_behave_are_ended_and_their_model_is_quarantined() {
    let stranger = format!("speaks protocol 99, this server {}", pensieve_protocol::wire::PROTOCOL);
    for (behaviour, expected) in [
        ("silent", "said nothing for 0.3 s"),
        ("nonsense", "spoke nonsense: "),
        ("too-long", "spoke nonsense: a frame of 4294967295 bytes"),
        ("stranger", stranger.as_str()),
        ("rude", "did not introduce itself"),
        ("leaves", "ended by itself, with exit status: 7; it said: no licence"),
    ] {
        let failure = quarantine_of(behaviour).await;
        let expected = format!("the last time so: the worker of model 'one' {expected}");
        assert!(failure.message.contains(&expected), "{behaviour}: {failure}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_sends_more_tokens_than_were_asked_for_is_ended() {
    let home = Home::open(&["one"], |config| config.program = fake_worker(config, "babbler")).await;
    let failure = home.ask("one", &[1], 5).await.unwrap_err();
    assert!(failure.message.contains("sent more tokens than a job asked for and was ended"), "{failure}");
}

/// Memory can only be measured in isolation: in a separate process.
#[test]
fn a_flooding_worker_takes_no_memory_from_its_server() {
    run_alone("flooded");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by a_flooding_worker_takes_no_memory_from_its_server"]
async fn flooded() {
    const BYTES_MAX: u64 = 150 << 20;
    let peak = || memory(std::process::id()).unwrap().peak;
    let home = Home::open(&["one"], |config| config.program = fake_worker(config, "flooder")).await;
    let before = peak();
    // Nothing of it is read.
    let streams: Vec<_> = (0..8).map(|token| home.submit("one", &[token], 1000)).collect();
    let until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < until {
        let taken = peak().saturating_sub(before);
        assert!(taken < BYTES_MAX, "{} MiB", taken >> 20);
        // The supervisor answers all the while.
        let asked = Instant::now();
        let model = home.fleet.stats(false).await.models.remove(0);
        assert_eq!(model.streams + model.waiting, 8, "{model:?}");
        assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drop(streams);
}

/// Runs one of the ignored tests in a separate process.
fn run_alone(test: &str) {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let path = format!("fleet::kills::{test}");
    let output = command.args(["--exact", &path, "--ignored", "--nocapture"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
}

/// Descriptors can only be counted in isolation: in a separate process.
#[test]
fn workers_leave_no_descriptor_behind() {
    run_alone("descriptors");
}

#[tokio::test]
#[ignore = "run by workers_leave_no_descriptor_behind"]
async fn descriptors() {
    let own = if cfg!(target_os = "linux") { "/proc/self/fd" } else { "/dev/fd" };
    let count = || fs::read_dir(own).unwrap().count();
    let home = Home::open(&["one"], |config| config.restart.deaths_max = 1000).await;
    home.ask("one", &[1], 1).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let before = count();
    for _ in 0..20 {
        home.ask("one", &[CRASH], 1).await.unwrap_err();
        home.ask("one", &[1], 1).await.unwrap();
    }
    let deadline = Instant::now() + PATIENCE;
    while count() > before {
        assert!(Instant::now() < deadline, "{} descriptors instead of {before}", count());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
