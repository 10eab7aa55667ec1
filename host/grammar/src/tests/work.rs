//! Background compilation, the cache, and masks computed beside the model.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::fixture::*;
use crate::{Compiler, Constraint, GrammarError, Masks, keep_allowed};
use pensieve_protocol::grammar::{Grammar, Spec};

/// A grammar that takes some hundred milliseconds to compile; different for each number.
fn slow(number: usize) -> Spec {
    let properties: Vec<String> = (0..1_800).map(|i| format!(r#""{number}p{i}":{{"type":"string"}}"#)).collect();
    from_start(Grammar::json_schema(format!(r#"{{"properties":{{{}}}}}"#, properties.join(",")), false))
}

#[test]
fn overrunning_grammars_are_refused_and_then_new_ones_until_a_helper_is_free() {
    let vocabulary = vocabulary(true);
    let compiler = Compiler::new(vocabulary, Duration::from_millis(50));
    compiler.prepare().unwrap();
    let began = Instant::now();
    let compiling: Vec<_> = (0..2).map(|number| compiler.begin(&slow(number), &[]).unwrap()).collect();
    for compiling in compiling {
        assert_eq!(compiling.finish().err(), Some(GrammarError::Deadline { limit_ms: 50 }));
    }
    assert!(began.elapsed() < Duration::from_millis(400), "waited {:?} for a limit of 50 ms", began.elapsed());
    let mut answers = (0..).map(|number| {
        std::thread::sleep(Duration::from_millis(5));
        compiler.compile(&from_start(Grammar::Regex(format!("a{number}")))).err()
    });
    assert!(answers.by_ref().take_while(Option::is_some).any(|answer| answer == Some(GrammarError::Busy)));
    assert!(answers.take(2_000).any(|answer| answer.is_none()), "the helpers never came back");
    assert!((0..200).any(|_| compiler.compile(&slow(0)).is_ok()), "what is compiled too late is kept all the same");
}

#[test]
fn a_grammar_is_compiled_once_for_all_requests_of_a_client() {
    let compiler = Arc::new(compiler(&vocabulary(true)));
    let spec = slow(7);
    let began = Instant::now();
    assert!(compiler.compile(&spec).is_ok());
    let alone = began.elapsed();

    let spec = slow(8);
    let began = Instant::now();
    let compiling: Vec<_> = (0..20).map(|_| compiler.begin(&spec, &[]).unwrap()).collect();
    assert!(compiling.into_iter().all(|compiling| compiling.finish().is_ok()));
    assert!(began.elapsed() < alone * 5, "20 took {:?}, one {alone:?}", began.elapsed());
    assert_eq!(compiler.cached(), 2);
}

#[test]
fn a_grammar_is_compiled_anew_for_another_client() {
    let compiler = compiler(&vocabulary(true));
    let spec = from_start(Grammar::Regex("a+".to_owned()));
    for (salt, cached) in [([1; 32], 1), ([1; 32], 1), ([2; 32], 2), ([1; 32], 2)] {
        assert!(compiler.begin(&spec, &salt).unwrap().finish().is_ok());
        assert_eq!(compiler.cached(), cached);
    }
}

#[test]
fn polling_never_waits() {
    let compiler = compiler(&vocabulary(true));
    let mut compiling = compiler.begin(&slow(9), &[]).unwrap();
    let began = Instant::now();
    assert!(compiling.poll().is_none());
    assert!(began.elapsed() < Duration::from_millis(20));
    let done = (0..1_000).find_map(|_| {
        std::thread::sleep(Duration::from_millis(5));
        compiling.poll()
    });
    assert!(done.unwrap().is_ok());
}

#[test]
fn the_least_recently_used_grammars_are_dropped() {
    let compiler = compiler(&vocabulary(true));
    for number in 0..100 {
        compiler.compile(&from_start(Grammar::Regex(format!("a{number}")))).unwrap();
    }
    assert_eq!(compiler.cached(), 64);
}

#[test]
fn masks_made_beside_the_model_equal_those_made_alone() {
    let vocabulary = vocabulary(false);
    let compiler = compiler(&vocabulary);
    let masks = Masks::new(2).unwrap();
    let regexes = ["[a-f]+", "[0-9]{3}", "the (cat|dog)", "(?s:.)*"];
    let mut constraints: Vec<Constraint> = regexes
        .iter()
        .cycle()
        .take(16)
        .map(|regex| compiler.compile(&from_start(Grammar::Regex((*regex).to_owned()))).unwrap())
        .collect();
    let mut alone = constraints.clone();
    let caller = std::thread::current().id();
    let forward = masks.overlap(&mut constraints, || std::thread::current().id());
    assert_eq!(forward, caller, "the model stays on the engine's thread");
    for (beside, alone) in constraints.iter_mut().zip(&mut alone) {
        assert!(!beside.is_pending() && alone.is_pending());
        assert_eq!(beside.mask().unwrap(), alone.mask().unwrap());
    }
}

#[test]
fn only_allowed_candidates_are_kept_in_their_order() {
    let mut ids = [70, 3, 0, 31, 32, 64, 5];
    let mut logits = [7.0, 3.0, 0.0, 3.1, 3.2, 6.4, 5.0];
    let mask = [1 | 1 << 31, 1];
    assert_eq!(keep_allowed(&mask, &mut ids, &mut logits), 3);
    assert_eq!((&ids[..3], &logits[..3]), (&[0, 31, 32][..], &[0.0, 3.1, 3.2][..]));
    assert_eq!(keep_allowed(&[], &mut ids, &mut logits), 0);
}

#[test]
fn refuses_tokens_that_the_model_does_not_have() {
    let vocabulary = vocabulary(true);
    let compiler = compiler(&vocabulary);
    let constraint = compiler.compile(&from_start(Grammar::Regex("a+".to_owned()))).unwrap();
    for token in [vocabulary.size(), u32::MAX, PADDING] {
        assert!(constraint.clone().accept(token).is_err(), "token {token}");
    }
    let mut sound = compiler.compile(&from_start(Grammar::Regex("a+".to_owned()))).unwrap();
    assert!(sound.mask().is_ok(), "another sequence's error is its own");
}
