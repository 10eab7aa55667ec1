//! Laws about how work is divided: into chunks, batches and rows of logits, none of which may change a number.

use crate::rig::{Finding, Known, Rig, Sequence};
use pensieve_plugin_api::Want;

/// The texts are learned here, so this law comes before all that compare with them.
pub(crate) fn repeatable(rig: &mut Rig<'_>) -> Finding {
    rig.learn()?;
    for known in Known::ALL {
        let mut sequence = rig.start(known)?;
        rig.read("the same prompt again", &mut sequence, usize::MAX)?;
        rig.end(sequence);
    }
    Ok(rig.agreement())
}

pub(crate) fn wanted(rig: &mut Rig<'_>) -> Finding {
    let mut alone = rig.start(Known::Long)?;
    rig.step("logits of the last token only", vec![alone.feed(7, Want::LAST)])?;
    rig.step("a chunk without logits", vec![alone.feed(5, Want::NONE)])?;
    rig.step("the token after a chunk without logits", vec![alone.feed(1, Want::LAST)])?;
    rig.end(alone);
    let (mut none, mut last, mut all) = (rig.start(Known::Long)?, rig.start(Known::Middle)?, rig.start(Known::Short)?);
    for (none_wants, last_wants, all_wants) in
        [(Want::NONE, Want::LAST, Want::ALL), (Want::LAST, Want::ALL, Want::NONE), (Want::ALL, Want::NONE, Want::LAST)]
    {
        let feeds = vec![none.feed(3, none_wants), last.feed(3, last_wants), all.feed(2, all_wants)];
        rig.step("three sequences that want none, the last and all", feeds)?;
    }
    Ok(rig.agreement())
}

pub(crate) fn chunked(rig: &mut Rig<'_>) -> Finding {
    let block = rig.shape.block_tokens as usize;
    for size in [1, 3, block.saturating_sub(1), block, block + 1] {
        let mut sequence = rig.start(Known::Long)?;
        if size > 0 && size < sequence.left() {
            rig.read(&format!("chunks of {size}"), &mut sequence, size)?;
        }
        rig.end(sequence);
    }
    Ok(rig.agreement())
}

/// Sequences join one by one, and each alternates between chunks and single tokens, in changing order.
pub(crate) fn batched(rig: &mut Rig<'_>) -> Finding {
    const COUNTS: [usize; 5] = [5, 1, 1, 9, 1];
    let mut crowd = vec![rig.start(Known::Long)?, rig.start(Known::Middle)?];
    crowd.extend(rig.start(Known::Short));
    crowd.extend(rig.start(Known::Twin));
    for round in 0.. {
        let mut feeds = Vec::new();
        for (place, sequence) in crowd.iter_mut().enumerate() {
            if place <= round && sequence.left() > 0 {
                feeds.push(sequence.feed(COUNTS[(round + place) % COUNTS.len()], Want::ALL));
            }
        }
        if feeds.is_empty() {
            break;
        }
        let turn = round % feeds.len();
        feeds.rotate_left(turn);
        rig.step(&format!("a batch of {}", feeds.len()), feeds)?;
    }
    Ok(rig.agreement())
}

pub(crate) fn released(rig: &mut Rig<'_>) -> Finding {
    let (mut first, mut second, mut third) =
        (rig.start(Known::Long)?, rig.start(Known::Short)?, rig.start(Known::Middle)?);
    let feeds = vec![first.feed(6, Want::ALL), second.feed(4, Want::ALL), third.feed(5, Want::ALL)];
    rig.step("three sequences before a release", feeds)?;
    rig.end(second);
    rig.model.release(u64::MAX - 1);
    rig.step("two sequences after a third was released", vec![first.feed(1, Want::ALL), third.feed(1, Want::ALL)])?;
    let mut fourth = rig.start(Known::Short)?;
    let feeds = vec![first.feed(1, Want::ALL), fourth.feed(3, Want::ALL), third.feed(4, Want::ALL)];
    rig.step("a new sequence in the place of a released one", feeds)?;
    rig.end(first);
    rig.step("two sequences after another release", vec![third.feed(1, Want::ALL), fourth.feed(2, Want::ALL)])?;
    rig.read("a sequence that outlived another", &mut third, 3)?;
    rig.read("a sequence that came late", &mut fourth, 1)?;
    Ok(rig.agreement())
}

/// Ids that are equal in their low or high halves, and both ends of the range.
pub(crate) fn names(rig: &mut Rig<'_>) -> Finding {
    for pair in [[7, 7 + (1 << 32)], [1 << 32, 1 << 63], [u64::MAX, 0]] {
        let what = format!("sequences {} and {}", pair[0], pair[1]);
        let (mut one, mut other) = (rig.start(Known::Middle)?, rig.start(Known::Short)?);
        rig.rename(&mut one, pair[0]);
        rig.rename(&mut other, pair[1]);
        rig.step(&what, vec![one.feed(5, Want::ALL), other.feed(3, Want::ALL)])?;
        rig.step(&what, vec![other.feed(2, Want::ALL), one.feed(4, Want::ALL)])?;
        rig.end(one);
        rig.step(&what, vec![other.feed(1, Want::ALL)])?;
        rig.end(other);
    }
    Ok(rig.agreement())
}

/// A sequence ends when its id is released; a new one may then start under the same id.
pub(crate) fn forgets(rig: &mut Rig<'_>) -> Finding {
    let mut sequence = rig.start(Known::Long)?;
    rig.step("a sequence before its release", vec![sequence.feed(9, Want::ALL)])?;
    rig.model.release(sequence.id);
    let mut anew = Sequence { text: rig.text(Known::Middle), seen: 0, ..sequence };
    rig.read("a new sequence under a released one's id", &mut anew, 6)?;
    Ok(rig.agreement())
}
