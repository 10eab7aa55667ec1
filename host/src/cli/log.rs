//! The server's log goes to stderr, since stdout carries only the line with the address. Field values may come from
//! outside, so they are always escaped.

use clap::ValueEnum;
use std::io::{self, Write};
use tracing::field::Field;
use tracing_subscriber::{
    EnvFilter,
    field::MakeExt,
    fmt::{
        MakeWriter,
        format::{Writer, debug_fn},
    },
};

use pensieve_protocol::outside::{self, Outside};

/// Characters per field. The longest that the program itself writes are failures with their reason.
const FIELD_CHARS_MAX: usize = 8192;

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum LogFormat {
    /// Plain text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Installs the log. `filter` is a directive of `tracing`'s `EnvFilter`: a level, or one per target, such as
/// `warn,pensieve::fleet=debug`.
pub(super) fn begin<W>(format: LogFormat, filter: &str, writer: W) -> Result<(), String>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = EnvFilter::builder().parse(filter).map_err(|error| format!("the log cannot be set up: {error}"))?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter);
    let installed = match format {
        LogFormat::Text => {
            use std::io::IsTerminal as _;
            let lines = lines.with_ansi(std::io::stderr().is_terminal()).with_target(false);
            lines.fmt_fields(debug_fn(field).delimited(" ")).with_writer(writer).try_init()
        }
        LogFormat::Json => {
            let lines = lines.json().with_current_span(true).with_span_list(false);
            lines.with_writer(JsonLines(writer)).try_init()
        }
    };
    installed.map_err(|error| format!("the log cannot be set up: {error}"))
}

/// Writes one field as text, its name in italics on a terminal.
fn field(writer: &mut Writer<'_>, field: &Field, value: &dyn std::fmt::Debug) -> std::fmt::Result {
    let value = format!("{value:?}");
    let value = Outside::new(value).at_most(FIELD_CHARS_MAX);
    match field.name() {
        "message" => write!(writer, "{value}"),
        name if writer.has_ansi_escapes() => write!(writer, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m{value}"),
        name => write!(writer, "{name}={value}"),
    }
}

/// Escapes control and bidirectional characters that JSON leaves as they are.
struct JsonLines<W>(W);

impl<'a, W: MakeWriter<'a>> MakeWriter<'a> for JsonLines<W> {
    type Writer = JsonLines<W::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        JsonLines(self.0.make_writer())
    }

    fn make_writer_for(&'a self, metadata: &tracing::Metadata<'_>) -> Self::Writer {
        JsonLines(self.0.make_writer_for(metadata))
    }
}

impl<W: Write> Write for JsonLines<W> {
    /// The subscriber writes each line in one call, so no character is split.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.write_all(outside::json(&String::from_utf8_lossy(line)).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Captured(Arc<Mutex<Vec<u8>>>);

    impl Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(subscriber: impl FnOnce(Captured) -> Box<dyn tracing::Subscriber + Send + Sync>) -> String {
        let captured = Captured::default();
        tracing::subscriber::with_default(subscriber(captured.clone()), || {
            let word = "\u{1b}]0;x\u{7}\u{9b}\u{202e}\nERROR forged";
            let _span = tracing::info_span!("request", client = word).entered();
            tracing::info!(model = word, shown = %word, "it says: {word} ä模");
        });
        let bytes = captured.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn text_from_outside_cannot_forge_log_lines_or_control_the_terminal() {
        let text = logged(|captured| {
            let lines = tracing_subscriber::fmt().with_ansi(false).fmt_fields(debug_fn(field).delimited(" "));
            Box::new(lines.with_writer(move || captured.clone()).finish())
        });
        let json = logged(|captured| {
            let lines = tracing_subscriber::fmt().json().with_current_span(true);
            Box::new(lines.with_writer(JsonLines(move || captured.clone())).finish())
        });
        for log in [&text, &json] {
            assert_eq!(log.lines().count(), 1, "{log}");
            let line = log.trim_end_matches('\n');
            assert!(!line.chars().any(|letter| letter.is_control() || letter == '\u{202e}'), "{log}");
            assert!(log.contains("ERROR forged ä模"), "{log}");
        }
        assert!(text.contains("it says: \\u{1b}]0;x\\u{7}\\u{9b}\\u{202e}\\nERROR forged"), "{text}");
        assert!(json.contains("\\u001b]0;x\\u0007\\u009b\\u202e\\nERROR forged"), "{json}");
    }
}
