//! What the families of encoders with norms behind each block call their layers.

/// Names within a checkpoint for transformers.
#[derive(Clone, Copy)]
pub struct Names {
    /// Where the transformer is, if it stands below a head.
    pub model: &'static [&'static str],
    pub layers: &'static str,
    pub qkv: [&'static str; 3],
    pub out: &'static str,
    pub out_norm: &'static str,
    /// The feed-forward block.
    pub mlp: [&'static str; 2],
    pub mlp_norm: &'static str,
}

/// BERT's, RoBERTa's and XLM-RoBERTa's, and those that [`gguf`](crate::gguf) gives GGUF files.
pub const BERT: Names = Names {
    model: &["", "bert", "roberta"],
    layers: "encoder.layer",
    qkv: ["attention.self.query", "attention.self.key", "attention.self.value"],
    out: "attention.output.dense",
    out_norm: "attention.output.LayerNorm",
    mlp: ["intermediate.dense", "output.dense"],
    mlp_norm: "output.LayerNorm",
};

pub const DISTILBERT: Names = Names {
    model: &["", "distilbert"],
    layers: "transformer.layer",
    qkv: ["attention.q_lin", "attention.k_lin", "attention.v_lin"],
    out: "attention.out_lin",
    out_norm: "sa_layer_norm",
    mlp: ["ffn.lin1", "ffn.lin2"],
    mlp_norm: "output_layer_norm",
};

pub const MPNET: Names = Names {
    model: &["", "mpnet"],
    qkv: ["attention.attn.q", "attention.attn.k", "attention.attn.v"],
    out: "attention.attn.o",
    out_norm: "attention.LayerNorm",
    ..BERT
};
