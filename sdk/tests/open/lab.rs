//! A decoder of one block whose parts are chosen by an option of its own.

use pensieve_sdk::{
    Architecture, Batch, LoadRequest, Model, Output, Result, Services, Source, Span, Table, Want,
    nn::{
        Activation, ActivationFn, Attention, AttentionCache, Decoder, Embedding, Expert, Experts, GateFn, GatedMlp,
        Glu, HyperConnections, KvShape, LayerCache, Linear, Loader, ModelOptions, Paged, Positions, Qkv, RmsNorm,
        Router, Routes, Shape, Step, Tensor,
    },
    testing::random_checkpoint,
    weights::Checkpoint,
};
use std::path::Path;

pub(crate) const WIDTH: usize = 32;
pub(crate) const HEADS: usize = 4;
pub(crate) const KV_HEADS: usize = 2;
pub(crate) const HEAD_DIM: usize = WIDTH / HEADS;
pub(crate) const INNER: usize = 48;
pub(crate) const VOCABULARY: usize = 64;
const CONTEXT: usize = 256;
const EXPERTS: usize = 5;
const TOP_K: usize = 2;
const STREAMS: usize = 3;
/// Positions that a token of the sparse variants attends to.
const SPARSE: usize = 20;

pub(crate) struct Lab {
    embed_tokens: Embedding,
    norms: [RmsNorm; 2],
    qkv_proj: Qkv,
    o_proj: Linear,
    attention: Attention,
    index_proj: Linear,
    mlp: GatedMlp,
    router: Router,
    /// Used by the variants that compute experts themselves.
    expert_layers: Vec<Expert>,
    experts: Experts,
    hyper: Vec<HyperConnections>,
    lm_head: Linear,
    variant: String,
}

fn silu(x: &Tensor) -> Result<Tensor> {
    Ok((x * (x.neg()?.exp()? + 1.0)?.recip()?)?)
}

/// The gate of the MLP and that of the experts.
fn gates(variant: &str) -> [GateFn; 2] {
    let known = || GateFn::from(Glu::Plain(Activation::Silu));
    match variant {
        "closure-activation" => [GateFn::from(ActivationFn::new(|x, _| silu(x))), known()],
        "closure-gate" => [GateFn::new(|gate, up, _| Ok((silu(gate)? * up)?)), known()],
        "closure-experts" => [known(), GateFn::new(|gate, up, ops| ops.gate(gate, up, Activation::Silu))],
        _ => [known(), known()],
    }
}

impl Decoder for Lab {
    const NAME: &'static str = "lab";
    const GGUF: &'static [&'static str] = &[];
    const CLASSES: &'static [&'static str] = &["Lab"];
    const OPTIONS: &'static [&'static str] = &["variant"];
    type Config = String;

    fn config(_: &Checkpoint) -> Result<String> {
        Ok("plain".into())
    }

    fn config_with(checkpoint: &Checkpoint, options: &ModelOptions) -> Result<String> {
        options.get("variant")?.map_or_else(|| Self::config(checkpoint), Ok)
    }

    fn shape(_: &String) -> Shape {
        let index = AttentionCache { value_dim: 0, ..AttentionCache::new(1, HEAD_DIM) };
        let caches = [AttentionCache::new(KV_HEADS, HEAD_DIM), index].map(LayerCache::Attention);
        Shape { vocabulary: VOCABULARY, context: CONTEXT, widest: INNER, kv: KvShape::new(caches.to_vec()) }
    }

    fn load(loader: &Loader<'_>, variant: &String) -> Result<Self> {
        let window = (variant == "window").then_some(SPARSE);
        let attention = Attention { window, ..Attention::new(0, HEADS, KV_HEADS, HEAD_DIM)? };
        let [of_mlp, of_experts] = gates(variant);
        let experts = loader.at("experts");
        let expert = |index: usize| {
            let here = experts.at(index);
            Ok(Expert {
                gate: here.linear("gate_proj", WIDTH, INNER)?,
                up: here.linear("up_proj", WIDTH, INNER)?,
                down: here.linear("down_proj", INNER, WIDTH)?,
            })
        };
        let expert_layers: Vec<Expert> = (0..EXPERTS).map(expert).collect::<Result<_>>()?;
        let norm = |name: &str| RmsNorm::load(loader, name, WIDTH, 1e-5);
        let hyper = |name: &str| HyperConnections::load(&loader.at(name), STREAMS, WIDTH, 1e-5);
        Ok(Self {
            embed_tokens: loader.embedding("embed_tokens", VOCABULARY, WIDTH)?,
            norms: [norm("attn_norm")?, norm("mlp_norm")?],
            qkv_proj: Qkv::load(loader, WIDTH, &attention)?,
            o_proj: loader.linear("o_proj", WIDTH, WIDTH)?,
            attention,
            index_proj: loader.linear("index_proj", WIDTH, HEAD_DIM)?,
            mlp: GatedMlp::load(&loader.at("mlp"), WIDTH, INNER, of_mlp)?,
            router: Router { renormalize: true, ..Router::load(loader, "router", WIDTH, EXPERTS, TOP_K)? },
            experts: Experts::new(expert_layers.clone(), of_experts),
            expert_layers,
            hyper: vec![hyper("attn_hc")?, hyper("mlp_hc")?],
            lm_head: loader.linear("lm_head", WIDTH, VOCABULARY)?,
            variant: variant.clone(),
        })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let x = self.embed_tokens.forward(step)?;
        if self.variant == "hyper" {
            return self.hidden_in_streams(&x, step);
        }
        let out = self.attend(&self.norms[0].forward(&x, step)?, step)?;
        let x = step.ops().add(&x, &out)?;
        let out = self.feed_forward(&self.norms[1].forward(&x, step)?, step)?;
        step.ops().add(&x, &out)
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.lm_head.forward(hidden, step)
    }
}

