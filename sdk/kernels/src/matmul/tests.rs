//! Products against sums in `f64`, for every dtype, instruction set and batch shape.

use super::*;
use crate::simd::{Level, based};

const DTYPES: [Dtype; Dtype::ALL.len()] = Dtype::ALL;

/// A small seeded generator, so that failures are reproducible.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// In -1..1.
    fn number(&mut self) -> f32 {
        self.next() as f32 / (1_u64 << 30) as f32 - 1.0
    }

    /// Rows of random bytes whose floating-point fields have moderate magnitude.
    fn weights(&mut self, dtype: Dtype, rows: usize, cols: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..rows * dtype.row_bytes(cols).unwrap()).map(|_| self.next() as u8).collect();
        for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
            match dtype {
                Dtype::F32 => block.copy_from_slice(&self.number().to_le_bytes()),
                Dtype::F16 => block.copy_from_slice(&half::f16::from_f32(self.number()).to_le_bytes()),
                Dtype::BF16 => block.copy_from_slice(&half::bf16::from_f32(self.number()).to_le_bytes()),
                Dtype::MXFP4 => block[0] = 116 + block[0] % 8,
                Dtype::Int4 | Dtype::Int8 => block[..4].copy_from_slice(&(self.number() * 0.1).to_le_bytes()),
                Dtype::Fp8 => {
                    block[..4].copy_from_slice(&(self.number() * 0.1).to_le_bytes());
                    block[4..].iter_mut().filter(|code| **code & 0x7f == 0x7f).for_each(|code| *code ^= 1);
                }
                Dtype::IQ1M => set_quarters(block, half::f16::from_f32(self.number() * 0.1)),
                _ => {
                    for at in halves(dtype) {
                        let scale = half::f16::from_f32(self.number() * 0.1);
                        block[*at..at + 2].copy_from_slice(&scale.to_le_bytes());
                    }
                }
            }
        }
        bytes
    }
}

/// Offsets of a block's half-precision numbers.
fn halves(dtype: Dtype) -> &'static [usize] {
    match dtype {
        Dtype::Q4_0 | Dtype::Q5_0 | Dtype::Q8_0 => &[0],
        Dtype::Q4_1 | Dtype::Q5_1 | Dtype::Q4K | Dtype::Q5K => &[0, 2],
        Dtype::Q2K => &[80, 82],
        Dtype::Q3K => &[108],
        Dtype::Q6K => &[208],
        Dtype::TQ1_0 => &[52],
        Dtype::TQ2_0 => &[64],
        Dtype::F32 | Dtype::F16 | Dtype::BF16 | Dtype::MXFP4 | Dtype::IQ1M => &[],
        Dtype::Int4 | Dtype::Int8 | Dtype::Fp8 => &[],
        _ => &[0],
    }
}

/// Sets the scale of an `IQ1_M` block, which has four bits of it on top of each of its last four words.
fn set_quarters(block: &mut [u8], scale: half::f16) {
    for part in 0..4 {
        let nibble = (scale.to_bits() >> (4 * part) & 15) as u8;
        block[49 + 2 * part] = block[49 + 2 * part] & 15 | nibble << 4;
    }
}

fn run(level: Level, w: &Matrix<'_>, x: &[f32]) -> Vec<f32> {
    let n = x.len() / w.cols;
    let mut out = vec![f32::NAN; n * w.rows];
    matmul(&Pool::with_level(3, level), w, x, n, &mut out);
    out
}

fn run_of(level: Level, w: &Matrix<'_>, x: &[f32], stretches: &[usize]) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.len() / w.cols * w.rows];
    matmul_of(&Pool::with_level(3, level), w, x, stretches, &mut out);
    out
}

/// Values after quantization to 8 bits with a shared scale.
fn rounded(block: &[f32]) -> impl Iterator<Item = f64> + '_ {
    let largest = block.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
    let (scale, _) = based(largest / 127.0);
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    block.iter().map(move |x| f64::from((x * inverse).round_ties_even()) * f64::from(scale))
}

