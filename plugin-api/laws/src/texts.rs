//! The laws of models that keep nothing between steps: encoders, which read a text as one span and give a row for each of
//! its tokens, but no logits. As elsewhere, the model's own rows for a text alone are what all others are compared with.

use crate::{
    Check, Law, refusals,
    report::{Reference, broken, noted, skipped},
    rig::{Draft, Finding, Known, Pace, REFUSED, Rig, SEEN, Sequence, Text, difference},
};
use pensieve_plugin_api::{ErrorCode, Output, Want};
use std::rc::Rc;

/// In the order in which they are tested.
pub(crate) const LAWS: &[Law<Check>] = &[
    Law {
        id: "resident",
        says: "the loaded model matches its card",
        hint: "resident places need a count for each group of the card; vocabulary, context and width are above 0 too",
        check: refusals::resident,
    },
    Law {
        id: "repeatable",
        says: "a text gives finite rows, the same ones each time",
        hint: "the usual cause is memory that is read before it is written, or rows that are never written",
        check: repeatable,
    },
    Law {
        id: "company",
        says: "a text gets the same rows in a batch as alone, whatever the order",
        hint: "the usual cause is attention across the border of two texts, padding that takes part in it, or positions \
               counted from the batch's start",
        check: company,
    },
    Law {
        id: "context",
        says: "how much a text's other tokens matter, before a token and after it",
        hint: "a good text must give rows",
        check: context,
    },
    Law {
        id: "order",
        says: "the order of a text's tokens matters",
        hint: "the usual cause is a position encoding that is not applied, so that the text is a bag of words",
        check: order,
    },
    Law {
        id: "want",
        says: "rows of none, the last or all tokens agree, in the order of the spans",
        hint: "the usual cause is rows gathered by the wrong index: a span's last token is start + len - 1",
        check: wanted,
    },
    Law {
        id: "names",
        says: "a sequence's id is only a name: any 64 bits",
        hint: "the usual cause is an id cut to 32 bits or used as an index",
        check: names,
    },
    Law {
        id: "whole",
        says: "the rest of a text, and a wish for logits, are refused",
        hint: "compare a span's past with 0, and its output with hidden rows, before anything is computed",
        check: whole,
    },
    Law {
        id: "reference",
        says: "rows are those of another implementation",
        hint: "if no other law is broken, the usual causes are the tokens' types, the first position, a norm's epsilon, the \
               activation, or two swapped weights",
        check: reference,
    },
];

/// Computes texts in one step, with these wants and, if given, these ids.
fn step(rig: &mut Rig<'_>, texts: &[(Rc<Text>, Want)], ids: &[u64]) -> Finding<Vec<f32>> {
    let (draft, sequences) = drafted(rig, texts, ids)?;
    let kinds = vec![Output::HIDDEN; texts.len()];
    let rows = rig.mixed(&draft, &kinds).map_err(|error| broken(format!("a text: {REFUSED}: {error}")))?.1;
    sequences.into_iter().for_each(|sequence| rig.end(sequence));
    if let Some(place) = rows.iter().position(|value| !value.is_finite()) {
        let (token, value) = (place / rig.shape.hidden as usize, rows[place]);
        return Err(broken(format!("in row {token} of a step there is {value}")));
    }
    Ok(rows)
}

fn drafted(rig: &mut Rig<'_>, texts: &[(Rc<Text>, Want)], ids: &[u64]) -> Finding<(Draft, Vec<Sequence>)> {
    let mut sequences = Vec::new();
    for (index, (text, _)) in texts.iter().enumerate() {
        let mut sequence = rig.start_with(Rc::clone(text), Pace::PLAIN)?;
        if let Some(&id) = ids.get(index) {
            rig.rename(&mut sequence, id);
        }
        sequences.push(sequence);
    }
    let feeds = sequences.iter_mut().zip(texts);
    let feeds: Vec<_> = feeds.map(|(sequence, (text, want))| sequence.feed(text.tokens.len(), *want)).collect();
    let draft = rig.draft(&feeds);
    drop(feeds);
    Ok((draft, sequences))
}

