//! Converts the format of a custom tool, a regular expression or a Lark grammar, to one regular expression.
//!
//! The tool's input travels in a JSON string, where the engine can hold text to a regular expression but not to a
//! grammar: a terminal such as `/.*/` would not stop at a line break, which in JSON is an escape that starts with a
//! backslash like any other. A grammar without recursion, such as the one for Codex patches, becomes one expression by
//! inlining each rule where it is referenced.
//!
//! Supports Lark as documented, except for templates, `%declare`, `%extend` and `%override`. A grammar that cannot be
//! converted yields an error whose message becomes a warning: the model still sees such a grammar.
//!
//! Both formats are programs written by a client: a character class of eight bytes takes milliseconds and kilobytes to
//! parse. So this runs only in a grammar process, and all recursion here is bounded by depth.

mod expression;
mod tokens;

use std::collections::HashMap;

use expression::{Binding, Expression, checked, choice, collected, sequence};
use pensieve_protocol::prompt::Syntax;
use tokens::{Token, tokens};

/// How deep rules and brackets may nest, counted together: each level takes a few stack frames to parse and to write.
const DEPTH_MAX: usize = 128;
/// Error messages repeat names and characters of the grammar, and end up as warnings.
const COMPLAINT_CHARS_MAX: usize = 200;

