//! Vectors of eight lanes in plain Rust: the fallback for every machine, as fast as the compiler makes it.

use super::{Kernel, Rows, Simd};

/// Every machine runs plain Rust, so anyone may construct this value.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

const LANES: usize = 8;
type Floats = [f32; LANES];
type Bits = [u32; LANES];

#[inline(always)]
fn zip<T: Copy>(a: [T; LANES], b: [T; LANES], mut f: impl FnMut(T, T) -> T) -> [T; LANES] {
    let mut out = a;
    for lane in 0..LANES {
        out[lane] = f(a[lane], b[lane]);
    }
    out
}

#[inline(always)]
fn each<A: Copy, B: Copy + Default>(a: [A; LANES], f: impl Fn(A) -> B) -> [B; LANES] {
    let mut out = [B::default(); LANES];
    for lane in 0..LANES {
        out[lane] = f(a[lane]);
    }
    out
}

/// Converts half-precision bits: a multiplication moves the exponent to `f32`'s bias, which also handles subnormals;
/// infinities and NaNs get their exponent explicitly.
#[inline(always)]
pub(crate) fn half_to_f32(bits: u32) -> f32 {
    let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits(0x7780_0000);
    let special = if magnitude >= 65536.0 { 0x7f80_0000 } else { 0 };
    f32::from_bits(magnitude.to_bits() | special | (bits & 0x8000) << 16)
}

impl Simd for Portable {
    type F = Floats;
    type U = Bits;
    const LANES: usize = LANES;
    type Run = [i32; LANES];
    const WIDE_IS_SIGNED: bool = false;

