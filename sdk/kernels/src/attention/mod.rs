//! Paged attention on the CPU: causal, or within whole texts in both directions.
//!
//! Positions are processed in tiles, of 64 by vectors and of 128 on the matrix unit, which start at multiples of that, regardless of
//! the batch, the prompt's chunks and the order of the blocks; each output row goes through the tiles that it sees, in order, with a
//! running maximum and sum. By vectors, these are kept per section of a few tiles, and the sections are then summed in order, so that
//! several threads can share them. That makes a row bitwise identical however the prompt was split. Once per tile, keys are
//! transposed and keys and values widened, for all heads that share them and for several rows; scores and outputs are then two
//! panel products, like any other matrix product here. As with those, the matrix unit computes spans of many rows, if there is
//! one: whether it does depends on a row's own sequence alone.

mod chosen;
mod rows;
mod sections;
#[cfg(test)]
mod tests;
mod texts;
#[cfg(target_arch = "x86_64")]
mod tiles;
mod vectors;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use super::float::{F16, F32, Float};
use super::kv::{Kv, KvLayout, Span};
use super::kv_packed::{rotate_rows, rotated};
use super::pool::{Disjoint, Pool};
use super::simd::Simd;
use super::tile::MANY;

use rows::TileRows;
use sections::{STATE, Sections, section_len};

pub use chosen::attention_chosen;
pub use texts::{TextHeads, attention_within};

/// Positions per tile, by vectors.
const POSITIONS: usize = 64;
/// Approximate number of rows per part by vectors.
const ROWS: usize = 64;
/// The limit of rows per part on the matrix unit lies between these: a core's L2 cache has to hold their queries and sums, so it is
/// lower for long heads.
const ROWS_OF_TILES: (usize, usize) = (256, 512);
/// The queries and sums, in numbers of 4 bytes, at which it lies.
const NUMBERS_OF_TILES: usize = 1 << 18;
/// Tasks per thread, if parts are cut into sections.
const TASKS: usize = 4;
/// Most values of the sections that threads share, 16 MiB.
const SHARED_MAX: usize = 4 << 20;

/// How dot products of queries and keys become scores.
#[derive(Clone, Copy, Debug)]
pub struct Scores<'a> {
    pub scale: f32,
    /// Sliding window in positions, including the row's own.
    pub window: Option<usize>,
    /// Positions after its own that a row attends to: 0 for causal attention, `usize::MAX` for the whole text.
    pub ahead: usize,
    /// For each row of the queries the number of its sequence's positions that it sees, instead of those up to its own:
    /// within a span not fewer than of the row before.
    pub seen: Option<&'a [u32]>,
    /// Bounds scores to `± cap` by `cap · tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// Attention sinks: an extra score per query head that takes part in the softmax but has no value.
    pub sinks: Option<&'a [f32]>,
    pub distances: Option<Distances<'a>>,
}

impl Scores<'_> {
    /// The positions that the row at a position of a span sees. The end may lie behind the span's; neither end ever falls.
    #[inline(always)]
    fn seen_by(&self, span: &Span<'_>, position: usize) -> Range<usize> {
        let end = match self.seen {
            Some(seen) => (seen[span.start + position - span.past] as usize).max(position + 1),
            None => position.saturating_add(self.ahead).saturating_add(1),
        };
        (position + 1).saturating_sub(self.window.unwrap_or(usize::MAX))..end
    }

    /// The positions that some rows of a span see.
    #[inline(always)]
    fn seen_by_rows(&self, span: &Span<'_>, rows: Range<usize>) -> Range<usize> {
        let end = self.seen_by(span, span.past + rows.end - 1).end.min(span.past + span.len);
        self.seen_by(span, span.past + rows.start).start..end
    }
}

/// What is added to the scores of each head by the distance from a row's position to a key's.
#[derive(Clone, Copy, Debug)]
pub struct Distances<'a> {
    /// `[heads, 2 · far + 1]`, from `far` positions before the row to `far` behind it.
    pub biases: &'a [f32],
    /// Keys that are further away count as if they were here.
    pub far: usize,
}

