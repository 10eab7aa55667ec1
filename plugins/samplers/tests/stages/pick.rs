//! Stages that pick: which tokens, how often, and when they refuse.

use std::collections::HashMap;

use pensieve_sdk::Code;

use crate::chain::{Chain, NO_HISTORY, Noise, assorted_logits};
use crate::reference;

#[test]
fn greedy_picks_the_best_and_the_lower_id_of_equals() {
    for logits in assorted_logits() {
        assert_eq!(Chain::new(&[("greedy", "")], 5000, 0).pick(&logits), reference::sorted(&logits)[0].0);
    }
    let backwards = [(9, 1.0), (4, 2.0), (2, 2.0), (1, f32::NAN), (3, 2.0)];
    assert_eq!(Chain::new(&[("greedy", "")], 10, 0).run_on(&backwards, NO_HISTORY).unwrap().0, Some(2));
}

#[test]
fn temperature_zero_is_greedy() {
    for (seed, logits) in assorted_logits().enumerate() {
        for temperature in ["0", "0.000001"] {
            let parameters = format!(r#"{{"temperature": {temperature}}}"#);
            let mut chain = Chain::new(&[("temperature", &parameters), ("seeded", "")], 5000, seed as u64);
            assert_eq!(chain.pick(&logits), reference::sorted(&logits)[0].0);
        }
    }
}

/// Pearson's statistic of draws against the probabilities, over the candidates that may be expected five times.
fn chi_square(draws: &HashMap<u32, u32>, logits: &[f32], count: u32) -> (f64, usize) {
    let candidates = reference::sorted(logits);
    let probabilities = reference::probabilities(&candidates);
    let expected = candidates.iter().zip(&probabilities).map(|(c, p)| (c.0, p * f64::from(count)));
    let common: Vec<(u32, f64)> = expected.filter(|&(_, expected)| expected >= 5.0).collect();
    let term =
        |&(id, expected): &(u32, f64)| (f64::from(draws.get(&id).copied().unwrap_or(0)) - expected).powi(2) / expected;
    (common.iter().map(term).sum(), common.len() - 1)
}

#[test]
fn seeded_draws_each_token_as_often_as_its_probability_says() {
    let few = vec![1.0, 0.0, -1.0, 2.0, f32::NAN, 0.5, f32::NEG_INFINITY, 1.5];
    let many = Noise::new(11).logits(300, 1.0);
    for (logits, seed) in [(&few, 1), (&few, 2), (&many, 3), (&many, 4)] {
        let mut chain = Chain::new(&[("seeded", "")], logits.len(), seed);
        let mut draws = HashMap::new();
        for _ in 0..60_000 {
            *draws.entry(chain.pick(logits)).or_insert(0) += 1;
        }
        assert!(draws.keys().all(|&id| logits[id as usize] > f32::NEG_INFINITY));
        // The statistic has mean f and variance 2f; four deviations are passed once in thousands of seeds.
        let (statistic, freedom) = chi_square(&draws, logits, 60_000);
        let limit = freedom as f64 + 4.0 * (2.0 * freedom as f64).sqrt();
        assert!(statistic < limit, "{statistic} with {freedom} degrees of freedom");
    }
}

#[test]
fn one_seed_gives_the_same_picks_and_another_seed_others() {
    let logits = Noise::new(5).logits(2000, 1.0);
    for name in ["seeded", "mirostat"] {
        let picks = |seed| {
            let mut chain = Chain::new(&[("top_k", r#"{"k": 500}"#), (name, "")], 2000, seed);
            (0..50).map(|_| chain.pick(&logits)).collect::<Vec<u32>>()
        };
        assert_eq!(picks(42), picks(42));
        assert_ne!(picks(42), picks(43));
    }
}

/// If this fails, a change has made every recorded seed give other tokens.
#[test]
fn seeds_keep_their_meaning() {
    let logits: Vec<f32> = (0..100u32).map(|id| (id * 37 % 100) as f32 * 0.03).collect();
    let picks = |name, seed| {
        let mut chain = Chain::new(&[(name, "")], 100, seed);
        [(); 8].map(|()| chain.pick(&logits))
    };
    assert_eq!(picks("seeded", 0), [69, 43, 94, 21, 64, 13, 62, 54]);
    assert_eq!(picks("mirostat", 7), [83, 74, 59, 40, 90, 8, 43, 71]);
}

#[test]
fn picks_only_what_may_be_picked() {
    let (nan, low, high) = (f32::NAN, f32::NEG_INFINITY, f32::INFINITY);
    let cases: [(&[f32], &[u32]); 6] = [
        (&[nan, 1.0, low], &[1]),
        (&[low, low, -3.4e38, nan], &[2]),
        (&[0.0], &[0]),
        (&[3.0, high, nan, high], &[1, 3]),
        (&[high], &[0]),
        (&[f32::MAX, f32::MIN, nan], &[0]),
    ];
    for (logits, allowed) in cases {
        for name in ["greedy", "seeded", "mirostat"] {
            let mut chain = Chain::new(&[(name, "")], logits.len(), 9);
            for _ in 0..100 {
                assert!(allowed.contains(&chain.pick(logits)), "{name} of {logits:?}");
            }
        }
    }
}

#[test]
fn refuses_to_pick_where_nothing_is_above_minus_infinity() {
    let hopeless: [(&[f32], &str); 4] = [
        (&[], "no candidate is left"),
        (&[f32::NAN], "every candidate has logit -inf or nan"),
        (&[f32::NEG_INFINITY, f32::NEG_INFINITY], "every candidate has logit -inf or nan"),
        (&[f32::NEG_INFINITY, f32::NAN], "every candidate has logit -inf or nan"),
    ];
    for (logits, message) in hopeless {
        for name in ["greedy", "seeded", "mirostat"] {
            for before in ["top_k", "top_p", "min_p", "typical", "xtc", "temperature"] {
                let mut chain = Chain::new(&[(before, ""), (name, "")], 100, 0);
                let error = chain.run(logits, NO_HISTORY).unwrap_err();
                assert_eq!(error.code, Code::Invalid);
                assert!(error.message.starts_with(&format!("{name}: {message}")), "{error}");
            }
        }
    }
}

#[test]
fn mirostat_keeps_below_its_limit_and_moves_it_by_the_surprise() {
    let (tau, eta) = (3.0, 0.1);
    let mut chain = Chain::new(&[("mirostat", r#"{"tau": 3, "eta": 0.1}"#)], 1000, 6);
    let mut limit = 2.0 * tau;
    for step in 0..2000 {
        let logits = Noise::new(step).logits(1000, 2.5);
        let candidates = reference::sorted(&logits);
        let surprises: Vec<f64> = reference::probabilities(&candidates).iter().map(|p| -p.log2()).collect();
        let token = chain.pick(&logits);
        let place = candidates.iter().position(|&(id, _)| id == token).unwrap();
        assert!(place == 0 || surprises[place] <= limit + 1e-4, "step {step}");
        limit -= eta * (surprises[place] - tau);
    }
}

#[test]
fn mirostat_brings_the_surprise_to_tau() {
    // Zipf's law over 5000 words has 9 bits of entropy, and 3.2 in the first word alone.
    let logits: Vec<f32> = (1..=5000).map(|place| -(place as f32).ln()).collect();
    let candidates = reference::sorted(&logits);
    let probabilities = reference::probabilities(&candidates);
    for tau in [4.0, 5.5, 7.0] {
        let mut chain = Chain::new(&[("mirostat", &format!(r#"{{"tau": {tau}}}"#))], 5000, 1);
        let surprises: Vec<f64> = (0..3000).map(|_| -probabilities[chain.pick(&logits) as usize].log2()).collect();
        let mean = surprises[500..].iter().sum::<f64>() / 2500.0;
        assert!((mean - tau).abs() < 0.05, "{mean} bits for a tau of {tau}");
    }
}
