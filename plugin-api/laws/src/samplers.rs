//! The laws of samplers: what a host's chain assumes about every stage. The sampler's stages get synthetic candidates:
//! few and many, barred ones, ties, NaN; and must return only candidates that they were given.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use crate::{
    Law, Progress,
    report::{Outcome, Report, broken, noted, skipped},
    rig::{Finding, draw},
    run,
};
use pensieve_plugin_api::{
    Candidates, ErrorCode, History, PluginError, SamplerBox, StageBox, ext::concurrent_stages::ConcurrentStages,
};

/// Number of stages that see each case.
const SEEDS: u64 = 12;

/// Options of a check of a sampler.
#[derive(Clone, Debug)]
pub struct SamplerOptions {
    /// The parameters of its stages, a JSON object; empty for none.
    pub parameters: String,
    /// Vocabulary size.
    pub vocabulary: u32,
    /// Time limit of a stage for one token; a host's default is 5 seconds.
    pub deadline: Duration,
}

impl Default for SamplerOptions {
    fn default() -> Self {
        Self { parameters: String::new(), vocabulary: 131_072, deadline: Duration::from_secs(5) }
    }
}

/// Tests all laws of samplers. `watch` is called before and after each one.
pub fn check_sampler(sampler: &SamplerBox, options: &SamplerOptions, watch: &mut dyn FnMut(Progress<'_>)) -> Report {
    let bench = Bench { sampler, options };
    run(LAWS, &["made"], watch, |check| check(&bench))
}

struct Bench<'s> {
    sampler: &'s SamplerBox,
    options: &'s SamplerOptions,
}

