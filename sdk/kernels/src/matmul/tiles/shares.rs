//! Products cut into tasks for threads.
//!
//! A task is some pairs of panels for a stretch of rows, whose activations stay in the L2 cache of the core that has them. Tasks become
//! smaller towards the end of a loop: with equal ones, threads waited a tenth to a third of it for the last.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::super::simd::TILE_ROWS;
use super::OUTPUTS;

/// Tasks per thread for which rows are divided, where outputs are too few.
const TASKS: usize = 3;
/// A task is at most what is left for each thread, divided by this.
const SHARE: usize = 2;
/// Most rows of a task beside other threads: their activations take half of the L2 cache if they have 2,048 columns.
const ROWS_MAX: usize = 256;
/// Fewest rows for which weights are unpacked a second time to occupy another thread.
const ROWS_MIN: usize = 128;

/// Some outputs of some rows.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) pairs: Range<usize>,
    /// In groups of 16 rows.
    pub(super) groups: Range<usize>,
}

/// Products cut into tasks.
pub(super) struct Shares {
    /// Pairs of panels of a product.
    pieces: Vec<(usize, Range<usize>)>,
    /// Groups of 16 rows, and the number of pieces that were taken with them.
    stretches: Vec<(Range<usize>, AtomicUsize)>,
}

impl Shares {
    /// Cuts products with so many outputs each into tasks of at most `most` pairs.
    pub(super) fn new(outputs: &[usize], n: usize, threads: usize, most: usize) -> Self {
        let groups = n.div_ceil(TILE_ROWS);
        let pairs: Vec<usize> = outputs.iter().map(|outputs| outputs.div_ceil(OUTPUTS)).collect();
        let mut left: usize = pairs.iter().sum();
        // With fewer outputs than that many threads need, rows are divided as well.
        let cuts = match threads {
            1 => 1,
            _ => (TASKS * threads).div_ceil(left).min(n / ROWS_MIN).max(n.div_ceil(ROWS_MAX)),
        };
        let stretch = groups.div_ceil(cuts).next_multiple_of(2);
        let stretches = (0..groups).step_by(stretch).map(|start| start..groups.min(start + stretch));
        let stretches: Vec<_> = stretches.map(|stretch| (stretch, AtomicUsize::new(0))).collect();
        let takers = threads.div_ceil(stretches.len().max(1));
        let mut pieces = Vec::new();
        for (product, pairs) in pairs.into_iter().enumerate() {
            let mut start = 0;
            while start < pairs {
                let share = if threads == 1 { most } else { left.div_ceil(SHARE * takers).min(most) };
                let end = pairs.min(start + share);
                pieces.push((product, start..end));
                left -= end - start;
                start = end;
            }
        }
        Self { pieces, stretches }
    }

    /// The next task of a thread. It stays with a stretch of rows, whose activations stay in its L2 cache, until nothing is left of
    /// that.
    pub(super) fn next(&self, thread: usize) -> Option<(usize, Task)> {
        let count = self.stretches.len();
        (0..count).find_map(|step| {
            let (groups, taken) = &self.stretches[(thread + step) % count];
            let (product, pairs) = self.pieces.get(taken.fetch_add(1, Ordering::Relaxed))?;
            Some((*product, Task { pairs: pairs.clone(), groups: groups.clone() }))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cover_every_output_of_every_row_once() {
        for (outputs, n) in
            [(&[2048, 512, 512][..], 512), (&[8192, 8192], 300), (&[32], 64), (&[1, 33], 511), (&[100_000], 65)]
        {
            for threads in [1, 2, 3, 16, 200] {
                let shares = Shares::new(outputs, n, threads, 8);
                let mut counts: Vec<Vec<u8>> =
                    outputs.iter().map(|rows| vec![0; rows.div_ceil(32) * n.div_ceil(16)]).collect();
                let mut threads = (0..threads).cycle();
                // Threads take turns, so each takes from stretches that others have begun.
                let mut idle = 0;
                while idle < 200 {
                    let Some((product, task)) = threads.next().and_then(|thread| shares.next(thread)) else {
                        idle += 1;
                        continue;
                    };
                    for pair in task.pairs {
                        for group in task.groups.clone() {
                            counts[product][pair * n.div_ceil(16) + group] += 1;
                        }
                    }
                }
                assert!(counts.iter().flatten().all(|count| *count == 1), "{outputs:?} for {n} rows");
            }
        }
    }

    #[test]
    fn end_with_small_tasks() {
        let lens = |threads| -> Vec<usize> {
            Shares::new(&[2048], 512, threads, 8).pieces.iter().map(|(_, pairs)| pairs.len()).collect()
        };
        let of_many = lens(16);
        assert!(of_many[0] == 4 && of_many.is_sorted_by(|a, b| a >= b), "{of_many:?}");
        assert_eq!(of_many[of_many.len() - 16..], [1; 16]);
        assert_eq!(lens(1), [8; 8]);
    }
}
