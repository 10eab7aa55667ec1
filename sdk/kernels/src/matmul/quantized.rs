//! Products with quantized weights: 8-bit products, summed as integers within a group.

use std::marker::PhantomData;
use std::ops::Range;

use super::super::quant::{Codes, Dots, Format, GROUPS, Layout, SEGMENT, Unpacked};
use super::super::simd::{Kernel, Rows, Simd};
use super::super::tile::{PAIR, TILE, in_tiles};
use super::activations::{Activations, Piece, SHARE};
use super::panels::{AHEAD, Panels};
use super::{Output, PanelTask};

/// Computes pairs of panels times the whole batch.
pub(super) fn task<'a, S: Simd + 'a, F: Format + 'a>(
    simd: S,
    panels: Panels<'a>,
    x: &'a Activations,
    out: Output<'a>,
) -> PanelTask<'a> {
    Box::new(move |pairs| {
        simd.enter(Stretch::<F> { panels: &panels, pairs, x, out: &out, format: PhantomData });
    })
}

/// An unpacked segment of a panel.
#[derive(Clone, Copy)]
pub(super) struct Panel<S: Simd> {
    pub(super) codes: [S::U; SEGMENT / 4],
    pub(super) scales: [S::F; GROUPS],
    pub(super) minimums: [S::F; GROUPS],
}

/// Some pairs of panels times the whole batch.
struct Stretch<'a, F> {
    panels: &'a Panels<'a>,
    pairs: Range<usize>,
    x: &'a Activations,
    out: &'a Output<'a>,
    format: PhantomData<F>,
}

impl<S: Simd, F: Format> Kernel<S> for Stretch<'_, F> {
    #[inline(always)]
    fn run(self, simd: S) {
        if F::HAS_DOTS {
            // Most rows whose sums stay in registers; AVX2 needs some for the signs of codes of 8 bits.
            let most = match S::LANES {
                8 if S::WIDE_IS_SIGNED && <F::Shape as Layout>::CODE_MAX > 127 => 2,
                ..16 => 4,
                _ => 8,
            };
            match self.x.n {
                1 => return self.multiply_rows::<S, 1>(simd),
                2 => return self.multiply_rows::<S, 2>(simd),
                3 if most > 2 => return self.multiply_rows::<S, 3>(simd),
                4 if most > 2 => return self.multiply_rows::<S, 4>(simd),
                8 if most > 4 => return self.multiply_rows::<S, 8>(simd),
                _ => {}
            }
        }
        let together = S::rows_together(F::GROUP / 4);
        let zero = simd.splat(0.0);
        let mut pair = [Panel::<S>::new(simd); PAIR];
        let mut sums = vec![[zero; PAIR]; self.x.n];
        for index in self.pairs.clone() {
            sums.fill([zero; PAIR]);
            let segments = self.x.cols.div_ceil(SEGMENT);
            for segment in 0..segments {
                let bytes = SEGMENT / F::BLOCK * F::BYTES;
                let blocks = SEGMENT.min(self.x.cols - segment * SEGMENT) / F::BLOCK;
                for (panel, unpacked) in pair.iter_mut().enumerate() {
                    if self.x.n <= TILE {
                        self.prefetch::<S>(index, segment, panel, 0, 2);
                    }
                    let rows = self.panels.rows(index, panel).skip(segment * bytes);
                    unpacked.fill::<F>(simd, rows, blocks);
                    // A row alone takes codes as they are, and no tile of several rows has only one.
                    if together > 1 && self.x.n > 1 {
                        simd.arrange(&mut unpacked.codes[..blocks * F::BLOCK / 4], <F::Shape as Layout>::CODE_MAX);
                    }
                    if self.x.n <= TILE {
                        self.prefetch::<S>(index, segment, panel, 1, 2);
                    }
                }
                let (x, lanes) = (self.x.segment(segment), PAIR * S::LANES);
                in_tiles!(x.len().div_ceil(together), TILE / together, |rows| {
                    let rows = rows.start * together..x.len().min(rows.end * together);
                    if x.len() > TILE {
                        let part = lanes * rows.start / x.len()..lanes * rows.end / x.len();
                        self.panels.prefetch(index, segment, bytes, part, AHEAD);
                    }
                    if segment + 1 == segments {
                        self.panels.prefetch_out(index, rows.clone(), self.out);
                    }
                    tile::<S, F::Shape>(simd, &pair, blocks, &x[rows.clone()], &mut sums[rows]);
                });
            }
            self.panels.write(simd, index, &sums, self.out);
        }
    }
}

