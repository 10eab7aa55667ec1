//! Attention against sums in `f64`, and against itself with other prompt chunks and block placements.

use half::f16;

use super::*;
use crate::kv::{KvMut, load_kv, store_kv};
use crate::kv_packed::{self, Packing};
use crate::simd::Level;

#[derive(Clone, Copy)]
struct Case {
    heads: usize,
    kv_heads: usize,
    dim: usize,
    block_len: usize,
    scores: Scores<'static>,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    F32,
    F16,
    Packed(Packing),
}

use Kind::{F16 as Half, F32 as Single, Packed};

const PLAIN: Scores<'static> =
    Scores { scale: 0.3, window: None, ahead: 0, seen: None, softcap: None, sinks: None, distances: None };
const CASE: Case = Case { heads: 6, kv_heads: 2, dim: 64, block_len: 16, scores: PLAIN, kind: Kind::F32 };

/// A cache of any type, full of garbage.
enum Cache {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Packed(Packing, Vec<u8>),
}

impl Cache {
    fn new(kind: Kind, layout: KvLayout) -> Self {
        match kind {
            Kind::F32 => Self::F32(vec![f32::NAN; layout.elements()]),
            Kind::F16 => Self::F16(vec![f16::NAN; layout.elements()]),
            Kind::Packed(packing) => {
                let bytes = layout.kv_heads * layout.slots * packing.row_bytes(layout.head_dim);
                Self::Packed(packing, vec![u8::MAX; bytes])
            }
        }
    }

    fn read(&self) -> Kv<'_> {
        match self {
            Self::F32(cache) => Kv::F32(cache),
            Self::F16(cache) => Kv::F16(cache),
            Self::Packed(packing, cache) => Kv::Packed(*packing, cache),
        }
    }

    fn write(&mut self) -> KvMut<'_> {
        match self {
            Self::F32(cache) => KvMut::F32(cache),
            Self::F16(cache) => KvMut::F16(cache),
            Self::Packed(packing, cache) => KvMut::Packed(*packing, cache),
        }
    }
}

/// A sequence: its keys, values and queries, and its assigned blocks.
struct Sequence {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    blocks: Vec<u32>,
}

/// Numbers that both formats represent exactly.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| f16::from_f32(((i * 7919 + seed * 104_729) as f32 * 0.618).sin() * 1.5).to_f32()).collect()
}

impl Case {
    fn sequence(&self, len: usize, seed: usize, blocks: impl Iterator<Item = u32>) -> Sequence {
        let kv = len * self.kv_heads * self.dim;
        let q = numbers(len * self.heads * self.dim, seed);
        let [k, v] = [seed + 1, seed + 2].map(|seed| self.kept(numbers(kv, seed)));
        Sequence { q, k, v, blocks: blocks.collect() }
    }

    /// Rows as a cache of this kind gives them back, which stores them without a further loss.
    fn kept(&self, mut rows: Vec<f32>) -> Vec<f32> {
        if let Packed(packing) = self.kind {
            let mut bytes = vec![0; packing.row_bytes(self.dim)];
            for row in rows.chunks_exact_mut(self.dim) {
                kv_packed::pack(&Pool::new(1), packing, row, &mut bytes);
                kv_packed::unpack(packing, &bytes, row);
            }
        }
        rows
    }

    /// Feeds the sequences in steps, some rows of each per step. Slots contain garbage before they are written.
    fn run(&self, level: Level, slots: usize, sequences: &[Sequence], steps: &[Vec<usize>]) -> Vec<Vec<f32>> {
        self.run_on(&Pool::with_level(2, level), slots, sequences, steps)
    }

    fn run_on(&self, pool: &Pool, slots: usize, sequences: &[Sequence], steps: &[Vec<usize>]) -> Vec<Vec<f32>> {
        let layout = KvLayout { kv_heads: self.kv_heads, slots, head_dim: self.dim, block_len: self.block_len };
        let [mut keys, mut values] = [(); 2].map(|()| Cache::new(self.kind, layout));
        let (width, kv) = (self.heads * self.dim, self.kv_heads * self.dim);
        let mut outs = vec![Vec::new(); sequences.len()];
        let mut past = vec![0; sequences.len()];
        for step in steps {
            let (mut q, mut k, mut v, mut spans) = (vec![], vec![], vec![], vec![]);
            for ((sequence, past), len) in sequences.iter().zip(&past).zip(step) {
                spans.push(Span { start: q.len() / width, len: *len, past: *past, blocks: &sequence.blocks });
                q.extend(&sequence.q[past * width..(past + len) * width]);
                k.extend(&sequence.k[past * kv..(past + len) * kv]);
                v.extend(&sequence.v[past * kv..(past + len) * kv]);
            }
            let mut out = vec![f32::NAN; q.len()];
            store_kv(pool, layout, keys.write(), &k, &spans);
            store_kv(pool, layout, values.write(), &v, &spans);
            let of_keys = (layout, keys.read());
            let caches = Past { keys: of_keys, values: (layout, values.read()), value_dim: self.dim };
            attention(pool, caches, &spans, self.scores, self.heads, &q, &mut out);
            for (span, (outs, past)) in spans.iter().zip(outs.iter_mut().zip(&mut past)) {
                outs.extend(&out[span.start * width..(span.start + span.len) * width]);
                *past += span.len;
            }
        }
        outs
    }

