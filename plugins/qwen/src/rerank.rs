//! Qwen3-Reranker (arXiv 2506.05176): the model is asked whether a document answers a query, and the score is the
//! difference of the logits of "yes" and "no" in place of an answer. Versions for classification have both in one row.
//! Classifiers of other makers have a row for each of their labels.

use pensieve_sdk::{
    Error, Result,
    nn::{Linear, Loader, Sizes, Step, Tensor},
    weights::{Checkpoint, Format, Pooling, RowsKind, RowsUse, Tokenizer, labels},
};
use std::path::Path;

/// The question that the model was trained with.
const PAIR: &str = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the \
    Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: \
    {instruction}\n<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

const INSTRUCTION: &str = "Given a web search query, retrieve relevant passages that answer the query";

const LABELS_MAX: usize = 4096;
/// llama.cpp's number for pooling that ranks.
const RANK: u32 = 4;

/// Where the scores come from.
#[derive(Clone, Copy, Debug)]
pub enum Scoring {
    /// The ids of "yes" and "no", whose rows of the output layer are read.
    Words([u32; 2]),
    /// `score`, with one row.
    Row,
    /// `score`, with these rows for "yes" and "no".
    Answers([usize; 2]),
    /// `score`, with a row for each label of a classifier.
    Labels(usize),
}

impl Scoring {
    /// The number of scores.
    pub fn width(self) -> usize {
        if let Self::Labels(count) = self { count } else { 1 }
    }
}

/// Returns the scoring of a reranker or a classifier; `None` for every other checkpoint.
pub fn scoring(checkpoint: &Checkpoint) -> Result<Option<Scoring>> {
    let is_ranker = match checkpoint.metadata() {
        Some(metadata) => metadata.u32(&format!("{}.pooling_type", checkpoint.architecture()))? == Some(RANK),
        None => is_named(checkpoint.config().find_str("_name_or_path")?.unwrap_or_default(), checkpoint.path()),
    };
    if let Some(rows) = checkpoint.weights().find("score.weight").and_then(|weight| weight.shape.first().copied()) {
        if !(1..=LABELS_MAX).contains(&rows) {
            return Err(Error::unsupported(format!("'score.weight' has {rows} rows, and may have {LABELS_MAX}")));
        }
        let named = labels(checkpoint, rows)?;
        return Ok(Some(by_rows(rows, &named, is_ranker)));
    }
    if !is_ranker || checkpoint.format() == Format::Gguf {
        return Ok(None);
    }
    let tokenizer = checkpoint.tokenizer()?;
    let id = |word: &str| {
        tokenizer.id(word)?.ok_or_else(|| Error::corrupt(format!("the tokenizer of a reranker has no token '{word}'")))
    };
    Ok(Some(Scoring::Words([id("yes")?, id("no")?])))
}

/// Whether a checkpoint is called after the family: in its configuration, by its folder, or by the repository in the hub's
/// cache, where the folder has the name of a commit.
fn is_named(name: &str, path: &Path) -> bool {
    let last = |path: &Path| path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
    let repository = path.ancestors().nth(2).map(last).filter(|name| name.starts_with("models--"));
    [last(Path::new(name)), last(path), repository.unwrap_or_default()]
        .iter()
        .any(|name| name.contains("qwen3-reranker"))
}

/// Two rows are those of "yes" and "no" if their labels say so, or if nothing else is said of a reranker.
fn by_rows(rows: usize, labels: &[String], is_ranker: bool) -> Scoring {
    let of = |answer: &str| labels.iter().position(|label| label.eq_ignore_ascii_case(answer));
    match (rows, of("yes"), of("no")) {
        (1, ..) => Scoring::Row,
        (2, Some(yes), Some(no)) => Scoring::Answers([yes, no]),
        (2, None, None) if is_ranker && labels.iter().all(|label| label.starts_with("LABEL_")) => {
            Scoring::Answers([0, 1])
        }
        _ => Scoring::Labels(rows),
    }
}

