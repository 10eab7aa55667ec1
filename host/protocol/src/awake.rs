//! Time in which this process was awake. A deadline for another process must not count the time in which this one was
//! stopped (Ctrl-Z, `docker pause`, a laptop's sleep): whatever the other one sent meanwhile is still unread.
//!
//! The clock is asked at least once per [`TICK`] while a deadline is pending. A question that comes much later than that
//! shows that the process did not run in between, and that time is left out.

use std::time::{Duration, Instant};

/// Longest sleep of a task that watches a deadline.
pub const TICK: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug)]
pub struct AwakeClock {
    /// When the next question is due; `None` while no deadline is pending.
    due: Option<Instant>,
    missed: Duration,
}

/// Compares the time since the last sign of life with a limit.
#[derive(Clone, Copy, Debug)]
pub struct Silence {
    clock: AwakeClock,
    since: Instant,
    limit: Duration,
}

impl AwakeClock {
    pub fn new(now: Instant) -> Self {
        Self { due: Some(now + TICK), missed: Duration::ZERO }
    }

    /// The time of this clock, given the system's.
    pub fn at(&mut self, now: Instant) -> Instant {
        if let Some(late) = self.due.and_then(|due| now.checked_duration_since(due)).filter(|late| *late > TICK) {
            self.missed += late;
        }
        self.due = Some(now + TICK);
        now.checked_sub(self.missed).unwrap_or(now)
    }

    /// When to ask again, in the system's time, for the next deadline in this clock's time.
    pub fn next_question(&self, deadline: Instant) -> Instant {
        let deadline = deadline + self.missed;
        self.due.map_or(deadline, |due| due.min(deadline))
    }

    /// No deadline is pending: time counts until the next question, however late that is.
    pub fn rest(&mut self) {
        self.due = None;
    }
}

impl Silence {
    pub fn new(limit: Duration, now: Instant) -> Self {
        let mut clock = AwakeClock::new(now);
        Self { since: clock.at(now), clock, limit }
    }

    /// A sign of life.
    pub fn broken(&mut self, now: Instant) {
        self.since = self.clock.at(now);
    }

    /// True if there was no sign of life for as long as the limit.
    pub fn is_over(&mut self, now: Instant) -> bool {
        self.clock.at(now).saturating_duration_since(self.since) >= self.limit
    }

    /// How long to wait before [`Self::is_over`] is asked.
    pub fn wait(&self) -> Duration {
        self.limit.min(TICK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Seconds until silence is noticed: heartbeats arrive once a second until `last_beat`, and between two times (all
    /// in milliseconds) this process does not run.
    fn noticed(limit: u32, last_beat: u32, stops: &[(u32, u32)]) -> u32 {
        let start = Instant::now();
        let mut silence = Silence::new(limit * MS, start);
        let (mut now, mut unread) = (0, Vec::new());
        let mut beats = (1..).map(|second| second * 1000).take_while(|beat| *beat <= last_beat).peekable();
        loop {
            now += u32::try_from(silence.wait().as_millis()).unwrap_or(u32::MAX);
            if let Some((_, until)) = stops.iter().find(|(from, until)| (*from..*until).contains(&now)) {
                now = *until;
            }
            while beats.next_if(|beat| *beat <= now).is_some() {
                unread.push(());
            }
            // Deadlines are looked at first, as a timer may win over the socket.
            if silence.is_over(start + now * MS) {
                return now / 1000;
            }
            if !unread.is_empty() {
                unread.clear();
                silence.broken(start + now * MS);
            }
            assert!(now < 1_000_000, "never noticed");
        }
    }

    #[test]
    fn silence_counts_only_while_this_process_runs() {
        for (limit, last_beat, stops, expected) in [
            (10_000, 5_000, &[][..], 15),
            // A minute's stop costs the other process nothing.
            (10_000, 80_000, &[(5_200, 65_200)], 90),
            (10_000, 100_000, &[(5_200, 30_200), (35_300, 60_300), (61_000, 86_000)], 110),
            // It was silent before, within and after the stop; only the time around it counts.
            (10_000, 5_000, &[(9_000, 39_000)], 45),
            (2_000, 80_000, &[(5_200, 65_200)], 82),
        ] {
            assert_eq!(noticed(limit, last_beat, stops), expected, "{limit} {last_beat} {stops:?}");
        }
    }

    #[test]
    fn a_clock_without_a_pending_deadline_counts_all_time() {
        let start = Instant::now();
        let mut clock = AwakeClock::new(start);
        assert_eq!(clock.at(start + 600 * MS), start + 600 * MS);
        clock.rest();
        assert_eq!(clock.at(start + 60_000 * MS), start + 60_000 * MS);
        assert_eq!(clock.at(start + 90_000 * MS), start + 60_500 * MS);
        assert_eq!(clock.next_question(start + 60_700 * MS), start + 90_200 * MS);
        assert_eq!(clock.next_question(start + 70_000 * MS), start + 90_500 * MS);
    }
}
