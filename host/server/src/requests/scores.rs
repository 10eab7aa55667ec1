//! Scores of documents for a query: by a reranker, which reads each pair, or by an embedding model, which reads each text
//! once and compares vectors.

use std::sync::Arc;

use super::{Chats, FieldNames, PromptChoice, RowText, Rows, RowsRequest, TextField, rows_model::RowsModel};
use crate::chat::Client;
use pensieve_protocol::{job::Failure, rows::Kind};

/// Names under which checkpoints keep the prompts of the two sides.
const QUERY: &[&str] = &["query", "search_query", "retrieval.query"];
const DOCUMENT: &[&str] = &["document", "passage", "search_document", "retrieval.passage"];

/// Pairs to score.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranking {
    pub(crate) model: String,
    pub(crate) client: Client,
    pub(crate) instruction: Option<String>,
    pub(crate) truncate: bool,
    /// The longest pair or text that the client wants, in tokens.
    pub(crate) tokens_max: Option<u32>,
    /// One query, or one for each document.
    pub(crate) queries: Vec<String>,
    pub(crate) documents: Vec<String>,
    pub(crate) fields: FieldNames,
}

/// Scores in the order of the documents.
#[derive(Clone, Debug)]
pub(crate) struct Scores {
    pub(crate) model: String,
    pub(crate) scores: Vec<f32>,
    pub(crate) tokens: u64,
    /// Warnings for the client about the scores.
    pub(crate) warnings: Vec<String>,
}

impl Chats {
    /// Scores documents: by a reranker with its own activation, usually a sigmoid, and by an embedding model as cosines.
    pub(crate) async fn scores(&self, ranking: Ranking) -> Result<Scores, Failure> {
        let RowsModel { id: model, warning } = self.rows_model(&ranking.client, &ranking.model, Kind::Rank).await?;
        self.permit(&ranking.client, &model)?;
        let rows = self.rows_use(&model).await?;
        let ranking = Ranking { model, ..ranking };
        let mut scores = match rows.is_some_and(|rows| rows.kind == Kind::Embed && rows.made_for) {
            true => self.cosines(ranking).await,
            false => self.ranks(ranking).await,
        }?;
        scores.warnings.extend(warning);
        Ok(scores)
    }

    async fn ranks(&self, ranking: Ranking) -> Result<Scores, Failure> {
        let Ranking { model, client, instruction, truncate, tokens_max, queries, documents, fields } = ranking;
        let queries: Vec<Arc<str>> = queries.into_iter().map(Arc::from).collect();
        let pair = |(document, query): (String, &Arc<str>)| RowText::Pair { query: query.clone(), document };
        let texts = documents.into_iter().zip(queries.iter().cycle()).map(pair).collect();
        let prompt = PromptChoice::Usual;
        let request =
            RowsRequest { model, client, texts, prompt, instruction, dimensions: None, truncate, tokens_max, fields };
        let Rows { model, rows, tokens, warnings, .. } = self.rows(request, Kind::Rank).await?;
        let scores = rows.into_iter().filter_map(|row| row.first().copied()).collect();
        Ok(Scores { model, scores, tokens, warnings })
    }

    async fn cosines(&self, ranking: Ranking) -> Result<Scores, Failure> {
        let Ranking { model, client, instruction, truncate, tokens_max, queries, documents, fields } = ranking;
        let request = |texts: Vec<String>, names, texts_field: &TextField| RowsRequest {
            model: model.clone(),
            client: client.clone(),
            texts: texts.into_iter().map(RowText::Text).collect(),
            prompt: PromptChoice::Suggested(names),
            instruction: instruction.clone(),
            truncate,
            tokens_max,
            fields: FieldNames { texts: texts_field.clone(), ..FieldNames::default() },
            ..RowsRequest::default()
        };
        let (queries, documents) = tokio::try_join!(
            self.rows(request(queries, QUERY, &fields.queries), Kind::Embed),
            self.rows(request(documents, DOCUMENT, &fields.texts), Kind::Embed),
        )?;
        let pairs = documents.rows.iter().zip(queries.rows.iter().cycle());
        let scores = pairs.map(|(document, query)| cosine(query, document)).collect();
        let (model, tokens, warnings) = (documents.model, queries.tokens + documents.tokens, queries.warnings);
        Ok(Scores { model, scores, tokens, warnings })
    }
}

fn cosine(one: &[f32], other: &[f32]) -> f32 {
    let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let lengths = (product(one, one) * product(other, other)).sqrt();
    if lengths > 0.0 { (product(one, other) / lengths) as f32 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cosines_do_not_depend_on_lengths() {
        assert_eq!(cosine(&[3.0, 4.0], &[6.0, 8.0]), 1.0);
        assert_eq!(cosine(&[1.0, 0.0], &[0.0, 5.0]), 0.0);
        assert_eq!(cosine(&[2.0, 0.0], &[-1.0, 0.0]), -1.0);
        assert_eq!(cosine(&[0.0, 0.0], &[1.0, 0.0]), 0.0);
    }
}
