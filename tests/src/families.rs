//! The families with plugins besides Llama, Mistral and Phi: folders and GGUF files against transformers' numbers,
//! whole and in chunks, with our kernels and with formulas, and the laws on one checkpoint for each way in which they
//! differ.

use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use std::path::PathBuf;

use crate::{
    artifacts::plugin,
    conformance,
    driver::{Driver, Options},
    mistral::within,
    reference::{Comparison, EXACT, Reference, distance, fixture},
    zoo::{age, changed},
};

/// A fixture of `families/`, the plugin that serves it, and its GGUF files.
struct Case {
    name: &'static str,
    plugin: &'static str,
    files: Files,
}

/// Which GGUF files a fixture has, and how its quantized one is compared with the reference.
enum Files {
    None,
    /// Within this tolerance at every position: about twice the effect of rounding the inputs, from `report.txt`.
    Within(f32),
    /// Within this tolerance at more than half of the positions, as rounded inputs make some rows choose other experts.
    Mostly(f32),
}

const CASES: &[Case] = &[
    Case { name: "gemma2", plugin: "pensieve-gemma", files: Files::None },
    Case { name: "gemma2_plain", plugin: "pensieve-gemma", files: Files::Within(0.4) },
    Case { name: "gemma3", plugin: "pensieve-gemma", files: Files::Within(0.5) },
    Case { name: "gemma4", plugin: "pensieve-gemma", files: Files::Within(1.2) },
    Case { name: "gemma4_moe", plugin: "pensieve-gemma", files: Files::Mostly(0.4) },
    Case { name: "qwen3", plugin: "pensieve-qwen", files: Files::Within(0.4) },
    Case { name: "qwen2_moe", plugin: "pensieve-qwen", files: Files::Mostly(0.4) },
    Case { name: "qwen2_moe_mixed", plugin: "pensieve-qwen", files: Files::None },
    Case { name: "qwen3_moe", plugin: "pensieve-qwen", files: Files::Mostly(0.4) },
    Case { name: "qwen3_next", plugin: "pensieve-qwen", files: Files::Mostly(0.4) },
    Case { name: "qwen3_5", plugin: "pensieve-qwen", files: Files::Within(1.2) },
    Case { name: "qwen3_5_moe", plugin: "pensieve-qwen", files: Files::Mostly(0.4) },
    Case { name: "mixtral", plugin: "pensieve-mistral", files: Files::Mostly(0.4) },
    Case { name: "olmoe", plugin: "pensieve-olmo", files: Files::Mostly(0.4) },
    Case { name: "phimoe", plugin: "pensieve-phi", files: Files::None },
    Case { name: "glm4", plugin: "pensieve-glm", files: Files::Within(0.35) },
    Case { name: "glm4_moe", plugin: "pensieve-glm", files: Files::Mostly(0.4) },
    Case { name: "granite", plugin: "pensieve-granite", files: Files::Within(0.2) },
    Case { name: "granitemoe", plugin: "pensieve-granite", files: Files::Mostly(0.2) },
    Case { name: "granite_hybrid", plugin: "pensieve-granite", files: Files::Mostly(0.2) },
    Case { name: "granite_hybrid_dense", plugin: "pensieve-granite", files: Files::None },
    Case { name: "granite_hybrid_rotated", plugin: "pensieve-granite", files: Files::None },
    Case { name: "gpt_oss", plugin: "pensieve-gpt-oss", files: Files::None },
    Case { name: "gpt_oss_plain", plugin: "pensieve-gpt-oss", files: Files::Mostly(0.4) },
    Case { name: "lfm2", plugin: "pensieve-lfm2", files: Files::None },
    Case { name: "lfm2_plain", plugin: "pensieve-lfm2", files: Files::Within(2.5) },
    Case { name: "lfm2_moe", plugin: "pensieve-lfm2", files: Files::Mostly(0.4) },
    Case { name: "falcon_h1", plugin: "pensieve-falcon", files: Files::Within(1.2) },
    Case { name: "falcon_h1_normed", plugin: "pensieve-falcon", files: Files::Within(1.2) },
    Case { name: "falcon_h1_biased", plugin: "pensieve-falcon", files: Files::None },
    Case { name: "mamba2", plugin: "pensieve-mamba", files: Files::Within(0.5) },
    Case { name: "mamba2_tied", plugin: "pensieve-mamba", files: Files::None },
    Case { name: "mamba", plugin: "pensieve-mamba", files: Files::Within(1.2) },
    Case { name: "falcon_mamba", plugin: "pensieve-mamba", files: Files::Within(1.1) },
    Case { name: "jamba", plugin: "pensieve-jamba", files: Files::Mostly(0.8) },
    Case { name: "jamba_dense", plugin: "pensieve-jamba", files: Files::None },
    Case { name: "kimi_linear", plugin: "pensieve-deepseek", files: Files::Mostly(0.4) },
    Case { name: "rwkv7", plugin: "pensieve-rwkv", files: Files::Within(0.4) },
    Case { name: "deepseek_v2", plugin: "pensieve-deepseek", files: Files::Mostly(0.4) },
    Case { name: "deepseek_v3", plugin: "pensieve-deepseek", files: Files::None },
    Case { name: "deepseek_v32", plugin: "pensieve-deepseek", files: Files::None },
    Case { name: "deepseek_v3_plain", plugin: "pensieve-deepseek", files: Files::Mostly(0.4) },
    Case { name: "glm4_moe_lite", plugin: "pensieve-deepseek", files: Files::Mostly(0.4) },
    Case { name: "smollm3", plugin: "pensieve-llama", files: Files::None },
    Case { name: "seed_oss", plugin: "pensieve-llama", files: Files::Within(0.4) },
    Case { name: "exaone4", plugin: "pensieve-exaone", files: Files::Within(0.9) },
    Case { name: "exaone4_full", plugin: "pensieve-exaone", files: Files::None },
    Case { name: "cohere2", plugin: "pensieve-cohere", files: Files::Within(0.4) },
    Case { name: "ernie4_5", plugin: "pensieve-ernie", files: Files::Within(0.4) },
    Case { name: "ernie4_5_biased", plugin: "pensieve-ernie", files: Files::None },
    Case { name: "ernie4_5_moe", plugin: "pensieve-ernie", files: Files::Mostly(0.4) },
    Case { name: "minimax_m2", plugin: "pensieve-minimax", files: Files::Mostly(0.4) },
    Case { name: "nemotron_h", plugin: "pensieve-nemotron", files: Files::Mostly(0.4) },
    Case { name: "olmo2", plugin: "pensieve-olmo", files: Files::Within(0.9) },
];

