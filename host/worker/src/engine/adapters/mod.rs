//! LoRA adapters: the ones that jobs may name, and which of them are in the model.
//!
//! The adapters in the model share a memory limit. The least recently used adapter without a running sequence is
//! evicted but stays known: the next job that names it has it read again, and waits here meanwhile. Jobs that wait for
//! room are served in order, and while the first of them waits no other starts under an adapter, so that the adapters
//! in use become free. An adapter detached while in use is dropped with its last sequence.

mod queue;
#[cfg(test)]
mod tests;

pub use queue::{Ready, Waiting};

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use pensieve_plugin_api::AdapterData;

use super::formats::ReadAdapter;
use pensieve_protocol::{
    job::{AdapterUse, Failure, FailureCode},
    wire::{AdapterStats, AttachedAdapter, Attachment, Location},
};

/// Lower bound on the bytes per value: models keep factors in half precision or better.
const VALUE_BYTES_MIN: u64 = 2;

/// A model that adapters can be attached to.
pub trait AdapterHost {
    /// Attaches an adapter; returns its id and its bytes.
    fn attach(&mut self, adapter: &AdapterData) -> Result<(u32, u64), Failure>;
    /// Detaches an adapter that no sequence uses.
    fn detach(&mut self, adapter: u32);
}

/// One sequence's right to use an adapter. Its job holds it and returns it to [`Adapters::end`].
#[derive(Debug)]
#[must_use]
pub struct AdapterLease {
    serial: u64,
    pub span: SpanAdapter,
}

/// The adapter of a span, in the form passed to the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpanAdapter {
    pub id: u32,
    pub scale: f32,
}

pub struct Adapters {
    /// Limit on the bytes of all adapters in the model.
    limit: u64,
    /// How long jobs wait for an adapter that is being reloaded.
    patience: Duration,
    last: u64,
    clock: u64,
    names: BTreeMap<String, u64>,
    known: BTreeMap<u64, Adapter>,
    waiting: VecDeque<Waiting>,
    wanted: Vec<(u64, Location)>,
    notes: Vec<String>,
    loads: u64,
    unloads: u64,
}

struct Adapter {
    name: String,
    /// The server's number for this attempt to attach it.
    attempt: u64,
    location: Location,
    format: String,
    fingerprint: String,
    pairs: u64,
    /// Its bytes in the model; known once it has been attached.
    bytes: u64,
    residency: Residency,
    /// Sequences running under it, and jobs waiting for it.
    running: usize,
    claims: usize,
    /// Logical time of the last use.
    used: u64,
    leaving: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Residency {
    /// Being read for the first time; jobs cannot name it yet.
    New,
    /// Known, but not in memory.
    Disk,
    /// Being reloaded; its bytes are reserved.
    Reading(Instant),
    /// Its reload hangs, and no job waits for it any more. It is not read again until its format returns.
    Hung,
    Model(u32),
}

impl Adapters {
    /// An empty set with a memory limit in bytes; `patience` bounds how long a job waits for a reload.
    pub fn new(limit: u64, patience: Duration) -> Self {
        Self {
            limit,
            patience,
            last: 0,
            clock: 0,
            names: BTreeMap::new(),
            known: BTreeMap::new(),
            waiting: VecDeque::new(),
            wanted: Vec::new(),
            notes: Vec::new(),
            loads: 0,
            unloads: 0,
        }
    }

    /// Starts attaching an adapter, which the caller reads. Returns its number for [`Adapters::take_in`].
    pub fn begin(&mut self, attempt: u64, name: &str, location: Location) -> Result<u64, Failure> {
        if self.names.contains_key(name) {
            let message = format!("an adapter called '{name}' is attached already");
            return Err(Failure::new(FailureCode::Conflict, message).with_help("detach it first"));
        }
        self.last += 1;
        let adapter = Adapter {
            name: name.to_owned(),
            attempt,
            location,
            format: String::new(),
            fingerprint: String::new(),
            pairs: 0,
            bytes: 0,
            residency: Residency::New,
            running: 0,
            claims: 0,
            used: self.clock,
            leaving: false,
        };
        self.names.insert(name.to_owned(), self.last);
        self.known.insert(self.last, adapter);
        Ok(self.last)
    }

    /// Takes in an adapter that was read, or the error. Returns the result of the attach attempt, if one is pending.
    pub fn take_in(
        &mut self,
        serial: u64,
        read: Result<ReadAdapter, Failure>,
        holder: &mut impl AdapterHost,
    ) -> Option<(u64, Attachment)> {
        let adapter = self.known.get(&serial)?;
        if adapter.residency == Residency::Hung {
            // No job waits for it, and no room is reserved for it.
            self.set(serial, Residency::Disk);
            self.leave(serial, holder);
            return None;
        }
        let (attempt, is_new) = (adapter.attempt, adapter.residency == Residency::New);
        let taken = if adapter.leaving && adapter.claims == 0 {
            let message = format!("adapter '{}' was detached while it was read", adapter.name);
            Err(Failure::new(FailureCode::NotFound, message))
        } else {
            read.and_then(|read| self.hold(serial, read, holder))
        };
        match taken {
            Ok(attached) => is_new.then_some((attempt, Ok(attached))),
            Err(failure) if is_new => {
                self.remove(serial);
                Some((attempt, Err(failure)))
            }
            Err(failure) => {
                self.set(serial, Residency::Disk);
                self.fail_waiting(serial, &failure);
                self.leave(serial, holder);
                None
            }
        }
    }

