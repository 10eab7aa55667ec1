//! Rates and gaps, computed from the arrival times of tokens.

use std::time::{Duration, Instant};

/// Arrivals of one stream.
#[derive(Debug, Default)]
pub(in crate::cli) struct Stream {
    /// Arrival time and number of tokens of each event.
    pub(in crate::cli) arrivals: Vec<(Instant, usize)>,
}

/// One round: arrivals of every stream, and the worker's own timers.
pub(in crate::cli) struct Round {
    pub(in crate::cli) started: Instant,
    pub(in crate::cli) streams: Vec<Stream>,
    /// Microseconds in the model's `forward`.
    pub(in crate::cli) forward_us: u64,
    /// Microseconds of steps outside `forward`.
    pub(in crate::cli) overhead_us: u64,
}

impl Stream {
    /// Milliseconds from `started` to the first token.
    pub(in crate::cli) fn first(&self, started: Instant) -> f64 {
        self.arrivals.first().map_or(0.0, |(at, _)| ms(*at - started))
    }

    /// Milliseconds between tokens. Tokens of one event share the time since the previous event evenly.
    pub(in crate::cli) fn gaps(&self) -> Vec<f64> {
        self.arrivals.windows(2).flat_map(gap).collect()
    }

    /// The gaps that ended within this interval.
    pub(in crate::cli) fn gaps_between(&self, from: Instant, to: Instant) -> Vec<f64> {
        self.arrivals.windows(2).filter(|pair| pair[1].0 >= from && pair[1].0 <= to).flat_map(gap).collect()
    }
}

fn gap(pair: &[(Instant, usize)]) -> impl Iterator<Item = f64> + use<> {
    let tokens = pair[1].1;
    std::iter::repeat_n(ms(pair[1].0 - pair[0].0) / count(tokens), tokens)
}

impl Round {
    /// The interval in which all streams generate: from the latest first token to the earliest last one.
    fn together(&self) -> Option<(Instant, Instant)> {
        let all_begun = self.streams.iter().filter_map(|stream| Some(stream.arrivals.first()?.0)).max()?;
        let one_ended = self.streams.iter().filter_map(|stream| Some(stream.arrivals.last()?.0)).min()?;
        Some((all_begun, one_ended))
    }

    pub(in crate::cli) fn prompt_rate(&self, tokens: u64) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "a rate needs no more digits")]
        self.together().map_or(0.0, |(all_begun, _)| tokens as f64 / (all_begun - self.started).as_secs_f64())
    }

    pub(in crate::cli) fn decode_rate(&self) -> f64 {
        let Some((from, to)) = self.together() else { return 0.0 };
        // If some stream ends before another begins, the interval is empty; take the whole round.
        let (from, to) = if to > from { (from, to) } else { (self.started, self.end()) };
        let within = |&&(at, _): &&(Instant, usize)| at > from && at <= to;
        let tokens: usize =
            self.streams.iter().flat_map(|stream| stream.arrivals.iter().filter(within)).map(|(_, count)| count).sum();
        count(tokens) / (to - from).as_secs_f64()
    }

    fn end(&self) -> Instant {
        self.streams.iter().filter_map(|stream| Some(stream.arrivals.last()?.0)).max().unwrap_or(self.started)
    }

    pub(in crate::cli) fn engine_share(&self) -> f64 {
        share(self.overhead_us, self.forward_us + self.overhead_us)
    }

    pub(in crate::cli) fn outside_share(&self) -> f64 {
        let whole = u64::try_from((self.end() - self.started).as_micros()).unwrap_or(u64::MAX);
        share(whole.saturating_sub(self.forward_us), whole)
    }
}

#[allow(clippy::cast_precision_loss, reason = "a share needs no more digits")]
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { (part as f64 / whole as f64 * 1e5).round() / 1e5 }
}

#[allow(clippy::cast_precision_loss, reason = "token counts stay far below 2^52")]
fn count(number: usize) -> f64 {
    number as f64
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Rounds to three decimals.
pub(in crate::cli) fn rounded(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}

pub(in crate::cli) fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    quantile(&numbers, 0.5)
}

/// Nearest-rank quantile of sorted numbers; 0 if there are none.
pub(in crate::cli) fn quantile(sorted: &[f64], fraction: f64) -> f64 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a fraction of a length is an index")]
    let index = (count(sorted.len().saturating_sub(1)) * fraction).round() as usize;
    let number = sorted.get(index).copied().unwrap_or(0.0);
    if number.abs() < 1.0 { (number * 1e5).round() / 1e5 } else { rounded(number) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two streams: the first token of each after 100 and 200 ms, then four more, 50 ms apart.
    fn round() -> Round {
        let started = Instant::now();
        let at = |ms: u64| started + Duration::from_millis(ms);
        let stream = |first: u64| Stream { arrivals: (0..5).map(|step| (at(first + 50 * step), 1)).collect() };
        Round { started, streams: vec![stream(100), stream(200)], forward_us: 300_000, overhead_us: 3_000 }
    }

    #[test]
    fn decode_rate_covers_the_time_in_which_all_streams_run() {
        let round = round();
        assert!((round.prompt_rate(1000) - 5000.0).abs() < 1.0);
        // From 200 ms to 300 ms: two tokens per stream.
        assert!((round.decode_rate() - 40.0).abs() < 0.1, "{}", round.decode_rate());
        assert!((round.engine_share() - 0.0099).abs() < 1e-4);
        assert!((round.outside_share() - 0.25).abs() < 1e-3);
    }

    #[test]
    fn tokens_of_one_event_share_its_gap() {
        let round = round();
        let mut stream = Stream { arrivals: round.streams[0].arrivals.clone() };
        stream.arrivals[4].1 = 2;
        let gaps = stream.gaps();
        assert_eq!(gaps.len(), 5);
        assert!((gaps[0] - 50.0).abs() < 1e-6 && (gaps[4] - 25.0).abs() < 1e-6, "{gaps:?}");
        assert!((quantile(&[1.0, 2.0, 3.0], 0.5) - 2.0).abs() < 1e-9);
        assert!((quantile(&[], 0.99)).abs() < 1e-9);
    }
}
