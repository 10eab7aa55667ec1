//! Sections of a sequence, which several threads attend to side by side.
//!
//! A row's positions are summed section by section, and then the sections' sums in order, whether one thread does it or many.
//! So a decode step with few cache heads occupies all threads, and its rows are those of a prompt by vectors to the last bit.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::POSITIONS;

/// Positions per section: as many as keep a thread busy for some ten microseconds if `values` are multiplied for each, but
/// not so few that to sum sections takes long. They are whole tiles, and sections start at multiples of them.
pub(super) fn section_len(values: usize) -> usize {
    let len = (1 << 20) / values.max(1) / POSITIONS * POSITIONS;
    len.clamp(2 * POSITIONS, 4 * POSITIONS)
}

/// The sections of some rows, for the heads that share one cache head.
pub(super) struct Sections {
    all: Range<usize>,
    /// What each section has given.
    values: Vec<OnceLock<Vec<f32>>>,
    /// How many are not computed yet.
    left: AtomicUsize,
}

impl Sections {
    pub(super) fn new(all: Range<usize>) -> Self {
        let values = all.clone().map(|_| OnceLock::new()).collect();
        Self { left: AtomicUsize::new(all.len()), values, all }
    }

    /// Stores a section's values. Returns those of all, in order, if it was the last one.
    pub(super) fn store(&self, section: usize, values: Vec<f32>) -> Option<impl Iterator<Item = &[f32]>> {
        let _ = self.values[section - self.all.start].set(values);
        let is_last = self.left.fetch_sub(1, Ordering::AcqRel) == 1;
        is_last.then(|| self.values.iter().filter_map(OnceLock::get).map(Vec::as_slice))
    }
}
