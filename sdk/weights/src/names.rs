//! Translates GGUF tensor names to Hugging Face's.
//!
//! Plugins use Hugging Face's names, as do reference implementations and adapters. The two schemes differ in a handful
//! of words, so the translation is a table of those that most architectures share, and a plugin adds its own
//! ([`GgufFamily::names`](super::GgufFamily::names)). Other names pass through unchanged.

/// GGUF module names, inside a layer (`attn_q`) or outside (`token_embd`), each with Hugging Face's name.
pub type Names = &'static [(&'static str, &'static str)];

/// Returns the Hugging Face name of a tensor in a GGUF file; `own` are the names added by the architecture's plugin.
pub fn hugging_face(name: &str, own: Names) -> String {
    let Some((path, kind)) = name.rsplit_once('.') else { return name.to_owned() };
    if let Some((layer, part)) = path.strip_prefix("blk.").map(|rest| rest.split_once('.').unwrap_or((rest, ""))) {
        let is_number = !layer.is_empty() && layer.bytes().all(|byte| byte.is_ascii_digit());
        // Some tensors belong to the layer itself: `blk.0.ssm_a`.
        let (part, end) = if part.is_empty() { (kind, String::new()) } else { (part, format!(".{kind}")) };
        if let Some(part) = look_up(part, own, LAYER).filter(|_| is_number) {
            return format!("model.layers.{layer}.{part}{end}");
        }
    } else if let Some(path) = look_up(path, own, MODEL) {
        return format!("{path}.{kind}");
    }
    name.to_owned()
}

fn look_up(part: &str, own: Names, table: Names) -> Option<&'static str> {
    own.iter().chain(table).find(|(gguf, _)| *gguf == part).map(|(_, name)| *name)
}

/// Names outside of the layers.
const MODEL: Names = &[
    ("token_embd", "model.embed_tokens"),
    ("output_norm", "model.norm"),
    ("output", "lm_head"),
    ("dense_2", "2_Dense.linear"),
    ("dense_3", "3_Dense.linear"),
];

/// Names within a layer.
const LAYER: Names = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_qkv", "self_attn.qkv_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_exps", "mlp.experts.gate_proj"),
    ("ffn_up_exps", "mlp.experts.up_proj"),
    ("ffn_gate_up_exps", "mlp.experts.gate_up_proj"),
    ("ffn_down_exps", "mlp.experts.down_proj"),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
];

/// Panics if a row of a table is not in the guide for authors.
#[cfg(test)]
#[track_caller]
pub(crate) fn check_guide(tables: &[Names]) {
    let guide =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/writing-a-plugin.md")).unwrap();
    for (gguf, name) in tables.iter().copied().flatten() {
        let is_row = |line: &str| line.split_whitespace().eq([*gguf, *name]);
        assert!(guide.lines().any(is_row), "no line `{gguf}  {name}` in docs/writing-a-plugin.md");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[track_caller]
    fn check(gguf: &str, expected: &str) {
        assert_eq!(hugging_face(gguf, &[]), expected);
    }

    #[test]
    fn names_the_tensors_of_llama_and_its_kin() {
        check("token_embd.weight", "model.embed_tokens.weight");
        check("output_norm.weight", "model.norm.weight");
        check("output.weight", "lm_head.weight");
        check("blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight");
        check("blk.31.ffn_norm.weight", "model.layers.31.post_attention_layernorm.weight");
        check("blk.7.attn_q.bias", "model.layers.7.self_attn.q_proj.bias");
        check("blk.7.attn_k_norm.weight", "model.layers.7.self_attn.k_norm.weight");
        check("blk.2.ffn_down.weight", "model.layers.2.mlp.down_proj.weight");
    }

    #[test]
    fn passes_unknown_names_through() {
        for name in
            ["rope_freqs.weight", "blk.0.ssm_in.weight", "blk.x.attn_q.weight", "blk..attn_q.weight", "output", "", "."]
        {
            check(name, name);
        }
        check("blk.0.post_ffw_norm.weight", "blk.0.post_ffw_norm.weight");
    }

    #[test]
    fn an_architecture_may_bring_names_of_its_own() {
        let own = &[
            ("attn_sub_norm", "self_attn.inner_norm"),
            ("attn_q", "attention.query"),
            ("token_embd", "wte"),
            ("ssm_a", "linear_attn.A"),
        ];
        let name = |name| hugging_face(name, own);
        assert_eq!(name("blk.3.attn_sub_norm.weight"), "model.layers.3.self_attn.inner_norm.weight");
        assert_eq!(name("blk.3.attn_q.weight"), "model.layers.3.attention.query.weight");
        assert_eq!(name("blk.3.attn_k.weight"), "model.layers.3.self_attn.k_proj.weight");
        assert_eq!(name("blk.1.ssm_a"), "model.layers.1.linear_attn.A");
        assert_eq!(name("token_embd.weight"), "wte.weight");
    }

    #[test]
    fn the_guide_lists_the_usual_names() {
        check_guide(&[MODEL, LAYER]);
    }

    #[test]
    fn no_two_tensors_get_one_name() {
        let of_model = MODEL.iter().map(|(part, _)| hugging_face(&format!("{part}.weight"), &[]));
        let of_layer = LAYER.iter().map(|(part, _)| hugging_face(&format!("blk.0.{part}.weight"), &[]));
        let names: HashSet<_> = of_model.chain(of_layer).collect();
        assert_eq!(names.len(), MODEL.len() + LAYER.len());
    }
}