/// The values that are multiplied: few rows are rounded to 8 bits if the weights are quantized, many rows to `bf16`.
fn seen(level: Level, dtype: Dtype, x: &[f32], n: usize) -> Vec<f64> {
    match (dtype.is_quantized() && dtype != Dtype::Fp8, is_by_tiles(level, n)) {
        (true, true) => x.iter().map(|x| half::bf16::from_f32(*x).to_f64()).collect(),
        (true, false) => x.chunks(32).flat_map(rounded).collect(),
        (false, _) => x.iter().map(|x| f64::from(*x)).collect(),
    }
}

fn is_by_tiles(level: Level, n: usize) -> bool {
    level.has_tiles() && n >= MANY
}

fn check(level: Level, dtype: Dtype, rows: usize, cols: usize, n: usize) {
    let mut random = Random((rows * 31 + cols * 7 + n) as u64);
    // An odd address, as in mapped files.
    let bytes = [vec![0], random.weights(dtype, rows, cols)].concat();
    let w = Matrix { dtype, data: &bytes[1..], rows, cols };
    let x: Vec<f32> = (0..n * cols).map(|_| random.number()).collect();
    let out = run(level, &w, &x);
    let seen = seen(level, dtype, &x, n);
    let is_rounded = is_by_tiles(level, n) && dtype.is_quantized() && dtype != Dtype::Fp8;
    let mut row = vec![0.0; cols];
    for (r, bytes) in w.data.chunks(dtype.row_bytes(cols).unwrap()).enumerate() {
        dequantize_row(dtype, bytes, &mut row);
        if is_rounded {
            row.iter_mut().for_each(|w| *w = half::bf16::from_f32(*w).to_f32());
        }
        for i in 0..n {
            let (mut expected, mut size) = (0.0, 0.0);
            for (w, x) in row.iter().zip(&seen[i * cols..]) {
                expected += f64::from(*w) * x;
                size += (f64::from(*w) * x).abs();
            }
            // A scale and a minimum that nearly cancel may each be several times larger than their difference.
            let (got, allowed) = (f64::from(out[i * rows + r]), 1e-5 * size + 1e-4);
            let what = format!("{} {dtype:?} {rows} × {cols}, row {i} of {n}, output {r}", level.name());
            assert!((got - expected).abs() <= allowed, "{what}: {got} for {expected}");
        }
    }
}

#[test]
fn agrees_with_exact_sums_for_every_dtype_and_batch() {
    for level in Level::available() {
        for dtype in DTYPES {
            let block = dtype.block_len();
            for n in [1, 2, 3, 4, 5, 8, 9, 17, MANY, 79] {
                check(level, dtype, 37, 3 * block, n);
            }
            for (rows, cols) in [(1, block), (15, 2 * block), (32, 11 * block), (33, 5 * block), (101, 7 * block)] {
                check(level, dtype, rows, cols, 4);
            }
        }
        for cols in [1, 3, 127, 129, 300] {
            check(level, Dtype::F16, 35, cols, 3);
            check(level, Dtype::F32, 35, cols, 3);
            check(level, Dtype::F16, 35, cols, MANY + 1);
            check(level, Dtype::BF16, 35, cols, MANY + 1);
            check(level, Dtype::F32, 35, cols, MANY + 1);
        }
        // More outputs than a thread computes at a time, and as many as divide the rows among threads.
        check(level, Dtype::Q8_0, 33 * 32 + 7, 64, MANY + 3);
        check(level, Dtype::Q8_0, 40, 288, 300);
        check(level, Dtype::Q8_0, 40, 64, 2 * BATCH + 3);
        // More rows than are processed together.
        check(level, Dtype::Q4K, 33, 8192, 101);
    }
}

#[test]
fn a_row_alone_is_the_same_as_in_a_batch() {
    for level in Level::available() {
        for (dtype, (rows, cols, n)) in
            DTYPES.into_iter().map(|dtype| (dtype, (69, 1024, 23))).chain([(Dtype::Q6K, (33, 8192, 101))])
        {
            let mut random = Random(5);
            let bytes = random.weights(dtype, rows, cols);
            let w = Matrix { dtype, data: &bytes, rows, cols };
            let x: Vec<f32> = (0..n * cols).map(|_| random.number()).collect();
            let all = run_of(level, &w, &x, &vec![1; n]);
            for some in [1, 2, 3, 4, 5, 7, 8] {
                for (x, all) in x.chunks(some * cols).zip(all.chunks(some * rows)) {
                    assert_eq!(run(level, &w, x), all, "{} {dtype:?}, {some} at a time", level.name());
                }
            }
        }
    }
}

