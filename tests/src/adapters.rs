//! Low-rank adapters on Llama: applied unmerged, they must do the same as adding them to the weights.

use half::{bf16, f16};
use pensieve_plugin_api::{AdapterData, LowRankPair, Want, ext::merge::Merged};
use pensieve_worker::plugin::HostServices;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use std::{fs, path::Path};
use tempfile::TempDir;

use crate::{
    artifacts::plugin,
    driver::{Driver, Options},
    reference::{distance, fixture},
};

const FIXTURE: &str = "llama/head_dim";
const RANK: usize = 3;
const SCALE: f32 = 0.5;
/// Weights of the fixture, with their outputs and inputs.
const TARGETS: [(&str, usize, usize); 4] = [
    ("model.layers.0.self_attn.q_proj", 64, 32),
    ("model.layers.1.self_attn.k_proj", 32, 32),
    ("model.layers.1.mlp.down_proj", 32, 64),
    ("lm_head", 128, 32),
];

fn load(checkpoint: &Path, kernels: &str) -> Driver {
    let options = Options::with_settings(format!(r#"{{"kernels": "{kernels}", "kv": "f32"}}"#));
    Driver::load(&plugin("pensieve-llama"), checkpoint, &options).unwrap()
}

fn values(len: usize, salt: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7 + salt * 13) as f32 * 0.37).sin() * 0.2).collect()
}

fn pair(&(target, outputs, inputs): &(&str, usize, usize)) -> LowRankPair {
    LowRankPair {
        target: target.into(),
        rank: RANK as u32,
        inputs: inputs as u32,
        outputs: outputs as u32,
        scale: SCALE,
        a: values(RANK * inputs, target.len()).into(),
        b: values(outputs * RANK, target.len() + 1).into(),
    }
}

fn adapter() -> AdapterData {
    AdapterData { base: "".into(), fingerprint: "test".into(), pairs: TARGETS.iter().map(pair).collect() }
}

/// Adds a pair to the values of its weight.
fn add(weight: &mut [f32], pair: &LowRankPair) {
    let inputs = pair.inputs as usize;
    for (at, weight) in weight.iter_mut().enumerate() {
        let (row, column) = (at / inputs, at % inputs);
        let change = (0..RANK).map(|r| pair.b[row * RANK + r] * pair.a[r * inputs + column]);
        *weight += pair.scale * change.sum::<f32>();
    }
}

/// A copy of the fixture's folder with weights of this type, modified by `change` before rounding.
fn copy(dtype: Dtype, change: impl Fn(&str, &[usize], &mut [f32])) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(fixture(FIXTURE).join(name), folder.path().join(name)).unwrap();
    }
    let bytes = fs::read(fixture(FIXTURE).join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let round = |value: &f32| match dtype {
        Dtype::F16 => f16::from_f32(*value).to_le_bytes().to_vec(),
        Dtype::BF16 => bf16::from_f32(*value).to_le_bytes().to_vec(),
        _ => value.to_le_bytes().to_vec(),
    };
    let tensors: Vec<_> = (file.tensors().into_iter())
        .map(|(name, tensor)| {
            let mut weight: Vec<f32> =
                tensor.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
            change(&name, tensor.shape(), &mut weight);
            let bytes: Vec<u8> = weight.iter().flat_map(round).collect();
            (name, tensor.shape().to_vec(), bytes)
        })
        .collect();
    let views =
        tensors.iter().map(|(name, shape, bytes)| (name, TensorView::new(dtype, shape.clone(), bytes).unwrap()));
    safetensors::serialize_to_file(views, None, &folder.path().join("model.safetensors")).unwrap();
    folder
}

/// A copy of the fixture's folder with the adapter added to its weights.
fn merged() -> TempDir {
    copy(Dtype::F32, |name, shape, weight| {
        for target in TARGETS.iter().filter(|(target, ..)| name == format!("{target}.weight")) {
            assert_eq!(shape, [target.1, target.2], "{name}");
            add(weight, &pair(target));
        }
    })
}

