//! Runs Jinja the way transformers does: `trim_blocks`, `lstrip_blocks`, loop controls, `{% generation %}` blocks, its
//! functions and its `tojson`. Nothing is escaped, nothing can be loaded, and everything is bounded.

use std::sync::{Arc, OnceLock};

use jiff::{Zoned, fmt::strtime};
use minijinja::{
    AutoEscape, Environment, Error, ErrorKind, Value,
    machinery::{self, CompiledTemplate, TemplateConfig},
    syntax::SyntaxConfig,
    value::{Rest, ValueOrKwargs},
};

use super::{json, meter, methods, python};

/// The longest template that is compiled.
pub(super) const SOURCE_BYTES_MAX: usize = 1 << 20;
/// How deep loops, conditions and macros may nest at run time.
const RECURSION_MAX: usize = 400;
/// Where a message of `raise_exception` is cut.
const MESSAGE_CHARS_MAX: usize = 500;

/// Filter arguments after the value, positional or named.
type Arguments = Rest<ValueOrKwargs>;

/// A template's source, ready to run.
#[derive(Debug)]
pub(super) struct Machine {
    source: String,
}

impl Machine {
    /// Compiles a template; fails with the template's error.
    pub fn new(source: &str) -> Result<Self, Error> {
        if source.len() > SOURCE_BYTES_MAX {
            let message = format!("it has {} bytes, more than the {SOURCE_BYTES_MAX} that are read", source.len());
            return Err(Error::new(ErrorKind::SyntaxError, message));
        }
        let machine = Self { source: without_generation(&source.replace("\r\n", "\n").replace('\r', "\n")) };
        machine.compile().map(drop)?;
        Ok(machine)
    }

    /// Renders the template. It is compiled anew each time: that takes far less than a millisecond, and storing the
    /// result would make the struct self-referential.
    pub fn run(&self, context: Value) -> Result<String, Error> {
        meter::metered(|| {
            let compiled = self.compile()?;
            let main = meter::with_charges(&compiled.instructions);
            let blocks = compiled.blocks.iter().map(|(name, block)| (*name, meter::with_charges(block))).collect();
            let mut text = String::new();
            let mut output = machinery::make_string_output(&mut text);
            machinery::eval(environment(), &main, context, &blocks, &mut output, AutoEscape::None)?;
            drop(output);
            Ok(text)
        })
    }

    fn compile(&self) -> Result<CompiledTemplate<'_>, Error> {
        let config = TemplateConfig {
            syntax_config: environment().syntax().clone(),
            default_auto_escape: Arc::new(|_| AutoEscape::None),
        };
        CompiledTemplate::new("chat template", &self.source, &config)
    }
}

/// Formats a template's error on one line.
pub(super) fn message(error: &Error) -> String {
    let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    let cause = std::error::Error::source(error).and_then(|source| source.downcast_ref::<Error>());
    let told = match (error.line(), cause) {
        (_, Some(cause)) => message(cause),
        (Some(line), None) => format!("{detail} (line {line})"),
        (None, None) => detail,
    };
    told.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(MESSAGE_CHARS_MAX).collect()
}

fn environment() -> &'static Environment<'static> {
    static ENVIRONMENT: OnceLock<Environment<'static>> = OnceLock::new();
    ENVIRONMENT.get_or_init(|| {
        let mut environment = Environment::new();
        // Cannot fail, since the delimiters are unchanged.
        if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
            environment.set_syntax(syntax);
        }
        environment.set_fuel(Some(meter::INSTRUCTIONS_MAX));
        environment.set_recursion_limit(RECURSION_MAX);
        environment.set_debug(false);
        environment.set_formatter(python::print);
        environment.set_unknown_method_callback(methods::call);
        add_functions(&mut environment);
        add_filters(&mut environment);
        environment
    })
}

fn add_functions(environment: &mut Environment<'_>) {
    environment.remove_global("debug");
    environment.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
        let message = python::text(message)?.into_owned();
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", |format: &str| date(format, &Zoned::now()));
    environment.add_test("sequence", methods::is_sequence);
    environment.add_test("iterable", methods::is_iterable);
    environment.add_test("callable", |value: &Value| value.kind() == minijinja::value::ValueKind::Plain);
}

fn add_filters(environment: &mut Environment<'_>) {
    // These turn small values into large ones, and no chat template needs them.
    for name in ["batch", "slice", "chain", "zip", "lines", "pprint"] {
        environment.remove_filter(name);
    }
    environment.add_filter(meter::CHARGE, |value: Value| meter::charge_for(&value).map(|()| value));
    environment.add_filter(meter::ADD, |left: &Value, right: &Value| python::add(left, right));
    environment.add_filter(meter::MULTIPLY, |left: &Value, right: &Value| python::multiply(left, right));
    environment.add_filter(meter::REMAINDER, |left: &Value, right: &Value| python::remainder(left, right));
    environment.add_filter(meter::CONCATENATE, |left: &Value, right: &Value| python::concatenate(left, right));
    environment.add_filter("trim", methods::trim_filter);
    environment.add_filter("string", methods::string_filter);
    environment.add_filter("replace", methods::replace_filter);
    environment.add_filter("length", methods::length_filter);
    environment.add_filter("count", methods::length_filter);
    environment.add_filter("tojson", |value: &Value, args: Arguments| json::tojson(value, &args.into_values()));
    environment.add_filter("join", |value: &Value, args: Arguments| methods::join_filter(value, &args.into_values()));
    environment
        .add_filter("format", |pattern: &str, args: Arguments| methods::format_filter(pattern, &args.into_values()));
    environment
        .add_filter("indent", |value: &Value, args: Arguments| methods::indent_filter(value, &args.into_values()));
}

pub(super) fn date(format: &str, time: &Zoned) -> Result<String, Error> {
    let text = strtime::format(format, time);
    text.map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
}

/// `{% generation %}` marks what the assistant writes, for training. Its content is rendered unchanged, in a new scope,
/// which is the behaviour of a `with` without variables.
fn without_generation(source: &str) -> String {
    let mut made = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        made.push_str(before);
        rest = tag;
        let trimmed = tag.trim_start_matches(['-', '+']).trim_start();
        for (word, replacement) in [("generation", "with"), ("endgeneration", "endwith")] {
            let Some(after) = trimmed.strip_prefix(word) else { continue };
            if after.trim_start().trim_start_matches(['-', '+']).starts_with("%}") {
                made.push_str(&tag[..tag.len() - trimmed.len()]);
                made.push_str(replacement);
                rest = after;
            }
        }
    }
    made + rest
}
