//! Linear recurrences whose heads each have a matrix as state, token by token.
//!
//! The columns of a matrix are independent, so all tokens of a head are computed for a few columns at a time, which
//! stay in the L1 cache meanwhile. Each token reads them once for `k · S` and once for the update.

use std::ops::Range;

use super::pool::Pool;
use super::simd::{Kernel, Simd};

/// The number and sizes of a recurrence's heads.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    pub heads: usize,
    pub key_heads: usize,
    /// Head `i` uses the keys of head `i mod key_heads` rather than `i / (heads / key_heads)`.
    pub interleaved_heads: bool,
    pub key_dim: usize,
    pub value_dim: usize,
}

/// Inputs of a step, one row per token.
#[derive(Clone, Copy, Debug)]
pub struct Recurred<'a> {
    /// `[tokens, key_heads, key_dim]`.
    pub q: &'a [f32],
    pub k: &'a [f32],
    /// `[tokens, heads, value_dim]`.
    pub v: &'a [f32],
    /// Logarithm of the decay, `[tokens, heads]`.
    pub decay: &'a [f32],
    /// Scale of the state update, `[tokens, heads]`.
    pub beta: &'a [f32],
    /// Writes `v − k · S` instead of `v`: the delta rule.
    pub corrects: bool,
    /// Adds this multiple of a token's own `v` to its output; one per head.
    pub skip: Option<&'a [f32]>,
}

/// The rows of one sequence, its state, and the copies to make of the state before given rows, in ascending order.
#[derive(Debug)]
pub struct Stretch<'a> {
    pub rows: Range<usize>,
    pub state: &'a mut [f32],
    pub copies: Vec<(usize, &'a mut [f32])>,
}

/// Vectors of columns held in registers at once.
const VECTORS: usize = 4;

/// Advances the state matrices of sequences, `[heads, key_dim, value_dim]` each, over their rows. `out` is `[tokens,
/// heads, value_dim]`, and the sequences partition its rows.
pub fn recurrence(pool: &Pool, shape: Heads, x: Recurred<'_>, sequences: Vec<Stretch<'_>>, out: &mut [f32]) {
    let Heads { heads, key_heads, key_dim, value_dim, .. } = shape;
    let (size, tokens) = (key_dim * value_dim, sequences.iter().map(|one| one.rows.len()).sum::<usize>());
    assert!(heads.is_multiple_of(key_heads), "{heads} heads over {key_heads}");
    assert!(x.q.len() == tokens * key_heads * key_dim && x.k.len() == x.q.len(), "queries and keys");
    assert!(x.v.len() == tokens * heads * value_dim && out.len() == x.v.len(), "values");
    assert!(x.decay.len() == tokens * heads && x.beta.len() == tokens * heads, "gates");
    assert!(x.skip.is_none_or(|skip| skip.len() == heads), "what is skipped");
    // Head by head, so that each task has a contiguous piece.
    let mut by_head = vec![0.0; out.len()];
    let (mut rest, mut tasks, mut spans) = (&mut by_head[..], Vec::with_capacity(sequences.len() * heads), Vec::new());
    for Stretch { rows, state, copies } in sequences {
        assert!(rows.end <= tokens && state.len() == heads * size, "rows {rows:?}");
        assert!(copies.iter().all(|(_, copy)| copy.len() == heads * size), "copies");
        spans.push(rows.clone());
        let mut copies: Vec<_> = copies.into_iter().map(|(end, copy)| (end, copy.chunks_exact_mut(size))).collect();
        for (head, matrix) in state.chunks_exact_mut(size).enumerate() {
            let (piece, after) = std::mem::take(&mut rest).split_at_mut(rows.len() * value_dim);
            rest = after;
            let copies = copies.iter_mut().filter_map(|(end, copies)| Some((*end, copies.next()?))).collect();
            tasks.push(Task { shape, x, head, rows: rows.clone(), matrix, copies, out: piece });
        }
    }
    pool.run_pieces(&mut tasks, 1, |_, tasks| {
        for task in tasks {
            pool.level().run(task);
        }
    });
    drop(tasks);
    let mut pieces = &by_head[..];
    for rows in spans {
        for head in 0..heads {
            let (piece, after) = pieces.split_at(rows.len() * value_dim);
            pieces = after;
            for (row, values) in rows.clone().zip(piece.chunks_exact(value_dim)) {
                out[(row * heads + head) * value_dim..][..value_dim].copy_from_slice(values);
            }
        }
    }
}

/// One head of one sequence.
struct Task<'a> {
    shape: Heads,
    x: Recurred<'a>,
    head: usize,
    rows: Range<usize>,
    matrix: &'a mut [f32],
    copies: Vec<(usize, &'a mut [f32])>,
    /// `[rows, value_dim]`.
    out: &'a mut [f32],
}

