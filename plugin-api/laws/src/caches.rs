//! Laws about cache groups: drafted tokens can be rolled back, a checkpoint has the state after its token, and a window
//! forgets exactly the tokens before it.

use std::rc::Rc;

use crate::{
    memory::owned,
    report::{Outcome, broken, skipped},
    rig::{Feed, Finding, Known, Pace, Places, Rig, Sequence, Text},
};
use pensieve_plugin_api::{CacheKind, VACANT, Want};

/// Tokens per step for text of which only the end matters.
const CHUNK: usize = 256;
/// Number of texts that overwrite a block before it counts as unread.
const VANDALS: usize = 4;

/// Rejected draft tokens are overwritten: all of them, and all but the first two.
pub(crate) fn drafted(rig: &mut Rig<'_>) -> Finding {
    owned(rig)?;
    let (at, longest) = (rig.fork(), rig.longest());
    if longest < at + 5 {
        return Err(skipped(format!("a text of {longest} tokens is too short for a draft")));
    }
    let mut sequence = rig.start(Known::Long)?;
    rig.step("a sequence before it is drafted for", vec![sequence.feed(at, Want::LAST)])?;
    let (spare, copies) = (rig.take_slots()?, rig.take_slots()?);
    for right in [2, 0] {
        let (start, own) = (sequence.seen, (sequence.places.clone(), sequence.reads.clone()));
        let text = std::mem::replace(&mut sequence.text, draft(rig, start + right));
        write_elsewhere(&mut sequence, &spare);
        let mut feed = sequence.feed(right + 2, Want::ALL);
        if right > 0 {
            feed = feed.copy(start + right, copies.clone());
        }
        rig.step("drafted tokens", vec![feed])?;
        let reads;
        (sequence.text, sequence.places, reads) = (text, own.0, own.1);
        sequence.go_on(start + right, if right > 0 { &copies } else { &reads });
        rig.step("the token after drafted ones that were not taken", vec![sequence.feed(1, Want::ALL)])?;
    }
    rig.read("a sequence whose drafted tokens were not taken", &mut sequence, usize::MAX)?;
    Ok(rig.agreement())
}

/// The long text up to a token, continued with wrong tokens.
fn draft(rig: &mut Rig<'_>, right: usize) -> Rc<Text> {
    let (long, width) = (rig.text(Known::Long), rig.shape.vocabulary as usize);
    let mut tokens = long.tokens[..right].to_vec();
    tokens.extend(long.tokens[right..].iter().map(|&token| rig.another(token)));
    // The correct rows after a wrong token are unknown.
    let rows = long.rows[..right * width].to_vec();
    Rc::new(Text { tokens, rows })
}

/// Writes states to these slots, so that the ones being read stay unchanged.
fn write_elsewhere(sequence: &mut Sequence, slots: &[u32]) {
    for (places, &slot) in sequence.places.iter_mut().zip(slots).filter(|(_, slot)| **slot != VACANT) {
        *places = vec![slot];
    }
}

/// Leaves several copies in one step, and resumes from each, the last one first.
pub(crate) fn checkpoints(rig: &mut Rig<'_>) -> Finding {
    if !rig.has_states() {
        return Err(skipped("the model keeps no states in slots"));
    }
    let longest = rig.longest();
    let places = [4, (longest / 2).max(5), longest - 1];
    if longest < 8 {
        return Err(skipped(format!("a text of {longest} tokens is too short for three copies")));
    }
    let slots = [rig.take_slots()?, rig.take_slots()?, rig.take_slots()?];
    let mut sequence = rig.start(Known::Long)?;
    rig.step("a sequence before its states are copied", vec![sequence.feed(3, Want::LAST)])?;
    let mut feed = sequence.feed(longest, Want::ALL);
    for (&after, slots) in places.iter().zip(&slots) {
        feed = feed.copy(after, slots.clone());
    }
    rig.step("a sequence whose states are copied", vec![feed])?;
    for (&after, slots) in places.iter().zip(&slots).rev() {
        for _ in 0..2 {
            sequence.go_on(after, slots);
            let what = format!("a sequence that goes on from the copy after {after} tokens");
            rig.step(&what, vec![sequence.feed(longest, Want::ALL)])?;
        }
    }
    Ok(rig.agreement())
}

/// Reads a text like a host that frees the blocks before a window and reuses them for later tokens of the text.
pub(crate) fn window(rig: &mut Rig<'_>) -> Finding {
    let windows = rig.shape.caches.iter().filter(|group| group.kind == CacheKind::WINDOW);
    let Some(window) = windows.map(|group| group.window as usize).min() else {
        return Err(skipped("the model's card lists no window"));
    };
    let block = rig.shape.block_tokens as usize;
    let head = window + block;
    let tokens = far_text(rig, head + block + 2)?;
    let mut kept = rig.start_with(Rc::new(Text { tokens: tokens.clone(), rows: Vec::new() }), Pace::PLAIN)?;
    unwanted(rig, &mut kept, head)?;
    let mut rows = Vec::new();
    while kept.left() > 0 {
        rows.extend(rig.step("a text longer than a window", vec![kept.feed(1, Want::LAST)])?);
    }
    let places = std::mem::take(&mut kept.places);
    rig.model.release(kept.id);
    let (mut freed, mut later) = windowed(rig, places, window);
    let mut sequence = rig.start_in(Rc::new(Text { tokens, rows: Vec::new() }), freed.clone(), Pace::PLAIN)?;
    let width = rig.shape.vocabulary as usize;
    while sequence.left() > 0 {
        recycle(rig, &sequence, &mut freed, &mut later);
        sequence.places = freed.clone();
        if sequence.seen < head {
            let count = block.min(head - sequence.seen);
            rig.step("a text behind whose window blocks are freed", vec![sequence.feed(count, Want::NONE)])?;
            continue;
        }
        let (token, place) = (sequence.seen, sequence.seen - head);
        let row = rig.step("a text behind whose window blocks are freed", vec![sequence.feed(1, Want::LAST)])?;
        let what = format!("a window of {window} tokens whose earlier blocks are freed");
        rig.compare(&what, token, rows.get(place * width..(place + 1) * width), &row)?;
    }
    Ok(rig.agreement())
}

