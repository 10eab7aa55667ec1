//! Laws about what a model must refuse: every rule of `Batch` and `Span` broken once, and adapters that do not fit. A
//! refusal is an error, and afterwards every sequence goes on as if nothing had been asked.

use super::{
    TOKENS_MIN,
    memory::must_fail,
    report::{Outcome, broken, skipped},
    rig::{Draft, Finding, Known, Rig},
};
use crate::{AdapterData, ErrorCode, LowRankPair, Want};

/// What is wrong with a batch, and how it is made so. The good one holds two spans: four tokens of a sequence that has
/// read some, all wanted, then three of a new one, the last wanted.
type Fault = (&'static str, fn(&mut Draft, &Rig<'_>));

const FAULTS: &[Fault] = &[
    ("a token equal to the vocabulary size", |draft, rig| draft.tokens[1] = rig.shape.vocabulary),
    ("token 4294967295", |draft, _| draft.tokens[1] = u32::MAX),
    ("a position equal to the context", |draft, rig| draft.positions[5] = rig.resident.context),
    ("fewer positions than tokens", |draft, _| draft.positions.truncate(6)),
    ("more positions than tokens", |draft, _| draft.positions.push(0)),
    ("a gap between two spans", |draft, _| reshape(draft, 1, 2)),
    ("two spans that overlap", |draft, _| reshape(draft, -1, 4)),
    ("a token in no span", |draft, _| reshape(draft, 0, 2)),
    ("a span beyond the last token", |draft, _| reshape(draft, 0, 4)),
    ("a span of 4294967295 tokens", |draft, _| draft.spans[1].len = u32::MAX),
    ("a span without tokens", |draft, _| {
        let (mut empty, table) = (draft.spans[1], draft.tables[1].clone());
        (empty.sequence, empty.start, empty.len, empty.want) = (u64::MAX - 1, 7, 0, Want::NONE);
        draft.spans.push(empty);
        draft.tables.push(table);
    }),
    ("one sequence twice", |draft, _| draft.spans[1].sequence = draft.spans[0].sequence),
    ("a wish for logits that does not exist", |draft, _| draft.spans[0].want = Want(3)),
    ("more tokens than the context", |draft, rig| {
        draft.spans[1].past = rig.resident.context - 2;
        let filler = draft.tables[1].last().copied();
        let needed = rig.blocks_for(rig.resident.context as usize + 1);
        draft.tables[1].extend(filler.into_iter().cycle().take(needed.min(1 << 20)));
    }),
    ("4294967295 past tokens", |draft, _| draft.spans[1].past = u32::MAX),
    ("an adapter that was never attached", |draft, _| draft.spans[0].adapter = u32::MAX - 1),
    ("room for a logit too few", |draft, _| draft.logits -= 1),
    ("room for a row too many", |draft, rig| draft.logits += rig.shape.vocabulary as usize),
];

const PAGED_FAULTS: &[Fault] = &[
    ("no blocks", |draft, _| draft.tables[1].clear()),
    ("a table that ends too early", |draft, rig| {
        let needed = rig.blocks_for((draft.spans[0].past + draft.spans[0].len) as usize);
        draft.tables[0].truncate(needed - 1);
    }),
    ("a block id beyond the last", |draft, rig| draft.tables[1][0] = rig.resident.blocks),
    ("block 4294967295", |draft, _| draft.tables[1][0] = u32::MAX),
    ("two sequences that write to one block", |draft, rig| {
        let writes = draft.spans[0].past / rig.shape.block_tokens;
        draft.tables[1][0] = draft.tables[0][writes as usize];
    }),
];

const PER_SEQUENCE_FAULTS: &[Fault] = &[("blocks for a model without blocks", |draft, _| draft.tables[0].push(0))];

