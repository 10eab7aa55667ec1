//! A worker without a model: random clients, a random disk and a "model" whose keys, values and states are fingerprints
//! of all tokens up to a position. Whatever the scheduler has computed, shared, evicted, spilled and imported, a span
//! must find the fingerprints of exactly its own text before it, or something was wrongly reused. Every run is
//! reproducible from its seed.

mod media;
mod timing;
mod world;

use std::time::Duration;

use crate::engine::{
    blocks::{Group, Kind, Layout},
    scheduler::Config,
};
use media::MediaScenario;
use world::{Odds, World};

/// A configuration of worker and clients; each test varies `usual`.
#[derive(Clone)]
struct Scenario {
    seed: u64,
    steps: u64,
    layout: Option<Layout>,
    config: Config,
    /// An opaque model copies states.
    copies: bool,
    odds: Odds,
    /// Exclusive limits on the tokens that a prompt reuses from an earlier text, and on the tokens of an answer.
    beginning_max: usize,
    answer_max: usize,
    /// Maximum number of steps from a sequence's arrival to its end.
    patience: u64,
    key_bits: Option<u32>,
    /// Number of different tokens.
    alphabet: u32,
    /// Prompts have items.
    media: Option<MediaScenario>,
}

fn usual(seed: u64) -> Scenario {
    let config = Config {
        sequences_max: 6,
        waiting_max: 24,
        step_tokens_max: 40,
        chunk_min: 3,
        chunk_max: 24,
        prefill_step: Duration::from_millis(60),
        ..Config::default()
    };
    Scenario {
        seed,
        steps: 150_000,
        layout: Some(Layout::plain(48, 4, 0)),
        config,
        copies: false,
        odds: Odds::default(),
        beginning_max: 80,
        answer_max: 30,
        patience: 2_500,
        key_bits: None,
        alphabet: 50,
        media: None,
    }
}

fn run(scenario: &Scenario) -> world::Totals {
    let mut world = World::new(scenario);
    while world.totals.steps < scenario.steps {
        world.step();
    }
    world.drain();
    println!("{:?}", world.totals);
    if let Some(media) = world.media {
        println!("{} opened, {} closed early, {} shared", media.opened, media.closed_early, media.shared);
        assert!(media.opened > 150 && media.closed_early + media.shared > 10);
    }
    world.totals
}

#[test]
fn a_roomy_pool_serves_everyone_and_reuses_prompts_and_answers() {
    let layout = Layout::plain(200, 4, 0);
    let totals = run(&Scenario { layout: Some(layout), ..usual(1) });
    assert!(totals.reused > totals.computed / 4, "conversations go on where they were");
    assert_eq!(totals.preempted, 0);
}

#[test]
fn a_tiny_pool_preempts_and_still_serves_everyone() {
    let layout = Layout::plain(20, 4, 0);
    let totals = run(&Scenario { layout: Some(layout), beginning_max: 20, answer_max: 60, ..usual(2) });
    assert!(totals.preempted > 5_000 && totals.finished > 1_000 && totals.outgrown > 100, "{totals:?}");
}

#[test]
fn blocks_of_16_tokens_behave_as_small_ones_do() {
    let layout = Layout::plain(16, 16, 12);
    let totals = run(&Scenario { layout: Some(layout), answer_max: 90, ..usual(3) });
    assert!(totals.preempted > 500 && totals.imported > 1_000, "{totals:?}");
}

#[test]
fn clients_that_go_away_and_deadlines_leave_nothing_behind() {
    let odds = Odds { cancel: 0.1, deadline: 0.3, broken_step: 0.02, ..Odds::default() };
    let totals = run(&Scenario { odds, ..usual(4) });
    assert!(totals.cancelled > 1_000 && totals.expired > 1_000);
}

#[test]
fn a_disk_that_fails_at_times_never_serves_what_was_not_asked_for() {
    let odds = Odds { spill: 0.5, failed_import: 0.05, lost: 0.002, restart: 0.0005, cancel: 0.02, ..Odds::default() };
    let layout = Layout::plain(24, 4, 60);
    let totals = run(&Scenario { layout: Some(layout), odds, ..usual(5) });
    assert!(totals.imported > 10_000 && totals.failed_imports > 500 && totals.restarts > 20);
}

