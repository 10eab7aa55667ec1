//! Everything that can be wrong with a GGUF file, none of which may crash.

use std::path::Path;

use super::{Gguf, open};
use crate::{
    Bytes, Checkpoint, Code, Dtype, Error, GgufFamily,
    fixture::{self, Tensor},
};

fn good() -> fixture::Gguf {
    fixture::Gguf::new("llama")
        .u32("llama.block_count", 2)
        .f32("llama.rope.freq_base", 10_000.0)
        .bool("tokenizer.ggml.add_bos_token", true)
        .texts("tokenizer.ggml.tokens", &["<s>", "", "Straße"])
        .f32s("tokenizer.ggml.scores", &[0.0, -1.5, 2.0])
        .i32s("tokenizer.ggml.token_type", &[3, 1, -1])
        .f32_tensor("token_embd.weight", &[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
        .zeros("blk.0.ffn_up.weight", Dtype::Q4K, &[2, 256])
}

/// One more tensor, for tests that corrupt it.
fn extra() -> Tensor {
    Tensor { name: "extra.weight".into(), type_id: 0, dimensions: vec![4], data: vec![0; 16], offset: None }
}

#[track_caller]
fn refused(file: &fixture::Gguf, code: Code, message: &str) -> Error {
    let error = Gguf::read(&file.map()).unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (code, message));
    error
}

#[test]
fn reads_shapes_with_the_row_length_last() {
    let gguf = Gguf::read(&good().map()).unwrap();
    let [embed, up] = &gguf.tensors[..] else { panic!("two tensors") };
    assert_eq!((embed.name.as_str(), embed.dtype, &embed.shape[..]), ("token_embd.weight", Dtype::F32, &[3, 2][..]));
    assert_eq!(embed.to_f32().unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!((up.dtype, &up.shape[..], up.data.len()), (Dtype::Q4K, &[2, 256][..], 288));
}

#[test]
fn reads_version_2_and_any_valid_alignment() {
    let mut file = good();
    file.version = 2;
    assert_eq!(Gguf::read(&file.map()).unwrap().tensors.len(), 2);
    for alignment in [1, 8, 4096, 64 << 10] {
        let mut file = good().u32("general.alignment", alignment);
        file.alignment = alignment as usize;
        assert_eq!(Gguf::read(&file.map()).unwrap().tensors[0].to_f32().unwrap()[5], 6.0, "{alignment}");
    }
}

#[test]
fn reads_every_supported_dtype() {
    let dtypes = || Dtype::ALL.into_iter().filter(|dtype| dtype.is_in_files());
    let file = dtypes().fold(good(), |file, dtype| file.zeros(dtype.name(), dtype, &[2, 512]));
    let gguf = Gguf::read(&file.map()).unwrap();
    for dtype in dtypes() {
        let tensor = gguf.tensors.iter().find(|tensor| tensor.name == dtype.name()).unwrap();
        assert_eq!((tensor.dtype, tensor.data.len()), (dtype, 2 * dtype.row_bytes(512).unwrap()));
    }
}

#[test]
fn metadata_answers_by_type() {
    let metadata = Gguf::read(&good().map()).unwrap().metadata;
    assert_eq!(metadata.string("general.architecture").unwrap(), Some("llama"));
    assert_eq!(metadata.u32("llama.block_count").unwrap(), Some(2));
    assert_eq!(metadata.u64("llama.block_count").unwrap(), Some(2));
    assert_eq!(metadata.f32("llama.rope.freq_base").unwrap(), Some(10_000.0));
    assert_eq!(metadata.bool("tokenizer.ggml.add_bos_token").unwrap(), Some(true));
    assert_eq!(metadata.strings("tokenizer.ggml.tokens").unwrap(), Some(vec!["<s>", "", "Straße"]));
    assert_eq!(metadata.f32s("tokenizer.ggml.scores").unwrap(), Some(vec![0.0, -1.5, 2.0]));
    assert_eq!(metadata.i32s("tokenizer.ggml.token_type").unwrap(), Some(vec![3, 1, -1]));
    assert_eq!(metadata.get("tokenizer.ggml.tokens").unwrap().len(), Some(3));
    assert_eq!(metadata.u32("absent").unwrap(), None);
    assert_eq!(metadata.missing("absent").message, "the metadata has no 'absent'");
}

#[test]
fn integers_of_every_width_keep_their_value_and_sign() {
    let file = good()
        .entry("u8", 0, &[200])
        .entry("i8", 1, &[(-3i8) as u8])
        .entry("u16", 2, &60_000u16.to_le_bytes())
        .entry("i16", 3, &(-5i16).to_le_bytes())
        .entry("u64", 10, &u64::MAX.to_le_bytes())
        .entry("i64", 11, &(-7i64).to_le_bytes())
        .entry("f64", 12, &0.1f64.to_le_bytes());
    let metadata = Gguf::read(&file.map()).unwrap().metadata;
    assert_eq!(metadata.u32("u8").unwrap(), Some(200));
    assert_eq!(metadata.u32("u16").unwrap(), Some(60_000));
    assert_eq!(metadata.u64("u64").unwrap(), Some(u64::MAX));
    assert_eq!(metadata.f64("f64").unwrap(), Some(0.1));
    assert_eq!(metadata.f64("i8").unwrap(), Some(-3.0));
    let error = |key| metadata.u32(key).unwrap_err().message;
    assert_eq!(error("i16"), "metadata 'i16' is the i16 -5, not an unsigned 32-bit integer");
    assert_eq!(error("i64"), "metadata 'i64' is the i64 -7, not an unsigned 32-bit integer");
    assert_eq!(error("u64"), "metadata 'u64' is the u64 18446744073709551615, not an unsigned 32-bit integer");
}

#[test]
fn metadata_of_another_type_names_the_key_and_both_types() {
    let file = good().entry("latin", 8, &[&1u64.to_le_bytes()[..], &[0xe9]].concat());
    let metadata = Gguf::read(&file.map()).unwrap().metadata;
    let cases = [
        (metadata.string("llama.block_count").unwrap_err(), "metadata 'llama.block_count' is the u32 2, not a string"),
        (metadata.string("latin").unwrap_err(), "metadata 'latin' is bytes that are not UTF-8, not a string"),
        (
            metadata.u32("general.architecture").unwrap_err(),
            "metadata 'general.architecture' is the string 'llama', not an unsigned 32-bit integer",
        ),
        (metadata.bool("llama.block_count").unwrap_err(), "metadata 'llama.block_count' is the u32 2, not a boolean"),
        (
            metadata.u32("tokenizer.ggml.token_type").unwrap_err(),
            "metadata 'tokenizer.ggml.token_type' is an array of 3 i32, not an unsigned 32-bit integer",
        ),
        (
            metadata.u32s("tokenizer.ggml.token_type").unwrap_err(),
            "metadata 'tokenizer.ggml.token_type' is an array of 3 i32, not an array of unsigned 32-bit integers",
        ),
        (
            metadata.strings("tokenizer.ggml.scores").unwrap_err(),
            "metadata 'tokenizer.ggml.scores' is an array of 3 f32, not an array of UTF-8 strings",
        ),
        (
            metadata.f32s("llama.rope.freq_base").unwrap_err(),
            "metadata 'llama.rope.freq_base' is of type f32, not an array of numbers",
        ),
    ];
    for (error, message) in cases {
        assert_eq!((error.code, error.message.as_str()), (Code::Corrupt, message));
    }
}

#[test]
fn rejects_what_is_not_gguf() {
    let read = |bytes: &[u8]| Gguf::read(&Bytes::copy_of(bytes).unwrap()).unwrap_err();
    assert_eq!(
        read(b"PK\x03\x04 a zip").message,
        "the file is not GGUF: it starts with \"PK\\x03\\x04\" instead of \"GGUF\""
    );
    assert_eq!(read(b"GG").message, "the file is not GGUF: it starts with \"GG\" instead of \"GGUF\"");
    let pointer = read(b"version https://git-lfs.github.com/spec/v1\noid sha256:00");
    assert_eq!(pointer.message, "the file is a Git LFS pointer, not the model that it points to");
    assert!(pointer.help.contains("git lfs pull"));
}

#[test]
fn rejects_other_versions_and_byte_orders_with_the_reason() {
    for (version, message) in [
        (1, "the file is GGUF version 1, which went out of use in 2023; 2 and 3 are read"),
        (4, "the file is GGUF version 4; 2 and 3 are read"),
        (3u32.swap_bytes(), "the file is big-endian GGUF; only little-endian files are read"),
    ] {
        let mut file = good();
        file.version = version;
        refused(&file, Code::Unsupported, message);
    }
}

#[test]
fn rejects_counts_that_no_model_has() {
    let mut file = good();
    file.tensors_claimed = Some(u64::MAX);
    refused(&file, Code::Corrupt, "the header claims 18446744073709551615 tensors, more than the 65536 that are read");
    let mut file = good();
    file.entries_claimed = Some(65_537);
    refused(&file, Code::Corrupt, "the header claims 65537 metadata entries, more than the 65536 that are read");
    let claims = |type_id: u32, len: u64| [&type_id.to_le_bytes()[..], &len.to_le_bytes()].concat();
    let file = good().entry("big", 9, &claims(8, 1 << 40));
    refused(&file, Code::Corrupt, "metadata 'big': claims 1099511627776 items, more than the 16777216 that are read");
    let file = good().entry("long", 8, &u64::MAX.to_le_bytes());
    let error = Gguf::read(&file.map()).unwrap_err();
    assert!(error.message.starts_with("metadata 'long': the string at byte "), "{error}");
    assert!(
        error.message.ends_with(" claims 18446744073709551615 bytes, more than the 16777216 that are read"),
        "{error}"
    );
}

#[test]
fn a_count_that_the_file_cannot_hold_costs_an_error_and_no_memory() {
    for type_id in [0u32, 8, 10] {
        let value = [&type_id.to_le_bytes()[..], &(16u64 << 20).to_le_bytes()].concat();
        let error = Gguf::read(&fixture::Gguf::new("llama").entry("many", 9, &value).map()).unwrap_err();
        assert!(error.message.starts_with("metadata 'many': the file ends inside its header: "), "{error}");
        assert_eq!(error.help, "it is truncated or damaged: download it again");
    }
}

#[test]
fn rejects_metadata_that_makes_no_sense() {
    let nested = [&9u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat();
    let file = good().entry("nested", 9, &nested);
    refused(&file, Code::Unsupported, "metadata 'nested': is an array of arrays, which nothing here reads");
    refused(&good().entry("odd", 13, &[]), Code::Corrupt, "metadata 'odd': has the unknown type 13");
    refused(&good().u32("llama.block_count", 3), Code::Corrupt, "metadata 'llama.block_count' appears twice");
    let error = Gguf::read(&good().u32("\x1b[31m", 3).map()).unwrap_err();
    assert!(error.message.ends_with("has control characters: '\\u{1b}[31m'"), "{error}");
    let error = Gguf::read(&good().u32("", 3).map()).unwrap_err();
    assert!(error.message.ends_with("is 0 bytes long, not 1 to 1024"), "{error}");
}

#[test]
fn rejects_alignments_that_are_no_power_of_two_or_too_large() {
    for alignment in [0, 3, 48, 128 << 10, u32::MAX] {
        let file = good().u32("general.alignment", alignment);
        let message = format!("metadata 'general.alignment' is {alignment}, not a power of two from 1 to 65536");
        refused(&file, Code::Corrupt, &message);
    }
}

#[test]
fn a_tensor_of_a_type_that_is_not_read_is_refused_when_it_is_used() {
    for (type_id, what) in [(15, "Q8_K, which is not supported"), (26, "I32, which is not supported")]
        .into_iter()
        .chain([(99, "type 99, which is not known"), (4, "type 4, which is not known")])
    {
        let name = "blk.0.ffn_down.weight".to_owned();
        let file = good().tensor(Tensor { name, type_id, offset: Some(1 << 40), ..extra() });
        let gguf = Gguf::read(&file.map()).unwrap();
        let checkpoint = Checkpoint::from_gguf(Path::new("x.gguf"), vec![gguf], |_| GgufFamily::USUAL).unwrap();
        let (weights, name) = (checkpoint.weights(), "model.layers.0.mlp.down_proj.weight");
        assert!(weights.contains(name) && weights.find(name).is_none());
        assert!(weights.get("model.layers.0.mlp.up_proj.weight").is_ok(), "the others can be used");
        let error = weights.get(name).unwrap_err();
        let expected = format!("tensor 'blk.0.ffn_down.weight': is stored as {what}");
        assert_eq!((error.code, error.message), (Code::Unsupported, expected));
        assert!(error.help.starts_with("choose a file in one of F32, F16, BF16, Q4_0, "), "{}", error.help);
    }
}

#[test]
fn rejects_impossible_shapes() {
    let of = |dimensions: &[u64]| good().tensor(Tensor { dimensions: dimensions.into(), ..extra() });
    refused(&of(&[1; 5]), Code::Corrupt, "tensor 'extra.weight': has 5 dimensions, more than 4");
    refused(&of(&[4, 0]), Code::Corrupt, "tensor 'extra.weight': has the impossible dimension 0");
    let message = "tensor 'extra.weight': has the shape [4294967296, 4294967296], more than memory can address";
    refused(&of(&[1 << 32, 1 << 32]), Code::Corrupt, message);
    let file = good().tensor(Tensor { type_id: 12, dimensions: vec![100, 2], ..extra() });
    let message = "tensor 'extra.weight': has rows of 100 values, which Q4_K cannot store: its blocks have 256";
    refused(&file, Code::Corrupt, message);
}

#[test]
fn rejects_tensors_in_places_where_they_cannot_be() {
    let at = |offset| good().tensor(Tensor { offset: Some(offset), ..extra() });
    let message = "tensor 'extra.weight' starts at offset 33, which is not a multiple of the alignment 32";
    refused(&at(33), Code::Corrupt, message);
    refused(&at(64), Code::Corrupt, "tensors 'blk.0.ffn_up.weight' and 'extra.weight' overlap in the file");
    for offset in [1 << 20, 1 << 63, u64::MAX - 31] {
        let error = Gguf::read(&at(offset).map()).unwrap_err();
        let start = format!("tensor 'extra.weight' takes 16 bytes at offset {offset}, outside of the file of ");
        assert!(error.message.starts_with(&start), "{error}");
    }
}

#[test]
fn rejects_two_tensors_of_one_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("twice.gguf");
    std::fs::write(&path, good().tensor(extra()).tensor(extra()).bytes()).unwrap();
    let error = open(&path).unwrap_err();
    assert!(error.message.ends_with("twice.gguf: tensor 'extra.weight' appears twice"), "{error}");
}

#[test]
fn a_truncated_file_says_how_much_is_missing() {
    let bytes = good().bytes();
    let error = Gguf::read(&Bytes::copy_of(&bytes[..bytes.len() - 100]).unwrap()).unwrap_err();
    assert_eq!(error.message, format!("the file is truncated: 100 of its {} bytes are missing", bytes.len()));
    assert_eq!(error.help, "the download stopped early: download it again");
    let error = Gguf::read(&Bytes::copy_of(&bytes[..60]).unwrap()).unwrap_err();
    assert!(error.message.contains("the file ends inside its header: "), "{error}");
}

#[test]
fn no_damage_to_a_file_is_a_crash() {
    let whole = good().tensor(extra()).bytes();
    let mut random = Random(7);
    let mut outcomes = [0; 2];
    for _ in 0..6000 {
        let mut bytes = whole.clone();
        for _ in 0..random.below(6) {
            let at = random.below(bytes.len());
            // Counts and lengths do the most damage, so use extremes as well as noise.
            match random.below(3) {
                0 => bytes[at] = random.below(256) as u8,
                1 => bytes[at] ^= 1 << random.below(8),
                _ => bytes[at..].iter_mut().take(8).for_each(|byte| *byte = 0xff),
            }
        }
        if random.below(4) == 0 {
            bytes.truncate(random.below(bytes.len() + 1));
        }
        let read = Gguf::read(&Bytes::copy_of(&bytes).unwrap());
        let opened =
            read.and_then(|gguf| Checkpoint::from_gguf(Path::new("fuzzed.gguf"), vec![gguf], |_| GgufFamily::USUAL));
        outcomes[usize::from(opened.is_ok())] += 1;
        if let Ok(checkpoint) = opened {
            walk(&checkpoint);
        }
    }
    // Damage must be detected often, but intact files must occur, too.
    assert!(outcomes.iter().all(|count| *count > 200), "{outcomes:?}");
}

/// Touches everything that a checkpoint claims to have checked.
fn walk(checkpoint: &Checkpoint) {
    for tensor in checkpoint.weights().iter() {
        assert_eq!(tensor.dtype.tensor_bytes(&tensor.shape), Some(tensor.data.len()));
        let _ = tensor.to_f32();
    }
    let metadata = checkpoint.metadata().unwrap();
    for key in metadata.keys() {
        let _ = (metadata.string(key), metadata.u64(key), metadata.f32(key), metadata.bool(key));
        let _ = (metadata.strings(key), metadata.f32s(key), metadata.i32s(key), metadata.u32s(key));
    }
    let _ = (checkpoint.config().rope(), checkpoint.fingerprint(&crate::Tokenizer::default()));
}

/// A small seeded generator, so that failures are reproducible.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// Writes a model in two parts.
fn split(folder: &Path) {
    let part =
        |number: u32| {
            let file = if number == 0 { good() } else { fixture::Gguf::new("llama").tensor(extra()) };
            file.entry("split.no", 2, &(number as u16).to_le_bytes())
                .entry("split.count", 2, &2u16.to_le_bytes())
                .entry("split.tensors.count", 5, &3i32.to_le_bytes())
        };
    for number in 0..2 {
        std::fs::write(folder.join(format!("tiny-0000{}-of-00002.gguf", number + 1)), part(number).bytes()).unwrap();
    }
}

#[test]
fn opens_a_split_model_by_either_part() {
    let folder = tempfile::tempdir().unwrap();
    split(folder.path());
    for name in ["tiny-00001-of-00002.gguf", "tiny-00002-of-00002.gguf"] {
        let parts = open(&folder.path().join(name)).unwrap();
        assert_eq!(parts.iter().map(|part| part.tensors.len()).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(parts[0].metadata.u32("llama.block_count").unwrap(), Some(2));
    }
}

#[test]
fn a_split_model_that_is_not_whole_says_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    split(folder.path());
    let [first, second] = [1, 2].map(|number| folder.path().join(format!("tiny-0000{number}-of-00002.gguf")));
    std::fs::copy(&first, folder.path().join("renamed.gguf")).unwrap();
    let error = open(&folder.path().join("renamed.gguf")).unwrap_err();
    assert!(
        error.message.ends_with("renamed.gguf: is one of 2 parts, and its name does not tell the others"),
        "{error}"
    );
    assert_eq!(error.help, "name the parts NAME-00001-of-00002.gguf and so on");

    std::fs::copy(&first, &second).unwrap();
    let error = open(&first).unwrap_err();
    assert!(error.message.contains("00002-of-00002.gguf: is not part 2 of 2 by its metadata"), "{error}");

    std::fs::remove_file(&second).unwrap();
    let error = open(&first).unwrap_err();
    assert_eq!(error.code, Code::NotFound);
    assert!(error.message.contains("tiny-00002-of-00002.gguf: "), "{error}");
    assert_eq!(error.help, "the model is in several files: put all of them into one folder");

    let lacking = fixture::Gguf::new("llama").entry("split.no", 2, &1u16.to_le_bytes()).entry(
        "split.count",
        2,
        &2u16.to_le_bytes(),
    );
    std::fs::write(&second, lacking.bytes()).unwrap();
    let error = open(&first).unwrap_err();
    let end = "the file's parts hold 2 tensors, and metadata 'split.tensors.count' is 3";
    assert!(error.message.ends_with(end), "{error}");
}

#[test]
fn rejects_tensor_names_that_are_endless() {
    let file = good().tensor(Tensor { name: "n".repeat(257), ..extra() });
    let error = Gguf::read(&file.map()).unwrap_err();
    assert!(error.message.ends_with("is 257 bytes long, not 1 to 256"), "{error}");
}
