//! Families with several cache groups, in a worker: windows that free blocks and recurrent states are reused, shared,
//! spilled and preempted like any other memory, and no answer depends on it.

use pensieve_protocol::{
    job::Job,
    wire::{Load, Provider},
};

use crate::{
    artifacts::plugin,
    conformance,
    driver::{Driver, Options},
    reference::{EXACT, Reference, distance, fixture},
    worker::{Worker, faults, job, prompt, with, with_disk},
};

/// A family with layers that do not keep all tokens.
#[derive(Clone, Copy, Debug)]
struct Family {
    plugin: &'static str,
    architecture: &'static str,
    fixture: &'static str,
    /// Memory for about two sequences of full context length.
    kv_budget: u64,
}

const FAMILIES: [Family; 9] = [
    Family { plugin: "pensieve-gemma", architecture: "gemma", fixture: "families/gemma3", kv_budget: 400 << 10 },
    // Only windows.
    Family { plugin: "pensieve-mistral", architecture: "mistral", fixture: "mistral/window", kv_budget: 64 << 10 },
    Family { plugin: "pensieve-lfm2", architecture: "lfm2", fixture: "families/lfm2", kv_budget: 80 << 10 },
    Family { plugin: "pensieve-qwen", architecture: "qwen-next", fixture: "families/qwen3_next", kv_budget: 240 << 10 },
    Family {
        plugin: "pensieve-granite",
        architecture: "granite-hybrid",
        fixture: "families/granite_hybrid",
        kv_budget: 160 << 10,
    },
    Family {
        plugin: "pensieve-nemotron",
        architecture: "nemotron-h",
        fixture: "families/nemotron_h",
        kv_budget: 160 << 10,
    },
    // States, and keys and values, in every layer.
    Family {
        plugin: "pensieve-falcon",
        architecture: "falcon-h1",
        fixture: "families/falcon_h1",
        kv_budget: 320 << 10,
    },
    // Only states.
    Family { plugin: "pensieve-mamba", architecture: "mamba2", fixture: "families/mamba2", kv_budget: 80 << 10 },
    // States in three parts.
    Family { plugin: "pensieve-rwkv", architecture: "rwkv7", fixture: "families/rwkv7", kv_budget: 80 << 10 },
];

impl Family {
    fn load(&self) -> Load {
        let architecture = Provider { plugin: plugin(self.plugin), name: self.architecture.into() };
        with(Load { architecture, source: fixture(self.fixture), ..faults() }, |spec| {
            spec.options = r#"{"kv": "f32"}"#.into();
            spec.kv_budget = Some(4 << 20);
        })
    }
}

/// A first turn that ends at a block boundary, and the prompt of the next turn.
fn two_turns(worker: &mut Worker) -> Vec<u32> {
    let first = worker.run(&job(1, prompt(1, 176), 33));
    assert_eq!(first.usage().reused, 0);
    [prompt(1, 176), first.ids, prompt(2, 3)].concat()
}

/// Checks that the second turn gives the same answer as without a cache, and reads most of it from the cache.
#[track_caller]
fn check_second_turn(worker: &mut Worker, next: &[u32], family: Family) {
    let again = worker.run(&job(2, next.to_vec(), 20));
    let usage = again.usage();
    assert!(f64::from(usage.reused) >= 0.95 * f64::from(usage.prompt), "{family:?}: {usage:?}");
    let fresh = worker.run(&Job { salt: b"other".to_vec(), ..job(3, next.to_vec(), 20) });
    assert_eq!((fresh.usage().reused, fresh.ids), (0, again.ids), "{family:?}");
}

#[test]
fn a_second_turn_is_read_from_memory() {
    for family in FAMILIES {
        let mut worker = Worker::start(family.load());
        let next = two_turns(&mut worker);
        check_second_turn(&mut worker, &next, family);
    }
}

#[test]
fn a_second_turn_is_read_from_disk_after_a_restart() {
    for family in FAMILIES {
        let folder = tempfile::tempdir().unwrap();
        let mut worker = Worker::start(with_disk(family.load(), folder.path()));
        let next = two_turns(&mut worker);
        worker.drain();
        let mut worker = Worker::start(with_disk(family.load(), folder.path()));
        check_second_turn(&mut worker, &next, family);
    }
}

