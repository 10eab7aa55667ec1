//! Regular expressions assembled from parts, with groups added where precedence requires them.

use pensieve_protocol::prompt::EXPRESSION_BYTES_MAX;

/// The longest bounded text: its automaton counts every byte, and the grammar engine stops in the middle of an answer
/// when it has too many states.
const COUNTED_BYTES_MAX: usize = 2_048;

/// Validates an expression without anchors, as the engine takes it.
pub(super) fn checked(expression: &str) -> Result<(), String> {
    if expression.len() > EXPRESSION_BYTES_MAX {
        return Err(format!("a regular expression has more than {EXPRESSION_BYTES_MAX} bytes"));
    }
    let read = regex_syntax::parse(expression).map_err(|error| {
        let kind = match &error {
            regex_syntax::Error::Parse(error) => error.kind().to_string(),
            regex_syntax::Error::Translate(error) => error.kind().to_string(),
            other => other.to_string(),
        };
        format!("a regular expression cannot be used: {kind}")
    })?;
    if !read.properties().look_set().is_empty() {
        return Err("a regular expression has an anchor or a word boundary".to_owned());
    }
    match read.properties().maximum_len() {
        Some(bytes) if bytes > COUNTED_BYTES_MAX => {
            Err(format!("a regular expression counts to {bytes} bytes of text, and can count to {COUNTED_BYTES_MAX}"))
        }
        _ => Ok(()),
    }
}

/// A regular expression and its precedence.
#[derive(Clone)]
pub(super) struct Expression {
    pub(super) text: String,
    pub(super) binding: Binding,
}

/// The precedence of an expression.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
pub(super) enum Binding {
    Choice,
    Sequence,
    Atom,
}

impl Expression {
    /// Wraps an expression from the grammar as it is.
    pub(super) fn of(text: String) -> Self {
        // Inline flags at its start would apply to what follows, too.
        let is_loose = text.contains('|') || text.contains("(?");
        Self { text, binding: if is_loose { Binding::Choice } else { Binding::Sequence } }
    }

    /// Its text, in a group if it binds looser than its surroundings.
    fn within(&self, binding: Binding) -> String {
        if self.binding < binding { format!("(?:{})", self.text) } else { self.text.clone() }
    }

    pub(super) fn repeated(&self, times: &str) -> Self {
        Self { text: self.within(Binding::Atom) + times, binding: Binding::Sequence }
    }
}

/// Collects the parts of an expression, bounding their total size.
pub(super) fn collected(parts: impl Iterator<Item = Result<Expression, String>>) -> Result<Vec<Expression>, String> {
    let mut bytes = 0;
    let limited = parts.map(|part| {
        let part = part?;
        bytes += part.text.len();
        if bytes > EXPRESSION_BYTES_MAX {
            return Err(format!("as one expression it has more than {EXPRESSION_BYTES_MAX} bytes"));
        }
        Ok(part)
    });
    limited.collect()
}

pub(super) fn sequence(parts: Vec<Expression>) -> Expression {
    match <[Expression; 1]>::try_from(parts) {
        Ok([part]) => part,
        Err(parts) => {
            let text = parts.iter().map(|part| part.within(Binding::Sequence)).collect();
            Expression { text, binding: Binding::Sequence }
        }
    }
}

pub(super) fn choice(parts: Vec<Expression>) -> Expression {
    match <[Expression; 1]>::try_from(parts) {
        Ok([part]) => part,
        Err(parts) => {
            let parts: Vec<_> = parts.into_iter().map(|part| part.text).collect();
            Expression { text: parts.join("|"), binding: Binding::Choice }
        }
    }
}
