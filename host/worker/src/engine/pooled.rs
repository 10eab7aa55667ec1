//! The row of a text: pools the hidden rows of its tokens as they are computed, chunk by chunk. A sequence that lost its
//! blocks is read again from its first token, which starts its pool again.

use std::ops::Range;

use pensieve_plugin_api::Want;
use pensieve_protocol::{
    job::{Failure, FailureCode, RowWish},
    rows::{Pooling, RowsUse},
};

use super::scheduler::Reading;

/// The pool of one text.
#[derive(Debug)]
pub struct Pool {
    pooling: Pooling,
    normalize: bool,
    whole: bool,
    /// Values of the row that the job gets.
    width: usize,
    /// The sum of the rows so far, or the one that counts.
    sum: Vec<f64>,
    rows: usize,
}

impl Pool {
    pub fn new(wish: RowWish, rows: &RowsUse) -> Result<Self, Failure> {
        if wish.width == 0 || wish.width > rows.dimensions {
            let message = format!("a row of {} values cannot be had from {}", wish.width, rows.dimensions);
            return Err(Failure::new(FailureCode::Invalid, message));
        }
        let (pooling, normalize, whole) = (rows.pooling, rows.normalize, rows.whole);
        Ok(Self { pooling, normalize, whole, width: wish.width as usize, sum: Vec::new(), rows: 0 })
    }

    /// How its text is read.
    pub fn reading(&self) -> Reading {
        match self.pooling {
            _ if self.whole => Reading::Whole,
            Pooling::Last => Reading::Shared,
            Pooling::First | Pooling::Mean => Reading::Alone,
        }
    }

    /// The hidden rows that it needs of a span; `ends` if that is the text's last.
    pub fn want(&self, tokens: &Range<usize>, ends: bool) -> Want {
        match self.pooling {
            Pooling::Mean => Want::ALL,
            Pooling::First if tokens.start == 0 => Want::ALL,
            Pooling::Last if ends => Want::LAST,
            Pooling::First | Pooling::Last => Want::NONE,
        }
    }

    /// Takes in the wanted rows of a span that starts at token `start`, each of `hidden` values.
    pub fn take(&mut self, start: usize, rows: &[f32], hidden: usize) {
        if start == 0 || self.sum.len() != hidden {
            (self.sum, self.rows) = (vec![0.0; hidden], 0);
        }
        let count = if self.pooling == Pooling::Mean { usize::MAX } else { 1 };
        for row in rows.chunks_exact(hidden.max(1)).take(count) {
            self.sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
            self.rows += 1;
        }
    }

    /// The pooled row, before what follows pooling in the model.
    pub fn pooled(&self) -> Result<Vec<f32>, Failure> {
        let count = self.rows as f64;
        let row: Vec<f32> = self.sum.iter().map(|sum| (sum / count) as f32).collect();
        if row.is_empty() || row.iter().any(|value| !value.is_finite()) {
            return Err(not_a_number());
        }
        Ok(row)
    }

    /// Cuts a finished row to the wanted width and normalizes it.
    pub fn finished(&self, mut row: Vec<f32>) -> Result<Vec<f32>, Failure> {
        row.truncate(self.width);
        let length = row.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
        if !length.is_finite() {
            return Err(not_a_number());
        }
        if self.normalize && length > 0.0 {
            row.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
        }
        Ok(row)
    }
}

fn not_a_number() -> Failure {
    Failure::new(FailureCode::NotANumber, "the model computed hidden rows that are not numbers")
        .with_help("its weights or its plugin are broken; try another quantization or device")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(pooling: Pooling, normalize: bool, width: usize) -> Pool {
        Pool { pooling, normalize, whole: false, width, sum: Vec::new(), rows: 0 }
    }

    /// Three tokens of two values, read in these chunks.
    fn pooled(pooling: Pooling, chunks: &[(usize, usize)]) -> Vec<f32> {
        const ROWS: [[f32; 2]; 3] = [[1.0, 10.0], [2.0, 20.0], [6.0, 60.0]];
        let mut pool = pool(pooling, false, 2);
        for &(start, end) in chunks {
            let rows = &ROWS[start..end];
            let wanted = match pool.want(&(start..end), end == 3) {
                Want::ALL => rows,
                Want::LAST => &rows[rows.len() - 1..],
                _ => continue,
            };
            pool.take(start, wanted.as_flattened(), 2);
        }
        pool.pooled().unwrap()
    }

    #[test]
    fn a_row_is_the_same_however_the_text_is_chunked() {
        for (pooling, expected) in
            [(Pooling::First, [1.0, 10.0]), (Pooling::Mean, [3.0, 30.0]), (Pooling::Last, [6.0, 60.0])]
        {
            for chunks in [&[(0, 3)][..], &[(0, 1), (1, 3)], &[(0, 1), (1, 2), (2, 3)], &[(0, 2), (0, 2), (2, 3)]] {
                assert_eq!(pooled(pooling, chunks), expected, "{pooling:?} {chunks:?}");
            }
        }
    }

    #[test]
    fn a_row_is_cut_before_it_is_normalized() {
        assert_eq!(pool(Pooling::Last, true, 2).finished(vec![3.0, 4.0, 12.0]).unwrap(), [0.6, 0.8]);
        assert_eq!(pool(Pooling::Last, false, 2).finished(vec![3.0, 4.0, 12.0]).unwrap(), [3.0, 4.0]);
        assert_eq!(pool(Pooling::Last, true, 2).finished(vec![0.0, 0.0]).unwrap(), [0.0, 0.0]);
    }

    #[test]
    fn rows_that_are_not_numbers_fail_their_text() {
        let mut pool = pool(Pooling::Last, true, 2);
        assert_eq!(pool.pooled().unwrap_err().code, FailureCode::NotANumber, "nothing was computed");
        pool.take(0, &[1.0, f32::NAN], 2);
        assert_eq!(pool.pooled().unwrap_err().code, FailureCode::NotANumber);
        assert_eq!(pool.finished(vec![f32::INFINITY, 1.0]).unwrap_err().code, FailureCode::NotANumber);
    }
}
