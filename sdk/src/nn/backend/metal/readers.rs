//! The sources under stricter readers than the emulation's: address spaces as types, fast math, as Metal compiles, and the real
//! threads of an NVIDIA GPU.
//!
//! The first two take clang. Where there is none that is new enough, or no GPU, the tests say so and pass;
//! `PENSIEVE_REQUIRE_CLANG=1` and `PENSIEVE_REQUIRE_CUDA=1` make that a failure.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use super::{
    elementwise_tests, experts_tests,
    libraries::{ATTENTION, ELEMENTWISE, EXPERTS, LIBRARIES, LOGITS, Library, Math, NORMS, PRODUCTS, RECURRENCE},
    product_tests,
    program::{Program, emulation},
    recurrence_tests,
    tests::{Way, check},
};
use crate::nn::backend::cases::CASES;

/// The first clang that has address spaces for these headers, and the first that folds infinities away and warns of them.
const WITH_ADDRESS_SPACES: u32 = 17;
const WITH_FAST_MATH: u32 = 19;

/// Says that a check is left out, past the harness, which shows what a test prints only if it fails. The variable makes it a failure.
fn skip(require: &str, why: &str) {
    let is_required = std::env::var_os(require).is_some_and(|value| value == "1");
    assert!(!is_required, "{require}=1, but {why}");
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}

/// A clang++ of this version or a later one. Apple's own has other versions, and is not needed beside its Metal compiler.
fn clang(least: u32) -> Option<String> {
    let names = (least..=30).rev().map(|version| format!("clang++-{version}")).chain(["clang++".to_owned()]);
    let version = |name: &String| {
        let said = Command::new(name).arg("--version").stderr(Stdio::null()).output().ok()?.stdout;
        let said = String::from_utf8_lossy(&said).into_owned();
        let number = said.split("clang version ").nth(1)?.split('.').next()?.parse::<u32>().ok()?;
        Some(if said.starts_with("Apple") { 0 } else { number })
    };
    let found = names.into_iter().find(|name| version(name).is_some_and(|version| version >= least));
    if found.is_none() {
        skip(
            "PENSIEVE_REQUIRE_CLANG",
            &format!("the Metal sources' strict readers need clang++ {least} or newer (Debian: clang-19)"),
        );
    }
    found
}

/// Clang's messages for a source, read with the strict headers; empty if nothing.
fn read(clang: &str, source: &str, flags: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kernels.metal");
    std::fs::write(&file, source).unwrap();
    let output = Command::new(clang)
        .args([
            "-fsyntax-only",
            "-nostdinc",
            "-nostdinc++",
            "-Wall",
            "-Werror",
            "-Wno-unknown-attributes",
            "-Wno-unused-const-variable",
        ])
        .args(flags)
        .arg("-I")
        .arg(emulation().join("strict"))
        .args(["-x", "c++"])
        .arg(&file)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.success(), said.is_empty(), "{said}");
    said
}

/// The source with a mistake in place of what is right.
fn with(library: &Library, right: &str, wrong: &str) -> String {
    assert!(library.source.contains(right), "'{right}' is not in the source");
    library.source.replacen(right, wrong, 1)
}

#[test]
fn the_sources_keep_to_metal_s_address_spaces_and_overloads() {
    let Some(clang) = clang(WITH_ADDRESS_SPACES) else { return };
    for library in LIBRARIES {
        // Metal 3 is C++14, Metal 4 C++17.
        for standard in ["-std=c++14", "-std=c++17"] {
            let said = read(&clang, library.source, &[standard]);
            assert!(said.is_empty(), "{}, {standard}:\n{said}", library.name);
        }
    }
}