/// `Err` ends a law early.
type Check = fn(&Bench<'_>) -> Finding;

const LAWS: &[Law<Check>] = &[
    Law {
        id: "made",
        says: "stages are made of its parameters",
        hint: "empty text stands for no parameters",
        check: made,
    },
    Law {
        id: "parameters",
        says: "wrong parameters are refused as invalid, and named",
        hint: "they come from a client: an unknown key, a wrong type and a value out of range are errors that name the key",
        check: parameters,
    },
    Law {
        id: "own",
        says: "a stage keeps and picks only given candidates, each once",
        hint: "the usual cause is an index in the list taken for a token id, or a list that grows again after it was cut",
        check: own,
    },
    Law {
        id: "numbers",
        says: "finite logits stay numbers",
        hint: "the usual cause is a division by zero, or a difference of two infinities",
        check: numbers,
    },
    Law {
        id: "barred",
        says: "a candidate at -inf or NaN is never picked, and one above stays",
        hint: "a grammar bars tokens by -inf: a stage that narrows leaves one that is not barred, one that picks and finds none fails",
        check: barred,
    },
    Law {
        id: "sorted",
        says: "logits marked as sorted are sorted",
        hint: "a stage that changes logits or their order clears the mark",
        check: sorted,
    },
    Law {
        id: "seed",
        says: "the same seed gives the same picks, whatever other stages do",
        hint: "the usual cause is a clock, an address or a map's order, or state shared by stages",
        check: seed,
    },
    Law {
        id: "concurrent",
        says: "stages on several threads at once pick as they do alone",
        hint: "the usual cause is a buffer or a random generator shared by stages: keep it in the stage, or do not offer the extension",
        check: concurrent,
    },
    Law {
        id: "deadline",
        says: "a large vocabulary is processed in time",
        hint: "the usual cause is a whole sort, or work that grows with candidates times history",
        check: deadline,
    },
];

/// Input of a stage.
#[derive(Clone)]
struct Given {
    what: &'static str,
    ids: Vec<u32>,
    logits: Vec<f32>,
    sorted: bool,
    history: Vec<u32>,
}

/// Output of a stage.
#[derive(Clone, Debug)]
struct Left {
    ids: Vec<u32>,
    logits: Vec<f32>,
    sorted: bool,
    pick: Option<u32>,
}

impl PartialEq for Left {
    /// Compares bit by bit, including NaN.
    fn eq(&self, other: &Self) -> bool {
        let bits = |logits: &[f32]| logits.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>();
        (&self.ids, self.sorted, self.pick) == (&other.ids, other.sorted, other.pick)
            && bits(&self.logits) == bits(&other.logits)
    }
}

impl Bench<'_> {
    fn stage(&self, seed: u64) -> Finding<StageBox> {
        let parameters = self.options.parameters.as_str();
        let made = self.sampler.create(parameters.into(), self.options.vocabulary, seed).into_result();
        made.map_err(|error| {
            if error.code == ErrorCode::INVALID && parameters.is_empty() {
                return skipped(format!("it wants parameters, and none were given: {error}"));
            }
            broken(format!("no stage is made of '{parameters}': {error}"))
        })
    }

    /// Candidates of every kind, and histories.
    fn cases(&self) -> Vec<Given> {
        let vocabulary = self.options.vocabulary.max(1);
        let mut random = Random(7);
        let mut case = |what, count: u32, logit: &mut dyn FnMut(u32, f32) -> f32| {
            let count = count.min(vocabulary);
            // Steps through the vocabulary by 7, so that ids differ from their places in the list.
            let ids: Vec<u32> = (0..count).map(|place| (place * 7 + 3) % vocabulary).collect();
            let mut seen = HashSet::new();
            let ids: Vec<u32> = ids.into_iter().filter(|id| seen.insert(*id)).collect();
            let logits = (0..ids.len() as u32).map(|place| logit(place, random.next())).collect();
            let history = ids.iter().copied().take(40).collect();
            Given { what, ids, logits, sorted: false, history }
        };
        let mut cases = vec![
            case("candidates in any order", 200, &mut |_, random| random * 8.0),
            case("equal candidates", 50, &mut |_, _| 1.5),
            case("candidates of which most are barred", 200, &mut |place, random| {
                if place % 9 == 4 { random } else { f32::NEG_INFINITY }
            }),
            case("candidates of which some are NaN", 60, &mut |place, random| {
                if place % 3 == 0 { f32::NAN } else { random }
            }),
            case("a candidate at +inf", 30, &mut |place, random| if place == 11 { f32::INFINITY } else { random }),
            case("logits of 1e30", 30, &mut |_, random| random * 1e30),
            case("one candidate", 1, &mut |_, random| random),
            case("candidates that are all barred", 20, &mut |_, _| f32::NEG_INFINITY),
            case("no candidates", 0, &mut |_, random| random),
        ];
        let mut sorted = case("candidates that descend", 100, &mut |place, _| 9.0 - place as f32 / 8.0);
        sorted.sorted = true;
        cases.push(sorted);
        let silent = cases.iter().take(1).map(|case| Given { history: Vec::new(), ..case.clone() });
        cases.extend(silent.collect::<Vec<_>>());
        cases
    }
}

/// Gives each case to separate stages, as their draws differ; they may fail if there is nothing to pick.
fn each(bench: &Bench<'_>, judge: impl Fn(&Given, &Left) -> Option<String>) -> Finding {
    let cases = bench.cases();
    for (given, seed) in cases.iter().flat_map(|given| (0..SEEDS).map(move |seed| (given, seed))) {
        match sample(&mut bench.stage(seed)?, given)? {
            Ok(left) => {
                if let Some(what) = judge(given, &left) {
                    return Err(broken(format!("{}: {what}", given.what)));
                }
            }
            Err(error) if barren(given) => drop(error),
            Err(error) => return Err(broken(format!("{}: {error}", given.what))),
        }
    }
    Ok(Outcome::Exact)
}

fn barren(given: &Given) -> bool {
    !given.logits.iter().any(|logit| *logit > f32::NEG_INFINITY)
}

/// Calls a stage once.
fn sample(stage: &mut StageBox, given: &Given) -> Finding<Result<Left, PluginError>> {
    let (mut ids, mut logits) = (given.ids.clone(), given.logits.clone());
    let count = ids.len();
    let (ids_in, logits_in) = ((&mut ids[..]).into(), (&mut logits[..]).into());
    let mut candidates = Candidates { ids: ids_in, logits: logits_in, len: count, sorted: given.sorted };
    let history = History { tokens: given.history[..].into(), prompt: given.history.len() / 2 };
    let pick = stage.sample(&mut candidates, history).into_result();
    let (len, sorted) = (candidates.len, candidates.sorted);
    if len > count {
        return Err(broken(format!("{}: of {count} candidates {len} are left", given.what)));
    }
    ids.truncate(len);
    logits.truncate(len);
    match pick {
        Err(error) if error.code == ErrorCode::PANICKED => Err(broken(format!("{}: {error}", given.what))),
        Err(error) => Ok(Err(error)),
        Ok(pick) => Ok(Ok(Left { ids, logits, sorted, pick: pick.into_option() })),
    }
}

