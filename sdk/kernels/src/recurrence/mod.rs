//! Linear recurrences whose heads each have a matrix as state, token by token.
//!
//! The columns of a matrix are independent, so all tokens of a head are computed for a few columns at a time, which
//! stay in the L1 cache meanwhile. Each token reads them once for the product of a key with the state, if its update
//! needs that, and once for the update.

mod columns;
#[cfg(test)]
mod tests;

use std::ops::Range;

use self::columns::{Columns, Fade, FadeElements, FadeHead, FadeRows, FadeValues, One, Token, TokenUpdate, Vectors};
use super::pool::{Disjoint, Pool};
use super::simd::{Kernel, Simd, exp};

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

/// Logarithms of the factors by which a state fades at each token.
#[derive(Clone, Copy, Debug)]
pub enum Decay<'a> {
    /// One per head, `[tokens, heads]`.
    Head(&'a [f32]),
    /// One per row of a head's matrix, `[tokens, heads, key_dim]`.
    Key(&'a [f32]),
    /// One per column of a head's matrix, `[tokens, heads, value_dim]`.
    Value(&'a [f32]),
    /// One per element: the product of `steps`, `[tokens, heads, value_dim]`, and `rates`, `[heads, key_dim, value_dim]`.
    Element { steps: &'a [f32], rates: &'a [f32] },
}

/// The update of a state `S` that has faded.
#[derive(Clone, Copy, Debug)]
pub enum Update<'a> {
    /// `S + kᵀ · beta · v`.
    Sum,
    /// `S + kᵀ · beta · (v − k · S)`.
    Delta,
    /// `S + intoᵀ · (from · S₀) + kᵀ · beta · v`, where `S₀` is the state before it faded; `[tokens, key_heads, key_dim]`
    /// each.
    RankOne { from: &'a [f32], into: &'a [f32] },
}

/// Inputs of a step, one row per token.
#[derive(Clone, Copy, Debug)]
pub struct Recurred<'a> {
    /// `[tokens, key_heads, key_dim]`.
    pub q: &'a [f32],
    pub k: &'a [f32],
    /// `[tokens, heads, value_dim]`.
    pub v: &'a [f32],
    pub decay: Decay<'a>,
    /// Scale of what a token writes, `[tokens, heads]` or `[tokens, heads, value_dim]`; 1 if absent.
    pub beta: Option<&'a [f32]>,
    pub update: Update<'a>,
    /// Adds this multiple of a token's own `v` to its output, `[heads]` or `[heads, value_dim]`.
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

/// From so many rows on, columns are gathered: rows of a whole matrix are powers of two apart, so that its columns
/// compete for a few sets of the L1 cache.
const GATHERED_ROWS_MIN: usize = 4;

/// Values per task when taking exponentials: less work is not worth another thread.
const PIECE: usize = 1 << 13;

/// Advances the state matrices of sequences, `[heads, key_dim, value_dim]` each, over their rows, which follow one another
/// from row 0. The outputs are `[tokens, heads, value_dim]`.
pub fn recurrence(pool: &Pool, shape: Heads, x: Recurred<'_>, sequences: Vec<Stretch<'_>>) -> Vec<f32> {
    let Heads { heads, key_dim, value_dim, .. } = shape;
    let (size, tokens) = (key_dim * value_dim, sequences.iter().map(|one| one.rows.len()).sum::<usize>());
    check(shape, x, tokens);
    // Every group of columns needs the factors of the rows, so they are computed once.
    let factors = match x.decay {
        Decay::Key(logarithms) => pool.computed(logarithms.len(), PIECE, |index, factors| {
            let len = factors.len();
            pool.level().run(Exp(factors.copy(&logarithms[index * PIECE..][..len])));
        }),
        Decay::Head(_) | Decay::Value(_) | Decay::Element { .. } => Vec::new(),
    };
    let mut values = pool.zeros(x.v.len());
    let (out, mut tasks, mut next) = (Disjoint::new(&mut values), Vec::with_capacity(sequences.len() * heads), 0);
    for Stretch { rows, state, copies } in sequences {
        assert!(rows.start == next && rows.start <= rows.end && state.len() == heads * size, "rows {rows:?}");
        assert!(copies.iter().all(|(_, copy)| copy.len() == heads * size), "copies");
        next += rows.len();
        let mut copies: Vec<_> = copies.into_iter().map(|(end, copy)| (end, copy.chunks_exact_mut(size))).collect();
        for (head, matrix) in state.chunks_exact_mut(size).enumerate() {
            let copies = copies.iter_mut().filter_map(|(end, copies)| Some((*end, copies.next()?))).collect();
            tasks.push(Task { shape, x, factors: &factors, head, rows: rows.clone(), matrix, copies, out: &out });
        }
    }
    pool.run_pieces(&mut tasks, 1, |_, tasks| {
        for task in tasks {
            pool.level().run(task);
        }
    });
    drop(tasks);
    values
}

fn check(shape: Heads, x: Recurred<'_>, tokens: usize) {
    let Heads { heads, key_heads, key_dim, value_dim, .. } = shape;
    let (keys, values, elements) = (tokens * key_heads * key_dim, heads * value_dim, heads * key_dim * value_dim);
    assert!(heads.is_multiple_of(key_heads), "{heads} heads over {key_heads}");
    assert!(x.q.len() == keys && x.k.len() == keys, "queries and keys");
    assert!(x.v.len() == tokens * values, "values");
    let is_right = match x.decay {
        Decay::Head(decay) => decay.len() == tokens * heads,
        Decay::Key(decay) => decay.len() == tokens * heads * key_dim,
        Decay::Value(decay) => decay.len() == tokens * values,
        Decay::Element { steps, rates } => steps.len() == tokens * values && rates.len() == elements,
    };
    assert!(is_right, "decays");
    let is_each = |len: usize, times: usize| len == times * heads || len == times * values;
    assert!(x.beta.is_none_or(|beta| is_each(beta.len(), tokens)), "scales");
    assert!(x.skip.is_none_or(|skip| is_each(skip.len(), 1)), "what is skipped");
    if let Update::RankOne { from, into } = x.update {
        assert!(from.len() == keys && into.len() == keys, "what the state is multiplied with");
    }
}

/// Replaces each value by its exponential.
struct Exp<'a>(&'a mut [f32]);

