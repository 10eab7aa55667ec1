//! Models whose layers are spread over several devices. The CPU stands in for them (`cpu:0+cpu:1`), and the SDK checks
//! that every activation is on the device that reads it, so what is shown here about moving activations, weights,
//! caches and adapters holds on GPUs, too. What only GPUs can show is in docs/performance.md.

use crate::{
    artifacts::plugin,
    conformance,
    driver::{Driver, Options},
    families,
    reference::{Reference, fixture},
};

const TWO: &str = "cpu:0+cpu:1";

fn options(device: &'static str, kernels: &str) -> Options {
    Options { device, ..Options::with_settings(format!(r#"{{"kernels": "{kernels}"}}"#)) }
}

fn load(package: &str, checkpoint: &str, options: &Options) -> Driver {
    Driver::load(&plugin(package), &fixture(checkpoint), options)
        .unwrap_or_else(|error| panic!("{checkpoint}: {error}"))
}

#[test]
fn layers_on_two_devices_give_the_numbers_of_one_in_every_family() {
    let others = [("llama/gqa".to_owned(), "pensieve-llama"), ("llama/tied".to_owned(), "pensieve-llama")];
    let mut wrong = Vec::new();
    for (checkpoint, package) in others.into_iter().chain(families::cases()) {
        let tokens = Reference::of(&checkpoint).tokens("tokens");
        for kernels in ["auto", "generic"] {
            let one = load(package, &checkpoint, &options("cpu", kernels)).logits(&tokens).unwrap();
            let mut spread = load(package, &checkpoint, &options(TWO, kernels));
            assert_eq!(spread.resident.device, TWO);
            match spread.logits(&tokens) {
                Ok(two) if two == one => (),
                Ok(_) => wrong.push(format!("{checkpoint}, {kernels}: other numbers")),
                Err(error) => wrong.push(format!("{checkpoint}, {kernels}: {error}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_model_says_which_layers_lie_where_and_refuses_devices_that_it_cannot_be_spread_over() {
    let spread = load("pensieve-llama", "llama/gqa", &options(TWO, "auto"));
    let note = &spread.resident.note;
    assert!(note.contains("layer 0 on cpu:0, layer 1 on cpu:1"), "{note}");
    let refused = |device| {
        let error = Driver::load(&plugin("pensieve-llama"), &fixture("llama/gqa"), &options(device, "auto")).err();
        error.unwrap_or_else(|| panic!("{device} is taken")).to_string()
    };
    let without_cuda = [("cuda:0+cuda:93", "no 'cuda:"), ("cuda:all", "no 'cuda:0'")];
    let has_cuda = Driver::load(&plugin("pensieve-llama"), &fixture("llama/gqa"), &options("cuda:0", "auto")).is_ok();
    for (device, words) in [
        ("cpu:0+cpu:0", "cpu:0 is named twice"),
        ("cpu:0+cuda:0", "'cuda:0' is of another kind than 'cpu:0'"),
        ("cpu:0+cpu:1+cpu:2", "a model of 2 layers cannot be spread over 3 devices"),
        ("cpu:0+", "a device's name is missing"),
        ("auto+auto", "'auto' names no device by its number"),
    ]
    .into_iter()
    .chain(without_cuda.into_iter().filter(|_| !has_cuda))
    {
        let said = refused(device);
        assert!(said.contains(words), "{device}: {said}");
    }
    let wrapped = Options { device: TWO, ..Options::default() };
    let said = Driver::load(&plugin("pensieve-zoo"), &fixture("zoo/stablelm"), &wrapped).err().unwrap().to_string();
    assert!(said.contains("computes on one device"), "{said}");
}

#[test]
fn models_on_two_devices_obey_the_laws() {
    for (checkpoint, package) in [
        ("llama/gqa", "pensieve-llama"),
        ("llama/tied", "pensieve-llama"),
        ("families/qwen3_moe", "pensieve-qwen"),
        ("families/gemma3", "pensieve-gemma"),
        ("families/gemma4", "pensieve-gemma"),
        ("families/granite_hybrid", "pensieve-granite"),
        ("families/nemotron_h", "pensieve-nemotron"),
        ("families/deepseek_v3", "pensieve-deepseek"),
        ("families/kimi_linear", "pensieve-deepseek"),
        ("families/rwkv7", "pensieve-rwkv"),
        ("families/gpt_oss", "pensieve-gpt-oss"),
    ] {
        for kernels in ["auto", "generic"] {
            conformance::run_with(&plugin(package), &fixture(checkpoint), &options(TWO, kernels));
        }
    }
}
