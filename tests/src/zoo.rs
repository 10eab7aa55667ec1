//! Models of candle-transformers behind the bridge: each family of the zoo, plus a Qwen3 and a Mamba that are wrapped only
//! for tests, against transformers' numbers, and what the bridge promises for all of them.

use pensieve_laws::Outcome;
use pensieve_plugin_api::{CacheGroup, CacheKind, Card, ErrorCode, PluginError, Source, Want};
use pensieve_worker::plugin::{HostServices, LoadedPlugin};
use safetensors::SafeTensors;
use serde_json::{Map, Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread,
};
use tempfile::TempDir;

use crate::{
    artifacts::{plugin, test_plugin},
    conformance,
    driver::{Driver, Options},
    http::{
        client::Incoming,
        server::{Options as ServerOptions, Server},
    },
    reference::{EXACT, Reference, distance, fixture},
};

/// Folders in the format of the current transformers and of older versions.
const FOLDERS: [&str; 4] = ["zoo/mamba", "zoo/qwen3", "zoo/stablelm", "zoo/starcoder2"];
/// Families whose GGUF files candle reads, and the tolerance for rounding activations to 8 bits: a little more than in
/// `tests/fixtures/zoo/report.txt`.
const FILES: [(&str, f32); 1] = [("zoo/qwen3", 0.25)];

fn zoo() -> PathBuf {
    plugin("pensieve-zoo")
}

/// The plugin that serves a fixture.
fn plugin_of(name: &str) -> PathBuf {
    if name == "zoo/qwen3" || name == "zoo/mamba" { test_plugin("wrapped") } else { zoo() }
}

fn load(name: &str, checkpoint: &Path) -> Driver {
    Driver::load(&plugin_of(name), checkpoint, &Options::default())
        .unwrap_or_else(|error| panic!("{}: {error}", checkpoint.display()))
}

/// Compares a checkpoint with a fixture's reference: all logits, for which tokens are read one by one, and those at the
/// ends of chunks, which the model reads as it likes.
fn compare(checkpoint: &Path, name: &str, logits: &str, tolerance: f32) {
    const CHUNKS: [usize; 6] = [13, 29, 1, 8, 20, 1];
    let reference = Reference::of(name);
    let (tokens, expected) = (reference.tokens("tokens"), reference.logits(logits));
    let mut driver = load(name, checkpoint);
    let worst = distance(&driver.logits(&tokens).unwrap(), &expected);
    let mut sequence = driver.begin();
    let (mut rest, mut chunked) = (&tokens[..], 0.0_f32);
    for chunk in CHUNKS {
        let (piece, after) = rest.split_at(chunk);
        rest = after;
        let found = driver.feed(&mut sequence, piece, Want::LAST).unwrap();
        let last = tokens.len() - rest.len() - 1;
        chunked = chunked.max(distance(&found, &expected[last..=last]));
    }
    assert!(rest.is_empty());
    println!("{}: {worst:.2e}, in chunks {chunked:.2e}", checkpoint.display());
    assert!(worst.max(chunked) <= tolerance, "{}: off by {worst}, in chunks {chunked}", checkpoint.display());
}

#[test]
fn every_family_gives_the_logits_of_transformers() {
    for name in FOLDERS {
        compare(&fixture(name), name, "logits", EXACT);
    }
}

#[test]
fn gguf_files_that_candle_reads_do_so_too() {
    for (name, rounded) in FILES {
        compare(&fixture(name).join("f32.gguf"), name, "logits", EXACT);
        compare(&fixture(name).join("q8_0.gguf"), name, "logits_q8_0", rounded);
    }
}

#[test]
fn greedy_generation_is_that_of_transformers() {
    for name in FOLDERS {
        let reference = Reference::of(name);
        let (prompt, expected) = (reference.tokens("tokens"), reference.tokens("greedy"));
        assert_eq!(load(name, &fixture(name)).generate(&prompt[..8], expected.len()).unwrap(), expected, "{name}");
    }
}

