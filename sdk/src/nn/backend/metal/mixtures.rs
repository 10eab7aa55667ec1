//! Launches mixtures of experts whose choices stay on the device (`experts.rs` has the dispatches).

use candle_core::{DType, Tensor};
use pensieve_kernels::Glu;

use super::{
    driver::{Arg, Driver},
    experts::{CombineShape, ExpertShape, Half, Plan, RouteShape, SortShape},
    kernels::MetalKernels,
    launch::Launch,
    layers::weight_of,
    placement::Weight,
};
use crate::{
    Error, Result,
    nn::backend::{Layer, Routed, Routing},
    weights::Dtype,
};

/// A layer's experts.
#[derive(Debug)]
pub(in crate::nn) struct ExpertTable {
    /// Gate and up.
    first: HalfTable,
    /// Down.
    last: HalfTable,
    count: usize,
    width: usize,
    inner: usize,
}

/// The matrices of one half of all experts.
#[derive(Debug)]
struct HalfTable {
    dtype: Dtype,
    weights: Tensor,
    /// For each expert the bytes at which its gate and its up begin, or down twice, each in two words.
    starts: Tensor,
    /// `[experts, outputs]` of gate and up, or of down twice.
    biases: Option<[Tensor; 2]>,
}

/// The layers of a half, by their places among an expert's three.
const GATE_AND_UP: [usize; 2] = [0, 1];
const DOWN: [usize; 2] = [2, 2];

/// Words of a start.
const START_WORDS: usize = 2;

/// Choices sorted into tiles.
struct Tiles {
    sorted: Tensor,
    list: Tensor,
}

/// The dispatches of a mixture.
struct Dispatches {
    plan: Plan,
    sort: Option<SortShape>,
    halves: [ExpertShape; 2],
    combine: CombineShape,
}

impl Dispatches {
    fn launches(&self) -> impl Iterator<Item = Launch> {
        let sort = self.sort.map(|_| SortShape::launch());
        sort.into_iter().chain(self.halves.map(|half| half.launch(self.plan))).chain([self.combine.launch()])
    }
}

impl<D: Driver> MetalKernels<D> {
    /// A router's choices; `None` if there is no kernel for them.
    pub(super) fn choose(&self, logits: &Tensor, routing: &Routing<'_>) -> Result<Option<Routed>> {
        let (rows, count) = logits.dims2()?;
        let shape = RouteShape::new(count, routing).filter(|_| self.usable.experts);
        let launch = RouteShape::launch(rows);
        let Some(shape) = shape.filter(|_| self.driver.takes(&launch)) else { return Ok(None) };
        let correction = routing.correction.map(|values| self.arena.values(values, &[values.len()])).transpose()?;
        let experts = self.arena.tensor(DType::U32, &[rows, routing.top_k])?;
        let weights = self.room(rows, routing.top_k)?;
        let args = [
            Arg::Read(logits),
            Arg::Read(correction.as_ref().unwrap_or(logits)),
            Arg::Bytes(bytemuck::bytes_of(&shape)),
            Arg::Written(&experts),
            Arg::Written(&weights),
        ];
        self.launch(&launch, &args)?;
        Ok(Some(Routed { experts, weights }))
    }

