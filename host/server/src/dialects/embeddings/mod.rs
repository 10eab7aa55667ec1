//! Vectors and scores instead of text: OpenAI's `/v1/embeddings`, the `/v1/rerank` of Cohere and Jina, `/v1/score` and
//! `/v1/classify` as in vLLM, Ollama's `/api/embed`, Google's `embedContent`. All of them read texts to a
//! [`RowsRequest`], and differ in the form of the answer.

#[cfg(test)]
mod fuzz_tests;
mod gemini;
mod ollama;
mod rerank;

pub(crate) use gemini::{batch_embed_contents, embed_content};
pub(crate) use ollama::{embed, embeddings as old_embeddings};
pub(crate) use rerank::{classify, rerank, score};

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Serialize;
use serde_json::Value;

use super::{ApiError, ApiRequest, ApiResponse, ErrorCode, fields::Field, usage::Meter, validation};
use crate::requests::{Chats, PromptChoice, RowText, Rows, RowsRequest, TextField};
use pensieve_protocol::rows::Kind;

const MODEL_BYTES_MAX: usize = 256;
/// Texts of a request, as at OpenAI.
const INPUTS_MAX: usize = 2048;
const TOKENS_MAX: usize = 1 << 20;
const DIMENSIONS_MAX: i64 = 65_536;
const NAME_BYTES_MAX: usize = 256;
/// Fields that have no use here. Every other field that nothing reads is named in a warning.
const IGNORED: [&str; 5] = ["metadata", "priority", "request_id", "service_tier", "user"];

#[derive(Serialize)]
struct EmbeddingList<'a> {
    object: &'static str,
    data: Vec<Embedding>,
    model: &'a str,
    usage: Usage,
}

#[derive(Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

/// A vector as numbers with as many digits as a single-precision number has, or as base64 of little-endian floats.
#[derive(Serialize)]
#[serde(untagged)]
enum Vector {
    Floats(Vec<f32>),
    Base64(String),
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: u64,
    total_tokens: u64,
}

impl Usage {
    fn of(tokens: u64) -> Self {
        Self { prompt_tokens: tokens, total_tokens: tokens }
    }
}

/// `POST /v1/embeddings`.
pub(crate) async fn embeddings(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    let read = call.read(|_, body| {
        let mut request = common(body, body.get("model").text(MODEL_BYTES_MAX)?)?;
        (request.texts, request.fields.texts) = inputs(&body.get("input"))?;
        request.dimensions = dimensions(&body.get("dimensions"))?;
        let format = body.get("encoding_format").optional(|format| format.choice(&["float", "base64"]))?;
        body.note_unknown(&IGNORED);
        Ok((request, format == Some(1)))
    });
    let ((request, in_base64), warnings) = read.await?;
    let named = request.model.clone();
    let rows = compute(&chats, &call, of_client(request, &call), Kind::Embed).await?;
    let vector = |row: Vec<f32>| match in_base64 {
        true => Vector::Base64(STANDARD.encode(row.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())),
        false => Vector::Floats(row),
    };
    let data = rows.rows.into_iter().enumerate();
    let data = data.map(|(index, row)| Embedding { object: "embedding", index, embedding: vector(row) }).collect();
    let list = EmbeddingList { object: "list", data, model: &named, usage: Usage::of(rows.tokens) };
    Ok(json(&list)?.with_warnings([warnings, rows.warnings].concat()))
}

/// The fields that most of these APIs share.
fn common(body: &Field<'_>, model: &str) -> Result<RowsRequest, ApiError> {
    let (truncate, tokens_max) = cut(&body.get("truncate_prompt_tokens"))?;
    Ok(RowsRequest { model: model.to_owned(), prompt: prompt(body)?, truncate, tokens_max, ..RowsRequest::default() })
}

/// vLLM's field: whether texts are cut, and to how many tokens.
fn cut(field: &Field<'_>) -> Result<(bool, Option<u32>), ApiError> {
    match field.optional(|count| count.integer(-1..=TOKENS_MAX as i64))? {
        None => Ok((false, None)),
        Some(-1) => Ok((true, None)),
        Some(0) => Err(field.invalid("should be a number of tokens, or -1 for as many as the model reads, not 0")),
        // The range makes the cast exact.
        Some(count) => Ok((true, Some(count as u32))),
    }
}

/// The prompt that a client chooses: by name, or by what its texts are for.
fn prompt(body: &Field<'_>) -> Result<PromptChoice, ApiError> {
    let word = |name: &str| body.get(name).optional(|word| word.text(NAME_BYTES_MAX));
    let (name, kind, task) = (word("prompt_name")?, word("input_type")?, word("task")?);
    let field = || body.get("prompt_name").path().to_owned();
    let named = name.map(|name| PromptChoice::Named { name: name.to_owned(), field: field() });
    Ok(named.or_else(|| kind.or(task).map(suggested)).unwrap_or_default())
}

/// The prompts that fit the words of Cohere, Voyage, Jina and Google for what a text is for.
fn suggested(word: &str) -> PromptChoice {
    const QUERY: &[&str] = &["query", "search_query", "retrieval.query"];
    const DOCUMENT: &[&str] = &["document", "passage", "search_document", "retrieval.passage"];
    const OTHERS: [(&str, &[&str]); 4] = [
        ("classif", &["classification", "Classification"]),
        ("cluster", &["clustering", "Clustering", "separation"]),
        ("similar", &["STS", "text-matching", "sts"]),
        ("text-matching", &["text-matching", "STS", "sts"]),
    ];
    let lower = word.to_ascii_lowercase();
    let has = |part: &str| lower.contains(part);
    if has("query") {
        PromptChoice::Suggested(QUERY)
    } else if has("document") || has("passage") {
        PromptChoice::Suggested(DOCUMENT)
    } else {
        OTHERS
            .iter()
            .find(|(part, _)| has(part))
            .map_or(PromptChoice::Usual, |(_, names)| PromptChoice::Suggested(names))
    }
}

