//! A model with experts on the Metal backend: routers, experts in all their forms, norms of heads, a block without a gate, and
//! candidates under masks.

use super::*;
use crate::{
    VACANT,
    nn::{ExpertNames, Experts, Glu, Groups, Mlp, Router, Scoring},
};

const EXPERTS: usize = 8;
const TOP_K: usize = 2;
const LAYERS: usize = 3;

/// Its layers differ in how they route, and in the form of their experts.
struct Mixture {
    embed_tokens: Embedding,
    layers: Vec<Block>,
    norm: RmsNorm,
    rope: Rope,
    lm_head: Linear,
}

struct Block {
    input_norm: RmsNorm,
    qkv_proj: Qkv,
    o_proj: Linear,
    attention: Attention,
    post_norm: RmsNorm,
    router: Router,
    experts: Experts,
    mlp: Mlp,
}

/// How the experts of a layer are gated: gpt-oss's way, the usual one, and without a gate.
const GLUS: [Glu; LAYERS] = [Glu::Clamped { alpha: 1.702, limit: 7.0 }, Glu::Plain(Activation::Silu), Glu::Square];

impl Decoder for Mixture {
    const NAME: &'static str = "mixture";
    const GGUF: &'static [&'static str] = &[];
    const CLASSES: &'static [&'static str] = &["Mixture"];
    const FEATURES: bool = true;
    type Config = RopeConfig;

    fn config(checkpoint: &Checkpoint) -> Result<RopeConfig> {
        checkpoint.config().rope()
    }

    fn shape(_: &RopeConfig) -> Shape {
        let kv = KvShape::uniform(LAYERS, KV_HEADS, HEAD_DIM);
        Shape { vocabulary: VOCABULARY, context: 4096, widest: INNER, kv }
    }

    fn load(loader: &Loader<'_>, rope: &RopeConfig) -> Result<Self> {
        let layer = |index: usize| {
            let loader = loader.at("layers").at(index);
            let attention = Attention::new(index, HEADS, KV_HEADS, HEAD_DIM)?;
            let norm = |name: &str| RmsNorm::load(&loader, name, HEAD_DIM, 1e-6);
            let router = Router::load(&loader, "router", WIDTH, EXPERTS, TOP_K)?;
            let router = match index {
                0 => Router { renormalize: true, ..router },
                1 => {
                    let router = router.with_correction(&loader, &["router.correction"], EXPERTS)?;
                    let groups = Some(Groups { count: 4, kept: 2, compared: 2 });
                    Router { scoring: Scoring::Sigmoid, scale: 1.5, groups, ..router }
                }
                _ => router,
            };
            let sizes = (EXPERTS, WIDTH, INNER);
            Ok(Block {
                input_norm: RmsNorm::load(&loader, "input_norm", WIDTH, 1e-5)?,
                qkv_proj: Qkv::load(&loader, WIDTH, &attention)?.with_norms(norm("q_norm")?, norm("k_norm")?),
                o_proj: loader.linear("o_proj", WIDTH, WIDTH)?,
                attention,
                post_norm: RmsNorm::load(&loader, "post_norm", WIDTH, 1e-5)?,
                router,
                experts: Experts::load(&loader.at("experts"), ExpertNames::default(), sizes, GLUS[index])?,
                mlp: Mlp::load(&loader.at("mlp"), WIDTH, INNER, Activation::GeluTanh)?,
            })
        };
        Ok(Self {
            embed_tokens: loader.embedding("embed_tokens", VOCABULARY, WIDTH)?,
            layers: (0..LAYERS).map(layer).collect::<Result<_>>()?,
            norm: RmsNorm::load(loader, "norm", WIDTH, 1e-5)?,
            rope: Rope::new(rope, HEAD_DIM, loader.context())?,
            lm_head: loader.linear("lm_head", WIDTH, VOCABULARY)?,
        })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let angles = self.rope.angles(step)?;
        let mut x = self.embed_tokens.forward(step)?;
        for layer in &self.layers {
            let [q, k, v] = layer.qkv_proj.forward(&layer.input_norm.forward(&x, step)?, step)?;
            x = layer.o_proj.add_to(&x, &layer.attention.forward(&q, &k, &v, Some(&angles), step)?, step)?;
            let normed = layer.post_norm.forward(&x, step)?;
            let routed = layer.experts.forward(&normed, &layer.router.forward(&normed, step)?, step)?;
            x = layer.mlp.add_to(&step.ops().add(&x, &routed)?, &normed, step)?;
        }
        Ok(x)
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.lm_head.forward(&self.norm.forward(hidden, step)?, step)
    }

    fn features(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.norm.forward(hidden, step)
    }
}

