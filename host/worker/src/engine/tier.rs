//! The disk tier of the prefix cache: decides when blocks are spilled and imported. Copies run on the engine's thread,
//! as no other may touch the model's memory, so each turn gets a few: before a step only when memory is about to run
//! out, and the rest while no job runs. After a failed write, writing pauses for a while; reads continue. A folder held
//! by another worker of the same model, usually one that is draining, is taken over as soon as that worker exits.

use std::time::{Duration, Instant};

use super::{
    blocks::{BlockTable, Group, Layout},
    model::Model,
    scheduler::Scheduler,
    store::Store,
};

/// When fewer than one in this many blocks is free, cached ones are spilled ahead of need.
const FREE_SHARE: usize = 8;
/// Number of coldest blocks considered before a step.
const WINDOW: usize = 32;
const BLOCKS_PER_STEP: usize = 2;
const BLOCKS_PER_IDLE_TURN: usize = 8;
/// A turn without jobs ends after the block that takes it past this: a request may come meanwhile, and waits. From a GPU a
/// block takes some milliseconds.
const IDLE_TURN: Duration = Duration::from_millis(2);
/// Pause after a failed write.
const REST: Duration = Duration::from_secs(30);
/// Interval between attempts to take over the folder from another worker.
const LOOK: Duration = Duration::from_secs(1);

/// The disk tier of one model; does nothing if none is configured.
#[derive(Default)]
pub struct Tier {
    store: Option<Store>,
    /// Buffer for a block or slot of any group.
    buffer: Vec<u8>,
    resting: Option<Instant>,
    looked: Option<Instant>,
    /// Warnings for the log.
    troubles: Vec<String>,
}

impl Tier {
    pub fn new(store: Option<Store>) -> Self {
        Self { store, ..Self::default() }
    }

    /// Builds a model's block table, including what an earlier run left on disk; `None` for an opaque model.
    pub(super) fn table(&mut self, model: &Model) -> Option<BlockTable> {
        let groups = model.groups()?;
        let groups = groups.into_iter().enumerate().map(|(group, (kind, capacity))| {
            let disk_bytes = self.store.as_ref().map_or(0, |store| store.file_bytes(group));
            Group { kind, capacity, disk_bytes }
        });
        let layout = Layout {
            block_tokens: model.card.block_tokens as usize,
            groups: groups.collect(),
            disk_bytes: self.store.as_ref().map_or(0, Store::budget),
        };
        let Some(store) = &self.store else {
            return Some(BlockTable::new(layout, &secret_of_this_run()));
        };
        let mut table = BlockTable::new(layout, store.secret());
        if store.is_taken() {
            self.restore(&mut table);
        }
        Some(table)
    }

    /// Adds the records on disk to the table.
    fn restore(&mut self, table: &mut BlockTable) {
        let Some(store) = &self.store else { return };
        match store.records() {
            Ok(records) => table.restore(&records),
            Err(error) => self.troubles.push(format!("the cache on disk cannot be listed: {error}")),
        }
        for (key, group) in table.take_dropped() {
            store.remove(key, group);
        }
    }

    /// Returns true if the folder is this worker's; tries to take it over if not.
    fn take_over(&mut self, scheduler: &mut Scheduler) -> bool {
        let (Some(store), Some(table)) = (&mut self.store, scheduler.blocks()) else { return false };
        if store.is_taken() {
            return true;
        }
        if self.looked.is_some_and(|since| since.elapsed() < LOOK) {
            return false;
        }
        self.looked = Some(Instant::now());
        match store.take() {
            Ok(false) => return false,
            Ok(true) => self.restore(table),
            Err(error) => {
                self.troubles.push(format!("this model goes on without its cache on disk: {error}"));
                self.store = None;
            }
        }
        self.store.is_some()
    }

    /// Returns the log warnings since the last call.
    pub fn take_troubles(&mut self) -> Vec<String> {
        std::mem::take(&mut self.troubles)
    }

