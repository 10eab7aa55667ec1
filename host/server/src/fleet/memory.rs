//! The memory budget: decides whether a model fits, and which idle workers are evicted to make room. Pure.

use pensieve_protocol::{
    card::{Card, State},
    job::{Failure, FailureCode},
    media::MediaUse,
    wire::Limits,
};

use super::ModelConfig;

/// A worker's memory besides weights and states: its program, its plugins and scratch buffers.
const OVERHEAD_BYTES: u64 = 64 << 20;
/// Maximum number of tokens per step that scratch buffers are planned for.
const STEP_TOKENS: u64 = 1024;
/// Logits are 32-bit numbers.
const LOGIT_BYTES: u64 = 4;
/// Default size of a model's state memory: two long conversations, within bounds.
const SEQUENCES: u64 = 2;
const SEQUENCE_TOKENS_MAX: u64 = 32_768;
const STATE_BYTES_MAX: u64 = 4 << 30;
/// Number of concurrent sequences for which states or windows are planned.
const STATES: u64 = 16;
/// States that grow with the sequence get less than the maximum length if memory is short; a model whose states do not
/// grow reports by itself if this is too little.
const STATE_BYTES_MIN: u64 = 64 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Resident {
    pub(super) serial: u64,
    pub(super) bytes: u64,
    /// Can be evicted at once: it has no streams and is not draining.
    pub(super) idle: bool,
    /// Logical time of the last use.
    pub(super) used: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MemoryVerdict {
    Fits,
    /// Fits once these idle workers have exited.
    AfterEvicting(Vec<u64>),
    /// Fits at the earliest when a stream ends, or when a draining worker has exited.
    Later,
    /// Never fits: it needs more than the budget.
    Never,
}

/// Decides whether `bytes` more fit. Evicts the least recently used idle workers, but only if that makes enough room.
pub(super) fn admit(budget: u64, residents: &[Resident], bytes: u64) -> MemoryVerdict {
    if bytes > budget {
        return MemoryVerdict::Never;
    }
    let taken = residents.iter().fold(0_u64, |sum, resident| sum.saturating_add(resident.bytes));
    let mut missing = taken.saturating_add(bytes).saturating_sub(budget);
    let mut idle: Vec<&Resident> = residents.iter().filter(|resident| resident.idle).collect();
    idle.sort_by_key(|resident| resident.used);
    let mut draining = Vec::new();
    for resident in idle {
        if missing == 0 {
            break;
        }
        missing = missing.saturating_sub(resident.bytes);
        draining.push(resident.serial);
    }
    match (missing, draining.is_empty()) {
        (0, true) => MemoryVerdict::Fits,
        (0, false) => MemoryVerdict::AfterEvicting(draining),
        _ => MemoryVerdict::Later,
    }
}

/// The memory plan of a model that is not loaded yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryPlan {
    pub(super) state_bytes: u64,
    pub(super) adapter_bytes: u64,
    pub(super) bytes: u64,
    /// Bytes that the budget counts: `bytes`, or less if earlier loads needed less.
    pub(super) claim: u64,
}

/// Part of a measured need that is claimed in addition, as 1/N, and at least.
const MARGIN: u64 = 4;
const MARGIN_BYTES: u64 = 32 << 20;

/// The claim of a model that may take `planned` bytes, given the largest memory that it has been seen with.
pub(super) fn claim(planned: u64, measured: Option<u64>) -> u64 {
    let with_margin = |peak: u64| peak.saturating_add((peak / MARGIN).max(MARGIN_BYTES));
    measured.map_or(planned, |peak| with_margin(peak).min(planned))
}

impl MemoryPlan {
    /// The plan of a model whose workers have had this much memory at most.
    pub(super) fn claiming(self, measured: Option<u64>) -> Self {
        let planned = self.bytes.saturating_sub(self.adapter_bytes);
        Self { claim: claim(planned, measured).saturating_add(self.adapter_bytes), ..self }
    }

