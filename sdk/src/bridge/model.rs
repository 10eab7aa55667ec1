//! Many single-sequence models, presented as one batched model.
//!
//! An error or panic inside candle-transformers affects only its own sequence: its logits become NaN, which makes the
//! host fail that sequence alone, and its model is dropped. The step fails only if all of its sequences have failed,
//! with the first one's error; the others are in the log.

use candle_core::{DType, Device, Tensor};
use std::collections::HashMap;

use super::{CHUNK_TOKENS_MAX, Pristine, VALUE_BYTES, Wrapped};
use crate::{
    Batch, Error, Level, Model, Resident, Result, SequenceState, Services, Span, Want,
    export::{caught, discard},
    nn::copy_to,
};

/// A loaded model, with another instance for each sequence.
pub(super) struct Bridged<W> {
    pristine: Pristine<W>,
    sequences: HashMap<u64, Sequence<W>>,
    /// The state of a new sequence; empty if candle does not expose it.
    blank: Vec<Tensor>,
    resident: Resident,
    device: Device,
    /// The thread pool, if a number of threads was given.
    pool: Option<rayon::ThreadPool>,
    services: Services,
}

struct Sequence<W> {
    /// `None` after a failed call.
    model: Option<W>,
    /// Number of tokens computed so far.
    seen: usize,
}

impl<W: Wrapped> Bridged<W> {
    /// Creates a first model, so that failures show at load.
    pub(super) fn new(
        pristine: Pristine<W>,
        resident: Resident,
        device: Device,
        threads: usize,
        services: Services,
    ) -> Result<Self> {
        let blank = pristine.make()?.state();
        if let Some(tensor) = blank.iter().find(|tensor| tensor.dtype() != DType::F32) {
            let message = format!("{} keeps its state in {:?}, and only f32 can be copied", W::NAME, tensor.dtype());
            return Err(Error::unsupported(message));
        }
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        let pool =
            if threads == 0 { None } else { Some(pool.build().map_err(|error| Error::invalid(error.to_string()))?) };
        Ok(Self { pristine, sequences: HashMap::new(), blank, resident, device, pool, services })
    }

    /// Refuses a step that does not continue its sequences, or has too many of them.
    fn check(&self, batch: &Batch<'_>) -> Result<()> {
        let mut new = 0;
        for Span { sequence, past, .. } in &batch.spans {
            let seen = self.sequences.get(sequence).map_or(0, |known| known.seen);
            if seen != *past {
                return Err(Error::invalid(format!("sequence {sequence} has read {seen} tokens, not {past}")));
            }
            new += usize::from(!self.sequences.contains_key(sequence));
        }
        self.has_room_for(new)
    }

    fn has_room_for(&self, new: usize) -> Result<()> {
        let Some(&(_, most)) = self.resident.caches.first() else { return Ok(()) };
        if self.sequences.len() + new > most as usize {
            let message = format!("there is memory for {most} sequences only");
            return Err(Error::out_of_memory(message).help("raise kv_budget or lower the context"));
        }
        Ok(())
    }

    /// Computes a sequence's new tokens.
    fn read(&mut self, span: &Span<'_>, tokens: &[u32], logits: &mut [f32]) -> Result<()> {
        let sequence = self.sequences.entry(span.sequence).or_insert(Sequence { model: None, seen: 0 });
        let (past, model) = (span.past, sequence.model.take());
        sequence.seen = past + tokens.len();
        if model.is_none() && past > 0 {
            return Err(Error::invalid(format!("sequence {} has failed before", span.sequence)));
        }
        let (pristine, device) = (&self.pristine, &self.device);
        let mut model = match model {
            Some(model) => model,
            None => caught(W::NAME, || pristine.make())?,
        };
        let mut code = || compute(&mut model, past, tokens, span.want, logits, device);
        let read = caught(W::NAME, || match &self.pool {
            Some(pool) => pool.install(code),
            None => code(),
        });
        match read {
            Ok(()) => sequence.model = Some(model),
            Err(_) => discard(model),
        }
        read
    }

    fn sound(&self, sequence: u64) -> Result<(&W, usize)> {
        let known = self.sequences.get(&sequence);
        let sound = known.and_then(|known| Some((known.model.as_ref()?, known.seen)));
        sound.ok_or_else(|| Error::not_found(format!("there is no sequence {sequence}")))
    }

    /// A new sequence with this state.
    fn put(&mut self, name: u64, state: Vec<Tensor>, seen: usize) -> Result<()> {
        if self.sequences.contains_key(&name) {
            return Err(Error::invalid(format!("sequence {name} exists")));
        }
        self.has_room_for(1)?;
        let mut model = self.pristine.make()?;
        model.set_state(state);
        self.sequences.insert(name, Sequence { model: Some(model), seen });
        Ok(())
    }
}