impl<'a> Distances<'a> {
    #[inline(always)]
    fn of_head(&self, head: usize) -> &'a [f32] {
        let each = 2 * self.far + 1;
        &self.biases[head * each..][..each]
    }
}

/// The key and value caches. A value is the first `value_dim` elements of a row; the value cache may be the key cache.
#[derive(Clone, Copy, Debug)]
pub struct Past<'a> {
    pub keys: (KvLayout, Kv<'a>),
    pub values: (KvLayout, Kv<'a>),
    pub value_dim: usize,
}

impl Past<'_> {
    /// Panics unless both caches have the same slots and type.
    fn check(&self) {
        let ((layout, keys), (value_layout, values)) = (self.keys, self.values);
        assert!(layout.holds(keys) && value_layout.holds(values), "caches of {layout:?} and {value_layout:?}");
        let dim = self.value_dim;
        assert!((1..=value_layout.head_dim).contains(&dim), "values of {dim} in {value_layout:?}");
        assert!(keys.is_like(values), "keys and values are of one kind");
        assert_eq!(dim, self.whole_values(), "values end where a rotation does");
    }

    /// The elements of a row to take as a value so that it does not end amid what is rotated together.
    pub fn whole_values(&self) -> usize {
        self.rotation().map_or(self.value_dim, |(_, of_values)| self.value_dim.next_multiple_of(of_values))
    }

    /// How many values of keys, and of values, are rotated together; `None` if they are as they are.
    fn rotation(&self) -> Option<(usize, usize)> {
        let is_packed = matches!(self.keys.1, Kv::Packed(..));
        is_packed.then(|| (rotated(self.keys.0.head_dim), rotated(self.values.0.head_dim)))
    }

    /// Queries as the keys are: rotated, if those are.
    fn turned<'a>(&self, pool: &Pool, q: &'a [f32]) -> Cow<'a, [f32]> {
        let mut q = Cow::Borrowed(q);
        if let Some((of_keys, _)) = self.rotation() {
            rotate_rows(pool, q.to_mut(), self.keys.0.head_dim, of_keys);
        }
        q
    }
}

