//! Launches short convolutions and recurrences, one dispatch each for all sequences of a step.

use candle_core::{DType, Tensor};
use pensieve_kernels::Activation;
use std::sync::Arc;

use super::{
    driver::{Arg, Driver},
    kernels::{MetalKernels, failed},
    proofs::same,
    recurrence::{ConvShape, RecurrenceShape, Sequences, StepStates},
};
use crate::{
    Batch, Output, Result, Span, StateCopy, Table, Want,
    nn::{
        backend::{Backend, formulas_recurrence},
        memory::{kv::KvCache, pass::Pass},
        spec::{Inputs, KvShape, KvType, Recurrence, ShortConv},
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
        let Some((states, step)) = self.memory_of(conv.layer, 0, pass)? else { return Ok(None) };
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

    /// The output of a recurrence, whose matrices go on; `None` if there is no kernel for it.
    pub(super) fn recur(&self, spec: &Recurrence, x: Inputs<'_>, pass: &Pass<'_>) -> Result<Option<Tensor>> {
        let Some((states, step)) = self.memory_of(spec.layer, spec.part, pass)? else { return Ok(None) };
        let shape = RecurrenceShape::new(spec, x.corrects, x.skip.is_some());
        let launch = shape.launch(step.host.sequences.len()).filter(|launch| self.driver.takes(launch));
        let Some(launch) = launch else { return Ok(None) };
        let out = self.room(x.v.dim(0)?, x.v.dim(1)?)?;
        let mut args: Vec<Arg<'_>> =
            [x.q, x.k, x.v, x.decay, x.beta, x.skip.unwrap_or(x.q)].into_iter().map(Arg::Read).collect();
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

    /// Tries convolutions and recurrences over two steps: new sequences, one of which keeps a state on the way, then each goes on.
    pub(super) fn prove_recurrence(&self) -> Result<()> {
        // Widths of keys that different kernels take, Mamba-2's and Qwen's among them.
        for (key_dim, corrects, interleaved_heads) in [(24, false, false), (128, true, false), (200, true, true)] {
            let spec = Recurrence { interleaved_heads, ..Recurrence::new(0, 4, 2, key_dim, 40)? };
            let conv = ShortConv {
                layer: 0,
                taps: self.formulas.wave(4, 36)?,
                bias: if corrects { None } else { Some(self.formulas.wave(1, 36)?.squeeze(0)?) },
                activation: corrects.then_some(Activation::Silu),
            };
            self.prove_states(&conv, &spec, corrects)?;
        }
        Ok(())
    }

    fn prove_states(&self, conv: &ShortConv, spec: &Recurrence, corrects: bool) -> Result<()> {
        let slots = |read, write, copies| Table::Slots { read, write, copies };
        let copy = |after, slot| vec![StateCopy { after, slot }];
        let begin = [(9, 0, slots(None, 0, copy(4, 2))), (2, 0, slots(None, 1, Vec::new()))];
        let go_on = [(1, 9, slots(Some(0), 0, copy(10, 4))), (1, 2, slots(Some(1), 3, Vec::new()))];
        let sizes = (conv.taps.dim(1)?, conv.taps.dim(0)?);
        let shape = KvShape::new(vec![Recurrence::cache(sizes, spec.heads, spec.key_dim, spec.value_dim)]);
        let cache = || KvCache::new(&shape, KvType::F32, &[5], |_| 0, |_, shape, _| self.formulas.store(shape));
        let (mut ours, mut theirs) = (cache()?, cache()?);
        for sequences in [begin, go_on] {
            let ids = vec![0; sequences.iter().map(|(len, ..)| len).sum()];
            let batch = Batch { tokens: &ids, positions: &ids, spans: spans(&sequences), top: 0 };
            self.begin(&batch)?;
            let (ours, theirs) = (Pass::new(&batch, &mut ours), Pass::new(&batch, &mut theirs));
            let wave = |columns: usize| self.formulas.wave(ids.len(), columns);
            let x = wave(sizes.0)?;
            let found = self.convolve(conv, &x, &ours)?.ok_or_else(|| failed("a convolution has no kernel"))?;
            same("a convolution", &found, &formulas_recurrence::short_conv(&self.formulas, conv, &x, &theirs)?, 1e-3)?;
            let (skip, gates) = (self.formulas.wave(1, spec.heads)?.squeeze(0)?, wave(spec.heads)?);
            let k = (wave(spec.key_heads * spec.key_dim)? * 0.05)?;
            let (q, v) = ((k.neg()? + 0.1)?, wave(spec.heads * spec.value_dim)?);
            let (decay, beta) = (gates.abs()?.neg()?, (gates.abs()? * 0.5)?);
            let skip = (!corrects).then_some(&skip);
            let x = Inputs { q: &q, k: &k, v: &v, decay: &decay, beta: &beta, corrects, skip };
            let found = self.recur(spec, x, &ours)?.ok_or_else(|| failed("a recurrence has no kernel"))?;
            same("a recurrence", &found, &formulas_recurrence::recurrence(spec, x, &theirs)?, 1e-3)?;
        }
        for part in [0, 1] {
            same("a state", ours.states(0, part)?, theirs.states(0, part)?, 1e-3)?;
        }
        Ok(())
    }
}

/// Spans of so many rows after so many others.
fn spans<'a>(sequences: &[(usize, usize, Table<'a>)]) -> Vec<Span<'a>> {
    let mut start = 0;
    let one = |(index, (len, past, table)): (usize, &(usize, usize, Table<'a>))| {
        start += len;
        Span {
            sequence: index as u64,
            start: start - len,
            len: *len,
            past: *past,
            want: Want::Last,
            output: Output::Logits,
            mask: &[],
            adapter: 0,
            adapter_scale: 0.0,
            caches: vec![table.clone()],
        }
    };
    sequences.iter().enumerate().map(one).collect()
}
