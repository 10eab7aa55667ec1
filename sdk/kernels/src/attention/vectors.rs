//! Attention by vectors: the rows of a part pass over its tiles, one section after another.

use std::ops::Range;

use super::sections::STATE;
use super::{Attend, POSITIONS, Past, load_part};
use crate::{
    float::{Float, fill},
    simd::{Kernel, Rows, Simd, exp, tanh},
    tile::{PAIR, TILE, in_tiles, tile},
};

impl<S: Simd, F: Float> Kernel<S> for Attend<'_, F> {
    #[inline(always)]
    fn run(self, simd: S) {
        let mut work = Work::new(simd, &self, self.rows());
        let mut is_whole = self.part.shared.is_none();
        for section in self.part.sections.clone() {
            work.attend(simd, &self, section * self.section_len..(section + 1) * self.section_len);
            let Some(shared) = &self.part.shared else {
                work.add_section(simd);
                continue;
            };
            work.store(simd, &self, &mut shared.values(section));
            if shared.end() {
                for section in shared.all.clone() {
                    work.load(simd, &self, &shared.values(section));
                    work.add_section(simd);
                }
                is_whole = true;
            }
        }
        if is_whole {
            work.finish(simd, &self);
        }
    }
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
    /// Of the current section.
    section: Totals<S>,
    /// Of the sections before it.
    all: Totals<S>,
}

/// Running softmax state and output of each row.
struct Totals<S: Simd> {
    /// The largest score of each row, and the sum of its weights, which are relative to that.
    state: Vec<(f32, f32)>,
    /// Accumulated output for each pair of value panels and each row.
    sums: Vec<[S::F; PAIR]>,
}

impl<S: Simd> Totals<S> {
    #[inline(always)]
    fn new(simd: S, rows: usize, pairs: usize) -> Self {
        Self { state: vec![NOTHING; rows], sums: vec![[simd.splat(0.0); PAIR]; pairs * rows] }
    }

    #[inline(always)]
    fn clear(&mut self, simd: S) {
        self.state.fill(NOTHING);
        self.sums.fill([simd.splat(0.0); PAIR]);
    }
}

