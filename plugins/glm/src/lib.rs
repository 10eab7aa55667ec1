//! Z.ai's GLM, as two architectures: `glm4` for the dense models, and `glm4_moe` for GLM-4.5 to 4.7 with experts.

mod glm4;
mod glm4_moe;
mod vision;

use pensieve_sdk::{Plugin, export, nn::Paged};

export!(
    Plugin::new("glm", "GLM-4 to GLM-4.7")
        .architecture(Paged::<glm4::Glm4>::architecture())
        .architecture(Paged::<glm4_moe::Glm4Moe>::architecture())
);
