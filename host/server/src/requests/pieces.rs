//! The tokens of texts that rows are made of: prompt processes tokenize them in groups, and the tokens that the model was
//! trained with are put around them.

use std::sync::Arc;

use super::Chats;
use crate::{chat::Client, fleet::Target, rendering::Renderer};
use pensieve_protocol::{
    job::{Failure, FailureCode},
    prompt::Piece,
    rows::RowsUse,
};

/// Size of a group, which has at least one text.
const GROUP_BYTES: usize = 256 << 10;
/// Stand for the texts in a template.
const QUERY: &str = "{query}";
const DOCUMENT: &str = "{document}";
pub(super) const INSTRUCTION: &str = "{instruction}";

/// Texts to make rows of.
#[derive(Clone, Debug, Default)]
pub(crate) struct RowsRequest {
    /// The model name from the client, optionally `MODEL:ADAPTER`.
    pub(crate) model: String,
    pub(crate) client: Client,
    pub(crate) texts: Vec<RowText>,
    /// The text to put before texts.
    pub(crate) prompt: PromptChoice,
    /// The instruction for pairs, for a model that takes one.
    pub(crate) instruction: Option<String>,
    /// Width of the rows; `None` for the model's own.
    pub(crate) dimensions: Option<u32>,
    /// Cuts texts that are too long instead of refusing them.
    pub(crate) truncate: bool,
    /// The longest text that the client wants, in tokens; `None` for the model's own limit.
    pub(crate) tokens_max: Option<u32>,
}

/// One text, or a pair of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RowText {
    Text(String),
    /// Token ids, to which nothing is added.
    Tokens(Vec<u32>),
    Pair {
        query: String,
        document: String,
    },
}

/// The choice of a text's prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum PromptChoice {
    /// The model's usual one, if it has one.
    #[default]
    Usual,
    /// One of the model's, which must exist.
    Named(String),
    /// The first of these that the model has, or none.
    Suggested(&'static [&'static str]),
}

/// Tokenizes a request's texts. The error for a text that is too long names it.
pub(super) async fn tokens(
    chats: &Chats,
    target: &Target,
    rows: &RowsUse,
    request: &RowsRequest,
) -> Result<Vec<Vec<u32>>, Failure> {
    let convention = chats.conventions.of(target).await?;
    let most = [rows.maximum, request.tokens_max].into_iter().flatten().fold(target.context, u32::min) as usize;
    let limit = Limit { model: &target.id, most, truncate: request.truncate };
    let prompt = prompt(target, rows, &request.prompt)?;
    let mut pieces = Vec::new();
    for (index, text) in request.texts.iter().enumerate() {
        let made = pieces_of(rows, prompt, request.instruction.as_deref(), text);
        let bytes: usize = made.iter().map(|piece| piece.text.len()).sum();
        let least = convention.vocabulary.tokens_min(bytes);
        if least > most && !request.truncate {
            return Err(limit.exceeded(index, &format!("at least {least}")));
        }
        pieces.extend(made);
    }
    let renderer = &convention.renderer;
    let mut known = tokenized(renderer, &request.client, pieces).await?.into_iter();
    let mut next = || known.next().ok_or_else(not_tokenized);
    let (mut texts, mut cut, mut around) = (Vec::with_capacity(request.texts.len()), Vec::new(), Vec::new());
    for (index, text) in request.texts.iter().enumerate() {
        let tokens = match (text, &rows.pair_template) {
            (RowText::Tokens(tokens), _) => given(target, index, tokens, &limit)?,
            (RowText::Pair { .. }, None) => {
                let (query, document) = (next()?, next()?);
                let before = [&rows.open[..], &query, &rows.between].concat();
                limit.around(&before, document, &rows.close, index)?
            }
            (RowText::Pair { query, .. }, Some(template)) => {
                let filled = next()?;
                if request.truncate && limit.exceeds(rows, &filled) {
                    let instruction = request.instruction.as_ref().or(rows.instruction.as_ref());
                    around.extend(sides(instruction.map_or("", String::as_str), template, query));
                    cut.push(index);
                    filled
                } else {
                    limit.around(&rows.open, filled, &rows.close, index)?
                }
            }
            (RowText::Text(_), _) => limit.around(&rows.open, next()?, &rows.close, index)?,
        };
        if tokens.is_empty() {
            let message = format!("text {index} is empty, and the model puts nothing around it");
            return Err(Failure::new(FailureCode::Invalid, message).at("input"));
        }
        texts.push(tokens);
    }
    let mut sides = tokenized(renderer, &request.client, around).await?.into_iter();
    for index in cut {
        let [lead, tail] = [sides.next(), sides.next()].map(|side| side.ok_or_else(not_tokenized));
        let filled = std::mem::take(&mut texts[index]);
        let after = [&tail?[..], &rows.close].concat();
        texts[index] = limit.around_cut(&rows.open, filled, &after, lead?.len(), index)?;
    }
    Ok(texts)
}

