//! MXFP4 as gpt-oss ships it: a layer's experts in one tensor of packed 4-bit values and one of exponents.
//!
//! The values are those of GGUF's `MXFP4`, except that the two halves of a byte are adjacent values here and half a
//! block apart there.

use std::collections::BTreeMap;

use ::safetensors::Dtype as StoredDtype;

use super::{Recipe, by_rows, head, take};
use crate::{Bytes, Dtype, Error, RawTensor, Result, safetensors::Stored};

#[derive(Clone, Debug)]
pub(super) struct Mxfp4 {
    blocks: Bytes,
    exponents: Bytes,
}

/// Assembles `STACK_blocks` of shape `[experts, rows, blocks, 16]` and `STACK_scales` of shape `[experts, rows,
/// blocks]`.
pub(super) fn assemble(stack: &str, left: &mut BTreeMap<String, Stored>) -> Result<(RawTensor, Recipe)> {
    let blocks = take(left, &format!("{stack}_blocks"), &[StoredDtype::U8])?;
    let exponents = take(left, &format!("{stack}_scales"), &[StoredDtype::U8])?;
    match blocks.shape.as_slice() {
        [experts, rows, count, 16] if exponents.shape == [*experts, *rows, *count] => {
            let head = head(stack, Dtype::MXFP4, &[*experts, *rows, 32 * count], &blocks.data);
            Ok((head, Recipe::Mxfp4(Mxfp4 { blocks: blocks.data, exponents: exponents.data })))
        }
        shape => Err(Error::corrupt(format!("its blocks are of shape {shape:?}, its scales of {:?}", exponents.shape))),
    }
}

impl Mxfp4 {
    pub(super) fn unpack(&self, head: &RawTensor) -> Result<Bytes> {
        let count = head.shape.last().map_or(0, |cols| cols / 32);
        by_rows(head, |rows, data| {
            let range = rows.start * count..rows.end * count;
            let blocks = &self.blocks.as_chunks::<16>().0[range.clone()];
            let exponents = &self.exponents[range];
            for ((block, exponent), data) in blocks.iter().zip(exponents).zip(data.as_chunks_mut::<17>().0) {
                data[0] = *exponent;
                let code = |i: usize| block[i / 2] >> (i % 2 * 4) & 15;
                for i in 0..16 {
                    data[1 + i] = code(i) | code(i + 16) << 4;
                }
            }
        })
    }
}
