//! Scores: `rerank` in the forms of Cohere, Jina, vLLM and text-embeddings-inference, `score` and `classify` in vLLM's.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json as object};

use super::{IGNORED, INPUTS_MAX, Usage, asked_model, common, cut, inputs, json, of_client, optional_model, texts};
use crate::{
    dialects::{ApiError, ApiRequest, ApiResponse, fields::Field, fresh_id, openai, usage::Meter},
    requests::{Chats, FieldNames, Ranking, Scores, TextField},
};
use pensieve_protocol::rows::Kind;

/// Each pair repeats the instruction.
const INSTRUCTION_BYTES_MAX: usize = 16 << 10;

#[derive(Serialize)]
struct Reranked<'a> {
    id: String,
    model: &'a str,
    results: Vec<Relevance>,
    usage: Usage,
    meta: Value,
}

#[derive(Serialize)]
struct Relevance {
    index: usize,
    relevance_score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<Value>,
}

/// A result in the form of text-embeddings-inference.
#[derive(Serialize)]
struct Scored {
    index: usize,
    score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

pub(super) struct Parsed {
    ranking: Ranking,
    /// Number of results, the best ones.
    top: usize,
    with_documents: bool,
    /// In the form of text-embeddings-inference, which has `texts`.
    is_bare: bool,
}

/// `POST /v1/rerank`, `/v2/rerank` and `/rerank`.
pub(crate) async fn rerank(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    let (parsed, warnings) = call.read(|_, body| read(body)).await?;
    let Parsed { ranking, top, with_documents, is_bare } = parsed;
    let named = ranking.model.clone();
    let documents = if with_documents { ranking.documents.clone() } else { Vec::new() };
    let scores = scored(ranking, &chats, &call).await?;
    let warnings = [warnings, scores.warnings].concat();
    let mut best: Vec<(usize, f32)> = scores.scores.into_iter().enumerate().collect();
    best.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    best.truncate(top);
    let text = |index: usize| documents.get(index).cloned();
    if is_bare {
        let results = best.into_iter().map(|(index, score)| Scored { index, score, text: text(index) });
        return Ok(json(&results.collect::<Vec<_>>())?.with_warnings(warnings));
    }
    let result = |(index, relevance_score)| Relevance {
        index,
        relevance_score,
        document: text(index).map(|text| object!({ "text": text })),
    };
    let answer = Reranked {
        id: fresh_id("rerank-"),
        model: if named.is_empty() { &scores.model } else { &named },
        results: best.into_iter().map(result).collect(),
        usage: Usage::of(scores.tokens),
        meta: object!({ "api_version": { "version": "2" }, "billed_units": { "search_units": 1 } }),
    };
    Ok(json(&answer)?.with_warnings(warnings))
}

pub(super) fn read(body: &Field<'_>) -> Result<Parsed, ApiError> {
    let is_bare = body.get("documents").is_absent() && !body.get("texts").is_absent();
    let field = body.get(if is_bare { "texts" } else { "documents" });
    let document = |item: Field<'_>| -> Result<String, ApiError> {
        Ok(if item.is_string() { item.string()? } else { item.get("text").string()? }.to_owned())
    };
    let documents = field.items(INPUTS_MAX)?.map(document).collect::<Result<Vec<_>, _>>()?;
    if documents.is_empty() {
        return Err(field.invalid("is empty"));
    }
    let fields = FieldNames { texts: TextField::List(field.path().to_owned()), ..FieldNames::default() };
    let queries = vec![body.get("query").text(usize::MAX)?.to_owned()];
    let top = body.get("top_n").optional(|count| count.count(1))?;
    let parsed = Parsed {
        top: top.map_or(documents.len(), |count| count as usize),
        with_documents: body.get(if is_bare { "return_text" } else { "return_documents" }).flag(false)?,
        is_bare,
        ranking: Ranking { documents, queries, fields, ..head(body)? },
    };
    body.note_unknown(&IGNORED);
    Ok(parsed)
}

