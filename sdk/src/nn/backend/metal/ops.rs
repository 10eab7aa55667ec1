//! Checks the ops that the formulas use against those that candle has on Metal.
//!
//! `ops.txt` has every op that ran, with the types and layouts of its operands, as `.ci/metal-ops` noted them. candle's Metal
//! backend picks a kernel by op, type and layout, and answers the rest with an error at run time; its source says which it has.
//! So a line that it has no kernel for is found here, and so is a method of candle's tensors that no line stands for.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

const TABLE: &str = include_str!("ops.txt");

/// The ops behind methods of candle's tensors that compute, and those of `candle_nn`'s functions.
const METHODS: &[(&str, &[&str])] = &[
    ("affine", &["affine"]),
    ("broadcast_add", &["add"]),
    ("broadcast_div", &["div"]),
    ("broadcast_eq", &["eq"]),
    ("broadcast_mul", &["mul"]),
    ("broadcast_sub", &["sub"]),
    ("cat", &["copy2d"]),
    ("clamp", &["maximum", "minimum"]),
    ("contiguous", &["copy"]),
    ("force_contiguous", &["copy"]),
    ("gelu", &["gelu"]),
    ("gelu_erf", &["gelu_erf"]),
    ("index_select", &["index_select"]),
    ("matmul", &["matmul"]),
    ("max_all", &["max"]),
    ("max_keepdim", &["max"]),
    ("maximum", &["maximum"]),
    ("mean_keepdim", &["sum", "affine"]),
    ("min_keepdim", &["min"]),
    ("minimum", &["minimum"]),
    ("neg", &["neg"]),
    ("recip", &["recip"]),
    ("relu", &["relu"]),
    ("repeat", &["copy2d"]),
    ("scatter_set", &["scatter_set"]),
    ("silu", &["silu"]),
    ("slice_set", &["copy2d"]),
    ("sqr", &["sqr"]),
    ("stack", &["copy2d"]),
    ("sum_all", &["sum"]),
    ("sum_keepdim", &["sum"]),
    ("to_dtype", &["to_f32", "to_f16"]),
    ("where_cond", &["where_cond"]),
    // Compared with their formulas on the device when a model loads, and left out where they differ or fail.
    ("layer_norm", &[]),
    ("rms_norm", &[]),
    ("rope_thd", &[]),
    ("softmax_last_dim", &[]),
];

/// Methods that numbers and collections have by the same name, so that a call says nothing; what ran of them is in the table.
const SHARED_NAMES: &[&str] = &[
    "abs", "add", "apply", "ceil", "cmp", "cos", "div", "exp", "floor", "flatten", "gather", "get", "log", "max",
    "min", "mul", "new", "pow", "powf", "round", "sin", "sqrt", "sub", "sum", "tanh", "var",
];

/// Methods that only look at a tensor, view it, make it from the host's memory or bring it there.
const NOT_COMPUTED: &[&str] = &[
    "arange",
    "broadcast_as",
    "detach",
    "device",
    "dim",
    "dims",
    "dims2",
    "dims3",
    "dims4",
    "dtype",
    "elem_count",
    "embedding",
    "flatten_all",
    "flatten_from",
    "from_iter",
    "from_slice",
    "from_storage",
    "from_vec",
    "id",
    // Our own kernel, on the CPU alone.
    "inplace_op1",
    "is_contiguous",
    "layout",
    "narrow",
    "ones",
    "rank",
    "reshape",
    "shape",
    "squeeze",
    "storage_and_layout",
    "stride",
    "t",
    "to_device",
    "to_scalar",
    "to_vec0",
    "to_vec1",
    "to_vec2",
    "transpose",
    "unsqueeze",
    "zeros",
    "zeros_like",
];

/// Done by candle in the host's memory on any device: the number that a tensor is compared with is cast before it goes there.
const ON_THE_HOST: &[&str] = &["to_f32: f64 dense"];

/// The source of candle's Metal backend.
struct Candle {
    tensor: String,
    backend: String,
    binary: String,
    quantized: String,
}