#[test]
fn a_disk_smaller_than_memory_keeps_to_its_budget() {
    let odds = Odds { spill: 0.8, ..Odds::default() };
    let layout = Layout::plain(32, 4, 5);
    let totals = run(&Scenario { layout: Some(layout), odds, ..usual(6) });
    assert!(totals.imported > 100);
}

#[test]
fn keys_that_collide_never_serve_another_text() {
    let odds = Odds { spill: 0.3, failed_import: 0.02, restart: 0.0002, ..Odds::default() };
    let layout = Layout::plain(40, 4, 30);
    let totals = run(&Scenario { layout: Some(layout), odds, key_bits: Some(6), alphabet: 2, ..usual(7) });
    assert!(totals.reused > 10_000);
}

#[test]
fn an_opaque_model_is_served_within_its_number_of_states() {
    for (states, copies, reused_min) in [(3, false, 100), (60, false, 10_000), (3, true, 100), (60, true, 10_000)] {
        let config = Config { sequences_max: states, step_tokens_max: 80, ..usual(8).config };
        let totals = run(&Scenario { layout: None, config, copies, ..usual(8) });
        assert!(totals.finished > 1_000);
        assert!(totals.reused > reused_min, "{states} states: {} tokens were taken over", totals.reused);
        assert_eq!(totals.preempted, 0);
    }
}

/// Layout of a model with these cache groups, each copy on disk taking one byte.
fn layout(groups: &[(Kind, u32)], disk_bytes: u64) -> Option<Layout> {
    let groups = groups.iter().map(|&(kind, capacity)| Group { kind, capacity, disk_bytes: 1 }).collect();
    Some(Layout { block_tokens: 4, groups, disk_bytes })
}

#[test]
fn a_windowed_model_serves_more_than_its_window_holds() {
    let mixed = layout(&[(Kind::Tokens, 200), (Kind::Window(12), 40)], 0);
    let totals = run(&Scenario { layout: mixed, steps: 40_000, ..usual(11) });
    assert!(totals.reused > totals.computed / 6 && totals.finished > 1_000, "{totals:?}");
    let alone = layout(&[(Kind::Window(9), 40)], 0);
    let totals = run(&Scenario { layout: alone, steps: 40_000, ..usual(12) });
    assert!(totals.reused > totals.computed / 6 && totals.outgrown == 0, "{totals:?}");
}

#[test]
fn a_hybrid_goes_on_from_copies_of_its_state() {
    let hybrid = layout(&[(Kind::Tokens, 200), (Kind::State, 40)], 0);
    let totals = run(&Scenario { layout: hybrid, steps: 40_000, ..usual(13) });
    assert!(totals.reused > totals.computed / 6 && totals.finished > 1_000, "{totals:?}");
}

#[test]
fn a_recurrent_model_goes_on_from_copies_of_its_state() {
    let recurrent = layout(&[(Kind::State, 24)], 0);
    let totals = run(&Scenario { layout: recurrent, steps: 40_000, ..usual(14) });
    assert!(totals.reused > totals.computed / 8 && totals.preempted == 0, "{totals:?}");
}

#[test]
fn a_tiny_hybrid_preempts_and_still_serves_everyone() {
    let tiny = layout(&[(Kind::State, 5), (Kind::Tokens, 24), (Kind::Window(7), 16)], 0);
    let totals = run(&Scenario { layout: tiny, beginning_max: 20, answer_max: 60, steps: 40_000, ..usual(15) });
    assert!(totals.preempted > 1_000 && totals.finished > 1_000, "{totals:?}");
}

