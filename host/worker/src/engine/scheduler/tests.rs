//! Small scenarios, one behaviour each.

use std::time::Duration;

use super::*;
use crate::engine::blocks::Layout;

impl Scheduler {
    /// Admitted sequences, oldest first.
    pub(in crate::engine) fn running_ids(&self) -> &[u64] {
        &self.running
    }
}

const STEP: Duration = Duration::from_millis(10);

fn config() -> Config {
    Config { sequences_max: 4, chunk_min: 8, chunk_max: 8, ..Config::default() }
}

/// With blocks of 4 tokens.
fn paged(blocks: u32, config: Config) -> Scheduler {
    let layout = Layout::plain(blocks, 4, 8);
    Scheduler::new(config, Some(BlockTable::new(layout, &[0; 16])))
}

fn request(sequence: u64, prompt: &[u32]) -> Request {
    Request { sequence, prompt: prompt.to_vec(), ..Request::default() }
}

/// Submits a prompt that no other sequence has.
fn submit(scheduler: &mut Scheduler, sequence: u64, tokens: u32) {
    let prompt: Vec<u32> = (0..tokens).map(|i| sequence as u32 * 1000 + i).collect();
    assert_eq!(scheduler.submit(request(sequence, &prompt)), Ok(()));
}

/// Runs one step; every sequence that can continues with token 0.
fn step(scheduler: &mut Scheduler) -> Plan {
    let plan = scheduler.plan(Duration::ZERO);
    scheduler.done(&plan, STEP);
    for span in plan.spans.iter().filter(|span| span.logits) {
        scheduler.push(span.sequence, 0);
    }
    if let Some(blocks) = scheduler.blocks() {
        blocks.check_invariants();
    }
    plan
}

/// The spans of a plan as (sequence, from, to).
fn spans(plan: &Plan) -> Vec<(u64, usize, usize)> {
    plan.spans.iter().map(|span| (span.sequence, span.tokens.start, span.tokens.end)).collect()
}

#[test]
fn chunks_are_about_as_long_as_each_other() {
    assert_eq!(pace::even(416, 512), 256, "not 416 and 96");
    assert_eq!(pace::even(512, 600), 320, "whole tiles of rows");
    assert_eq!(pace::even(512, 512), 512);
    assert_eq!(pace::even(160, 320), 160);
    assert_eq!(pace::even(8, 20), 8, "the chunk is the most");
    assert_eq!(pace::even(0, 20), 0, "a step without prompts");
}

#[test]
fn a_prompt_is_computed_in_chunks_and_its_last_token_asks_for_logits() {
    let mut scheduler = paged(16, config());
    submit(&mut scheduler, 1, 20);
    let plans: Vec<Plan> = (0..4).map(|_| step(&mut scheduler)).collect();
    assert_eq!(plans.iter().flat_map(spans).collect::<Vec<_>>(), [(1, 0, 8), (1, 8, 16), (1, 16, 20), (1, 20, 21)]);
    let logits = plans.iter().flat_map(|plan| &plan.spans).map(|span| span.logits);
    assert_eq!(logits.collect::<Vec<_>>(), [false, false, true, true]);
}

#[test]
fn streams_get_a_token_in_every_step_beside_a_prompt() {
    let mut scheduler = paged(64, config());
    submit(&mut scheduler, 1, 3);
    submit(&mut scheduler, 2, 3);
    step(&mut scheduler);
    step(&mut scheduler);
    submit(&mut scheduler, 3, 100);
    for i in 0..10 {
        let plan = step(&mut scheduler);
        assert_eq!(spans(&plan)[..2], [(1, 4 + i, 5 + i), (2, 4 + i, 5 + i)]);
        assert_eq!(spans(&plan)[2], (3, 8 * i, 8 * i + 8));
    }
}