fn made(bench: &Bench<'_>) -> Finding {
    for vocabulary in [1, bench.options.vocabulary] {
        let options = SamplerOptions { vocabulary, ..bench.options.clone() };
        drop(Bench { options: &options, ..*bench }.stage(u64::MAX)?);
    }
    Ok(Outcome::Exact)
}

fn parameters(bench: &Bench<'_>) -> Finding {
    const UNKNOWN: &str = "no_such_parameter";
    let unknown = format!("{{\"{UNKNOWN}\": 1}}");
    for (parameters, named) in [("{", ""), ("[]", ""), ("3", ""), ("\"top\"", ""), (unknown.as_str(), UNKNOWN)] {
        let made = bench.sampler.create(parameters.into(), bench.options.vocabulary, 1).into_result();
        match made {
            Ok(_) => return Err(broken(format!("{parameters} is taken"))),
            Err(error) if error.code != ErrorCode::INVALID => {
                return Err(broken(format!("{parameters} is refused, not as invalid but: {error}")));
            }
            Err(error) if !error.to_string().contains(named) => {
                return Err(broken(format!("{parameters} is refused without naming '{named}': {error}")));
            }
            Err(_) => {}
        }
    }
    Ok(Outcome::Exact)
}

fn own(bench: &Bench<'_>) -> Finding {
    each(bench, |given, left| {
        let all: HashSet<u32> = given.ids.iter().copied().collect();
        let mut seen = HashSet::new();
        for id in &left.ids {
            if !all.contains(id) {
                return Some(format!("token {id} is left over, and was none of them"));
            }
            if !seen.insert(id) {
                return Some(format!("token {id} is left over twice"));
            }
        }
        let pick = left.pick.filter(|pick| !all.contains(pick))?;
        Some(format!("token {pick} is picked, and was none of them"))
    })
}

fn barred(bench: &Bench<'_>) -> Finding {
    each(bench, |given, left| {
        if let Some(pick) = left.pick {
            let place = given.ids.iter().position(|id| *id == pick)?;
            let logit = given.logits[place];
            let wrong = logit.is_nan() || logit == f32::NEG_INFINITY;
            return wrong.then(|| format!("token {pick} is picked, whose logit is {logit}"));
        }
        let lost = !barren(given) && !left.logits.iter().any(|logit| *logit > f32::NEG_INFINITY);
        lost.then(|| "no candidate above -inf is left".into())
    })
}

fn numbers(bench: &Bench<'_>) -> Finding {
    each(bench, |given, left| {
        if !given.logits.iter().all(|logit| logit.is_finite()) {
            return None;
        }
        let place = left.logits.iter().position(|logit| logit.is_nan())?;
        Some(format!("the logit of token {} becomes {}", left.ids[place], left.logits[place]))
    })
}

fn sorted(bench: &Bench<'_>) -> Finding {
    let number = |logit: f32| if logit.is_nan() { f32::NEG_INFINITY } else { logit };
    each(bench, |_, left| {
        let wrong = left.sorted && !left.logits.is_sorted_by(|a, b| number(*a) >= number(*b));
        wrong.then(|| "they are said to descend, and do not".into())
    })
}

/// Runs a stage by itself, then two in alternation: all must produce the same output.
fn seed(bench: &Bench<'_>) -> Finding {
    let mut alone = bench.stage(99)?;
    let first = walk(bench, &mut [&mut alone])?;
    let (mut one, mut other, mut stranger) = (bench.stage(99)?, bench.stage(99)?, bench.stage(1234)?);
    let again = walk(bench, &mut [&mut one, &mut stranger, &mut other])?;
    for (name, ways) in [("another stage", &again[0]), ("a stage beside others", &again[2])] {
        if let Some(step) = ways.iter().zip(&first[0]).position(|(way, right)| way != right) {
            let pick = |ways: &[Left]| ways.get(step).and_then(|left| left.pick);
            let (found, right) = (pick(ways), pick(&first[0]));
            return Err(broken(format!("token {step} of {name} with the same seed is {found:?}, not {right:?}")));
        }
    }
    Ok(Outcome::Exact)
}

