//! 4- or 8-bit integers with a scale, and optionally a zero point, per group of a row.
//!
//! Tools differ in the order of the codes in a 32-bit word, in the dimension along which they are packed, and in
//! whether there is a zero point and whether it is stored minus one. The output is blocks of 32 values, each with an
//! `f32` scale, so that nothing is rounded. If groups are not contiguous in a row (GPTQ's "act order"), no block has a
//! single scale, and the weight is unpacked to half precision.

use std::{collections::BTreeMap, ops::Range};

use ::safetensors::Dtype as StoredDtype;

use super::{Method, Recipe, by_rows, floats, head, take, words};
use crate::{Bytes, Dtype, Error, RawTensor, Result, quote, safetensors::Stored};

const BLOCK: usize = 32;

#[derive(Clone, Debug)]
pub(super) struct Int {
    codes: Bytes,
    bits: usize,
    order: Order,
    rows: usize,
    cols: usize,
    scales: Stored,
    zeros: Option<Stored>,
    /// Added to a stored zero point: 1 for GPTQ, whose first version stores it minus one.
    zero_shift: u8,
    groups: usize,
    /// Group of each column, if groups are not contiguous ranges of a row.
    group_of: Option<Bytes>,
}

/// Memory order of the codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Words run along the rows, eight rows per word, even ones first.
    Awq,
    /// Words run along the columns; the words of all rows for the same columns are adjacent.
    Gptq,
    /// Words run along the columns, row by row.
    Compressed,
    /// One signed byte each, row by row.
    Bytes,
}

/// Position of each of the eight rows that AWQ packs into a word, in units of a code.
const AWQ_PLACES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

pub(super) fn awq_or_gptq(
    method: Method,
    layer: &str,
    left: &mut BTreeMap<String, Stored>,
) -> Result<(RawTensor, Recipe)> {
    let mut part = |name: &str, dtypes: &[StoredDtype]| take(left, &format!("{layer}.{name}"), dtypes);
    let codes = part("qweight", &[StoredDtype::I32])?;
    let scales = part("scales", &super::FLOATS)?;
    let zeros = part("qzeros", &[StoredDtype::I32])?;
    let group_of = left.remove(&format!("{layer}.g_idx"));
    let (&[first, second], &[groups, outputs]) = (codes.shape.as_slice(), scales.shape.as_slice()) else {
        return Err(Error::corrupt("its parts are not of two dimensions"));
    };
    let (bits, order, cols, zero_shift) = match method {
        Method::Gptq { is_v2 } => {
            let bits = zeros.shape.get(1).map_or(0, |words| words * 32 / outputs.max(1));
            (bits, Order::Gptq, first * 32 / bits.max(1), u8::from(!is_v2))
        }
        _ => (4, Order::Awq, first, 0),
    };
    let words = if order == Order::Awq { second * 8 } else { second };
    if !matches!(bits, 4 | 8)
        || words != outputs
        || zeros.shape != [groups, outputs * bits / 32]
        || !outputs.is_multiple_of(8)
    {
        let shapes = (&codes.shape, &zeros.shape, &scales.shape);
        return Err(Error::corrupt(format!("its parts do not fit each other: {shapes:?}")));
    }
    let int = Int {
        codes: codes.data,
        bits,
        order,
        rows: outputs,
        cols,
        scales,
        zeros: Some(zeros),
        zero_shift,
        groups,
        group_of: None,
    };
    int.finish(layer, group_of)
}

