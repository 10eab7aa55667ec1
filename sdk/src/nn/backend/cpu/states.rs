//! States of recurrent layers, in the slots of a step's sequences.

use pensieve_kernels as kernels;

use crate::{
    Error, Result,
    nn::memory::{pass::Pass, states::StateWrite, view::change},
};

/// Runs a kernel that advances one part of a layer's states over the rows of a step, and returns its result.
pub(super) fn change_states(
    layer: usize,
    part: usize,
    pass: &Pass<'_>,
    kernel: impl Fn(Vec<kernels::Stretch<'_>>) -> Vec<f32>,
) -> Result<Vec<f32>> {
    let (read, kept, spans) = (pass.read_slots(layer)?, pass.state_writes(layer)?, &pass.batch().spans);
    let states = pass.kv.states(layer, part)?;
    let values = states.dim(2)?;
    let mut out = Vec::new();
    change(states, |memory| {
        let mut slots = Slots::open(memory, values, &read, &kept)?;
        let mut sequences = Vec::with_capacity(spans.len());
        for (index, span) in spans.iter().enumerate() {
            let mut copies = Vec::new();
            for one in kept.iter().filter(|one| one.span == index) {
                copies.push((one.end, slots.take(one.slot)?));
            }
            let Some((_, state)) = copies.pop() else { return Err(no_slot()) };
            sequences.push(kernels::Stretch { rows: span.start..span.start + span.len, state, copies });
        }
        out = kernel(sequences);
        Ok(())
    })?;
    Ok(out)
}

/// Mutable access to the slots of a layer's states; each slot can be taken once.
struct Slots<'a>(Vec<Option<&'a mut [f32]>>);

impl<'a> Slots<'a> {
    /// Splits the memory into slots, after copying each sequence's state to the slot where it continues.
    fn open(memory: &'a mut [f32], values: usize, read: &[Option<u32>], kept: &[StateWrite]) -> Result<Self> {
        let all = memory.len() / values.max(1);
        let range = |slot: u32| {
            let slot = slot as usize;
            if slot < all { Ok(slot * values..(slot + 1) * values) } else { Err(no_slot()) }
        };
        // Read all before writing any, as a sequence may continue from a slot that another overwrites.
        let mut moved = Vec::new();
        for (index, read) in read.iter().enumerate() {
            let Some(write) = kept.iter().rfind(|one| one.span == index) else { return Err(no_slot()) };
            if *read != Some(write.slot) {
                let state = read.map(|slot| Ok::<_, Error>(memory[range(slot)?].to_vec())).transpose()?;
                moved.push((range(write.slot)?, state));
            }
        }
        for (place, state) in moved {
            match state {
                Some(state) => memory[place].copy_from_slice(&state),
                None => memory[place].fill(0.0),
            }
        }
        Ok(Self(memory.chunks_exact_mut(values).map(Some).collect()))
    }

    fn take(&mut self, slot: u32) -> Result<&'a mut [f32]> {
        self.0.get_mut(slot as usize).and_then(Option::take).ok_or_else(no_slot)
    }
}

fn no_slot() -> Error {
    Error::invalid("a sequence has no slot of its own for its state")
}
