//! Stages that narrow: what they keep, of ordinary logits and of broken ones.

use crate::chain::{Candidate, Chain, Noise, assorted_logits, ids};
use crate::reference;

const NARROWING: [(&str, &str); 7] = [
    ("top_k", r#"{"k": 3}"#),
    ("top_p", r#"{"p": 0.5}"#),
    ("top_p", r#"{"p": 0}"#),
    ("min_p", r#"{"p": 0.3}"#),
    ("typical", r#"{"p": 0.4}"#),
    ("xtc", r#"{"threshold": 0.001, "probability": 1}"#),
    ("temperature", r#"{"temperature": 0}"#),
];

fn one(name: &str, parameters: &str, logits: &[f32]) -> Vec<Candidate> {
    Chain::new(&[(name, parameters)], logits.len().max(100_000), 0).narrow(logits)
}

fn reference_ids(candidates: &[(u32, f64)]) -> Vec<u32> {
    let mut ids: Vec<u32> = candidates.iter().map(|&(id, _)| id).collect();
    ids.sort_unstable();
    ids
}

/// Ids above −inf: stages may or may not drop the others.
fn real_ids(candidates: &[Candidate]) -> Vec<u32> {
    let real: Vec<Candidate> = candidates.iter().copied().filter(|&(_, logit)| logit > f32::NEG_INFINITY).collect();
    ids(&real)
}

#[test]
fn top_k_keeps_and_sorts_what_a_full_sort_puts_first() {
    for logits in assorted_logits() {
        for k in [1, 2, 7, 40, 200] {
            let left = one("top_k", &format!(r#"{{"k": {k}}}"#), &logits);
            let expected = reference::top_k(&reference::sorted(&logits), k);
            let left: Vec<(u32, f64)> =
                left.iter().filter(|c| c.1 > f32::NEG_INFINITY).map(|&(id, logit)| (id, logit.into())).collect();
            assert_eq!(left, expected);
        }
    }
}

#[test]
fn top_p_keeps_the_smallest_set_that_reaches_the_mass() {
    for logits in assorted_logits() {
        for p in [0.0, 0.1, 0.5, 0.9, 0.95, 0.999] {
            let expected = reference_ids(&reference::top_p(&reference::sorted(&logits), p));
            let parameters = format!(r#"{{"p": {p}}}"#);
            assert_eq!(ids(&one("top_p", &parameters, &logits)), expected, "{p} of {}", logits.len());
            let after_sorting = [("top_k", r#"{"k": 9999}"#), ("top_p", &parameters)];
            assert_eq!(ids(&Chain::new(&after_sorting, 100_000, 0).narrow(&logits)), expected);
        }
    }
}

#[test]
fn min_p_keeps_what_is_probable_enough_next_to_the_best() {
    for logits in assorted_logits() {
        for p in [0.001, 0.049, 0.5, 1.0] {
            let expected = reference_ids(&reference::min_p(&reference::sorted(&logits), p));
            assert_eq!(ids(&one("min_p", &format!(r#"{{"p": {p}}}"#), &logits)), expected);
        }
    }
}

#[test]
fn typical_keeps_what_is_closest_to_the_entropy() {
    for logits in assorted_logits() {
        for p in [0.0, 0.2, 0.5, 0.9, 0.95] {
            let expected = reference_ids(&reference::typical(&reference::sorted(&logits), p));
            assert_eq!(ids(&one("typical", &format!(r#"{{"p": {p}}}"#), &logits)), expected, "{p} of {}", logits.len());
        }
    }
}

#[test]
fn typical_may_drop_the_most_probable_candidate() {
    // One token of probability 0.4 and sixty of 0.01: the entropy is near −ln 0.01, so the sixty are typical.
    let mut logits = vec![0.01f32.ln(); 61];
    logits[7] = 0.4f32.ln();
    let left = one("typical", r#"{"p": 0.5}"#, &logits);
    assert_eq!(left.len(), 50);
    assert!(left.iter().all(|&(id, _)| id != 7));
}

#[test]
fn xtc_keeps_only_the_least_probable_above_the_threshold() {
    for logits in assorted_logits() {
        for threshold in [0.0005, 0.03, 0.11, 0.6] {
            let parameters = format!(r#"{{"threshold": {threshold}, "probability": 1}}"#);
            let expected = reference_ids(&reference::xtc(&reference::sorted(&logits), threshold));
            assert_eq!(real_ids(&one("xtc", &parameters, &logits)), expected);
        }
    }
}

#[test]
fn xtc_strikes_as_often_as_its_probability_and_the_same_for_the_same_seed() {
    let logits = [1.0, 1.0, 1.0, 0.0];
    let strikes = |probability: &str, seed: u64| -> Vec<bool> {
        let parameters = format!(r#"{{"threshold": 0.2, "probability": {probability}}}"#);
        let mut chain = Chain::new(&[("xtc", &parameters)], 4, seed);
        (0..2000).map(|_| chain.narrow(&logits).len() == 2).collect()
    };
    let count = |strikes: &[bool]| strikes.iter().filter(|&&strike| strike).count();
    assert_eq!(count(&strikes("0", 1)), 0);
    assert_eq!(count(&strikes("1", 1)), 2000);
    assert!((540..660).contains(&count(&strikes("0.3", 1))));
    assert_eq!(strikes("0.3", 1), strikes("0.3", 1));
    assert_ne!(strikes("0.3", 1), strikes("0.3", 2));
}

#[test]
fn neutral_parameters_change_nothing() {
    let neutral = [
        ("top_k", r#"{"k": 0}"#),
        ("top_p", r#"{"p": 1.0}"#),
        ("min_p", r#"{"p": 0}"#),
        ("typical", r#"{"p": 1}"#),
        ("temperature", r#"{"temperature": 1}"#),
        ("xtc", r#"{"probability": 0}"#),
    ];
    let mut logits = Noise::new(3).logits(500, 3.0);
    (logits[3], logits[9], logits[11]) = (f32::NEG_INFINITY, f32::INFINITY, -0.0);
    for (name, parameters) in neutral {
        let left = one(name, parameters, &logits);
        assert!(left.iter().copied().eq((0..).zip(logits.iter().copied())), "{name}");
    }
}

#[test]
fn narrowing_leaves_a_candidate_above_minus_infinity_if_there_was_one() {
    let (nan, low, high) = (f32::NAN, f32::NEG_INFINITY, f32::INFINITY);
    let cases: [&[f32]; 9] = [
        &[0.0],
        &[nan, 1.0],
        &[low, nan, low, -3e38],
        &[nan, nan, f32::MIN, nan, nan],
        &[0.0, 0.0, 0.0, 0.0],
        &[f32::MAX, f32::MIN],
        &[high, 0.0, nan],
        &[high, low, high],
        &[1e-40, -1e-40, nan],
    ];
    for logits in cases {
        for (name, parameters) in NARROWING {
            let left = one(name, parameters, logits);
            assert!(left.iter().any(|&(_, logit)| logit > low), "{name} {parameters} of {logits:?} left {left:?}");
        }
    }
}

#[test]
fn narrowing_takes_empty_and_hopeless_candidates_without_a_panic() {
    for logits in [&[][..], &[f32::NAN; 200], &[f32::NEG_INFINITY; 200], &[f32::NAN, f32::NEG_INFINITY]] {
        for (name, parameters) in NARROWING {
            assert!(one(name, parameters, logits).len() <= logits.len());
        }
    }
}

#[test]
fn a_nucleus_among_thousands_of_equals_takes_the_lower_ids() {
    for level in [0.0, 17.0, -3e38] {
        let logits = [level; 8000];
        for name in ["top_p", "typical"] {
            assert_eq!(ids(&one(name, r#"{"p": 0.24999}"#, &logits)), (0..2000).collect::<Vec<u32>>(), "{name}");
        }
    }
}

#[test]
fn plus_infinity_takes_the_whole_mass() {
    let logits = [5.0, f32::INFINITY, f32::NAN, 9.0, f32::INFINITY];
    assert_eq!(ids(&one("top_p", r#"{"p": 0.9}"#, &logits)), [1, 4]);
    assert_eq!(ids(&one("top_p", r#"{"p": 0.4}"#, &logits)), [1]);
    assert_eq!(ids(&one("min_p", r#"{"p": 0.01}"#, &logits)), [1, 4]);
    assert_eq!(ids(&one("typical", r#"{"p": 0.9}"#, &logits)), [1, 4]);
    assert_eq!(ids(&one("top_k", r#"{"k": 3}"#, &logits)), [1, 3, 4]);
    assert_eq!(ids(&one("temperature", r#"{"temperature": 0}"#, &logits)), [1]);
}

#[test]
fn chains_narrow_as_their_order_says() {
    for seed in 0..40 {
        let logits = Noise::new(seed).logits(3000, 2.5);
        let sorted = reference::sorted(&logits);
        let (k, p, m, t) = (r#"{"k": 50}"#, r#"{"p": 0.8}"#, r#"{"p": 0.1}"#, r#"{"temperature": 0.7}"#);
        let run = |stages: &[(&str, &str)]| ids(&Chain::new(stages, 3000, seed).narrow(&logits));
        assert_eq!(
            run(&[("top_k", k), ("top_p", p)]),
            reference_ids(&reference::top_p(&reference::top_k(&sorted, 50), 0.8))
        );
        assert_eq!(
            run(&[("top_p", p), ("top_k", k)]),
            reference_ids(&reference::top_k(&reference::top_p(&sorted, 0.8), 50))
        );
        assert_eq!(
            run(&[("temperature", t), ("top_p", p), ("min_p", m)]),
            reference_ids(&reference::min_p(&reference::top_p(&reference::temperature(&sorted, 0.7), 0.8), 0.1))
        );
        assert_eq!(
            run(&[("top_p", p), ("temperature", t), ("typical", p)]),
            reference_ids(&reference::typical(&reference::temperature(&reference::top_p(&sorted, 0.8), 0.7), 0.8))
        );
        assert_eq!(
            run(&[("min_p", m), ("xtc", r#"{"threshold": 0.04, "probability": 1}"#), ("top_k", k)]),
            reference_ids(&reference::top_k(&reference::xtc(&reference::min_p(&sorted, 0.1), 0.04), 50))
        );
    }
}
