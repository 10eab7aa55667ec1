//! How attention is launched: shapes in the layout of `attention.metal` and `flash.metal`, and the dispatches of a layer.

use bytemuck::{Pod, Zeroable};

use super::{
    inputs::{Inputs, SHARED_MAX, Shared},
    launch::{Launch, SHARED_BYTES_MAX, THREADS},
};
use crate::nn::spec::KvType;

/// Threads of a threadgroup of `store`.
const STORE_THREADS: usize = 256;

/// Query rows that a threadgroup of `attend` holds, and the memory that it declares: their scores, peaks, masses and factors.
const SCALAR_ROWS: usize = 8;
const SCALAR_STATIC_BYTES: usize = SCALAR_ROWS * (32 + 3) * size_of::<f32>();

/// Rows of a matrix, and values in a row of a SIMD-group's scratch memory, as `flash.metal` has them.
const MATRIX: usize = 8;
const SCRATCH: usize = 44;

/// Threadgroups that keep a core of a GPU busy while others wait for memory.
const GROUPS_PER_CORE: usize = 4;

/// Limit on the values of all parts of contexts: fewer than twice the threadgroups that keep all cores busy, each with the rows
/// of the largest heads, their sums, peaks and masses; or two parts for each of the most sequences that share a prefix, with 128
/// heads of 128.
pub(super) fn parts_values_max(cores: usize) -> usize {
    let divided = 2 * GROUPS_PER_CORE * cores * 32 * (512 + 2);
    divided.max((2 * SHARED_MAX * 128 * (128 + 2)).next_power_of_two())
}

/// Limit on the parts of a context, and the keys of the smallest part.
const SPLITS_MAX: usize = 64;
const PART_KEYS_MIN: usize = 256;

#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct StoreShape {
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    pub(super) head_dim: u32,
    /// Half of the values that are rotated in a head.
    pub(super) half_dim: u32,
    pub(super) is_interleaved: u32,
    pub(super) rotates: u32,
    pub(super) tokens: u32,
    pub(super) slots: u32,
}

impl StoreShape {
    /// A thread for a value of each token's queries, keys and values each.
    pub(super) fn launch(&self, kind: KvType) -> Launch {
        let kernel = match kind {
            KvType::F16 => "store_f16",
            _ => "store_f32",
        };
        let width = ((self.heads + 2 * self.kv_heads) * self.head_dim) as usize;
        let groups = [width.div_ceil(STORE_THREADS), self.tokens as usize, 1];
        Launch { kernel, groups, threads: STORE_THREADS, shared_bytes: 0 }
    }
}

#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct AttendShape {
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    pub(super) head_dim: u32,
    pub(super) slots: u32,
    pub(super) tiles: u32,
    /// 0: none.
    pub(super) window: u32,
    pub(super) has_sinks: u32,
    pub(super) scale: f32,
    /// 0: none.
    pub(super) softcap: f32,
}

impl AttendShape {
    /// For tiles of up to `longest` tokens; a threadgroup has memory for its queries and as many sums. `None` if they do not
    /// fit.
    pub(super) fn launch(&self, kind: KvType, longest: usize) -> Option<Launch> {
        let kernel = match kind {
            KvType::F16 => "attend_f16",
            _ => "attend_f32",
        };
        let rows = longest * (self.heads / self.kv_heads) as usize;
        let groups = [rows.div_ceil(SCALAR_ROWS), self.kv_heads as usize, self.tiles as usize];
        let shared_bytes = 2 * SCALAR_ROWS * self.head_dim as usize * size_of::<f32>();
        let fits = shared_bytes + SCALAR_STATIC_BYTES <= SHARED_BYTES_MAX;
        fits.then_some(Launch { kernel, groups, threads: THREADS, shared_bytes })
    }
}