#[test]
fn diverging_texts_share_their_prefix() {
    for family in FAMILIES {
        let mut worker = Worker::start(family.load());
        let fork = |seed| [prompt(1, 100), prompt(seed, 40)].concat();
        worker.run(&job(1, fork(2), 20));
        // A text that reveals where others diverge leaves a copy of the state there for later ones.
        worker.run(&job(2, fork(3), 20));
        let third = worker.run(&job(3, fork(4), 20));
        assert_eq!(third.usage().reused, 96, "{family:?}");
        let fresh = worker.run(&Job { salt: b"other".to_vec(), ..job(4, fork(4), 20) });
        assert_eq!((fresh.usage().reused, fresh.ids), (0, third.ids), "{family:?}");
    }
}

#[test]
fn sequences_that_crowd_each_other_out_say_the_same_as_alone() {
    for family in FAMILIES {
        let mut worker = Worker::start(family.load());
        let jobs: Vec<Job> = (1..=6).map(|id| job(id, prompt(id, 90 + id as usize), 100)).collect();
        let alone: Vec<_> = jobs.iter().map(|job| worker.run(job).ids).collect();
        let mut worker = Worker::start(with(family.load(), |spec| spec.kv_budget = Some(family.kv_budget)));
        jobs.iter().for_each(|job| worker.submit(job));
        for (job, alone) in jobs.iter().zip(alone) {
            let crowded = worker.outcome(job.id);
            assert!(crowded.end.is_ok(), "{family:?}: {crowded:?}");
            assert_eq!(crowded.ids, alone, "{family:?}");
        }
    }
}

/// Full attention, windows, latents, latents with an indexer, and layers with states between.
const ATTENTIVE: [(&str, &str); 5] = [
    ("pensieve-llama", "llama/mha"),
    ("pensieve-gemma", "families/gemma3"),
    ("pensieve-deepseek", "families/deepseek_v3"),
    ("pensieve-deepseek", "families/deepseek_v32"),
    ("pensieve-qwen", "families/qwen3_next"),
];

/// The logits of random weights, which attend to little but the largest products, are further from those of transformers
/// than a trained model's. The kernels' own tests compare with exact sums.
#[test]
fn keys_and_values_in_fewer_bits_obey_the_laws_and_stay_close() {
    for (plugin_name, name) in ATTENTIVE {
        let reference = Reference::of(name);
        let (tokens, expected) = (reference.tokens("tokens"), reference.logits("logits"));
        let spread = expected.iter().flatten().fold(0.0_f32, |most, logit| most.max(logit.abs()));
        let mut bytes = Vec::new();
        for (kv, bound) in [("f32", EXACT / spread), ("q8", 0.05), ("q4", 0.8)] {
            let settings = format!(r#"{{"kv": "{kv}"}}"#);
            let mut driver =
                Driver::load(&plugin(plugin_name), &fixture(name), &Options::with_settings(&*settings)).unwrap();
            let apart = distance(&driver.logits(&tokens).unwrap(), &expected) / spread;
            println!("{name} {kv}: {apart:.1e} of the largest logit; {:?}", driver.card.caches);
            // An indexer chooses other positions for a small difference.
            let chooses = name == "families/deepseek_v32" && kv != "f32";
            assert!(apart <= bound || chooses, "{name} {kv}: {apart}");
            bytes.push(format!("{:?}", driver.card.caches));
            conformance::run(&plugin(plugin_name), &fixture(name), settings);
        }
        bytes.dedup();
        assert_eq!(bytes.len(), 3, "{name}: {bytes:?}");
    }
}

/// They differ from the kernels' in the last digits, by which a value may fall on another code.
#[test]
fn formulas_compute_keys_and_values_in_fewer_bits_as_kernels_do() {
    for (plugin_name, name) in ATTENTIVE {
        let tokens = Reference::of(name).tokens("tokens");
        for (kv, bound) in [("q8", 0.002), ("q4", 0.02)] {
            let [by_kernels, by_formulas] = ["auto", "generic"].map(|kernels| {
                let settings = format!(r#"{{"kv": "{kv}", "kernels": "{kernels}"}}"#);
                let options = Options::with_settings(settings);
                Driver::load(&plugin(plugin_name), &fixture(name), &options).unwrap().logits(&tokens).unwrap()
            });
            let spread = by_kernels.iter().flatten().fold(0.0_f32, |most, logit| most.max(logit.abs()));
            let apart = distance(&by_formulas, &by_kernels) / spread;
            println!("{name} {kv}: {apart:.1e} of the largest logit");
            assert!(apart <= bound, "{name} {kv}: {apart}");
        }
    }
}
