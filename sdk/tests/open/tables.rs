//! A table of hashed n-grams, quantized and mapped: read by other ids than the step's, and apart from the weights.

use pensieve_sdk::{
    Architecture, Model, Result, Services, Source,
    nn::{Decoder, Embedding, KvShape, Linear, Loader, MappedTable, Paged, Shape, Step, Tensor},
    testing::{Options, conformance_with, random_checkpoint},
    weights::{Checkpoint, GgufFamily, Weights},
};
use std::path::Path;

use crate::lab::{self, HEAD_DIM, KV_HEADS, VOCABULARY, WIDTH, logits_of, worst};

/// A prime, as n-gram tables have it.
const ROWS: usize = 1009;

struct Grams {
    embed_tokens: Embedding,
    grams: MappedTable,
    lm_head: Linear,
}

impl Decoder for Grams {
    const NAME: &'static str = "grams";
    const GGUF: &'static [&'static str] = &["grams"];
    const CLASSES: &'static [&'static str] = &["Grams"];
    type Config = ();

    fn gguf_family(_: &str) -> GgufFamily {
        const NAMES: &[(&str, &str)] = &[("token_embd", "embed_tokens"), ("ngram_embd", "grams")];
        GgufFamily { names: NAMES, ..GgufFamily::default() }
    }

    fn config(_: &Checkpoint) -> Result<()> {
        Ok(())
    }

    fn is_mapped((): &(), tensor: &str) -> bool {
        tensor == "grams.weight"
    }

    fn shape((): &()) -> Shape {
        let kv = KvShape::uniform(1, KV_HEADS, HEAD_DIM);
        Shape { vocabulary: VOCABULARY, context: 256, widest: WIDTH, kv }
    }

    fn load(loader: &Loader<'_>, (): &()) -> Result<Self> {
        Ok(Self {
            embed_tokens: loader.embedding("embed_tokens", VOCABULARY, WIDTH)?,
            grams: loader.table("grams", ROWS, WIDTH)?,
            lm_head: loader.linear("lm_head", WIDTH, VOCABULARY)?,
        })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let ids: Vec<u32> = step.tokens().iter().zip(step.positions()).map(|pair| row(*pair.0, *pair.1)).collect();
        step.ops().add(&self.embed_tokens.forward(step)?, &self.grams.lookup(&ids, step)?)
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.lm_head.forward(hidden, step)
    }
}

/// The row of a token at a position.
fn row(token: u32, position: u32) -> u32 {
    (token * 31 + position * 17) % ROWS as u32
}

/// Writes a GGUF file of `f32` tensors, and the table in Q8_0, as a converter does. Returns the table's values.
fn write(file: &Path, weights: &Weights) -> Vec<f32> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let (mut header, mut data) = (b"GGUF".to_vec(), Vec::new());
    header.extend(3u32.to_le_bytes());
    header.extend(3u64.to_le_bytes());
    header.extend(1u64.to_le_bytes());
    header.extend([text("general.architecture"), 8u32.to_le_bytes().to_vec(), text("grams")].concat());
    let values: Vec<f32> = (0..ROWS * WIDTH).map(|at| ((at * 7919 % 1000) as f32 - 500.0) / 300.0).collect();
    let mut unpacked = Vec::new();
    let mut table = Vec::new();
    for block in values.chunks_exact(32) {
        // A power of two is exact in half precision.
        let scale = 1.0 / 64.0;
        table.extend([0x00, 0x24]);
        let codes = block.iter().map(|value| (value / scale).round().clamp(-127.0, 127.0) as i8);
        unpacked.extend(codes.clone().map(|code| f32::from(code) * scale));
        table.extend(codes.map(|code| code as u8));
    }
    let dense = |name: &str| weights.get(name).unwrap().data.to_vec();
    for (name, rows, kind, bytes) in [
        ("token_embd.weight", VOCABULARY, 0u32, dense("embed_tokens.weight")),
        ("output.weight", VOCABULARY, 0, dense("lm_head.weight")),
        ("ngram_embd.weight", ROWS, 8, table),
    ] {
        let dimensions = [WIDTH as u64, rows as u64].map(u64::to_le_bytes).concat();
        let offset = (data.len() as u64).to_le_bytes();
        header.extend(
            [text(name), 2u32.to_le_bytes().to_vec(), dimensions, kind.to_le_bytes().to_vec(), offset.to_vec()]
                .concat(),
        );
        data.extend(bytes);
        data.resize(data.len().next_multiple_of(32), 0);
    }
    header.resize(header.len().next_multiple_of(32), 0);
    std::fs::write(file, [header, data].concat()).unwrap();
    unpacked
}

fn load(file: &Path, kernels: &str) -> Result<Box<dyn Model>> {
    let request = lab::request(file, format!(r#"{{"kernels": "{kernels}"}}"#));
    Paged::<Grams>::architecture().load(&request, &Services::silent())
}

#[test]
fn a_quantized_table_is_read_in_place_by_any_ids_and_is_no_weight() {
    let folder = tempfile::tempdir().unwrap();
    lab::checkpoint(folder.path());
    let weights = Weights::of_safetensors(&folder.path().join("model.safetensors")).unwrap();
    let file = folder.path().join("grams.gguf");
    let table = write(&file, &weights);

    let values = |name: &str| weights.get(name).unwrap().to_f32().unwrap();
    let (embed, head) = (values("embed_tokens.weight"), values("lm_head.weight"));
    let mut expected = Vec::new();
    for place in 0..70u32 {
        let token = place * place * 7 % VOCABULARY as u32;
        let of = |table: &[f32], row: u32| table[row as usize * WIDTH..][..WIDTH].to_vec();
        let x: Vec<f32> = of(&embed, token).iter().zip(of(&table, row(token, place))).map(|(a, b)| a + b).collect();
        expected.extend(head.chunks_exact(WIDTH).map(|head| head.iter().zip(&x).map(|(a, b)| a * b).sum::<f32>()));
    }
    for kernels in ["auto", "generic"] {
        let mut model = load(&file, kernels).unwrap();
        let worst = worst(&expected, &logits_of(&mut *model));
        assert!(worst < 1e-4, "{kernels}: off by {worst}");
        assert_eq!(model.resident().weight_bytes, 2 * 4 * (VOCABULARY * WIDTH) as u64, "{kernels}");
    }
    let report = conformance_with(load(&file, "auto").unwrap(), &Options::default());
    assert!(report.passed(), "{report}");
}

#[test]
fn a_card_tells_mapped_bytes_apart_from_weights() {
    let folder = tempfile::tempdir().unwrap();
    let tensors = [("embed_tokens", VOCABULARY), ("lm_head", VOCABULARY), ("grams", ROWS)];
    let tensors = tensors.map(|(name, rows)| (format!("{name}.weight"), vec![rows, WIDTH]));
    random_checkpoint(folder.path(), r#"{"architectures": ["Grams"]}"#, &tensors).unwrap();
    let tokenizer = r#"{"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}"#;
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer).unwrap();
    let card = Paged::<Grams>::architecture().describe(&Source::new(folder.path())).unwrap();
    let facts = format!(r#""mapped_bytes":{}"#, 4 * ROWS * WIDTH);
    assert!(card.facts.contains(&facts), "{}", card.facts);
    assert_eq!(card.weight_bytes, 2 * 4 * (VOCABULARY * WIDTH) as u64);
    assert!(load(folder.path(), "auto").is_ok(), "a table may be of any type");
}
