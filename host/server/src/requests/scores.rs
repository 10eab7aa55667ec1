//! Scores of documents for a query: by a reranker, which reads each pair, or by an embedding model, which reads each text
//! once and compares vectors.

use super::{Chats, PromptChoice, RowText, Rows, RowsRequest};
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
}

/// Scores in the order of the documents.
#[derive(Clone, Debug)]
pub(crate) struct Scores {
    pub(crate) model: String,
    pub(crate) scores: Vec<f32>,
    pub(crate) tokens: u64,
}

impl Chats {
    /// Scores documents: between 0 and 1 by a reranker, cosines by an embedding model.
    pub(crate) async fn scores(&self, ranking: Ranking) -> Result<Scores, Failure> {
        let rows = self.rows_use(&ranking.model).await?;
        if rows.is_some_and(|rows| rows.kind == Kind::Embed && rows.made_for) {
            return self.cosines(ranking).await;
        }
        let Ranking { model, client, instruction, truncate, tokens_max, queries, documents } = ranking;
        let queries = queries.iter().cycle();
        let pair = |(document, query): (String, &String)| RowText::Pair { query: query.clone(), document };
        let texts = documents.into_iter().zip(queries).map(pair).collect();
        let request = RowsRequest { model, client, texts, instruction, truncate, tokens_max, ..RowsRequest::default() };
        let Rows { model, rows, tokens, .. } = self.rows(request, Kind::Rank).await?;
        Ok(Scores { model, scores: rows.into_iter().filter_map(|row| row.first().copied()).collect(), tokens })
    }

    async fn cosines(&self, ranking: Ranking) -> Result<Scores, Failure> {
        let Ranking { model, client, truncate, tokens_max, queries, documents, .. } = ranking;
        let request = |texts: Vec<String>, names| RowsRequest {
            model: model.clone(),
            client: client.clone(),
            texts: texts.into_iter().map(RowText::Text).collect(),
            prompt: PromptChoice::Suggested(names),
            truncate,
            tokens_max,
            ..RowsRequest::default()
        };
        let (queries, documents) = tokio::try_join!(
            self.rows(request(queries, QUERY), Kind::Embed),
            self.rows(request(documents, DOCUMENT), Kind::Embed),
        )?;
        let pairs = documents.rows.iter().zip(queries.rows.iter().cycle());
        let scores = pairs.map(|(document, query)| cosine(query, document)).collect();
        Ok(Scores { model: documents.model, scores, tokens: queries.tokens + documents.tokens })
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