/// Rows of whole cache lines are read through windows, at any place in a line, if they are few.
#[test]
fn dense_rows_of_whole_lines_are_exact_wherever_they_begin() {
    for level in Level::available() {
        for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
            let line = 64 / dtype.row_bytes(1).unwrap();
            for (cols, rows) in [(line, 1), (2 * line, 15), (5 * line, 16), (8 * line, 33), (1024, 69)] {
                let mut random = Random((cols + rows) as u64);
                let bytes = random.weights(dtype, rows, cols);
                let x: Vec<f32> = (0..6 * cols).map(|_| random.number()).collect();
                let mut room = vec![0; bytes.len() + 128];
                let aligned = room.as_ptr().align_offset(64);
                let mut expected = None;
                for place in [0, 1, 16, 33, 63] {
                    let data = &mut room[aligned + place..][..bytes.len()];
                    data.copy_from_slice(&bytes);
                    let w = Matrix { dtype, data, rows, cols };
                    let all = run(level, &w, &x);
                    for (n, x) in (1..=5).map(|n| (n, &x[..n * cols])) {
                        let what = format!("{} {dtype:?} {rows} × {cols}, {n} rows at {place}", level.name());
                        assert_eq!(run(level, &w, x), all[..n * rows], "{what}");
                    }
                    assert_eq!(
                        *expected.get_or_insert_with(|| all.clone()),
                        all,
                        "{} {dtype:?} at {place}",
                        level.name()
                    );
                }
                let mut row = vec![0.0; cols];
                for (r, bytes) in bytes.chunks(dtype.row_bytes(cols).unwrap()).enumerate() {
                    dequantize_row(dtype, bytes, &mut row);
                    let products = || row.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x));
                    let (sum, size): (f64, f64) = (products().sum(), products().map(f64::abs).sum());
                    let found = f64::from(expected.as_ref().unwrap()[r]);
                    assert!((found - sum).abs() <= 1e-5 * size + 1e-4, "{dtype:?} {rows} × {cols}: {found} for {sum}");
                }
            }
        }
    }
}

/// Integers are exact, so it does not matter which instructions multiply them.
#[test]
fn more_products_of_bytes_by_one_instruction_change_no_bit() {
    let (fewer, more) = if cfg!(target_arch = "aarch64") { ("neon", "i8mm") } else { ("avx2", "avxvnni") };
    let level = |name| Level::available().find(|level| level.name() == name);
    let (Some(fewer), Some(more)) = (level(fewer), level(more)) else { return println!("skipped: no {more}") };
    for dtype in DTYPES.into_iter().filter(|dtype| dtype.is_quantized()) {
        for n in (1..=9).chain([16, 17]) {
            let (rows, cols) = (21, 1024 + dtype.block_len());
            let mut random = Random(n as u64);
            let bytes = random.weights(dtype, rows, cols);
            let w = Matrix { dtype, data: &bytes, rows, cols };
            let x: Vec<f32> = (0..n * cols).map(|_| random.number()).collect();
            let bits = |level| run(level, &w, &x).into_iter().map(f32::to_bits).collect::<Vec<_>>();
            assert_eq!(bits(fewer), bits(more), "{dtype:?}, {n} rows");
        }
    }
}

#[test]
fn a_row_of_many_is_the_same_among_more() {
    for level in Level::available() {
        for dtype in DTYPES {
            let (rows, cols, n) = (69, 1024, 2 * MANY + 5);
            let mut random = Random(6);
            let bytes = random.weights(dtype, rows, cols);
            let w = Matrix { dtype, data: &bytes, rows, cols };
            let x: Vec<f32> = (0..n * cols).map(|_| random.number()).collect();
            let all = run(level, &w, &x);
            for some in [0..MANY, 7..n, MANY..n] {
                let alone = run(level, &w, &x[some.start * cols..some.end * cols]);
                assert_eq!(alone, all[some.start * rows..some.end * rows], "{} {dtype:?} {some:?}", level.name());
            }
        }
    }
}

