//! The expressions that grammars become, and the messages for those that cannot be converted.

use super::*;
use pensieve_fuzz::Target;
use std::{
    thread,
    time::{Duration, Instant},
};

/// The grammar that Codex (Apache-2.0) sends with its tool `apply_patch`.
const APPLY_PATCH: &str = include_str!("../../../../tests/fixtures/codex/apply_patch.lark");

fn check(grammar: &str, expect: &str) {
    assert_eq!(pattern(grammar).as_deref(), Ok(expect), "{grammar}");
}

#[test]
fn rules_stand_where_they_are_named() {
    check("start: a B\na: \"x\" | \"y\"\nB: /[0-9]+/\n", "(?:x|y)[0-9]+");
    check("start: (\"ab\" | C)~2..3 D? [\"e\"]\nC: \"c\"i\nD: \"d\" \"d\"", "(?:ab|(?i:c)){2,3}(?:dd)?e?");
    check("// comment\n?start.2: a* -> all\n  | \"/\"~3 # comment\n\n!a: b+\nb: /x|y/\n", "(?:(?:x|y)+)*|/{3}");
    check("start: \"a\\n\\\"\\x41\\\\\" /\\/\\n/", "a\n\"A\\\\\\/\\n");
    check("start: \"a\"..\"f\"\n    | (\n \"1.5\"\n )", r"[\x{61}-\x{66}]|1\.5");
    check("start: | \"a\"", "|a");
    check("start: /(?i)a/ \"b\"", "(?:(?i)a)b");
}

#[test]
fn what_is_imported_and_what_is_ignored_is_written_out() {
    check("start: INT END\n%import common.INT\n%import common.LF -> END\n", r"[0-9]+\n");
    check("start: LETTER | DIGIT\n%import common (LETTER, DIGIT)", "[A-Za-z]|[0-9]");
    check("start: \"a\" B\nB: \"b\" \"c\"\n%ignore \" \"\n%ignore /#/", "(?: |#)*a(?: |#)*bc(?: |#)*");
}

#[test]
fn the_grammar_of_codex_is_one_expression() {
    let pattern = format!("^(?:{})$", pattern(APPLY_PATCH).unwrap());
    assert!(pattern.len() < 700, "{} bytes: {pattern}", pattern.len());
    let fits = regex_lite::Regex::new(&pattern).unwrap();
    for patch in [
        "*** Begin Patch\n*** Add File: a.txt\n+one\n+\n*** End Patch",
        "*** Begin Patch\n*** Delete File: a\n*** Update File: b c\n*** Move to: d\n@@ def f():\n-x\n+y\n z\n*** End of File\n*** End Patch\n",
    ] {
        assert!(fits.is_match(patch), "{patch}");
    }
    for patch in [
        "",
        "*** Begin Patch\n*** End Patch",
        "*** Begin Patch\n*** Add File: a.txt\none\n*** End Patch",
        "*** Begin Patch\n*** Delete File: \n*** End Patch",
        "*** Begin Patch\n*** Delete File: a\n*** End Patch\n\n",
    ] {
        assert!(!fits.is_match(patch), "{patch}");
    }
}

#[test]
fn what_cannot_be_an_expression_is_told_in_words() {
    let deep = format!("start: {}\"a\"{}", "(".repeat(150), ")".repeat(150));
    let chain: String = (0..150).map(|rule| format!("r{rule}: r{}\n", rule + 1)).collect();
    let doubled: String = (0..40).map(|rule| format!("r{rule}: r{0} r{0}\n", rule + 1)).collect();
    for (grammar, words) in [
        ("a: \"x\"", "'start' is not defined"),
        ("start: a\na: \"(\" start \")\" | \"x\"", "'start' is recursive"),
        ("start: \"a\"\nstart: \"b\"", "'start' is defined twice"),
        ("start: /(?=a)/", "look-around"),
        ("start: /^a/", "an anchor"),
        ("start: /a\\b/", "a word boundary"),
        ("start: /(/", "unclosed group"),
        ("start: /a/x", "no 'x'"),
        ("start: <eos>", "'<' cannot be used"),
        ("start: @other", "'@' cannot be used"),
        ("start: list{\"a\"}", "'{' cannot be used"),
        ("start: %json \"a\"", "'%json' cannot be used"),
        ("start: /a/ & /b/", "'&' cannot be used"),
        ("start: ~/a/", "'~' cannot be used"),
        ("start[lazy]: /a/", "'[' stands where ':' should"),
        ("start: A\n%declare A", "'%declare' cannot be used"),
        ("start: (\"a\"", "it ends where ')' should"),
        ("start: \"a\")", "')' stands where the end of a line should"),
        ("start: \"a", "has no end"),
        ("start: \"\\q\"", "unknown escape"),
        ("start: \"ab\"..\"c\"", "not between two characters"),
        ("start: \"c\"..\"a\"", "regular expression cannot be used"),
        ("start: \"a\"..", "a range has no end"),
        ("start: \"a\"~x", "'x' stands where a number should"),
        ("start: \"a\"~99999999999", "too large"),
        ("%import os.system", "only 'common'"),
        ("%import common.NOTHING", "'common' has no 'NOTHING'"),
        ("start \"a\"", "a string stands where ':' should"),
        (&deep, "nested more than 128 deep"),
        (&format!("start: r0\n{chain}r150: \"a\""), "nested more than 128 deep"),
        (&format!("start: r0\n{doubled}r40: \"a\""), "more than 16384 bytes"),
    ] {
        let error = pattern(grammar).unwrap_err();
        assert!(error.contains(words), "{grammar}: {error}");
    }
}

