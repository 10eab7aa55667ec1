//! Attention over block tables: one launch that rotates and writes the cache, and one that attends, for all sequences
//! of a step.
//!
//! Packed keys and values (`kv_packed.rs`) are rotated and rounded by the first launch, which rotates queries as well, and
//! the second one rotates its outputs once more.

use candle_core::Tensor;
use std::collections::hash_map::Entry;

use super::{
    CudaKernels, THREADS, locked,
    module::{Arg, Module},
};
use crate::{
    Result,
    nn::{
        memory::{pass::Pass, store::Store},
        spec::{Attention, KvType, Rotation},
    },
    weights::RopeStyle,
};

/// Maximum number of parts of a context, and keys in the smallest part; as in `attention.cu`.
const SPLITS_MAX: usize = 32;
const SPLIT_KEYS: usize = 64;

/// Largest head that `attend` supports.
const HEAD_DIM_MAX: usize = 256;

/// Largest head whose queries `attend_tiles` holds in registers; as in `prompt.cu`.
const HELD_HEAD_DIM_MAX: usize = 192;

/// Counters of blocks that have finished their part of a context.
pub(super) const COUNTERS: usize = 1 << 16;

/// Thread blocks that fill a device: if tokens times heads reach this number, contexts are not split.
const BLOCKS_MIN: usize = 256;

/// Shared memory up to which a block holds two tiles at once, so that several blocks still fit on a multiprocessor.
const TWO_STAGES_BYTES_MAX: usize = 80 << 10;

/// A layer's keys and values.
struct Cache {
    keys: u64,
    values: u64,
    slots: usize,
    kind: KvType,
    /// The cache group whose block tables apply.
    group: usize,
}

/// The heads of keys and values to write.
#[derive(Clone, Copy)]
struct Heads {
    kv_heads: usize,
    head_dim: usize,
}

impl CudaKernels {
    /// Writes keys and values to the cache and attends; queries and keys are rotated first if there is a rotation.
    /// `None` if no kernel supports the shape.
    pub(super) fn attend_step(
        &self,
        spec: &Attention,
        [q, k, v]: [&Tensor; 3],
        rotation: Option<&Rotation>,
        pass: &mut Pass<'_>,
    ) -> Result<Option<Tensor>> {
        let kind = pass.kv.kind;
        let has_kernel = kind.packing().is_none() || self.packed_differ.is_none();
        let fits = spec.head_dim.is_multiple_of(8) && spec.head_dim <= HEAD_DIM_MAX;
        if !has_kernel || !fits || (pass.seen(spec).is_some() && self.seen_differ.is_some()) {
            return Ok(None);
        }
        let (module, tokens, group) = (&self.module, pass.input().tokens.len(), pass.kv.group(spec.layer)?);
        let [keys, values] = pass.kv.layer(spec.layer)?;
        let slots = keys.tensor()?.dim(1)?;
        let cache =
            Cache { keys: address(module, keys, kind)?, values: address(module, values, kind)?, slots, kind, group };
        let heads = Heads { kv_heads: spec.kv_heads, head_dim: spec.head_dim };
        let rotated = self.store_rotated(heads, Some((q, spec.heads)), [k, v].map(Some), rotation, &cache, tokens)?;
        let q = rotated.as_ref().unwrap_or(q);
        let ends = self.ends(spec, pass)?;
        let ends = ends.as_ref().map_or(Ok(0), |ends| module.tensor::<u32>(ends))?;
        let width = spec.heads * spec.head_dim;
        let out = module.room::<f32>(tokens * width)?;
        let out_at = module.address(&out);
        let (singles, tiles) = {
            let inputs = locked(&self.inputs);
            (inputs.single, inputs.tiles)
        };
        let is_tiled = kind != KvType::F32 && matches!(spec.head_dim, 64 | 80 | 96 | 128 | 192 | 256);
        if !is_tiled {
            self.attend(spec, q, &cache, (true, ends), out_at)?;
        } else {
            if tiles > 0 {
                self.attend_tiles(spec, q, &cache, ends, out_at)?;
            }
            if singles > 0 {
                self.attend(spec, q, &cache, (false, ends), out_at)?;
            }
        }
        Ok(Some(module.wrap(out, (tokens, width))))
    }

