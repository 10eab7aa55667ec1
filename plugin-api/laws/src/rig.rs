//! The test bench of the laws: allocates blocks and slots, creates texts and sequences, runs steps, and compares every
//! row of logits with the model's own for the same text read whole and alone. So a law only specifies the chunks,
//! batches and blocks in which texts are read; this module checks that the numbers stay the same.

use std::rc::Rc;

pub(crate) use crate::draft::{Chosen, Draft, Feed, Known, Mask, Pace, Places, Sequence, Table, Text};
use crate::{
    TOKENS_MIN,
    report::{Options, Outcome, Shape, broken, skipped},
};
use pensieve_plugin_api::{
    Batch, CacheGroup, CacheKind, CacheTable, Checkpoint, ModelBox, NO_ADAPTER, Output, Outputs, PluginError, Resident,
    Span, VACANT, Want,
};

/// Prefix of the verdict on a model that failed where it had to succeed.
pub(crate) const REFUSED: &str = "a good batch failed";

/// Maximum length of a text, however large the model's blocks are.
const TOKENS_MAX: u32 = 4096;

/// Smaller changes, relative to the spread, count as rounding.
pub(crate) const SEEN: f32 = 1e-5;

/// A law's outcome; `?` ends it early as skipped or broken.
pub(crate) type Finding<T = Outcome> = Result<T, Outcome>;

/// A model under test.
pub(crate) struct Rig<'m> {
    pub(crate) model: &'m mut ModelBox,
    pub(crate) options: &'m Options,
    pub(crate) resident: Resident,
    pub(crate) shape: Shape,
    /// Maximum difference of rows, relative to their spread.
    pub(crate) tolerance: f32,
    /// The model's reaction to a changed past token, once measured: 0 if it does not look back.
    pub(crate) looks_back: f32,
    texts: Vec<Rc<Text>>,
    /// The free ids of each group. First in, first out, so that a text rarely gets the blocks that it used before,
    /// which would hide a missing write.
    free: Vec<Vec<u32>>,
    laws_tried: usize,
    alive: Vec<u64>,
    next_id: u64,
    random: u64,
    pub(crate) worst: f32,
}

impl<'m> Rig<'m> {
    pub(crate) fn new(model: &'m mut ModelBox, shape: Shape, options: &'m Options) -> Self {
        let resident = model.resident();
        let (random, tolerance) = (options.seed, options.tolerance);
        let mut rig = Self {
            model,
            options,
            resident,
            shape,
            tolerance,
            looks_back: 0.0,
            texts: Vec::new(),
            free: Vec::new(),
            laws_tried: 0,
            alive: Vec::new(),
            next_id: 1,
            random,
            worst: 0.0,
        };
        rig.texts = rig.write_texts();
        rig.clear();
        rig
    }

    /// Returns whether the host owns the caches; false for an opaque model.
    pub(crate) fn owned(&self) -> bool {
        self.shape.caches.iter().all(|group| group.kind != CacheKind::OPAQUE)
    }

    /// Returns whether the model keeps tokens in blocks.
    pub(crate) fn has_blocks(&self) -> bool {
        self.shape.caches.iter().any(CacheGroup::has_blocks)
    }

    /// Returns whether the model keeps states in slots.
    pub(crate) fn has_states(&self) -> bool {
        self.shape.caches.iter().any(|group| group.kind == CacheKind::STATE)
    }

    /// Maximum number of sequences alive at once.
    fn sequences_max(&self) -> usize {
        let counts = self.shape.caches.iter().zip(self.resident.places.iter());
        let counts = counts.map(|(group, &count)| match (group.kind, count) {
            (CacheKind::OPAQUE, 0) => usize::MAX,
            (CacheKind::OPAQUE, count) => count as usize,
            _ => usize::MAX,
        });
        counts.min().unwrap_or(usize::MAX)
    }

    /// Releases every sequence, frees every block and resets the comparisons.
    pub(crate) fn clear(&mut self) {
        for id in std::mem::take(&mut self.alive) {
            self.model.release(id);
        }
        // A few more than laws ever hold at once, including the last ones.
        let reference = self.options.references.iter().map(|reference| reference.tokens.len()).max().unwrap_or(0);
        let texts = 5 * self.blocks_for(self.longest());
        let many = texts.max(self.blocks_for(self.farthest())).max(self.blocks_for(reference)) + 4;
        let places = self.resident.places.iter().map(|&count| {
            let low = count.min(u32::try_from(many).unwrap_or(u32::MAX));
            let mut free: Vec<u32> = (0..low).chain(count.saturating_sub(2).max(low)..count).collect();
            let turn = self.laws_tried.checked_rem(free.len()).unwrap_or(0);
            free.rotate_left(turn);
            free
        });
        self.free = if self.owned() { places.collect() } else { vec![Vec::new(); self.shape.caches.len()] };
        self.laws_tried += 1;
        self.worst = 0.0;
    }

