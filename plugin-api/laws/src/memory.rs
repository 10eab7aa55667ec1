//! Laws about a model's memory: blocks and their tables, the two extensions that copy memory out and in, and, for
//! opaque models, the number of tokens seen.

use crate::{
    report::{broken, skipped},
    rig::{Feed, Finding, Known, Pace, Places, Rig},
};
use pensieve_plugin_api::{
    ErrorCode, PluginError, Want,
    ext::{Offered, kv_transfer::KvTransfer, sequence_state::SequenceState},
};

/// A larger exported block or snapshot is considered a mistake.
const BYTES_MAX: u64 = 1 << 32;

/// Two sequences whose blocks alternate in descending order, one of them using the model's last block.
pub(crate) fn shuffled(rig: &mut Rig<'_>) -> Finding {
    blocks(rig)?;
    let (mut ones, mut others) = pair(rig)?;
    for place in 0..ones.len() {
        if !rig.shape.caches[place].has_blocks() {
            continue;
        }
        let top = rig.resident.places[place] - 1;
        if !ones[place].contains(&top) && !others[place].contains(&top) {
            ones[place][0] = top;
        }
        ones[place].reverse();
        others[place].reverse();
    }
    let mut first = rig.start_in(rig.text(Known::Long), ones, Pace::PLAIN)?;
    let mut second = rig.start_in(rig.text(Known::Twin), others, Pace::PLAIN)?;
    while first.left() > 0 {
        rig.step("a sequence whose blocks descend", vec![first.feed(11, Want::ALL)])?;
        rig.step("a sequence in the blocks between another's", vec![second.feed(9, Want::ALL)])?;
    }
    Ok(rig.agreement())
}

/// A writer whose table continues with the blocks of another sequence, and whose own blocks lie between those.
pub(crate) fn own_places(rig: &mut Rig<'_>) -> Finding {
    owned(rig)?;
    let (theirs, mut table) = pair(rig)?;
    for (place, group) in rig.shape.caches.iter().enumerate() {
        if group.has_blocks() {
            table[place].extend(&theirs[place]);
        }
    }
    let block = rig.shape.block_tokens as usize;
    let mut bystander = rig.start_in(rig.text(Known::Long), theirs, Pace::PLAIN)?;
    let half = bystander.left() / 2;
    rig.step("a sequence in every other block", vec![bystander.feed(half, Want::ALL)])?;
    let mut writer = rig.start_in(rig.text(Known::Twin), table, Pace::PLAIN)?;
    rig.read("a sequence whose table is longer than it needs", &mut writer, block)?;
    rig.read("a sequence after another wrote to the blocks between its own", &mut bystander, half)?;
    Ok(rig.agreement())
}

/// Blocks that contained another text, in the same order and in another.
pub(crate) fn garbage(rig: &mut Rig<'_>) -> Finding {
    owned(rig)?;
    let places = rig.take_places(rig.blocks_for(rig.longest()))?;
    for turn in 0..2 {
        let mut used = places.clone();
        used.iter_mut().filter(|ids| !ids.is_empty()).for_each(|ids| {
            let turn = turn % ids.len();
            ids.rotate_left(turn);
        });
        let mut earlier = rig.start_in(rig.text(Known::Twin), used, Pace::PLAIN)?;
        rig.read("an earlier sequence", &mut earlier, usize::MAX)?;
        rig.model.release(earlier.id);
        for known in [Known::Short, Known::Long] {
            let mut later = rig.start_in(rig.text(known), places.clone(), Pace::PLAIN)?;
            rig.read("a sequence in places that another has used", &mut later, usize::MAX)?;
            rig.model.release(later.id);
        }
    }
    Ok(rig.agreement())
}

