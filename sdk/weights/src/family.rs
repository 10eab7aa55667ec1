//! How the GGUF files of one architecture are read, as data that its plugin brings.
//!
//! GGUF stores sizes and tensors and leaves the rest to its readers: which values of a head RoPE pairs, the activation, how layers
//! with windows alternate. The SDK knows what is the same for most architectures, and this says what is different.

use super::{GgufConfig, Names, PreTokenizer, gguf::Metadata};
use crate::Result;

/// What a plugin knows of the GGUF files of an architecture that it claims. The default fits files whose heads are rotated in
/// halves, whose activation is SiLU and whose names are the usual ones.
#[derive(Clone, Copy, Debug)]
pub struct GgufFamily {
    /// Names of tensors: GGUF's and transformers', such as `("attn_sub_norm", "self_attn.inner_norm")`. They go before the SDK's.
    pub names: Names,
    /// Metadata keys without the architecture's name in front, and the names in `config.json` that they stand for, such as
    /// `("ssm.conv_kernel", "mamba_d_conv")`. They go before the SDK's.
    pub keys: Names,
    /// `hidden_act` in transformers' terms.
    pub activation: &'static str,
    /// Which values of a head RoPE pairs.
    pub rope: GgufRope,
    /// `norm_topk_prob` of a mixture whose file does not say whether the weights of the chosen experts are made to add up to one.
    pub norm_topk_prob: bool,
    /// Pre-tokenizers that files name in `tokenizer.ggml.pre`. They go before the SDK's.
    pub pre_tokenizers: &'static [PreTokenizer],
    /// The name of the pre-tokenizer of files that name none; `None` where models of the architecture have several.
    pub pre_tokenizer: Option<&'static str>,
    /// Whether special tokens swallow the white space behind them, which GGUF cannot say. Asked of SentencePiece vocabularies alone.
    pub strips_behind_special: fn(&Metadata) -> Result<bool>,
    /// Adds to the configuration what follows from the metadata by more than a rename.
    pub complete: fn(&mut GgufConfig<'_>) -> Result<()>,
}

/// Which values of a head RoPE pairs in a GGUF file. llama.cpp calls the first `NEOX` and the other two `NORM`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GgufRope {
    /// Those of its two halves, as in most checkpoints for transformers.
    Halves,
    /// Neighbours, as in the checkpoint for transformers.
    Interleaved,
    /// Neighbours, where the checkpoint for transformers has halves: the converter has permuted the rows of queries and keys.
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
    };

    /// The same, with queries and keys as in files that say `llama`.
    pub const PERMUTED: Self = Self { rope: GgufRope::Permuted, ..Self::USUAL };

    /// The description of an architecture whose plugin gives none. Converters write dozens of families as `llama`, so the order of
    /// rows in such files belongs to the format, not to one family.
    pub fn of(architecture: &str) -> Self {
        if architecture == "llama" { Self::PERMUTED } else { Self::USUAL }
    }
}

impl Default for GgufFamily {
    fn default() -> Self {
        Self::USUAL
    }
}
