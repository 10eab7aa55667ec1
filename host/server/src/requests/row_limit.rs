//! The longest text that a model reads, and how longer ones are cut.

use super::rows_request::FieldNames;
use pensieve_protocol::{
    job::{Failure, FailureCode},
    rows::RowsUse,
};

/// Bytes of a text that are read for each token that the model takes: usually more than enough, and those after which the rest
/// of a text that may be cut does not count.
const TOKEN_BYTES: [usize; 2] = [8, 64];
/// The most that is read of a text that may be cut, unless the first part of it is larger: tokenizers take some 100 times the
/// memory.
const PART_BYTES_MAX: usize = 2 << 20;
/// Bytes that are read beyond what tokens are expected to have.
const SLACK_BYTES: usize = 1 << 10;

/// The longest text.
pub(super) struct Limit<'a> {
    pub model: &'a str,
    pub most: usize,
    pub truncate: bool,
    pub fields: &'a FieldNames,
}

impl Limit<'_> {
    /// Bytes of a text's beginning that are read at first, and if these are too few tokens.
    pub fn parts_bytes(&self) -> [usize; 2] {
        let [first, second] = TOKEN_BYTES.map(|bytes| self.most.saturating_mul(bytes).saturating_add(SLACK_BYTES));
        [first, second.min(first.max(PART_BYTES_MAX))]
    }

    pub fn exceeded(&self, index: usize, count: &str) -> Failure {
        let message = format!("has {count} tokens, '{}' reads at most {}", self.model, self.most);
        Failure::new(FailureCode::TooLong, message)
            .at(self.fields.texts.path(index))
            .with_help("split it, or ask for truncation where the API has it")
    }

    pub fn without_room(&self, index: usize, beside: usize, is_pair: bool) -> Failure {
        self.no_room(index, &format!("{beside} tokens"), is_pair)
    }

    pub fn no_room(&self, index: usize, beside: &str, is_pair: bool) -> Failure {
        let message = format!(
            "has no room: what stands around it takes {beside}, '{}' reads at most {} tokens in all",
            self.model, self.most
        );
        let help = match is_pair {
            true => format!("shorten {} or the instruction, or allow for more tokens", self.fields.queries.path(index)),
            false => "allow for more tokens".to_owned(),
        };
        Failure::new(FailureCode::TooLong, message).at(self.fields.texts.path(index)).with_help(help)
    }

    pub fn exceeds(&self, rows: &RowsUse, text: &[u32]) -> bool {
        rows.open.len() + text.len() + rows.close.len() > self.most
    }

    /// Puts tokens before and after a text, whose end is cut if it is too long.
    pub fn around(
        &self,
        before: &[u32],
        mut text: Vec<u32>,
        after: &[u32],
        index: usize,
        is_pair: bool,
    ) -> Result<Vec<u32>, Failure> {
        let count = before.len() + text.len() + after.len();
        if count > self.most {
            if !self.truncate {
                return Err(self.exceeded(index, &count.to_string()));
            }
            let beside = before.len() + after.len();
            let room = self.most.checked_sub(beside).filter(|room| *room > 0);
            text.truncate(room.ok_or_else(|| self.without_room(index, beside, is_pair))?);
        }
        Ok([before, &text, after].concat())
    }

    /// Cuts the document in a filled template of which `lead` tokens come before it. What the template has after it is
    /// in `after`: scores are read from there.
    pub fn around_cut(
        &self,
        before: &[u32],
        filled: Vec<u32>,
        after: &[u32],
        lead: usize,
        index: usize,
    ) -> Result<Vec<u32>, Failure> {
        let beside = before.len() + lead + after.len();
        if beside >= self.most {
            return Err(self.without_room(index, beside, true));
        }
        self.around(before, filled, after, index, true)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::requests::rows_request::TextField;

    #[test]
    fn only_the_text_is_cut_and_only_if_asked() {
        let fields = FieldNames { texts: TextField::List("input".into()), ..FieldNames::default() };
        let limit = |most, truncate| Limit { model: "m", most, truncate, fields: &fields };
        let text = || vec![5, 6, 7, 8];
        assert_eq!(limit(6, false).around(&[1], text(), &[2], 0, false).unwrap(), [1, 5, 6, 7, 8, 2]);
        assert_eq!(limit(4, true).around(&[1], text(), &[2], 0, false).unwrap(), [1, 5, 6, 2]);
        let failure = limit(4, false).around(&[1], text(), &[2], 3, false).unwrap_err();
        assert_eq!((&failure.field[..], &failure.message[..]), ("input.3", "has 6 tokens, 'm' reads at most 4"));
        let failure = limit(2, true).around(&[1], text(), &[2], 0, false).unwrap_err();
        assert_eq!((failure.code, &failure.help[..]), (FailureCode::TooLong, "allow for more tokens"));
    }

    #[test]
    fn a_template_keeps_what_it_has_after_a_cut_document() {
        let fields = FieldNames { queries: TextField::List("text_1".into()), ..FieldNames::default() };
        let limit = |most| Limit { model: "m", most, truncate: true, fields: &fields };
        // A query of two tokens, a document of four, and what the model answers to.
        let filled = || vec![1, 2, 5, 6, 7, 8, 3, 4];
        assert_eq!(limit(7).around_cut(&[], filled(), &[3, 4], 2, 0).unwrap(), [1, 2, 5, 6, 7, 3, 4]);
        assert_eq!(limit(6).around_cut(&[9], filled(), &[3, 4], 2, 0).unwrap(), [9, 1, 2, 5, 3, 4]);
        let failure = limit(4).around_cut(&[], filled(), &[3, 4], 2, 7).unwrap_err();
        assert_eq!(failure.code, FailureCode::TooLong);
        assert!(failure.message.starts_with("has no room"), "{}", failure.message);
        assert!(failure.help.starts_with("shorten text_1.7 or the instruction"), "{}", failure.help);
    }

    #[test]
    fn the_parts_of_a_text_grow_with_its_tokens_up_to_a_limit() {
        let fields = FieldNames::default();
        let parts = |most| Limit { model: "m", most, truncate: true, fields: &fields }.parts_bytes();
        assert_eq!(parts(1), [8 + SLACK_BYTES, 64 + SLACK_BYTES]);
        assert_eq!(parts(8192), [(64 << 10) + SLACK_BYTES, (512 << 10) + SLACK_BYTES]);
        assert_eq!(parts(1 << 17), [(1 << 20) + SLACK_BYTES, PART_BYTES_MAX]);
        assert_eq!(parts(1 << 20), [(8 << 20) + SLACK_BYTES; 2]);
    }
}