#[test]
fn every_family_obeys_the_laws() {
    let files = FILES.map(|(name, _)| format!("{name}/q8_0.gguf"));
    for name in FOLDERS.into_iter().chain(files.iter().map(String::as_str)) {
        let fixture_of = name.strip_suffix("/q8_0.gguf").unwrap_or(name);
        let report = conformance::run(&plugin_of(fixture_of), &fixture(name), String::new());
        let copied = report.outcome("sequence-state");
        // Only Mamba's state is accessible.
        let is_offered = !matches!(copied, Some(Outcome::NotApplicable { .. }));
        assert_eq!(is_offered, name == "zoo/mamba", "{name}: {copied:?}");
        let counts = report.outcome("counts");
        assert!(!matches!(counts, Some(Outcome::NotApplicable { .. })), "{name}: {counts:?}");
    }
}

/// A copy of a fixture with a modified configuration.
pub fn changed(name: &str, change: impl FnOnce(&mut Map<String, Value>)) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture(name)).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    let path = folder.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(config.as_object_mut().unwrap());
    fs::write(&path, config.to_string()).unwrap();
    folder
}

/// Moves RoPE's parameters back to their form before `rope_parameters`.
pub fn age(config: &mut Map<String, Value>) {
    let rope = config.remove("rope_parameters").unwrap();
    let plain = rope.get("full_attention").unwrap_or(&rope);
    let is_scaled = plain["rope_type"] != "default";
    config.insert("rope_scaling".into(), if is_scaled { plain.clone() } else { Value::Null });
    match rope.get("sliding_attention") {
        Some(sliding) => {
            config.insert("rope_local_base_freq".into(), sliding["rope_theta"].clone());
            config.insert("rope_theta".into(), rope["full_attention"]["rope_theta"].clone());
            let full = config["layer_types"].as_array().unwrap().iter().position(|kind| kind == "full_attention");
            config.insert("sliding_window_pattern".into(), (full.unwrap() + 1).into());
            config.remove("layer_types");
        }
        None => {
            config.insert("rope_theta".into(), rope["rope_theta"].clone());
            if let Some(factor) = rope.get("partial_rotary_factor") {
                config.insert("partial_rotary_factor".into(), factor.clone());
            }
        }
    }
}

#[test]
fn configurations_of_older_transformers_are_read_as_well() {
    for name in ["zoo/qwen3", "zoo/starcoder2"] {
        let folder = changed(name, age);
        compare(folder.path(), name, "logits", EXACT);
    }
    let folder = changed("zoo/stablelm", |config| {
        let (theta, factor) = (config.remove("rope_theta"), config.remove("partial_rotary_factor"));
        let rope = json!({ "rope_type": "default", "rope_theta": theta, "partial_rotary_factor": factor });
        config.insert("rope_parameters".into(), rope);
        config.remove("rope_scaling");
    });
    compare(folder.path(), "zoo/stablelm", "logits", EXACT);
}

#[test]
fn what_a_configuration_leaves_out_has_the_default_of_transformers() {
    let silent = ["attention_bias", "hidden_act", "hidden_activation", "use_cache", "use_sliding_window", "head_dim"];
    for name in FOLDERS {
        let folder = changed(name, |config| {
            // Leave it out where it follows from the width.
            let per_head = config.get("num_attention_heads").and_then(Value::as_u64).map(|heads| 32 / heads);
            let follows = config.get("head_dim").is_none_or(|size| size.as_u64() == per_head);
            config.retain(|key, _| !silent.contains(&key.as_str()) || (key == "head_dim" && !follows));
            if config.get("tie_word_embeddings") == Some(&Value::Bool(false)) {
                config.remove("tie_word_embeddings");
            }
        });
        compare(folder.path(), name, "logits", EXACT);
    }
}