/// Attends from the rows of some spans, `q[n, heads, head_dim]`, to their sequences' positions up to their own and
/// `ahead` further ones of the span, whose keys and values are already in the caches: `out[n, heads, value_dim]`.
/// Consecutive query heads share a cache head. Rows of `out` outside all spans are left unchanged; spans must not overlap.
pub fn attention(
    pool: &Pool,
    past: Past<'_>,
    spans: &[Span<'_>],
    scores: Scores<'_>,
    heads: usize,
    q: &[f32],
    out: &mut [f32],
) {
    let Past { keys: (layout, keys), values: (value_layout, _), value_dim } = past;
    let (width, rows) = (heads * layout.head_dim, q.len() / (heads * layout.head_dim).max(1));
    assert!(width > 0 && heads.is_multiple_of(layout.kv_heads), "{heads} heads over {layout:?}");
    assert!(q.len() == rows * width && out.len() == rows * heads * value_dim, "{} queries, {rows} rows", q.len());
    past.check();
    let is_alike = (layout.kv_heads, layout.slots, layout.block_len)
        == (value_layout.kv_heads, value_layout.slots, value_layout.block_len);
    assert!(is_alike, "caches of {layout:?} and {value_layout:?}");
    assert!(scores.window != Some(0), "a window of no positions");
    assert!(scores.sinks.is_none_or(|sinks| sinks.len() == heads), "a sink for each of {heads} heads");
    let is_whole = |distances: Distances<'_>| distances.biases.len() == heads * (2 * distances.far + 1);
    assert!(scores.distances.is_none_or(is_whole), "biases of {heads} heads");
    assert!(scores.seen.is_none_or(|seen| seen.len() == rows), "{rows} rows that see further");
    layout.check(rows, spans);
    let mut starts: Vec<_> = spans.iter().map(|span| (span.start, span.start + span.len)).collect();
    starts.sort_unstable();
    assert!(starts.is_sorted_by(|a, b| a.1 <= b.0), "spans overlap");

    let is_tiled = |span: &Span<'_>| pool.level().has_tiles() && span.len >= MANY;
    // Enough rows per task to make good use of a tile of keys, counting all heads of a group, and enough tasks for all threads.
    let tiled: usize = spans.iter().filter(|span| is_tiled(span)).map(|span| span.len).sum();
    let most = (NUMBERS_OF_TILES / (layout.head_dim + value_dim)).clamp(ROWS_OF_TILES.0, ROWS_OF_TILES.1);
    let rows_of_tiles = (tiled * heads / (4 * pool.threads())).clamp(ROWS, most);
    let of_span = |span| {
        let rows = if is_tiled(span) { rows_of_tiles } else { ROWS };
        let tokens = (rows * layout.kv_heads / heads).max(1);
        (0..span.len).step_by(tokens).map(move |at| (span, at, tokens.min(span.len - at)))
    };
    let mut parts: Vec<(&Span<'_>, usize, usize)> = spans.iter().flat_map(of_span).collect();
    // Longest first, so that threads finish together.
    let cost = |&(span, at, len): &(&Span<'_>, usize, usize)| scores.seen_by_rows(span, at..at + len).len() * len;
    parts.sort_by_key(|part| Reverse(cost(part)));
    // Parts that take longer than a task should are cut into sections, as long as these take little memory.
    let task_cost = match pool.threads() {
        1 => usize::MAX,
        threads => parts.iter().map(cost).sum::<usize>() * layout.kv_heads / (TASKS * threads),
    };
    let section_len = section_len(heads / layout.kv_heads * (layout.head_dim + value_dim));
    let values_of = |len: usize| len * heads / layout.kv_heads * (value_dim + STATE);
    let (mut tasks, mut shared_values) = (Vec::with_capacity(parts.len() * layout.kv_heads), 0);
    for (span, at, len) in parts {
        let seen = scores.seen_by_rows(span, at..at + len);
        let sections = seen.start / section_len..seen.end.div_ceil(section_len);
        let mut together = (task_cost / (section_len * len)).clamp(1, sections.len());
        if together < sections.len() {
            let more = sections.len() * layout.kv_heads * values_of(len);
            if is_tiled(span) || shared_values + more > SHARED_MAX {
                together = sections.len();
            } else {
                shared_values += more;
            }
        }
        for kv_head in 0..layout.kv_heads {
            let shared = (together < sections.len()).then(|| Arc::new(Sections::new(sections.clone(), values_of(len))));
            for start in sections.clone().step_by(together) {
                let (sections, shared) = (start..sections.end.min(start + together), shared.clone());
                tasks.push(Part { span, at, len, kv_head, sections, shared });
            }
        }
    }
    let q = &*past.turned(pool, q);
    let rows = Disjoint::new(out);
    pool.run(tasks.len(), |task| {
        let part = &tasks[task];
        let (is_tiled, out) = (is_tiled(part.span), &rows);
        match keys {
            Kv::F16(_) => {
                Attend::<F16> { past, scores, heads, q, out, part, section_len, format: PhantomData }
                    .on(pool, is_tiled);
            }
            // Packed rows are widened first.
            Kv::F32(_) | Kv::Packed(..) => {
                Attend::<F32> { past, scores, heads, q, out, part, section_len, format: PhantomData }
                    .on(pool, is_tiled);
            }
        }
    });
    if let Some((_, of_values)) = past.rotation() {
        let width = heads * value_dim;
        for span in spans {
            rotate_rows(pool, &mut out[span.start * width..][..span.len * width], value_dim, of_values);
        }
    }
}

/// Some sections of some rows of a span, for the heads that share one cache head.
struct Part<'a> {
    span: &'a Span<'a>,
    at: usize,
    len: usize,
    kv_head: usize,
    sections: Range<usize>,
    /// All sections of these rows, if others compute the rest.
    shared: Option<Arc<Sections>>,
}

struct Attend<'a, F> {
    past: Past<'a>,
    scores: Scores<'a>,
    heads: usize,
    q: &'a [f32],
    out: &'a Disjoint<'a, f32>,
    part: &'a Part<'a>,
    /// Positions per section.
    section_len: usize,
    format: PhantomData<F>,
}

impl<F: Float> Attend<'_, F> {
    fn on(self, pool: &Pool, is_tiled: bool) {
        #[cfg(target_arch = "x86_64")]
        if let Some(amx) = pool.level().tiles().filter(|_| is_tiled) {
            return amx.enter(self);
        }
        let _ = is_tiled;
        pool.level().run(self);
    }

    #[inline(always)]
    fn seen_by(&self, position: usize) -> Range<usize> {
        self.scores.seen_by(self.part.span, position)
    }

    /// The positions that the part's rows see.
    #[inline(always)]
    fn seen(&self) -> Range<usize> {
        self.scores.seen_by_rows(self.part.span, self.part.at..self.part.at + self.part.len)
    }

    /// Position of the part's first row.
    #[inline(always)]
    fn first(&self) -> usize {
        self.part.span.past + self.part.at
    }

    /// The positions that a row sees of the `seen` from `start` on, counted from there.
    #[inline(always)]
    fn visible(&self, position: usize, start: usize, seen: usize) -> Range<usize> {
        let all = self.seen_by(position);
        all.start.saturating_sub(start).min(seen)..all.end.saturating_sub(start).min(seen)
    }

    /// A part's rows: all heads of the group, token by token.
    #[inline(always)]
    fn rows(&self) -> usize {
        self.part.len * self.group()
    }

    /// Number of query heads per cache head.
    #[inline(always)]
    fn group(&self) -> usize {
        self.heads / self.past.keys.0.kv_heads
    }

    /// The rows of `seen` positions of a tile in a cache; `unpacked` has room for those of a packed one.
    #[inline(always)]
    fn rows_of<'a>(
        &self,
        cache: (KvLayout, Kv<'a>),
        (start, seen): (usize, usize),
        unpacked: &'a mut Vec<f32>,
    ) -> TileRows<'a>
    where
        Self: 'a,
    {
        TileRows::new(cache, self.part.span.blocks, self.part.kv_head, (start, seen), unpacked)
    }

    /// Index of a row's head among the heads of all tokens in the batch.
    #[inline(always)]
    fn head(&self, row: usize) -> usize {
        let group = self.group();
        let token = self.part.span.start + self.part.at + row / group;
        token * self.heads + self.part.kv_head * group + row % group
    }

    /// A row's queries, scaled.
    #[inline(always)]
    fn queries(&self, row: usize) -> impl Iterator<Item = f32> {
        let dim = self.past.keys.0.head_dim;
        self.q[self.head(row) * dim..][..dim].iter().map(|q| q * self.scores.scale)
    }

    /// Divisor of a row's weights: their sum, which is relative to the row's largest score, with the sink.
    #[inline(always)]
    fn total(&self, head: usize, top: f32, sum: f32) -> f32 {
        sum + self.scores.sinks.map_or(0.0, |sinks| (sinks[head % self.heads] - top).exp())
    }
}

/// Loads a vector of numbers, the last of a row filled up with zeros.
#[inline(always)]
fn load_part<S: Simd, F: Float>(simd: S, bytes: &[u8]) -> S::F {
    if bytes.len() == S::LANES * F::BYTES {
        return F::load(simd, bytes);
    }
    let mut lanes = [0.0; 64];
    for (lane, bytes) in lanes.iter_mut().zip(bytes.chunks_exact(F::BYTES)) {
        *lane = F::widen(bytes);
    }
    simd.load(&lanes)
}