static CANDLE: LazyLock<Candle> = LazyLock::new(|| {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let arguments = ["metadata", "--locked", "--format-version", "1"];
    let output = Command::new(cargo).args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let source = |name: &str| -> PathBuf {
        let mut packages = metadata["packages"].as_array().unwrap().iter();
        let package = packages.find(|package| package["name"] == name).unwrap_or_else(|| panic!("no {name}"));
        Path::new(package["manifest_path"].as_str().unwrap()).with_file_name("src")
    };
    let (core, kernels) = (source("candle-core"), source("candle-metal-kernels"));
    let read = |path: PathBuf| fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let parts = ["tensor.rs", "tensor_cat.rs", "sort.rs", "conv.rs", "custom_op.rs"];
    Candle {
        tensor: parts.map(|part| read(core.join(part))).concat(),
        backend: read(core.join("metal_backend/mod.rs")),
        binary: read(kernels.join("metal_src/binary.metal")),
        quantized: read(kernels.join("kernels/quantized.rs")),
    }
});

/// A line of the table: an op, and the type and layout of each operand.
struct Op<'a> {
    name: &'a str,
    operands: Vec<(&'a str, &'a str)>,
}

fn parse(line: &str) -> Op<'_> {
    let (name, operands) = line.split_once(": ").unwrap_or_else(|| panic!("'{line}' is not a line of ops"));
    let operands = operands.split(", ").map(|operand| operand.split_once(' ').unwrap_or((operand, "")));
    Op { name, operands: operands.collect() }
}

fn table() -> impl Iterator<Item = &'static str> {
    TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

impl Candle {
    /// The body of a method of the Metal backend.
    fn body(&self, method: &str) -> &str {
        let start = self.backend.find(&format!("\n    fn {method}")).unwrap_or_else(|| panic!("no method {method}"));
        let rest = &self.backend[start + 1..];
        &rest[..rest.find("\n    }\n").unwrap_or(rest.len())]
    }

    /// The fault of an op, if candle's Metal backend has no kernel for it, or a wrong one.
    fn refuses(&self, op: &Op<'_>) -> Option<String> {
        let [(first, layout), rest @ ..] = op.operands.as_slice() else { return Some("it has no operands".into()) };
        let (is_dense, upper) = (*layout == "dense", first.to_uppercase());
        let suffix = if is_dense { "" } else { "_strided" };
        let all_dense = op.operands.iter().all(|(_, layout)| *layout == "dense");
        let second = rest.first().map_or("", |(dtype, _)| *dtype);
        let name = op.name;
        let has = |method: &str, kernel: String| self.body(method).contains(&kernel);
        let by_index = |prefix: &str| all_dense && has(name, format!("\"{prefix}_{first}_{second}\""));
        let is_there = match name {
            "affine" | "powf" | "elu" => has(name, format!("\"{name}_{first}{suffix}\"")),
            // Which of the two kernels it is depends on the dimensions, too.
            "sum" | "min" | "max" | "argmin" | "argmax" => {
                ["", "_strided"].iter().all(|suffix| has("reduce_op", format!("\"fast_{name}_{first}{suffix}\"")))
            }
            "eq" | "ne" | "le" | "lt" | "ge" | "gt" => {
                self.binary.contains(&format!("init_boolean_binary({name}, b{name});"))
                    && self.binary.contains(&format!("init_binary_k(op_name, binary_op, {first},"))
            }
            "add" | "sub" | "mul" | "div" | "minimum" | "maximum" => {
                self.binary.contains(&format!("init_binary(b{name});"))
                    && self.binary.contains(&format!("init_binary_k(bop, bop, {first},"))
            }
            "where_cond" => has(name, format!("\"where_{first}_{second}\"")),
            "index_select" => by_index("is"),
            "gather" => by_index("gather"),
            "scatter_set" => by_index("s"),
            "scatter_add" => by_index("sa"),
            "index_add" => by_index("ia"),
            "matmul" => {
                let right = rest.first().map_or("", |(_, layout)| *layout);
                is_dense && right != "view" && has(name, format!("DType::{upper} => candle_metal_kernels::GemmDType"))
            }
            // What is dense is copied as bytes.
            "copy" => is_dense || has("copy_strided_src", format!("DType::{upper} => candle_metal_kernels::unary")),
            "copy2d" => has(name, format!("DType::{upper} => candle_metal_kernels::copy2d")),
            "const_set" => has(name, format!("DType::{upper} => contiguous")),
            "qmatmul" => is_dense && *first == "f32",
            _ => match name.strip_prefix("to_") {
                Some(to) => has("to_dtype", format!("\"cast_{first}_{to}{suffix}\"")),
                None => {
                    let kind = if is_dense { "contiguous" } else { "strided" };
                    has("unary_impl", format!("(\"u{name}\", DType::{upper}) => {kind}::"))
                }
            },
        };
        (!is_there).then(|| format!("candle has no Metal kernel, or a wrong one, for {name} of {:?}", op.operands))
    }

