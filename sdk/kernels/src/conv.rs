//! Short depthwise causal convolutions over the rows of sequences, each continuing from its last inputs.

use super::activation::{Activation, apply};
use super::pool::Pool;
use super::recurrence::Stretch;
use super::simd::{Kernel, Simd};

/// Values per task: less work is not worth another thread.
const PIECE: usize = 1 << 13;

/// The taps of a depthwise convolution.
#[derive(Clone, Copy, Debug)]
pub struct Taps<'a> {
    pub channels: usize,
    /// `[taps, channels]`; the last tap is for the row's own input.
    pub taps: &'a [f32],
    pub bias: Option<&'a [f32]>,
    pub activation: Option<Activation>,
}

/// Convolves `x[tokens, channels]`. A sequence's state is its last `taps − 1` inputs, oldest first, and is updated.
pub fn short_conv(pool: &Pool, conv: Taps<'_>, x: &[f32], sequences: Vec<Stretch<'_>>) -> Vec<f32> {
    let Taps { channels, taps, bias, .. } = conv;
    assert!(channels > 0 && taps.len().is_multiple_of(channels) && taps.len() > channels, "{} taps", taps.len());
    assert!(bias.is_none_or(|bias| bias.len() == channels), "biases of {channels} channels");
    let tokens = sequences.iter().map(|one| one.rows.len()).sum::<usize>();
    assert!(x.len() == tokens * channels, "{} values in {tokens} rows", x.len());
    let before = taps.len() / channels - 1;
    let mut of = vec![usize::MAX; tokens];
    for (index, one) in sequences.iter().enumerate() {
        let is_state = |state: &[f32]| state.len() == before * channels;
        assert!(is_state(one.state) && one.copies.iter().all(|(_, copy)| is_state(copy)), "a state");
        of[one.rows.clone()].fill(index);
    }
    assert!(!of.contains(&usize::MAX), "a row of no sequence");
    let rows = PIECE.div_ceil(channels);
    let out = pool.computed(x.len(), rows * channels, |index, out| {
        for (offset, out) in out.rows(channels).enumerate() {
            let row = index * rows + offset;
            let one = &sequences[of[row]];
            let offset = row - one.rows.start;
            let inputs = (0..=before)
                .map(|tap| input(one.state, &x[one.rows.start * channels..], channels, offset, before - tap));
            let out = match bias {
                Some(bias) => out.copy(bias),
                None => out.fill(0.0),
            };
            pool.level().run(Row { conv, inputs: inputs.collect(), out });
        }
    });
    for one in sequences {
        let Stretch { rows, state, copies } = one;
        let (old, x) = (state.to_vec(), &x[rows.start * channels..]);
        // Copies the inputs before a row.
        let last = |end: usize, to: &mut [f32]| {
            for (index, to) in to.chunks_exact_mut(channels).enumerate() {
                to.copy_from_slice(input(&old, x, channels, end - rows.start, before - index));
            }
        };
        for (end, copy) in copies {
            last(end, copy);
        }
        last(rows.end, state);
    }
    out
}

/// Returns the input `back` rows before the row at `offset`; `x` holds the sequence's rows, and `state` the inputs
/// before them.
fn input<'a>(state: &'a [f32], x: &'a [f32], channels: usize, offset: usize, back: usize) -> &'a [f32] {
    let (from, row) = match offset.checked_sub(back) {
        Some(row) => (x, row),
        None => (state, state.len() / channels + offset - back),
    };
    &from[row * channels..][..channels]
}

/// A row with the inputs of its taps, oldest first.
struct Row<'a> {
    conv: Taps<'a>,
    inputs: Vec<&'a [f32]>,
    /// Holds the biases, or zeros; the products are added.
    out: &'a mut [f32],
}

impl<S: Simd> Kernel<S> for Row<'_> {
    #[inline(always)]
    fn run(self, simd: S) {
        let Self { conv: Taps { channels, taps, activation, .. }, inputs, out } = self;
        let mut channel = 0;
        while channel + S::LANES <= channels {
            let mut sum = simd.load(&out[channel..]);
            for (tap, input) in inputs.iter().enumerate() {
                sum = simd.fma(simd.load(&input[channel..]), simd.load(&taps[tap * channels + channel..]), sum);
            }
            simd.store(sum, &mut out[channel..]);
            channel += S::LANES;
        }
        for channel in channel..channels {
            let mut sum = out[channel];
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

    /// Sequences of 5, 2 and 1 rows, against the definition over each sequence's concatenated inputs.
    #[test]
    fn a_row_sees_the_inputs_before_it() {
        let (channels, before, tokens) = (19, 3, 8);
        let (taps, bias, x) = (wave(4 * channels, 0.7), wave(channels, 0.3), wave(tokens * channels, 0.11));
        let begun = wave(3 * before * channels, 0.05);
        for level in Level::available() {
            let pool = Pool::with_level(2, level);
            let (mut states, mut copy) = (begun.clone(), vec![0.0; before * channels]);
            let mut places = states.chunks_exact_mut(before * channels);
            let mut sequences: Vec<_> = [0..5, 5..7, 7..8]
                .into_iter()
                .zip(&mut places)
                .map(|(rows, state)| Stretch { rows, state, copies: vec![] })
                .collect();
            sequences[0].copies.push((2, &mut copy));
            let conv = Taps { channels, taps: &taps, bias: Some(&bias), activation: Some(Activation::Silu) };
            let out = short_conv(&pool, conv, &x, sequences);
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
