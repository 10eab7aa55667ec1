//! The table of planted faults: right models, samplers and adapter formats with one thing wrong, and the law that tells an author so. Rows that say
//! `REFERENCE` are wrong each time in the same way, so that no law can see them; another implementation's logits do.
//!
//! `cargo test -p pensieve-sdk --test laws -- --nocapture planted` prints it.

use pensieve_sdk::testing::Report;

use crate::{adapting, attending, encoding, grouped, recurrent, sampling};

/// No law finds it, the logits of another implementation do.
const REFERENCE: &str = "reference";

struct Mutant {
    subject: &'static str,
    what: &'static str,
    /// The first law that must be broken.
    law: &'static str,
    /// Tries the laws, with a reference or without.
    check: fn(bool) -> Report,
}

macro_rules! table {
    ($($model:ident { $($fault:ident: $what:literal => $law:expr,)* })*) => {
        &[$($(Mutant {
            subject: stringify!($model),
            what: $what,
            law: $law,
            check: |compared| $model::check($model::Fault::$fault, compared),
        },)*)*]
    };
}

const TABLE: &[Mutant] = table! {
    attending {
        CacheOffByOne: "each token is written one place late" => "garbage",
        PastOneShort: "the token just before a chunk is forgotten" => "chunked",
        CacheAtChunkIndex: "tokens are written at their index in the chunk" => "chunked",
        PositionsFromChunk: "positions count from the chunk's start" => "chunked",
        PositionsIgnored: "positions are not applied" => "order",
        PositionsCounted: "the place in the sequence is taken for the position" => "positions",
        CacheAtPosition: "the position is taken for the place in the cache" => "positions",
        RotationsTooFew: "there is no rotation for the context's last position" => "far-positions",
        TableIgnored: "a sequence's blocks are taken to follow one another" => "shuffled",
        CacheById: "the cache is kept by sequence id" => "shared-prefix",
        WritesTooFar: "one token too many is written" => "own-places",
        ReadsTooFar: "the rest of the last block is read" => "garbage",
        NotCausal: "later tokens are read" => "causal",
        AttendsToAll: "the tokens of all sequences in the batch are read" => "batched",
        RowsReversed: "rows come in the reverse order of the spans" => "batched",
        LastIsFirst: "the first token's row stands for the last one's" => "want",
        MaskIgnored: "candidates are chosen among all tokens" => "candidates",
        WorstFirst: "candidates come from the worst to the best" => "candidates",
        TotalOfCandidates: "totals are those of the candidates alone" => "candidates",
        UnwantedSkipped: "chunks without wanted logits are left out" => "want",
        Random: "logits change from call to call" => "repeatable",
        Nan: "a logit of a long batch is not a number" => "repeatable",
        Panics: "it panics" => "repeatable",
        ExportsKeysOnly: "blocks are exported without their values" => "kv-transfer",
        ImportsToBlockZero: "blocks are imported into the first one" => "kv-transfer",
        TakesAnyAdapter: "an adapter for nothing is taken" => "adapters",
        AdapterErrorNamesNothing: "a refused adapter's error names no tensor" => "adapters",
        QueryRotatedOtherwise: "halves of queries are rotated against neighbours of keys" => REFERENCE,
        AllRotatedOtherwise: "neighbours are rotated where the weights have halves" => REFERENCE,
    }
    recurrent {
        Bag: "tokens are added up, so that their order is lost" => "order",
        StateShared: "one state serves all sequences" => "batched",
        ChunkBeginsAnew: "each chunk begins with a blank state" => "chunked",
        LastForgotten: "a chunk's last token is answered but not remembered" => "chunked",
        Padded: "short spans read on to the length of the longest" => "batched",
        UnwantedSkipped: "chunks without wanted logits are not read" => "want",
        IdsCut: "ids are cut to 32 bits" => "names",
        ReleasesAnother: "a release frees another sequence" => "released",
        ReleasesNone: "a release does nothing" => "forgets",
        PastUnchecked: "a step that does not follow is computed" => "counts",
        PastCheckedLate: "the past is checked when the spans before are done" => "counts",
        ForkShares: "a fork shares its state" => "sequence-state",
        SnapshotHalf: "half of the state is copied" => "sequence-state",
        RestorePanics: "a restore of wrong bytes panics" => "sequence-state",
        RestoreTakesAnyLength: "a restore takes any length" => "sequence-state",
        RestoreForgetsCount: "a restore leaves out how much was seen" => "sequence-state",
        StrangersForked: "a sequence that does not exist can be forked" => "sequence-state",
    }
    grouped {
        WindowOneLong: "a window is one token longer than the card's" => "window",
        WindowOneShort: "a window is one token shorter than the card's" => "reach",
        WindowIgnored: "a window is not applied" => "window",
        WindowOfTheStep: "a window ends at the step's last token instead of each one" => "chunked",
        WindowOf48: "attention to all tokens reads the last 48" => "reach",
        GroupsSwapped: "one group is kept in the blocks of another" => "reach",
        StateFromWriteSlot: "a state is read from the slot that it is written to" => "shared-prefix",
        StateNotBlank: "a new sequence begins with what lies in its slot" => "garbage",
        StateBySequence: "states are kept by sequence id" => "shared-prefix",
        StateWrittenBack: "a state is written to the slot that it was read from, too" => "drafted",
        CheckpointLate: "a copy of a state is one token late" => "shared-prefix",
        CheckpointAtEnd: "a copy of a state is that of the span's end" => "shared-prefix",
        CheckpointsFirstOnly: "only the first copy of a step is left" => "checkpoints",
        CheckpointFromSpan: "the place of a copy counts from the span's start" => "drafted",
        DraftsKept: "drafted tokens are read after they were taken back" => "drafted",
        TransfersNoStates: "states are exported as zeros" => "kv-transfer",
        TransfersOneGroup: "one group's blocks are exported for all groups" => "kv-transfer",
        ExpertsOverflow: "an expert takes six tokens of a step and drops the others" => "chunked",
        ExpertsScattered: "experts' rows go back to the wrong tokens" => "causal",
        FirstMaskForAll: "the first row's mask is taken for all rows" => "candidates",
        OneTooMany: "a candidate is handed over twice" => "candidates",
        TotalsSwapped: "the totals of all and of the allowed tokens change places" => "candidates",
        HiddenAmongAll: "hidden rows are counted among all rows of a step" => "hidden",
        HiddenOfTheFirst: "a chunk's hidden rows are those of its first token" => "hidden",
        HiddenUnwritten: "hidden rows beyond the fourth of a step are not written" => "hidden",
        EpsilonTimes100: "a norm's epsilon is a hundred times too large" => REFERENCE,
        ErfGelu: "GELU is the exact one instead of the approximation" => REFERENCE,
        RouterNotRenormalized: "the chosen experts' weights do not add up to one" => REFERENCE,
        ExpertsTakenForEachOther: "two experts are taken for each other" => REFERENCE,
        ScaleMissing: "attention is not scaled" => REFERENCE,
        SelfExcluded: "a token does not read itself" => REFERENCE,
        StateGateFlipped: "a gate keeps what it should forget" => REFERENCE,
    }
    encoding {
        ReadsAllTexts: "the tokens of all texts in the batch are read" => "company",
        Padded: "padding up to the longest text takes part" => "company",
        PositionsFromBatch: "positions count from the batch's start" => "company",
        TextsReversed: "rows come in the reverse order of the texts" => "company",
        PositionsIgnored: "positions are not applied" => "order",
        LastIsFirst: "the first token's row stands for the last one's" => "want",
        UnwantedGiven: "a text of which no row is wanted gives one" => "want",
        IdIsIndex: "a sequence's id is taken for an index" => "names",
        GivesLogits: "logits are given" => "whole",
        TakesTheRest: "the rest of a text is taken for a text" => "whole",
        Random: "rows change from call to call" => "repeatable",
        Nan: "a value of a long text is not a number" => "repeatable",
        Causal: "a token does not read later ones" => REFERENCE,
        PositionsFromTwo: "positions count from 2" => REFERENCE,
        EpsilonTimes100: "a norm's epsilon is a hundred times too large" => REFERENCE,
        NotNormalized: "the weights of attention do not add up to one" => REFERENCE,
    }
    sampling {
        PlaceForId: "a place in the list is picked for a token" => "own",
        LeftTwice: "a token is left over twice" => "own",
        ForeignLeft: "a token is left over that was not given" => "own",
        PicksBarred: "a token is picked that a grammar bars" => "barred",
        PicksNan: "a token is picked whose logit is no number" => "barred",
        LeavesNothing: "no candidate is left" => "barred",
        MakesNan: "equal logits are divided by their difference" => "numbers",
        SaysSorted: "candidates are said to descend" => "sorted",
        SeedFromClock: "draws depend on when the stage was made" => "seed",
        DrawsShared: "stages draw from one generator" => "seed",
        ScratchShared: "stages on several threads keep a place in one variable" => "concurrent",
        UnknownTaken: "an unknown parameter is taken" => "parameters",
        NonsensePanics: "parameters that are not JSON panic" => "parameters",
        RefusedAsUnsupported: "wrong parameters are unsupported instead of invalid" => "parameters",
        UnknownNotNamed: "an unknown parameter is not named" => "parameters",
        EmptyRefused: "no parameters are refused" => "made",
        EmptyPanics: "no candidates panic" => "own",
        OneTokenPanics: "a vocabulary of one token panics" => "made",
        TooSlow: "a large vocabulary takes longer than a host waits" => "deadline",
    }
    adapting {
        ClaimsAll: "a format claims every file and says that it is damaged" => "declines",
        ReadsAll: "a format reads an adapter out of any file" => "declines",
        OpenPanics: "a format panics on a folder" => "declines",
        NotRead: "a format claims its adapter and does not read it" => "opens",
        NoPairs: "an adapter is read without pairs" => "opens",
        ValuesMissing: "B has fewer values than its shape" => "shapes",
        ValueNan: "a factor has a value that is no number" => "shapes",
        TargetTwice: "a target has two pairs" => "shapes",
        FingerprintEmpty: "the fingerprint is empty" => "same",
        FingerprintCounted: "the fingerprint is another one each time" => "same",
        PairsReordered: "pairs come in another order each time" => "same",
        FingerprintOfTheSize: "the fingerprint is that of the file's size" => "damaged",
        CutPanics: "a file that was cut short panics" => "declines",
        NeverApplied: "an adapter is taken and never applied" => "adapter-fits",
        AppliedToAll: "an attached adapter changes all sequences" => "adapter-fits",
        StrengthIgnored: "an adapter's strength is ignored" => "adapter-scale",
        StrengthTwice: "an adapter's strength is applied twice" => "adapter-scale",
        ZeroAdds: "strength 0 is taken for none given" => "adapter-scale",
        ScaleIgnored: "an adapter's own scale is ignored" => "adapter-scale",
        FirstForAll: "the first span's adapter is applied to all" => "adapter-apart",
        RowsOfTheBatch: "the third span of a batch goes without its adapter" => "adapter-apart",
    }
};

#[test]
fn every_planted_fault_is_found_by_the_law_that_the_table_names() {
    let mut wrong = Vec::new();
    for Mutant { subject, what, law, check } in TABLE {
        println!("{subject:<10} {what:<64} {law}");
        let report = check(*law == REFERENCE);
        let first = report.broken().next().map(|verdict| verdict.law);
        if first != Some(*law) {
            wrong.push(format!("{subject}: {what}: {first:?} instead of '{law}'\n{report}"));
        }
        if *law == REFERENCE && !check(false).passed() {
            wrong.push(format!("{subject}: {what}: a law finds it without a reference\n{}", check(false)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn most_planted_faults_are_found_without_a_reference() {
    let by_laws = TABLE.iter().filter(|mutant| mutant.law != REFERENCE).count();
    println!("{by_laws} of {} are found without a reference", TABLE.len());
    assert!(TABLE.len() >= 40 && by_laws >= 36 && by_laws * 10 >= TABLE.len() * 8, "{by_laws} of {}", TABLE.len());
}