impl<F: Format> Stretch<'_, F> {
    /// Prefetches one of `parts` parts of a panel's rows: lines of many rows at a time would wait for each other.
    #[inline(always)]
    fn prefetch<S: Simd>(&self, pair: usize, segment: usize, panel: usize, part: usize, parts: usize) {
        let (bytes, rows) = (SEGMENT / F::BLOCK * F::BYTES, S::LANES / parts);
        let first = panel * S::LANES + part * rows;
        self.panels.prefetch(pair, segment, bytes, first..first + rows, AHEAD);
    }

    /// [`run`](Kernel::run) for so few rows of activations that weights need not be written down as they are unpacked.
    #[inline(always)]
    fn multiply_rows<S: Simd, const N: usize>(self, simd: S) {
        let zero = simd.splat(0.0);
        let (mut dots, mut scales, mut minimums) = ([[simd.splat_bits(0); N]; GROUPS], [zero; GROUPS], [zero; GROUPS]);
        let groups = F::BLOCK / F::GROUP;
        for index in self.pairs.clone() {
            let mut sums = [[zero; PAIR]; N];
            for segment in 0..self.x.cols.div_ceil(SEGMENT) {
                let bytes = SEGMENT / F::BLOCK * F::BYTES;
                let blocks = SEGMENT.min(self.x.cols - segment * SEGMENT) / F::BLOCK;
                let Some(x) = self.x.segment(segment).first_chunk::<N>() else { unreachable!("{N} rows") };
                let pair = [0, 1].map(|panel| self.panels.rows(index, panel).skip(segment * bytes));
                for (panel, rows) in pair.into_iter().enumerate() {
                    let parts = (SEGMENT / F::BLOCK).max(2);
                    for block in 0..blocks {
                        self.prefetch::<S>(index, segment, panel, block, parts);
                        let at = block * groups..(block + 1) * groups;
                        let out = &mut Dots {
                            dots: &mut dots[at.clone()],
                            scales: &mut scales[at.clone()],
                            minimums: &mut minimums[at.clone()],
                        };
                        let codes = block * F::BLOCK..(block + 1) * F::BLOCK;
                        let x =
                            x.each_ref().map(|x| Codes { codes: &x.codes[codes.clone()], starts: &x.rest[at.clone()] });
                        F::dots(simd, rows.skip(block * F::BYTES), x, out);
                    }
                    for part in blocks..parts {
                        self.prefetch::<S>(index, segment, panel, part, parts);
                    }
                    for group in 0..blocks * groups {
                        let scales = [scales[group], minimums[group]];
                        for i in 0..N {
                            let sum = &mut sums[i][panel];
                            *sum = add::<S, F::Shape>(simd, &x[i], group, dots[group][i], scales, *sum);
                        }
                    }
                }
            }
            self.panels.write(simd, index, &sums, self.out);
        }
    }
}

/// Adds the product of one group, offset by `S::ORIGIN`, with its scale and minimum.
#[inline(always)]
fn add<S: Simd, L: Layout>(
    simd: S,
    x: &Piece,
    group: usize,
    dot: S::U,
    [scale, minimum]: [S::F; 2],
    sum: S::F,
) -> S::F {
    let share = group * L::GROUP / SHARE;
    let dot = simd.scaled(dot, simd.splat(x.scales[share]), simd.splat(x.bases[share]));
    let sum = simd.fma(scale, dot, sum);
    if L::MINIMUMS { simd.fnma(minimum, simd.splat(f32::from_bits(x.rest[group])), sum) } else { sum }
}

impl<S: Simd> Panel<S> {
    #[inline(always)]
    pub(super) fn new(simd: S) -> Self {
        let (codes, zero) = (simd.splat_bits(0), simd.splat(0.0));
        Self { codes: [codes; SEGMENT / 4], scales: [zero; GROUPS], minimums: [zero; GROUPS] }
    }

