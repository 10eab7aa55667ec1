//! The items of running prompts, such as images: which of them the model holds encoded rows of, for whom, and which it
//! encodes next. Rows are encoded before a prompt's computation reaches them, shared by prompts with equal items under
//! one API key, and kept until others need their memory: the next question about a picture finds most of it in the prefix
//! cache, but not the part in the last block. A prompt that lost its blocks may need rows again, so what was prepared
//! stays until the job ends.
//!
//! Pure, like the scheduler: the engine opens, encodes, places and closes what this says, and reports results.

mod admission;
#[cfg(test)]
mod tests;

pub use admission::{check, runs};

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    ops::Range,
};

use pensieve_plugin_api::ext::media::NO_HANDLE;
use pensieve_protocol::media::{ItemSize, PreparedBytes};

/// Number of steps for which a prompt's next item may find no room before idle prompts give up what they do not need next.
const PATIENCE: u32 = 64;

/// An item of a job, checked.
#[derive(Clone, Debug)]
pub struct CheckedItem {
    pub range: Range<usize>,
    pub tokens: Vec<u32>,
    /// Its slots, as ranges of consecutive ones.
    pub slots: Vec<Range<usize>>,
    pub size: ItemSize,
    pub layout: Vec<u8>,
    /// Equal for items with the same rows and positions.
    pub identity: [u8; 32],
    pub rows: u32,
    /// Memory of its rows.
    pub bytes: u64,
    /// The request field that it comes from.
    pub field: String,
    pub prepared: PreparedBytes,
}

/// An item to open.
#[derive(Debug)]
pub struct Opening {
    pub handle: u64,
    pub size: ItemSize,
    pub layout: Vec<u8>,
    pub prepared: PreparedBytes,
}

#[derive(Debug, Default)]
pub struct Items {
    /// Memory for rows.
    bytes_max: u64,
    /// Rows that may be encoded in one batch, unless an item alone has more.
    batch_rows: u32,
    /// Contents, by a number of their own.
    contents: HashMap<u64, Content>,
    numbers: HashMap<ContentKey, u64>,
    prompts: HashMap<u64, Prompt>,
    /// Contents to open and to encode, in order.
    queue: VecDeque<u64>,
    /// Contents that are being encoded together, and the number of pieces left.
    batch: Vec<u64>,
    left: Option<u32>,
    next_number: u64,
    next_handle: u64,
    /// Steps since the next item of a prompt first found no room.
    stuck: u32,
    /// Contents that no prompt needs, with rows; the longest unneeded first.
    kept: VecDeque<u64>,
    /// Handles of rows that made room for others, to close.
    evicted: Vec<u64>,
}

/// API key and identity.
type ContentKey = (Vec<u8>, [u8; 32]);

/// An item's content, which several prompts may have.
#[derive(Debug)]
struct Content {
    key: ContentKey,
    size: ItemSize,
    layout: Vec<u8>,
    prepared: PreparedBytes,
    rows: u32,
    bytes: u64,
    /// Number of places in prompts.
    uses: usize,
    /// Running prompts that need its rows.
    holders: BTreeSet<u64>,
    rows_state: RowsState,
    /// A batch with it failed, so it is encoded alone.
    is_suspect: bool,
    /// Its rows go as soon as they are not placed, to make room for those that an older prompt needs.
    is_given_up: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowsState {
    Absent,
    /// Has room, and waits to be opened.
    Queued,
    /// Open under a handle, and waits to be encoded or is being encoded.
    Open(u64),
    Ready(u64),
}

#[derive(Debug)]
struct Prompt {
    items: Vec<PromptPart>,
    /// What the model knows; `None` if it has not been told of the items.
    placed: Option<Told>,
}

/// A prompt's items as the model was told of them.
#[derive(Debug)]
struct Told {
    /// The sequence, or the state of an opaque model.
    on: u64,
    handles: Vec<u64>,
}

/// An item's place in a prompt.
#[derive(Debug)]
struct PromptPart {
    content: u64,
    start: usize,
    tokens: Vec<u32>,
    slots: Vec<Range<usize>>,
    field: String,
}

/// An item's place in a sequence, for the model.
#[derive(Debug)]
pub struct PlacedItem<'a> {
    pub start: usize,
    pub tokens: &'a [u32],
    pub size: ItemSize,
    pub layout: &'a [u8],
    pub handle: u64,
}

