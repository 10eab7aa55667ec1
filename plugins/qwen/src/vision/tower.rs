//! The towers: which patches follow each other, where they stand, and what becomes of them.

use std::ops::Range;

use pensieve_sdk::{
    Error, MediaSize, Result,
    nn::{
        Angles, Linear, Loader, Rope, Step, Tensor,
        vision::{Grid, GridPart, PatchBatch, Patches, PositionTable, Tower, VitBlock, patch_embed, tiles},
    },
    weights::Format,
};

use super::{
    Config, Kind,
    layers::{PatchMerger, block},
};

/// The base of the tower's 2-D RoPE.
const THETA: f64 = 10_000.0;

/// A tower of Qwen2.5-VL, Qwen3-VL or Qwen3.5.
pub struct QwenVision {
    patch_embed: Linear,
    pos_embed: Option<PositionTable>,
    rope: Rope,
    blocks: Vec<VitBlock>,
    merger: PatchMerger,
    /// The blocks after which there are taps, and their mergers.
    taps: Vec<(usize, PatchMerger)>,
    config: Config,
}

impl QwenVision {
    pub fn load(loader: &Loader<'_>, config: &Config, text_width: usize) -> Result<Self> {
        let nested = loader.at("model").at("visual");
        let visual = if nested.has("patch_embed.proj.weight") { nested } else { loader.at("visual") };
        let head_dim = config.hidden_size / config.num_heads;
        let (pos_embed, taps) = match &config.kind {
            Kind::Windowed { .. } => (None, &[][..]),
            Kind::Positioned { side, taps } => {
                (Some(PositionTable::load(&visual, "pos_embed.weight", *side, config.hidden_size)?), &taps[..])
            }
        };
        let tap = |(index, block): (usize, &usize)| {
            let number = if loader.format() == Format::Gguf { *block } else { index };
            let loader = visual.at("deepstack_merger_list").at(number);
            Ok((*block, PatchMerger::load(&loader, config, text_width, true)?))
        };
        Ok(Self {
            patch_embed: patch_embed(
                &visual.at("patch_embed"),
                config.hidden_size,
                config.patch_size,
                config.temporal_patch_size,
            )?,
            pos_embed,
            rope: Rope::axial(THETA, head_dim)?,
            blocks: (0..config.depth)
                .map(|at| block(&visual.at("blocks").at(at), config, at))
                .collect::<Result<_>>()?,
            merger: PatchMerger::load(&visual.at("merger"), config, text_width, false)?,
            taps: taps.iter().enumerate().map(tap).collect::<Result<_>>()?,
            config: config.clone(),
        })
    }

    /// The number of taps.
    pub fn taps(&self) -> usize {
        self.taps.len()
    }

    fn merge(&self) -> usize {
        self.config.spatial_merge_size
    }

    /// The squares of a grid in the order of the tower: window by window, or row by row.
    fn squares(&self, grid: Grid) -> Vec<[usize; 2]> {
        let Grid { height, width } = grid.merged(self.merge());
        let side = self.window().unwrap_or(height.max(width));
        let windows = (0..height).step_by(side).flat_map(|top| (0..width).step_by(side).map(move |left| (top, left)));
        let within = |(top, left): (usize, usize)| {
            let rows = top..height.min(top + side);
            rows.flat_map(move |row| (left..width.min(left + side)).map(move |column| [row, column]))
        };
        windows.flat_map(within).collect()
    }

    /// Squares on a side of a window.
    fn window(&self) -> Option<usize> {
        match self.config.kind {
            Kind::Windowed { window_size, .. } => Some(window_size / self.merge() / self.config.patch_size),
            Kind::Positioned { .. } => None,
        }
    }

    /// The patches of a grid in the order of the tower: those of a square follow one another.
    fn patches(&self, grid: Grid) -> impl Iterator<Item = [usize; 2]> + '_ {
        let merge = self.merge();
        let of = move |[row, column]: [usize; 2]| {
            let rows = row * merge..(row + 1) * merge;
            rows.flat_map(move |row| (column * merge..(column + 1) * merge).map(move |column| [row, column]))
        };
        self.squares(grid).into_iter().flat_map(of)
    }
}

