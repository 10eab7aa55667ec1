//! The laws that every model must obey, as code: the assumptions of a host's scheduler, block table and caches.
//!
//! None of them knows the correct logits. The model reads a few pseudo-random texts, each whole and alone, and must
//! then always give the same logits: in any chunks, batches, blocks and order, after any copies, releases and refusals.
//! This finds a cache that is off by one, positions counted from a chunk's start, a leaking state. It cannot find
//! consistent errors, such as a rotation with other pairs than the checkpoint's; logits of another implementation
//! ([`Options::references`]) find those.
//!
//! Samplers and adapter formats have their own laws.
//!
//! Authors run the laws through the SDK's `testing::conformance`, users through `pensieve plugins check`. Run them
//! where a crash does no harm: a faulty model may well crash.

mod adapters;
mod caches;
mod candidates;
mod draft;
mod formats;
mod hidden;
mod media;
mod memory;
mod past;
mod refusals;
mod report;
mod rig;
mod sample;
mod samplers;
mod speed;
mod steps;
mod texts;

pub use formats::check_format;
pub use report::{Options, Outcome, Progress, Reference, Report, Shape, Verdict};
pub use sample::MediaSample;
pub use samplers::{SamplerOptions, check_sampler};
pub use speed::tokens_per_second;

use pensieve_plugin_api::ModelBox;
use rig::{Finding, Rig};

/// Minimum length of a text for the laws.
pub const TOKENS_MIN: u32 = 4;

struct Law<C> {
    id: &'static str,
    says: &'static str,
    /// The usual cause, shown to an author whose model breaks the law.
    hint: &'static str,
    check: C,
}

