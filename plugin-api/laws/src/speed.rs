//! The speed of one stream, for certificates. It is no law: nothing depends on it.

use std::{
    rc::Rc,
    time::{Duration, Instant},
};

use pensieve_plugin_api::{ModelBox, Want};

use crate::{
    report::{Options, Shape},
    rig::{Pace, Rig, Text},
};

/// Steps before the measured ones, in which a model may still set itself up.
const WARM_STEPS: usize = 2;
const TIME_MAX: Duration = Duration::from_secs(5);

/// Tokens per second of one sequence that is read a token at a time, as an answer is; `None` for a model that does not do that,
/// or that refuses it.
pub fn tokens_per_second(model: &mut ModelBox, shape: Shape, options: &Options) -> Option<f64> {
    if shape.keeps_nothing() {
        return None;
    }
    let mut rig = Rig::new(model, shape, options);
    let rate = decode(&mut rig);
    rig.clear();
    rate
}

fn decode(rig: &mut Rig<'_>) -> Option<f64> {
    let longest = rig.longest();
    let tokens = rig.tokens(longest);
    let mut sequence = rig.start_with(Rc::new(Text { tokens, rows: Vec::new() }), Pace::PLAIN).ok()?;
    let prompt = sequence.feed(longest / 4, Want::LAST);
    rig.step("a prompt", vec![prompt]).ok()?;
    let (mut began, mut steps) = (Instant::now(), 0);
    while sequence.left() > 0 && (steps <= WARM_STEPS || began.elapsed() < TIME_MAX) {
        if steps == WARM_STEPS {
            began = Instant::now();
        }
        rig.step("a token", vec![sequence.feed(1, Want::LAST)]).ok()?;
        steps += 1;
    }
    let seconds = began.elapsed().as_secs_f64();
    (steps > WARM_STEPS && seconds > 0.0).then(|| (steps - WARM_STEPS) as f64 / seconds)
}