#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct FlashShape {
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    pub(super) slots: u32,
    pub(super) first_tile: u32,
    /// 0: none.
    pub(super) window: u32,
    pub(super) has_sinks: u32,
    /// Parts of the keys that this dispatch reads.
    pub(super) splits: u32,
    pub(super) part_keys: u32,
    /// Tokens of the longest tile.
    pub(super) longest: u32,
    /// Keys outside of this range are read by another dispatch; an end of 0 is none.
    pub(super) first_key: u32,
    pub(super) end_key: u32,
    /// Parts of a context, and the first that this dispatch writes; with one part, the output is final.
    pub(super) parts: u32,
    pub(super) first_part: u32,
    pub(super) scale: f32,
    /// 0: none.
    pub(super) softcap: f32,
}

#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct CombineShape {
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    pub(super) head_dim: u32,
    pub(super) first_tile: u32,
    pub(super) parts: u32,
    pub(super) longest: u32,
    pub(super) has_sinks: u32,
}

/// A kernel of `flash.metal`: the 8 · `row_blocks` rows of a threadgroup, and the slices that a head is divided into.
struct Flash {
    head_dim: usize,
    names: [&'static str; 2],
    row_blocks: usize,
    slices: usize,
}

/// `flash!(SUFFIX, HEAD_DIM, R, C)` as `flash.metal` has it.
macro_rules! flash {
    ($head_dim:literal, $few:literal, $row_blocks:literal, $slices:literal) => {
        Flash {
            head_dim: $head_dim,
            names: [concat!("flash_f16_", $head_dim, $few), concat!("flash_f32_", $head_dim, $few)],
            row_blocks: $row_blocks,
            slices: $slices,
        }
    };
}

/// Those for few rows come first, of each size of head.
static FLASH: [Flash; 13] = [
    flash!(64, "_few", 1, 4),
    flash!(64, "", 4, 1),
    flash!(80, "_few", 2, 2),
    flash!(80, "", 4, 1),
    flash!(96, "_few", 1, 4),
    flash!(96, "", 4, 1),
    flash!(128, "_few", 1, 4),
    flash!(128, "", 4, 1),
    flash!(192, "_few", 1, 4),
    flash!(192, "", 2, 2),
    flash!(256, "_few", 1, 4),
    flash!(256, "", 2, 2),
    flash!(512, "", 1, 4),
];

/// The sizes of heads that have kernels on SIMD-group matrices.
#[cfg(test)]
pub(super) fn head_sizes() -> impl Iterator<Item = usize> {
    FLASH.iter().map(|flash| flash.head_dim)
}

impl Flash {
    /// The kernel for tiles of `rows` rows: the one for few if they fit, else the one for many.
    fn of(head_dim: usize, rows: usize) -> Option<&'static Self> {
        let mut sizes = FLASH.iter().filter(|flash| flash.head_dim == head_dim);
        let few = sizes.next()?;
        Some(if rows <= few.rows() { few } else { sizes.next().unwrap_or(few) })
    }

    fn rows(&self) -> usize {
        MATRIX * self.row_blocks
    }

    /// Keys of a tile in threadgroup memory.
    fn tile_keys(&self, kind: KvType) -> usize {
        match kind.row_bytes(self.head_dim) {
            0..=512 => 32,
            513..=1024 => 16,
            _ => 8,
        }
    }

    fn shared_bytes(&self, kind: KvType) -> usize {
        let scratch = self.row_blocks * self.slices * MATRIX * SCRATCH * size_of::<f32>();
        scratch + self.tile_keys(kind) * (kind.row_bytes(self.head_dim) + 16)
    }
}

/// A layer's attention, as far as its dispatches depend on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layer {
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) slots: usize,
    pub(super) window: Option<usize>,
    pub(super) has_sinks: bool,
    pub(super) scale: f32,
    pub(super) softcap: Option<f32>,
    pub(super) kind: KvType,
}

/// The shape of a kernel that attends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    Scalar(AttendShape),
    Flash(FlashShape),
}

impl Shape {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Scalar(shape) => bytemuck::bytes_of(shape),
            Self::Flash(shape) => bytemuck::bytes_of(shape),
        }
    }
}