/// One five-hundredth of a grammar process's stack, so nothing here comes close to overflowing the real one.
const STACK_BYTES: usize = 512 << 10;

fn on_a_small_stack<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, run).unwrap().join().unwrap()
    })
}

/// Writes `rules` rules, each of which wraps the next in `brackets` pairs of brackets.
fn nested(rules: usize, brackets: usize, pair: [&str; 2]) -> String {
    let rule = |number: usize| {
        let (name, next) = if number == 0 { ("start".into(), 1) } else { (format!("r{number}"), number + 1) };
        format!("{name}: {}r{next}{}\n", pair[0].repeat(brackets), pair[1].repeat(brackets))
    };
    (0..rules).map(rule).collect::<String>() + &format!("r{rules}: \"x\"\n")
}

#[test]
fn rules_and_brackets_count_together_however_they_are_mixed() {
    on_a_small_stack(|| {
        for pair in [["(", ")"], ["[", "]"], ["(\"a\" | ", ")*"], ["[\"a\" ", "]~2..3"]] {
            // Two levels are taken by the first and the last rule.
            for (rules, brackets) in [(40, 40), (60, 30), (64, 1), (1, 10_000), (200, 0), (4_000, 0), (2, 64), (1, 127)]
            {
                let error = expression(Syntax::Lark, &nested(rules, brackets, pair)).unwrap_err();
                assert!(error.contains("nested more than 128 deep"), "{rules} × {brackets}: {error}");
            }
            for (rules, brackets) in [(63, 1), (1, 126), (7, 16), (127, 0)] {
                let expressed = expression(Syntax::Lark, &nested(rules, brackets, pair));
                let deep = expressed.as_ref().is_err_and(|error| error.contains("deep"));
                assert!(!deep, "{rules} × {brackets}: {expressed:?}");
            }
        }
        let deep = format!("{}a{}", "(".repeat(8_000), ")".repeat(8_000));
        let error = expression(Syntax::Regex, &deep).unwrap_err();
        assert!(error.contains("nested"), "{error}");
    });
}

#[test]
fn an_expression_as_it_is_has_to_be_one_without_anchors() {
    assert_eq!(expression(Syntax::Regex, "a+|b"), Ok("a+|b".to_owned()));
    assert_eq!(expression(Syntax::Regex, "[a-z]{1,2000}"), Ok("[a-z]{1,2000}".to_owned()));
    for (definition, why) in [
        ("a(?=b)", "look-around"),
        ("(a", "unclosed group"),
        ("^a", "an anchor"),
        ("[a-z]{1,3000}", "counts to 3000 bytes of text, and can count to 2048"),
    ] {
        let error = expression(Syntax::Regex, definition).unwrap_err();
        assert!(error.contains(why), "{definition}: {error}");
    }
    let began = Instant::now();
    let error = expression(Syntax::Regex, &r"\PL".repeat(21_000)).unwrap_err();
    assert!(error.contains("more than 16384 bytes") && began.elapsed() < Duration::from_millis(100), "{error}");
    let error = expression(Syntax::Lark, &format!("start: {}", "x".repeat(60_000))).unwrap_err();
    assert!(error.len() < 1000, "a complaint repeats {} bytes", error.len());
}

/// Whatever the input, only valid expressions come out.
#[test]
fn a_damaged_format_is_an_expression_or_a_complaint() {
    let mut corpus: Vec<Vec<u8>> = COMMON.iter().map(|(_, expression)| expression.as_bytes().to_vec()).collect();
    corpus.push(APPLY_PATCH.into());
    for grammar in [
        "start: (\"ab\" | C)~2..3 D? [\"e\"]\nC: \"c\"i\nD: \"d\" \"d\"",
        "// comment\n?start.2: a* -> all\n  | \"/\"~3 # comment\n\n!a: b+\nb: /x|y/\n",
        "start: \"a\"..\"f\"\n    | (\n \"1.5\"\n )",
        "start: LETTER B\n%import common (LETTER, DIGIT)\nB: \"b\" \"c\"\n%ignore \" \"\n%ignore /#/",
    ] {
        corpus.push(grammar.into());
    }
    corpus.extend([nested(10, 10, ["(", ")"]), nested(40, 40, ["[", "]*"])].map(String::into_bytes));
    // Character classes over all of Unicode account for most of the memory.
    let target = Target { name: "formats", corpus, memory_max: 128 << 20, input_max: 4 << 10 };
    target.run_on(STACK_BYTES, |bytes| {
        let definition = String::from_utf8_lossy(bytes);
        let told = [Syntax::Lark, Syntax::Regex].map(|syntax| match expression(syntax, &definition) {
            Ok(expression) => {
                assert!(expression.len() <= pensieve_protocol::prompt::EXPRESSION_BYTES_MAX);
                assert_eq!(checked(&expression), Ok(()), "{expression}");
                "expression".to_owned()
            }
            Err(complaint) => complaint,
        });
        told.join("; ")
    });
}