    #[inline(always)]
    pub(super) fn fill<F: Format>(&mut self, simd: S, rows: Rows<'_>, blocks: usize) {
        let (words, groups) = (F::BLOCK / 4, F::BLOCK / F::GROUP);
        for block in 0..blocks {
            let out = &mut Unpacked {
                codes: &mut self.codes[block * words..][..words],
                scales: &mut self.scales[block * groups..][..groups],
                minimums: &mut self.minimums[block * groups..][..groups],
            };
            F::unpack(simd, rows.skip(block * F::BYTES), out);
        }
    }
}

#[inline(always)]
fn tile<S: Simd, L: Layout>(simd: S, pair: &[Panel<S>; PAIR], blocks: usize, x: &[Piece], sums: &mut [[S::F; PAIR]]) {
    macro_rules! of {
        ($n:literal) => {
            if let (Ok(x), Ok(sums)) = (x.try_into(), sums.try_into()) {
                simd.enter(Tile::<S, L, $n> { pair, blocks, x, sums, layout: PhantomData });
            }
        };
    }
    match x.len() {
        1 => of!(1),
        2 => of!(2),
        3 => of!(3),
        4 => of!(4),
        5 => of!(5),
        TILE => of!(6),
        _ => unreachable!("tiles have 1 to {TILE} rows"),
    }
}

/// One segment of a pair of panels times some rows.
struct Tile<'a, S: Simd, L, const N: usize> {
    pair: &'a [Panel<S>; PAIR],
    blocks: usize,
    x: &'a [Piece; N],
    sums: &'a mut [[S::F; PAIR]; N],
    layout: PhantomData<L>,
}

impl<S: Simd, L: Layout, const N: usize> Kernel<S> for Tile<'_, S, L, N> {
    #[inline(always)]
    fn run(self, simd: S) {
        let Self { pair, blocks, x, .. } = self;
        // A local copy can stay in registers.
        let mut sums = *self.sums;
        for group in 0..blocks * (L::BLOCK / L::GROUP) {
            let dots = dots::<S, L, N>(simd, pair, group, x);
            for i in 0..N {
                for p in 0..PAIR {
                    let scales = [pair[p].scales[group], pair[p].minimums[group]];
                    sums[i][p] = add::<S, L>(simd, &x[i], group, dots[i][p], scales, sums[i][p]);
                }
            }
        }
        *self.sums = sums;
    }
}

/// Dot products of one group, each offset by `S::ORIGIN`.
#[inline(always)]
fn dots<S: Simd, L: Layout, const N: usize>(
    simd: S,
    pair: &[Panel<S>; PAIR],
    group: usize,
    x: &[Piece; N],
) -> [[S::U; PAIR]; N] {
    let words = L::GROUP / 4;
    let run_steps = words.min(S::run_steps(L::CODE_MAX));
    let mut dots = [[simd.splat_bits(S::ORIGIN); PAIR]; N];
    // Formats without minimums start from the correction for the codes' offset.
    if !L::MINIMUMS {
        for i in 0..N {
            dots[i] = [simd.splat_bits(x[i].rest[group]); PAIR];
        }
    }
    if S::HAS_DOTS {
        let words = group * words..(group + 1) * words;
        let codes = [&pair[0].codes[words.clone()], &pair[1].codes[words.clone()]];
        return simd.dots(codes, L::CODE_MAX, x.each_ref().map(|x| x.words(words.clone())), dots);
    }
    for run in 0..words / run_steps {
        let mut runs = [[simd.begin(dots[0][0]); PAIR]; N];
        for i in 0..N {
            for p in 0..PAIR {
                runs[i][p] = simd.begin(dots[i][p]);
            }
        }
        for step in 0..run_steps {
            let word = group * words + run * run_steps + step;
            let codes = [pair[0].codes[word], pair[1].codes[word]];
            for i in 0..N {
                let four = simd.splat_bits(x[i].word(word));
                for p in 0..PAIR {
                    runs[i][p] = if L::CODE_MAX > 127 {
                        simd.step::<true>(runs[i][p], codes[p], four)
                    } else {
                        simd.step::<false>(runs[i][p], codes[p], four)
                    };
                }
            }
        }
        for i in 0..N {
            for p in 0..PAIR {
                dots[i][p] = simd.finish(runs[i][p], dots[i][p]);
            }
        }
    }
    dots
}