    /// Closes an adapter to new jobs, and drops it now or with its last job.
    pub fn retire(&mut self, name: &str, holder: &mut impl AdapterHost) {
        let Some(serial) = self.names.remove(name) else { return };
        if let Some(adapter) = self.known.get_mut(&serial) {
            adapter.leaving = true;
        }
        self.leave(serial, holder);
    }

    /// Returns the number of the adapter that a job names.
    pub fn find(&self, wish: &AdapterUse) -> Result<u64, Failure> {
        if !wish.scale.is_finite() {
            return Err(Failure::new(FailureCode::Invalid, format!("adapter '{}': its scale is no number", wish.name)));
        }
        let serial = self.names.get(&wish.name).copied();
        serial
            .filter(|serial| self.known.get(serial).is_some_and(|adapter| adapter.residency != Residency::New))
            .ok_or_else(|| {
                let known: Vec<String> = self.stats().into_iter().map(|adapter| adapter.name).collect();
                let known = if known.is_empty() { "none".into() } else { known.join(", ") };
                let message = format!("no adapter is called '{}' (attached: {known})", wish.name);
                Failure::new(FailureCode::NotFound, message)
            })
    }

    /// Returns an adapter's part of the salt; `None` while it is not in the model.
    pub fn salt(&self, serial: u64, scale: f32) -> Option<String> {
        let adapter = self.known.get(&serial).filter(|adapter| matches!(adapter.residency, Residency::Model(_)))?;
        Some(format!("{}\0{:08x}", adapter.fingerprint, scale.to_bits()))
    }

    /// Leases an adapter to a sequence; `None` if it is not in the model. The adapter stays in the model until the
    /// lease is returned to [`Adapters::end`].
    pub fn lease(&mut self, serial: u64, scale: f32) -> Option<AdapterLease> {
        let adapter = self.known.get_mut(&serial)?;
        let Residency::Model(id) = adapter.residency else { return None };
        self.clock += 1;
        (adapter.running, adapter.used) = (adapter.running + 1, self.clock);
        Some(AdapterLease { serial, span: SpanAdapter { id, scale } })
    }

    /// Takes back the lease of a sequence that has ended.
    #[allow(clippy::needless_pass_by_value, reason = "a lease ends once")]
    pub fn end(&mut self, lease: AdapterLease, holder: &mut impl AdapterHost) {
        let AdapterLease { serial, .. } = lease;
        self.clock += 1;
        if let Some(adapter) = self.known.get_mut(&serial) {
            (adapter.running, adapter.used) = (adapter.running.saturating_sub(1), self.clock);
        }
        self.leave(serial, holder);
    }

    /// Ends the wait of a job that has started under an adapter or failed to: drops the adapter if it is retired and
    /// unused.
    pub fn let_go(&mut self, serial: u64, holder: &mut impl AdapterHost) {
        self.leave(serial, holder);
    }

    /// Returns the adapters to read before waiting jobs can start, each once.
    pub fn take_wanted(&mut self) -> Vec<(u64, Location)> {
        std::mem::take(&mut self.wanted)
    }

    /// Returns the log notes since the last call.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Statistics of the adapters that jobs may name.
    pub fn stats(&self) -> Vec<AdapterStats> {
        let known = self.names.values().filter_map(|serial| self.known.get(serial));
        let here = known.filter(|adapter| adapter.residency != Residency::New);
        let stats = here.map(|adapter| AdapterStats {
            name: adapter.name.clone(),
            format: adapter.format.clone(),
            pairs: adapter.pairs,
            bytes: adapter.bytes,
            loaded: matches!(adapter.residency, Residency::Model(_)),
            jobs: (adapter.running + adapter.claims) as u64,
        });
        stats.collect()
    }

    /// The numbers of loads and of evictions.
    pub fn counts(&self) -> (u64, u64) {
        (self.loads, self.unloads)
    }

    /// Bytes of the adapters in the model, including retired ones, and of those being reloaded.
    fn held(&self) -> u64 {
        let holds = |adapter: &&Adapter| matches!(adapter.residency, Residency::Model(_) | Residency::Reading(_));
        self.known.values().filter(holds).fold(0, |sum, adapter| sum.saturating_add(adapter.bytes))
    }