/// `Err` ends a law early.
type Check = fn(&mut Rig<'_>) -> Finding;

/// In the order in which they are tested: each assumes the ones before, and the model's sensitivity to the past and to
/// positions is measured before the laws that rely on it.
const LAWS: &[Law<Check>] = &[
    Law {
        id: "resident",
        says: "the loaded model matches its card",
        hint: "resident places need a count for each group of the card, above 0 unless the group is opaque; vocabulary, context \
               and block length are above 0 too",
        check: refusals::resident,
    },
    Law {
        id: "repeatable",
        says: "a prompt gives finite logits, the same ones each time",
        hint: "the usual cause is state left behind by an earlier sequence, memory read before it is written, or \
               logits that are never written",
        check: steps::repeatable,
    },
    Law {
        id: "past",
        says: "how much earlier tokens matter",
        hint: "a good prompt must give logits",
        check: past::past,
    },
    Law {
        id: "order",
        says: "the order of earlier tokens matters",
        hint: "the usual cause is a position encoding that is not applied, so that the past is a bag of words",
        check: past::order,
    },
    Law {
        id: "positions",
        says: "the model uses the batch's positions",
        hint: "the usual cause is a position encoding that is not applied, or that counts by itself; an \
               architecture without one by design is checked as positionless",
        check: past::positions,
    },
    Law {
        id: "shift",
        says: "whether only the distance between positions matters",
        hint: "positions up to the context's last are legal",
        check: past::shift,
    },
    Law {
        id: "garbage",
        says: "what earlier sequences left in a block changes nothing",
        hint: "the usual cause is attention that reads beyond past + len, or a slot that is never written",
        check: memory::garbage,
    },
    Law {
        id: "causal",
        says: "a later token changes no earlier logits",
        hint: "the usual cause is a missing or shifted causal mask when a prompt is read in one step",
        check: past::causal,
    },
    Law {
        id: "chunked",
        says: "a prompt in chunks gives the logits of the whole, down to one token at a time",
        hint: "the usual cause is a cache that is off by one, or written or read at the token's index in the chunk \
               instead of in the sequence (past + i), or positions counted from the chunk's start",
        check: steps::chunked,
    },
    Law {
        id: "far-positions",
        says: "positions affect the encoding alone, up to the context's last",
        hint: "the usual cause is a cache addressed by the position instead of past + i, or a RoPE table that is too \
               short",
        check: past::far_positions,
    },
    Law {
        id: "shuffled",
        says: "blocks may be any, in any order",
        hint: "the usual cause is a slot that is not blocks[i / block_tokens] * block_tokens + i % block_tokens, or a \
               state beside the blocks that sequences share",
        check: memory::shuffled,
    },
    Law {
        id: "batched",
        says: "a sequence gets the same logits in a batch as alone, prompts and decodes mixed",
        hint: "the usual cause is a state, mask or cache that sequences share, or an index or a row counted from the \
               batch's start instead of the span's",
        check: steps::batched,
    },
    Law {
        id: "want",
        says: "logits of none, the last or all tokens agree, in the order of the spans",
        hint: "the usual cause is rows gathered by the wrong index: a span's last token is start + len - 1",
        check: steps::wanted,
    },
    Law {
        id: "candidates",
        says: "candidates are the highest logits, with the right totals",
        hint: "the usual cause is a mask that is read from the wrong row, an order that is not the highest first, or a total over \
               the candidates alone",
        check: candidates::best_of_the_logits,
    },
    Law {
        id: "hidden",
        says: "hidden rows are the same in any chunks, also beside logits",
        hint: "the usual cause is a row that is counted among all wanted rows instead of those of its kind, or a chunk's first \
               tokens taken for its wanted ones",
        check: hidden::rows,
    },
    Law {
        id: "released",
        says: "a release ends one sequence and no other, and its memory can be reused",
        hint: "the usual cause is a release that drops or moves another sequence's state, or does not drop its own",
        check: steps::released,
    },
    Law {
        id: "forgets",
        says: "after a release nothing is left of a sequence",
        hint: "the usual cause is a release that does nothing, so that the state remains under its id",
        check: steps::forgets,
    },
    Law {
        id: "names",
        says: "a sequence's id is only a name: any 64 bits",
        hint: "the usual cause is an id cut to 32 bits or used as an index",
        check: steps::names,
    },
    Law {
        id: "counts",
        says: "a step that does not follow what a sequence has seen is refused as invalid",
        hint: "compare a span's past with the state's token count before anything is changed; 0 for a new sequence",
        check: memory::counts,
    },
    Law {
        id: "own-places",
        says: "a step writes only where its new tokens go, however long its table is",
        hint: "the usual cause is a write for padding or for one token too many, or a length taken from the table",
        check: memory::own_places,
    },
    Law {
        id: "shared-prefix",
        says: "sequences may share the blocks of a common prefix and then diverge",
        hint: "the usual cause is a cache that is looked up by the sequence's id instead of its block table",
        check: memory::shared_prefix,
    },
    Law {
        id: "drafted",
        says: "rejected drafts leave nothing behind",
        hint: "the usual cause is a token count of the model's own instead of past, or a state that is written to the slot it \
               was read from",
        check: caches::drafted,
    },
    Law {
        id: "checkpoints",
        says: "a copy of a state is the state after the requested token",
        hint: "the usual cause is a copy of the state at the span's end, or an `after` that counts from the span's start instead \
               of the sequence's",
        check: caches::checkpoints,
    },
    Law {
        id: "window",
        says: "blocks before a window may be freed",
        hint: "the usual cause is a window that is longer than the card's, or a mask that is not applied in a decode",
        check: caches::window,
    },
    Law {
        id: "reach",
        says: "a token reads every token that the card says it does",
        hint: "the usual cause is a window that the card does not list (with the SDK: shape.windowed, which also frees earlier \
               blocks), one that is a token too short, or a group that reads another one's blocks",
        check: caches::reach,
    },
    Law {
        id: "kv-transfer",
        says: "blocks that are exported and imported, to any ids, continue their sequence",
        hint: "the usual cause is a layer, or keys or values, left out of export or import, or a block's id in its bytes",
        check: memory::kv_transfer,
    },
    Law {
        id: "sequence-state",
        says: "a fork or a restored snapshot continues its sequence, and neither touches the other",
        hint: "the usual cause is a copy that shares its storage with the original, or bytes that are not checked",
        check: memory::sequence_state,
    },
    Law {
        id: "refuses",
        says: "a batch that breaks a rule is refused as invalid, and changes no sequence",
        hint: "check the whole batch before the first write; the SDK's glue does that for its models",
        check: refusals::batches,
    },
    Law {
        id: "adapters",
        says: "an adapter that does not fit is an error that names the tensor",
        hint: "look up every target and compare its shape before anything is attached",
        check: refusals::adapters,
    },
    Law {
        id: "adapter-fits",
        says: "an adapter that fits changes the sequences that use it and no others, until it is detached",
        hint: "the usual cause is a target that is accepted and never applied, or weights that are changed for all",
        check: adapters::fits,
    },
    Law {
        id: "adapter-scale",
        says: "an adapter at strength 0 does nothing, and strength multiplies its own scale",
        hint: "the usual cause is a strength that is ignored, applied twice, or kept from the previous step",
        check: adapters::strength,
    },
    Law {
        id: "adapter-apart",
        says: "in one batch each sequence gets its own adapter and strength",
        hint: "the usual cause is the first span's adapter applied to all, or an adapter applied to another span's rows",
        check: adapters::apart_in_a_batch,
    },
    Law {
        id: "media",
        says: "an item gives the same rows each time, and other pixels give others",
        hint: "the usual cause is scratch memory read before it is written, or pixels that never reach the rows",
        check: media::repeatable,
    },
    Law {
        id: "media-order",
        says: "each of several items has its own slots",
        hint: "the usual cause is rows taken in the order of handles or of encoding instead of the placements'",
        check: media::order,
    },
    Law {
        id: "media-pieces",
        says: "an item encoded in pieces, or with others, has the rows of one encoded at once and alone",
        hint: "the usual cause is attention across the items of a batch, or a piece that begins at the wrong layer",
        check: media::pieces,
    },
    Law {
        id: "media-batched",
        says: "rows go to their own slots in any batch and chunk, and nowhere else",
        hint: "the usual cause is a slot counted from the span's start instead of the item's, or in another span",
        check: media::batched,
    },
    Law {
        id: "media-passed",
        says: "rows may be closed once their slots are computed, and the text goes on",
        hint: "the usual cause is positions taken from rows instead of from layouts, or rows looked up for all placements",
        check: media::passed,
    },
    Law {
        id: "media-closed",
        says: "an item that is closed leaves the others alone, and its handle may be used again",
        hint: "the usual cause is a batch that keeps a closed item, or its place in it",
        check: media::cancelled,
    },
    Law {
        id: "media-refuses",
        says: "damaged items and slots without rows are refused, and slots of no item are tokens",
        hint: "compare the length of prepared bytes with the layout, and check placements before anything is computed",
        check: media::refuses,
    },
    Law {
        id: "recall",
        says: "whether a repeated text is predicted better the second time",
        hint: "a good prompt must give logits",
        check: past::recall,
    },
    Law {
        id: "reference",
        says: "logits are those of another implementation",
        hint: "if no other law is broken, the usual causes are the rotation's pairing (halves or neighbours), a norm's \
               epsilon, a scale, or two swapped weights",
        check: past::reference,
    },
];

/// Tests all laws on a freshly loaded model; those of encoders on one that keeps nothing between steps. `watch` is
/// called before and after each one, so that if the model ends the process, the crash can be attributed to a law, and
/// earlier verdicts are not lost.
pub fn check(model: &mut ModelBox, shape: Shape, options: &Options, watch: &mut dyn FnMut(Progress<'_>)) -> Report {
    let laws = if shape.keeps_nothing() { texts::LAWS } else { LAWS };
    let first = ["resident", "repeatable"];
    let is_wanted = |law: &&Law<Check>| !options.only_references || law.id == "reference" || first.contains(&law.id);
    let laws: Vec<&Law<Check>> = laws.iter().filter(is_wanted).collect();
    let mut rig = Rig::new(model, shape, options);
    run(laws, &first, watch, |check| {
        let outcome = check(&mut rig);
        rig.clear();
        outcome
    })
}

/// Tests laws in order, and stops if one of the `first` is broken.
fn run<'a, C: Copy + 'a>(
    laws: impl IntoIterator<Item = &'a Law<C>>,
    first: &[&str],
    watch: &mut dyn FnMut(Progress<'_>),
    mut check: impl FnMut(C) -> Finding,
) -> Report {
    let mut report = Report::default();
    for law in laws {
        watch(Progress::Tries(law.id));
        let unmet = report.broken().map(|verdict| verdict.law).find(|id| first.contains(id));
        let mut outcome = match unmet {
            Some(unmet) => report::skipped(format!("law '{unmet}' comes first")),
            None => check(law.check).unwrap_or_else(|outcome| outcome),
        };
        if let Outcome::Broken { what, hint } = &mut outcome
            && hint.is_empty()
        {
            let refused = what.contains(rig::REFUSED);
            *hint = if refused { "the model refused a valid batch; its error says why" } else { law.hint }.into();
        }
        let verdict = Verdict { law: law.id, says: law.says, outcome };
        watch(Progress::Found(&verdict));
        report.verdicts.push(verdict);
    }
    report
}
