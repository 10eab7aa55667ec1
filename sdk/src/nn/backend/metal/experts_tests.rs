//! Mixtures of experts on Metal against choices and sums made on the host.

use pensieve_kernels::{Activation, Glu};
use std::sync::LazyLock;

use super::{
    experts::{CombineShape, ExpertShape, Half, Plan, RouteShape, SortShape},
    libraries::EXPERTS,
    product_tests::{allowed, gated, near, read_by},
    program::{Program, bytes, close, values},
};
use crate::{
    nn::backend::{
        Routing,
        noise::{Noise, Weight},
    },
    weights::Dtype,
};

static PROGRAM: LazyLock<Program> = LazyLock::new(|| Program::compile(&EXPERTS));

fn empty(values: usize) -> Vec<u8> {
    vec![0xFF; 4 * values]
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
}

fn raw(words: &[u32]) -> Vec<u8> {
    bytemuck::cast_slice(words).to_vec()
}

/// The places of the `count` largest, the first of equals.
fn best(values: &[f32], count: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..values.len()).collect();
    places.sort_by(|a, b| values[*b].total_cmp(&values[*a]).then(a.cmp(b)));
    places.truncate(count);
    places
}

/// A router's choices of a row, and their weights.
fn choices(logits: &[f32], routing: &Routing<'_>) -> Vec<(usize, f32)> {
    let peak = logits.iter().copied().fold(f32::MIN, f32::max);
    let total: f32 = logits.iter().map(|x| (x - peak).exp()).sum();
    let score = |x: &f32| if routing.is_sigmoid { 1.0 / (1.0 + (-x).exp()) } else { (x - peak).exp() / total };
    let scores: Vec<f32> = logits.iter().map(score).collect();
    let mut ranks = scores.clone();
    for (rank, correction) in ranks.iter_mut().zip(routing.correction.unwrap_or_default()) {
        *rank += correction;
    }
    if let Some([count, kept, compared]) = routing.groups {
        let size = ranks.len() / count;
        let sums: Vec<f32> =
            ranks.chunks(size).map(|group| best(group, compared).iter().map(|place| group[*place]).sum()).collect();
        let kept = best(&sums, kept);
        for (place, rank) in ranks.iter_mut().enumerate() {
            if !kept.contains(&(place / size)) {
                *rank = f32::NEG_INFINITY;
            }
        }
    }
    let chosen = best(&ranks, routing.top_k);
    let sum: f32 = if routing.renormalize { chosen.iter().map(|place| scores[*place]).sum() } else { 1.0 };
    chosen.into_iter().map(|place| (place, scores[place] * routing.scale / sum)).collect()
}

/// Holds a router's choices against the host's.
pub(super) fn check_routes(program: &Program) -> Result<(), String> {
    let plain = Routing { top_k: 4, is_sigmoid: false, renormalize: true, scale: 1.0, correction: None, groups: None };
    let correction: Vec<f32> = Noise::new(3).values(64);
    let cases = [
        (8, Routing { top_k: 2, ..plain }),
        (128, Routing { top_k: 8, renormalize: false, ..plain }),
        (32, Routing { top_k: 32, ..plain }),
        (64, Routing { is_sigmoid: true, scale: 2.5, correction: Some(&correction), groups: Some([8, 3, 2]), ..plain }),
        (64, Routing { scale: 16.0, renormalize: false, groups: Some([4, 1, 1]), ..plain }),
        (64, Routing { top_k: 20, groups: Some([4, 1, 1]), ..plain }),
    ];
    for (count, routing) in cases {
        let rows = 5;
        let mut logits: Vec<f32> = Noise::new(count).values(rows * count).iter().map(|x| 4.0 * x).collect();
        // Equals, of which the first counts.
        (logits[3], logits[5]) = (4.5, 4.5);
        let shape = RouteShape::new(count, &routing).expect("choices that the kernel can make");
        let choices_all = rows * routing.top_k;
        let buffers = [
            bytes(&logits),
            bytes(routing.correction.unwrap_or_default()),
            bytemuck::bytes_of(&shape).to_vec(),
            empty(choices_all),
            empty(choices_all),
        ];
        let out = program.run(&RouteShape::launch(rows), &buffers)?;
        let expected: Vec<(usize, f32)> = logits.chunks(count).flat_map(|row| choices(row, &routing)).collect();
        let ours: Vec<usize> = words(&out[3]).into_iter().map(|expert| expert as usize).collect();
        if let Some(place) = (0..choices_all).find(|place| ours[*place] != expected[*place].0) {
            return Err(format!("choice {place} of {count} experts is {}, not {}", ours[place], expected[place].0));
        }
        let weights: Vec<f32> = expected.iter().map(|(_, weight)| *weight).collect();
        close(&values(&out[4]), &weights, 1e-5, "the weights of choices")?;
    }
    Ok(())
}