/// Describes a reranker or a classifier.
pub fn rows(checkpoint: &Checkpoint, tokenizer: &Tokenizer, scoring: Scoring) -> Result<RowsUse> {
    let read = RowsUse::read(checkpoint, tokenizer)?;
    let rows = RowsUse { made_for: true, pooling: Pooling::Last, normalize: false, ..read };
    if let Scoring::Labels(count) = scoring {
        let labels = labels(checkpoint, count)?;
        return Ok(RowsUse { kind: RowsKind::Classify, finish: Some(count), labels, ..rows });
    }
    Ok(RowsUse {
        kind: RowsKind::Rank,
        finish: Some(1),
        labels: Vec::new(),
        open: Vec::new(),
        between: Vec::new(),
        close: Vec::new(),
        pair_template: Some(PAIR.to_owned()),
        instruction: Some(INSTRUCTION.to_owned()),
        ..rows
    })
}

/// The rows that scores are made of: those of "yes" and "no", or of the scores themselves.
pub struct Score {
    yes: Linear,
    no: Option<Linear>,
    width: usize,
}

impl Score {
    pub fn load(loader: &Loader<'_>, sizes: &Sizes, scoring: Scoring) -> Result<Self> {
        let Sizes { hidden_size, vocab_size, tie_word_embeddings, .. } = *sizes;
        let width = scoring.width();
        let (weight, [yes, no]) = match scoring {
            Scoring::Row | Scoring::Labels(_) => {
                return Ok(Self { yes: loader.linear("score", hidden_size, width)?, no: None, width });
            }
            Scoring::Answers([yes, no]) => (loader.raw("score.weight", &[2, hidden_size])?, [yes as u32, no as u32]),
            Scoring::Words(ids) => {
                let is_tied = tie_word_embeddings && !loader.has("lm_head.weight");
                let table = if is_tied { loader.text_model().at("embed_tokens") } else { loader.at("lm_head") };
                (table.raw("weight", &[vocab_size, hidden_size])?, ids)
            }
        };
        let row = |name: &str, id: u32| loader.linear_of(name, &weight.rows(id as usize..id as usize + 1)?);
        Ok(Self { yes: row("score.yes", yes)?, no: Some(row("score.no", no)?), width })
    }

    /// The number of scores.
    pub fn width(&self) -> usize {
        self.width
    }

    pub fn forward(&self, rows: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let yes = self.yes.forward(rows, step)?;
        match &self.no {
            Some(no) => Ok((yes - no.forward(rows, step)?)?),
            None => Ok(yes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_rows_are_answers_only_if_something_says_so() {
        let scoring = |labels: &[&str], is_named| {
            let labels: Vec<String> = labels.iter().map(|label| (*label).to_owned()).collect();
            by_rows(labels.len(), &labels, is_named)
        };
        assert!(matches!(scoring(&["LABEL_0"], false), Scoring::Row));
        assert!(matches!(scoring(&["yes", "no"], false), Scoring::Answers([0, 1])));
        assert!(matches!(scoring(&["No", "Yes"], false), Scoring::Answers([1, 0])));
        assert!(matches!(scoring(&["LABEL_0", "LABEL_1"], true), Scoring::Answers([0, 1])));
        assert!(matches!(scoring(&["LABEL_0", "LABEL_1"], false), Scoring::Labels(2)));
        assert!(matches!(scoring(&["good", "bad"], true), Scoring::Labels(2)));
        assert!(matches!(scoring(&["a", "b", "c"], true), Scoring::Labels(3)));
    }

    #[test]
    fn a_reranker_is_known_by_its_own_name_only() {
        let named = |name: &str, path: &str| is_named(name, Path::new(path));
        assert!(named("", "/models/Qwen3-Reranker-0.6B") && named("Qwen/Qwen3-Reranker-4B", "/models/x"));
        assert!(named("", "/cache/models--Qwen--Qwen3-Reranker-0.6B/snapshots/0123abcd"));
        for path in ["/qwen3-reranker/Qwen3-0.6B", "/Qwen3-Reranker-runs/out/Qwen3-8B", "/models/Qwen3-0.6B"] {
            assert!(!named("", path), "{path}");
        }
        assert!(!named("/data/qwen3-reranker/base", "/models/x"));
    }
}