    /// Describes the plan for the log, with the memory left for other models.
    pub(super) fn tell(&self, card: &Card, left: u64) -> String {
        let states = match card.state {
            State::Paged { tokens, bytes, beside } => {
                let thousand = bytes.saturating_mul(1000) / u64::from(tokens.max(1));
                let blocks = self.state_bytes.saturating_sub(beside).checked_div(bytes);
                let held = blocks.map(|blocks| blocks.saturating_mul(u64::from(tokens)));
                let held = held.map_or_else(String::new, |held| format!(", so it holds {held} tokens"));
                format!("{} a thousand tokens{held}", megabytes(thousand))
            }
            State::PerSequence { bytes } => format!("up to {} a sequence", megabytes(bytes)),
        };
        let claim = if self.claim < self.bytes {
            format!("; it claims {}, as earlier loads needed no more", megabytes(self.claim))
        } else {
            String::new()
        };
        let besides = self.bytes.saturating_sub(card.weight_bytes).saturating_sub(self.state_bytes);
        let media = card.media().map(MediaUse::bytes);
        let media = media.map_or_else(String::new, |bytes| format!(", {} of it for images", megabytes(bytes)));
        format!(
            "weights {}, context {} ({states}), {} besides{media}{claim}; {} are left for other models",
            megabytes(card.weight_bytes),
            megabytes(self.state_bytes),
            megabytes(besides),
            megabytes(left)
        )
    }
}

/// Plans a model's memory from its card. With `adapters`, memory for adapters is reserved.
pub(super) fn plan(budget: u64, model: &ModelConfig, adapters: bool, card: &Card) -> Result<MemoryPlan, Failure> {
    let scratch = scratch(card, &model.spec.limits);
    let adapter_bytes = if adapters { model.spec.adapter_memory } else { 0 };
    let media = card.media().map_or(0, MediaUse::bytes);
    let fixed =
        [card.weight_bytes, scratch, OVERHEAD_BYTES, adapter_bytes, media].into_iter().fold(0, u64::saturating_add);
    let context = if model.spec.context == 0 { card.context } else { model.spec.context.min(card.context) };
    let tokens = u64::from(context).min(SEQUENCE_TOKENS_MAX) * SEQUENCES;
    let (least, wished) = match card.state {
        State::Paged { tokens: block, bytes, beside } => {
            let all = bytes.saturating_mul(tokens.div_ceil(u64::from(block.max(1))) + 1);
            (bytes.saturating_mul(4).saturating_add(beside), all.saturating_add(beside.saturating_mul(STATES)))
        }
        State::PerSequence { bytes } => (bytes.min(STATE_BYTES_MIN), bytes.saturating_mul(STATES)),
    };
    let left = budget.saturating_sub(fixed);
    let state_bytes = model.spec.kv_budget.unwrap_or_else(|| wished.min(STATE_BYTES_MAX).min(left).max(least));
    let bytes = fixed.saturating_add(state_bytes);
    if bytes > budget {
        let images = if media > 0 { format!("images {}, ", megabytes(media)) } else { String::new() };
        let message = format!(
            "model '{}' takes {}: weights {}, states {}, adapters {}, {images}scratch {}; all models together may take {}",
            model.id,
            megabytes(bytes),
            megabytes(card.weight_bytes),
            megabytes(state_bytes),
            megabytes(adapter_bytes),
            megabytes(scratch.saturating_add(OVERHEAD_BYTES)),
            megabytes(budget)
        );
        let help = "take a smaller or more quantized checkpoint, lower kv_budget or adapter_memory, or raise the memory budget";
        return Err(Failure::new(FailureCode::Unsupported, message).with_help(help));
    }
    Ok(MemoryPlan { state_bytes, adapter_bytes, bytes, claim: bytes })
}

/// Scratch memory of a step. Logits are computed for the last tokens of sequences alone, not for each token of a prompt,
/// and with a large vocabulary they are most of what a card counts for a token.
fn scratch(card: &Card, limits: &Limits) -> u64 {
    let logits = u64::from(card.vocabulary) * LOGIT_BYTES;
    let tokens = STEP_TOKENS.max(u64::from(limits.step_tokens_max));
    match card.token_bytes.checked_sub(logits) {
        Some(bytes) => {
            let rows = logits.saturating_mul(2 * u64::from(limits.sequences_max));
            bytes.saturating_mul(tokens).saturating_add(rows).min(card.token_bytes.saturating_mul(tokens))
        }
        None => card.token_bytes.saturating_mul(tokens),
    }
}

