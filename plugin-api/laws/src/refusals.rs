//! Laws about refusals: every rule of `Batch` and `Span` is broken once, and adapters do not fit. A refusal is an
//! error, and afterwards every sequence continues as if nothing had happened.

use crate::{
    TOKENS_MIN,
    memory::must_fail,
    report::{Outcome, broken, skipped},
    rig::{Draft, Finding, Known, Rig, Table},
};
use pensieve_plugin_api::{AdapterData, CacheGroup, CacheKind, Checkpoint, ErrorCode, LowRankPair, VACANT, Want};

/// A fault and the change that causes it. The valid batch has two spans: four tokens of a sequence that has read some,
/// all wanted, and three of a new one, the last wanted.
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
        let needed = rig.blocks_for(rig.resident.context as usize + 1);
        for table in &mut draft.tables[1] {
            let filler = table.blocks.last().copied();
            table.blocks.extend(filler.into_iter().cycle().take(needed.min(1 << 20)));
            table.read = table.write;
        }
    }),
    ("4294967295 past tokens", |draft, _| draft.spans[1].past = u32::MAX),
    ("an adapter that was never attached", |draft, _| draft.spans[0].adapter = u32::MAX - 1),
    ("room for a logit too few", |draft, _| draft.logits -= 1),
    ("room for a row too many", |draft, rig| draft.logits += rig.shape.vocabulary as usize),
];

const OWNED_FAULTS: &[Fault] = &[
    ("a table too few", |draft, _| drop(draft.tables[1].pop())),
    ("a table too many", |draft, _| {
        let last = draft.tables[1].last().cloned();
        draft.tables[1].extend(last);
    }),
];

const BLOCK_FAULTS: &[Fault] = &[
    ("no blocks", |draft, rig| blocks(draft, 1, rig).clear()),
    ("a table that ends too early", |draft, rig| {
        let needed = rig.blocks_for((draft.spans[0].past + draft.spans[0].len) as usize);
        blocks(draft, 0, rig).truncate(needed - 1);
    }),
    ("a block id beyond the last", |draft, rig| {
        let count = rig.resident.places[first(rig, CacheGroup::has_blocks)];
        blocks(draft, 1, rig)[0] = count;
    }),
    ("block 4294967295", |draft, rig| blocks(draft, 1, rig)[0] = VACANT),
    ("two sequences that write to one block", |draft, rig| {
        let writes = draft.spans[0].past / rig.shape.block_tokens;
        let block = blocks(draft, 0, rig)[writes as usize];
        blocks(draft, 1, rig)[0] = block;
    }),
];

const STATE_FAULTS: &[Fault] = &[
    ("no slot to read", |draft, rig| state(draft, 0, rig).read = VACANT),
    ("a slot to read for a new sequence", |draft, rig| state(draft, 1, rig).read = state(draft, 1, rig).write),
    ("no slot to write", |draft, rig| state(draft, 1, rig).write = VACANT),
    ("a slot beyond the last", |draft, rig| {
        let count = rig.resident.places[first(rig, CacheGroup::has_slots)];
        state(draft, 1, rig).write = count;
    }),
    ("two sequences that write to one slot", |draft, rig| {
        let slot = state(draft, 0, rig).write;
        state(draft, 1, rig).write = slot;
    }),
    ("a slot that one sequence reads and another writes", |draft, rig| {
        let slot = state(draft, 0, rig).read;
        state(draft, 0, rig).write = state(draft, 1, rig).write;
        state(draft, 1, rig).write = slot;
    }),
    ("a checkpoint in the slot that is written", |draft, rig| {
        let (after, slot) = (draft.spans[1].len, state(draft, 1, rig).write);
        state(draft, 1, rig).checkpoints.push(Checkpoint { after, slot });
    }),
    ("a checkpoint after no new token", |draft, rig| {
        let after = draft.spans[0].past;
        let slot = spare(draft, rig);
        state(draft, 0, rig).checkpoints.push(Checkpoint { after, slot });
    }),
    ("a checkpoint beyond the span", |draft, rig| {
        let after = draft.spans[1].len + 1;
        let slot = spare(draft, rig);
        state(draft, 1, rig).checkpoints.push(Checkpoint { after, slot });
    }),
];

const OPAQUE_FAULTS: &[Fault] =
    &[("blocks for an opaque model", |draft, _| draft.tables[0].iter_mut().for_each(|table| table.blocks.push(0)))];

/// Index of the first group of this kind.
fn first(rig: &Rig<'_>, kind: fn(&CacheGroup) -> bool) -> usize {
    rig.shape.caches.iter().position(kind).unwrap_or(0)
}

/// A span's blocks in the first group with blocks.
fn blocks<'d>(draft: &'d mut Draft, span: usize, rig: &Rig<'_>) -> &'d mut Vec<u32> {
    &mut draft.tables[span][first(rig, CacheGroup::has_blocks)].blocks
}

/// A span's table in the first group with states.
fn state<'d>(draft: &'d mut Draft, span: usize, rig: &Rig<'_>) -> &'d mut Table {
    &mut draft.tables[span][first(rig, CacheGroup::has_slots)]
}

/// A slot used by neither of a draft's spans.
fn spare(draft: &mut Draft, rig: &Rig<'_>) -> u32 {
    let taken = [state(draft, 0, rig).write, state(draft, 1, rig).write];
    (0..rig.resident.places[first(rig, CacheGroup::has_slots)]).find(|slot| !taken.contains(slot)).unwrap_or(0)
}

pub(crate) fn batches(rig: &mut Rig<'_>) -> Finding {
    let (mut old, mut new) = (rig.start(Known::Long)?, rig.start(Known::Short)?);
    let seen = old.left() / 2;
    rig.step("a sequence before wrong batches", vec![old.feed(seen, Want::ALL)])?;
    if old.left() < 5 || new.left() < 4 {
        return Err(skipped("the texts that fit the model are too short"));
    }
    let owned = if rig.owned() { OWNED_FAULTS } else { OPAQUE_FAULTS };
    let blocks = if rig.has_blocks() { BLOCK_FAULTS } else { &[] };
    let states = if rig.has_states() { STATE_FAULTS } else { &[] };
    let mut wrongs = Vec::new();
    for (what, spoil) in FAULTS.iter().chain(owned).chain(blocks).chain(states) {
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

pub(crate) fn adapters(rig: &mut Rig<'_>) -> Finding {
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

/// The resident model must match its card, or nothing else can be tested.
pub(crate) fn resident(rig: &mut Rig<'_>) -> Finding {
    let (resident, shape) = (&rig.resident, &rig.shape);
    let opaque = shape.caches.iter().filter(|group| group.kind == CacheKind::OPAQUE).count();
    let empty = shape
        .caches
        .iter()
        .zip(resident.places.iter())
        .position(|(group, &count)| count == 0 && group.kind != CacheKind::OPAQUE);
    let wrong = match (resident.places.len(), shape.caches.len()) {
        (have, want) if have != want => format!("its card lists {want} groups of caches, and {have} are resident"),
        (_, 0) => "its card lists no group of caches".into(),
        (_, groups) if opaque > 0 && groups > 1 => format!("its card lists {groups} groups, one of them opaque"),
        _ if shape.block_tokens == 0 => "its blocks hold no tokens".into(),
        _ if let Some(group) = empty => format!("its card lists group {group}, and no block or slot of it is resident"),
        _ if resident.context == 0 => format!("its context is 0 tokens ({})", resident.note),
        _ if shape.vocabulary == 0 || shape.vocabulary > 1 << 24 => {
            format!("its vocabulary has {} tokens", shape.vocabulary)
        }
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
