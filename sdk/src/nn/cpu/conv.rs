//! Short causal convolutions, channel by channel, over the rows of sequences and the last inputs of each before them.

use super::activation::{Activation, apply};
use super::pool::Pool;
use super::recurrence::Stretch;
use super::simd::{Kernel, Simd};

/// Values in a task: less work than this is not worth another thread.
const PIECE: usize = 1 << 13;

/// A convolution of each channel with its own few taps.
#[derive(Clone, Copy, Debug)]
pub struct Taps<'a> {
    pub channels: usize,
    /// From the oldest input to the row's own, a factor for each channel.
    pub taps: &'a [f32],
    pub bias: Option<&'a [f32]>,
    pub activation: Option<Activation>,
}

/// Convolves `x[tokens, channels]`. The state of a sequence is the inputs before its rows, one less than there are taps and the
/// oldest first; it becomes those before the rows after them.
pub fn short_conv(pool: &Pool, conv: Taps<'_>, x: &[f32], sequences: Vec<Stretch<'_>>, out: &mut [f32]) {
    let Taps { channels, taps, bias, .. } = conv;
    assert!(channels > 0 && taps.len().is_multiple_of(channels) && taps.len() > channels, "{} taps", taps.len());
    assert!(bias.is_none_or(|bias| bias.len() == channels), "biases of {channels} channels");
    let tokens = sequences.iter().map(|one| one.rows.len()).sum::<usize>();
    assert!(x.len() == tokens * channels && out.len() == x.len(), "{} values in {tokens} rows", x.len());
    let before = taps.len() / channels - 1;
    let mut of = vec![0; tokens];
    for (index, one) in sequences.iter().enumerate() {
        assert_eq!(one.state.len(), before * channels, "a state");
        of[one.rows.clone()].fill(index);
    }
    let input = |one: &Stretch<'_>, row: usize, back: usize| Input { start: one.rows.start, row, back };
    let rows = PIECE.div_ceil(channels);
    pool.run_pieces(out, rows * channels, |index, out| {
        for (offset, out) in out.chunks_exact_mut(channels).enumerate() {
            let row = index * rows + offset;
            let one = &sequences[of[row]];
            let inputs = (0..=before).map(|tap| input(one, row, before - tap).find(one.state, x, before, channels));
            pool.level().run(Row { conv, inputs: inputs.collect(), out });
        }
    });
    for one in sequences {
        let Stretch { rows, state, copies } = one;
        let old = state.to_vec();
        let last = |end: usize, to: &mut [f32]| {
            for (index, to) in to.chunks_exact_mut(channels).enumerate() {
                // The inputs before `end`.
                let at = Input { start: rows.start, row: end, back: before - index };
                to.copy_from_slice(at.find(&old, x, before, channels));
            }
        };
        for (end, copy) in copies {
            last(end, copy);
        }
        last(rows.end, state);
    }
}

/// The input that lies `back` rows before a row of a sequence whose rows begin at `start`.
#[derive(Clone, Copy)]
struct Input {
    start: usize,
    row: usize,
    back: usize,
}

impl Input {
    fn find<'a>(self, state: &'a [f32], x: &'a [f32], before: usize, channels: usize) -> &'a [f32] {
        let (from, row) = match (self.row - self.start).checked_sub(self.back) {
            Some(offset) => (x, self.start + offset),
            None => (state, before + self.row - self.start - self.back),
        };
        &from[row * channels..][..channels]
    }
}

/// A row, and what its taps see, oldest first.
struct Row<'a> {
    conv: Taps<'a>,
    inputs: Vec<&'a [f32]>,
    out: &'a mut [f32],
}

impl<S: Simd> Kernel<S> for Row<'_> {
    #[inline(always)]
    fn run(self, simd: S) {
        let Self { conv: Taps { channels, taps, bias, activation }, inputs, out } = self;
        let mut channel = 0;
        while channel + S::LANES <= channels {
            let mut sum = match bias {
                Some(bias) => simd.load(&bias[channel..]),
                None => simd.splat(0.0),
            };
            for (tap, input) in inputs.iter().enumerate() {
                sum = simd.fma(simd.load(&input[channel..]), simd.load(&taps[tap * channels + channel..]), sum);
            }
            simd.store(sum, &mut out[channel..]);
            channel += S::LANES;
        }
        for channel in channel..channels {
            let mut sum = bias.map_or(0.0, |bias| bias[channel]);
            for (tap, input) in inputs.iter().enumerate() {
                sum += input[channel] * taps[tap * channels + channel];
            }
            out[channel] = sum;
        }
        if let Some(activation) = activation {
            apply(simd, activation, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::simd::Level;
    use super::*;

    fn wave(len: usize, step: f32) -> Vec<f32> {
        (0..len).map(|i| (i as f32 * step).sin()).collect()
    }

    /// Sequences of 5, 2 and 1 rows, against the definition over the inputs of each in one line.
    #[test]
    fn a_row_sees_the_inputs_before_it() {
        let (channels, before, tokens) = (19, 3, 8);
        let (taps, bias, x) = (wave(4 * channels, 0.7), wave(channels, 0.3), wave(tokens * channels, 0.11));
        let begun = wave(3 * before * channels, 0.05);
        for level in Level::available() {
            let pool = Pool::with_level(2, level);
            let (mut out, mut states, mut copy) = (vec![0.0; x.len()], begun.clone(), vec![0.0; before * channels]);
            let mut places = states.chunks_exact_mut(before * channels);
            let mut sequences: Vec<_> = [0..5, 5..7, 7..8]
                .into_iter()
                .zip(&mut places)
                .map(|(rows, state)| Stretch { rows, state, copies: vec![] })
                .collect();
            sequences[0].copies.push((2, &mut copy));
            let conv = Taps { channels, taps: &taps, bias: Some(&bias), activation: Some(Activation::Silu) };
            short_conv(&pool, conv, &x, sequences, &mut out);
            for (index, rows) in [0..5, 5..7, 7..8].into_iter().enumerate() {
                let old = &begun[index * before * channels..(index + 1) * before * channels];
                let line: Vec<f32> =
                    old.iter().chain(&x[rows.start * channels..rows.end * channels]).copied().collect();
                for row in 0..rows.len() {
                    for channel in 0..channels {
                        let term = |tap: usize| line[(row + tap) * channels + channel] * taps[tap * channels + channel];
                        let sum = (0..4).map(|tap| f64::from(term(tap))).sum::<f64>() + f64::from(bias[channel]);
                        let (expected, found) =
                            (sum / (1.0 + (-sum).exp()), out[(rows.start + row) * channels + channel]);
                        assert!((f64::from(found) - expected).abs() < 1e-6, "{found} {expected}");
                    }
                }
                let kept = &states[index * before * channels..(index + 1) * before * channels];
                assert_eq!(kept, &line[line.len() - before * channels..], "sequence {index}");
                if index == 0 {
                    assert_eq!(copy, line[2 * channels..(2 + before) * channels]);
                }
            }
        }
    }
}