#[test]
fn a_stretch_is_the_same_alone_and_beside_others() {
    for level in Level::available() {
        for dtype in [Dtype::Q4K, Dtype::Q6K, Dtype::BF16, Dtype::F32] {
            let (rows, cols) = (69, 512);
            for stretches in [vec![1, MANY], vec![1, 1, MANY, 7, 3, MANY + 20, 1], vec![MANY, 2, MANY, MANY - 1]] {
                let mut random = Random(7);
                let bytes = random.weights(dtype, rows, cols);
                let w = Matrix { dtype, data: &bytes, rows, cols };
                let n: usize = stretches.iter().sum();
                let x: Vec<f32> = (0..n * cols).map(|_| random.number()).collect();
                let all = run_of(level, &w, &x, &stretches);
                let mut first = 0;
                for stretch in stretches {
                    let alone = run(level, &w, &x[first * cols..(first + stretch) * cols]);
                    let among = &all[first * rows..(first + stretch) * rows];
                    assert_eq!(alone, among, "{} {dtype:?}, {stretch} rows from {first} on", level.name());
                    first += stretch;
                }
            }
        }
    }
}

#[test]
fn products_of_the_same_activations_are_the_same_together() {
    for level in Level::available() {
        let cols = 512;
        for stretches in [vec![3], vec![MANY + 5], vec![1, MANY, 7, 2 * MANY, 1]] {
            let mut random = Random(9);
            let n: usize = stretches.iter().sum();
            let x: Vec<f32> = (0..n * cols).map(|_| random.number()).collect();
            let shapes = [(Dtype::Q4K, 300), (Dtype::F16, 40), (Dtype::Q6K, 0), (Dtype::Q8_0, 7)];
            let bytes = shapes.map(|(dtype, rows)| random.weights(dtype, rows, cols));
            let weight = |index: usize| {
                let (dtype, rows) = shapes[index];
                Matrix { dtype, data: &bytes[index], rows, cols }
            };
            let weights: Vec<_> = (0..shapes.len()).map(weight).collect();
            let outs = matmul_all(&Pool::with_level(3, level), &weights, &x, &stretches);
            for (index, out) in outs.iter().enumerate() {
                assert_eq!(*out, run_of(level, &weight(index), &x, &stretches), "{} {:?}", level.name(), shapes[index]);
            }
        }
    }
}

#[test]
fn rows_of_a_kind_are_computed_together_and_returned_to_their_places() {
    // Two outputs of other widths: each row's number, and twice that. Ten rows and more are many.
    type Calls = &'static [(bool, &'static [usize])];
    let cases: [(&[usize], Calls); 7] = [
        (&[], &[]),
        (&[0], &[]),
        (&[3, 0, 2], &[(false, &[3, 2])]),
        (&[3, 12, 10], &[(false, &[3]), (true, &[12, 10])]),
        (&[10, 0, 11], &[(true, &[10, 11])]),
        (&[1, 10, 2], &[(false, &[1, 2]), (true, &[10])]),
        (&[10, 1, 11, 2, 3, 12], &[(false, &[1, 2, 3]), (true, &[10, 11, 12])]),
    ];
    for (stretches, expected) in cases {
        let n = stretches.iter().sum::<usize>();
        let x: Vec<f32> = (0..n).flat_map(|row| [row as f32; 2]).collect();
        let (mut one, mut three) = (vec![-1.0; n], vec![-1.0; 3 * n]);
        let mut outs =
            [Outputs { width: 1, out: unwritten(&mut one) }, Outputs { width: 3, out: unwritten(&mut three) }];
        let mut calls = Vec::new();
        by_kind(
            (&x, 2),
            stretches,
            &mut outs,
            |stretch| stretch >= 10,
            |many, x, stretches, outs| {
                calls.push((many, stretches.to_vec()));
                assert_eq!(x.len(), 2 * stretches.iter().sum::<usize>());
                for (row, x) in x.chunks(2).enumerate() {
                    outs[0].out[row].write(x[0]);
                    outs[1].out[3 * row..3 * row + 3].fill(MaybeUninit::new(2.0 * x[1]));
                }
            },
        );
        let calls: Vec<(bool, &[usize])> = calls.iter().map(|(many, stretches)| (*many, &stretches[..])).collect();
        assert_eq!(calls, expected, "{stretches:?}");
        assert_eq!(one, (0..n).map(|row| row as f32).collect::<Vec<_>>(), "{stretches:?}");
        assert_eq!(three, (0..3 * n).map(|at| 2.0 * (at / 3) as f32).collect::<Vec<_>>(), "{stretches:?}");
    }
}

