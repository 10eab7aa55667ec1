//! Which of a model's servers gets a request. A pure state machine: events and the time in, a choice out.
//!
//! A conversation stays with one server, whose prefix cache knows it: servers are ranked by a hash of the conversation and
//! their name (rendezvous hashing), so that the loss of one moves only its own conversations. A server that has much more
//! to do than the others is passed over (bounded load) for the less busy one of the next two in rank. A server that fails
//! repeatedly is left out until it answers a probe.

use std::{
    hash::{Hash, Hasher},
    time::Duration,
};

use siphasher::sip::SipHasher13;

use minute::Minute;

/// Failures in a row after which a server is left out.
const FAILURES_MAX: u32 = 3;
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A server may have this share more than the mean before its conversations go elsewhere.
const EXCESS: f64 = 0.5;
/// Tokens that a server may have in any case: with little to do, affinity is worth more than balance.
const TOKENS_FREE: u64 = 64 << 10;
/// The longest `retry-after` that is believed.
const REST_MAX: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Balancer {
    replicas: Vec<Replica>,
    streams_max: u32,
}

/// How much one server is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// At a time.
    pub(super) streams: u32,
    pub(super) requests_per_minute: Option<u32>,
    /// Estimated, of prompts and answers.
    pub(super) tokens_per_minute: Option<u32>,
}

#[derive(Debug)]
struct Replica {
    name: String,
    streams: u32,
    /// Estimated tokens of the prompts and answers of its streams.
    tokens: u64,
    circuit: Circuit,
    /// Time until the next probe after it fails again: it grows until the server gives a whole answer, as one may answer
    /// probes and nothing else.
    pause: Duration,
    /// It has asked to be left alone until then.
    rests_until: Duration,
    requests_given: Minute,
    tokens_given: Minute,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Circuit {
    Closed {
        /// In a row.
        failures: u32,
    },
    Open {
        probe_at: Duration,
    },
}

/// A request's place at a server, to be given back with the outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) replica: usize,
    tokens: u64,
}

/// How a request went, as far as it says something about the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It answered as it should, be it with an error that is the client's.
    Answered,
    /// Nothing can be said: the client has gone, or the request itself may be the reason.
    Unknown,
    /// It is too busy.
    Busy { retry_after: Option<Duration> },
    /// It could not be reached, stalled, or sent what no server should.
    Failed,
}

/// No server can take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unavailable {
    /// All that are well are busy.
    Busy { retry_after: Duration },
    /// None is well.
    Down { retry_after: Duration },
    /// Those that could take it have been tried.
    Tried,
}

impl Balancer {
    pub(super) fn new(names: impl IntoIterator<Item = String>, limits: Limits) -> Self {
        let replica = |name| Replica {
            name,
            streams: 0,
            tokens: 0,
            circuit: Circuit::Closed { failures: 0 },
            pause: PAUSE_MIN,
            rests_until: Duration::ZERO,
            requests_given: Minute::new(limits.requests_per_minute),
            tokens_given: Minute::new(limits.tokens_per_minute),
        };
        Self { replicas: names.into_iter().map(replica).collect(), streams_max: limits.streams }
    }

    /// Takes over what is known about servers of the same name, but not their requests, which end where they began.
    pub(super) fn go_on_from(&mut self, before: &Self) {
        for replica in &mut self.replicas {
            if let Some(old) = before.replicas.iter().find(|old| old.name == replica.name) {
                (replica.circuit, replica.pause, replica.rests_until) = (old.circuit, old.pause, old.rests_until);
                replica.requests_given.go_on_from(&old.requests_given);
                replica.tokens_given.go_on_from(&old.tokens_given);
            }
        }
    }

    /// Takes a place for a request of `conversation` with about this many tokens, at none of the servers that were `tried`.
    pub(super) fn choose(
        &mut self,
        conversation: u64,
        tokens: u64,
        tried: &[usize],
        now: Duration,
    ) -> Result<Place, Unavailable> {
        let is_free = |place: &usize| self.is_free(*place, tokens, now);
        let mut ranked: Vec<usize> =
            (0..self.replicas.len()).filter(|place| !tried.contains(place)).filter(is_free).collect();
        ranked.sort_by_key(|place| std::cmp::Reverse(self.replicas[*place].rank(conversation)));
        let Some(first) = ranked.first() else { return Err(self.unavailable(tokens, tried, now)) };
        let bound = self.bound(tokens);
        let fits = |place: &usize| self.replicas[*place].tokens + tokens <= bound;
        let replica = if fits(first) {
            *first
        } else {
            // Of two, so that all who leave a busy server do not go to the same one.
            let others = ranked[1..].iter().take(2).copied();
            others.chain([*first]).min_by_key(|place| self.replicas[*place].tokens).unwrap_or(*first)
        };
        let chosen = &mut self.replicas[replica];
        chosen.streams += 1;
        chosen.tokens += tokens;
        chosen.requests_given.add(1, now);
        chosen.tokens_given.add(tokens, now);
        Ok(Place { replica, tokens })
    }

    /// True if a server would take a request with about this many tokens.
    pub(super) fn can_take(&self, tokens: u64, now: Duration) -> bool {
        (0..self.replicas.len()).any(|place| self.is_free(place, tokens, now))
    }

    fn is_free(&self, place: usize, tokens: u64, now: Duration) -> bool {
        let replica = &self.replicas[place];
        replica.is_closed() && replica.streams < self.streams_max && replica.rest(tokens, now).is_zero()
    }