#[test]
fn streams_wait_a_while_for_prompts_that_came_with_theirs() {
    let at = |scheduler: &mut Scheduler, milliseconds| {
        let plan = scheduler.plan(Duration::from_millis(milliseconds));
        scheduler.done(&plan, STEP);
        plan.spans.iter().filter(|span| span.logits).for_each(|span| scheduler.push(span.sequence, 0));
        spans(&plan)
    };
    for (later, chunk) in [(500, 64), (2000, 0)] {
        let mut scheduler = paged(256, Config { chunk_max: 64, ..config() });
        submit(&mut scheduler, 1, 8);
        submit(&mut scheduler, 2, 200);
        assert_eq!(at(&mut scheduler, 0), [(1, 0, 8)]);
        assert_eq!(at(&mut scheduler, 0), [(1, 8, 9), (2, 0, 64)]);
        let all = at(&mut scheduler, later);
        assert_eq!(all[0], (1, 9, 10));
        assert_eq!(all.get(1).map_or(0, |span| span.2 - span.1), chunk, "after {later} ms");
        submit(&mut scheduler, 3, 200);
        let all = at(&mut scheduler, later);
        assert!(all[1..].iter().map(|span| span.2 - span.1).sum::<usize>() < 64, "prompts came later: {all:?}");
    }
}

#[test]
fn the_oldest_prompt_gets_half_a_chunk_and_the_shortest_the_other() {
    for (left, expected) in [
        (vec![100, 50, 20], vec![8, 0, 8]),
        (vec![100, 5, 4], vec![8, 4, 4]),
        (vec![100, 3, 2], vec![11, 3, 2]),
        (vec![3, 100, 200], vec![3, 13, 0]),
        (vec![100], vec![16]),
        (vec![2, 3], vec![2, 3]),
        (vec![50, 100, 100], vec![16, 0, 0]),
    ] {
        assert_eq!(given(16, &left, false), expected, "{left:?}");
    }
}

/// The tokens that a chunk takes from prompts, given the number left of each.
fn given(chunk: usize, left: &[usize], is_whole: bool) -> Vec<usize> {
    let runs: Vec<Vec<Range<usize>>> =
        left.iter().map(|left| is_whole.then_some(0..*left).into_iter().collect()).collect();
    let prompts = left.iter().zip(&runs).enumerate();
    let prompts = prompts.map(|(index, (left, runs))| Prompt { index, start: 0, end: *left, runs });
    let mut lengths = vec![0; left.len()];
    plan::split(chunk, &prompts.collect::<Vec<_>>(), &mut lengths);
    lengths
}

#[test]
fn whole_texts_share_a_chunk_and_one_that_is_longer_waits_until_it_is_the_oldest() {
    for (left, expected) in [
        (vec![5, 4, 6], vec![5, 4, 6]),
        (vec![10, 5, 4], vec![10, 0, 4]),
        (vec![10, 100, 4], vec![10, 0, 4]),
        (vec![100, 10, 4], vec![100, 0, 0]),
        (vec![16, 1], vec![16, 0]),
    ] {
        assert_eq!(given(16, &left, true), expected, "{left:?}");
    }
    assert_eq!(given(0, &[3, 2], true), [0, 0], "a step that measures how long one without prompts takes");
}

#[test]
fn texts_for_rows_leave_half_a_step_to_a_prompt_however_many_there_are() {
    let mut scheduler = paged(128, config());
    let submit_row = |scheduler: &mut Scheduler, sequence, tokens: u32| {
        let prompt: Vec<u32> = (0..tokens).map(|i| sequence as u32 * 1000 + i).collect();
        assert_eq!(scheduler.submit(Request { row: true, ..request(sequence, &prompt) }), Ok(()));
    };
    submit_row(&mut scheduler, 1, 100);
    submit_row(&mut scheduler, 2, 40);
    submit(&mut scheduler, 9, 60);
    for from in (0..20).step_by(4) {
        let half = spans(&step(&mut scheduler)).pop();
        assert_eq!(half, Some((9, from, from + 4)));
    }
    scheduler.finish(1);
    scheduler.finish(2);
    // What one kind has no use for is the other's.
    submit_row(&mut scheduler, 3, 2);
    assert_eq!(spans(&step(&mut scheduler)), [(9, 20, 26), (3, 0, 2)]);
}

