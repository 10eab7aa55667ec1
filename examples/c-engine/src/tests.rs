//! The laws, tested on a checkpoint with random weights.

use super::*;
use pensieve_sdk::testing::{Outcome, conformance};

const VOCABULARY: u32 = 61;
const WIDTH: u32 = 24;

/// Creates a checkpoint with random weights; `harm` may change the weights file.
fn checkpoint(harm: impl FnOnce(&mut Vec<u8>)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let config = format!(r#"{{"architectures": ["{CLASS}"], "max_position_embeddings": 256}}"#);
    fs::write(folder.path().join("config.json"), config).unwrap();
    fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
    let mut bytes = b"CGRU".to_vec();
    bytes.extend([VOCABULARY, WIDTH].iter().flat_map(|size| size.to_le_bytes()));
    let mut state = 1_u64;
    let weight = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let count = (VOCABULARY * WIDTH + 6 * WIDTH * WIDTH) as usize;
    bytes.extend(std::iter::repeat_with(weight).take(count).flat_map(f32::to_le_bytes));
    harm(&mut bytes);
    fs::write(folder.path().join("weights.bin"), bytes).unwrap();
    folder
}

fn load(folder: &tempfile::TempDir) -> Result<Box<dyn Model>> {
    let source = Source::new(folder.path());
    let request = LoadRequest { source, device: "cpu".into(), context: 0, state_bytes: 1 << 20, threads: 0 };
    CEngine.load(&request, &Services::silent())
}

#[test]
fn obeys_the_laws() {
    let report = conformance(load(&checkpoint(|_| {})).unwrap());
    assert!(report.passed(), "{report}");
    assert_eq!(report.outcome("sequence-state"), Some(&Outcome::Exact), "{report}");
}

#[test]
fn a_damaged_file_is_an_error() {
    for harm in [
        |bytes: &mut Vec<u8>| bytes.truncate(7),
        |bytes: &mut Vec<u8>| bytes.truncate(bytes.len() - 1),
        |bytes: &mut Vec<u8>| bytes[0] = b'X',
        |bytes: &mut Vec<u8>| bytes[4..12].fill(0xff),
        Vec::clear,
    ] {
        let folder = checkpoint(harm);
        assert!(load(&folder).is_err());
        assert!(CEngine.describe(&Source::new(folder.path())).is_err());
    }
}

#[test]
fn another_family_s_folder_is_declined() {
    let folder = checkpoint(|_| {});
    let config = r#"{"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 256}"#;
    fs::write(folder.path().join("config.json"), config).unwrap();
    let error = CEngine.describe(&Source::new(folder.path())).err().unwrap();
    assert_eq!(error.code, pensieve_sdk::Code::Declined, "{error}");
}