impl Lab {
    fn hidden_in_streams(&self, x: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        let streams = HyperConnections::expand(x, STREAMS)?;
        let (x, mix) = self.hyper[0].read(&streams, step)?;
        let streams = mix.write(&self.attend(&self.norms[0].forward(&x, step)?, step)?)?;
        let (x, mix) = self.hyper[1].read(&streams, step)?;
        let streams = mix.write(&self.feed_forward(&self.norms[1].forward(&x, step)?, step)?)?;
        Ok(self.hyper[0].read(&streams, step)?.0)
    }

    fn attend(&self, x: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        let [q, k, v] = self.qkv_proj.forward(x, step)?;
        let out = match self.variant.as_str() {
            "attention-of-cached" => self.attend_to_cached(&q, &k, &v, step)?,
            "all-positions" | "last-positions" => {
                let count = if self.variant == "all-positions" { CONTEXT } else { SPARSE };
                let recent =
                    |span: &Span<'_>, row| Ok((0..span.past + span.len).map(|at| at as f32 - row as f32).collect());
                let chosen = positions(step, count, recent)?;
                self.attention.forward_chosen(&q, &k, Some(&v), &chosen, step)?
            }
            "best-positions" => {
                let chosen = self.indexed(x, step)?;
                self.attention.forward_chosen(&q, &k, Some(&v), &chosen, step)?
            }
            _ => self.attention.forward(&q, &k, &v, None, step)?,
        };
        self.o_proj.forward(&out, step)
    }

    /// Chooses the positions whose index keys are most like a token's own.
    fn indexed(&self, x: &Tensor, step: &mut Step<'_>) -> Result<Positions> {
        let keys = self.index_proj.forward(x, step)?;
        step.remember(1, &keys, None)?;
        let spans = &step.batch().spans;
        Positions::best(spans, SPARSE, |span| {
            let queries = keys.narrow(0, spans[span].start, spans[span].len)?;
            let cached = step.cached_keys(1, span)?;
            Ok(queries.matmul(&cached.t()?)?.flatten_all()?.to_vec1()?)
        })
    }

    /// Plain attention in tensor operations over what the cache holds.
    fn attend_to_cached(&self, q: &Tensor, k: &Tensor, v: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        step.remember(0, k, Some(v))?;
        let mut outs = Vec::new();
        for (index, span) in step.batch().spans.iter().enumerate() {
            let seen = span.past + span.len;
            let widened = |x: Tensor| -> Result<Tensor> {
                // Each cache head serves `HEADS / KV_HEADS` query heads that follow each other.
                let x = x.reshape((seen, KV_HEADS, 1, HEAD_DIM))?.repeat((1, 1, HEADS / KV_HEADS, 1))?;
                Ok(x.reshape((seen, HEADS, HEAD_DIM))?.transpose(0, 1)?.contiguous()?)
            };
            let keys = widened(step.cached_keys(0, index)?)?;
            let values = widened(step.cached_values(0, index)?)?;
            let q = q.narrow(0, span.start, span.len)?.reshape((span.len, HEADS, HEAD_DIM))?;
            let q = q.transpose(0, 1)?.contiguous()?;
            let scores = (q.matmul(&keys.transpose(1, 2)?.contiguous()?)? * f64::from(self.attention.scale))?;
            let hidden = |row: usize, at: usize| if at <= span.past + row { 0.0 } else { f32::NEG_INFINITY };
            let mask: Vec<f32> = (0..span.len).flat_map(|row| (0..seen).map(move |at| hidden(row, at))).collect();
            let mask = Tensor::from_vec(mask, (1, span.len, seen), q.device())?;
            let weights = scores.broadcast_add(&mask)?;
            let weights = weights.broadcast_sub(&weights.max_keepdim(2)?)?.exp()?;
            let weights = weights.broadcast_div(&weights.sum_keepdim(2)?)?;
            outs.push(weights.matmul(&values)?.transpose(0, 1)?.contiguous()?.reshape((span.len, WIDTH))?);
        }
        Ok(Tensor::cat(&outs, 0)?)
    }