fn checkpoint(folder: &Path) {
    let mut tensors = vec![
        ("embed_tokens.weight".to_owned(), vec![VOCABULARY, WIDTH]),
        ("norm.weight".to_owned(), vec![WIDTH]),
        ("lm_head.weight".to_owned(), vec![VOCABULARY, WIDTH]),
    ];
    for (layer, glu) in GLUS.into_iter().enumerate() {
        let mut add = |name: &str, shape: Vec<usize>| tensors.push((format!("layers.{layer}.{name}"), shape));
        for (name, width) in [("input_norm", WIDTH), ("post_norm", WIDTH), ("q_norm", HEAD_DIM), ("k_norm", HEAD_DIM)] {
            add(&format!("{name}.weight"), vec![width]);
        }
        for (name, outputs) in [("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS), ("o", HEADS)] {
            add(&format!("{name}_proj.weight"), vec![outputs * HEAD_DIM, WIDTH]);
        }
        add("router.weight", vec![EXPERTS, WIDTH]);
        add("mlp.fc1.weight", vec![INNER, WIDTH]);
        add("mlp.fc1.bias", vec![INNER]);
        add("mlp.fc2.weight", vec![WIDTH, INNER]);
        match layer {
            0 => {
                add("experts.gate_up_proj", vec![EXPERTS, 2 * INNER, WIDTH]);
                add("experts.down_proj", vec![EXPERTS, WIDTH, INNER]);
                for (name, outputs) in [("gate", INNER), ("up", INNER), ("down", WIDTH)] {
                    add(&format!("experts.{name}_proj.bias"), vec![EXPERTS, outputs]);
                }
            }
            _ => {
                if layer == 1 {
                    add("router.correction", vec![EXPERTS]);
                }
                for expert in 0..EXPERTS {
                    if glu != Glu::Square {
                        add(&format!("experts.{expert}.gate_proj.weight"), vec![INNER, WIDTH]);
                    }
                    add(&format!("experts.{expert}.up_proj.weight"), vec![INNER, WIDTH]);
                    add(&format!("experts.{expert}.down_proj.weight"), vec![WIDTH, INNER]);
                }
            }
        }
    }
    random_checkpoint(folder, r#"{"architectures": ["Mixture"], "hidden_size": 64}"#, &tensors).unwrap();
}

/// The model by formulas, and on the recording driver.
fn both() -> (PagedModel<Mixture>, PagedModel<Mixture>, Double) {
    let folder = tempfile::tempdir().unwrap();
    checkpoint(folder.path());
    let double = Double::default();
    let formulas = open(folder.path(), Arc::new(Formulas::plain(Device::Cpu)), 1 << 20);
    (formulas, open(folder.path(), double.untried(), 1 << 20), double)
}

#[test]
fn a_mixture_of_experts_computes_on_metal_what_the_formulas_compute() {
    let (mut formulas, mut ours, double) = both();
    let mapped = double.record().mapped.len();
    // Beside the table and the head: the two halves of all experts, four layers of attention, two of the other block, and the
    // router.
    assert_eq!(mapped, 2 + 9 * LAYERS, "each half of a layer's experts is one window: {:?}", double.record().mapped);
    for is_deferred in [false, true] {
        *double.record() = Default::default();
        double.record().is_deferred = is_deferred;
        for new in STEPS {
            assert_close(&step(&mut ours, new).unwrap(), &step(&mut formulas, new).unwrap());
        }
        let record = double.record();
        assert_eq!(record.command_buffers.len(), STEPS.len(), "the choices stay on the device");
        let [prompt, .., decode] = record.command_buffers.as_slice() else { panic!("{record:?}") };
        let of = |kernels: &[&str], name| kernels.iter().filter(|kernel| **kernel == name).count() / LAYERS;
        let names = ["rms_norm_heads", "route", "sort_choices", "experts_1", "experts_8", "combine"];
        assert_eq!(names.map(|name| of(prompt, name)), [1, 1, 1, 0, 2, 1]);
        assert_eq!(names.map(|name| of(decode, name)), [1, 1, 0, 2, 0, 1]);
        assert_eq!(of(decode, "bias_act_scale"), 0, "an activation is part of its product");
        assert_eq!(record.reads.len(), STEPS.len() - 1, "one read-back for each step with an output");
        assert_eq!(record.allocations, Vec::<usize>::new());
    }
}

#[test]
fn experts_are_computed_on_the_host_s_choices_where_the_compiler_has_refused_a_kernel() {
    let (mut formulas, mut ours, double) = both();
    let expected = step(&mut formulas, STEPS[1]).unwrap();
    for missing in ["route", "sort_choices", "experts_8", "combine"] {
        *double.record() = Default::default();
        double.record().missing = Some(missing);
        assert_close(&step(&mut ours, STEPS[1]).unwrap(), &expected);
        assert!(!double.record().command_buffers.concat().contains(&missing));
    }
}

/// Candidates of a decode of two sequences: ids, scores, totals.
fn candidates(model: &mut impl Model, top: usize, masks: [&[u32]; 2]) -> (Vec<u32>, Vec<f32>, Vec<f32>) {
    let new = [0, 1].map(|sequence| New { sequence, past: 5, len: 1, want: Want::Last });
    with_batch(&new, Output::Candidates, |batch| {
        let mut batch = Batch { top, ..batch.clone() };
        batch.spans.iter_mut().zip(masks).for_each(|(span, mask)| span.mask = mask);
        let (mut ids, mut scores, mut totals) = (vec![0; 2 * top], vec![0.0; 2 * top], vec![0.0; 4]);
        let candidates = CandidateRows { ids: &mut ids, scores: &mut scores, totals: &mut totals };
        let (logits, hidden, vocabulary) = (&mut [][..], &mut [][..], VOCABULARY);
        model.forward_to(&batch, &mut Outputs { logits, candidates, hidden, vocabulary }).unwrap();
        (ids, scores, totals)
    })
}

#[test]
fn candidates_under_masks_are_found_on_the_device_and_read_at_once() {
    let (mut formulas, (mut ours, double)) = (formulas::<2>(), recorded::<2>(1 << 20));
    let prompt = [0, 1].map(|sequence| New { sequence, past: 0, len: 5, want: Want::None });
    step(&mut formulas, &prompt).unwrap();
    let few = [0x0100_8000, 0, 0x8000_0001];
    for is_deferred in [false, true] {
        // What is computed at once lies elsewhere than what is computed when the host waits.
        double.record().is_deferred = is_deferred;
        step(&mut ours, &prompt).unwrap();
        for (top, masks) in [(20, [&[][..], &[][..]]), (8, [&few[..], &[]]), (1, [&few, &few])] {
            *double.record() = Default::default();
            double.record().is_deferred = is_deferred;
            let (ids, scores, totals) = candidates(&mut ours, top, masks);
            let expected = candidates(&mut formulas, top, masks);
            let finite = |scores: &[f32]| scores.iter().map(|score| score.max(-1e3)).collect::<Vec<_>>();
            assert_close(&finite(&scores), &finite(&expected.1));
            assert_close(&totals, &expected.2);
            for (row, mask) in masks.iter().enumerate().filter(|(_, mask)| !mask.is_empty()) {
                let mut ids: Vec<u32> = ids[row * top..][..top].to_vec();
                assert!(ids.iter().all(|id| *id == VACANT || mask[*id as usize / 32] >> (id % 32) & 1 == 1), "{ids:?}");
                ids.retain(|id| *id != VACANT);
                assert_eq!(ids.len(), top.min(4));
            }
            let record = double.record();
            assert_eq!(record.reads, [4 * 2 * (2 * top + 2)], "one read-back of all rows");
            assert_eq!(record.command_buffers.concat().last(), Some(&"candidates"));
        }
    }
}