    fn expected(&self, sequence: &Sequence, position: usize, head: usize) -> Vec<f64> {
        let Scores { scale, window, ahead, seen, softcap, sinks, .. } = self.scores;
        let kv_head = head / (self.heads / self.kv_heads);
        let row = |of: &[f32], position: usize, heads: usize, head: usize| -> Vec<f64> {
            of[(position * heads + head) * self.dim..][..self.dim].iter().map(|x| f64::from(*x)).collect()
        };
        let q = row(&sequence.q, position, self.heads, head);
        let last = seen.map_or(position + ahead, |seen| seen[position] as usize - 1);
        let seen = window.map_or(0, |window| (position + 1).saturating_sub(window))..=last;
        let weights: Vec<f64> = (seen.clone())
            .map(|at| {
                let k = row(&sequence.k, at, self.kv_heads, kv_head);
                let score = q.iter().zip(&k).map(|(q, k)| q * k).sum::<f64>() * f64::from(scale);
                let bent = softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh());
                bent.exp()
            })
            .collect();
        let sunk = sinks.map_or(0.0, |sinks| f64::from(sinks[head]).exp());
        let total = weights.iter().sum::<f64>() + sunk;
        let mut out = vec![0.0; self.dim];
        for (at, weight) in seen.zip(weights) {
            for (out, v) in out.iter_mut().zip(row(&sequence.v, at, self.kv_heads, kv_head)) {
                *out += weight / total * v;
            }
        }
        out
    }

    /// How far from exact sums an output may be: beside caches of 16 bits and less the matrix unit rounds weights, and values of
    /// up to 1.5, to 8 bits.
    fn close(&self, level: Level) -> f64 {
        let sums = 1e-5 * f64::from(self.scores.scale / PLAIN.scale).max(1.0);
        if level.has_tiles() && self.kind != Single { sums + 2.0 * 1.5 / 256.0 } else { sums }
    }

    /// Asserts that two runs agree: to the last bit if the same unit computed all their rows, which are `len`.
    fn agree(&self, level: Level, what: &str, [one, other]: [&[Vec<f32>]; 2], are_alike: bool) {
        for (one, other) in one.iter().zip(other) {
            assert_eq!(one.len(), other.len(), "{} {what}", level.name());
            for (at, (one, other)) in one.iter().zip(other).enumerate() {
                let is_right =
                    if are_alike { one == other } else { f64::from((one - other).abs()) < self.close(level) };
                assert!(is_right, "{} {what}: {one} and {other} in row {}", level.name(), at / self.dim / self.heads);
            }
        }
    }

    /// Compares the whole prompt with exact sums; then chunks, single rows and scattered blocks with the whole prompt.
    fn check(&self, len: usize) {
        let blocks = len.div_ceil(self.block_len);
        let slots = 2 * blocks * self.block_len;
        let in_order = [self.sequence(len, 1, 0..blocks as u32)];
        let scattered = [self.sequence(len, 1, (0..blocks as u32).map(|i| 2 * (blocks as u32 - 1 - i) + 1))];
        for level in Level::available() {
            let whole = self.run(level, slots, &in_order, &[vec![len]]);
            let mut squares = 0.0;
            for (row, out) in whole[0].chunks(self.dim).enumerate() {
                let expected = self.expected(&in_order[0], row / self.heads, row % self.heads);
                for (out, expected) in out.iter().zip(expected) {
                    let error = (f64::from(*out) - expected).abs();
                    squares += error * error;
                    assert!(error < self.close(level), "{} row {row}: {out} {expected}", level.name());
                }
            }
            let typical = (squares / whole[0].len() as f64).sqrt();
            assert!(typical < self.close(level) / 5.0, "{}: {typical}", level.name());
            let ones = vec![vec![1]; len];
            let cut = len / 3;
            let chunks = [vec![cut], vec![1], vec![len - cut - 1]];
            let one_kind = len < MANY || !level.has_tiles();
            for (what, sequences, steps) in
                [("ones", &in_order, &ones[..]), ("chunks", &in_order, &chunks), ("scattered", &scattered, &chunks)]
            {
                self.agree(level, what, [&self.run(level, slots, sequences, steps), &whole], one_kind);
            }
            for first in [MANY, MANY + 1, MANY + 36] {
                if len >= first + MANY {
                    let halves = [vec![first], vec![len - first]];
                    self.agree(level, "halves", [&self.run(level, slots, &scattered, &halves), &whole], true);
                }
            }
        }
    }
}

