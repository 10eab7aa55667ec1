//! Qwen3-Reranker (arXiv 2506.05176): the model is asked whether a document answers a query, and the score is the
//! difference of the logits of "yes" and "no" in place of an answer. Versions for classification have both in one row.

use pensieve_sdk::{
    Error, Result,
    nn::{Linear, Loader, Sizes, Step, Tensor},
    weights::{Checkpoint, Format, Pooling, RowsKind, RowsUse, Tokenizer},
};

/// The question that the model was trained with.
const PAIR: &str = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the \
    Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: \
    {instruction}\n<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

const INSTRUCTION: &str = "Given a web search query, retrieve relevant passages that answer the query";

/// Where the score comes from.
#[derive(Clone, Copy, Debug)]
pub enum Scoring {
    /// The ids of "yes" and "no", whose rows of the output layer are read.
    Words([u32; 2]),
    /// `score`, with one row, or with those of "yes" and "no".
    Rows(usize),
}

/// Returns the scoring of a reranker; `None` for every other checkpoint.
pub fn scoring(checkpoint: &Checkpoint) -> Result<Option<Scoring>> {
    if let Some(rows) = checkpoint.weights().find("score.weight").and_then(|weight| weight.shape.first().copied()) {
        return match rows {
            1 | 2 => Ok(Some(Scoring::Rows(rows))),
            _ => Err(Error::declined(format!("a reranker with {rows} labels"))),
        };
    }
    let is_named = checkpoint.format() == Format::Safetensors && {
        let given = checkpoint.config().find_str("_name_or_path")?.unwrap_or_default().to_lowercase();
        let path = checkpoint.path().to_string_lossy().to_lowercase();
        [given, path].iter().any(|name| name.contains("qwen3-reranker"))
    };
    if !is_named {
        return Ok(None);
    }
    let tokenizer = checkpoint.tokenizer()?;
    let id = |word: &str| {
        tokenizer.id(word)?.ok_or_else(|| Error::corrupt(format!("the tokenizer of a reranker has no token '{word}'")))
    };
    Ok(Some(Scoring::Words([id("yes")?, id("no")?])))
}

/// Describes a reranker.
pub fn rows(checkpoint: &Checkpoint, tokenizer: &Tokenizer) -> Result<RowsUse> {
    Ok(RowsUse {
        kind: RowsKind::Rank,
        made_for: true,
        pooling: Pooling::Last,
        normalize: false,
        finish: Some(1),
        labels: Vec::new(),
        open: Vec::new(),
        between: Vec::new(),
        close: Vec::new(),
        pair_template: Some(PAIR.to_owned()),
        instruction: Some(INSTRUCTION.to_owned()),
        ..RowsUse::read(checkpoint, tokenizer)?
    })
}

/// The rows that a score is made of: of "yes" and "no", or one for both.
pub struct Score {
    yes: Linear,
    no: Option<Linear>,
}

impl Score {
    pub fn load(loader: &Loader<'_>, sizes: &Sizes, scoring: Scoring) -> Result<Self> {
        let Sizes { hidden_size, vocab_size, tie_word_embeddings, .. } = *sizes;
        let (weight, [yes, no]) = match scoring {
            Scoring::Rows(1) => {
                return Ok(Self { yes: loader.linear("score", hidden_size, 1)?, no: None });
            }
            Scoring::Rows(rows) => (loader.raw("score.weight", &[rows, hidden_size])?, [0, 1]),
            Scoring::Words(ids) => {
                let is_tied = tie_word_embeddings && !loader.has("lm_head.weight");
                let table = if is_tied { loader.text_model().at("embed_tokens") } else { loader.at("lm_head") };
                (table.raw("weight", &[vocab_size, hidden_size])?, ids)
            }
        };
        let row = |name: &str, id: u32| loader.linear_of(name, &weight.rows(id as usize..id as usize + 1)?);
        Ok(Self { yes: row("score.yes", yes)?, no: Some(row("score.no", no)?) })
    }

    pub fn forward(&self, rows: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let yes = self.yes.forward(rows, step)?;
        match &self.no {
            Some(no) => Ok((yes - no.forward(rows, step)?)?),
            None => Ok(yes),
        }
    }
}
