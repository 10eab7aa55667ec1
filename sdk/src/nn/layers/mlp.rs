//! Dense feed-forward blocks, gated and plain.

use candle_core::Tensor;

use crate::{
    Error, Result,
    nn::{ActivationFn, Clip, ExpertNames, GateFn, Linear, Loader, Step, backend::FeedForward},
};

/// `down(act(gate(x)) · up(x))` (arXiv 2002.05202), or with another gate than an activation.
#[derive(Clone, Debug)]
pub struct GatedMlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
    act: GateFn,
    /// Ranges of gate, up and down.
    clips: Option<[Clip; 3]>,
}

impl GatedMlp {
    /// Loads `gate_proj`, `up_proj` (or both stacked as `gate_up_proj`) and `down_proj`, with biases if the checkpoint
    /// has them.
    pub fn load(loader: &Loader<'_>, width: usize, inner: usize, act: impl Into<GateFn>) -> Result<Self> {
        Self::load_named(loader, ExpertNames::default(), width, inner, act)
    }

    /// [`Self::load`] for checkpoints with other layer names.
    pub fn load_named(
        loader: &Loader<'_>,
        names: ExpertNames,
        width: usize,
        inner: usize,
        act: impl Into<GateFn>,
    ) -> Result<Self> {
        let act = act.into();
        if !act.has_gate() {
            return Err(Error::invalid("a gated block whose gate is not used").help("use Mlp"));
        }
        let parts = [(names.gate, inner), (names.up, inner)];
        let [gate_proj, up_proj] = loader.stacked(names.gate_up, width, parts)?;
        Ok(Self { gate_proj, up_proj, down_proj: loader.linear(names.down, inner, width)?, act, clips: None })
    }

    /// Keeps inputs and outputs of gate, up and down within ranges of their own.
    #[must_use]
    pub fn within(self, clips: Option<[Clip; 3]>) -> Self {
        Self { clips, ..self }
    }

    /// Applies the block to each row of `x`.
    pub fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        if let Some(block) = self.whole(step) {
            return step.ops().feed_forward(None, x, &block);
        }
        let inner = self.inner(x, step)?;
        match &self.clips {
            Some([_, _, down]) => down.forward(&self.down_proj, &inner, step),
            None => self.down_proj.forward(&inner, step),
        }
    }

    /// `residual + block(x)`.
    pub fn add_to(&self, residual: &Tensor, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        if let Some(block) = self.whole(step) {
            return step.ops().feed_forward(Some(residual), x, &block);
        }
        match &self.clips {
            Some(_) => step.ops().add(residual, &self.forward(x, step)?),
            None => self.down_proj.add_to(residual, &self.inner(x, step)?, step),
        }
    }

    /// The block as one operation, unless something is to be done between its layers.
    fn whole(&self, step: &Step<'_>) -> Option<FeedForward<'_>> {
        let act = self.act.known_activation().filter(|_| self.clips.is_none() && !step.is_adapted())?;
        let gate = Some(self.gate_proj.parts());
        Some(FeedForward { gate, up: self.up_proj.parts(), down: self.down_proj.parts(), act })
    }

    fn inner(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let [gate, up] = match &self.clips {
            Some([gate, up, _]) => [gate.forward(&self.gate_proj, x, step)?, up.forward(&self.up_proj, x, step)?],
            None => Linear::forward_all([&self.gate_proj, &self.up_proj], x, step)?,
        };
        self.act.forward(&gate, &up, step.ops())
    }
}

/// `fc2(act(fc1(x)))`.
#[derive(Clone, Debug)]
pub struct Mlp {
    fc1: Linear,
    fc2: Linear,
    act: ActivationFn,
}

impl Mlp {
    /// Loads `fc1` and `fc2`, with biases if the checkpoint has them.
    pub fn load(loader: &Loader<'_>, width: usize, inner: usize, act: impl Into<ActivationFn>) -> Result<Self> {
        Self::load_named(loader, ["fc1", "fc2"], width, inner, act)
    }

    /// [`Self::load`] for checkpoints with other layer names.
    pub fn load_named(
        loader: &Loader<'_>,
        names: [&str; 2],
        width: usize,
        inner: usize,
        act: impl Into<ActivationFn>,
    ) -> Result<Self> {
        Self::load_projector(loader, names, [width, inner, width], act)
    }

    /// [`Self::load_named`] for a block whose output has another width than its input.
    pub fn load_projector(
        loader: &Loader<'_>,
        [fc1, fc2]: [&str; 2],
        [inputs, inner, outputs]: [usize; 3],
        act: impl Into<ActivationFn>,
    ) -> Result<Self> {
        let (fc1, fc2) = (loader.linear(fc1, inputs, inner)?, loader.linear(fc2, inner, outputs)?);
        Ok(Self { fc1, fc2, act: act.into() })
    }

    /// Applies the block to each row of `x`.
    pub fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        match self.whole(step) {
            Some(block) => step.ops().feed_forward(None, x, &block),
            None => self.fc2.forward(&self.inner(x, step)?, step),
        }
    }

    /// `residual + block(x)`.
    pub fn add_to(&self, residual: &Tensor, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        match self.whole(step) {
            Some(block) => step.ops().feed_forward(Some(residual), x, &block),
            None => self.fc2.add_to(residual, &self.inner(x, step)?, step),
        }
    }

    /// The block as one operation, unless something is to be done between its layers.
    fn whole(&self, step: &Step<'_>) -> Option<FeedForward<'_>> {
        let act = self.act.known().filter(|_| !step.is_adapted())?;
        Some(FeedForward { gate: None, up: self.fc1.parts(), down: self.fc2.parts(), act })
    }

    fn inner(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.act.forward(&self.fc1.forward(x, step)?, step.ops())
    }
}
