//! The items of the simulation's prompts, with what a model knows of them: open handles, pieces left to encode, and the
//! handles placed on each sequence.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;

use crate::engine::{
    blocks::ItemSpan,
    items::{CheckedItem, Items},
    scheduler::{Plan, Scheduler, Span},
};
use pensieve_plugin_api::ext::media::NO_HANDLE;
use pensieve_protocol::media::ItemSize;

/// Number of different contents. Of two after one another, the tokens are equal.
const CONTENTS: u8 = 6;
const OPEN: u32 = 1;
const SLOT: u32 = 2;
const CLOSE: u32 = 3;
/// Number of steps in a row without a token, for which an encoder may be the reason.
const IDLE_MAX: u32 = 100;

#[derive(Clone, Copy)]
pub(super) struct MediaScenario {
    /// Probability that a prompt gets another item.
    pub(super) item: f64,
    /// Slots of an item see each other.
    pub(super) whole: bool,
    /// Memory for rows, of one byte each.
    pub(super) rows_max: u64,
    pub(super) batch_rows: u32,
    /// Probability that encoding fails.
    pub(super) broken: f64,
}

/// An item in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) start: usize,
    pub(super) content: u8,
}

pub(super) struct Media {
    scenario: MediaScenario,
    items: Items,
    /// Open items: content and number of pieces left; 0 for rows that may be read.
    open: BTreeMap<u64, (u8, u32)>,
    /// Handles placed on sequences, or on states of an opaque model.
    placed: BTreeMap<u64, Vec<u64>>,
    /// Sequences that each handle was placed on, at once or one after the other.
    users: BTreeMap<u64, BTreeSet<u64>>,
    idle: u32,
    pub(super) opened: u64,
    pub(super) closed_early: u64,
    pub(super) shared: u64,
}

impl Item {
    fn rows(self) -> usize {
        1 + usize::from(self.content / 2) * 5
    }

    /// The end of its tokens.
    pub(super) fn end(self) -> usize {
        self.start + self.rows() + 2
    }

    fn slots(self) -> std::ops::Range<usize> {
        self.start + 1..self.end() - 1
    }

    pub(super) fn span(self) -> ItemSpan {
        ItemSpan { tokens: self.start..self.end(), identity: [self.content; 32] }
    }

    /// Appends its tokens to a text.
    pub(super) fn write(self, tokens: &mut Vec<u32>) {
        assert_eq!(tokens.len(), self.start);
        tokens.push(OPEN);
        tokens.extend(std::iter::repeat_n(SLOT, self.rows()));
        tokens.push(CLOSE);
    }

    fn checked(self) -> CheckedItem {
        CheckedItem {
            range: self.start..self.end(),
            tokens: vec![SLOT; self.rows() + 2],
            slots: std::iter::once(self.slots()).collect(),
            size: ItemSize::default(),
            layout: Vec::new(),
            identity: [self.content; 32],
            rows: self.rows() as u32,
            bytes: self.rows() as u64,
            field: String::new(),
            prepared: vec![self.content].into(),
        }
    }
}

/// What stands for a token of a text in its fingerprint: a token of an item is its content's alone.
pub(super) fn token_of(items: &[Item], tokens: &[u32], at: usize) -> u32 {
    let item = items.iter().find(|item| (item.start..item.end()).contains(&at));
    tokens[at] + item.map_or(0, |item| 1000 * (u32::from(item.content) + 1))
}

impl Media {
    pub(super) fn new(scenario: MediaScenario) -> Self {
        let items = Items::new(scenario.rows_max, scenario.batch_rows);
        let (open, placed) = (BTreeMap::new(), BTreeMap::new());
        Self { scenario, items, open, placed, users: BTreeMap::new(), idle: 0, opened: 0, closed_early: 0, shared: 0 }
    }

    /// Loses all that a process has in memory.
    pub(super) fn restart(&mut self) {
        self.items = Items::new(self.scenario.rows_max, self.scenario.batch_rows);
        self.open.clear();
        self.placed.clear();
    }

    pub(super) fn runs(&self, items: &[Item]) -> Vec<std::ops::Range<usize>> {
        items.iter().filter(|_| self.scenario.whole).map(|item| item.slots()).collect()
    }

    /// Appends items to a prompt.
    pub(super) fn add(&self, rng: &mut Rng, tokens: &mut Vec<u32>, items: &mut Vec<Item>) {
        while rng.f64() < self.scenario.item {
            let item = Item { start: tokens.len(), content: rng.u8(0..CONTENTS) };
            item.write(tokens);
            items.push(item);
            let more = rng.usize(0..4);
            tokens.extend(std::iter::repeat_with(|| rng.u32(4..9)).take(more));
        }
    }

    pub(super) fn register(&mut self, scheduler: &mut Scheduler, sequence: u64, salt: u8, items: &[Item]) {
        let checked = items.iter().map(|item| item.checked()).collect();
        self.items.register(sequence, &[salt], checked);
        scheduler.set_gate(sequence, self.items.gate(sequence, 0));
    }

    pub(super) fn set_gates(&mut self, rng: &mut Rng, scheduler: &mut Scheduler) {
        let progress: Vec<(u64, usize)> = scheduler.progress().collect();
        scheduler.yield_prompts(self.items.has_work() && rng.bool());
        for (id, computed) in progress {
            scheduler.set_gate(id, self.items.gate(id, computed));
        }
    }

