//! Stages that change logits: temperature, penalties, DRY.

use pensieve_sdk::sampler::History;

use crate::chain::{Candidate, Chain, NO_HISTORY, Noise};
use crate::reference;

fn history(tokens: &[u32], prompt: usize) -> History<'_> {
    History { tokens, prompt }
}

/// A text of few words, so that it repeats itself.
fn text(noise: &mut Noise, length: usize, words: u32) -> Vec<u32> {
    (0..length).map(|_| noise.below(words)).collect()
}

#[test]
fn temperature_divides_logits() {
    let left = Chain::new(&[("temperature", r#"{"temperature": 0.5}"#)], 4, 0).narrow(&[1.0, -2.0, f32::NEG_INFINITY]);
    assert_eq!(left, [(0, 2.0), (1, -4.0), (2, f32::NEG_INFINITY)]);
}

#[test]
fn temperature_keeps_sorted_candidates_in_order_where_rounding_makes_equals() {
    // Neighbours in f32 with the higher id first; dividing by 1.3 makes some of them equal.
    let logits: Vec<f32> = (0..200u32).map(|step| f32::from_bits(1.5f32.to_bits() + step)).collect();
    let stages = [("top_k", r#"{"k": 200}"#), ("temperature", r#"{"temperature": 1.3}"#)];
    let left = Chain::new(&stages, 100_000, 0).narrow(&logits);
    assert!(left.windows(2).any(|pair| pair[0].1 == pair[1].1));
}

#[test]
fn penalties_follow_their_formulas_as_the_history_grows() {
    for seed in 0..12 {
        let mut noise = Noise::new(seed);
        let logits = noise.logits(300, 2.0);
        let tokens = text(&mut noise, 120, 90);
        let window = [-1, 0, 5, 64][seed as usize % 4];
        let (repetition, presence, frequency) =
            [(1.3, 0.5, 0.25), (1.0, -1.0, 0.0), (0.7, 0.0, 1.5)][seed as usize % 3];
        let parameters = format!(
            r#"{{"repetition": {repetition}, "presence": {presence}, "frequency": {frequency}, "window": {window}}}"#
        );
        let mut chain = Chain::new(&[("penalties", &parameters)], 300, 0);
        let prompt = 40;
        for end in [0, 1, 39, 40, 41, 42, 100, 120, 90, 91] {
            let (_, left) = chain.run(&logits, history(&tokens[..end], prompt.min(end))).unwrap();
            let start = if window < 0 { 0 } else { end.saturating_sub(window as usize) };
            for (id, logit) in left {
                let seen = tokens[start..end].contains(&id);
                let generated = (start.max(prompt)..end).filter(|&place| tokens[place] == id).count();
                let mut expected = logits[id as usize];
                if seen {
                    expected = if expected > 0.0 { expected / repetition } else { expected * repetition };
                }
                if generated > 0 {
                    expected -= presence + frequency * generated as f32;
                }
                assert!((logit - expected).abs() < 1e-5, "token {id} at {end}: {logit} for {expected}");
            }
        }
    }
}

#[test]
fn penalties_reach_tokens_in_narrowed_and_shuffled_candidates() {
    let tokens: Vec<u32> = (0..3000).map(|place| place * 7 % 4000).collect();
    let parameters = r#"{"presence": 1}"#;
    let all: Vec<Candidate> = (0..4000).rev().map(|id| (id, 0.0)).collect();
    for candidates in [&all[..], &all[100..3000], &all[..50]] {
        let mut chain = Chain::new(&[("penalties", parameters)], 4000, 0);
        let (_, left) = chain.run_on(candidates, history(&tokens, 0)).unwrap();
        for (&(id, before), (_, after)) in candidates.iter().zip(left) {
            assert_eq!(after, if tokens.contains(&id) { before - 1.0 } else { before });
        }
    }
}

#[test]
fn penalties_of_nothing_change_nothing() {
    let logits = Noise::new(1).logits(50, 1.0);
    let tokens: Vec<u32> = (0..50).collect();
    let neutral = r#"{"repetition": 1, "presence": 0, "frequency": 0}"#;
    for (parameters, end) in [(neutral, 50), (r#"{"presence": 2}"#, 0)] {
        let mut chain = Chain::new(&[("penalties", parameters), ("dry", r#"{"multiplier": 0}"#)], 50, 0);
        let (_, left) = chain.run(&logits, history(&tokens[..end], 0)).unwrap();
        assert!(left.into_iter().eq((0..).zip(logits.iter().copied())));
    }
}

#[test]
fn biases_are_added_to_the_tokens_that_they_name() {
    let mut chain = Chain::new(&[("bias", r#"{"biases": {"1": 2.5, "3": -100}}"#), ("greedy", "")], 4, 0);
    let (token, left) = chain.run(&[1.0, 0.0, 2.0, 3.0], NO_HISTORY).unwrap();
    assert_eq!(left, [(0, 1.0), (1, 2.5), (2, 2.0), (3, -97.0)]);
    assert_eq!(token, Some(1));
    // What stages before left over need not be the whole vocabulary.
    let (token, left) = chain.run_on(&[(3, 9.0), (0, 1.0)], NO_HISTORY).unwrap();
    assert_eq!((token, left), (Some(0), vec![(3, -91.0), (0, 1.0)]));
    let (_, left) = Chain::new(&[("bias", "")], 2, 0).run(&[1.0, 0.0], NO_HISTORY).unwrap();
    assert_eq!(left, [(0, 1.0), (1, 0.0)]);
}

#[test]
fn tokens_beyond_the_vocabulary_are_ignored() {
    let tokens = [u32::MAX, 1, u32::MAX, 1];
    let stages = [("penalties", r#"{"presence": 1}"#), ("dry", r#"{"allowed_length": 1}"#)];
    let (_, left) = Chain::new(&stages, 3, 0).run(&[0.0; 3], history(&tokens, 0)).unwrap();
    assert_eq!(left, [(0, 0.0), (1, -1.0), (2, 0.0)]);
}

#[test]
fn dry_penalises_the_token_that_would_repeat_an_n_gram() {
    // "1 2 3 4 … 1 2 3" asks for 4 again, after a match of three.
    let tokens = [1, 2, 3, 4, 9, 8, 1, 2, 3];
    let parameters = r#"{"multiplier": 0.5, "base": 2, "allowed_length": 2}"#;
    let (_, left) = Chain::new(&[("dry", parameters)], 10, 0).run(&[0.0; 10], history(&tokens, 9)).unwrap();
    let penalised: Vec<Candidate> = left.into_iter().filter(|&(_, logit)| logit != 0.0).collect();
    assert_eq!(penalised, [(4, -1.0)]);
}

#[test]
fn dry_follows_its_definition_on_repetitive_texts() {
    for seed in 0..300 {
        let mut noise = Noise::new(seed);
        let length = noise.below(80) as usize;
        let words = 1 + noise.below(4);
        let tokens = text(&mut noise, length, words);
        let (breakers, allowed, range) =
            ([&[][..], &[2]][seed as usize % 2], 1 + noise.below(4) as usize, noise.below(60));
        let parameters = format!(
            r#"{{"multiplier": 0.8, "base": 1.2, "allowed_length": {allowed}, "range": {range}, "sequence_breakers": {breakers:?}}}"#
        );
        let (_, left) = Chain::new(&[("dry", &parameters)], 6, 0).run(&[0.0; 6], history(&tokens, length / 2)).unwrap();
        let repetitions = reference::repetitions(&tokens[length.saturating_sub(range as usize)..], breakers);
        for (id, logit) in left {
            let repeated = repetitions.get(&id).copied().unwrap_or(0);
            let expected = if repeated >= allowed { 0.8 * 1.2f64.powi((repeated - allowed) as i32) } else { 0.0 };
            assert!((f64::from(logit) + expected).abs() < 1e-5 * (1.0 + expected), "token {id} of {tokens:?}");
        }
    }
}

#[test]
fn dry_does_not_reach_across_a_sequence_breaker() {
    let tokens = [1, 2, 0, 3, 4, 5, 1, 2, 0, 3];
    let penalised = |breakers: &str| {
        let parameters = format!(r#"{{"allowed_length": 2, "sequence_breakers": {breakers}}}"#);
        Chain::new(&[("dry", &parameters)], 6, 0).run(&[0.0; 6], history(&tokens, 0)).unwrap().1[4].1 < 0.0
    };
    assert!(penalised("[]"));
    assert!(!penalised("[0]"));
}

#[test]
fn dry_never_leaves_a_chain_without_a_choice() {
    let tokens = [0; 4000];
    for parameters in [r#"{"base": 100, "multiplier": 100}"#, r#"{"base": 1}"#, ""] {
        let (_, left) = Chain::new(&[("dry", parameters)], 1, 0).run(&[0.0], history(&tokens, 0)).unwrap();
        assert!(left[0].1 < 0.0 && left[0].1 > f32::NEG_INFINITY);
    }
}
