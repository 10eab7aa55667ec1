//! Cuts a matrix into panels, and writes their results.
//!
//! A panel has as many rows as a vector has lanes; two of them form a pair, so that each loaded activation is used
//! twice. The last pair of a matrix ends at its last row and may therefore start inside the previous pair: rows of both
//! are computed twice and written once. A matrix with fewer rows than a pair is copied and padded with empty rows.

use std::borrow::Cow;
use std::ops::Range;

use super::super::simd::{Rows, Simd, prefetch};
use super::super::tile::PAIR;
use super::{Matrix, Output};

/// Prefetch distance in segments: a few microseconds.
pub(super) const AHEAD: usize = 4;

/// A matrix with at least the rows of one pair.
pub(super) struct Panels<'a> {
    data: Cow<'a, [u8]>,
    row_bytes: usize,
    /// Number of rows before padding.
    rows: usize,
    pair_rows: usize,
}

impl<'a> Panels<'a> {
    pub(super) fn new(w: &Matrix<'a>, lanes: usize) -> Self {
        let pair_rows = PAIR * lanes;
        let row_bytes = w.data.len() / w.rows;
        let mut data = Cow::Borrowed(w.data);
        if w.rows < pair_rows {
            data.to_mut().resize(pair_rows * row_bytes, 0);
        }
        Self { data, row_bytes, rows: w.rows, pair_rows }
    }

    pub(super) fn pairs(&self) -> usize {
        self.rows.div_ceil(self.pair_rows)
    }

    /// Where in a cache line each row begins, if rows have whole lines.
    pub(super) fn offset_in(&self, line: usize) -> usize {
        assert!(self.row_bytes.is_multiple_of(line), "rows of {} bytes", self.row_bytes);
        self.data.as_ptr().addr() % line
    }

    /// The rows of one panel, and everything after them in the matrix.
    #[inline(always)]
    pub(super) fn rows(&self, pair: usize, panel: usize) -> Rows<'_> {
        let first = self.first(pair) + panel * self.pair_rows / PAIR;
        Rows { bytes: &self.data[first * self.row_bytes..], stride: self.row_bytes }
    }

    /// Prefetches what some rows of a pair will need `ahead` segments from now; `segment_bytes` is the size of a row's segment.
    /// Panels are read across their rows, which the hardware prefetcher does not predict. A core has few outstanding line
    /// fills and stalls when asked for more, so the rows should be few or followed by much work.
    #[inline(always)]
    pub(super) fn prefetch(&self, pair: usize, segment: usize, segment_bytes: usize, rows: Range<usize>, ahead: usize) {
        // Where `prefetch` does nothing, the addresses would still be computed.
        if cfg!(not(target_arch = "x86_64")) {
            return;
        }
        let segments = self.row_bytes.div_ceil(segment_bytes);
        let ahead = segment + ahead;
        // A division costs as much as prefetching several rows.
        let (pair, segment) =
            if ahead < segments { (pair, ahead) } else { (pair + ahead / segments, ahead % segments) };
        if pair * self.pair_rows >= self.rows {
            return;
        }
        let start = (self.first(pair) + rows.start) * self.row_bytes + segment * segment_bytes;
        let mut at = self.data.as_ptr().wrapping_add(start);
        for _ in rows {
            for offset in (0..segment_bytes).step_by(64) {
                prefetch(at.wrapping_add(offset));
            }
            at = at.wrapping_add(self.row_bytes);
        }
    }

    /// Prefetches a panel's next segment, for a caller that will need it after much work.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) fn prefetch_next(&self, pair: usize, segment: usize, segment_bytes: usize, panel: usize) {
        let lanes = self.pair_rows / PAIR;
        for row in panel * lanes..(panel + 1) * lanes {
            let start = (self.first(pair) + row) * self.row_bytes + (segment + 1) * segment_bytes;
            for offset in (0..segment_bytes).step_by(64) {
                prefetch(self.data.as_ptr().wrapping_add(start + offset));
            }
        }
    }

    /// Prefetches the destination of [`write`](Self::write) for rows of the batch.
    #[inline(always)]
    pub(super) fn prefetch_out(&self, pair: usize, rows: Range<usize>, out: &Output<'_>) {
        for row in rows {
            let start = row * self.rows + self.first(pair);
            for offset in [0, self.pair_rows / 2, self.pair_rows - 1] {
                prefetch(out.at(start + offset));
            }
        }
    }

    /// Prefetches a pair's destination for whole lines that are about to be written: they come for this core alone.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) fn prefetch_to_write(&self, pair: usize, rows: Range<usize>, out: &Output<'_>) {
        for row in rows {
            for offset in (0..self.pair_rows).step_by(16) {
                super::super::simd::prefetch_to_write(out.at(row * self.rows + pair * self.pair_rows + offset));
            }
        }
    }

    /// First row of a pair.
    #[inline(always)]
    pub(super) fn first(&self, pair: usize) -> usize {
        (pair * self.pair_rows).min(self.rows.max(self.pair_rows) - self.pair_rows)
    }

    /// Writes a pair's sums for each row of the batch.
    #[inline(always)]
    pub(super) fn write<S: Simd>(&self, simd: S, pair: usize, sums: &[[S::F; PAIR]], out: &Output<'_>) {
        let mut lanes = [0.0; 64];
        let wanted = pair * self.pair_rows..self.rows.min((pair + 1) * self.pair_rows);
        let skipped = wanted.start - self.first(pair);
        for (i, sums) in sums.iter().enumerate() {
            for (panel, sum) in sums.iter().enumerate() {
                simd.store(*sum, &mut lanes[panel * S::LANES..]);
            }
            // SAFETY: each row's columns of a pair belong to that pair, and each pair to one task.
            let out = unsafe { out.range(i * self.rows + wanted.start..i * self.rows + wanted.end) };
            out.write_copy_of_slice(&lanes[skipped..skipped + wanted.len()]);
        }
    }
}
