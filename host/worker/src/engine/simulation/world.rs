//! The random clients, disk and model, and the assertions on every step.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use fastrand::Rng;
use pensieve_plugin_api::{Checkpoint, VACANT};

use super::{
    Scenario,
    media::{Item, Media, token_of},
};
use crate::engine::{
    blocks::{BlockTable, CacheLocation, Key, Kind, Layout, Record},
    scheduler::{Ended, Plan, Reading, Refused, Request, Scheduler, Span},
    states::Change,
};
use pensieve_protocol::share::ONLY_CLIENT;

const SECRET: [u8; 16] = *b"a secret of test";
const LIVE_MAX: usize = 30;

/// Probabilities per step or per request.
#[derive(Clone)]
pub(super) struct Odds {
    pub(super) arrival: f64,
    pub(super) cancel: f64,
    pub(super) deadline: f64,
    /// The model fails, and with it every sequence of the step.
    pub(super) broken_step: f64,
    pub(super) spill: f64,
    pub(super) failed_import: f64,
    /// A block on disk turns out to be unreadable.
    pub(super) lost: f64,
    pub(super) restart: f64,
}

impl Default for Odds {
    fn default() -> Self {
        Self {
            arrival: 0.3,
            cancel: 0.005,
            deadline: 0.02,
            broken_step: 0.0,
            spill: 0.2,
            failed_import: 0.0,
            lost: 0.0,
            restart: 0.0,
        }
    }
}

/// Event counts of a run.
#[derive(Debug, Default)]
pub(super) struct Totals {
    pub(super) steps: u64,
    pub(super) computed: usize,
    pub(super) reused: usize,
    pub(super) finished: u64,
    pub(super) cancelled: u64,
    pub(super) expired: u64,
    pub(super) outgrown: u64,
    pub(super) preempted: u64,
    pub(super) imported: u64,
    pub(super) failed_imports: u64,
    pub(super) restarts: u64,
    pub(super) longest_life: u64,
}

struct Live {
    client: u64,
    salt: u8,
    items: Vec<Item>,
    /// `prints[i]` identifies the salt and the tokens up to and including `i`.
    prints: Vec<u64>,
    goal: usize,
    born: u64,
    deadline: Option<Duration>,
    computed: usize,
    started: bool,
    /// Per client, how many of its sequences were admitted while this one was the head of its client's queue.
    passed_by: BTreeMap<u64, u32>,
}

pub(super) struct World {
    pub(super) totals: Totals,
    scenario: Scenario,
    rng: Rng,
    scheduler: Scheduler,
    now: Duration,
    next_id: u64,
    live: BTreeMap<u64, Live>,
    /// Texts that a prompt may start with.
    beginnings: Vec<(u8, Vec<u32>, Vec<Item>)>,
    pub(super) media: Option<Media>,
    /// Contents of each group's blocks, one fingerprint per token, or of its slots, the last token's.
    memory: Vec<Vec<Vec<u64>>>,
    /// The tokens seen by each state of an opaque model.
    states: BTreeMap<u64, Vec<u64>>,
    disk: HashMap<(Key, usize), (Record, Vec<u64>)>,
}

