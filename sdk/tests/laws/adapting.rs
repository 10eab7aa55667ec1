//! An adapter format of one small file, and a model that takes such adapters; and the faults that both can be given.

use pensieve_sdk::{
    AdapterData, AdapterFormat, Batch, Cache, Error, LowRankPair, Model, Resident, Result,
    testing::{Options, Report, conformance_with, format_conformance, with_adapter},
};
use std::{
    collections::HashMap,
    fs,
    path::Path,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use crate::{WIDTH, dot, embed};

const VOCABULARY: usize = 29;
const TARGET: &str = "lm_head";

/// The planted fault of the format or the model; the test's table describes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    // Of the format.
    ClaimsAll,
    ReadsAll,
    OpenPanics,
    NotRead,
    NoPairs,
    ValuesMissing,
    ValueNan,
    TargetTwice,
    FingerprintEmpty,
    FingerprintCounted,
    PairsReordered,
    FingerprintOfTheSize,
    CutPanics,
    // Of the model.
    NeverApplied,
    AppliedToAll,
    StrengthIgnored,
    StrengthTwice,
    ZeroAdds,
    ScaleIgnored,
    FirstForAll,
    RowsOfTheBatch,
}

pub(crate) fn check(fault: Fault, _compared: bool) -> Report {
    let folder = tempfile::tempdir().unwrap();
    let (adapter, scratch) = (folder.path().join("one.lowrank"), folder.path().join("scratch"));
    fs::create_dir(&scratch).unwrap();
    let values = (0..WIDTH + VOCABULARY).map(|place| (place as f32 * 1.7).sin());
    fs::write(&adapter, values.flat_map(f32::to_le_bytes).chain(*b"LOWRANK1").collect::<Vec<u8>>()).unwrap();
    let report = format_conformance(format(fault), &adapter, &scratch);
    if !report.passed() {
        return report;
    }
    let data = format(fault).open(&adapter).unwrap();
    let options = with_adapter(Options::default(), data).unwrap();
    conformance_with(Box::new(Adapting { fault, sums: HashMap::new(), adapters: HashMap::new() }), &options)
}

/// Values of A, then of B, then a word at the end.
struct Format {
    fault: Fault,
    opened: AtomicU32,
}

fn format(fault: Fault) -> Format {
    Format { fault, opened: AtomicU32::new(0) }
}

impl AdapterFormat for Format {
    fn name(&self) -> &'static str {
        "lowrank"
    }

    fn claims(&self, path: &Path) -> bool {
        match self.fault {
            Fault::ClaimsAll | Fault::ReadsAll => path.is_file(),
            _ => fs::read(path).is_ok_and(|bytes| bytes.ends_with(b"LOWRANK1")),
        }
    }

    fn open(&self, path: &Path) -> Result<AdapterData> {
        let fault = self.fault;
        assert!(fault != Fault::OpenPanics || path.is_file(), "is a directory");
        let bytes = fs::read(path)?;
        let values = bytes.strip_suffix(b"LOWRANK1");
        let mut values: Vec<f32> = match values {
            Some(values) => values.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
            None if fault == Fault::ReadsAll => Vec::new(),
            None if fault == Fault::CutPanics => panic!("index out of bounds"),
            None => return Err(Error::corrupt("it does not end with LOWRANK1")),
        };
        if fault == Fault::NotRead {
            return Err(Error::unsupported("a pair of rank 1"));
        }
        values.resize(WIDTH + VOCABULARY, 0.5);
        if fault == Fault::ValueNan {
            values[3] = f32::NAN;
        }
        let mut b = values.split_off(WIDTH);
        b.truncate(if fault == Fault::ValuesMissing { 7 } else { VOCABULARY });
        let opened = self.opened.fetch_add(1, Relaxed);
        let fingerprint = match fault {
            Fault::FingerprintEmpty => String::new(),
            Fault::FingerprintCounted => opened.to_string(),
            Fault::FingerprintOfTheSize => bytes.len().to_string(),
            _ => format!("{values:?}{b:?}"),
        };
        let (rank, inputs, outputs, scale) = (1, WIDTH, VOCABULARY, 1.5);
        let pair = LowRankPair { target: TARGET.into(), rank, inputs, outputs, scale, a: values, b };
        let other = LowRankPair { target: "other".into(), ..pair.clone() };
        let pairs = match fault {
            Fault::NoPairs => Vec::new(),
            Fault::TargetTwice => vec![pair.clone(), pair],
            Fault::PairsReordered if opened.is_multiple_of(2) => vec![other, pair],
            Fault::PairsReordered => vec![pair, other],
            _ => vec![pair],
        };
        Ok(AdapterData { base: String::new(), fingerprint, pairs })
    }
}

