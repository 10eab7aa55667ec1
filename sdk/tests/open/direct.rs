//! A model by an author who implements `Architecture` and `Model`, and still has quantized layers, caches and adapters.

use pensieve_sdk::{
    AdapterData, Architecture, Batch, Card, KvTransfer, LoadRequest, LowRankPair, Model, Output, Outputs, Resident,
    Result, Services, Source,
    nn::{
        Attention, Embedding, KvShape, Linear, Loader, ModelOptions, ModelPlan, Qkv, RmsNorm, Runtime, Shape, Tensor,
    },
    testing::{Options, conformance_with, with_adapter},
    weights::Checkpoint,
};

use crate::lab::{self, HEAD_DIM, HEADS, KV_HEADS, VOCABULARY, WIDTH};

struct Family;

struct Layers {
    embed_tokens: Embedding,
    norm: RmsNorm,
    qkv_proj: Qkv,
    attention: Attention,
    o_proj: Linear,
    lm_head: Linear,
}

struct Direct {
    layers: Layers,
    runtime: Runtime,
}

impl Layers {
    fn load(loader: &Loader<'_>) -> Result<Self> {
        let attention = Attention::new(0, HEADS, KV_HEADS, HEAD_DIM)?;
        Ok(Self {
            embed_tokens: loader.embedding("embed_tokens", VOCABULARY, WIDTH)?,
            norm: RmsNorm::load(loader, "attn_norm", WIDTH, 1e-5)?,
            qkv_proj: Qkv::load(loader, WIDTH, &attention)?,
            attention,
            o_proj: loader.linear("o_proj", WIDTH, WIDTH)?,
            lm_head: loader.linear("lm_head", WIDTH, VOCABULARY)?,
        })
    }
}

fn plan(source: &Source) -> Result<ModelPlan> {
    let options = ModelOptions::read(source, &[])?;
    let kv = KvShape::uniform(1, KV_HEADS, HEAD_DIM);
    let shape = Shape { vocabulary: VOCABULARY, context: 256, widest: WIDTH, kv };
    Ok(ModelPlan::new("direct", Checkpoint::open(&source.path)?, shape, options)?.with_hidden(WIDTH))
}

impl Architecture for Family {
    fn name(&self) -> &'static str {
        "direct"
    }

    fn describe(&self, source: &Source) -> Result<Card> {
        plan(source)?.card()
    }

    fn load(&self, request: &LoadRequest, services: &Services) -> Result<Box<dyn Model>> {
        let (layers, runtime) = plan(&request.source)?.load(request, services, &[], Layers::load)?;
        Ok(Box::new(Direct { layers, runtime }))
    }
}

impl Model for Direct {
    fn resident(&self) -> Resident {
        self.runtime.resident()
    }

    fn forward(&mut self, batch: &Batch<'_>, logits: &mut [f32]) -> Result<()> {
        self.compute(batch, logits, &mut [])
    }

    fn forward_to(&mut self, batch: &Batch<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let rows: usize = rows(batch, false).len();
        let mut logits = vec![0.0; rows * outputs.vocabulary()];
        self.compute(batch, &mut logits, outputs.hidden)?;
        outputs.take_logits(batch, &logits)
    }

    fn release(&mut self, _: u64) {}

    fn attach(&mut self, adapter: &AdapterData) -> Result<u32> {
        self.runtime.attach(adapter)
    }

    fn detach(&mut self, adapter: u32) -> Result<()> {
        self.runtime.detach(adapter)
    }

    fn kv_transfer(&mut self) -> Option<&mut dyn KvTransfer> {
        Some(self.runtime.kv_transfer())
    }
}

impl Direct {
    /// One pass for logits of some spans and hidden rows of the others.
    fn compute(&mut self, batch: &Batch<'_>, logits: &mut [f32], hidden: &mut [f32]) -> Result<()> {
        let (layers, mut step) = (&self.layers, self.runtime.step(batch)?);
        let ops = step.ops();
        let x = layers.embed_tokens.forward(&step)?;
        let [q, k, v] = layers.qkv_proj.forward(&layers.norm.forward(&x, &step)?, &step)?;
        let attended = layers.attention.forward(&q, &k, &v, None, &mut step)?;
        let x = layers.o_proj.add_to(&x, &attended, &step)?;
        if !hidden.is_empty() {
            ops.read(&ops.select_rows(&x, &rows(batch, true))?, hidden)?;
        }
        if logits.is_empty() {
            return ops.finish();
        }
        let wanted: Tensor = step.wanted(&x, &rows(batch, false))?;
        ops.read(&layers.lm_head.forward(&wanted, &step)?, logits)
    }
}

/// The tokens whose hidden rows are wanted, or those whose logits are.
fn rows(batch: &Batch<'_>, hidden: bool) -> Vec<u32> {
    let spans = batch.spans.iter().filter(|span| (span.output == Output::Hidden) == hidden);
    spans.flat_map(pensieve_sdk::Span::wanted).collect()
}

fn adapter() -> AdapterData {
    let (rank, inputs, outputs) = (2, WIDTH, WIDTH);
    let values = |count: usize| (0..count).map(|at| ((at * 37 % 11) as f32 - 5.0) / 10.0).collect();
    let (a, b) = (values(rank * inputs), values(outputs * rank));
    let pair = LowRankPair { target: "o_proj".into(), rank, inputs, outputs, scale: 1.0, a, b };
    AdapterData { base: String::new(), fingerprint: "own".into(), pairs: vec![pair] }
}

#[test]
fn a_model_written_without_a_decoder_obeys_the_laws_with_adapters_and_hidden_rows() {
    let folder = tempfile::tempdir().unwrap();
    lab::checkpoint(folder.path());
    let card = plan(&Source::new(folder.path())).unwrap();
    assert_eq!(card.checkpoint().architecture(), "Lab");
    let model = Family.load(&lab::request(folder.path(), r#"{"kv": "f32"}"#.into()), &Services::silent()).unwrap();
    let options = with_adapter(Options { positionless: true, ..Options::default() }, adapter()).unwrap();
    let report = conformance_with(model, &options);
    assert!(report.passed(), "{report}");
    for law in ["hidden", "kv-transfer", "adapter-fits", "adapter-scale", "adapter-apart"] {
        let outcome = report.outcome(law).unwrap();
        assert!(!matches!(outcome, pensieve_sdk::testing::Outcome::NotApplicable { .. }), "{law}: {outcome:?}");
    }
}