impl<S: Simd> Kernel<S> for Exp<'_> {
    #[inline(always)]
    fn run(self, simd: S) {
        let mut vectors = self.0.chunks_exact_mut(S::LANES);
        for vector in &mut vectors {
            simd.store(exp(simd, simd.load(vector)), vector);
        }
        for value in vectors.into_remainder() {
            *value = value.exp();
        }
    }
}

/// One head of one sequence.
struct Task<'a> {
    shape: Heads,
    x: Recurred<'a>,
    /// Exponentials of [`Decay::Key`].
    factors: &'a [f32],
    head: usize,
    rows: Range<usize>,
    matrix: &'a mut [f32],
    copies: Vec<(usize, &'a mut [f32])>,
    /// The outputs of all heads and sequences.
    out: &'a Disjoint<'a, f32>,
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

impl Task<'_> {
    /// Advances the columns starting at `column`, as many as `columns` handles, through all rows.
    #[inline(always)]
    fn columns<C: Columns>(&mut self, columns: C, column: usize) {
        if self.rows.len() < GATHERED_ROWS_MIN {
            self.faded(columns, column, None);
            return;
        }
        let mut gathered = vec![0.0; self.shape.key_dim * C::WIDTH];
        copy_columns((self.matrix, self.shape.value_dim, column), (&mut gathered, C::WIDTH, 0), C::WIDTH);
        self.faded(columns, column, Some(&mut gathered));
        copy_columns((&gathered, C::WIDTH, 0), (self.matrix, self.shape.value_dim, column), C::WIDTH);
    }

    /// [`Self::columns`], in the matrix or where its columns have been gathered.
    #[inline(always)]
    fn faded<C: Columns>(&mut self, columns: C, column: usize, gathered: Option<&mut [f32]>) {
        let Heads { heads, key_dim, value_dim, .. } = self.shape;
        let (head, factors) = (self.head, self.factors);
        match self.x.decay {
            Decay::Head(decay) => {
                self.advance(columns, column, gathered, |row| FadeHead(decay[row * heads + head].exp()));
            }
            Decay::Key(_) => self.advance(columns, column, gathered, |row| {
                FadeRows(&factors[(row * heads + head) * key_dim..][..key_dim])
            }),
            Decay::Value(decay) => self.advance(columns, column, gathered, |row| {
                FadeValues(columns.exp(columns.load(&decay[(row * heads + head) * value_dim + column..])))
            }),
            Decay::Element { steps, rates } => {
                let rates = &rates[head * key_dim * value_dim + column..];
                let to_twos = columns.splat(std::f32::consts::LOG2_E);
                self.advance(columns, column, gathered, |row| {
                    let steps = columns.load(&steps[(row * heads + head) * value_dim + column..]);
                    FadeElements { steps: columns.mul(steps, to_twos), rates, stride: value_dim }
                });
            }
        }
    }

    /// [`Self::columns`], where `fade` gives the factors of a row's token.
    #[inline(always)]
    fn advance<C: Columns, F: Fade<C>>(
        &mut self,
        columns: C,
        column: usize,
        gathered: Option<&mut [f32]>,
        fade: impl Fn(usize) -> F,
    ) {
        let Heads { heads, key_heads, interleaved_heads, key_dim, value_dim } = self.shape;
        let key_head = if interleaved_heads { self.head % key_heads } else { self.head / (heads / key_heads) };
        let mut copies = self.copies.iter_mut().peekable();
        let (matrix, stride) = match gathered {
            Some(gathered) => (gathered, C::WIDTH),
            None => (&mut self.matrix[column..], value_dim),
        };
        let skip = self.x.skip.map_or(columns.splat(0.0), |skip| {
            if skip.len() == heads {
                columns.splat(skip[self.head])
            } else {
                columns.load(&skip[self.head * value_dim + column..])
            }
        });
        for row in self.rows.clone() {
            while let Some((_, copy)) = copies.next_if(|(end, _)| *end <= row) {
                copy_columns((matrix, stride, 0), (copy, value_dim, column), C::WIDTH);
            }
            let keys = (row * key_heads + key_head) * key_dim;
            let (head, values) = (row * heads + self.head, (row * heads + self.head) * value_dim + column);
            let beta = self.x.beta.map_or(columns.splat(1.0), |beta| {
                if beta.len() == self.x.v.len() { columns.load(&beta[values..]) } else { columns.splat(beta[head]) }
            });
            let token = Token {
                stride,
                q: &self.x.q[keys..keys + key_dim],
                k: &self.x.k[keys..keys + key_dim],
                v: columns.load(&self.x.v[values..]),
                beta,
                update: match self.x.update {
                    Update::Sum => TokenUpdate::Sum,
                    Update::Delta => TokenUpdate::Delta,
                    Update::RankOne { from, into } => {
                        TokenUpdate::RankOne { from: &from[keys..keys + key_dim], into: &into[keys..keys + key_dim] }
                    }
                },
                skip,
            };
            let out = token.advance(columns, matrix, fade(row));
            // SAFETY: no other task has this head of this sequence, and this task holds no other slice.
            columns.store(out, unsafe { self.out.range(values..values + C::WIDTH) });
        }
        for (_, copy) in copies {
            copy_columns((matrix, stride, 0), (copy, value_dim, column), C::WIDTH);
        }
    }
}

/// Copies columns between matrices: each is given with the stride of its rows and its first column.
fn copy_columns(
    (from, from_stride, from_column): (&[f32], usize, usize),
    (to, to_stride, to_column): (&mut [f32], usize, usize),
    width: usize,
) {
    for (from, to) in from.chunks(from_stride).zip(to.chunks_mut(to_stride)) {
        to[to_column..to_column + width].copy_from_slice(&from[from_column..from_column + width]);
    }
}
