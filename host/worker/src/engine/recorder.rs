//! The timeline of one job that asks for it: the spans that the model's plugin has recorded, and above them the steps of
//! the engine, in which other jobs may take part.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use pensieve_plugin_api::ext::timeline::Recording;

use super::{failures::of_plugin, model::Model};
use pensieve_protocol::{
    job::{Failure, FailureCode},
    timeline::{NAME_CHARS_MAX, NAMES_MAX, SPANS_MAX, Span, TIME_NS_MAX, Timeline},
};

/// How long the call may take in which a plugin begins its recording. Its clock starts somewhere within, so spans of the
/// engine and of the plugin are then off by half of it at most.
const START_MAX: Duration = Duration::from_micros(10);
/// Calls at most. One that took longer, as another thread had the processor, is made again.
const STARTS_MAX: usize = 10;

/// Records for one job at a time.
#[derive(Debug, Default)]
pub struct Recorder {
    active: Option<Active>,
}

#[derive(Debug)]
struct Active {
    job: u64,
    began: Instant,
    /// What the engine did, and from when to when.
    engine: Vec<(String, Instant, Instant)>,
}

impl Recorder {
    pub fn start(&mut self, job: u64, model: &mut Model) -> Result<(), Failure> {
        if self.active.is_some() {
            return Err(Failure::new(FailureCode::Busy, "another job's timeline is being recorded"));
        }
        let mut timeline = model.timeline()?;
        let began = begin(|| timeline.start()).map_err(|error| {
            // An earlier start may have succeeded.
            let _ = timeline.finish();
            of_plugin(error)
        })?;
        self.active = Some(Active { job, began, engine: Vec::new() });
        Ok(())
    }

    /// Notes something that the engine did.
    pub fn note(&mut self, start: Instant, end: Instant, what: impl FnOnce() -> String) {
        if let Some(active) = self.active.as_mut().filter(|active| active.engine.len() < SPANS_MAX / 8) {
            active.engine.push((what(), start, end));
        }
    }

    /// The job whose timeline is being recorded.
    pub fn job(&self) -> Option<u64> {
        self.active.as_ref().map(|active| active.job)
    }

    /// Ends the recording.
    pub fn finish(&mut self, model: &mut Model) -> Option<Timeline> {
        let active = self.active.take()?;
        let recording = model.timeline().and_then(|mut timeline| timeline.finish().map_err(of_plugin));
        Some(timeline(active, &recording.unwrap_or_default()))
    }
}

/// Begins a plugin's recording, and returns when that was.
fn begin<E>(mut start: impl FnMut() -> Result<(), E>) -> Result<Instant, E> {
    let mut began = Instant::now();
    for _ in 0..STARTS_MAX {
        let called = Instant::now();
        start()?;
        let took = called.elapsed();
        began = called + took / 2;
        if took <= START_MAX {
            break;
        }
    }
    Ok(began)
}

/// Joins both, without what is out of range in a plugin's recording.
fn timeline(active: Active, recording: &Recording) -> Timeline {
    let name = |name: &str| name.chars().filter(|letter| !letter.is_control()).take(NAME_CHARS_MAX).collect();
    let mut timeline = Timeline::default();
    timeline.threads.extend(recording.threads.iter().take(NAMES_MAX).map(|thread| name(thread)));
    if timeline.threads.is_empty() {
        timeline.threads.push("engine".into());
    }
    let mut known = HashMap::new();
    for (what, start, end) in active.engine {
        let index = known.len();
        let index = *known.entry(what).or_insert_with_key(|what| {
            timeline.names.push(name(what));
            index
        });
        let start_ns = start.saturating_duration_since(active.began).as_nanos() as u64;
        let ns = end.saturating_duration_since(start).as_nanos() as u64;
        if index < NAMES_MAX {
            timeline.spans.push(Span { thread: 0, name: index as u16, start_ns, ns });
        }
    }
    timeline.names.truncate(NAMES_MAX);
    let (first, threads) = (timeline.names.len(), timeline.threads.len());
    timeline.names.extend(recording.names.iter().take(NAMES_MAX).map(|one| name(one)));
    let names = timeline.names.len() - first;
    let is_sound = |span: &&pensieve_plugin_api::ext::timeline::Span| {
        (span.thread as usize) < threads
            && (span.name as usize) < names
            && span.start_ns <= span.end_ns
            && span.end_ns < TIME_NS_MAX
    };
    let room = SPANS_MAX - timeline.spans.len();
    let mut spans: Vec<_> = recording.spans.iter().filter(is_sound).collect();
    spans.sort_by_key(|span| span.start_ns);
    let last = spans.iter().map(|span| span.end_ns).max().unwrap_or(u64::MAX);
    timeline.is_cut = spans.len() > room || timeline.spans.iter().any(|step| step.start_ns > last);
    timeline.spans.extend(spans.into_iter().take(room).map(|span| Span {
        thread: span.thread as u16,
        name: first as u16 + span.name as u16,
        start_ns: span.start_ns,
        ns: span.end_ns - span.start_ns,
    }));
    timeline
}

