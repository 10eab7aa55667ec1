//! Mutation tests of the kernels: mistakes planted in their sources, each of which their tests find.
//!
//! All mistakes are in one source, so that it is compiled once, and a run says which one it makes.

use super::{
    libraries::{ATTENTION, Library},
    program::Program,
    tests::{Way, check, check_shared},
};
use crate::nn::backend::cases::CASES;

pub(super) const BARRIER: &str = "threadgroup_barrier(mem_flags::mem_threadgroup);";

/// How a mistake is found.
#[derive(Clone, Copy)]
pub(super) enum Found {
    /// The numbers are not the formula's for the heads of this case.
    In(&'static str),
    /// The same, by the kernels of matrices, over whole contexts or parts of them.
    InFlash(&'static str, Way),
    /// The same, of sequences that share a prefix.
    InShared(&'static str),
    /// The numbers are not the formula's for any input.
    InAll,
    /// Threads of `attend`, or of `flash`, wait where others never come.
    Waiting,
    WaitingInFlash,
    /// Lanes of a SIMD-group do not take part in the same work on matrices.
    Apart,
    /// A threadgroup writes behind its memory.
    Behind,
}

pub(super) struct Mistake {
    pub(super) what: &'static str,
    /// The changed text is right behind this in the source, or begins it.
    pub(super) behind: &'static str,
    pub(super) right: &'static str,
    /// In this, `HERE` is whether the mistake is made.
    pub(super) wrong: &'static str,
    pub(super) found: Found,
}

const SCALAR_MISTAKES: &[Mistake] = &[
    Mistake {
        what: "keys are read before all queries are there",
        behind: "start += TILE) {",
        right: BARRIER,
        wrong: "if (!HERE) threadgroup_barrier(mem_flags::mem_threadgroup);",
        found: Found::In("llama"),
    },
    Mistake {
        what: "a softmax begins before all scores are there",
        behind: "is_seen ? dot : UNSEEN;",
        right: BARRIER,
        wrong: "if (!HERE) threadgroup_barrier(mem_flags::mem_threadgroup);",
        found: Found::In("llama"),
    },
    Mistake {
        what: "values are summed before all weights are there",
        behind: "peak[row] = now;",
        right: BARRIER,
        wrong: "if (!HERE) threadgroup_barrier(mem_flags::mem_threadgroup);",
        found: Found::In("llama"),
    },
    Mistake {
        what: "sums are written out before they are complete",
        behind: "sums[row * head_dim + d] = acc[row];",
        right: BARRIER,
        wrong: "if (!HERE) threadgroup_barrier(mem_flags::mem_threadgroup);",
        found: Found::In("phi"),
    },
    Mistake {
        what: "half of a threadgroup passes a barrier by",
        behind: "is_seen ? dot : UNSEEN;",
        right: BARRIER,
        wrong: "if (!HERE || thread_index < 64) threadgroup_barrier(mem_flags::mem_threadgroup);",
        found: Found::Waiting,
    },
    Mistake {
        what: "queries of the last token are not written",
        behind: "",
        right: "if (token >= shape.tokens) return;",
        wrong: "if (token + HERE >= shape.tokens) return;",
        found: Found::In("llama"),
    },
    Mistake {
        what: "heads of keys are a slot too close",
        behind: "",
        right: "(ulong)(place / shape.head_dim) * shape.slots",
        wrong: "(ulong)(place / shape.head_dim) * (shape.slots - HERE)",
        found: Found::In("llama"),
    },
    Mistake {
        what: "the block table is not followed",
        behind: "",
        right: "(ulong)table[within / BLOCK_TOKENS]",
        wrong: "(ulong)(HERE ? within / BLOCK_TOKENS : table[within / BLOCK_TOKENS])",
        found: Found::In("llama"),
    },
    Mistake {
        what: "a token sees the one behind it",
        behind: "",
        right: "at <= position &&",
        wrong: "at <= position + HERE &&",
        found: Found::In("llama"),
    },
    Mistake {
        what: "a window is one token too wide",
        behind: "",
        right: "position - at < shape.window)",
        wrong: "position - at < shape.window + HERE)",
        found: Found::In("mistral"),
    },
    Mistake {
        what: "scores have no cap",
        behind: "",
        right: "if (shape.softcap > 0.0f)",
        wrong: "if (shape.softcap > 0.0f && !HERE)",
        found: Found::In("gemma"),
    },
    Mistake {
        what: "a sink has no mass",
        behind: "",
        right: "if (shape.has_sinks)",
        wrong: "if (shape.has_sinks && !HERE)",
        found: Found::In("gpt-oss"),
    },
    Mistake {
        what: "neighbours rotate where halves should",
        behind: "const uint pair = ",
        right: "shape.is_interleaved ? at / 2",
        wrong: "shape.is_interleaved != HERE ? at / 2",
        found: Found::In("llama"),
    },
    Mistake {
        what: "what is not rotated is",
        behind: "",
        right: "|| at >= 2 * half_dim)",
        wrong: "|| (!HERE && at >= 2 * half_dim))",
        found: Found::In("phi"),
    },
    Mistake {
        what: "sums are not scaled down to a new peak",
        behind: "",
        right: "acc[row] = sums[row * head_dim + d] * factor[row]",
        wrong: "acc[row] = sums[row * head_dim + d] * (HERE ? 1.0f : factor[row])",
        found: Found::In("llama"),
    },
];

/// In `flash.metal`.
const FLASH_MISTAKES: &[Mistake] = &[
    Mistake {
        what: "a tile of keys is read before it is there",
        behind: "put(key_tile, share, thread_index);",
        right: BARRIER,
        wrong: "if (!HERE) threadgroup_barrier(mem_flags::mem_threadgroup);",
        found: Found::InFlash("llama", Way::Whole),
    },
    Mistake {
        what: "keys make place for values while others read them",
        behind: "simdgroup_store(products[k], scratch + 8 * k, SCRATCH);",
        right: BARRIER,
        wrong: "if (!HERE) threadgroup_barrier(mem_flags::mem_threadgroup);",
        found: Found::InFlash("llama", Way::Whole),
    },
    Mistake {
        what: "values are summed before they are there",
        behind: "peak = now;\n        ",
        right: BARRIER,
        wrong: "if (!HERE) threadgroup_barrier(mem_flags::mem_threadgroup);",
        found: Found::InFlash("llama", Way::Whole),
    },
    Mistake {
        what: "the next keys overwrite values that others sum",
        behind: "for (; start < end; start += KEYS) {",
        right: BARRIER,
        wrong: "if (!HERE) threadgroup_barrier(mem_flags::mem_threadgroup);",
        found: Found::InFlash("llama", Way::Whole),
    },
    Mistake {
        what: "weights are read before all lanes have written theirs",
        behind: "j == line ? factor : 0.0f;",
        right: "simdgroup_barrier(mem_flags::mem_threadgroup);",
        wrong: "if (!HERE) simdgroup_barrier(mem_flags::mem_threadgroup);",
        found: Found::InFlash("llama", Way::Whole),
    },
    Mistake {
        what: "half of a threadgroup passes a barrier by",
        behind: "peak = now;\n        ",
        right: BARRIER,
        wrong: "if (!HERE || thread_index < 64) threadgroup_barrier(mem_flags::mem_threadgroup);",
        found: Found::WaitingInFlash,
    },
    Mistake {
        what: "some lanes leave a product out",
        behind: "",
        right: "simdgroup_multiply_accumulate(sums[i], weight",
        wrong: "if (!HERE || lane > 7) simdgroup_multiply_accumulate(sums[i], weight",
        found: Found::WaitingInFlash,
    },
    Mistake {
        what: "lanes load different matrices",
        behind: "",
        right: "simdgroup_load(value, key_tile + 8 * k * STRIDE",
        wrong: "simdgroup_load(value, key_tile + 8 * (HERE ? lane % 2 : k) * STRIDE",
        found: Found::Apart,
    },
    Mistake {
        what: "rows scale in some lanes alone",
        behind: "",
        right: "const bool is_higher = simd_any(now > peak);",
        wrong: "const bool is_higher = HERE ? now > peak : simd_any(now > peak);",
        found: Found::Apart,
    },
    Mistake {
        what: "a tile is longer than its memory",
        behind: "",
        right: "((threadgroup uint4 *)(tile + key * STRIDE))",
        wrong: "((threadgroup uint4 *)(tile + (key + HERE) * STRIDE))",
        found: Found::Behind,
    },
    Mistake {
        what: "the block table is not followed",
        behind: "at = min(max(start + key, low), end - 1);",
        right: "(ulong)table[at / BLOCK_TOKENS]",
        wrong: "(ulong)(HERE ? at / BLOCK_TOKENS : table[at / BLOCK_TOKENS])",
        found: Found::InFlash("llama", Way::Whole),
    },
    Mistake {
        what: "keys are not transposed",
        behind: "",
        right: "ulong2(0), true)",
        wrong: "ulong2(0), !HERE)",
        found: Found::InFlash("llama", Way::Whole),
    },
    Mistake {
        what: "a token sees the one behind it",
        behind: "// Most tiles are seen whole",
        right: "at <= position &&",
        wrong: "at <= position + HERE &&",
        found: Found::InFlash("llama", Way::Whole),
    },
    Mistake {
        what: "a tile that only the last row sees whole counts as seen by all",
        behind: "// Most tiles are seen whole",
        right: "start + KEYS > first_at + 1",
        wrong: "start + KEYS > (HERE ? last_at : first_at) + 1",
        found: Found::InFlash("llama", Way::Whole),
    },
    Mistake {
        what: "a tile whose first keys only the first row sees counts as seen by all",
        behind: "// Most tiles are seen whole",
        right: "last_at - start >= shape.window",
        wrong: "(HERE ? first_at : last_at) - start >= shape.window",
        found: Found::InFlash("window of 47", Way::Whole),
    },
    Mistake {
        what: "the next tile's keys are fetched from this one's",
        behind: "if (start + KEYS < end) ",
        right: "table, start + KEYS, low",
        wrong: "table, start + (HERE ? 0 : KEYS), low",
        found: Found::InFlash("llama", Way::Whole),
    },
    Mistake {
        what: "a window is one token too wide",
        behind: "// Most tiles are seen whole",
        right: "position - at < shape.window)",
        wrong: "position - at < shape.window + HERE)",
        found: Found::InFlash("mistral", Way::Whole),
    },
    Mistake {
        what: "a window begins one token too late",
        behind: "",
        right: "first_at + 1 - shape.window : 0;\n    low",
        wrong: "first_at + 1 + HERE - shape.window : 0;\n    low",
        found: Found::InFlash("mistral", Way::Whole),
    },
    Mistake {
        what: "slices do not add up their scores",
        behind: "",
        right: "for (uint c = 0; c < C; c++)",
        wrong: "for (uint c = 0; c < (HERE ? 1 : C); c++)",
        found: Found::InFlash("gemma", Way::Whole),
    },
    Mistake {
        what: "scores have no cap",
        behind: "SCRATCH + 4 * j + part];\n        }\n        ",
        right: "if (shape.softcap > 0.0f)",
        wrong: "if (shape.softcap > 0.0f && !HERE)",
        found: Found::InFlash("gemma", Way::Whole),
    },
    Mistake {
        what: "sums are not scaled down to a new peak",
        behind: "simd_any(now > peak);\n",
        right: "if (is_higher)",
        wrong: "if (is_higher && !HERE)",
        found: Found::InFlash("llama", Way::Whole),
    },
    Mistake {
        what: "a sink has no mass",
        behind: "",
        right: "} else if (shape.has_sinks) {",
        wrong: "} else if (shape.has_sinks && !HERE) {",
        found: Found::InFlash("gpt-oss", Way::Whole),
    },
    Mistake {
        what: "parts are added up without their peaks",
        behind: "sum += first[i * width + d] * ",
        right: "exp(peaks[i * width] - top)",
        wrong: "(HERE ? 1.0f : exp(peaks[i * width] - top))",
        found: Found::InFlash("llama", Way::Parts),
    },
    Mistake {
        what: "the parts of one row are another's",
        behind: "device const float *first =",
        right: "* shape.heads + head)",
        wrong: "* shape.heads + head * !HERE)",
        found: Found::InFlash("llama", Way::Parts),
    },
    Mistake {
        what: "a shared prefix is read by each sequence once more",
        behind: "",
        right: "low = max(low, shape.first_key);",
        wrong: "low = max(low, shape.first_key * !HERE);",
        found: Found::InShared("llama"),
    },
    Mistake {
        what: "a shared prefix has no end",
        behind: "",
        right: "shape.end_key > 0 ?",
        wrong: "shape.end_key * !HERE > 0 ?",
        found: Found::InShared("llama"),
    },
    Mistake {
        what: "a sequence's own parts are written over the prefix's",
        behind: "",
        right: "shape.first_part + split",
        wrong: "shape.first_part * !HERE + split",
        found: Found::InShared("llama"),
    },
];

/// The library with all mistakes, of which a run makes one or none.
fn planted(library: &Library, kernels: &[&str], mistakes: &[Mistake]) -> Program {
    let mut source = library.source.to_owned();
    for (number, mistake) in mistakes.iter().enumerate() {
        let Mistake { what, behind, right, .. } = mistake;
        let behind_at = source.find(behind).unwrap_or_else(|| panic!("{what}: '{behind}' is not in the source"));
        let start = behind_at + behind.len();
        let at =
            start + source[start..].find(right).unwrap_or_else(|| panic!("{what}: '{right}' is not in the source"));
        let wrong = mistake.wrong.replace("HERE", &format!("(mistake == {})", number + 1));
        source.replace_range(at..at + right.len(), &wrong);
    }
    let chosen = "#include <cstdlib>\nstatic const int mistake = atoi(getenv(\"MISTAKE\"));\n";
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    Program::compile_with(&compiler, &["-O1"], &format!("{chosen}{source}"), kernels)
}

/// Makes each mistake and expects that the check finds it.
pub(super) fn are_found(
    library: &Library,
    mistakes: &[Mistake],
    check: impl Fn(&Program, Found) -> Result<(), String>,
) {
    are_found_in(library, library.kernels, mistakes, check);
}

/// The same, with those kernels alone that the check runs.
fn are_found_in(
    library: &Library,
    kernels: &[&str],
    mistakes: &[Mistake],
    check: impl Fn(&Program, Found) -> Result<(), String>,
) {
    let mut program = planted(library, kernels, mistakes);
    check(&program, mistakes[0].found).expect("the kernels without a mistake");
    for (number, Mistake { what, found, .. }) in mistakes.iter().enumerate() {
        program.mistake = number + 1;
        let said = check(&program, *found).expect_err(what);
        let expected: &[&str] = match found {
            Found::Waiting | Found::WaitingInFlash => &["wait where others never come"],
            Found::Apart => &["work on different matrices"],
            Found::Behind => &["writes behind its memory"],
            Found::In(_) | Found::InFlash(..) | Found::InShared(_) | Found::InAll => &[" is ", ", not "],
        };
        assert!(expected.iter().all(|words| said.contains(words)), "{what}: {said}");
    }
}

fn attends(program: &Program, found: Found) -> Result<(), String> {
    let family = |name: &str| CASES.into_iter().find(|case| case.name == name).unwrap();
    match found {
        Found::In(name) => check(program, family(name), &[Way::Scalar]),
        Found::InFlash(name, way) => check(program, family(name), &[way]),
        Found::InShared(name) => check_shared(program, family(name), &[Way::Parts]),
        Found::InAll | Found::Waiting => check(program, CASES[0], &[Way::Scalar]),
        Found::WaitingInFlash | Found::Apart | Found::Behind => check(program, CASES[0], &[Way::Whole]),
    }
}

#[test]
fn mistakes_in_attention_are_found() {
    let kernels = ["store_f16", "attend_f16"];
    are_found_in(&ATTENTION, &kernels, SCALAR_MISTAKES, attends);
}

#[test]
fn mistakes_in_attention_on_matrices_are_found() {
    let kernels = [
        "store_f16",
        "flash_f16_64",
        "flash_f16_64_few",
        "flash_f16_128",
        "flash_f16_128_few",
        "flash_f16_256",
        "flash_f16_256_few",
        "combine_parts",
    ];
    are_found_in(&ATTENTION, &kernels, FLASH_MISTAKES, attends);
}
