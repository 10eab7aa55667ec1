//! One token of a recurrence, for some columns of a head's matrix.
//!
//! Traits rather than closures: a closure would be compiled as a separate function, without the instruction set.

use super::super::simd::{Simd, exp, exp2};

/// Columns that are advanced together.
pub(super) trait Columns: Copy {
    const WIDTH: usize;
    /// A value per column.
    type V: Copy;

    fn splat(self, value: f32) -> Self::V;
    /// Loads the first `WIDTH` values.
    fn load(self, from: &[f32]) -> Self::V;
    fn store(self, value: Self::V, to: &mut [f32]);
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `c - a * b`.
    fn fnma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    fn exp(self, value: Self::V) -> Self::V;
    fn exp2(self, value: Self::V) -> Self::V;
}

/// `N` vectors of columns.
#[derive(Clone, Copy)]
pub(super) struct Vectors<S, const N: usize>(pub(super) S);

impl<S: Simd, const N: usize> Columns for Vectors<S, N> {
    const WIDTH: usize = N * S::LANES;
    type V = [S::F; N];

    #[inline(always)]
    fn splat(self, value: f32) -> [S::F; N] {
        [self.0.splat(value); N]
    }

    #[inline(always)]
    fn load(self, from: &[f32]) -> [S::F; N] {
        let mut vectors = [self.0.splat(0.0); N];
        for n in 0..N {
            vectors[n] = self.0.load(&from[n * S::LANES..]);
        }
        vectors
    }

    #[inline(always)]
    fn store(self, value: [S::F; N], to: &mut [f32]) {
        for n in 0..N {
            self.0.store(value[n], &mut to[n * S::LANES..]);
        }
    }

    #[inline(always)]
    fn mul(self, mut a: [S::F; N], b: [S::F; N]) -> [S::F; N] {
        for n in 0..N {
            a[n] = self.0.mul(a[n], b[n]);
        }
        a
    }

    #[inline(always)]
    fn fma(self, mut a: [S::F; N], b: [S::F; N], c: [S::F; N]) -> [S::F; N] {
        for n in 0..N {
            a[n] = self.0.fma(a[n], b[n], c[n]);
        }
        a
    }

    #[inline(always)]
    fn fnma(self, mut a: [S::F; N], b: [S::F; N], c: [S::F; N]) -> [S::F; N] {
        for n in 0..N {
            a[n] = self.0.fnma(a[n], b[n], c[n]);
        }
        a
    }

    #[inline(always)]
    fn exp(self, mut values: [S::F; N]) -> [S::F; N] {
        for value in &mut values {
            *value = exp(self.0, *value);
        }
        values
    }

    #[inline(always)]
    fn exp2(self, mut values: [S::F; N]) -> [S::F; N] {
        for value in &mut values {
            *value = exp2(self.0, *value);
        }
        values
    }
}

/// A single column, for the remainder that does not fill a vector.
#[derive(Clone, Copy)]
pub(super) struct One;

impl Columns for One {
    const WIDTH: usize = 1;
    type V = f32;

    #[inline(always)]
    fn splat(self, value: f32) -> f32 {
        value
    }

    #[inline(always)]
    fn load(self, from: &[f32]) -> f32 {
        from[0]
    }

    #[inline(always)]
    fn store(self, value: f32, to: &mut [f32]) {
        to[0] = value;
    }

    #[inline(always)]
    fn mul(self, a: f32, b: f32) -> f32 {
        a * b
    }

    #[inline(always)]
    fn fma(self, a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }

    #[inline(always)]
    fn fnma(self, a: f32, b: f32, c: f32) -> f32 {
        c - a * b
    }

    #[inline(always)]
    fn exp(self, value: f32) -> f32 {
        value.exp()
    }

    #[inline(always)]
    fn exp2(self, value: f32) -> f32 {
        value.exp2()
    }
}

/// The factors by which the columns of a matrix fade.
pub(super) trait Fade<C: Columns>: Copy {
    /// The factors of a row.
    fn of_row(self, columns: C, row: usize) -> C::V;

    /// A key's value for a row, times the row's factors, where they are not the same for all rows.
    fn of_key(self, columns: C, row: usize, key: f32) -> C::V;

    /// The factors of all rows that [`Self::of_key`] omits.
    fn of_all(self, columns: C) -> C::V;
}

#[derive(Clone, Copy)]
pub(super) struct FadeHead(pub(super) f32);

impl<C: Columns> Fade<C> for FadeHead {
    #[inline(always)]
    fn of_row(self, columns: C, _row: usize) -> C::V {
        columns.splat(self.0)
    }

    #[inline(always)]
    fn of_key(self, columns: C, _row: usize, key: f32) -> C::V {
        columns.splat(key)
    }

    #[inline(always)]
    fn of_all(self, columns: C) -> C::V {
        columns.splat(self.0)
    }
}

#[derive(Clone, Copy)]
pub(super) struct FadeRows<'a>(pub(super) &'a [f32]);

impl<C: Columns> Fade<C> for FadeRows<'_> {
    #[inline(always)]
    fn of_row(self, columns: C, row: usize) -> C::V {
        columns.splat(self.0[row])
    }

    #[inline(always)]
    fn of_key(self, columns: C, row: usize, key: f32) -> C::V {
        columns.splat(self.0[row] * key)
    }

    #[inline(always)]
    fn of_all(self, columns: C) -> C::V {
        columns.splat(1.0)
    }
}

