//! Laws about the inputs of logits: earlier tokens, their order and their positions, but never later tokens.
//!
//! A bigram looks back at a single token, and a recurrent model counts its own positions; both are legal. So these laws
//! first measure what the model reacts to, and note if a common reaction is missing. The strength of the reaction also
//! shows how large a fault would be, and determines the tolerance of all later comparisons.

use crate::{
    report::{Outcome, broken, noted, skipped},
    rig::{Finding, Known, Pace, Rig, SEEN, Text, difference},
    texts,
};
use pensieve_plugin_api::Want;
use std::rc::Rc;

pub(crate) fn past(rig: &mut Rig<'_>) -> Finding {
    let middle = rig.longest() / 2;
    let change = |place: usize| move |tokens: &mut [u32], rig: &mut Rig<'_>| tokens[place] = rig.another(tokens[place]);
    let near = changed(rig, "a prompt with another token in the middle", middle, change(middle))?;
    let far = changed(rig, "a prompt with another first token", 0, change(0))?;
    rig.looks_back = near.max(far);
    if rig.looks_back <= SEEN {
        return Ok(noted("no token but the last matters: right for a bigram, else the cache is not read"));
    }
    sharpen(rig, near);
    let (near, far) = (near * 100.0, far * 100.0);
    Ok(noted(format!("token {middle} moves later logits by up to {near:.2} % of the spread, the first by {far:.2} %")))
}

pub(crate) fn order(rig: &mut Rig<'_>) -> Finding {
    rig.only_looking_back()?;
    let middle = rig.longest() / 2;
    let swap = move |tokens: &mut [u32], _: &mut Rig<'_>| tokens.swap(middle - 1, middle);
    let swapped = changed(rig, "a prompt with two tokens swapped", middle, swap)?;
    let what = format!("two tokens swapped move later logits by up to {:.2} % of the spread", swapped * 100.0);
    if swapped <= SEEN && !rig.options.positionless {
        return Err(broken(what));
    }
    sharpen(rig, swapped);
    Ok(noted(what))
}

pub(crate) fn positions(rig: &mut Rig<'_>) -> Finding {
    rig.only_looking_back()?;
    let stretched = moved(rig, "positions two apart", |_| Pace { first: 0, stride: 2 })?;
    let what = format!("positions two apart move logits by up to {:.2} % of the spread", stretched * 100.0);
    if stretched <= SEEN {
        return match (rig.has_blocks(), rig.options.positionless) {
            (true, false) => Err(broken(format!("{what}: they are not read"))),
            (true, true) => Ok(noted(format!("{what}, as the architecture has no use for them"))),
            (false, _) => Ok(noted(format!("{what}, as a model without attention may do without"))),
        };
    }
    sharpen(rig, stretched);
    Ok(noted(what))
}

/// Rotary encodings depend on distances only, learned ones on positions: both are legal, and the author knows which
/// applies.
pub(crate) fn shift(rig: &mut Rig<'_>) -> Finding {
    rig.only_looking_back()?;
    let shifted = moved(rig, "positions that do not begin at 0", |half| Pace { first: half, stride: 1 })?;
    let what = format!("all positions moved by one number move logits by up to {:.2} % of the spread", shifted * 100.0);
    let kind =
        if shifted <= rig.options.finest { "only distances count" } else { "right unless only distances should count" };
    Ok(noted(format!("{what}: {kind}")))
}

/// A text whose positions end with the context's last one must give the same logits in any chunks.
pub(crate) fn far_positions(rig: &mut Rig<'_>) -> Finding {
    let tokens = rig.text(Known::Long).tokens.clone();
    let first = rig.resident.context - tokens.len() as u32;
    if first == 0 {
        return Err(skipped(format!("a context of {} leaves no room to move a text", rig.resident.context)));
    }
    let pace = Pace { first, stride: 1 };
    let what = format!("positions from {first} on");
    let rows = rig.whole(&what, tokens.clone(), pace, Want::ALL)?;
    let mut sequence = rig.start_with(Rc::new(Text { tokens, rows }), pace)?;
    rig.read(&format!("{what}, in chunks of 7"), &mut sequence, 7)?;
    Ok(rig.agreement())
}

