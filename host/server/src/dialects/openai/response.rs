//! The answer to one request with one or more generations, from `n` or several prompts.

use serde_json::{Value, json};

use super::{
    choice::ChoiceState,
    encoder::{ChoiceEncoder, ResponseHead, event},
    error::body,
    usage::UsageTotal,
};
use crate::{
    chat::Delta,
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
}

impl ResponseBuilder {
    pub(super) fn new(style: Style) -> Self {
        let choices = style.encoders.iter().map(|_| ChoiceState::default()).collect();
        Self { style, choices }
    }

    pub(super) async fn full(mut self, mut generations: Generations) -> Result<ApiResponse, ApiError> {
        while let Some((place, delta)) = generations.gather().await? {
            if let Some(piece) = self.choices[place].take(delta)? {
                self.style.encoders[place].keep(piece);
            }
        }
        let usage = self.total()?.json();
        let places = self.shown();
        let mut encoders: Vec<Option<Box<dyn ChoiceEncoder>>> = self.style.encoders.into_iter().map(Some).collect();
        let shown = places.iter().filter_map(|place| encoders[*place].take());
        let choices: Vec<_> = shown.enumerate().map(|(index, encoder)| encoder.whole(index)).collect();
        let mut body = self.style.head.body(&choices);
        body["usage"] = usage;
        Ok(ApiResponse::json(&body))
    }

    fn chunk(&self, choices: &[Value]) -> Value {
        let mut body = self.style.head.body(choices);
        if self.style.include_usage {
            body["usage"] = Value::Null;
        }
        body
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
        let Some(piece) = self.choices[choice].take(delta)? else { return Ok(Frame::default()) };
        let entries = self.style.encoders[choice].chunks(choice, piece);
        Ok(entries.into_iter().flat_map(|entry| event(&self.chunk(&[entry]))).collect::<Vec<u8>>().into())
    }

    fn keep_alive(&mut self) -> Frame {
        COMMENT.into()
    }

    fn end(&mut self) -> Result<Frame, ApiError> {
        let usage = self.total()?.json();
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