/// Terminals of Lark's `common` library.
const COMMON: [(&str, &str); 24] = [
    ("DIGIT", "[0-9]"),
    ("HEXDIGIT", "[0-9a-fA-F]"),
    ("INT", "[0-9]+"),
    ("SIGNED_INT", "[+-]?[0-9]+"),
    ("DECIMAL", r"[0-9]+\.[0-9]*|\.[0-9]+"),
    ("_EXP", "[eE][+-]?[0-9]+"),
    ("FLOAT", r"[0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"),
    ("SIGNED_FLOAT", r"[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)"),
    ("NUMBER", r"([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"),
    ("SIGNED_NUMBER", r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"),
    ("ESCAPED_STRING", r#""([^"\\\n]|\\.)*""#),
    ("LCASE_LETTER", "[a-z]"),
    ("UCASE_LETTER", "[A-Z]"),
    ("LETTER", "[A-Za-z]"),
    ("WORD", "[A-Za-z]+"),
    ("CNAME", "[_A-Za-z][_A-Za-z0-9]*"),
    ("WS_INLINE", r"[ \t]+"),
    ("WS", r"[ \t\f\r\n]+"),
    ("CR", r"\r"),
    ("LF", r"\n"),
    ("NEWLINE", r"(\r?\n)+"),
    ("SH_COMMENT", r"#[^\n]*"),
    ("CPP_COMMENT", r"//[^\n]*"),
    ("SQL_COMMENT", r"--[^\n]*"),
];

/// Returns the expression that matches whole texts of the format, without anchors, or the reason why there is none.
pub(crate) fn expression(syntax: Syntax, definition: &str) -> Result<String, String> {
    let expression = match syntax {
        Syntax::Lark => pattern(definition),
        Syntax::Regex => checked(definition).map(|()| definition.to_owned()),
    };
    expression.map_err(|complaint| complaint.chars().take(COMPLAINT_CHARS_MAX).collect())
}

fn pattern(grammar: &str) -> Result<String, String> {
    let tokens = tokens(grammar)?;
    let mut reader = Reader { tokens: &tokens, depth: 0, grammar: Grammar::default() };
    while let Some((token, rest)) = reader.tokens.split_first() {
        reader.tokens = rest;
        reader.statement(token)?;
    }
    let grammar = reader.grammar;
    let mut writer = Writer { grammar: &grammar, known: HashMap::new(), depth: 0, ignored: None };
    if !grammar.ignored.is_empty() {
        let ignored = collected(grammar.ignored.iter().map(|node| writer.node(node, false)))?;
        writer.ignored = Some(choice(ignored).repeated("*"));
    }
    let start = writer.name("start")?;
    let whole = sequence(writer.ignored.into_iter().chain([start]).collect()).text;
    checked(&whole)?;
    Ok(whole)
}

/// The right-hand side of a definition.
enum Node {
    Text(Expression),
    Name(String),
    Sequence(Vec<Node>),
    Choice(Vec<Node>),
    Repeat(Box<Node>, String),
}

#[derive(Default)]
struct Grammar {
    definitions: HashMap<String, Node>,
    ignored: Vec<Node>,
}

struct Reader<'a> {
    tokens: &'a [Token],
    depth: usize,
    grammar: Grammar,
}

impl Reader<'_> {
    fn statement(&mut self, first: &Token) -> Result<(), String> {
        match first {
            Token::LineEnd | Token::Sign('?' | '!') => return Ok(()),
            Token::Directive(name) if name == "%import" => self.import()?,
            Token::Directive(name) if name == "%ignore" => {
                let node = self.choice()?;
                self.grammar.ignored.push(node);
            }
            Token::Name(name) => {
                if self.takes(&Token::Sign('.')) {
                    // Priorities choose among parses and do not change which texts match.
                    self.takes(&Token::Sign('-'));
                    self.number()?;
                }
                self.expect(&Token::Sign(':'))?;
                let node = self.choice()?;
                self.define(name.clone(), node)?;
            }
            other => return Err(format!("{other} cannot be used here")),
        }
        if self.tokens.is_empty() { Ok(()) } else { self.expect(&Token::LineEnd) }
    }

    fn define(&mut self, name: String, node: Node) -> Result<(), String> {
        if self.grammar.definitions.contains_key(&name) {
            return Err(format!("'{name}' is defined twice"));
        }
        self.grammar.definitions.insert(name, node);
        Ok(())
    }

    /// `%import common.NAME`, `%import common.NAME -> OTHER`, `%import common (NAME, …)`.
    fn import(&mut self) -> Result<(), String> {
        if self.next_name()? != "common" {
            return Err("only 'common' can be imported from".to_owned());
        }
        if self.takes(&Token::Sign('.')) {
            let name = self.next_name()?;
            let alias = if self.takes(&Token::Arrow) { self.next_name()? } else { name.clone() };
            return self.import_one(&name, alias);
        }
        self.expect(&Token::Sign('('))?;
        loop {
            let name = self.next_name()?;
            self.import_one(&name, name.clone())?;
            if !self.takes(&Token::Sign(',')) {
                return self.expect(&Token::Sign(')'));
            }
        }
    }

    fn import_one(&mut self, name: &str, alias: String) -> Result<(), String> {
        let found = COMMON.iter().find(|(known, _)| *known == name);
        let (_, expression) = found.ok_or_else(|| format!("'common' has no '{name}' here"))?;
        self.define(alias, Node::Text(Expression::of((*expression).to_owned())))
    }

    /// Parses alternatives.
    fn choice(&mut self) -> Result<Node, String> {
        if self.depth == DEPTH_MAX {
            return Err(too_deep());
        }
        self.depth += 1;
        let mut alternatives = Vec::new();
        loop {
            alternatives.push(self.sequence()?);
            if self.takes(&Token::Arrow) {
                self.next_name()?;
            }
            if !self.takes(&Token::Sign('|')) {
                break;
            }
        }
        self.depth -= 1;
        Ok(Node::Choice(alternatives))
    }

    fn sequence(&mut self) -> Result<Node, String> {
        let mut items = Vec::new();
        while let Some((token, rest)) = self.tokens.split_first() {
            let item = match token {
                Token::Sign('|' | ')' | ']') | Token::Arrow | Token::LineEnd => break,
                Token::Name(name) => {
                    self.tokens = rest;
                    Node::Name(name.clone())
                }
                Token::Text(text) => {
                    self.tokens = rest;
                    Node::Text(self.text(text)?)
                }
                Token::Expression(text) => {
                    self.tokens = rest;
                    checked(text)?;
                    Node::Text(Expression::of(text.clone()))
                }
                Token::Sign(open @ ('(' | '[')) => {
                    self.tokens = rest;
                    let inner = self.choice()?;
                    let is_round = *open == '(';
                    self.expect(&Token::Sign(if is_round { ')' } else { ']' }))?;
                    if is_round { inner } else { Node::Repeat(Box::new(inner), "?".to_owned()) }
                }
                other => return Err(format!("{other} cannot be used here")),
            };
            items.push(self.repetition(item)?);
        }
        Ok(Node::Sequence(items))
    }

    /// Parses a string, or a character range if `..` follows.
    fn text(&mut self, first: &str) -> Result<Expression, String> {
        if !self.takes(&Token::Range) {
            let binding = if first.chars().count() == 1 { Binding::Atom } else { Binding::Sequence };
            return Ok(Expression { text: regex_syntax::escape(first), binding });
        }
        let Some((Token::Text(last), rest)) = self.tokens.split_first() else {
            return Err("a range has no end".to_owned());
        };
        self.tokens = rest;
        let single = |text: &str| {
            let mut letters = text.chars();
            letters.next().filter(|_| letters.next().is_none()).map(u32::from)
        };
        let (Some(first), Some(last)) = (single(first), single(last)) else {
            return Err("a range is not between two characters".to_owned());
        };
        let text = format!(r"[\x{{{first:x}}}-\x{{{last:x}}}]");
        checked(&text)?;
        Ok(Expression { text, binding: Binding::Atom })
    }

    /// Parses an item's quantifier, if it has one.
    fn repetition(&mut self, item: Node) -> Result<Node, String> {
        let times = match self.tokens.first() {
            Some(Token::Sign(sign @ ('*' | '+' | '?'))) => {
                let times = sign.to_string();
                self.tokens = &self.tokens[1..];
                times
            }
            Some(Token::Sign('~')) => {
                self.tokens = &self.tokens[1..];
                let least = self.number()?;
                if self.takes(&Token::Range) {
                    format!("{{{least},{}}}", self.number()?)
                } else {
                    format!("{{{least}}}")
                }
            }
            _ => return Ok(item),
        };
        Ok(Node::Repeat(Box::new(item), times))
    }

    fn takes(&mut self, token: &Token) -> bool {
        match self.tokens.split_first() {
            Some((first, rest)) if first == token => {
                self.tokens = rest;
                true
            }
            _ => false,
        }
    }

    fn expect(&mut self, token: &Token) -> Result<(), String> {
        if self.takes(token) { Ok(()) } else { Err(self.unexpected(&token.to_string())) }
    }

    fn number(&mut self) -> Result<u32, String> {
        let Some((Token::Number(number), rest)) = self.tokens.split_first() else {
            return Err(self.unexpected("a number"));
        };
        self.tokens = rest;
        Ok(*number)
    }

    fn next_name(&mut self) -> Result<String, String> {
        let Some((Token::Name(name), rest)) = self.tokens.split_first() else {
            return Err(self.unexpected("a name"));
        };
        self.tokens = rest;
        Ok(name.clone())
    }

    fn unexpected(&self, wanted: &str) -> String {
        match self.tokens.first() {
            Some(found) => format!("{found} stands where {wanted} should"),
            None => format!("it ends where {wanted} should stand"),
        }
    }
}