    /// Imports blocks that sequences wait for: at least one, and more within `patience`. Returns true if any was tried.
    pub(super) fn import(&mut self, scheduler: &mut Scheduler, model: &mut Model, patience: Duration) -> bool {
        let Some(store) = self.store.as_ref().filter(|_| scheduler.next_import().is_some()) else { return false };
        let mut transfer = model.transfer();
        let until = Instant::now() + patience;
        let mut tried = false;
        while let Some(import) = scheduler.next_import() {
            self.buffer.resize(store.group_bytes(import.group), 0);
            let read = store.read(import.key, import.group, &mut self.buffer);
            let done = match &mut transfer {
                // A primary group added by the table has no bytes, and the model does not know it.
                _ if self.buffer.is_empty() => read.is_ok(),
                Ok(transfer) => {
                    read.is_ok() && transfer.import(import.group as u32, import.location, &self.buffer).is_ok()
                }
                Err(_) => false,
            };
            scheduler.imported(import, done);
            tried = true;
            if Instant::now() >= until {
                break;
            }
        }
        tried
    }

    /// Spills a few blocks that are about to be evicted.
    pub(super) fn spill_before_step(&mut self, scheduler: &mut Scheduler, model: &mut Model) {
        let is_there = self.take_over(scheduler);
        if scheduler.blocks().is_some_and(|blocks| is_there && blocks.is_scarce(FREE_SHARE)) {
            self.spill(scheduler, model, WINDOW, BLOCKS_PER_STEP, Duration::MAX);
        }
    }

    /// Spills some cached blocks. Returns false once none is left to spill.
    pub(super) fn spill_when_idle(&mut self, scheduler: &mut Scheduler, model: &mut Model) -> bool {
        self.take_over(scheduler) && self.spill(scheduler, model, usize::MAX, BLOCKS_PER_IDLE_TURN, IDLE_TURN) > 0
    }

    /// Spills up to `count` of the `window` coldest blocks, at least one of them and no further one after `patience`.
    fn spill(
        &mut self,
        scheduler: &mut Scheduler,
        model: &mut Model,
        window: usize,
        count: usize,
        patience: Duration,
    ) -> usize {
        let began = Instant::now();
        let (Some(store), Some(blocks)) = (&mut self.store, scheduler.blocks()) else { return 0 };
        if self.resting.is_some_and(|since| since.elapsed() < REST) {
            return 0;
        }
        for (key, group) in blocks.take_dropped() {
            store.remove(key, group);
        }
        let chosen = blocks.to_spill(window, count);
        if chosen.is_empty() {
            return 0;
        }
        let Ok(mut transfer) = model.transfer() else { return 0 };
        let mut kept = 0;
        for spill in chosen {
            let group = spill.record.group;
            self.buffer.resize(store.group_bytes(group), 0);
            let exported = match self.buffer.is_empty() {
                true => Ok(()),
                false => transfer.export(group as u32, spill.location, &mut self.buffer),
            };
            let written = exported.map_err(|error| error.to_string()).and_then(|()| {
                store.write(&spill.record, &self.buffer).map_err(|error| format!("it cannot be written: {error}"))
            });
            if let Err(why) = written {
                self.resting = Some(Instant::now());
                self.troubles.push(format!("a block was not put on disk: {why}"));
                break;
            }
            blocks.spilled(spill.record.key, group);
            kept += 1;
            if began.elapsed() >= patience {
                break;
            }
        }
        for (key, group) in blocks.take_dropped() {
            store.remove(key, group);
        }
        kept
    }
}

/// A hash key for this run only, which no other process or later run needs.
fn secret_of_this_run() -> [u8; 16] {
    let mut secret = [0; 16];
    // Without a source of randomness the hashes are weaker, but texts are compared on every hit anyway.
    let _ = getrandom::fill(&mut secret);
    secret
}
