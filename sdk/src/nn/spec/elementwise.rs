//! Element-wise formulas, which a device computes in one pass where it has a kernel for them.

use candle_core::Tensor;
use pensieve_kernels::{Activation, Operand, Step};
use std::{
    collections::HashMap,
    ops::{Add, Mul, Sub},
    sync::Arc,
};

use crate::{Error, Result};

/// An element-wise expression over inputs `[rows, width]`, for [`Elementwise`]. Expressions and references to them can be
/// added, subtracted and multiplied.
#[derive(Clone, Debug)]
pub struct Expr(Arc<Node>);

#[derive(Debug)]
enum Node {
    Input(usize),
    Columns(Tensor),
    Number(f32),
    Add(Expr, Expr),
    Sub(Expr, Expr),
    Mul(Expr, Expr),
    Relu(Expr),
    Activate(Activation, Expr),
    SumGroups(Expr, usize),
}

impl Expr {
    /// A value per column, `[width]`.
    pub fn columns(values: &Tensor) -> Self {
        Self::of(Node::Columns(values.clone()))
    }

    /// `max(x, 0)`.
    pub fn relu(&self) -> Self {
        Self::of(Node::Relu(self.clone()))
    }

    pub fn activate(&self, kind: Activation) -> Self {
        Self::of(Node::Activate(kind, self.clone()))
    }

    /// The hyperbolic tangent, as `2 · sigmoid(2x) − 1`.
    pub fn tanh(&self) -> Self {
        let sigmoid = (self + self).activate(Activation::Sigmoid);
        &sigmoid + &sigmoid - Self::from(1.0)
    }

    /// The sum of each group of `group` columns, such as a head's, for all columns of the group.
    pub fn sum_groups(&self, group: usize) -> Self {
        Self::of(Node::SumGroups(self.clone(), group))
    }

    fn of(node: Node) -> Self {
        Self(Arc::new(node))
    }
}

impl From<f32> for Expr {
    fn from(number: f32) -> Self {
        Self::of(Node::Number(number))
    }
}

macro_rules! operator {
    ($operator:ident, $method:ident) => {
        impl $operator for Expr {
            type Output = Expr;
            fn $method(self, other: Expr) -> Expr {
                Expr::of(Node::$operator(self, other))
            }
        }
        impl $operator<&Expr> for Expr {
            type Output = Expr;
            fn $method(self, other: &Expr) -> Expr {
                Expr::of(Node::$operator(self, other.clone()))
            }
        }
        impl $operator<Expr> for &Expr {
            type Output = Expr;
            fn $method(self, other: Expr) -> Expr {
                Expr::of(Node::$operator(self.clone(), other))
            }
        }
        impl $operator for &Expr {
            type Output = Expr;
            fn $method(self, other: &Expr) -> Expr {
                Expr::of(Node::$operator(self.clone(), other.clone()))
            }
        }
    };
}

operator!(Add, add);
operator!(Sub, sub);
operator!(Mul, mul);

/// An element-wise formula: `OUT` outputs computed from `IN` inputs of the same shape, `[rows, width]`. The CPU's kernel
/// reads each input and writes each output once, and keeps everything between in its cache.
///
/// ```
/// use pensieve_sdk::nn::Elementwise;
///
/// let squared_relu = Elementwise::new(|[x]| {
///     let x = x.relu();
///     [&x * &x]
/// });
/// ```
#[derive(Clone, Debug)]
pub struct Elementwise<const IN: usize, const OUT: usize>(pub(in crate::nn) Formula);

impl<const IN: usize, const OUT: usize> Elementwise<IN, OUT> {
    pub fn new(formula: impl FnOnce([Expr; IN]) -> [Expr; OUT]) -> Self {
        let outputs = formula(std::array::from_fn(|index| Expr::of(Node::Input(index))));
        let mut compiler = Compiler::default();
        let outputs = outputs.iter().map(|output| compiler.add(output)).collect();
        Self(Formula { steps: compiler.steps, outputs, columns: compiler.columns })
    }
}

/// The steps of an [`Elementwise`].
#[derive(Clone, Debug)]
pub(in crate::nn) struct Formula {
    pub(in crate::nn) steps: Vec<Step>,
    pub(in crate::nn) outputs: Vec<Operand>,
    pub(in crate::nn) columns: Vec<Tensor>,
}

impl Formula {
    /// Checks that it can be computed for so many inputs of `width` columns.
    pub(in crate::nn) fn check(&self, inputs: usize, width: usize) -> Result<()> {
        let operands = self.steps.iter().filter_map(Step::operands).flatten().chain(self.outputs.iter().copied());
        let mut inputs_read =
            operands.filter_map(|one| if let Operand::Input(index) = one { Some(index) } else { None });
        if let Some(index) = inputs_read.find(|index| *index >= inputs) {
            return Err(Error::invalid(format!("a formula of {inputs} inputs reads input {index} of another formula")));
        }
        if let Some(values) = self.columns.iter().find(|values| values.dims() != [width]) {
            return Err(Error::invalid(format!("{width} columns cannot have {:?} values", values.dims())));
        }
        for step in &self.steps {
            if let Step::SumGroups(_, group) = step
                && (*group == 0 || !width.is_multiple_of(*group))
            {
                return Err(Error::invalid(format!("{width} columns are no whole number of groups of {group}")));
            }
        }
        Ok(())
    }
}

/// Brings expressions into an order in which each follows its operands. What several share is computed once.
#[derive(Default)]
struct Compiler {
    steps: Vec<Step>,
    columns: Vec<Tensor>,
    known: HashMap<*const Node, Operand>,
}

impl Compiler {
    fn add(&mut self, expr: &Expr) -> Operand {
        let key = Arc::as_ptr(&expr.0);
        if let Some(operand) = self.known.get(&key) {
            return *operand;
        }
        let step = match &*expr.0 {
            Node::Input(index) => return Operand::Input(*index),
            Node::Columns(values) => {
                self.columns.push(values.clone());
                let operand = Operand::Columns(self.columns.len() - 1);
                self.known.insert(key, operand);
                return operand;
            }
            Node::Number(number) => Step::Number(*number),
            Node::Add(a, b) => Step::Add(self.add(a), self.add(b)),
            Node::Sub(a, b) => Step::Sub(self.add(a), self.add(b)),
            Node::Mul(a, b) => Step::Mul(self.add(a), self.add(b)),
            Node::Relu(a) => Step::Relu(self.add(a)),
            Node::Activate(kind, a) => Step::Activate(*kind, self.add(a)),
            Node::SumGroups(a, group) => Step::SumGroups(self.add(a), *group),
        };
        self.steps.push(step);
        let operand = Operand::Step(self.steps.len() - 1);
        self.known.insert(key, operand);
        operand
    }
}
