//! The tokens of texts that rows are made of: prompt processes tokenize them in groups, and the tokens that the model was
//! trained with are put around them.
//!
//! A long text takes a tokenizer much memory and time. Only as much of it is read as decides what a row is made of, or that
//! the text is too long.

use std::{collections::HashMap, sync::Arc};

use super::{
    Chats,
    pair_template::{check_pairs, filled, instruction, pair_bytes, sides},
    row_limit::Limit,
    rows_request::{PromptChoice, RowText, RowsRequest},
};
use crate::{fleet::Target, rendering::Renderer};
use pensieve_protocol::{
    job::{Failure, FailureCode},
    prompt::Piece,
    rows::RowsUse,
};

/// Bytes that are tokenized at a time, unless a single text has more.
const GROUP_BYTES_MAX: usize = 256 << 10;
/// Tokens that have to come of a part beyond those that are kept: the last ones may be others in the whole.
const SLACK_TOKENS: usize = 16;

/// Tokenizes a request's texts. The error for a text that is too long names it. If the future is dropped, no more than the
/// group at hand is still tokenized.
pub(super) async fn tokens(
    chats: &Chats,
    target: &Target,
    rows: &RowsUse,
    request: &RowsRequest,
) -> Result<Vec<Vec<u32>>, Failure> {
    check_pairs(rows, request)?;
    let convention = chats.conventions.of(target).await?;
    let most = [rows.maximum, request.tokens_max].into_iter().flatten().fold(target.context, u32::min) as usize;
    let limit = Limit { model: &target.id, most, truncate: request.truncate, fields: &request.fields };
    let prompt = prompt(target, rows, &request.prompt)?;
    let reader = Reader { renderer: &convention.renderer, target, rows, request, prompt, limit };
    for (index, text) in request.texts.iter().enumerate() {
        let least = convention.vocabulary.tokens_min(reader.bytes_of(text, usize::MAX));
        if least > most && !request.truncate {
            return Err(reader.limit.exceeded(index, &format!("at least {least}")));
        }
        reader.check_query(index, text)?;
    }
    let (mut texts, mut sides) = (Vec::with_capacity(request.texts.len()), HashMap::new());
    while texts.len() < request.texts.len() {
        texts.extend(reader.group(texts.len(), &mut sides).await?);
    }
    Ok(texts)
}

/// Reads the texts of one request.
struct Reader<'a> {
    renderer: &'a Arc<Renderer>,
    target: &'a Target,
    rows: &'a RowsUse,
    request: &'a RowsRequest,
    /// The text before each text.
    prompt: &'a str,
    limit: Limit<'a>,
}

/// The tokens around a query's documents; without a template, those of the query.
#[derive(Debug, Default)]
struct Sides {
    lead: Vec<u32>,
    tail: Vec<u32>,
}

