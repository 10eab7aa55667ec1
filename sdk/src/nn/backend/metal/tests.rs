//! The kernels without a Mac: compiled as C++ (see `emulation`), threads in step, and held against the formulas on the CPU.

use candle_core::{Device, Tensor};
use half::f16;
use std::sync::LazyLock;

use super::{
    attention::{Attend, Layer, StoreShape, parts_values_max, split},
    inputs::{Inputs, Shared},
    launch::SHARED_BYTES_MAX,
    libraries,
    program::{Program, bytes, close, of, values},
};
use crate::{
    Batch,
    nn::{
        BLOCK_TOKENS, KvShape, KvType,
        backend::{
            Backend, Formulas,
            cases::{Activations, CASES, Case, Part, spans, tables},
        },
        memory::kv::KvCache,
        memory::pass::Pass,
    },
    weights::RopeStyle,
};

static ATTENTION: LazyLock<Program> = LazyLock::new(|| Program::compile(&libraries::ATTENTION));

/// How attention is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// By the kernel that takes heads of any size.
    Scalar,
    /// Without cores that wait for work.
    Whole,
    /// On one of many cores, so that contexts are divided.
    Parts,
}

/// A step of four sequences: a decode after a long context, the chunk of a prompt after a past, a whole prompt, and another
/// decode.
const SEQUENCES: [Part; 4] = [(1100, 1), (600, 9), (0, 70), (37, 1)];

/// Decodes of which three have the first blocks in common, a chunk of a prompt, and two that share fewer blocks with each other.
const SHARING: [Part; 7] = [(700, 1), (1100, 1), (649, 1), (610, 1), (0, 5), (600, 1), (300, 1)];
const SHARED: [(std::ops::Range<usize>, usize); 2] = [(0..3, 41), (5..7, 17)];

/// Holds the kernels of a model's attention against the formulas.
pub(super) fn check(program: &Program, case: Case, ways: &[Way]) -> Result<(), String> {
    let tables = tables(SEQUENCES.map(|(past, len)| past + len));
    check_step(program, case, ways, &SEQUENCES, &tables)
}

/// The same for sequences that share prefixes.
pub(super) fn check_shared(program: &Program, case: Case, ways: &[Way]) -> Result<(), String> {
    let mut tables = tables(SHARING.map(|(past, len)| past + len));
    for (sequences, blocks) in SHARED {
        for other in sequences.start + 1..sequences.end {
            let shared = tables[sequences.start][..blocks.min(tables[other].len() - 1)].to_vec();
            tables[other][..shared.len()].copy_from_slice(&shared);
        }
    }
    check_step(program, case, ways, &SHARING, &tables)
}

