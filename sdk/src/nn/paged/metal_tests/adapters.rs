//! Low-rank adapters on the Metal backend: streams with and without one in a step, at different strengths.

use super::*;
use crate::{AdapterData, LowRankPair};

const RANK: usize = 4;

fn adapter(seed: usize) -> AdapterData {
    let values =
        |many: usize, salt: usize| (0..many).map(move |at| ((at * 37 + salt * 11 + seed) % 23) as f32 / 46.0 - 0.25);
    let pair = |target: &str, inputs: usize, outputs: usize| LowRankPair {
        target: target.into(),
        rank: RANK,
        inputs,
        outputs,
        scale: 2.0,
        a: values(RANK * inputs, outputs).collect(),
        b: values(outputs * RANK, inputs).collect(),
    };
    let pairs = vec![
        pair("embed_tokens", WIDTH, VOCABULARY),
        pair("layers.0.q_proj", WIDTH, WIDTH),
        pair("layers.0.o_proj", WIDTH, WIDTH),
        pair("layers.1.v_proj", WIDTH, KV_HEADS * HEAD_DIM),
        pair("layers.1.mlp.gate_proj", WIDTH, INNER),
        pair("layers.1.mlp.down_proj", INNER, WIDTH),
    ];
    AdapterData { base: String::new(), fingerprint: seed.to_string(), pairs }
}

/// A sequence's adapter, and its strength.
type Adapted = (u32, f32);

/// The logits of a step whose sequences have these adapters, each at a strength.
fn adapted_step(model: &mut impl Model, new: &[New], adapters: &[Adapted]) -> Vec<f32> {
    with_batch(new, Output::Logits, |batch| {
        let mut batch = batch.clone();
        for (span, (adapter, scale)) in batch.spans.iter_mut().zip(adapters) {
            (span.adapter, span.adapter_scale) = (*adapter, *scale);
        }
        let mut logits = vec![f32::NAN; batch.wanted().len() * VOCABULARY];
        model.forward(&batch, &mut logits).unwrap();
        logits
    })
}

#[test]
fn adapters_change_their_rows_in_one_command_buffer_and_allocate_nothing() {
    let (mut ours, double) = recorded::<2>(1 << 20);
    double.record().is_deferred = true;
    let mut formula = formulas::<2>();
    let mut attach = |seed: usize| {
        let id = ours.attach(&adapter(seed)).unwrap();
        assert_eq!(formula.attach(&adapter(seed)).unwrap(), id);
        id
    };
    let (first, second) = (attach(1), attach(2));
    let decode = |sequence: u64, past| New { sequence, past, len: 1, want: Want::Last };
    let prompts = [
        New { sequence: 0, past: 0, len: 30, want: Want::Last },
        New { sequence: 1, past: 0, len: 9, want: Want::Last },
    ];
    let decodes = |past: usize| [decode(0, 30 + past), decode(1, 9 + past), decode(2, past), decode(3, past)];
    let steps: [(&[New], &[Adapted]); 4] = [
        (&prompts, &[(first, 1.0), (0, 0.0)]),
        // Two neighbours of one adapter, one at half of its strength, and one without.
        (&decodes(0), &[(first, 1.0), (first, 1.0), (first, 0.5), (0, 0.0)]),
        (&decodes(1), &[(second, 1.0), (0, 0.0), (first, 0.5), (second, 1.0)]),
        (&decodes(2), &[(0, 0.0), (0, 0.0), (second, 2.0), (second, 2.0)]),
    ];
    let mut before = Vec::new();
    for (new, adapters) in &steps {
        let logits = adapted_step(&mut ours, new, adapters);
        assert_close(&logits, &adapted_step(&mut formula, new, adapters));
        before = logits;
    }
    let without = adapted_step(&mut ours, &decodes(2), &[(0, 0.0); 4]);
    let row = |logits: &[f32], at: usize| logits[at * VOCABULARY..][..VOCABULARY].to_vec();
    let differs = |at: usize| row(&before, at).iter().zip(row(&without, at)).any(|(a, b)| (a - b).abs() > 0.05);
    assert_eq!([0, 1, 2, 3].map(differs), [false, false, true, true]);

    *double.record() = Default::default();
    double.record().is_deferred = true;
    for (new, adapters) in &steps {
        adapted_step(&mut ours, new, adapters);
    }
    let record = double.record();
    assert_eq!(record.allocations, Vec::<usize>::new());
    assert_eq!(record.command_buffers.len(), steps.len(), "a step is one command buffer");
}

#[test]
fn a_detached_adapter_is_gone() {
    let (mut ours, _double) = recorded::<2>(1 << 20);
    let prompt = [New { sequence: 0, past: 0, len: 6, want: Want::Last }];
    let plain = step(&mut ours, &prompt).unwrap();
    let id = ours.attach(&adapter(3)).unwrap();
    assert_ne!(adapted_step(&mut ours, &prompt, &[(id, 1.0)]), plain);
    ours.detach(id).unwrap();
    assert_eq!(step(&mut ours, &prompt).unwrap(), plain);
}
