//! What GGUF calls a tensor, and what Hugging Face calls it.
//!
//! Plugins ask for Hugging Face's names, as those stand in the papers' reference code and in adapters. The two naming
//! schemes differ by a handful of words, with exceptions per family, so the translation is a table and a new family is a
//! few lines of data. A name that the table does not know passes through unchanged: a plugin for an architecture that
//! this table has never heard of finds its tensors under the names in the file, or brings rows of its own.

/// What GGUF calls a part of a model, within a layer (`attn_q`) or outside (`token_embd`), and what Hugging Face does.
pub type Names = &'static [(&'static str, &'static str)];

/// The Hugging Face name of a tensor in a GGUF file of an architecture; `own` are the rows that its plugin brings.
pub fn hugging_face(architecture: &str, name: &str, own: Names) -> String {
    let Some((path, kind)) = name.rsplit_once('.') else { return name.to_owned() };
    if let Some((layer, part)) = path.strip_prefix("blk.").map(|rest| rest.split_once('.').unwrap_or((rest, ""))) {
        let is_number = !layer.is_empty() && layer.bytes().all(|byte| byte.is_ascii_digit());
        // Some are tensors of a layer itself: `blk.0.ssm_a`.
        let (part, end) = if part.is_empty() { (kind, String::new()) } else { (part, format!(".{kind}")) };
        if let Some(part) = look_up(architecture, part, own, LAYER).filter(|_| is_number) {
            return format!("model.layers.{layer}.{part}{end}");
        }
    } else if let Some(path) = look_up(architecture, path, own, MODEL) {
        return format!("{path}.{kind}");
    }
    name.to_owned()
}

fn look_up(architecture: &str, part: &str, own: Names, table: Names) -> Option<&'static str> {
    let family = EXCEPTIONS.iter().filter(|(architectures, _)| architectures.contains(&architecture));
    let family = family.flat_map(|(_, names)| names.iter());
    own.iter().chain(family).chain(table).find(|(gguf, _)| *gguf == part).map(|(_, name)| *name)
}