#[test]
fn unmerged_is_merged_over_folders_and_gguf_on_both_kernel_paths() {
    let merged = merged();
    let tokens: Vec<u32> = (0..40).map(|i| i * 11 % 128).collect();
    for kernels in ["auto", "generic"] {
        let expected = load(merged.path(), kernels).logits(&tokens).unwrap();
        for file in ["", "f32.gguf"] {
            let mut driver = load(&fixture(FIXTURE).join(file), kernels);
            let plain = driver.logits(&tokens).unwrap();
            assert!(distance(&plain, &expected) > 0.1, "the adapter must be worth noticing");
            let id = driver.model.attach(&adapter()).into_result().unwrap();
            let mut sequence = driver.begin();
            sequence.adapter = (id, 1.0);
            let adapted = driver.feed(&mut sequence, &tokens, Want::ALL).unwrap();
            let worst = distance(&adapted, &expected);
            assert!(worst < 1e-4, "{file} ({kernels} kernels): off by {worst}");
            driver.release(sequence);
            assert_eq!(driver.logits(&tokens).unwrap(), plain, "a sequence without the adapter");
            driver.model.detach(id).into_result().unwrap();
        }
    }
}

#[test]
fn what_is_merged_into_half_precision_is_off_by_its_rounding_and_no_more() {
    let tokens: Vec<u32> = (0..40).map(|i| i * 11 % 128).collect();
    let exact = load(&fixture(FIXTURE), "auto").logits(&tokens).unwrap();
    for dtype in [Dtype::F16, Dtype::BF16] {
        let base = copy(dtype, |_, _, _| ());
        for kernels in ["auto", "generic"] {
            let mut beside = load(base.path(), kernels);
            let plain = beside.logits(&tokens).unwrap();
            let id = beside.model.attach(&adapter()).into_result().unwrap();
            let mut sequence = beside.begin();
            sequence.adapter = (id, 1.0);
            let unmerged = beside.feed(&mut sequence, &tokens, Want::ALL).unwrap();
            let options = Options::with_settings(format!(r#"{{"kernels": "{kernels}", "kv": "f32"}}"#));
            let merged = [Merged { adapter: adapter(), strength: 1.0 }];
            let within =
                Driver::load_merged(&plugin("pensieve-llama"), base.path(), &options, HostServices::new(), &merged);
            let within = within.unwrap().logits(&tokens).unwrap();
            // The tolerance is the effect of rounding every weight once, as in the checkpoint: a merge rounds four of
            // them once more.
            let (rounding, change) = (distance(&plain, &exact), distance(&plain, &unmerged));
            let worst = distance(&within, &unmerged);
            println!("{dtype:?}, {kernels}: off by {worst:.1e}; rounding {rounding:.1e}, the adapter {change:.1e}");
            assert!(worst < 2.0 * rounding, "{dtype:?}, {kernels} kernels: {worst} where rounding is {rounding}");
            assert!(change > 10.0 * worst, "{dtype:?}, {kernels} kernels: the adapter must be worth noticing");
        }
    }
}

#[test]
fn a_tied_head_and_its_table_are_adapted_each_under_its_own_name() {
    for file in ["", "f32.gguf"] {
        let mut driver = load(&fixture("llama/tied").join(file), "auto");
        let plain = driver.logits(&[1, 2, 3]).unwrap();
        let mut changed = vec![plain];
        for target in ["lm_head", "model.embed_tokens"] {
            let outputs = driver.card.vocabulary as usize;
            let pairs = [LowRankPair { target: target.into(), ..pair(&("lm_head", outputs, 32)) }];
            let pairs = pairs.into_iter().collect();
            let adapter = AdapterData { base: "".into(), fingerprint: "test".into(), pairs };
            let id = driver.model.attach(&adapter).into_result().unwrap();
            let mut sequence = driver.begin();
            sequence.adapter = (id, 1.0);
            changed.push(driver.feed(&mut sequence, &[1, 2, 3], Want::ALL).unwrap());
        }
        for (a, b) in [(0, 1), (0, 2), (1, 2)] {
            assert!(distance(&changed[a], &changed[b]) > 0.01, "{file}: {a} and {b}");
        }
    }
}

#[test]
fn an_adapter_that_does_not_fit_names_the_tensor() {
    let mut driver = load(&fixture(FIXTURE), "auto");
    let mut refusal = |change: &dyn Fn(&mut LowRankPair)| {
        let mut adapter = adapter();
        change(&mut adapter.pairs[1]);
        driver.model.attach(&adapter).into_result().unwrap_err().message.into_string()
    };
    for message in [
        refusal(&|pair| pair.target = "model.layers.9.self_attn.k_proj".into()),
        refusal(&|pair| pair.outputs = 64),
        refusal(&|pair| pair.b[5] = f32::NAN),
        refusal(&|pair| pair.scale = f32::INFINITY),
        refusal(&|pair| {
            pair.a.pop();
        }),
    ] {
        assert!(message.contains("self_attn.k_proj"), "{message}");
    }
}