impl Items {
    /// Memory for `bytes_max` bytes of rows, and batches of up to `batch_rows`.
    pub fn new(bytes_max: u64, batch_rows: u32) -> Self {
        Self { bytes_max, batch_rows, ..Self::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.prompts.is_empty()
    }

    /// Takes in the items of a prompt, unless it has none. Equal contents are kept once for each API key.
    pub fn register(&mut self, sequence: u64, api_key: &[u8], items: Vec<CheckedItem>) {
        if items.is_empty() {
            return;
        }
        let parts = items.into_iter().map(|item| {
            let (start, tokens) = (item.range.start, item.tokens.clone());
            let (slots, field) = (item.slots.clone(), item.field.clone());
            PromptPart { content: self.content(api_key, item), start, tokens, slots, field }
        });
        let items = parts.collect();
        self.prompts.insert(sequence, Prompt { items, placed: None });
    }

    fn content(&mut self, api_key: &[u8], item: CheckedItem) -> u64 {
        let key = (api_key.to_vec(), item.identity);
        if let Some(&number) = self.numbers.get(&key) {
            if let Some(content) = self.contents.get_mut(&number) {
                content.uses += 1;
                content.prepared = item.prepared;
            }
            return number;
        }
        self.next_number += 1;
        self.numbers.insert(key.clone(), self.next_number);
        let CheckedItem { size, layout, rows, bytes, prepared, .. } = item;
        let (holders, rows_state) = (BTreeSet::new(), RowsState::Absent);
        let content = Content {
            key,
            size,
            layout,
            prepared,
            rows,
            bytes,
            uses: 1,
            holders,
            rows_state,
            is_suspect: false,
            is_given_up: false,
        };
        self.contents.insert(self.next_number, content);
        self.next_number
    }

    /// Removes a prompt, of which the model knows nothing any more.
    pub fn forget(&mut self, sequence: u64) {
        self.lost(sequence);
        let Some(prompt) = self.prompts.remove(&sequence) else { return };
        for part in prompt.items {
            if let Some(content) = self.contents.get_mut(&part.content) {
                content.uses -= 1;
            }
        }
    }

    /// Records that the model knows nothing of a sequence any more, as it was preempted.
    pub fn lost(&mut self, sequence: u64) {
        let Some(prompt) = self.prompts.get_mut(&sequence) else { return };
        prompt.placed = None;
        for part in &prompt.items {
            if let Some(content) = self.contents.get_mut(&part.content) {
                content.holders.remove(&sequence);
            }
        }
    }

    /// The first token of a sequence that cannot be computed yet; `usize::MAX` if there is none.
    pub fn gate(&self, sequence: u64, computed: usize) -> usize {
        let Some(prompt) = self.prompts.get(&sequence) else { return usize::MAX };
        let lacking = prompt.items.iter().filter(|part| part.end() > computed).find(|part| {
            let content = self.contents.get(&part.content);
            content.and_then(|content| content.rows_of(sequence)).is_none()
        });
        let next = lacking.and_then(|part| part.slots.iter().find(|slots| slots.end > computed));
        next.map_or(usize::MAX, |slots| slots.start.max(computed))
    }

    /// Plans what to open and encode for the running sequences, given as (sequence, computed tokens, whether the current
    /// step computes some of it), oldest first. Returns sequences that gave up rows and have to be placed again.
    pub fn plan(&mut self, running: &[(u64, usize, bool)]) -> Vec<u64> {
        let mut wanted = Vec::new();
        for (age, &(sequence, computed, _)) in running.iter().enumerate() {
            let Some(prompt) = self.prompts.get(&sequence) else { continue };
            let mut ahead = 0;
            for part in &prompt.items {
                let Some(content) = self.contents.get_mut(&part.content) else { continue };
                match content.rows_state {
                    _ if part.end() <= computed => {}
                    RowsState::Absent => {
                        wanted.push((ahead, age, part.content));
                        ahead += 1;
                    }
                    _ => drop(content.holders.insert(sequence)),
                }
            }
        }
        // Each prompt's next item before any prompt's second.
        wanted.sort_unstable();
        let mut stuck = None;
        for (_, age, number) in wanted {
            let absent = self.contents.get(&number).filter(|content| content.rows_state == RowsState::Absent);
            if let Some(bytes) = absent.map(|content| content.bytes) {
                self.make_room(bytes);
            }
            let used = self.held_bytes();
            let Some(content) = self.contents.get_mut(&number) else { continue };
            if content.rows_state == RowsState::Absent {
                if used > 0 && used.saturating_add(content.bytes) > self.bytes_max {
                    stuck = Some((age, number));
                    break;
                }
                content.rows_state = RowsState::Queued;
                self.queue.push_back(number);
            }
            content.holders.insert(running[age].0);
        }
        self.stuck = if stuck.is_some() { self.stuck + 1 } else { 0 };
        let Some((age, number)) = stuck.filter(|_| self.stuck > PATIENCE) else { return Vec::new() };
        self.stuck = 0;
        self.take_from_idle(&running[age..], number)
    }

    /// Gives up kept rows until there is room for this many bytes.
    fn make_room(&mut self, bytes: u64) {
        while !self.kept.is_empty() && self.held_bytes().saturating_add(bytes) > self.bytes_max {
            let placed = self.placed_handles();
            let Some(content) = self.kept.pop_front().and_then(|number| self.contents.get_mut(&number)) else { return };
            if content.holders.is_empty()
                && let Some(handle) = content.handle().filter(|handle| !placed.contains(handle))
            {
                content.rows_state = RowsState::Absent;
                self.evicted.push(handle);
            }
        }
    }

    /// The handles that the model was told of.
    fn placed_handles(&self) -> BTreeSet<u64> {
        let told = self.prompts.values().filter_map(|prompt| prompt.placed.as_ref());
        told.flat_map(|told| told.handles.iter().copied()).collect()
    }

    /// Makes room for the content that the first of these sequences needs next. It gives up encoded rows of its own that come
    /// later, which another prompt may have brought; the newer ones that wait for something else give up all of
    /// theirs, as what they wait for may be the first one.
    fn take_from_idle(&mut self, running: &[(u64, usize, bool)], needed: u64) -> Vec<u64> {
        let mut gave_up = BTreeSet::new();
        for (place, &(sequence, computed, computes)) in running.iter().enumerate() {
            let Some(prompt) = self.prompts.get(&sequence).filter(|_| !computes) else { continue };
            let is_left = |part: &&PromptPart| part.end() > computed;
            let before = prompt.items.iter().filter(is_left).take_while(|part| part.content != needed);
            let kept: Vec<u64> = before.filter(|_| place == 0).map(|part| part.content).collect();
            for (number, content) in &mut self.contents {
                let is_encoded = matches!(content.rows_state, RowsState::Ready(_)) && !kept.contains(number);
                if is_encoded && content.holders.remove(&sequence) {
                    content.is_given_up = content.holders.is_empty();
                    gave_up.insert(sequence);
                }
            }
        }
        gave_up.into_iter().collect()
    }

    /// True if something waits to be opened or encoded.
    pub fn has_work(&self) -> bool {
        !self.queue.is_empty() || !self.batch.is_empty()
    }

    /// The next item to open. The engine opens it under the handle, or reports [`Items::failed`].
    pub fn next_opening(&mut self) -> Option<Opening> {
        let queued = |number: &&u64| self.contents.get(number).is_some_and(|of| of.rows_state == RowsState::Queued);
        let number = *self.queue.iter().find(queued)?;
        let content = self.contents.get_mut(&number)?;
        self.next_handle += 1;
        let handle = self.next_handle;
        content.rows_state = RowsState::Open(handle);
        let (size, layout, prepared) = (content.size, content.layout.clone(), content.prepared.clone());
        Some(Opening { handle, size, layout, prepared })
    }

    /// The handles to encode next, all of them open; the same ones until they are encoded, but for those that were closed.
    pub fn next_batch(&mut self) -> Vec<u64> {
        let mut rows = self.batch.iter().fold(0_u32, |sum, number| sum.saturating_add(self.contents[number].rows));
        while self.left.is_none() {
            let Some(content) = self.queue.front().and_then(|number| self.contents.get(number)) else { break };
            let together = rows.saturating_add(content.rows);
            let alone = content.is_suspect || self.batch.iter().any(|one| self.contents[one].is_suspect);
            if !matches!(content.rows_state, RowsState::Open(_)) || rows > 0 && (together > self.batch_rows || alone) {
                break;
            }
            rows = together;
            self.batch.extend(self.queue.pop_front());
        }
        self.batch.iter().filter_map(|number| self.contents.get(number)?.handle()).collect()
    }

    /// Reports the number of pieces left of the batch. An error if it did not get on.
    pub fn encoded(&mut self, left: u32) -> Result<(), String> {
        if let Some(before) = self.left.filter(|before| left >= *before) {
            return Err(format!("the model says that {left} pieces of an item are left to encode, after {before}"));
        }
        self.left = Some(left);
        if left == 0 {
            self.left = None;
            for number in std::mem::take(&mut self.batch) {
                if let Some(content) = self.contents.get_mut(&number)
                    && let RowsState::Open(handle) = content.rows_state
                {
                    content.rows_state = RowsState::Ready(handle);
                    content.is_suspect = false;
                }
            }
        }
        Ok(())
    }

    /// Reports that the batch failed. Returns the handles to close, and the prompts that fail with the only item in it,
    /// with its fields; the items of a batch with several are encoded again one by one.
    pub fn batch_failed(&mut self) -> (Vec<u64>, Vec<(u64, String)>) {
        self.left = None;
        let batch = std::mem::take(&mut self.batch);
        let handles = batch.iter().filter_map(|number| self.contents.get(number)?.handle()).collect();
        if let [number] = batch[..] {
            return (handles, self.failed_content(number));
        }
        for number in batch {
            if let Some(content) = self.contents.get_mut(&number) {
                content.rows_state = RowsState::Absent;
                content.is_suspect = true;
            }
        }
        (handles, Vec::new())
    }

    /// Reports that an item could not be opened. Returns the prompts that fail with it, and its fields there.
    pub fn failed(&mut self, handle: u64) -> Vec<(u64, String)> {
        let number = self.contents.iter().find(|(_, content)| content.handle() == Some(handle));
        number.map(|(number, _)| *number).map_or_else(Vec::new, |number| self.failed_content(number))
    }

    fn failed_content(&mut self, number: u64) -> Vec<(u64, String)> {
        self.queue.retain(|queued| *queued != number);
        if let Some(content) = self.contents.get_mut(&number) {
            content.rows_state = RowsState::Absent;
        }
        let part =
            |prompt: &Prompt| prompt.items.iter().find(|part| part.content == number).map(|part| part.field.clone());
        let failed = self.prompts.iter().filter_map(|(sequence, prompt)| Some((*sequence, part(prompt)?)));
        let mut failed: Vec<(u64, String)> = failed.collect();
        failed.sort_unstable();
        failed
    }

    /// The items of a sequence, if the model has to be told of them again: before its first batch after `computed`
    /// tokens, and when rows have come or are no longer needed. The engine places them and reports [`Items::placed`].
    pub fn to_place(&mut self, sequence: u64, computed: usize) -> Option<Vec<PlacedItem<'_>>> {
        let parts = &self.prompts.get(&sequence)?.items;
        // The same item may come again.
        let is_passed = |number: u64| parts.iter().all(|part| part.content != number || part.end() <= computed);
        for part in parts.iter().filter(|part| is_passed(part.content)) {
            if let Some(content) = self.contents.get_mut(&part.content) {
                content.holders.remove(&sequence);
            }
        }
        let prompt = self.prompts.get(&sequence)?;
        let placed = prompt.items.iter().filter_map(|part| {
            let content = self.contents.get(&part.content)?;
            let handle = content.rows_of(sequence).filter(|_| part.end() > computed).unwrap_or(NO_HANDLE);
            let (start, tokens, size) = (part.start, &part.tokens[..], content.size);
            Some(PlacedItem { start, tokens, size, layout: &content.layout, handle })
        });
        let placed: Vec<PlacedItem<'_>> = placed.collect();
        let is_known = |told: &Told| told.handles.iter().eq(placed.iter().map(|item| &item.handle));
        (!prompt.placed.as_ref().is_some_and(is_known)).then_some(placed)
    }

