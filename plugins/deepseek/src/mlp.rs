//! Feed-forward blocks of all families of this plugin.

use pensieve_sdk::{
    Result,
    nn::{ExpertNames, Experts, FeedForward, GatedMlp, Glu, Loader, Router, Sizes, SparseMlp},
};

use crate::config::Config;

/// The feed-forward block of a layer: dense, or routed and shared experts.
pub fn mlp(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<FeedForward> {
    let Sizes { hidden_size, intermediate_size, hidden_act, .. } = config.sizes;
    let Some(moe) = config.moe.as_ref().filter(|_| !config.dense[layer]) else {
        return Ok(FeedForward::Dense(GatedMlp::load(loader, hidden_size, intermediate_size, hidden_act)?));
    };
    let (count, inner) = (moe.n_routed_experts, moe.moe_intermediate_size);
    let names = ["gate.e_score_correction_bias", "gate.e_score_correction.bias"];
    let router = Router::load(loader, "gate", hidden_size, count, moe.num_experts_per_tok)?;
    let router = router.with_correction(loader, &names, count)?;
    let router = Router {
        scoring: moe.scoring,
        renormalize: moe.norm_topk_prob,
        scale: moe.routed_scaling_factor as f32,
        groups: moe.groups,
        ..router
    };
    let (sizes, experts) = ((count, hidden_size, inner), loader.at("experts"));
    // As Kimi's checkpoints name them.
    let names = match experts.at(0).has("w1.weight") {
        true => ExpertNames { gate: "w1", up: "w3", down: "w2", ..ExpertNames::default() },
        false => ExpertNames::default(),
    };
    let experts = Experts::load(&experts, names, sizes, Glu::Plain(hidden_act))?;
    let shared = inner * moe.n_shared_experts;
    let shared_experts = GatedMlp::load(&loader.at("shared_experts"), hidden_size, shared, hidden_act)?;
    Ok(FeedForward::Sparse(SparseMlp::new(router, experts).with_shared(shared_experts)))
}