#[test]
fn what_needs_all_of_its_rows_shares_nothing_and_leaves_nothing() {
    for reading in [Reading::Alone, Reading::Whole] {
        let mut scheduler = paged(64, config());
        let prompt: Vec<u32> = (0..16).collect();
        for sequence in [1, 2] {
            let text = Request { reading, ..request(sequence, &prompt) };
            assert_eq!(scheduler.submit(text), Ok(()));
            let (first, expected) = (scheduler.plan(Duration::ZERO), if reading == Reading::Whole { 16 } else { 8 });
            scheduler.done(&first, STEP);
            assert_eq!(spans(&first), [(sequence, 0, expected)], "{reading:?}");
            scheduler.finish(sequence);
        }
        assert_eq!(scheduler.submit(request(3, &prompt)), Ok(()));
        assert_eq!(spans(&step(&mut scheduler)), [(3, 0, 8)], "a prompt after {reading:?}");
        scheduler.finish(3);
        // A text that is not continued may take all there is.
        let whole: Vec<u32> = (0..256).collect();
        assert!(matches!(scheduler.submit(request(4, &whole)), Err(Refused::TooLong { .. })));
        assert_eq!(scheduler.submit(Request { reading, ..request(5, &whole) }), Ok(()));
    }
}

#[test]
fn a_step_has_no_more_tokens_than_it_may() {
    let config = Config { sequences_max: 3, step_tokens_max: 11, chunk_min: 8, chunk_max: 64, ..config() };
    let mut scheduler = paged(64, config);
    (1..=2).for_each(|sequence| submit(&mut scheduler, sequence, 3));
    step(&mut scheduler);
    step(&mut scheduler);
    submit(&mut scheduler, 3, 100);
    for _ in 0..10 {
        let plan = step(&mut scheduler);
        let tokens: usize = plan.spans.iter().map(|span| span.tokens.len()).sum();
        assert!((10..=11).contains(&tokens), "{plan:?}");
    }
}

#[test]
fn no_more_sequences_run_than_may() {
    let mut scheduler = paged(64, Config { sequences_max: 2, ..config() });
    (1..=3).for_each(|sequence| submit(&mut scheduler, sequence, 3));
    step(&mut scheduler);
    assert_eq!((scheduler.running_ids(), scheduler.waiting()), ([1, 2].as_slice(), 1));
    scheduler.finish(1);
    step(&mut scheduler);
    assert_eq!(scheduler.running_ids(), [2, 3]);
}

#[test]
fn a_client_with_many_requests_does_not_hold_up_another() {
    let mut scheduler = paged(64, Config { sequences_max: 1, ..config() });
    (1..=5).for_each(|sequence| submit(&mut scheduler, sequence, 3));
    assert_eq!(scheduler.submit(Request { client: 1, ..request(9, &[1]) }), Ok(()));
    let mut order = Vec::new();
    while let Some(&[id]) = Some(step(&mut scheduler)).map(|_| scheduler.running_ids()) {
        order.push(id);
        scheduler.finish(id);
    }
    assert_eq!(order, [1, 9, 2, 3, 4, 5]);
}

#[test]
fn a_client_leaves_places_in_the_queue_to_others() {
    let mut scheduler = paged(64, Config { sequences_max: 1, waiting_max: 8, ..config() });
    let mut submit = |sequence, client| scheduler.submit(Request { client, ..request(sequence, &[1]) });
    let taken = (1..20).filter(|sequence| submit(*sequence, 7).is_ok()).count();
    assert_eq!(taken, 6);
    assert_eq!((submit(30, 8), submit(31, 9)), (Ok(()), Ok(())));
}

#[test]
fn the_newest_gives_its_blocks_up_and_goes_on_later_where_it_was() {
    let mut scheduler = paged(6, config());
    submit(&mut scheduler, 1, 7);
    submit(&mut scheduler, 2, 7);
    while scheduler.tokens(1).len() < 13 {
        assert!(step(&mut scheduler).preempted.is_empty());
    }
    let plan = step(&mut scheduler);
    assert_eq!((plan.preempted.as_slice(), scheduler.running_ids()), ([2].as_slice(), [1].as_slice()));
    let so_far = scheduler.tokens(2).to_vec();
    assert_eq!(spans(&step(&mut scheduler)), [(1, 13, 14)], "there is no room for it yet");
    scheduler.finish(1);
    let plan = step(&mut scheduler);
    assert_eq!(plan.spans[0].sequence, 2);
    assert!(plan.spans[0].tokens.start >= 4, "its own blocks were still there");
    assert_eq!(scheduler.tokens(2)[..so_far.len()], so_far);
    assert_eq!(scheduler.reused(2), Reused::default(), "its own blocks are no reuse of a prompt");
}