#[test]
fn what_candle_would_compute_wrongly_is_declined() {
    let linear = json!({ "rope_type": "linear", "factor": 8.0, "rope_theta": 1e6 });
    for (name, key, value, reason) in [
        ("zoo/mamba", "state_size", json!(32), "'state_size' is 32, not 16"),
        ("zoo/mamba", "time_step_rank", json!(4), "'time_step_rank' is 4, not 2"),
        ("zoo/qwen3", "rope_scaling", linear, "scaled RoPE (Linear { factor: 8.0 }) is not computed"),
        ("zoo/stablelm", "qk_layernorm", json!(true), "'qk_layernorm' is true, not false"),
        ("zoo/stablelm", "use_parallel_residual", json!(true), "'use_parallel_residual' is true"),
        ("zoo/starcoder2", "head_dim", json!(16), "'head_dim' is 16, not 8"),
    ] {
        let folder = changed(name, |config| {
            if key == "rope_scaling" {
                config.remove("rope_parameters");
            }
            config.insert(key.into(), value);
        });
        let error = describe(folder.path(), architecture(name)).expect_err(key);
        assert_eq!(error.code, ErrorCode::DECLINED, "{name} {key}: {error}");
        assert!(error.message.contains(reason), "{name} {key}: {error}");
    }
}

/// The architecture of a fixture.
fn architecture(name: &str) -> &str {
    name.trim_start_matches("zoo/")
}

fn describe(checkpoint: &Path, architecture: &str) -> Result<Card, PluginError> {
    let plugin = LoadedPlugin::open(&plugin_of(&format!("zoo/{architecture}"))).unwrap();
    let source = Source { path: checkpoint.to_str().unwrap().into(), options: "".into() };
    plugin.architecture(architecture).unwrap().describe(&source).into_result()
}

#[test]
fn the_context_ends_where_a_window_that_is_left_out_would_matter() {
    for (name, context) in [("zoo/starcoder2", 96), ("zoo/qwen3", 256), ("zoo/mamba", 1 << 20)] {
        assert_eq!(describe(&fixture(name), architecture(name)).unwrap().context, context, "{name}");
    }
}

#[test]
fn a_window_of_zero_means_none() {
    for name in ["zoo/starcoder2", "zoo/qwen3"] {
        for window in [json!(0), Value::Null] {
            let folder = changed(name, |config| {
                config.insert("sliding_window".into(), window.clone());
                config.insert("use_sliding_window".into(), true.into());
            });
            let card = describe(folder.path(), architecture(name)).unwrap();
            assert_eq!(card.context, 256, "{name}, {window}");
        }
    }
}

#[test]
fn the_card_tells_what_a_sequence_takes() {
    // Layers, keys and values, heads, head size, bytes per value.
    let token = 2 * 2 * 2 * 16 * 4;
    for (name, token, fixed, tokens) in [("zoo/qwen3", token, 0, 256), ("zoo/mamba", 0, 2 * 64 * (16 + 8) * 4, 1 << 20)]
    {
        let card = describe(&fixture(name), architecture(name)).unwrap();
        let opaque = CacheGroup { kind: CacheKind::OPAQUE, window: 0, bytes: fixed + token * tokens };
        assert_eq!(card.caches.as_slice(), [opaque], "{name}");
        let facts: Value = serde_json::from_str(&card.facts).unwrap();
        assert_eq!(facts["state_bytes_per_token"], token, "{name}");
        assert_eq!(facts["state_bytes_besides"], fixed, "{name}");
        assert_eq!(card.weight_bytes, 4 * facts["parameters"].as_u64().unwrap(), "{name}");
    }
    let file = describe(&fixture("zoo/qwen3").join("q8_0.gguf"), "qwen3").unwrap();
    let stored = fs::metadata(fixture("zoo/qwen3").join("q8_0.gguf")).unwrap().len();
    assert!(file.weight_bytes > stored && file.weight_bytes < 4 * stored, "{} of {stored}", file.weight_bytes);
}

