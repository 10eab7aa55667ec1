//! Adapters on a model that only counts: which are evicted, which jobs wait, and that every job gets its turn.

#![allow(clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use pensieve_plugin_api::{AdapterData, LowRankPair};

use super::{AdapterHost, AdapterLease, Adapters, Ready, SpanAdapter, Waiting};
use crate::engine::formats::ReadAdapter;
use pensieve_protocol::{
    job::{AdapterUse, Failure, FailureCode, Job},
    wire::{Attachment, Location},
};

/// Counts an adapter's bytes as the rank of its only pair, which has half as many values.
#[derive(Default)]
struct Fake {
    held: BTreeMap<u32, u64>,
    last: u32,
    /// Rank of the largest adapter that it was ever given.
    most: u64,
}

impl AdapterHost for Fake {
    fn attach(&mut self, adapter: &AdapterData) -> Result<(u32, u64), Failure> {
        self.last += 1;
        let bytes = u64::from(adapter.pairs[0].rank);
        self.most = self.most.max(bytes);
        self.held.insert(self.last, bytes);
        Ok((self.last, bytes))
    }

    fn detach(&mut self, adapter: u32) {
        assert!(self.held.remove(&adapter).is_some(), "adapter {adapter} is not held");
    }
}

/// Longer than any test, except those about the wait.
const PATIENCE: Duration = Duration::from_secs(600);

struct World {
    adapters: Adapters,
    fake: Fake,
    limit: u64,
    /// The rank on disk under each path.
    disk: HashMap<String, Option<u32>>,
    running: Vec<(u64, AdapterLease)>,
    failed: Vec<(u64, FailureCode)>,
    overdue: Vec<u64>,
    attempts: u64,
}

impl World {
    fn new(limit: u64) -> Self {
        let (adapters, fake, disk) = (Adapters::new(limit, PATIENCE), Fake::default(), HashMap::new());
        let (running, failed, overdue) = (Vec::new(), Vec::new(), Vec::new());
        Self { adapters, fake, limit, disk, running, failed, overdue, attempts: 0 }
    }

    fn read(&self, path: &str) -> Result<ReadAdapter, Failure> {
        let Some(Some(rank)) = self.disk.get(path).copied() else {
            return Err(Failure::new(FailureCode::Invalid, format!("tensor 'x' of '{path}' is broken")));
        };
        let (a, b) = (vec![0.0; rank as usize / 2].into(), Vec::new().into());
        let pair = LowRankPair { target: "x".into(), rank, inputs: 1, outputs: 1, scale: 1.0, a, b };
        let data = AdapterData { base: "".into(), fingerprint: path.into(), pairs: vec![pair].into() };
        Ok(ReadAdapter { format: "fake".into(), data })
    }

    fn attach(&mut self, name: &str, bytes: u32) -> Attachment {
        self.disk.insert(name.into(), Some(bytes));
        let serial = self.begin(name)?;
        let (attempt, result) = self.adapters.take_in(serial, self.read(name), &mut self.fake).unwrap();
        assert_eq!(attempt, self.attempts);
        self.check();
        result
    }

    fn begin(&mut self, name: &str) -> Result<u64, Failure> {
        self.attempts += 1;
        self.adapters.begin(self.attempts, name, Location::trusted(name))
    }

    /// Submits a job as the engine does.
    fn job(&mut self, id: u64, name: &str) -> Result<(), Failure> {
        self.job_until(id, name, None)
    }

    fn job_until(&mut self, id: u64, name: &str, deadline: Option<Duration>) -> Result<(), Failure> {
        let wish = AdapterUse { name: name.into(), scale: 1.0 };
        let serial = self.adapters.find(&wish)?;
        if self.adapters.may_begin(serial) {
            self.enter(id, serial);
        } else {
            let job = Job { id, adapter: Some(wish), deadline, ..Job::default() };
            let (waited, since) = (Duration::ZERO, Instant::now());
            self.adapters.wait(Waiting { job, serial, constraint: None, waited, since, failure: None });
        }
        Ok(())
    }

