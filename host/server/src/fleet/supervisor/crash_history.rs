//! Restart policy after a worker crash: restart after a growing pause, or not at all (quarantine) if crashes come too
//! often. Pure.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use crate::fleet::Restart;

/// The recent deaths of one model's workers.
#[derive(Debug, Default)]
pub(super) struct CrashHistory(VecDeque<Instant>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RestartDecision {
    RestartAfter(Duration),
    Quarantine(Duration),
}

impl CrashHistory {
    pub(super) fn count(&mut self, now: Instant, restart: &Restart) -> RestartDecision {
        while self.0.front().is_some_and(|death| now.duration_since(*death) >= restart.window) {
            self.0.pop_front();
        }
        self.0.push_back(now);
        let deaths = self.0.len();
        if deaths >= restart.deaths_max {
            return RestartDecision::Quarantine(restart.quarantine);
        }
        let doubled = u32::try_from(deaths - 1).ok().and_then(|times| 2_u32.checked_pow(times));
        let pause = doubled.and_then(|factor| restart.pause.checked_mul(factor));
        RestartDecision::RestartAfter(pause.unwrap_or(restart.pause_max).min(restart.pause_max))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Forgets all deaths because something has changed.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn pauses_double_up_to_a_limit_and_shrink_when_deaths_are_long_ago() {
        let restart = Restart { pause: SECOND, pause_max: 5 * SECOND, deaths_max: 9, ..Restart::default() };
        let (start, mut deaths) = (Instant::now(), CrashHistory::default());
        let mut die = |second: u32| match deaths.count(start + second * SECOND, &restart) {
            RestartDecision::RestartAfter(pause) => pause.as_secs(),
            RestartDecision::Quarantine(_) => 0,
        };
        assert_eq!([die(0), die(1), die(2), die(3), die(4)], [1, 2, 4, 5, 5]);
        assert_eq!([die(200), die(201)], [1, 2]);
    }

    #[test]
    fn the_third_death_within_a_minute_is_one_too_many() {
        let (start, mut deaths, restart) = (Instant::now(), CrashHistory::default(), Restart::default());
        let mut die =
            |second: u32| matches!(deaths.count(start + second * SECOND, &restart), RestartDecision::Quarantine(_));
        assert_eq!([die(0), die(30), die(60), die(89), die(120)], [false, false, false, true, false]);
        deaths.forget();
        assert_eq!(deaths.len(), 0);
    }
}
