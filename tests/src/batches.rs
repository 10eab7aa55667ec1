//! Batches that violate the contract: each is an error that names the violation, and changes nothing.

use pensieve_plugin_api::{Batch, CacheTable, ErrorCode, Output, PluginError, Span, Want};
use std::path::Path;
use tempfile::TempDir;

use crate::{
    artifacts::{plugin, test_plugin},
    checkpoints,
    driver::{Driver, Options, best, outputs},
};

const VOCABULARY: usize = 32;
const CONTEXT: u32 = 64;
const BLOCKS: u32 = 8;
const BLOCK_TOKENS: u32 = 16;

fn bigram() -> (TempDir, Driver) {
    let folder = checkpoints::bigram(VOCABULARY as u32, CONTEXT);
    let options = Options { state_bytes: u64::from(BLOCKS * BLOCK_TOKENS * 4), ..Options::default() };
    let driver = Driver::load(&plugin("bigram"), folder.path(), &options).unwrap();
    assert_eq!((driver.card.block_tokens, driver.resident.places.as_slice()), (BLOCK_TOKENS, &[BLOCKS][..]));
    (folder, driver)
}

/// A valid batch for a test to corrupt: two sequences, one of them past its first block.
#[derive(Clone)]
struct Draft {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    spans: Vec<Span<'static>>,
    blocks: Vec<Vec<u32>>,
    logits: usize,
}

impl Draft {
    fn new() -> Self {
        let span = |sequence, start, len, past| Span {
            sequence,
            start,
            len,
            past,
            want: Want::LAST,
            output: Output::LOGITS,
            mask: [].as_slice().into(),
            adapter: 0,
            adapter_scale: 1.0,
            caches: [].as_slice().into(),
        };
        Self {
            tokens: vec![1, 2, 3, 4, 5],
            positions: vec![0, 1, 2, 17, 18],
            spans: vec![span(100, 0, 3, 0), span(200, 3, 2, 17)],
            blocks: vec![vec![0], vec![1, 2]],
            logits: 2 * VOCABULARY,
        }
    }

    fn run(&self, driver: &mut Driver) -> Result<Vec<f32>, PluginError> {
        let tables: Vec<_> = self.blocks.iter().map(|blocks| table(blocks)).collect();
        let spans = self.spans.iter().zip(&tables);
        let spans: Vec<Span<'_>> = spans.map(|(span, table)| Span { caches: table[..].into(), ..*span }).collect();
        let batch = Batch {
            tokens: self.tokens.as_slice().into(),
            positions: self.positions.as_slice().into(),
            spans: spans.as_slice().into(),
            top: 0,
        };
        let mut logits = vec![0.0; self.logits];
        driver.model.forward(&batch, &mut outputs(&mut logits)).into_result()?;
        Ok(logits)
    }
}

fn table(blocks: &[u32]) -> [CacheTable<'_>; 1] {
    [CacheTable { blocks: blocks.into(), ..CacheTable::opaque() }]
}

/// Corrupts the valid batch, and checks the error and that the model answers as before.
fn check(driver: &mut Driver, spoil: impl FnOnce(&mut Draft), expect: &str) {
    let before = Draft::new().run(driver).expect("the batch is right before it is spoilt");
    let mut draft = Draft::new();
    spoil(&mut draft);
    let error = draft.run(driver).err().unwrap_or_else(|| panic!("no error, expected {expect:?}"));
    assert_eq!(error.code, ErrorCode::INVALID, "{error}");
    assert!(error.message.contains(expect), "{:?} does not speak of {expect:?}", error.message);
    assert_eq!(Draft::new().run(driver).unwrap(), before, "after {expect:?}");
}

#[test]
fn names_wrong_tokens_and_positions() {
    let (_folder, mut driver) = bigram();
    check(&mut driver, |draft| draft.tokens[1] = 32, "token 32 is outside the vocabulary of 32");
    check(&mut driver, |draft| draft.tokens[4] = u32::MAX, "token 4294967295");
    check(&mut driver, |draft| draft.positions[4] = 64, "position 64 is outside the context of 64");
    check(&mut driver, |draft| draft.positions.truncate(4), "4 positions for 5 tokens");
    check(&mut driver, |draft| draft.positions.push(0), "6 positions for 5 tokens");
}

#[test]
fn names_spans_that_do_not_tile_the_tokens() {
    let (_folder, mut driver) = bigram();
    check(&mut driver, |draft| draft.spans[0].len = 2, "sequence 200: its span 3+2 does not follow token 2");
    check(&mut driver, |draft| draft.spans[1].start = 2, "sequence 200: its span 2+2");
    check(&mut driver, |draft| draft.spans[1].len = 3, "sequence 200: its span 3+3");
    check(&mut driver, |draft| draft.spans[1].len = u32::MAX, "sequence 200");
    check(&mut driver, |draft| draft.spans[0].len = 0, "sequence 100: its span 0+0");
    check(&mut driver, |draft| draft.spans.truncate(1), "the spans cover 3 of 5 tokens");
    check(&mut driver, |draft| draft.spans.clear(), "the spans cover 0 of 5 tokens");
    let nothing = |draft: &mut Draft| {
        *draft = Draft { tokens: vec![], positions: vec![], spans: vec![], blocks: vec![], logits: 0 };
    };
    check(&mut driver, nothing, "the spans cover 0 of 0 tokens");
}