    /// The table of a layer's experts; `None` if the matrices of a half differ in form, or are of no form that kernels read.
    pub(super) fn table_of(&self, experts: &[[Layer<'_>; 3]]) -> Result<Option<ExpertTable>> {
        let Some([gate, ..]) = experts.first().filter(|_| self.usable.experts) else { return Ok(None) };
        let (width, inner) = (gate.0.inputs, gate.0.outputs);
        let first = weights_of(experts, GATE_AND_UP, (inner, width));
        let last = weights_of(experts, DOWN, (width, inner));
        let (Some(first), Some(last)) = (first, last) else { return Ok(None) };
        let Some(first) = self.half_table(experts, GATE_AND_UP, &first)? else { return Ok(None) };
        let Some(last) = self.half_table(experts, DOWN, &last)? else { return Ok(None) };
        Ok(Some(ExpertTable { first, last, count: experts.len(), width, inner }))
    }

    fn half_table(
        &self,
        experts: &[[Layer<'_>; 3]],
        layers: [usize; 2],
        weights: &[&Weight],
    ) -> Result<Option<HalfTable>> {
        let Some((tensor, starts)) = self.placed_together(weights)? else { return Ok(None) };
        // One more than there are, so that the second of each pair can be taken for the first.
        let starts: Vec<u64> = starts.into_iter().chain([0]).map(|start| start as u64).collect();
        let buffer = self.driver.allocate(size_of_val(&starts[..]))?;
        let words = self.driver.tensor(&buffer, DType::U32, &[START_WORDS * starts.len()])?;
        self.driver.write(&words, 0, bytemuck::cast_slice(&starts))?;
        let biases = |layer: usize| -> Result<Option<Tensor>> {
            let biases: Vec<&Tensor> = experts.iter().filter_map(|expert| expert[layer].1).collect();
            if biases.is_empty() { Ok(None) } else { Ok(Some(Tensor::stack(&biases, 0)?)) }
        };
        let biases = biases(layers[0])?.zip(biases(layers[1])?).map(|(a, b)| [a, b]);
        Ok(Some(HalfTable { dtype: weights[0].dtype, weights: tensor, starts: words, biases }))
    }

    /// The weighted sum of each row's experts; `None` if there is no kernel for them.
    pub(super) fn mix(&self, x: &Tensor, routed: &Routed, table: &ExpertTable, glu: Glu) -> Result<Option<Tensor>> {
        let ((rows, width), top_k) = (x.dims2()?, routed.experts.dim(1)?);
        if width != table.width || routed.experts.dim(0)? != rows {
            let message = format!("experts of width {} were given rows of {:?}", table.width, x.dims());
            return Err(Error::invalid(message));
        }
        let dispatches = dispatches(table, rows, top_k, glu);
        let takes = |dispatches: &Dispatches| dispatches.launches().all(|launch| self.driver.takes(&launch));
        let Some(dispatches) = dispatches.filter(takes) else { return Ok(None) };
        let tiles = match &dispatches.sort {
            Some(sort) => Some(self.sort(&routed.experts, sort, rows * top_k)?),
            None => None,
        };
        let choices = tiles.as_ref().map_or(&routed.experts, |tiles| &tiles.sorted);
        let tiles = tiles.as_ref().map_or(&routed.experts, |tiles| &tiles.list);
        let [first, last] = &dispatches.halves;
        let hidden = self.room(rows * top_k, table.inner)?;
        let launch = first.launch(dispatches.plan);
        self.half(&launch, &table.first, glu == Glu::Square, [x, choices, tiles], first, &hidden)?;
        let made = self.room(rows * top_k, width)?;
        let launch = last.launch(dispatches.plan);
        self.half(&launch, &table.last, false, [&hidden, choices, tiles], last, &made)?;
        let out = self.room(rows, width)?;
        let combine = Arg::Bytes(bytemuck::bytes_of(&dispatches.combine));
        let args = [Arg::Read(&made), Arg::Read(&routed.weights), combine, Arg::Written(&out)];
        self.launch(&dispatches.combine.launch(), &args)?;
        Ok(Some(out))
    }

    fn sort(&self, experts: &Tensor, shape: &SortShape, choices: usize) -> Result<Tiles> {
        let sorted = self.arena.tensor(DType::U32, &[choices])?;
        let list = self.arena.tensor(DType::U32, &[shape.tiles(), 4])?;
        let bytes = Arg::Bytes(bytemuck::bytes_of(shape));
        let args = [Arg::Read(experts), bytes, Arg::Written(&sorted), Arg::Written(&list)];
        self.launch(&SortShape::launch(), &args)?;
        Ok(Tiles { sorted, list })
    }

    /// One half of the experts; `seconds` takes the second matrix of each pair for the first.
    fn half(
        &self,
        launch: &Launch,
        table: &HalfTable,
        seconds: bool,
        [x, choices, tiles]: [&Tensor; 3],
        shape: &ExpertShape,
        out: &Tensor,
    ) -> Result<()> {
        let words = table.starts.elem_count() - START_WORDS;
        let starts = table.starts.narrow(0, if seconds { START_WORDS } else { 0 }, words)?;
        let biases = table.biases.as_ref().map_or([x, x], |[first, second]| [first, second]);
        let args = [
            Arg::Read(x),
            Arg::Read(&table.weights),
            Arg::Read(&table.weights),
            Arg::Read(&starts),
            Arg::Read(biases[usize::from(seconds)]),
            Arg::Read(biases[1]),
            Arg::Read(choices),
            Arg::Read(tiles),
            Arg::Bytes(bytemuck::bytes_of(shape)),
            Arg::Written(out),
        ];
        self.launch(launch, &args)
    }
}

/// The weights of a half, two for each expert; `None` unless all have one shape and format, and all or none have a bias.
fn weights_of<'a>(
    experts: &[[Layer<'a>; 3]],
    layers: [usize; 2],
    (outputs, inputs): (usize, usize),
) -> Option<Vec<&'a Weight>> {
    let mut weights: Vec<&Weight> = Vec::with_capacity(2 * experts.len());
    let has_bias = experts.first()?[layers[0]].1.is_some();
    for (matrix, bias) in experts.iter().flat_map(|expert| layers.map(|layer| expert[layer])) {
        let weight = weight_of(matrix)?;
        let is_as_first = weights.first().is_none_or(|first| first.dtype == weight.dtype);
        if !is_as_first || (matrix.outputs, matrix.inputs, bias.is_some()) != (outputs, inputs, has_bias) {
            return None;
        }
        weights.push(weight);
    }
    Some(weights)
}

fn dispatches(table: &ExpertTable, rows: usize, top_k: usize, glu: Glu) -> Option<Dispatches> {
    let (ExpertTable { first, last, count, width, inner }, choices) = (table, rows * top_k);
    let plan = Plan::new(choices, *count, [first.dtype, last.dtype])?;
    let half = |table: &HalfTable, inputs, outputs, glu| Half {
        dtype: table.dtype,
        inputs,
        outputs,
        has_bias: table.biases.is_some(),
        glu,
    };
    let halves = [
        ExpertShape::new(choices, top_k, &half(first, *width, *inner, Some(glu)))?,
        ExpertShape::new(choices, 1, &half(last, *inner, *width, None))?,
    ];
    let narrow = |value: usize| u32::try_from(value).ok();
    let combine = CombineShape { rows: narrow(rows)?, top_k: narrow(top_k)?, width: narrow(*width)? };
    Some(Dispatches { plan, sort: SortShape::new(choices, *count, plan), halves, combine })
}