/// Names outside of the layers.
const MODEL: Names = &[("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];

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

/// Where a family differs, by the names of its architectures in GGUF.
const EXCEPTIONS: &[(&[&str], Names)] = &[
    (
        &["phi2"],
        &[
            ("output_norm", "model.final_layernorm"),
            ("attn_output", "self_attn.dense"),
            ("ffn_up", "mlp.fc1"),
            ("ffn_down", "mlp.fc2"),
        ],
    ),
    (&["phi3"], &[("ffn_up", "mlp.gate_up_proj")]),
    (
        &["glm4"],
        &[
            ("ffn_up", "mlp.gate_up_proj"),
            ("post_attention_norm", "post_self_attn_layernorm"),
            ("post_ffw_norm", "post_mlp_layernorm"),
        ],
    ),
    (
        &["gpt-oss"],
        &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_norm", "pre_feedforward_layernorm"),
            ("attn_sinks", "self_attn.sinks"),
            ("ffn_gate_inp", "mlp.router"),
        ],
    ),
    (
        &["olmo2"],
        &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_norm", "pre_feedforward_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
        ],
    ),
    // Whose recurrent layers are in the order of Hugging Face.
    (
        &["qwen3next"],
        &[
            ("attn_qkv", "linear_attn.in_proj_qkv"),
            ("attn_gate", "linear_attn.in_proj_z"),
            ("ssm_in", "linear_attn.in_proj_qkvz"),
            ("ssm_ba", "linear_attn.in_proj_ba"),
            ("ssm_conv1d", "linear_attn.conv1d"),
            ("ssm_dt", "linear_attn.dt_proj"),
            ("ssm_a", "linear_attn.A"),
            ("ssm_norm", "linear_attn.norm"),
            ("ssm_out", "linear_attn.out_proj"),
        ],
    ),
    // Whose heads of values take turns with those of keys. The names say so, as an adapter for Hugging Face's order does not fit.
    (
        &["qwen35", "qwen35moe"],
        &[
            ("attn_qkv", "interleaved_linear_attn.in_proj_qkv"),
            ("attn_gate", "interleaved_linear_attn.in_proj_z"),
            ("ssm_beta", "interleaved_linear_attn.in_proj_b"),
            ("ssm_alpha", "interleaved_linear_attn.in_proj_a"),
            ("ssm_conv1d", "interleaved_linear_attn.conv1d"),
            ("ssm_dt", "interleaved_linear_attn.dt_proj"),
            ("ssm_a", "interleaved_linear_attn.A"),
            ("ssm_norm", "interleaved_linear_attn.norm"),
            ("ssm_out", "interleaved_linear_attn.out_proj"),
        ],
    ),
    (
        &["gemma2", "gemma3", "gemma4"],
        &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_norm", "pre_feedforward_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
        ],
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[track_caller]
    fn check(architecture: &str, gguf: &str, expected: &str) {
        assert_eq!(hugging_face(architecture, gguf, &[]), expected);
    }

    #[test]
    fn names_the_tensors_of_llama_and_its_kin() {
        check("llama", "token_embd.weight", "model.embed_tokens.weight");
        check("llama", "output_norm.weight", "model.norm.weight");
        check("llama", "output.weight", "lm_head.weight");
        check("llama", "blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight");
        check("llama", "blk.31.ffn_norm.weight", "model.layers.31.post_attention_layernorm.weight");
        check("qwen2", "blk.7.attn_q.bias", "model.layers.7.self_attn.q_proj.bias");
        check("qwen3", "blk.7.attn_k_norm.weight", "model.layers.7.self_attn.k_norm.weight");
        check("mistral3", "blk.2.ffn_down.weight", "model.layers.2.mlp.down_proj.weight");
    }

    #[test]
    fn families_differ_where_they_do() {
        check("phi2", "blk.1.attn_output.bias", "model.layers.1.self_attn.dense.bias");
        check("phi2", "blk.1.ffn_up.weight", "model.layers.1.mlp.fc1.weight");
        check("phi2", "blk.1.ffn_down.weight", "model.layers.1.mlp.fc2.weight");
        check("phi2", "output_norm.bias", "model.final_layernorm.bias");
        check("phi2", "output.bias", "lm_head.bias");
        check("phi3", "blk.1.ffn_up.weight", "model.layers.1.mlp.gate_up_proj.weight");
        check("phi3", "blk.1.attn_qkv.weight", "model.layers.1.self_attn.qkv_proj.weight");
        check("phi3", "blk.1.attn_output.weight", "model.layers.1.self_attn.o_proj.weight");
        check("gemma2", "blk.1.ffn_norm.weight", "model.layers.1.pre_feedforward_layernorm.weight");
        check("qwen3next", "blk.1.ssm_a", "model.layers.1.linear_attn.A");
        check("qwen35", "blk.1.ssm_dt.bias", "model.layers.1.interleaved_linear_attn.dt_proj.bias");
        check("gemma2", "blk.1.post_attention_norm.weight", "model.layers.1.post_attention_layernorm.weight");
        check("gemma", "blk.1.ffn_norm.weight", "model.layers.1.post_attention_layernorm.weight");
    }

    #[test]
    fn passes_unknown_names_through() {
        for name in
            ["rope_freqs.weight", "blk.0.ssm_in.weight", "blk.x.attn_q.weight", "blk..attn_q.weight", "output", "", "."]
        {
            check("llama", name, name);
        }
        check("llama", "blk.0.post_ffw_norm.weight", "blk.0.post_ffw_norm.weight");
    }

    #[test]
    fn an_architecture_may_bring_names_of_its_own() {
        let own = &[("attn_sub_norm", "self_attn.inner_norm"), ("attn_q", "attention.query"), ("token_embd", "wte")];
        let name = |name| hugging_face("nobody-knows", name, own);
        assert_eq!(name("blk.3.attn_sub_norm.weight"), "model.layers.3.self_attn.inner_norm.weight");
        assert_eq!(name("blk.3.attn_q.weight"), "model.layers.3.attention.query.weight");
        assert_eq!(name("blk.3.attn_k.weight"), "model.layers.3.self_attn.k_proj.weight");
        assert_eq!(name("token_embd.weight"), "wte.weight");
    }

    #[test]
    fn no_two_tensors_of_a_family_get_one_name() {
        let families = EXCEPTIONS.iter().flat_map(|(architectures, _)| *architectures).chain(&["llama"]);
        for family in families {
            let own = EXCEPTIONS.iter().filter(|(architectures, _)| architectures.contains(family));
            let parts: HashSet<_> =
                own.flat_map(|(_, names)| *names).chain(MODEL).chain(LAYER).map(|row| row.0).collect();
            let names: HashSet<_> = parts
                .iter()
                .map(|part| match MODEL.iter().any(|(name, _)| name == part) {
                    true => hugging_face(family, &format!("{part}.weight"), &[]),
                    false => hugging_face(family, &format!("blk.0.{part}.weight"), &[]),
                })
                .collect();
            assert_eq!(names.len(), parts.len(), "{family}");
        }
    }
}
