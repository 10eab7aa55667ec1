//! Conversations, failures and probes in random order, from a seed: what must hold after every event, and what a user may expect
//! over a whole run.

use std::collections::HashMap;

use super::*;

const STREAMS_MAX: u32 = 50;

fn limits(streams: u32) -> Limits {
    Limits { streams, requests_per_minute: None, tokens_per_minute: None }
}

fn names(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|place| format!("http://10.0.0.{place}:8000/v1"))
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Servers that live and die, and a balancer that only hears of them what it would in a server.
struct World {
    balancer: Balancer,
    is_well: Vec<bool>,
    running: Vec<(Place, u64)>,
    now: Duration,
    random: fastrand::Rng,
}

impl World {
    fn new(seed: u64, servers: usize, streams_max: u32) -> Self {
        Self {
            balancer: Balancer::new(names(servers), limits(streams_max)),
            is_well: vec![true; servers],
            running: Vec::new(),
            now: Duration::ZERO,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Sends a request as `call` does: to one server after the other until one takes it.
    fn send(&mut self, conversation: u64, tokens: u64) -> Result<usize, Unavailable> {
        let mut tried = Vec::new();
        loop {
            let place = self.balancer.choose(conversation, tokens, &tried, self.now)?;
            assert!(!tried.contains(&place.replica), "a server is tried once");
            assert!(!self.balancer.is_open(place.replica), "one that is left out gets nothing");
            if self.is_well[place.replica] {
                self.running.push((place, conversation));
                return Ok(place.replica);
            }
            self.balancer.ended(place, Outcome::Failed, self.now);
            tried.push(place.replica);
        }
    }

    fn end_one(&mut self) {
        if self.running.is_empty() {
            return;
        }
        let (place, _) = self.running.swap_remove(self.random.usize(..self.running.len()));
        let outcome = match (self.is_well[place.replica], self.random.u32(..20)) {
            (false, _) => Outcome::Failed,
            (true, 0) => Outcome::Unknown,
            (true, 1) => Outcome::Busy { retry_after: Some(Duration::from_millis(self.random.u64(..2000))) },
            (true, _) => Outcome::Answered,
        };
        self.balancer.ended(place, outcome, self.now);
    }

    fn probe(&mut self) {
        for replica in self.balancer.due(self.now) {
            let is_well = self.is_well[replica];
            self.balancer.probed(replica, is_well, self.now);
        }
    }

    fn check(&self) {
        let mut streams = vec![0; self.is_well.len()];
        let mut tokens = vec![0; self.is_well.len()];
        for (place, _) in &self.running {
            streams[place.replica] += 1;
            tokens[place.replica] += place.tokens;
        }
        for (place, replica) in self.balancer.replicas.iter().enumerate() {
            assert_eq!((replica.streams, replica.tokens), (streams[place], tokens[place]), "server {place}");
            assert!(replica.streams <= STREAMS_MAX);
        }
    }
}

#[test]
fn accounts_are_right_whatever_happens() {
    for seed in 0..60 {
        let servers = 1 + (seed % 5) as usize;
        let mut world = World::new(seed, servers, STREAMS_MAX);
        for _ in 0..500 {
            world.now += Duration::from_millis(world.random.u64(..200));
            match world.random.u32(..10) {
                0..5 => {
                    let (conversation, tokens) = (world.random.u64(..40), world.random.u64(..8000));
                    if let Err(Unavailable::Busy { retry_after } | Unavailable::Down { retry_after }) =
                        world.send(conversation, tokens)
                    {
                        assert!(retry_after >= PAUSE_MIN && retry_after <= REST_MAX, "{retry_after:?}");
                    }
                }
                5..8 => world.end_one(),
                8 => {
                    let replica = world.random.usize(..servers);
                    world.is_well[replica] = world.random.bool();
                }
                _ => world.probe(),
            }
            world.check();
        }
        // Whatever has happened, all servers are used again once they are well.
        world.is_well.fill(true);
        while !world.running.is_empty() {
            world.end_one();
        }
        for _ in 0..4 {
            world.now += PAUSE_MAX;
            world.probe();
        }
        world.now += REST_MAX;
        assert!(world.balancer.is_idle(), "seed {seed}");
        let used: std::collections::HashSet<usize> =
            (0..200).map(|conversation| home(&mut world, conversation)).collect();
        assert_eq!(used.len(), servers, "seed {seed}");
    }
}

#[test]
fn conversations_stay_and_only_those_of_a_dead_server_move() {
    for (seed, streams) in (0..20).zip([1, 30, 300].into_iter().cycle()) {
        let mut world = World::new(seed, 4, 200);
        let mut homes: HashMap<u64, usize> = HashMap::new();
        let conversations: Vec<u64> = (0..100).map(|_| world.random.u64(..)).collect();
        let (mut same, mut all) = (0, 0);
        for _ in 0..2000 {
            world.now += Duration::from_millis(10);
            let conversation = conversations[world.random.usize(..conversations.len())];
            let replica = world.send(conversation, 2000).unwrap();
            all += 1;
            same += usize::from(*homes.entry(conversation).or_insert(replica) == replica);
            while world.running.len() > streams {
                let (place, _) = world.running.swap_remove(world.random.usize(..world.running.len()));
                world.balancer.ended(place, Outcome::Answered, world.now);
            }
        }
        assert!(same * 100 >= all * 95, "seed {seed}, {streams} streams: {same} of {all} went home");
        let dead = world.random.usize(..4);
        for (place, _) in world.running.drain(..) {
            world.balancer.ended(place, Outcome::Answered, world.now);
        }
        let before: Vec<usize> = conversations.iter().map(|conversation| home(&mut world, *conversation)).collect();
        world.is_well[dead] = false;
        for (conversation, before) in conversations.iter().zip(before) {
            let after = home(&mut world, *conversation);
            assert!(after != dead);
            assert!(before == dead || before == after, "seed {seed}: a conversation of a living server moved");
        }
    }
}

/// Where a conversation goes while there is nothing else to do.
fn home(world: &mut World, conversation: u64) -> usize {
    let replica = world.send(conversation, 100).unwrap();
    let (place, _) = world.running.pop().unwrap();
    world.balancer.ended(place, Outcome::Answered, world.now);
    replica
}

#[test]
fn one_long_conversation_does_not_pile_up_on_its_server() {
    let mut world = World::new(1, 3, STREAMS_MAX);
    // All of one conversation, such as subagents of one client: without a bound all would go to one server.
    for _ in 0..30 {
        world.send(7, 10_000).unwrap();
    }
    let streams: Vec<u32> = world.balancer.states().map(|(_, streams, _)| streams).collect();
    assert!(streams.iter().all(|streams| (5..=16).contains(streams)), "{streams:?}");
}

#[test]
fn a_dead_server_is_left_out_at_once_and_comes_back_with_a_probe() {
    let mut balancer = Balancer::new(names(2), limits(STREAMS_MAX));
    let take = |balancer: &mut Balancer, key, now| balancer.choose(key, 10, &[], now);
    let key = (0..).find(|key| take(&mut balancer, *key, seconds(0)).is_ok_and(|place| place.replica == 0)).unwrap();
    let mut opened = 0;
    for _ in 0..3 {
        let place = take(&mut balancer, key, seconds(1)).unwrap();
        opened += u32::from(balancer.ended(place, Outcome::Failed, seconds(1)));
    }
    assert_eq!((opened, balancer.is_open(0)), (1, true));
    assert_eq!(take(&mut balancer, key, seconds(1)).unwrap().replica, 1);
    assert_eq!(balancer.due(seconds(1)), [0; 0], "not before the pause is over");
    assert_eq!(balancer.due(seconds(2)), [0]);
    assert!(!balancer.probed(0, false, seconds(2)));
    assert_eq!(balancer.due(seconds(2)), [0; 0], "the pause grows");
    assert_eq!(balancer.due(seconds(4)), [0]);
    assert!(balancer.probed(0, true, seconds(4)));
    assert_eq!(take(&mut balancer, key, seconds(4)).unwrap().replica, 0);
}

#[test]
fn a_busy_server_rests_as_long_as_it_asks_for() {
    let mut balancer = Balancer::new(names(1), limits(2));
    let place = balancer.choose(1, 10, &[], seconds(0)).unwrap();
    balancer.ended(place, Outcome::Busy { retry_after: Some(seconds(7)) }, seconds(0));
    let busy = |seconds_left| Err(Unavailable::Busy { retry_after: seconds(seconds_left) });
    assert_eq!(balancer.choose(1, 10, &[], seconds(2)), busy(5));
    assert!(balancer.choose(1, 10, &[], seconds(7)).is_ok());
    assert!(balancer.choose(1, 10, &[], seconds(7)).is_ok());
    let full = Err(Unavailable::Busy { retry_after: PAUSE_MIN });
    assert_eq!(balancer.choose(1, 10, &[], seconds(7)), full, "two streams at a time");
    // A day is not believed.
    let place = Place { replica: 0, tokens: 10 };
    balancer.ended(place, Outcome::Busy { retry_after: Some(seconds(86_400)) }, seconds(7));
    assert!(balancer.choose(1, 10, &[], seconds(7) + REST_MAX).is_ok());
}

#[test]
fn errors_that_a_request_may_cause_take_no_server_away() {
    let mut balancer = Balancer::new(names(1), limits(STREAMS_MAX));
    for _ in 0..100 {
        let place = balancer.choose(1, 10, &[], seconds(0)).unwrap();
        assert!(!balancer.ended(place, Outcome::Unknown, seconds(0)));
    }
    for outcome in [Outcome::Failed, Outcome::Failed, Outcome::Answered, Outcome::Failed, Outcome::Failed] {
        let place = balancer.choose(1, 10, &[], seconds(0)).unwrap();
        balancer.ended(place, outcome, seconds(0));
    }
    assert!(!balancer.is_open(0), "not three in a row");
}

#[test]
fn a_server_that_only_answers_probes_is_asked_ever_less_often() {
    let mut balancer = Balancer::new(names(1), limits(STREAMS_MAX));
    let (mut now, mut pauses) = (seconds(1), Vec::new());
    let end = |balancer: &mut Balancer, outcome: Outcome, now: Duration| {
        let place = balancer.choose(1, 10, &[], now).unwrap();
        balancer.ended(place, outcome, now)
    };
    for _ in 0..6 {
        while !end(&mut balancer, Outcome::Failed, now) {}
        assert!(balancer.is_down());
        let opened = now;
        while balancer.due(now).is_empty() {
            now += Duration::from_millis(100);
        }
        pauses.push((now - opened).as_millis());
        assert!(balancer.probed(0, true, now));
    }
    assert_eq!(pauses, [500, 1000, 2000, 4000, 5000, 5000]);
    end(&mut balancer, Outcome::Answered, now);
    while !end(&mut balancer, Outcome::Failed, now) {}
    assert_eq!(balancer.due(now + PAUSE_MIN), [0], "a whole answer begins anew");
}

#[test]
fn a_silent_server_is_left_out_with_the_first_probe_that_fails_unless_it_is_the_last() {
    let mut balancer = Balancer::new(names(2), limits(STREAMS_MAX));
    assert!(!balancer.probed(0, false, seconds(0)), "without streams it may count to three");
    for other in [1, 0] {
        balancer.choose(1, 10, &[other], seconds(0)).unwrap();
    }
    assert!(balancer.probed(0, false, seconds(1)));
    assert_eq!((balancer.is_open(0), balancer.is_down()), (true, false));
    assert!(!balancer.probed(1, false, seconds(1)), "no other is left to take over");
    assert!(!balancer.probed(1, false, seconds(2)));
    assert!(balancer.probed(1, false, seconds(3)));
    assert!(balancer.is_down());
}

#[test]
fn no_server_is_given_more_in_a_minute_than_it_may_have() {
    for seed in 0..20 {
        let (servers, requests, tokens) = (1 + (seed % 3) as usize, 30, 20_000);
        let mut world = World::new(seed, servers, STREAMS_MAX);
        let limits =
            Limits { streams: STREAMS_MAX, requests_per_minute: Some(requests), tokens_per_minute: Some(tokens) };
        world.balancer = Balancer::new(names(servers), limits);
        let mut given: Vec<(Duration, usize, u64)> = Vec::new();
        for _ in 0..2000 {
            world.now += Duration::from_millis(world.random.u64(..500));
            let (conversation, size) = (world.random.u64(..40), world.random.u64(1..2000));
            let can_take = world.balancer.can_take(size, world.now);
            match world.send(conversation, size) {
                Ok(replica) => {
                    assert!(can_take);
                    given.push((world.now, replica, size));
                }
                Err(Unavailable::Busy { retry_after }) => {
                    assert!(!can_take && world.balancer.can_take(size, world.now + retry_after), "seed {seed}");
                }
                Err(why) => panic!("{why:?}"),
            }
            // Answers are short, so that streams are never what is lacking.
            while world.running.len() > 10 {
                let (place, _) = world.running.remove(0);
                world.balancer.ended(place, Outcome::Answered, world.now);
            }
            given.retain(|(at, ..)| world.now - *at < seconds(60));
            for server in 0..servers {
                let own = || given.iter().filter(|(_, replica, _)| *replica == server);
                assert!(own().count() <= requests as usize, "seed {seed}");
                assert!(own().map(|(.., size)| size).sum::<u64>() <= u64::from(tokens), "seed {seed}");
            }
        }
    }
}

#[test]
fn what_is_known_about_a_server_outlives_a_change_of_the_others() {
    let limits = Limits { requests_per_minute: Some(4), ..limits(STREAMS_MAX) };
    let mut before = Balancer::new(names(2), limits);
    for _ in 0..3 {
        let place = before.choose(1, 10, &[0], seconds(0)).unwrap();
        before.ended(place, Outcome::Failed, seconds(0));
    }
    for _ in 0..3 {
        before.choose(1, 10, &[1], seconds(0)).unwrap();
    }
    let mut after = Balancer::new(names(3).skip(1).chain(names(1)), limits);
    after.go_on_from(&before);
    // The servers 1, 2 and 0: one is left out, one is new, one has room for one more.
    let states: Vec<(u32, bool)> = after.states().map(|(_, streams, is_well)| (streams, is_well)).collect();
    assert_eq!(states, [(0, false), (0, true), (0, true)], "streams end where they began");
    assert_eq!(after.due(seconds(1)), [0]);
    assert!(after.choose(1, 10, &[0, 1], seconds(1)).is_ok());
    assert_eq!(after.choose(1, 10, &[0, 1], seconds(1)), Err(Unavailable::Tried));
}
