//! Results from several devices side by side: a column per device, a line per figure.

use std::fmt::Write as _;

use super::{Report, Row};
use crate::config::units;

/// Name, value and decimals of a figure.
type Figure = (&'static str, fn(&Row) -> f64, usize);

const FIGURES: [Figure; 6] = [
    ("prompt tok/s", |row| row.prompt_tokens_per_s, 1),
    ("first token ms", |row| row.first_token_ms, 1),
    ("decode tok/s", |row| row.decode_tokens_per_s, 1),
    ("gap p50 ms", |row| row.gap_p50_ms, 2),
    ("gap p99 ms", |row| row.gap_p99_ms, 2),
    ("outside model %", |row| row.outside_model_share * 100.0, 2),
];

/// The reports as one table; all are of the same model and settings.
pub(super) fn side_by_side(reports: &[Report]) -> String {
    let Some(first) = reports.first() else { return String::new() };
    let mut text = format!(
        "{} ({}, {})\nprompts of {} tokens, {} generated; medians\n\n",
        first.model,
        first.architecture,
        units::bytes(first.weight_bytes),
        first.prompt_tokens,
        first.generated_tokens,
    );
    let mut line = |name: &str, cells: &mut dyn Iterator<Item = String>| {
        let _ = write!(text, "{name:<18}");
        cells.for_each(|cell| {
            let _ = write!(text, "  {cell:>12}");
        });
        text.push('\n');
    };
    line("", &mut reports.iter().map(|report| report.device.clone()));
    line("load s", &mut reports.iter().map(|report| format!("{:.2}", report.load_s)));
    for (index, row) in first.rounds.iter().enumerate() {
        line(&format!("streams: {}", row.concurrency), &mut std::iter::empty());
        for (name, figure, digits) in FIGURES {
            let value = |report: &Report| report.rounds.get(index).map(figure);
            let cell = |report| value(report).map_or_else(|| "-".into(), |value| format!("{value:.digits$}"));
            line(&format!("  {name}"), &mut reports.iter().map(cell));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(device: &str, decode: f64) -> Report {
        let row = Row {
            concurrency: 8,
            prompt_tokens_per_s: 1000.0,
            first_token_ms: 12.5,
            decode_tokens_per_s: decode,
            gap_p50_ms: 10.0,
            gap_p99_ms: 11.25,
            engine_share: 0.01,
            outside_model_share: 0.002,
            beside: None,
        };
        Report {
            model: "m".into(),
            architecture: "llama".into(),
            device: device.into(),
            note: String::new(),
            weight_bytes: 1 << 20,
            load_s: 0.5,
            prompt_tokens: 512,
            generated_tokens: 128,
            adapters: Vec::new(),
            rounds: vec![row],
            timeline: None,
        }
    }

    #[test]
    fn devices_stand_beside_each_other() {
        let text = side_by_side(&[report("cpu", 20.0), report("cuda:0", 400.25)]);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(lines.contains(&vec!["cpu", "cuda:0"]), "{text}");
        assert!(lines.contains(&vec!["decode", "tok/s", "20.0", "400.2"]), "{text}");
        assert!(text.lines().skip(3).filter(|line| line.starts_with("  ")).all(|line| line.len() == 46), "{text}");
    }
}