/// Holds sorted choices and their tiles against the host's.
pub(super) fn check_sort(program: &Program) -> Result<(), String> {
    let (experts, choices) = (45, 200);
    let chosen: Vec<u32> = (0..choices).map(|choice| (choice * choice % 97 % experts) as u32).collect();
    let plan = Plan::new(choices, experts, [Dtype::Q4K; 2]).expect("few enough experts");
    let (Plan::Tiles { rows, count }, Some(shape)) = (plan, SortShape::new(choices, experts, plan)) else {
        return Err("many choices are not sorted".into());
    };
    let buffers = [raw(&chosen), bytemuck::bytes_of(&shape).to_vec(), empty(choices), empty(4 * count)];
    let out = program.run(&SortShape::launch(), &buffers)?;
    let mut order: Vec<u32> = (0..choices as u32).collect();
    order.sort_by_key(|choice| chosen[*choice as usize]);
    let mut tiles = Vec::new();
    for group in order.chunk_by(|a, b| chosen[*a as usize] == chosen[*b as usize]) {
        let first = order.iter().position(|choice| *choice == group[0]).unwrap_or_default();
        for (place, tile) in group.chunks(rows).enumerate() {
            tiles.extend([chosen[tile[0] as usize], (first + place * rows) as u32, tile.len() as u32, 0]);
        }
    }
    tiles.resize(4 * count, 0);
    for (what, ours, expected) in [("choices", &out[2], order), ("tiles", &out[3], tiles)] {
        let ours = words(ours);
        if let Some(place) = (0..expected.len()).find(|place| ours[*place] != expected[*place]) {
            return Err(format!("number {place} of sorted {what} is {}, not {}", ours[place], expected[place]));
        }
    }
    Ok(())
}

/// Experts of a layer, and how many rows choose among them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mixture {
    pub(super) rows: usize,
    pub(super) experts: usize,
    pub(super) top_k: usize,
    pub(super) dtypes: [Dtype; 2],
    pub(super) has_bias: bool,
    pub(super) glu: Glu,
}

const WIDTH: usize = 256;
const INNER: usize = 288;

/// Matrices of all experts in one buffer with gaps between them, and where each begins.
fn stacked(
    dtype: Dtype,
    experts: usize,
    outputs: usize,
    inputs: usize,
    seed: usize,
) -> (Vec<Weight>, Vec<u8>, Vec<u64>) {
    let (mut bytes, mut starts, mut weights) = (Vec::new(), Vec::new(), Vec::new());
    for expert in 0..experts {
        let weight = Weight::noise(dtype, outputs, inputs, seed + expert);
        bytes.resize(bytes.len().next_multiple_of(32) + 32 * (expert % 2), 0xFF);
        starts.push(bytes.len() as u64);
        bytes.extend_from_slice(&weight.bytes);
        weights.push(weight);
    }
    (weights, bytes, starts)
}

fn dot(x: &[f64], row: &[f32]) -> f64 {
    x.iter().zip(row).map(|(x, w)| x * f64::from(*w)).sum()
}

