//! `pensieve bench --quality`: how far a model is from its own weights in f32, over a text. A child process runs both;
//! this module starts it and prints the result.

use std::{
    ffi::OsString,
    fmt::Write as _,
    ops::ControlFlow,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Serialize;

use super::super::terminal::tell;
use crate::cli::{
    common_args::CommonArgs,
    error::{CliError, Exit},
    progress::LoadProgress,
    quality::{Quality, QualityEvent},
};
use pensieve_protocol::{outside::Outside, refusal::clean};
use pensieve_server::fleet::{Claimed, Fleet, child};

/// Overrides the kernels of both models, whatever their options say.
const FORCED: &str = "PENSIEVE_KERNELS";
/// How long the child may be silent; unpacking a large model takes a while.
const SILENCE_MAX: Duration = Duration::from_secs(600);

/// A measurement, with its model and text.
#[derive(Debug, Serialize)]
pub(super) struct QualityReport {
    pub(super) model: String,
    pub(super) text: PathBuf,
    #[serde(flatten)]
    pub(super) quality: Quality,
}

/// Compares a model with its own weights in f32, on up to `positions` tokens of a text, `chunk` of them at a time.
pub(super) fn measure(
    common: &CommonArgs,
    model: Option<&str>,
    text: &Path,
    positions: u32,
    chunk: u32,
) -> Result<QualityReport, CliError> {
    if std::env::var(FORCED).is_ok_and(|kernels| !kernels.is_empty()) {
        let line = format!("{FORCED} forces the same kernels on both sides of the comparison; unset it");
        return Err(CliError::new(Exit::Usage, line));
    }
    let unread = |error: std::io::Error| CliError::system(format_args!("the text '{}'", Outside::path(&text)), &error);
    if !text.metadata().map_err(unread)?.is_file() {
        return Err(CliError::new(Exit::Usage, format!("the text '{}' is not a file", Outside::path(&text))));
    }
    let (resolved, model) = common.resolve_one(model)?;
    let config = resolved.fleet()?;
    super::super::runtime()?.block_on(async {
        let fleet = Fleet::start(config).await?;
        let claimed = fleet.claimed(&model, text).await?;
        let arguments = arguments(&claimed, text, positions, chunk);
        let mut monitor = Monitor::default();
        let followed = child::ask_for_lines(
            fleet.program(),
            &arguments,
            Some(&claimed.policy),
            SILENCE_MAX,
            |event: QualityEvent| monitor.on_event(event),
        );
        let followed = followed.await;
        monitor.progress.end();
        fleet.shutdown(Duration::ZERO).await;
        followed.map_err(|error| {
            CliError::new(
                Exit::Failed,
                format!("while the text was read, architecture '{}' {error}", claimed.architecture),
            )
        })?;
        let quality = monitor
            .answer
            .unwrap_or_else(|| Err(CliError::new(Exit::Failed, "the measurement ended without a result")))?;
        Ok(QualityReport { model, text: text.to_path_buf(), quality })
    })
}

fn arguments(claimed: &Claimed, text: &Path, positions: u32, chunk: u32) -> Vec<OsString> {
    let spec = &claimed.spec;
    let flags = [
        ("device", spec.device.clone()),
        ("context", spec.context.to_string()),
        ("threads", spec.threads.to_string()),
        ("memory", claimed.memory_bytes.to_string()),
        ("positions", positions.to_string()),
        ("chunk", chunk.to_string()),
        ("options", spec.options.clone()),
    ];
    let flags = flags.into_iter().map(|(name, value)| format!("--{name}={value}").into());
    let verb = ["probe", "quality"].map(OsString::from).into_iter();
    let positional = [&claimed.plugin, Path::new(&claimed.architecture), &claimed.source, text];
    verb.chain(flags).chain(["--".into()]).chain(positional.map(Into::into)).collect()
}

/// Follows the child's events.
#[derive(Default)]
struct Monitor {
    progress: LoadProgress,
    answer: Option<Result<Quality, CliError>>,
}

impl Monitor {
    fn on_event(&mut self, event: QualityEvent) -> ControlFlow<()> {
        self.answer = match event {
            QualityEvent::Reaches { done, total, what } => {
                self.progress.reach(done, total, &clean(&what));
                return ControlFlow::Continue(());
            }
            QualityEvent::Warns { message } => {
                tell(format_args!("warning: {}", clean(&message)));
                return ControlFlow::Continue(());
            }
            QualityEvent::Found(quality) => Some(Ok(quality.cleaned())),
            QualityEvent::Stopped { exit, reason } => Some(Err(CliError::new(exit, clean(&reason)))),
        };
        ControlFlow::Break(())
    }
}

impl Quality {
    /// Makes the plugin's text safe for a terminal.
    fn cleaned(self) -> Self {
        let [architecture, device, note, reference_note] =
            [self.architecture, self.device, self.note, self.reference_note].map(|text| clean(&text));
        Self { architecture, device, note, reference_note, ..self }
    }
}

/// The report as text.
pub(super) fn table(report: &QualityReport) -> String {
    let QualityReport { model, text, quality } = report;
    let mut shown = String::new();
    let Quality { architecture, device, positions, .. } = quality;
    // The last part of a note names the kernels; the parts before give the reason for the device.
    let [note, reference_note] =
        [&quality.note, &quality.reference_note].map(|note| note.rsplit("; ").next().unwrap_or_default());
    let _ = writeln!(
        shown,
        "{model} ({architecture}) on {device} ({note}),\nagainst the same weights in f32 ({reference_note}):"
    );
    let _ = writeln!(
        shown,
        "{positions} tokens of {} predicted, in sequences of up to {}, {} at a time\n",
        Outside::path(&text),
        quality.sequence_tokens,
        quality.chunk_tokens
    );
    let _ = writeln!(
        shown,
        "perplexity           {:>10.4}   in f32 {:.4}",
        quality.perplexity, quality.reference_perplexity
    );
    let _ = writeln!(
        shown,
        "KL divergence        {:>10.6}   one in a hundred above {:.6}",
        quality.kl_divergence, quality.kl_divergence_p99
    );
    let _ = writeln!(shown, "same first choice    {:>9.2}%", quality.first_choices_equal * 100.0);
    shown
}
