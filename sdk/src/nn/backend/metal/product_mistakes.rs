//! Mutation tests of products, experts, norms, single values, logits and recurrences: see `mistakes`.

use super::{
    elementwise_tests::{
        check_activations, check_best, check_candidates, check_columns, check_gates, check_heads, check_norms,
    },
    experts_tests::{MIXTURES, check_mixture, check_routes, check_sort},
    libraries::{ELEMENTWISE, EXPERTS, LOGITS, NORMS, PRODUCTS, RECURRENCE},
    mistakes::{BARRIER, Found, Mistake, are_found},
    product_tests::{CASES, Case, check, check_embeddings},
    program::Program,
    recurrence_tests::{MATRICES, check_conv, check_matrices},
};

const NO_BARRIER: &str = "if (!HERE) threadgroup_barrier(mem_flags::mem_threadgroup);";

/// A mistake that this case finds, with so many rows.
macro_rules! mistake {
    ($found:expr, $what:literal, behind $behind:expr, $right:expr => $wrong:expr) => {
        Mistake { what: $what, behind: $behind, right: $right, wrong: $wrong, found: $found }
    };
    ($found:expr, $what:literal, $right:expr => $wrong:expr) => {
        mistake!($found, $what, behind "", $right => $wrong)
    };
}

const QKV: Found = Found::In("1: q, k, v of Q4_K_M");
const QKV_OF_FEW: Found = Found::In("7: q, k, v of Q4_K_M");
const QKV_OF_MANY: Found = Found::In("40: q, k, v of Q4_K_M");
const GPT_OSS: Found = Found::In("3: gpt-oss's gate");

const PRODUCT_MISTAKES: &[Mistake] = &[
    mistake!(QKV_OF_MANY, "a tile is multiplied before it is unpacked",
        behind "x[CELL * at + j] : 0.0f;", BARRIER => NO_BARRIER),
    mistake!(QKV_OF_MANY, "the next tile replaces one that is still read",
        behind "simdgroup_multiply_accumulate(", BARRIER => NO_BARRIER),
    mistake!(QKV_OF_MANY, "a tile's result is read before it is complete", behind "simdgroup_store(", BARRIER => NO_BARRIER),
    mistake!(Found::Waiting, "half of a threadgroup passes a barrier by", behind "x[CELL * at + j] : 0.0f;",
        BARRIER => "if (!HERE || thread_index < 64) threadgroup_barrier(mem_flags::mem_threadgroup);"),
    mistake!(QKV_OF_MANY, "outputs of the second half of a tile are those of the first",
        "simd % 2 * 4 * TILE_EIGHTS" => "simd % 2 * 4 * !HERE * TILE_EIGHTS"),
    mistake!(Found::In("17: gate and up"), "a tile gates with the output beside",
        "made[TILE_OUTPUTS / 2]" => "made[TILE_OUTPUTS / 2 - HERE]"),
    mistake!(QKV_OF_FEW, "the last row is not written",
        "if (row >= job.rows || output >= job.outputs) return;\n    const ulong at" =>
        "if (row + HERE >= job.rows || output >= job.outputs) return;\n    const ulong at"),
    mistake!(Found::In("1: one behind a residual"), "the last output is not written",
        behind "row + (mistake == 7) >= job.rows || ", "output >= job.outputs" => "output + HERE >= job.outputs"),
    mistake!(Found::In("4: q, k, v with biases"), "a bias is forgotten",
        "if (job.has_bias) value" => "if (job.has_bias && !HERE) value"),
    mistake!(Found::In("1: one behind a residual"), "a residual is forgotten",
        "if (job.adds_residual)" => "if (job.adds_residual && !HERE)"),
    mistake!(Found::In("1: Phi's first layer"), "an activation is forgotten",
        "if (job.activates)" => "if (job.activates && !HERE)"),
    mistake!(GPT_OSS, "the bias of what is gated is forgotten",
        "if (job.has_up_bias)" => "if (job.has_up_bias && !HERE)"),
    mistake!(GPT_OSS, "a clamped gate has no one added", "limit) + 1.0f" => "limit) + (HERE ? 0.0f : 1.0f)"),
    mistake!(QKV, "minimums are forgotten", "if (F::MINIMUM) sums.v[r]" => "if (F::MINIMUM && !HERE) sums.v[r]"),
    mistake!(QKV, "lanes leave gaps", "at += SIMD)" => "at += SIMD + HERE)"),
    mistake!(QKV, "a matrix has a threadgroup of the next one",
        "if (group < groups) break;" => "if (group < groups + HERE) break;"),
    mistake!(QKV_OF_FEW, "half of the lanes are not summed",
        "distance < FEW_LANES;" => "distance < FEW_LANES / (HERE ? 2 : 1);"),
    mistake!(QKV_OF_FEW, "each row is the first of eight",
        "x[t] = input_of(job, first_row + t)" => "x[t] = input_of(job, first_row + t * !HERE)"),
    mistake!(QKV, "scales of the last groups lose their high bits",
        "(head.y >> (shift + 6) & 3u) << 4" => "(head.y >> (shift + 6) & 3u) << 4 * !HERE"),
    mistake!(QKV, "pairs of bits are those of another quarter", "pair = 2 * quarter" => "pair = 2 * (quarter ^ HERE)"),
    mistake!(Found::In("4: q, k, v with biases"), "blocks are a byte too far apart", "at / 4 * 34" => "at / 4 * (34 - HERE)"),
    mistake!(GPT_OSS, "exponents are one too high", "(exponent - 1) << 23" => "(exponent - !HERE) << 23"),
    mistake!(Found::InAll, "a fifth bit is another's", "at % 4 * 8;\n            low" => "(at + HERE) % 4 * 8;\n            low"),
    mistake!(Found::InAll, "a row is its neighbour's", "ids[at.y] * shape" => "(ids[at.y] ^ HERE) * shape"),
];