    /// Writes rows to a packed cache, whatever the size of their heads; `false` if no kernel does.
    pub(super) fn store_packed(&self, layer: usize, rows: [Option<&Tensor>; 2], pass: &mut Pass<'_>) -> Result<bool> {
        let kind = pass.kv.kind;
        if kind.packing().is_none() || self.packed_differ.is_some() {
            return Ok(false);
        }
        let (module, group, kv_heads) = (&self.module, pass.kv.group(layer)?, pass.kv.attention(layer)?.kv_heads);
        let tokens = pass.input().tokens.len();
        for (rows, store) in rows.into_iter().zip(pass.kv.layer(layer)?) {
            let Some(rows) = rows else { continue };
            let slots = store.tensor()?.dim(1)?;
            let cache = Cache { keys: address(module, store, kind)?, values: 0, slots, kind, group };
            let heads = Heads { kv_heads, head_dim: rows.dim(1)? / kv_heads };
            self.store_rotated(heads, None, [Some(rows), None], None, &cache, tokens)?;
        }
        Ok(true)
    }

    /// Writes keys, rotated if there is a rotation, and values to their slots. Returns the queries, given with their number
    /// of heads, if they are rotated as well: by the rotation, or as packed keys are.
    fn store_rotated(
        &self,
        Heads { kv_heads, head_dim }: Heads,
        queries: Option<(&Tensor, usize)>,
        [k, v]: [Option<&Tensor>; 2],
        rotation: Option<&Rotation>,
        cache: &Cache,
        tokens: usize,
    ) -> Result<Option<Tensor>> {
        let (module, is_packed) = (&self.module, cache.kind.packing().is_some());
        let queries = queries.filter(|_| rotation.is_some() || is_packed);
        let heads = queries.map_or(0, |(_, heads)| heads);
        let rotated = queries.map(|_| module.room::<f32>(tokens * heads * head_dim)).transpose()?;
        let rows = heads + kv_heads * (usize::from(k.is_some()) + usize::from(v.is_some()));
        let mut angles = [Arg::Address(0), Arg::Address(0), Arg::Int(0), Arg::Int(0)];
        if let Some(Rotation { cos, sin, style }) = rotation {
            let is_interleaved = i32::from(*style == RopeStyle::Interleaved);
            angles = [self.at(cos)?, self.at(sin)?, cos.dim(1)?.into(), Arg::Int(is_interleaved)];
        }
        let slots = locked(&self.inputs).slots(module, cache.group);
        let at = |tensor: Option<&Tensor>| tensor.map_or(Ok(Arg::Address(0)), |tensor| self.at(tensor));
        let mut args = vec![at(queries.map(|(q, _)| q))?, at(k)?, at(v)?];
        args.extend(angles);
        args.extend([
            slots.into(),
            heads.into(),
            kv_heads.into(),
            head_dim.into(),
            Arg::Size(cache.slots),
            rotated.as_ref().map(|rotated| module.address(rotated)).unwrap_or_default().into(),
            cache.keys.into(),
            cache.values.into(),
        ]);
        // A warp packs a row.
        let threads = rows * if is_packed { 32 } else { head_dim };
        let grid = (threads.div_ceil(THREADS), tokens, 1);
        module.launch(&format!("store_{}", cache.kind.name()), grid, THREADS, 0, &args)?;
        Ok(rotated.map(|rotated| module.wrap(rotated, (tokens, heads * head_dim))))
    }

    /// The number of tokens that each token sees, if it sees beyond itself.
    fn ends(&self, spec: &Attention, pass: &Pass<'_>) -> Result<Option<Tensor>> {
        let (Some(seen), place) = (pass.seen(spec), pass.kv.place(spec.layer)?) else { return Ok(None) };
        let mut prepared = pass.prepared.borrow_mut();
        Ok(Some(match prepared.ends.entry(place) {
            Entry::Occupied(known) => known.get().clone(),
            Entry::Vacant(vacant) => vacant.insert(self.formulas.ids(&seen)?).clone(),
        }))
    }

