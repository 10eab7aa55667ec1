//! Encodes items in pieces: opened items wait, and jobs of one or several are computed piece by piece.

use candle_core::Tensor;
use std::{
    collections::BTreeMap,
    ops::Range,
    time::{Duration, Instant},
};

use super::{
    Grid, PatchBatch, Patches, Tower, VitBlock,
    pieces::{ACCELERATOR_WORK, BlockWork, PIECE_WORK, Piece, TowerWork, pieces},
};
use crate::{
    Batch, Error, Output, Result, Span, Want,
    nn::{Angles, Runtime, Step, items::Encoded},
};

/// Patches that are computed together, if several items wait: enough to fill a device, and few enough for its caches.
const JOB_PATCHES: usize = 2048;

/// Items on their way to rows.
#[derive(Default)]
pub(in crate::nn) struct Queue {
    opened: BTreeMap<u64, Patches>,
    jobs: Vec<Job>,
}

/// Items that are computed together.
struct Job {
    handles: Vec<u64>,
    batch: PatchBatch,
    /// The pieces that are left, the next one last.
    left: Vec<Piece>,
    /// The hidden states before the current block, once the patches are embedded.
    x: Option<Tensor>,
    angles: Option<Angles>,
    /// What the pieces of the current kind have made so far.
    made: Vec<[Tensor; 3]>,
    /// Queries, keys and values of the current block; after attention its output.
    mixed: Vec<Tensor>,
    taps: Vec<Tensor>,
}

impl Queue {
    /// True if the handle's item waits or is being computed.
    pub(in crate::nn) fn has(&self, handle: u64) -> bool {
        self.opened.contains_key(&handle) || self.jobs.iter().any(|job| job.handles.contains(&handle))
    }

    pub(in crate::nn) fn open(&mut self, handle: u64, patches: Patches) {
        self.opened.insert(handle, patches);
    }

    /// Forgets an item. A job whose items are all forgotten ends; others go on, as their patches are in one tensor.
    pub(in crate::nn) fn close(&mut self, handle: u64) {
        self.opened.remove(&handle);
        for job in &mut self.jobs {
            job.handles.iter_mut().filter(|other| **other == handle).for_each(|other| *other = 0);
        }
        self.jobs.retain(|job| job.handles.iter().any(|handle| *handle != 0));
    }

    /// Computes pieces for these handles until the budget is spent. Returns the encoded items and the pieces left.
    pub(in crate::nn) fn encode(
        &mut self,
        handles: &[u64],
        budget: Duration,
        tower: &dyn Tower,
        runtime: &mut Runtime,
    ) -> Result<(Vec<(u64, Encoded)>, usize)> {
        let (begun, mut done) = (Instant::now(), Vec::new());
        while let Some(index) = self.next_job(handles, tower, runtime)? {
            match self.jobs[index].advance(tower, runtime) {
                Ok(None) => {}
                Ok(Some(encoded)) => {
                    let job = self.jobs.remove(index);
                    done.extend(job.handles.into_iter().zip(encoded).filter(|(handle, _)| *handle != 0));
                }
                // Its items cannot be encoded, and are as if never opened.
                Err(error) => {
                    self.jobs.remove(index);
                    return Err(error);
                }
            }
            // The budget is of the device's time, of which launches take little.
            runtime.ops().wait()?;
            if begun.elapsed() >= budget {
                break;
            }
        }
        let left = self.pieces_left(handles, tower, runtime)?;
        Ok((done, left))
    }

    /// The job to go on with, made of waiting items if none has been begun.
    fn next_job(&mut self, handles: &[u64], tower: &dyn Tower, runtime: &Runtime) -> Result<Option<usize>> {
        let wanted = |job: &Job| job.handles.iter().any(|handle| handles.contains(handle));
        if let Some(index) = self.jobs.iter().position(wanted) {
            return Ok(Some(index));
        }
        let (mut items, mut taken, mut patches) = (Vec::new(), Vec::new(), 0);
        for handle in handles {
            let Some(item) = self.opened.get(handle) else { continue };
            patches += item.patches();
            if !items.is_empty() && patches > JOB_PATCHES {
                break;
            }
            if let Some(item) = self.opened.remove(handle) {
                items.push(item);
                taken.push(*handle);
            }
        }
        if items.is_empty() {
            return Ok(None);
        }
        let batch = PatchBatch { items };
        let bytes = batch.items.iter().map(|item| item.pixels.len()).sum();
        let mut left = pieces_of(&batch, bytes, tower, runtime)?;
        left.reverse();
        let (made, mixed, taps) = (Vec::new(), Vec::new(), Vec::new());
        self.jobs.push(Job { handles: taken, batch, left, x: None, angles: None, made, mixed, taps });
        Ok(Some(self.jobs.len() - 1))
    }