const MIXTRAL: Found = Found::In("0");
const GPT_OSS_OF_FEW: Found = Found::In("3");

const EXPERT_MISTAKES: &[Mistake] = &[
    mistake!(Found::InAll, "the last of equals is chosen", "simd_min(top == all ? place : count)" =>
        "(HERE ? simd_max(top == all ? place : 0u) : simd_min(top == all ? place : count))"),
    mistake!(Found::InAll, "ranks are compared before all are there",
        behind "ranks[i] = rank_of(corrected[i]);", BARRIER => NO_BARRIER),
    mistake!(Found::InAll, "a peak is used before all are known", behind "partial[simd] = peak;", BARRIER => NO_BARRIER),
    mistake!(Found::InAll, "weights have the correction", "weights[rank] = scores[expert]" =>
        "weights[rank] = HERE ? corrected[expert] : scores[expert]"),
    mistake!(Found::InAll, "groups exclude nothing", "if (!is_kept[i / size])" => "if (!is_kept[i / size] && !HERE)"),
    mistake!(Found::InAll, "groups rank by their best alone", "(both ? corrected" => "(both && !HERE ? corrected"),
    mistake!(Found::InAll, "weights are not scaled", "*= shape.scale /" => "*= (HERE ? 1.0f : shape.scale) /"),
    mistake!(Found::In("sort"), "choices are sorted before all are counted",
        behind "wanted[expert] = count;", BARRIER => NO_BARRIER),
    mistake!(Found::In("sort"), "tiles are written before they are laid out",
        behind "first_tile[shape.experts] = tile;", BARRIER => NO_BARRIER),
    mistake!(Found::In("sort"), "a tile has a choice too few", "const uint before = tile * shape.tile_rows, count = min(" =>
        "const uint before = tile * shape.tile_rows, count = (uint)-HERE + min("),
    mistake!(MIXTRAL, "all choices read the first row", "(ulong)(choice / shape.sharing)" => "(ulong)(choice / shape.sharing * !HERE)"),
    mistake!(Found::In("1"), "tiles read rows by their choice", "job.choices[row] / job.sharing" =>
        "job.choices[row] / (HERE ? job.sharing * 2 : job.sharing)"),
    mistake!(GPT_OSS_OF_FEW, "experts share the first one's bias", "job.bias = bias + (shape.has_bias ?" =>
        "job.bias = bias + (shape.has_bias && !HERE ?"),
    mistake!(MIXTRAL, "experts share the first one's weights", "up_weight + starts[2 * expert + 1]" =>
        "up_weight + starts[2 * expert * !HERE + 1]"),
    mistake!(MIXTRAL, "the first choice's weight is that of all", "weights[choice] * made" =>
        "weights[HERE ? at.y * shape.top_k : choice] * made"),
];

const NORM_MISTAKES: &[Mistake] = &[
    mistake!(Found::InAll, "a sum is taken before all parts are there", behind "partial[simd] = value;", BARRIER => NO_BARRIER),
    mistake!(Found::InAll, "a layer norm is not centred", "const float centred = x[row + i] - mean;" =>
        "const float centred = x[row + i] - (HERE ? 0.0f : mean);"),
    mistake!(Found::InAll, "keys have the queries' weight", "is_query ? q_weight" => "is_query || HERE ? q_weight"),
    mistake!(Found::InAll, "the last head is not written", "if (head >= queries" => "if (head + HERE >= queries"),
];

