//! llama.cpp's grammars, GBNF, as Lark: names, literals and character classes are written differently, and everything
//! else is the same. Only the notation is changed here; what the grammar means is checked where grammars are compiled.

use std::{collections::BTreeSet, fmt::Write as _};

use super::fields::Quote;

/// Nested groups; each takes a frame of the stack.
const DEPTH_MAX: usize = 64;

/// The grammar in Lark, or why it is none in GBNF.
pub(super) fn to_lark(text: &str) -> Result<String, String> {
    let mut reader = Reader { rest: text, used: BTreeSet::new(), defined: BTreeSet::new(), out: String::new() };
    reader.space(true);
    while !reader.rest.is_empty() {
        reader.rule()?;
        reader.space(true);
    }
    if !reader.defined.contains("root") {
        return Err("has no rule 'root'".into());
    }
    match reader.used.difference(&reader.defined).next() {
        Some(name) => Err(format!("the rule '{}' is not defined", Quote(name))),
        None => Ok(reader.out),
    }
}

struct Reader<'a> {
    rest: &'a str,
    used: BTreeSet<&'a str>,
    defined: BTreeSet<&'a str>,
    out: String,
}

impl<'a> Reader<'a> {
    fn rule(&mut self) -> Result<(), String> {
        let name = self.name().ok_or_else(|| self.unexpected("the name of a rule"))?;
        self.space(false);
        if !self.take("::=") {
            return Err(self.unexpected("'::='"));
        }
        if !self.defined.insert(name) {
            return Err(format!("the rule '{}' is defined twice", Quote(name)));
        }
        let name = lark_name(name);
        let _ = write!(self.out, "{name}:");
        self.space(true);
        self.alternatives(0)?;
        self.out.push('\n');
        Ok(())
    }

    /// Sequences with `|` between them. A line ends a rule except in a group and beside a `|`.
    fn alternatives(&mut self, depth: usize) -> Result<(), String> {
        if depth > DEPTH_MAX {
            return Err(format!("its groups are nested more than {DEPTH_MAX} deep"));
        }
        loop {
            self.sequence(depth)?;
            // An alternative may stand on a line of its own.
            let before = self.rest;
            self.space(true);
            if !self.take("|") {
                if depth == 0 {
                    self.rest = before;
                }
                return Ok(());
            }
            self.out.push_str(" |");
            self.space(true);
        }
    }

    fn sequence(&mut self, depth: usize) -> Result<(), String> {
        let start = self.out.len();
        loop {
            self.space(depth > 0);
            match self.rest.chars().next() {
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('.') => {
                    self.rest = &self.rest[1..];
                    self.out.push_str(" /[\\s\\S]/");
                }
                Some('(') => {
                    self.rest = &self.rest[1..];
                    self.out.push_str(" (");
                    self.space(true);
                    self.alternatives(depth + 1)?;
                    self.space(true);
                    if !self.take(")") {
                        return Err(self.unexpected("')'"));
                    }
                    self.out.push(')');
                }
                _ => {
                    let before = self.rest;
                    let Some(name) = self.name() else { break };
                    // Without a line break it would be the next rule's name.
                    let after = self.rest;
                    self.space(false);
                    if self.rest.starts_with("::=") {
                        self.rest = before;
                        break;
                    }
                    self.rest = after;
                    self.used.insert(name);
                    let _ = write!(self.out, " {}", lark_name(name));
                }
            }
            self.repeat()?;
        }
        if self.out.len() == start {
            // An empty sequence.
            self.out.push_str(" \"\"");
        }
        Ok(())
    }

    fn repeat(&mut self) -> Result<(), String> {
        for mark in ["*", "+", "?"] {
            if self.take(mark) {
                self.out.push_str(mark);
                return Ok(());
            }
        }
        if !self.take("{") {
            return Ok(());
        }
        let end = self.rest.find('}').ok_or("has a '{' without its '}'")?;
        let inner: String = self.rest[..end].chars().filter(|letter| !letter.is_whitespace()).collect();
        self.rest = &self.rest[end + 1..];
        let is_count =
            |text: &str| !text.is_empty() && text.len() < 6 && text.bytes().all(|byte| byte.is_ascii_digit());
        let is_valid = match inner.split_once(',') {
            None => is_count(&inner),
            Some((min, max)) => (is_count(min) || min.is_empty()) && (is_count(max) || max.is_empty()),
        };
        if !is_valid {
            return Err(format!("'{{{}}}' is no number of repetitions", Quote(&inner)));
        }
        let inner = if let Some(max) = inner.strip_prefix(',') { format!("0,{max}") } else { inner };
        let _ = write!(self.out, "{{{inner}}}");
        Ok(())
    }

    /// A string in quotes. Its escapes are read and written again, as Lark knows fewer of them.
    fn literal(&mut self) -> Result<(), String> {
        self.rest = &self.rest[1..];
        let mut text = String::new();
        loop {
            match self.letter()? {
                ('"', false) => break,
                (letter, _) => text.push(letter),
            }
        }
        let _ = write!(self.out, " {}", serde_json::Value::from(text));
        Ok(())
    }