/// Both texts were read whole: their rows must be equal until they diverge.
pub(crate) fn causal(rig: &mut Rig<'_>) -> Finding {
    let (long, twin, width) = (rig.text(Known::Long), rig.text(Known::Twin), rig.shape.vocabulary as usize);
    let rows = long.rows.chunks_exact(width).zip(twin.rows.chunks_exact(width)).take(rig.fork());
    for (token, (right, row)) in rows.enumerate() {
        rig.compare(&format!("other tokens from {} on", rig.fork()), token, Some(right), row)?;
    }
    Ok(rig.agreement())
}

/// A trained model with attention predicts a text better the second time. Untrained ones do not, so this is only noted;
/// it is the only sign of wrong wiring that shows without another implementation.
pub(crate) fn recall(rig: &mut Rig<'_>) -> Finding {
    rig.only_looking_back()?;
    let half = rig.longest() / 2;
    let mut tokens = rig.tokens(half);
    tokens.extend_from_within(..);
    let rows = rig.whole("a text that says everything twice", tokens.clone(), Pace::PLAIN, Want::ALL)?;
    let mut surprise = [0.0, 0.0];
    for (place, row) in rows.chunks_exact(rig.shape.vocabulary as usize).take(2 * half - 1).enumerate() {
        let largest = row.iter().copied().fold(f32::MIN, f32::max);
        let sum: f32 = row.iter().map(|logit| (logit - largest).exp()).sum();
        surprise[place / half] += largest + sum.ln() - row[tokens[place + 1] as usize];
    }
    let (once, twice) = (surprise[0] / half as f32, surprise[1] / (half as f32 - 1.0).max(1.0));
    let judged = if twice < once - 1.0 { "as trained models do" } else { "right for untrained weights only" };
    Ok(noted(format!("random tokens cost {once:.2} nats each, and {twice:.2} when repeated: {judged}")))
}

/// If the reference cannot be compared, this fails: it was given to check the numbers.
pub(crate) fn reference(rig: &mut Rig<'_>) -> Finding {
    let options = rig.options;
    if options.references.is_empty() {
        return Err(skipped("no logits of another implementation were given"));
    }
    let (width, mut worst) = (rig.shape.vocabulary as usize, 0_f32);
    rig.worst = 0.0;
    for (number, reference) in options.references.iter().enumerate() {
        if !reference.hidden.is_empty() {
            let apart = texts::compare_hidden(rig, number, reference)?;
            if reference.logits.is_empty() {
                rig.worst = rig.worst.max(reference.part(apart));
                continue;
            }
        }
        if reference.tokens.len() > rig.resident.context as usize {
            let (have, context) = (reference.tokens.len(), rig.resident.context);
            return Err(uncompared(number, &format!("it has {have} tokens, more than the context of {context}")));
        }
        if reference.logits.len() != reference.tokens.len() * width {
            let (have, tokens) = (reference.logits.len(), reference.tokens.len());
            return Err(broken(format!("reference {number} has {have} logits for {tokens} rows of {width}")));
        }
        let rows = rig.whole("a reference text", reference.tokens.clone(), Pace::PLAIN, Want::ALL);
        let rows = rows.map_err(|outcome| match outcome {
            Outcome::NotApplicable { why } => uncompared(number, &why),
            other => other,
        })?;
        for (token, (ours, theirs)) in rows.chunks_exact(width).zip(reference.logits.chunks_exact(width)).enumerate() {
            let apart = |(ours, theirs): (&f32, &f32)| (ours - theirs).abs();
            let differ = |apart: f32| apart.is_nan() || apart > reference.tolerance;
            if let Some(place) = ours.iter().zip(theirs).map(apart).position(differ) {
                let from = (number, token, reference.tokens.len());
                let hint = cause(token, (rig.has_states(), rig.has_blocks()));
                return Err(differs(from, place, (ours[place], theirs[place]), (worst, hint)));
            }
            let largest = ours.iter().zip(theirs).map(apart).fold(0.0, f32::max);
            worst = worst.max(largest);
            rig.worst = rig.worst.max(reference.part(largest));
        }
    }
    Ok(rig.agreement())
}