    /// Gives a place back. Returns true if the server is left out from now on.
    pub(super) fn ended(&mut self, place: Place, outcome: Outcome, now: Duration) -> bool {
        let replica = &mut self.replicas[place.replica];
        replica.streams = replica.streams.saturating_sub(1);
        replica.tokens = replica.tokens.saturating_sub(place.tokens);
        match outcome {
            Outcome::Unknown => false,
            Outcome::Answered => {
                // An answer that began before the failures says nothing about the time after them.
                if replica.is_closed() {
                    replica.circuit = Circuit::Closed { failures: 0 };
                    replica.pause = PAUSE_MIN;
                }
                false
            }
            Outcome::Busy { retry_after } => {
                let rest = retry_after.unwrap_or(PAUSE_MIN).min(REST_MAX);
                replica.rests_until = replica.rests_until.max(now + rest);
                false
            }
            Outcome::Failed => replica.failed(now),
        }
    }

    /// Servers with streams that are well, as far as is known.
    pub(super) fn working(&self) -> impl Iterator<Item = usize> {
        let replicas = self.replicas.iter().enumerate();
        replicas.filter(|(_, replica)| replica.is_closed() && replica.streams > 0).map(|(place, _)| place)
    }

    /// Servers that are left out and shall be asked now whether they are well again.
    pub(super) fn due(&mut self, now: Duration) -> Vec<usize> {
        let mut due = Vec::new();
        for (place, replica) in self.replicas.iter_mut().enumerate() {
            let pause = replica.pause;
            if let Circuit::Open { probe_at } = &mut replica.circuit
                && *probe_at <= now
            {
                // The next one, unless this one's answer comes first.
                *probe_at = now + pause;
                due.push(place);
            }
        }
        due
    }

    /// The answer to a probe. Returns true if the server is well again, or left out from now on.
    pub(super) fn probed(&mut self, replica: usize, is_well: bool, now: Duration) -> bool {
        let has_others = self.replicas.iter().enumerate().any(|(place, other)| place != replica && other.is_closed());
        let replica = &mut self.replicas[replica];
        match (is_well, replica.is_closed()) {
            (true, false) => {
                replica.circuit = Circuit::Closed { failures: 0 };
                true
            }
            (true, true) => false,
            // One that is silent, too. The last one gets more time: no other can take over, and it may just be busy.
            (false, true) if has_others && replica.streams > 0 => {
                replica.open(now);
                true
            }
            (false, true) => replica.failed(now),
            (false, false) => {
                replica.pause = (replica.pause * 2).min(PAUSE_MAX);
                false
            }
        }
    }

    pub(super) fn is_open(&self, replica: usize) -> bool {
        !self.replicas[replica].is_closed()
    }

    #[cfg(test)]
    fn is_down(&self) -> bool {
        self.replicas.iter().all(|replica| !replica.is_closed())
    }

    /// True if there is nothing to watch.
    pub(super) fn is_idle(&self) -> bool {
        self.replicas.iter().all(|replica| replica.is_closed() && replica.streams == 0)
    }

    /// Streams and whether it is well, of each server.
    pub(super) fn states(&self) -> impl Iterator<Item = (&str, u32, bool)> {
        self.replicas.iter().map(|replica| (replica.name.as_str(), replica.streams, replica.is_closed()))
    }

    /// Tokens up to which a server takes a request of `tokens`.
    fn bound(&self, tokens: u64) -> u64 {
        let well: Vec<&Replica> = self.replicas.iter().filter(|replica| replica.is_closed()).collect();
        let total: u64 = well.iter().map(|replica| replica.tokens).sum::<u64>() + tokens;
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let bound = (total as f64 / well.len().max(1) as f64 * (1.0 + EXCESS)) as u64;
        bound.max(TOKENS_FREE)
    }

    fn unavailable(&self, tokens: u64, tried: &[usize], now: Duration) -> Unavailable {
        if !tried.is_empty() {
            return Unavailable::Tried;
        }
        let well = self.replicas.iter().filter(|replica| replica.is_closed());
        match well.map(|replica| replica.rest(tokens, now)).min() {
            Some(rest) => Unavailable::Busy { retry_after: rest.max(PAUSE_MIN) },
            None => {
                let probes = self.replicas.iter().filter_map(|replica| match replica.circuit {
                    Circuit::Open { probe_at } => Some(probe_at.saturating_sub(now)),
                    Circuit::Closed { .. } => None,
                });
                Unavailable::Down { retry_after: probes.min().unwrap_or(PAUSE_MIN).max(PAUSE_MIN) }
            }
        }
    }
}

impl Replica {
    fn is_closed(&self) -> bool {
        matches!(self.circuit, Circuit::Closed { .. })
    }

    fn failed(&mut self, now: Duration) -> bool {
        let Circuit::Closed { failures } = self.circuit else { return false };
        let failures = failures + 1;
        let opens = failures >= FAILURES_MAX;
        if opens {
            self.open(now);
        } else {
            self.circuit = Circuit::Closed { failures };
        }
        opens
    }

    /// Leaves it out until a probe after the pause, and makes the next pause longer.
    fn open(&mut self, now: Duration) {
        self.circuit = Circuit::Open { probe_at: now + self.pause };
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    /// Time until it may be given a request with about this many tokens.
    fn rest(&self, tokens: u64, now: Duration) -> Duration {
        let asked_for = self.rests_until.saturating_sub(now);
        asked_for.max(self.requests_given.rest(1, now)).max(self.tokens_given.rest(tokens, now))
    }

    fn rank(&self, conversation: u64) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(conversation, 0);
        self.name.hash(&mut hasher);
        hasher.finish()
    }
}

mod minute;
#[cfg(test)]
mod simulation;
