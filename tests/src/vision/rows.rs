//! The rows of a tower alone, against those of transformers: in a copy of the checkpoint whose text layers add nothing, and
//! whose output layer shows the values of a row as logits.

use pensieve_plugin_api::Want;
use serde_json::Value;
use std::fs;
use tempfile::TempDir;

use super::{CASES, Case, encode_all, handle};
use crate::{
    artifacts::plugin,
    driver::{Driver, Options},
    families::rewritten,
    reference::{EXACT, Reference, distance},
};

/// The epsilon of the last norm, so large that a row's scale shows, too.
const EPSILON: f32 = 1.0;
/// What ends a part of a text layer; zeros there leave the residual as it is.
const LAST: [&str; 8] = [
    "o_proj.weight",
    "self_attn.out_proj.weight",
    "down_proj.weight",
    "experts.down_proj",
    "feed_forward.w2.weight",
    "conv.out_proj.weight",
    "linear_attn.out_proj.weight",
    "per_layer_projection.weight",
];
const FINAL_NORMS: [&str; 4] = [
    "model.norm.weight",
    "text_model.norm.weight",
    "language_model.norm.weight",
    "language_model.embedding_norm.weight",
];
/// Families whose norms multiply by one more than their weights.
const OFFSET: [&str; 3] = ["gemma3", "gemma3_pan_and_scan", "qwen3_5"];

/// The checkpoint, and the epsilon of its last norm.
fn transparent(case: &Case) -> (TempDir, f32) {
    let path = fs::read(super::fixture(&case.fixture()).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&path).unwrap();
    let text = config["text_config"].as_object_mut().unwrap();
    let key = if text.contains_key("norm_eps") { "norm_eps" } else { "rms_norm_eps" };
    // The projector of Mistral 3 has the text model's epsilon.
    let epsilon = if case.name == "mistral3" { text[key].as_f64().unwrap() as f32 } else { EPSILON };
    text.insert(key.into(), epsilon.into());
    text.remove("final_logit_softcapping");
    let is_tied = config["tie_word_embeddings"] != false;
    let of = |value: f32, shape: &[usize]| value.to_le_bytes().repeat(shape.iter().product());
    let folder = rewritten(&case.fixture(), |name, (shape, data)| {
        let is_text = !name.contains("vis") && !name.contains("projector") && !name.contains("connector");
        let data = match name {
            _ if is_text && name.contains("layers.") && LAST.iter().any(|last| name.ends_with(last)) => of(0.0, &shape),
            _ if is_text && FINAL_NORMS.iter().any(|norm| name.ends_with(norm)) => {
                of(if OFFSET.contains(&case.name) { 0.0 } else { 1.0 }, &shape)
            }
            _ if name.ends_with(if is_tied { "embed_tokens.weight" } else { "lm_head.weight" }) => {
                let one = |index: usize| if index / shape[1] == index % shape[1] { 1.0_f32 } else { 0.0 };
                (0..shape[0] * shape[1]).flat_map(|index| one(index).to_le_bytes()).collect()
            }
            _ => data,
        };
        vec![(name.to_owned(), (shape, data))]
    });
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    (folder, epsilon)
}

/// A row with the values of its taps added, as the last norm leaves it.
fn normed(row: &[f32], taps: &[Vec<Vec<f32>>], index: usize, epsilon: f32) -> Vec<f32> {
    let tapped = |column: usize| taps.iter().map(|tap| tap[index][column]).sum::<f32>();
    let row: Vec<f32> = row.iter().enumerate().map(|(column, value)| value + tapped(column)).collect();
    let square = row.iter().map(|value| value * value).sum::<f32>() / row.len() as f32;
    row.iter().map(|value| value / (square + epsilon).sqrt()).collect()
}

#[test]
fn rows_of_pictures_are_those_of_transformers() {
    for case in CASES {
        let (folder, epsilon) = transparent(case);
        let (pictures, reference) = (case.pictures(), Reference::of(&case.fixture()));
        for kernels in ["auto", "generic"] {
            let settings = format!(r#"{{{} "kernels": "{kernels}", "kv": "f32"}}"#, case.options);
            let eyes = case.eyes(folder.path(), &settings);
            let mut driver =
                Driver::load(&plugin(case.plugin), folder.path(), &Options::with_settings(settings)).unwrap();
            eyes.open(&mut driver, &pictures);
            encode_all(&mut driver, &(0..pictures.len()).map(handle).collect::<Vec<_>>(), 0);
            for (index, prompt) in case.prompts().iter().enumerate() {
                let tokens = reference.tokens(&format!("tokens.{index}"));
                let rows = reference.logits(&format!("rows.{index}"));
                let taps: Vec<_> =
                    (0..).map_while(|tap| reference.find_logits(&format!("taps.{index}.{tap}"))).collect();
                assert_eq!(taps.len(), if case.name == "qwen3_vl" { 2 } else { 0 }, "{}", case.name);
                let expected: Vec<Vec<f32>> =
                    rows.iter().enumerate().map(|(at, row)| normed(row, &taps, at, epsilon)).collect();
                let places = eyes.places(prompt, &tokens);
                let mut sequence = driver.begin();
                eyes.place(&mut driver, &sequence, (&pictures, &places, &tokens), 0);
                let logits = driver.feed(&mut sequence, &tokens, Want::ALL).unwrap();
                driver.release(sequence);
                let slots = tokens.iter().zip(logits).filter(|(token, _)| **token == eyes.slot);
                let found: Vec<Vec<f32>> = slots.map(|(_, row)| row[..rows[0].len()].to_vec()).collect();
                let worst = distance(&found, &expected);
                println!("{} with {kernels} kernels: prompt {index}: {} rows, {worst:.2e}", case.name, rows.len());
                assert!(worst <= EXACT, "{}, {kernels}: prompt {index}: off by {worst}", case.name);
            }
        }
    }
}