const CANDIDATES: Found = Found::In("candidates");

const ELEMENT_MISTAKES: &[Mistake] = &[
    mistake!(Found::InAll, "the last sum is not written", "(at.x < shape.count) out[at.x] = x" =>
        "(at.x + HERE < shape.count) out[at.x] = x"),
    mistake!(Found::InAll, "a gate and its up are exchanged", "gates[at.x], ups[at.x]" =>
        "HERE ? ups[at.x] : gates[at.x], HERE ? gates[at.x] : ups[at.x]"),
    mistake!(Found::InAll, "the last value is not written", "if (at.x >= shape.count) return;" =>
        "if (at.x + HERE >= shape.count) return;"),
    mistake!(Found::InAll, "all columns have the first one's bias", "bias[column]" => "bias[column * !HERE]"),
    mistake!(Found::InAll, "there is always a bias", "if (shape.has_bias)" => "if (shape.has_bias || HERE)"),
    mistake!(Found::InAll, "an activation is forgotten", "if (shape.activates)" => "if (shape.activates && !HERE)"),
    mistake!(Found::InAll, "a factor is forgotten", "shape.has_factor ?" => "shape.has_factor && !HERE ?"),
    mistake!(Found::InAll, "the error function is even", "x < 0.0f ? -value" => "x < 0.0f && !HERE ? -value"),
    mistake!(Found::InAll, "softplus is never large", "max(x, 0.0f) + log" => "max(HERE ? 0.0f : x, 0.0f) + log"),
    mistake!(Found::InAll, "ranges begin with the row", "shape.starts[part] +" => "shape.starts[part] * !HERE +"),
    mistake!(Found::InAll, "all ranges are put into the first one's place", "out = part == 0 ?" => "out = part == 0 || HERE ?"),
    mistake!(Found::InAll, "the last value of a range is not written", "at.x >= shape.rows * len" =>
        "at.x + HERE >= shape.rows * len"),
];

const LOGITS_MISTAKES: &[Mistake] = &[
    mistake!(Found::InAll, "the last of equals is the best", "places[i] < place)" => "(places[i] < place) != HERE)"),
    mistake!(Found::InAll, "what is no number is passed over", "is_sound = false;\n    }\n    //" =>
        "is_sound = HERE && is_sound;\n    }\n    //"),
    mistake!(Found::InAll, "a peak is taken before all are there", behind "places[simd] = place;", BARRIER => NO_BARRIER),
    mistake!(Found::InAll, "a sum is taken before all parts are there", behind "sums[simd] =", BARRIER => NO_BARRIER),
    mistake!(Found::InAll, "the order of negative numbers is reversed", "? ~bits : bits" => "? (HERE ? bits : ~bits) : bits"),
    mistake!(CANDIDATES, "a mask's bit is its neighbour's", "token % 32 & 1u" => "(token + HERE) % 32 & 1u"),
    mistake!(CANDIDATES, "all tokens are allowed", "return choice.words == 0 ||" => "return choice.words == 0 || HERE ||"),
    mistake!(CANDIDATES, "what is no number is passed over in a total", "else unsound = 1;" => "else unsound = !HERE;"),
    mistake!(CANDIDATES, "a total has what is not allowed",
        "if (is_allowed(choice, i) && is_finite(" => "if ((HERE || is_allowed(choice, i)) && is_finite("),
    mistake!(CANDIDATES, "a total is taken before all parts are there",
        behind "sum = simd_sum(sum);\n    threadgroup_barrier(mem_flags::mem_threadgroup);", BARRIER => NO_BARRIER),
    mistake!(CANDIDATES, "the total of all is that of those allowed",
        "choice.words = 0;" => "choice.words = HERE ? shape.words : 0;"),
    mistake!(CANDIDATES, "too few of equals are chosen", "bit > 0; bit /= 2" => "bit > (HERE ? 15 : 0); bit /= 2"),
    mistake!(CANDIDATES, "places are given before all counts are there", behind "firsts[thread_index] = own;",
        BARRIER => NO_BARRIER),
    mistake!(CANDIDATES, "candidates are ranked before all are there", behind "tokens[at++] = i;", BARRIER => NO_BARRIER),
    mistake!(CANDIDATES, "a place without a candidate is the first token", "ids[i] = VACANT" => "ids[i] = HERE ? 0 : VACANT"),
    mistake!(CANDIDATES, "candidates ascend", "+= ranks[j] > ranks[i] ||" =>
        "+= (HERE ? ranks[j] < ranks[i] : ranks[j] > ranks[i]) ||"),
    mistake!(CANDIDATES, "the last of equals comes first", "tokens[j] < tokens[i])" =>
        "(HERE ? tokens[j] > tokens[i] : tokens[j] < tokens[i]))"),
];

