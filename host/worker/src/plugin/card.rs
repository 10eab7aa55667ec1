//! Copies a model's card out of a plugin's memory into plain data. Enforces limits, since the server keeps the card and
//! computes with it.

use pensieve_plugin_api::{self as api, CacheKind};
use pensieve_protocol::{
    card::{Card, State},
    media::MediaUse,
    rows::RowsUse,
};

/// Maximum size of a tokenizer.
const TOKENIZER_BYTES_MAX: usize = 128 << 20;
const TEXT_BYTES_MAX: usize = 1 << 20;
const TOKENS_MAX: usize = 4096;
/// Number of tokens that a step may add to a window.
const CHUNK_TOKENS: u32 = 512;
/// Number of slots for a sequence and the copies of its state.
const SLOTS: u64 = 4;

/// Copies and validates a plugin's card, with the descriptions of its hidden rows and of its media. The error names the field that is
/// invalid.
pub fn read(
    card: &api::Card,
    rows: Result<Option<RowsUse>, String>,
    media: Result<Option<MediaUse>, String>,
) -> Result<Card, String> {
    let state = state(card)?;
    if card.vocabulary == 0 || card.context == 0 {
        return Err("its vocabulary or its context is empty".into());
    }
    if card.eos.len() > TOKENS_MAX {
        return Err(format!("it lists {} tokens that end a turn", card.eos.len()));
    }
    let text = |what: &str, text: &str, bytes_max: usize| {
        if text.len() > bytes_max { Err(format!("its {what} has {} bytes", text.len())) } else { Ok(text.to_owned()) }
    };
    let chat_template = card.chat_template.as_ref().map(|template| text("chat template", template, TEXT_BYTES_MAX));
    Ok(Card {
        architecture: text("architecture", &card.architecture, 64)?,
        vocabulary: card.vocabulary,
        context: card.context,
        state,
        token_bytes: card.token_bytes,
        weight_bytes: card.weight_bytes,
        tokenizer: text("tokenizer", &card.tokenizer, TOKENIZER_BYTES_MAX)?,
        chat_template: chat_template.into_option().transpose()?,
        bos: card.bos.into_option(),
        add_bos: card.add_bos,
        eos: card.eos.to_vec(),
        formats: text("list of formats", &card.formats, TEXT_BYTES_MAX)?,
        facts: text("list of facts", &card.facts, TEXT_BYTES_MAX)?,
        rows: rows.map(|rows| rows.map(Box::new)),
        media: media.map(|media| media.map(Box::new)),
        fingerprint: text("fingerprint", &card.fingerprint, 512)?,
    })
}

/// Total bytes of all cache groups: per block of tokens, and in addition per sequence.
fn state(card: &api::Card) -> Result<State, String> {
    if card.block_tokens == 0 {
        return Err("its blocks hold no tokens".into());
    }
    let (mut bytes, mut beside) = (0_u64, 0_u64);
    for group in &card.caches {
        match group.kind {
            CacheKind::OPAQUE if card.caches.len() == 1 => return Ok(State::PerSequence { bytes: group.bytes }),
            CacheKind::OPAQUE => return Err("an opaque group of caches stands beside others".into()),
            CacheKind::TOKENS => bytes = bytes.saturating_add(group.bytes),
            CacheKind::WINDOW => {
                let tokens = group.window.saturating_add(CHUNK_TOKENS).min(card.context);
                let blocks = u64::from(tokens.div_ceil(card.block_tokens)) + 1;
                beside = beside.saturating_add(group.bytes.saturating_mul(blocks));
            }
            CacheKind::STATE => beside = beside.saturating_add(group.bytes.saturating_mul(SLOTS)),
            CacheKind(other) => {
                return Err(format!("it remembers sequences in a way that this host does not know ({other})"));
            }
        }
    }
    match bytes.checked_add(beside) {
        None | Some(0) => Err("it lists no caches, or caches without bytes".into()),
        Some(_) => Ok(State::Paged { tokens: card.block_tokens, bytes, beside }),
    }
}
