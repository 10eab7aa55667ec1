//! The kernels without a Mac: compiled as C++ (see `emulation`), threads in step, and held against the formulas on the CPU.

use candle_core::{Device, Tensor};
use half::f16;
use std::sync::LazyLock;

use super::{
    inputs::{AttendShape, Inputs, StoreShape},
    libraries,
    program::{Program, bytes, close, of, values},
};
use crate::{
    Batch, Output, Span, Table, Want,
    nn::{
        Attention, BLOCK_TOKENS, KvShape, KvType,
        backend::{Backend, Formulas},
        memory::kv::KvCache,
        memory::pass::Pass,
        spec::Rotation,
    },
    weights::RopeStyle,
};

static ATTENTION: LazyLock<Program> = LazyLock::new(|| Program::compile(&libraries::ATTENTION));

/// A model's attention, and how its heads are rotated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) family: &'static str,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    rotated: usize,
    style: RopeStyle,
    window: Option<usize>,
    softcap: Option<f32>,
    has_sinks: bool,
    kv: KvType,
}

const PLAIN: Case = Case {
    family: "llama",
    heads: 8,
    kv_heads: 2,
    head_dim: 64,
    rotated: 64,
    style: RopeStyle::NeoX,
    window: None,
    softcap: None,
    has_sinks: false,
    kv: KvType::F16,
};

/// The shapes of all families, with fewer heads.
pub(super) const CASES: [Case; 8] = [
    PLAIN,
    Case { family: "llama as GGUF, in f32", style: RopeStyle::Interleaved, kv: KvType::F32, ..PLAIN },
    Case { family: "mistral", head_dim: 128, rotated: 128, window: Some(24), heads: 4, kv_heads: 1, ..PLAIN },
    Case { family: "phi", head_dim: 80, rotated: 32, heads: 3, kv_heads: 3, ..PLAIN },
    Case { family: "qwen, odd group", heads: 7, kv_heads: 1, ..PLAIN },
    Case { family: "gemma", head_dim: 256, rotated: 256, heads: 2, kv_heads: 1, softcap: Some(5.0), ..PLAIN },
    Case { family: "glm", head_dim: 96, rotated: 48, heads: 32, kv_heads: 2, style: RopeStyle::Interleaved, ..PLAIN },
    Case { family: "gpt-oss", heads: 16, window: Some(20), has_sinks: true, ..PLAIN },
];

/// A step of three sequences: a decode, the chunk of a prompt after a past, and a whole prompt; blocks in any order.
fn spans() -> (Vec<Vec<u32>>, [(usize, usize); 3]) {
    let sizes: [(usize, usize); 3] = [(37, 1), (20, 9), (0, 70)];
    let mut next = 0;
    let tables = sizes.map(|(past, len)| {
        let blocks = (past + len).div_ceil(BLOCK_TOKENS) as u32;
        next += blocks;
        (next - blocks..next).rev().collect::<Vec<u32>>()
    });
    (tables.to_vec(), sizes)
}

