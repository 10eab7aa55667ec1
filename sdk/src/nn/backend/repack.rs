//! Repacks block formats for which a device has no kernels into a layout that has them and holds the same integers.
//!
//! The integers are unchanged. Scales and minimums become f16, which most of them are in the file already. Other scales
//! may change by no more, relatively, than values do in bf16, or the weight is declined.

use half::f16;

use crate::weights::{Dtype, RawTensor};

/// Layouts that kernels read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    /// Groups of 32 signed bytes.
    Bytes,
    /// `Q6_K` blocks without their scales.
    SixBits,
    /// A table of 16 signed bytes, and groups of 32 indices into it, two per byte.
    Nibbles,
    /// Like `Nibbles`, with a minimum after each group's scale.
    LoweredNibbles,
}

/// A repacked weight with separate scales.
pub(super) struct Repacked {
    pub(super) packing: Packing,
    pub(super) data: Vec<u8>,
    pub(super) scales: Vec<f16>,
}

/// Values per group.
const GROUP: usize = 32;

/// Columns that a warp multiplies at once.
pub(super) const PART: usize = 128;

/// Values per scale in `Q3_K`.
const SIXTEEN: usize = 16;

/// Bytes of a `Q6_K` block without its scale.
const SIX_BITS: usize = 208;

/// Values per block of `Q3_K` and `Q6_K`.
const BLOCK: usize = 256;

/// Number of values from which the work is spread over threads.
const SHARED: usize = 1 << 18;

/// The layout for a format; `None` if no layout holds its integers.
fn packing_of(dtype: Dtype) -> Option<Packing> {
    match dtype {
        Dtype::Q3K => Some(Packing::SixBits),
        Dtype::Q4_1 | Dtype::Int4 => Some(Packing::LoweredNibbles),
        Dtype::Q8_0 | Dtype::Q5_0 | Dtype::IQ3XXS | Dtype::IQ3S | Dtype::IQ2XXS | Dtype::Int8 => Some(Packing::Bytes),
        dtype => pensieve_kernels::levels(dtype).map(|_| Packing::Nibbles),
    }
}

/// Bytes of a row on the device, for formats that are not used as stored: packed, or else bf16. A weight whose scales
/// are declined takes more, which is unknown until they are read.
pub(super) fn row_bytes(dtype: Dtype, inputs: usize) -> usize {
    let padded = inputs.next_multiple_of(PART);
    match packing_of(dtype) {
        Some(Packing::Bytes) => padded + padded / 16,
        Some(Packing::SixBits) => inputs / BLOCK * (SIX_BITS + 2),
        Some(Packing::Nibbles) => padded / 2 + padded / 16,
        Some(Packing::LoweredNibbles) => padded / 2 + padded / 8,
        None => 2 * inputs,
    }
}

/// Repacks a weight; `None` if no layout holds it.
pub(super) fn repack(raw: &RawTensor, inputs: usize) -> Option<Repacked> {
    let row_bytes = raw.dtype.row_bytes(inputs).filter(|bytes| *bytes > 0)?;
    let packing = packing_of(raw.dtype)?;
    let levels = match packing {
        Packing::Nibbles | Packing::LoweredNibbles => Some(pensieve_kernels::levels(raw.dtype)?),
        Packing::Bytes | Packing::SixBits => None,
    };
    let rows = raw.data.len() / row_bytes;
    let threads = if rows * inputs < SHARED { 1 } else { std::thread::available_parallelism().map_or(1, usize::from) };
    let share = rows.div_ceil(threads).max(1) * row_bytes;
    let part = |bytes: &[u8]| match levels {
        None if packing == Packing::SixBits => six_bits(bytes),
        levels => groups(raw.dtype, bytes, inputs, levels.as_ref()),
    };
    // If no thread can be started, this thread does the work.
    let parts: Option<Vec<_>> = std::thread::scope(|scope| {
        let start = |bytes| (bytes, std::thread::Builder::new().spawn_scoped(scope, move || part(bytes)));
        let tasks: Vec<_> = raw.data.chunks(share).map(start).collect();
        let end = |(bytes, task): (_, std::io::Result<std::thread::ScopedJoinHandle<'_, _>>)| match task {
            Ok(task) => task.join().ok().flatten(),
            Err(_) => part(bytes),
        };
        tasks.into_iter().map(end).collect()
    });
    let mut data: Vec<u8> = levels.map_or_else(Vec::new, |levels| levels.map(i8::cast_unsigned).to_vec());
    let mut scales = Vec::new();
    for (part, of_part) in parts? {
        data.extend(part);
        scales.extend(of_part);
    }
    Some(Repacked { packing, data, scales })
}

