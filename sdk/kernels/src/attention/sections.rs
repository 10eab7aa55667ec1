//! Sections of a sequence, which several threads attend to side by side.
//!
//! A row's positions are summed section by section, and then the sections' sums in order, whether one thread does it or many.
//! A decode step with few cache heads then occupies all threads, and its rows are those of a prompt by vectors to the last bit.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::POSITIONS;

/// Positions per section: as many as keep a thread busy for some ten microseconds if `values` are multiplied for each, but
/// not so few that to sum sections takes long. They are whole tiles, and sections start at multiples of them.
pub(super) fn section_len(values: usize) -> usize {
    let len = (1 << 20) / values.max(1) / POSITIONS * POSITIONS;
    len.clamp(2 * POSITIONS, 4 * POSITIONS)
}

/// Values beside a row's sums: its largest score, and the sum of its weights.
pub(super) const STATE: usize = 2;

/// The sections of some rows, for the heads that share one cache head.
pub(super) struct Sections {
    pub(super) all: Range<usize>,
    /// The results by section. The caller allocates them: buffers that workers allocate are slow to free.
    values: Vec<Mutex<Vec<f32>>>,
    /// How many are not computed yet.
    left: AtomicUsize,
}

impl Sections {
    /// Sections with `values` results each.
    pub(super) fn new(all: Range<usize>, values: usize) -> Self {
        let values = all.clone().map(|_| Mutex::new(Vec::with_capacity(values))).collect();
        Self { left: AtomicUsize::new(all.len()), values, all }
    }

    /// The values of a section.
    pub(super) fn values(&self, section: usize) -> MutexGuard<'_, Vec<f32>> {
        self.values[section - self.all.start].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a section, whose values are stored. Returns whether it was the last one.
    pub(super) fn end(&self) -> bool {
        self.left.fetch_sub(1, Ordering::AcqRel) == 1
    }
}