    /// Reports that a sequence's items were placed with these handles, `on` it or its state in an opaque model.
    pub fn placed(&mut self, sequence: u64, on: u64, handles: Vec<u64>) {
        if let Some(prompt) = self.prompts.get_mut(&sequence) {
            prompt.placed = Some(Told { on, handles });
        }
    }

    /// The sequence or state on which rows are placed for a sequence, if any are.
    pub fn placed_on(&self, sequence: u64) -> Option<u64> {
        let told = self.prompts.get(&sequence)?.placed.as_ref()?;
        told.handles.iter().any(|handle| *handle != NO_HANDLE).then_some(told.on)
    }

    /// The handles to close: of items that no prompt needs any more before they are encoded, and of kept rows that made room.
    pub fn take_unheld(&mut self) -> Vec<u64> {
        let placed = self.placed_handles();
        let (mut closed, contents) = (Vec::new(), &self.contents);
        self.kept.retain(|number| contents.get(number).is_some_and(|content| content.holders.is_empty()));
        let mut unheld: Vec<u64> = Vec::new();
        for (&number, content) in self.contents.iter_mut().filter(|(_, content)| content.holders.is_empty()) {
            match content.rows_state {
                RowsState::Ready(handle) if placed.contains(&handle) => {}
                RowsState::Ready(_) if !content.is_given_up => unheld.push(number),
                _ => {
                    closed.extend(content.handle());
                    (content.rows_state, content.is_given_up) = (RowsState::Absent, false);
                }
            }
        }
        unheld.retain(|number| !self.kept.contains(number));
        unheld.sort_unstable();
        self.kept.extend(unheld);
        self.make_room(0);
        closed.append(&mut self.evicted);
        let is_open = |number: &u64| self.contents.get(number).is_some_and(|of| of.rows_state != RowsState::Absent);
        self.queue.retain(is_open);
        self.batch.retain(is_open);
        if self.batch.is_empty() {
            self.left = None;
        }
        self.drop_unused();
        closed.sort_unstable();
        closed
    }

