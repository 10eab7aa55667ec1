//! The adapter formats of `plugins/lora`: PEFT's results, batches with different adapters, and refusals.

use pensieve_plugin_api::{AdapterData, PluginError, Want, ext::merge::Merged};
use pensieve_protocol::{
    job::{AdapterUse, Event, Job},
    wire::{Command, Load, Location, Provider, Report},
};
use pensieve_worker::plugin::{HostServices, LoadedPlugin};
use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    artifacts::plugin,
    driver::{Driver, Options},
    processes::memory,
    reference::{EXACT, Reference, distance, fixture},
    worker::{Outcome, Worker, faults, job, with},
};

/// Adapters, with the plugin and checkpoint of their base.
const ADAPTERS: [(&str, &str, &str); 13] = [
    ("rank1", "pensieve-llama", "llama/gqa"),
    ("rank16", "pensieve-llama", "llama/gqa"),
    ("rank64", "pensieve-llama", "llama/gqa"),
    ("rslora", "pensieve-llama", "llama/gqa"),
    ("patterns", "pensieve-llama", "llama/gqa"),
    ("head", "pensieve-llama", "llama/gqa"),
    ("tied", "pensieve-llama", "llama/tied"),
    ("mistral", "pensieve-mistral", "mistral/head_dim"),
    ("phi2", "pensieve-phi", "phi/phi2"),
    ("phi3", "pensieve-phi", "phi/mini"),
    ("mistral64", "pensieve-mistral", "mistral/head_dim"),
    ("phi2_64", "pensieve-phi", "phi/phi2"),
    ("phi3_64", "pensieve-phi", "phi/mini"),
];

fn open(format: &str, path: &Path) -> Result<AdapterData, PluginError> {
    let plugin = LoadedPlugin::open(&plugin("pensieve-lora")).unwrap();
    let format = plugin.adapter_format(format).unwrap();
    let path = path.to_str().unwrap();
    assert!(format.claims(path.into()), "{path}");
    format.open(path.into()).into_result()
}