    fn pieces_left(&self, handles: &[u64], tower: &dyn Tower, runtime: &Runtime) -> Result<usize> {
        let jobs = self.jobs.iter().filter(|job| job.handles.iter().any(|handle| handles.contains(handle)));
        let mut left = jobs.map(|job| job.left.len()).sum();
        for item in handles.iter().filter_map(|handle| self.opened.get(handle)) {
            // Of the pixels only their number matters.
            let bytes = item.pixels.len();
            let item = Patches { pixels: Vec::new(), grids: item.grids.clone(), rows: item.rows };
            left += pieces_of(&PatchBatch { items: vec![item] }, bytes, tower, runtime)?.len();
        }
        Ok(left)
    }
}

/// The runs of patches that see each other in a block.
fn runs(batch: &PatchBatch, tower: &dyn Tower, is_windowed: bool) -> Result<Vec<usize>> {
    let lens = match is_windowed {
        true => tower.windows(batch),
        false => batch.grids().map(Grid::patches).collect(),
    };
    let patches = batch.patches();
    if lens.iter().sum::<usize>() != patches || lens.contains(&0) {
        return Err(Error::invalid(format!("{} runs do not divide {patches} patches", lens.len())));
    }
    Ok(lens)
}

/// The pieces of a batch with so many bytes of pixels.
fn pieces_of(batch: &PatchBatch, bytes: usize, tower: &dyn Tower, runtime: &Runtime) -> Result<Vec<Piece>> {
    let work = if runtime.ops().device().is_cpu() { PIECE_WORK } else { ACCELERATOR_WORK };
    let pairs = |is_windowed: bool| -> Result<usize> {
        let squares = runs(batch, tower, is_windowed)?.into_iter().map(|len| len.saturating_mul(len));
        Ok(squares.fold(0, usize::saturating_add))
    };
    let has_windows = tower.blocks().iter().any(|block| block.windowed);
    let (whole, windowed) = (pairs(false)?, if has_windows { pairs(true)? } else { 0 });
    let of = |block: &VitBlock| BlockWork {
        width: block.attention.heads * block.attention.head_dim,
        groups: block.attention.kv_heads,
        pairs: if block.windowed { windowed } else { whole },
    };
    let patches = batch.patches();
    let bands = match tower.band() {
        Some(height) => batch.grids().flat_map(|grid| bands_of(grid, height)).collect(),
        None => vec![patches],
    };
    let blocks = tower.blocks().iter().map(of).collect();
    let tower = TowerWork { patch_values: bytes / patches.max(1), blocks, tapped: tower.tapped(), bands };
    Ok(pieces(&tower, work))
}

/// The patches of each band of so many rows.
fn bands_of(Grid { height, width }: Grid, rows: usize) -> impl Iterator<Item = usize> {
    let rows = rows.max(1);
    (0..height).step_by(rows).map(move |top| rows.min(height - top) * width)
}

impl Job {
    /// Computes the next piece; after the last one returns what each item became.
    fn advance(&mut self, tower: &dyn Tower, runtime: &mut Runtime) -> Result<Option<Vec<Encoded>>> {
        let Some(piece) = self.left.pop() else { return Err(Error::invalid("a job without pieces")) };
        let index = match &piece {
            Piece::Qkv(index, _) | Piece::Heads(index, _) | Piece::Rest(index, _) => Some(*index),
            Piece::Embed(_) | Piece::Tap(..) | Piece::Project(_) => None,
        };
        let block = index.and_then(|index| tower.blocks().get(index));
        let lens = runs(&self.batch, tower, block.is_some_and(|block| block.windowed))?;
        let ids = vec![0; self.batch.patches()];
        let batch = Batch { tokens: &ids, positions: &ids, spans: spans(&lens), top: 0 };
        runtime.ops().group_rows(&self.rows_multiplied(&piece));
        let step = runtime.step_begun(&batch);
        if matches!(&piece, Piece::Embed(patches) if patches.start == 0) {
            self.angles = tower.angles(&self.batch, &step)?;
        }
        let made = self.compute(&piece, block, tower, &step)?;
        self.made.push(made);
        let is_last =
            self.left.last().is_none_or(|next| std::mem::discriminant(next) != std::mem::discriminant(&piece));
        if is_last && let Some(rows) = self.join(&piece)? {
            return self.split(&rows, &step).map(Some);
        }
        step.ops().finish()?;
        Ok(None)
    }

    /// The rows of each item that a piece multiplies by the tower's weights: its patches, or what they are merged to.
    fn rows_multiplied(&self, piece: &Piece) -> Vec<usize> {
        let (patches, is_merged) = match piece {
            Piece::Embed(patches) | Piece::Qkv(_, patches) | Piece::Rest(_, patches) => (patches, false),
            Piece::Tap(_, patches) | Piece::Project(patches) => (patches, true),
            Piece::Heads(..) => return Vec::new(),
        };
        self.batch
            .items_of(patches)
            .map(|(item, patches)| match is_merged {
                true => item.rows * patches / item.patches().max(1),
                false => patches,
            })
            .collect()
    }

