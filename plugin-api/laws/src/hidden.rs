//! The law about hidden rows, from which embeddings, scores and draft heads are computed.

use crate::{
    report::{broken, skipped},
    rig::{Finding, Known, REFUSED, Rig, difference},
};
use pensieve_plugin_api::{Output, Want};

/// A text's hidden rows are the same however it is read, even beside a sequence that wants logits.
pub(crate) fn rows(rig: &mut Rig<'_>) -> Finding {
    if rig.shape.hidden == 0 {
        return Err(skipped("its card gives no hidden rows"));
    }
    let right = read(rig, usize::MAX, None)?;
    for (size, beside) in [(3, None), (5, Some(0)), (7, Some(1))] {
        let rows = read(rig, size, beside)?;
        let width = rig.shape.hidden as usize;
        for (token, (right, row)) in right.chunks_exact(width).zip(rows.chunks_exact(width)).enumerate() {
            let apart = difference(right, row).part();
            if apart > rig.tolerance {
                let what = format!("the hidden row of token {token} differs by {:.2} % of its spread", apart * 100.0);
                return Err(broken(format!("{what}, where {size} tokens are read at a time")));
            }
            rig.worst = rig.worst.max(apart);
        }
    }
    Ok(rig.agreement())
}

/// Returns the hidden rows of the long text, read `size` tokens at a time; `beside` is the position in each step of
/// another sequence that wants logits.
fn read(rig: &mut Rig<'_>, size: usize, beside: Option<usize>) -> Finding<Vec<f32>> {
    let (mut sequence, mut other) = (rig.start(Known::Long)?, rig.start(Known::Middle)?);
    let (mut rows, width) = (Vec::new(), rig.shape.vocabulary as usize);
    while sequence.left() > 0 {
        let mut feeds = vec![sequence.feed(size, Want::ALL)];
        let mut kinds = vec![Output::HIDDEN];
        if let Some(place) = beside.filter(|_| other.left() > 0) {
            feeds.insert(place, other.feed(2, Want::ALL));
            kinds.insert(place, Output::LOGITS);
        }
        let draft = rig.draft(&feeds);
        let ends: Vec<usize> = feeds.iter().map(|feed| feed.sequence.seen + feed.count).collect();
        feeds.into_iter().zip(&ends).for_each(|(feed, end)| feed.sequence.arrive(*end));
        let (logits, hidden) =
            rig.mixed(&draft, &kinds).map_err(|error| broken(format!("hidden rows: {REFUSED}: {error}")))?;
        if let Some(place) = hidden.iter().position(|value| !value.is_finite()) {
            let (token, value) = (place / rig.shape.hidden as usize, hidden[place]);
            return Err(broken(format!("in the hidden row of token {token} of a step there is {value}")));
        }
        rows.extend(hidden);
        let text = rig.text(Known::Middle);
        let first = other.seen - logits.len() / width;
        for (token, row) in (first..).zip(logits.chunks_exact(width)) {
            let right = text.rows.get(token * width..(token + 1) * width);
            rig.compare("a sequence beside hidden rows", token, right, row)?;
        }
    }
    rig.end(sequence);
    rig.end(other);
    Ok(rows)
}