#[test]
fn many_rows_are_within_rounding_of_few() {
    for level in Level::available() {
        for dtype in DTYPES {
            let (rows, cols, n) = (40, 2048, MANY);
            let mut random = Random(8);
            let bytes = random.weights(dtype, rows, cols);
            let w = Matrix { dtype, data: &bytes, rows, cols };
            let x: Vec<f32> = (0..n * cols).map(|_| random.number()).collect();
            let (few, many) = (run_of(level, &w, &x, &vec![1; n]), run(level, &w, &x));
            let apart: f32 = few.iter().zip(&many).map(|(few, many)| (few - many).powi(2)).sum();
            let all: f32 = few.iter().map(|few| few.powi(2)).sum();
            let apart = (apart / all).sqrt();
            assert!(apart < 0.01, "{} {dtype:?}: {apart}", level.name());
            assert_eq!(apart > 0.0, is_by_tiles(level, n), "{} {dtype:?}: {apart}", level.name());
        }
    }
}

#[test]
fn extreme_codes_do_not_overflow() {
    for level in Level::available() {
        for dtype in DTYPES.into_iter().filter(|dtype| dtype.is_quantized()) {
            for (code, sign) in [(0x00, 1.0), (0xff, 1.0), (0x80, -1.0), (0x7f, 1.0)] {
                let mut bytes = vec![code; 32 * dtype.row_bytes(512).unwrap()];
                for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
                    halves(dtype).iter().for_each(|at| block[*at..at + 2].copy_from_slice(&[0, 0x3c]));
                    match dtype {
                        Dtype::MXFP4 => block[0] = 127,
                        Dtype::Int4 | Dtype::Int8 | Dtype::Fp8 => block[..4].copy_from_slice(&1.0_f32.to_le_bytes()),
                        Dtype::IQ1M => set_quarters(block, half::f16::ONE),
                        _ => {}
                    }
                }
                let w = Matrix { dtype, data: &bytes, rows: 32, cols: 512 };
                let mut row = vec![0.0; 512];
                dequantize_row(dtype, &bytes[..bytes.len() / 32], &mut row);
                let expected: f32 = row.iter().map(|w| w * sign).sum();
                for out in run(level, &w, &[sign; 2 * 512]) {
                    let error = (out - expected).abs();
                    assert!(
                        error <= 1e-5 * expected.abs(),
                        "{} {dtype:?} {code:#x}: {out} for {expected}",
                        level.name()
                    );
                }
            }
        }
    }
}