    /// The outcome of the comparisons since [`Rig::clear`].
    pub(crate) fn agreement(&self) -> Outcome {
        if self.worst == 0.0 { Outcome::Exact } else { Outcome::WithinRounding { worst: self.worst } }
    }

    /// The length of [`Known::Long`].
    pub(crate) fn longest(&self) -> usize {
        let block = self.shape.block_tokens;
        let blocks = self.shape.caches.iter().zip(self.resident.places.iter());
        let blocks = blocks.filter(|(group, _)| group.has_blocks()).map(|(_, &count)| count).min();
        let room = blocks.map_or(u32::MAX, |blocks| (blocks / 2).max(1).saturating_mul(block));
        let wish = self.options.longest.max(block.saturating_add(block / 4 + 2)).max(TOKENS_MIN);
        wish.min(self.resident.context).min(room).min(TOKENS_MAX) as usize
    }

    /// Length of the longest text in the laws about windows.
    pub(crate) fn farthest(&self) -> usize {
        let wish = self.shape.farthest(self.options) as usize;
        wish.max(self.longest()).min(self.resident.context as usize)
    }

    /// Number of tokens that fit into a group's blocks.
    pub(crate) fn room(&self, group: usize) -> usize {
        let blocks = self.resident.places.get(group).copied().unwrap_or(0) as usize;
        blocks.saturating_mul(self.shape.block_tokens as usize)
    }

    pub(crate) fn only_looking_back(&self) -> Finding<()> {
        if self.looks_back > SEEN { Ok(()) } else { Err(skipped("the model does not look back")) }
    }

    /// The number of tokens that [`Known::Twin`] shares with [`Known::Long`].
    pub(crate) fn fork(&self) -> usize {
        let (longest, block) = (self.longest(), self.shape.block_tokens as usize);
        if block + 2 < longest { block.max(longest / 2) } else { longest / 2 }
    }

    fn write_texts(&mut self) -> Vec<Rc<Text>> {
        let (longest, fork) = (self.longest(), self.fork());
        let long = self.tokens(longest);
        let mut twin = long[..fork].to_vec();
        twin.extend(long[fork..].iter().map(|&token| self.another(token)));
        let middle = self.tokens((longest * 3 / 5).max(2));
        let short = self.tokens((longest / 5 + 1).max(2));
        [long, twin, middle, short].map(|tokens| Rc::new(Text { tokens, rows: Vec::new() })).into()
    }

    /// Has the model read every known text whole and alone, which gives the expected logits.
    pub(crate) fn learn(&mut self) -> Finding<()> {
        for place in 0..self.texts.len() {
            let tokens = self.texts[place].tokens.clone();
            let rows = self.whole("a prompt, read whole", tokens.clone(), Pace::PLAIN, Want::ALL)?;
            self.texts[place] = Rc::new(Text { tokens, rows });
        }
        Ok(())
    }

    pub(crate) fn text(&self, known: Known) -> Rc<Text> {
        Rc::clone(&self.texts[known as usize])
    }

    /// Returns `count` pseudo-random tokens (splitmix64), adjacent ones distinct.
    pub(crate) fn tokens(&mut self, count: usize) -> Vec<u32> {
        let mut tokens = Vec::with_capacity(count);
        for place in 0..count {
            let token = (self.draw() % u64::from(self.shape.vocabulary.max(1))) as u32;
            let repeats = place > 0 && tokens[place - 1] == token;
            tokens.push(if repeats { self.another(token) } else { token });
        }
        tokens
    }

    /// Returns another token, if there is one.
    pub(crate) fn another(&mut self, token: u32) -> u32 {
        let vocabulary = u64::from(self.shape.vocabulary.max(1));
        let step = 1 + self.draw() % vocabulary.saturating_sub(1).max(1);
        ((u64::from(token) + step) % vocabulary) as u32
    }

    fn draw(&mut self) -> u64 {
        draw(&mut self.random)
    }