    /// The methods of candle's tensors.
    fn methods(&self) -> BTreeSet<&str> {
        let functions = self.tensor.split("\n    pub fn ").skip(1);
        let macros = ["unary_op!(", "binary_op!(", "binary_op_scalar!("].into_iter();
        let made = macros.flat_map(|name| self.tensor.split(name).skip(1));
        functions.chain(made).filter_map(text_word).collect()
    }
}

/// The name that a text begins with.
fn text_word(text: &str) -> Option<&str> {
    let text = text.trim_start();
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len());
    (end > 0).then_some(&text[..end])
}

/// The methods and functions that a source calls, but for its tests and comments.
fn called(source: &str) -> BTreeSet<&str> {
    let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or_default());
    let mut names = BTreeSet::new();
    for line in lines {
        for (at, _) in line.match_indices(['.', ':']) {
            let Some(name) = text_word(&line[at + 1..]).filter(|_| !line[at + 1..].starts_with(' ')) else { continue };
            if line[at + 1 + name.len()..].starts_with(['(', ':']) {
                names.insert(name);
            }
        }
    }
    names
}

/// Methods of candle's tensors that a source calls and that nothing here stands for.
fn unknown(source: &str) -> Vec<String> {
    let methods = CANDLE.methods();
    let is_known = |name: &&str| {
        let known = METHODS.iter().map(|(method, _)| method);
        known.chain(SHARED_NAMES).chain(NOT_COMPUTED).any(|known| known == name)
    };
    let fused = source.split("candle_nn::").skip(1).filter_map(|path| text_word(path.split("::").nth(1)?));
    let calls = called(source).into_iter().filter(|name| methods.contains(name)).chain(fused);
    calls.filter(|name| !is_known(name)).map(str::to_owned).collect()
}

/// The sources behind a forward pass on Metal: the SDK's layers and formulas, and the families. The CPU's and CUDA's kernels
/// and what stands in for devices do not run there, `bridge` and the zoo run candle's own models, and two plugins have no layers.
fn sources() -> Vec<(PathBuf, String)> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![here.join("src/nn")];
    let plugins = fs::read_dir(here.join("../plugins")).into_iter().flatten().flatten();
    let others = ["lora", "samplers", "zoo"];
    let families = plugins.filter(|plugin| others.iter().all(|other| plugin.file_name() != *other));
    folders.extend(families.map(|plugin| plugin.path().join("src")));
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = entry.file_name();
            let is_other = ["cpu", "cpu.rs", "cuda", "stand_ins.rs", "tests.rs", "double.rs", "mistakes.rs", "ops.rs"]
                .iter()
                .any(|other| name == *other);
            if is_other && path != here.join("src/nn/ops.rs") {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let source = fs::read_to_string(&path).unwrap();
                files.push((path, source));
            }
        }
    }
    files
}

