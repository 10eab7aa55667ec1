//! A model's tokenizer: from the text of prompts to ids.
//!
//! The steps that the `tokenizers` crate takes in one call are separate here, for two things that it does not offer.
//! Where a client's text only looks like a special token, it is skipped in the search for added tokens (`added`). And
//! the text between two added tokens is tokenized independently of its surroundings, so that longer stretches can be
//! cached (`cache`): in a conversation all but the last turn has been tokenized before.
//!
//! A rendered conversation already has its special tokens in the text, so none are added. Plain text gets a BOS token
//! if the card says so.

mod added;
mod cache;
mod longest;

#[cfg(test)]
mod tests;

use std::ops::Range;

use tokenizers::{
    Model, NormalizedString, Normalizer, OffsetType, PreTokenizedString, PreTokenizer, Token, Tokenizer,
    tokenizer::normalizer,
};

use self::{added::Added, cache::Cache, longest::Longest};
use crate::rendered::Rendered;
use pensieve_protocol::{
    job::{Failure, FailureCode},
    prompt::{ItemSpan, Piece, PromptTokens, Tokenizer as Document},
};

/// Precedes a stretch that does not open the text, so that the tokenizer does not treat it as the beginning.
const LEAD: &str = "x";

/// A model's tokenizer.
pub(crate) struct Tokens {
    tokenizer: Tokenizer,
    /// Added tokens found in the raw text, and those found in normalized text.
    literal: Added,
    normalized: Added,
    specials: Specials,
    bos: Option<u32>,
    vocabulary: u32,
    cache: Cache,
    longest: Option<Longest>,
}

/// The texts of a tokenizer's special tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Specials {
    /// BOS; empty for none.
    pub bos: String,
    /// EOS; empty for none.
    pub eos: String,
    /// All added tokens: text, and whether the token is special.
    pub added: Vec<(String, bool)>,
}

impl Tokens {
    pub fn of(document: &Document) -> Result<Self, Failure> {
        let tokenizer = Tokenizer::from_bytes(document.json.as_bytes()).map_err(|error| unusable(&error))?;
        let all = tokenizer.get_added_tokens_decoder();
        let mut added: Vec<_> = all.values().map(|token| (token.content.clone(), token.special)).collect();
        added.sort();
        let text = |id: Option<u32>| id.and_then(|id| tokenizer.id_to_token(id)).unwrap_or_default();
        let specials = Specials { bos: text(document.bos), eos: text(document.eos.first().copied()), added };

        let (literal, normalized) = all.into_iter().partition::<Vec<_>, _>(|(_, token)| !token.normalized);
        let as_found = |(id, token): (u32, tokenizers::AddedToken)| {
            let mut text = NormalizedString::from(token.content.as_str());
            if let Some(normalizer) = tokenizer.get_normalizer() {
                normalizer.normalize(&mut text)?;
            }
            Ok::<_, tokenizers::Error>((id, token, text.get().to_owned()))
        };
        let normalized =
            normalized.into_iter().map(as_found).collect::<Result<_, _>>().map_err(|error| unusable(&error))?;
        let literal = literal.into_iter().map(|(id, token)| (id, token.clone(), token.content)).collect();
        Ok(Self {
            literal: Added::new(literal).map_err(|error| unusable(&error))?,
            normalized: Added::new(normalized).map_err(|error| unusable(&error))?,
            specials,
            bos: document.bos.filter(|_| document.add_bos),
            vocabulary: document.vocabulary,
            cache: Cache::default(),
            longest: Longest::of(&tokenizer),
            tokenizer,
        })
    }

    /// The special tokens, for templates.
    pub fn specials(&self) -> &Specials {
        &self.specials
    }

    /// Checks that a token can stand for the rows of items: it is searched in raw text, and joins with nothing beside it.
    pub fn check_slot(&self, slot: u32) -> Result<(), Failure> {
        if self.literal.has(slot) {
            return Ok(());
        }
        let message = format!("the description of images names token {slot}, which is no added token of the tokenizer");
        Err(Failure::new(FailureCode::Unsupported, message).with_help("report this to the plugin's author"))
    }

