//! The rules of a step of an encoder: its spans are whole texts.

use crate::{Batch, Error, Output, Result};

/// Checks that the spans are whole texts, of which no logits are wanted.
pub(super) fn check(batch: &Batch<'_>, name: &str) -> Result<()> {
    for span in &batch.spans {
        let sequence = span.sequence;
        if span.past > 0 {
            let message = format!("sequence {sequence}: {} tokens after {} others", span.len, span.past);
            return Err(Error::invalid(message).help(format!("{name} is an encoder: a text is one span")));
        }
        if span.rows() > 0 && span.output != Output::Hidden {
            let message = format!("sequence {sequence}: {name} is an encoder, which has hidden rows and no logits");
            return Err(Error::unsupported(message));
        }
    }
    Ok(())
}