#[test]
fn a_row_with_a_value_that_is_no_number_spoils_only_itself() {
    for level in Level::available() {
        for dtype in DTYPES {
            let large = if dtype.is_quantized() && dtype != Dtype::Fp8 { 1e35 } else { f32::INFINITY };
            let unusual = [f32::from_bits(0x7fff_ffff), f32::from_bits(0xffff_ffff)];
            for bad in [f32::NAN, f32::INFINITY, -f32::INFINITY, large].into_iter().chain(unusual) {
                let bytes = Random(9).weights(dtype, 20, 256);
                let w = Matrix { dtype, data: &bytes, rows: 20, cols: 256 };
                let mut x = vec![0.5; 3 * 256];
                let good = run(level, &w, &x[..256]);
                x[256 + 77] = bad;
                let out = run(level, &w, &x);
                assert!(out[20..40].iter().all(|out| !out.is_finite()), "{} {dtype:?}", level.name());
                assert!(out[..20] == good && out[40..] == good, "{} {dtype:?}", level.name());
                if is_by_tiles(level, MANY) && bad != 1e35 {
                    let mut x = vec![0.5; MANY * 256];
                    let good = run(level, &w, &x);
                    x[256 + 77] = bad;
                    let out = run(level, &w, &x);
                    assert!(out[20..40].iter().all(|out| !out.is_finite()), "{} {dtype:?}", level.name());
                    assert!(out[..20] == good[..20] && out[40..] == good[40..], "{} {dtype:?}", level.name());
                }
            }
        }
    }
}

#[test]
fn the_least_of_numbers_spoil_nothing() {
    for level in Level::available() {
        for dtype in DTYPES {
            let bytes = Random(9).weights(dtype, 20, 256);
            let w = Matrix { dtype, data: &bytes, rows: 20, cols: 256 };
            for least in [1e-44, 1e-38, -3e-37] {
                let x: Vec<f32> = (0..256).map(|i| if i % 3 == 0 { least } else { 0.0 }).collect();
                let out = run(level, &w, &x);
                assert!(out.iter().all(|out| out.abs() < 1e-25), "{} {dtype:?}: {out:?}", level.name());
            }
        }
    }
}

#[test]
fn rows_of_zeros_and_empty_shapes_give_zeros() {
    for level in Level::available() {
        let bytes = Random(3).weights(Dtype::Q4K, 5, 256);
        let w = Matrix { dtype: Dtype::Q4K, data: &bytes, rows: 5, cols: 256 };
        assert_eq!(run(level, &w, &[0.0; 256]), [0.0; 5]);
        let pool = Pool::with_level(1, level);
        matmul(&pool, &w, &[], 0, &mut []);
        let mut out = [1.0; 6];
        matmul(&pool, &Matrix { dtype: Dtype::F32, data: &[], rows: 2, cols: 0 }, &[], 3, &mut out);
        assert_eq!(out, [0.0; 6]);
    }
}

#[test]
#[should_panic(expected = "a matrix of 5 × 256 Q4K")]
fn refuses_data_of_another_length() {
    let w = Matrix { dtype: Dtype::Q4K, data: &[0; 5 * 144 - 1], rows: 5, cols: 256 };
    run(Level::PORTABLE, &w, &[0.0; 256]);
}

/// Each head's outputs are the products of its own columns with its own matrix, however tasks cut them.
#[test]
fn heads_have_matrices_of_their_own() {
    let (heads, rows, cols) = (3, 71, 64);
    let stretches = [MANY + 3, 1, 4];
    let n: usize = stretches.iter().sum();
    let mut random = Random(7);
    for dtype in [Dtype::F32, Dtype::BF16, Dtype::Q8_0] {
        let data = random.weights(dtype, heads * rows, cols);
        let x: Vec<f32> = (0..n * heads * cols).map(|_| random.number()).collect();
        for (level, threads) in Level::available().flat_map(|level| [(level, 1), (level, 5)]) {
            let pool = Pool::with_level(threads, level);
            let all = Matrix { dtype, data: &data, rows: heads * rows, cols };
            let out = matmul_heads(&pool, &all, heads, &x, &stretches);
            for (head, data) in data.chunks_exact(data.len() / heads).enumerate() {
                let mine = |row: &[f32], width: usize| row[head * width..(head + 1) * width].to_vec();
                let x: Vec<f32> = x.chunks_exact(heads * cols).flat_map(|x| mine(x, cols)).collect();
                let mut expected = vec![0.0; n * rows];
                matmul_of(&pool, &Matrix { dtype, data, rows, cols }, &x, &stretches, &mut expected);
                let found: Vec<f32> = out.chunks_exact(heads * rows).flat_map(|out| mine(out, rows)).collect();
                assert!(found == expected, "{dtype:?}, {}, head {head}", level.name());
            }
        }
    }
}
