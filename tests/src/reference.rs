//! Reference numbers: what transformers computed from the checkpoints in `tests/fixtures`, and a plugin's distance from
//! it.

use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::driver::{Driver, Options};

/// The folder of a fixture, such as `llama/mha`.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

/// Contents of a fixture's `reference.safetensors`.
pub struct Reference {
    bytes: Vec<u8>,
}

impl Reference {
    pub fn of(name: &str) -> Self {
        let path = fixture(name).join("reference.safetensors");
        Self { bytes: fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())) }
    }

    /// A list of token ids.
    pub fn tokens(&self, name: &str) -> Vec<u32> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let tensor = typed(&file, name, Dtype::U32);
        tensor.data().as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
    }

    /// Rows and columns of a picture, and its pixels; `None` if there is no such picture.
    pub fn pixels(&self, name: &str) -> Option<([usize; 2], Vec<u8>)> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let tensor = file.tensor(name).ok()?;
        assert_eq!((tensor.dtype(), tensor.shape()[2]), (Dtype::U8, 3), "{name}");
        Some(([tensor.shape()[0], tensor.shape()[1]], tensor.data().to_vec()))
    }

    /// Rows of logits, if there are any of this name.
    pub fn find_logits(&self, name: &str) -> Option<Vec<Vec<f32>>> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        file.names().contains(&name).then(|| self.logits(name))
    }

    /// Rows of logits.
    pub fn logits(&self, name: &str) -> Vec<Vec<f32>> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let tensor = typed(&file, name, Dtype::F32);
        let values: Vec<f32> = tensor.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        values.chunks_exact(tensor.shape()[1]).map(<[f32]>::to_vec).collect()
    }
}

fn typed<'a>(file: &SafeTensors<'a>, name: &str, dtype: Dtype) -> TensorView<'a> {
    let tensor = file.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(tensor.dtype(), dtype, "{name}");
    tensor
}

/// The largest difference between two sets of logits; NaN counts as infinite.
pub fn distance(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    assert_eq!(a.len(), b.len(), "rows of logits");
    let mut worst = 0.0f32;
    for (a, b) in a.iter().zip(b) {
        assert_eq!(a.len(), b.len(), "logits in a row");
        for (a, b) in a.iter().zip(b) {
            let difference = (a - b).abs();
            worst = if difference.is_nan() { f32::INFINITY } else { worst.max(difference) };
        }
    }
    worst
}

/// Tolerance where weights are not rounded.
pub const EXACT: f32 = 1e-4;

/// One comparison of a plugin with a reference.
pub struct Comparison<'a> {
    /// The plugin's library.
    pub plugin: &'a Path,
    /// The fixture: `llama/mha`.
    pub fixture: &'a str,
    /// The file in it; empty for the folder.
    pub file: &'a str,
    /// The reference's name: `logits`.
    pub logits: &'a str,
    /// The text's name: `tokens`.
    pub tokens: &'a str,
    /// The context that the model is loaded for; 0 for the checkpoint's own.
    pub context: u32,
    /// `auto` or `generic`.
    pub kernels: &'a str,
    /// Tolerated difference.
    pub tolerance: f32,
}

impl<'a> Comparison<'a> {
    /// Compares a fixture's own text with the CPU kernels.
    pub fn of(plugin: &'a Path, fixture: &'a str, file: &'a str) -> Self {
        let (logits, tokens, kernels) = ("logits", "tokens", "auto");
        Self { plugin, fixture, file, logits, tokens, context: 0, kernels, tolerance: EXACT }
    }

    /// Compares on both kernel paths.
    pub fn check_both(self) {
        for kernels in ["auto", "generic"] {
            Comparison { kernels, ..self }.check();
        }
    }

    /// Computes all positions at once and in chunks, and compares both with the reference.
    pub fn check(&self) {
        let reference = Reference::of(self.fixture);
        let (tokens, expected) = (reference.tokens(self.tokens), reference.logits(self.logits));
        assert!(tokens.len() >= 64, "a reference of at least 64 positions");
        let settings = format!(r#"{{"kernels": "{}", "kv": "f32"}}"#, self.kernels);
        let checkpoint = fixture(self.fixture).join(self.file);
        let what = format!("{} ({} kernels)", checkpoint.display(), self.kernels);
        let options = Options { context: self.context, ..Options::with_settings(settings) };
        let mut driver =
            Driver::load(self.plugin, &checkpoint, &options).unwrap_or_else(|error| panic!("{what}: {error}"));
        for (way, logits) in [
            ("whole", driver.logits(&tokens).unwrap()),
            ("in chunks of 13", driver.logits_in_chunks(&tokens, 13).unwrap()),
        ] {
            let worst = distance(&logits, &expected);
            println!("{what}, {way}: {worst:.2e}");
            assert!(worst <= self.tolerance, "{what}, {way}: off by {worst}, at most {} is right", self.tolerance);
        }
    }
}
