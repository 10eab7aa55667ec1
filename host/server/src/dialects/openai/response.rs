//! The answer to one request with one or more generations, from `n` or several prompts.

use serde_json::{Map, Value, json};

use super::{
    choice::ChoiceState,
    encoder::{ChoiceEncoder, ResponseHead, event},
    error::body,
    usage::UsageTotal,
};
use crate::{
    chat::{Delta, Unknown, add_fields},
    dialects::{
        ApiError, ApiResponse, Frame,
        stream::{EventEncoder, Generations, ended_early},
    },
};

/// A comment in server-sent events, which readers skip. No empty line follows, as some readers would take it for the
/// end of an event without data.
const COMMENT: &[u8] = b": keep-alive\n";
const DONE: &[u8] = b"data: [DONE]\n\n";

pub(super) struct Style {
    pub(super) head: ResponseHead,
    /// One per generation.
    pub(super) encoders: Vec<Box<dyn ChoiceEncoder>>,
    /// Generations per prompt.
    pub(super) copies: usize,
    /// How many of them are returned: the most likely ones, if not all.
    pub(super) shown: usize,
    /// Prompt tokens by prompt.
    pub(super) input_tokens: Vec<u32>,
    pub(super) include_usage: bool,
}

pub(super) struct ResponseBuilder {
    style: Style,
    choices: Vec<ChoiceState>,
    /// Fields beside each choice, from an upstream of the same API, which have not been told yet.
    unknown: Vec<Unknown>,
    /// The same, about usage.
    usage: Map<String, Value>,
}

impl ResponseBuilder {
    pub(super) fn new(style: Style) -> Self {
        let choices = style.encoders.iter().map(|_| ChoiceState::default()).collect();
        let unknown = style.encoders.iter().map(|_| Unknown::default()).collect();
        Self { style, choices, unknown, usage: Map::new() }
    }

    pub(super) async fn full(mut self, mut generations: Generations) -> Result<ApiResponse, ApiError> {
        while let Some((place, delta)) = generations.gather().await? {
            let Some(delta) = self.keep_unknown(place, delta) else { continue };
            if let Some(piece) = self.choices[place].take(delta)? {
                self.style.encoders[place].keep(piece);
            }
        }
        let usage = self.usage()?;
        let places = self.shown();
        let mut encoders: Vec<Option<Box<dyn ChoiceEncoder>>> = self.style.encoders.into_iter().map(Some).collect();
        let (mut choices, mut answer) = (Vec::with_capacity(places.len()), Map::new());
        for place in places {
            let Some(encoder) = encoders[place].take() else { continue };
            let Unknown { answer: more, choice, message, .. } = std::mem::take(&mut self.unknown[place]);
            let mut entry = encoder.whole(choices.len());
            add_fields(choice, &mut entry);
            if let Some(own) = entry.get_mut("message") {
                add_fields(message, own);
            }
            choices.push(entry);
            answer.extend(more);
        }
        let mut body = self.style.head.body(&choices);
        body["usage"] = usage;
        add_fields(answer, &mut body);
        Ok(ApiResponse::json(&body))
    }

    fn chunk(&self, choices: &[Value]) -> Value {
        let mut body = self.style.head.body(choices);
        if self.style.include_usage {
            body["usage"] = Value::Null;
        }
        body
    }

    /// Keeps the fields beside a choice until its next piece; any other delta is returned.
    fn keep_unknown(&mut self, place: usize, delta: Delta) -> Option<Delta> {
        let Delta::Unknown(mut unknown) = delta else { return Some(delta) };
        let usage = std::mem::take(&mut unknown.usage);
        // With several answers it belongs to none of them.
        if self.choices.len() == 1 {
            self.usage.extend(usage);
        }
        self.unknown[place].add(*unknown);
        None
    }

    /// The numbers, and what an upstream counts besides.
    fn usage(&mut self) -> Result<Value, ApiError> {
        let mut usage = self.total()?.json();
        let mut more = std::mem::take(&mut self.usage);
        // Tokens of reasoning are not counted here.
        if let Some(details) = more.shift_remove("completion_tokens_details") {
            usage["completion_tokens_details"] = details;
        }
        add_fields(more, &mut usage);
        Ok(usage)
    }

    fn total(&self) -> Result<UsageTotal, ApiError> {
        let mut total = UsageTotal::new(&self.style.input_tokens);
        for (place, choice) in self.choices.iter().enumerate() {
            let usage = choice.usage().ok_or_else(ended_early)?;
            total.add(place / self.style.copies, usage, choice.has_thought());
            total.cached(choice.cache());
        }
        Ok(total)
    }

    /// Indices of the choices to return: each prompt's most likely ones in descending order, or all in their original
    /// order.
    fn shown(&self) -> Vec<usize> {
        let Style { copies, shown, .. } = self.style;
        let places: Vec<usize> = (0..self.choices.len()).collect();
        if shown == copies {
            return places;
        }
        let likelihood = |place: usize| self.choices[place].likelihood();
        let best = |places: &[usize]| {
            let mut places = places.to_vec();
            places.sort_by(|&a, &b| likelihood(b).total_cmp(&likelihood(a)));
            places.truncate(shown);
            places
        };
        places.chunks(copies).flat_map(best).collect()
    }
}

impl EventEncoder for ResponseBuilder {
    fn begin(&mut self) -> Frame {
        COMMENT.into()
    }

    fn delta(&mut self, choice: usize, delta: Delta) -> Result<Frame, ApiError> {
        let Some(delta) = self.keep_unknown(choice, delta) else { return Ok(Frame::default()) };
        let Some(piece) = self.choices[choice].take(delta)? else { return Ok(Frame::default()) };
        let mut entries = self.style.encoders[choice].chunks(choice, piece);
        let Unknown { answer, choice: fields, message, .. } = std::mem::take(&mut self.unknown[choice]);
        if let Some(last) = entries.last_mut() {
            add_fields(fields, last);
            if let Some(own) = last.get_mut("delta") {
                add_fields(message, own);
            }
        }
        let chunk = |entry| {
            let mut chunk = self.chunk(&[entry]);
            if !answer.is_empty() {
                add_fields(answer.clone(), &mut chunk);
            }
            event(&chunk)
        };
        Ok(entries.into_iter().flat_map(chunk).collect::<Vec<u8>>().into())
    }

    fn keep_alive(&mut self) -> Frame {
        COMMENT.into()
    }

    fn end(&mut self) -> Result<Frame, ApiError> {
        let usage = self.usage()?;
        let mut bytes = Vec::new();
        if self.style.include_usage {
            let mut body = self.style.head.body(&[]);
            body["usage"] = usage;
            bytes = event(&body);
        }
        bytes.extend(DONE);
        Ok(bytes.into())
    }

    fn error(&mut self, error: &ApiError) -> Frame {
        event(&json!({ "error": body(error) })).into()
    }
}

#[cfg(test)]
#[path = "response_tests.rs"]
mod tests;
