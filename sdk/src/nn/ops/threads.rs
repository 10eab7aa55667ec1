//! The threads behind the operations, and their timeline.

use pensieve_kernels::Pool;

use super::Ops;
use crate::{Timeline, TimelineSpan};

impl Ops {
    /// True if kernels run on threads of their own, which [`Timeline`] records.
    pub(in crate::nn) fn has_threads(&self) -> bool {
        self.pools().next().is_some()
    }

    /// Calls `task` with each piece of `data` and its index, on the model's threads if it has some.
    pub(in crate::nn) fn run_pieces<T: Send>(
        &self,
        data: &mut [T],
        piece: usize,
        task: impl Fn(usize, &mut [T]) + Sync,
    ) {
        match self.pools().next() {
            Some(pool) => pool.run_pieces(data, piece, task),
            None => data.chunks_mut(piece).enumerate().for_each(|(index, piece)| task(index, piece)),
        }
    }

    fn pools(&self) -> impl Iterator<Item = &Pool> {
        (0..self.parts.count()).filter_map(|at| self.parts.backend(at).ok()?.threads())
    }
}

impl Timeline for Ops {
    fn start(&mut self) {
        self.pools().for_each(Pool::start_timeline);
    }

    fn finish(&mut self) -> Vec<TimelineSpan> {
        let (mut all, mut threads) = (Vec::new(), 0);
        for pool in self.pools() {
            // The caller of each pool is the same thread.
            let thread = |of_pool: usize| if of_pool == 0 { 0 } else { threads + of_pool };
            all.extend(pool.finish_timeline().into_iter().map(|span| TimelineSpan {
                thread: thread(span.thread),
                what: span.what,
                start: span.start,
                end: span.end,
            }));
            threads += pool.threads() - 1;
        }
        all
    }
}