/// A library, a correct text in it, a mistake in its place, and the message for it.
static MISTAKES: [(&Library, &str, &str, &str); 32] = [
    (
        &ATTENTION,
        "device const float *query =",
        "threadgroup float *query =",
        "an rvalue of type 'device float const *'",
    ),
    (&ATTENTION, "device const float *query =", "float *query =", "cannot initialize a variable of type 'float *'"),
    (&ATTENTION, "threadgroup float *scratch =", "device float *scratch =", "an rvalue of type 'threadgroup float *'"),
    (&ATTENTION, "(threadgroup T *)(shared", "(device T *)(shared", "type 'threadgroup _Float16 *'"),
    (
        &ATTENTION,
        "simdgroup_load(factors, diagonal, SCRATCH)",
        "simdgroup_load(factors, &factor, SCRATCH)",
        "no matching function",
    ),
    (
        &ATTENTION,
        "simdgroup_matrix<T, 8, 8> key;",
        "simdgroup_matrix<uint, 8, 8> key;",
        "matrices have values of half or float",
    ),
    (&ATTENTION, "simdgroup_matrix<T, 8, 8> value;", "simdgroup_matrix<T, 16, 8> value;", "matrices are 8 x 8"),
    (
        &ATTENTION,
        "simdgroup_multiply(sums[i], factors, sums[i])",
        "simdgroup_multiply(peak, factors, sums[i])",
        "no matching function",
    ),
    (&ATTENTION, "simdgroup_float8x8 weight;", "simdgroup_half8x8 weight;", "no matching function"),
    (&ATTENTION, "min(32u, SLICE - 8 * i)", "min(32, SLICE - 8 * i)", "ambiguous"),
    (&ATTENTION, "float factor = exp(peak - now)", "double factor = exp(peak - now)", "no_double_in_metal"),
    (&ATTENTION, "= min(first_row + 8", "= std::min(first_row + 8", "undeclared identifier 'std'"),
    (
        &NORMS,
        "inline float sum_of_all(float value, threadgroup float *partial",
        "inline float sum_of_all(float value, device float *partial",
        "no matching function",
    ),
    (
        &NORMS,
        "device const float *x = (is_query ? q : k) + row",
        "threadgroup const float *x = (is_query ? q : k) + row",
        "an rvalue of type 'device float const *'",
    ),
    (&NORMS, "rsqrt(simd_sum(squares)", "rsqrt(simd_sum((double)squares)", "no_double_in_metal"),
    (&ELEMENTWISE, "device float *out = part == 0", "float *out = part == 0", "an lvalue of type 'device float *'"),
    (
        &ELEMENTWISE,
        "device float *out = part == 0",
        "threadgroup float *out = part == 0",
        "an lvalue of type 'device float *'",
    ),
    (&ELEMENTWISE, "float value = x[at.x];", "double value = x[at.x];", "no_double_in_metal"),
    (
        &LOGITS,
        "device const float *row = logits",
        "const float *row = logits",
        "an rvalue of type 'device float const *'",
    ),
    (
        &LOGITS,
        "inline uint count_of_all(uint own, threadgroup float *partial",
        "inline uint count_of_all(uint own, device float *partial",
        "no matching function",
    ),
    (
        &LOGITS,
        "threadgroup uint *peaks, uint thread_index",
        "device uint *peaks, uint thread_index",
        "no matching function",
    ),
    (&LOGITS, "    device const uint *mask;", "    constant uint *mask;", "assigning 'device uint const *'"),
    (
        &PRODUCTS,
        "device const uchar *row = table",
        "threadgroup const uchar *row = table",
        "an rvalue of type 'device uchar const *'",
    ),
    (
        &PRODUCTS,
        "    device const float *residual;",
        "    threadgroup const float *residual;",
        "changes address space of pointer",
    ),
    (
        &PRODUCTS,
        "kernel void product_many(OPERANDS, threadgroup float *shared",
        "kernel void product_many(OPERANDS, device float *shared",
        "no matching function",
    ),
    (&PRODUCTS, "    device float *outs[MATRICES];", "    device const float *outs[MATRICES];", "discards qualifiers"),
    (
        &EXPERTS,
        "inline uint largest(threadgroup const uint *ranks",
        "inline uint largest(device const uint *ranks",
        "no matching function",
    ),
    (
        &EXPERTS,
        "inline Job job_of_tile(Job job, device const uint *sorted",
        "inline Job job_of_tile(Job job, threadgroup const uint *sorted",
        "assigning 'threadgroup uint const *'",
    ),
    (
        &EXPERTS,
        "kernel void experts_many(EXPERT_OPERANDS, threadgroup float *shared",
        "kernel void experts_many(EXPERT_OPERANDS, device float *shared",
        "no matching function",
    ),
    (
        &RECURRENCE,
        "device const uint *words = sequences",
        "constant uint *words = sequences",
        "an rvalue of type 'device uint const *'",
    ),
    (
        &RECURRENCE,
        "threadgroup const float *key = keys",
        "device const float *key = keys",
        "an rvalue of type 'threadgroup float *'",
    ),
    (&RECURRENCE, "device float *to = states", "threadgroup float *to = states", "an rvalue of type 'device float *'"),
];

#[test]
fn mistakes_of_address_spaces_and_types_are_found() {
    let Some(clang) = clang(WITH_ADDRESS_SPACES) else { return };
    for library in LIBRARIES {
        let planted = MISTAKES.iter().filter(|mistake| mistake.0.name == library.name);
        assert!(planted.count() >= 3, "no mistakes are planted in '{}'", library.name);
    }
    for (library, right, wrong, expected) in MISTAKES {
        let said = read(&clang, &with(library, right, wrong), &["-std=c++17"]);
        assert!(said.contains(expected), "'{wrong}' is not found: {said}");
    }
}

const FAST_MATH: [&str; 3] = ["-std=c++17", "-ffast-math", "-Wnan-infinity-disabled"];