/// Empties the tables of windows. Returns all tables, and for each window the blocks that it needs.
fn windowed(rig: &Rig<'_>, mut places: Places, window: usize) -> (Places, Vec<Vec<u32>>) {
    let mut spare = vec![Vec::new(); places.len()];
    for (group, (ids, spare)) in rig.shape.caches.iter().zip(places.iter_mut().zip(&mut spare)) {
        if group.kind == CacheKind::WINDOW {
            let needed = rig.blocks_for((group.window as usize).max(window)) + 2;
            *spare = ids.iter().copied().take(needed).rev().collect();
            ids.fill(VACANT);
        }
    }
    (places, spare)
}

/// Frees the blocks that the next step does not read, and allocates the one that it writes.
fn recycle(rig: &Rig<'_>, sequence: &Sequence, places: &mut Places, spare: &mut [Vec<u32>]) {
    let block = rig.shape.block_tokens as usize;
    for (group, (ids, spare)) in rig.shape.caches.iter().zip(places.iter_mut().zip(spare)) {
        if group.kind != CacheKind::WINDOW {
            continue;
        }
        let behind = group.blocks_behind(sequence.seen as u64, block as u32) as usize;
        for id in &mut ids[..behind] {
            let freed = std::mem::replace(id, VACANT);
            spare.extend((freed != VACANT).then_some(freed));
        }
        let end = sequence.seen + block.min(sequence.left());
        for id in ids[..end.div_ceil(block)].iter_mut().skip(behind).filter(|id| **id == VACANT) {
            *id = spare.pop().unwrap_or(VACANT);
        }
    }
}

/// Overwrites a block that a token must read, and expects the token's logits to change: the first block for full
/// attention, for a window a block that only the last token still reaches.
pub(crate) fn reach(rig: &mut Rig<'_>) -> Finding {
    owned(rig)?;
    rig.only_looking_back()?;
    let block = rig.shape.block_tokens as usize;
    let mut tried = 0;
    for place in 0..rig.shape.caches.len() {
        let group = rig.shape.caches[place];
        let past = match group.kind {
            CacheKind::TOKENS => (rig.farthest() - 1).min(rig.room(place).saturating_sub(block)),
            CacheKind::WINDOW => block - 1 + (group.window as usize).saturating_sub(1),
            _ => continue,
        };
        if past <= block || past >= rig.farthest() || past + block > rig.room(place) {
            continue;
        }
        tried += 1;
        unread(rig, place, past)?;
    }
    let longest = rig.farthest();
    if tried == 0 {
        return Err(skipped(format!("no text of {longest} tokens leaves its first block and every window")));
    }
    Ok(Outcome::Exact)
}

/// Tests whether the token after the first `past` reads the first block of a group.
fn unread(rig: &mut Rig<'_>, group: usize, past: usize) -> Finding<()> {
    let block = rig.shape.block_tokens as usize;
    let tokens = rig.tokens(past + 1);
    let mut sequence = rig.start_with(Rc::new(Text { tokens, rows: Vec::new() }), Pace::PLAIN)?;
    unwanted(rig, &mut sequence, past)?;
    let spare = rig.take_slots()?;
    let own = (sequence.places.clone(), sequence.reads.clone());
    write_elsewhere(&mut sequence, &spare);
    let mut last = |rig: &mut Rig<'_>| {
        sequence.go_on(past, &own.1);
        rig.step("the last token of a long text", vec![sequence.feed(1, Want::LAST)])
    };
    let right = last(rig)?;
    for _ in 0..VANDALS {
        let tokens = rig.tokens(block);
        let mut places = rig.take_places(1)?;
        let unused = std::mem::replace(&mut places[group], vec![own.0[group][0]]);
        let mut vandal = rig.start_in(Rc::new(Text { tokens, rows: Vec::new() }), places, Pace::PLAIN)?;
        rig.step("a text in a block of another's", vec![vandal.feed(block, Want::LAST)])?;
        vandal.places[group] = unused;
        rig.end(vandal);
        if last(rig)? != right {
            rig.end(sequence);
            return Ok(());
        }
    }
    let (kind, end) = match rig.shape.caches[group] {
        cache if cache.kind == CacheKind::WINDOW => (format!("a window of {} tokens", cache.window), block - 1),
        _ => ("no window".into(), 0),
    };
    Err(broken(format!("token {past} does not read token {end}, though its card lists {kind} for group {group}")))
}

/// A text longer than the usual ones.
fn far_text(rig: &mut Rig<'_>, count: usize) -> Finding<Vec<u32>> {
    if count > rig.farthest() {
        let have = rig.farthest();
        return Err(skipped(format!("its window needs a text of {count} tokens, and the longest one is {have}")));
    }
    Ok(rig.tokens(count))
}

/// Reads a text up to a token without requesting logits.
fn unwanted(rig: &mut Rig<'_>, sequence: &mut Sequence, end: usize) -> Finding<()> {
    while sequence.seen < end {
        let count = CHUNK.min(end - sequence.seen);
        let feed: Feed<'_> = sequence.feed(count, Want::NONE);
        rig.step("a long text", vec![feed])?;
    }
    Ok(())
}
