//! Small scenarios, one behaviour each, with blocks of 4 tokens.

use super::*;

const SECRET: [u8; 16] = [7; 16];

fn table(blocks: u32, disk_blocks: u64) -> BlockTable {
    BlockTable::new(Layout::plain(blocks, 4, disk_blocks), &SECRET)
}

/// Token sequences with the same start for the same `first`.
fn text(first: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| first + i).collect()
}

/// Opens a sequence, reuses what it can and computes the rest; returns how many tokens were reused.
fn compute(table: &mut BlockTable, sequence: u64, salt: &[u8], text: &[u32]) -> usize {
    table.open(sequence, table.root(salt));
    table.share(sequence, text, 0);
    let known = table.known(sequence);
    assert_eq!(table.extend(sequence, known, text.len()), Ok(()));
    table.publish(sequence, text);
    table.check_invariants();
    known
}

fn spill_all(table: &mut BlockTable) -> Vec<Record> {
    let records: Vec<Record> = table.to_spill(100, 100).into_iter().map(|spill| spill.record).collect();
    records.iter().for_each(|record| table.spilled(record.key, record.group));
    table.check_invariants();
    records
}

#[test]
fn a_beginning_in_common_is_computed_once() {
    let mut table = table(8, 0);
    assert_eq!(compute(&mut table, 1, b"", &text(0, 10)), 0);
    assert_eq!(compute(&mut table, 2, b"", &text(0, 11)), 8);
    assert_eq!(table.blocks(1)[..2], table.blocks(2)[..2]);
    assert_ne!(table.blocks(1)[2], table.blocks(2)[2]);
    assert_eq!(table.usage(), Usage { free: 4, cached: 0, active: 4, disk: 0 });
}

#[test]
fn the_block_with_the_last_token_is_computed_again() {
    let mut table = table(8, 0);
    compute(&mut table, 1, b"", &text(0, 8));
    assert_eq!(compute(&mut table, 2, b"", &text(0, 8)), 4);
    assert_eq!(compute(&mut table, 3, b"", &text(0, 9)), 8);
    assert_eq!(compute(&mut table, 4, b"", &text(0, 1)), 0);
}

#[test]
fn another_salt_shares_nothing() {
    let mut table = table(8, 0);
    compute(&mut table, 1, b"one key", &text(0, 10));
    assert_eq!(compute(&mut table, 2, b"another key", &text(0, 10)), 0);
}

#[test]
fn equal_blocks_after_different_beginnings_share_nothing() {
    let mut table = table(16, 0);
    let (mut one, mut other) = (text(0, 4), text(100, 4));
    one.extend(text(50, 9));
    other.extend(text(50, 9));
    compute(&mut table, 1, b"", &one);
    assert_eq!(compute(&mut table, 2, b"", &other), 0);
}

#[test]
fn an_answer_is_reused_by_the_next_turn() {
    let mut table = table(8, 0);
    compute(&mut table, 1, b"", &text(0, 6));
    for len in 7..=13 {
        assert_eq!(table.extend(1, 0, len as usize), Ok(()));
        table.publish(1, &text(0, len));
    }
    table.close(1);
    assert_eq!(compute(&mut table, 2, b"", &text(0, 20)), 12);
}

#[test]
fn a_block_is_not_known_before_it_is_computed() {
    let mut table = table(8, 0);
    table.open(1, table.root(b""));
    assert_eq!(table.extend(1, 0, 10), Ok(()));
    table.publish(1, &text(0, 7));
    assert_eq!(compute(&mut table, 2, b"", &text(0, 10)), 4);
}

#[test]
fn who_computes_the_same_second_ends_up_with_the_block_of_the_first() {
    let mut table = table(8, 0);
    for sequence in [1, 2] {
        table.open(sequence, table.root(b""));
        assert_eq!(table.extend(sequence, 0, 6), Ok(()));
    }
    assert_ne!(table.blocks(1)[0], table.blocks(2)[0]);
    table.publish(1, &text(0, 6));
    table.publish(2, &text(0, 6));
    table.check_invariants();
    assert_eq!(table.blocks(1)[0], table.blocks(2)[0]);
    assert_eq!(table.usage().active, 3);
}

#[test]
fn what_became_known_meanwhile_replaces_a_block_that_was_being_filled() {
    let mut table = table(8, 0);
    table.open(1, table.root(b""));
    assert_eq!(table.extend(1, 0, 6), Ok(()));
    compute(&mut table, 2, b"", &text(0, 10));
    assert_eq!(table.share(1, &text(0, 10), 0), 2);
    assert_eq!(table.blocks(1), &table.blocks(2)[..2]);
    table.check_invariants();
}

#[test]
fn full_takes_nothing_and_leaves_the_table_as_it_was() {
    let mut table = table(3, 0);
    compute(&mut table, 1, b"", &text(0, 8));
    table.open(2, table.root(b"other"));
    assert_eq!(table.extend(2, 0, 8), Err(Full));
    assert!(table.blocks(2).is_empty());
    assert_eq!(table.extend(2, 0, 4), Ok(()));
    table.check_invariants();
}