/// Lark distinguishes terminals from rules by the case of their names.
fn is_terminal(name: &str) -> bool {
    name.trim_start_matches('_').starts_with(|first: char| first.is_ascii_uppercase())
}

/// Inlines rules where they are referenced.
struct Writer<'a> {
    grammar: &'a Grammar,
    /// Expanded definitions; `None` while one is being expanded, so that a reference back to it is detected as
    /// recursion.
    known: HashMap<&'a str, Option<Expression>>,
    depth: usize,
    /// The ignored text that may follow each terminal of a rule.
    ignored: Option<Expression>,
}

impl<'a> Writer<'a> {
    fn name(&mut self, name: &str) -> Result<Expression, String> {
        match self.known.get(name) {
            Some(Some(known)) => return Ok(known.clone()),
            Some(None) => return Err(format!("'{name}' is recursive")),
            None => {}
        }
        let Some((name, node)) = self.grammar.definitions.get_key_value(name) else {
            return Err(format!("'{name}' is not defined"));
        };
        self.known.insert(name, None);
        let written = self.node(node, !is_terminal(name))?;
        self.known.insert(name, Some(written.clone()));
        Ok(written)
    }

    /// Expands a part of a rule, or of a terminal, in which nothing is ignored.
    fn node(&mut self, node: &'a Node, in_rule: bool) -> Result<Expression, String> {
        let terminal = match node {
            Node::Text(text) => text.clone(),
            Node::Name(name) if is_terminal(name) => self.name(name)?,
            Node::Name(name) => return self.name(name),
            Node::Repeat(node, times) => return Ok(self.node(node, in_rule)?.repeated(times)),
            Node::Sequence(items) => {
                return Ok(sequence(collected(items.iter().map(|item| self.node(item, in_rule)))?));
            }
            Node::Choice(items) => return self.alternatives(items, in_rule),
        };
        Ok(match &self.ignored {
            Some(ignored) if in_rule => sequence(vec![terminal, ignored.clone()]),
            _ => terminal,
        })
    }

    /// Expands the body of a rule or group. All recursion passes through here, so this depth bounds the stack.
    fn alternatives(&mut self, items: &'a [Node], in_rule: bool) -> Result<Expression, String> {
        if self.depth == DEPTH_MAX {
            return Err(too_deep());
        }
        self.depth += 1;
        let written = collected(items.iter().map(|item| self.node(item, in_rule)))?;
        self.depth -= 1;
        Ok(choice(written))
    }
}

fn too_deep() -> String {
    format!("rules and brackets are nested more than {DEPTH_MAX} deep")
}

#[cfg(test)]
mod tests;
