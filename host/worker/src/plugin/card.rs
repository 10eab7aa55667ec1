//! Copies a model's card out of a plugin's memory into plain data, held to limits: the server keeps it and computes with it.

use pensieve_plugin_api::{self as api, StateKind};
use pensieve_protocol::card::{Card, State};

/// The longest tokenizer that is believed.
const TOKENIZER_BYTES_MAX: usize = 128 << 20;
const TEXT_BYTES_MAX: usize = 1 << 20;
const TOKENS_MAX: usize = 4096;

/// Copies what a plugin says, or tells which of its words breaks a rule.
pub fn read(card: &api::Card) -> Result<Card, String> {
    let state = match card.state {
        StateKind::PAGED if card.block_tokens == 0 => return Err("its blocks hold no tokens".into()),
        StateKind::PAGED => State::Paged { tokens: card.block_tokens, bytes: card.block_bytes },
        StateKind::PER_SEQUENCE => State::PerSequence { bytes: card.sequence_bytes },
        StateKind(other) => {
            return Err(format!("it remembers sequences in a way that this host does not know ({other})"));
        }
    };
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
        fingerprint: text("fingerprint", &card.fingerprint, 512)?,
    })
}
