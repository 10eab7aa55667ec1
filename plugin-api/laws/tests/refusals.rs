//! The law of refusals, on models without the SDK's glue, which would check every batch. Each model leaves one rule
//! unchecked, and the law must name it, which shows that each of its invalid batches breaks a single rule.

use pensieve_laws::{Options, Outcome, Progress, Report, Shape, check};
use pensieve_plugin_api::{
    AdapterData, Batch, CacheGroup, CacheKind, ErrorCode, Extension, Model, Model_TO, ModelBox, NO_ADAPTER, Outputs,
    PluginError, Resident, Span,
    abi_stable::{
        sabi_trait::TD_Opaque,
        std_types::{ROption, RResult, RStr},
    },
};
use std::collections::HashSet;

const VOCABULARY: usize = 11;
const CONTEXT: u32 = 128;
const BLOCKS: u32 = 64;

/// A bigram: a token's logits depend on that token alone. `BLOCK` tokens per block; 0 for an opaque model.
struct Bigram<const BLOCK: u32> {
    unchecked: &'static str,
    code: ErrorCode,
}

impl<const BLOCK: u32> Bigram<BLOCK> {
    fn faults(&self, batch: &Batch<'_>, logits: usize) -> Vec<&'static str> {
        let mut faults = Vec::new();
        let mut rule = |name, kept: bool| {
            if !kept && name != self.unchecked {
                faults.push(name);
            }
        };
        let (mut next, mut rows, mut names, mut writes) = (0_u64, 0_u64, HashSet::new(), HashSet::new());
        for span in batch.spans.as_slice() {
            let Span { start, len, past, .. } = *span;
            let (start, len, end) = (u64::from(start), u64::from(len), u64::from(past) + u64::from(len));
            rule("gap", start <= next);
            rule("overlap", start >= next);
            rule("empty", len > 0);
            rule("twice", names.insert(span.sequence));
            rule("want", span.want.rows(1).is_some());
            rule("context", end <= u64::from(CONTEXT));
            rule("adapter", span.adapter == NO_ADAPTER);
            rows += u64::from(span.want.rows(span.len).unwrap_or(0));
            next = start + len;
            rule("tables", span.caches.len() == 1);
            let Some(blocks) = span.caches.first().map(|table| table.blocks.as_slice()) else { continue };
            if BLOCK == 0 {
                rule("blocks", blocks.is_empty());
                continue;
            }
            let needed = end.div_ceil(u64::from(BLOCK)) as usize;
            rule("short", blocks.len() >= needed.min(1000));
            rule("range", blocks.iter().take(needed).all(|&block| block < BLOCKS));
            let own: HashSet<u32> = blocks.iter().copied().take(needed).skip((past / BLOCK) as usize).collect();
            own.into_iter().for_each(|block| rule("shared", writes.insert(block)));
        }
        rule("rest", next >= batch.tokens.len() as u64);
        rule("beyond", next <= batch.tokens.len() as u64);
        rule("vocabulary", batch.tokens.iter().all(|&token| token < VOCABULARY as u32));
        rule("position", batch.positions.iter().all(|&position| position < CONTEXT));
        rule("positions", batch.positions.len() == batch.tokens.len());
        rule("logits", rows * VOCABULARY as u64 == logits as u64 || self.unchecked == "want");
        faults
    }
}

impl<const BLOCK: u32> Model for Bigram<BLOCK> {
    fn resident(&self) -> Resident {
        let places = vec![if BLOCK == 0 { 0 } else { BLOCKS }].into();
        let (device, note) = ("cpu".into(), "".into());
        Resident { device, note, weight_bytes: 0, state_bytes: 0, places, context: CONTEXT }
    }

    fn forward(&mut self, batch: &Batch<'_>, outputs: &mut Outputs<'_>) -> RResult<(), PluginError> {
        let faults = self.faults(batch, outputs.logits.len());
        if !faults.is_empty() {
            return RResult::RErr(PluginError::new(self.code, faults.join(", ")));
        }
        let mut rows = outputs.logits.chunks_exact_mut(VOCABULARY);
        for span in batch.spans.as_slice() {
            let end = span.start.saturating_add(span.len) as usize;
            let wanted = span.want.rows(span.len).unwrap_or(0) as usize;
            for (token, row) in batch.tokens.iter().take(end).skip(end - wanted).zip(&mut rows) {
                row.iter_mut().enumerate().for_each(|(place, logit)| *logit = (place as u32 ^ (token % 8)) as f32);
            }
        }
        RResult::ROk(())
    }