    #[inline(always)]
    fn enter<K: Kernel<Self>>(self, kernel: K) {
        kernel.run(self);
    }
    #[inline(always)]
    fn splat(self, value: f32) -> Floats {
        [value; LANES]
    }
    #[inline(always)]
    fn load(self, from: &[f32]) -> Floats {
        let mut out = [0.0; LANES];
        out.copy_from_slice(&from[..LANES]);
        out
    }
    #[inline(always)]
    fn store(self, value: Floats, to: &mut [f32]) {
        to[..LANES].copy_from_slice(&value);
    }
    #[inline(always)]
    fn add(self, a: Floats, b: Floats) -> Floats {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Floats, b: Floats) -> Floats {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Floats, b: Floats) -> Floats {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Floats, b: Floats) -> Floats {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, a: Floats, b: Floats, c: Floats) -> Floats {
        // Fast where one instruction does both, very slow elsewhere.
        let mut out = c;
        for lane in 0..LANES {
            out[lane] = if cfg!(target_arch = "aarch64") {
                a[lane].mul_add(b[lane], c[lane])
            } else {
                a[lane] * b[lane] + c[lane]
            };
        }
        out
    }
    #[inline(always)]
    fn fnma(self, a: Floats, b: Floats, c: Floats) -> Floats {
        self.fma(each(a, |a| -a), b, c)
    }
    #[inline(always)]
    fn max(self, a: Floats, b: Floats) -> Floats {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: Floats, b: Floats) -> Floats {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn zero_below(self, value: Floats, by: Floats, limit: f32) -> Floats {
        zip(value, by, |value, by| if by < limit { 0.0 } else { value })
    }
    #[inline(always)]
    fn round(self, value: Floats) -> Floats {
        each(value, f32::round_ties_even)
    }
    #[inline(always)]
    fn exp2(self, value: Floats) -> Floats {
        each(value, |value| f32::from_bits(((value as i32 + 127) << 23) as u32))
    }
    #[inline(always)]
    fn store_low_bytes(self, value: Floats, to: &mut [i8]) {
        for (to, value) in to[..LANES].iter_mut().zip(value) {
            *to = value.to_bits() as i8;
        }
    }
    #[inline(always)]
    fn sum(self, value: Floats) -> f32 {
        let [a, b, c, d, e, f, g, h] = value;
        ((a + e) + (c + g)) + ((b + f) + (d + h))
    }
    #[inline(always)]
    fn top(self, value: Floats) -> f32 {
        value.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    #[inline(always)]
    fn splat_bits(self, value: u32) -> Bits {
        [value; LANES]
    }
    #[inline(always)]
    fn and(self, a: Bits, b: Bits) -> Bits {
        zip(a, b, |a, b| a & b)
    }
    #[inline(always)]
    fn or(self, a: Bits, b: Bits) -> Bits {
        zip(a, b, |a, b| a | b)
    }
    #[inline(always)]
    fn xor(self, a: Bits, b: Bits) -> Bits {
        zip(a, b, |a, b| a ^ b)
    }
    #[inline(always)]
    fn add_bits(self, a: Bits, b: Bits) -> Bits {
        zip(a, b, u32::wrapping_add)
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], indices: Bits) -> Bits {
        each(indices, |four| u32::from_le_bytes(four.to_le_bytes().map(|index| table[usize::from(index & 15)])))
    }
    #[inline(always)]
    fn gather<const N: usize>(self, table: &[u32; N], indices: Bits) -> Bits {
        const { assert!(N.is_power_of_two()) };
        each(indices, |index| table[index as usize & (N - 1)])
    }
    #[inline(always)]
    fn shl(self, value: Bits, bits: u32) -> Bits {
        each(value, |value| value << bits)
    }
    #[inline(always)]
    fn shr(self, value: Bits, bits: u32) -> Bits {
        each(value, |value| value >> bits)
    }
    #[inline(always)]
    fn shr_signed(self, value: Bits, bits: u32) -> Bits {
        each(value, |value| (value.cast_signed() >> bits).cast_unsigned())
    }
    #[inline(always)]
    fn integers_to_f32(self, value: Bits) -> Floats {
        each(value, |value| value as i32 as f32)
    }
    #[inline(always)]
    fn bits_to_f32(self, value: Bits) -> Floats {
        each(value, f32::from_bits)
    }
    #[inline(always)]
    fn low_half(self, value: Bits) -> Floats {
        each(value, |value| half_to_f32(value & 0xffff))
    }
    #[inline(always)]
    fn high_half(self, value: Bits) -> Floats {
        each(value, |value| half_to_f32(value >> 16))
    }
    #[inline(always)]
    fn load_bits(self, from: &[u8]) -> Bits {
        let words = from.as_chunks::<4>().0;
        std::array::from_fn(|lane| u32::from_le_bytes(words[lane]))
    }
    #[inline(always)]
    fn load_words(self, from: &[u8]) -> Bits {
        let words = from.as_chunks::<2>().0;
        std::array::from_fn(|lane| u32::from(u16::from_le_bytes(words[lane])))
    }
    #[inline(always)]
    fn load_halves(self, from: &[u8]) -> Floats {
        self.low_half(self.load_words(from))
    }
    #[inline(always)]
    fn columns(self, rows: Rows<'_>, offset: usize) -> [Bits; 4] {
        rows.check(LANES, offset);
        let mut columns = [[0; LANES]; 4];
        for row in 0..LANES {
            let start = row * rows.stride + offset;
            let (words, _) = rows.bytes[start..start + 16].as_chunks::<4>();
            for (column, word) in columns.iter_mut().zip(words) {
                column[row] = u32::from_le_bytes(*word);
            }
        }
        columns
    }

    #[inline(always)]
    fn run_steps(_code_max: u8) -> usize {
        usize::MAX
    }
    #[inline(always)]
    fn begin(self, _sum: Bits) -> [i32; LANES] {
        [0; LANES]
    }
    #[inline(always)]
    fn step<const WIDE: bool>(self, mut run: [i32; LANES], codes: Bits, x: Bits) -> [i32; LANES] {
        // Byte by byte over all lanes, which compilers vectorize better than sums of neighbours.
        for byte in 0..4 {
            for lane in 0..LANES {
                let code = (codes[lane] >> (8 * byte) & 0xff).cast_signed();
                run[lane] += code * i32::from((x[lane] >> (8 * byte)) as i8);
            }
        }
        run
    }
    #[inline(always)]
    fn finish(self, run: [i32; LANES], sum: Bits) -> Bits {
        let mut out = sum;
        for lane in 0..LANES {
            out[lane] = sum[lane].wrapping_add(run[lane].cast_unsigned());
        }
        out
    }
    /// Without a fused instruction, product and base would each be rounded.
    const ORIGIN: u32 = 0;
    #[inline(always)]
    fn scaled(self, sum: Bits, scale: Floats, _base: Floats) -> Floats {
        self.mul(self.integers_to_f32(sum), scale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widens_every_half_precision_number() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (half_to_f32(u32::from(bits)), half::f16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{bits:#x}");
        }
    }
}
