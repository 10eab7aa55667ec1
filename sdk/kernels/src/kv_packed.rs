//! Cached keys and values in 8 or 4 bits.
//!
//! A row is rotated and then rounded: blocks of 32 values, each with an `f16` scale. Keys have channels that are much larger
//! than the others, and one of them would leave the rest of its block few steps. A rotation (a Hadamard matrix over as many
//! values as a power of two divides) spreads it over the row. It is its own inverse and keeps products, so that queries are
//! rotated instead of keys being turned back, and once for all positions the sums of values.

use half::f16;

use super::{
    pool::Pool,
    simd::{Kernel, Simd, half},
};

/// Values of a block.
const BLOCK: usize = 32;
const SCALE_BYTES: usize = 2;
/// Most values that are rotated together. It bounds what a rotation costs, whose time grows with the logarithm of this.
pub const ROTATED_MAX: usize = 128;

/// How a row of a cache is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// A signed byte per value.
    Q8,
    /// Half a byte: the first 16 values of a block in the lower halves.
    Q4,
}

impl Packing {
    /// Bytes of a row of so many values. The last block is filled up with zeros.
    pub fn row_bytes(self, values: usize) -> usize {
        values.div_ceil(BLOCK).saturating_mul(self.block_bytes())
    }

    /// Bytes of a block of 32 values; the scale comes first.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::Q8 => SCALE_BYTES + BLOCK,
            Self::Q4 => SCALE_BYTES + BLOCK / 2,
        }
    }

    /// Packs a rotated row.
    #[inline(always)]
    fn pack(self, row: &[f32], bytes: &mut [u8]) {
        for (row, bytes) in row.chunks(BLOCK).zip(bytes.chunks_exact_mut(self.block_bytes())) {
            let mut values = [0.0; BLOCK];
            values[..row.len()].copy_from_slice(row);
            let (scale, codes) = bytes.split_at_mut(SCALE_BYTES);
            let rounded = match self {
                Self::Q8 => round(&values, largest(&values).abs() / 127.0, -127.0, 127.0, codes),
                // The largest gets the one code more that there is below zero.
                Self::Q4 => {
                    let mut halves = [0; BLOCK];
                    let rounded = round(&values, largest(&values) / -8.0, -8.0, 7.0, &mut halves);
                    let (low, high) = halves.split_at(BLOCK / 2);
                    for ((code, low), high) in codes.iter_mut().zip(low).zip(high) {
                        *code = low & 15 | high << 4;
                    }
                    rounded
                }
            };
            scale.copy_from_slice(&rounded.to_le_bytes());
        }
    }

    /// Widens a row, which stays rotated.
    #[inline(always)]
    pub(super) fn unpack(self, bytes: &[u8], row: &mut [f32]) {
        for (row, bytes) in row.chunks_mut(BLOCK).zip(bytes.chunks_exact(self.block_bytes())) {
            let (scale, codes) = (half(bytes, 0), &bytes[SCALE_BYTES..]);
            match self {
                Self::Q8 => {
                    for (value, code) in row.iter_mut().zip(codes) {
                        *value = scale * f32::from(code.cast_signed());
                    }
                }
                Self::Q4 => {
                    let (low, high) = row.split_at_mut(row.len().min(BLOCK / 2));
                    for (value, code) in low.iter_mut().zip(codes) {
                        *value = scale * f32::from((code << 4).cast_signed() >> 4);
                    }
                    for (value, code) in high.iter_mut().zip(codes) {
                        *value = scale * f32::from(code.cast_signed() >> 4);
                    }
                }
            }
        }
    }
}

/// The value of the largest magnitude, with its sign.
#[inline(always)]
fn largest(values: &[f32; BLOCK]) -> f32 {
    let (mut most, mut least) = (0.0_f32, 0.0_f32);
    for value in values {
        most = most.max(*value);
        least = least.min(*value);
    }
    if most >= -least { most } else { least }
}