fn alone(rig: &mut Rig<'_>, known: Known) -> Finding<Vec<f32>> {
    step(rig, &[(rig.text(known), Want::ALL)], &[])
}

/// Compares rows with those of a text alone.
fn compare(rig: &mut Rig<'_>, what: &str, right: &[f32], rows: &[f32]) -> Finding<()> {
    let width = rig.shape.hidden as usize;
    if right.len() != rows.len() {
        return Err(broken(format!("{what}: {} values instead of {}", rows.len(), right.len())));
    }
    for (token, (right, row)) in right.chunks_exact(width).zip(rows.chunks_exact(width)).enumerate() {
        let apart = difference(right, row).part();
        if apart > rig.tolerance {
            return Err(broken(format!("{what}: row {token} differs by {:.2} % of its spread", apart * 100.0)));
        }
        rig.worst = rig.worst.max(apart);
    }
    Ok(())
}

fn repeatable(rig: &mut Rig<'_>) -> Finding {
    let right = alone(rig, Known::Long)?;
    alone(rig, Known::Middle)?;
    let again = alone(rig, Known::Long)?;
    compare(rig, "a text, a second time", &right, &again)?;
    Ok(rig.agreement())
}

fn company(rig: &mut Rig<'_>) -> Finding {
    let mut right = Vec::new();
    for known in Known::ALL {
        right.push(alone(rig, known)?);
    }
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]] {
        let texts = order.map(|index: usize| (rig.text(Known::ALL[index]), Want::ALL));
        let rows = step(rig, &texts, &[])?;
        let mut rest = &rows[..];
        for index in order {
            let Some((own, after)) = rest.split_at_checked(right[index].len()) else { break };
            compare(rig, "a text in company", &right[index], own)?;
            rest = after;
        }
    }
    Ok(rig.agreement())
}

/// The change of the first row by the last token, and of the last row by the first.
fn context(rig: &mut Rig<'_>) -> Finding {
    let (width, text) = (rig.shape.hidden as usize, rig.text(Known::Middle));
    let right = alone(rig, Known::Middle)?;
    let mut changed = |place: usize, row: usize| -> Finding<f32> {
        let mut tokens = text.tokens.clone();
        tokens[place] = rig.another(tokens[place]);
        let rows = step(rig, &[(Rc::new(Text { tokens, rows: Vec::new() }), Want::ALL)], &[])?;
        Ok(difference(&right[row * width..][..width], &rows[row * width..][..width]).part())
    };
    let last = text.tokens.len() - 1;
    let (by_first, by_last) = (changed(0, last)?, changed(last, 0)?);
    let percent = |part: f32| format!("{:.1} %", part * 100.0);
    let (by_first, by_last) = (percent(by_first), percent(by_last));
    let count = text.tokens.len();
    Ok(noted(format!(
        "of {count} tokens, the first moves the last row by {by_first} of its spread, the last the first by {by_last}"
    )))
}

fn order(rig: &mut Rig<'_>) -> Finding {
    let (width, text) = (rig.shape.hidden as usize, rig.text(Known::Short));
    let right = alone(rig, Known::Short)?;
    let mut tokens = text.tokens.clone();
    let count = tokens.len();
    tokens[..count - 1].reverse();
    if tokens == text.tokens {
        return Err(skipped("the text is too short to be turned around"));
    }
    let rows = step(rig, &[(Rc::new(Text { tokens, rows: Vec::new() }), Want::ALL)], &[])?;
    let apart = difference(&right[(count - 1) * width..], &rows[(count - 1) * width..]).part();
    if apart > SEEN {
        return Ok(noted(format!("another order moves the last row by {:.1} % of its spread", apart * 100.0)));
    }
    Err(broken("the last row is the same whatever the order of the tokens before it"))
}