    /// Drops contents that are in no prompt.
    fn drop_unused(&mut self) {
        let Self { contents, numbers, .. } = self;
        contents.retain(|_, content| {
            let is_used = content.uses > 0 || content.rows_state != RowsState::Absent;
            if content.uses == 0 {
                content.prepared = PreparedBytes::default();
            }
            if !is_used {
                numbers.remove(&content.key);
            }
            is_used
        });
    }

    /// Memory of the rows that the model holds or is about to.
    pub fn held_bytes(&self) -> u64 {
        let held = self.contents.values().filter(|content| content.rows_state != RowsState::Absent);
        held.fold(0, |sum, content| sum.saturating_add(content.bytes))
    }
}

impl Content {
    fn handle(&self) -> Option<u64> {
        match self.rows_state {
            RowsState::Open(handle) | RowsState::Ready(handle) => Some(handle),
            RowsState::Absent | RowsState::Queued => None,
        }
    }

    /// The handle of its rows, for a sequence that holds them.
    fn rows_of(&self, sequence: u64) -> Option<u64> {
        match self.rows_state {
            RowsState::Ready(handle) if self.holders.contains(&sequence) => Some(handle),
            _ => None,
        }
    }
}

impl PromptPart {
    /// The end of its last slot.
    fn end(&self) -> usize {
        self.slots.last().map_or(0, |slots| slots.end)
    }
}