pub(crate) fn shared_prefix(rig: &mut Rig<'_>) -> Finding {
    owned(rig)?;
    let block = rig.shape.block_tokens as usize;
    let shared = rig.fork() / block;
    if shared == 0 {
        return Err(skipped(format!(
            "no block of {block} tokens is filled by {} tokens that two texts share",
            rig.fork()
        )));
    }
    let copies = rig.take_slots()?;
    let mut first = rig.start(Known::Long)?;
    let feed = first.feed(rig.fork() + 1, Want::ALL).copy(shared * block, copies.clone());
    rig.step("the sequence that computes the prefix", vec![feed])?;
    let mut places = rig.take_places(rig.blocks_for(rig.longest()) - shared)?;
    for (place, group) in rig.shape.caches.iter().enumerate() {
        if group.has_blocks() {
            places[place].splice(0..0, first.places[place][..shared].iter().copied());
        }
    }
    let mut second = rig.start_in(rig.text(Known::Twin), places, Pace::PLAIN)?;
    second.go_on(shared * block, &copies);
    let rest = rig.fork() - second.seen + 1;
    rig.step("a sequence on another's prefix", vec![second.feed(rest, Want::ALL), first.feed(1, Want::ALL)])?;
    rig.step("two sequences with one prefix", vec![first.feed(1, Want::ALL), second.feed(1, Want::ALL)])?;
    rig.model.release(first.id);
    rig.read("a sequence that outlived the maker of its prefix", &mut second, 2)?;
    Ok(rig.agreement())
}

