//! Launches short convolutions and recurrences, one dispatch each for all sequences of a step.

use candle_core::{DType, Tensor};
use std::sync::Arc;

use super::{
    driver::{Arg, Driver},
    kernels::MetalKernels,
    recurrence::{ConvShape, RecurrenceShape, Sequences, StepStates},
};
use crate::{
    Batch, Result,
    nn::{
        memory::pass::Pass,
        spec::{Decay, Inputs, Recurrence, ShortConv, Update},
    },
};

impl<D: Driver> MetalKernels<D> {
    /// The states of a batch by group of caches; none for groups that have no states.
    pub(super) fn states_of(&self, batch: &Batch<'_>) -> Result<Vec<Option<StepStates>>> {
        let groups = batch.spans.first().map_or(0, |span| span.caches.len());
        let on_device = |host: Sequences| -> Result<StepStates> {
            Ok(StepStates {
                sequence_of: self.arena.ids(&host.sequence_of)?,
                sequences: self.arena.ids(host.sequences.as_flattened())?,
                tables: self.arena.ids(&host.tables)?,
                host: Arc::new(host),
            })
        };
        (0..groups).map(|group| Sequences::of(batch, group).map(on_device).transpose()).collect()
    }

    /// A short convolution; `None` if there is no kernel for it.
    pub(super) fn convolve(&self, conv: &ShortConv, x: &Tensor, pass: &Pass<'_>) -> Result<Option<Tensor>> {
        let Some((states, step)) = self.memory_of(conv.layer, conv.part, pass)? else { return Ok(None) };
        let Some(shape) = ConvShape::new(conv, &step.host) else { return Ok(None) };
        let (rows, channels) = x.dims2()?;
        let (out, bytes) = (self.room(rows, channels)?, bytemuck::bytes_of(&shape));
        let (convolve, keep) = shape.launches();
        let args = [
            Arg::Read(x),
            Arg::Read(&step.sequence_of),
            Arg::Read(&step.sequences),
            Arg::Read(&step.tables),
            Arg::Read(&conv.taps),
            Arg::Read(conv.bias.as_ref().unwrap_or(x)),
            Arg::Bytes(bytes),
            Arg::Written(states),
            Arg::Written(&out),
        ];
        self.launch(&convolve, &args)?;
        if let Some(keep) = keep {
            let (sequences, tables) = (Arg::Read(&step.sequences), Arg::Read(&step.tables));
            self.launch(&keep, &[Arg::Read(x), sequences, tables, Arg::Bytes(bytes), Arg::Written(states)])?;
        }
        Ok(Some(out))
    }

    /// The output of a recurrence, whose matrices go on; `None` if there is no kernel for it: only what fades per head
    /// has one.
    pub(super) fn recur(&self, spec: &Recurrence, x: &Inputs, pass: &Pass<'_>) -> Result<Option<Tensor>> {
        let (Decay::Head(decay), Some(beta)) = (&x.decay, &x.beta) else { return Ok(None) };
        let is_narrow = |x: &Tensor| x.dims().last() == Some(&spec.heads);
        let corrects = match x.update {
            Update::Sum => false,
            Update::Delta => true,
            Update::RankOne { .. } => return Ok(None),
        };
        if !is_narrow(beta) || !x.skip.as_ref().is_none_or(is_narrow) {
            return Ok(None);
        }
        let Some((states, step)) = self.memory_of(spec.layer, spec.part, pass)? else { return Ok(None) };
        let shape = RecurrenceShape::new(spec, corrects, x.skip.is_some());
        let launch = shape.launch(step.host.sequences.len()).filter(|launch| self.driver.takes(launch));
        let Some(launch) = launch else { return Ok(None) };
        let out = self.room(x.v.dim(0)?, x.v.dim(1)?)?;
        let mut args: Vec<Arg<'_>> =
            [&x.q, &x.k, &x.v, decay, beta, x.skip.as_ref().unwrap_or(&x.q)].into_iter().map(Arg::Read).collect();
        args.extend([Arg::Read(&step.sequences), Arg::Read(&step.tables), Arg::Bytes(bytemuck::bytes_of(&shape))]);
        args.extend([Arg::Written(states), Arg::Written(&out)]);
        self.launch(&launch, &args)?;
        Ok(Some(out))
    }

    /// The memory of a part of a layer's states, and where the step's sequences have theirs.
    fn memory_of<'a>(&self, layer: usize, part: usize, pass: &'a Pass<'_>) -> Result<Option<(&'a Tensor, StepStates)>> {
        if !self.usable.recurrence {
            return Ok(None);
        }
        let states = pass.kv.states(layer, part)?;
        let step = self.states_of_group(pass.kv.group(layer)?);
        Ok(step.filter(|_| states.dtype() == DType::F32).map(|step| (states, step)))
    }
}
