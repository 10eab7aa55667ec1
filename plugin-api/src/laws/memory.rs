//! Laws about what a model remembers and where: blocks and their tables, the two extensions that copy memory out and in,
//! and, for per-sequence models, the count of tokens seen.

use super::{
    report::{broken, skipped},
    rig::{Feed, Finding, Known, Pace, Rig},
};
use crate::{
    ErrorCode, PluginError, Want,
    ext::{Offered, kv_transfer::KvTransfer, sequence_state::SequenceState},
};

/// An exported block or a snapshot beyond this is taken for a mistake.
const BYTES_MAX: u64 = 1 << 32;

/// Two sequences whose blocks alternate and descend, one of them in the last block that there is.
pub(super) fn shuffled(rig: &mut Rig<'_>) -> Finding {
    paged(rig)?;
    let mut all = rig.take_neighbours(2 * rig.blocks_for(rig.longest()))?;
    all.reverse();
    let (top, place) = (rig.resident.blocks - 1, 2 % all.len());
    if !all.contains(&top) {
        all[place] = top;
    }
    let (ones, others) = alternate(&all);
    let mut first = rig.start_in(rig.text(Known::Long), ones, Pace::PLAIN)?;
    let mut second = rig.start_in(rig.text(Known::Twin), others, Pace::PLAIN)?;
    while first.left() > 0 {
        rig.step("a sequence whose blocks descend", vec![first.feed(11, Want::ALL)])?;
        rig.step("a sequence in the blocks between another's", vec![second.feed(9, Want::ALL)])?;
    }
    Ok(rig.agreement())
}

/// A writer whose table goes on into the blocks of another sequence, and whose blocks lie between that one's.
pub(super) fn own_places(rig: &mut Rig<'_>) -> Finding {
    paged(rig)?;
    let (theirs, mut table) = alternate(&rig.take_neighbours(2 * rig.blocks_for(rig.longest()))?);
    table.extend(&theirs);
    let block = rig.shape.block_tokens as usize;
    let mut bystander = rig.start_in(rig.text(Known::Long), theirs, Pace::PLAIN)?;
    let half = bystander.left() / 2;
    rig.step("a sequence in every other block", vec![bystander.feed(half, Want::ALL)])?;
    let mut writer = rig.start_in(rig.text(Known::Twin), table, Pace::PLAIN)?;
    rig.read("a sequence whose table is longer than it needs", &mut writer, block)?;
    rig.read("a sequence after another wrote to the blocks between its own", &mut bystander, half)?;
    Ok(rig.agreement())
}

/// Blocks that held another text, in the same and in another order.
pub(super) fn garbage(rig: &mut Rig<'_>) -> Finding {
    paged(rig)?;
    let blocks = rig.take_blocks(rig.blocks_for(rig.longest()))?;
    for turn in 0..2 {
        let mut used = blocks.clone();
        used.rotate_left(turn % blocks.len());
        let mut earlier = rig.start_in(rig.text(Known::Twin), used, Pace::PLAIN)?;
        rig.read("an earlier sequence", &mut earlier, usize::MAX)?;
        rig.model.release(earlier.id);
        for known in [Known::Short, Known::Long] {
            let mut later = rig.start_in(rig.text(known), blocks.clone(), Pace::PLAIN)?;
            rig.read("a sequence in blocks that another has used", &mut later, usize::MAX)?;
            rig.model.release(later.id);
        }
    }
    Ok(rig.agreement())
}

pub(super) fn shared_prefix(rig: &mut Rig<'_>) -> Finding {
    paged(rig)?;
    let block = rig.shape.block_tokens as usize;
    let shared = rig.fork() / block;
    if shared == 0 {
        return Err(skipped(format!(
            "no block of {block} tokens is filled by {} tokens that two texts share",
            rig.fork()
        )));
    }
    let mut first = rig.start(Known::Long)?;
    rig.step("the sequence that computes the prefix", vec![first.feed(rig.fork() + 1, Want::ALL)])?;
    let mut blocks = first.blocks[..shared].to_vec();
    blocks.extend(rig.take_blocks(first.blocks.len() - shared)?);
    let mut second = rig.start_in(rig.text(Known::Twin), blocks, Pace::PLAIN)?;
    second.seen = shared * block;
    let rest = rig.fork() - second.seen + 1;
    rig.step("a sequence on another's prefix", vec![second.feed(rest, Want::ALL), first.feed(1, Want::ALL)])?;
    rig.step("two sequences with one prefix", vec![first.feed(1, Want::ALL), second.feed(1, Want::ALL)])?;
    rig.model.release(first.id);
    rig.read("a sequence that outlived the maker of its prefix", &mut second, 2)?;
    Ok(rig.agreement())
}