/// Holds the kernels of a model's attention against the formulas.
pub(super) fn check(program: &Program, case: Case) -> Result<(), String> {
    let formulas = Formulas::plain(Device::Cpu);
    let (tables, sizes) = spans();
    let (mut spans, mut start) = (Vec::new(), 0);
    for (place, ((past, len), blocks)) in sizes.into_iter().zip(&tables).enumerate() {
        let (adapter, adapter_scale, want, output, mask) = (0, 0.0, Want::Last, Output::Logits, &[][..]);
        let caches = vec![Table::Blocks(blocks.into())];
        spans.push(Span {
            sequence: place as u64,
            start,
            len,
            past,
            want,
            output,
            mask,
            adapter,
            adapter_scale,
            caches,
        });
        start += len;
    }
    let tokens = start;
    let blocks = tables.iter().map(Vec::len).sum::<usize>();
    let Case { heads, kv_heads, head_dim, kv: kind, .. } = case;
    let ids = vec![0; tokens];
    let batch = Batch { tokens: &ids, positions: &ids, spans, top: 0 };

    let shape = KvShape::uniform(1, kv_heads, head_dim);
    let mut cache = KvCache::new(&shape, kind, &[blocks], |_| 0, |_, shape, _| formulas.store(shape)).unwrap();
    let slots = blocks * BLOCK_TOKENS;
    let before = |seed: f32| -> Vec<f32> {
        let values = (0..kv_heads * slots * head_dim).map(|i| (i as f32 * seed).sin());
        values.map(|value| f16::from_f32(value).to_f32()).collect()
    };
    let past = [before(1.3), before(0.7)];
    for (store, past) in cache.layer(0).unwrap().iter().zip(&past) {
        let memory = store.tensor().unwrap();
        let past = Tensor::from_slice(past, (kv_heads, slots, head_dim), &Device::Cpu).unwrap();
        memory.slice_set(&past.to_dtype(memory.dtype()).unwrap(), 1, 0).unwrap();
    }

    let [q, k, v] = [heads, kv_heads, kv_heads].map(|heads| formulas.wave(tokens, heads * head_dim).unwrap());
    let k = (k * 0.7).unwrap();
    let half = case.rotated / 2;
    let (cos, sin) = (formulas.wave(tokens, half).unwrap(), (formulas.wave(tokens, half).unwrap() * 0.5).unwrap());
    let rotation = Rotation { cos, sin, style: case.style };
    let sinks = case.has_sinks.then(|| formulas.wave(1, heads).unwrap().squeeze(0).unwrap());
    let (window, softcap) = (case.window, case.softcap);
    let attention = Attention::new(0, heads, kv_heads, head_dim).unwrap();
    let spec = Attention { window, softcap, sinks: sinks.clone(), ..attention };
    let mut pass = Pass::new(&batch, &mut cache);
    let formula = formulas.rotated_attention(&spec, [&q, &k, &v], &rotation, &mut pass).unwrap();

    // The same by the kernels.
    let inputs = Inputs::of(&batch, 0);
    let is_half = kind == KvType::F16;
    let pack = |values: &[f32]| match is_half {
        true => values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect(),
        false => bytes(values),
    };
    let shape = StoreShape {
        heads: heads as u32,
        kv_heads: kv_heads as u32,
        head_dim: head_dim as u32,
        half_dim: half as u32,
        is_interleaved: u32::from(case.style == RopeStyle::Interleaved),
        rotates: 1,
        tokens: tokens as u32,
        slots: slots as u32,
    };
    let words = |words: &[u32]| bytemuck::cast_slice(words).to_vec();
    let stored = program.run(
        &shape.launch(kind),
        &[
            bytes(&of(&q)),
            bytes(&of(&k)),
            bytes(&of(&v)),
            bytes(&of(&rotation.cos)),
            bytes(&of(&rotation.sin)),
            words(&inputs.slots),
            bytemuck::bytes_of(&shape).to_vec(),
            vec![0xFF; 4 * tokens * heads * head_dim],
            pack(&past[0]),
            pack(&past[1]),
        ],
    )?;
    let mut memory = |at: usize| of(&cache_tensor(&mut cache, at));
    let unpack = |bytes: &[u8]| -> Vec<f32> {
        match is_half {
            true => bytes.as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32()).collect(),
            false => values(bytes),
        }
    };
    for (at, name) in [(0, "keys"), (1, "values")] {
        close(&unpack(&stored[8 + at]), &memory(at), 2e-3, &format!("{}: {name}", case.family))?;
    }
    let shape = AttendShape {
        heads: heads as u32,
        kv_heads: kv_heads as u32,
        head_dim: head_dim as u32,
        slots: slots as u32,
        tiles: inputs.tiles.len() as u32,
        window: window.unwrap_or(0) as u32,
        has_sinks: u32::from(case.has_sinks),
        scale: spec.scale,
        softcap: softcap.unwrap_or(0.0),
    };
    let attended = program.run(
        &shape.launch(kind, inputs.longest),
        &[
            stored[7].clone(),
            stored[8].clone(),
            stored[9].clone(),
            words(inputs.tiles.as_flattened()),
            words(&inputs.tables),
            bytes(&sinks.as_ref().map(of).unwrap_or_default()),
            bytemuck::bytes_of(&shape).to_vec(),
            vec![0xFF; 4 * tokens * heads * head_dim],
        ],
    )?;
    close(&values(&attended[7]), &of(&formula), 2e-3, case.family)
}

fn cache_tensor(cache: &mut KvCache, at: usize) -> Tensor {
    let store = cache.layer(0).unwrap()[at].tensor().unwrap();
    store.to_dtype(candle_core::DType::F32).unwrap()
}

#[test]
fn paged_attention_on_metal_is_the_formula_s_for_the_shapes_of_all_families() {
    for case in CASES {
        check(&ATTENTION, case).unwrap();
    }
}