#[test]
fn candle_has_a_metal_kernel_for_every_op_that_ran() {
    let on_device = table().filter(|line| !ON_THE_HOST.contains(line));
    let refused: Vec<_> = on_device.filter_map(|line| CANDLE.refuses(&parse(line))).collect();
    assert!(refused.is_empty(), "{refused:#?}");
    assert!(table().count() > 20);
}

#[test]
fn ops_that_candle_does_not_have_on_metal_are_refused() {
    // What would be wrong if it were in the table: types, layouts and ops that only other devices have.
    for line in [
        "to_f64: f32 dense",
        "affine: f64 dense",
        "exp: u32 dense",
        "sign: f32 view",
        "sum: f64 dense",
        "add: f64 dense, f64 dense",
        "matmul: u32 dense, u32 dense",
        "matmul: f32 view, f32 dense",
        "matmul: f32 dense, f32 view",
        "index_select: u32 dense, f32 view",
        "index_select: i32 dense, f32 dense",
        "scatter_set: u32 dense, i64 dense, i64 dense",
        "where_cond: i64 dense, f32 dense, f32 dense",
        "copy: f64 view",
        "qmatmul: f16 dense",
        "upsample_nearest1d: f32 dense",
        "fft: f32 dense",
    ] {
        assert!(CANDLE.refuses(&parse(line)).is_some(), "{line}");
    }
    // The same ops as candle has them.
    for line in [
        "to_f16: f32 view",
        "exp: f16 view",
        "matmul: bf16 dense, bf16 transposed",
        "index_select: u32 dense, f16 dense",
        "add: f32 view, f32 dense",
    ] {
        assert_eq!(CANDLE.refuses(&parse(line)), None, "{line}");
    }
}

#[test]
fn every_method_that_layers_call_stands_in_the_table() {
    let files = sources();
    assert!(files.iter().any(|(path, _)| path.ends_with("backend/formulas.rs")));
    let unknown = files.iter().flat_map(|(path, source)| unknown(source).into_iter().map(move |name| (path, name)));
    let unknown: Vec<_> = unknown.collect();
    let what = "candle's tensors compute them, and sdk/src/nn/backend/metal/ops.rs does not know as what";
    assert!(unknown.is_empty(), "{unknown:?}: {what}");
    let ran: BTreeSet<&str> = table().map(|line| parse(line).name).collect();
    let all = files.iter().flat_map(|(_, source)| called(source)).collect::<BTreeSet<_>>();
    for (method, ops) in METHODS.iter().filter(|(method, _)| all.contains(method)) {
        let missing: Vec<_> = ops.iter().filter(|op| !ran.contains(*op)).collect();
        assert!(missing.is_empty(), "{method}: no {missing:?} ran: run .ci/metal-ops --write");
    }
}

#[test]
fn a_method_that_nobody_looked_at_is_found() {
    assert_eq!(unknown("let order = x.arg_sort_last_dim(true)?;"), ["arg_sort_last_dim"]);
    assert_eq!(unknown("let x = Tensor::scatter_add(&x, &ids, &y, 0)?;"), ["scatter_add"]);
    assert_eq!(unknown("candle_nn::ops::sigmoid(&x)"), ["sigmoid"]);
    assert!(unknown("// x.arg_sort_last_dim(true)\nx.matmul(&y)?.narrow(0, 1, 2)?.max(1)").is_empty());
}

#[test]
fn candle_has_metal_kernels_for_every_quantized_type_that_it_is_given() {
    let formulas = include_str!("../formulas.rs");
    let types: Vec<_> = formulas.split("=> Some(GgmlDType::").skip(1).filter_map(text_word).collect();
    assert!(types.len() > 8, "{types:?}");
    let kernels = ["kernel_mul_mv_", "kernel_mul_mm_", "kernel_get_rows_"];
    let has = |name: &str, kernel: &str| CANDLE.quantized.contains(&format!("GgmlDType::{name} => \"{kernel}"));
    for name in types {
        assert!(kernels.iter().all(|kernel| has(name, kernel)), "{name}");
    }
    assert!(!has("Q8K", "kernel_mul_mm_"));
}