/// `POST /v1/score` and `/score`: one text against several, or texts in pairs.
pub(crate) async fn score(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    #[derive(Serialize)]
    struct Score {
        index: usize,
        object: &'static str,
        score: f32,
    }
    #[derive(Serialize)]
    struct List<'a> {
        id: String,
        object: &'static str,
        created: u64,
        model: &'a str,
        data: Vec<Score>,
        usage: Usage,
    }
    let (ranking, warnings) = call.read(|_, body| pairs(body)).await?;
    let named = ranking.model.clone();
    let scores = scored(ranking, &chats, &call).await?;
    let data = scores.scores.into_iter().enumerate();
    let data = data.map(|(index, score)| Score { index, object: "score", score }).collect();
    let model = if named.is_empty() { &scores.model } else { &named };
    let (id, created, usage) = (fresh_id("score-"), openai::now(), Usage::of(scores.tokens));
    Ok(json(&List { id, object: "list", created, model, data, usage })?
        .with_warnings([warnings, scores.warnings].concat()))
}

pub(super) fn pairs(body: &Field<'_>) -> Result<Ranking, ApiError> {
    let ((queries, first), field) = (texts(&body.get("text_1"))?, body.get("text_2"));
    let (documents, second) = texts(&field)?;
    if queries.is_empty() || documents.is_empty() || queries.len() > 1 && queries.len() != documents.len() {
        let counts = (queries.len(), documents.len());
        return Err(field.invalid(format_args!("has {} texts, which do not pair with {}", counts.1, counts.0)));
    }
    let fields = FieldNames { texts: second, queries: first, ..FieldNames::default() };
    let ranking = Ranking { queries, documents, fields, ..head(body)? };
    body.note_unknown(&IGNORED);
    Ok(ranking)
}

/// `POST /v1/classify` and `/classify`.
pub(crate) async fn classify(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    #[derive(Serialize)]
    struct Class {
        index: usize,
        label: Option<String>,
        probs: Vec<f32>,
        num_classes: usize,
    }
    #[derive(Serialize)]
    struct List<'a> {
        id: String,
        object: &'static str,
        created: u64,
        model: &'a str,
        data: Vec<Class>,
        usage: Usage,
    }
    let read = call.read(|_, body| {
        let mut request = common(body, optional_model(body)?)?;
        (request.texts, request.fields.texts) = inputs(&body.get("input"))?;
        body.note_unknown(&IGNORED);
        Ok(request)
    });
    let (request, warnings) = read.await?;
    let named = request.model.clone();
    let rows = super::compute(&chats, &call, of_client(request, &call), Kind::Classify).await?;
    let labels = rows.rows_use.labels;
    let class = |(index, probs): (usize, Vec<f32>)| {
        let best = probs.iter().enumerate().max_by(|(_, one), (_, other)| one.total_cmp(other));
        let label = best.map(|(best, _)| labels.get(best).cloned().unwrap_or_else(|| format!("LABEL_{best}")));
        Class { index, label, num_classes: probs.len(), probs }
    };
    let data = rows.rows.into_iter().enumerate().map(class).collect();
    let (id, created, usage) = (fresh_id("classify-"), openai::now(), Usage::of(rows.tokens));
    let model = if named.is_empty() { &rows.model } else { &named };
    let answer = List { id, object: "list", created, model, data, usage };
    Ok(json(&answer)?.with_warnings([warnings, rows.warnings].concat()))
}

/// The fields that scores share. Some clients name no model.
fn head(body: &Field<'_>) -> Result<Ranking, ApiError> {
    let instruction = ["instruction", "instruct"].into_iter().find(|name| !body.get(name).is_absent());
    let instruction = instruction.map(|name| instruction_of(&body.get(name))).transpose()?;
    let (_, tokens_max) = cut(&body.get("truncate_prompt_tokens"))?;
    Ok(Ranking {
        model: optional_model(body)?.to_owned(),
        instruction: instruction.map(str::to_owned),
        // Cohere and Jina cut documents by themselves.
        truncate: body.get("truncate").flag(true)?,
        tokens_max,
        ..Ranking::default()
    })
}

fn instruction_of<'a>(field: &Field<'a>) -> Result<&'a str, ApiError> {
    let text = field.string()?;
    if text.len() > INSTRUCTION_BYTES_MAX {
        return Err(field.invalid(format_args!("has {} bytes, more than {INSTRUCTION_BYTES_MAX}", text.len())));
    }
    Ok(text)
}

async fn scored(ranking: Ranking, chats: &Chats, call: &ApiRequest) -> Result<Scores, ApiError> {
    let model = asked_model(call, &ranking.model);
    let ranking = Ranking { client: call.client(), model: model.clone(), ..ranking };
    Meter::of_rows(call, &model, chats.scores(ranking), |scores| (scores.model.as_str(), scores.tokens)).await
}