/// The fixtures of these families, with the plugins that serve them.
pub fn cases() -> impl Iterator<Item = (String, &'static str)> {
    CASES.iter().map(|case| (case.fixture(), case.plugin))
}

/// Fixtures in other folders that these plugins also serve.
const OTHERS: &[(&str, &str)] =
    &[("pensieve-qwen", "qwen2/biases"), ("pensieve-qwen", "qwen2/tied"), ("pensieve-qwen", "qwen2/windows")];

impl Case {
    fn fixture(&self) -> String {
        format!("families/{}", self.name)
    }

    fn plugin(&self) -> PathBuf {
        plugin(self.plugin)
    }

    /// The share of positions whose quantized logits are within a tolerance of the reference.
    fn near(&self, tolerance: f32) -> f32 {
        let reference = Reference::of(&self.fixture());
        let (tokens, expected) = (reference.tokens("tokens"), reference.logits("logits_q8_0"));
        let file = fixture(&self.fixture()).join("q8_0.gguf");
        let mut driver = Driver::load(&self.plugin(), &file, &Options::default()).unwrap();
        let found = driver.logits(&tokens).unwrap();
        let is_near = |row: &usize| distance(&found[*row..=*row], &expected[*row..=*row]) <= tolerance;
        (0..expected.len()).filter(is_near).count() as f32 / expected.len() as f32
    }
}