#[test]
fn what_was_preempted_goes_before_what_waits() {
    let mut scheduler = paged(6, config());
    submit(&mut scheduler, 1, 7);
    submit(&mut scheduler, 2, 7);
    while step(&mut scheduler).preempted.is_empty() {}
    submit(&mut scheduler, 3, 3);
    step(&mut scheduler);
    assert_eq!(scheduler.running_ids(), [1], "who is next holds up who comes after");
    scheduler.finish(1);
    step(&mut scheduler);
    assert_eq!(scheduler.running_ids()[0], 2);
}

#[test]
fn who_outgrows_all_blocks_is_ended() {
    let mut scheduler = paged(3, config());
    submit(&mut scheduler, 1, 7);
    for _ in 0..6 {
        assert_eq!(step(&mut scheduler).ended, []);
    }
    let plan = step(&mut scheduler);
    assert_eq!((plan.ended.as_slice(), plan.spans.len()), ([(1, Ended::NoRoom)].as_slice(), 0));
    assert_eq!(scheduler.running(), 0);
}

#[test]
fn requests_that_cannot_be_served_are_refused_with_the_reason() {
    let mut scheduler = paged(2, Config { waiting_max: 0, sequences_max: 1, ..config() });
    assert_eq!(scheduler.submit(request(1, &[])), Err(Refused::Empty));
    assert_eq!(scheduler.submit(request(1, &[0; 8])), Err(Refused::TooLong { prompt: 8, room: 8 }));
    assert_eq!(scheduler.submit(request(1, &[0; 7])), Ok(()));
    assert_eq!(scheduler.submit(request(1, &[0; 7])), Err(Refused::Duplicate));
    assert_eq!(scheduler.submit(request(2, &[0; 7])), Err(Refused::Busy { waiting: 1 }));
}

#[test]
fn a_cancelled_sequence_frees_its_blocks_at_once() {
    let mut scheduler = paged(8, config());
    submit(&mut scheduler, 1, 11);
    submit(&mut scheduler, 2, 10);
    step(&mut scheduler);
    assert_eq!(scheduler.blocks().map(|blocks| blocks.usage().active), Some(2));
    scheduler.finish(1);
    assert_eq!(scheduler.blocks().map(|blocks| blocks.usage().active), Some(1));
    assert!(spans(&step(&mut scheduler)).iter().all(|span| span.0 == 2));
    scheduler.finish(2);
    scheduler.finish(2);
    assert_eq!(scheduler.blocks().map(|blocks| blocks.usage().active), Some(0));
}

#[test]
fn a_step_that_was_not_computed_makes_nothing_known() {
    let mut scheduler = paged(8, config());
    submit(&mut scheduler, 1, 11);
    let plan = scheduler.plan(Duration::ZERO);
    plan.spans.iter().for_each(|span| scheduler.finish(span.sequence));
    scheduler.done(&plan, STEP);
    submit(&mut scheduler, 1, 11);
    assert_eq!(spans(&step(&mut scheduler)), [(1, 0, 8)]);
}

#[test]
fn a_deadline_ends_who_runs_and_who_waits() {
    let mut scheduler = paged(8, Config { sequences_max: 1, ..config() });
    for sequence in [1, 2, 3] {
        let deadline = (sequence < 3).then_some(Duration::from_secs(5));
        assert_eq!(scheduler.submit(Request { deadline, ..request(sequence, &[1, 2]) }), Ok(()));
    }
    assert_eq!(scheduler.plan(Duration::from_millis(4999)).ended, []);
    let plan = scheduler.plan(Duration::from_secs(5));
    assert_eq!(plan.ended, [(1, Ended::Deadline), (2, Ended::Deadline)]);
    assert_eq!(spans(&plan), [(3, 0, 2)]);
}

