//! Options and results of a check, as plain Rust types for authors' tests, the host's command line and our own tests.

use std::fmt;

use crate::sample::MediaSample;
use pensieve_plugin_api::{AdapterData, CacheGroup, CacheKind, Card};

/// Default length of the longest text, unless a window needs more.
const FAR: u32 = 96;
/// Testing a longer window takes minutes on a large model, so that is done only on request.
const WINDOW_MAX: u32 = 2048;

/// The part of a card needed to drive the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The length of a row of logits.
    pub vocabulary: u32,
    /// Tokens in a block.
    pub block_tokens: u32,
    /// The cache groups of the card.
    pub caches: Vec<CacheGroup>,
    /// Maximum number of candidates in a row; 0 for none.
    pub candidates: u32,
    /// The length of a hidden row; 0 for none.
    pub hidden: u32,
}

impl From<&Card> for Shape {
    fn from(card: &Card) -> Self {
        Self {
            vocabulary: card.vocabulary,
            block_tokens: card.block_tokens,
            caches: card.caches.to_vec(),
            candidates: card.candidates,
            hidden: card.hidden,
        }
    }
}

impl Shape {
    /// Returns whether the model keeps nothing between steps and has hidden rows, as encoders do: a text is one span then.
    pub fn keeps_nothing(&self) -> bool {
        let is_empty = |group: &CacheGroup| group.kind == CacheKind::OPAQUE && group.bytes == 0;
        self.hidden > 0 && self.caches.iter().all(is_empty)
    }

    /// Length of the longest text in the laws, for which the model must be loaded: longer than its windows, unless the
    /// options say otherwise.
    pub fn farthest(&self, options: &Options) -> u32 {
        let windows = self.caches.iter().filter(|group| group.kind == CacheKind::WINDOW);
        let windows = windows.map(|group| group.window).filter(|window| *window <= WINDOW_MAX);
        let beyond = windows.max().unwrap_or(0).saturating_add(self.block_tokens.saturating_mul(2)).saturating_add(2);
        let wish = if options.farthest > 0 { options.farthest } else { beyond.max(FAR) };
        wish.max(options.longest)
    }
}

/// Options of a check. The defaults suit every model.
#[derive(Clone, Debug)]
pub struct Options {
    /// Length of the longest text in tokens; extended if it would not leave the first block, cut if the context or the
    /// number of blocks is small.
    pub longest: u32,
    /// Length in tokens of the longest text in the laws `window` and `reach`; 0 for one that leaves all of the card's
    /// windows of up to 2048 tokens.
    pub farthest: u32,
    /// The seed of the texts.
    pub seed: u64,
    /// Maximum difference of two logits that should be equal, relative to the spread (largest minus smallest) of their
    /// row. 2 % leaves room for quantized activations, where the order of a sum decides whether a value rounds up or
    /// down, and for sums in bf16.
    pub tolerance: f32,
    /// Models with small weights hardly react to anything, and 2 % would hide a fault. So the tolerance drops to a
    /// quarter of the model's change when the past or the positions change, but never below this.
    pub finest: f32,
    /// The architecture ignores positions by design.
    pub positionless: bool,
    /// Logits of another implementation for the same weights.
    pub references: Vec<Reference>,
    /// Only the comparison with them is wanted, and the laws that it rests on.
    pub only_references: bool,
    /// An adapter that fits the model, for the laws of adapters.
    pub adapter: Option<AdapterData>,
    /// Images for the laws of models that read some ([`crate::MediaSample::images`]); empty to leave these laws out.
    pub media: Vec<MediaSample>,
}

impl Default for Options {
    fn default() -> Self {
        let (longest, farthest, seed, positionless) = (40, 0, 1, false);
        Self {
            longest,
            farthest,
            seed,
            tolerance: 0.02,
            finest: 1e-4,
            positionless,
            references: Vec::new(),
            only_references: false,
            adapter: None,
            media: Vec::new(),
        }
    }
}