/// Holds a mixture against sums in double precision.
pub(super) fn check_mixture(program: &Program, case: &Mixture) -> Result<(), String> {
    let Mixture { rows, experts, top_k, dtypes, has_bias, glu } = *case;
    let choices = rows * top_k;
    let x = Noise::new(1).values(rows * WIDTH);
    let weights = Noise::new(2).values(choices);
    // Some experts have many choices, some have none.
    let chosen: Vec<u32> =
        (0..choices).map(|choice| ((choice * choice / 3 + choice % top_k) % experts) as u32).collect();
    let gates = stacked(dtypes[0], experts, INNER, WIDTH, 100);
    let ups = stacked(dtypes[0], experts, INNER, WIDTH, 200);
    let downs = stacked(dtypes[1], experts, WIDTH, INNER, 300);
    let biases = [INNER, INNER, WIDTH].map(|outputs| Noise::new(outputs).values(experts * outputs));

    let plan = Plan::new(choices, experts, dtypes).expect("few enough experts");
    let (mut order, mut tiles) = (raw(&chosen), Vec::new());
    if let Some(shape) = SortShape::new(choices, experts, plan) {
        let Plan::Tiles { count, .. } = plan else { return Err("a plan without tiles is sorted".into()) };
        let buffers = [raw(&chosen), bytemuck::bytes_of(&shape).to_vec(), empty(choices), empty(4 * count)];
        let sorted = program.run(&SortShape::launch(), &buffers)?;
        (order, tiles) = (sorted[2].clone(), sorted[3].clone());
    }
    let run = |half: &Half, sharing, x: &[f32], gate: &[u8], up: &[u8], starts: &[u64], biases: [&[f32]; 2]| {
        let shape = ExpertShape::new(choices, sharing, half).expect("a format that the kernels read");
        let buffers = [
            bytes(x),
            gate.to_vec(),
            up.to_vec(),
            bytemuck::cast_slice(starts).to_vec(),
            bytes(biases[0]),
            bytes(biases[1]),
            order.clone(),
            tiles.clone(),
            bytemuck::bytes_of(&shape).to_vec(),
            empty(choices * half.outputs),
        ];
        let launch = shape.launch(plan);
        program.run(&launch, &buffers).map(|out| (launch.kernel, values(&out[9])))
    };
    let pairs = |a: &[u64], b: &[u64]| a.iter().zip(b).flat_map(|(a, b)| [*a, *b]).collect::<Vec<_>>();
    let half = Half { dtype: dtypes[0], inputs: WIDTH, outputs: INNER, has_bias, glu: Some(glu) };
    let (kernel, hidden) = match glu == Glu::Square {
        true => run(&half, top_k, &x, &ups.1, &[], &pairs(&ups.2, &ups.2), [&biases[1], &[]])?,
        false => run(&half, top_k, &x, &gates.1, &ups.1, &pairs(&gates.2, &ups.2), [&biases[0], &biases[1]])?,
    };
    let half = Half { dtype: dtypes[1], inputs: INNER, outputs: WIDTH, has_bias, glu: None };
    let (_, made) = run(&half, 1, &hidden, &downs.1, &[], &pairs(&downs.2, &downs.2), [&biases[2], &[]])?;
    let shape = CombineShape { rows: rows as u32, top_k: top_k as u32, width: WIDTH as u32 };
    let buffers = [bytes(&made), bytes(&weights), bytemuck::bytes_of(&shape).to_vec(), empty(rows * WIDTH)];
    let out = values(&program.run(&shape.launch(), &buffers)?[3]);

    let rows_of = |stack: &[Weight]| stack.iter().map(|weight| read_by(kernel, weight)).collect::<Vec<_>>();
    let (gates, ups, downs) = (rows_of(&gates.0), rows_of(&ups.0), rows_of(&downs.0));
    let bias = |which: usize, expert: usize, output: usize, outputs: usize| match has_bias {
        true => f64::from(biases[which][expert * outputs + output]),
        false => 0.0,
    };
    for row in 0..rows {
        let x: Vec<f64> = x[row * WIDTH..(row + 1) * WIDTH].iter().map(|x| f64::from(*x)).collect();
        let (mut sums, mut sizes) = (vec![0.0; WIDTH], vec![0.0; WIDTH]);
        for choice in row * top_k..(row + 1) * top_k {
            let (expert, weight) = (chosen[choice] as usize, f64::from(weights[choice]));
            let inner = |output: usize| {
                let gate = dot(&x, &gates[expert][output]) + bias(0, expert, output, INNER);
                gated(glu, gate, dot(&x, &ups[expert][output]) + bias(1, expert, output, INNER))
            };
            let hidden: Vec<f64> = (0..INNER).map(inner).collect();
            for output in 0..WIDTH {
                let down = &downs[expert][output];
                sums[output] += weight * (dot(&hidden, down) + bias(2, expert, output, WIDTH));
                let size: f64 = hidden.iter().zip(down).map(|(x, w)| (x * f64::from(*w)).abs()).sum();
                sizes[output] += weight.abs() * (size + 1.0) * 10.0;
            }
        }
        for output in 0..WIDTH {
            let what = format!("{case:?}, {kernel}: value {output} of row {row}");
            near(out[row * WIDTH + output], sums[output], sizes[output], allowed(kernel), &what)?;
        }
    }
    Ok(())
}