/// Tokenizes texts in groups, in order.
async fn tokenized(renderer: &Arc<Renderer>, client: &Client, pieces: Vec<Piece>) -> Result<Vec<Vec<u32>>, Failure> {
    let mut known = Vec::with_capacity(pieces.len());
    let (mut group, mut bytes) = (Vec::new(), 0);
    for piece in pieces {
        bytes += piece.text.len();
        group.push(piece);
        if bytes >= GROUP_BYTES {
            known.extend(renderer.texts(std::mem::take(&mut group), client.salt.clone()).await?);
            bytes = 0;
        }
    }
    if !group.is_empty() {
        known.extend(renderer.texts(group, client.salt.clone()).await?);
    }
    Ok(known)
}

fn not_tokenized() -> Failure {
    Failure::new(FailureCode::Internal, "a text was not tokenized")
}

/// The longest text.
struct Limit<'a> {
    model: &'a str,
    most: usize,
    truncate: bool,
}

impl Limit<'_> {
    fn exceeded(&self, index: usize, count: &str) -> Failure {
        let message = format!("text {index} has {count} tokens, '{}' reads at most {}", self.model, self.most);
        Failure::new(FailureCode::TooLong, message)
            .at("input")
            .with_help("split it, or ask for truncation where the API has it")
    }

    fn without_room(&self, index: usize, beside: usize) -> Failure {
        let message = format!(
            "text {index} has no room: what stands around it takes {beside} tokens, '{}' reads at most {} in all",
            self.model, self.most
        );
        Failure::new(FailureCode::TooLong, message).at("input").with_help("shorten the query, or allow for more tokens")
    }

    fn exceeds(&self, rows: &RowsUse, text: &[u32]) -> bool {
        rows.open.len() + text.len() + rows.close.len() > self.most
    }

    /// Puts tokens before and after a text, whose end is cut if it is too long.
    fn around(&self, before: &[u32], mut text: Vec<u32>, after: &[u32], index: usize) -> Result<Vec<u32>, Failure> {
        let count = before.len() + text.len() + after.len();
        if count > self.most {
            if !self.truncate {
                return Err(self.exceeded(index, &count.to_string()));
            }
            let beside = before.len() + after.len();
            let room = self.most.checked_sub(beside).filter(|room| *room > 0);
            text.truncate(room.ok_or_else(|| self.without_room(index, beside))?);
        }
        Ok([before, &text, after].concat())
    }

    /// Cuts the document in a filled template of which `lead` tokens come before it. What the template has after it is
    /// in `after`: scores are read from there.
    fn around_cut(
        &self,
        before: &[u32],
        filled: Vec<u32>,
        after: &[u32],
        lead: usize,
        index: usize,
    ) -> Result<Vec<u32>, Failure> {
        let beside = before.len() + lead + after.len();
        if beside >= self.most {
            return Err(self.without_room(index, beside));
        }
        self.around(before, filled, after, index)
    }
}

/// A client's own tokens, checked.
fn given(target: &Target, index: usize, tokens: &[u32], limit: &Limit<'_>) -> Result<Vec<u32>, Failure> {
    let size = target.card.vocabulary;
    if let Some(token) = tokens.iter().find(|token| **token >= size) {
        let message = format!("token {token} of text {index} is outside the model's vocabulary of {size}");
        return Err(Failure::new(FailureCode::Invalid, message).at("input"));
    }
    limit.around(&[], tokens.to_vec(), &[], index)
}

/// The text that a request puts before its texts.
fn prompt<'a>(target: &Target, rows: &'a RowsUse, choice: &PromptChoice) -> Result<&'a str, Failure> {
    let of = |name: &str| rows.prompts.get(name).map(String::as_str);
    match choice {
        PromptChoice::Usual => Ok(rows.prompt.as_deref().and_then(of).unwrap_or_default()),
        PromptChoice::Suggested(names) => Ok(names.iter().find_map(|name| of(name)).unwrap_or_default()),
        PromptChoice::Named(name) => of(name).ok_or_else(|| {
            let known: Vec<&str> = rows.prompts.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let message = format!("'{}' has no prompt of that name (it has {known})", target.id);
            Failure::new(FailureCode::Invalid, message).at("prompt_name")
        }),
    }
}