/// For each of `count` places in a row the two of `side` that it lies between, with their weights.
fn linear(side: usize, count: usize) -> Vec<[(usize, f32); 2]> {
    let of = |index: usize| {
        let at = (index * (side - 1)) as f32 / count.saturating_sub(1).max(1) as f32;
        let (floor, rest) = (at.floor() as usize, at.fract());
        [(floor, 1.0 - rest), ((floor + 1).min(side - 1), rest)]
    };
    (0..count).map(of).collect()
}

impl Tower for QwenVision {
    fn slot(&self) -> u32 {
        self.config.slot
    }

    fn open(&self, _size: MediaSize, layout: &[u8], prepared: &[u8]) -> Result<Patches> {
        tiles::open_whole(layout, prepared, self.config.patch_size, self.merge())
    }

    fn positions(&self, layout: &[u8], tokens: usize) -> Result<Vec<[u32; 3]>> {
        tiles::positions(layout, self.merge(), tokens)
    }

    fn embed(&self, batch: &PatchBatch, patches: Range<usize>, step: &Step<'_>) -> Result<Tensor> {
        let side = self.config.patch_size;
        let bytes = 3 * side * side;
        let (mut pixels, mut places) = (Vec::with_capacity(patches.len() * bytes), Vec::new());
        for GridPart { grid, patches, pixels: source } in batch.parts(&patches) {
            for [row, column] in self.patches(grid).skip(patches.start).take(patches.len()) {
                pixels.extend_from_slice(&source[(row * grid.width + column) * bytes..][..bytes]);
                places.push((grid, [row, column]));
            }
        }
        let x = self.patch_embed.forward(&self.config.range.values(&pixels, side, true, step)?, step)?;
        match &self.pos_embed {
            Some(table) => table.add_to(&x, &places, linear, step),
            None => Ok(x),
        }
    }

    fn angles(&self, batch: &PatchBatch, step: &Step<'_>) -> Result<Option<Angles>> {
        let places = batch.grids().flat_map(|grid| self.patches(grid));
        let places: Vec<_> = places.map(|[row, column]| [0, row as u32, column as u32]).collect();
        self.rope.angles_at(&places, step).map(Some)
    }

    fn blocks(&self) -> &[VitBlock] {
        &self.blocks
    }

    fn windows(&self, batch: &PatchBatch) -> Vec<usize> {
        let Some(side) = self.window() else { return Vec::new() };
        let of = |grid: Grid| {
            let Grid { height, width } = grid.merged(self.merge());
            let lens = move |sides: usize| (0..sides).step_by(side).map(move |start| side.min(sides - start));
            lens(height).flat_map(move |rows| lens(width).map(move |columns| rows * columns))
        };
        batch.grids().flat_map(of).map(|squares| squares * self.merge() * self.merge()).collect()
    }

    fn band(&self) -> Option<usize> {
        Some(self.merge() * self.window().unwrap_or(1))
    }

    fn tapped(&self) -> Vec<usize> {
        self.taps.iter().map(|(block, _)| *block).collect()
    }

    fn tap(&self, block: usize, x: &Tensor, _batch: &PatchBatch, step: &Step<'_>) -> Result<Tensor> {
        match self.taps.iter().find(|(at, _)| *at == block) {
            Some((_, merger)) => merger.forward(x, self.merge() * self.merge(), step),
            None => Err(Error::invalid(format!("block {block} has no tap"))),
        }
    }

    fn project(&self, x: &Tensor, batch: &PatchBatch, step: &Step<'_>) -> Result<Tensor> {
        let rows = self.merger.forward(x, self.merge() * self.merge(), step)?;
        if self.window().is_none() {
            return Ok(rows);
        }
        // From the order of windows to that of the text.
        let (mut order, mut start) = (vec![0; rows.dim(0)?], 0);
        for grid in batch.grids() {
            let width = grid.merged(self.merge()).width;
            let squares = self.squares(grid);
            for (index, [row, column]) in squares.iter().enumerate() {
                order[start + row * width + column] = (start + index) as u32;
            }
            start += squares.len();
        }
        step.ops().select_rows(&rows, &order)
    }
}