fn wanted(rig: &mut Rig<'_>) -> Finding {
    let width = rig.shape.hidden as usize;
    let (long, short) = (alone(rig, Known::Long)?, alone(rig, Known::Short)?);
    let texts = [
        (rig.text(Known::Long), Want::LAST),
        (rig.text(Known::Middle), Want::NONE),
        (rig.text(Known::Short), Want::ALL),
    ];
    let rows = step(rig, &texts, &[])?;
    let right = [&long[long.len() - width..], &short[..]].concat();
    compare(rig, "the last row of one text and all of another", &right, &rows)?;
    Ok(rig.agreement())
}

fn names(rig: &mut Rig<'_>) -> Finding {
    let right = [alone(rig, Known::Middle)?, alone(rig, Known::Short)?].concat();
    let texts = [(rig.text(Known::Middle), Want::ALL), (rig.text(Known::Short), Want::ALL)];
    let rows = step(rig, &texts, &[u64::MAX, 1 << 32])?;
    compare(rig, "texts under other ids", &right, &rows)?;
    Ok(rig.agreement())
}

fn whole(rig: &mut Rig<'_>) -> Finding {
    let (mut draft, sequences) = drafted(rig, &[(rig.text(Known::Short), Want::ALL)], &[])?;
    let logits = rig.forward(&draft);
    draft.spans[0].past = 1;
    let rest = rig.mixed(&draft, &[Output::HIDDEN]);
    sequences.into_iter().for_each(|sequence| rig.end(sequence));
    if logits.is_ok() {
        return Err(broken("it gave logits, although it keeps nothing to continue a text from"));
    }
    match rest {
        Ok(_) => Err(broken("a span after one other token was computed, as if that token did not matter")),
        Err(error) if error.code != ErrorCode::INVALID => Err(broken(format!("a span after another token: {error}"))),
        Err(_) => {
            repeatable(rig)?;
            Ok(rig.agreement())
        }
    }
}

fn reference(rig: &mut Rig<'_>) -> Finding {
    let options = rig.options;
    if options.references.is_empty() {
        return Err(skipped("no rows of another implementation were given"));
    }
    for (number, reference) in options.references.iter().enumerate() {
        let apart = compare_hidden(rig, number, reference)?;
        rig.worst = rig.worst.max(reference.part(apart));
    }
    Ok(rig.agreement())
}

/// Compares the hidden rows of a reference's text, and returns the largest difference.
pub(crate) fn compare_hidden(rig: &mut Rig<'_>, number: usize, reference: &Reference) -> Finding<f32> {
    let (width, tokens, context) = (rig.shape.hidden as usize, reference.tokens.len(), rig.resident.context);
    if tokens > context as usize {
        let what =
            format!("reference {number} was not compared: it has {tokens} tokens, more than the context of {context}");
        return Err(broken(what));
    }
    if width == 0 || reference.hidden.len() != tokens * width {
        let values = reference.hidden.len();
        return Err(broken(format!("reference {number} has {values} values for {tokens} hidden rows of {width}")));
    }
    let text = Rc::new(Text { tokens: reference.tokens.clone(), rows: Vec::new() });
    let rows = step(rig, &[(text, Want::ALL)], &[])?;
    let mut worst = 0_f32;
    for (token, (ours, theirs)) in rows.chunks_exact(width).zip(reference.hidden.chunks_exact(width)).enumerate() {
        let apart = ours.iter().zip(theirs).map(|(ours, theirs)| (ours - theirs).abs());
        let apart = apart.fold(0.0, |most: f32, apart| if apart.is_nan() { f32::INFINITY } else { most.max(apart) });
        if apart > reference.tolerance {
            let before = if token == 0 { String::new() } else { format!("; rows before it by {worst:.1e} at most") };
            return Err(broken(format!(
                "text {number}: hidden row {token} of {tokens} differs by {apart:.1e}{before}"
            )));
        }
        worst = worst.max(apart);
    }
    Ok(worst)
}
