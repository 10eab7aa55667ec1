//! How mixtures of experts are launched (`experts.metal`): `route`, then for each half of the experts a dispatch over single
//! choices or over tiles of sorted ones, then `combine`.

use bytemuck::{Pod, Zeroable};
use pensieve_kernels::Glu;

use super::{
    launch::Launch,
    products::{FEW_ROWS, Group, ONE_ROW, SQUARE, TILE, TILE_BYTES, TILE_ROWS, format_number, glu_numbers},
};
use crate::{nn::backend::Routing, weights::Dtype};

/// Experts that the kernels can choose among.
const EXPERTS_MAX: usize = 1024;

const ROUTE_THREADS: usize = 128;
const SORT_THREADS: usize = 256;
const COMBINE_THREADS: usize = 256;

/// Choices of a tile for `experts_8`.
const FEW: usize = 8;

/// The kernel's tensors are the logits and the correction; behind this shape come the experts and their weights.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct RouteShape {
    count: u32,
    top_k: u32,
    is_sigmoid: u32,
    renormalize: u32,
    groups: u32,
    groups_kept: u32,
    groups_compared: u32,
    has_correction: u32,
    scale: f32,
}

impl RouteShape {
    /// `None` if the kernel cannot make these choices.
    pub(super) fn new(count: usize, routing: &Routing<'_>) -> Option<Self> {
        let [groups, kept, compared] = routing.groups.unwrap_or_default();
        let fits = (1..=EXPERTS_MAX).contains(&count)
            && routing.top_k <= count
            && kept <= groups
            && groups <= count
            && compared <= 2
            && routing.correction.is_none_or(|correction| correction.len() == count);
        fits.then(|| Self {
            count: count as u32,
            top_k: routing.top_k as u32,
            is_sigmoid: u32::from(routing.is_sigmoid),
            renormalize: u32::from(routing.renormalize),
            groups: groups as u32,
            groups_kept: kept as u32,
            groups_compared: compared as u32,
            has_correction: u32::from(routing.correction.is_some()),
            scale: routing.scale,
        })
    }

    pub(super) fn launch(rows: usize) -> Launch {
        Launch { kernel: "route", groups: [rows, 1, 1], threads: ROUTE_THREADS, shared_bytes: 0 }
    }
}

/// How choices are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// By themselves.
    Single,
    /// In tiles of so many choices of one expert.
    Tiles { rows: usize, count: usize },
}

impl Plan {
    /// For `choices` among `experts` whose weights have these formats.
    pub(super) fn new(choices: usize, experts: usize, formats: [Dtype; 2]) -> Option<Self> {
        if !(1..=EXPERTS_MAX).contains(&experts) {
            return None;
        }
        if choices <= 2 * experts {
            return Some(Self::Single);
        }
        // Tiles of many hold weights in f16, which loses too much of single precision.
        let is_large = choices > 16 * experts && !formats.contains(&Dtype::F32);
        let rows = if is_large { TILE_ROWS } else { FEW };
        Some(Self::Tiles { rows, count: choices.min(choices / rows + experts) })
    }
}

/// The kernel's tensor are the experts of choices; behind this shape come the sorted choices, and four numbers for each tile.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct SortShape {
    choices: u32,
    experts: u32,
    tile_rows: u32,
    tiles: u32,
}

impl SortShape {
    /// `None` for a plan that sorts nothing.
    pub(super) fn new(choices: usize, experts: usize, plan: Plan) -> Option<Self> {
        let Plan::Tiles { rows, count } = plan else { return None };
        Some(Self { choices: choices as u32, experts: experts as u32, tile_rows: rows as u32, tiles: count as u32 })
    }

    pub(super) fn tiles(&self) -> usize {
        self.tiles as usize
    }

    pub(super) fn launch() -> Launch {
        Launch { kernel: "sort_choices", groups: [1, 1, 1], threads: SORT_THREADS, shared_bytes: 0 }
    }
}

/// A half of the experts: gate and up, or down.
#[derive(Clone, Copy, Debug)]
pub(super) struct Half {
    pub(super) dtype: Dtype,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    pub(super) has_bias: bool,
    /// The activation of the first half.
    pub(super) glu: Option<Glu>,
}

/// The kernels' tensors are the activation, the weights of gate (or of the only matrix) and up, for each expert the two bytes at
/// which its own begin, the biases of both as `[experts, outputs]`, the experts of choices (sorted choices, for tiles) and the
/// tiles; behind this shape comes the output, a row for each choice. Weights are only as far apart as `starts` says, so experts
/// may lie stacked in one tensor or anywhere in a mapped file. Without a gate (`Glu::Square`) up is the only matrix.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct ExpertShape {
    choices: u32,
    sharing: u32,
    inputs: u32,
    outputs: u32,
    format: u32,
    row_bytes: u32,
    has_bias: u32,
    has_up_bias: u32,
    is_gated: u32,
    activates: u32,
    activation: u32,
    alpha: f32,
    limit: f32,
}

impl ExpertShape {
    /// For choices that share rows of the activation `sharing` each. `None` if no kernel reads the format.
    pub(super) fn new(choices: usize, sharing: usize, half: &Half) -> Option<Self> {
        let (is_gated, activates) = match half.glu {
            None => (false, false),
            Some(Glu::Square) => (false, true),
            Some(_) => (true, false),
        };
        let (activation, alpha, limit) = match half.glu {
            None => (0, 0.0, 0.0),
            Some(Glu::Square) => (SQUARE, 0.0, 0.0),
            Some(glu) => glu_numbers(glu),
        };
        Some(Self {
            choices: u32::try_from(choices).ok()?,
            sharing: u32::try_from(sharing).ok()?,
            inputs: u32::try_from(half.inputs).ok()?,
            outputs: u32::try_from(half.outputs).ok()?,
            format: format_number(half.dtype)?,
            row_bytes: u32::try_from(half.dtype.row_bytes(half.inputs)?).ok()?,
            has_bias: u32::from(half.has_bias),
            has_up_bias: u32::from(half.has_bias && is_gated),
            is_gated: u32::from(is_gated),
            activates: u32::from(activates),
            activation,
            alpha,
            limit,
        })
    }

    pub(super) fn launch(&self, plan: Plan) -> Launch {
        let share = |group: Group| {
            let outputs = if self.is_gated == 1 { group.outputs / 2 } else { group.outputs };
            (self.outputs as usize).div_ceil(outputs)
        };
        let (kernel, group, groups, shared_bytes) = match plan {
            Plan::Single => ("experts_1", ONE_ROW, [share(ONE_ROW), self.choices as usize, 1], 0),
            Plan::Tiles { rows: FEW, count } => ("experts_8", FEW_ROWS, [count, share(FEW_ROWS), 1], 0),
            Plan::Tiles { count, .. } => ("experts_many", TILE, [count, share(TILE), 1], TILE_BYTES),
        };
        Launch { kernel, groups, threads: group.threads, shared_bytes }
    }
}

/// The kernel's tensors are the outputs of choices and the choices' weights; behind this shape comes the sum of each row.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct CombineShape {
    pub(super) rows: u32,
    pub(super) top_k: u32,
    pub(super) width: u32,
}

impl CombineShape {
    pub(super) fn launch(&self) -> Launch {
        let groups = [(self.width as usize).div_ceil(COMBINE_THREADS), self.rows as usize, 1];
        Launch { kernel: "combine", groups, threads: COMBINE_THREADS, shared_bytes: 0 }
    }
}