#[test]
fn prompts_are_the_same_whole_in_chunks_and_scattered() {
    CASE.check(150);
    Case { kind: Kind::F16, ..CASE }.check(131);
}

/// Scores of up to 50, which rounding queries or keys to 8 bits would change by more than a weight may be off.
#[test]
fn scores_keep_the_bits_that_a_sharp_choice_needs() {
    for kind in [Half, Single, Packed(Packing::Q8)] {
        Case { kind, scores: Scores { scale: 1.2, ..PLAIN }, ..CASE }.check(150);
    }
}

#[test]
fn sections_are_the_same_by_one_thread_and_by_many() {
    let sinks = Some(&[0.5, -3.0, 4.0, 0.0, 1.5, -0.5][..]);
    let windowed = Scores { window: Some(286), sinks, ..PLAIN };
    let len: usize = 589;
    for (heads, kv_heads, dim, section, scores, kind) in [
        (6, 2, 20, 256, PLAIN, Half),
        (6, 1, 32, 256, windowed, Single),
        (6, 2, 64, 256, PLAIN, Packed(Packing::Q8)),
        (48, 1, 64, 128, Scores { softcap: Some(2.0), ..PLAIN }, Half),
    ] {
        let case = Case { heads, kv_heads, dim, scores, kind, ..CASE };
        assert_eq!(section_len(2 * dim * heads / kv_heads), section);
        let blocks = len.div_ceil(case.block_len) as u32;
        let slots = (blocks as usize + 1) * case.block_len;
        // The second one is too short to be cut, and has a row in each step.
        let sequences = [case.sequence(len, 1, 0..blocks), case.sequence(15, 4, blocks..blocks + 1)];
        // Fewer rows than the matrix unit computes, so that all are of one kind.
        let few: Vec<_> = (0..len).step_by(40).map(|start| vec![40.min(len - start), 1]).collect();
        let steps = [vec![section, 3], vec![1, 9], vec![3, 1], vec![len - section - 5, 1], vec![1, 1]];
        for level in Level::available() {
            let alone = case.run_on(&Pool::with_level(1, level), slots, &sequences, &few);
            for threads in [2, 7] {
                let shared = case.run_on(&Pool::with_level(threads, level), slots, &sequences, &few);
                case.agree(level, "shared", [&shared, &alone], true);
            }
            if !level.has_tiles() {
                let chunks = case.run_on(&Pool::with_level(7, level), slots, &sequences, &steps);
                case.agree(level, "chunks", [&chunks, &alone], true);
            }
            for position in [0, section - 1, section, len - 1] {
                for head in [0, case.heads - 1] {
                    let out = &alone[0][(position * case.heads + head) * dim..][..dim];
                    for (out, expected) in out.iter().zip(case.expected(&sequences[0], position, head)) {
                        assert!((f64::from(*out) - expected).abs() < 1e-5, "{} {position}", level.name());
                    }
                }
            }
        }
    }
}

#[test]
fn sections_are_shorter_where_a_position_takes_longer() {
    assert_eq!([512, 4096, 6000, 8192, 21_760, 1 << 30].map(section_len), [256, 256, 128, 128, 128, 128]);
}

#[test]
fn heads_of_odd_sizes_and_blocks_of_odd_lengths_work() {
    for (dim, block_len, kind) in
        [(20, 16, Half), (4, 5, Single), (7, 3, Half), (80, 8, Half), (96, 32, Single), (80, 5, Packed(Packing::Q8))]
    {
        Case { dim, block_len, kind, ..CASE }.check(70);
    }
    Case { heads: 5, kv_heads: 5, dim: 16, ..CASE }.check(67);
    Case { heads: 71, kv_heads: 1, dim: 16, ..CASE }.check(5);
}