/// The first differing token narrows down the cause: the first token of a text attends only to itself, at any position.
fn cause(token: usize, (has_states, has_blocks): (bool, bool)) -> &'static str {
    match token {
        0 => {
            "if no other law is broken, the cause lies where each token is by itself, as the first one differs already: \
              embeddings, a norm's epsilon, a scale, the activation, the head, or two weights taken for each other"
        }
        _ if has_states && has_blocks => {
            "if no other law is broken, the cause lies where tokens meet, as the first one does not differ: in recurrent \
              layers the decay, the gates or the order of a convolution's taps; in attention the rotation's pairing (halves \
              or neighbours) or base, a scale, a window that begins there; where rows go to experts, compare with the \
              option kernels = exact, as rounding alone may choose others"
        }
        _ if has_states => {
            "if no other law is broken, the cause lies where tokens meet, as the first one does not differ: a recurrence's \
              decay or gates, the order of a convolution's taps; where rows go to experts, compare with the option \
              kernels = exact, as rounding alone may choose others"
        }
        _ => {
            "if no other law is broken, the cause lies where tokens meet, as the first one does not differ: the rotation's \
              pairing (halves or neighbours) or base, a scale of attention, a window that begins there; where rows go to \
              experts, compare with the option kernels = exact, as rounding alone may choose others"
        }
    }
}

fn differs(
    (number, token, tokens): (usize, usize, usize),
    place: usize,
    (ours, theirs): (f32, f32),
    (before, hint): (f32, &str),
) -> Outcome {
    let at = format!("text {number}, token {token} of {tokens}, logit {place}");
    let before = if token == 0 { String::new() } else { format!("; up to there they differ by {before:.1e} at most") };
    Outcome::Broken { what: format!("{at}: {ours} where the reference says {theirs}{before}"), hint: hint.into() }
}

fn uncompared(number: usize, why: &str) -> Outcome {
    let what = format!("reference {number} was not compared: {why}");
    Outcome::Broken { what, hint: "take a reference of a shorter text, or load the model for a longer context".into() }
}

/// The largest change of the long text's rows after token `place` when the tokens up to there are changed.
fn changed(rig: &mut Rig<'_>, what: &str, place: usize, change: impl FnOnce(&mut [u32], &mut Rig<'_>)) -> Finding<f32> {
    let long = rig.text(Known::Long);
    let mut tokens = long.tokens.clone();
    change(&mut tokens, rig);
    let rows = rig.whole(what, tokens, Pace::PLAIN, Want::ALL)?;
    Ok(largest(rig, &long.rows, &rows, place + 1))
}

/// The largest change of the rows of half the long text at other positions. The baseline is that half read alone, not
/// the beginning of the whole text, since another number of rows rounds differently.
fn moved(rig: &mut Rig<'_>, what: &str, pace: fn(u32) -> Pace) -> Finding<f32> {
    let long = rig.text(Known::Long);
    let half = long.tokens.len() / 2;
    let text = long.tokens[..half].to_vec();
    let plain = rig.whole("half of a prompt", text.clone(), Pace::PLAIN, Want::ALL)?;
    let rows = rig.whole(what, text, pace(half as u32), Want::ALL)?;
    Ok(largest(rig, &plain, &rows, 0))
}

fn largest(rig: &Rig<'_>, right: &[f32], rows: &[f32], from: usize) -> f32 {
    let width = rig.shape.vocabulary as usize;
    let pairs = right.chunks_exact(width).zip(rows.chunks_exact(width)).skip(from);
    pairs.map(|(right, row)| difference(right, row).part()).fold(0.0, f32::max)
}

/// A fault changes logits about as much as a real change does, so the tolerance for rounding must be smaller than that.
fn sharpen(rig: &mut Rig<'_>, change: f32) {
    if change > SEEN {
        rig.tolerance = rig.tolerance.min((change / 4.0).max(rig.options.finest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_names_what_the_model_has() {
        let has = |states, blocks| {
            [cause(3, (states, blocks)).contains("decay"), cause(3, (states, blocks)).contains("rotation")]
        };
        assert_eq!(has(false, true), [false, true]);
        assert_eq!(has(true, false), [true, false]);
        assert_eq!(has(true, true), [true, true]);
        assert!(cause(0, (true, true)).contains("the first one differs already"));
    }
}