/// Returns the model's maximum sequence length in tokens, given its card, its configuration and its memory.
pub(super) fn context(budget: u64, model: &ModelConfig, adapters: bool, card: &Card) -> u32 {
    let context = if model.spec.context == 0 { card.context } else { model.spec.context.min(card.context) };
    match (card.state, plan(budget, model, adapters, card)) {
        (State::Paged { tokens, bytes, beside }, Ok(need)) if bytes > 0 => {
            let held = (need.state_bytes.saturating_sub(beside) / bytes).saturating_mul(u64::from(tokens));
            context.min(u32::try_from(held).unwrap_or(u32::MAX))
        }
        (State::PerSequence { bytes }, Ok(need)) if need.state_bytes < bytes => {
            let held = u128::from(card.context) * u128::from(need.state_bytes) / u128::from(bytes);
            context.min(u32::try_from(held).unwrap_or(u32::MAX))
        }
        // A model that cannot be loaded reports this when it is requested.
        _ => context,
    }
}

fn megabytes(bytes: u64) -> String {
    match bytes >> 20 {
        0 if bytes > 0 => format!("{} KiB", bytes >> 10),
        whole => format!("{whole} MiB"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(super) mod tests {
    use super::*;
    use pensieve_protocol::{media::KindUse, wire::ModelSpec};

    /// Residents as (serial, bytes, idle), least recently used first.
    fn check(residents: &[(u64, u64, bool)], bytes: u64, expect: &MemoryVerdict) {
        let resident = |(used, &(serial, bytes, idle))| Resident { serial, bytes, idle, used };
        let residents: Vec<Resident> = (0..).zip(residents).map(resident).collect();
        assert_eq!(admit(100, &residents, bytes), *expect, "{residents:?} and {bytes}");
    }

    #[test]
    fn the_longest_unused_go_and_no_more_than_need_to() {
        check(&[], 100, &MemoryVerdict::Fits);
        check(&[(1, 60, false)], 40, &MemoryVerdict::Fits);
        check(&[(7, 30, true), (8, 30, true), (9, 30, true)], 40, &MemoryVerdict::AfterEvicting(vec![7]));
        check(&[(7, 30, true), (8, 30, true), (9, 30, true)], 41, &MemoryVerdict::AfterEvicting(vec![7, 8]));
        check(&[(7, 30, false), (8, 30, true), (9, 30, true)], 40, &MemoryVerdict::AfterEvicting(vec![8]));
    }

    #[test]
    fn nobody_goes_in_vain() {
        check(&[(7, 60, false), (8, 30, true)], 50, &MemoryVerdict::Later);
        check(&[(7, 90, true)], 101, &MemoryVerdict::Never);
        check(&[(7, u64::MAX, false)], 1, &MemoryVerdict::Later);
    }

    pub(in crate::fleet) fn card(weight_bytes: u64, state: State) -> Card {
        Card {
            architecture: String::new(),
            vocabulary: 1,
            context: 8192,
            state,
            token_bytes: 0,
            weight_bytes,
            tokenizer: String::new(),
            chat_template: None,
            bos: None,
            add_bos: false,
            eos: Vec::new(),
            formats: String::new(),
            facts: String::new(),
            rows: Ok(None),
            media: Ok(None),
            fingerprint: String::new(),
        }
    }

    #[test]
    fn a_model_gets_what_is_left_for_states_and_says_so_when_nothing_is() {
        let paged = State::Paged { tokens: 16, bytes: 1 << 20, beside: 0 };
        let model = ModelConfig { id: "m".into(), ..ModelConfig::default() };
        let need = plan(4 << 30, &model, false, &card(1 << 30, paged)).unwrap();
        assert_eq!(need.state_bytes, (2 * 8192 / 16 + 1) << 20);
        let need = plan((1 << 30) + (100 << 20), &model, false, &card(1 << 30, paged)).unwrap();
        assert_eq!(need.state_bytes, 36 << 20);
        let failure = plan(1 << 30, &model, false, &card(1 << 30, paged)).unwrap_err();
        assert!(failure.message.starts_with("model 'm' takes 1092 MiB: weights 1024 MiB, states 4 MiB"), "{failure}");
        let spec = ModelSpec { kv_budget: Some(5), adapter_memory: 1 << 20, ..ModelSpec::default() };
        let told = ModelConfig { spec, ..model };
        assert_eq!(plan(2 << 30, &told, false, &card(u64::MAX, paged)).unwrap_err().code, FailureCode::Unsupported);
        let alone = plan(2 << 30, &told, false, &card(0, State::PerSequence { bytes: 9 })).unwrap();
        assert_eq!((alone.state_bytes, alone.adapter_bytes), (5, 0));
        let adapted = plan(2 << 30, &told, true, &card(0, State::PerSequence { bytes: 9 })).unwrap();
        assert_eq!((adapted.adapter_bytes, adapted.bytes - alone.bytes), (1 << 20, 1 << 20));
    }

    #[test]
    fn a_plan_tells_what_goes_where_and_how_many_tokens_that_holds() {
        let model = ModelConfig { id: "m".into(), ..ModelConfig::default() };
        let paged = card(1 << 30, State::Paged { tokens: 16, bytes: 1 << 20, beside: 0 });
        let told = plan(4 << 30, &model, false, &paged).unwrap().tell(&paged, 5 << 30);
        let context = "context 1025 MiB (62 MiB a thousand tokens, so it holds 16400 tokens)";
        assert_eq!(told, format!("weights 1024 MiB, {context}, 64 MiB besides; 5120 MiB are left for other models"));
        let states = card(1 << 30, State::PerSequence { bytes: 3 << 19 });
        let told = plan(4 << 30, &model, false, &states).unwrap().tell(&states, 0);
        assert!(
            told.contains("context 24 MiB (up to 1 MiB a sequence)") && told.contains("; 0 MiB are left"),
            "{told}"
        );
    }

    #[test]
    fn images_have_memory_of_their_own() {
        let image = KindUse {
            placeholder: "<i>".into(),
            text: "<i>".into(),
            slot: 0,
            whole: false,
            rows_max: 4096,
            row_bytes: 10 << 10,
            encoder_bytes: 100 << 20,
            rate: None,
            processor: "{}".into(),
        };
        let media = Ok(Some(Box::new(MediaUse { image: Some(image), audio: None })));
        let blind = card(1 << 30, State::Paged { tokens: 16, bytes: 1 << 20, beside: 0 });
        let sees = Card { media, ..blind.clone() };
        let model = ModelConfig { id: "m".into(), ..ModelConfig::default() };
        let plans = [&blind, &sees].map(|card| plan(4 << 30, &model, false, card).unwrap());
        assert_eq!(plans[1].bytes - plans[0].bytes, 180 << 20, "the encoder's, and rows of two items");
        let told = plans[1].tell(&sees, 0);
        assert!(told.contains("244 MiB besides, 180 MiB of it for images"), "{told}");
        let failure = plan(1 << 30, &model, false, &sees).unwrap_err();
        assert!(failure.message.contains("adapters 0 MiB, images 180 MiB, scratch 64 MiB"), "{failure}");
    }

    #[test]
    fn a_sequence_is_as_long_as_card_configuration_and_memory_allow() {
        let paged = State::Paged { tokens: 16, bytes: 1 << 20, beside: 0 };
        let check = |context, kv_budget, state, expect| {
            let spec = ModelSpec { context, kv_budget, ..ModelSpec::default() };
            let model = ModelConfig { spec, ..ModelConfig::default() };
            assert_eq!(super::context(4 << 30, &model, false, &card(1 << 30, state)), expect);
        };
        check(0, None, paged, 8192);
        check(100, None, paged, 100);
        check(9000, None, paged, 8192);
        check(0, Some(5 << 20), paged, 80);
        check(0, Some(u64::MAX), paged, 8192);
        check(0, Some(1), State::PerSequence { bytes: 1 }, 8192);
        check(0, None, State::PerSequence { bytes: 12 << 30 }, 2005);
        check(3000, None, State::PerSequence { bytes: 12 << 30 }, 2005);
        check(100, None, State::PerSequence { bytes: 12 << 30 }, 100);
    }
}
