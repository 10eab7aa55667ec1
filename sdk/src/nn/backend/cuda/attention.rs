//! Attention over block tables: one launch that rotates and writes the cache, and one that attends, for all sequences
//! of a step.

use candle_core::{DType, Tensor};
use std::collections::hash_map::Entry;

use super::{
    CudaKernels, THREADS, locked,
    module::{Arg, kv_suffix},
};
use crate::{
    Result,
    nn::{
        memory::pass::Pass,
        spec::{Attention, Rotation},
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
    suffix: &'static str,
    /// The cache group whose block tables apply.
    group: usize,
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
        if pass.seen(spec).is_some() && self.seen_differ.is_some() {
            return Ok(None);
        }
        let (module, tokens, group) = (&self.module, pass.input().tokens.len(), pass.kv.group(spec.layer)?);
        let [keys, values] = pass.kv.layer(spec.layer)?;
        let (keys, values) = (keys.tensor()?, values.tensor()?);
        let fits = spec.head_dim.is_multiple_of(8) && spec.head_dim <= HEAD_DIM_MAX;
        let Some(suffix) = kv_suffix(keys.dtype()).filter(|_| fits) else { return Ok(None) };
        let address = |tensor: &Tensor| match tensor.dtype() {
            DType::F32 => module.tensor::<f32>(tensor),
            _ => module.tensor::<half::f16>(tensor),
        };
        let cache = Cache { keys: address(keys)?, values: address(values)?, slots: keys.dim(1)?, suffix, group };
        let rotated = self.store_rotated(spec, [q, k, v], rotation, &cache, tokens)?;
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
        let is_tiled = suffix == "f16" && matches!(spec.head_dim, 64 | 80 | 96 | 128 | 192 | 256);
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

    /// Writes keys, rotated if there is a rotation, and values to their slots. Returns the rotated queries in that
    /// case.
    fn store_rotated(
        &self,
        spec: &Attention,
        [q, k, v]: [&Tensor; 3],
        rotation: Option<&Rotation>,
        cache: &Cache,
        tokens: usize,
    ) -> Result<Option<Tensor>> {
        let (module, width) = (&self.module, spec.heads * spec.head_dim);
        let rotated = rotation.map(|_| module.room::<f32>(tokens * width)).transpose()?;
        let mut values = 2 * spec.kv_heads * spec.head_dim;
        let mut angles = [Arg::Address(0), Arg::Address(0), Arg::Int(0), Arg::Int(0)];
        if let Some(Rotation { cos, sin, style }) = rotation {
            values += width;
            let is_interleaved = i32::from(*style == RopeStyle::Interleaved);
            angles = [self.at(cos)?, self.at(sin)?, cos.dim(1)?.into(), Arg::Int(is_interleaved)];
        }
        let slots = locked(&self.inputs).slots(module, cache.group);
        let mut args = vec![self.at(q)?, self.at(k)?, self.at(v)?];
        args.extend(angles);
        args.extend([
            slots.into(),
            spec.heads.into(),
            spec.kv_heads.into(),
            spec.head_dim.into(),
            Arg::Size(cache.slots),
            rotated.as_ref().map(|rotated| module.address(rotated)).unwrap_or_default().into(),
            cache.keys.into(),
            cache.values.into(),
        ]);
        let grid = (values.div_ceil(THREADS), tokens, 1);
        module.launch(&format!("store_{}", cache.suffix), grid, THREADS, 0, &args)?;
        Ok(rotated.map(|rotated| module.wrap(rotated, (tokens, width))))
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
        let value_bytes = if cache.suffix == "f16" { 2 } else { 4 };
        let tile_bytes = 2 * SPLIT_KEYS * (spec.head_dim * value_bytes + 32);
        let stages = if 2 * tile_bytes <= TWO_STAGES_BYTES_MAX { 2 } else { 1 };
        let shared_bytes = 4 * grouped * (spec.head_dim + 256) + stages * tile_bytes;
        for first in (0..count).step_by(at_once) {
            module.launch(
                &format!("attend_{}_{grouped}", cache.suffix),
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
            &format!("attend_tiles_{}", spec.head_dim),
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

/// Number of parts for the longest context, as a power of two, so that few graphs serve all lengths.
pub(super) fn splits(longest: usize) -> usize {
    longest.div_ceil(SPLIT_KEYS).next_power_of_two().clamp(1, SPLITS_MAX)
}