/// Logits or hidden rows computed by a trusted implementation with the same weights.
#[derive(Clone, Debug, Default)]
pub struct Reference {
    /// A text from its first token on.
    pub tokens: Vec<u32>,
    /// A row of logits for each token; empty for an encoder.
    pub logits: Vec<f32>,
    /// A hidden row for each token; empty if only logits are compared.
    pub hidden: Vec<f32>,
    /// Maximum absolute difference.
    pub tolerance: f32,
}

impl Reference {
    /// A difference relative to the spread of the values that are compared.
    pub(crate) fn part(&self, apart: f32) -> f32 {
        let values = if self.logits.is_empty() { &self.hidden } else { &self.logits };
        let (low, high) =
            values.iter().fold((f32::MAX, f32::MIN), |(low, high), &value| (low.min(value), high.max(value)));
        if high > low { apart / (high - low) } else { apart }
    }
}

/// The verdicts of a check.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// One for each law, in the order in which they were tested.
    pub verdicts: Vec<Verdict>,
}

/// The outcome of one law.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The law's name: `chunked`.
    pub law: &'static str,
    /// The law in one sentence.
    pub says: &'static str,
    /// Obeyed, broken, or not tested.
    pub outcome: Outcome,
}

/// The result of testing a law.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Obeyed to the last bit.
    Exact,
    /// Obeyed within the tolerance.
    WithinRounding {
        /// The largest difference, relative to the spread of a row of logits; of a reference, relative to the spread of
        /// all its values.
        worst: f32,
    },
    /// The law requires nothing; this is an observation for the author to judge.
    Noted {
        /// The observation.
        what: String,
    },
    /// The law does not apply to this model, or could not be tested.
    NotApplicable {
        /// The reason.
        why: String,
    },
    /// The model breaks the law.
    Broken {
        /// The observation.
        what: String,
        /// Where to look for the cause.
        hint: String,
    },
}

/// The progress of a check.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// The law with this name is tested next.
    Tries(&'static str),
    /// Its verdict.
    Found(&'a Verdict),
}

impl Report {
    /// Returns whether no law is broken.
    pub fn passed(&self) -> bool {
        self.broken().next().is_none()
    }

    /// The broken laws. The first one is the most informative: later ones often follow from it.
    pub fn broken(&self) -> impl Iterator<Item = &Verdict> {
        self.verdicts.iter().filter(|verdict| matches!(verdict.outcome, Outcome::Broken { .. }))
    }

    /// The outcome of the law with this name.
    pub fn outcome(&self, law: &str) -> Option<&Outcome> {
        self.verdicts.iter().find(|verdict| verdict.law == law).map(|verdict| &verdict.outcome)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.verdicts.iter().try_for_each(|verdict| writeln!(f, "{verdict}"))?;
        match self.broken().count() {
            0 => write!(f, "no law is broken"),
            1 => write!(f, "1 law is broken"),
            count => write!(f, "{count} laws are broken; begin with the first"),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = match &self.outcome {
            Outcome::Exact | Outcome::WithinRounding { .. } => "ok",
            Outcome::Noted { .. } => "note",
            Outcome::NotApplicable { .. } => "-",
            Outcome::Broken { .. } => "BROKEN",
        };
        write!(f, "{mark:<6} {:<14} {}", self.law, self.says)?;
        let under = |f: &mut fmt::Formatter<'_>, text: &str| write!(f, "\n{:22}{text}", "");
        match &self.outcome {
            Outcome::Exact => Ok(()),
            Outcome::WithinRounding { worst } => under(f, &format!("up to {:.2} % of the spread", worst * 100.0)),
            Outcome::Noted { what } => under(f, what),
            Outcome::NotApplicable { why } => under(f, &format!("not tried: {why}")),
            Outcome::Broken { what, hint } => under(f, what).and_then(|()| under(f, hint)),
        }
    }
}

/// The outcome of a law that could not be tested.
pub(crate) fn skipped(why: impl Into<String>) -> Outcome {
    Outcome::NotApplicable { why: why.into() }
}

/// The outcome of a broken law, with the law's own hint.
pub(crate) fn broken(what: impl Into<String>) -> Outcome {
    Outcome::Broken { what: what.into(), hint: String::new() }
}

/// An observation.
pub(crate) fn noted(what: impl Into<String>) -> Outcome {
    Outcome::Noted { what: what.into() }
}