/// Rounds a block's values to multiples of a scale and returns it as it is stored.
#[inline(always)]
fn round(values: &[f32; BLOCK], scale: f32, least: f32, most: f32, codes: &mut [u8]) -> f16 {
    let scale = f16::from_f32(scale.clamp(-f16::MAX.to_f32(), f16::MAX.to_f32()));
    let inverse = if scale.to_f32() == 0.0 { 0.0 } else { scale.to_f32().recip() };
    for (code, value) in codes.iter_mut().zip(values) {
        *code = ((value * inverse).round_ties_even().clamp(least, most) as i8).cast_unsigned();
    }
    scale
}

/// How many values of rows of this size are rotated together.
pub fn rotated(head_dim: usize) -> usize {
    (1 << head_dim.trailing_zeros().min(usize::BITS - 1)).min(ROTATED_MAX)
}

/// Rotates each group of so many values of a row; once more, and they are as before.
#[inline(always)]
fn rotate(row: &mut [f32], group: usize) {
    let scale = (group as f32).sqrt().recip();
    for values in row.chunks_exact_mut(group) {
        let mut half = 1;
        while half < group {
            for pair in values.chunks_exact_mut(2 * half) {
                let (first, second) = pair.split_at_mut(half);
                for (a, b) in first.iter_mut().zip(second) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            half *= 2;
        }
        values.iter_mut().for_each(|value| *value *= scale);
    }
}

/// Rotates rows of `dim` values in place, in groups of `group`.
pub(super) fn rotate_rows(pool: &Pool, rows: &mut [f32], dim: usize, group: usize) {
    struct Rotate<'a>(&'a mut [f32], usize);
    impl<S: Simd> Kernel<S> for Rotate<'_> {
        #[inline(always)]
        fn run(self, _simd: S) {
            rotate(self.0, self.1);
        }
    }
    const ROWS: usize = 64;
    let run = |_: usize, rows: &mut [f32]| pool.level().run(Rotate(rows, group));
    if rows.len() <= ROWS * dim { run(0, rows) } else { pool.run_pieces(rows, ROWS * dim, run) }
}

/// Rotates and packs one row.
pub(super) fn pack(pool: &Pool, packing: Packing, row: &[f32], bytes: &mut [u8]) {
    struct Pack<'a>(Packing, Vec<f32>, &'a mut [u8]);
    impl<S: Simd> Kernel<S> for Pack<'_> {
        #[inline(always)]
        fn run(self, _simd: S) {
            let Self(packing, mut row, bytes) = self;
            let group = rotated(row.len());
            rotate(&mut row, group);
            packing.pack(&row, bytes);
        }
    }
    pool.level().run(Pack(packing, row.to_vec(), bytes));
}

/// Rotates and packs rows of `dim` values, as a cache holds them.
pub fn pack_rows(packing: Packing, rows: &[f32], dim: usize) -> Vec<u8> {
    let (dim, mut rows) = (dim.max(1), rows.to_vec());
    let mut bytes = vec![0; rows.len() / dim * packing.row_bytes(dim)];
    for (row, bytes) in rows.chunks_exact_mut(dim).zip(bytes.chunks_exact_mut(packing.row_bytes(dim))) {
        rotate(row, rotated(dim));
        packing.pack(row, bytes);
    }
    bytes
}

