//! Laws of models that read images and sounds (`media/1`): an item's rows are its own, wherever, whenever and beside
//! whatever it is encoded, and stand at its slots alone.
//!
//! Texts with items are read whole and alone first, like all others. Their rows depend on random pixels, which are enough
//! to tell one item from another; that the rows are those of the paper only a reference can show.

use std::rc::Rc;

use crate::{
    report::{broken, skipped},
    rig::{Finding, Known, Pace, REFUSED, Rig, Sequence, Text},
    sample::MediaSample,
};
use pensieve_plugin_api::{
    ErrorCode, PluginError, Want,
    ext::{
        Offered,
        media::{Encode, NO_HANDLE, Placement},
    },
};

/// Calls of `encode` after which an item should long have its rows.
const CALLS_MAX: u32 = 100_000;
/// Microseconds that encode any item in one call.
const WHOLE: u32 = u32::MAX;
/// Tokens of text before, between and after items.
const BESIDE: usize = 3;

/// A text with items.
struct Scene {
    text: Rc<Text>,
    /// First slot and sample of each item.
    items: Vec<(usize, usize)>,
}

/// Rows depend on pixels alone, and both on all of them.
pub(crate) fn repeatable(rig: &mut Rig<'_>) -> Finding {
    let scene = learned(rig, &[0])?;
    let (first, second) = (open(rig, 0)?, open(rig, 0)?);
    encode(rig, &[first, second], WHOLE)?;
    for handle in [first, second] {
        read(rig, "the same item again", &scene, &[handle], usize::MAX)?;
    }
    let other = open(rig, 1)?;
    encode(rig, &[other], WHOLE)?;
    let changed = logits(rig, &scene, &[other])?;
    if changed == scene.text.rows {
        return Err(broken("another item of the same size gives the same logits"));
    }
    close(rig, &[first, second, other]);
    Ok(rig.agreement())
}

/// Each item's rows go to its own slots.
pub(crate) fn order(rig: &mut Rig<'_>) -> Finding {
    let scene = learned(rig, &[0, 1, 2])?;
    let handles: Vec<u64> = [2, 1, 0].into_iter().map(|sample| open(rig, sample)).collect::<Finding<_>>()?;
    for handle in &handles {
        encode(rig, &[*handle], WHOLE)?;
    }
    read(rig, "items encoded in another order", &scene, &[handles[2], handles[1], handles[0]], usize::MAX)?;
    let swapped = logits(rig, &scene, &[handles[1], handles[2], handles[0]])?;
    if swapped == scene.text.rows {
        return Err(broken("two items of one size that change places give the same logits"));
    }
    close(rig, &handles);
    Ok(rig.agreement())
}

/// Encoding may be divided in time, and items may be encoded together.
pub(crate) fn pieces(rig: &mut Rig<'_>) -> Finding {
    let scene = learned(rig, &[0, 2])?;
    let together = [open(rig, 0)?, open(rig, 1)?, open(rig, 2)?];
    encode(rig, &together, 1)?;
    read(rig, "items encoded together, in pieces", &scene, &[together[0], together[2]], usize::MAX)?;
    let (first, last) = (open(rig, 0)?, open(rig, 2)?);
    let begun = encoder(rig)?.encode(&[first], 1).map_err(|error| refused("encode", &error))?;
    encode(rig, &[last], 1)?;
    if begun > 0 {
        encode(rig, &[first], WHOLE)?;
    }
    read(rig, "an item that was encoded between two pieces of another", &scene, &[first, last], usize::MAX)?;
    close(rig, &together);
    close(rig, &[first, last]);
    Ok(rig.agreement())
}

/// Sequences with and without items share a batch, and tokens that are read in any chunks.
pub(crate) fn batched(rig: &mut Rig<'_>) -> Finding {
    let (one, two) = (learned(rig, &[0])?, learned(rig, &[1, 2])?);
    let handles = [open(rig, 0)?, open(rig, 1)?, open(rig, 2)?];
    encode(rig, &handles, WHOLE)?;
    let (mut first, mut second) = (begin(rig, &one)?, begin(rig, &two)?);
    let mut text = rig.start(Known::Long)?;
    place(rig, &first, &one, &handles[..1])?;
    place(rig, &second, &two, &handles[1..])?;
    let is_whole = rig.options.media[0].whole;
    for size in [5, 2, 7, usize::MAX] {
        let of = |sequence: &Sequence| if is_whole { sequence.left() } else { size.min(sequence.left()) };
        let (a, b) = (of(&first), of(&second));
        let feeds = vec![first.feed(a, Want::ALL), text.feed(3, Want::ALL), second.feed(b, Want::ALL)];
        rig.step("sequences with items beside one without", feeds)?;
    }
    for sequence in [first, second, text] {
        rig.end(sequence);
    }
    close(rig, &handles);
    Ok(rig.agreement())
}

