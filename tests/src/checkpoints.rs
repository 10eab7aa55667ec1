//! Checkpoints that a test writes for itself.

use std::fs;
use tempfile::TempDir;

/// A checkpoint for `examples/bigram`.
pub fn bigram(vocabulary: u32, context: u32) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = format!(
        r#"{{"architectures": ["BigramForCausalLM"], "vocab_size": {vocabulary}, "max_position_embeddings": {context}}}"#
    );
    fs::write(folder.path().join("config.json"), config).expect("a writable folder");
    folder
}