#[test]
fn packed_rows_are_attended_to_as_what_they_stand_for() {
    for packing in [Packing::Q8, Packing::Q4] {
        Case { kind: Packed(packing), ..CASE }.check(150);
        let sinks = Some(&[0.5, -3.0, 4.0, 0.0, 1.5, -0.5][..]);
        let scores = Scores { sinks, window: Some(20), ..PLAIN };
        Case { kind: Packed(packing), dim: 48, block_len: 8, scores, ..CASE }.check(70);
    }
}

#[test]
fn chosen_positions_of_a_packed_cache_are_read_as_all_of_it() {
    for packing in [Packing::Q8, Packing::Q4] {
        let case = Case { kind: Packed(packing), dim: 48, ..CASE };
        let (sequence, len) = (case.sequence(40, 1, 0..3), 40);
        let layout = KvLayout { kv_heads: case.kv_heads, slots: 48, head_dim: case.dim, block_len: case.block_len };
        let spans = [Span { start: 0, len, past: 0, blocks: &sequence.blocks }];
        // Values are the first part of the keys.
        let value_dim = 32;
        for level in Level::available() {
            let pool = Pool::with_level(2, level);
            let mut keys = Cache::new(case.kind, layout);
            store_kv(&pool, layout, keys.write(), &sequence.k, &spans);
            let mut rows = vec![f32::NAN; sequence.k.len()];
            load_kv(layout, keys.read(), spans[0], &mut rows);
            assert!(rows.iter().zip(&sequence.k).all(|(row, k)| (row - k).abs() < 1e-5), "{}", level.name());
            let past = Past { keys: (layout, keys.read()), values: (layout, keys.read()), value_dim };
            let mut outs = [vec![0.0; len * case.heads * value_dim], vec![0.0; len * case.heads * value_dim]];
            let chosen: Vec<Vec<u32>> = (0..len as u32).map(|row| (0..=row).collect()).collect();
            attention(&pool, past, &spans, PLAIN, case.heads, &sequence.q, &mut outs[0]);
            attention_chosen(&pool, past, (&spans, &chosen), PLAIN, case.heads, &sequence.q, &mut outs[1]);
            let apart = |(a, b): (&f32, &f32)| (a - b).abs();
            let worst = outs[0].iter().zip(&outs[1]).map(apart).fold(0.0, f32::max);
            assert!(worst < 1e-5 && outs[0].iter().all(|out| out.is_finite()), "{}: {worst}", level.name());
        }
    }
}

#[test]
fn a_window_hides_what_lies_before_it() {
    for window in [1, 2, 16, 63, 64, 65, 100, 1000] {
        for kind in [Single, Half] {
            Case { kind, scores: Scores { window: Some(window), ..PLAIN }, dim: 16, ..CASE }.check(140);
        }
    }
    for (kind, window) in [(Half, 50), (Half, 200), (Packed(Packing::Q8), 130)] {
        Case { kind, scores: Scores { window: Some(window), ..PLAIN }, dim: 32, heads: 3, kv_heads: 1, ..CASE }
            .check(410);
    }
}

#[test]
fn rows_may_see_to_the_end_of_the_run_that_they_stand_in() {
    let runs = [3..9, 10..100, 126..131];
    // Fixtures are static.
    let seen = |row| runs.iter().find(|run| run.contains(&row)).map_or(row + 1, |run| run.end) as u32;
    let seen: &[u32] = (0..140).map(seen).collect::<Vec<_>>().leak();
    for (window, kind) in [(None, Single), (Some(30), Single), (None, Half), (Some(30), Half)] {
        let case = Case { kind, scores: Scores { seen: Some(seen), window, ..PLAIN }, ..CASE };
        let sequence = [case.sequence(140, 1, 0..9)];
        for level in Level::available() {
            let outs = &case.run(level, 9 * 16, &sequence, &[vec![140]])[0];
            for (row, out) in outs.chunks(case.dim).enumerate() {
                let expected = case.expected(&sequence[0], row / case.heads, row % case.heads);
                for (out, expected) in out.iter().zip(expected) {
                    let is_close = (f64::from(*out) - expected).abs() < case.close(level);
                    assert!(is_close, "{} row {row}: {out} {expected}", level.name());
                }
            }
        }
    }
}

#[test]
fn a_soft_cap_bends_scores() {
    for kind in [Single, Half] {
        Case { kind, scores: Scores { softcap: Some(2.0), ..PLAIN }, ..CASE }.check(140);
    }
}

