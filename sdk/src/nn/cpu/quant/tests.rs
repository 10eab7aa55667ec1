//! Blocks of every format against what the Python package `gguf` makes of them; `tests/reference/quantized.py` has the blocks.

use std::path::Path;

use super::super::dequantize_row;
use crate::weights::Dtype;

#[test]
fn every_format_means_what_gguf_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/quantized/blocks.safetensors");
    let file = std::fs::read(path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
    let quantized: Vec<Dtype> = Dtype::ALL.into_iter().filter(|dtype| dtype.is_quantized()).collect();
    assert_eq!(tensors.names().len(), 2 * quantized.len(), "formats without blocks, or blocks without a format");
    for dtype in quantized {
        let blocks = tensors.tensor(&format!("{}.blocks", dtype.name())).unwrap();
        let values = tensors.tensor(&format!("{}.values", dtype.name())).unwrap();
        let expected: Vec<f32> = values.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let mut found = vec![f32::NAN; expected.len()];
        dequantize_row(dtype, blocks.data(), &mut found);
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            // Scale times code less minimum may be rounded once more or less, by the order of the operations.
            let allowed = f32::EPSILON * expected.abs().max(if dtype == Dtype::MXFP4 { 0.0 } else { 1e-2 });
            assert!((found - expected).abs() <= allowed, "{dtype} value {i}: {found} for {expected}");
        }
    }
}
