//! `tokenizer.model`: the file written by the SentencePiece library, for folders without a `tokenizer.json`.
//!
//! It is one protobuf message: the pieces, how they were trained and how text is normalized. The few relevant fields
//! are extracted by a reader that never leaves the file and skips unknown fields.

use super::vocabulary::Kind;
use crate::{Error, Result};

/// The parts of a `tokenizer.model` that encoding needs.
pub(super) struct ModelFile {
    pub texts: Vec<String>,
    pub kinds: Vec<Kind>,
    pub scores: Vec<f32>,
    /// Encoding adds a space before the text (`add_dummy_prefix`).
    pub prefix: bool,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub pad: Option<u32>,
    pub unknown: Option<u32>,
}

/// A field of a message: its number and value.
enum Field<'a> {
    Integer(u32, u64),
    Bytes(u32, &'a [u8]),
    Float(u32, f32),
    Other,
}

/// The trainer's enum value for BPE; 1 is Unigram.
const BPE: u64 = 2;

impl ModelFile {
    pub(super) fn read(file: &[u8]) -> Result<Self> {
        // Protobuf omits defaults: these are the ids in sentencepiece_model.proto.
        let mut ids = [Some(0), Some(1), Some(2), None];
        let mut model = Self {
            texts: vec![],
            kinds: vec![],
            scores: vec![],
            prefix: true,
            bos: None,
            eos: None,
            pad: None,
            unknown: None,
        };
        // The format's defaults: a Unigram model that collapses runs of spaces.
        let (mut trained_as, mut collapses, mut maps_characters) = (1, true, false);
        for field in Fields(file) {
            match field? {
                Field::Bytes(1, piece) => model.push(piece)?,
                Field::Bytes(2, trainer) => {
                    for field in Fields(trainer) {
                        match field? {
                            Field::Integer(3, kind) => trained_as = kind,
                            Field::Integer(number @ 40..=43, id) => {
                                if let Some(slot) = ids.get_mut((number - 40) as usize) {
                                    *slot = u32::try_from(id).ok();
                                }
                            }
                            _ => {}
                        }
                    }
                }
                Field::Bytes(3, normalizer) => {
                    for field in Fields(normalizer) {
                        match field? {
                            Field::Bytes(2, map) => maps_characters = !map.is_empty(),
                            Field::Integer(3, flag) => model.prefix = flag != 0,
                            Field::Integer(4, flag) => collapses = flag != 0,
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        if trained_as != BPE || collapses || maps_characters {
            return Err(Error::unsupported(
                "only byte pairs over text as it is are read, and this model is of another kind or rewrites its text",
            )
            .help(super::HOW_TO_CONVERT));
        }
        let [unknown, bos, eos, pad] = ids.map(|id| id.filter(|id| (*id as usize) < model.texts.len()));
        Ok(Self { bos, eos, pad, unknown, ..model })
    }

    fn push(&mut self, piece: &[u8]) -> Result<()> {
        let (mut text, mut score, mut kind) = ("", 0.0, Kind::Normal);
        for field in Fields(piece) {
            match field? {
                Field::Bytes(1, bytes) => {
                    text = std::str::from_utf8(bytes)
                        .map_err(|_| Error::corrupt(format!("the piece {} is not UTF-8 text", self.texts.len())))?;
                }
                Field::Float(2, value) => score = value,
                Field::Integer(3, id) => kind = i64::try_from(id).ok().and_then(Kind::of).unwrap_or(Kind::Normal),
                _ => {}
            }
        }
        self.texts.push(text.to_owned());
        self.kinds.push(kind);
        self.scores.push(score);
        Ok(())
    }
}

/// Iterates over the fields of a message.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn field(&mut self) -> Option<Field<'a>> {
        let tag = self.integer()?;
        let number = u32::try_from(tag >> 3).ok()?;
        match tag & 7 {
            0 => Some(Field::Integer(number, self.integer()?)),
            1 => self.take(8).map(|_| Field::Other),
            2 => {
                let len = usize::try_from(self.integer()?).ok()?;
                Some(Field::Bytes(number, self.take(len)?))
            }
            5 => Some(Field::Float(number, f32::from_le_bytes(self.take(4)?.try_into().ok()?))),
            _ => None,
        }
    }

    fn integer(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field.ok_or_else(|| {
            Error::corrupt("the file is not a SentencePiece model, or ends in the middle").help("download it again")
        }))
    }
}
