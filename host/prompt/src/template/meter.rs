//! The budget of a rendering.
//!
//! minijinja counts instructions, which bounds loops and recursion, but not the size of what one instruction produces:
//! thirty times `x ~ x` is a gigabyte. So compiled templates are rewritten before they run: every instruction that
//! produces text or a collection is followed by a charge for the result, and text between tags passes through the
//! formatter, which charges too. Each charge also checks the clock. `+`, `*`, `%` and `~` become our own functions,
//! which charge before they allocate and treat strings, lists and floats as Python does. The process limits on memory
//! and time would also stop such a template, but they end the process with it; and the operators need the rewriting in
//! any case.

use std::{
    cell::RefCell,
    time::{Duration, Instant},
};

use minijinja::{
    Error, ErrorKind, Value,
    machinery::{Instruction, Instructions},
    value::ValueKind,
};

/// Instructions per rendering. A conversation of a few hundred turns takes tens of thousands.
pub(super) const INSTRUCTIONS_MAX: u64 = 10_000_000;
/// Bytes of text and collections that one rendering may produce, including intermediate values.
const BYTES_MAX: usize = 1 << 29;
/// Time limit of one rendering.
const TIME_MAX: Duration = Duration::from_secs(2);
/// How deep collections may nest.
pub(super) const DEPTH_MAX: usize = 200;
/// Charge per element of a collection.
const ENTRY_BYTES: usize = 24;

/// Names that no template can spell.
pub(super) const CHARGE: &str = "\u{1}charge";
pub(super) const ADD: &str = "\u{1}add";
pub(super) const MULTIPLY: &str = "\u{1}multiply";
pub(super) const REMAINDER: &str = "\u{1}remainder";
pub(super) const CONCATENATE: &str = "\u{1}concatenate";
/// Filter index that makes minijinja look the filter up by name each time.
const UNCACHED: u8 = u8::MAX;

struct Meter {
    bytes_left: usize,
    until: Instant,
}

thread_local! {
    static METER: RefCell<Option<Meter>> = const { RefCell::new(None) };
}

/// Runs a rendering with a full budget.
pub(super) fn metered<T>(work: impl FnOnce() -> T) -> T {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            METER.set(None);
        }
    }
    METER.set(Some(Meter { bytes_left: BYTES_MAX, until: Instant::now() + TIME_MAX }));
    let _reset = Reset;
    work()
}

pub(super) fn charge(bytes: usize) -> Result<(), Error> {
    METER.with_borrow_mut(|meter| {
        let Some(meter) = meter else { return Ok(()) };
        let Some(left) = meter.bytes_left.checked_sub(bytes) else {
            return Err(Error::new(ErrorKind::OutOfFuel, format!("it makes more than {BYTES_MAX} bytes")));
        };
        meter.bytes_left = left;
        if Instant::now() > meter.until {
            let seconds = TIME_MAX.as_secs();
            return Err(Error::new(ErrorKind::OutOfFuel, format!("it takes longer than {seconds} seconds")));
        }
        Ok(())
    })
}

/// Charges for a value that was produced: text by its length, a collection by its contents at any depth. A collection
/// that contains itself or repeats another one counts at its written-out size.
pub(super) fn charge_for(value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => charge(text.len()),
        None => charge_within(value, 0),
    }
}

fn charge_within(value: &Value, depth: usize) -> Result<(), Error> {
    charge(ENTRY_BYTES)?;
    if depth > DEPTH_MAX {
        return Err(too_deep());
    }
    match value.kind() {
        ValueKind::Seq => value.try_iter()?.try_for_each(|item| charge_within(&item, depth + 1)),
        ValueKind::Map => {
            let pairs = value.as_object().and_then(minijinja::value::DynObject::try_iter_pairs);
            pairs.into_iter().flatten().try_for_each(|(_, item)| charge_within(&item, depth + 1))
        }
        _ => Ok(()),
    }
}

pub(super) fn too_deep() -> Error {
    Error::new(ErrorKind::OutOfFuel, format!("its collections nest more than {DEPTH_MAX} deep"))
}

/// Returns a compiled template with charges inserted.
pub(super) fn with_charges<'source>(program: &Instructions<'source>) -> Instructions<'source> {
    let steps = || (0..).map_while(|at| program.get(at)).enumerate();
    // New position of each old instruction.
    let mut places = Vec::new();
    let mut next = 0;
    for (_, step) in steps() {
        places.push(next);
        next += 1 + u32::from(makes_something(step)) + u32::from(matches!(step, Instruction::EmitRaw(_)));
    }
    places.push(next);
    let place = |old: u32| places.get(old as usize).copied().unwrap_or(next);

    let mut metered = Instructions::new(program.name(), program.source());
    for (at, step) in steps() {
        let line = program.get_line(at as u32).and_then(|line| u16::try_from(line).ok()).unwrap_or(u16::MAX);
        let mut add = |step| {
            metered.add_with_line(step, line);
        };
        let binary = |name| Instruction::ApplyFilter(name, Some(2), UNCACHED);
        match step {
            Instruction::EmitRaw(text) => {
                add(Instruction::LoadConst(Value::from(*text)));
                add(Instruction::Emit);
            }
            Instruction::Add => add(binary(ADD)),
            Instruction::Mul => add(binary(MULTIPLY)),
            Instruction::Rem => add(binary(REMAINDER)),
            Instruction::StringConcat => add(binary(CONCATENATE)),
            Instruction::Iterate(to) => add(Instruction::Iterate(place(*to))),
            Instruction::Jump(to) => add(Instruction::Jump(place(*to))),
            Instruction::JumpIfFalse(to) => add(Instruction::JumpIfFalse(place(*to))),
            Instruction::JumpIfFalseOrPop(to) => add(Instruction::JumpIfFalseOrPop(place(*to))),
            Instruction::JumpIfTrueOrPop(to) => add(Instruction::JumpIfTrueOrPop(place(*to))),
            Instruction::BuildMacro(name, to, flags) => add(Instruction::BuildMacro(name, place(*to), *flags)),
            other => add(other.clone()),
        }
        if makes_something(step) {
            add(Instruction::ApplyFilter(CHARGE, Some(1), UNCACHED));
        }
    }
    metered
}

/// True if an instruction leaves a value on the stack that took work or memory to produce.
fn makes_something(step: &Instruction<'_>) -> bool {
    matches!(
        step,
        Instruction::Slice
            | Instruction::BuildMap(_)
            | Instruction::BuildList(_)
            | Instruction::BuildTuple(_)
            | Instruction::Eq
            | Instruction::Ne
            | Instruction::Gt
            | Instruction::Gte
            | Instruction::Lt
            | Instruction::Lte
            | Instruction::In
            | Instruction::CompareAndPreserve(_)
            | Instruction::ApplyFilter(..)
            | Instruction::PerformTest(..)
            | Instruction::EndCapture
            | Instruction::CallFunction(..)
            | Instruction::CallMethod(..)
            | Instruction::CallObject(_)
    )
}
