//! Blocks of every format, compared with the Python package `gguf`; `tests/reference/quantized.py` writes the blocks.

use std::path::Path;

use super::super::{dequantize, dequantize_row};
use pensieve_weights::{Checkpoint, Dtype, Weights};

/// Folders as written by AWQ, GPTQ, compressed-tensors and others; `tests/reference/packed.py` has the expected values.
#[test]
fn packed_weights_mean_what_their_tools_say() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/packed");
    let mut dtypes = Vec::new();
    for folder in std::fs::read_dir(fixtures).unwrap() {
        let folder = folder.unwrap().path();
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let expected = Weights::of_safetensors(&folder.join("expected.safetensors")).unwrap();
        let names: Vec<&str> = checkpoint.weights().names().filter(|name| *name != "model.norm.weight").collect();
        assert_eq!(names, expected.names().collect::<Vec<_>>(), "{}", folder.display());
        for expected in expected.iter() {
            let name = expected.name.as_str();
            let described = checkpoint.weights().iter().find(|tensor| tensor.name == name).unwrap();
            let found = checkpoint.weights().get(name).unwrap();
            assert_eq!((found.dtype, &found.shape), (described.dtype, &expected.shape), "{}", folder.display());
            assert_eq!(found.dtype.tensor_bytes(&found.shape), Some(found.data.len()));
            let (values, expected) = (dequantize(&found).unwrap(), expected.to_f32().unwrap());
            let differs = values.iter().zip(&expected).position(|(found, expected)| found != expected);
            assert_eq!(differs, None, "{}: {:?} for {:?}", folder.display(), &values[..8], &expected[..8]);
            dtypes.push(found.dtype);
        }
    }
    for dtype in [Dtype::Int4, Dtype::Int8, Dtype::Fp8, Dtype::F16, Dtype::MXFP4] {
        assert!(dtypes.contains(&dtype), "no folder becomes {dtype}");
    }
}

#[test]
fn every_format_means_what_gguf_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/quantized/blocks.safetensors");
    let file = std::fs::read(path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
    let quantized: Vec<Dtype> =
        Dtype::ALL.into_iter().filter(|dtype| dtype.is_quantized() && dtype.is_in_files()).collect();
    assert_eq!(tensors.names().len(), 2 * quantized.len(), "formats without blocks, or blocks without a format");
    for dtype in quantized {
        let blocks = tensors.tensor(&format!("{}.blocks", dtype.name())).unwrap();
        let values = tensors.tensor(&format!("{}.values", dtype.name())).unwrap();
        let expected: Vec<f32> = values.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let mut found = vec![f32::NAN; expected.len()];
        dequantize_row(dtype, blocks.data(), &mut found);
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            // `scale · code − minimum` may be rounded once more or less, depending on the order of operations.
            let allowed = f32::EPSILON * expected.abs().max(if dtype == Dtype::MXFP4 { 0.0 } else { 1e-2 });
            assert!((found - expected).abs() <= allowed, "{dtype} value {i}: {found} for {expected}");
        }
    }
}