#[derive(Clone, Copy)]
pub(super) struct FadeValues<V>(pub(super) V);

impl<C: Columns> Fade<C> for FadeValues<C::V> {
    #[inline(always)]
    fn of_row(self, _columns: C, _row: usize) -> C::V {
        self.0
    }

    #[inline(always)]
    fn of_key(self, columns: C, _row: usize, key: f32) -> C::V {
        columns.splat(key)
    }

    #[inline(always)]
    fn of_all(self, _columns: C) -> C::V {
        self.0
    }
}

/// Computed by `exp2`, which is cheaper than `exp`: every element needs it for every token.
#[derive(Clone, Copy)]
pub(super) struct FadeElements<'a, V> {
    /// In units of ln 2.
    pub(super) steps: V,
    pub(super) rates: &'a [f32],
    pub(super) stride: usize,
}

impl<C: Columns> Fade<C> for FadeElements<'_, C::V> {
    #[inline(always)]
    fn of_row(self, columns: C, row: usize) -> C::V {
        columns.exp2(columns.mul(self.steps, columns.load(&self.rates[row * self.stride..])))
    }

    #[inline(always)]
    fn of_key(self, columns: C, row: usize, key: f32) -> C::V {
        columns.mul(self.of_row(columns, row), columns.splat(key))
    }

    #[inline(always)]
    fn of_all(self, columns: C) -> C::V {
        columns.splat(1.0)
    }
}

/// One token's inputs for some columns of a head's matrix, whose rows are `stride` values apart.
pub(super) struct Token<'a, V> {
    pub(super) stride: usize,
    pub(super) q: &'a [f32],
    pub(super) k: &'a [f32],
    pub(super) v: V,
    pub(super) beta: V,
    pub(super) update: TokenUpdate<'a>,
    pub(super) skip: V,
}

/// [`Update`](super::Update) with one token's keys.
#[derive(Clone, Copy)]
pub(super) enum TokenUpdate<'a> {
    Sum,
    Delta,
    RankOne { from: &'a [f32], into: &'a [f32] },
}

impl<V: Copy> Token<'_, V> {
    /// Advances the first columns of `matrix` and returns the token's output.
    #[inline(always)]
    pub(super) fn advance<C: Columns<V = V>>(&self, columns: C, matrix: &mut [f32], fade: impl Fade<C>) -> V {
        let read = match self.update {
            TokenUpdate::Sum => self.write(columns, matrix, fade, columns.mul(self.v, self.beta)),
            TokenUpdate::Delta => {
                let known = self.product(columns, matrix, self.k, fade);
                let wanted = columns.fnma(fade.of_all(columns), known, self.v);
                self.write(columns, matrix, fade, columns.mul(wanted, self.beta))
            }
            TokenUpdate::RankOne { from, into } => self.write_twice(columns, matrix, fade, [from, into]),
        };
        columns.fma(self.v, self.skip, read)
    }

    /// The product of a key with the matrix, but for the factors that all rows share. Even and odd rows have a sum each:
    /// one alone would wait for each addition before the next.
    #[inline(always)]
    fn product<C: Columns<V = V>>(&self, columns: C, matrix: &[f32], key: &[f32], fade: impl Fade<C>) -> V {
        let (mut even, mut odd) = (columns.splat(0.0), columns.splat(0.0));
        for (pair, (rows, keys)) in matrix.chunks(2 * self.stride).zip(key.chunks(2)).enumerate() {
            even = columns.fma(columns.load(rows), fade.of_key(columns, 2 * pair, keys[0]), even);
            if let Some(key) = keys.get(1) {
                odd = columns.fma(columns.load(&rows[self.stride..]), fade.of_key(columns, 2 * pair + 1, *key), odd);
            }
        }
        columns.fma(odd, columns.splat(1.0), even)
    }

    /// Fades the matrix, adds `kᵀ · write`, and returns `q · S`.
    #[inline(always)]
    fn write<C: Columns<V = V>>(&self, columns: C, matrix: &mut [f32], fade: impl Fade<C>, write: V) -> V {
        let mut read = columns.splat(0.0);
        let rows = matrix.chunks_mut(self.stride).zip(self.k).zip(self.q);
        for (index, ((row, k), q)) in rows.enumerate() {
            let faded = columns.mul(columns.load(row), fade.of_row(columns, index));
            let value = columns.fma(write, columns.splat(*k), faded);
            columns.store(value, row);
            read = columns.fma(value, columns.splat(*q), read);
        }
        read
    }

    /// [`TokenUpdate::RankOne`].
    #[inline(always)]
    fn write_twice<C: Columns<V = V>>(
        &self,
        columns: C,
        matrix: &mut [f32],
        fade: impl Fade<C>,
        [from, into]: [&[f32]; 2],
    ) -> V {
        let known = self.product(columns, matrix, from, FadeHead(1.0));
        let write = columns.mul(self.v, self.beta);
        let mut read = columns.splat(0.0);
        let rows = matrix.chunks_mut(self.stride).zip(self.k).zip(self.q).zip(into);
        for (index, (((row, k), q), into)) in rows.enumerate() {
            let faded = columns.mul(columns.load(row), fade.of_row(columns, index));
            let value = columns.fma(known, columns.splat(*into), faded);
            let value = columns.fma(write, columns.splat(*k), value);
            columns.store(value, row);
            read = columns.fma(value, columns.splat(*q), read);
        }
        read
    }
}