#[test]
fn the_least_recently_used_text_goes_first_and_its_end_before_its_beginning() {
    let mut table = table(6, 0);
    compute(&mut table, 1, b"", &text(0, 12));
    compute(&mut table, 2, b"", &text(100, 12));
    table.close(1);
    table.close(2);
    assert_eq!(compute(&mut table, 3, b"", &text(200, 8)), 0);
    table.close(3);
    table.open(4, table.root(b""));
    assert_eq!(table.share(4, &text(100, 13), 0), 3, "the younger text is whole");
    assert_eq!(table.share(4, &text(100, 13), 0), 0);
    table.open(5, table.root(b""));
    assert_eq!(table.share(5, &text(0, 13), 0), 1, "the older one has lost its end");
    table.check_invariants();
}

#[test]
fn colliding_keys_are_told_apart_by_their_tokens() {
    let mut table = table(16, 0);
    table.weaken_keys(0);
    compute(&mut table, 1, b"", &text(0, 5));
    assert_eq!(compute(&mut table, 2, b"", &text(100, 5)), 0);
    assert_eq!(compute(&mut table, 3, b"", &text(0, 13)), 4);
    assert_eq!(table.known(2), 0, "its key is taken, so it stays unknown");
}

#[test]
fn keys_depend_on_the_secret() {
    let layout = Layout::plain(1, 4, 0);
    let roots = [[1; 16], [2; 16]].map(|secret| BlockTable::new(layout.clone(), &secret).root(b"salt"));
    assert_ne!(roots[0], roots[1]);
}

#[test]
fn keys_are_the_same_in_every_build() {
    // Blocks on disk are found by their keys, so these may only change together with the disk format. The numbers come
    // from another implementation of 128-bit SipHash-1-3.
    let mut table = table(2, 0);
    assert_eq!(table.root(b"salt"), Key(0x633a_8f00_3874_8af4_0a4d_6a8b_612e_7b0b));
    compute(&mut table, 1, b"salt", &text(0, 5));
    table.close(1);
    table.open(2, table.root(b"salt"));
    assert_eq!(table.next_key(2, &text(0, 5)), Some(Key(0xdb1f_5aa5_80b9_bf7a_44a5_4bc2_02a1_1654)));
}

#[test]
fn cold_blocks_go_to_disk_parents_first_and_once() {
    let mut table = table(8, 8);
    compute(&mut table, 1, b"", &text(0, 12));
    compute(&mut table, 2, b"", &text(0, 6));
    table.close(1);
    let depths: Vec<u32> = table.to_spill(1, 8).iter().map(|spill| spill.record.depth).collect();
    assert_eq!(depths, [0, 1, 2], "the first is in use, but the others hang from it");
    assert_eq!(table.to_spill(1, 2).len(), 2);
    assert_eq!(spill_all(&mut table).len(), 3);
    assert_eq!(table.to_spill(100, 100), []);
}

#[test]
fn what_was_evicted_comes_back_from_disk() {
    let mut table = table(4, 8);
    compute(&mut table, 1, b"", &text(0, 12));
    table.close(1);
    let keys: Vec<Key> = spill_all(&mut table).iter().map(|record| record.key).collect();
    compute(&mut table, 2, b"", &text(100, 13));
    table.close(2);
    table.open(3, table.root(b""));
    assert_eq!(table.share(3, &text(0, 20), 0), 0);
    assert!(table.recall(3, &text(0, 20), 0));
    for (i, &key) in keys.iter().enumerate() {
        let import = table.import_of(3);
        assert_eq!(import.map(|import| (import.key, import.location)), Some((key, table.blocks(3)[i])));
        table.imported(3, &text(0, 20), true);
        table.check_invariants();
    }
    assert_eq!((table.import_of(3), table.known(3)), (None, 12));
}

#[test]
fn a_failed_import_ends_the_reuse_there_and_drops_what_hangs_below() {
    let mut table = table(4, 8);
    compute(&mut table, 1, b"", &text(0, 16));
    table.close(1);
    let keys: Vec<Key> = spill_all(&mut table).iter().map(|record| record.key).collect();
    compute(&mut table, 2, b"", &text(100, 16));
    table.close(2);
    table.open(3, table.root(b""));
    assert!(table.recall(3, &text(0, 17), 0));
    table.imported(3, &text(0, 17), true);
    table.imported(3, &text(0, 17), false);
    table.check_invariants();
    assert_eq!((table.import_of(3), table.known(3), table.usage().disk), (None, 4, 1));
    let mut dropped: Vec<Key> = table.take_dropped().map(|(key, _)| key).collect();
    dropped.sort_by_key(|key| keys.iter().position(|other| other == key));
    assert_eq!(dropped, keys[1..]);
    assert!(!table.recall(3, &text(0, 17), 0), "the rest is computed");
}

