//! The mixture in large Gemma 4 models: routed experts and a shared block, each with its own norms before and after.

use pensieve_sdk::{
    Result,
    nn::{ExpertNames, Experts, Glu, Loader, RmsNorm, Router, Sizes, Step, Tensor},
    weights::Format,
};

use super::config::{Config, Moe};

/// Routed experts beside the shared block, each with its own norms.
pub struct MixtureOfExperts {
    /// The norm of the router's input, with its scale.
    norm: RmsNorm,
    router: Router,
    experts: Experts,
    post_feedforward_layernorm_1: RmsNorm,
    post_feedforward_layernorm_2: RmsNorm,
    pre_feedforward_layernorm_2: RmsNorm,
}

impl MixtureOfExperts {
    pub fn load(loader: &Loader<'_>, config: &Config, moe: Moe) -> Result<Self> {
        let Sizes { hidden_size, hidden_act, rms_norm_eps, .. } = config.sizes;
        let Moe { num_experts, top_k_experts, moe_intermediate_size } = moe;
        let norm = |name| RmsNorm::load(loader, name, hidden_size, rms_norm_eps);
        let is_gguf = loader.format() == Format::Gguf;
        let scale = loader.at("router").vector(if is_gguf { "proj.scale" } else { "scale" }, hidden_size)?;
        let scales =
            loader.vector(if is_gguf { "experts.down_proj.scale" } else { "router.per_expert_scale" }, num_experts)?;
        let router = Router::load(&loader.at("router"), "proj", hidden_size, num_experts, top_k_experts)?;
        let sizes = (num_experts, hidden_size, moe_intermediate_size);
        let glu = Glu::Plain(hidden_act);
        Ok(Self {
            norm: RmsNorm::of((scale * (hidden_size as f64).powf(-0.5))?, rms_norm_eps),
            router: Router { renormalize: true, expert_scale: Some(scales.to_vec1()?.into()), ..router },
            experts: Experts::load(&loader.at("experts"), ExpertNames::default(), sizes, glu)?,
            post_feedforward_layernorm_1: norm("post_feedforward_layernorm_1")?,
            post_feedforward_layernorm_2: norm("post_feedforward_layernorm_2")?,
            pre_feedforward_layernorm_2: norm("pre_feedforward_layernorm_2")?,
        })
    }

    /// Adds the outputs of the shared block, `shared`, and of the experts, both for the same `x`.
    pub fn forward(&self, x: &Tensor, shared: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let routes = self.router.forward(&self.norm.forward(x, step)?, step)?;
        let routed = self.experts.forward(&self.pre_feedforward_layernorm_2.forward(x, step)?, &routes, step)?;
        let shared = self.post_feedforward_layernorm_1.forward(shared, step)?;
        self.post_feedforward_layernorm_2.add_to(&shared, &routed, step)
    }
}