    fn attach(&mut self, _: &AdapterData) -> RResult<u32, PluginError> {
        RResult::RErr(PluginError::new(ErrorCode::UNSUPPORTED, "a bigram takes no adapters"))
    }

    fn detach(&mut self, adapter: u32) -> RResult<(), PluginError> {
        RResult::RErr(PluginError::new(ErrorCode::NOT_FOUND, format!("no adapter {adapter} is attached")))
    }

    fn release(&mut self, _: u64) {}

    fn extension(&self, _: RStr<'_>) -> ROption<Extension> {
        ROption::RNone
    }
}

fn shape(kind: CacheKind) -> Shape {
    let caches = vec![CacheGroup { kind, window: 0, bytes: 0 }];
    Shape { vocabulary: VOCABULARY as u32, block_tokens: 8, caches, candidates: 0, hidden: 0 }
}

fn report<const BLOCK: u32>(unchecked: &'static str, code: ErrorCode) -> Report {
    let mut model: ModelBox = Model_TO::from_value(Bigram::<BLOCK> { unchecked, code }, TD_Opaque);
    let kind = if BLOCK == 0 { CacheKind::OPAQUE } else { CacheKind::TOKENS };
    check(&mut model, shape(kind), &Options::default(), &mut |_| {})
}

#[track_caller]
fn assert_names(report: &Report, phrase: &str) {
    let Some(Outcome::Broken { what, .. }) = report.outcome("refuses") else { panic!("nothing broken\n{report}") };
    assert!(what.contains(phrase), "{phrase}\n{report}");
}

#[test]
fn a_model_that_checks_every_rule_obeys() {
    let paged = report::<8>("", ErrorCode::INVALID);
    assert_eq!(paged.outcome("refuses"), Some(&Outcome::Exact), "\n{paged}");
    assert!(paged.passed(), "\n{paged}");
    // A bigram keeps no state, so nothing shows that it does not count.
    let per_sequence = report::<0>("", ErrorCode::INVALID);
    assert_eq!(per_sequence.outcome("refuses"), Some(&Outcome::Exact), "\n{per_sequence}");
}

#[test]
fn each_rule_that_is_not_checked_is_named() {
    let rules = [
        ("vocabulary", "a token equal to the vocabulary size: accepted"),
        ("vocabulary", "token 4294967295: accepted"),
        ("position", "a position equal to the context: accepted"),
        ("positions", "fewer positions than tokens: accepted"),
        ("positions", "more positions than tokens: accepted"),
        ("gap", "a gap between two spans: accepted"),
        ("overlap", "two spans that overlap: accepted"),
        ("rest", "a token in no span: accepted"),
        ("beyond", "a span beyond the last token: accepted"),
        ("empty", "a span without tokens: accepted"),
        ("twice", "one sequence twice: accepted"),
        ("want", "a wish for logits that does not exist: accepted"),
        ("context", "more tokens than the context: accepted"),
        ("adapter", "an adapter that was never attached: accepted"),
        ("logits", "room for a logit too few: accepted"),
        ("logits", "room for a row too many: accepted"),
        ("short", "no blocks: accepted"),
        ("short", "a table that ends too early: accepted"),
        ("range", "a block id beyond the last: accepted"),
        ("range", "block 4294967295: accepted"),
        ("shared", "two sequences that write to one block: accepted"),
        ("tables", "a table too few: accepted"),
        ("tables", "a table too many: accepted"),
    ];
    for (rule, phrase) in rules {
        assert_names(&report::<8>(rule, ErrorCode::INVALID), phrase);
    }
    assert_names(&report::<0>("blocks", ErrorCode::INVALID), "blocks for an opaque model: accepted");
}

#[test]
fn a_refusal_with_another_code_is_named() {
    assert_names(&report::<8>("", ErrorCode::DEVICE), "one sequence twice: not as invalid but: twice");
}

#[test]
fn each_law_is_announced_before_it_is_tried_and_told_after() {
    let mut model: ModelBox = Model_TO::from_value(Bigram::<8> { unchecked: "", code: ErrorCode::INVALID }, TD_Opaque);
    let mut announced = Vec::new();
    let report = check(&mut model, shape(CacheKind::TOKENS), &Options::default(), &mut |progress| {
        announced.push(match progress {
            Progress::Tries(law) => (law.to_owned(), false),
            Progress::Found(verdict) => (verdict.law.to_owned(), true),
        });
    });
    let laws = report.verdicts.iter().map(|verdict| verdict.law.to_owned());
    assert_eq!(announced, laws.flat_map(|law| [(law.clone(), false), (law, true)]).collect::<Vec<_>>());
    assert!(announced.len() > 40);
}
