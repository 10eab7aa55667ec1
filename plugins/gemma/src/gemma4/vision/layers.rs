//! The blocks of the tower, and the order of their heads' rows.

use pensieve_sdk::{
    Error, Result,
    nn::{
        Clip, ExpertNames, GatedMlp, Linear, Loader, Qkv, RmsNorm, Rope, Tensor, TextAttention,
        vision::{Sandwich, VitBlock, VitMlp, VitNorm},
    },
    weights::{Bytes, RawTensor},
};

use super::Config;

/// One half of a head is rotated by the position across, the other by that down. The rows of queries and keys are put in
/// an order in which value `i` is rotated with `i + head_dim / 2`.
pub fn rope(theta: f64, head_dim: usize) -> Result<Rope> {
    let quarter = head_dim / 4;
    let frequencies =
        (0..2).flat_map(|_| (0..quarter).map(|i| theta.powf(-((2 * i) as f64) / (2 * quarter) as f64) as f32));
    let axes = [2, 1].into_iter().flat_map(|axis| std::iter::repeat_n(axis, quarter)).collect();
    Rope::of_axes(frequencies.collect(), axes, head_dim)
}

/// A head's rows in that order: its second and its third quarter change places.
fn turned(head_dim: usize) -> impl Iterator<Item = usize> + Clone {
    let quarter = head_dim / 4;
    [0, 2, 1, 3].into_iter().flat_map(move |part| part * quarter..(part + 1) * quarter)
}

/// Queries or keys with their rows in the order of [`rope`]. Adapters in the checkpoint's order do not fit them.
fn turned_linear(attn: &Loader<'_>, name: &str, inputs: usize, heads: usize, head_dim: usize) -> Result<Linear> {
    let raw = attn.raw(&format!("{name}.linear.weight"), &[heads * head_dim, inputs])?;
    let row_bytes = raw.data.len() / (heads * head_dim);
    let mut data = Vec::with_capacity(raw.data.len());
    for row in (0..heads).flat_map(|head| turned(head_dim).map(move |row| head * head_dim + row)) {
        data.extend_from_slice(&raw.data[row * row_bytes..(row + 1) * row_bytes]);
    }
    attn.linear_of(&format!("turned_{name}"), &RawTensor { data: Bytes::copy_of(&data)?, ..raw })
}

pub fn block(loader: &Loader<'_>, config: &Config) -> Result<VitBlock> {
    let Config { hidden_size: width, intermediate_size: inner, head_dim, rms_norm_eps: eps, .. } = *config;
    let Config { num_attention_heads: heads, num_key_value_heads: kv_heads, .. } = *config;
    let (attn, mlp) = (loader.at("self_attn"), loader.at("mlp"));
    let clips = |of: &Loader<'_>, names: [&str; 3]| -> Result<Option<[Clip; 3]>> {
        let [one, two, three] = names.map(|name| clip(of, name, config));
        Ok(match (one?, two?, three?) {
            (Some(one), Some(two), Some(three)) => Some([one, two, three]),
            _ => None,
        })
    };
    let norm = |name| Ok::<_, Error>(VitNorm::Rms(RmsNorm::load(loader, name, width, eps)?));
    let head_norm = |name: &str| -> Result<RmsNorm> {
        let weight = attn.raw(&format!("{name}.weight"), &[head_dim])?.to_f32()?;
        let turned: Vec<f32> = turned(head_dim).map(|row| weight[row]).collect();
        Ok(RmsNorm::of(Tensor::from_vec(turned, head_dim, loader.device())?, eps))
    };
    let qkv = Qkv::of([
        turned_linear(&attn, "q_proj", width, heads, head_dim)?,
        turned_linear(&attn, "k_proj", width, kv_heads, head_dim)?,
        attn.linear("v_proj.linear", width, kv_heads * head_dim)?,
    ]);
    let mlp_clips = clips(&mlp, ["gate_proj", "up_proj", "down_proj"])?;
    Ok(VitBlock {
        norm1: norm("input_layernorm")?,
        qkv: qkv
            .with_norms(head_norm("q_norm")?, head_norm("k_norm")?)
            .with_value_norm(RmsNorm::without_weight(loader, head_dim, eps)?)
            .within(clips(&attn, ["q_proj", "k_proj", "v_proj"])?),
        attention: TextAttention { scale: 1.0, ..TextAttention::new(heads, kv_heads, head_dim)? },
        proj: attn.linear("o_proj.linear", heads * head_dim, width)?,
        norm2: norm("pre_feedforward_layernorm")?,
        mlp: VitMlp::Gated(GatedMlp::load_named(&mlp, MLP, width, inner, config.hidden_act)?.within(mlp_clips)),
        windowed: false,
        sandwich: Some(Sandwich {
            post_norm1: norm("post_attention_layernorm")?,
            post_norm2: norm("post_feedforward_layernorm")?,
            proj_clip: clip(&attn, "o_proj", config)?,
        }),
    })
}

const MLP: ExpertNames = ExpertNames {
    gate: "gate_proj.linear",
    up: "up_proj.linear",
    gate_up: "gate_up_proj.linear",
    down: "down_proj.linear",
};

/// The ranges of a layer. GGUF files have them beside its weight.
fn clip(loader: &Loader<'_>, name: &str, config: &Config) -> Result<Option<Clip>> {
    let layer = loader.at(name);
    let beside = layer.at("linear");
    let layer = if beside.has("input_min") { beside } else { layer };
    if config.use_clipped_linears { Clip::load(&layer).map(Some) } else { Ok(None) }
}