/// The state of a row that has seen no position.
const NOTHING: (f32, f32) = (f32::NEG_INFINITY, 0.0);

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
            section: Totals::new(simd, rows, pairs),
            all: Totals::new(simd, rows, pairs),
        }
    }

    /// Attends to the part of a section that rows see.
    #[inline(always)]
    fn attend<F: Float>(&mut self, simd: S, of: &Attend<'_, F>, section: Range<usize>) {
        self.section.clear(simd);
        let (group, seen) = (of.group(), of.seen());
        let (first, end) = (of.first(), of.first() + of.part.len);
        let window = of.scores.window.unwrap_or(usize::MAX);
        let last = section.end.min(seen.end);
        for start in (section.start.max(seen.start / POSITIONS * POSITIONS)..last).step_by(POSITIONS) {
            let seen = POSITIONS.min(last - start);
            // Rows too far before the tile do not see it, nor do rows whose window has moved past it.
            let from = (first..end).find(|position| of.seen_by(*position).end > start).unwrap_or(end);
            let tokens = from..end.min((start + POSITIONS - 1).saturating_add(window)).max(from);
            let rows = (tokens.start - first) * group..(tokens.end - first) * group;
            self.fetch::<F>(simd, of, start, seen);
            self.score(simd, of.past.keys.0.head_dim, rows.clone(), seen);
            for row in rows.clone() {
                let position = first + row / group;
                let visible = of.visible(position, start, seen);
                if let Some(distances) = of.scores.distances {
                    let biases = distances.of_head(of.head(row) % of.heads);
                    self.add_biases(row, visible.clone(), biases, start.cast_signed() - position.cast_signed());
                }
                self.weigh(simd, row, visible, of.scores.softcap);
            }
            self.gather(simd, rows, seen);
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
        let (before, sum) = self.section.state[row];
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
        for sums in self.section.sums.chunks_exact_mut(self.rows) {
            // No `map`: its closure would be compiled without the instruction set.
            for sum in &mut sums[row] {
                *sum = simd.mul(*sum, shrink);
            }
        }
        let mut lanes = [0.0; 64];
        simd.store(shrink, &mut lanes);
        self.section.state[row] = (top, sum * lanes[0] + simd.sum(added));
    }

    /// Adds a tile's weighted values.
    #[inline(always)]
    fn gather(&mut self, simd: S, rows: Range<usize>, seen: usize) {
        let pairs = self.values.chunks_exact(PAIR * POSITIONS);
        for (values, sums) in pairs.zip(self.section.sums.chunks_exact_mut(self.rows)) {
            let (first, second) = values.split_at(POSITIONS);
            let (sums, weights) = (&mut sums[rows.clone()], &self.weights[rows.start * POSITIONS..]);
            in_tiles!(sums.len(), TILE, |some| {
                let weights = &weights[some.start * POSITIONS..];
                tile(simd, [&first[..seen], &second[..seen]], weights, POSITIONS, &mut sums[some]);
            });
        }
    }

    /// Adds the section to those before.
    #[inline(always)]
    fn add_section(&mut self, simd: S) {
        for row in 0..self.rows {
            let ((before, sum), (of_section, added)) = (self.all.state[row], self.section.state[row]);
            if of_section == f32::NEG_INFINITY {
                continue;
            }
            let pairs = self.all.sums.chunks_exact_mut(self.rows).zip(self.section.sums.chunks_exact(self.rows));
            if before == f32::NEG_INFINITY {
                self.all.state[row] = (of_section, added);
                for (sums, section) in pairs {
                    sums[row] = section[row];
                }
                continue;
            }
            let top = before.max(of_section);
            let mut lanes = [[0.0; 64]; 2];
            let shrinks = [exp(simd, simd.splat(before - top)), exp(simd, simd.splat(of_section - top))];
            for (sums, section) in pairs {
                for (sum, section) in sums[row].iter_mut().zip(section[row]) {
                    *sum = simd.fma(section, shrinks[1], simd.mul(*sum, shrinks[0]));
                }
            }
            simd.store(shrinks[0], &mut lanes[0]);
            simd.store(shrinks[1], &mut lanes[1]);
            self.all.state[row] = (top, sum * lanes[0][0] + added * lanes[1][0]);
        }
    }

    /// Appends the section's values: each row's sums and state.
    #[inline(always)]
    fn store<F: Float>(&self, simd: S, of: &Attend<'_, F>, values: &mut Vec<f32>) {
        let dim = of.past.value_dim;
        for row in 0..self.rows {
            let panels = self.section.sums.chunks_exact(self.rows).flat_map(|sums| sums[row]);
            for (first, sum) in (0..dim).step_by(S::LANES).zip(panels) {
                let mut lanes = [0.0; 64];
                simd.store(sum, &mut lanes);
                values.extend_from_slice(&lanes[..S::LANES.min(dim - first)]);
            }
            values.extend(<[f32; STATE]>::from(self.section.state[row]));
        }
    }

    /// Loads a section that was stored.
    #[inline(always)]
    fn load<F: Float>(&mut self, simd: S, of: &Attend<'_, F>, values: &[f32]) {
        for (row, values) in values.chunks_exact(of.past.value_dim + STATE).enumerate() {
            let (sums, state) = values.split_at(of.past.value_dim);
            self.section.state[row] = (state[0], state[1]);
            for (panel, values) in sums.chunks(S::LANES).enumerate() {
                let mut lanes = [0.0; 64];
                lanes[..values.len()].copy_from_slice(values);
                self.section.sums[panel / PAIR * self.rows + row][panel % PAIR] = simd.load(&lanes);
            }
        }
    }

    #[inline(always)]
    fn finish<F: Float>(&self, simd: S, of: &Attend<'_, F>) {
        let dim = of.past.value_dim;
        for row in 0..self.rows {
            let head = of.head(row);
            // SAFETY: each row and head belong to one part of one span, as spans do not overlap.
            let out = unsafe { of.out.range(head * dim..(head + 1) * dim) };
            let (top, sum) = self.all.state[row];
            let total = simd.splat(of.total(head, top, sum));
            let panels = self.all.sums.chunks_exact(self.rows).flat_map(|sums| sums[row]);
            for (out, sum) in out.chunks_mut(S::LANES).zip(panels) {
                let mut lanes = [0.0; 64];
                simd.store(simd.div(sum, total), &mut lanes);
                out.copy_from_slice(&lanes[..out.len()]);
            }
        }
    }
}
