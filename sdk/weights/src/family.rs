//! An architecture's conventions for GGUF files, as data in its plugin.
//!
//! GGUF stores sizes and tensors and leaves the rest to its readers: which values RoPE pairs, the activation, the
//! pattern of sliding-window layers. The SDK has the conventions that most architectures share; a [`GgufFamily`] has
//! the ones that differ.

use super::{GgufConfig, Names, PreTokenizer, gguf::Metadata};
use crate::Result;

/// An architecture's conventions for GGUF files. The default is for files with NeoX-style RoPE, SiLU activation and the
/// usual names.
#[derive(Clone, Copy, Debug)]
pub struct GgufFamily {
    /// GGUF tensor names with transformers' names, such as `("attn_sub_norm", "self_attn.inner_norm")`. They override
    /// the SDK's.
    pub names: Names,
    /// Metadata keys without the architecture's prefix, with the corresponding keys of `config.json`, such as
    /// `("ssm.conv_kernel", "mamba_d_conv")`. They override the SDK's.
    pub keys: Names,
    /// `hidden_act` in transformers' terms.
    pub activation: &'static str,
    /// Order of the values that RoPE pairs.
    pub rope: GgufRope,
    /// `norm_topk_prob` of mixtures whose file does not state it.
    pub norm_topk_prob: bool,
    /// Pre-tokenizers by their name in `tokenizer.ggml.pre`. They override the SDK's.
    pub pre_tokenizers: &'static [PreTokenizer],
    /// Pre-tokenizer of files that name none; `None` if models of the architecture use several.
    pub pre_tokenizer: Option<&'static str>,
    /// Returns true if special tokens strip the white space after them, which GGUF cannot express. Called only for
    /// SentencePiece vocabularies.
    pub strips_behind_special: fn(&Metadata) -> Result<bool>,
    /// Adds settings to the configuration that take more than renaming a metadata key.
    pub complete: fn(&mut GgufConfig<'_>) -> Result<()>,
    /// The files with the family's vision towers; `None` if it reads none.
    pub tower: Option<&'static GgufTower>,
}

/// A family's conventions for `mmproj` files, which hold the vision tower of a GGUF model.
#[derive(Clone, Copy, Debug)]
pub struct GgufTower {
    /// Values of `clip.projector_type`. The file's own becomes `projector_type` of `vision_config`.
    pub projectors: &'static [&'static str],
    /// Names of modules or whole tensors with transformers', where `*` stands for the number of a layer, such as
    /// `("v.blk.*.ln1", "vision_tower.encoder.layers.*.layer_norm1")`.
    pub names: Names,
    /// Metadata keys without `clip.vision.`, with the corresponding keys of `vision_config`. They add to the SDK's.
    pub keys: Names,
    /// `hidden_act` of the tower in transformers' terms.
    pub activation: &'static str,
    /// Adds settings to `vision_config` that take more than renaming a metadata key.
    pub complete: fn(&mut GgufConfig<'_>) -> Result<()>,
}

impl GgufTower {
    /// The names of a SigLIP tower, as `vision_tower`.
    pub const SIGLIP: Names = &[
        ("v.patch_embd", "vision_tower.embeddings.patch_embedding"),
        ("v.position_embd", "vision_tower.embeddings.position_embedding"),
        ("v.post_ln", "vision_tower.post_layernorm"),
        ("v.blk.*.ln1", "vision_tower.encoder.layers.*.layer_norm1"),
        ("v.blk.*.ln2", "vision_tower.encoder.layers.*.layer_norm2"),
        ("v.blk.*.attn_q", "vision_tower.encoder.layers.*.self_attn.q_proj"),
        ("v.blk.*.attn_k", "vision_tower.encoder.layers.*.self_attn.k_proj"),
        ("v.blk.*.attn_v", "vision_tower.encoder.layers.*.self_attn.v_proj"),
        ("v.blk.*.attn_out", "vision_tower.encoder.layers.*.self_attn.out_proj"),
        ("v.blk.*.ffn_up", "vision_tower.encoder.layers.*.mlp.fc1"),
        ("v.blk.*.ffn_down", "vision_tower.encoder.layers.*.mlp.fc2"),
        ("mm.input_projection.weight", "multi_modal_projector.mm_input_projection_weight"),
        ("mm.soft_emb_norm", "multi_modal_projector.mm_soft_emb_norm"),
        ("mm.input_norm", "multi_modal_projector.layer_norm"),
        ("mm.model.fc", "connector.modality_projection.proj"),
        ("mm.1", "multi_modal_projector.linear_1"),
        ("mm.2", "multi_modal_projector.linear_2"),
    ];
}

/// Order of rotated pairs in a GGUF file. llama.cpp calls the first `NEOX` and the other two `NORM`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GgufRope {
    /// Value `i` of the first half of a head with value `i` of the second, as in most checkpoints for transformers.
    Halves,
    /// Adjacent values, as in the checkpoint for transformers.
    Interleaved,
    /// Adjacent values, where the transformers checkpoint has halves: the converter permuted the rows of queries and
    /// keys.
    Permuted,
}

impl GgufFamily {
    /// The default, as a constant.
    pub const USUAL: Self = Self {
        names: &[],
        keys: &[],
        activation: "silu",
        rope: GgufRope::Halves,
        norm_topk_prob: false,
        pre_tokenizers: &[],
        pre_tokenizer: None,
        strips_behind_special: |_| Ok(false),
        complete: |_| Ok(()),
        tower: None,
    };

    /// The default with permuted queries and keys, as in files of the architecture `llama`.
    pub const PERMUTED: Self = Self { rope: GgufRope::Permuted, ..Self::USUAL };

    /// The conventions for an architecture whose plugin gives none. Converters write dozens of families as `llama`, so
    /// the row order of such files belongs to the format, not to one family.
    pub fn of(architecture: &str) -> Self {
        if architecture == "llama" { Self::PERMUTED } else { Self::USUAL }
    }
}

impl Default for GgufFamily {
    fn default() -> Self {
        Self::USUAL
    }
}