/// Computes tokens in chunks as large as the model allows, and copies the wanted rows.
fn compute<W: Wrapped>(
    model: &mut W,
    past: usize,
    tokens: &[u32],
    want: Want,
    logits: &mut [f32],
    device: &Device,
) -> Result<()> {
    let width = logits.len().checked_div(want.rows(tokens.len())).unwrap_or(0);
    let mut rows = logits.chunks_exact_mut(width.max(1));
    let mut rest = tokens;
    while !rest.is_empty() {
        // Most models return the logits of the last token only.
        let most = if want == Want::All { 1 } else { rest.len().min(CHUNK_TOKENS_MAX) };
        let before = past + tokens.len() - rest.len();
        let (piece, after) = rest.split_at(model.together(before, most).clamp(1, most));
        rest = after;
        let given = model.forward(&Tensor::new(piece, device)?.unsqueeze(0)?, before)?;
        if want == Want::All || (want == Want::Last && rest.is_empty()) {
            let given = given.to_dtype(DType::F32)?.flatten_all()?.contiguous()?;
            let row = rows.next().ok_or_else(|| Error::invalid("there are more logits than places"))?;
            copy_to(&given, row).map_err(|error| error.context(format!("the logits of {}", W::NAME)))?;
        }
    }
    Ok(())
}

impl<W: Wrapped> Model for Bridged<W> {
    fn resident(&self) -> Resident {
        self.resident.clone()
    }

    fn forward(&mut self, batch: &Batch<'_>, logits: &mut [f32]) -> Result<()> {
        self.check(batch)?;
        let (mut places, mut failures) = (logits, Vec::new());
        for span in &batch.spans {
            let len = span.want.rows(span.len) * self.resident.vocabulary as usize;
            let (rows, others) = places.split_at_mut(len);
            places = others;
            if let Err(error) = self.read(span, &batch.tokens[span.start..span.start + span.len], rows) {
                rows.fill(f32::NAN);
                failures.push((span.sequence, error));
            }
        }
        let of_step = if failures.len() == batch.spans.len() { Some(failures.remove(0).1) } else { None };
        for (sequence, error) in failures {
            self.services.log(Level::Error, format!("{}: sequence {sequence} fails: {error}", W::NAME));
        }
        of_step.map_or(Ok(()), Err)
    }

    fn release(&mut self, sequence: u64) {
        discard(self.sequences.remove(&sequence));
    }

    fn sequence_state(&mut self) -> Option<&mut dyn SequenceState> {
        if self.blank.is_empty() { None } else { Some(self) }
    }
}

impl<W> Drop for Bridged<W> {
    fn drop(&mut self) {
        // One by one: a second panic while the map unwinds from the first would abort the process.
        self.sequences.drain().for_each(|(_, sequence)| discard(sequence));
    }
}

/// A snapshot consists of the number of tokens and the values of each tensor, in order.
impl<W: Wrapped> SequenceState for Bridged<W> {
    fn fork(&mut self, from: u64, to: u64) -> Result<()> {
        let (model, seen) = self.sound(from)?;
        let state = model.state().iter().map(Tensor::copy).collect::<candle_core::Result<_>>()?;
        self.put(to, state, seen)
    }

    fn snapshot(&self, sequence: u64) -> Result<Vec<u8>> {
        let (model, seen) = self.sound(sequence)?;
        let mut bytes = (seen as u64).to_le_bytes().to_vec();
        for tensor in model.state() {
            let values = tensor.flatten_all()?.to_vec1::<f32>()?;
            bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
        Ok(bytes)
    }

    fn restore(&mut self, sequence: u64, bytes: &[u8]) -> Result<()> {
        let values: usize = self.blank.iter().map(Tensor::elem_count).sum();
        let wanted = size_of::<u64>() + VALUE_BYTES * values;
        let split = bytes.split_first_chunk().filter(|_| bytes.len() == wanted);
        let Some((seen, values)) = split else {
            return Err(Error::corrupt(format!("a snapshot has {wanted} bytes, not {}", bytes.len())));
        };
        let seen = u64::from_le_bytes(*seen);
        if seen > u64::from(self.resident.context) {
            return Err(Error::corrupt(format!("a snapshot of {seen} tokens is longer than the context")));
        }
        let mut values = values.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        let mut state = Vec::with_capacity(self.blank.len());
        for blank in &self.blank {
            let part: Vec<f32> = values.by_ref().take(blank.elem_count()).collect();
            state.push(Tensor::from_vec(part, blank.shape(), &self.device)?);
        }
        // Fits, as it is below the context, which is a u32.
        self.put(sequence, state, seen as usize)
    }
}