    fn enter(&mut self, id: u64, serial: u64) {
        assert!(self.adapters.salt(serial, 1.0).is_some(), "job {id} begins without its adapter");
        let lease = self.adapters.lease(serial, 1.0).unwrap();
        assert!(self.fake.held.contains_key(&lease.span.id));
        self.running.push((id, lease));
    }

    fn running(&self) -> Vec<u64> {
        self.running.iter().map(|(id, _)| *id).collect()
    }

    fn span(&self, id: u64) -> SpanAdapter {
        self.running.iter().find(|(running, _)| *running == id).unwrap().1.span
    }

    fn end(&mut self, id: u64) {
        let index = self.running.iter().position(|(running, _)| *running == id).unwrap();
        let (_, lease) = self.running.remove(index);
        self.adapters.end(lease, &mut self.fake);
    }

    /// One turn of the loop, including every requested read.
    fn turn(&mut self) {
        for _ in 0..2 {
            self.begin_ready();
            for (serial, location) in self.adapters.take_wanted() {
                let read = self.read(location.path.to_str().unwrap());
                assert!(self.adapters.take_in(serial, read, &mut self.fake).is_none());
            }
            self.check();
        }
    }

    fn begin_ready(&mut self) {
        while let Some(ready) = self.adapters.next_ready(&mut self.fake) {
            match ready {
                Ready::Begin(waiting) => {
                    self.enter(waiting.job.id, waiting.serial);
                    self.adapters.let_go(waiting.serial, &mut self.fake);
                }
                Ready::Overdue(job) => self.overdue.push(job.id),
                Ready::Failed(id, failure) => self.failed.push((id, failure.code)),
            }
        }
    }

    fn check(&self) {
        let held: u64 = self.fake.held.values().sum();
        assert!(held <= self.limit, "{held} bytes are held");
        assert!(self.adapters.held() <= self.limit);
    }

    /// Names of the adapters in the model.
    fn loaded(&self) -> Vec<String> {
        self.adapters.stats().into_iter().filter(|adapter| adapter.loaded).map(|adapter| adapter.name).collect()
    }
}

#[test]
fn who_was_not_used_for_longest_leaves_and_comes_back_for_the_next_job() {
    let mut world = World::new(10);
    for name in ["a", "b", "c"] {
        assert_eq!(world.attach(name, 4).unwrap().bytes, 4);
    }
    assert_eq!((world.loaded(), world.adapters.counts()), (vec!["b".into(), "c".into()], (3, 1)));
    world.job(1, "b").unwrap();
    world.end(1);
    world.job(2, "a").unwrap();
    assert!(world.running.is_empty());
    world.turn();
    assert_eq!((world.loaded(), world.running()), (vec!["a".into(), "b".into()], vec![2]));
    assert_eq!(world.adapters.take_notes().len(), 2);
    assert_eq!(world.adapters.stats().len(), 3, "all of them may be named");
}

#[test]
fn who_is_used_stays_and_who_waits_for_room_is_not_passed_by() {
    let mut world = World::new(8);
    world.attach("a", 4).unwrap();
    world.attach("b", 4).unwrap();
    world.job(1, "a").unwrap();
    world.job(2, "b").unwrap();
    world.attach("c", 4).unwrap();
    assert_eq!(world.loaded(), ["a", "b"]);
    world.job(3, "c").unwrap();
    world.turn();
    world.job(4, "a").unwrap();
    world.turn();
    assert_eq!(world.running(), [1, 2], "job 4 does not keep job 3 waiting");
    world.end(2);
    world.turn();
    // Once there is room for job 3, job 4 need not wait while job 3's adapter is read.
    assert_eq!((world.running().as_slice(), world.loaded()), ([1, 4, 3].as_slice(), vec!["a".into(), "c".into()]));
}