/// Loads the base of an adapter with these merged into its weights.
fn load(plugin_of_base: &str, base: &Path, kernels: &str, merged: &[Merged]) -> Result<Driver, PluginError> {
    let settings = format!(r#"{{"kernels": "{kernels}", "kv": "f32"}}"#);
    // LongRoPE uses its short factors for texts like these, and for a context that is no longer.
    let context = if base.starts_with(fixture("phi/mini")) { 72 } else { 0 };
    let options = Options { context, ..Options::with_settings(settings) };
    // llama.cpp stores Mistral models as llama.
    let is_llama = base.extension().is_some() && plugin_of_base == "pensieve-mistral";
    let plugin_of_base = if is_llama { "pensieve-llama" } else { plugin_of_base };
    Driver::load_merged(&plugin(plugin_of_base), base, &options, HostServices::new(), merged)
}

/// Distance of an adapted model's logits from PEFT's.
fn error_of(plugin_of_base: &str, base: &Path, adapter: &AdapterData, name: &str, kernels: &str) -> f32 {
    let reference = Reference::of(&format!("lora/{name}"));
    let mut driver = load(plugin_of_base, base, kernels, &[]).unwrap();
    let plain = driver.model.resident().weight_bytes;
    let id = driver.model.attach(adapter).into_result().unwrap();
    let values: usize = adapter.pairs.iter().map(|pair| pair.a.len() + pair.b.len()).sum();
    // Each part of a fused projection has its own first factor.
    assert!(driver.model.resident().weight_bytes - plain >= 4 * values as u64, "{name} takes memory");
    let mut sequence = driver.begin();
    sequence.adapter = (id, 1.0);
    let logits = driver.feed(&mut sequence, &reference.tokens("tokens"), Want::ALL).unwrap();
    driver.model.detach(id).into_result().unwrap();
    assert_eq!(driver.model.resident().weight_bytes, plain);
    distance(&logits, &reference.logits("logits"))
}

#[test]
fn adapters_of_peft_and_of_gguf_reach_the_reference_on_folders_and_gguf() {
    for (name, plugin, base) in ADAPTERS {
        let folder = fixture(&format!("lora/{name}"));
        let mut adapters = vec![("peft", open("peft", &folder).unwrap())];
        if folder.join("adapter.gguf").exists() {
            adapters.push(("gguf", open("gguf", &folder.join("adapter.gguf")).unwrap()));
        }
        for (format, adapter) in &adapters {
            for file in ["", "f32.gguf"] {
                for kernels in ["auto", "generic"] {
                    let worst = error_of(plugin, &fixture(base).join(file), adapter, name, kernels);
                    println!("{name} as {format} on {base}/{file}, {kernels} kernels: {worst:.1e}");
                    assert!(worst < EXACT, "{name} as {format} on {base}/{file}, {kernels} kernels: off by {worst}");
                }
            }
        }
    }
}

#[test]
fn a_merged_adapter_reaches_the_reference_too() {
    for (name, plugin, base) in ADAPTERS {
        let reference = Reference::of(&format!("lora/{name}"));
        let folder = fixture(&format!("lora/{name}"));
        let file = folder.join("adapter.gguf");
        let formats = [Some(("peft", folder)), file.exists().then_some(("gguf", file))];
        for (format, path) in formats.into_iter().flatten() {
            for file in ["", "f32.gguf"] {
                let merged = Merged { adapter: open(format, &path).unwrap(), strength: 1.0 };
                let mut driver = load(plugin, &fixture(base).join(file), "auto", &[merged]).unwrap();
                let logits = driver.logits(&reference.tokens("tokens")).unwrap();
                let worst = distance(&logits, &reference.logits("logits"));
                println!("{name} as {format} merged into {base}/{file}: {worst:.1e}");
                assert!(worst < EXACT, "{name} as {format} merged into {base}/{file}: off by {worst}");
            }
        }
    }
}

#[test]
fn adapters_follow_their_layers_to_two_devices() {
    for (name, _, base) in ADAPTERS.into_iter().filter(|(_, package, _)| *package == "pensieve-llama") {
        let reference = Reference::of(&format!("lora/{name}"));
        let adapter = open("peft", &fixture(&format!("lora/{name}"))).unwrap();
        for kernels in ["auto", "generic"] {
            let settings = format!(r#"{{"kernels": "{kernels}", "kv": "f32"}}"#);
            let options = Options { device: "cpu:0+cpu:1", ..Options::with_settings(settings) };
            let mut driver = Driver::load(&plugin("pensieve-llama"), &fixture(base), &options).unwrap();
            let id = driver.model.attach(&adapter).into_result().unwrap();
            let mut sequence = driver.begin();
            sequence.adapter = (id, 1.0);
            let logits = driver.feed(&mut sequence, &reference.tokens("tokens"), Want::ALL).unwrap();
            let worst = distance(&logits, &reference.logits("logits"));
            assert!(worst < EXACT, "{name} on {base}, {kernels}: off by {worst}");
        }
    }
}

/// A text's logits with an adapter at this scale, unmerged and merged.
fn both_ways(base: &Path, adapter: &AdapterData, strength: f32) -> (Vec<Vec<f32>>, Vec<Vec<f32>>) {
    let tokens = Reference::of("lora/rank16").tokens("tokens");
    let mut beside = load("pensieve-llama", base, "auto", &[]).unwrap();
    let id = beside.model.attach(adapter).into_result().unwrap();
    let mut sequence = beside.begin();
    sequence.adapter = (id, strength);
    let unmerged = beside.feed(&mut sequence, &tokens, Want::ALL).unwrap();
    let merged = [Merged { adapter: adapter.clone(), strength }];
    let mut within = load("pensieve-llama", base, "auto", &merged).unwrap();
    (unmerged, within.logits(&tokens).unwrap())
}

#[test]
fn merged_is_unmerged_at_any_strength_within_the_rounding_of_the_weights() {
    let adapter = open("peft", &fixture("lora/rank16")).unwrap();
    for file in ["", "f32.gguf"] {
        for strength in [1.0, 0.5, -2.0] {
            let (unmerged, merged) = both_ways(&fixture("llama/gqa").join(file), &adapter, strength);
            let worst = distance(&unmerged, &merged);
            assert!(worst < EXACT, "gqa/{file} at {strength}: off by {worst}");
        }
    }
    // Beside a tied embedding, the head has a separate adapter.
    let mut adapter = open("peft", &fixture("lora/tied")).unwrap();
    let mut head = adapter.pairs.iter().find(|pair| pair.target.contains("embed_tokens")).unwrap().clone();
    head.target = "lm_head".into();
    adapter.pairs.push(head);
    let (unmerged, merged) = both_ways(&fixture("llama/tied"), &adapter, 1.0);
    assert!(distance(&unmerged, &merged) < EXACT);
}

#[test]
fn what_cannot_be_merged_is_refused_by_name() {
    let adapter = open("peft", &fixture("lora/rank16")).unwrap();
    let refused = |file: &str, adapter: &AdapterData| {
        let merged = [Merged { adapter: adapter.clone(), strength: 1.0 }];
        load("pensieve-llama", &fixture("llama/gqa").join(file), "auto", &merged).err().unwrap().to_string()
    };
    let message = refused("q8_0.gguf", &adapter);
    assert!(message.contains("_proj'") && message.contains("quantized (Q8_0)"), "{message}");
    let mut stranger = adapter.clone();
    stranger.pairs[0].target = "model.layers.7.mlp.up_proj".into();
    let message = refused("", &stranger);
    assert!(message.contains("'model.layers.7.mlp.up_proj'") && message.contains("no such"), "{message}");
    let mut narrow = adapter;
    narrow.pairs[0].inputs -= 1;
    let rank = narrow.pairs[0].rank as usize;
    let shorter = narrow.pairs[0].a.len() - rank;
    narrow.pairs[0].a.truncate(shorter);
    let message = refused("", &narrow);
    assert!(message.contains(narrow.pairs[0].target.as_str()) && message.contains("maps"), "{message}");
}

/// A worker with a tiny Llama and the adapter formats.
fn worker() -> Worker {
    Worker::start(llama())
}

fn llama() -> Load {
    let load = Load {
        architecture: Provider { plugin: plugin("pensieve-llama"), name: "llama".into() },
        adapter_formats: vec![plugin("pensieve-lora")],
        source: fixture("llama/gqa"),
        ..faults()
    };
    with(load, |spec| (spec.kv_budget, spec.threads) = (Some(32 << 20), 2))
}

fn attach(worker: &mut Worker, name: &str, path: PathBuf) -> pensieve_protocol::wire::Attachment {
    let location = Location::trusted(path);
    worker.send(&Command::Attach { attempt: 1, name: name.into(), location });
    match worker.until(|report| matches!(report, Report::Attached { .. })) {
        Report::Attached { result, .. } => result,
        other => panic!("{other:?}"),
    }
}

fn under(id: u64, adapter: Option<(&str, f32)>, max_tokens: u32) -> Job {
    let adapter = adapter.map(|(name, scale)| AdapterUse { name: name.into(), scale });
    let tokens = (0..20).map(|token| token * 7 % 250 + 3).collect();
    Job { adapter, ignore_end_of_turn: true, ..job(id, tokens, max_tokens) }
}

/// Tokens with their exact log-probabilities, as bits.
fn said(outcome: Outcome) -> Vec<(u32, u32)> {
    assert!(outcome.end.is_ok(), "{:?}", outcome.end);
    let tokens = outcome.events.iter().filter_map(|event| match event {
        Event::Tokens(tokens) => Some(tokens),
        _ => None,
    });
    let each = tokens.flat_map(|tokens| tokens.ids.iter().zip(&tokens.logprobs));
    each.map(|(id, token)| (*id, token.logprob.to_bits())).collect()
}

fn ids(outcome: Outcome) -> Vec<u32> {
    assert!(outcome.end.is_ok(), "{:?}", outcome.end);
    outcome.ids
}

#[test]
fn sequences_under_different_adapters_share_a_batch_and_say_what_they_say_alone() {
    let mut worker = worker();
    attach(&mut worker, "a", fixture("lora/rank16")).unwrap();
    attach(&mut worker, "b", fixture("lora/rslora/")).unwrap();
    let wishes = [None, Some(("a", 1.0)), Some(("b", 1.0)), Some(("a", 0.5))];
    let job = |id, wish| Job { logprobs: Some(0), ..under(id, wish, 40) };
    let alone: Vec<_> = (1..).zip(wishes).map(|(id, wish)| said(worker.run(&job(id, wish)))).collect();
    for (place, text) in alone.iter().enumerate() {
        assert!(!alone[..place].contains(text), "adapter {:?} changes nothing", wishes[place]);
    }
    for (id, wish) in (10..).zip(wishes) {
        worker.submit(&Job { salt: b"together".to_vec(), ..job(id, wish) });
    }
    let together: Vec<_> = (10..14).map(|id| said(worker.outcome(id))).collect();
    assert_eq!(together, alone);
}

fn resident_kib(worker: &Worker) -> u64 {
    memory(worker.child.id()).unwrap().resident >> 10
}

#[test]
fn adapters_come_and_go_without_a_trace_while_streams_run() {
    let mut worker = worker();
    attach(&mut worker, "kept", fixture("lora/rank1")).unwrap();
    let wish = |id: u64| id.is_multiple_of(2).then_some(("kept", 1.0));
    let expected: Vec<_> = (1..=2).map(|id| ids(worker.run(&under(id, wish(id), 200)))).collect();
    let mut resident = 0;
    let mut first = 100;
    for round in 0..200 {
        if round % 20 == 0 {
            // Always eight streams: the previous ones have ended by now, or are waited for here.
            (first..first + 8).for_each(|id| worker.submit(&under(id, wish(id), 200)));
        }
        attach(&mut worker, "passing", fixture("lora/rank64")).unwrap();
        worker.send(&Command::Detach { name: "passing".into() });
        worker.until(|report| matches!(report, Report::Detached { .. }));
        if round % 20 == 19 {
            for id in first..first + 8 {
                assert_eq!(ids(worker.outcome(id)), expected[usize::from(id % 2 == 0)], "stream {id}");
            }
            first += 8;
        }
        if round == 60 {
            resident = resident_kib(&worker);
        }
    }
    let adapters = worker.stats().adapters;
    assert_eq!((adapters.len(), adapters[0].name.as_str()), (1, "kept"));
    let grown = resident_kib(&worker).saturating_sub(resident);
    assert!(grown < 8 << 10, "140 adapters left {grown} KiB behind");
}

#[test]
fn adapters_beyond_the_limit_leave_and_come_back_with_the_same_words() {
    let wishes = ["rank1", "rank16", "rslora"];
    let mut roomy = worker();
    let mut bytes = Vec::new();
    for name in wishes {
        bytes.push(attach(&mut roomy, name, fixture("lora").join(name)).unwrap().bytes);
    }
    let expected: Vec<_> =
        (1..).zip(wishes).map(|(id, name)| ids(roomy.run(&under(id, Some((name, 1.0)), 30)))).collect();
    // Room for the largest and one more, but never for all.
    let limit = bytes.iter().sum::<u64>() - 1;
    let mut worker = Worker::start(with(llama(), |spec| spec.adapter_memory = limit));
    for name in wishes {
        attach(&mut worker, name, fixture("lora").join(name)).unwrap();
    }
    let mut id = 1;
    for round in 0..4 {
        let jobs: Vec<_> = wishes.iter().map(|name| (name, 4)).collect();
        let mut asked = Vec::new();
        for (place, (name, count)) in jobs.into_iter().enumerate() {
            for _ in 0..count {
                worker.submit(&Job { salt: vec![round], ..under(id, Some((name, 1.0)), 30) });
                asked.push((id, place));
                id += 1;
            }
        }
        for (id, place) in asked {
            assert_eq!(ids(worker.outcome(id)), expected[place], "round {round}, {}", wishes[place]);
        }
        let held: u64 = worker.stats().adapters.iter().filter(|one| one.loaded).map(|one| one.bytes).sum();
        assert!(held <= limit, "{held} bytes of {limit}");
    }
    let stats = worker.stats();
    assert_eq!(stats.adapters.len(), 3);
    assert!(stats.adapter_unloads >= 4 && stats.adapter_loads > stats.adapter_unloads, "{stats:?}");
    let failure = attach(&mut worker, "large", fixture("lora/rank64")).unwrap_err().to_string();
    assert!(failure.contains("raise the model's adapter_memory"), "{failure}");
}

#[test]
fn an_adapter_that_is_gone_from_disk_fails_its_jobs_with_the_reason() {
    let folder = spoiled(|_| ());
    let mut roomy = worker();
    let bytes = attach(&mut roomy, "a", folder.path().to_owned()).unwrap().bytes;
    let mut worker = Worker::start(with(llama(), |spec| spec.adapter_memory = bytes));
    attach(&mut worker, "a", folder.path().to_owned()).unwrap();
    attach(&mut worker, "b", fixture("lora/rank16")).unwrap();
    fs::remove_file(folder.path().join("adapter_model.safetensors")).unwrap();
    let failure = worker.run(&under(1, Some(("a", 1.0)), 5)).failure().to_string();
    assert!(failure.contains("adapter_model.safetensors"), "{failure}");
    assert_eq!(ids(worker.run(&under(2, Some(("b", 1.0)), 5))).len(), 5);
}

/// A copy of an adapter with one modification.
fn spoiled(spoil: impl FnOnce(&Path)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::copy(fixture("lora/rank16").join(file), folder.path().join(file)).unwrap();
    }
    spoil(folder.path());
    folder
}

/// Modifies the tensors of an adapter: maps name, shape and values, dropping some.
fn with_tensors(
    folder: &Path,
    mut change: impl FnMut(&str, Vec<usize>, Vec<f32>) -> Option<(String, Vec<usize>, Vec<f32>)>,
) {
    use safetensors::{Dtype, SafeTensors, tensor::TensorView};
    let path = folder.join("adapter_model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensors = file.tensors().into_iter().filter_map(|(name, tensor)| {
        let values = tensor.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let (name, shape, values) = change(&name, tensor.shape().to_vec(), values)?;
        Some((name, shape, values.iter().flat_map(|value: &f32| value.to_le_bytes()).collect::<Vec<u8>>()))
    });
    let tensors: Vec<_> = tensors.collect();
    let views =
        tensors.iter().map(|(name, shape, data)| (name, TensorView::new(Dtype::F32, shape.clone(), data).unwrap()));
    safetensors::serialize_to_file(views, None, &path).unwrap();
}

