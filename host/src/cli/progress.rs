//! Progress on standard error: a bar on a terminal, otherwise a line every ten seconds.

use super::terminal::tell;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

use crate::config::units;
use pensieve_protocol::outside::{self, Outside};
use pensieve_server::hub;

/// Interval between lines without a terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// A progress bar on a terminal, otherwise periodic lines.
pub(super) struct Meter {
    name: String,
    unit: Unit,
    total: u64,
    begun: u64,
    since: Instant,
    written: Instant,
    bar: Option<ProgressBar>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Bytes,
    Steps,
}

impl Meter {
    /// Starts at `done`, which does not count for the rate.
    pub(super) fn begin(name: &str, unit: Unit, done: u64, total: u64) -> Self {
        let name = Outside::new(name).to_string();
        let bar = std::io::stderr().is_terminal().then(|| {
            let amounts = match unit {
                Unit::Bytes => "{bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
                Unit::Steps => "{percent} %",
            };
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template(&format!("{{msg}} [{{bar:28}}] {amounts}"));
            if let Ok(style) = style {
                bar.set_style(style.progress_chars("=> "));
            }
            // Bytes of an earlier download would distort the ETA.
            bar.set_position(done);
            bar.reset_eta();
            bar.set_message(name.clone());
            bar
        });
        let now = Instant::now();
        let meter = Self { name: name.clone(), unit, total, begun: done, since: now, written: now, bar };
        if meter.bar.is_none() && unit == Unit::Bytes {
            let resumed = if done > 0 { format!(", {} already downloaded", units::bytes(done)) } else { String::new() };
            tell(format_args!("{name}: {}{resumed}", units::bytes(total)));
        }
        meter
    }

    pub(super) fn reach(&mut self, done: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(done);
            return;
        }
        if done < self.begun {
            (self.begun, self.since) = (done, Instant::now());
        }
        if self.written.elapsed() >= LINE_EVERY {
            self.written = Instant::now();
            tell(self.line(done, self.since.elapsed()));
        }
    }

    /// Erases the bar; without one a download gets a last line.
    pub(super) fn end(self) {
        match &self.bar {
            Some(bar) => bar.finish_and_clear(),
            None if self.unit == Unit::Bytes => {
                let rate = rate(self.total - self.begun.min(self.total), self.since.elapsed());
                tell(format_args!("{}: done, {}/s", self.name, units::bytes(rate)));
            }
            None => {}
        }
    }

    fn line(&self, done: u64, elapsed: Duration) -> String {
        let percent = (u128::from(done) * 100).checked_div(u128::from(self.total)).unwrap_or(0);
        if self.unit == Unit::Steps {
            return format!("{}: {percent} %", self.name);
        }
        let rate = rate(done.saturating_sub(self.begun), elapsed);
        let rest = self.total.saturating_sub(done).checked_div(rate);
        let rest = rest.map_or_else(|| "stalled".to_owned(), |seconds| format!("{} left", minutes(seconds)));
        format!("{}: {percent} %, {}/s, {rest}", self.name, units::bytes(rate))
    }
}

fn rate(amount: u64, elapsed: Duration) -> u64 {
    let ms = elapsed.as_millis().max(1);
    u64::try_from(u128::from(amount) * 1000 / ms).unwrap_or(u64::MAX)
}

fn minutes(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// Progress of downloads, one after the other.
pub(super) struct DownloadProgress(Option<Meter>);

impl DownloadProgress {
    pub(super) fn new() -> Self {
        Self(None)
    }
}

impl hub::Progress for DownloadProgress {
    fn say(&mut self, line: &str) {
        match self.0.as_ref().and_then(|meter| meter.bar.as_ref()) {
            Some(bar) => bar.println(outside::lines(line)),
            None => tell(line),
        }
    }

    fn begin(&mut self, name: &str, done: u64, total: u64) {
        self.0 = Some(Meter::begin(name, Unit::Bytes, done, total));
    }

    fn reach(&mut self, done: u64) {
        if let Some(meter) = &mut self.0 {
            meter.reach(done);
        }
    }

    fn end(&mut self) {
        if let Some(meter) = self.0.take() {
            meter.end();
        }
    }
}

/// Progress of a model's load, whose total and description may change on the way.
#[derive(Default)]
pub(super) struct LoadProgress(Option<Meter>);

impl LoadProgress {
    pub(super) fn reach(&mut self, done: u64, total: u64, what: &str) {
        if total == 0 {
            return;
        }
        if self.0.as_ref().is_none_or(|meter| meter.total != total || meter.name != Outside::new(what).to_string()) {
            self.end();
            self.0 = Some(Meter::begin(what, Unit::Steps, done, total));
        }
        if let Some(meter) = &mut self.0 {
            meter.reach(done);
        }
    }

    pub(super) fn end(&mut self) {
        if let Some(meter) = self.0.take() {
            meter.end();
        }
    }
}

/// A spinner for work of unknown length; shown on terminals only.
pub(super) struct Spinner(Option<ProgressBar>);

impl Spinner {
    pub(super) fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        Self(bar)
    }

    pub(super) fn at(&self, what: &str) {
        if let Some(bar) = &self.0 {
            bar.set_message(Outside::new(what).to_string());
        }
    }

    /// Hides the spinner while `write` prints.
    pub(super) fn pause(&self, write: impl FnOnce()) {
        match &self.0 {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_rate_and_time_left() {
        let meter = Meter { bar: None, ..Meter::begin("x.gguf", Unit::Bytes, 100 << 20, 1000 << 20) };
        assert_eq!(meter.line(300 << 20, Duration::from_secs(2)), "x.gguf: 30 %, 100 MiB/s, 7 s left");
        assert_eq!(meter.line(100 << 20, Duration::from_secs(2)), "x.gguf: 10 %, 0 B/s, stalled");
        assert_eq!((minutes(59), minutes(61), minutes(7260)), ("59 s".into(), "1 min 1 s".into(), "2 h 1 min".into()));
    }
}