#[test]
fn what_can_never_fit_is_refused() {
    let mut world = World::new(8);
    let failure = world.attach("a", 9).unwrap_err();
    assert!(failure.to_string().contains("'a' takes 9 bytes; all adapters of this model may take 8"), "{failure}");
    assert!(world.fake.held.is_empty() && world.adapters.stats().is_empty());
    assert_eq!(world.job(1, "a").unwrap_err().code, FailureCode::NotFound);
    world.attach("a", 8).unwrap();
    assert_eq!(world.attach("a", 1).unwrap_err().code, FailureCode::Conflict, "the name is taken");
    assert_eq!(world.fake.most, 9);
    let failure = world.attach("huge", 1000).unwrap_err();
    assert!(failure.message.contains("'huge' takes at least 1000 bytes"), "{failure}");
    assert_eq!(world.fake.most, 9, "the model saw nothing of it");
}

#[test]
fn a_detached_one_goes_with_its_last_job_and_its_name_is_free_at_once() {
    let mut world = World::new(10);
    world.attach("a", 4).unwrap();
    world.job(1, "a").unwrap();
    world.adapters.retire("a", &mut world.fake);
    assert_eq!(world.job(2, "a").unwrap_err().code, FailureCode::NotFound);
    world.attach("a", 5).unwrap();
    world.job(3, "a").unwrap();
    assert_ne!(world.span(1), world.span(3));
    world.end(1);
    assert_eq!(world.fake.held.values().sum::<u64>(), 5);
    // Now one that is on disk and that a job waits for.
    world.attach("b", 6).unwrap();
    assert_eq!(world.loaded(), ["a"]);
    world.job(4, "b").unwrap();
    world.turn();
    world.adapters.retire("b", &mut world.fake);
    world.end(3);
    world.turn();
    assert_eq!(world.running(), [4]);
    world.end(4);
    assert_eq!(world.adapters.stats().len(), 1);
    assert!(world.fake.held.len() <= 1);
}

#[test]
fn one_that_is_detached_while_it_is_read_does_not_come() {
    let mut world = World::new(10);
    world.disk.insert("a".into(), Some(4));
    let serial = world.begin("a").unwrap();
    assert_eq!(world.job(1, "a").unwrap_err().code, FailureCode::NotFound, "it is not there yet");
    world.adapters.retire("a", &mut world.fake);
    // Its name is free for a second attempt, and each result says which attempt it belongs to.
    let again = world.begin("a").unwrap();
    let (attempt, result) = world.adapters.take_in(again, world.read("a"), &mut world.fake).unwrap();
    assert_eq!((attempt, result.map(|attached| attached.bytes)), (2, Ok(4)));
    let (attempt, result) = world.adapters.take_in(serial, world.read("a"), &mut world.fake).unwrap();
    assert!(attempt == 1 && result.unwrap_err().message.contains("was detached while it was read"));
    world.adapters.retire("a", &mut world.fake);
    assert!(world.fake.held.is_empty() && world.adapters.known.is_empty());
}

#[test]
fn one_that_cannot_be_read_again_fails_its_jobs_and_nothing_else() {
    let mut world = World::new(4);
    world.attach("a", 4).unwrap();
    world.attach("b", 4).unwrap();
    world.disk.insert("a".into(), None);
    world.job(1, "a").unwrap();
    world.job(2, "a").unwrap();
    world.turn();
    world.turn();
    assert_eq!(world.failed, [(1, FailureCode::Invalid), (2, FailureCode::Invalid)]);
    world.disk.insert("a".into(), Some(5));
    world.job(3, "a").unwrap();
    world.turn();
    world.turn();
    assert_eq!(world.failed[2], (3, FailureCode::Unsupported), "it has grown too large meanwhile");
    world.job(4, "b").unwrap();
    world.turn();
    assert_eq!(world.running(), [4]);
}

#[test]
fn a_job_does_not_wait_beyond_its_deadline() {
    let mut world = World::new(4);
    world.attach("a", 4).unwrap();
    world.job(1, "a").unwrap();
    world.attach("b", 4).unwrap();
    world.job_until(2, "b", Some(Duration::ZERO)).unwrap();
    world.job(3, "b").unwrap();
    world.turn();
    assert_eq!((world.overdue.as_slice(), world.adapters.waiting()), ([2].as_slice(), 1));
    assert_eq!(world.adapters.cancel(3, &mut world.fake).unwrap().id, 3);
    assert_eq!(world.adapters.waiting(), 0);
}