#[test]
fn a_prompt_that_is_known_is_not_computed_and_is_reported_as_reused() {
    let mut scheduler = paged(16, config());
    let prompt: Vec<u32> = (0..10).collect();
    assert_eq!(scheduler.submit(request(1, &prompt)), Ok(()));
    step(&mut scheduler);
    step(&mut scheduler);
    scheduler.finish(1);
    assert_eq!(scheduler.submit(request(2, &prompt)), Ok(()));
    assert_eq!(spans(&step(&mut scheduler)), [(2, 8, 10)]);
    assert_eq!(scheduler.reused(2), Reused { memory: 8, disk: 0 });
}

#[test]
fn of_many_equal_prompts_at_once_one_is_computed_and_the_others_follow() {
    let mut scheduler = paged(32, config());
    let prompt: Vec<u32> = (0..19).collect();
    for (sequence, len) in [(1, 19), (2, 18), (3, 19)] {
        assert_eq!(scheduler.submit(request(sequence, &prompt[..len])), Ok(()));
    }
    let plans: Vec<_> = (0..3).map(|_| spans(&step(&mut scheduler))).collect();
    assert_eq!(plans[..2], [[(1, 0, 8)], [(1, 8, 16)]]);
    assert_eq!(plans[2], [(1, 16, 19), (2, 16, 18), (3, 16, 19)]);
    assert_eq!(scheduler.reused(3), Reused { memory: 16, disk: 0 });
}

#[test]
fn a_prompt_that_only_fits_by_sharing_gets_in_as_soon_as_the_other_is_known() {
    let mut scheduler = paged(10, config());
    let prompt: Vec<u32> = (0..25).collect();
    for sequence in 1..=2 {
        assert_eq!(scheduler.submit(request(sequence, &prompt)), Ok(()));
    }
    (0..4).for_each(|_| assert_eq!(spans(&step(&mut scheduler))[0].0, 1));
    assert_eq!(spans(&step(&mut scheduler)), [(1, 25, 26), (2, 24, 25)]);
}

#[test]
fn a_sequence_waits_for_its_blocks_from_disk_while_others_go_on() {
    let mut scheduler = paged(8, config());
    submit(&mut scheduler, 1, 17);
    (0..3).for_each(|_| drop(step(&mut scheduler)));
    scheduler.finish(1);
    let Some(blocks) = scheduler.blocks() else { panic!("it is a paged model") };
    let spills = blocks.to_spill(100, 100);
    spills.iter().for_each(|spill| blocks.spilled(spill.record.key, 0));
    submit(&mut scheduler, 2, 31);
    (0..5).for_each(|_| drop(step(&mut scheduler)));
    scheduler.finish(2);
    submit(&mut scheduler, 3, 2);
    submit(&mut scheduler, 1, 17);
    assert_eq!(spans(&step(&mut scheduler)), [(3, 0, 2)]);
    let imports = std::iter::from_fn(|| scheduler.next_import().inspect(|import| scheduler.imported(*import, true)));
    assert_eq!(imports.map(|import| (import.sequence, import.key)).collect::<Vec<_>>(), {
        spills.iter().map(|spill| (1, spill.record.key)).collect::<Vec<_>>()
    });
    assert_eq!(spans(&step(&mut scheduler)), [(3, 2, 3), (1, 16, 17)]);
    assert_eq!(scheduler.reused(1), Reused { memory: 0, disk: 16 });
}

#[test]
fn a_per_sequence_model_is_limited_by_its_states_alone() {
    let mut scheduler = Scheduler::new(Config { sequences_max: 2, ..config() }, None);
    (1..=3).for_each(|sequence| submit(&mut scheduler, sequence, 9 - sequence as u32));
    assert_eq!(spans(&step(&mut scheduler)), [(1, 0, 4), (2, 0, 4)]);
    assert_eq!(scheduler.cache_locations(1).count(), 0);
    scheduler.finish(1);
    assert_eq!(spans(&step(&mut scheduler)), [(2, 4, 7), (3, 0, 5)]);
}

#[test]
fn a_sequence_without_a_next_token_keeps_its_place_and_computes_nothing() {
    let mut scheduler = paged(8, config());
    submit(&mut scheduler, 1, 3);
    let plan = scheduler.plan(Duration::ZERO);
    scheduler.done(&plan, STEP);
    assert_eq!(scheduler.plan(Duration::ZERO).spans, []);
    scheduler.push(1, 5);
    assert_eq!(spans(&scheduler.plan(Duration::ZERO)), [(1, 3, 4)]);
}
