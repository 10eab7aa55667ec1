//! Checkpoints with random weights, so that a model file can be tested without downloading a model.

use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::Path,
};

use serde_json::{Map, Value, json};

use crate::Result;

/// Writes a folder with this `config.json` and random weights with these names and shapes in `f32`, the same in every
/// call. It has no tokenizer: it can be loaded, but not served.
///
/// Matrices preserve the magnitude of their inputs; vectors are near one if they are (norm) weights and near zero if
/// they are biases, so that any mistake shows in the logits.
pub fn random_checkpoint(folder: &Path, config: &str, tensors: &[(String, Vec<usize>)]) -> Result<()> {
    fs::write(folder.join("config.json"), config)?;
    let (mut header, mut end) = (Map::new(), 0);
    for (name, shape) in tensors {
        let start = end;
        end += 4 * shape.iter().product::<usize>();
        header.insert(name.clone(), json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, end] }));
    }
    let mut header = Value::Object(header).to_string();
    // Data at a multiple of eight bytes can be read in place.
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
    let mut file = BufWriter::new(File::create(folder.join("model.safetensors"))?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for (name, shape) in tensors {
        let (middle, spread) = match shape.as_slice() {
            [_] if name.ends_with(".bias") => (0.0, 0.5),
            [_] => (1.0, 0.5),
            [.., width] => (0.0, (3.0 / *width as f32).sqrt()),
            [] => (0.0, 1.0),
        };
        for _ in 0..shape.iter().product() {
            file.write_all(&(middle + spread * random.next()).to_le_bytes())?;
        }
    }
    Ok(file.flush()?)
}

/// A xorshift generator.
struct Random(u64);

impl Random {
    /// A number from −1 to 1.
    fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::Checkpoint;

    #[test]
    fn a_random_checkpoint_opens_and_holds_what_was_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let tensors = [("model.norm.weight".to_owned(), vec![64]), ("lm_head.weight".to_owned(), vec![8, 64])];
        random_checkpoint(folder.path(), r#"{"architectures": ["X"], "hidden_size": 64}"#, &tensors).unwrap();
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        assert_eq!(checkpoint.architecture(), "X");
        let norm = checkpoint.weights().get("model.norm.weight").unwrap().to_f32().unwrap();
        assert!(norm.iter().all(|value| (0.5..=1.5).contains(value)) && norm[0] != norm[1]);
        let head =
            checkpoint.weights().get("lm_head.weight").unwrap().expect_shape(&[8, 64]).unwrap().to_f32().unwrap();
        let size = head.iter().map(|value| value * value).sum::<f32>() / head.len() as f32;
        assert!((0.5..2.0).contains(&(size * 64.0)), "{size}");
    }
}