#[test]
fn who_is_not_going_to_begin_hears_of_it_behind_whoever_waits_for_room() {
    let mut world = World::new(8);
    for name in ["a", "b", "c"] {
        world.attach(name, 4).unwrap();
    }
    world.job(1, "b").unwrap();
    world.job(2, "c").unwrap();
    world.attach("d", 4).unwrap();
    world.job(3, "a").unwrap();
    world.job_until(4, "a", Some(Duration::ZERO)).unwrap();
    world.job_until(5, "d", Some(Duration::ZERO)).unwrap();
    world.job(6, "d").unwrap();
    world.turn();
    assert_eq!((world.overdue.as_slice(), world.adapters.waiting()), ([4, 5].as_slice(), 2));
    world.adapters.cancel(6, &mut world.fake).unwrap();
    assert_eq!((world.running().as_slice(), world.adapters.waiting()), ([1, 2].as_slice(), 1));
}

#[test]
fn one_that_a_job_waits_for_makes_no_room_for_a_newcomer() {
    let mut world = World::new(8);
    for name in ["a", "b", "c"] {
        world.attach(name, 4).unwrap();
    }
    world.job(1, "c").unwrap();
    world.job(2, "a").unwrap();
    world.begin_ready();
    let (serial, _) = world.adapters.take_wanted().pop().unwrap();
    assert!(world.adapters.take_in(serial, world.read("a"), &mut world.fake).is_none());
    world.attach("new", 4).unwrap();
    assert_eq!(world.loaded(), ["a", "c"]);
    world.begin_ready();
    assert_eq!(world.running(), [1, 2]);
}

#[test]
fn jobs_do_not_wait_for_a_format_that_hangs() {
    let mut world = World::new(4);
    world.adapters = Adapters::new(4, Duration::ZERO);
    world.attach("a", 4).unwrap();
    world.attach("b", 4).unwrap();
    world.job(1, "a").unwrap();
    world.begin_ready();
    world.begin_ready();
    assert_eq!(world.failed, [(1, FailureCode::Stalled)]);
    let (serial, _) = world.adapters.take_wanted().pop().unwrap();
    // While its read hangs, it is not read a second time.
    world.job(2, "a").unwrap();
    world.begin_ready();
    assert_eq!((world.failed.last(), world.adapters.take_wanted().len()), (Some(&(2, FailureCode::Stalled)), 0));
    // It returns too late to be kept; the next job has it read again.
    assert!(world.adapters.take_in(serial, world.read("a"), &mut world.fake).is_none());
    world.check();
    assert_eq!(world.loaded(), Vec::<String>::new());
    world.job(3, "a").unwrap();
    world.begin_ready();
    assert_eq!(world.adapters.take_wanted().len(), 1);
}

#[test]
fn everybodys_turn_comes_whatever_the_order() {
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut world = World::new(12);
        let mut next = 1;
        for _ in 0..200 {
            let name = format!("a{}", random.u32(..6));
            match random.u32(..10) {
                0 | 1 => drop(world.attach(&name, random.u32(1..13))),
                2 => world.adapters.retire(&name, &mut world.fake),
                3..6 => {
                    // It may name an adapter that does not exist.
                    let _ = world.job(next, &name);
                    next += 1;
                }
                6 if world.adapters.waiting() > 0 => drop(world.adapters.cancel(random.u64(1..next), &mut world.fake)),
                7 | 8 if !world.running.is_empty() => {
                    let index = random.usize(..world.running.len());
                    world.end(world.running()[index]);
                }
                _ => world.turn(),
            }
        }
        let mut turns = 0;
        while !world.running.is_empty() || world.adapters.waiting() > 0 {
            if let Some(id) = world.running().first().copied() {
                world.end(id);
            }
            world.turn();
            turns += 1;
            assert!(turns < 1000, "seed {seed}: {} jobs wait for ever", world.adapters.waiting());
        }
        let known: Vec<String> = world.adapters.stats().into_iter().map(|adapter| adapter.name).collect();
        known.iter().for_each(|name| world.adapters.retire(name, &mut world.fake));
        assert!(world.fake.held.is_empty() && world.adapters.known.is_empty(), "seed {seed}: something stayed");
    }
}
