//! Heads that turn the pooled row of a text, or of a pair, into scores.

use pensieve_sdk::{
    Result,
    nn::{Activation, LayerNorm, Linear, Loader, Step, Tensor},
    weights::{self, Checkpoint, Pooling, RowsKind, RowsUse, Tokenizer},
};

/// A dense layer with an activation, and a linear layer with one output for each label.
pub struct Head {
    dense: Option<Linear>,
    activation: DenseActivation,
    norm: Option<LayerNorm>,
    out: Linear,
    labels: usize,
}

enum DenseActivation {
    Tanh,
    /// DistilBERT's.
    Relu,
    Other(Activation),
}

/// Names of the output layer: BERT's and ModernBERT's, and RoBERTa's.
const OUTPUTS: [&str; 2] = ["classifier.out_proj", "classifier"];
/// Names of the dense layer: RoBERTa's, BERT's pooler, and DistilBERT's.
const DENSE: [&str; 4] = ["classifier.dense", "pooler.dense", "bert.pooler.dense", DISTILLED];
const DISTILLED: &str = "pre_classifier";

/// Number of labels; `None` for a checkpoint without a head.
pub fn labels(checkpoint: &Checkpoint) -> Option<usize> {
    let weight = |name: &&str| checkpoint.weights().find(&format!("{name}.weight"));
    OUTPUTS.iter().find_map(weight).and_then(|weight| weight.shape.first().copied())
}

impl Head {
    /// The head of BERT, RoBERTa and the families close to them. Some GGUF files have no dense layer.
    pub fn load(loader: &Loader<'_>, width: usize, labels: usize) -> Result<Self> {
        let dense = DENSE.iter().find(|name| loader.at(name).has("weight"));
        let activation = if dense == Some(&DISTILLED) { DenseActivation::Relu } else { DenseActivation::Tanh };
        let dense = dense.map(|name| loader.linear(name, width, width)).transpose()?;
        let out = output(loader, width, labels)?;
        Ok(Self { dense, activation, norm: None, out, labels })
    }

    /// ModernBERT's, with a norm after the activation.
    pub fn load_normed(
        loader: &Loader<'_>,
        (width, labels): (usize, usize),
        activation: Activation,
        eps: f64,
    ) -> Result<Self> {
        Ok(Self {
            dense: Some(loader.linear("head.dense", width, width)?),
            activation: DenseActivation::Other(activation),
            norm: Some(LayerNorm::load(loader, "head.norm", width, eps)?),
            out: output(loader, width, labels)?,
            labels,
        })
    }

    pub fn labels(&self) -> usize {
        self.labels
    }

    pub fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let dense = self.dense.as_ref().map(|dense| -> Result<Tensor> {
            let x = dense.forward(x, step)?;
            match self.activation {
                DenseActivation::Tanh => Ok(x.tanh()?),
                DenseActivation::Relu => Ok(x.relu()?),
                DenseActivation::Other(kind) => step.ops().activate(&x, kind),
            }
        });
        let dense = dense.transpose()?;
        let x = dense.as_ref().unwrap_or(x);
        let normed = self.norm.as_ref().map(|norm| norm.forward(x, step)).transpose()?;
        self.out.forward(normed.as_ref().unwrap_or(x), step)
    }
}

fn output(loader: &Loader<'_>, width: usize, labels: usize) -> Result<Linear> {
    let name = OUTPUTS.iter().find(|name| loader.at(name).has("weight")).unwrap_or(&OUTPUTS[0]);
    loader.linear(name, width, labels)
}

/// Describes a checkpoint with a head: one label is the score of a pair, more are classes of a text.
pub fn rows(checkpoint: &Checkpoint, tokenizer: &Tokenizer, pooling: Pooling, labels: usize) -> Result<RowsUse> {
    let read = RowsUse::read(checkpoint, tokenizer)?;
    let config = checkpoint.config().value();
    // Cross-encoders without a sigmoid say so in either of two places.
    let function = config.pointer("/sentence_transformers/activation_fn");
    let function = function.or_else(|| config.get("sbert_ce_default_activation_function"));
    let is_plain = function.and_then(|name| name.as_str()).is_some_and(|name| name.ends_with("Identity"));
    Ok(RowsUse {
        kind: if labels == 1 { RowsKind::Rank } else { RowsKind::Classify },
        made_for: true,
        pooling,
        normalize: false,
        finish: Some(labels),
        labels: if labels == 1 { Vec::new() } else { weights::labels(checkpoint, labels)? },
        activation: is_plain.then(|| "none".to_owned()),
        ..read
    })
}
