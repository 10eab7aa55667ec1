//! Downloads from a hub that fails in every way a network can.

use pensieve_server::hub::{Hub as Puller, HubErrorKind, HubName, Progress, RetryPolicy};
use std::{
    fs,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use super::{Desk, Said, files, interrupt, said};
use crate::hub::{COMMIT, Fault, Hub, sha256};

const NAME: &str = "hf:owner/repo";
const FILE: &str = "m-Q4_K_M.gguf";

/// Bytes without repetition, so that a misplaced part is noticed.
fn bytes(count: usize) -> Vec<u8> {
    let mut state = 7_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..count).map(|_| next()).collect()
}

fn hub() -> Hub {
    Hub::serve(&[(FILE, bytes(1_000_000)), ("m-Q8_0.gguf", bytes(2000)), ("README.md", b"read".to_vec())])
}

fn desk(hub: &Hub) -> Desk {
    Desk::with_hub(hub.endpoint())
}

/// Where the hub's tools cache a file of the repository.
fn cached(desk: &Desk, name: &str) -> std::path::PathBuf {
    desk.path(&format!(".cache/huggingface/hub/models--owner--repo/snapshots/{COMMIT}/{name}"))
}

fn blob(desk: &Desk, name: &str) -> std::path::PathBuf {
    desk.path(&format!(".cache/huggingface/hub/models--owner--repo/blobs/{name}"))
}

/// Checks that a pull fetched the complete file.
fn check_pulled(desk: &Desk, said: &Said) {
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(said.stdout.trim(), cached(desk, FILE).display().to_string());
    assert_eq!(fs::read(cached(desk, FILE)).unwrap(), bytes(1_000_000));
    assert!(!blob(desk, &format!("{}.partial", sha256(&bytes(1_000_000)))).exists());
}

#[test]
fn takes_a_middling_quantization_says_so_and_asks_once() {
    let hub = hub();
    let desk = desk(&hub);
    let first = desk.run(&["pull", NAME]);
    check_pulled(&desk, &first);
    assert!(first.stderr.contains("choosing m-Q4_K_M.gguf of 2 GGUF files; others: m-Q8_0.gguf"), "{first:?}");
    assert!(
        first.stderr.contains("m-Q4_K_M.gguf: 976 KiB\n") && first.stderr.contains("m-Q4_K_M.gguf: done, "),
        "{first:?}"
    );
    let link = fs::read_link(cached(&desk, FILE)).unwrap();
    assert_eq!(link.display().to_string(), format!("../../blobs/{}", sha256(&bytes(1_000_000))));
    let reference = desk.path(".cache/huggingface/hub/models--owner--repo/refs/main");
    assert_eq!(fs::read_to_string(reference).unwrap(), COMMIT);
    check_pulled(&desk, &desk.run(&["pull", NAME]));
    assert_eq!(hub.asked("/resolve/").len(), 1);
}

#[test]
fn goes_on_where_a_connection_was_cut() {
    let hub = hub();
    hub.fail("/resolve/", Fault::Cut(300_000));
    hub.fail("/resolve/", Fault::Cut(0));
    hub.fail("/resolve/", Fault::Cut(250_000));
    let desk = desk(&hub);
    check_pulled(&desk, &desk.run(&["pull", NAME]));
    let ranges: Vec<_> = hub.asked("/resolve/").into_iter().map(|asked| asked.range.unwrap_or_default()).collect();
    assert_eq!(ranges, ["", "bytes=300000-", "bytes=300000-", "bytes=550000-"]);
}

#[test]
fn goes_on_after_it_was_interrupted() {
    let hub = hub();
    hub.fail("/resolve/", Fault::Stall(400_000));
    let desk = desk(&hub);
    let partial = blob(&desk, &format!("{}.partial", sha256(&bytes(1_000_000))));
    let mut child = desk.command(&["pull", NAME]).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while partial.metadata().map_or(0, |metadata| metadata.len()) < 400_000 {
        assert!(Instant::now() < deadline, "nothing came");
        thread::sleep(Duration::from_millis(10));
    }
    interrupt(child.id());
    // A shell shows this as 130.
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()), Some(2));
    assert!(!cached(&desk, FILE).exists());
    let second = desk.run(&["pull", NAME]);
    check_pulled(&desk, &second);
    assert!(second.stderr.contains("390 KiB already downloaded"), "{second:?}");
    assert_eq!(hub.asked("/resolve/")[1].range.as_deref(), Some("bytes=400000-"));
}