/// Sources as they were before: a mask that a compiler for fast math may fold away.
const INFINITE: (&str, &str) = ("float UNSEEN = -1e30f", "float UNSEEN = -INFINITY");

#[test]
fn the_sources_have_no_infinity_that_fast_math_may_fold_away() {
    let Some(clang) = clang(WITH_FAST_MATH) else { return };
    for library in LIBRARIES {
        let said = read(&clang, library.source, &FAST_MATH);
        assert!(said.is_empty(), "{}:\n{said}", library.name);
    }
    let (right, wrong) = INFINITE;
    let said = read(&clang, &with(&ATTENTION, right, wrong), &FAST_MATH);
    assert!(said.contains("-Wnan-infinity-disabled"), "{said}");
}

/// The library's cases, on a program of it.
fn compute(library: &Library, program: &Program) -> Result<(), String> {
    match library.name {
        "attention" => CASES.iter().try_for_each(|case| check(program, *case, &[Way::Scalar, Way::Whole, Way::Parts])),
        "norms" => elementwise_tests::check_norms(program).and_then(|()| elementwise_tests::check_heads(program)),
        "elementwise" => {
            elementwise_tests::check_activations(program)?;
            elementwise_tests::check_gates(program)?;
            elementwise_tests::check_columns(program)
        }
        "logits" => elementwise_tests::check_best(program).and_then(|()| elementwise_tests::check_candidates(program)),
        "products" => {
            let cases = product_tests::CASES.iter();
            let mut cases = cases.flat_map(|(_, case)| [1, 5, 40].map(|rows| product_tests::Case { rows, ..*case }));
            cases.try_for_each(|case| product_tests::check(program, &case))?;
            product_tests::check_embeddings(program)
        }
        "experts" => {
            experts_tests::check_routes(program)?;
            experts_tests::check_sort(program)?;
            experts_tests::MIXTURES.iter().try_for_each(|case| experts_tests::check_mixture(program, case))
        }
        "recurrence" => {
            recurrence_tests::check_conv(program, 4, true)?;
            recurrence_tests::MATRICES.iter().try_for_each(|case| recurrence_tests::check_matrices(program, case))
        }
        name => panic!("no cases for library '{name}'"),
    }
}

#[test]
fn the_kernels_compute_the_formulas_in_their_math_modes() {
    let Some(clang) = clang(WITH_FAST_MATH) else { return };
    let compile = |math: Math, source: &str, kernels: &[&str]| {
        let options: &[&str] = match math {
            Math::Fast => &["-O2", "-ffast-math"],
            Math::Safe => &["-O2"],
        };
        Program::compile_with(&clang, options, source, kernels)
    };
    for library in LIBRARIES {
        let program = compile(library.math, library.source, library.kernels);
        compute(library, &program).unwrap_or_else(|said| panic!("{}: {said}", library.name));
    }
    // In fast math a candidate of a row with a NaN is another one, and an infinite mask is taken for a number.
    assert!(compute(&LOGITS, &compile(Math::Fast, LOGITS.source, LOGITS.kernels)).is_err());
    let (right, wrong) = INFINITE;
    let kernels = ["store_f16", "attend_f16", "flash_f16_128", "flash_f16_128_few"];
    let program = compile(Math::Fast, &with(&ATTENTION, right, wrong), &kernels);
    let mistral = CASES.into_iter().find(|case| case.name == "mistral").unwrap();
    for way in [Way::Scalar, Way::Whole] {
        let said = check(&program, mistral, &[way]).expect_err("an infinite mask");
        assert!(said.contains("NaN"), "{said}");
    }
}

/// The script has this program's own tests run the kernels that it compiles.
#[test]
fn the_kernels_compute_the_formulas_on_an_nvidia_gpu() {
    let script = emulation().with_file_name("on_cuda").join("check.py");
    let tests = std::env::current_exe().unwrap();
    let output = Command::new("python3")
        .arg(script)
        .arg("--tests")
        .arg(tests)
        .args(["compare", "libraries", "racecheck"])
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) => {
            return skip("PENSIEVE_REQUIRE_CUDA", &format!("the kernels on an NVIDIA GPU need python3: {error}"));
        }
    };
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let _ = writeln!(std::io::stderr(), "{said}");
    assert!(output.status.success(), "{said}");
}

/// A check that is left out must not look like one that passed.
#[test]
fn what_is_left_out_is_said_even_where_tests_keep_their_output() {
    let test = format!("{}::the_sources_keep_to_metal_s_address_spaces_and_overloads", module_path!());
    let test = test.split_once("::").unwrap().1;
    let empty = tempfile::tempdir().unwrap();
    let run = |required: &str| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([test, "--exact"]).env("PATH", empty.path()).env("PENSIEVE_REQUIRE_CLANG", required);
        command.output().unwrap()
    };
    let output = run("0");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("SKIPPED"), "{output:?}");
    assert!(!run("1").status.success());
}
