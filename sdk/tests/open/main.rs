//! The SDK's open pieces as another crate uses them: every variant of one small decoder computes the same in two ways,
//! one with the SDK's own layer and one with an author's, and obeys the laws.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod direct;
mod extended;
mod gguf;
mod lab;
mod tables;

use lab::{Lab, logits, model, worst};
use pensieve_sdk::testing::{Options, conformance_with};

/// Largest difference between two ways to compute the same.
const CLOSE: f32 = 2e-4;

fn assert_lawful(variant: &str, kernels: &str) {
    let options = Options { positionless: true, ..Options::default() };
    let report = conformance_with(model::<Lab>(variant, kernels), &options);
    assert!(report.passed(), "{variant} with {kernels} kernels\n{report}");
}

#[test]
fn an_author_s_piece_computes_what_the_sdk_s_own_does() {
    for kernels in ["auto", "generic"] {
        for (sdk, author) in [
            ("plain", "closure-activation"),
            ("plain", "closure-gate"),
            ("plain", "attention-of-cached"),
            ("plain", "all-positions"),
            ("window", "last-positions"),
            ("experts", "own-routes"),
            ("experts", "own-experts"),
            ("experts", "closure-experts"),
        ] {
            let (expected, found) = (logits(sdk, kernels), logits(author, kernels));
            let worst = worst(&expected, &found);
            assert!(worst <= CLOSE, "{author} against {sdk} with {kernels} kernels: off by {worst}");
        }
        // The comparison sees what a piece does.
        for (one, other) in [("plain", "window"), ("plain", "experts"), ("last-positions", "best-positions")] {
            assert!(worst(&logits(one, kernels), &logits(other, kernels)) > 0.05, "{one} against {other}");
        }
    }
}

#[test]
fn sparse_attention_by_an_indexer_gives_the_same_with_kernels_and_formulas() {
    let worst = worst(&logits("best-positions", "auto"), &logits("best-positions", "generic"));
    assert!(worst <= CLOSE, "off by {worst}");
}

#[test]
fn open_pieces_obey_the_laws() {
    for variant in ["closure-gate", "own-routes", "own-experts", "hyper"] {
        assert_lawful(variant, "auto");
    }
    for variant in ["attention-of-cached", "all-positions", "best-positions"] {
        assert_lawful(variant, "auto");
        assert_lawful(variant, "generic");
    }
}