#[test]
fn folders_give_the_logits_of_transformers() {
    for case in CASES {
        Comparison::of(&case.plugin(), &case.fixture(), "").check_both();
    }
    for (package, name) in OTHERS {
        Comparison::of(&plugin(package), name, "").check_both();
    }
}

#[test]
fn gguf_files_give_them_too() {
    for case in CASES.iter().filter(|case| !matches!(case.files, Files::None)) {
        let (plugin, name) = (case.plugin(), case.fixture());
        Comparison::of(&plugin, &name, "f32.gguf").check_both();
        let quantized = Comparison::of(&plugin, &name, "q8_0.gguf");
        match case.files {
            Files::Within(tolerance) => Comparison { logits: "logits_q8_0", tolerance, ..quantized }.check_both(),
            Files::Mostly(tolerance) => {
                let share = case.near(tolerance);
                assert!(share > 0.5, "{name}: {share} of the positions are within {tolerance}");
            }
            Files::None => (),
        }
    }
}

#[test]
fn greedy_generation_is_that_of_transformers() {
    for case in CASES {
        let reference = Reference::of(&case.fixture());
        let (prompt, expected) = (reference.tokens("tokens"), reference.tokens("greedy"));
        let mut driver = Driver::load(&case.plugin(), &fixture(&case.fixture()), &Options::default()).unwrap();
        assert_eq!(driver.generate(&prompt[..8], expected.len()).unwrap(), expected, "{}", case.name);
    }
}