impl<S: Simd> Kernel<S> for &mut Task<'_> {
    #[inline(always)]
    fn run(self, simd: S) {
        let (width, mut column) = (self.shape.value_dim, 0);
        while column + VECTORS * S::LANES <= width {
            self.columns(Vectors::<S, VECTORS>(simd), column);
            column += VECTORS * S::LANES;
        }
        while column + S::LANES <= width {
            self.columns(Vectors::<S, 1>(simd), column);
            column += S::LANES;
        }
        while column < width {
            self.columns(One, column);
            column += 1;
        }
    }
}

/// One token's inputs for some columns of a head's matrix, whose rows are `stride` values apart.
struct Token<'a> {
    stride: usize,
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    fade: f32,
    beta: f32,
    corrects: bool,
    skip: f32,
}

impl Task<'_> {
    /// Advances the columns starting at `column`, as many as `columns` handles, through all rows.
    #[inline(always)]
    fn columns<C: Columns>(&mut self, columns: C, column: usize) {
        let Heads { heads, key_heads, interleaved_heads, key_dim, value_dim } = self.shape;
        let key_head = if interleaved_heads { self.head % key_heads } else { self.head / (heads / key_heads) };
        let (start, mut copies) = (self.rows.start, self.copies.iter_mut().peekable());
        for row in self.rows.clone() {
            while let Some((_, copy)) = copies.next_if(|(end, _)| *end <= row) {
                copy_columns(self.matrix, copy, value_dim, column, C::WIDTH);
            }
            let keys = (row * key_heads + key_head) * key_dim;
            let gate = row * heads + self.head;
            let token = Token {
                stride: value_dim,
                q: &self.x.q[keys..keys + key_dim],
                k: &self.x.k[keys..keys + key_dim],
                v: &self.x.v[gate * value_dim + column..][..C::WIDTH],
                fade: self.x.decay[gate].exp(),
                beta: self.x.beta[gate],
                corrects: self.x.corrects,
                skip: self.x.skip.map_or(0.0, |skip| skip[self.head]),
            };
            let out = &mut self.out[(row - start) * value_dim + column..][..C::WIDTH];
            columns.advance(&mut self.matrix[column..], &token, out);
        }
        for (_, copy) in copies {
            copy_columns(self.matrix, copy, value_dim, column, C::WIDTH);
        }
    }
}

fn copy_columns(from: &[f32], to: &mut [f32], stride: usize, column: usize, width: usize) {
    for (from, to) in from.chunks_exact(stride).zip(to.chunks_exact_mut(stride)) {
        to[column..column + width].copy_from_slice(&from[column..column + width]);
    }
}

/// Columns that are advanced together. A trait, because a closure would be compiled as a separate function, without the
/// instruction set.
trait Columns: Copy {
    const WIDTH: usize;

    /// Advances the first columns of `matrix` by one token.
    fn advance(self, matrix: &mut [f32], token: &Token<'_>, out: &mut [f32]);
}

/// `N` vectors of columns.
#[derive(Clone, Copy)]
struct Vectors<S, const N: usize>(S);

impl<S: Simd, const N: usize> Vectors<S, N> {
    #[inline(always)]
    fn load(self, values: &[f32]) -> [S::F; N] {
        let mut vectors = [self.0.splat(0.0); N];
        for n in 0..N {
            vectors[n] = self.0.load(&values[n * S::LANES..]);
        }
        vectors
    }
}

impl<S: Simd, const N: usize> Columns for Vectors<S, N> {
    const WIDTH: usize = N * S::LANES;

    #[inline(always)]
    fn advance(self, matrix: &mut [f32], token: &Token<'_>, out: &mut [f32]) {
        let simd = self.0;
        let (fade, beta, skip) = (simd.splat(token.fade), simd.splat(token.beta), simd.splat(token.skip));
        let values = self.load(token.v);
        let mut write = values;
        if token.corrects {
            let mut known = [simd.splat(0.0); N];
            for (row, k) in matrix.chunks(token.stride).zip(token.k) {
                let (k, row) = (simd.splat(*k), self.load(row));
                for n in 0..N {
                    known[n] = simd.fma(row[n], k, known[n]);
                }
            }
            for n in 0..N {
                write[n] = simd.fnma(fade, known[n], write[n]);
            }
        }
        for write in &mut write {
            *write = simd.mul(*write, beta);
        }
        let mut read = [simd.splat(0.0); N];
        for ((row, k), q) in matrix.chunks_mut(token.stride).zip(token.k).zip(token.q) {
            let (k, q, before) = (simd.splat(*k), simd.splat(*q), self.load(row));
            for n in 0..N {
                let value = simd.fma(write[n], k, simd.mul(before[n], fade));
                simd.store(value, &mut row[n * S::LANES..]);
                read[n] = simd.fma(value, q, read[n]);
            }
        }
        for n in 0..N {
            simd.store(simd.fma(values[n], skip, read[n]), &mut out[n * S::LANES..]);
        }
    }
}

/// A single column, for the remainder that does not fill a vector.
#[derive(Clone, Copy)]
struct One;

impl Columns for One {
    const WIDTH: usize = 1;

