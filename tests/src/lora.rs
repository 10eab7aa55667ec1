//! The adapter formats of `plugins/lora`: what PEFT computes, what a batch of different adapters does, what is refused.

use pensieve::{
    job::{AdapterUse, Event, Job},
    plugin::LoadedPlugin,
    wire::{Command, Load, Provider, Report},
};
use pensieve_plugin_api::{AdapterData, PluginError, Want};
use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    artifacts::plugin,
    driver::{Driver, Options},
    reference::{EXACT, Reference, distance, fixture},
    worker::{Outcome, Worker, faults, job},
};

/// Adapters, the plugin and the checkpoint of their base.
const ADAPTERS: [(&str, &str, &str); 10] = [
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
];

fn open(format: &str, path: &Path) -> Result<AdapterData, PluginError> {
    let plugin = LoadedPlugin::open(&plugin("pensieve-lora")).unwrap();
    let format = plugin.adapter_format(format).unwrap();
    let path = path.to_str().unwrap();
    assert!(format.claims(path.into()), "{path}");
    format.open(path.into()).into_result()
}

/// How far the logits of an adapted model are from PEFT's.
fn error_of(plugin_of_base: &str, base: &Path, adapter: &AdapterData, name: &str, kernels: &str) -> f32 {
    let reference = Reference::of(&format!("lora/{name}"));
    let settings = format!(r#"{{"kernels": "{kernels}", "kv": "f32"}}"#);
    // LongRoPE takes its short factors for texts like these, and a context that is no longer.
    let context = if name == "phi3" { 72 } else { 0 };
    let options = Options { context, ..Options::with_settings(settings) };
    // The GGUF of a Mistral is a llama to llama.cpp.
    let is_llama = base.extension().is_some() && plugin_of_base == "pensieve-mistral";
    let plugin_of_base = if is_llama { "pensieve-llama" } else { plugin_of_base };
    let mut driver = Driver::load(&plugin(plugin_of_base), base, &options).unwrap();
    let id = driver.model.attach(adapter).into_result().unwrap();
    let mut sequence = driver.begin();
    sequence.adapter = (id, 1.0);
    let logits = driver.feed(&mut sequence, &reference.tokens("tokens"), Want::ALL).unwrap();
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

/// A worker with a tiny Llama and the formats.
fn worker() -> Worker {
    Worker::start(Load {
        architecture: Provider { plugin: plugin("pensieve-llama"), name: "llama".into() },
        adapter_formats: vec![plugin("pensieve-lora")],
        source: fixture("llama/gqa"),
        state_bytes: 32 << 20,
        threads: 2,
        ..faults()
    })
}

fn attach(worker: &mut Worker, name: &str, path: PathBuf) -> pensieve::wire::Attachment {
    worker.send(&Command::Attach { name: name.into(), path });
    match worker.until(|report| matches!(report, Report::Attached { name: attached, .. } if attached == name)) {
        Report::Attached { result, .. } => result,
        other => panic!("{other:?}"),
    }
}

fn under(id: u64, adapter: Option<(&str, f32)>, max_tokens: u32) -> Job {
    let adapter = adapter.map(|(name, scale)| AdapterUse { name: name.into(), scale });
    let tokens = (0..20).map(|token| token * 7 % 250 + 3).collect();
    Job { adapter, ignore_end_of_turn: true, ..job(id, tokens, max_tokens) }
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
    let alone: Vec<_> = (1..).zip(wishes).map(|(id, wish)| ids(worker.run(&under(id, wish, 40)))).collect();
    for (place, text) in alone.iter().enumerate() {
        assert!(!alone[..place].contains(text), "adapter {:?} changes nothing", wishes[place]);
    }
    for (id, wish) in (10..).zip(wishes) {
        worker.submit(&Job { salt: b"together".to_vec(), ..under(id, wish, 40) });
    }
    let together: Vec<_> = (10..14).map(|id| ids(worker.outcome(id))).collect();
    assert_eq!(together, alone);
}

fn resident_kib(worker: &Worker) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", worker.child.id())).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
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
            // Eight streams at all times: the last ones have ended by now, or are waited for here.
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
    assert_eq!(worker.stats().adapters, ["kept"]);
    let grown = resident_kib(&worker).saturating_sub(resident);
    assert!(grown < 8 << 10, "140 adapters left {grown} KiB behind");
}

/// A copy of an adapter with one thing changed.
fn spoiled(spoil: impl FnOnce(&Path)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::copy(fixture("lora/rank16").join(file), folder.path().join(file)).unwrap();
    }
    spoil(folder.path());
    folder
}

/// Changes tensors of an adapter: their name, shape and values go in, and what stays comes out.
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

#[test]
fn bad_adapters_are_refused_by_the_name_of_their_tensor_and_the_model_serves_on() {
    let mut worker = worker();
    let before = ids(worker.run(&under(1, None, 20)));
    let config = |folder: &Path, from: &str, to: &str| {
        let path = folder.join("adapter_config.json");
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(path, text.replace(from, to)).unwrap();
    };
    let cases: [(&str, &[&str], tempfile::TempDir); 8] = [
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
    ];
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