    /// Queries, keys and values, or one tensor and two without values.
    fn compute(
        &self,
        piece: &Piece,
        block: Option<&VitBlock>,
        tower: &dyn Tower,
        step: &Step<'_>,
    ) -> Result<[Tensor; 3]> {
        let rows = |x: &Tensor, rows: &Range<usize>| -> Result<Tensor> {
            if rows.len() == x.dim(0)? { Ok(x.clone()) } else { step.ops().rows(x, rows.start, rows.len()) }
        };
        let alone = |out: Tensor| -> Result<[Tensor; 3]> {
            let nothing = Tensor::zeros(0, out.dtype(), out.device())?;
            Ok([out, nothing.clone(), nothing])
        };
        match (piece, &self.x, block, &self.mixed[..]) {
            (Piece::Embed(patches), ..) => alone(tower.embed(&self.batch, patches.clone(), step)?),
            (Piece::Qkv(_, some), Some(x), Some(block), _) => block.qkv(&rows(x, some)?, step),
            (Piece::Heads(_, groups), _, Some(block), [q, k, v]) => {
                alone(block.attend_heads([q, k, v], groups, self.angles.as_ref(), step)?)
            }
            (Piece::Rest(_, some), Some(x), Some(block), [attn_out]) => {
                alone(block.rest(&rows(x, some)?, &rows(attn_out, some)?, step)?)
            }
            (Piece::Tap(index, some), Some(x), ..) => {
                alone(tower.tap(*index, &rows(x, some)?, &self.batch.band(some), step)?)
            }
            (Piece::Project(some), Some(x), ..) => {
                alone(tower.project(&rows(x, some)?, &self.batch.band(some), step)?)
            }
            _ => Err(Error::invalid("pieces of a tower out of order")),
        }
    }

    /// Joins what the pieces of one kind have made. Returns the rows of the text after the last kind.
    fn join(&mut self, piece: &Piece) -> Result<Option<Tensor>> {
        let made = std::mem::take(&mut self.made);
        let all = |part: usize, dim: usize| -> Result<Tensor> {
            let parts: Vec<&Tensor> = made.iter().map(|made| &made[part]).collect();
            if let [only] = parts[..] { Ok(only.clone()) } else { Ok(Tensor::cat(&parts, dim)?.force_contiguous()?) }
        };
        match piece {
            Piece::Embed(_) => {
                self.x = Some(all(0, 0)?);
                self.batch.items.iter_mut().for_each(|item| item.pixels = Vec::new());
            }
            Piece::Qkv(..) => self.mixed = (0..3).map(|part| all(part, 0)).collect::<Result<_>>()?,
            Piece::Heads(..) => self.mixed = vec![all(0, 1)?],
            Piece::Rest(..) => (self.x, self.mixed) = (Some(all(0, 0)?), Vec::new()),
            Piece::Tap(..) => self.taps.push(all(0, 0)?),
            Piece::Project(_) => return all(0, 0).map(Some),
        }
        Ok(None)
    }

    /// Divides the rows among the items.
    fn split(&self, rows: &Tensor, step: &Step<'_>) -> Result<Vec<Encoded>> {
        let all: usize = self.batch.items.iter().map(|item| item.rows).sum();
        if let Some(rows) = std::iter::once(rows).chain(&self.taps).find(|rows| rows.dim(0).ok() != Some(all)) {
            return Err(Error::invalid(format!("the tower made {:?} for {all} rows", rows.dims())));
        }
        let mut start = 0;
        let items = self.batch.items.iter().map(|item| {
            let part = |x: &Tensor| match self.batch.items.len() {
                1 => Ok(x.clone()),
                _ => step.ops().rows(x, start, item.rows),
            };
            let encoded = Encoded { rows: part(rows)?, taps: self.taps.iter().map(part).collect::<Result<_>>()? };
            start += item.rows;
            Ok(encoded)
        });
        let items = items.collect::<Result<Vec<_>>>()?;
        step.ops().finish()?;
        Ok(items)
    }
}

/// Runs of rows as the spans of a step.
fn spans(lens: &[usize]) -> Vec<Span<'static>> {
    let mut start = 0;
    let span = |len: &usize| {
        start += len;
        Span {
            sequence: 0,
            start: start - len,
            len: *len,
            past: 0,
            want: Want::None,
            output: Output::Hidden,
            mask: &[],
            adapter: 0,
            adapter_scale: 1.0,
            caches: Vec::new(),
        }
    };
    lens.iter().map(span).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_piece_are_those_of_each_image_or_what_they_are_merged_to() {
        let item = |height: usize, width: usize| {
            let grid = Grid { height, width };
            Patches { pixels: Vec::new(), grids: vec![grid], rows: grid.patches() / 4 }
        };
        let batch = PatchBatch { items: vec![item(4, 6), item(8, 8)] };
        let (made, mixed, taps) = (Vec::new(), Vec::new(), Vec::new());
        let job = Job { handles: vec![1, 2], batch, left: Vec::new(), x: None, angles: None, made, mixed, taps };
        for (piece, rows) in [
            (Piece::Embed(0..88), vec![24, 64]),
            (Piece::Qkv(0, 20..70), vec![4, 46]),
            (Piece::Rest(0, 30..88), vec![58]),
            (Piece::Tap(0, 12..40), vec![3, 4]),
            (Piece::Project(24..88), vec![16]),
            (Piece::Heads(0, 0..2), vec![]),
        ] {
            assert_eq!(job.rows_multiplied(&piece), rows, "{piece:?}");
        }
    }
}