    /// Tokenizes a rendered conversation of the client with this salt. `slot` is the token that stands for an item's rows.
    pub fn encode(&self, rendered: &Rendered, slot: Option<u32>, salt: &[u8]) -> Result<PromptTokens, Failure> {
        let mut ids = Vec::new();
        let mut spans: Vec<Option<ItemSpan>> = vec![None; rendered.items.len()];
        let mut see = |id: u32, place: &Range<usize>, at: usize| {
            let next = rendered.items.partition_point(|item| item.range.end <= place.start);
            let Some(item) = rendered.items.get(next).filter(|item| overlap(&item.range, place)) else { return };
            let at = u32::try_from(at).unwrap_or(u32::MAX);
            let span = spans[next].get_or_insert(ItemSpan { item: item.item, start: at, len: 0, slots: 0 });
            span.len = at - span.start + 1;
            span.slots += u32::from(Some(id) == slot);
        };
        self.append(&rendered.text, &rendered.plain, salt, &mut ids, &mut see).map_err(|error| unusable(&error))?;
        let items = spans.into_iter().flatten().collect();
        Ok(PromptTokens { tokens: self.checked(ids)?, items })
    }

    /// Tokenizes plain text, with a BOS token in front if the model wants one.
    pub fn encode_text(&self, text: &str, salt: &[u8]) -> Result<Vec<u32>, Failure> {
        let mut ids = Vec::from_iter(self.bos);
        self.append(text, &[], salt, &mut ids, &mut |_, _, _| ()).map_err(|error| unusable(&error))?;
        // A client that writes BOS by hand wants it once.
        if let (Some(bos), [first, second, ..]) = (self.bos, ids.as_slice())
            && first == second
            && *first == bos
        {
            ids.remove(0);
        }
        self.checked(ids)
    }

    /// Tokenizes a text by itself, without BOS. Special tokens in what a client wrote are plain text.
    pub fn encode_piece(&self, piece: &Piece, salt: &[u8]) -> Result<Vec<u32>, Failure> {
        let (mut ids, plain) = (Vec::new(), self.plain(piece));
        self.append(&piece.text, &plain, salt, &mut ids, &mut |_, _, _| ()).map_err(|error| unusable(&error))?;
        self.checked(ids)
    }

    /// The ranges in which a client's part of a text looks like a special token; in order, disjoint.
    fn plain(&self, piece: &Piece) -> Vec<Range<usize>> {
        let special = self.specials.added.iter().filter(|(text, special)| *special && !text.is_empty());
        let within = |range: &Range<usize>| piece.plain.iter().any(|(start, end)| overlap(range, &(*start..*end)));
        let places = special.flat_map(|(text, _)| piece.text.match_indices(text));
        let mut found: Vec<_> = places.map(|(at, text)| at..at + text.len()).filter(within).collect();
        found.sort_by_key(|range| range.start);
        found.dedup_by(|later, earlier| {
            let joins = later.start < earlier.end;
            if joins {
                earlier.end = earlier.end.max(later.end);
            }
            joins
        });
        found
    }

    /// `see` is told each added token of the raw text, its place there, and its index among the ids.
    fn append(
        &self,
        text: &str,
        plain: &[Range<usize>],
        salt: &[u8],
        ids: &mut Vec<u32>,
        see: &mut impl FnMut(u32, &Range<usize>, usize),
    ) -> Result<(), tokenizers::Error> {
        let is_plain = |range: &Range<usize>| overlaps(plain, range);
        let mut done = 0;
        for (id, place) in self.literal.find(text, is_plain) {
            self.append_stretch(text, done..place.start, plain, salt, ids)?;
            see(id, &place, ids.len());
            ids.push(id);
            done = place.end;
        }
        self.append_stretch(text, done..text.len(), plain, salt, ids)
    }

    /// Tokenizes a stretch between added tokens.
    fn append_stretch(
        &self,
        text: &str,
        place: Range<usize>,
        plain: &[Range<usize>],
        salt: &[u8],
        ids: &mut Vec<u32>,
    ) -> Result<(), tokenizers::Error> {
        let stretch = &text[place.clone()];
        let opens_text = place.start == 0;
        if stretch.is_empty() {
            return Ok(());
        }
        if overlaps(plain, &place) {
            let within = |range: &Range<usize>| overlaps(plain, &(range.start + place.start..range.end + place.start));
            ids.extend(self.tokenize(stretch, opens_text, within)?);
            return Ok(());
        }
        if let Some(known) = self.cache.get(salt, stretch, opens_text) {
            ids.extend_from_slice(&known);
            return Ok(());
        }
        let made = self.tokenize(stretch, opens_text, |_| false)?;
        ids.extend_from_slice(&made);
        self.cache.put(salt, stretch, opens_text, made);
        Ok(())
    }