/// Loads a model with 512 bytes per token and 256 tokens of context into a state budget.
fn within(state_bytes: u64, context: u32) -> Result<Driver, PluginError> {
    Driver::load(
        &plugin_of("zoo/qwen3"),
        &fixture("zoo/qwen3"),
        &Options { state_bytes, context, ..Options::default() },
    )
}

#[test]
fn a_budget_holds_whole_sequences_and_shortens_the_only_one() {
    for (state_bytes, context, expected) in [
        (10 << 17, 0, (256, 10)),
        ((2 << 17) - 1, 0, (256, 1)),
        (1 << 16, 0, (128, 1)),
        (1 << 16, 64, (64, 2)),
        (1 << 16, 1000, (128, 1)),
        (512, 0, (1, 1)),
    ] {
        let resident = within(state_bytes, context).unwrap().resident;
        assert_eq!((resident.context, resident.places[0]), expected, "{state_bytes} bytes, {context} tokens");
        assert!(resident.state_bytes <= state_bytes);
    }
    let Err(error) = within(511, 0) else { panic!("a budget without room") };
    assert_eq!(error.code, ErrorCode::OUT_OF_MEMORY, "{error}");
    let recurrent = Options { state_bytes: 12_287, ..Options::default() };
    let Err(error) = Driver::load(&plugin_of("zoo/mamba"), &fixture("zoo/mamba"), &recurrent) else {
        panic!("room for a part of a state")
    };
    assert_eq!(error.code, ErrorCode::OUT_OF_MEMORY, "{error}");
}

#[test]
fn more_sequences_than_there_is_room_for_are_refused_until_one_is_released() {
    let mut driver = within(2 << 17, 0).unwrap();
    let (mut one, mut two, mut three) = (driver.begin(), driver.begin(), driver.begin());
    let first = driver.feed(&mut one, &[3, 4, 5], Want::LAST).unwrap();
    driver.feed(&mut two, &[6, 7], Want::LAST).unwrap();
    let error = driver.feed(&mut three, &[3, 4, 5], Want::LAST).unwrap_err();
    assert_eq!(error.code, ErrorCode::OUT_OF_MEMORY, "{error}");
    driver.release(two);
    assert_eq!(driver.feed(&mut three, &[3, 4, 5], Want::LAST).unwrap(), first);
    driver.feed(&mut one, &[6], Want::LAST).unwrap();
}

#[test]
fn options_are_refused_as_there_are_none() {
    let options = Options::with_settings(r#"{"kernels": "generic"}"#);
    let Err(error) = Driver::load(&plugin_of("zoo/qwen3"), &fixture("zoo/qwen3"), &options) else { panic!("taken") };
    assert!(error.message.contains("qwen3 has none"), "{error}");
}

#[test]
fn the_threads_that_are_allowed_are_enough() {
    let reference = Reference::of("zoo/starcoder2");
    let options = Options { threads: 1, ..Options::default() };
    let mut driver = Driver::load(&zoo(), &fixture("zoo/starcoder2"), &options).unwrap();
    let logits = driver.logits(&reference.tokens("tokens")).unwrap();
    assert!(distance(&logits, &reference.logits("logits")) <= EXACT);
}

#[test]
fn a_tensor_that_is_missing_or_not_used_is_named() {
    let name = "model.layers.1.self_attn.q_norm.weight";
    let folder = changed("zoo/qwen3", |_| ());
    let path = folder.path().join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let renamed = file.tensors().into_iter().map(|(known, tensor)| match known == name {
        true => ("model.layers.1.self_attn.qk_norm.weight".to_owned(), tensor),
        false => (known, tensor),
    });
    safetensors::serialize_to_file(renamed.collect::<Vec<_>>(), None, &path).unwrap();
    let Err(error) = Driver::load(&plugin_of("zoo/qwen3"), folder.path(), &Options::default()) else {
        panic!("loaded without it")
    };
    assert_eq!(error.code, ErrorCode::NOT_FOUND, "{error}");
    assert!(error.message.contains(name) && error.help.contains("the nearest of its 25 is"), "{error}");

    let lines = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&lines);
    let services = HostServices::new().on_log(move |_, line| heard.lock().unwrap().push(line.to_owned()));
    let deeper = changed("zoo/qwen3", |config| {
        config.insert("num_hidden_layers".into(), 1.into());
    });
    Driver::load_with(&plugin_of("zoo/qwen3"), deeper.path(), &Options::default(), services).unwrap();
    let lines = lines.lock().unwrap();
    assert!(
        lines.iter().any(|line| line.starts_with("qwen3 does not use 11 of the checkpoint's 25 tensors")),
        "{lines:?}"
    );
}

