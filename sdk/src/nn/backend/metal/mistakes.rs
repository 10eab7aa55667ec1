//! Mutation tests of the kernels: mistakes planted in their sources, each of which their tests find.
//!
//! All mistakes are in one source, so that it is compiled once, and a run says which one it makes.

use super::{
    libraries::{ATTENTION, Library},
    program::Program,
    tests::{CASES, check},
};

pub(super) const BARRIER: &str = "threadgroup_barrier(mem_flags::mem_threadgroup);";

/// How a mistake is found.
#[derive(Clone, Copy)]
pub(super) enum Found {
    /// The numbers are not the formula's for the heads of this family.
    In(&'static str),
    /// The numbers are not the formula's for any input.
    InAll,
    /// Threads wait where others never come.
    Waiting,
}

pub(super) struct Mistake {
    pub(super) what: &'static str,
    /// What is changed is right behind this in the source, or begins it.
    pub(super) behind: &'static str,
    pub(super) right: &'static str,
    /// In this, `HERE` is whether the mistake is made.
    pub(super) wrong: &'static str,
    pub(super) found: Found,
}

const ATTENTION_MISTAKES: &[Mistake] = &[
    Mistake {
        what: "keys are read before all queries are there",
        behind: "start += TILE) {",
        right: BARRIER,
        wrong: "if (!HERE) threadgroup_barrier(mem_flags::mem_threadgroup);",
        found: Found::In("llama"),
    },
    Mistake {
        what: "a softmax begins before all scores are there",
        behind: "is_seen ? dot : -INFINITY;",
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
        behind: "is_seen ? dot : -INFINITY;",
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

/// The library with all mistakes, of which a run makes one or none.
fn planted(library: &Library, mistakes: &[Mistake]) -> Program {
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
    Program::compile_with(&compiler, &["-O1"], &format!("{chosen}{source}"), library.kernels)
}

/// Makes each mistake and expects that the check finds it.
pub(super) fn are_found(
    library: &Library,
    mistakes: &[Mistake],
    check: impl Fn(&Program, Found) -> Result<(), String>,
) {
    let mut program = planted(library, mistakes);
    check(&program, Found::Waiting).expect("the kernels without a mistake");
    for (number, Mistake { what, found, .. }) in mistakes.iter().enumerate() {
        program.mistake = number + 1;
        let said = check(&program, *found).expect_err(what);
        let waits = said.contains("wait where others never come");
        assert_eq!(waits, matches!(found, Found::Waiting), "{what}: {said}");
        assert!(waits || (said.contains(" is ") && said.contains(", not ")), "{what}: {said}");
    }
}

#[test]
fn mistakes_in_the_attention_kernels_are_found() {
    are_found(&ATTENTION, ATTENTION_MISTAKES, |program, found| match found {
        Found::In(family) => check(program, CASES.into_iter().find(|case| case.family == family).unwrap()),
        Found::InAll | Found::Waiting => check(program, CASES[0]),
    });
}