impl Reader<'_> {
    /// The next texts, as many as fit into a group, with what belongs around them. `sides` has those of earlier queries.
    async fn group(&self, start: usize, sides: &mut HashMap<Arc<str>, Sides>) -> Result<Vec<Vec<u32>>, Failure> {
        let texts = &self.request.texts[start..];
        let mut bytes = 0;
        let fits = |text: &&RowText| {
            bytes += self.bytes_of(text, self.limit.parts_bytes()[0]);
            bytes <= GROUP_BYTES_MAX
        };
        let count = texts.iter().take_while(fits).count().max(1);
        let texts = &texts[..count];
        self.read_sides(start, texts, sides).await?;
        let tokens = self.read(start, texts).await?;
        let texts = texts.iter().zip(tokens).enumerate();
        texts.map(|(place, (text, tokens))| self.finished(start + place, text, tokens, sides)).collect()
    }

    /// Tokenizes what stands around documents, once for each query, and checks that it leaves room for them.
    async fn read_sides(
        &self,
        start: usize,
        texts: &[RowText],
        known: &mut HashMap<Arc<str>, Sides>,
    ) -> Result<(), Failure> {
        let template = self.rows.pair_template.as_deref();
        if template.is_some() && !self.request.truncate {
            // Nothing is cut, so that pairs are tokenized in one piece.
            return Ok(());
        }
        let (mut fresh, mut pieces) = (Vec::new(), Vec::new());
        for (place, text) in texts.iter().enumerate() {
            if let RowText::Pair { query, .. } = text
                && !known.contains_key(query)
            {
                known.insert(query.clone(), Sides::default());
                fresh.push((start + place, query));
                match template {
                    Some(template) => pieces.extend(sides(instruction(self.rows, self.request), template, query)),
                    None => pieces.push(Piece { text: query.to_string(), plain: Vec::new() }),
                }
            }
        }
        let mut tokens = self.tokenized(pieces).await?.into_iter();
        let mut next = || tokens.next().ok_or_else(not_tokenized);
        let RowsUse { open, between, close, .. } = self.rows;
        for (index, query) in fresh {
            let (sides, between) = match template {
                Some(_) => (Sides { lead: next()?, tail: next()? }, 0),
                None => (Sides { lead: next()?, tail: Vec::new() }, between.len()),
            };
            let beside = open.len() + sides.lead.len() + between + sides.tail.len() + close.len();
            if beside > self.limit.most {
                return Err(self.limit.without_room(index, beside, true));
            }
            known.insert(query.clone(), sides);
        }
        Ok(())
    }

    /// The tokens of texts by themselves, or of their beginnings if these are enough to cut them.
    async fn read(&self, start: usize, texts: &[RowText]) -> Result<Vec<Vec<u32>>, Failure> {
        let mut found = vec![Vec::new(); texts.len()];
        let mut open: Vec<usize> = (0..texts.len()).collect();
        let [first, second] = self.limit.parts_bytes();
        let last = if self.request.truncate { second } else { usize::MAX };
        for bytes_max in [first, second, usize::MAX] {
            let pieces = open.iter().map(|place| self.piece(&texts[*place], bytes_max)).collect();
            let mut longer = Vec::new();
            for (place, tokens) in open.iter().zip(self.tokenized(pieces).await?) {
                let is_whole = own_text(&texts[*place]).len() <= bytes_max;
                let is_enough = tokens.len() >= self.limit.most.saturating_add(SLACK_TOKENS);
                if !is_whole && is_enough && !self.request.truncate {
                    let count = format!("more than {}", self.limit.most);
                    return Err(self.limit.exceeded(start + place, &count));
                } else if is_whole || is_enough || bytes_max >= last {
                    found[*place] = tokens;
                } else {
                    longer.push(*place);
                }
            }
            open = longer;
            if open.is_empty() {
                break;
            }
        }
        Ok(found)
    }

    /// A text's tokens with those around them.
    fn finished(
        &self,
        index: usize,
        text: &RowText,
        tokens: Vec<u32>,
        known: &HashMap<Arc<str>, Sides>,
    ) -> Result<Vec<u32>, Failure> {
        let (limit, RowsUse { open, between, close, pair_template, .. }) = (&self.limit, self.rows);
        let sides = |query| known.get(query).ok_or_else(not_tokenized);
        let tokens = match (text, pair_template) {
            (RowText::Tokens(tokens), _) => given(self.target, index, tokens, limit)?,
            (RowText::Text(_), _) => limit.around(open, tokens, close, index, false)?,
            (RowText::Pair { query, .. }, None) => {
                let before = [&open[..], &sides(query)?.lead, between].concat();
                limit.around(&before, tokens, close, index, true)?
            }
            (RowText::Pair { query, .. }, Some(_)) if limit.truncate && limit.exceeds(self.rows, &tokens) => {
                let Sides { lead, tail } = sides(query)?;
                limit.around_cut(open, tokens, &[&tail[..], close].concat(), lead.len(), index)?
            }
            (RowText::Pair { .. }, Some(_)) => limit.around(open, tokens, close, index, true)?,
        };
        if tokens.is_empty() {
            let message = match text {
                RowText::Tokens(_) => "is an empty list of token ids",
                _ => "is empty, and the model puts nothing around it",
            };
            return Err(Failure::new(FailureCode::Invalid, message).at(self.request.fields.texts.path(index)));
        }
        Ok(tokens)
    }

    /// The piece of a text, of which no more than `bytes_max` are read.
    fn piece(&self, text: &RowText, bytes_max: usize) -> Piece {
        let own = own_text(text);
        let own = &own[..own.floor_char_boundary(bytes_max)];
        match (text, &self.rows.pair_template) {
            (RowText::Pair { query, .. }, Some(template)) => {
                let instruction = instruction(self.rows, self.request);
                filled(template, instruction, query, own)
            }
            (RowText::Text(_), _) => Piece { text: [self.prompt, own].concat(), plain: Vec::new() },
            _ => Piece { text: own.to_owned(), plain: Vec::new() },
        }
    }

    /// Bytes that are tokenized of a text of which no more than `bytes_max` are read, with what belongs to it.
    fn bytes_of(&self, text: &RowText, bytes_max: usize) -> usize {
        let own = own_text(text).len().min(bytes_max);
        match text {
            RowText::Pair { query, .. } => pair_bytes(self.rows, instruction(self.rows, self.request), query, own),
            RowText::Text(_) => self.prompt.len() + own,
            RowText::Tokens(_) => 0,
        }
    }

    /// Refuses a query that is too long by its bytes alone.
    fn check_query(&self, index: usize, text: &RowText) -> Result<(), Failure> {
        let (bytes, [_, most]) = (self.bytes_of(text, 0), self.limit.parts_bytes());
        if bytes <= most || !matches!(text, RowText::Pair { .. }) {
            return Ok(());
        }
        Err(self.limit.no_room(index, &format!("{bytes} bytes"), true))
    }

    /// Tokenizes pieces in groups, in order.
    async fn tokenized(&self, pieces: Vec<Piece>) -> Result<Vec<Vec<u32>>, Failure> {
        let mut known = Vec::with_capacity(pieces.len());
        for group in groups(pieces) {
            known.extend(self.renderer.texts(group, self.request.client.salt.clone()).await?);
        }
        Ok(known)
    }
}

