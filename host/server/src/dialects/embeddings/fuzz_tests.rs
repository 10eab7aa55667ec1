//! Any body is accepted or refused, by the readers of all routes.

use super::{common, dimensions, gemini, inputs, ollama, optional_model, rerank};
use crate::dialects::{Dialect, fuzz};

#[test]
fn a_damaged_request_for_vectors_is_read_or_refused() {
    fuzz::documents("rows", Dialect::OpenAi, |document| {
        let body = document.root();
        inputs(&body.get("input"))?;
        dimensions(&body.get("dimensions"))?;
        common(&body, optional_model(&body)?).map(drop)
    });
}

#[test]
fn a_damaged_request_for_scores_is_read_or_refused() {
    fuzz::documents("rows", Dialect::OpenAi, |document| rerank::read(&document.root()).map(drop));
    fuzz::documents("rows", Dialect::OpenAi, |document| rerank::pairs(&document.root()).map(drop));
}

#[test]
fn a_damaged_request_of_ollamas_for_vectors_is_read_or_refused() {
    fuzz::documents("rows", Dialect::Ollama, |document| ollama::read(&document.root(), "input").map(drop));
}

#[test]
fn a_damaged_request_of_googles_for_vectors_is_read_or_refused() {
    fuzz::documents("rows", Dialect::Gemini, |document| gemini::read(&document.root()).map(drop));
    fuzz::documents("rows", Dialect::Gemini, |document| gemini::batch(&document.root()).map(drop));
}