/// A text, a list of token ids, or a list of either.
fn inputs(field: &Field<'_>) -> Result<(Vec<RowText>, TextField), ApiError> {
    let path = field.path().to_owned();
    if field.is_string() {
        return Ok((vec![RowText::Text(field.text(usize::MAX)?.to_owned())], TextField::Text(path)));
    }
    if field.json()?.get(0).is_some_and(Value::is_number) {
        return Ok((vec![tokens(field)?], TextField::Text(path)));
    }
    if !field.json()?.is_array() {
        return Err(field.invalid("should be a text, a list of texts, or token ids"));
    }
    let items = field.items(INPUTS_MAX)?;
    if items.len() == 0 {
        return Err(field.invalid("is empty"));
    }
    let text = |item: Field<'_>| match item.present().map(Field::json).transpose()? {
        None => Err(item.invalid("should be a text or token ids, not null")),
        Some(Value::String(text)) => Ok(RowText::Text(text.clone())),
        Some(Value::Array(_)) => tokens(&item),
        Some(_) => Err(item.should_be("a text or token ids")),
    };
    Ok((items.map(text).collect::<Result<_, _>>()?, TextField::List(path)))
}

fn tokens(field: &Field<'_>) -> Result<RowText, ApiError> {
    // The range makes the cast exact.
    let ids = field.items(TOKENS_MAX)?.map(|id| Ok(id.integer(0..=i64::from(u32::MAX))? as u32));
    Ok(RowText::Tokens(ids.collect::<Result<_, ApiError>>()?))
}

/// One text or several.
fn texts(field: &Field<'_>) -> Result<(Vec<String>, TextField), ApiError> {
    let path = field.path().to_owned();
    if field.is_string() {
        return Ok((vec![field.string()?.to_owned()], TextField::Text(path)));
    }
    let texts = field.items(INPUTS_MAX)?.map(|item| item.string().map(str::to_owned));
    Ok((texts.collect::<Result<_, _>>()?, TextField::List(path)))
}

fn dimensions(field: &Field<'_>) -> Result<Option<u32>, ApiError> {
    // The range makes the cast exact.
    Ok(field.optional(|count| count.integer(1..=DIMENSIONS_MAX))?.map(|count| count as u32))
}

/// The model that a client names, or an empty name for the only one that does what it asks.
fn optional_model<'a>(body: &Field<'a>) -> Result<&'a str, ApiError> {
    Ok(body.get("model").optional(|model| model.text(MODEL_BYTES_MAX))?.unwrap_or_default())
}

/// The name of the model that a client asks for; empty if it names none.
fn asked_model(call: &ApiRequest, name: &str) -> String {
    if name.is_empty() { String::new() } else { validation::asked_model(call, name) }
}

fn of_client(request: RowsRequest, call: &ApiRequest) -> RowsRequest {
    let model = asked_model(call, &request.model);
    RowsRequest { client: call.client(), model, ..request }
}

/// Computes rows as one of the requests that are listed.
async fn compute(chats: &Chats, call: &ApiRequest, request: RowsRequest, kind: Kind) -> Result<Rows, ApiError> {
    let model = request.model.clone();
    Meter::of_rows(call, &model, chats.rows(request, kind), |rows| (rows.model.as_str(), rows.tokens)).await
}

/// An answer with numbers as short as they can be.
fn json(answer: &impl Serialize) -> Result<ApiResponse, ApiError> {
    let text = serde_json::to_string(answer);
    let text = text.map_err(|_| ApiError::new(ErrorCode::Internal, "the answer cannot be written as JSON"))?;
    Ok(ApiResponse::text("application/json", text))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json as object;

    #[test]
    fn texts_are_cut_to_a_number_of_tokens_or_to_what_the_model_reads() {
        let cut_of = |value: Value| cut(&Field::root(&object!({ "n": value })).get("n"));
        assert_eq!(cut_of(Value::Null).unwrap(), (false, None));
        assert_eq!(cut_of(object!(-1)).unwrap(), (true, None));
        assert_eq!(cut_of(object!(7)).unwrap(), (true, Some(7)));
        for wrong in [object!(0), object!(-2), object!("7"), object!(true), object!(1.5), object!(u64::MAX)] {
            assert_eq!(cut_of(wrong.clone()).unwrap_err().field.as_deref(), Some("n"), "{wrong}");
        }
    }

    #[test]
    fn an_item_that_is_no_text_says_what_it_should_be() {
        for (items, path, why) in [
            (object!(["a", 1]), "input.1", "should be a text or token ids, not 1"),
            (object!([true]), "input.0", "should be a text or token ids, not true"),
            (object!(["a", null]), "input.1", "should be a text or token ids, not null"),
            (object!([[1], [true]]), "input.1.0", "should be an integer"),
        ] {
            let error = inputs(&Field::root(&object!({ "input": items })).get("input")).unwrap_err();
            assert_eq!(error.field.as_deref(), Some(path), "{items}: {error}");
            assert!(error.message.starts_with(&format!("{path}: {why}")), "{items}: {error}");
        }
    }
}