const VICTIM: &str = "base_model.model.model.layers.1.self_attn.k_proj.lora_A.weight";

/// Broken adapters: a name, the expected message, and the folder.
pub fn bad_adapters() -> Vec<(&'static str, &'static [&'static str], tempfile::TempDir)> {
    let config = |folder: &Path, from: &str, to: &str| {
        let path = folder.join("adapter_config.json");
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(path, text.replace(from, to)).unwrap();
    };
    vec![
        (
            "half",
            &["k_proj.lora_B", "half of a pair"],
            spoiled(|folder| {
                with_tensors(folder, |name, shape, values| (name != VICTIM).then(|| (name.into(), shape, values)));
            }),
        ),
        (
            "shape",
            &["k_proj", "maps"],
            spoiled(|folder| {
                with_tensors(folder, |name, shape, values| {
                    let narrow = name == VICTIM;
                    let shape = if narrow { vec![shape[0], shape[1] / 2] } else { shape };
                    let values = if narrow { values[..shape[0] * shape[1]].to_vec() } else { values };
                    Some((name.into(), shape, values))
                });
            }),
        ),
        (
            "nan",
            &["k_proj.lora_A", "NaN"],
            spoiled(|folder| {
                with_tensors(folder, |name, shape, mut values| {
                    if name == VICTIM {
                        values[7] = f32::NAN;
                    }
                    Some((name.into(), shape, values))
                });
            }),
        ),
        (
            "stranger",
            &["layers.9.", "no such"],
            spoiled(|folder| {
                with_tensors(folder, |name, shape, values| {
                    Some((name.replace("layers.1.", "layers.9."), shape, values))
                });
            }),
        ),
        ("rank", &["lora_A", "rank 16", "says 8"], spoiled(|folder| config(folder, "\"r\": 16", "\"r\": 8"))),
        (
            "rest",
            &["modules_to_save"],
            spoiled(|folder| {
                config(folder, "\"modules_to_save\": null", "\"modules_to_save\": [\"lm_head\"]");
            }),
        ),
        ("dora", &["DoRA"], spoiled(|folder| config(folder, "\"use_dora\": false", "\"use_dora\": true"))),
        (
            "cut",
            &["adapter_model.safetensors"],
            spoiled(|folder| {
                let path = folder.join("adapter_model.safetensors");
                let bytes = fs::read(&path).unwrap();
                fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
            }),
        ),
        (
            "huge",
            &["k_proj.lora_A", "rank 2000 is outside 1 to 1024"],
            spoiled(|folder| {
                with_tensors(folder, |name, shape, values| {
                    let (is_a, is_b) = (name == VICTIM, name == VICTIM.replace("lora_A", "lora_B"));
                    match (is_a, is_b) {
                        (true, _) => Some((name.into(), vec![2000, shape[1]], vec![0.5; 2000 * shape[1]])),
                        (_, true) => Some((name.into(), vec![shape[0], 2000], vec![0.5; shape[0] * 2000])),
                        _ => Some((name.into(), shape, values)),
                    }
                });
            }),
        ),
    ]
}

#[test]
fn bad_adapters_are_refused_by_the_name_of_their_tensor_and_the_model_serves_on() {
    let mut worker = worker();
    let before = ids(worker.run(&under(1, None, 20)));
    let cases = bad_adapters();
    for (name, said, folder) in &cases {
        let failure = attach(&mut worker, name, folder.path().to_owned()).unwrap_err().to_string();
        println!("{name}: {failure}");
        assert!(said.iter().all(|word| failure.contains(word)), "{name}: {failure}");
    }
    let model = fixture("llama/gqa/f32.gguf");
    let failure = attach(&mut worker, "model", model).unwrap_err().to_string();
    assert!(failure.contains("not an adapter"), "{failure}");
    assert!(worker.stats().adapters.is_empty());
    assert_eq!(ids(worker.run(&under(2, None, 20))), before);
    assert!(matches!(worker.run(&under(3, Some(("nan", 1.0)), 5)).events.last(), Some(Event::Failed(_))));
}
