//! Any body is accepted or refused.

use super::{chat, completions};
use crate::dialects::{Dialect, extensions, fuzz};

#[test]
fn a_damaged_chat_is_read_or_refused() {
    fuzz::documents("chat", Dialect::OpenAi, |document| {
        let mut asked = chat::read(&document.root())?;
        extensions::read(&document.root(), &mut asked.request)
    });
}

#[test]
fn a_damaged_completion_is_read_or_refused() {
    fuzz::documents("completions", Dialect::OpenAi, |document| {
        let asked = completions::read(&document.root())?;
        asked.requests.into_iter().try_for_each(|mut request| extensions::read(&document.root(), &mut request))
    });
}
