//! `bench`, `models` and `doctor` on the smallest model there is.

use serde_json::Value;
use std::fs;

use super::Desk;
use crate::checkpoints;

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
        "--  plugin folder  plugins is not there",
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
