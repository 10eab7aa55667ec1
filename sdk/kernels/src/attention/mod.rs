//! Paged attention on the CPU: causal, or within whole texts in both directions.
//!
//! Positions are processed in tiles of 64 that start at multiples of 64, regardless of the batch, the prompt's chunks
//! and the order of the blocks; each output row goes through the tiles that it sees, in order, with a running maximum
//! and sum. That makes it bitwise identical however the prompt was split. Once per tile, keys are transposed and keys
//! and values widened, for all heads that share them and for several rows; scores and outputs are then two panel
//! products, like any other matrix product here. As with those, the matrix unit computes spans of many rows, if there is one:
//! whether it does depends on a row's own sequence alone.

mod chosen;
mod rows;
#[cfg(test)]
mod tests;
mod texts;
#[cfg(target_arch = "x86_64")]
mod tiles;

use std::borrow::Cow;
use std::marker::PhantomData;
use std::ops::Range;

use super::float::{F16, F32, Float, fill};
use super::kv::{Kv, KvLayout, Span};
use super::kv_packed::{rotate_rows, rotated};
use super::pool::{Disjoint, Pool};
use super::simd::{Kernel, Rows, Simd, exp, tanh};
use super::tile::{MANY, PAIR, TILE, in_tiles, tile};

use rows::TileRows;

pub use chosen::attention_chosen;
pub use texts::{TextHeads, attention_within};

