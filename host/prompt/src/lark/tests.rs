//! The expressions that grammars become, and the words for what cannot be one.

use super::*;

/// The grammar that Codex (Apache-2.0) sends with its tool `apply_patch`.
const APPLY_PATCH: &str = include_str!("../../../../../../tests/fixtures/codex/apply_patch.lark");

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
    let deep = format!("start: {}\"a\"{}", "(".repeat(80), ")".repeat(80));
    let chain: String = (0..80).map(|rule| format!("r{rule}: r{}\n", rule + 1)).collect();
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
        (&deep, "nested more than 64 deep"),
        (&format!("start: r0\n{chain}r80: \"a\""), "nested more than 64 deep"),
        (&format!("start: r0\n{doubled}r40: \"a\""), "more than 16384 bytes"),
    ] {
        let error = pattern(grammar).unwrap_err();
        assert!(error.contains(words), "{grammar}: {error}");
    }
}
