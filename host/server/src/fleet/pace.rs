//! Rate limits of a worker: a token bucket for its frames and one for its log lines. Pure.

use std::time::{Duration, Instant};

/// Rate of a worker's log lines, and their burst.
const LINES_PER_SECOND: u32 = 50;
const LINES_BURST: u32 = 500;

/// A token bucket, full at first. [`Self::new`] gives it a capacity of one second's worth.
#[derive(Debug)]
pub(super) struct Bucket {
    per_second: f64,
    capacity: f64,
    level: f64,
    filled_at: Instant,
}

impl Bucket {
    pub(super) fn new(per_second: u32, now: Instant) -> Self {
        let per_second = f64::from(per_second);
        Self { per_second, capacity: per_second, level: per_second, filled_at: now }
    }

    /// Takes `cost` tokens. Returns how long to wait until the balance is no longer negative.
    pub(super) fn take(&mut self, cost: u32, now: Instant) -> Duration {
        self.fill(now);
        self.level -= f64::from(cost);
        if self.level >= 0.0 { Duration::ZERO } else { Duration::from_secs_f64(-self.level / self.per_second) }
    }

    fn fill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.filled_at).as_secs_f64();
        self.level = (self.level + passed * self.per_second).min(self.capacity);
        self.filled_at = now;
    }
}

/// Admits log lines at a bounded rate, and counts those that it drops.
#[derive(Debug, Default)]
pub(super) struct LogLimiter {
    bucket: Option<Bucket>,
    dropped: u64,
}

impl LogLimiter {
    /// Admits or drops a line; `Some` has the number of lines dropped before this one.
    pub(super) fn admit(&mut self, now: Instant) -> Option<u64> {
        let new = || Bucket {
            per_second: f64::from(LINES_PER_SECOND),
            capacity: f64::from(LINES_BURST),
            level: f64::from(LINES_BURST),
            filled_at: now,
        };
        let bucket = self.bucket.get_or_insert_with(new);
        bucket.fill(now);
        if bucket.level < 1.0 {
            self.dropped += 1;
            return None;
        }
        bucket.level -= 1.0;
        Some(std::mem::take(&mut self.dropped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sends_too_fast_waits_as_long_as_it_is_ahead() {
        let start = Instant::now();
        let mut bucket = Bucket::new(1000, start);
        assert_eq!(bucket.take(1000, start), Duration::ZERO);
        assert_eq!(bucket.take(100, start), Duration::from_millis(100));
        assert_eq!(bucket.take(100, start + Duration::from_millis(200)), Duration::ZERO);
        assert_eq!(bucket.take(1001, start + Duration::from_secs(60)), Duration::from_millis(1));
    }

    #[test]
    fn a_flood_of_lines_is_cut_and_counted() {
        let start = Instant::now();
        let mut log = LogLimiter::default();
        let admitted = (0..10_000).filter(|_| log.admit(start).is_some()).count();
        assert_eq!(admitted, LINES_BURST as usize);
        assert_eq!(log.admit(start + Duration::from_secs(1)), Some(9_500));
        assert_eq!(log.admit(start + Duration::from_secs(1)), Some(0));
        let later = (0..10_000).filter(|_| log.admit(start + Duration::from_secs(2)).is_some()).count();
        assert_eq!(later, 2 * LINES_PER_SECOND as usize - 2);
    }
}