/// A model that adds tokens up, each weighed by its age, and changes its last layer by adapters.
struct Adapting {
    fault: Fault,
    sums: HashMap<u64, (usize, [f32; WIDTH])>,
    adapters: HashMap<u32, AdapterData>,
}

impl Adapting {
    /// The adapter of a sequence and its whole factor.
    fn factor(&self, adapter: u32, strength: f32) -> Option<(&LowRankPair, f32)> {
        let any = self.adapters.keys().min().copied();
        let adapter = if self.fault == Fault::AppliedToAll { any.unwrap_or(adapter) } else { adapter };
        let pair = self.adapters.get(&adapter)?.pairs.first()?;
        let strength = match self.fault {
            Fault::StrengthIgnored => 1.0,
            Fault::StrengthTwice => strength * strength,
            Fault::ZeroAdds if strength == 0.0 => 1.0,
            _ => strength,
        };
        let scale = if self.fault == Fault::ScaleIgnored { 1.0 } else { pair.scale };
        (self.fault != Fault::NeverApplied).then_some((pair, strength * scale))
    }
}

impl Model for Adapting {
    fn resident(&self) -> Resident {
        let (device, note, caches) = ("cpu".into(), String::new(), vec![(Cache::Opaque { bytes: 64 }, 16)]);
        let (weight_bytes, state_bytes, vocabulary, hidden, context, block_tokens) =
            (0, 0, VOCABULARY as u32, 0, 200, 16);
        Resident { device, note, weight_bytes, state_bytes, vocabulary, hidden, context, block_tokens, caches }
    }

    fn forward(&mut self, batch: &Batch<'_>, logits: &mut [f32]) -> Result<()> {
        for span in &batch.spans {
            let seen = self.sums.get(&span.sequence).map_or(0, |(seen, _)| *seen);
            if seen != span.past {
                return Err(Error::invalid(format!("{seen} tokens were seen, not {}", span.past)));
            }
        }
        let mut rows = logits.chunks_exact_mut(VOCABULARY);
        let first = batch.spans[0].adapter;
        for (number, span) in batch.spans.iter().enumerate() {
            let (mut seen, mut sum) = self.sums.get(&span.sequence).copied().unwrap_or((0, [0.0; WIDTH]));
            let adapter = if self.fault == Fault::FirstForAll { first } else { span.adapter };
            for index in 0..span.len {
                let input = embed(batch.tokens[span.start + index], 0);
                sum.iter_mut().zip(input).for_each(|(sum, input)| *sum = 0.8 * *sum + input);
                seen += 1;
                if index < span.len - span.rows() {
                    continue;
                }
                let Some(row) = rows.next() else { break };
                let factor = self.factor(adapter, span.adapter_scale);
                let dropped = self.fault == Fault::RowsOfTheBatch && number > 1;
                for (token, logit) in row.iter_mut().enumerate() {
                    *logit = dot(&sum, &embed(token as u32, 1));
                    if let Some((pair, factor)) = factor.filter(|_| !dropped) {
                        let inner: f32 = pair.a.iter().zip(&sum).map(|(a, x)| a * x).sum();
                        *logit += factor * pair.b[token] * inner;
                    }
                }
            }
            self.sums.insert(span.sequence, (seen, sum));
        }
        Ok(())
    }

    fn release(&mut self, sequence: u64) {
        self.sums.remove(&sequence);
    }

    fn attach(&mut self, adapter: &AdapterData) -> Result<u32> {
        for pair in &adapter.pairs {
            if (pair.target.as_str(), pair.inputs, pair.outputs) != (TARGET, WIDTH, VOCABULARY) {
                return Err(Error::not_found(format!("the model has no '{}' of this shape", pair.target)));
            }
        }
        let id = self.adapters.keys().max().map_or(1, |id| id + 1);
        self.adapters.insert(id, adapter.clone());
        Ok(id)
    }

    fn detach(&mut self, adapter: u32) -> Result<()> {
        self.adapters.remove(&adapter);
        Ok(())
    }
}