/// Converts a scale to f16, if that loses no more than bf16 loses on a value.
fn rounded(scale: f32) -> Option<f16> {
    let short = f16::from_f32(scale);
    ((short.to_f32() - scale).abs() <= scale.abs() / 512.0).then_some(short)
}

/// Groups of 32: signed bytes, or indices into a table of levels, two per byte, the first in the low half. Rows are
/// padded to parts of four groups. Within a part, the first eight values of each group come first, then the second
/// eight, and so on; for bytes, those of the first two groups, then those of the other two.
fn groups(dtype: Dtype, bytes: &[u8], inputs: usize, levels: Option<&[i8; 16]>) -> Option<(Vec<u8>, Vec<f16>)> {
    let mut places = [None; 256];
    for (place, level) in levels.map_or(&[][..], |levels| &levels[..]).iter().enumerate().rev() {
        places[usize::from(level.cast_unsigned())] = Some(place as u8);
    }
    let (of_row, padded) = (inputs / GROUP, inputs.next_multiple_of(PART) / GROUP);
    let rows = bytes.len() / dtype.row_bytes(inputs)?;
    let part_bytes = if levels.is_some() { PART / 2 } else { PART };
    let has_minimum = matches!(dtype, Dtype::Q4_1 | Dtype::Int4);
    let numbers = if has_minimum { 2 } else { 1 };
    let mut data = vec![0; rows * padded * GROUP / PART * part_bytes];
    let mut scales = vec![f16::ZERO; rows * padded * numbers];
    let (mut index, mut fits) = (0, true);
    pensieve_kernels::each_group(dtype, bytes, |integers, scale, minimum| {
        let at = index / of_row * padded + index % of_row;
        index += 1;
        let (part, group) = (&mut data[at / 4 * part_bytes..][..part_bytes], at % 4);
        for (thread, eight) in integers.as_chunks::<8>().0.iter().enumerate() {
            if levels.is_none() {
                let to = &mut part[64 * (group / 2) + 16 * thread + 8 * (group % 2)..][..8];
                to.copy_from_slice(&eight.map(i8::cast_unsigned));
                continue;
            }
            let eight = eight.map(|integer| places[usize::from(integer.cast_unsigned())]);
            fits &= eight.iter().all(Option::is_some);
            let eight = eight.map(Option::unwrap_or_default);
            for (byte, [low, high]) in part[16 * thread + 4 * group..].iter_mut().zip(eight.as_chunks::<2>().0) {
                *byte = low | high << 4;
            }
        }
        for (to, number) in scales[at * numbers..].iter_mut().zip([scale, minimum]).take(numbers) {
            let short = rounded(number);
            fits &= short.is_some();
            *to = short.unwrap_or_default();
        }
        fits &= integers.len() == GROUP && (has_minimum || minimum == 0.0);
    });
    fits.then_some((data, scales))
}

