//! A sampler that keeps the better half of the candidates and then draws, and the faults that it can be given.

use pensieve_sdk::{
    Error, Result,
    sampler::{Candidates, History, Sampler, Stage},
    testing::{Report, SamplerOptions, sampler_conformance},
};
use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    thread::{sleep, yield_now},
    time::Duration,
};

/// The sampler's planted fault; the test's table describes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    PlaceForId,
    LeftTwice,
    ForeignLeft,
    PicksBarred,
    PicksNan,
    LeavesNothing,
    MakesNan,
    SaysSorted,
    SeedFromClock,
    DrawsShared,
    ScratchShared,
    UnknownTaken,
    NonsensePanics,
    RefusedAsUnsupported,
    UnknownNotNamed,
    EmptyRefused,
    EmptyPanics,
    OneTokenPanics,
    TooSlow,
}

pub(crate) fn check(fault: Fault, _compared: bool) -> Report {
    let deadline = Duration::from_millis(if fault == Fault::TooSlow { 20 } else { 5000 });
    let options = SamplerOptions { deadline, vocabulary: 20_000, ..SamplerOptions::default() };
    sampler_conformance(Halving(fault), &options)
}

/// The random state of stages that share one, against the rules.
static SHARED: AtomicU64 = AtomicU64::new(1);

/// The place that a stage is about to pick, kept where others keep theirs.
static SCRATCH: AtomicUsize = AtomicUsize::new(0);

struct Halving(Fault);

impl Sampler for Halving {
    fn name(&self) -> &'static str {
        "halving"
    }

    fn create(&self, parameters: &str, vocabulary: u32, seed: u64) -> Result<Box<dyn Stage>> {
        let fault = self.0;
        let parameters = parameters.trim();
        assert!(fault != Fault::OneTokenPanics || vocabulary > 1, "a vocabulary of one");
        assert!(fault != Fault::NonsensePanics || parameters != "{", "EOF while parsing an object");
        if parameters.is_empty() && fault == Fault::EmptyRefused {
            return Err(Error::unsupported("halving: no parameters were given"));
        }
        let unknown = parameters.starts_with("{\"");
        if unknown && fault == Fault::UnknownTaken || parameters.is_empty() || parameters == "{}" {
            let calls = SHARED.fetch_add(1, Relaxed);
            let seed = if fault == Fault::SeedFromClock { calls } else { seed };
            return Ok(Box::new(Drawing { fault, random: seed }));
        }
        let message = match fault {
            Fault::UnknownNotNamed => "halving: an unknown parameter".into(),
            _ => format!("halving: there is no parameter in {parameters}"),
        };
        Err(if fault == Fault::RefusedAsUnsupported { Error::unsupported(message) } else { Error::invalid(message) })
    }
}

struct Drawing {
    fault: Fault,
    random: u64,
}

impl Drawing {
    fn draw(&mut self) -> u64 {
        let step = 6_364_136_223_846_793_005;
        if self.fault == Fault::DrawsShared {
            return SHARED.fetch_add(step, Relaxed) >> 33;
        }
        self.random = self.random.wrapping_mul(step).wrapping_add(99);
        self.random >> 33
    }
}

impl Stage for Drawing {
    fn sample(&mut self, candidates: &mut Candidates<'_>, _: History<'_>) -> Result<Option<u32>> {
        assert!(self.fault != Fault::EmptyPanics || !candidates.is_empty(), "index out of bounds");
        if self.fault == Fault::TooSlow && candidates.len() > 1000 {
            sleep(Duration::from_millis(60));
        }
        if self.fault == Fault::LeavesNothing && candidates.len() > 40 {
            candidates.truncate(0);
            return Ok(None);
        }
        if self.fault == Fault::MakesNan {
            let (_, logits) = candidates.parts_mut();
            let mean = logits.iter().sum::<f32>() / logits.len() as f32;
            logits.iter_mut().for_each(|logit| *logit = (*logit - mean) / (*logit - mean).abs());
            return Ok(None);
        }
        if matches!(self.fault, Fault::SaysSorted | Fault::LeftTwice | Fault::ForeignLeft) {
            let (ids, _) = candidates.parts_mut();
            match (self.fault, ids) {
                (Fault::LeftTwice, [.., one, other]) => *other = *one,
                (Fault::ForeignLeft, [.., last]) => *last = 1,
                _ => {}
            }
            if self.fault == Fault::SaysSorted {
                candidates.set_sorted();
            }
            return Ok(None);
        }
        let is_open = |logit: f32| match self.fault {
            Fault::PicksBarred => !logit.is_nan(),
            Fault::PicksNan => logit != f32::NEG_INFINITY,
            _ => logit > f32::NEG_INFINITY,
        };
        let open: Vec<usize> = (0..candidates.len()).filter(|&place| is_open(candidates.logits()[place])).collect();
        if open.is_empty() {
            return Err(Error::invalid("halving: all candidates are barred"));
        }
        let mut place = open[self.draw() as usize % open.len()];
        if self.fault == Fault::ScratchShared {
            SCRATCH.store(place, Relaxed);
            yield_now();
            place = SCRATCH.load(Relaxed).min(candidates.len() - 1);
        }
        Ok(Some(if self.fault == Fault::PlaceForId { place as u32 } else { candidates.ids()[place] }))
    }
}