#[test]
fn a_server_that_fails_for_a_moment_is_asked_again() {
    let hub = hub();
    hub.fail("/api/", Fault::Status(500, "x: y"));
    hub.fail("/resolve/", Fault::Status(503, "retry-after: 0"));
    hub.fail("/resolve/", Fault::Status(429, "retry-after: 0"));
    let desk = desk(&hub);
    check_pulled(&desk, &desk.run(&["pull", NAME]));
    assert_eq!((hub.asked("/api/").len(), hub.asked("/resolve/").len()), (2, 3));
}

#[test]
fn takes_nothing_from_a_server_that_ignores_or_mistakes_the_part() {
    for fault in [Fault::WholeFile, Fault::OtherPart] {
        let hub = hub();
        hub.fail("/resolve/", Fault::Cut(10_000));
        hub.fail("/resolve/", fault);
        let desk = desk(&hub);
        check_pulled(&desk, &desk.run(&["pull", NAME]));
    }
}

#[test]
fn names_the_reason_of_a_refusal() {
    for (status, code, token, what) in [
        (401, 4, None, "the hub denies access to 'owner/repo' without a token: 401 Unauthorized (no such luck)"),
        (403, 4, Some("hf_x"), "the hub denies access to 'owner/repo' with this token: 403 Forbidden (no such luck)"),
        (404, 3, None, "the hub has no 'owner/repo': 404 Not Found (no such luck)"),
    ] {
        let hub = hub();
        hub.fail("/api/", Fault::Status(status, "x-error-message: no such luck"));
        let desk = desk(&hub);
        let mut command = desk.command(&["pull", NAME]);
        command.envs(token.map(|token| ("HF_TOKEN", token)));
        let said = said(command.output().unwrap());
        assert_eq!(said.code, Some(code), "{said:?}");
        assert!(said.stderr.contains(what), "{said:?}");
        assert_eq!(hub.asked("/api/")[0].authorization, token.map(|token| format!("Bearer {token}")));
    }
}

#[test]
fn a_token_is_not_carried_elsewhere_and_the_part_is() {
    let hub = hub();
    hub.fail("/resolve/", Fault::Cut(1000));
    hub.fail("/resolve/", Fault::Elsewhere(format!("http://localhost:{}", hub.port)));
    let desk = desk(&hub);
    fs::create_dir_all(desk.path(".cache/huggingface")).unwrap();
    fs::write(desk.path(".cache/huggingface/token"), "hf_stored\n").unwrap();
    check_pulled(&desk, &desk.run(&["pull", NAME]));
    let asked = hub.asked("/resolve/");
    assert_eq!(asked[1].authorization.as_deref(), Some("Bearer hf_stored"));
    assert!(asked[2].path.starts_with("/elsewhere/") && asked[2].host.starts_with("localhost"), "{asked:?}");
    assert_eq!((asked[2].authorization.as_deref(), asked[2].range.as_deref()), (None, Some("bytes=1000-")));
}

#[test]
fn keeps_nothing_whose_digest_is_wrong() {
    let hub = hub();
    hub.fail("/resolve/", Fault::OtherBytes);
    let desk = desk(&hub);
    let first = desk.run(&["pull", NAME]);
    assert_eq!(first.code, Some(7), "{first:?}");
    assert!(first.stderr.contains("'m-Q4_K_M.gguf' is damaged: its digest is not "), "{first:?}");
    assert!(!cached(&desk, FILE).exists() && !blob(&desk, &sha256(&bytes(1_000_000))).exists());
    check_pulled(&desk, &desk.run(&["pull", NAME]));
}

#[test]
fn a_full_disk_is_told_and_survived() {
    let hub = hub();
    let desk = desk(&hub);
    desk.run(&["--version"]);
    let mut command = Command::new("sh");
    // A file size limit simulates a full disk: 512 blocks of 512 or 1024 bytes, depending on the shell.
    command.args(["-c", "trap '' XFSZ; ulimit -f 512; exec bin/pensieve pull hf:owner/repo"]);
    desk.prepare(&mut command);
    let first = said(command.output().unwrap());
    assert_eq!(first.code, Some(6), "{first:?}");
    assert!(first.stderr.contains("no space for '") && first.stderr.contains("pull again"), "{first:?}");
    check_pulled(&desk, &desk.run(&["pull", NAME]));
    assert!(
        hub.asked("/resolve/")[1].range.as_deref().is_some_and(|range| range.ends_with("000-") || range.len() > 10)
    );
    let vast = Hub::serve(&[(FILE, bytes(10))]);
    vast.relist(|listing| listing["siblings"][0]["lfs"]["size"] = (1_u64 << 60).into());
    let desk = Desk::with_hub(vast.endpoint());
    let said = desk.run(&["pull", "hf:owner/repo/m-Q4_K_M.gguf"]);
    assert_eq!(said.code, Some(6), "{said:?}");
    assert!(said.stderr.contains("no space for 1152921504607 MB in "), "{said:?}");
    let said = desk.run(&["pull", NAME]);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.stderr.contains("no GGUF file of 'owner/repo' fits the memory for models"), "{said:?}");
    assert!(vast.asked("/resolve/").is_empty());
}

