//! Activations and gates: those that backends have kernels for, and an author's own, composed of tensor operations.

use candle_core::Tensor;
use std::{fmt, sync::Arc};

use crate::{
    Error, Result,
    nn::{Activation, Elementwise, Expr, Glu, Ops, activation},
};

/// An activation function. `From<Activation>` takes those with kernels.
#[derive(Clone)]
pub struct ActivationFn(ActivationKind);

#[derive(Clone)]
enum ActivationKind {
    Known(Activation),
    Own(Arc<OwnActivation>),
}

type OwnActivation = dyn Fn(&Tensor, &Ops) -> Result<Tensor> + Send + Sync;

impl ActivationFn {
    /// An activation of the author's own: takes `[rows, width]` and returns the same shape. It may keep tensors, such as
    /// learned parameters.
    pub fn new(activate: impl Fn(&Tensor, &Ops) -> Result<Tensor> + Send + Sync + 'static) -> Self {
        Self(ActivationKind::Own(Arc::new(activate)))
    }

    /// The activation with this name in transformers: those of [`activation`], which have kernels, and `relu`, `relu2`,
    /// `quick_gelu`, `sigmoid` and `tanh` as formulas.
    pub fn named(name: &str) -> Result<Self> {
        let formula: fn(Expr) -> Expr = match name {
            "relu" => |x| x.relu(),
            "relu2" => |x| {
                let x = x.relu();
                &x * &x
            },
            "quick_gelu" => |x| &x * (&x * Expr::from(1.702)).activate(Activation::Sigmoid),
            "tanh" => |x| x.tanh(),
            "sigmoid" => return Ok(Activation::Sigmoid.into()),
            _ => return activation(name).map(Self::from),
        };
        let formula = Elementwise::new(|[x]| [formula(x)]);
        Ok(Self::new(move |x, ops| {
            let [out] = formula.forward([x], ops)?;
            Ok(out)
        }))
    }

    /// Applies the function to each row of `x`.
    pub fn forward(&self, x: &Tensor, ops: &Ops) -> Result<Tensor> {
        match &self.0 {
            ActivationKind::Known(kind) => ops.activate(x, *kind),
            ActivationKind::Own(activate) => like(x, &activate(x, ops)?, ops),
        }
    }

    /// The kernels' name for it, if they have it.
    pub(super) fn known(&self) -> Option<Activation> {
        if let ActivationKind::Known(kind) = self.0 { Some(kind) } else { None }
    }
}

/// Checks an author's output: dense, and as large as the input.
fn like(x: &Tensor, out: &Tensor, ops: &Ops) -> Result<Tensor> {
    if out.dims() != x.dims() {
        return Err(Error::invalid(format!("an activation made {:?} of {:?}", out.dims(), x.dims())));
    }
    let out = out.contiguous()?;
    ops.check(&out, 2)?;
    Ok(out)
}

impl From<Activation> for ActivationFn {
    fn from(kind: Activation) -> Self {
        Self(ActivationKind::Known(kind))
    }
}

impl fmt::Debug for ActivationFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            ActivationKind::Known(kind) => kind.fmt(f),
            ActivationKind::Own(_) => f.write_str("an activation of the author's"),
        }
    }
}

/// How a gated block combines `gate(x)` and `up(x)`. `From` takes an [`Activation`] or an [`ActivationFn`] `f`, for
/// `f(gate) · up`, and a [`Glu`].
#[derive(Clone)]
pub struct GateFn(GateKind);

#[derive(Clone)]
enum GateKind {
    Known(Glu),
    Own(Arc<OwnGate>),
    Ungated(ActivationFn),
}

type OwnGate = dyn Fn(&Tensor, &Tensor, &Ops) -> Result<Tensor> + Send + Sync;

impl GateFn {
    /// A gate of the author's own: takes `gate(x)` and `up(x)`, `[rows, inner]` each, and returns the same shape.
    pub fn new(combine: impl Fn(&Tensor, &Tensor, &Ops) -> Result<Tensor> + Send + Sync + 'static) -> Self {
        Self(GateKind::Own(Arc::new(combine)))
    }

    /// `act(up)`, for experts without a gate.
    pub fn ungated(act: impl Into<ActivationFn>) -> Self {
        Self(GateKind::Ungated(act.into()))
    }

    /// The kernels' form of it, if they have it.
    pub(super) fn known(&self) -> Option<Glu> {
        if let GateKind::Known(glu) = self.0 { Some(glu) } else { None }
    }

    /// The activation whose output multiplies `up`, if a kernel has it.
    pub(super) fn known_activation(&self) -> Option<Activation> {
        if let GateKind::Known(Glu::Plain(kind)) = self.0 { Some(kind) } else { None }
    }

    /// False if `gate(x)` is not used, so that there is no such layer.
    pub(super) fn has_gate(&self) -> bool {
        !matches!(self.0, GateKind::Known(Glu::Square) | GateKind::Ungated(_))
    }

    /// The input of the block's down projection.
    pub(super) fn forward(&self, gate: &Tensor, up: &Tensor, ops: &Ops) -> Result<Tensor> {
        match &self.0 {
            GateKind::Known(Glu::Plain(act)) => ops.gate(gate, up, *act),
            GateKind::Known(Glu::Clamped { alpha, limit }) => {
                let gate = gate.minimum(*limit)?;
                let swish = (&gate * ((&gate * -*alpha)?.exp()? + 1.0)?.recip()?)?;
                Ok((swish * (up.clamp(-*limit, *limit)? + 1.0)?)?)
            }
            GateKind::Known(Glu::Square) => Ok(up.relu()?.sqr()?),
            GateKind::Own(combine) => like(up, &combine(gate, up, ops)?, ops),
            GateKind::Ungated(act) => act.forward(up, ops),
        }
    }
}

impl From<Glu> for GateFn {
    fn from(glu: Glu) -> Self {
        Self(GateKind::Known(glu))
    }
}

impl From<Activation> for GateFn {
    fn from(kind: Activation) -> Self {
        Self(GateKind::Known(Glu::Plain(kind)))
    }
}

impl From<ActivationFn> for GateFn {
    fn from(act: ActivationFn) -> Self {
        match act.known() {
            Some(kind) => kind.into(),
            None => Self::new(move |gate, up, ops| Ok((act.forward(gate, ops)? * up)?)),
        }
    }
}

impl fmt::Debug for GateFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            GateKind::Known(glu) => glu.fmt(f),
            GateKind::Own(_) => f.write_str("a gate of the author's"),
            GateKind::Ungated(act) => write!(f, "ungated {act:?}"),
        }
    }
}