    /// The number of blocks for this many tokens.
    pub(crate) fn blocks_for(&self, tokens: usize) -> usize {
        if self.owned() { tokens.div_ceil(self.shape.block_tokens.max(1) as usize) } else { 0 }
    }

    /// Takes `blocks` blocks of every group with blocks, and a slot of every group with states.
    pub(crate) fn take_places(&mut self, blocks: usize) -> Finding<Places> {
        let mut places = Vec::new();
        for place in 0..self.shape.caches.len() {
            let group = self.shape.caches[place];
            let count = match group.kind {
                CacheKind::STATE => 1,
                _ if group.has_blocks() => blocks,
                _ => 0,
            };
            places.push(self.take(place, count)?);
        }
        Ok(places)
    }

    /// Like [`Rig::take_places`], lowest ids first, so that most are adjacent in the model's memory.
    pub(crate) fn take_neighbours(&mut self, blocks: usize) -> Finding<Places> {
        self.free.iter_mut().for_each(|free| free.sort_unstable());
        self.take_places(blocks)
    }

    /// Takes another slot of every group with states, for a copy; [`VACANT`] for the other groups.
    pub(crate) fn take_slots(&mut self) -> Finding<Vec<u32>> {
        let states = self.shape.caches.iter().map(|group| group.kind == CacheKind::STATE).collect::<Vec<_>>();
        let slot = |(place, state)| if state { Ok(self.take(place, 1)?[0]) } else { Ok(VACANT) };
        states.into_iter().enumerate().map(slot).collect()
    }

    fn take(&mut self, group: usize, count: usize) -> Finding<Vec<u32>> {
        let have = self.free.get(group).map_or(0, Vec::len);
        if count > have {
            let all = self.resident.places.get(group).copied().unwrap_or(0);
            let what = if self.shape.caches[group].kind == CacheKind::STATE { "slots" } else { "blocks" };
            return Err(skipped(format!("it needs more {what} than the {all} that the model was loaded with")));
        }
        Ok(self.free[group].drain(..count).collect())
    }

    pub(crate) fn start(&mut self, known: Known) -> Finding<Sequence> {
        self.start_with(self.text(known), Pace::PLAIN)
    }

    pub(crate) fn start_with(&mut self, text: Rc<Text>, pace: Pace) -> Finding<Sequence> {
        let places = self.take_places(self.blocks_for(text.tokens.len()))?;
        self.start_in(text, places, pace)
    }

    /// Starts a sequence in blocks and slots chosen by the law.
    pub(crate) fn start_in(&mut self, text: Rc<Text>, places: Places, pace: Pace) -> Finding<Sequence> {
        let most = self.sequences_max();
        if self.alive.len() >= most {
            return Err(skipped(format!("it needs more sequences at once than the {most} that the model takes")));
        }
        let id = self.new_id();
        let reads = vec![VACANT; self.shape.caches.len()];
        Ok(Sequence { id, text, seen: 0, places, reads, pace, adapter: (NO_ADAPTER, 1.0) })
    }