fn check_step(
    program: &Program,
    case: Case,
    ways: &[Way],
    sequences: &[Part],
    tables: &[Vec<u32>],
) -> Result<(), String> {
    let formulas = Formulas::plain(Device::Cpu);
    let tokens = sequences.iter().map(|(_, len)| len).sum();
    let blocks = tables.iter().map(Vec::len).sum::<usize>();
    let Case { heads, kv_heads, head_dim, kv: kind, window, softcap, .. } = case;
    let ids = vec![0; tokens];
    let batch = Batch { tokens: &ids, positions: &ids, spans: spans(sequences, tables), top: 0 };

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

    let Activations { qkv: [q, k, v], rotation, spec } = Activations::of(case, tokens, &Device::Cpu).unwrap();
    let (sinks, half) = (spec.sinks.clone(), case.rotated / 2);
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
        close(&unpack(&stored[8 + at]), &memory(at), 2e-3, &format!("{}: {name}", case.name))?;
    }
    let layer =
        Layer { heads, kv_heads, head_dim, slots, window, has_sinks: case.has_sinks, scale: spec.scale, softcap, kind };
    let sinks = bytes(&sinks.as_ref().map(of).unwrap_or_default());
    let (tiles, tables) = (words(inputs.tiles.as_flattened()), words(&inputs.tables));
    for way in ways {
        let dispatches = match way {
            Way::Scalar => layer.scalar(&inputs).map(|dispatch| vec![dispatch]),
            Way::Whole => layer.attend(&inputs, 0),
            Way::Parts => layer.attend(&inputs, 64),
        };
        let Some(dispatches) = dispatches else {
            assert!(*way == Way::Scalar && head_dim > 256, "no kernel for {case:?}");
            continue;
        };
        let has_flash = *way != Way::Scalar && head_dim != 72;
        let prefixes = dispatches.iter().filter(|dispatch| dispatch.prefix.is_some()).count();
        assert_eq!(prefixes, if has_flash && window.is_none() { inputs.shared.len() } else { 0 }, "{dispatches:?}");
        if inputs.shared.is_empty() {
            let in_parts = dispatches.iter().filter(|dispatch| dispatch.combine.is_some()).count();
            let narrow_window = window.is_some_and(|window| window < 100);
            let expected = if *way == Way::Parts && has_flash && !narrow_window { 2 } else { 0 };
            assert_eq!(in_parts, expected, "{case:?}, {way:?}: {dispatches:?}");
        }
        let mut out = vec![0xFF; 4 * tokens * heads * head_dim];
        for Attend { launch, shape, prefix, combine } in dispatches {
            let mut result = combine.map_or_else(|| out.clone(), |combine| vec![0xFF; 4 * combine.part_values]);
            for (launch, shape) in prefix.into_iter().chain([(launch, shape)]) {
                let mut buffers = [7, 8, 9].map(|at| stored[at].clone()).to_vec();
                buffers.extend([tiles.clone(), tables.clone(), sinks.clone(), shape.bytes().to_vec(), result]);
                result = program.run(&launch, &buffers)?.remove(7);
            }
            if let Some(combine) = combine {
                let shape = bytemuck::bytes_of(&combine.shape).to_vec();
                let buffers = [result, tiles.clone(), sinks.clone(), shape, out];
                result = program.run(&combine.launch, &buffers)?.remove(4);
            }
            out = result;
        }
        // In half precision, a stored key may be rounded to the other side.
        let most = if is_half { 2e-3 } else { 1e-5 };
        close(&values(&out), &of(&formula), most, &format!("{}, {way:?}", case.name))?;
    }
    Ok(())
}

fn cache_tensor(cache: &mut KvCache, at: usize) -> Tensor {
    let store = cache.layer(0).unwrap()[at].tensor().unwrap();
    store.to_dtype(candle_core::DType::F32).unwrap()
}

#[test]
fn paged_attention_on_metal_is_the_formula_s_for_the_shapes_of_all_families() {
    for case in CASES {
        check(&ATTENTION, case, &[Way::Scalar, Way::Whole, Way::Parts]).unwrap();
    }
}

#[test]
fn the_parts_of_contexts_fit_into_what_is_allocated_at_load() {
    for cores in [5, 14, 24, 48] {
        for (head_dim, heads, kv_heads) in
            [(64, 32, 8), (128, 32, 8), (128, 64, 8), (128, 128, 8), (128, 71, 1), (512, 16, 1)]
        {
            let apart = [(1, 1000, 0), (1, 131_072, 0), (2, 18_000, 0), (20, 18_000, 0)];
            let sharing = [(2, 19_000, 18_000), (9, 19_000, 18_000), (64, 1256, 256), (64, 19_000, 18_000)];
            for (count, keys, prefix) in apart.into_iter().chain(sharing) {
                let (window, softcap, scale, has_sinks, kind) = (None, None, 1.0, false, KvType::F16);
                let layer = Layer { heads, kv_heads, head_dim, slots: keys, window, has_sinks, scale, softcap, kind };
                let mut inputs =
                    Inputs { tiles: vec![[0, 1, keys as u32 - 1, 0]; count], longest: 1, ..Inputs::default() };
                inputs.singles = count;
                if prefix > 0 {
                    inputs.shared.push(Shared { tile: count, first_tile: 0, count, prefix, keys });
                    inputs.tiles.push([0, count as u32, prefix as u32 - 1, 0]);
                }
                for dispatch in layer.attend(&inputs, cores).unwrap() {
                    let values = dispatch.combine.map_or(0, |combine| combine.part_values);
                    assert!(values <= parts_values_max(cores), "{cores} cores, {layer:?}, {count}: {values}");
                }
            }
        }
    }
}

#[test]
fn a_prefix_that_sequences_share_is_read_once_for_all_of_them() {
    for case in CASES {
        check_shared(&ATTENTION, case, &[Way::Scalar, Way::Whole, Way::Parts]).unwrap();
    }
}