/// Converts `Q3_K` to `Q6_K`: three-bit codes as six bits, and the scales of 16 values as bytes.
fn six_bits(bytes: &[u8]) -> Option<(Vec<u8>, Vec<f16>)> {
    const BYTES: usize = 110;
    let (mut data, mut scales) = (Vec::new(), Vec::new());
    for block in bytes.as_chunks::<BYTES>().0 {
        let of_block = f16::from_le_bytes([block[BYTES - 2], block[BYTES - 1]]);
        let (mut to, mut group) = ([0; SIX_BITS], 0);
        pensieve_kernels::each_group(Dtype::Q3K, block, |integers, scale, _| {
            for (at, integer) in (group * SIXTEEN..).zip(integers) {
                let (half, quarter, lane) = (at / 128, at % 128 / 32, at % 32);
                let six = (integer + 32).cast_unsigned();
                to[64 * half + 32 * (quarter % 2) + lane] |= (six & 15) << (quarter / 2 * 4);
                to[128 + 32 * half + lane] |= (six >> 4) << (2 * quarter);
            }
            // `as` saturates to the byte's range, and turns 0/0, where the block's scale is 0, into 0.
            to[192 + group] = ((scale / of_block.to_f32()).round() as i8).cast_unsigned();
            group += 1;
        });
        debug_assert_eq!(group, BLOCK / SIXTEEN);
        data.extend(to);
        scales.push(of_block);
    }
    Some((data, scales))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::Bytes;

    const ROWS: usize = 3;

    fn weight(dtype: Dtype, inputs: usize) -> RawTensor {
        let count = ROWS * inputs / dtype.block_len() * dtype.block_bytes();
        let mut state = 7u32;
        let mut bytes: Vec<u8> = (0..count)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            })
            .collect();
        for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
            let scale = f16::from_f32(0.0131).to_le_bytes();
            match dtype {
                Dtype::MXFP4 => block[0] = 119,
                Dtype::Int4 | Dtype::Int8 => block[..4].copy_from_slice(&0.0131_f32.to_le_bytes()),
                Dtype::Q4_1 => {
                    block[..2].copy_from_slice(&scale);
                    block[2..4].copy_from_slice(&scale);
                }
                Dtype::Q3K => block[108..].copy_from_slice(&scale),
                Dtype::TQ1_0 => block[52..].copy_from_slice(&scale),
                Dtype::TQ2_0 => block[64..].copy_from_slice(&scale),
                _ => block[..2].copy_from_slice(&scale),
            }
        }
        let data = Bytes::copy_of(&bytes).unwrap();
        RawTensor { name: "w".into(), dtype, shape: vec![ROWS, inputs], data }
    }

    /// Unpacks values as `quants.cuh` reads them.
    fn values(weight: &Repacked, inputs: usize) -> Vec<f32> {
        let Repacked { packing, data, scales } = weight;
        let six_bits = |index: usize| {
            let (block, at) = (&data[index / 256 * 208..], index % 256);
            let (half, quarter, lane) = (at / 128, at % 128 / 32, at % 32);
            let low = block[half * 64 + (quarter & 1) * 32 + lane] >> (quarter / 2 * 4) & 15;
            let high = (block[128 + half * 32 + lane] >> (2 * quarter)) & 3;
            scales[index / 256].to_f32()
                * f32::from(block[192 + at / 16].cast_signed())
                * (f32::from(low | high << 4) - 32.0)
        };
        let grouped = |index: usize| {
            let (block, at) = (index / inputs * inputs.div_ceil(128) * 4 + index % inputs / 32, index % inputs % 32);
            let (part, group) = (block / 4, block % 4);
            let byte = data[16 + part * 64 + at / 8 * 16 + group * 4 + at % 8 / 2];
            let level = f32::from(data[usize::from(byte >> (at % 2 * 4) & 15)].cast_signed());
            match packing {
                Packing::Bytes => {
                    let byte = data[part * 128 + group / 2 * 64 + at / 8 * 16 + group % 2 * 8 + at % 8];
                    scales[block].to_f32() * f32::from(byte.cast_signed())
                }
                Packing::LoweredNibbles => scales[2 * block].to_f32() * level - scales[2 * block + 1].to_f32(),
                _ => scales[block].to_f32() * level,
            }
        };
        let is_six = *packing == Packing::SixBits;
        (0..ROWS * inputs).map(|index| if is_six { six_bits(index) } else { grouped(index) }).collect()
    }

    #[test]
    fn another_format_holds_the_same_numbers() {
        use Dtype::*;
        for dtype in [Q8_0, Q4_0, Q4_1, Q5_0, Q3K, MXFP4, IQ4NL, IQ4XS, IQ3XXS, IQ3S, IQ2XXS, TQ1_0, TQ2_0, Int4, Int8]
        {
            // Rows of whole parts, and other lengths for short blocks.
            for inputs in [512, if dtype.block_len() == 32 { 480 } else { 256 }] {
                let raw = weight(dtype, inputs);
                let repacked = repack(&raw, inputs).unwrap_or_else(|| panic!("{dtype} was declined"));
                let head = if matches!(repacked.packing, Packing::Nibbles | Packing::LoweredNibbles) { 16 } else { 0 };
                let bytes = repacked.data.len() + 2 * repacked.scales.len() - head;
                assert_eq!(bytes, ROWS * row_bytes(dtype, inputs), "{dtype}");
                for (ours, exact) in values(&repacked, inputs).iter().zip(pensieve_kernels::dequantize(&raw).unwrap()) {
                    assert!((ours - exact).abs() <= exact.abs() / 300.0 + 1e-4, "{dtype}: {ours} for {exact}");
                }
            }
        }
    }

    #[test]
    fn what_no_format_holds_is_declined() {
        use Dtype::*;
        for dtype in [Q2K, Q5_1, IQ2XS, IQ2S, IQ1S, IQ1M, Fp8] {
            assert!(repack(&weight(dtype, 512), 512).is_none(), "{dtype}");
        }
        // MXFP4's smallest scale is not representable in f16.
        let mut raw = weight(MXFP4, 512);
        raw.data = Bytes::copy_of(&vec![0x31; raw.data.len()]).unwrap();
        assert!(repack(&raw, 512).is_none());
    }
}