    /// Attaches an adapter to the model, evicting others for it.
    fn hold(
        &mut self,
        serial: u64,
        read: ReadAdapter,
        holder: &mut impl AdapterHost,
    ) -> Result<AttachedAdapter, Failure> {
        let ReadAdapter { format, data } = read;
        self.check_least(serial, &data)?;
        let (id, bytes) = holder.attach(&data)?;
        self.loads += 1;
        let Some(adapter) = self.known.get_mut(&serial) else {
            holder.detach(id);
            return Err(Failure::new(FailureCode::Internal, "an adapter was read that is not registered"));
        };
        let (name, before) = (adapter.name.clone(), adapter.bytes);
        (adapter.residency, adapter.bytes, adapter.used) = (Residency::Model(id), bytes, self.clock);
        (adapter.pairs, adapter.fingerprint) = (data.pairs.len() as u64, data.fingerprint.to_string());
        adapter.format.clone_from(&format);
        let attached = AttachedAdapter { format, pairs: adapter.pairs, bytes };
        if self.make_room(0, Some(serial), holder) {
            return Ok(attached);
        }
        holder.detach(id);
        self.set(serial, Residency::Disk);
        if bytes <= self.limit {
            // It is reloaded as soon as a job needs it and others have been evicted.
            return Ok(attached);
        }
        if let Some(adapter) = self.known.get_mut(&serial) {
            adapter.bytes = before;
        }
        Err(self.too_large(&name, &format!("{bytes} bytes")))
    }

    /// Rejects an adapter that is too large in any precision, before the model gets any of it.
    fn check_least(&self, serial: u64, data: &AdapterData) -> Result<(), Failure> {
        let values = data.pairs.iter().fold(0, |sum: u64, pair| sum + (pair.a.len() + pair.b.len()) as u64);
        let least = values.saturating_mul(VALUE_BYTES_MIN);
        let name = self.known.get(&serial).map_or("", |adapter| &adapter.name);
        if least > self.limit { Err(self.too_large(name, &format!("at least {least} bytes"))) } else { Ok(()) }
    }

    fn too_large(&self, name: &str, what: &str) -> Failure {
        let message = format!("adapter '{name}' takes {what}; all adapters of this model may take {}", self.limit);
        Failure::new(FailureCode::Unsupported, message).with_help("raise the model's adapter_memory")
    }

    /// Evicts idle adapters, least recently used first, until `bytes` more fit; evicts none if that would not make
    /// enough room. For an adapter that has just been read (`come`), none that a queued job needs is evicted; for the
    /// adapter of the first waiting job, those that only later jobs need may be, or no job would ever get its turn.
    fn make_room(&mut self, bytes: u64, come: Option<u64>, holder: &mut impl AdapterHost) -> bool {
        let mut missing = self.held().saturating_add(bytes).saturating_sub(self.limit);
        let idle = |(serial, adapter): &(&u64, &Adapter)| {
            let spared = come.is_some_and(|come| come == **serial || adapter.claims > 0);
            !spared && adapter.running == 0 && matches!(adapter.residency, Residency::Model(_))
        };
        let idle = self.known.iter().filter(idle);
        let mut idle: Vec<(bool, u64, u64, u64)> =
            idle.map(|(serial, adapter)| (adapter.claims > 0, adapter.used, *serial, adapter.bytes)).collect();
        idle.sort_unstable();
        let mut going = Vec::new();
        for (_, _, serial, bytes) in idle {
            if missing == 0 {
                break;
            }
            missing = missing.saturating_sub(bytes);
            going.push(serial);
        }
        if missing > 0 {
            return false;
        }
        for serial in going {
            self.unload(serial, holder);
        }
        true
    }

    fn unload(&mut self, serial: u64, holder: &mut impl AdapterHost) {
        let Some(adapter) = self.known.get_mut(&serial) else { return };
        if let Residency::Model(id) = adapter.residency {
            holder.detach(id);
            adapter.residency = Residency::Disk;
            self.unloads += 1;
            self.notes.push(format!("adapter '{}' leaves memory, as others need it", adapter.name));
        }
    }

    /// Drops a retired adapter that no job needs.
    fn leave(&mut self, serial: u64, holder: &mut impl AdapterHost) {
        let Some(adapter) = self.known.get(&serial) else { return };
        if !adapter.leaving || adapter.running + adapter.claims > 0 {
            return;
        }
        match adapter.residency {
            // Dropped once it has been read.
            Residency::New | Residency::Reading(_) | Residency::Hung => {}
            Residency::Disk => drop(self.known.remove(&serial)),
            Residency::Model(id) => {
                holder.detach(id);
                self.known.remove(&serial);
            }
        }
    }

    fn remove(&mut self, serial: u64) {
        let Some(adapter) = self.known.remove(&serial) else { return };
        if self.names.get(&adapter.name) == Some(&serial) {
            self.names.remove(&adapter.name);
        }
    }

    fn set(&mut self, serial: u64, residency: Residency) {
        if let Some(adapter) = self.known.get_mut(&serial) {
            adapter.residency = residency;
        }
    }
}
