//! Laws about a model's adapters: they change only sequences that select them, at the strength that these select.

use std::rc::Rc;

use crate::{
    memory::must_fail,
    report::{broken, noted, skipped},
    rig::{Feed, Finding, Known, Pace, Rig, SEEN, Sequence, Text, difference},
};
use pensieve_plugin_api::{AdapterData, ErrorCode, NO_ADAPTER, Want};

/// An adapter that fits is accepted, changes the sequences that select it, and no others.
pub(crate) fn fits(rig: &mut Rig<'_>) -> Finding {
    let data = given(rig)?;
    let adapter = attach(rig, &data)?;
    let mut base = rig.start(Known::Middle)?;
    rig.read("a sequence without the adapter that is attached", &mut base, usize::MAX)?;
    rig.end(base);
    let changed = read(rig, (adapter, 1.0))?;
    let right = rig.text(Known::Long);
    let moved = apart(rig, &right.rows, &changed);
    if moved <= SEEN {
        return Err(broken(format!(
            "it moves logits by {:.4} % of the spread: as if it were not there",
            moved * 100.0
        )));
    }
    detach(rig, adapter)?;
    let mut after = rig.start(Known::Long)?;
    rig.read("a sequence after the adapter was detached", &mut after, usize::MAX)?;
    rig.end(after);
    let (mut late, name) = (rig.start(Known::Short)?, adapter);
    late.adapter = (name, 1.0);
    let draft = rig.draft(&[late.feed(1, Want::LAST)]);
    let refused = rig.forward(&draft).map(drop);
    must_fail("a step with an adapter that was detached", refused)?;
    Ok(noted(format!("it moves logits by up to {:.2} % of the spread", moved * 100.0)))
}

/// `strength · scale` is one factor: zero has no effect, and only the product counts.
pub(crate) fn strength(rig: &mut Rig<'_>) -> Finding {
    let data = given(rig)?;
    let adapter = attach(rig, &data)?;
    compare(rig, "an adapter of strength 0", &rig.text(Known::Long).rows.clone(), (adapter, 0.0))?;
    let mut doubled = data.clone();
    doubled.fingerprint = format!("{} doubled", doubled.fingerprint).into();
    doubled.pairs.iter_mut().for_each(|pair| pair.scale *= 2.0);
    let other = attach(rig, &doubled)?;
    for strength in [0.5, 2.0] {
        let right = read(rig, (adapter, strength))?;
        let what = format!("twice the adapter's scale at strength {}", strength / 2.0);
        compare(rig, &what, &right, (other, strength / 2.0))?;
    }
    detach(rig, adapter)?;
    detach(rig, other)?;
    Ok(rig.agreement())
}

/// Each sequence of a batch has the adapter and the strength that it selects.
pub(crate) fn apart_in_a_batch(rig: &mut Rig<'_>) -> Finding {
    let data = given(rig)?;
    let adapter = attach(rig, &data)?;
    let wishes = [(adapter, 1.0), (NO_ADAPTER, 1.0), (adapter, 0.5)];
    let mut sequences: Vec<Sequence> = Vec::new();
    for wish in wishes {
        let rows = read(rig, wish)?;
        let text = Rc::new(Text { tokens: rig.text(Known::Long).tokens.clone(), rows });
        let mut sequence = rig.start_with(text, Pace::PLAIN)?;
        sequence.adapter = wish;
        sequences.push(sequence);
    }
    for count in [7, 1, 5, usize::MAX] {
        let feeds: Vec<Feed<'_>> = sequences.iter_mut().map(|sequence| sequence.feed(count, Want::ALL)).collect();
        rig.step("sequences with an adapter, without, and with half of it", feeds)?;
    }
    sequences.into_iter().for_each(|sequence| rig.end(sequence));
    detach(rig, adapter)?;
    Ok(rig.agreement())
}

fn given(rig: &Rig<'_>) -> Finding<AdapterData> {
    rig.options.adapter.clone().ok_or_else(|| skipped("no adapter was given"))
}

fn attach(rig: &mut Rig<'_>, data: &AdapterData) -> Finding<u32> {
    match rig.model.attach(data).into_result() {
        Ok(NO_ADAPTER) => Err(broken("it is named 0, which stands for none")),
        Ok(adapter) => Ok(adapter),
        Err(error) if error.code == ErrorCode::UNSUPPORTED => Err(skipped(format!("it is not taken: {error}"))),
        Err(error) => Err(broken(format!("it is refused: {error}"))),
    }
}

fn detach(rig: &mut Rig<'_>, adapter: u32) -> Finding<()> {
    rig.model.detach(adapter).into_result().map_err(|error| broken(format!("it is not detached: {error}")))
}

/// Returns the rows of the long text with an adapter at some strength.
fn read(rig: &mut Rig<'_>, wish: (u32, f32)) -> Finding<Vec<f32>> {
    let text = Rc::new(Text { tokens: rig.text(Known::Long).tokens.clone(), rows: Vec::new() });
    let mut sequence = rig.start_with(text, Pace::PLAIN)?;
    sequence.adapter = wish;
    let rows = rig.step("a sequence with an adapter", vec![sequence.feed(usize::MAX, Want::ALL)])?;
    rig.end(sequence);
    Ok(rows)
}

fn compare(rig: &mut Rig<'_>, what: &str, right: &[f32], wish: (u32, f32)) -> Finding<()> {
    let (rows, width) = (read(rig, wish)?, rig.shape.vocabulary as usize);
    for (token, (right, row)) in right.chunks_exact(width).zip(rows.chunks_exact(width)).enumerate() {
        rig.compare(what, token, Some(right), row)?;
    }
    Ok(())
}

fn apart(rig: &Rig<'_>, right: &[f32], rows: &[f32]) -> f32 {
    let width = rig.shape.vocabulary as usize;
    let pairs = right.chunks_exact(width).zip(rows.chunks_exact(width));
    pairs.map(|(right, row)| difference(right, row).part()).fold(0.0, f32::max)
}
