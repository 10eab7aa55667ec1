//! The size of prefill chunks. Streams feel a prompt as a pause, since a step with a chunk takes longer than one
//! without. So the chunk is sized to keep the step below a multiple of a decode-only step with the same number of
//! streams. Both times are measured while serving: the first mixed step is delayed to measure one without a chunk, and
//! every so often another one runs without, as contexts grow and machines get busy. A single slow step moves the
//! estimates only a little; a lasting change moves them within a few steps.

use std::time::Duration;

use super::Config;

/// Weight of a new measurement.
const FRESH: f64 = 0.2;
/// Measurements are clipped to this multiple of the estimate.
const ODD: f64 = 2.0;
/// Time that a chunk may always take: a pause that no reader notices. Where steps take a millisecond, a smaller chunk
/// would cost much more per token.
const PAUSE_SECONDS: f64 = 0.005;
/// What else a step beside streams may do takes this part of the time of their decodes: streams would keep 71 % of their speed, and
/// keep 60 % beside what goes on in other processes.
const SPARE: f64 = 0.4;
/// Steps that something beside the decodes slows down: its own, and the next ones, which find less in the caches.
const DISTURBED_STEPS: u32 = 3;
/// One in this many mixed steps runs without a chunk, and after as many with something else a few steps run without it.
const PROBE_INTERVAL: u32 = 32;

/// GPUs and the CPU's kernels take prompts in tiles of rows; what is left of a chunk costs as much as a whole tile.
const TILE: usize = 32;

/// The size of the next of as many chunks as `left` tokens take with `chunk` at a time, each about as long: the last rows of
/// a prompt cost as much as many if there are few of them.
pub(super) fn even(chunk: usize, left: usize) -> usize {
    let chunks = left.div_ceil(chunk.max(1)).max(1);
    left.div_ceil(chunks).next_multiple_of(TILE).min(chunk)
}

#[derive(Debug)]
pub(super) struct Pace {
    chunk_min: usize,
    chunk_max: usize,
    stretch: f64,
    prefill_seconds: f64,
    /// Seconds of a decode-only step, by number of decodes; index 0 is never measured.
    decode: Vec<Option<f64>>,
    /// Decaying sums over chunks: seconds and tokens.
    chunks: Option<(f64, f64)>,
    mixed_steps: u32,
    /// Steps that may still be slower for what was computed beside them.
    disturbed_steps: u32,
    /// Steps with something beside them since decodes alone were measured.
    disturbances: u32,
}

