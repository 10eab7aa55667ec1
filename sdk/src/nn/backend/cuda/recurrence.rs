//! Recurrent layers: one launch for all sequences of a step, which locate their states through the step's inputs.

use candle_core::Tensor;
use std::sync::atomic::Ordering;

use super::{CudaKernels, THREADS, activation_number, graph::not_capturable, locked, module::Arg};
use crate::{
    Result,
    nn::{
        memory::pass::Pass,
        spec::{Decay, Inputs, Recurrence, ShortConv, Update},
    },
};

/// Maximum number of taps for `short_conv`.
const TAPS_MAX: usize = 8;

/// Columns per block of `recurrence`, and lanes that share each column.
const COLUMNS: usize = 32;
const LANES: usize = 4;

/// Rows per lane for which there are kernels; the widest only for what fades per head, or per key by the delta rule.
const ROWS: [usize; 5] = [4, 8, 16, 32, 64];

/// The kernel for such inputs, if there is one.
fn kernel(spec: &Recurrence, x: &Inputs) -> Option<String> {
    let (name, rows_max) = match (&x.decay, &x.update) {
        (Decay::Key(_), Update::RankOne { .. }) => ("recurrence_rank_one", 32),
        (_, Update::RankOne { .. }) => return None,
        (Decay::Head(_), _) => ("recurrence", 64),
        (Decay::Key(_), _) => ("recurrence_by_key", 64),
        (Decay::Value(_), _) => ("recurrence_by_value", 32),
        (Decay::Element { .. }, _) => ("recurrence_by_element", 32),
    };
    let rows = ROWS.into_iter().find(|rows| rows * LANES >= spec.key_dim && *rows <= rows_max)?;
    Some(format!("{name}_{rows}"))
}

impl CudaKernels {
    /// Computes a short convolution. `None` if no kernel supports it.
    pub(super) fn convolve(&self, conv: &ShortConv, x: &Tensor, pass: &Pass<'_>) -> Result<Option<Tensor>> {
        let (module, (taps, channels), tokens) = (&self.module, conv.taps.dims2()?, pass.input().tokens.len());
        if taps > TAPS_MAX || self.recurrence_differs.is_some() {
            return Ok(None);
        }
        let (group, states) = (pass.kv.group(conv.layer)?, self.at(pass.kv.states(conv.layer, conv.part)?)?);
        let out = module.room::<f32>(tokens * channels)?;
        let inputs = locked(&self.inputs);
        let (sequences, tables) = (inputs.sequences(module, group), inputs.tables(module));
        let args = [
            self.at(x)?,
            states,
            inputs.sequence_of(module, group).into(),
            sequences.into(),
            tables.into(),
            self.at(&conv.taps)?,
            conv.bias.as_ref().map_or(Ok(Arg::Address(0)), |bias| self.at(bias))?,
            Arg::Int(conv.activation.map_or(-1, activation_number)),
            channels.into(),
            (taps - 1).into(),
            Arg::Int(i32::from(inputs.is_single_rows)),
            module.address(&out).into(),
        ];
        let blocks = channels.div_ceil(THREADS);
        module.launch("short_conv", (blocks, tokens, 1), THREADS, 0, &args)?;
        if !inputs.is_single_rows {
            let args = [self.at(x)?, states, sequences.into(), tables.into(), channels.into(), (taps - 1).into()];
            module.launch("keep_inputs", (blocks, inputs.sequences, 1), THREADS, 0, &args)?;
        }
        Ok(Some(module.wrap(out, (tokens, channels))))
    }

    /// Advances state matrices through a step's tokens. `None` if no kernel supports them.
    pub(super) fn recur(&self, spec: &Recurrence, x: &Inputs, pass: &Pass<'_>) -> Result<Option<Tensor>> {
        let (module, tokens) = (&self.module, pass.input().tokens.len());
        let Some(kernel) = kernel(spec, x) else { return Ok(None) };
        let differs = if matches!(x.decay, Decay::Head(_)) { &self.recurrence_differs } else { &self.decay_differs };
        if differs.is_some() {
            return Ok(None);
        }
        let (group, states) = (pass.kv.group(spec.layer)?, self.at(pass.kv.states(spec.layer, spec.part)?)?);
        let width = spec.heads * spec.value_dim;
        let out = module.room::<f32>(tokens * width)?;
        let inputs = locked(&self.inputs);
        let some = |x: Option<&Tensor>| x.map_or(Ok(Arg::Address(0)), |x| self.at(x));
        let (decay, rates) = match &x.decay {
            Decay::Head(decay) | Decay::Key(decay) | Decay::Value(decay) => (decay, None),
            Decay::Element { steps, rates } => (steps, Some(rates)),
        };
        let (from, into) = match &x.update {
            Update::RankOne { from, into } => (Some(from), Some(into)),
            Update::Sum | Update::Delta => (None, None),
        };
        let is_wide = |x: Option<&Tensor>| {
            Arg::Int(i32::from(spec.value_dim > 1 && x.is_some_and(|x| x.dims().last() == Some(&width))))
        };
        let args = [
            self.at(&x.q)?,
            self.at(&x.k)?,
            self.at(&x.v)?,
            self.at(decay)?,
            some(rates)?,
            some(x.beta.as_ref())?,
            some(x.skip.as_ref())?,
            some(from)?,
            some(into)?,
            Arg::Int(i32::from(matches!(x.update, Update::Delta))),
            spec.heads.into(),
            spec.key_heads.into(),
            Arg::Int(i32::from(spec.interleaved_heads)),
            spec.key_dim.into(),
            spec.value_dim.into(),
            is_wide(x.beta.as_ref()),
            is_wide(x.skip.as_ref()),
            states,
            inputs.sequences(module, group).into(),
            inputs.tables(module).into(),
            module.address(&out).into(),
        ];
        let grid = (spec.value_dim.div_ceil(COLUMNS), spec.heads, inputs.sequences);
        module.launch(&kernel, grid, LANES * COLUMNS, 0, &args)?;
        Ok(Some(module.wrap(out, (tokens, width))))
    }

    /// Fails while capturing: formulas look up state slots on the host, so a step that uses them cannot be captured.
    pub(super) fn may_use_formulas(&self) -> Result<()> {
        if !self.captures.load(Ordering::Relaxed) {
            return Ok(());
        }
        let differs = self.recurrence_differs.as_deref().or(self.decay_differs.as_deref());
        let why = differs.unwrap_or("there is no kernel for its recurrent layers");
        Err(not_capturable(why))
    }
}
