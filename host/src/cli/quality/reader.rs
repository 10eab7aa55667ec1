//! Runs a loaded model over one sequence at a time and returns the logits of every token. With one sequence, block ids
//! are simply consecutive.

use pensieve_plugin_api::{
    Batch, CacheGroup, CacheKind, CacheTable, Card, ModelBox, NO_ADAPTER, Output, Outputs, Resident, Span, VACANT, Want,
};

use crate::cli::error::{CliError, Exit};

/// With several cache groups the model divides its memory among them for sequences of up to this length.
const DIVIDED_TOKENS: u32 = 16_384;
const STATE_BYTES_MIN: u64 = 64 << 20;

/// A model and its current sequence.
pub(super) struct Reader {
    model: ModelBox,
    groups: Vec<CacheGroup>,
    /// Blocks or slots in each cache group.
    places: Vec<u32>,
    block_tokens: u32,
    vocabulary: usize,
    sequence: u64,
    logits: Vec<f32>,
}

/// Cache bytes for a sequence of `longest` tokens in a model that is loaded for `context` tokens.
pub(super) fn state_bytes(card: &Card, longest: usize, context: u32) -> u64 {
    let longest = u32::try_from(longest).unwrap_or(u32::MAX);
    let tokens = if card.caches.len() == 1 { longest } else { context.min(DIVIDED_TOKENS).max(longest) };
    let blocks = u64::from(tokens.div_ceil(card.block_tokens.max(1))) + 2;
    let needs = card.caches.iter().map(|group| match group.kind {
        CacheKind::OPAQUE => group.bytes,
        CacheKind::STATE => group.bytes.saturating_mul(4),
        _ => group.bytes.saturating_mul(blocks),
    });
    needs.fold(STATE_BYTES_MIN, u64::saturating_add)
}

impl Reader {
    pub(super) fn new(model: ModelBox, card: &Card) -> Self {
        let resident = model.resident();
        Self {
            model,
            groups: card.caches.to_vec(),
            places: resident.places.to_vec(),
            block_tokens: card.block_tokens.max(1),
            vocabulary: card.vocabulary as usize,
            sequence: 0,
            logits: Vec::new(),
        }
    }

    pub(super) fn resident(&self) -> Resident {
        self.model.resident()
    }

    /// Releases the previous sequence and starts another.
    pub(super) fn begin(&mut self) {
        if self.sequence > 0 {
            self.model.release(self.sequence);
        }
        self.sequence += 1;
    }

    /// Logits of each of these tokens, which follow `past` earlier ones of the sequence.
    pub(super) fn read(&mut self, tokens: &[u32], past: usize) -> Result<impl Iterator<Item = &[f32]>, CliError> {
        let narrow = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let (past, len) = (narrow(past), narrow(tokens.len()));
        let tables = self.tables(past, len)?;
        let caches: Vec<CacheTable<'_>> = tables.iter().map(Table::as_abi).collect();
        let positions: Vec<u32> = (past..past.saturating_add(len)).collect();
        let span = Span {
            sequence: self.sequence,
            start: 0,
            len,
            past,
            want: Want::ALL,
            output: Output::LOGITS,
            mask: (&[][..]).into(),
            adapter: NO_ADAPTER,
            adapter_scale: 1.0,
            caches: caches.as_slice().into(),
        };
        let spans = [span];
        let batch =
            Batch { tokens: tokens.into(), positions: positions.as_slice().into(), spans: spans[..].into(), top: 0 };
        // NaN marks rows that the model fails to write.
        self.logits.clear();
        self.logits.resize(tokens.len() * self.vocabulary, f32::NAN);
        let mut outputs = Outputs {
            logits: self.logits.as_mut_slice().into(),
            ids: (&mut [][..]).into(),
            scores: (&mut [][..]).into(),
            totals: (&mut [][..]).into(),
            hidden: (&mut [][..]).into(),
        };
        let computed = self.model.forward(&batch, &mut outputs).into_result();
        computed.map_err(|error| CliError::new(Exit::Failed, format!("the model failed on the text: {error}")))?;
        Ok(self.logits.chunks_exact(self.vocabulary))
    }

    /// The sequence's cache table in each group. Blocks that have left a sliding window are reused.
    fn tables(&self, past: u32, len: u32) -> Result<Vec<Table>, CliError> {
        let table = |(group, &places): (&CacheGroup, &u32)| match group.kind {
            CacheKind::OPAQUE => Ok(Table { blocks: Vec::new(), read: VACANT, write: VACANT }),
            CacheKind::STATE => Ok(Table { blocks: Vec::new(), read: if past == 0 { VACANT } else { 0 }, write: 0 }),
            _ => {
                let count = past.saturating_add(len).div_ceil(self.block_tokens);
                let behind = group.blocks_behind(u64::from(past), self.block_tokens);
                let behind = u32::try_from(behind).unwrap_or(u32::MAX).min(count);
                if count - behind > places {
                    let line = format!("the model's {places} cache blocks cannot hold {} tokens", past + len);
                    return Err(CliError::new(Exit::Failed, line));
                }
                let id = |block| if block < behind { VACANT } else { block % places };
                Ok(Table { blocks: (0..count).map(id).collect(), read: VACANT, write: VACANT })
            }
        };
        self.groups.iter().zip(&self.places).map(table).collect()
    }
}

/// Owned form of a `CacheTable`.
struct Table {
    blocks: Vec<u32>,
    read: u32,
    write: u32,
}

impl Table {
    fn as_abi(&self) -> CacheTable<'_> {
        let blocks = self.blocks.as_slice().into();
        CacheTable { blocks, read: self.read, write: self.write, checkpoints: (&[][..]).into() }
    }
}
