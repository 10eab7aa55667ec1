//! A limit on what is given in any minute: requests, or tokens.

use std::{collections::VecDeque, time::Duration};

/// Whole seconds that are added up, one more than a minute: the oldest has begun more than a minute ago only when it is over.
const SECONDS: u64 = 61;

#[derive(Debug)]
pub(super) struct Minute {
    limit: Option<u64>,
    /// Seconds in which something was given, and how much; the oldest first.
    given: VecDeque<(u64, u64)>,
}

impl Minute {
    pub(super) fn new(limit: Option<u32>) -> Self {
        Self { limit: limit.map(u64::from), given: VecDeque::new() }
    }

    /// Time until `amount` may be given. More than the limit may be given where nothing was for a minute.
    pub(super) fn rest(&self, amount: u64, now: Duration) -> Duration {
        let Some(limit) = self.limit else { return Duration::ZERO };
        let room = limit.saturating_sub(amount);
        let recent = self.given.iter().filter(|(second, _)| second + SECONDS > now.as_secs());
        let mut total: u64 = recent.clone().map(|(_, amount)| amount).sum();
        let mut rest = Duration::ZERO;
        for (second, amount) in recent {
            if total <= room {
                break;
            }
            total -= amount;
            rest = Duration::from_secs(second + SECONDS).saturating_sub(now);
        }
        rest
    }

    pub(super) fn add(&mut self, amount: u64, now: Duration) {
        if self.limit.is_none() {
            return;
        }
        let now = now.as_secs();
        self.given.retain(|(second, _)| second + SECONDS > now);
        match self.given.back_mut() {
            Some((second, given)) if *second == now => *given += amount,
            _ => self.given.push_back((now, amount)),
        }
    }

    /// What was given under another limit counts.
    pub(super) fn go_on_from(&mut self, before: &Self) {
        if self.limit.is_some() {
            self.given.clone_from(&before.given);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_minute_has_more_than_the_limit() {
        for seed in 0..40 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (limit, mut minute) = (random.u64(1..50), Minute::new(None));
            minute.limit = Some(limit);
            let (mut now, mut given) = (Duration::ZERO, Vec::<(Duration, u64)>::new());
            for _ in 0..2000 {
                now += Duration::from_millis(random.u64(..1500));
                let amount = random.u64(1..=limit);
                let rest = minute.rest(amount, now);
                if !rest.is_zero() {
                    assert!(rest <= Duration::from_secs(SECONDS));
                    assert_eq!(minute.rest(amount, now + rest), Duration::ZERO, "it may be given when it was promised");
                    continue;
                }
                minute.add(amount, now);
                given.push((now, amount));
                let recent = given.iter().rev().take_while(|(at, _)| now - *at < Duration::from_secs(60));
                assert!(recent.map(|(_, amount)| amount).sum::<u64>() <= limit, "seed {seed}");
                assert!(minute.given.len() <= 61);
            }
            assert!(given.len() > 20, "seed {seed}: {} were given", given.len());
        }
    }

    #[test]
    fn what_is_larger_than_the_limit_goes_alone() {
        let mut minute = Minute::new(Some(10));
        let at = Duration::from_secs;
        assert_eq!(minute.rest(100, at(0)), Duration::ZERO);
        minute.add(100, at(0));
        assert_eq!(minute.rest(1, at(30)), at(31));
        assert_eq!(minute.rest(1, at(61)), Duration::ZERO);
        assert_eq!(Minute::new(None).rest(u64::MAX, at(0)), Duration::ZERO);
    }
}