#[test]
fn believes_no_name_that_leads_out_of_the_cache() {
    for name in [
        "../../../../escaped-Q4_K_M.gguf",
        "/escaped-Q4_K_M.gguf",
        "a/../../escaped.gguf",
        "a\\b.gguf",
        "a\u{0}.gguf",
        "",
        "a//b.gguf",
    ] {
        let hub = hub();
        hub.relist(|listing| listing["siblings"][0]["rfilename"] = name.into());
        let desk = desk(&hub);
        let said = desk.run(&["pull", NAME]);
        assert_eq!(said.code, Some(7), "{name:?}: {said:?}");
        assert!(said.stderr.contains("the hub's answer about 'owner/repo' names a file '"), "{said:?}");
        assert!(files(&desk.path(".cache")).is_empty());
    }
    let changes: [fn(&mut serde_json::Value); 4] = [
        |listing| listing["sha"] = "../../../x".into(),
        |listing| listing["siblings"][0]["lfs"]["sha256"] = "../../../x".into(),
        |listing| listing["siblings"][2]["blobId"] = "main".into(),
        |listing| listing["siblings"] = 3.into(),
    ];
    for change in changes {
        let hub = hub();
        hub.relist(change);
        let desk = desk(&hub);
        assert_eq!(desk.run(&["pull", NAME]).code, Some(7));
        assert!(files(&desk.path(".cache")).is_empty());
    }
}

#[test]
fn no_network_is_told() {
    let desk = Desk::new();
    let said = desk.run(&["pull", NAME]);
    assert_eq!(said.code, Some(5), "{said:?}");
    assert!(said.stderr.contains("no answer from http://127.0.0.1:9: "), "{said:?}");
    assert!(said.stderr.contains("check the network and HF_ENDPOINT"), "{said:?}");
}

#[test]
fn two_pulls_of_one_file_share_the_work() {
    let hub = hub();
    hub.fail("/resolve/", Fault::Trickle(100_000, Duration::from_millis(100)));
    let desk = desk(&hub);
    let first = desk.command(&["pull", NAME]).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while hub.asked("/resolve/").is_empty() {
        assert!(Instant::now() < deadline, "nothing was asked for");
        thread::sleep(Duration::from_millis(10));
    }
    let second = desk.run(&["pull", NAME]);
    check_pulled(&desk, &second);
    assert!(second.stderr.contains("waiting for another program that is downloading m-Q4_K_M.gguf"), "{second:?}");
    check_pulled(&desk, &said(first.wait_with_output().unwrap()));
    assert_eq!(hub.asked("/resolve/").len(), 1);
}

