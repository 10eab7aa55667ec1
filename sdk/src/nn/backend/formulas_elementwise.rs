//! Element-wise formulas, one candle op after another.

use candle_core::Tensor;
use pensieve_kernels::{Activation, Operand, Step};

use crate::{Error, Result, nn::spec::Formula};

/// A step's result: the same for everything, for each row, or of its own for each value.
#[derive(Clone)]
enum Value {
    Number(f64),
    /// `[1, width]` or `[rows, width]`.
    Tensor(Tensor),
}

/// Computes `formula` for `inputs` `[rows, width]`, with the device's activations.
pub(super) fn elementwise(
    formula: &Formula,
    columns: &[Tensor],
    inputs: &[&Tensor],
    activate: impl Fn(&Tensor, Activation) -> Result<Tensor>,
) -> Result<Vec<Tensor>> {
    let Some(first) = inputs.first() else { return Err(Error::invalid("a formula without inputs")) };
    let mut results: Vec<Value> = Vec::with_capacity(formula.steps.len());
    let of = |operand: Operand, results: &[Value]| -> Result<Value> {
        let found = match operand {
            Operand::Input(index) => inputs.get(index).map(|input| Value::Tensor((*input).clone())),
            Operand::Columns(index) => {
                columns.get(index).map(|values| values.unsqueeze(0)).transpose()?.map(Value::Tensor)
            }
            Operand::Step(index) => results.get(index).cloned(),
        };
        found.ok_or_else(|| Error::invalid("a formula reads what is not there"))
    };
    for step in &formula.steps {
        let result = match *step {
            Step::Number(number) => Value::Number(f64::from(number)),
            Step::Add(a, b) => add(of(a, &results)?, of(b, &results)?)?,
            Step::Sub(a, b) => subtract(of(a, &results)?, of(b, &results)?)?,
            Step::Mul(a, b) => multiply(of(a, &results)?, of(b, &results)?)?,
            Step::Relu(a) => Value::Tensor(dense(of(a, &results)?, first)?.relu()?),
            Step::Activate(kind, a) => Value::Tensor(activate(&dense(of(a, &results)?, first)?, kind)?),
            Step::SumGroups(a, group) => Value::Tensor(sum_groups(&dense(of(a, &results)?, first)?, group)?),
        };
        results.push(result);
    }
    formula.outputs.iter().map(|output| dense(of(*output, &results)?, first)).collect()
}

fn add(a: Value, b: Value) -> Result<Value> {
    Ok(match (a, b) {
        (Value::Number(a), Value::Number(b)) => Value::Number(a + b),
        (Value::Number(number), Value::Tensor(x)) | (Value::Tensor(x), Value::Number(number)) => {
            Value::Tensor(x.affine(1.0, number)?)
        }
        (Value::Tensor(a), Value::Tensor(b)) if a.dims() == b.dims() => Value::Tensor((a + b)?),
        (Value::Tensor(a), Value::Tensor(b)) => Value::Tensor(a.broadcast_add(&b)?),
    })
}

fn subtract(a: Value, b: Value) -> Result<Value> {
    Ok(match (a, b) {
        (Value::Number(a), Value::Number(b)) => Value::Number(a - b),
        (Value::Number(number), Value::Tensor(x)) => Value::Tensor(x.affine(-1.0, number)?),
        (Value::Tensor(x), Value::Number(number)) => Value::Tensor(x.affine(1.0, -number)?),
        (Value::Tensor(a), Value::Tensor(b)) if a.dims() == b.dims() => Value::Tensor((a - b)?),
        (Value::Tensor(a), Value::Tensor(b)) => Value::Tensor(a.broadcast_sub(&b)?),
    })
}

fn multiply(a: Value, b: Value) -> Result<Value> {
    Ok(match (a, b) {
        (Value::Number(a), Value::Number(b)) => Value::Number(a * b),
        (Value::Number(number), Value::Tensor(x)) | (Value::Tensor(x), Value::Number(number)) => {
            Value::Tensor(x.affine(number, 0.0)?)
        }
        (Value::Tensor(a), Value::Tensor(b)) if a.dims() == b.dims() => Value::Tensor((a * b)?),
        (Value::Tensor(a), Value::Tensor(b)) => Value::Tensor(a.broadcast_mul(&b)?),
    })
}

fn sum_groups(x: &Tensor, group: usize) -> Result<Tensor> {
    let (rows, width) = x.dims2()?;
    let groups = x.reshape((rows * (width / group), group))?;
    let sums = groups.sum_keepdim(1)?.broadcast_as(groups.shape())?.contiguous()?;
    Ok(sums.reshape((rows, width))?)
}

/// A value of the shape of `like`.
fn dense(value: Value, like: &Tensor) -> Result<Tensor> {
    Ok(match value {
        Value::Tensor(x) if x.dims() == like.dims() => x,
        Value::Tensor(x) => x.broadcast_as(like.shape())?.contiguous()?,
        Value::Number(number) => like.zeros_like()?.affine(1.0, number)?,
    })
}