pub(super) fn batches(rig: &mut Rig<'_>) -> Finding {
    let (mut old, mut new) = (rig.start(Known::Long)?, rig.start(Known::Short)?);
    let seen = old.left() / 2;
    rig.step("a sequence before wrong batches", vec![old.feed(seen, Want::ALL)])?;
    if old.left() < 5 || new.left() < 4 {
        return Err(skipped("the texts that fit the model are too short"));
    }
    let more = if rig.paged() { PAGED_FAULTS } else { PER_SEQUENCE_FAULTS };
    let mut wrongs = Vec::new();
    for (what, spoil) in FAULTS.iter().chain(more) {
        let mut draft = rig.draft(&[old.feed(4, Want::ALL), new.feed(3, Want::LAST)]);
        spoil(&mut draft, rig);
        match rig.forward(&draft) {
            Ok(_) => wrongs.push(format!("{what}: accepted")),
            Err(error) if error.code != ErrorCode::INVALID => {
                wrongs.push(format!("{what}: not as invalid but: {error}"));
            }
            Err(_) => {}
        }
    }
    if !wrongs.is_empty() {
        return Err(broken(wrongs.join("; ")));
    }
    let feeds = vec![old.feed(4, Want::ALL), new.feed(3, Want::LAST)];
    rig.step("the good batch after all wrong ones", feeds)?;
    rig.read("a sequence after wrong batches", &mut old, 5)?;
    Ok(rig.agreement())
}

pub(super) fn adapters(rig: &mut Rig<'_>) -> Finding {
    must_fail("detach of an adapter that was never attached", rig.model.detach(u32::MAX - 1))?;
    let unknown = pair("model.layers.0.no_such_projection", 3, 5);
    let misshapen = pair("model.layers.0.self_attn.q_proj", 3, 5);
    let mut cut = pair("model.layers.0.self_attn.k_proj", 3, 5);
    cut.a.pop();
    for (what, pair) in [("an unknown tensor", unknown), ("a wrong shape", misshapen), ("a value too few", cut)] {
        let target = pair.target.clone();
        let adapter = AdapterData { base: "".into(), fingerprint: what.into(), pairs: vec![pair].into() };
        match rig.model.attach(&adapter).into_result() {
            Err(error) if error.code == ErrorCode::UNSUPPORTED => return Err(skipped("the model takes no adapters")),
            Err(error) if error.code == ErrorCode::PANICKED => {
                return Err(broken(format!("attach of {what}: {error}")));
            }
            Err(error) if !error.message.contains(&*target) => {
                return Err(broken(format!("attach of {what}: the error does not name '{target}': {error}")));
            }
            Err(_) => {}
            Ok(_) => return Err(broken(format!("attach of {what}, for '{target}', succeeds"))),
        }
    }
    let mut sequence = rig.start(Known::Short)?;
    rig.read("a prompt after adapters were refused", &mut sequence, usize::MAX)?;
    Ok(rig.agreement())
}

/// What a model says of itself must fit its card, or nothing else can be tried.
pub(super) fn resident(rig: &mut Rig<'_>) -> Finding {
    let (resident, shape) = (&rig.resident, rig.shape);
    let wrong = match (rig.paged(), resident.blocks) {
        _ if resident.context == 0 => format!("its context is 0 tokens ({})", resident.note),
        _ if shape.vocabulary == 0 || shape.vocabulary > 1 << 24 => {
            format!("its vocabulary has {} tokens", shape.vocabulary)
        }
        (true, 0) => format!("its card speaks of blocks of {} tokens, and none is resident", shape.block_tokens),
        (false, blocks) if blocks > 0 => format!("its card speaks of no blocks, and {blocks} are resident"),
        _ if rig.longest() < TOKENS_MIN as usize => format!("it has no room for a text of {TOKENS_MIN} tokens"),
        _ => return Ok(Outcome::Exact),
    };
    Err(broken(wrong))
}

fn reshape(draft: &mut Draft, shift: i32, len: u32) {
    let span = &mut draft.spans[1];
    (span.start, span.len) = (span.start.wrapping_add_signed(shift), len);
}

fn pair(target: &str, inputs: u32, outputs: u32) -> LowRankPair {
    let (a, b) = (vec![0.5; inputs as usize].into(), vec![0.5; outputs as usize].into());
    LowRankPair { target: target.into(), rank: 1, inputs, outputs, scale: 1.0, a, b }
}