/// The outputs of stages over sixteen steps; each follows its own picks.
fn walk(bench: &Bench<'_>, stages: &mut [&mut StageBox]) -> Finding<Vec<Vec<Left>>> {
    let vocabulary = bench.options.vocabulary.clamp(1, 64);
    let mut histories = vec![vec![0]; stages.len()];
    let mut ways = vec![Vec::new(); stages.len()];
    let mut random = Random(21);
    for _ in 0..16 {
        let logits: Vec<f32> = (0..vocabulary).map(|_| random.next() * 3.0).collect();
        for ((stage, history), way) in stages.iter_mut().zip(&mut histories).zip(&mut ways) {
            let given = Given {
                what: "a text's candidates",
                ids: (0..vocabulary).collect(),
                logits: logits.clone(),
                sorted: false,
                history: history.clone(),
            };
            let left = sample(stage, &given)?.map_err(|error| broken(format!("{}: {error}", given.what)))?;
            history.push(left.pick.or_else(|| left.ids.first().copied()).unwrap_or(0));
            way.push(left);
        }
    }
    Ok(ways)
}

/// Runs stages on separate threads, all at once.
fn concurrent(bench: &Bench<'_>) -> Finding {
    const THREADS: u64 = 4;
    const ROUNDS: usize = 20;
    let offered = ConcurrentStages::of(bench.sampler).transpose();
    let offered = offered.map_err(|error| broken(format!("it offers what cannot be read: {error}")))?;
    let Some(ConcurrentStages { threads: 0 }) = offered else {
        return Err(skipped("it does not let any number of threads call its stages"));
    };
    let alone = (0..THREADS).map(|seed| Ok(walk(bench, &mut [&mut bench.stage(seed)?])?.remove(0)));
    let alone = alone.collect::<Finding<Vec<_>>>()?;
    for _ in 0..ROUNDS {
        let together = std::thread::scope(|scope| {
            let walks = (0..THREADS).map(|seed| scope.spawn(move || walk(bench, &mut [&mut bench.stage(seed)?])));
            walks.collect::<Vec<_>>().into_iter().map(std::thread::ScopedJoinHandle::join).collect::<Vec<_>>()
        });
        for (seed, (ways, right)) in together.into_iter().zip(&alone).enumerate() {
            let ways = ways.map_err(|_| broken("a thread has panicked"))??.remove(0);
            if let Some(step) = ways.iter().zip(right).position(|(way, right)| way != right) {
                let (found, right) = (ways[step].pick, right[step].pick);
                let what =
                    format!("token {step} of a stage with seed {seed} beside others is {found:?}, not {right:?}");
                return Err(broken(what));
            }
        }
    }
    Ok(Outcome::Exact)
}

fn deadline(bench: &Bench<'_>) -> Finding {
    let vocabulary = bench.options.vocabulary;
    let mut random = Random(3);
    let given = Given {
        what: "a whole vocabulary",
        ids: (0..vocabulary).collect(),
        logits: (0..vocabulary).map(|_| random.next() * 10.0).collect(),
        sorted: false,
        history: (0..4096).map(|place| place * 31 % vocabulary.max(1)).collect(),
    };
    let (mut stage, mut longest) = (bench.stage(1)?, Duration::ZERO);
    for _ in 0..3 {
        let start = Instant::now();
        drop(sample(&mut stage, &given)?);
        longest = longest.max(start.elapsed());
        if longest > bench.options.deadline {
            let limit = bench.options.deadline;
            return Err(broken(format!(
                "{vocabulary} candidates take {longest:.1?}, and a host waits for {limit:.1?}"
            )));
        }
    }
    Ok(noted(format!("{vocabulary} candidates take up to {longest:.1?}")))
}

/// Numbers from -1 to 1.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        (draw(&mut self.0) >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }
}