/// The texts to tokenize for one row, in order.
fn pieces_of(rows: &RowsUse, prompt: &str, instruction: Option<&str>, text: &RowText) -> Vec<Piece> {
    let plain = |text: String| Piece { text, plain: Vec::new() };
    match (text, &rows.pair_template) {
        (RowText::Tokens(_), _) => Vec::new(),
        (RowText::Text(text), _) => vec![plain([prompt, text].concat())],
        (RowText::Pair { query, document }, None) => vec![plain(query.clone()), plain(document.clone())],
        (RowText::Pair { query, document }, Some(template)) => {
            let instruction = instruction.or(rows.instruction.as_deref()).unwrap_or_default();
            vec![filled(template, &[(INSTRUCTION, instruction), (QUERY, query), (DOCUMENT, document)])]
        }
    }
}

/// The two sides of a pair's template around its document.
fn sides(instruction: &str, template: &str, query: &str) -> Vec<Piece> {
    let (lead, tail) = template.split_once(DOCUMENT).unwrap_or((template, ""));
    [lead, tail].map(|side| filled(side, &[(INSTRUCTION, instruction), (QUERY, query)])).into()
}

/// Fills in a template, noting where the client's texts are.
fn filled(template: &str, texts: &[(&str, &str)]) -> Piece {
    let (mut text, mut plain, mut rest) = (String::new(), Vec::new(), template);
    let first = |rest: &str| {
        let places = texts.iter().filter_map(|(mark, value)| Some((rest.find(mark)?, *mark, *value)));
        places.min_by_key(|(place, ..)| *place).map(|(place, mark, value)| (place, mark.len(), value.to_owned()))
    };
    while let Some((place, mark, value)) = first(rest) {
        text.push_str(&rest[..place]);
        plain.push((text.len(), text.len() + value.len()));
        text.push_str(&value);
        rest = &rest[place + mark..];
    }
    text.push_str(rest);
    Piece { text, plain }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_filled_once_and_knows_what_a_client_wrote() {
        let texts = [(INSTRUCTION, "find"), (QUERY, "{document}"), (DOCUMENT, "é")];
        let piece = filled("<i>{instruction}\n<q>{query}<d>{document}!", &texts);
        assert_eq!(piece.text, "<i>find\n<q>{document}<d>é!");
        let parts: Vec<&str> = piece.plain.iter().map(|(start, end)| &piece.text[*start..*end]).collect();
        assert_eq!(parts, ["find", "{document}", "é"]);
    }

    #[test]
    fn only_the_text_is_cut_and_only_if_asked() {
        let limit = |most, truncate| Limit { model: "m", most, truncate };
        let text = || vec![5, 6, 7, 8];
        assert_eq!(limit(6, false).around(&[1], text(), &[2], 0).unwrap(), [1, 5, 6, 7, 8, 2]);
        assert_eq!(limit(4, true).around(&[1], text(), &[2], 0).unwrap(), [1, 5, 6, 2]);
        let failure = limit(4, false).around(&[1], text(), &[2], 3).unwrap_err();
        assert_eq!(failure.message, "text 3 has 6 tokens, 'm' reads at most 4");
        assert_eq!(limit(2, true).around(&[1], text(), &[2], 0).unwrap_err().code, FailureCode::TooLong);
    }

    #[test]
    fn a_template_keeps_what_it_has_after_a_cut_document() {
        let limit = |most| Limit { model: "m", most, truncate: true };
        // A query of two tokens, a document of four, and what the model answers to.
        let filled = || vec![1, 2, 5, 6, 7, 8, 3, 4];
        assert_eq!(limit(7).around_cut(&[], filled(), &[3, 4], 2, 0).unwrap(), [1, 2, 5, 6, 7, 3, 4]);
        assert_eq!(limit(6).around_cut(&[9], filled(), &[3, 4], 2, 0).unwrap(), [9, 1, 2, 5, 3, 4]);
        let failure = limit(4).around_cut(&[], filled(), &[3, 4], 2, 7).unwrap_err();
        assert_eq!(failure.code, FailureCode::TooLong);
        assert!(failure.message.starts_with("text 7 has no room"), "{}", failure.message);
    }

    #[test]
    fn the_sides_of_a_template_are_what_is_around_the_document() {
        let template = "<i>{instruction}<q>{query}<d>{document}<end>{query}";
        let made = sides("find", template, "{document}");
        let texts: Vec<&str> = made.iter().map(|side| &side.text[..]).collect();
        assert_eq!(texts, ["<i>find<q>{document}<d>", "<end>{document}"]);
    }
}