    /// A character class, as a regular expression with each character written by its number.
    fn class(&mut self) -> Result<(), String> {
        self.rest = &self.rest[1..];
        self.out.push_str(" /[");
        if self.take("^") {
            self.out.push('^');
        }
        let mut is_empty = true;
        loop {
            match self.letter()? {
                (']', false) => break,
                ('-', false) if !is_empty && !self.rest.starts_with(']') => self.out.push('-'),
                (letter, _) if letter.is_ascii_alphanumeric() || letter == ' ' => self.out.push(letter),
                (letter, _) => {
                    let _ = write!(self.out, "\\x{{{:x}}}", u32::from(letter));
                }
            }
            is_empty = false;
        }
        if is_empty {
            return Err("has an empty character class".into());
        }
        self.out.push_str("]/");
        Ok(())
    }

    /// The next character of a literal or a class, and whether it was escaped.
    fn letter(&mut self) -> Result<(char, bool), String> {
        let mut letters = self.rest.chars();
        let open = || "has a literal or a character class without its end".to_owned();
        let letter = letters.next().ok_or_else(open)?;
        if letter == '\n' {
            return Err(open());
        }
        if letter != '\\' {
            self.rest = letters.as_str();
            return Ok((letter, false));
        }
        let escape = letters.next().ok_or_else(open)?;
        self.rest = letters.as_str();
        let digits = match escape {
            'n' => return Ok(('\n', true)),
            'r' => return Ok(('\r', true)),
            't' => return Ok(('\t', true)),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            other => return Ok((other, true)),
        };
        let code = self.rest.get(..digits).and_then(|text| u32::from_str_radix(text, 16).ok()).and_then(char::from_u32);
        let letter =
            code.ok_or_else(|| format!("'\\{escape}' should be followed by {digits} digits of a character"))?;
        self.rest = &self.rest[digits..];
        Ok((letter, true))
    }

    fn name(&mut self) -> Option<&'a str> {
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
        let end = self.rest.find(|letter| !is_part(letter)).unwrap_or(self.rest.len());
        let name = &self.rest[..end];
        self.rest = &self.rest[end..];
        (!name.is_empty()).then_some(name)
    }

    fn take(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Skips white space and comments, line breaks only if asked to.
    fn space(&mut self, lines: bool) {
        loop {
            let is_space = |letter: char| matches!(letter, ' ' | '\t') || lines && matches!(letter, '\n' | '\r');
            self.rest = self.rest.trim_start_matches(is_space);
            if !self.rest.starts_with('#') {
                return;
            }
            self.rest = &self.rest[self.rest.find('\n').unwrap_or(self.rest.len())..];
        }
    }

    fn unexpected(&self, wanted: &str) -> String {
        match self.rest.lines().next() {
            Some(line) => format!("should have {wanted} at '{}'", Quote(line)),
            None => format!("should have {wanted} at its end"),
        }
    }
}

/// A rule's name in Lark: small letters, digits and underscores. Different names stay different.
fn lark_name(name: &str) -> String {
    if name == "root" {
        return "start".into();
    }
    let mut lark = String::from("r_");
    for letter in name.chars() {
        match letter {
            'a'..='z' | '0'..='9' => lark.push(letter),
            '-' => lark.push('_'),
            _ => {
                let _ = write!(lark, "_{:x}_", u32::from(letter));
            }
        }
    }
    lark
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn grammars_are_written_in_lark() {
        let table = [
            ("root ::= \"a\"", "start: \"a\"\n"),
            (
                "root ::= a-b | \"\\x41\\\"\" # end\na-b ::= [a-z_\\]]+",
                "start: r_a_b | \"A\\\"\"\nr_a_b: /[a-z\\x{5f}\\x{5d}]/+\n",
            ),
            ("root::=(\n\"a\"\n|\n[^\\n\"] ){2,3} .?", "start: ( \"a\" | /[^\\x{a}\\x{22}]/){2,3} /[\\s\\S]/?\n"),
            (
                "\n# head\nroot ::=\n  x\n  | y*\n\nx ::= \"\"\ny ::= [-+]{,2}\n",
                "start: r_x | r_y*\nr_x: \"\"\nr_y: /[\\x{2d}\\x{2b}]/{0,2}\n",
            ),
            ("root ::= \"a\" |", "start: \"a\" | \"\"\n"),
        ];
        for (gbnf, lark) in table {
            assert_eq!(to_lark(gbnf).as_deref(), Ok(lark), "{gbnf}");
        }
    }

    #[test]
    fn what_is_no_grammar_is_said() {
        let table = [
            ("a ::= \"b\"", "has no rule 'root'"),
            ("root ::= b", "the rule 'b' is not defined"),
            ("root ::= \"a\"\nroot ::= \"b\"", "the rule 'root' is defined twice"),
            ("root ::= \"a", "has a literal or a character class without its end"),
            ("root ::= [a", "has a literal or a character class without its end"),
            ("root ::= []", "has an empty character class"),
            ("root ::= (\"a\"", "should have ')' at its end"),
            ("root ::= \"a\"{x}", "'{x}' is no number of repetitions"),
            ("root ::= \"\\xg1\"", "'\\x' should be followed by 2 digits of a character"),
            ("root = \"a\" ::=", "should have '::=' at '= \"a\" ::='"),
            ("root ::= \"a\" ) ::=", "should have the name of a rule at ') ::='"),
        ];
        for (gbnf, why) in table {
            assert_eq!(to_lark(gbnf), Err(why.to_owned()), "{gbnf}");
        }
        let deep = format!("root ::= {}", "(".repeat(100_000));
        assert_eq!(to_lark(&deep), Err("its groups are nested more than 64 deep".into()));
    }
}