pub(super) fn compressed(layer: &str, left: &mut BTreeMap<String, Stored>) -> Result<(RawTensor, Recipe)> {
    let part = |name: &str| format!("{layer}.{name}");
    let shape = take(left, &part("weight_shape"), &[StoredDtype::I64, StoredDtype::I32])?;
    let zeros = left.contains_key(&part("weight_zero_point"));
    let zeros = if zeros { Some(take(left, &part("weight_zero_point"), &[StoredDtype::I32])?) } else { None };
    let group_of = left.remove(&part("weight_g_idx"));
    let codes = take(left, &part("weight_packed"), &[StoredDtype::I32])?;
    let scales = take(left, &part("weight_scale"), &super::FLOATS)?;
    let size = |at: usize| match shape.dtype {
        StoredDtype::I64 => shape.data.as_chunks::<8>().0.get(at).map(|bytes| u64::from_le_bytes(*bytes) as usize),
        _ => words(&shape.data).get(at).map(|bytes| u32::from_le_bytes(*bytes) as usize),
    };
    let (Some(rows), Some(cols), &[stored_rows, row_words]) = (size(0), size(1), codes.shape.as_slice()) else {
        return Err(Error::corrupt("its parts are not of two dimensions"));
    };
    let bits = (row_words * 32).checked_div(cols).unwrap_or(0);
    let groups = if scales.shape.len() == 2 { scales.shape[1] } else { 1 };
    let scale_count = scales.shape.iter().product::<usize>();
    let zeros_fit = zeros.as_ref().is_none_or(|zeros| zeros.shape == [(rows * bits).div_ceil(32), groups]);
    if !matches!(bits, 4 | 8)
        || row_words * 32 != cols * bits
        || stored_rows != rows
        || scale_count != rows * groups
        || !zeros_fit
    {
        let shapes = (rows, cols, &codes.shape, &scales.shape, zeros.map(|zeros| zeros.shape));
        return Err(Error::corrupt(format!("its parts do not fit each other: {shapes:?}")));
    }
    let int = Int {
        codes: codes.data,
        bits,
        order: Order::Compressed,
        rows,
        cols,
        scales,
        zeros,
        zero_shift: 0,
        groups,
        group_of: None,
    };
    int.finish(layer, group_of)
}

pub(super) fn bytes(layer: &str, left: &mut BTreeMap<String, Stored>) -> Result<(RawTensor, Recipe)> {
    let part = |name: &str| format!("{layer}.{name}");
    let codes = take(left, &part("weight"), &[StoredDtype::I8])?;
    let scales = take(left, &part("weight_scale"), &super::FLOATS)?;
    if left.remove(&part("weight_zero_point")).is_some() {
        return Err(Error::unsupported("it has zero points beside its 8-bit integers, which are not read"));
    }
    let &[rows, cols] = codes.shape.as_slice() else {
        return Err(Error::unsupported(format!("it is of shape {:?}, and only matrices are read", codes.shape)));
    };
    let count = scales.shape.iter().product::<usize>();
    let groups = if count == 1 { 0 } else { count.checked_div(rows).unwrap_or(0) };
    if count != 1 && (groups == 0 || count != rows * groups) {
        return Err(Error::corrupt(format!(
            "it is of shape {:?} and has scales of shape {:?}",
            codes.shape, scales.shape
        )));
    }
    let int = Int {
        codes: codes.data,
        bits: 8,
        order: Order::Bytes,
        rows,
        cols,
        scales,
        zeros: None,
        zero_shift: 0,
        groups,
        group_of: None,
    };
    int.finish(layer, None)
}

impl Int {
    fn finish(mut self, layer: &str, group_of: Option<Stored>) -> Result<(RawTensor, Recipe)> {
        let groups = self.groups.max(1);
        let group = self.cols / groups;
        if group == 0 || group * groups != self.cols || !group.is_multiple_of(BLOCK) {
            let message =
                format!("its {} columns are in {groups} groups, which are not whole blocks of {BLOCK}", self.cols);
            return Err(Error::unsupported(message));
        }
        if let Some(group_of) = group_of {
            let is_index = group_of.dtype == StoredDtype::I32 && group_of.shape == [self.cols];
            let is_within = |bytes: &[u8; 4]| (u32::from_le_bytes(*bytes) as usize) < groups;
            if !is_index || !words(&group_of.data).iter().all(is_within) {
                return Err(Error::corrupt(format!("{} is no list of groups", quote(&group_of.name))));
            }
            let is_plain = |(i, bytes): (usize, &[u8; 4])| u32::from_le_bytes(*bytes) as usize == i / group;
            if !words(&group_of.data).iter().enumerate().all(is_plain) {
                self.group_of = Some(group_of.data);
            }
        }
        let dtype = match (&self.group_of, self.bits) {
            (Some(_), _) => Dtype::F16,
            (None, 4) => Dtype::Int4,
            _ => Dtype::Int8,
        };
        Ok((head(layer, dtype, &[self.rows, self.cols], &self.codes), Recipe::Int(self)))
    }

    pub(super) fn unpack(&self, head: &RawTensor) -> Result<Bytes> {
        let scales = self.scales()?;
        let zeros = self.zeros()?;
        if head.dtype == Dtype::Int8 && zeros.iter().any(|zero| *zero != 128) {
            return Err(Error::unsupported(
                "its 8-bit integers have zero points other than the middle, which are not read",
            ));
        }
        by_rows(head, |rows, data| match head.dtype {
            Dtype::F16 => self.write_halves(rows, &scales, &zeros, data),
            _ => self.write_blocks(rows, &scales, &zeros, data),
        })
    }