    fn tokenize(
        &self,
        stretch: &str,
        opens_text: bool,
        is_plain: impl Fn(&Range<usize>) -> bool,
    ) -> Result<Vec<u32>, tokenizers::Error> {
        let mut pieces = if opens_text {
            PreTokenizedString::from(stretch)
        } else {
            let mut pieces = PreTokenizedString::from(LEAD.to_owned() + stretch);
            pieces.split(|_, whole| {
                let part = |range| whole.slice(normalizer::Range::Original(range)).unwrap_or_default();
                let (lead, rest) = (part(0..LEAD.len()), part(LEAD.len()..LEAD.len() + stretch.len()));
                Ok([(lead, Some(Vec::new())), (rest, None)])
            })?;
            pieces
        };
        pieces.split(|_, mut piece| {
            if let Some(normalizer) = self.tokenizer.get_normalizer() {
                normalizer.normalize(&mut piece)?;
            }
            Ok(self.split(&piece, &is_plain))
        })?;
        if let Some(pre_tokenizer) = self.tokenizer.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces)?;
        }
        pieces.tokenize(|piece| match self.longest.as_ref().and_then(|longest| longest.tokenize(piece.get())) {
            Some(tokens) => Ok(tokens),
            None => self.tokenizer.get_model().tokenize(piece.get()),
        })?;
        Ok(pieces.into_encoding(None, 0, OffsetType::None)?.get_ids().to_vec())
    }

    /// Splits a normalized piece at the added tokens in it.
    fn split(
        &self,
        piece: &NormalizedString,
        is_plain: impl Fn(&Range<usize>) -> bool,
    ) -> Vec<(NormalizedString, Option<Vec<Token>>)> {
        let part = |range: Range<usize>| piece.slice(normalizer::Range::Normalized(range)).unwrap_or_default();
        let was_plain = |range: &Range<usize>| {
            let before = piece.convert_offsets(normalizer::Range::Normalized(range.clone()));
            before.is_some_and(|before| is_plain(&before))
        };
        let mut parts = Vec::new();
        let mut done = 0;
        for (id, place) in self.normalized.find(piece.get(), was_plain) {
            if done < place.start {
                parts.push((part(done..place.start), None));
            }
            done = place.end;
            let length = place.len();
            parts.push((part(place), Some(vec![Token::new(id, String::new(), (0, length))])));
        }
        if done < piece.get().len() {
            parts.push((part(done..piece.get().len()), None));
        }
        parts
    }

    /// Rejects ids beyond the model's vocabulary: a tokenizer may know tokens that the model has no embedding for.
    fn checked(&self, ids: Vec<u32>) -> Result<Vec<u32>, Failure> {
        match ids.iter().find(|id| **id >= self.vocabulary) {
            None => Ok(ids),
            Some(id) => {
                let text = self.tokenizer.id_to_token(*id).unwrap_or_default();
                let size = self.vocabulary;
                Err(Failure::new(
                    FailureCode::Unsupported,
                    format!("the prompt has the token '{text}' ({id}), which a model with {size} tokens does not know"),
                ))
            }
        }
    }
}

fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

fn overlaps(ranges: &[Range<usize>], range: &Range<usize>) -> bool {
    let next = ranges.partition_point(|other| other.end <= range.start);
    ranges.get(next).is_some_and(|other| other.start < range.end)
}

fn unusable(error: &dyn std::fmt::Display) -> Failure {
    Failure::new(FailureCode::Unsupported, format!("the model's tokenizer cannot be used: {error}"))
        .with_help("the checkpoint's tokenizer.json is damaged or of a kind that this host does not know")
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokens").field("vocabulary", &self.vocabulary).finish_non_exhaustive()
    }
}