impl Pace {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            chunk_min: config.chunk_min,
            chunk_max: config.chunk_max,
            stretch: config.stretch,
            prefill_seconds: config.prefill_step.as_secs_f64(),
            decode: Vec::new(),
            chunks: None,
            mixed_steps: 0,
            disturbed_steps: 0,
            disturbances: 0,
        }
    }

    /// Prompt tokens that the next step may compute beside `decodes` decodes, which wait so long for it if need be; 0 to measure a
    /// step without a prompt. Prompts with items take no more time than the encoder, with which they take turns.
    pub(super) fn chunk(&self, decodes: usize, has_items: bool, patience: Duration) -> usize {
        let spare = if has_items { SPARE.min(self.stretch - 1.0) } else { self.stretch - 1.0 };
        let paced = self.decode_step(decodes).map(|alone| (spare * alone).max(PAUSE_SECONDS));
        let seconds = match decodes {
            0 => self.prefill_seconds,
            _ if !patience.is_zero() => paced.unwrap_or(PAUSE_SECONDS).max(patience.as_secs_f64()),
            _ if self.mixed_steps >= PROBE_INTERVAL || self.disturbances >= PROBE_INTERVAL => return 0,
            _ => match paced {
                None => return 0,
                Some(seconds) => seconds,
            },
        };
        let tokens = self.token_seconds().map_or(0.0, |each| seconds / each);
        let tokens = (tokens as usize).clamp(self.chunk_min, self.chunk_max);
        // A small chunk would lose too much of its time.
        if tokens >= 2 * TILE { tokens - tokens % TILE } else { tokens }
    }

    /// Time that something besides the forward pass may take in a step: a part of what the decodes alone take, or none
    /// to measure that.
    pub(super) fn spare_time(&self, decodes: usize) -> Duration {
        let seconds = match decodes {
            0 => self.prefill_seconds,
            _ if self.disturbances >= PROBE_INTERVAL => 0.0,
            _ => (SPARE * self.decode_step(decodes).unwrap_or(0.0)).max(PAUSE_SECONDS),
        };
        Duration::from_secs_f64(seconds)
    }

    /// Time of a step of so many decodes alone.
    pub(super) fn decode_time(&self, decodes: usize) -> Option<Duration> {
        self.decode_step(decodes).map(Duration::from_secs_f64)
    }

    /// Notes that the current step has more to do than is recorded of it.
    pub(super) fn disturb(&mut self) {
        self.disturbed_steps = DISTURBED_STEPS;
        self.disturbances += 1;
    }

    /// Records the time of a step.
    pub(super) fn record(&mut self, decodes: usize, prompt_tokens: usize, elapsed: Duration) {
        let seconds = elapsed.as_secs_f64().max(1e-6);
        let is_disturbed = self.disturbed_steps > 0;
        self.disturbed_steps = self.disturbed_steps.saturating_sub(1);
        if prompt_tokens == 0 {
            self.mixed_steps = 0;
            if !is_disturbed || self.decode_step(decodes).is_none_or(|alone| seconds < alone) {
                self.record_decodes(decodes, seconds);
            }
            if !is_disturbed {
                self.disturbances = 0;
            }
            return;
        }
        let alone = self.decode_step(decodes).unwrap_or(0.0);
        if decodes > 0 {
            self.mixed_steps += 1;
            if seconds < alone {
                self.record_decodes(decodes, seconds);
            }
        }
        let tokens = prompt_tokens as f64;
        let most = self.token_seconds().map_or(f64::MAX, |each| each * tokens * ODD);
        let cost = (seconds - alone).clamp(1e-7 * tokens, most);
        let (costs, all) = self.chunks.unwrap_or((0.0, 0.0));
        self.chunks = Some((costs * (1.0 - FRESH) + cost, all * (1.0 - FRESH) + tokens));
    }

    /// Anything can slow a step down and nothing can speed it up, so a time far below the estimate replaces it.
    fn record_decodes(&mut self, decodes: usize, seconds: f64) {
        if self.decode.len() <= decodes {
            self.decode.resize(decodes + 1, None);
        }
        let known = &mut self.decode[decodes];
        *known = Some(match *known {
            Some(old) if seconds > old / ODD => old + FRESH * (seconds.min(old * ODD) - old),
            _ => seconds,
        });
    }

    /// Seconds of a step with `decodes` decodes and no prompt. If that number was not measured, a lower bound: more
    /// streams never take less time in total, nor more time each.
    fn decode_step(&self, decodes: usize) -> Option<f64> {
        if let Some(&Some(known)) = self.decode.get(decodes) {
            return Some(known);
        }
        let bound =
            |(n, seconds): (usize, f64)| if n < decodes { seconds } else { seconds * decodes as f64 / n as f64 };
        let measured = self.decode.iter().enumerate().filter_map(|(n, seconds)| Some((n, (*seconds)?)));
        measured.map(bound).filter(|_| decodes > 0).reduce(f64::max)
    }

    fn token_seconds(&self) -> Option<f64> {
        self.chunks.map(|(costs, tokens)| costs / tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chunk that no stream waits for.
    fn chunk(pace: &Pace, decodes: usize, has_items: bool) -> usize {
        pace.chunk(decodes, has_items, Duration::ZERO)
    }

    fn pace() -> Pace {
        let (chunk_min, chunk_max, stretch, prefill_step) = (16, 512, 2.0, Duration::from_millis(500));
        Pace::new(&Config { chunk_min, chunk_max, stretch, prefill_step, ..Config::default() })
    }

    fn ms(milliseconds: f64) -> Duration {
        Duration::from_secs_f64(milliseconds / 1000.0)
    }

    #[test]
    fn a_prompt_alone_starts_small_and_grows_to_what_the_step_time_allows() {
        let mut pace = pace();
        assert_eq!(chunk(&pace, 0, false), 16);
        pace.record(0, 16, ms(16.0));
        assert_eq!(chunk(&pace, 0, false), 480, "a whole number of tiles");
        pace.record(0, 480, ms(240.0));
        assert_eq!(chunk(&pace, 0, false), 512, "the configured most");
    }

    #[test]
    fn a_chunk_beside_streams_fits_between_the_measured_step_and_its_multiple() {
        let mut pace = pace();
        pace.record(4, 0, ms(40.0));
        pace.record(4, 32, ms(72.0));
        assert_eq!(chunk(&pace, 4, false), 40);
    }

    #[test]
    fn a_chunk_that_streams_wait_for_takes_the_time_that_they_give() {
        let mut pace = pace();
        pace.record(0, 100, ms(100.0));
        assert_eq!(pace.chunk(4, false, ms(300.0)), 288, "though no step of four decodes is known");
        pace.record(4, 0, ms(40.0));
        assert_eq!((pace.chunk(4, false, ms(300.0)), pace.chunk(4, false, ms(1.0))), (288, 40));
    }

    #[test]
    fn a_chunk_beside_fast_streams_may_take_a_pause_that_no_reader_notices() {
        let mut pace = pace();
        pace.record(4, 0, ms(1.0));
        pace.record(4, 16, ms(1.16));
        assert_eq!(chunk(&pace, 4, false), 480);
    }

    #[test]
    fn prompts_with_items_leave_streams_as_much_of_their_speed_as_the_encoder_does() {
        let mut pace = pace();
        pace.record(4, 0, ms(100.0));
        pace.record(4, 32, ms(132.0));
        assert_eq!((chunk(&pace, 4, false), chunk(&pace, 4, true)), (96, 40));
        assert_eq!(pace.spare_time(4), Duration::from_millis(40));
    }

    #[test]
    fn steps_that_the_encoder_slows_down_do_not_pass_for_decodes_alone() {
        let mut pace = pace();
        let milliseconds = |pace: &Pace| pace.decode_time(2).map(|time| (time.as_secs_f64() * 1e3).round());
        pace.disturb();
        pace.record(2, 0, ms(40.0));
        assert_eq!(milliseconds(&pace), Some(40.0), "nothing better is known");
        pace.record(2, 0, ms(30.0));
        while !pace.spare_time(2).is_zero() {
            pace.disturb();
            pace.record(2, 0, ms(50.0));
        }
        assert_eq!(milliseconds(&pace), Some(38.0), "the least that was seen, or near it");
        assert_eq!(chunk(&pace, 2, true), 0, "prompts leave the measurement alone as well");
        for _ in 1..DISTURBED_STEPS {
            pace.record(2, 0, ms(45.0));
            assert!(pace.spare_time(2).is_zero());
        }
        pace.record(2, 0, ms(43.0));
        assert_eq!(milliseconds(&pace), Some(39.0), "what lasts is believed");
        assert!(!pace.spare_time(2).is_zero());
    }

    #[test]
    fn the_first_step_beside_streams_is_measured_without_a_chunk() {
        let mut pace = pace();
        assert_eq!(chunk(&pace, 3, false), 0);
        pace.record(3, 0, ms(30.0));
        assert_eq!(chunk(&pace, 3, false), 16, "what a token costs is not known yet");
    }

    #[test]
    fn after_many_mixed_steps_one_is_measured_without_a_chunk() {
        let mut pace = pace();
        pace.record(2, 0, ms(30.0));
        for _ in 0..PROBE_INTERVAL {
            assert_ne!(chunk(&pace, 2, false), 0);
            pace.record(2, 16, ms(40.0));
        }
        assert_eq!(chunk(&pace, 2, false), 0);
        pace.record(2, 0, ms(30.0));
        assert_ne!(chunk(&pace, 2, false), 0);
    }

    #[test]
    fn the_smallest_chunk_is_computed_even_if_it_takes_too_long() {
        let mut pace = pace();
        pace.record(1, 0, ms(10.0));
        pace.record(1, 16, ms(500.0));
        assert_eq!(chunk(&pace, 1, false), 16);
    }

    #[test]
    fn an_unmeasured_number_of_streams_is_never_thought_slower_than_it_can_be() {
        let mut pace = pace();
        pace.record(2, 0, ms(30.0));
        pace.record(8, 0, ms(40.0));
        for (decodes, milliseconds) in [(1, 15.0), (2, 30.0), (4, 30.0), (7, 35.0), (8, 40.0), (20, 40.0)] {
            let step = pace.decode_step(decodes).map(|seconds| (seconds * 1e6).round());
            assert_eq!(step, Some(milliseconds * 1e3), "{decodes} decodes");
        }
        assert_eq!(pace.decode_step(0), None);
    }

    #[test]
    fn one_odd_measurement_moves_the_chunk_little_and_a_lasting_change_moves_it_soon() {
        let mut pace = pace();
        pace.record(4, 0, ms(100.0));
        pace.record(4, 100, ms(200.0));
        pace.record(4, 0, ms(10_000.0));
        assert!((96..=120).contains(&chunk(&pace, 4, false)), "{}", chunk(&pace, 4, false));
        for _ in 0..20 {
            pace.record(4, 0, ms(300.0));
        }
        assert!((256..=310).contains(&chunk(&pace, 4, false)), "{}", chunk(&pace, 4, false));
        for _ in 0..20 {
            pace.record(4, 100, ms(700.0));
        }
        assert!((64..=80).contains(&chunk(&pace, 4, false)), "{}", chunk(&pace, 4, false));
    }

    #[test]
    fn a_slow_first_measurement_is_forgotten_at_the_first_faster_one() {
        let mut pace = pace();
        pace.record(4, 0, ms(1000.0));
        pace.record(4, 16, ms(66.0));
        pace.record(4, 0, ms(50.0));
        assert!(pace.decode_step(4).is_some_and(|seconds| (0.05..0.07).contains(&seconds)));
    }
}