    /// Returns a new sequence id, which [`Rig::clear`] will release.
    pub(crate) fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.alive.push(self.next_id);
        self.next_id
    }

    /// Gives a sequence another id.
    pub(crate) fn rename(&mut self, sequence: &mut Sequence, id: u64) {
        self.alive.retain(|&alive| alive != sequence.id);
        self.alive.push(id);
        sequence.id = id;
    }

    /// Releases a sequence and frees its blocks and slots.
    pub(crate) fn end(&mut self, sequence: Sequence) {
        self.model.release(sequence.id);
        self.alive.retain(|&id| id != sequence.id);
        self.give_back(sequence.places);
    }

    /// Returns blocks and slots to the free lists.
    pub(crate) fn give_back(&mut self, places: Places) {
        self.free.iter_mut().zip(places).for_each(|(free, places)| free.extend(places));
    }

    /// Returns the logits of a text read in one step by a separate sequence.
    pub(crate) fn whole(&mut self, what: &str, tokens: Vec<u32>, pace: Pace, want: Want) -> Finding<Vec<f32>> {
        let count = tokens.len();
        let mut sequence = self.start_with(Rc::new(Text { tokens, rows: Vec::new() }), pace)?;
        let logits = self.step(what, vec![sequence.feed(count, want)])?;
        self.end(sequence);
        Ok(logits)
    }

    /// Reads the rest of a text in steps of `size` tokens.
    pub(crate) fn read(&mut self, what: &str, sequence: &mut Sequence, size: usize) -> Finding<()> {
        while sequence.left() > 0 {
            self.step(what, vec![sequence.feed(size, Want::ALL)])?;
        }
        Ok(())
    }

    /// Runs one step, without the finished sequences: all rows must be finite, and equal to the known ones of their
    /// texts.
    pub(crate) fn step(&mut self, what: &str, mut feeds: Vec<Feed<'_>>) -> Finding<Vec<f32>> {
        feeds.retain(|feed| feed.count > 0);
        if feeds.is_empty() {
            return Ok(Vec::new());
        }
        let draft = self.draft(&feeds);
        let logits = self.forward(&draft).map_err(|error| broken(format!("{what}: {REFUSED}: {error}")))?;
        let width = self.shape.vocabulary as usize;
        let mut rows = logits.chunks_exact(width);
        for feed in feeds {
            let end = feed.sequence.seen + feed.count;
            let wanted = feed.want.rows(feed.count as u32).unwrap_or(0) as usize;
            for (token, row) in (end - wanted..end).zip(&mut rows) {
                let right = feed.sequence.text.rows.get(token * width..(token + 1) * width);
                self.compare(what, token, right, row)?;
            }
            feed.sequence.arrive(end);
        }
        Ok(logits)
    }

    pub(crate) fn draft(&self, feeds: &[Feed<'_>]) -> Draft {
        let mut draft =
            Draft { tokens: Vec::new(), positions: Vec::new(), spans: Vec::new(), tables: Vec::new(), logits: 0 };
        for Feed { sequence, count, want, copies } in feeds {
            let (start, past, len) = (draft.tokens.len() as u32, sequence.seen as u32, *count as u32);
            draft.tokens.extend(&sequence.text.tokens[sequence.seen..sequence.seen + count]);
            draft.positions.extend((past..past + len).map(|at| sequence.pace.first + at * sequence.pace.stride));
            draft.spans.push(Span {
                sequence: sequence.id,
                start,
                len,
                past,
                want: *want,
                output: Output::LOGITS,
                mask: [][..].into(),
                adapter: sequence.adapter.0,
                adapter_scale: sequence.adapter.1,
                caches: [][..].into(),
            });
            draft.tables.push(self.tables(sequence, copies));
            draft.logits += want.rows(len).unwrap_or(0) as usize * self.shape.vocabulary as usize;
        }
        draft
    }

    fn tables(&self, sequence: &Sequence, copies: &[(u32, Vec<u32>)]) -> Vec<Table> {
        let table = |(place, group): (usize, &CacheGroup)| {
            let empty = Table { blocks: Vec::new(), read: VACANT, write: VACANT, checkpoints: Vec::new() };
            match group.kind {
                CacheKind::STATE => Table {
                    read: if sequence.seen == 0 { VACANT } else { sequence.reads[place] },
                    write: sequence.places[place].first().copied().unwrap_or(VACANT),
                    checkpoints: copies
                        .iter()
                        .map(|(after, to)| Checkpoint { after: *after, slot: to[place] })
                        .collect(),
                    ..empty
                },
                _ => Table { blocks: sequence.places.get(place).cloned().unwrap_or_default(), ..empty },
            }
        };
        self.shape.caches.iter().enumerate().map(table).collect()
    }

    /// Runs a draft as it is. Values that the model does not write stay NaN.
    pub(crate) fn forward(&mut self, draft: &Draft) -> Result<Vec<f32>, PluginError> {
        let mut logits = vec![f32::NAN; draft.logits];
        let mut outputs = Outputs {
            logits: (&mut logits[..]).into(),
            ids: (&mut [][..]).into(),
            scores: (&mut [][..]).into(),
            totals: (&mut [][..]).into(),
            hidden: (&mut [][..]).into(),
        };
        self.run(draft, &draft.spans, 0, &mut outputs)?;
        Ok(logits)
    }

    /// Runs a draft whose rows are all candidates, `top` in each.
    pub(crate) fn candidates(&mut self, draft: &Draft, top: u32, mask: Mask) -> Result<Chosen, PluginError> {
        let rows = draft.logits / self.shape.vocabulary as usize;
        let (words, mut row) = (self.shape.vocabulary.div_ceil(32) as usize, 0..);
        let masks = draft.spans.iter().map(|span| {
            let rows = row.by_ref().take(span.want.rows(span.len).unwrap_or(0) as usize);
            rows.flat_map(|row| mask(words, row)).collect()
        });
        let masks: Vec<Vec<u32>> = masks.collect();
        let spans = draft.spans.iter().zip(&masks);
        let spans = spans.map(|(span, mask)| Span { output: Output::CANDIDATES, mask: mask[..].into(), ..*span });
        let spans: Vec<Span<'_>> = spans.collect();
        let places = rows * top as usize;
        let mut chosen =
            Chosen { ids: vec![VACANT; places], scores: vec![f32::NAN; places], totals: vec![f32::NAN; 2 * rows] };
        let mut outputs = Outputs {
            logits: (&mut [][..]).into(),
            ids: (&mut chosen.ids[..]).into(),
            scores: (&mut chosen.scores[..]).into(),
            totals: (&mut chosen.totals[..]).into(),
            hidden: (&mut [][..]).into(),
        };
        self.run(draft, &spans, top, &mut outputs)?;
        Ok(chosen)
    }

    /// Runs a draft with the given output for each span: logits or hidden rows.
    pub(crate) fn mixed(&mut self, draft: &Draft, kinds: &[Output]) -> Result<(Vec<f32>, Vec<f32>), PluginError> {
        let spans = draft.spans.iter().zip(kinds).map(|(span, kind)| Span { output: *kind, ..*span });
        let spans: Vec<Span<'_>> = spans.collect();
        let count = |kind: Output, width: u32| {
            let rows = spans.iter().filter(|span| span.output == kind).filter_map(|span| span.want.rows(span.len));
            rows.sum::<u32>() as usize * width as usize
        };
        let mut logits = vec![f32::NAN; count(Output::LOGITS, self.shape.vocabulary)];
        let mut hidden = vec![f32::NAN; count(Output::HIDDEN, self.shape.hidden)];
        let mut outputs = Outputs {
            logits: (&mut logits[..]).into(),
            ids: (&mut [][..]).into(),
            scores: (&mut [][..]).into(),
            totals: (&mut [][..]).into(),
            hidden: (&mut hidden[..]).into(),
        };
        self.run(draft, &spans, 0, &mut outputs)?;
        Ok((logits, hidden))
    }

    fn run(
        &mut self,
        draft: &Draft,
        spans: &[Span<'_>],
        top: u32,
        outputs: &mut Outputs<'_>,
    ) -> Result<(), PluginError> {
        let tables: Vec<Vec<CacheTable<'_>>> =
            draft.tables.iter().map(|tables| tables.iter().map(Table::cross).collect()).collect();
        let spans = spans.iter().zip(&tables);
        let spans: Vec<Span<'_>> = spans.map(|(span, tables)| Span { caches: tables[..].into(), ..*span }).collect();
        let (tokens, positions) = (draft.tokens[..].into(), draft.positions[..].into());
        let batch = Batch { tokens, positions, spans: spans[..].into(), top };
        self.model.forward(&batch, outputs).into_result()
    }

    /// Compares a row of logits with the known one, if any.
    pub(crate) fn compare(&mut self, what: &str, token: usize, right: Option<&[f32]>, row: &[f32]) -> Finding<()> {
        if let Some(place) = row.iter().position(|logit| !logit.is_finite()) {
            let value = row[place];
            return Err(broken(format!("{what}: of the logits at token {token}, number {place} is {value}")));
        }
        let Some(right) = right else { return Ok(()) };
        let apart = difference(right, row);
        if apart.part() > self.tolerance {
            let Difference { largest, spread } = apart;
            let numbers = format!("differ by {largest:.3} where they spread over {spread:.3}");
            return Err(broken(format!("{what}: the logits at token {token} {numbers}")));
        }
        self.worst = self.worst.max(apart.part());
        Ok(())
    }
}

/// The next pseudo-random number (splitmix64).
pub(crate) fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The difference of two rows of logits.
pub(crate) struct Difference {
    largest: f32,
    spread: f32,
}

impl Difference {
    /// Relative to the spread.
    pub(crate) fn part(&self) -> f32 {
        if self.largest == 0.0 { 0.0 } else { self.largest / self.spread.max(f32::MIN_POSITIVE) }
    }
}

/// Compares finite rows.
pub(crate) fn difference(right: &[f32], row: &[f32]) -> Difference {
    let largest = right.iter().zip(row).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let (low, high) = right.iter().fold((f32::MAX, f32::MIN), |(low, high), &x| (low.min(x), high.max(x)));
    Difference { largest, spread: high - low }
}