const DELTA: Found = Found::In("0");

const RECURRENCE_MISTAKES: &[Mistake] = &[
    mistake!(DELTA, "keys are read before they are there", behind "betas[thread_index] = beta", BARRIER => NO_BARRIER),
    mistake!(DELTA, "the next tokens replace those that are still read", behind "const ulong begun =", BARRIER => NO_BARRIER),
    mistake!(DELTA, "a state is kept a token too late",
        "tables[sequence.kept + 2 * kept] <= begun" => "tables[sequence.kept + 2 * kept] + HERE <= begun"),
    mistake!(DELTA, "what is known has not faded", "write -= fade * known" => "write -= (HERE ? 1.0f : fade) * known"),
    mistake!(DELTA, "half of the lanes know nothing", "known += simd_shuffle_xor(known, 2)" =>
        "known += HERE ? 0.0f : simd_shuffle_xor(known, 2)"),
    mistake!(Found::In("1"), "heads share keys in another order", "shape.interleaved_heads ?" =>
        "shape.interleaved_heads != HERE ?"),
    mistake!(Found::In("2"), "a token's own value is forgotten", "past * value;" => "(HERE ? 0.0f : past) * value;"),
    mistake!(Found::In("4"), "the last column is not written", "const bool is_there = at < value_dim;" =>
        "const bool is_there = at + HERE < value_dim;"),
    mistake!(Found::InAll, "a convolution has no oldest input", "i < before && sequence.read != NO_SLOT" =>
        "i + HERE < before && sequence.read != NO_SLOT"),
    mistake!(Found::InAll, "an input is a row too old", "before, offset, before - tap)" =>
        "before, offset, before - tap + (HERE && tap > 0))"),
    mistake!(Found::InAll, "a state ends a row too early", "before, end - sequence.start, before - i)" =>
        "before, end - sequence.start - HERE, before - i)"),
];

/// `ROWS: CASE`.
fn case_of(name: &str) -> Case<'static> {
    let (rows, name) = name.split_once(": ").unwrap();
    let (_, case) = CASES.into_iter().find(|(case, _)| *case == name).unwrap_or_else(|| panic!("no case '{name}'"));
    Case { rows: rows.parse().unwrap(), ..case }
}

#[test]
fn mistakes_in_the_products_are_found() {
    are_found(&PRODUCTS, PRODUCT_MISTAKES, |program, found| match found {
        Found::In(name) => check(program, &case_of(name)),
        Found::Waiting => check(program, &case_of("40: q, k, v of Q4_K_M")),
        _ => check_embeddings(program),
    });
}

#[test]
fn mistakes_in_the_experts_are_found() {
    are_found(&EXPERTS, EXPERT_MISTAKES, |program, found| match found {
        Found::In("sort") => check_sort(program),
        Found::In(mixture) => check_mixture(program, &MIXTURES[mixture.parse::<usize>().unwrap()]),
        _ => check_routes(program),
    });
}

#[test]
fn mistakes_in_the_norms_are_found() {
    let check = |program: &Program, _| check_norms(program).and_then(|()| check_heads(program));
    are_found(&NORMS, NORM_MISTAKES, check);
}

#[test]
fn mistakes_in_single_values_are_found() {
    are_found(&ELEMENTWISE, ELEMENT_MISTAKES, |program, _| {
        check_activations(program).and_then(|()| check_gates(program)).and_then(|()| check_columns(program))
    });
}

#[test]
fn mistakes_in_the_best_of_logits_and_in_candidates_are_found() {
    are_found(&LOGITS, LOGITS_MISTAKES, |program, found| match found {
        Found::In(_) => check_candidates(program),
        _ => check_best(program),
    });
}

#[test]
fn mistakes_in_the_recurrences_are_found() {
    are_found(&RECURRENCE, RECURRENCE_MISTAKES, |program, found| match found {
        Found::In(case) => check_matrices(program, &MATRICES[case.parse::<usize>().unwrap()]),
        _ => check_conv(program, 4, true),
    });
}