/// A prefix with items continues without their rows, which are closed by then; layouts stay placed.
pub(crate) fn passed(rig: &mut Rig<'_>) -> Finding {
    let scene = learned(rig, &[0, 2])?;
    let handles = [open(rig, 0)?, open(rig, 2)?];
    encode(rig, &handles, WHOLE)?;
    let mut sequence = begin(rig, &scene)?;
    place(rig, &sequence, &scene, &[handles[0], NO_HANDLE])?;
    rig.step("an item before another has its rows", vec![sequence.feed(scene.items[1].0, Want::ALL)])?;
    place(rig, &sequence, &scene, &[NO_HANDLE, handles[1]])?;
    close(rig, &handles[..1]);
    let rest = rig.options.media[2].rows as usize;
    rig.step("an item after another was closed", vec![sequence.feed(rest, Want::ALL)])?;
    place(rig, &sequence, &scene, &[NO_HANDLE, NO_HANDLE])?;
    close(rig, &handles[1..]);
    rig.read("text after its items were closed", &mut sequence, 1)?;
    rig.end(sequence);
    Ok(rig.agreement())
}

/// Items that are closed in whatever state leave the others alone, and handles are only numbers.
pub(crate) fn cancelled(rig: &mut Rig<'_>) -> Finding {
    let scene = learned(rig, &[1])?;
    let (gone, stays) = (open(rig, 0)?, open(rig, 1)?);
    let left = encoder(rig)?.encode(&[gone, stays], 1).map_err(|error| refused("encode", &error))?;
    close(rig, &[gone, u64::MAX]);
    if left > 0 {
        encode(rig, &[stays], 1)?;
    }
    let unopened = open(rig, 2)?;
    close(rig, &[unopened]);
    read(rig, "an item that outlived another of its batch", &scene, &[stays], usize::MAX)?;
    close(rig, &[stays]);
    open_as(rig, gone, 1)?;
    encode(rig, &[gone], WHOLE)?;
    read(rig, "an item under a closed one's handle", &scene, &[gone], usize::MAX)?;
    close(rig, &[gone]);
    Ok(rig.agreement())
}

/// Damaged bytes and slots without rows are refused, and slots that stand for no item are tokens.
pub(crate) fn refuses(rig: &mut Rig<'_>) -> Finding {
    let scene = learned(rig, &[0])?;
    let good = open(rig, 0)?;
    encode(rig, &[good], WHOLE)?;
    let sample = rig.options.media[0].clone();
    let cut = &sample.prepared[..sample.prepared.len() - 1];
    let long = [&sample.prepared[..], &[0]].concat();
    for (what, bytes) in [("no bytes", &[][..]), ("bytes that are cut", cut), ("a byte too many", &long)] {
        let handle = rig.new_id();
        match encoder(rig)?.open(handle, sample.size, &sample.layout, bytes) {
            Ok(()) => return Err(broken(format!("an item of {what} was opened"))),
            Err(error) if error.code == ErrorCode::PANICKED => {
                return Err(broken(format!("an item of {what} made it panic")));
            }
            Err(_) => {}
        }
    }
    if encoder(rig)?.open(good, sample.size, &sample.layout, &sample.prepared).is_ok() {
        return Err(broken("an item was opened under a handle in use"));
    }
    let mut without = begin(rig, &scene)?;
    place(rig, &without, &scene, &[NO_HANDLE])?;
    let draft = rig.draft(&[without.feed(usize::MAX, Want::ALL)]);
    match rig.forward(&draft) {
        Err(error) if error.code == ErrorCode::INVALID => {}
        Err(error) => return Err(broken(format!("a placed slot without a row is {error}, not invalid"))),
        Ok(_) => return Err(broken("a placed slot without a row was computed")),
    }
    place(rig, &without, &scene, &[good])?;
    rig.read("a sequence after a batch that was refused", &mut without, usize::MAX)?;
    rig.end(without);
    let plain = Rc::new(Text { tokens: scene.text.tokens.clone(), rows: Vec::new() });
    let mut token = rig.start_with(plain, Pace::PLAIN)?;
    rig.step("slots that stand for no item", vec![token.feed(usize::MAX, Want::ALL)])?;
    rig.end(token);
    close(rig, &[good]);
    Ok(rig.agreement())
}