/// Groups of pieces, none larger than [`GROUP_BYTES_MAX`] unless it has only one piece.
fn groups(pieces: Vec<Piece>) -> Vec<Vec<Piece>> {
    let (mut groups, mut bytes): (Vec<Vec<Piece>>, usize) = (Vec::new(), 0);
    for piece in pieces {
        bytes = bytes.saturating_add(piece.text.len());
        match groups.last_mut() {
            Some(group) if bytes <= GROUP_BYTES_MAX => group.push(piece),
            _ => {
                bytes = piece.text.len();
                groups.push(vec![piece]);
            }
        }
    }
    groups
}

/// The part of a text that may be cut.
fn own_text(text: &RowText) -> &str {
    match text {
        RowText::Text(text) | RowText::Pair { document: text, .. } => text,
        RowText::Tokens(_) => "",
    }
}

fn not_tokenized() -> Failure {
    Failure::new(FailureCode::Internal, "a text was not tokenized")
}

/// A client's own tokens, checked.
fn given(target: &Target, index: usize, tokens: &[u32], limit: &Limit<'_>) -> Result<Vec<u32>, Failure> {
    let size = target.card.vocabulary;
    if let Some(token) = tokens.iter().find(|token| **token >= size) {
        let message = format!("token {token} is outside the model's vocabulary of {size}");
        return Err(Failure::new(FailureCode::Invalid, message).at(limit.fields.texts.path(index)));
    }
    limit.around(&[], tokens.to_vec(), &[], index, false)
}

/// The text that a request puts before its texts.
fn prompt<'a>(target: &Target, rows: &'a RowsUse, choice: &PromptChoice) -> Result<&'a str, Failure> {
    let of = |name: &str| rows.prompts.get(name).map(String::as_str);
    match choice {
        PromptChoice::Usual => Ok(rows.prompt.as_deref().and_then(of).unwrap_or_default()),
        PromptChoice::Suggested(names) => Ok(names.iter().find_map(|name| of(name)).unwrap_or_default()),
        PromptChoice::Named { name, field } => of(name).ok_or_else(|| {
            let known: Vec<&str> = rows.prompts.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let message = format!("'{}' has no prompt of that name (it has {known})", target.id);
            Failure::new(FailureCode::Invalid, message).at(field)
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_tokenized_in_groups_of_bounded_size() {
        let piece = |bytes: usize| Piece { text: "x".repeat(bytes), plain: Vec::new() };
        let check = |pieces: &[usize], expect: &[usize]| {
            let groups = groups(pieces.iter().map(|bytes| piece(*bytes)).collect());
            assert_eq!(groups.iter().map(Vec::len).collect::<Vec<_>>(), expect, "{pieces:?}");
        };
        check(&[], &[]);
        check(&[0, 0, 5], &[3]);
        check(&[GROUP_BYTES_MAX, 1, 2, GROUP_BYTES_MAX - 3, 1], &[1, 3, 1]);
        check(&[1, 3 * GROUP_BYTES_MAX, 1], &[1, 1, 1]);
    }
}
