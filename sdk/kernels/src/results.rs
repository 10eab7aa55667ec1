//! Results that the threads of a pool write together. They are not cleared first, which would be another pass over memory; that
//! every value is written is checked.

use std::any::type_name_of_val;
use std::cell::Cell;
use std::mem::MaybeUninit;

use super::pool::Pool;

/// Values that a thread clears or copies at a time.
const PIECE: usize = 1 << 16;

impl Pool {
    /// `len` zeros, to be overwritten. For a large result its pages alone cost one thread as much as all threads need for the
    /// result, so they share them.
    pub fn zeros(&self, len: usize) -> Vec<f32> {
        self.computed(len, PIECE, |_, piece| {
            piece.fill(0.0);
        })
    }

    /// A copy of some values.
    pub fn copied(&self, values: &[f32]) -> Vec<f32> {
        self.computed(values.len(), PIECE, |index, piece| {
            let start = index * PIECE;
            let end = start + piece.len();
            piece.copy(&values[start..end]);
        })
    }

    /// `len` values, computed in pieces as by [`run_pieces`](Self::run_pieces). `compute` writes every value of a piece.
    pub(super) fn computed(&self, len: usize, piece: usize, compute: impl Fn(usize, Unwritten<'_>) + Sync) -> Vec<f32> {
        let mut values = Vec::with_capacity(len);
        self.run_pieces_named(
            type_name_of_val(&compute),
            &mut values.spare_capacity_mut()[..len],
            piece,
            |index, piece| {
                let (len, written) = (piece.len(), Cell::new(0));
                compute(index, Unwritten { piece, written: &written });
                assert_eq!(written.get(), len, "values that were written");
            },
        );
        // SAFETY: the pieces are all of the first `len` elements. Each element can be written once, and as many were.
        unsafe { values.set_len(len) };
        values
    }

    /// Several results of `len` values each, of which `compute` gets the same piece together.
    pub(super) fn computed_all(
        &self,
        results: usize,
        len: usize,
        piece: usize,
        compute: impl Fn(usize, Vec<Unwritten<'_>>) + Sync,
    ) -> Vec<Vec<f32>> {
        let mut all: Vec<_> = (0..results).map(|_| Vec::with_capacity(len)).collect();
        let mut tasks: Vec<_> = (0..len.div_ceil(piece)).map(|_| Vec::with_capacity(results)).collect();
        for values in &mut all {
            let pieces = values.spare_capacity_mut()[..len].chunks_mut(piece);
            tasks.iter_mut().zip(pieces).for_each(|(task, piece)| task.push(piece));
        }
        self.run_pieces_named(type_name_of_val(&compute), &mut tasks, 1, |index, tasks| {
            for pieces in tasks {
                let (len, written) = (pieces.iter().map(|piece| piece.len()).sum::<usize>(), Cell::new(0));
                let unwritten = pieces.iter_mut().map(|piece| Unwritten { piece, written: &written });
                compute(index, unwritten.collect());
                assert_eq!(written.get(), len, "values that were written");
            }
        });
        drop(tasks);
        for values in &mut all {
            // SAFETY: as above.
            unsafe { values.set_len(len) };
        }
        all
    }
}

/// A piece of a result whose values must be written, each once.
pub(super) struct Unwritten<'a> {
    piece: &'a mut [MaybeUninit<f32>],
    written: &'a Cell<usize>,
}

impl<'a> Unwritten<'a> {
    pub(super) fn len(&self) -> usize {
        self.piece.len()
    }

    /// Writes these values, as many as there are places.
    #[inline(always)]
    pub(super) fn copy(self, values: &[f32]) -> &'a mut [f32] {
        let written = self.piece.write_copy_of_slice(values);
        self.written.set(self.written.get() + written.len());
        written
    }

    #[inline(always)]
    pub(super) fn fill(self, value: f32) -> &'a mut [f32] {
        self.piece.fill(MaybeUninit::new(value));
        self.written.set(self.written.get() + self.piece.len());
        // SAFETY: each element has just been written.
        unsafe { self.piece.assume_init_mut() }
    }

    /// Cuts the first `len` values off.
    #[inline(always)]
    pub(super) fn take(&mut self, len: usize) -> Self {
        Self { piece: self.piece.split_off_mut(..len).unwrap_or_default(), written: self.written }
    }

    /// Cuts it into rows.
    pub(super) fn rows(self, width: usize) -> impl Iterator<Item = Self> {
        let written = self.written;
        self.piece.chunks_mut(width).map(move |piece| Self { piece, written })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "values that were written")]
    fn a_result_that_is_not_written_is_refused() {
        Pool::new(2).computed(1000, 100, |index, piece| {
            if index != 7 {
                piece.fill(1.0);
            }
        });
    }

    #[test]
    #[should_panic(expected = "values that were written")]
    fn results_that_are_written_in_part_are_refused() {
        Pool::new(2).computed_all(2, 1000, 100, |index, pieces| {
            for mut piece in pieces {
                piece.take(60).fill(1.0);
                if index != 7 {
                    piece.copy(&[2.0; 40]);
                }
            }
        });
    }

    #[test]
    fn results_are_what_their_pieces_were_written_with() {
        let pool = Pool::new(3);
        let results = pool.computed_all(2, 250, 100, |index, pieces| {
            for (result, piece) in pieces.into_iter().enumerate() {
                for row in piece.rows(7) {
                    row.fill((10 * result + index) as f32);
                }
            }
        });
        for (result, values) in results.into_iter().enumerate() {
            let expected: Vec<f32> = (0..250).map(|at| (10 * result + at / 100) as f32).collect();
            assert_eq!(values, expected);
        }
        assert_eq!(pool.copied(&[1.0, 2.0]), [1.0, 2.0]);
        assert_eq!(pool.zeros(3), [0.0; 3]);
    }

    #[test]
    fn clears_and_copies_every_value() {
        let pool = Pool::new(3);
        for len in [0, 1, PIECE, 3 * PIECE + 7] {
            let values: Vec<f32> = (0..len).map(|at| at as f32).collect();
            assert_eq!(pool.copied(&values), values);
            assert_eq!(pool.zeros(len), vec![0.0; len]);
        }
    }
}