#[test]
fn sequences_share_a_prefix_as_far_as_that_saves_reads() {
    let shared = |sequences: &[Part], common: &[usize]| {
        let mut tables = tables(sequences.iter().map(|(past, len)| past + len));
        for (at, blocks) in common.iter().enumerate() {
            let first = tables[0][..*blocks].to_vec();
            tables[at][..*blocks].copy_from_slice(&first);
        }
        let ids = vec![0; sequences.iter().map(|(_, len)| len).sum()];
        let batch = Batch { tokens: &ids, positions: &ids, spans: spans(sequences, &tables), top: 0 };
        let inputs = Inputs::of(&batch, 0);
        let tokens: Vec<u32> = inputs.tiles[..inputs.own_tiles()].iter().map(|tile| tile[0]).collect();
        let shared: Vec<_> =
            inputs.shared.iter().map(|run| (run.first_tile, run.count, run.prefix, run.keys)).collect();
        (tokens, shared)
    };
    // Whole tiles of 32 keys, which all of them see; what is not shared comes first.
    let mixed = [(4000, 1), (3000, 1), (3500, 1), (100, 1)];
    assert_eq!(shared(&mixed, &[187, 187, 187, 0]), (vec![3, 0, 1, 2], vec![(1, 3, 2976, 4001)]));
    // A third sequence that has little in common would make the others read most of theirs again.
    assert_eq!(shared(&mixed, &[187, 187, 20, 0]), (vec![2, 3, 0, 1], vec![(2, 2, 2976, 4001)]));
    assert_eq!(shared(&mixed, &[187, 187, 100, 0]).1, vec![(1, 3, 1600, 4001)]);
    // Too little for a dispatch, and a prompt between two decodes.
    assert_eq!(shared(&mixed, &[15, 15, 15, 0]), (vec![0, 2, 1, 3], vec![]));
    assert_eq!(shared(&[(400, 1), (400, 8), (400, 1)], &[25, 25, 25]), (vec![0, 9, 1], vec![]));
    // The block that the new token is written to is not shared, whatever its number.
    assert_eq!(shared(&[(319, 1), (320, 1)], &[20, 20]).1, vec![(0, 2, 288, 321)]);
}

#[test]
fn no_shape_of_attention_wants_more_threadgroup_memory_than_a_gpu_has() {
    let mut launched = 0;
    for head_dim in [64, 72, 80, 96, 112, 128, 160, 192, 256, 512] {
        for (heads, kv_heads) in [(1, 1), (8, 8), (32, 8), (32, 2), (71, 1)] {
            for (kind, new) in [(KvType::F16, 1), (KvType::F16, 64), (KvType::F32, 1), (KvType::F32, 64)] {
                let (window, softcap, scale, has_sinks) = (None, None, 1.0, false);
                let layer = Layer { heads, kv_heads, head_dim, slots: 4096, window, has_sinks, scale, softcap, kind };
                let singles = usize::from(new == 1);
                let inputs = Inputs {
                    tiles: vec![[0, new, 4000, 0]],
                    longest: new as usize,
                    singles,
                    tile_keys: 4001,
                    ..Inputs::default()
                };
                for dispatch in layer.attend(&inputs, 10).unwrap() {
                    let most = SHARED_BYTES_MAX - dispatch.static_bytes();
                    assert!(dispatch.launch.shared_bytes <= most, "{layer:?}: {dispatch:?}");
                    launched += 1;
                }
            }
        }
    }
    assert_eq!(launched, 10 * 5 * 4);
}

#[test]
fn contexts_are_divided_as_far_as_cores_need_it_and_parts_cover_them() {
    for cores in [1, 8, 10, 40, 132] {
        for keys in [1, 31, 255, 256, 513, 4097, 18_000, 131_072] {
            for groups in [1, 2, 8, 64, 640] {
                let (splits, part_keys) = split(groups, keys, 32, cores);
                assert!(splits * part_keys >= keys && part_keys.is_multiple_of(32), "{cores} {keys} {groups}");
                assert!((splits - 1) * part_keys < keys, "a part is empty: {cores} {keys} {groups}");
                assert!(splits == 1 || part_keys >= 256, "{cores} {keys} {groups}: {part_keys}");
            }
        }
    }
    assert_eq!(split(8, 18_032, 32, 8).0, 4);
    assert!(split(8, 18_032, 32, 48).0 > split(8, 18_032, 32, 14).0);
    assert_eq!(split(640, 18_032, 32, 40).0, 1);
}
