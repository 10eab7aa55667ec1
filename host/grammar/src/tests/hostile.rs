//! Hostile grammars: each is compiled or rejected in time, and none takes the process down.

use std::time::{Duration, Instant};

use super::fixture::*;
use crate::{GrammarError, is_allowed};
use pensieve_protocol::grammar::{Grammar, Marker, Rule, Spec, Then, Trigger};

/// Writes definitions in groups, as an object may have only so many fields; each is built from a reference to the
/// previous one.
fn definitions(count: usize, body: impl Fn(String) -> String) -> String {
    let place = |index: usize| format!("#/$defs/g{}/d{index}", index / 1_000);
    let group = |group: usize| {
        let members = (group * 1_000..count.min((group + 1) * 1_000)).map(|index| match index {
            0 => r#""d0":{"type":"integer"}"#.to_owned(),
            _ => format!("\"d{index}\":{}", body(format!(r#"{{"$ref":"{}"}}"#, place(index - 1)))),
        });
        format!("\"g{group}\":{{{}}}", members.collect::<Vec<_>>().join(","))
    };
    format!(r#"{{"$ref":"{}","$defs":{{{}}}}}"#, place(count - 1), listed(count.div_ceil(1_000), group))
}

fn listed(count: usize, item: impl Fn(usize) -> String) -> String {
    (0..count).map(item).collect::<Vec<_>>().join(",")
}

/// Writes definitions that each double the previous one, down to a string with a pattern.
fn doubling(levels: usize) -> String {
    definitions(levels, |d| format!(r##"{{"allOf":[{d},{d}]}}"##))
        .replace(r#""d0":{"type":"integer"}"#, r#""d0":{"type":"string","pattern":"^a[bc]d$"}"#)
}

fn schemas() -> Vec<(&'static str, String)> {
    let nested = |open: &str, close: &str, depth: usize| format!("{}{{}}{}", open.repeat(depth), close.repeat(depth));
    vec![
        ("references that double", definitions(60, |d| format!(r##"{{"allOf":[{d},{d}]}}"##))),
        ("objects that double", definitions(60, |d| format!(r##"{{"properties":{{"x":{d},"y":{d}}}}}"##))),
        ("a long chain", definitions(9_000, |d| d)),
        ("a long chain of lists", definitions(4_900, |d| format!(r##"{{"items":{d}}}"##))),
        ("a long chain of choices", definitions(1_900, |d| format!(r##"{{"anyOf":[{{"allOf":[{d}]}}]}}"##))),
        (
            "a product of choices",
            format!(
                r#"{{"allOf":[{}]}}"#,
                listed(12, |i| format!(
                    r#"{{"anyOf":[{}]}}"#,
                    listed(3, |j| format!(r#"{{"properties":{{"p{i}{j}":{{"type":"string"}}}}}}"#))
                ))
            ),
        ),
        ("itself", r##"{"$ref":"#"}"##.to_owned()),
        ("itself or itself", r##"{"anyOf":[{"$ref":"#"},{"$ref":"#"}]}"##.to_owned()),
        ("itself and more", r##"{"allOf":[{"$ref":"#"},{"type":"object"}]}"##.to_owned()),
        ("no end", r##"{"type":"object","properties":{"c":{"$ref":"#"}},"required":["c"]}"##.to_owned()),
        ("deep JSON", nested("[", "]", 100_000)),
        ("deep lists", nested(r#"{"items":"#, "}", 120)),
        ("deep choices", nested(r#"{"anyOf":["#, "]}", 30)),
        ("a megabyte", format!(r#"{{"enum":[{}]}}"#, listed(100_000, |i| format!("\"v{i:08}\"")))),
        ("many values", format!(r#"{{"enum":[{}]}}"#, listed(40_000, |i| format!("\"v{i}\"")))),
        (
            "many properties",
            format!(r#"{{"properties":{{{}}}}}"#, listed(9_000, |i| format!(r#""p{i}":{{"type":"string"}}"#))),
        ),
        (
            "many patterns",
            format!(
                r#"{{"properties":{{{}}}}}"#,
                listed(2_000, |i| format!(r#""p{i}":{{"type":"string","pattern":"^[a-z]{{{i}}}$"}}"#))
            ),
        ),
        (
            "patterns that overlap",
            format!(r#"{{"patternProperties":{{{}}}}}"#, listed(300, |i| format!(r#""^x.*{i}.*$":{{}}"#))),
        ),
        (
            "a huge count",
            r#"{"type":"array","minItems":1000000,"maxItems":2000000000,"items":{"type":"integer"}}"#.to_owned(),
        ),
        ("a huge length", r#"{"type":"string","minLength":100000000,"maxLength":2000000000}"#.to_owned()),
        (
            "a length and a pattern",
            r#"{"type":"string","minLength":1000,"maxLength":5000,"pattern":"^(a|b|.*c)*d.{300}e"}"#.to_owned(),
        ),
        ("a huge divisor", r#"{"type":"integer","multipleOf":99999989}"#.to_owned()),
        (
            "divisors that multiply",
            r#"{"allOf":[{"type":"integer","multipleOf":9973},{"multipleOf":9967}]}"#.to_owned(),
        ),
        ("a tiny divisor", r#"{"type":"number","multipleOf":1e-300}"#.to_owned()),
        (
            "bounds far apart",
            r#"{"type":"number","minimum":1e-300,"exclusiveMaximum":1.7976931348623157e308}"#.to_owned(),
        ),
        (
            "settings of its own",
            r#"{"type":"object","x-guidance":{"whitespace_pattern":"(a|b|.*c)*d.{300}e","lenient":7}}"#.to_owned(),
        ),
        ("no JSON", "{".to_owned()),
    ]
}

fn regexes() -> Vec<(&'static str, String)> {
    vec![
        ("a star of stars", "(a*)*b".to_owned()),
        ("counts of counts", "((a{0,100}){0,100}){0,100}".to_owned()),
        ("a remembered letter", "(.*a.{20}){5}".to_owned()),
        ("a billion", "a{1000000000}".to_owned()),
        ("many letters", r"(?i)\w{500}".to_owned()),
        ("scripts", r"[\p{L}\p{N}]{1,1000}(\p{Greek}|\p{Cyrillic}){1,1000}".to_owned()),
        ("many that may be", "(a?)".repeat(4_000)),
        ("a long word", "a".repeat(16_000)),
        ("deep", format!("{}a{}", "(".repeat(8_000), ")".repeat(8_000))),
        ("many choices", (0..1_900).map(|i| format!("a.*{i}")).collect::<Vec<_>>().join("|")),
        ("a hundred kilobytes", "a".repeat(100_000)),
        ("nothing", r"[^\s\S]".to_owned()),
        ("no regex", "a**)(".to_owned()),
        ("look-around", "(?=a)b".to_owned()),
        ("a lone backslash", "a\\".to_owned()),
    ]
}

fn larks() -> Vec<(&'static str, String)> {
    let chain = |name: &str, count: usize, body: &dyn Fn(usize) -> String| {
        let rules: String = (0..count).map(|i| format!("{name}{i}: {}\n", body(i + 1))).collect();
        format!("start: {name}0\n{rules}{name}{count}: \"x\"\n")
    };
    vec![
        ("a chain of rules", chain("r", 4_500, &|i| format!("r{i}"))),
        ("a chain of terminals", chain("T", 4_500, &|i| format!("T{i}"))),
        ("terminals that double", chain("T", 60, &|i| format!("T{i} T{i}"))),
        ("rules that double", chain("r", 60, &|i| format!("r{i} \"a\" r{i}"))),
        ("itself", "start: start".to_owned()),
        ("itself twice", "start: start start | \"a\" | ".to_owned()),
        ("a hundred million", "start: (\"a\" | \"b\"){100000000}".to_owned()),
        ("counts of counts", "start: ((((x{1,1000}){1,1000}){1,1000}))\nx: \"a\"".to_owned()),
        ("many readings", "start: a a a a a a a a a a\na: (\"x\"|\"xx\"|\"xxx\"|/x*/)*".to_owned()),
        ("a negation", "start: T\nT: ~/(a|b)*a(a|b){18}/ & ~/(a|b)*b(a|b){17}/".to_owned()),
        ("parentheses", format!("start: {}\"a\"{}", "(".repeat(5_000), ")".repeat(5_000))),
        (
            "many choices",
            format!("start: {}\nx: \"a\"", (0..5_000).map(|i| format!("\"k{i}\" x")).collect::<Vec<_>>().join(" | ")),
        ),
        ("many that may be", format!("start: {}\na: \"x\"", "a? ".repeat(3_000))),
        ("a divisor", "start: %json {\"type\":\"integer\",\"multipleOf\":99999989}".to_owned()),
        ("a divisor in disguise", "start: %json {\"type\":\"integer\",\"multiple\\u004ff\":99999989}".to_owned()),
        ("a missing rule", "start: nothing".to_owned()),
        ("no rule", String::new()),
        ("a strange token", "start: <[4000000000]>".to_owned()),
    ]
}

#[test]
fn every_hostile_grammar_is_answered_in_time_and_leaves_steps_short() {
    let vocabulary = vocabulary(true);
    let compiler = compiler(&vocabulary);
    let mut random = fastrand::Rng::with_seed(5);
    let schemas = schemas().into_iter().map(|(name, text)| (name, Grammar::json_schema(text, false)));
    let regexes = regexes().into_iter().map(|(name, text)| (name, Grammar::Regex(text)));
    let larks = larks().into_iter().map(|(name, text)| (name, Grammar::Lark(text)));
    for (name, grammar) in schemas.chain(regexes).chain(larks) {
        let spec = from_start(grammar);
        let (mut began, mut compiled) = (Instant::now(), compiler.compile(&spec));
        let patience = began + Duration::from_secs(60);
        while compiled.as_ref().err() == Some(&GrammarError::Busy) && began < patience {
            assert!(began.elapsed() < Duration::from_millis(100), "a refusal took {:?}", began.elapsed());
            std::thread::sleep(Duration::from_millis(20));
            (began, compiled) = (Instant::now(), compiler.compile(&spec));
        }
        let took = began.elapsed();
        assert_ne!(compiled.as_ref().err(), Some(&GrammarError::Busy), "helpers never came back before {name}");
        assert!(took < Duration::from_secs(3), "{name} was answered after {took:?}");
        let answer = compiled.as_ref().map(|_| "compiled".to_owned()).unwrap_or_else(ToString::to_string);
        let mut slowest = Duration::ZERO;
        if let Ok(mut constraint) = compiled {
            for _ in 0..40 {
                let began = Instant::now();
                // An error ends only this sequence, which is all that is required.
                let Ok(Some(mask)) = constraint.mask() else { break };
                let allowed: Vec<u32> = (0..vocabulary.size()).filter(|token| is_allowed(mask, *token)).collect();
                let accepted = constraint.accept(*random.choice(&allowed).unwrap());
                slowest = slowest.max(began.elapsed());
                if accepted.is_err() || constraint.is_complete() {
                    break;
                }
            }
        }
        println!(
            "{name:28} {took:>12.1?}  slowest step {slowest:>10.1?}  {}",
            answer.lines().next().unwrap_or_default()
        );
        assert!(slowest < Duration::from_millis(500), "a step of {name} took {slowest:?}");
    }
}

#[test]
fn what_a_schema_expands_to_is_counted_before_it_is_expanded() {
    let compiler = compiler(&vocabulary(true));
    let compile = |schema: String| compiler.compile(&from_start(Grammar::json_schema(schema, false))).map(drop);
    for levels in [15, 26, 60, 900] {
        let began = Instant::now();
        let error = compile(doubling(levels)).unwrap_err().to_string();
        assert!(error.contains("parts of schema for one value"), "{levels} levels: {error}");
        assert!(began.elapsed() < Duration::from_secs(1), "{levels} levels were counted in {:?}", began.elapsed());
    }
    assert_eq!(compile(doubling(8)), Ok(()));
    let tree = r##"{"anyOf":[{"type":"null"},{"$ref":"#/$defs/node"}],"$defs":{"node":{"type":"object","required":["l"],
        "additionalProperties":false,"properties":{"l":{"$ref":"#"},"r":{"$ref":"#"}}}}}"##;
    assert_eq!(compile(tree.to_owned()), Ok(()), "recursion is not expanded");
    assert_eq!(compile(definitions(300, |d| format!(r##"{{"properties":{{"x":{d},"y":{d}}}}}"##))), Ok(()));
}

#[test]
fn names_the_limit_and_the_rule_that_breaks_it() {
    let compiler = compiler(&vocabulary(true));
    let mut spec = from_start(Grammar::any_json_object());
    let trigger = Trigger::After(Marker::Text("x".to_owned()));
    let long = rule(trigger, Grammar::Regex("a".repeat(20_000)), Then::Stop);
    spec.rules.push(Rule { field: "pensieve.grammar.regex".into(), ..long });
    let error = compiler.compile(&spec).err().unwrap();
    assert_eq!(error.to_string(), "pensieve.grammar.regex: 20000 bytes of regex are more than 16384");
    spec.rules[1] = spec.rules[0].clone();
    assert!(matches!(compiler.compile(&spec), Err(GrammarError::Invalid(_))), "two rules at the start");
    assert!(compiler.compile(&Spec::default()).unwrap().mask().unwrap().is_none());
}