    /// Attends token by token: for all of a step's tokens, or for those not covered by tiles.
    fn attend(&self, spec: &Attention, q: &Tensor, cache: &Cache, (all, ends): (bool, u64), out: u64) -> Result<()> {
        let (module, inputs) = (&self.module, locked(&self.inputs));
        let shared = spec.heads / spec.kv_heads;
        let grouped = [1, 2, 4, 8].into_iter().find(|&group| group >= shared).unwrap_or(8);
        let groups = spec.kv_heads * shared.div_ceil(grouped);
        let (count, longest) =
            if all { (inputs.tokens, inputs.longest_of_all) } else { (inputs.single, inputs.longest) };
        let splits = if count * groups >= BLOCKS_MIN { 1 } else { splits(longest) };
        let at_once = if splits > 1 { (COUNTERS / groups).min(512) } else { 1 << 15 };
        let partials = if splits > 1 { count.min(at_once) * spec.heads * splits * (spec.head_dim + 2) } else { 1 };
        let partials = module.room::<f32>(partials)?;
        let sinks = self.sinks(spec)?;
        // Packed rows lie in shared memory as they do in the cache; others are apart, in different banks.
        let apart = if cache.kind.packing().is_some() { 0 } else { 32 };
        let tile_bytes = 2 * SPLIT_KEYS * (cache.kind.row_bytes(spec.head_dim) + apart);
        let stages = if 2 * tile_bytes <= TWO_STAGES_BYTES_MAX { 2 } else { 1 };
        let shared_bytes = 4 * grouped * (spec.head_dim + 256) + stages * tile_bytes;
        for first in (0..count).step_by(at_once) {
            module.launch(
                &format!("attend_{}_{grouped}", cache.kind.name()),
                (splits, groups, at_once.min(count - first)),
                128,
                shared_bytes,
                &[
                    self.at(q)?,
                    cache.keys.into(),
                    cache.values.into(),
                    if all { Arg::Address(0) } else { inputs.singles(module).into() },
                    first.into(),
                    inputs.lens(module).into(),
                    ends.into(),
                    inputs.table_starts(module, cache.group).into(),
                    inputs.tables(module).into(),
                    spec.scale.into(),
                    spec.softcap.unwrap_or(0.0).into(),
                    spec.window.unwrap_or(0).into(),
                    spec.heads.into(),
                    spec.kv_heads.into(),
                    spec.head_dim.into(),
                    Arg::Size(cache.slots),
                    stages.into(),
                    sinks,
                    module.address(&partials).into(),
                    module.address(&self.counters).into(),
                    out.into(),
                ],
            )?;
        }
        module.memory.keep(partials);
        Ok(())
    }

    fn sinks(&self, spec: &Attention) -> Result<Arg> {
        spec.sinks.as_ref().map_or(Ok(Arg::Address(0)), |sinks| self.at(sinks))
    }

    /// Attends for the step's prompt tiles.
    fn attend_tiles(&self, spec: &Attention, q: &Tensor, cache: &Cache, ends: u64, out: u64) -> Result<()> {
        let (module, inputs) = (&self.module, locked(&self.inputs));
        // Keys, values and, for large heads, queries.
        let shared_tiles = if spec.head_dim > HELD_HEAD_DIM_MAX { 3 } else { 2 };
        module.launch(
            &format!("attend_tiles_{}_{}", cache.kind.name(), spec.head_dim),
            (inputs.tiles, spec.heads, 1),
            128,
            shared_tiles * 64 * (spec.head_dim + 8) * 2,
            &[
                self.at(q)?,
                cache.keys.into(),
                cache.values.into(),
                inputs.tiles(module, cache.group).into(),
                ends.into(),
                inputs.tables(module).into(),
                spec.scale.into(),
                spec.softcap.unwrap_or(0.0).into(),
                spec.window.unwrap_or(0).into(),
                spec.heads.into(),
                spec.kv_heads.into(),
                Arg::Size(cache.slots),
                self.sinks(spec)?,
                out.into(),
            ],
        )
    }
}

/// Address of a layer's keys or values.
fn address(module: &Module, store: &Store, kind: KvType) -> Result<u64> {
    let tensor = store.tensor()?;
    match kind {
        KvType::F32 => module.tensor::<f32>(tensor),
        KvType::F16 => module.tensor::<half::f16>(tensor),
        KvType::Q8 | KvType::Q4 => module.tensor::<u8>(tensor),
    }
}

/// Number of parts for the longest context, as a power of two, so that few graphs serve all lengths.
pub(super) fn splits(longest: usize) -> usize {
    longest.div_ceil(SPLIT_KEYS).next_power_of_two().clamp(1, SPLITS_MAX)
}