pub(super) fn kv_transfer(rig: &mut Rig<'_>) -> Finding {
    transfer(rig)?;
    paged(rig)?;
    let half = (rig.fork() + rig.longest()) / 2;
    let (mut kept, mut other) = (rig.start(Known::Long)?, rig.start(Known::Twin)?);
    let feeds = vec![kept.feed(half, Want::ALL), other.feed(usize::MAX, Want::ALL)];
    rig.step("two sequences before a transfer", feeds)?;
    let good = export(rig, &kept.blocks)?;
    let bad = export(rig, &other.blocks)?;
    let beyond = rig.resident.blocks;
    for (what, block, spoil) in
        [("a block id beyond the last", beyond, 0), ("a byte too few", 0, -1), ("one too many", 0, 1)]
    {
        let mut bytes = vec![0; good[0].len().saturating_add_signed(spoil)];
        let out = transfer(rig)?.export(block, &mut bytes);
        must_fail(&format!("export with {what}"), out)?;
        let back = transfer(rig)?.import(block, &bytes);
        must_fail(&format!("import with {what}"), back)?;
    }
    for (blocks, contents) in [(&kept.blocks, &bad), (&kept.blocks, &good), (&other.blocks, &good)] {
        for (&block, bytes) in blocks.iter().zip(contents) {
            let back = transfer(rig)?.import(block, bytes);
            must_succeed("import of an exported block", back)?;
        }
    }
    let mut moved = rig.start_in(rig.text(Known::Long), other.blocks, Pace::PLAIN)?;
    moved.seen = half;
    rig.read("a sequence whose blocks were overwritten and imported back", &mut kept, 3)?;
    rig.read("a sequence in blocks that were imported under other ids", &mut moved, 3)?;
    Ok(rig.agreement())
}

fn transfer<'a>(rig: &'a mut Rig<'_>) -> Finding<Offered<'a, KvTransfer>> {
    let offered = KvTransfer::of(rig.model).ok_or_else(|| skipped("the model does not offer it"))?;
    must_succeed("the extension's table", offered)
}

fn copies<'a>(rig: &'a mut Rig<'_>) -> Finding<Offered<'a, SequenceState>> {
    let offered = SequenceState::of(rig.model).ok_or_else(|| skipped("the model does not offer it"))?;
    must_succeed("the extension's table", offered)
}

fn export(rig: &mut Rig<'_>, blocks: &[u32]) -> Finding<Vec<Vec<u8>>> {
    let len = transfer(rig)?.block_bytes();
    if len == 0 || len > BYTES_MAX {
        return Err(broken(format!("a block is said to have {len} bytes")));
    }
    let contents = blocks.iter().map(|&block| {
        let mut bytes = vec![0; len as usize];
        let out = transfer(rig)?.export(block, &mut bytes);
        must_succeed("export of a block", out).map(|()| bytes)
    });
    contents.collect()
}

pub(super) fn sequence_state(rig: &mut Rig<'_>) -> Finding {
    copies(rig)?;
    let at = rig.fork();
    let mut first = rig.start(Known::Long)?;
    rig.step("a sequence before it is copied", vec![first.feed(at, Want::ALL)])?;
    let snapshot = must_succeed("snapshot", copies(rig)?.snapshot(first.id))?;

    let mut second = rig.start(Known::Twin)?;
    must_succeed("fork", copies(rig)?.fork(first.id, second.id))?;
    second.seen = at;
    rig.step("a fork that goes another way", vec![second.feed(2, Want::ALL)])?;
    rig.step("a sequence after its fork went on", vec![first.feed(1, Want::ALL)])?;
    rig.end(second);
    rig.read("a sequence after its fork ended", &mut first, 2)?;
    rig.end(first);

    let mut third = rig.start(Known::Long)?;
    bad_copies(rig, &snapshot, third.id)?;
    let back = copies(rig)?.restore(third.id, &snapshot);
    must_succeed("restore of a snapshot", back)?;
    third.seen = at;
    rig.read("a sequence restored from its snapshot", &mut third, 3)?;
    Ok(rig.agreement())
}