    fn feed_forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        match self.variant.as_str() {
            "experts" | "closure-experts" => self.experts.forward(x, &self.router.forward(x, step)?, step),
            "own-routes" => {
                let (chosen, weights) = self.router.forward(x, step)?.choices()?;
                self.experts.forward(x, &Routes::new(&chosen, weights, TOP_K)?, step)
            }
            "own-experts" => self.router.forward(x, step)?.apply(x, step, |expert, x, rows| {
                let Expert { gate, up, down } = &self.expert_layers[expert];
                let (gate, up) = (gate.forward_rows(x, rows, step)?, up.forward_rows(x, rows, step)?);
                down.forward_rows(&step.ops().gate(&gate, &up, Activation::Silu)?, rows, step)
            }),
            _ => self.mlp.forward(x, step),
        }
    }
}

/// Positions by scores that depend only on the span.
fn positions(
    step: &Step<'_>,
    count: usize,
    scores: impl Fn(&Span<'_>, usize) -> Result<Vec<f32>>,
) -> Result<Positions> {
    let spans = &step.batch().spans;
    Positions::best(spans, count, |span| {
        let rows = (0..spans[span].len).map(|row| scores(&spans[span], row)).collect::<Result<Vec<_>>>()?;
        Ok(rows.concat())
    })
}

/// Writes the weights of all variants.
pub(crate) fn checkpoint(folder: &Path) {
    let mut tensors: Vec<(String, Vec<usize>)> = Vec::new();
    let mut add = |name: String, shape: &[usize]| tensors.push((name, shape.to_vec()));
    add("embed_tokens.weight".into(), &[VOCABULARY, WIDTH]);
    add("lm_head.weight".into(), &[VOCABULARY, WIDTH]);
    for norm in ["attn_norm", "mlp_norm"] {
        add(format!("{norm}.weight"), &[WIDTH]);
    }
    for (name, heads) in [("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS), ("o", HEADS)] {
        add(format!("{name}_proj.weight"), &[heads * HEAD_DIM, WIDTH]);
    }
    add("index_proj.weight".into(), &[HEAD_DIM, WIDTH]);
    add("router.weight".into(), &[EXPERTS, WIDTH]);
    for block in (0..EXPERTS).map(|index| format!("experts.{index}")).chain(["mlp".into()]) {
        add(format!("{block}.gate_proj.weight"), &[INNER, WIDTH]);
        add(format!("{block}.up_proj.weight"), &[INNER, WIDTH]);
        add(format!("{block}.down_proj.weight"), &[WIDTH, INNER]);
    }
    for half in ["attn_hc", "mlp_hc"] {
        let rows = STREAMS * (STREAMS + 2);
        add(format!("{half}.fn"), &[rows, STREAMS * WIDTH]);
        add(format!("{half}.base"), &[rows]);
        add(format!("{half}.scale"), &[3]);
    }
    random_checkpoint(folder, r#"{"architectures": ["Lab"], "hidden_size": 32}"#, &tensors).unwrap();
}

/// A request for the checkpoint in a folder.
pub(crate) fn request(folder: &Path, options: String) -> LoadRequest {
    let source = Source { path: folder.to_owned(), options };
    LoadRequest { source, device: "cpu".into(), context: 0, state_bytes: 1 << 20, threads: 2 }
}

pub(crate) fn model<D: Decoder>(variant: &str, kernels: &str) -> Box<dyn Model> {
    let folder = tempfile::tempdir().unwrap();
    checkpoint(folder.path());
    let options = format!(r#"{{"variant": "{variant}", "kernels": "{kernels}"}}"#);
    Paged::<D>::architecture().load(&request(folder.path(), options), &Services::silent()).unwrap()
}

/// The logits of a text that is longer than the sparse variants see.
pub(crate) fn logits(variant: &str, kernels: &str) -> Vec<f32> {
    logits_of(&mut *model::<Lab>(variant, kernels))
}

pub(crate) fn logits_of(model: &mut dyn Model) -> Vec<f32> {
    let tokens: Vec<u32> = (0..70).map(|place: u32| place * place * 7 % VOCABULARY as u32).collect();
    let positions: Vec<u32> = (0..tokens.len() as u32).collect();
    let groups = model.resident().caches.len();
    let caches = (0..groups).map(|_| Table::Blocks(vec![4, 2, 0, 5, 1].into())).collect();
    let (want, output, mask, len) = (Want::All, Output::Logits, &[][..], tokens.len());
    let span = Span { sequence: 1, start: 0, len, past: 0, want, output, mask, adapter: 0, adapter_scale: 1.0, caches };
    let mut logits = vec![f32::NAN; len * VOCABULARY];
    model.forward(&Batch { tokens: &tokens, positions: &positions, spans: vec![span], top: 0 }, &mut logits).unwrap();
    logits
}

/// The largest difference.
pub(crate) fn worst(expected: &[f32], found: &[f32]) -> f32 {
    assert_eq!(expected.len(), found.len());
    let differences = expected.iter().zip(found).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, |worst, next| if next.is_nan() { f32::INFINITY } else { worst.max(next) })
}