#[cfg(test)]
mod tests {
    use super::*;
    use pensieve_plugin_api::ext::timeline::Span as Recorded;
    use pensieve_protocol::{job::Event, wire};

    fn active(steps: u64) -> Active {
        let began = Instant::now();
        let at = |ms| began + Duration::from_millis(ms);
        let engine = (0..steps).map(|step| (format!("step {}", step % 700), at(step), at(step + 1))).collect();
        Active { job: 1, began, engine }
    }

    #[test]
    fn what_a_plugin_records_beyond_its_own_threads_names_and_time_is_left_out() {
        let span = |thread, name, start_ns, end_ns| Recorded { thread, name, start_ns, end_ns };
        let spans = [
            span(1, 1, 5, 9),
            span(0, 0, 1, 2),
            span(2, 0, 1, 2),
            span(0, 2, 1, 2),
            span(0, 0, 2, 1),
            span(0, 0, 1, u64::MAX),
        ];
        let recording = Recording {
            threads: ["engine".into(), "kernels-1".into()].into_iter().collect(),
            names: ["mul\n".into(), "wait".into()].into_iter().collect(),
            spans: spans.into_iter().collect(),
        };
        let timeline = timeline(active(1), &recording);
        assert_eq!(timeline.threads, ["engine", "kernels-1"]);
        assert_eq!(timeline.names, ["step 0", "mul", "wait"]);
        let expected = [(0, 0, 0, 1_000_000), (0, 1, 1, 1), (1, 2, 5, 4)];
        let found: Vec<_> =
            timeline.spans.iter().map(|span| (span.thread, span.name, span.start_ns, span.ns)).collect();
        assert_eq!(found, expected);
        assert!(!timeline.is_cut);
    }

    #[test]
    fn the_longest_timeline_fits_into_a_report() {
        let span = |at: u64| Recorded {
            thread: 511,
            name: 511,
            start_ns: TIME_NS_MAX - 500_000 + at,
            end_ns: TIME_NS_MAX - 1,
        };
        let long = || (0..1000).map(|_| "é".repeat(200).into());
        let recording =
            Recording { threads: long().collect(), names: long().collect(), spans: (0..400_000).map(span).collect() };
        let timeline = timeline(active(20_000), &recording);
        assert!(timeline.is_cut);
        assert_eq!(timeline.spans.len(), SPANS_MAX);
        let report = wire::Report::Events(vec![(1, Event::Timeline(timeline))]);
        wire::encode_report_into(&report, &mut Vec::new()).unwrap();
    }

    #[test]
    fn a_start_that_took_long_is_made_again_so_that_the_clocks_agree() {
        let mut calls = 0;
        let mut plugin = Instant::now();
        let began = begin(|| {
            plugin = Instant::now();
            calls += 1;
            if calls < 3 {
                std::thread::sleep(Duration::from_millis(30));
            }
            Ok::<_, Failure>(())
        })
        .unwrap();
        assert!(calls >= 3);
        let apart = began.max(plugin) - began.min(plugin);
        assert!(apart < Duration::from_millis(10), "{apart:?}");
        assert_eq!(begin(|| Err("none")), Err("none"));
    }

    #[test]
    fn a_model_that_records_nothing_has_the_engines_steps() {
        let timeline = timeline(active(3), &Recording::default());
        assert_eq!((timeline.threads.len(), timeline.spans.len()), (1, 3));
    }
}