    fn write_blocks(&self, rows: Range<usize>, scales: &[f32], zeros: &[u8], data: &mut [u8]) {
        let (groups, blocks) = (self.groups.max(1), self.cols / BLOCK);
        let row_bytes = data.len() / rows.len();
        let block_bytes = row_bytes / blocks;
        for block in 0..blocks {
            let group = block * BLOCK / (self.cols / groups);
            for (row, data) in rows.clone().zip(data.chunks_exact_mut(row_bytes)) {
                let data = &mut data[block * block_bytes..][..block_bytes];
                data[..4].copy_from_slice(&scales[row * groups + group].to_le_bytes());
                if self.bits == 8 {
                    for (i, byte) in data[4..].iter_mut().enumerate() {
                        *byte = self.code(row, block * BLOCK + i) ^ 0x80;
                    }
                    continue;
                }
                data[4] = zeros[row * groups + group];
                for (i, byte) in data[5..].iter_mut().enumerate() {
                    let (low, high) = (block * BLOCK + i, block * BLOCK + i + 16);
                    *byte = self.code(row, low) | self.code(row, high) << 4;
                }
            }
        }
    }

    fn write_halves(&self, rows: Range<usize>, scales: &[f32], zeros: &[u8], data: &mut [u8]) {
        let group_of = words(self.group_of.as_deref().unwrap_or_default());
        for (row, data) in rows.zip(data.chunks_exact_mut(2 * self.cols)) {
            for (col, (data, group)) in data.as_chunks_mut::<2>().0.iter_mut().zip(group_of).enumerate() {
                let at = row * self.groups.max(1) + u32::from_le_bytes(*group) as usize;
                let value = scales[at] * (f32::from(self.code(row, col)) - f32::from(zeros[at]));
                *data = half::f16::from_f32(value).to_le_bytes();
            }
        }
    }

    /// Returns the code at a row and column, unsigned.
    #[inline(always)]
    fn code(&self, row: usize, col: usize) -> u8 {
        let per_word = 32 / self.bits;
        let (word, place) = match self.order {
            Order::Awq => (col * (self.rows / 8) + row / 8, AWQ_PLACES[row % 8]),
            Order::Gptq => (col / per_word * self.rows + row, col % per_word),
            Order::Compressed => (row * (self.cols / per_word) + col / per_word, col % per_word),
            Order::Bytes => return self.codes[row * self.cols + col] ^ 0x80,
        };
        let word = u32::from_le_bytes(words(&self.codes)[word]);
        (word >> (place * self.bits)) as u8 & self.code_max()
    }

    fn code_max(&self) -> u8 {
        if self.bits == 4 { 15 } else { 255 }
    }

    /// Returns a scale for each row and group, row by row.
    fn scales(&self) -> Result<Vec<f32>> {
        let (values, groups) = (floats(&self.scales)?, self.groups.max(1));
        Ok(match self.order {
            Order::Awq | Order::Gptq => {
                (0..self.rows * groups).map(|at| values[at % groups * self.rows + at / groups]).collect()
            }
            _ if self.groups == 0 => vec![values.first().copied().unwrap_or_default(); self.rows],
            _ => values,
        })
    }

    /// Returns a zero point for each row and group, row by row.
    fn zeros(&self) -> Result<Vec<u8>> {
        let groups = self.groups.max(1);
        let Some(zeros) = &self.zeros else {
            return Ok(vec![if self.bits == 4 { 8 } else { 128 }; self.rows * groups]);
        };
        let (stored, per_word) = (words(&zeros.data), 32 / self.bits);
        let zero = |at: usize| {
            let (row, group) = (at / groups, at % groups);
            let (word, place) = match self.order {
                Order::Awq => (group * (self.rows / 8) + row / 8, AWQ_PLACES[row % 8]),
                Order::Gptq => (group * (self.rows / per_word) + row / per_word, row % per_word),
                _ => (row / per_word * groups + group, row % per_word),
            };
            let word = u32::from_le_bytes(stored[word]);
            ((word >> (place * self.bits)) as u8).wrapping_add(self.zero_shift) & self.code_max()
        };
        Ok((0..self.rows * groups).map(zero).collect())
    }
}