/// Unpacks one row and turns it back.
pub(super) fn unpack(packing: Packing, bytes: &[u8], row: &mut [f32]) {
    packing.unpack(bytes, row);
    let group = rotated(row.len());
    rotate(row, group);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + 13) as f32 * 0.618).sin()).collect()
    }

    #[test]
    fn a_rotation_is_its_own_inverse_and_keeps_products() {
        for dim in [32, 40, 64, 72, 96, 128, 256, 576] {
            let (mut a, mut b) = (numbers(dim), numbers(2 * dim).split_off(dim));
            let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
            let (before, plain) = (product(&a, &b), a.clone());
            rotate(&mut a, rotated(dim));
            rotate(&mut b, rotated(dim));
            assert!((product(&a, &b) - before).abs() < 1e-4 * dim as f64, "{dim}");
            rotate(&mut a, rotated(dim));
            assert!(a.iter().zip(&plain).all(|(a, b)| (a - b).abs() < 1e-5), "{dim}");
        }
        assert_eq!([1, 64, 72, 256, 576].map(rotated), [1, 64, 8, 128, 64]);
    }

    #[test]
    fn rows_come_back_within_half_a_step() {
        let pool = Pool::new(1);
        for (packing, steps) in [(Packing::Q8, 127.0), (Packing::Q4, 8.0)] {
            for dim in [8, 32, 48, 128] {
                let mut row = numbers(dim);
                let mut bytes = vec![0; packing.row_bytes(dim)];
                packing.pack(&row, &mut bytes);
                let mut back = vec![f32::NAN; dim];
                packing.unpack(&bytes, &mut back);
                for (block, back) in row.chunks(BLOCK).zip(back.chunks(BLOCK)) {
                    let most = block.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
                    // A code more lies below zero than above, where rounding may fall short by as much as a step.
                    let bound = most / steps * if packing == Packing::Q4 { 1.001 } else { 0.51 };
                    assert!(block.iter().zip(back).all(|(a, b)| (a - b).abs() <= bound), "{packing:?} {dim}");
                }
                // One value much larger than the others leaves them more than nothing.
                row[3] = 50.0;
                pack(&pool, packing, &row, &mut bytes);
                unpack(packing, &bytes, &mut back);
                let error: f32 = row.iter().zip(&back).map(|(a, b)| (a - b).powi(2)).sum::<f32>() / dim as f32;
                assert!(error.sqrt() < 50.0 / steps, "{packing:?} {dim}: {error}");
            }
        }
    }

    /// The CUDA kernels write these bytes, and a disk tier keeps them.
    #[test]
    fn a_block_has_its_scale_then_its_codes_and_zeros_behind_a_short_row() {
        let row = [-1.0, 2.5, 0.5, -1.5, 2.0, 0.0, -2.0, 1.5];
        let filled = |start: &[u8], bytes: usize| [start, &vec![0; bytes - start.len()]].concat();
        let eight_bits = [215, 39, 23, 221, 58, 0, 244, 0, 0, 129];
        assert_eq!(pack_rows(Packing::Q8, &row, 8), filled(&eight_bits, 34));
        let four_bits = [199, 55, 1, 14, 4, 0, 15, 0, 0, 8];
        assert_eq!(pack_rows(Packing::Q4, &row, 8), filled(&four_bits, 18));
        let rows: Vec<f32> = (0..2 * 48).map(|i| ((i * 7 + 3) % 11) as f32 - 5.0).collect();
        for packing in [Packing::Q8, Packing::Q4] {
            let mut bytes = vec![0; 2 * packing.row_bytes(48)];
            for (row, bytes) in rows.chunks(48).zip(bytes.chunks_mut(packing.row_bytes(48))) {
                pack(&Pool::new(1), packing, row, bytes);
            }
            assert_eq!(pack_rows(packing, &rows, 48), bytes, "{packing:?}");
        }
    }

    #[test]
    fn zeros_and_numbers_beyond_the_scale_stay_finite() {
        for packing in [Packing::Q8, Packing::Q4] {
            for value in [0.0, 1e-12, -1e38] {
                let mut bytes = vec![255; packing.row_bytes(BLOCK)];
                packing.pack(&[value; BLOCK], &mut bytes);
                let mut back = [f32::NAN; BLOCK];
                packing.unpack(&bytes, &mut back);
                assert!(back.iter().all(|value| value.is_finite()), "{packing:?} {value}");
            }
        }
    }
}