#[test]
fn all_groups_come_back_from_a_disk_that_fails_at_times() {
    let odds = Odds { spill: 0.5, failed_import: 0.05, lost: 0.002, restart: 0.001, cancel: 0.02, ..Odds::default() };
    for (seed, groups) in [
        (16, vec![(Kind::Tokens, 24), (Kind::State, 8)]),
        (17, vec![(Kind::Tokens, 24), (Kind::Window(10), 18), (Kind::State, 8)]),
        (18, vec![(Kind::Window(10), 24)]),
        (19, vec![(Kind::State, 8)]),
    ] {
        let totals =
            run(&Scenario { layout: layout(&groups, 40_000), odds: odds.clone(), steps: 40_000, ..usual(seed) });
        assert!(
            totals.imported > 1_000 && totals.failed_imports > 50 && totals.restarts > 20,
            "{groups:?}: {totals:?}"
        );
    }
}

#[test]
fn colliding_keys_never_serve_another_state() {
    let odds = Odds { spill: 0.3, failed_import: 0.02, restart: 0.0002, ..Odds::default() };
    let groups = layout(&[(Kind::Tokens, 40), (Kind::Window(6), 30), (Kind::State, 12)], 90);
    let totals = run(&Scenario { layout: groups, odds, key_bits: Some(6), alphabet: 2, steps: 40_000, ..usual(20) });
    assert!(totals.reused > 5_000, "{totals:?}");
}

fn media(whole: bool) -> MediaScenario {
    MediaScenario { item: 0.4, whole, rows_max: 30, batch_rows: 12, broken: 0.01 }
}

#[test]
fn prompts_with_items_are_served_with_their_own_rows() {
    let odds = Odds { cancel: 0.05, deadline: 0.1, broken_step: 0.01, ..Odds::default() };
    for (seed, whole, blocks) in [(21, false, 200), (22, true, 200), (23, false, 24), (24, true, 24)] {
        let (layout, media) = (Some(Layout::plain(blocks, 4, 0)), Some(media(whole)));
        let totals = run(&Scenario { layout, media, odds: odds.clone(), steps: 20_000, ..usual(seed) });
        assert!(totals.finished > 300 && totals.reused > totals.computed / 20, "{totals:?}");
        assert!(blocks > 100 || totals.preempted > 50, "{totals:?}");
    }
}

#[test]
fn items_in_cached_prefixes_come_back_from_a_disk_that_fails_at_times() {
    let odds = Odds { spill: 0.5, failed_import: 0.05, lost: 0.002, restart: 0.001, cancel: 0.02, ..Odds::default() };
    for (seed, whole, groups) in [
        (25, false, vec![(Kind::Tokens, 40)]),
        (26, true, vec![(Kind::Tokens, 40)]),
        (27, true, vec![(Kind::Tokens, 40), (Kind::Window(10), 40)]),
        (28, false, vec![(Kind::Tokens, 40), (Kind::State, 10)]),
        (29, true, vec![(Kind::State, 10), (Kind::Tokens, 40)]),
    ] {
        let (layout, media) = (layout(&groups, 40_000), Some(media(whole)));
        let totals = run(&Scenario { layout, media, odds: odds.clone(), steps: 15_000, ..usual(seed) });
        assert!(totals.imported > 200 && totals.failed_imports > 10 && totals.restarts > 3, "{groups:?}: {totals:?}");
    }
}

#[test]
fn colliding_keys_never_serve_another_items_rows() {
    let odds = Odds { spill: 0.3, failed_import: 0.02, restart: 0.0002, ..Odds::default() };
    let (layout, media) = (Some(Layout::plain(60, 4, 30)), Some(media(false)));
    let scenario = Scenario { layout, media, odds, key_bits: Some(6), alphabet: 4, steps: 15_000, ..usual(30) };
    assert!(run(&scenario).reused > 1_000);
}

#[test]
fn an_opaque_model_continues_states_that_have_seen_the_same_items() {
    for copies in [false, true] {
        let config = Config { sequences_max: 60, step_tokens_max: 80, ..usual(31).config };
        let media = Some(media(false));
        let totals = run(&Scenario { layout: None, config, copies, media, steps: 15_000, ..usual(31) });
        assert!(totals.finished > 500 && totals.reused > 1_000, "{totals:?}");
    }
}