#[test]
fn a_sequence_that_ends_while_it_waits_for_the_disk_leaves_nothing_behind() {
    let mut table = table(4, 8);
    compute(&mut table, 1, b"", &text(0, 12));
    table.close(1);
    spill_all(&mut table);
    compute(&mut table, 2, b"", &text(100, 16));
    table.close(2);
    table.open(3, table.root(b""));
    assert!(table.recall(3, &text(0, 20), 0));
    table.close(3);
    table.imported(3, &text(0, 20), true);
    table.check_invariants();
    assert_eq!(table.usage(), Usage { free: 3, cached: 1, active: 0, disk: 3 });
}

#[test]
fn a_restart_finds_what_is_on_disk() {
    let mut old = table(4, 8);
    compute(&mut old, 1, b"", &text(0, 12));
    old.close(1);
    let mut records = spill_all(&mut old);
    records.reverse();
    let mut new = table(4, 8);
    new.restore(&records);
    new.check_invariants();
    new.open(1, new.root(b""));
    assert!(new.recall(1, &text(0, 13), 0));
    (0..3).for_each(|_| new.imported(1, &text(0, 13), true));
    assert_eq!(new.known(1), 12);
    assert_eq!(new.take_dropped().next(), None);
}

#[test]
fn records_that_are_damaged_or_hang_from_nothing_are_dropped() {
    let mut old = table(4, 8);
    compute(&mut old, 1, b"", &text(0, 16));
    old.close(1);
    let good = spill_all(&mut old);
    let with = |change: fn(&mut Vec<Record>)| {
        let mut records = good.clone();
        change(&mut records);
        let mut new = table(4, 8);
        new.restore(&records);
        new.check_invariants();
        (new.usage().disk, new.take_dropped().count())
    };
    assert_eq!(with(|_| ()), (4, 0));
    assert_eq!(with(|records| records[2].tokens[0] += 1), (2, 2));
    assert_eq!(with(|records| records[3].tokens = [1, 2, 3].into()), (3, 1));
    assert_eq!(with(|records| records[3].depth = u32::MAX), (3, 1));
    assert_eq!(with(|records| drop(records.remove(0))), (0, 3));
    assert_eq!(with(|records| records.extend_from_within(..)), (4, 0));
}

#[test]
fn what_another_worker_has_left_joins_what_is_in_memory_by_then() {
    let mut old = table(4, 8);
    compute(&mut old, 1, b"", &text(0, 16));
    old.close(1);
    let left = spill_all(&mut old);
    for damaged in [false, true] {
        let mut new = table(8, 8);
        compute(&mut new, 1, b"", &text(0, 8));
        compute(&mut new, 2, b"", &text(3, 8));
        new.close(2);
        let mut records = left.clone();
        records[1].tokens[0] += u32::from(damaged);
        new.restore(&records);
        new.check_invariants();
        let found = (new.usage().disk, new.take_dropped().count());
        assert_eq!(found, if damaged { (1, 3) } else { (4, 0) });
        new.close(1);
        new.check_invariants();
        let (own, disk) = (spill_all(&mut new).len(), new.usage().disk);
        new.check_invariants();
        assert_eq!((own, disk), if damaged { (3, 4) } else { (2, 6) });
    }
}

#[test]
fn a_restart_with_a_smaller_budget_keeps_what_was_used_last() {
    let mut old = table(8, 8);
    for (sequence, first) in [(1, 0), (2, 100)] {
        compute(&mut old, sequence, b"", &text(first, 8));
        old.close(sequence);
    }
    let records = spill_all(&mut old);
    let mut new = table(8, 3);
    new.restore(&records);
    new.check_invariants();
    let dropped: Vec<Key> = new.take_dropped().map(|(key, _)| key).collect();
    assert_eq!(dropped, [records[1].key], "the end of the older text");
}

#[test]
fn a_full_disk_takes_what_is_warmer_than_what_it_has_and_nothing_else() {
    let mut table = table(8, 2);
    compute(&mut table, 1, b"", &text(0, 8));
    table.close(1);
    let old: Vec<Key> = spill_all(&mut table).iter().map(|record| record.key).collect();
    compute(&mut table, 2, b"", &text(100, 4));
    table.close(2);
    let new = spill_all(&mut table);
    assert_eq!(new.len(), 1);
    assert_eq!(table.take_dropped().collect::<Vec<_>>(), [(old[1], 0)]);
    assert_eq!(table.to_spill(100, 100), [], "what was displaced does not displace in turn");
}

#[test]
fn a_block_that_could_not_be_written_is_spilled_again() {
    let mut table = table(4, 8);
    compute(&mut table, 1, b"", &text(0, 8));
    table.close(1);
    let records = spill_all(&mut table);
    table.lost(records[0].key, 0);
    table.check_invariants();
    assert_eq!(spill_all(&mut table), records);
    assert_eq!(table.take_dropped().next(), None, "what was written anew must not be deleted");
}
