//! Attention within whole texts and images, which are packed without padding: one launch that splits keys and values
//! into pairs of bf16, and one that attends, for all texts of a step.

use candle_core::Tensor;

use super::{CudaKernels, THREADS, module::Arg};
use crate::{
    Result,
    nn::{memory::pass::Pass, spec::TextAttention},
};

/// Rows of an entry in the list of tiles; as in `texts.cu`.
const TILE_ROWS: usize = 64;

/// Rows of a block that takes two entries.
const WIDE_ROWS: usize = 128;

/// The kernels for heads of up to so many values.
#[derive(Clone, Copy)]
struct Heads {
    /// Values of a head with zeros behind them.
    padded: usize,
    /// Keys of a tile.
    keys: usize,
    /// There is a kernel whose blocks have two tiles of rows.
    has_wide: bool,
    /// Queries are in shared memory; otherwise warps hold them.
    shares_queries: bool,
}

const HEADS: [Heads; 6] = [
    Heads { padded: 32, keys: 64, has_wide: true, shares_queries: false },
    Heads { padded: 64, keys: 64, has_wide: true, shares_queries: false },
    Heads { padded: 80, keys: 64, has_wide: true, shares_queries: false },
    Heads { padded: 96, keys: 64, has_wide: true, shares_queries: false },
    Heads { padded: 128, keys: 32, has_wide: true, shares_queries: false },
    Heads { padded: 256, keys: 32, has_wide: false, shares_queries: true },
];

/// A kernel, and how it is launched.
#[derive(Clone, Copy)]
struct Launch {
    heads: Heads,
    rows: usize,
    /// Tiles of keys and values in shared memory at once.
    stages: usize,
    shared_bytes: usize,
}

impl Launch {
    /// The launch for heads of this size, if a block finds room in so much shared memory. A row does not depend on the
    /// number of rows in its block, nor on the number of stages.
    fn of(head_dim: usize, longest: usize, shared_max: usize) -> Option<Self> {
        let heads = HEADS.into_iter().find(|heads| head_dim.is_multiple_of(2) && head_dim <= heads.padded)?;
        let rows = if heads.has_wide && longest > TILE_ROWS { WIDE_ROWS } else { TILE_ROWS };
        // A row has both parts of each number, and 16 bytes more, so that rows start in different banks.
        let row_bytes = 2 * (2 * heads.padded + 8);
        let bytes = |stages: usize| {
            let queries = if heads.shares_queries { rows } else { 0 };
            row_bytes * (2 * stages * heads.keys + queries)
        };
        let stages = [2, 1].into_iter().find(|&stages| bytes(stages) <= shared_max)?;
        Some(Self { heads, rows, stages, shared_bytes: bytes(stages) })
    }
}

impl CudaKernels {
    /// Makes each token attend to its whole text, or to as much of it as `spec` reaches; `None` if no kernel supports
    /// the shape.
    pub(super) fn attend_texts(
        &self,
        spec: &TextAttention,
        [q, k, v]: [&Tensor; 3],
        biases: Option<&Tensor>,
        pass: &Pass<'_>,
    ) -> Result<Option<Tensor>> {
        let TextAttention { heads, kv_heads, head_dim, scale, reach } = *spec;
        let (module, (tokens, width)) = (&self.module, q.dims2()?);
        let longest = pass.batch().spans.iter().map(|span| span.len).max().unwrap_or_default();
        let Some(launch) = Launch::of(head_dim, longest, module.shared_max()).filter(|_| longest > 0) else {
            return Ok(None);
        };
        let padded = launch.heads.padded;
        let tiles = self.text_tiles(pass)?;
        let (keys, values) = {
            let words = tokens * kv_heads * padded;
            (module.room::<u32>(words)?, module.room::<u32>(words)?)
        };
        let split = [
            self.at(k)?,
            self.at(v)?,
            tokens.into(),
            kv_heads.into(),
            head_dim.into(),
            padded.into(),
            module.address(&keys).into(),
            module.address(&values).into(),
        ];
        let pairs = tokens * kv_heads * padded / 2;
        module.launch("split_heads", (pairs.div_ceil(THREADS), 2, 1), THREADS, 0, &split)?;
        let out = module.room::<f32>(tokens * width)?;
        let args = [
            self.at(q)?,
            module.address(&keys).into(),
            module.address(&values).into(),
            module.tensor::<u32>(&tiles)?.into(),
            scale.into(),
            biases.map_or(Ok(Arg::Address(0)), |biases| self.at(biases))?,
            biases.map_or(Ok(0), |biases| biases.dim(1))?.into(),
            Arg::Int(reach.map_or(-1, |reach| i32::try_from(reach.min(longest)).unwrap_or(i32::MAX))),
            tokens.into(),
            heads.into(),
            kv_heads.into(),
            head_dim.into(),
            launch.stages.into(),
            module.address(&out).into(),
        ];
        let (kernel, grid) = (format!("attend_texts_{padded}_{}", launch.rows), (tiles.dim(0)?, heads, 1));
        module.launch(&kernel, grid, 2 * launch.rows, launch.shared_bytes, &args)?;
        module.memory.keep((keys, values));
        Ok(Some(module.wrap(out, (tokens, width))))
    }

    /// The tiles of a step's texts: each text's first token in the batch, its length, and the first row of the tile.
    fn text_tiles(&self, pass: &Pass<'_>) -> Result<Tensor> {
        if let Some(tiles) = &pass.prepared.borrow().text_tiles {
            return Ok(tiles.clone());
        }
        let tiles: Vec<u32> = pass
            .batch()
            .spans
            .iter()
            .flat_map(|span| (0..span.len).step_by(TILE_ROWS).map(|row| [span.start, span.len, row, 0]))
            .flat_map(|tile| tile.map(|word| word as u32))
            .collect();
        let tiles = self.formulas.ids(&tiles)?.reshape(((), 4))?;
        pass.prepared.borrow_mut().text_tiles = Some(tiles.clone());
        Ok(tiles)
    }
}

#[cfg(test)]
mod tests {
    use super::Launch;

    #[test]
    fn a_block_has_the_tiles_that_its_shared_memory_holds() {
        let of = |head_dim, longest, shared_max| {
            Launch::of(head_dim, longest, shared_max).map(|found| (found.heads.padded, found.rows, found.stages))
        };
        let [hopper, ampere, ada] = [227 << 10, 163 << 10, 99 << 10];
        assert_eq!(of(72, 4096, hopper), Some((80, 128, 2)));
        assert_eq!(of(72, 64, hopper), Some((80, 64, 2)), "short texts leave half of a wide block without rows");
        assert_eq!(of(128, 1024, ada), Some((128, 128, 2)));
        assert_eq!(of(256, 1024, hopper), Some((256, 64, 2)));
        assert_eq!(of(256, 1024, ampere), Some((256, 64, 1)));
        assert_eq!(of(256, 1024, ada), None);
        assert_eq!(of(33, 10, hopper), None, "heads are read in pairs");
        assert_eq!(of(264, 10, hopper), None);
    }
}