/// What cannot be copied is an error, and leaves the name `to` free.
fn bad_copies(rig: &mut Rig<'_>, snapshot: &[u8], to: u64) -> Finding<()> {
    let stranger = u64::MAX - 1;
    let fork = copies(rig)?.fork(stranger, to);
    must_fail("fork of a sequence that does not exist", fork)?;
    let taken = copies(rig)?.snapshot(stranger);
    must_fail("snapshot of a sequence that does not exist", taken)?;
    let longer = [snapshot, &[0]].concat();
    let cut = snapshot.len().saturating_sub(1);
    for bytes in [&longer[..], &snapshot[..cut], &snapshot[..cut / 2], &[]] {
        let back = copies(rig)?.restore(to, bytes);
        must_fail(&format!("restore of {} bytes out of {}", bytes.len(), snapshot.len()), back)?;
    }
    // Bytes of the right length may well mean something else; they must only do no harm.
    let garbled: Vec<u8> = snapshot.iter().map(|byte| !byte).collect();
    match copies(rig)?.restore(to, &garbled) {
        Err(error) if error.code == ErrorCode::PANICKED => Err(broken(format!("restore of garbled bytes: {error}"))),
        Err(_) => Ok(()),
        Ok(()) => {
            rig.model.release(to);
            Ok(())
        }
    }
}

/// Per-sequence models know what they have seen, and refuse a step that does not follow it before they change anything.
pub(super) fn counts(rig: &mut Rig<'_>) -> Finding {
    if rig.paged() {
        return Err(skipped("what a paged model has seen lies in the blocks, which are the host's"));
    }
    let mut sequence = rig.start(Known::Long)?;
    try_past(rig, &[sequence.feed(1, Want::LAST)], 3, "a new sequence")?;
    rig.step("a sequence after a step that did not follow", vec![sequence.feed(6, Want::ALL)])?;
    for past in [0, 5, 7] {
        try_past(rig, &[sequence.feed(1, Want::LAST)], past, "a sequence of 6 tokens")?;
    }
    if let Ok(mut other) = rig.start(Known::Short) {
        let feeds = [sequence.feed(2, Want::LAST), other.feed(1, Want::LAST)];
        try_past(rig, &feeds, 1, "a new sequence, after a good span,")?;
    }
    rig.read("a sequence after steps that did not follow", &mut sequence, 4)?;
    rig.model.release(sequence.id);
    sequence.seen = 6;
    try_past(rig, &[sequence.feed(1, Want::LAST)], 6, "a released sequence")?;
    Ok(rig.agreement())
}

/// The last span claims another past.
fn try_past(rig: &mut Rig<'_>, feeds: &[Feed<'_>], past: u32, what: &str) -> Finding<()> {
    let mut draft = rig.draft(feeds);
    if let Some(span) = draft.spans.last_mut() {
        span.past = past;
    }
    match rig.forward(&draft) {
        Err(error) if error.code == ErrorCode::INVALID => Ok(()),
        Err(error) => Err(broken(format!("{what} continued at token {past}: not refused as invalid but: {error}"))),
        Ok(_) => Err(broken(format!("{what} can be continued at token {past}"))),
    }
}

fn alternate(blocks: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let every_other = |from| blocks.iter().copied().skip(from).step_by(2).collect();
    (every_other(0), every_other(1))
}

fn paged(rig: &Rig<'_>) -> Finding<()> {
    if rig.paged() { Ok(()) } else { Err(skipped("the model keeps a state per sequence, not blocks")) }
}

fn must_succeed<T>(what: &str, result: impl Into<Result<T, PluginError>>) -> Finding<T> {
    result.into().map_err(|error| broken(format!("{what} failed: {error}")))
}

/// What must not succeed, nor panic.
pub(super) fn must_fail<T>(what: &str, result: impl Into<Result<T, PluginError>>) -> Finding<()> {
    match result.into() {
        Ok(_) => Err(broken(format!("{what} succeeds"))),
        Err(error) if error.code == ErrorCode::PANICKED => Err(broken(format!("{what}: {error}"))),
        Err(_) => Ok(()),
    }
}