/// A dispatch over queries, keys, values, tiles, tables, sinks, shape and output, or memory for parts of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attend {
    pub(super) launch: Launch,
    pub(super) shape: Shape,
    /// The same over keys that several sequences share, which are read once for all of them; it writes the first parts.
    pub(super) prefix: Option<(Launch, Shape)>,
    /// Where contexts are in parts.
    pub(super) combine: Option<Combine>,
}

impl Attend {
    /// Threadgroup memory that the kernel declares, beside what it is given.
    #[cfg(test)]
    pub(super) fn static_bytes(&self) -> usize {
        match self.shape {
            Shape::Scalar(_) => SCALAR_STATIC_BYTES,
            Shape::Flash(_) => 0,
        }
    }

    pub(super) fn launches(&self) -> impl Iterator<Item = &Launch> {
        let prefix = self.prefix.iter().map(|(launch, _)| launch);
        prefix.chain([&self.launch]).chain(self.combine.iter().map(|combine| &combine.launch))
    }
}

/// The dispatch that adds up the parts, over parts, tiles, sinks, shape and output.
#[derive(Clone, Copy, Debug)]
pub(super) struct Combine {
    pub(super) launch: Launch,
    pub(super) shape: CombineShape,
    /// Room for the `f32` values of all parts; a power of two, so that growing contexts need new memory rarely.
    pub(super) part_values: usize,
}

/// Neighbouring tiles that one dispatch takes.
#[derive(Clone, Copy, Debug)]
struct Tiles {
    first: usize,
    count: usize,
    /// Tokens of the longest.
    longest: usize,
    /// Keys that are read for a token, at most.
    keys: usize,
}

impl Layer {
    /// The dispatches that attend for all sequences of a step on a GPU of so many cores; none for no tokens. `None` if no
    /// kernel takes the layer's heads.
    pub(super) fn attend(&self, inputs: &Inputs, cores: usize) -> Option<Vec<Attend>> {
        self.flash_all(inputs, cores).or_else(|| self.scalar(inputs).map(|scalar| vec![scalar]))
    }

