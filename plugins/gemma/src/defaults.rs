//! Settings that Gemma's configurations leave out.

use pensieve_sdk::{Result, weights::Config as Settings};

/// Adds the defaults of transformers' classes; some Gemma 3 configurations omit nearly everything.
pub fn of_classes(config: &Settings, is_gemma3: bool) -> Result<Settings> {
    let layers = config.usize_or("num_hidden_layers", 26)?;
    let pattern = config.usize_or("sliding_window_pattern", if is_gemma3 { 6 } else { 2 })?.max(1);
    let kind = |layer: usize| if (layer + 1).is_multiple_of(pattern) { "full_attention" } else { "sliding_attention" };
    let types: Vec<&str> = (0..layers).map(kind).collect();
    let defaults = [
        ("num_hidden_layers", layers.into()),
        ("num_attention_heads", 8.into()),
        ("num_key_value_heads", 4.into()),
        ("head_dim", 256.into()),
        ("rms_norm_eps", 1e-6.into()),
        ("tie_word_embeddings", true.into()),
        ("sliding_window", 4096.into()),
        ("layer_types", types.into()),
    ];
    let config = config.with_defaults(defaults)?;
    if is_gemma3 {
        let rope = [("rope_theta", 1e6.into()), ("rope_local_base_freq", 1e4.into())];
        let sizes = [("vocab_size", 262_208.into()), ("max_position_embeddings", 131_072.into())];
        return config.with_defaults(rope.into_iter().chain(sizes));
    }
    let caps = [("attn_logit_softcapping", 50.0.into()), ("final_logit_softcapping", 30.0.into())];
    config.with_defaults(caps.into_iter().chain([("max_position_embeddings", 8192.into())]))
}
