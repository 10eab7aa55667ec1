//! A GGUF file of a family that the SDK has never seen, read by two tables.

use pensieve_sdk::{
    Result,
    nn::Sizes,
    weights::{Checkpoint, GgufFamily, GgufRope, PreTokenizer, Split},
};

const PRE_TOKENIZERS: &[PreTokenizer] =
    &[PreTokenizer::new(&["my-words"], &[Split::Regex("[a-z]+(?:-[a-z]+)*"), Split::Bytes])];

fn gguf_family(architecture: &str) -> GgufFamily {
    GgufFamily {
        names: &[("attn_sub_norm", "self_attn.inner_norm")],
        keys: &[("ssm.conv_kernel", "conv_kernel")],
        activation: "relu2",
        rope: GgufRope::Permuted,
        norm_topk_prob: architecture == "my-model-moe",
        pre_tokenizers: PRE_TOKENIZERS,
        complete: |config| config.windows(4),
        ..GgufFamily::default()
    }
}

fn config(checkpoint: &Checkpoint) -> Result<Vec<usize>> {
    let config = checkpoint.config();
    // `relu2` is an `ActivationFn`, not one of the kernels' that `Sizes` knows; layers without heads are recurrent.
    let sizes = Sizes::read_except(config, &["hidden_act", "num_key_value_heads"])?;
    config.per_layer("num_key_value_heads", sizes.num_hidden_layers)
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// Writes a file with these metadata of 32 bits and one tensor.
fn write(file: &std::path::Path, integers: &[(&str, u32)]) {
    let entries = integers.len() as u64 + 2;
    let mut bytes = [b"GGUF".to_vec(), 3u32.to_le_bytes().to_vec(), 1u64.to_le_bytes().to_vec()].concat();
    bytes.extend(entries.to_le_bytes());
    bytes.extend([text("general.architecture"), 8u32.to_le_bytes().to_vec(), text("my-model")].concat());
    for (key, value) in integers {
        bytes.extend(
            [text(&format!("my-model.{key}")), 4u32.to_le_bytes().to_vec(), value.to_le_bytes().to_vec()].concat(),
        );
    }
    let heads = [2u32, 0, 0, 4].map(u32::to_le_bytes).concat();
    let list = [9u32.to_le_bytes(), 4u32.to_le_bytes()].concat();
    bytes.extend([text("my-model.attention.head_count_kv"), list, 4u64.to_le_bytes().to_vec(), heads].concat());
    let (dimensions, kind) = ([8u64.to_le_bytes(), 4u64.to_le_bytes()].concat(), 0u32.to_le_bytes().to_vec());
    bytes.extend(
        [text("blk.0.attn_sub_norm.weight"), 2u32.to_le_bytes().to_vec(), dimensions, kind, vec![0; 8]].concat(),
    );
    bytes.resize(bytes.len().next_multiple_of(32) + 4 * 32, 0);
    std::fs::write(file, bytes).unwrap();
}

#[test]
fn a_new_family_s_metadata_arrives_by_the_author_s_table_or_under_its_own_keys() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("new.gguf");
    let sizes = [("embedding_length", 16), ("block_count", 4), ("attention.head_count", 4), ("vocab_size", 8)];
    write(&file, &[&sizes[..], &[("ssm.conv_kernel", 5), ("ssm.state_size", 7)]].concat());
    let checkpoint = Checkpoint::open_with(&file, gguf_family).unwrap();
    assert_eq!(checkpoint.config().usize("conv_kernel").unwrap(), 5, "by the table");
    assert_eq!(checkpoint.config().usize("ssm.state_size").unwrap(), 7, "under its own key");
    assert!(checkpoint.weights().contains("model.layers.0.self_attn.inner_norm.weight"));
    assert_eq!(config(&checkpoint).unwrap(), [2, 0, 0, 4]);
    assert!(checkpoint.config().per_layer("num_key_value_heads", 5).is_err());
    assert_eq!(checkpoint.config().per_layer("conv_kernel", 2).unwrap(), [5, 5]);
    assert!(Sizes::read(checkpoint.config()).is_err(), "unlike layers need a model that reads them");
}
