//! Mistral checkpoints against transformers' numbers, with the plugin that claims them.

use pensieve_worker::plugin::HostServices;
use safetensors::{SafeTensors, tensor::TensorView};
use serde_json::{Value, json};
use std::{
    fs,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use crate::{
    artifacts::plugin,
    driver::{Driver, Options},
    reference::{Comparison, EXACT, Reference, distance, fixture},
};

/// Tolerance for rounding activations to 8 bits: about twice the effect in `tests/fixtures/mistral/report.txt`.
const ROUNDED: f32 = 0.3;

fn mistral() -> PathBuf {
    plugin("pensieve-mistral")
}

fn folder(name: &str) {
    Comparison::of(&mistral(), &format!("mistral/{name}"), "").check_both();
}

/// llama.cpp stores Mistral as `llama`, so that plugin has to support what Mistral has and Llama has not.
fn gguf(name: &str, plugin: PathBuf) {
    Comparison::of(&plugin, &format!("mistral/{name}"), "f32.gguf").check_both();
}

#[test]
fn a_window_shorter_than_the_text() {
    folder("window");
}

#[test]
fn a_window_in_a_gguf_that_is_called_llama() {
    gguf("window", plugin("pensieve-llama"));
}

#[test]
fn a_window_over_quantized_weights() {
    let plugin = plugin("pensieve-llama");
    let comparison = Comparison::of(&plugin, "mistral/window", "q8_0.gguf");
    Comparison { logits: "logits_q8_0", tolerance: ROUNDED, ..comparison }.check_both();
}

#[test]
fn no_window() {
    folder("full");
    gguf("full", plugin("pensieve-llama"));
}

#[test]
fn heads_that_do_not_follow_from_the_width() {
    folder("head_dim");
    gguf("head_dim", plugin("pensieve-llama"));
}

#[test]
fn layers_whose_windows_differ() {
    folder("mixed_windows");
}

#[test]
fn queries_that_grow_with_their_position() {
    folder("growing");
    gguf("growing", mistral());
}

#[test]
fn greedy_generation_is_that_of_transformers() {
    for name in ["window", "full", "head_dim", "mixed_windows", "growing"] {
        let reference = Reference::of(&format!("mistral/{name}"));
        let (prompt, expected) = (reference.tokens("tokens"), reference.tokens("greedy"));
        let checkpoint = fixture(&format!("mistral/{name}"));
        let mut driver = Driver::load(&mistral(), &checkpoint, &Options::default()).unwrap();
        assert_eq!(driver.generate(&prompt[..8], expected.len()).unwrap(), expected, "{name}");
    }
}

/// A checkpoint as the text part of a vision-language model: settings and tensors one level down, plus vision tensors.
pub fn within(name: &str, (class, kind): (&str, &str), model: &str, head: &str) -> tempfile::TempDir {
    let (source, folder) = (fixture(name), tempfile::tempdir().unwrap());
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(source.join(name), folder.path().join(name)).unwrap();
    }
    let mut text: Value = serde_json::from_slice(&fs::read(source.join("config.json")).unwrap()).unwrap();
    text.as_object_mut().unwrap().remove("architectures");
    let config = json!({ "architectures": [class], "model_type": kind, "text_config": text });
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let bytes = fs::read(source.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let eyes = [0u8; 16];
    let eye = |index| (format!("vision_tower.eye.{index}.weight"), eye(&eyes));
    let renamed = file.tensors().into_iter().map(|(name, tensor)| match name.strip_prefix("model.") {
        Some(rest) => (format!("{model}.{rest}"), tensor),
        None => (name.replace("lm_head", head), tensor),
    });
    let tensors: Vec<_> = renamed.chain((0..6).map(eye)).collect();
    safetensors::serialize_to_file(tensors, None, &folder.path().join("model.safetensors")).unwrap();
    folder
}

fn eye(bytes: &[u8]) -> TensorView<'_> {
    TensorView::new(safetensors::Dtype::F32, vec![2, 2], bytes).unwrap()
}

#[test]
fn the_text_of_a_model_that_also_sees_and_a_word_on_what_is_not_used() {
    let reference = Reference::of("mistral/head_dim");
    for (model, head) in [("language_model.model", "language_model.lm_head"), ("model.language_model", "lm_head")] {
        let class = ("Mistral3ForConditionalGeneration", "mistral3");
        let folder = within("mistral/head_dim", class, model, head);
        let lines = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&lines);
        let services = HostServices::new().on_log(move |_, line| heard.lock().unwrap().push(line.to_owned()));
        let options = Options::with_settings(r#"{"kv": "f32"}"#);
        let mut driver = Driver::load_with(&mistral(), folder.path(), &options, services).unwrap();
        let logits = driver.logits(&reference.tokens("tokens")).unwrap();
        assert!(distance(&logits, &reference.logits("logits")) <= EXACT, "{model}");
        let lines = lines.lock().unwrap();
        let line = "mistral does not use 6 of the checkpoint's 27 tensors: 'vision_tower.eye.0.weight', \
                    'vision_tower.eye.1.weight', 'vision_tower.eye.2.weight', 'vision_tower.eye.3.weight' and 2 more";
        assert!(lines.iter().any(|said| said == line), "{lines:?}");
    }
}

#[test]
fn a_checkpoint_that_is_used_whole_is_loaded_without_a_word() {
    for file in ["mistral/window", "mistral/growing/f32.gguf"] {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&lines);
        let services = HostServices::new().on_log(move |_, line| heard.lock().unwrap().push(line.to_owned()));
        Driver::load_with(&mistral(), &fixture(file), &Options::default(), services).unwrap();
        assert!(lines.lock().unwrap().iter().all(|line| !line.contains("does not use")), "{lines:?}");
    }
}