    #[inline(always)]
    fn advance(self, matrix: &mut [f32], token: &Token<'_>, out: &mut [f32]) {
        let mut write = token.v[0];
        if token.corrects {
            let known: f32 = matrix.iter().step_by(token.stride).zip(token.k).map(|(value, k)| value * k).sum();
            write -= token.fade * known;
        }
        write *= token.beta;
        let mut read = 0.0;
        for ((value, k), q) in matrix.iter_mut().step_by(token.stride).zip(token.k).zip(token.q) {
            *value = *value * token.fade + write * k;
            read += *value * q;
        }
        out[0] = read + token.v[0] * token.skip;
    }
}

#[cfg(test)]
mod tests {
    use super::super::simd::Level;
    use super::*;

    fn wave(len: usize, step: f32) -> Vec<f32> {
        (0..len).map(|i| (i as f32 * step).sin()).collect()
    }

    /// Two sequences, of 5 and 3 rows, against the definition in double precision; the first leaves a copy after 2
    /// rows.
    fn check(corrects: bool, interleaved_heads: bool) {
        let shape = Heads { heads: 4, key_heads: 2, interleaved_heads, key_dim: 7, value_dim: 77 };
        let (size, tokens) = (shape.key_dim * shape.value_dim, 8);
        let (q, k) = (wave(tokens * 2 * 7, 0.7), wave(tokens * 2 * 7, 0.3));
        let (v, decay) =
            (wave(tokens * 4 * 77, 0.11), wave(tokens * 4, 0.9).iter().map(|x| x - 1.0).collect::<Vec<_>>());
        let beta: Vec<f32> = wave(tokens * 4, 1.3).iter().map(|x| 0.5 + 0.5 * x).collect();
        let skip = [0.0, 0.5, -1.0, 2.0];
        let x =
            Recurred { q: &q, k: &k, v: &v, decay: &decay, beta: &beta, corrects, skip: (!corrects).then_some(&skip) };
        let begun = [wave(4 * size, 0.05), vec![0.0; 4 * size]];
        for level in Level::available() {
            let pool = Pool::with_level(2, level);
            let (mut out, mut copy, mut states) = (vec![0.0; v.len()], vec![0.0; 4 * size], begun.clone());
            let [first, second] = &mut states;
            let sequences = vec![
                Stretch { rows: 0..5, state: first, copies: vec![(2, &mut copy)] },
                Stretch { rows: 5..8, state: second, copies: vec![] },
            ];
            recurrence(&pool, shape, x, sequences, &mut out);
            let near =
                |found: f32, expected: f64| assert!((f64::from(found) - expected).abs() < 1e-5, "{found} {expected}");
            for (rows, begun, found) in [(0..5, &begun[0], &states[0]), (5..8, &begun[1], &states[1])] {
                for head in 0..4 {
                    let key_head = if interleaved_heads { head % 2 } else { head / 2 };
                    for column in 0..77 {
                        let place = |i: usize| head * size + i * 77 + column;
                        let mut s: Vec<f64> = (0..7).map(|i| f64::from(begun[place(i)])).collect();
                        for row in rows.clone() {
                            if row == 2 {
                                s.iter().enumerate().for_each(|(i, s)| near(copy[place(i)], *s));
                            }
                            let key = |x: &[f32], i: usize| f64::from(x[(row * 2 + key_head) * 7 + i]);
                            s.iter_mut().for_each(|s| *s *= f64::from(decay[row * 4 + head]).exp());
                            let value = f64::from(v[(row * 4 + head) * 77 + column]);
                            let known: f64 = s.iter().enumerate().map(|(i, s)| s * key(&k, i)).sum();
                            let wanted = if corrects { value - known } else { value };
                            let write = wanted * f64::from(beta[row * 4 + head]);
                            s.iter_mut().enumerate().for_each(|(i, s)| *s += write * key(&k, i));
                            let read: f64 = s.iter().enumerate().map(|(i, s)| s * key(&q, i)).sum();
                            let past = if corrects { 0.0 } else { value * f64::from(skip[head]) };
                            near(out[(row * 4 + head) * 77 + column], read + past);
                        }
                        s.iter().enumerate().for_each(|(i, s)| near(found[place(i)], *s));
                    }
                }
            }
        }
    }

    #[test]
    fn matrices_take_in_values() {
        check(false, false);
        check(false, true);
    }

    #[test]
    fn matrices_are_corrected() {
        check(true, false);
        check(true, true);
    }
}
