//! Small scenarios, one behaviour each. An item's content is a letter; its rows take a byte each.

use super::*;
use pensieve_protocol::{
    job::{FailureCode, Job},
    media::{ItemKind, KindUse, MediaUse, PromptItem},
};

const KEY: &[u8] = b"key";
const SLOT: u32 = 9;

/// Contents with their first slot and number of slots.
fn items(list: &[(u8, usize, usize)]) -> Vec<CheckedItem> {
    let item = |&(content, start, rows): &(u8, usize, usize)| CheckedItem {
        range: start - 1..start + rows + 1,
        tokens: vec![SLOT; rows + 2],
        slots: std::iter::once(start..start + rows).collect(),
        size: ItemSize { kind: ItemKind::Image, width: 4, height: 4 },
        layout: vec![content],
        identity: [content; 32],
        rows: rows as u32,
        bytes: rows as u64,
        field: format!("field {}", content as char),
        prepared: vec![content; 10].into(),
    };
    list.iter().map(item).collect()
}

/// A sequence, and its items: content, start and number of rows.
type PromptItems<'a> = (u64, &'a [(u8, usize, usize)]);

fn of(prompts: &[PromptItems<'_>]) -> Items {
    let mut items_of = Items::new(20, 10);
    for (sequence, list) in prompts {
        items_of.register(*sequence, KEY, items(list));
    }
    items_of
}

/// Opens everything that is planned; returns its contents.
fn open(items: &mut Items, running: &[(u64, usize)]) -> String {
    let running: Vec<_> = running.iter().map(|&(sequence, computed)| (sequence, computed, true)).collect();
    assert!(items.plan(&running).is_empty());
    let opened = std::iter::from_fn(|| items.next_opening());
    opened.map(|item| item.prepared[0] as char).collect()
}

/// Encodes all batches; returns the number of items in each.
fn encode(items: &mut Items) -> Vec<usize> {
    let mut batches = Vec::new();
    loop {
        let batch = items.next_batch();
        if batch.is_empty() {
            return batches;
        }
        batches.push(batch.len());
        items.encoded(1).unwrap();
        assert_eq!(items.next_batch(), batch, "a batch goes on as it is");
        items.encoded(0).unwrap();
    }
}

fn place(items: &mut Items, sequence: u64, computed: usize) -> Option<Vec<u64>> {
    let handles: Vec<u64> = items.to_place(sequence, computed)?.iter().map(|item| item.handle).collect();
    items.placed(sequence, sequence, handles.clone());
    Some(handles)
}

#[test]
fn a_prompt_goes_on_to_its_next_item_and_past_it_once_that_is_encoded() {
    let mut items = of(&[(1, &[(b'a', 5, 4), (b'b', 20, 4)])]);
    assert_eq!((items.gate(1, 0), items.gate(2, 0)), (5, usize::MAX));
    assert_eq!(open(&mut items, &[(1, 0)]), "ab");
    assert_eq!(items.gate(1, 3), 5, "it is not encoded yet");
    assert_eq!(encode(&mut items), [2]);
    assert_eq!(items.gate(1, 3), usize::MAX);
    assert_eq!(place(&mut items, 1, 0), Some(vec![1, 2]));
    assert_eq!(place(&mut items, 1, 7), None, "the model knows");
    assert!(items.take_unheld().is_empty());
    assert_eq!(place(&mut items, 1, 9), Some(vec![NO_HANDLE, 2]));
    assert_eq!(place(&mut items, 1, 24), Some(vec![NO_HANDLE, NO_HANDLE]));
    items.forget(1);
    assert!(items.take_unheld().is_empty() && items.is_empty());
    assert_eq!(items.held_bytes(), 8, "the rows are kept");
    assert!(items.contents.values().all(|content| content.prepared.is_empty()), "and nothing else");
}

#[test]
fn rows_are_kept_for_the_next_prompt_until_others_need_their_memory() {
    let mut items = of(&[(1, &[(b'a', 5, 8)]), (2, &[(b'b', 5, 8)])]);
    assert_eq!(open(&mut items, &[(1, 0), (2, 0)]), "ab");
    encode(&mut items);
    (1..=2).for_each(|prompt| items.forget(prompt));
    assert!(items.take_unheld().is_empty());
    items.register(3, KEY, super::tests::items(&[(b'b', 9, 8)]));
    assert_eq!((open(&mut items, &[(3, 0)]).as_str(), items.gate(3, 0)), ("", usize::MAX));
    assert_eq!(place(&mut items, 3, 0), Some(vec![2]));
    items.forget(3);
    items.take_unheld();
    items.register(4, KEY, super::tests::items(&[(b'c', 5, 8)]));
    assert_eq!(open(&mut items, &[(4, 0)]), "c");
    assert_eq!((items.take_unheld(), items.held_bytes()), (vec![1], 16), "the longest unneeded made room");
    items.register(5, KEY, super::tests::items(&[(b'a', 5, 8)]));
    assert_eq!(open(&mut items, &[(4, 0), (5, 0)]), "a", "from what its prompt brings");
    assert_eq!(items.take_unheld(), [2]);
}

#[test]
fn items_in_a_reused_prefix_are_placed_but_never_opened() {
    let mut items = of(&[(1, &[(b'a', 5, 4), (b'b', 20, 4)])]);
    assert_eq!(open(&mut items, &[(1, 16)]), "b");
    assert_eq!(items.gate(1, 16), 20);
    assert_eq!(place(&mut items, 1, 16), Some(vec![NO_HANDLE, NO_HANDLE]));
    encode(&mut items);
    assert_eq!(place(&mut items, 1, 20), Some(vec![NO_HANDLE, 1]));
    assert_eq!(items.gate(1, 22), usize::MAX, "a prefix may end inside of an item");
}

#[test]
fn equal_items_of_one_key_share_rows_which_are_needed_until_the_last_prompt_has_passed_them() {
    let mut items = of(&[(1, &[(b'a', 5, 4)]), (2, &[(b'a', 9, 4)])]);
    items.register(3, b"other", super::tests::items(&[(b'a', 5, 4)]));
    assert_eq!(open(&mut items, &[(1, 0), (2, 0), (3, 0)]), "aa", "rows are not shared across keys");
    encode(&mut items);
    assert_eq!(place(&mut items, 1, 0), place(&mut items, 2, 0));
    place(&mut items, 1, 9);
    assert!(items.take_unheld().is_empty());
    items.forget(2);
    assert!(items.take_unheld().is_empty());
    assert_eq!(items.kept, [1], "the other key's are needed");
}

#[test]
fn an_item_that_comes_twice_in_a_prompt_keeps_its_rows_until_the_second_time() {
    let mut items = of(&[(1, &[(b'a', 5, 4), (b'a', 20, 4)])]);
    assert_eq!(open(&mut items, &[(1, 0)]), "a");
    encode(&mut items);
    assert_eq!(place(&mut items, 1, 0), Some(vec![1, 1]));
    assert_eq!(place(&mut items, 1, 9), Some(vec![NO_HANDLE, 1]));
    assert!(items.take_unheld().is_empty());
    assert!(items.kept.is_empty());
    place(&mut items, 1, 24);
    assert!(items.take_unheld().is_empty());
    assert_eq!(items.kept, [1]);
}

#[test]
fn a_cancelled_prompt_leaves_the_batch_and_the_others_stay() {
    let mut items = of(&[(1, &[(b'a', 5, 4)]), (2, &[(b'b', 5, 4)])]);
    open(&mut items, &[(1, 0), (2, 0)]);
    assert_eq!(items.next_batch(), [1, 2]);
    items.encoded(7).unwrap();
    items.forget(1);
    assert_eq!(items.take_unheld(), [1]);
    assert_eq!(items.next_batch(), [2]);
    items.encoded(0).unwrap();
    assert_eq!((items.gate(2, 0), items.has_work()), (usize::MAX, false));
}

#[test]
fn a_preempted_prompt_gets_its_rows_again() {
    let mut items = of(&[(1, &[(b'a', 5, 4)])]);
    open(&mut items, &[(1, 0)]);
    encode(&mut items);
    place(&mut items, 1, 0);
    place(&mut items, 1, 9);
    items.lost(1);
    items.take_unheld();
    assert_eq!(items.gate(1, 0), 5);
    assert_eq!(open(&mut items, &[(1, 0)]), "", "they were kept");
    assert_eq!(place(&mut items, 1, 0), Some(vec![1]));
    items.lost(1);
    items.take_unheld();
    items.make_room(20);
    assert_eq!(items.take_unheld(), [1]);
    assert_eq!(open(&mut items, &[(1, 0)]), "a");
    encode(&mut items);
    assert_eq!(place(&mut items, 1, 0), Some(vec![2]), "under a new handle");
}

#[test]
fn a_preempted_prompt_lets_go_of_rows_that_it_has_not_used() {
    let mut items = of(&[(1, &[(b'a', 5, 4)])]);
    open(&mut items, &[(1, 0)]);
    encode(&mut items);
    place(&mut items, 1, 0);
    items.lost(1);
    assert!(items.take_unheld().is_empty());
    assert_eq!(items.kept, [1]);
}

#[test]
fn each_prompts_next_item_comes_first_and_memory_limits_how_many() {
    let mut items = of(&[(1, &[(b'a', 5, 8), (b'b', 20, 8)]), (2, &[(b'c', 5, 8)])]);
    assert_eq!(open(&mut items, &[(1, 0), (2, 0)]), "ac");
    assert_eq!(encode(&mut items), [1, 1], "batches are limited, too");
    place(&mut items, 1, 0);
    place(&mut items, 1, 13);
    items.take_unheld();
    assert_eq!(open(&mut items, &[(1, 13), (2, 0)]), "b");
}

#[test]
fn an_item_larger_than_the_memory_for_rows_is_encoded_alone() {
    let mut items = of(&[(1, &[(b'a', 5, 30)]), (2, &[(b'b', 5, 2)])]);
    assert_eq!(open(&mut items, &[(1, 0), (2, 0)]), "a");
    assert_eq!(encode(&mut items), [1]);
}

#[test]
fn idle_prompts_give_their_rows_to_an_older_one_that_finds_no_room() {
    let mut items = of(&[(1, &[(b'a', 5, 15)]), (2, &[(b'b', 5, 15)])]);
    open(&mut items, &[(2, 0)]);
    encode(&mut items);
    place(&mut items, 2, 0);
    for step in 0..=PATIENCE {
        let gave_up = items.plan(&[(1, 0, false), (2, 0, false)]);
        assert_eq!(gave_up, if step < PATIENCE { vec![] } else { vec![2] }, "step {step}");
    }
    assert_eq!(place(&mut items, 2, 0), Some(vec![NO_HANDLE]));
    assert_eq!(items.take_unheld(), [1]);
    assert_eq!(open(&mut items, &[(1, 0), (2, 0)]), "a");
    assert_eq!(items.gate(2, 0), 5);
}

#[test]
fn a_prompt_gives_up_its_later_rows_if_its_next_item_finds_no_room() {
    let mut items = of(&[
        (1, &[(b'a', 5, 4), (b'b', 15, 8), (b'c', 25, 4), (b'd', 35, 8)]),
        (2, &[(b'a', 5, 4), (b'd', 15, 8)]),
        (3, &[(b'c', 5, 4)]),
    ]);
    open(&mut items, &[(2, 0), (3, 0)]);
    encode(&mut items);
    let running = [(1, 0, false)];
    items.plan(&running);
    (2..=3).for_each(|other| items.forget(other));
    assert!(items.take_unheld().is_empty(), "the first prompt has use for all of them");
    assert_eq!(items.gate(1, 0), 15);
    for step in 1..=PATIENCE {
        assert_eq!(items.plan(&running), if step < PATIENCE { vec![] } else { vec![1] }, "step {step}");
    }
    place(&mut items, 1, 0);
    assert_eq!(items.take_unheld().len(), 2, "what comes later goes");
    assert_eq!(open(&mut items, &[(1, 0)]), "bc", "and comes again when there is room");
    encode(&mut items);
    assert_eq!(items.gate(1, 0), 35);
}

#[test]
fn a_batch_that_fails_is_encoded_one_by_one_and_only_the_culprit_fails() {
    let mut items = of(&[(1, &[(b'a', 5, 4)]), (2, &[(b'b', 5, 4)])]);
    open(&mut items, &[(1, 0), (2, 0)]);
    items.next_batch();
    assert_eq!(items.batch_failed(), (vec![1, 2], vec![]));
    assert_eq!(open(&mut items, &[(1, 0), (2, 0)]), "ab");
    assert_eq!(items.next_batch(), [3]);
    assert_eq!(items.batch_failed(), (vec![3], vec![(1, "field a".into())]));
    items.forget(1);
    assert_eq!(encode(&mut items), [1]);
    assert_eq!(items.gate(2, 0), usize::MAX);
}

#[test]
fn an_item_that_cannot_be_opened_fails_every_prompt_that_has_it() {
    let mut items = of(&[(1, &[(b'a', 5, 4)]), (2, &[(b'b', 5, 4), (b'a', 20, 4)])]);
    items.plan(&[(1, 0, true), (2, 0, true)]);
    let opening = items.next_opening().unwrap();
    let field = String::from("field a");
    assert_eq!(items.failed(opening.handle), [(1, field.clone()), (2, field)]);
}

#[test]
fn an_encoder_that_does_not_get_on_is_an_error() {
    let mut items = of(&[(1, &[(b'a', 5, 4)])]);
    open(&mut items, &[(1, 0)]);
    items.next_batch();
    items.encoded(3).unwrap();
    assert!(items.encoded(3).unwrap_err().contains("3 pieces"));
}

/// The error for a job with these tokens and items.
fn refused(tokens: &[u32], media: Vec<PromptItem>) -> String {
    let kind = KindUse {
        placeholder: "i".into(),
        text: "i".into(),
        slot: SLOT,
        whole: true,
        rows_max: 3,
        row_bytes: 100,
        encoder_bytes: 0,
        rate: None,
        processor: String::new(),
    };
    let reads = Ok(Some(MediaUse { image: Some(kind), audio: None }));
    let job = Job { tokens: tokens.to_vec(), media, ..Job::default() };
    match check(&job, &reads) {
        Ok(checked) => {
            format!("{:?} {:?}", runs(&checked, &reads), checked.iter().map(|item| item.bytes).collect::<Vec<_>>())
        }
        Err(failure) => failure.to_string(),
    }
}

#[test]
fn items_are_checked_against_the_prompt_and_the_model() {
    let tokens = [1, SLOT, SLOT, 2, SLOT, 3];
    let item = |start, len| PromptItem {
        start,
        len,
        size: ItemSize { kind: ItemKind::Image, width: 8, height: 8 },
        field: "f".into(),
        prepared: vec![0].into(),
        ..PromptItem::default()
    };
    let sized = |width, height| ItemSize { width, height, ..item(0, 5).size };
    for (media, expected) in [
        (vec![item(0, 5)], "[1..3, 4..5] [300]"),
        (vec![item(1, 2), item(4, 1)], "[1..3, 4..5] [200, 100]"),
        (vec![item(1, 3), item(3, 2)], "f: the image's tokens 3 to 5 are not in order among 6"),
        (vec![item(4, 3)], "f: the image's tokens 4 to 7 are not in order among 6"),
        (vec![item(4, 0)], "f: the image's tokens 4 to 4 are not in order among 6"),
        (vec![item(3, u32::MAX)], "f: the image's tokens 3 to 4294967298 are not in order among 6"),
        (vec![item(5, 1)], "f: the image takes 0 tokens, this model reads 1 to 3"),
        (vec![PromptItem { size: sized(0, 8), ..item(0, 5) }], "f: the image is empty"),
        (
            vec![PromptItem { layout: vec![0; 5000], ..item(0, 5) }],
            "f: the image's layout has 5000 bytes, more than 4096",
        ),
        (
            vec![PromptItem { size: ItemSize { kind: ItemKind::Audio, ..sized(8, 1) }, ..item(0, 5) }],
            "f: this model reads no audio",
        ),
    ] {
        assert_eq!(refused(&tokens, media), expected);
    }
    assert_eq!(refused(&[SLOT; 4], vec![item(0, 4)]), "f: the image takes 4 tokens, this model reads 1 to 3");
    let job = Job { tokens: tokens.to_vec(), media: vec![item(0, 5)], ..Job::default() };
    assert_eq!(check(&job, &Ok(None)).unwrap_err().code, FailureCode::Unsupported);
    assert!(check(&job, &Err("why".into())).unwrap_err().message.ends_with("cannot be used: why"));
}