    fn shared_by(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// All tiles by the kernel that takes heads of any size that fits.
    pub(super) fn scalar(&self, inputs: &Inputs) -> Option<Attend> {
        let shape = AttendShape {
            heads: self.heads as u32,
            kv_heads: self.kv_heads as u32,
            head_dim: self.head_dim as u32,
            slots: self.slots as u32,
            tiles: inputs.own_tiles() as u32,
            window: self.window.unwrap_or(0) as u32,
            has_sinks: u32::from(self.has_sinks),
            scale: self.scale,
            softcap: self.softcap.unwrap_or(0.0),
        };
        let launch = shape.launch(self.kind, inputs.longest)?;
        Some(Attend { launch, shape: Shape::Scalar(shape), prefix: None, combine: None })
    }

    fn flash_all(&self, inputs: &Inputs, cores: usize) -> Option<Vec<Attend>> {
        // A window shows each sequence another part of a shared prefix, so such layers read it for each.
        let shared = if self.window.is_none() { inputs.shared.as_slice() } else { &[] };
        let apart = shared.first().map_or(inputs.singles, |first| first.first_tile);
        let keys = inputs.tiles[..apart].iter().map(|tile| tile[2] as usize + 1).max().unwrap_or_default();
        let of_singles = Tiles { first: 0, count: apart, longest: 1, keys };
        let others = inputs.own_tiles() - inputs.singles;
        let of_others = Tiles { first: inputs.singles, count: others, longest: inputs.longest, keys: inputs.tile_keys };
        let tiles = [of_singles, of_others].into_iter().filter(|tiles| tiles.count > 0);
        let tiles = tiles.map(|tiles| self.flash(&tiles, cores));
        tiles.chain(shared.iter().map(|shared| self.flash_shared(shared, cores))).collect()
    }

    fn flash(&self, tiles: &Tiles, cores: usize) -> Option<Attend> {
        let (launch, shape) = self.flash_shape(tiles, cores)?;
        let combine = (shape.parts > 1).then(|| self.combine(tiles, shape.parts));
        Some(Attend { launch, shape: Shape::Flash(shape), prefix: None, combine })
    }

    /// Sequences with one new token each: the keys that they share for all of them at once, and the rest for each.
    fn flash_shared(&self, shared: &Shared, cores: usize) -> Option<Attend> {
        let Shared { tile, first_tile, count, prefix, keys } = *shared;
        let own = Tiles { first: first_tile, count, longest: 1, keys: keys - prefix };
        let (first_launch, first) =
            self.flash_shape(&Tiles { first: tile, count: 1, longest: count, keys: prefix }, cores)?;
        let (launch, shape) = self.flash_shape(&own, cores)?;
        let parts = first.splits + shape.splits;
        let first = FlashShape { parts, end_key: prefix as u32, ..first };
        let shape = FlashShape { parts, first_part: first.splits, first_key: prefix as u32, ..shape };
        Some(Attend {
            launch,
            shape: Shape::Flash(shape),
            prefix: Some((first_launch, Shape::Flash(first))),
            combine: Some(self.combine(&own, parts)),
        })
    }

    fn flash_shape(&self, tiles: &Tiles, cores: usize) -> Option<(Launch, FlashShape)> {
        let rows = tiles.longest * self.shared_by();
        let flash = Flash::of(self.head_dim, rows)?;
        let tile = flash.tile_keys(self.kind);
        // A part begins with a tile, which may be earlier than what a window shows.
        let seen = self.window.map_or(tiles.keys, |window| tiles.keys.min(window + flash.rows())) + tile;
        let row_tiles = rows.div_ceil(flash.rows());
        let (splits, part_keys) = split(row_tiles * self.kv_heads * tiles.count, seen, tile, cores);
        let shape = FlashShape {
            heads: self.heads as u32,
            kv_heads: self.kv_heads as u32,
            slots: self.slots as u32,
            first_tile: tiles.first as u32,
            window: self.window.unwrap_or(0) as u32,
            has_sinks: u32::from(self.has_sinks),
            splits: splits as u32,
            part_keys: part_keys as u32,
            longest: tiles.longest as u32,
            first_key: 0,
            end_key: 0,
            parts: splits as u32,
            first_part: 0,
            scale: self.scale,
            softcap: self.softcap.unwrap_or(0.0),
        };
        let launch = Launch {
            kernel: flash.names[usize::from(self.kind == KvType::F32)],
            groups: [row_tiles * splits, self.kv_heads, tiles.count],
            threads: THREADS,
            shared_bytes: flash.shared_bytes(self.kind),
        };
        Some((launch, shape))
    }

    /// Adds up the parts of the tiles' contexts.
    fn combine(&self, tiles: &Tiles, parts: u32) -> Combine {
        let rows = tiles.longest * self.shared_by();
        let values = tiles.count * self.kv_heads * rows * parts as usize * (self.head_dim + 2);
        Combine {
            launch: Launch {
                kernel: "combine_parts",
                groups: [rows, self.kv_heads, tiles.count],
                threads: THREADS,
                shared_bytes: 0,
            },
            shape: CombineShape {
                heads: self.heads as u32,
                kv_heads: self.kv_heads as u32,
                head_dim: self.head_dim as u32,
                first_tile: tiles.first as u32,
                parts,
                longest: tiles.longest as u32,
                has_sinks: u32::from(self.has_sinks),
            },
            part_values: values.next_power_of_two(),
        }
    }
}

/// How many parts contexts of up to `keys` keys are divided into, and the keys of a part: as many as it takes to have work for
/// all cores beside `groups` threadgroups, but none that is small.
pub(super) fn split(groups: usize, keys: usize, tile: usize, cores: usize) -> (usize, usize) {
    let wanted = (GROUPS_PER_CORE * cores).div_ceil(groups.max(1));
    let splits = wanted.min(keys / PART_KEYS_MIN).clamp(1, SPLITS_MAX);
    let part_keys = keys.div_ceil(splits).next_multiple_of(tile);
    (keys.div_ceil(part_keys), part_keys)
}