    /// Everything between a plan and its step. Returns the sequences that fail with an item.
    pub(super) fn encode(&mut self, rng: &mut Rng, scheduler: &mut Scheduler, plan: &Plan) -> Vec<u64> {
        for id in &plan.preempted {
            self.placed.remove(id);
            self.items.lost(*id);
            scheduler.set_gate(*id, self.items.gate(*id, 0));
        }
        plan.ended.iter().for_each(|(id, _)| self.forget(*id));
        let computes = |id: u64| plan.spans.iter().any(|span| span.sequence == id);
        let running: Vec<_> = scheduler.progress().map(|(id, done)| (id, done, computes(id))).collect();
        let gave_up = self.items.plan(&running);
        for (id, computed, _) in running.into_iter().filter(|(id, ..)| gave_up.contains(id)) {
            self.place(scheduler, id, computed);
        }
        self.close();
        self.idle = if plan.spans.is_empty() { self.idle + 1 } else { 0 };
        assert!(self.idle < IDLE_MAX, "nothing is computed, and {} bytes of rows are held", self.items.held_bytes());
        while let Some(item) = self.items.next_opening() {
            self.opened += 1;
            assert!(self.open.insert(item.handle, (item.prepared[0], rng.u32(1..5))).is_none(), "a handle in use");
        }
        let largest = Item { start: 0, content: CONTENTS - 1 }.rows() as u64;
        assert!(self.items.held_bytes() <= self.scenario.rows_max.max(largest), "rows beyond their memory");
        let mut failed = Vec::new();
        for _ in 0..rng.usize(0..4) {
            let batch = self.items.next_batch();
            if batch.is_empty() {
                break;
            }
            if rng.f64() < self.scenario.broken {
                let (closed, culprits) = self.items.batch_failed();
                assert_eq!(closed, batch);
                self.open.retain(|handle, _| !closed.contains(handle));
                failed.extend(culprits.into_iter().map(|(id, _)| id));
                continue;
            }
            let mut left = 0;
            for handle in &batch {
                let (_, pieces) = self.open.get_mut(handle).expect("an open handle");
                *pieces = pieces.saturating_sub(1);
                left += *pieces;
            }
            assert_eq!(self.items.encoded(left), Ok(()));
        }
        failed
    }

    pub(super) fn place_all(&mut self, scheduler: &Scheduler, plan: &Plan) {
        plan.spans.iter().for_each(|span| self.place(scheduler, span.sequence, span.tokens.start));
    }

    /// After a step: rows that were passed are kept or closed.
    pub(super) fn leave(&mut self, scheduler: &Scheduler, plan: &Plan) {
        plan.spans.iter().for_each(|span| self.place(scheduler, span.sequence, span.tokens.end));
        self.close();
    }

    fn place(&mut self, scheduler: &Scheduler, id: u64, computed: usize) {
        let Some(placed) = self.items.to_place(id, computed) else { return };
        let handles: Vec<u64> = placed.iter().map(|item| item.handle).collect();
        for handle in handles.iter().filter(|handle| **handle != NO_HANDLE) {
            assert_eq!(self.open.get(handle).map(|open| open.1), Some(0), "an item without rows is placed");
            let users = self.users.entry(*handle).or_default();
            self.shared += u64::from(users.insert(id) && users.len() > 1);
        }
        let on = scheduler.state_of(id);
        self.placed.insert(on, handles.clone());
        self.items.placed(id, on, handles);
    }

    fn close(&mut self) {
        for handle in self.items.take_unheld() {
            let placed = self.placed.values().any(|placed| placed.contains(&handle));
            assert!(!placed, "{handle} is closed while a sequence is placed on it");
            let (_, pieces) = self.open.remove(&handle).expect("an open handle");
            self.closed_early += u64::from(pieces > 0);
        }
    }

    /// A sequence ends. The state of an opaque model goes on without rows.
    pub(super) fn forget(&mut self, id: u64) {
        if let Some(placed) = self.items.placed_on(id).and_then(|on| self.placed.get_mut(&on)) {
            placed.fill(NO_HANDLE);
        }
        self.items.forget(id);
        self.close();
    }

    /// Checks that every slot of a span has its row.
    pub(super) fn check(&self, scheduler: &Scheduler, span: &Span, items: &[Item]) {
        let placed = self.placed.get(&scheduler.state_of(span.sequence));
        for (index, item) in items.iter().enumerate() {
            let slots = item.slots();
            if slots.start >= span.tokens.end || slots.end <= span.tokens.start {
                continue;
            }
            let handle = placed.map_or(NO_HANDLE, |placed| placed[index]);
            assert_eq!(self.open.get(&handle), Some(&(item.content, 0)), "rows of {item:?} for {span:?}");
            for border in [span.tokens.start, span.tokens.end] {
                assert!(!self.scenario.whole || border <= slots.start || border >= slots.end, "{span:?} cuts {item:?}");
            }
        }
    }

    /// Checks that only rows which were kept are left after the last sequence.
    pub(super) fn check_empty(&self) {
        let rows = |(content, pieces): &(u8, u32)| {
            assert_eq!(*pieces, 0, "rows that are not whole are kept");
            Item { start: 0, content: *content }.rows() as u64
        };
        let kept: u64 = self.open.values().map(rows).sum();
        assert!(self.items.is_empty() && self.items.held_bytes() == kept && kept <= self.scenario.rows_max);
    }
}
