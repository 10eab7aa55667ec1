//! Names in the GGUF files of encoders.

use pensieve_sdk::{
    Result,
    weights::{GgufConfig, GgufFamily, Names},
};

const BERT: Names = &[
    ("token_embd", "embeddings.word_embeddings"),
    ("position_embd", "embeddings.position_embeddings"),
    ("token_types", TYPES),
    ("token_embd_norm", "embeddings.LayerNorm"),
    ("attn_q", "attention.self.query"),
    ("attn_k", "attention.self.key"),
    ("attn_v", "attention.self.value"),
    ("attn_output", "attention.output.dense"),
    ("attn_output_norm", "attention.output.LayerNorm"),
    ("ffn_up", "intermediate.dense"),
    ("ffn_down", "output.dense"),
    ("layer_output_norm", "output.LayerNorm"),
    ("cls", "classifier.dense"),
    ("cls.output", "classifier.out_proj"),
];

const TYPES: &str = "embeddings.token_type_embeddings";

const MODERN: Names = &[
    ("token_embd", "model.embeddings.tok_embeddings"),
    ("token_embd_norm", "model.embeddings.norm"),
    ("output_norm", "model.final_norm"),
    ("attn_norm", "attn_norm"),
    ("attn_qkv", "attn.Wqkv"),
    ("attn_output", "attn.Wo"),
    ("ffn_norm", "mlp_norm"),
    ("ffn_up", "mlp.Wi"),
    ("ffn_down", "mlp.Wo"),
    ("cls", "head.dense"),
    ("cls.norm", "head.norm"),
    ("cls.output", "classifier"),
];

const NOMIC: Names = &[
    ("token_embd", "embeddings.word_embeddings"),
    ("token_types", TYPES),
    ("token_embd_norm", "emb_ln"),
    ("attn_qkv", "attn.Wqkv"),
    ("attn_output", "attn.out_proj"),
    ("attn_output_norm", "norm1"),
    ("ffn_up", "mlp.fc11"),
    ("ffn_gate", "mlp.fc12"),
    ("ffn_down", "mlp.fc2"),
    ("layer_output_norm", "norm2"),
];

pub fn nomic() -> GgufFamily {
    GgufFamily { names: NOMIC, complete: complete_bert, ..GgufFamily::default() }
}

pub fn bert() -> GgufFamily {
    GgufFamily { names: BERT, activation: "gelu", complete: complete_bert, ..GgufFamily::default() }
}

pub fn modern() -> GgufFamily {
    GgufFamily { names: MODERN, activation: "gelu", complete: complete_modern, ..GgufFamily::default() }
}

/// The number of types is written in more than one way; the table has it.
fn complete_bert(config: &mut GgufConfig<'_>) -> Result<()> {
    let table = config.weights().find(&format!("{TYPES}.weight"));
    let types = table.and_then(|table| table.shape.first().copied());
    config.set("type_vocab_size", types.unwrap_or(0));
    Ok(())
}

fn complete_modern(config: &mut GgufConfig<'_>) -> Result<()> {
    config.rename(&[
        ("attention.sliding_window", "local_attention"),
        ("attention.sliding_window_pattern", "global_attn_every_n_layers"),
        ("rope.freq_base", "global_rope_theta"),
        ("rope.freq_base_swa", "local_rope_theta"),
        ("hidden_activation", "hidden_activation"),
    ])
}
