//! Encodes items in pieces: opened items wait, and jobs of one or several are computed piece by piece.

use candle_core::Tensor;
use std::{
    collections::BTreeMap,
    ops::Range,
    time::{Duration, Instant},
};

use super::{
    PatchBatch, Patches, Tower, VitBlock,
    pieces::{BlockWork, PIECE_WORK, Piece, pieces},
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
        let mut left = pieces_of(&batch, tower, runtime)?;
        left.reverse();
        let (made, mixed, taps) = (Vec::new(), Vec::new(), Vec::new());
        self.jobs.push(Job { handles: taken, batch, left, x: None, angles: None, made, mixed, taps });
        Ok(Some(self.jobs.len() - 1))
    }

    fn pieces_left(&self, handles: &[u64], tower: &dyn Tower, runtime: &Runtime) -> Result<usize> {
        let jobs = self.jobs.iter().filter(|job| job.handles.iter().any(|handle| handles.contains(handle)));
        let mut left = jobs.map(|job| job.left.len()).sum();
        for item in handles.iter().filter_map(|handle| self.opened.get(handle)) {
            // Pixels do not matter.
            let item = Patches { pixels: Vec::new(), grids: item.grids.clone(), rows: item.rows };
            left += pieces_of(&PatchBatch { items: vec![item] }, tower, runtime)?.len();
        }
        Ok(left)
    }
}

/// The runs of patches that see each other in a block.
fn runs(batch: &PatchBatch, tower: &dyn Tower, is_windowed: bool) -> Result<Vec<usize>> {
    let lens = match is_windowed {
        true => tower.windows(batch),
        false => batch.grids().map(super::tower::Grid::patches).collect(),
    };
    let patches = batch.patches();
    if lens.iter().sum::<usize>() != patches || lens.contains(&0) {
        return Err(Error::invalid(format!("{} runs do not divide {patches} patches", lens.len())));
    }
    Ok(lens)
}

/// The pieces of a batch. On accelerators streams wait less for a layer than for many launches.
fn pieces_of(batch: &PatchBatch, tower: &dyn Tower, runtime: &Runtime) -> Result<Vec<Piece>> {
    let work = if runtime.ops().device().is_cpu() { PIECE_WORK } else { usize::MAX };
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
    Ok(pieces(batch.patches(), tower.blocks().iter().map(of), work))
}

impl Job {
    /// Computes the next piece; after the last one returns what each item became.
    fn advance(&mut self, tower: &dyn Tower, runtime: &mut Runtime) -> Result<Option<Vec<Encoded>>> {
        let Some(piece) = self.left.pop() else { return Err(Error::invalid("a job without pieces")) };
        let index = match &piece {
            Piece::Qkv(index, _) | Piece::Heads(index, _) | Piece::Rest(index, _) => Some(*index),
            Piece::Embed | Piece::Project => None,
        };
        let block = index.and_then(|index| tower.blocks().get(index));
        let lens = runs(&self.batch, tower, block.is_some_and(|block| block.windowed))?;
        let ids = vec![0; self.batch.patches()];
        let batch = Batch { tokens: &ids, positions: &ids, spans: spans(&lens), top: 0 };
        let step = runtime.step_begun(&batch);
        match (&self.x, block) {
            (None, _) => {
                self.angles = tower.angles(&self.batch, &step)?;
                self.x = Some(tower.embed(&self.batch, &step)?);
                self.batch.items.iter_mut().for_each(|item| item.pixels = Vec::new());
            }
            (Some(x), None) => {
                let rows = tower.project(x, &self.batch, &step)?;
                return self.split(&rows, &step).map(Some);
            }
            (Some(x), Some(block)) => {
                let made = self.compute(&piece, x, block, &step)?;
                self.made.push(made);
                let is_last =
                    self.left.last().is_none_or(|next| std::mem::discriminant(next) != std::mem::discriminant(&piece));
                if is_last {
                    self.join(&piece, tower, &step)?;
                }
            }
        }
        step.ops().finish()?;
        Ok(None)
    }

    /// A piece of a block: queries, keys and values, or one tensor and two without values.
    fn compute(&self, piece: &Piece, x: &Tensor, block: &VitBlock, step: &Step<'_>) -> Result<[Tensor; 3]> {
        let rows = |x: &Tensor, rows: &Range<usize>| step.ops().rows(x, rows.start, rows.len());
        let alone = |out: Tensor| -> Result<[Tensor; 3]> {
            let nothing = Tensor::zeros(0, out.dtype(), out.device())?;
            Ok([out, nothing.clone(), nothing])
        };
        match (piece, &self.mixed[..]) {
            (Piece::Qkv(_, some), _) => block.qkv(&rows(x, some)?, step),
            (Piece::Heads(_, groups), [q, k, v]) => {
                alone(block.attend_heads([q, k, v], groups, self.angles.as_ref(), step)?)
            }
            (Piece::Rest(_, some), [attn_out]) => alone(block.rest(&rows(x, some)?, &rows(attn_out, some)?, step)?),
            _ => Err(Error::invalid("pieces of a block out of order")),
        }
    }

    /// Joins what the pieces of one kind have made.
    fn join(&mut self, piece: &Piece, tower: &dyn Tower, step: &Step<'_>) -> Result<()> {
        let made = std::mem::take(&mut self.made);
        let all = |part: usize, dim: usize| -> Result<Tensor> {
            let parts: Vec<&Tensor> = made.iter().map(|made| &made[part]).collect();
            if let [only] = parts[..] { Ok(only.clone()) } else { Ok(Tensor::cat(&parts, dim)?.force_contiguous()?) }
        };
        match piece {
            Piece::Qkv(..) => self.mixed = (0..3).map(|part| all(part, 0)).collect::<Result<_>>()?,
            Piece::Heads(..) => self.mixed = vec![all(0, 1)?],
            Piece::Rest(index, _) => {
                let x = all(0, 0)?;
                self.taps.extend(tower.tap(*index, &x, &self.batch, step)?);
                (self.x, self.mixed) = (Some(x), Vec::new());
            }
            Piece::Embed | Piece::Project => {}
        }
        Ok(())
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