pub(crate) fn kv_transfer(rig: &mut Rig<'_>) -> Finding {
    transfer(rig)?;
    owned(rig)?;
    let half = (rig.fork() + rig.longest()) / 2;
    let (mut kept, mut other) = (rig.start(Known::Long)?, rig.start(Known::Twin)?);
    let feeds = vec![kept.feed(half, Want::ALL), other.feed(usize::MAX, Want::ALL)];
    rig.step("two sequences before a transfer", feeds)?;
    let good = export(rig, &kept.places)?;
    let bad = export(rig, &other.places)?;
    for (group, contents) in good.iter().enumerate() {
        let (beyond, bytes) = (rig.resident.places[group], contents[0].len());
        for (what, id, spoil) in
            [("an id beyond the last", beyond, 0), ("a byte too few", 0, -1), ("a byte too many", 0, 1)]
        {
            let mut bytes = vec![0; bytes.saturating_add_signed(spoil)];
            let out = transfer(rig)?.export(group as u32, id, &mut bytes);
            must_fail(&format!("export with {what}"), out)?;
            let back = transfer(rig)?.import(group as u32, id, &bytes);
            must_fail(&format!("import with {what}"), back)?;
        }
    }
    let groups = good.len() as u32;
    if transfer(rig)?.bytes(groups) != 0 {
        return Err(broken(format!("group {groups}, which there is not, is said to have bytes")));
    }
    for (places, contents) in [(&kept.places, &bad), (&kept.places, &good), (&other.places, &good)] {
        for (group, (ids, contents)) in places.iter().zip(contents).enumerate() {
            for (&id, bytes) in ids.iter().zip(contents) {
                let back = transfer(rig)?.import(group as u32, id, bytes);
                must_succeed("import of what was exported", back)?;
            }
        }
    }
    let reads: Vec<u32> = other.places.iter().map(|ids| ids[0]).collect();
    let mut moved = rig.start_in(rig.text(Known::Long), other.places, Pace::PLAIN)?;
    moved.go_on(half, &reads);
    rig.read("a sequence whose places were overwritten and imported back", &mut kept, 3)?;
    rig.read("a sequence in places that were imported under other ids", &mut moved, 3)?;
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

/// Exports the blocks and slots, group by group.
fn export(rig: &mut Rig<'_>, places: &Places) -> Finding<Vec<Vec<Vec<u8>>>> {
    let mut groups = Vec::new();
    for (group, ids) in places.iter().enumerate() {
        let len = transfer(rig)?.bytes(group as u32);
        if len == 0 || len > BYTES_MAX {
            return Err(broken(format!("a block or slot of group {group} is said to have {len} bytes")));
        }
        let contents = ids.iter().map(|&id| {
            let mut bytes = vec![0; len as usize];
            let out = transfer(rig)?.export(group as u32, id, &mut bytes);
            must_succeed("export", out).map(|()| bytes)
        });
        groups.push(contents.collect::<Finding<_>>()?);
    }
    Ok(groups)
}

pub(crate) fn sequence_state(rig: &mut Rig<'_>) -> Finding {
    copies(rig)?;
    let at = rig.fork();
    let mut first = rig.start(Known::Long)?;
    rig.step("a sequence before it is copied", vec![first.feed(at, Want::ALL)])?;
    let snapshot = must_succeed("snapshot", copies(rig)?.snapshot(first.id))?;

    let mut second = rig.start(Known::Twin)?;
    must_succeed("fork", copies(rig)?.fork(first.id, second.id))?;
    second.go_on(at, &[]);
    rig.step("a fork that goes another way", vec![second.feed(2, Want::ALL)])?;
    rig.step("a sequence after its fork went on", vec![first.feed(1, Want::ALL)])?;
    rig.end(second);
    rig.read("a sequence after its fork ended", &mut first, 2)?;
    rig.end(first);

    let mut third = rig.start(Known::Long)?;
    bad_copies(rig, &snapshot, third.id)?;
    let back = copies(rig)?.restore(third.id, &snapshot);
    must_succeed("restore of a snapshot", back)?;
    third.go_on(at, &[]);
    rig.read("a sequence restored from its snapshot", &mut third, 3)?;
    Ok(rig.agreement())
}

/// A failed copy is an error, and leaves the id `to` free.
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
    // Bytes of the right length may happen to be valid; they must only do no harm.
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

/// Opaque models count their tokens, and refuse a step that does not continue from there before they change anything.
pub(crate) fn counts(rig: &mut Rig<'_>) -> Finding {
    if rig.owned() {
        return Err(skipped("what the model has seen lies in blocks and slots, which are the host's"));
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

/// Runs a step whose last span claims another past.
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

/// Blocks and slots for two texts: alternating blocks, and a slot each.
fn pair(rig: &mut Rig<'_>) -> Finding<(Places, Places)> {
    let all = rig.take_neighbours(2 * rig.blocks_for(rig.longest()))?;
    let slots = rig.take_slots()?;
    let every_other = |ids: &[u32], from| ids.iter().copied().skip(from).step_by(2).collect::<Vec<_>>();
    let (mut ones, mut others) = (Vec::new(), Vec::new());
    for (place, ids) in all.into_iter().enumerate() {
        let blocks = rig.shape.caches[place].has_blocks();
        let (one, other) =
            if blocks { (every_other(&ids, 0), every_other(&ids, 1)) } else { (ids, vec![slots[place]]) };
        ones.push(one);
        others.push(other);
    }
    Ok((ones, others))
}

pub(crate) fn owned(rig: &Rig<'_>) -> Finding<()> {
    if rig.owned() { Ok(()) } else { Err(skipped("the model keeps sequences by itself, not in blocks or slots")) }
}

fn blocks(rig: &Rig<'_>) -> Finding<()> {
    owned(rig)?;
    if rig.has_blocks() { Ok(()) } else { Err(skipped("the model keeps states, not blocks of tokens")) }
}

fn must_succeed<T>(what: &str, result: impl Into<Result<T, PluginError>>) -> Finding<T> {
    result.into().map_err(|error| broken(format!("{what} failed: {error}")))
}

/// Expects an error, and no panic.
pub(crate) fn must_fail<T>(what: &str, result: impl Into<Result<T, PluginError>>) -> Finding<()> {
    match result.into() {
        Ok(_) => Err(broken(format!("{what} succeeds"))),
        Err(error) if error.code == ErrorCode::PANICKED => Err(broken(format!("{what}: {error}"))),
        Err(_) => Ok(()),
    }
}