#[test]
fn names_a_sequence_that_appears_twice_or_grows_too_long() {
    let (_folder, mut driver) = bigram();
    check(&mut driver, |draft| draft.spans[1].sequence = 100, "sequence 100: it appears twice");
    check(&mut driver, |draft| draft.spans[1].past = 63, "sequence 200: 63+2 tokens exceed the context of 64");
    check(&mut driver, |draft| draft.spans[1].past = u32::MAX, "exceed the context of 64");
}

#[test]
fn names_wrong_blocks() {
    let (_folder, mut driver) = bigram();
    check(&mut driver, |draft| draft.blocks[1][1] = BLOCKS, "sequence 200: block 8 is out of range: the group has 8");
    check(&mut driver, |draft| draft.blocks[1][0] = u32::MAX, "block 4294967295 is out of range");
    check(&mut driver, |draft| draft.blocks[1].truncate(1), "sequence 200: 1 blocks do not hold 19 tokens");
    check(&mut driver, |draft| draft.blocks[0].clear(), "sequence 100: 0 blocks do not hold 3 tokens");
    check(&mut driver, |draft| draft.blocks[1][1] = 0, "sequence 200: block 0 would be written twice");
    check(&mut driver, |draft| draft.blocks[1][0] = 0, "sequence 200: block 0 of its past would be overwritten");
    check(&mut driver, |draft| draft.blocks[1] = vec![2, 2], "sequence 200: block 2 of its past would be overwritten");
}

#[test]
fn names_invalid_wants() {
    let (_folder, mut driver) = bigram();
    check(&mut driver, |draft| draft.spans[0].want = Want(3), "sequence 100: 3 and 0 are no kind of wanted rows");
    check(&mut driver, |draft| draft.spans[0].want = Want::ALL, "4 rows of 32 logits do not fill 64 places");
    check(&mut driver, |draft| draft.spans[0].want = Want::NONE, "1 rows of 32 logits do not fill 64 places");
    check(&mut driver, |draft| draft.logits = 63, "2 rows of 32 logits do not fill 63 places");
    check(&mut driver, |draft| draft.logits = 0, "2 rows of 32 logits do not fill 0 places");
}

#[test]
fn names_wrong_adapters() {
    let (_folder, mut driver) = bigram();
    check(&mut driver, |draft| draft.spans[1].adapter = 9, "sequence 200: no adapter 9 is attached");
    check(&mut driver, |draft| draft.spans[0].adapter_scale = f32::NAN, "sequence 100: its adapter scale");
    check(&mut driver, |draft| draft.spans[0].adapter_scale = f32::INFINITY, "sequence 100: its adapter scale");
}

#[test]
fn takes_no_blocks_for_an_opaque_model() {
    let mut driver = Driver::load(&test_plugin("panics"), Path::new("anything"), &Options::default()).unwrap();
    let tables = [CacheTable { blocks: [0][..].into(), ..CacheTable::opaque() }];
    let spans = [Span {
        sequence: 5,
        start: 0,
        len: 1,
        past: 0,
        want: Want::NONE,
        output: Output::LOGITS,
        mask: [][..].into(),
        adapter: 0,
        adapter_scale: 1.0,
        caches: tables[..].into(),
    }];
    let batch = Batch { tokens: [1][..].into(), positions: [0][..].into(), spans: spans[..].into(), top: 0 };
    let error = driver.model.forward(&batch, &mut outputs(&mut [])).into_result().unwrap_err();
    assert_eq!(error.code, ErrorCode::INVALID);
    assert_eq!(error.message, "sequence 5: it has blocks or slots, but this model keeps sequences by itself");
}

#[test]
fn shared_past_blocks_and_spare_blocks_are_right() {
    let (_folder, mut driver) = bigram();
    let alone = Draft::new().run(&mut driver).unwrap();
    let mut draft = Draft::new();
    // Sequence 100 continues from the same full block, and each table is longer than necessary.
    draft.spans[0].past = 16;
    draft.blocks = vec![vec![1, 0, 5, 6], vec![1, 2, 7]];
    draft.positions = vec![16, 17, 18, 17, 18];
    let both = draft.run(&mut driver).unwrap();
    assert_eq!(both[VOCABULARY..], alone[VOCABULARY..], "sequence 200 is as it was");
    assert_ne!(both[..VOCABULARY], alone[..VOCABULARY], "sequence 100 has a past now");
}

#[test]
fn the_driver_computes_the_same_in_one_pass_and_in_many() {
    let (_folder, mut driver) = bigram();
    let tokens: Vec<u32> = (0..50).map(|index| index * 7 % 32).collect();
    let whole = driver.logits(&tokens).unwrap();
    for chunk in [1, 3, 16, 17, 49] {
        assert_eq!(driver.logits_in_chunks(&tokens, chunk).unwrap(), whole, "in chunks of {chunk}");
    }
    let generated = driver.generate(&tokens[..20], 12).unwrap();
    let mut text = tokens[..20].to_vec();
    for token in generated {
        assert_eq!(best(driver.logits(&text).unwrap().last().unwrap()), token);
        text.push(token);
    }
}