/// A text with these samples, and its logits when it is read whole and alone.
fn learned(rig: &mut Rig<'_>, samples: &[usize]) -> Finding<Scene> {
    if rig.options.media.len() < 3 {
        return Err(skipped("it reads text alone, or no images were prepared for it"));
    }
    let (mut tokens, mut items) = (beside(rig), Vec::new());
    for &sample in samples {
        let MediaSample { slot, rows, .. } = rig.options.media[sample];
        items.push((tokens.len(), sample));
        tokens.extend(std::iter::repeat_n(slot, rows as usize));
        tokens.extend(beside(rig));
    }
    if tokens.len() > rig.resident.context as usize {
        return Err(skipped(format!("its items take {} tokens, more than the context", tokens.len())));
    }
    let mut scene = Scene { text: Rc::new(Text { tokens, rows: Vec::new() }), items };
    let handles: Vec<u64> = samples.iter().map(|sample| open(rig, *sample)).collect::<Finding<_>>()?;
    for handle in &handles {
        encode(rig, &[*handle], WHOLE)?;
    }
    let rows = logits(rig, &scene, &handles)?;
    close(rig, &handles);
    scene.text = Rc::new(Text { tokens: scene.text.tokens.clone(), rows });
    Ok(scene)
}

/// Text without slots.
fn beside(rig: &mut Rig<'_>) -> Vec<u32> {
    let slot = rig.options.media[0].slot;
    let tokens = rig.tokens(BESIDE);
    tokens.into_iter().map(|token| if token == slot { rig.another(token) } else { token }).collect()
}

/// The logits of a scene with these items.
fn logits(rig: &mut Rig<'_>, scene: &Scene, handles: &[u64]) -> Finding<Vec<f32>> {
    let text = Rc::new(Text { tokens: scene.text.tokens.clone(), rows: Vec::new() });
    let mut sequence = rig.start_with(text, Pace::PLAIN)?;
    place(rig, &sequence, scene, handles)?;
    let rows = rig.step("a text with items, read whole", vec![sequence.feed(usize::MAX, Want::ALL)])?;
    rig.end(sequence);
    Ok(rows)
}

/// Reads a scene in chunks and compares its logits.
fn read(rig: &mut Rig<'_>, what: &str, scene: &Scene, handles: &[u64], size: usize) -> Finding<()> {
    let mut sequence = begin(rig, scene)?;
    place(rig, &sequence, scene, handles)?;
    rig.read(what, &mut sequence, size)?;
    rig.end(sequence);
    Ok(())
}

fn begin(rig: &mut Rig<'_>, scene: &Scene) -> Finding<Sequence> {
    rig.start_with(Rc::clone(&scene.text), Pace::PLAIN)
}

fn encoder<'a>(rig: &'a mut Rig<'_>) -> Finding<Offered<'a, Encode>> {
    let none = || broken("the model does not offer `media/1`, which its architecture describes");
    Encode::of(rig.model).ok_or_else(none)?.map_err(|error| refused("the table", &error))
}

fn open(rig: &mut Rig<'_>, sample: usize) -> Finding<u64> {
    let handle = rig.new_id();
    open_as(rig, handle, sample)?;
    Ok(handle)
}

fn open_as(rig: &mut Rig<'_>, handle: u64, sample: usize) -> Finding<()> {
    let sample = &rig.options.media[sample];
    encoder(rig)?.open(handle, sample.size, &sample.layout, &sample.prepared).map_err(|error| refused("open", &error))
}

/// Encodes items in calls of this many microseconds.
fn encode(rig: &mut Rig<'_>, handles: &[u64], budget: u32) -> Finding<()> {
    let mut left = u32::MAX;
    for _ in 0..CALLS_MAX {
        let now = encoder(rig)?.encode(handles, budget).map_err(|error| refused("encode", &error))?;
        if now == 0 {
            return Ok(());
        }
        if now >= left {
            return Err(broken(format!("encode says that {now} pieces are left, after {left}")));
        }
        left = now;
    }
    Err(broken(format!("an item is not encoded after {CALLS_MAX} calls")))
}

fn place(rig: &mut Rig<'_>, sequence: &Sequence, scene: &Scene, handles: &[u64]) -> Finding<()> {
    let samples = &rig.options.media;
    let placements = scene.items.iter().zip(handles).map(|(&(start, sample), &handle)| {
        let MediaSample { size, layout, rows, .. } = &samples[sample];
        let tokens = &scene.text.tokens[start..start + *rows as usize];
        Placement { start: start as u32, tokens: tokens.into(), size: *size, layout: layout[..].into(), handle }
    });
    let placements: Vec<Placement<'_>> = placements.collect();
    encoder(rig)?.place(sequence.id, &placements).map_err(|error| refused("place", &error))
}

fn close(rig: &mut Rig<'_>, handles: &[u64]) {
    if let Ok(mut encoder) = encoder(rig) {
        handles.iter().for_each(|handle| encoder.close(*handle));
    }
}

fn refused(what: &str, error: &PluginError) -> crate::Outcome {
    broken(format!("{what}: {REFUSED}: {error}"))
}