#[test]
fn a_gguf_file_loads_tensor_by_tensor_and_can_be_cancelled_at_any() {
    for (name, _) in FILES {
        let file = fixture(name).join("q8_0.gguf");
        let heard = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&heard);
        let services = HostServices::new()
            .on_progress(move |done, total, what| told.lock().unwrap().push((done, total, what.to_owned())));
        Driver::load_with(&plugin_of(name), &file, &Options::default(), services).unwrap();
        let heard = heard.lock().unwrap();
        assert!(heard.is_sorted_by_key(|(done, ..)| *done), "{heard:?}");
        assert!(heard.iter().any(|(_, _, what)| what == "blk.1.attn_q.weight"), "{heard:?}");
        let (done, total, _) = heard.last().unwrap();
        assert_eq!(done, total, "{heard:?}");

        let services = HostServices::new();
        let (cancel, third) = (services.cancel(), heard[2].0);
        let after = Arc::new(Mutex::new(0));
        let reached = Arc::clone(&after);
        let services = services.on_progress(move |done, _, _| {
            *reached.lock().unwrap() = done;
            if done >= third {
                cancel.cancel();
            }
        });
        let Err(error) = Driver::load_with(&plugin_of(name), &file, &Options::default(), services) else {
            panic!("{name}")
        };
        assert_eq!((error.code, *after.lock().unwrap()), (ErrorCode::CANCELLED, third), "{name}: {error}");
    }
}

/// The streamed answer to a message.
fn answer(server: &Server, model: &str, text: &str) -> String {
    let messages = json!([{"role": "user", "content": text}]);
    let body = json!({"model": model, "max_tokens": 40, "temperature": 0, "stream": true, "messages": messages});
    let incoming = Incoming::open(server.address, "/v1/messages", &[], &body);
    assert_eq!(incoming.head.status, 200, "{}", server.log());
    let events = incoming.events();
    assert_eq!(events.last().map(|event| event.name.as_str()), Some("message_stop"), "{}", server.log());
    let deltas = events.iter().filter(|event| event.name == "content_block_delta");
    deltas.filter_map(|event| event.json()["delta"]["text"].as_str().map(str::to_owned)).collect()
}

#[test]
fn a_server_answers_with_wrapped_models_and_streams_do_not_mix() {
    const TEXTS: [&str; 3] = ["hello there", "what is the time of day, and what was it?", "the"];
    let models = ["starcoder2", "mamba"].map(|name| (name.to_owned(), fixture("zoo").join(name))).into();
    let plugins = vec![zoo(), test_plugin("wrapped"), plugin("pensieve-samplers")];
    let server = ServerOptions { plugins, models, ..ServerOptions::default() }.start();
    for model in ["starcoder2", "mamba"] {
        let alone = TEXTS.map(|text| answer(&server, model, text));
        assert!(alone.iter().all(|text| !text.is_empty()) && alone[0] != alone[1], "{alone:?}");
        let together = thread::scope(|scope| {
            let asked = TEXTS.map(|text| scope.spawn(|| answer(&server, model, text)));
            asked.map(|answer| answer.join().unwrap())
        });
        assert_eq!(together, alone, "{model}");
    }
}