impl World {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let (mut rng, alphabet) = (Rng::with_seed(scenario.seed), scenario.alphabet);
        let beginnings = (0..12)
            .map(|i| (i % 3, (0..rng.usize(0..30)).map(|_| rng.u32(0..alphabet)).collect(), Vec::new()))
            .collect();
        let scheduler = Scheduler::new(scenario.config, None);
        let mut world = Self {
            totals: Totals::default(),
            scenario: scenario.clone(),
            rng,
            scheduler,
            now: Duration::ZERO,
            next_id: 1,
            live: BTreeMap::new(),
            beginnings,
            media: scenario.media.map(Media::new),
            memory: Vec::new(),
            states: BTreeMap::new(),
            disk: HashMap::new(),
        };
        world.start();
        world
    }

    pub(super) fn step(&mut self) {
        for _ in 0..2 {
            if self.live.len() < LIVE_MAX && self.chance(self.scenario.odds.arrival) {
                self.arrive();
            }
        }
        self.turn();
        if self.chance(self.scenario.odds.restart) {
            self.totals.restarts += 1;
            self.live.clear();
            self.start();
        }
    }

    /// Lets all remaining sequences finish, and checks what they leave behind.
    pub(super) fn drain(&mut self) {
        while !self.live.is_empty() {
            self.turn();
        }
        assert_eq!((self.scheduler.running(), self.scheduler.waiting()), (0, 0));
        if let Some(blocks) = self.scheduler.blocks() {
            assert_eq!(blocks.usage().active, 0, "blocks of nobody");
        }
        self.media.iter().for_each(Media::check_empty);
    }

    fn chance(&mut self, odds: f64) -> bool {
        self.rng.f64() < odds
    }

    /// Starts a new process: memory is lost, the disk is indexed again.
    fn start(&mut self) {
        self.states.clear();
        self.media.iter_mut().for_each(Media::restart);
        let blocks = self.scenario.layout.clone().map(|layout| {
            let mut table = BlockTable::new(layout.clone(), &SECRET);
            if let Some(bits) = self.scenario.key_bits {
                table.weaken_keys(bits);
            }
            let memory = layout.groups.iter().map(|group| {
                let prints = if group.kind == Kind::State { 1 } else { layout.block_tokens };
                vec![vec![0; prints]; group.capacity as usize]
            });
            self.memory = memory.collect();
            let mut records: Vec<Record> = self.disk.values().map(|(record, _)| record.clone()).collect();
            records.sort_by_key(|record| (record.key, record.group));
            if let Some(record) = self.rng.choice(&mut records) {
                record.tokens[0] ^= 1;
            }
            table.restore(&records);
            table
        });
        self.scheduler = Scheduler::new(self.scenario.config, blocks);
        if self.scenario.copies {
            self.scheduler.states().allow_copies();
        }
        self.delete_dropped();
    }

    fn arrive(&mut self) {
        let (salt, mut prompt, mut items) = self.rng.choice(&self.beginnings).cloned().unwrap_or_default();
        let (tail, alphabet) = (self.rng.usize(0..20), self.scenario.alphabet);
        if let Some(media) = &self.media {
            media.add(&mut self.rng, &mut prompt, &mut items);
        }
        prompt.extend(std::iter::repeat_with(|| self.rng.u32(0..alphabet)).take(tail));
        let goal = prompt.len() + self.rng.usize(1..self.scenario.answer_max);
        let siblings = if self.chance(0.1) { 3 } else { 1 };
        for _ in 0..siblings {
            let deadline = self
                .chance(self.scenario.odds.deadline)
                .then(|| self.now + Duration::from_millis(self.rng.u64(0..3_000)));
            let (sequence, client) = (self.next_id, u64::from(salt) * 10 + self.rng.u64(0..2));
            let request = Request {
                sequence,
                client,
                salt: vec![salt],
                prompt: prompt.clone(),
                items: items.iter().map(|item| item.span()).collect(),
                runs: self.media.as_ref().map_or_else(Vec::new, |media| media.runs(&items)),
                reading: Reading::Shared,
                row: self.next_id.is_multiple_of(5),
                deadline,
            };
            match self.scheduler.submit(request) {
                Ok(()) => {}
                Err(Refused::Empty) => return assert!(prompt.is_empty()),
                Err(Refused::Busy { waiting }) => {
                    let left = self.scenario.config.waiting_max.saturating_sub(waiting);
                    let own = self.live.values().filter(|live| live.client == client).count();
                    return assert!(left == 0 || client != ONLY_CLIENT && own + 1 > 3 * (left - 1));
                }
                Err(Refused::TooLong { room, .. }) => return assert!(prompt.len() >= room),
                Err(Refused::RunTooLong { run, most }) => return assert!(run > most),
                Err(Refused::Duplicate) => panic!("{sequence} is new"),
            }
            self.next_id += 1;
            let mut prints = Vec::new();
            for at in 0..prompt.len() {
                prints.push(print_of(&prints, salt, token_of(&items, &prompt, at)));
            }
            if let Some(media) = &mut self.media {
                media.register(&mut self.scheduler, sequence, salt, &items);
            }
            let items = items.clone();
            let (born, passed_by) = (self.totals.steps, BTreeMap::new());
            let live =
                Live { client, salt, items, prints, goal, born, deadline, computed: 0, started: false, passed_by };
            self.live.insert(sequence, live);
        }
    }

    fn turn(&mut self) {
        if self.chance(self.scenario.odds.cancel)
            && let Some(&id) = self.rng.choice(self.live.keys().collect::<Vec<_>>())
        {
            self.totals.cancelled += 1;
            self.forget(id);
        }
        self.spill();
        let oldest = self.scheduler.running_ids().first().copied();
        if let Some(media) = &mut self.media {
            media.set_gates(&mut self.rng, &mut self.scheduler);
        }
        let plan = self.scheduler.plan(self.now);
        assert!(oldest.is_none_or(|oldest| !plan.preempted.contains(&oldest)), "the oldest gave up its blocks");
        self.totals.preempted += plan.preempted.len() as u64;
        self.note_ended(&plan);
        self.note_let_in(&plan);
        let importing = self.import();
        let plan = self.encode(plan);
        assert!(
            !plan.spans.is_empty()
                || importing
                || !plan.ended.is_empty()
                || self.live.is_empty()
                || self.media.is_some(),
            "nobody gets on although {} wait",
            self.live.len()
        );
        for span in &plan.spans {
            if let (Some(media), Some(live)) = (&self.media, self.live.get(&span.sequence)) {
                media.check(&self.scheduler, span, &live.items);
            }
            self.compute(span);
        }
        if self.chance(self.scenario.odds.broken_step) {
            for span in &plan.spans {
                self.totals.cancelled += 1;
                self.forget(span.sequence);
            }
        } else {
            let elapsed = Duration::from_millis(self.rng.u64(5..60));
            self.now += elapsed;
            self.scheduler.done(&plan, elapsed);
            if let Some(media) = &mut self.media {
                media.leave(&self.scheduler, &plan);
            }
            self.sample(&plan);
        }
        self.totals.steps += u64::from(!plan.spans.is_empty());
        if let Some(blocks) = self.scheduler.blocks() {
            blocks.check_invariants();
        }
    }

    /// Lets the encoder work, and drops the spans of sequences that fail with an item.
    fn encode(&mut self, mut plan: Plan) -> Plan {
        let Some(media) = &mut self.media else { return plan };
        for id in media.encode(&mut self.rng, &mut self.scheduler, &plan) {
            self.totals.cancelled += 1;
            self.forget(id);
        }
        plan.spans.retain(|span| self.live.contains_key(&span.sequence));
        if let Some(media) = &mut self.media {
            media.place_all(&self.scheduler, &plan);
        }
        plan
    }

    fn forget(&mut self, id: u64) {
        if let Some(media) = &mut self.media {
            media.forget(id);
        }
        self.scheduler.finish(id);
        self.live.remove(&id);
        assert_eq!(self.scheduler.cache_locations(id).count(), 0);
    }

    fn note_ended(&mut self, plan: &Plan) {
        for (id, reason) in &plan.ended {
            let Some(live) = self.live.remove(id) else { panic!("{id} ended twice") };
            match reason {
                Ended::Deadline => {
                    self.totals.expired += 1;
                    assert!(live.deadline.is_some_and(|at| at <= self.now));
                }
                Ended::NoRoom => {
                    self.totals.outgrown += 1;
                    let room = self.scheduler.blocks().map_or(0, |blocks| blocks.room());
                    assert!(live.prints.len() > room, "{} tokens fit into {room}", live.prints.len());
                }
            }
        }
        let late = |live: &Live| live.deadline.is_some_and(|at| at <= self.now);
        assert!(!self.live.values().any(late), "a deadline was passed over");
    }

    /// A sequence admitted for the first time must have been the head of its client's queue, and no client is admitted
    /// twice before the head of another's queue.
    fn note_let_in(&mut self, plan: &Plan) {
        let let_in = |live: &BTreeMap<u64, Live>, id: &u64| live.get(id).is_some_and(|live| !live.started);
        let oldest_first = self.scheduler.running_ids().iter().chain(plan.preempted.iter().rev());
        let new: Vec<u64> = oldest_first.copied().filter(|id| let_in(&self.live, id)).collect();
        for id in new {
            let client = self.live[&id].client;
            let mut heads = BTreeMap::new();
            for (other, live) in self.live.iter().filter(|(_, live)| !live.started) {
                heads.entry(live.client).or_insert(*other);
            }
            assert_eq!(heads.remove(&client), Some(id), "requests of client {client} keep their order");
            for head in heads.values() {
                let Some(head) = self.live.get_mut(head) else { continue };
                *head.passed_by.entry(client).or_insert(0) += 1;
            }
            let Some(live) = self.live.get_mut(&id) else { continue };
            live.started = true;
            assert!(live.passed_by.values().all(|times| *times <= 1), "{id} was passed by: {:?}", live.passed_by);
        }
        for id in &plan.preempted {
            self.live.entry(*id).and_modify(|live| live.computed = 0);
        }
    }

    /// Copies some of the blocks that sequences wait for; returns true if any waits.
    fn import(&mut self) -> bool {
        let waits = self.scheduler.next_import().is_some();
        for _ in 0..self.rng.usize(1..6) {
            let Some(import) = self.scheduler.next_import() else { break };
            let found = self.disk.get(&(import.key, import.group)).map(|(_, bytes)| bytes.clone());
            let done = found.is_some() && !self.chance(self.scenario.odds.failed_import);
            if let (true, Some(bytes)) = (done, found) {
                let (group, place) = (import.group, import.location);
                let private = self.scheduler.blocks().is_some_and(|blocks| blocks.is_private(group, place));
                assert!(private, "an import would overwrite {place} of group {group}");
                if let Some(memory) = self.memory.get_mut(group) {
                    memory[place as usize] = bytes;
                }
                self.totals.imported += 1;
            } else {
                self.totals.failed_imports += 1;
            }
            self.scheduler.imported(import, done);
            self.delete_dropped();
        }
        waits
    }

    /// The model: checks the past, and adds to it.
    fn compute(&mut self, span: &Span) {
        let Some(layout) = self.scenario.layout.clone() else { return self.compute_opaque(span) };
        let Some(live) = self.live.get_mut(&span.sequence) else { panic!("{} is not alive", span.sequence) };
        assert!(span.tokens.start >= live.computed, "a token is computed twice");
        // Reused blocks are compared in full; the rest was compared before and is only sampled.
        let all = span.tokens.start != live.computed || self.rng.u8(0..16) == 0;
        self.totals.reused += span.tokens.start - live.computed;
        self.totals.computed += span.tokens.len();
        live.computed = span.tokens.end;
        let prints = live.prints.clone();
        let places: Vec<Owned> = self.scheduler.cache_locations(span.sequence).map(Owned::from).collect();
        assert_eq!(places.len(), layout.groups.len(), "each group has a table");
        for (group, places) in places.iter().enumerate() {
            match places {
                Owned::Blocks(table) => self.compute_blocks(span, group, table, &prints, all, &layout),
                Owned::Slots(read, write, checkpoints) => {
                    let before = span.tokens.start.checked_sub(1);
                    let found = before.map(|_| self.memory[group][*read as usize][0]);
                    assert_eq!(found, before.map(|last| prints[last]), "the state of {}", span.sequence);
                    assert_eq!(*read == VACANT, before.is_none(), "a blank state comes before the first token alone");
                    let writes = checkpoints.iter().map(|copy| (copy.after as usize, copy.slot));
                    for (after, slot) in writes.chain([(span.tokens.end, *write)]) {
                        assert!(after > span.tokens.start && after <= span.tokens.end, "a copy after {after}");
                        self.memory[group][slot as usize][0] = prints[after - 1];
                        let private = self.scheduler.blocks().is_some_and(|blocks| blocks.is_private(group, slot));
                        assert!(private, "slot {slot} of group {group} is shared, but written to");
                    }
                }
            }
        }
    }

    fn compute_blocks(&mut self, span: &Span, group: usize, table: &[u32], prints: &[u64], all: bool, layout: &Layout) {
        let tokens = layout.block_tokens;
        let seen = match layout.groups[group].kind {
            Kind::Window(window) => (span.tokens.start + 1).saturating_sub(window),
            _ => 0,
        };
        let near = span.tokens.start - span.tokens.start.min(tokens);
        for i in if all { seen } else { seen.max(near) }..span.tokens.start {
            let block = table[i / tokens];
            assert_ne!(block, VACANT, "token {i} of {} was given back in group {group}", span.sequence);
            assert_eq!(self.memory[group][block as usize][i % tokens], prints[i], "token {i} of {}", span.sequence);
        }
        for i in span.tokens.clone() {
            self.memory[group][table[i / tokens] as usize][i % tokens] = prints[i];
        }
        let Some(blocks) = self.scheduler.blocks() else { return };
        let written = &table[span.tokens.start / tokens..=(span.tokens.end - 1) / tokens];
        let shared = written.iter().position(|block| !blocks.is_private(group, *block));
        assert_eq!(
            shared,
            None,
            "a shared block of group {group} was written to by {span:?}: {:?}",
            blocks.of(span.sequence)
        );
    }

    fn compute_opaque(&mut self, span: &Span) {
        let changes = self.scheduler.states().take_changes();
        changes.into_iter().for_each(|change| self.change(change));
        let Some(live) = self.live.get_mut(&span.sequence) else { panic!("{} is not alive", span.sequence) };
        let state = self.states.entry(self.scheduler.state_of(span.sequence)).or_default();
        assert_eq!(*state, live.prints[..span.tokens.start], "a state holds every token once, and no other's");
        state.extend(&live.prints[span.tokens.clone()]);
        assert!(self.states.len() <= self.scenario.config.sequences_max, "there is no room for another state");
        self.totals.reused += span.tokens.start - live.computed;
        live.computed = span.tokens.end;
        self.totals.computed += span.tokens.len();
    }

    fn change(&mut self, change: Change) {
        match change {
            // A sequence that ends before its first step has a state that the model has never seen.
            Change::Drop(state) => drop(self.states.remove(&state)),
            Change::Copy { from, to } => {
                let copy = self.states[&from].clone();
                assert!(self.states.insert(to, copy).is_none(), "state {to} exists");
                assert!(self.states.len() <= self.scenario.config.sequences_max, "there is no room for a copy");
            }
        }
    }

    /// Samples the next token from everything before it, as a greedy model does.
    fn sample(&mut self, plan: &Plan) {
        for span in &plan.spans {
            let Some(live) = self.live.get_mut(&span.sequence) else { continue };
            assert_eq!(span.logits, span.tokens.end == live.prints.len());
            if !span.logits {
                continue;
            }
            let token = (live.prints[live.prints.len() - 1] >> 20) as u32 % self.scenario.alphabet;
            live.prints.push(print_of(&live.prints, live.salt, token));
            self.scheduler.push(span.sequence, token);
            if live.prints.len() < live.goal {
                continue;
            }
            let life = self.totals.steps - live.born;
            self.totals.longest_life = self.totals.longest_life.max(life);
            assert!(life <= self.scenario.patience, "{} took {life} steps", span.sequence);
            self.totals.finished += 1;
            if self.rng.u8(0..3) == 0 {
                let text = self.scheduler.tokens(span.sequence).to_vec();
                let place = self.rng.usize(0..self.beginnings.len());
                let most = self.scenario.beginning_max;
                let text = if text.len() < most { text } else { text[..self.rng.usize(0..most)].to_vec() };
                let mut items = live.items.clone();
                let cut = items.iter().find(|item| item.end() > text.len()).map_or(text.len(), |item| item.start);
                items.retain(|item| item.end() <= cut);
                self.beginnings[place] = (live.salt, text[..cut.min(text.len())].to_vec(), items);
            }
            self.forget(span.sequence);
        }
        let patience = self.scenario.patience;
        assert!(self.live.values().all(|live| self.totals.steps - live.born <= patience), "somebody starves");
    }

    fn spill(&mut self) {
        let (spills, loses) = (self.chance(self.scenario.odds.spill), self.chance(self.scenario.odds.lost));
        let (window, count) = (self.rng.usize(0..40), self.rng.usize(0..12));
        let Some(blocks) = self.scheduler.blocks() else { return };
        let lost = self.disk.keys().min().copied();
        if let Some(lost) = lost.filter(|_| loses) {
            blocks.lost(lost.0, lost.1);
        }
        self.delete_dropped();
        let Some(blocks) = self.scheduler.blocks().filter(|_| spills) else { return };
        for spill in blocks.to_spill(window, count) {
            let key = (spill.record.key, spill.record.group);
            let bytes = self.memory.get(key.1).map(|memory| memory[spill.location as usize].clone());
            blocks.spilled(key.0, key.1);
            let before = self.disk.insert(key, (spill.record, bytes.unwrap_or_default()));
            assert!(before.is_none(), "it was on disk already");
        }
        self.delete_dropped();
    }

    fn delete_dropped(&mut self) {
        let Some(blocks) = self.scheduler.blocks() else { return };
        for key in blocks.take_dropped() {
            assert!(self.disk.remove(&key).is_some(), "{key:?} is to be deleted, but is not there");
        }
        assert_eq!(self.disk.len(), blocks.usage().disk);
        assert!(blocks.on_disk().all(|key| self.disk.contains_key(&key)));
    }
}

/// An owned copy of the scheduler's answer about a group.
enum Owned {
    Blocks(Vec<u32>),
    Slots(u32, u32, Vec<Checkpoint>),
}

impl From<CacheLocation<'_>> for Owned {
    fn from(places: CacheLocation<'_>) -> Self {
        match places {
            CacheLocation::Blocks(blocks) => Self::Blocks(blocks.to_vec()),
            CacheLocation::Slots { read, write, checkpoints } => Self::Slots(read, write, checkpoints.to_vec()),
        }
    }
}

/// Fingerprint of a text: that of the preceding text, combined with a token.
fn print_of(before: &[u64], salt: u8, token: u32) -> u64 {
    let mixed = before.last().map_or(u64::from(salt), |last| *last) ^ (u64::from(token) << 32 | before.len() as u64);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