/// Positions per tile.
const POSITIONS: usize = 64;
/// Approximate number of rows per part, by vectors and at most on the matrix unit.
const ROWS: usize = 64;
const ROWS_OF_TILES: usize = 256;

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
    let rows_of_tiles = (tiled * heads / (4 * pool.threads())).clamp(ROWS, ROWS_OF_TILES);
    let tokens = |span: &Span<'_>| {
        let rows = if is_tiled(span) { rows_of_tiles } else { ROWS };
        (rows * layout.kv_heads / heads).max(1)
    };
    let mut parts: Vec<_> = (spans.iter())
        .flat_map(|span| {
            let tokens = tokens(span);
            (0..span.len).step_by(tokens).map(move |at| (span, at, tokens.min(span.len - at)))
        })
        .collect();
    // Longest first, so that threads finish together.
    let seen = |span: &Span<'_>, at: usize| (span.past + at).saturating_add(scores.ahead).min(span.past + span.len);
    parts.sort_by_key(|(span, at, len)| std::cmp::Reverse(seen(span, *at) * len));
    let q = &*past.turned(pool, q);
    let shared = Disjoint::new(out);
    pool.run(parts.len() * layout.kv_heads, |index| {
        let (span, at, len) = parts[index / layout.kv_heads];
        let part = Part { span, at, len, kv_head: index % layout.kv_heads };
        match keys {
            Kv::F16(_) => {
                Attend::<F16> { past, scores, heads, q, out: &shared, part, format: PhantomData }
                    .on(pool, is_tiled(span));
            }
            // Packed rows are widened first.
            Kv::F32(_) | Kv::Packed(..) => {
                Attend::<F32> { past, scores, heads, q, out: &shared, part, format: PhantomData }
                    .on(pool, is_tiled(span));
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

/// Some rows of a span, for the heads that share one cache head.
#[derive(Clone, Copy)]
struct Part<'a> {
    span: &'a Span<'a>,
    at: usize,
    len: usize,
    kv_head: usize,
}

struct Attend<'a, F> {
    past: Past<'a>,
    scores: Scores<'a>,
    heads: usize,
    q: &'a [f32],
    out: &'a Disjoint<'a, f32>,
    part: Part<'a>,
    format: PhantomData<F>,
}

impl<S: Simd, F: Float> Kernel<S> for Attend<'_, F> {
    #[inline(always)]
    fn run(self, simd: S) {
        let Part { span, at, len, .. } = self.part;
        let group = self.group();
        let mut work = Work::new(simd, &self, self.rows());
        let first = span.past + at;
        let end = first + len;
        let window = self.scores.window.unwrap_or(usize::MAX);
        let last = self.seen_by(end - 1).end.min(span.past + span.len);
        for start in (self.seen_by(first).start / POSITIONS * POSITIONS..last).step_by(POSITIONS) {
            let seen = POSITIONS.min(last - start);
            // Rows too far before the tile do not see it, nor do rows whose window has moved past it.
            let from = (first..end).find(|position| self.seen_by(*position).end > start).unwrap_or(end);
            let tokens = from..end.min((start + POSITIONS - 1).saturating_add(window)).max(from);
            let rows = (tokens.start - first) * group..(tokens.end - first) * group;
            work.fetch::<F>(simd, &self, start, seen);
            work.score(simd, self.past.keys.0.head_dim, rows.clone(), seen);
            for row in rows.clone() {
                let position = first + row / group;
                let visible = self.visible(position, start, seen);
                if let Some(distances) = self.scores.distances {
                    let biases = distances.of_head(self.head(row) % self.heads);
                    work.add_biases(row, visible.clone(), biases, start.cast_signed() - position.cast_signed());
                }
                work.weigh(simd, row, visible, self.scores.softcap);
            }
            work.gather(simd, rows, seen);
        }
        work.finish(simd, &self);
    }
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

    /// The positions that the row at a position sees; neither end ever falls.
    #[inline(always)]
    fn seen_by(&self, position: usize) -> Range<usize> {
        let Scores { window, ahead, seen, .. } = self.scores;
        let end = match seen {
            Some(seen) => {
                let span = self.part.span;
                (seen[span.start + position - span.past] as usize).max(position + 1)
            }
            None => position.saturating_add(ahead).saturating_add(1),
        };
        (position + 1).saturating_sub(window.unwrap_or(usize::MAX))..end
    }

    /// Those of them within the `seen` positions from `start` on, counted from there.
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

/// Scratch memory of a part, reused for all its tiles.
struct Work<S: Simd> {
    rows: usize,
    /// `[rows, head_dim]`, scaled.
    queries: Vec<f32>,
    /// Rows of a packed cache.
    unpacked: Vec<f32>,
    /// Panels of positions, one vector per dimension.
    keys: Vec<S::F>,
    /// Panels of dimensions, one vector per position.
    values: Vec<S::F>,
    /// `[rows, POSITIONS]`: first scores, then softmax weights.
    weights: Vec<f32>,
    /// Products of rows with a pair of key panels.
    products: Vec<[S::F; PAIR]>,
    /// The running maximum and sum of each row.
    state: Vec<(f32, f32)>,
    /// Accumulated output for each pair of value panels and each row.
    sums: Vec<[S::F; PAIR]>,
}

impl<S: Simd> Work<S> {
    #[inline(always)]
    fn new<F: Float>(simd: S, of: &Attend<'_, F>, rows: usize) -> Self {
        let dim = of.past.keys.0.head_dim;
        let pairs = of.past.value_dim.div_ceil(PAIR * S::LANES);
        let mut queries = Vec::with_capacity(rows * dim);
        for row in 0..rows {
            queries.extend(of.queries(row));
        }
        let zero = simd.splat(0.0);
        Self {
            rows,
            queries,
            unpacked: Vec::new(),
            keys: vec![zero; POSITIONS / S::LANES * dim],
            values: vec![zero; pairs * PAIR * POSITIONS],
            weights: vec![0.0; rows * POSITIONS],
            products: vec![[zero; PAIR]; rows],
            state: vec![(f32::NEG_INFINITY, 0.0); rows],
            sums: vec![[zero; PAIR]; pairs * rows],
        }
    }

    /// Loads and widens a tile's keys and values.
    #[inline(always)]
    fn fetch<F: Float>(&mut self, simd: S, of: &Attend<'_, F>, start: usize, seen: usize) {
        let Past { keys: (layout, _), value_dim, .. } = of.past;
        let dim = layout.head_dim;
        let rows = of.rows_of(of.past.keys, (start, seen), &mut self.unpacked);
        for (panel, keys) in self.keys.chunks_exact_mut(dim).enumerate().take(seen.div_ceil(S::LANES)) {
            let first = panel * S::LANES;
            if rows.are_adjacent(S::LANES) {
                let bytes = rows.at(first);
                fill::<S, F>(simd, Rows { bytes, stride: dim * F::BYTES }, keys);
            } else {
                for (d, key) in keys.iter_mut().enumerate() {
                    let mut lanes = [0.0; 64];
                    for (lane, position) in lanes.iter_mut().zip(first..seen.min(first + S::LANES)) {
                        *lane = F::widen(&rows.at(position)[d * F::BYTES..]);
                    }
                    *key = simd.load(&lanes);
                }
            }
        }
        let rows = of.rows_of(of.past.values, (start, seen), &mut self.unpacked);
        for position in 0..seen {
            let bytes = &rows.at(position)[..value_dim * F::BYTES];
            for (panel, bytes) in bytes.chunks(S::LANES * F::BYTES).enumerate() {
                self.values[panel * POSITIONS + position] = load_part::<S, F>(simd, bytes);
            }
        }
    }

    /// Multiplies some rows with a tile's keys.
    #[inline(always)]
    fn score(&mut self, simd: S, dim: usize, rows: Range<usize>, seen: usize) {
        for pair in 0..seen.div_ceil(PAIR * S::LANES) {
            let (first, second) = self.keys[pair * PAIR * dim..][..PAIR * dim].split_at(dim);
            let products = &mut self.products[rows.clone()];
            products.fill([simd.splat(0.0); PAIR]);
            let queries = &self.queries[rows.start * dim..];
            in_tiles!(products.len(), TILE, |some| {
                tile(simd, [first, second], &queries[some.start * dim..], dim, &mut products[some]);
            });
            let weights = self.weights[rows.start * POSITIONS..].chunks_exact_mut(POSITIONS);
            for (products, weights) in products.iter().zip(weights) {
                for (p, product) in products.iter().enumerate() {
                    simd.store(*product, &mut weights[(pair * PAIR + p) * S::LANES..]);
                }
            }
        }
    }

    /// Adds a head's biases to a row's visible scores. `tile` is the distance from the row's position to the tile's first.
    #[inline(always)]
    fn add_biases(&mut self, row: usize, visible: Range<usize>, biases: &[f32], tile: isize) {
        let far = (biases.len() / 2).cast_signed();
        let weights = &mut self.weights[row * POSITIONS..][..POSITIONS];
        // The visible scores from `-far` to `far`, and those beyond either end.
        let inside = |distance: isize| (distance - tile).clamp(visible.start.cast_signed(), visible.end.cast_signed());
        let (low, high) = (inside(-far).cast_unsigned(), inside(far + 1).cast_unsigned());
        weights[visible.start..low].iter_mut().for_each(|weight| *weight += biases[0]);
        weights[high..visible.end].iter_mut().for_each(|weight| *weight += biases[biases.len() - 1]);
        if low < high {
            let first = (low.cast_signed() + tile + far).cast_unsigned();
            weights[low..high].iter_mut().zip(&biases[first..]).for_each(|(weight, bias)| *weight += bias);
        }
    }

    /// Turns a row's scores into weights relative to the running maximum, and rescales the row's accumulated output if
    /// that grows.
    #[inline(always)]
    fn weigh(&mut self, simd: S, row: usize, visible: Range<usize>, softcap: Option<f32>) {
        let weights = &mut self.weights[row * POSITIONS..][..POSITIONS];
        weights[..visible.start].fill(f32::NEG_INFINITY);
        weights[visible.end..].fill(f32::NEG_INFINITY);
        if let Some(cap) = softcap {
            for weights in weights.chunks_exact_mut(S::LANES) {
                let bent = tanh(simd, simd.div(simd.load(weights), simd.splat(cap)));
                simd.store(simd.mul(bent, simd.splat(cap)), weights);
            }
            weights[..visible.start].fill(f32::NEG_INFINITY);
            weights[visible.end..].fill(f32::NEG_INFINITY);
        }
        let (before, sum) = self.state[row];
        let mut top = simd.splat(before);
        for weights in weights.chunks_exact(S::LANES) {
            top = simd.max(top, simd.load(weights));
        }
        let top = simd.top(top);
        let mut added = simd.splat(0.0);
        for weights in weights.chunks_exact_mut(S::LANES) {
            let weight = exp(simd, simd.sub(simd.load(weights), simd.splat(top)));
            simd.store(weight, weights);
            added = simd.add(added, weight);
        }
        let shrink = exp(simd, simd.splat(before - top));
        for sums in self.sums.chunks_exact_mut(self.rows) {
            // No `map`: its closure would be compiled without the instruction set.
            for sum in &mut sums[row] {
                *sum = simd.mul(*sum, shrink);
            }
        }
        let mut lanes = [0.0; 64];
        simd.store(shrink, &mut lanes);
        self.state[row] = (top, sum * lanes[0] + simd.sum(added));
    }

    /// Adds a tile's weighted values.
    #[inline(always)]
    fn gather(&mut self, simd: S, rows: Range<usize>, seen: usize) {
        let pairs = self.values.chunks_exact(PAIR * POSITIONS);
        for (values, sums) in pairs.zip(self.sums.chunks_exact_mut(self.rows)) {
            let (first, second) = values.split_at(POSITIONS);
            let (sums, weights) = (&mut sums[rows.clone()], &self.weights[rows.start * POSITIONS..]);
            in_tiles!(sums.len(), TILE, |some| {
                let weights = &weights[some.start * POSITIONS..];
                tile(simd, [&first[..seen], &second[..seen]], weights, POSITIONS, &mut sums[some]);
            });
        }
    }

    #[inline(always)]
    fn finish<F: Float>(&self, simd: S, of: &Attend<'_, F>) {
        let dim = of.past.value_dim;
        for row in 0..self.rows {
            let head = of.head(row);
            // SAFETY: each row and head belong to one part of one span, as spans do not overlap.
            let out = unsafe { of.out.range(head * dim..(head + 1) * dim) };
            let (top, sum) = self.state[row];
            let total = simd.splat(of.total(head, top, sum));
            let panels = self.sums.chunks_exact(self.rows).flat_map(|sums| sums[row]);
            for (out, sum) in out.chunks_mut(S::LANES).zip(panels) {
                let mut lanes = [0.0; 64];
                simd.store(simd.div(sum, total), &mut lanes);
                out.copy_from_slice(&lanes[..out.len()]);
            }
        }
    }
}