#[test]
fn a_sink_takes_its_share() {
    let sinks = Some(&[0.5, -3.0, 4.0, 0.0, 1.5, -0.5][..]);
    for kind in [Single, Half] {
        Case { kind, scores: Scores { sinks, window: Some(20), ..PLAIN }, ..CASE }.check(140);
    }
}

#[test]
fn sequences_of_a_batch_do_not_touch_each_other() {
    let case = Case { kind: Kind::F16, ..CASE };
    let lens = [70, 3, 129];
    let sequences: Vec<_> =
        lens.iter().enumerate().map(|(i, len)| case.sequence(*len, i, (0..9).map(|b| b * 3 + i as u32))).collect();
    for level in Level::available() {
        let steps = [vec![50, 1, 128], vec![20, 2, 1]];
        let together = case.run(level, 27 * 16, &sequences, &steps);
        for (index, len) in lens.into_iter().enumerate() {
            let (sequence, together) = (&sequences[index..=index], &together[index..=index]);
            let alike: Vec<_> = steps.iter().map(|step| vec![step[index]]).collect();
            case.agree(level, "alone", [&case.run(level, 27 * 16, sequence, &alike), together], true);
            let whole = case.run(level, 27 * 16, sequence, &[vec![len]]);
            case.agree(level, "whole", [&whole, together], !level.has_tiles());
        }
    }
}

fn attend_with(spans: &[Span<'_>]) {
    let layout = KvLayout { kv_heads: 1, slots: 64, head_dim: 4, block_len: 16 };
    let cache = vec![0.0; layout.elements()];
    let mut out = [0.0; 8];
    let kv = Kv::F32(&cache);
    let past = Past { keys: (layout, kv), values: (layout, kv), value_dim: layout.head_dim };
    attention(&Pool::new(1), past, spans, PLAIN, 1, &[0.0; 8], &mut out);
}

#[test]
#[should_panic(expected = "block Some(4) of 4")]
fn refuses_a_table_with_a_block_outside_of_the_cache() {
    attend_with(&[Span { start: 0, len: 2, past: 20, blocks: &[0, 4] }]);
}

#[test]
#[should_panic(expected = "1 blocks where 2 are needed")]
fn refuses_a_table_that_is_too_short() {
    attend_with(&[Span { start: 0, len: 2, past: 15, blocks: &[0] }]);
}

#[test]
#[should_panic(expected = "a span of 2 rows at 1 in a batch of 2")]
fn refuses_a_span_outside_of_the_batch() {
    attend_with(&[Span { start: 1, len: 2, past: 0, blocks: &[0] }]);
}

#[test]
#[should_panic(expected = "spans overlap")]
fn refuses_spans_that_overlap() {
    let span = Span { start: 0, len: 2, past: 0, blocks: &[0] };
    attend_with(&[span, Span { start: 1, len: 1, ..span }]);
}

/// Values that are a prefix of the keys, or that come from a cache with shorter rows, match values as long as keys.
#[test]
fn values_may_be_shorter_than_keys() {
    let (heads, dim, short, tokens) = (3, 40, 24, 70);
    let (q, keys) = (numbers(tokens * heads * dim, 1), numbers(tokens * dim, 2));
    let blocks = [2, 0, 3, 1, 4];
    let spans = [Span { start: 0, len: tokens, past: 0, blocks: &blocks }];
    let layout = KvLayout { kv_heads: 1, slots: 80, head_dim: dim, block_len: 16 };
    let short_layout = KvLayout { head_dim: short, ..layout };
    let first = |rows: &[f32]| rows.chunks_exact(dim).flat_map(|row| row[..short].to_vec()).collect::<Vec<_>>();
    let (mut k, mut v) = (vec![0.0; layout.elements()], vec![0.0; short_layout.elements()]);
    let pool = Pool::new(1);
    store_kv(&pool, layout, KvMut::F32(&mut k), &keys, &spans);
    store_kv(&pool, short_layout, KvMut::F32(&mut v), &first(&keys), &spans);
    for level in Level::available() {
        let run = |values: (KvLayout, Kv<'_>), value_dim: usize| {
            let mut out = vec![f32::NAN; tokens * heads * value_dim];
            let past = Past { keys: (layout, Kv::F32(&k)), values, value_dim };
            attention(&Pool::with_level(2, level), past, &spans, PLAIN, heads, &q, &mut out);
            out
        };
        let whole = run((layout, Kv::F32(&k)), dim);
        let expected = first(&whole);
        assert_eq!(run((layout, Kv::F32(&k)), short), expected, "{}", level.name());
        assert_eq!(run((short_layout, Kv::F32(&v)), short), expected, "{}", level.name());
    }
}