#[test]
fn experts_that_stay_in_the_host_s_memory_change_no_number() {
    for (name, package) in [("qwen3_moe", "pensieve-qwen"), ("gpt_oss", "pensieve-gpt-oss")] {
        let name = format!("families/{name}");
        let (reference, plugin) = (Reference::of(&name), plugin(package));
        let (tokens, expected) = (reference.tokens("tokens"), reference.logits("logits"));
        for (kernels, layers) in [("auto", 1), ("generic", 1), ("generic", 1000)] {
            let settings = format!(r#"{{"kernels": "{kernels}", "kv": "f32", "n_cpu_moe": {layers}}}"#);
            let mut driver = Driver::load(&plugin, &fixture(&name), &Options::with_settings(settings)).unwrap();
            let worst = distance(&driver.logits(&tokens).unwrap(), &expected);
            assert!(worst <= EXACT, "{name}, {kernels}, {layers} layers: off by {worst}");
        }
    }
}

#[test]
fn families_obey_the_laws() {
    for case in CASES {
        for kernels in ["auto", "generic"] {
            conformance::check(&case.plugin(), &case.fixture(), kernels);
        }
        if !matches!(case.files, Files::None) {
            conformance::check(&case.plugin(), &format!("{}/q8_0.gguf", case.fixture()), "auto");
        }
    }
}

/// Designs that no shipped family has, in `examples/new-designs`.
const DESIGNS: [&str; 2] = ["engram", "streams"];

#[test]
fn new_designs_on_the_sdk_s_open_pieces_give_the_logits_of_their_papers() {
    let plugin = plugin("new-designs");
    for name in DESIGNS {
        let fixture_name = format!("designs/{name}");
        Comparison::of(&plugin, &fixture_name, "").check_both();
        for kernels in ["auto", "generic"] {
            conformance::check(&plugin, &fixture_name, kernels);
        }
        let reference = Reference::of(&fixture_name);
        let (prompt, expected) = (reference.tokens("tokens"), reference.tokens("greedy"));
        let mut driver = Driver::load(&plugin, &fixture(&fixture_name), &Options::default()).unwrap();
        assert_eq!(driver.generate(&prompt[..8], expected.len()).unwrap(), expected, "{name}");
    }
    let card = Driver::load(&plugin, &fixture("designs/engram"), &Options::default()).unwrap().card;
    // Four tables of eight values in each row: on disk, and no weights.
    let mapped = (53 + 59 + 97 + 101) * 8 * 4;
    assert!(card.facts.contains(&format!(r#""mapped_bytes":{mapped}"#)), "{}", card.facts);
}

/// Compares a folder whose configuration says the same as a fixture's in a different form.
fn check_folder(case: &Case, folder: &std::path::Path) {
    let reference = Reference::of(&case.fixture());
    let mut driver = Driver::load(&case.plugin(), folder, &Options::with_settings(r#"{"kv": "f32"}"#)).unwrap();
    let worst = distance(&driver.logits(&reference.tokens("tokens")).unwrap(), &reference.logits("logits"));
    assert!(worst <= EXACT, "{}: {worst}", case.name);
}

#[test]
fn configurations_of_older_transformers_are_read_as_well() {
    const AGED: [&str; 10] =
        ["cohere2", "ernie4_5", "exaone4_full", "gemma2", "gemma3", "glm4", "olmo2", "qwen2_moe", "qwen3", "seed_oss"];
    for case in CASES.iter().filter(|case| AGED.contains(&case.name)) {
        check_folder(case, changed(&case.fixture(), age).path());
    }
}

#[test]
fn what_a_configuration_leaves_out_has_the_default_of_transformers() {
    let silent = ["attention_bias", "hidden_act", "hidden_activation", "use_cache", "use_sliding_window"];
    for case in CASES {
        let folder = changed(&case.fixture(), |config| config.retain(|key, _| !silent.contains(&key.as_str())));
        check_folder(case, folder.path());
    }
}

/// A fixture's folder with other tensors: `change` maps each by name.
pub fn rewritten(name: &str, change: impl Fn(&str, Stored) -> Vec<(String, Stored)>) -> tempfile::TempDir {
    let folder = changed(name, |_| ());
    let path = folder.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors = Vec::new();
    for (name, tensor) in file.tensors() {
        tensors.extend(change(&name, (tensor.shape().to_vec(), tensor.data().to_vec())));
    }
    let views = tensors
        .iter()
        .map(|(name, (shape, data))| (name, TensorView::new(Dtype::F32, shape.clone(), data.as_slice()).unwrap()));
    safetensors::serialize_to_file(views, None, &path).unwrap();
    folder
}

/// A tensor's shape and bytes.
pub type Stored = (Vec<usize>, Vec<u8>);

#[test]
fn a_checkpoint_that_lacks_a_layer_is_refused_by_its_name() {
    for (name, package) in [
        ("falcon_h1", "pensieve-falcon"),
        ("granite_hybrid_dense", "pensieve-granite"),
        ("jamba", "pensieve-jamba"),
        ("kimi_linear", "pensieve-deepseek"),
        ("lfm2", "pensieve-lfm2"),
        ("mamba2", "pensieve-mamba"),
        ("nemotron_h", "pensieve-nemotron"),
        ("qwen3_5", "pensieve-qwen"),
        ("rwkv7", "pensieve-rwkv"),
    ] {
        let folder = rewritten(&format!("families/{name}"), |name, tensor| match name.contains(".layers.1.") {
            true => vec![],
            false => vec![(name.to_owned(), tensor)],
        });
        let Err(error) = Driver::load(&plugin(package), folder.path(), &Options::default()) else {
            panic!("{name} was loaded without a layer");
        };
        let message = format!("{error:?}");
        assert!(message.contains("`layers.1`, of 4 layers") || message.contains("layers.1."), "{name}: {message}");
    }
}

#[test]
fn heads_that_a_configuration_gives_layer_by_layer() {
    let case = CASES.iter().find(|case| case.name == "gemma4").unwrap();
    let folder = changed(&case.fixture(), |config| {
        // As in models of ten or more layers, whose layer numbers are zero-padded.
        let listed = ["01", "03"].map(|layer| (layer.to_owned(), serde_json::json!({ "head_dim": 16 })));
        config.insert("per_layer_config".into(), serde_json::Map::from_iter(listed).into());
        config.remove("global_head_dim");
    });
    check_folder(case, folder.path());
}

#[test]
fn experts_that_are_stacked_and_multiply_from_the_other_side() {
    let case = CASES.iter().find(|case| case.name == "qwen3_moe").unwrap();
    let bytes = std::fs::read(fixture(&case.fixture()).join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let (experts, width, inner) = (6, 32, 32);
    // One row per input, with the gate's values before the gated ones. The second stack is square.
    let stack = |layer: &str, parts: &[&str]| -> Stored {
        let mut data = Vec::new();
        for (expert, input) in (0..experts).flat_map(|expert| (0..width).map(move |input| (expert, input))) {
            for part in parts {
                let tensor = file.tensor(&format!("{layer}.mlp.experts.{expert}.{part}.weight")).unwrap();
                assert_eq!(tensor.shape(), [inner, width]);
                data.extend((0..inner).flat_map(|row| &tensor.data()[4 * (row * width + input)..][..4]));
            }
        }
        (vec![experts, width, parts.len() * inner], data)
    };
    let folder = rewritten(&case.fixture(), |name, tensor| match name.split_once(".mlp.experts.") {
        Some((layer, "0.gate_proj.weight")) => {
            vec![(format!("{layer}.mlp.experts.gate_up_proj"), stack(layer, &["gate_proj", "up_proj"]))]
        }
        Some((layer, "0.down_proj.weight")) => {
            vec![(format!("{layer}.mlp.experts.down_proj"), stack(layer, &["down_proj"]))]
        }
        Some(_) => vec![],
        None => vec![(name.to_owned(), tensor)],
    });
    check_folder(case, folder.path());
}

#[test]
fn a_correction_of_another_length_than_the_experts_is_refused_by_its_name() {
    let folder = rewritten("families/deepseek_v3", |name, (shape, data)| {
        let is_correction = name.ends_with("e_score_correction_bias");
        let tensor = if is_correction { (vec![1], data[..4].to_vec()) } else { (shape, data) };
        vec![(name.to_owned(), tensor)]
    });
    let error = Driver::load(&plugin("pensieve-deepseek"), folder.path(), &Options::default()).err().unwrap();
    let message = error.to_string();
    assert!(message.contains("gate.e_score_correction_bias' has 1 values for"), "{message}");
}

#[test]
fn the_text_models_of_checkpoints_that_also_see() {
    for (package, name, class, kind, model) in [
        ("pensieve-gemma", "gemma3", "Gemma3ForConditionalGeneration", "gemma3", "language_model.model"),
        ("pensieve-gemma", "gemma3", "Gemma3ForConditionalGeneration", "gemma3", "model.language_model"),
        ("pensieve-gemma", "gemma4", "Gemma4ForConditionalGeneration", "gemma4", "model.language_model"),
        ("pensieve-glm", "glm4", "Glm4vForConditionalGeneration", "glm4v", "model.language_model"),
        ("pensieve-glm", "glm4", "GlmOcrForConditionalGeneration", "glm_ocr", "model.language_model"),
        ("pensieve-glm", "glm4_moe", "Glm4vMoeForConditionalGeneration", "glm4v_moe", "model.language_model"),
        ("pensieve-qwen", "qwen3", "Qwen3VLForConditionalGeneration", "qwen3_vl", "model.language_model"),
        ("pensieve-qwen", "qwen3_5", "Qwen3_5ForConditionalGeneration", "qwen3_5", "model.language_model"),
    ] {
        let name = format!("families/{name}");
        let reference = Reference::of(&name);
        let folder = within(&name, (class, kind), model, "lm_head");
        let options = Options::with_settings(r#"{"kv": "f32"}"#);
        let mut driver = Driver::load(&plugin(package), folder.path(), &options).unwrap();
        let logits = driver.logits(&reference.tokens("tokens")).unwrap();
        assert!(distance(&logits, &reference.logits("logits")) <= EXACT, "{class}, {model}");
    }
}