const MIXTRAL: Mixture = Mixture {
    rows: 1,
    experts: 4,
    top_k: 2,
    dtypes: [Dtype::Q4K, Dtype::Q8_0],
    has_bias: false,
    glu: Glu::Plain(Activation::Silu),
};

/// Mixtures of all families by each of their ways: single choices, small tiles and large ones.
pub(super) const MIXTURES: [Mixture; 7] = [
    Mixture { rows: 2, ..MIXTRAL },
    Mixture { rows: 7, ..MIXTRAL },
    Mixture { rows: 40, experts: 2, ..MIXTRAL },
    Mixture { rows: 2, ..GPT_OSS },
    Mixture { rows: 9, ..GPT_OSS },
    Mixture { rows: 18, experts: 4, ..GPT_OSS },
    Mixture { rows: 5, glu: Glu::Square, dtypes: [Dtype::F16, Dtype::Q5_0], ..MIXTRAL },
];

const GPT_OSS: Mixture = Mixture {
    experts: 6,
    top_k: 4,
    dtypes: [Dtype::MXFP4, Dtype::MXFP4],
    has_bias: true,
    glu: Glu::Clamped { alpha: 1.702, limit: 7.0 },
    ..MIXTRAL
};

#[test]
fn a_router_on_metal_chooses_as_the_host_does() {
    check_routes(&PROGRAM).unwrap();
}

#[test]
fn choices_on_metal_are_sorted_into_tiles_of_one_expert() {
    check_sort(&PROGRAM).unwrap();
}

#[test]
fn mixtures_on_metal_are_the_sums_of_their_experts() {
    for mixture in MIXTURES {
        check_mixture(&PROGRAM, &mixture).unwrap();
    }
    let plans = MIXTURES.map(|it| Plan::new(it.rows * it.top_k, it.experts, it.dtypes));
    for rows in [8, 32] {
        assert!(
            plans.iter().any(|plan| matches!(plan, Some(Plan::Tiles { rows: it, .. }) if *it == rows)),
            "{plans:?}"
        );
    }
    assert!(plans.contains(&Some(Plan::Single)), "{plans:?}");
}

#[test]
fn more_experts_than_a_threadgroup_holds_are_declined() {
    let plain = Routing { top_k: 4, is_sigmoid: false, renormalize: true, scale: 1.0, correction: None, groups: None };
    assert!(RouteShape::new(1024, &plain).is_some());
    assert!(RouteShape::new(1025, &plain).is_none());
    assert!(RouteShape::new(3, &plain).is_none());
    assert!(RouteShape::new(64, &Routing { correction: Some(&[0.0; 3]), ..plain }).is_none());
    assert!(Plan::new(8, 1025, [Dtype::Q4K; 2]).is_none());
    assert!(
        ExpertShape::new(8, 1, &Half { dtype: Dtype::IQ1S, inputs: 256, outputs: 8, has_bias: false, glu: None })
            .is_none()
    );
}
