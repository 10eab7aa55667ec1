//! `bench`, `models` and `doctor` on the smallest existing models.

use serde_json::Value;
use std::fs;

use super::Desk;
use crate::{checkpoints, reference::fixture};

/// A desk with a plugin and a checkpoint for it.
fn desk() -> Desk {
    let desk = Desk::new();
    desk.install(&["bigram"]);
    let model = desk.path("home/models/pair");
    fs::create_dir_all(&model).unwrap();
    fs::copy(checkpoints::bigram(300, 512).path().join("config.json"), model.join("config.json")).unwrap();
    desk
}

#[test]
fn measures_prompts_first_tokens_and_decoding_at_each_concurrency() {
    let desk = desk();
    let model = desk.path("home/models/pair").display().to_string();
    let arguments = [
        "bench",
        "--model",
        &model,
        "--prompt",
        "64",
        "--generate",
        "32",
        "--concurrency",
        "1,4",
        "--beside",
        "256",
        "--rounds",
        "2",
        "--json",
    ];
    let said = desk.run(&arguments);
    assert_eq!(said.code, Some(0), "{said:?}");
    let report: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(report["model"], "pair");
    assert_eq!((&report["prompt_tokens"], &report["generated_tokens"]), (&64.into(), &32.into()));
    let rounds = report["rounds"].as_array().unwrap();
    assert_eq!(rounds.iter().map(|row| row["concurrency"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 4]);
    for row in rounds {
        for figure in ["prompt_tokens_per_s", "first_token_ms", "decode_tokens_per_s", "gap_p50_ms", "gap_p99_ms"] {
            assert!(row[figure].as_f64().is_some_and(|figure| figure > 0.0), "{figure}: {row}");
        }
        assert!(row["gap_p99_ms"].as_f64() >= row["gap_p50_ms"].as_f64());
        for share in ["engine_share", "outside_model_share"] {
            assert!(row[share].as_f64().is_some_and(|share| (0.0..=1.0).contains(&share)), "{share}: {row}");
        }
    }
    for row in rounds {
        let beside = &row["beside"];
        assert_eq!(beside["prompt_tokens"], 256, "{row}");
        assert!(beside["first_token_ms"].as_f64().is_some_and(|time| time > 0.0), "{row}");
        assert!(beside["gap_p99_ms"].as_f64() >= beside["gap_p50_ms"].as_f64(), "{row}");
    }
    assert!(said.stderr.contains("4 at once, round 2 of 2"), "{said:?}");
    let said = desk.run(&["bench", "--model", &model, "--prompt", "600"]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.stderr.contains("prompt and answer have 728 tokens, the model's context 512"), "{said:?}");
}

#[test]
fn records_what_each_thread_does() {
    let desk = desk();
    desk.install(&["pensieve-llama"]);
    let (llama, trace) = (fixture("llama/gqa/q8_0.gguf").display().to_string(), desk.path("trace.json"));
    let file = trace.display().to_string();
    let short = ["--prompt", "64", "--generate", "8", "--concurrency", "1,2", "--rounds", "1", "--device", "cpu"];
    let bench = |model: &str, file: &str, more: &[&str]| {
        desk.run(&[&["bench", "--model", model, "--trace", file], &short[..], more].concat())
    };
    let said = bench(&llama, &file, &["--json"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let report: Value = serde_json::from_str(&said.stdout).unwrap();
    let timeline = &report["timeline"];
    let share = |name: &str| timeline[name].as_f64().unwrap();
    assert!((0.01..=1.0).contains(&share("work_share")) && (0.0..=1.0).contains(&share("wait_share")), "{timeline}");
    assert_eq!((&timeline["is_cut"], &timeline["file"]), (&false.into(), &file.as_str().into()));
    let functions = timeline["functions"].as_array().unwrap();
    let products = |function: &&Value| function["name"].as_str().unwrap().starts_with("matmul::");
    let products: u64 = functions.iter().filter(products).map(|function| function["loops"].as_u64().unwrap()).sum();
    assert!(products > 50, "{functions:?}");
    let trace: Value = serde_json::from_slice(&fs::read(&trace).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let named = |name: &str| events.iter().filter(|event| event["name"] == name).collect::<Vec<_>>();
    let threads = timeline["threads"].as_u64().unwrap() as usize;
    assert_eq!((named("thread_name").len(), named("process_name").len()), (threads, 1));
    // The recorded stream's prompt, and seven tokens after the first; of the other's, what was computed meanwhile.
    let tokens = |event: &&Value| {
        event["name"].as_str()?.strip_prefix("step of ")?.strip_suffix(" tokens")?.parse::<usize>().ok()
    };
    let tokens: usize = events.iter().filter_map(|event| tokens(&event)).sum();
    assert!((64 + 7..=2 * (64 + 7)).contains(&tokens), "{tokens}");
    // The engine's spans nest: a step has the model's call, which has the loops. Both clocks agree to 20 µs.
    let apart = 20.0;
    let span = |event: &Value| (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap());
    let models: Vec<_> = named("model").into_iter().map(span).collect();
    let is_within = |event: &Value| {
        let (start, time) = span(event);
        models.iter().any(|(from, all)| *from <= start + apart && start + time <= from + all + apart)
    };
    let loops = events.iter().filter(|event| event["ph"] == "X" && event["tid"] == 0);
    let mut loops =
        loops.filter(|event| event["name"].as_str().is_some_and(|name| name.contains("::") || name == "wait"));
    assert!(loops.all(is_within));
    let said = bench(&llama, &file, &[]);
    assert!(said.stdout.contains(&format!("Written to {file}")) && said.stdout.contains("matmul::"), "{said:?}");
    let said = bench(&llama, &desk.path("nowhere/trace.json").display().to_string(), &[]);
    assert!(said.code == Some(3) && said.stderr.contains("cannot write"), "{said:?}");
    assert!(!said.stderr.contains("round 1"), "{said:?}");
    let said = desk.run(&["bench", "--model", &llama, "--trace", &file, "--device", "cpu,cpu:0"]);
    assert!(said.code == Some(2) && said.stderr.contains("--trace is for one device"), "{said:?}");
    let pair = desk.path("home/models/pair").display().to_string();
    let said = bench(&pair, &file, &[]);
    assert!(said.code == Some(9) && said.stderr.contains("records no timeline"), "{said:?}");
}

/// Runs `bench --quality` on a fixture's checkpoint, with so many tokens at a time.
fn quality(desk: &Desk, checkpoint: &str, chunk: u32) -> Value {
    let (model, text) = (fixture(checkpoint).display().to_string(), desk.path("text.txt").display().to_string());
    let options = ["--positions", "300", "--chunk", &chunk.to_string(), "--json"];
    let said = desk.run(&[&["bench", "--model", &model, "--quality", &text][..], &options[..]].concat());
    assert_eq!(said.code, Some(0), "{said:?}");
    let report: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(report["chunk_tokens"], chunk);
    report
}

#[test]
fn measures_how_far_a_model_is_from_its_own_weights_in_f32() {
    let desk = Desk::new();
    desk.install(&["pensieve-llama"]);
    fs::write(desk.path("text.txt"), "A worker that crashes, hangs or talks nonsense is ended.\n".repeat(80)).unwrap();
    let figure = |report: &Value, name: &str| report[name].as_f64().unwrap();
    // Nothing is rounded here, so the two only differ in summation order.
    let exact = quality(&desk, "llama/gqa/f32.gguf", 100);
    assert_eq!((&exact["model"], &exact["architecture"]), (&"f32".into(), &"llama".into()));
    assert!(figure(&exact, "kl_divergence") < 1e-9 && figure(&exact, "first_choices_equal") > 0.99, "{exact}");
    // The text is longer than the context, and every piece starts with BOS.
    assert_eq!((exact["positions"].as_u64(), exact["sequence_tokens"].as_u64()), (Some(300), Some(256)));
    let rounded = quality(&desk, "llama/kquant/mixed.gguf", 32);
    let (mean, worst) = (figure(&rounded, "kl_divergence"), figure(&rounded, "kl_divergence_p99"));
    assert!(mean > 1e-7 && mean < 2e-3 && worst >= mean, "{rounded}");
    let (found, reference) = (figure(&rounded, "perplexity"), figure(&rounded, "reference_perplexity"));
    assert!(found > 1.0 && (found / reference - 1.0).abs() < 0.02, "{rounded}");
    assert!(rounded["reference_note"].as_str().unwrap().ends_with("weights in f32"), "{rounded}");
    assert_eq!(files_behind(&desk), ["text.txt"]);
}

/// Files on the desk besides the program and its home.
fn files_behind(desk: &Desk) -> Vec<String> {
    let names = fs::read_dir(desk.path("")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| !["bin", "home"].contains(&name.as_str())).collect()
}

#[test]
fn says_why_it_cannot_tell_how_far_a_model_is_from_its_weights() {
    let desk = desk();
    desk.install(&["pensieve-llama"]);
    let (pair, text) =
        (desk.path("home/models/pair").display().to_string(), desk.path("text.txt").display().to_string());
    let llama = fixture("llama/gqa/q8_0.gguf").display().to_string();
    let bench = |model: &str| desk.run(&["bench", "--model", model, "--quality", &text]);
    let said = bench(&llama);
    assert!(said.code == Some(3) && said.stderr.contains("text.txt"), "{said:?}");
    fs::write(&text, [0xff, 0xfe, b'a', b'b']).unwrap();
    let said = bench(&llama);
    assert!(said.code == Some(2) && said.stderr.contains("is not UTF-8"), "{said:?}");
    fs::write(&text, "").unwrap();
    let said = bench(&llama);
    assert!(said.code == Some(2) && said.stderr.contains("fewer than two tokens"), "{said:?}");
    fs::write(&text, "hello world").unwrap();
    // A wrapper of another library's model rejects options, though the user gave none.
    desk.install(&["pensieve-zoo"]);
    let said = bench(&fixture("zoo/starcoder2").display().to_string());
    assert!(said.code == Some(1) && said.stderr.contains("'starcoder2' has no exact kernels"), "{said:?}");
    // An architecture that takes no options.
    let said = bench(&pair);
    assert!(said.code == Some(1) && said.stderr.contains("architecture 'bigram' uses the same kernels"), "{said:?}");
    let mut command = desk.command(&["bench", "--model", &llama, "--quality", &text]);
    let said = super::said(command.env("PENSIEVE_KERNELS", "generic").output().unwrap());
    assert!(said.code == Some(2) && said.stderr.contains("PENSIEVE_KERNELS forces"), "{said:?}");
    let said = desk.run(&["bench", "--model", &llama, "--quality", &text, "--rounds", "2"]);
    assert!(said.code == Some(2) && said.stderr.contains("cannot be used with"), "{said:?}");
}

#[test]
fn lists_models_with_what_plugins_say_of_them() {
    let desk = desk();
    let other = desk.path("home/models/alien");
    fs::create_dir_all(&other).unwrap();
    fs::write(other.join("config.json"), r#"{"architectures": ["Alien"]}"#).unwrap();
    let config = "[[models]]\nid = \"mine\"\nsource = \"home/models/pair\"\n[[models]]\nid = \"gone\"\nsource = \"nowhere.gguf\"\n[[models]]\nid = \"far\"\nsource = \"hf:owner/repo\"\n[[models]]\nid = \"twin\"\nbase = \"mine\"\n";
    fs::write(desk.path("pensieve.toml"), config).unwrap();
    let said = desk.run(&["models", "list", "--json"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let rows: Vec<Value> = serde_json::from_str(&said.stdout).unwrap();
    let row = |source: &str| rows.iter().find(|row| row["source"].as_str().unwrap().ends_with(source)).unwrap();
    assert_eq!(
        (&row("pair")["id"], &row("pair")["state"], &row("pair")["context"]),
        (&"mine".into(), &"ready".into(), &512.into())
    );
    assert!(row("pair")["bytes"].as_u64().unwrap() > 50);
    assert_eq!((&row("nowhere.gguf")["state"], &row("owner/repo")["state"]), (&"not here".into(), &"not here".into()));
    assert_eq!((&row("alien")["id"], &row("alien")["state"]), (&Value::Null, &"refused".into()));
    assert!(row("alien")["reason"].as_str().unwrap().contains("no plugin claims architecture 'Alien'"));
    assert_eq!(rows.len(), 4, "{rows:#?}");
    let said = desk.run(&["models", "list"]);
    assert!(said.stdout.starts_with("ID ") && said.stdout.contains("another name for 'mine'"), "{said:?}");
}

#[test]
fn doctor_finds_what_works_and_what_does_not() {
    let desk = desk();
    let config = "[server]\nlisten = \"127.0.0.1:0\"\n[[models]]\nid = \"mine\"\nsource = \"home/models/pair\"\n";
    fs::write(desk.path("pensieve.toml"), config).unwrap();
    let well = desk.run(&["doctor"]);
    assert_eq!(well.code, Some(0), "{well:?}");
    for line in [
        "ok  configuration  pensieve.toml",
        "ok  address        127.0.0.1:0 is free",
        "ok  device         'auto' takes ",
        "ok  devices        cpu with ",
        "home/plugins, 1 file\n",
        "--  plugin folder  plugins does not exist, which is fine",
        " in this machine\n",
    ] {
        assert!(well.stdout.contains(line), "{line:?} is not in {}", well.stdout);
    }
    assert!(well.stdout.contains("ok  plugin         ") && !well.stdout.contains("!!"), "{}", well.stdout);

    fs::write(desk.path(&format!("home/plugins/libbroken{}", std::env::consts::DLL_SUFFIX)), "no library").unwrap();
    fs::write(
        desk.path("pensieve.toml"),
        "[server]\nlisten = \"0.0.0.0:0\"\n[[models]]\nid = \"gone\"\nsource = \"nowhere\"\nsamplers = [\"greedier\"]\n",
    )
    .unwrap();
    let ill = desk.run(&["doctor"]);
    assert_eq!(ill.code, Some(1), "{ill:?}");
    for line in [
        "!!  address        0.0.0.0:0 can be reached from other machines",
        "!!  plugin         ",
        "!!  samplers       model 'gone': no sampler is called 'greedier'",
        "!!  model          'gone': there is nothing at ",
    ] {
        assert!(ill.stdout.contains(line), "{line:?} is not in {}", ill.stdout);
    }
    assert!(ill.stderr.contains("4 things are broken"), "{ill:?}");
    fs::write(desk.path("pensieve.toml"), "[srever]").unwrap();
    let wrong = desk.run(&["doctor"]);
    assert_eq!(wrong.code, Some(1));
    assert!(
        wrong.stdout.contains("!!  configuration  pensieve.toml: unknown key 'srever', line 1; did you mean 'server'?"),
        "{wrong:?}"
    );
}