#[test]
fn brings_all_shards_and_what_belongs_to_them() {
    let index =
        br#"{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}"#;
    let wanted = [
        ("config.json", b"{}".to_vec()),
        ("tokenizer.json", bytes(5000)),
        ("model.safetensors.index.json", index.to_vec()),
        ("model-00001-of-00002.safetensors", bytes(20_000)),
        ("model-00002-of-00002.safetensors", bytes(30_000)),
    ];
    let others =
        [("consolidated.safetensors", bytes(10)), ("pytorch_model.bin", bytes(10)), ("sub folder/x.json", bytes(10))];
    let all: Vec<_> = wanted.iter().chain(&others).cloned().collect();
    let hub = Hub::serve(&all);
    let desk = desk(&hub);
    let said = desk.run(&["pull", NAME]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let mut names: Vec<_> = wanted.iter().map(|(name, _)| (*name).to_owned()).collect();
    names.sort();
    assert_eq!(files(&cached(&desk, "")), names);
    for (name, bytes) in wanted {
        assert_eq!(fs::read(cached(&desk, name)).unwrap(), bytes, "{name}");
    }
    let said = desk.run(&["pull", "hf:owner/repo/sub folder/x.json"]);
    assert_eq!((said.code, fs::read(cached(&desk, "sub folder/x.json")).unwrap()), (Some(0), bytes(10)), "{said:?}");
    let said = desk.run(&["pull", "hf:owner/repo/tokeniser.json"]);
    assert_eq!(said.code, Some(3));
    assert!(said.stderr.contains("did you mean 'tokenizer.json'?"), "{said:?}");
}

#[test]
fn lists_what_there_is() {
    let hub = hub();
    let desk = desk(&hub);
    let said = desk.run(&["pull", "--list", NAME]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let lines: Vec<Vec<&str>> = said.stdout.lines().map(|line| line.split("  ").map(str::trim).collect()).collect();
    let words =
        |line: &[&str]| line.iter().filter(|word| !word.is_empty()).map(ToString::to_string).collect::<Vec<_>>();
    let lines: Vec<Vec<String>> = lines.iter().map(|line| words(line)).collect();
    assert_eq!(lines.len(), 2, "{said:?}");
    assert_eq!((lines[0][0].as_str(), lines[0][1].as_str(), lines[0][4].as_str()), ("976 KiB", "fits", "(default)"));
    assert!(lines[0][2].starts_with("up to ") && lines[0][2].ends_with(" tokens/s"), "{said:?}");
    assert_eq!(
        (lines[0][3].as_str(), lines[1][3].as_str()),
        ("hf:owner/repo/m-Q4_K_M.gguf", "hf:owner/repo/m-Q8_0.gguf")
    );
    assert!(hub.asked("/resolve/").is_empty());
}

#[test]
fn takes_the_best_quantization_that_fits_the_memory() {
    let hub = hub();
    let desk = desk(&hub);
    // A worker takes another 256 MiB, so the 1 MB file does not fit and the 2,000-byte file does.
    let said = desk.run(&["pull", "--fit", "268500000", NAME]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.stderr.contains("choosing m-Q8_0.gguf of 2 GGUF files, as preferred ones do not fit"), "{said:?}");
    assert_eq!(said.stdout.trim(), cached(&desk, "m-Q8_0.gguf").display().to_string());
    let said = desk.run(&["pull", "--list", "--fit", "268500000", NAME]);
    assert!(said.stdout.lines().next().is_some_and(|line| line.contains("too large")), "{said:?}");
    let said = desk.run(&["pull", "--fit", "64MiB", NAME]);
    assert!(said.code == Some(1) && said.stderr.contains("a named file is not checked"), "{said:?}");
    assert_eq!(desk.run(&["pull", "--fit", "much", NAME]).code, Some(2));
}

struct Deaf;

impl Progress for Deaf {
    fn say(&mut self, _: &str) {}
    fn begin(&mut self, _: &str, _: u64, _: u64) {}
    fn reach(&mut self, _: u64) {}
    fn end(&mut self) {}
}

/// A pull with few retries.
fn pull_hastily(hub: &Hub, desk: &Desk) -> Result<pensieve_server::hub::Pulled, pensieve_server::hub::HubError> {
    let retry = RetryPolicy {
        answer: Duration::from_secs(10),
        body: Duration::from_millis(300),
        failures_max: 3,
        pause: Duration::from_millis(1),
    };
    let cache = desk.path(".cache/huggingface/hub");
    let puller = Puller { endpoint: hub.endpoint(), token: None, cache, memory: None, retry };
    puller.pull(&NAME.parse::<HubName>().unwrap(), &mut Deaf)
}

#[test]
fn a_connection_that_hangs_is_given_up_and_the_rest_asked_for() {
    let hub = hub();
    hub.fail("/resolve/", Fault::Stall(600_000));
    let desk = desk(&hub);
    pull_hastily(&hub, &desk).unwrap();
    assert_eq!(fs::read(cached(&desk, FILE)).unwrap(), bytes(1_000_000));
    assert_eq!(hub.asked("/resolve/")[1].range.as_deref(), Some("bytes=600000-"));
}

#[test]
fn a_slow_hub_is_no_failure_as_long_as_something_comes() {
    let hub = hub();
    for _ in 0..8 {
        hub.fail("/resolve/", Fault::Trickle(50_000, Duration::from_millis(100)));
    }
    let desk = desk(&hub);
    pull_hastily(&hub, &desk).unwrap();
    assert_eq!(fs::read(cached(&desk, FILE)).unwrap(), bytes(1_000_000));
    assert!(hub.asked("/resolve/").len() > 4);
    for _ in 0..3 {
        hub.fail("/resolve/", Fault::Stall(0));
    }
    let trouble = pull_hastily(&hub, &Desk::new()).unwrap_err();
    assert_eq!(trouble.kind, HubErrorKind::Network, "{trouble}");
}
