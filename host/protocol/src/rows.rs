//! The use of a model's hidden rows, as plain data: embeddings, scores of a query and a document, or classes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The use of a model's hidden rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowsUse {
    pub kind: Kind,
    /// The checkpoint was made for this; otherwise these are the rows of a model that writes text.
    pub made_for: bool,
    /// The model can write text.
    pub generates: bool,
    pub pooling: Pooling,
    /// Width of a row after what follows pooling in the model.
    pub finish: Option<u32>,
    pub normalize: bool,
    /// Width of a result.
    pub dimensions: u32,
    pub matryoshka: Matryoshka,
    pub activation: Activation,
    /// Tokens before a text, between the two of a pair, and after.
    pub open: Vec<u32>,
    pub between: Vec<u32>,
    pub close: Vec<u32>,
    /// A text is computed in one piece, and nothing of it is reused.
    pub whole: bool,
    /// Texts to put before a text, by name.
    pub prompts: BTreeMap<String, String>,
    /// The prompt of texts that name none.
    pub prompt: Option<String>,
    pub labels: Vec<String>,
    /// The text around `{instruction}`, `{query}` and `{document}`.
    pub pair_template: Option<String>,
    pub instruction: Option<String>,
    /// The longest text in tokens, `open` and `close` included; `None` for the context.
    pub maximum: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Embed,
    Rank,
    Classify,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    Last,
    First,
    Mean,
}

/// The function between a model's scores and a client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    None,
    Sigmoid,
    Softmax,
}

/// Smaller widths that the model was trained to give.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Matryoshka {
    Unknown,
    Any,
    Widths(Vec<u32>),
}

impl Kind {
    /// The word for it in lists of models.
    pub fn word(self) -> &'static str {
        match self {
            Self::Embed => "embedding",
            Self::Rank => "rerank",
            Self::Classify => "classify",
        }
    }

    /// The verb for sentences about a model, with its object.
    pub fn verb(self) -> &'static str {
        match self {
            Self::Embed => "embeds texts",
            Self::Rank => "ranks documents",
            Self::Classify => "classifies texts",
        }
    }

    /// The same verb for several models.
    pub fn plural_verb(self) -> &'static str {
        match self {
            Self::Embed => "embed texts",
            Self::Rank => "rank documents",
            Self::Classify => "classify texts",
        }
    }
}

impl Activation {
    /// Applies it to the scores of one text.
    pub fn apply(self, scores: &mut [f32]) {
        match self {
            Self::None => {}
            Self::Sigmoid => scores.iter_mut().for_each(|score| *score = 1.0 / (1.0 + (-*score).exp())),
            Self::Softmax => {
                let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                scores.iter_mut().for_each(|score| *score = (*score - top).exp());
                let sum: f32 = scores.iter().sum();
                scores.iter_mut().for_each(|score| *score /= sum);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_are_those_of_the_textbook() {
        let applied = |activation: Activation, mut scores: Vec<f32>| {
            activation.apply(&mut scores);
            scores
        };
        assert_eq!(applied(Activation::None, vec![-3.0, 2.0]), [-3.0, 2.0]);
        assert_eq!(applied(Activation::Sigmoid, vec![0.0, 100.0]), [0.5, 1.0]);
        assert_eq!(applied(Activation::Softmax, vec![1000.0, 1000.0]), [0.5, 0.5]);
        let thirds = applied(Activation::Softmax, vec![0.0, 2.0_f32.ln()]);
        assert!((thirds[0] - 1.0 / 3.0).abs() < 1e-6 && (thirds[1] - 2.0 / 3.0).abs() < 1e-6, "{thirds:?}");
    }
}
