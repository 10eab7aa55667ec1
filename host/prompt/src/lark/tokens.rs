//! The lexer for grammars in Lark.

use std::fmt;

#[derive(Debug, PartialEq)]
pub(super) enum Token {
    Name(String),
    /// The unescaped content of a string.
    Text(String),
    /// A regular expression, or a case-insensitive string.
    Expression(String),
    Number(u32),
    /// `%import` and the like.
    Directive(String),
    /// `->`
    Arrow,
    /// `..`
    Range,
    Sign(char),
    LineEnd,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) | Self::Directive(name) => write!(f, "'{name}'"),
            Self::Text(_) => f.write_str("a string"),
            Self::Expression(_) => f.write_str("a regular expression"),
            Self::Number(_) => f.write_str("a number"),
            Self::Arrow => f.write_str("'->'"),
            Self::Range => f.write_str("'..'"),
            Self::Sign(sign) => write!(f, "'{sign}'"),
            Self::LineEnd => f.write_str("the end of a line"),
        }
    }
}

/// Splits a grammar into tokens. Line ends appear only between definitions: never within brackets or before a `|`.
pub(super) fn tokens(grammar: &str) -> Result<Vec<Token>, String> {
    let mut tokens: Vec<Token> = Vec::new();
    let (mut rest, mut open) = (grammar, 0_usize);
    while let Some(first) = rest.chars().next() {
        if rest.starts_with("//") || first == '#' {
            rest = &rest[rest.find('\n').unwrap_or(rest.len())..];
            continue;
        }
        let (token, length) = match first {
            '\n' => (Some(Token::LineEnd), 1),
            _ if first.is_whitespace() => (None, first.len_utf8()),
            '"' => string(rest)?,
            '/' => expression(rest)?,
            '%' | 'a'..='z' | 'A'..='Z' | '_' => {
                let end = rest[1..].find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
                let length = end.map_or(rest.len(), |end| end + 1);
                let name = rest[..length].to_owned();
                (Some(if first == '%' { Token::Directive(name) } else { Token::Name(name) }), length)
            }
            '0'..='9' => {
                let length = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
                let number = rest[..length].parse().map_err(|_| "a number is too large".to_owned())?;
                (Some(Token::Number(number)), length)
            }
            '-' if rest.starts_with("->") => (Some(Token::Arrow), 2),
            '.' if rest.starts_with("..") => (Some(Token::Range), 2),
            ':' | '|' | '(' | ')' | '[' | ']' | '*' | '+' | '?' | '!' | '~' | '.' | ',' | '-' => {
                (Some(Token::Sign(first)), 1)
            }
            // Templates, special tokens, references to other grammars, and anything else.
            other => return Err(format!("'{}' cannot be used here", other.escape_default())),
        };
        rest = &rest[length..];
        match token {
            None => {}
            Some(Token::LineEnd) if open > 0 || tokens.last().is_none_or(|last| *last == Token::LineEnd) => {}
            Some(token) => {
                match token {
                    Token::Sign('(' | '[') => open += 1,
                    Token::Sign(')' | ']') => open = open.saturating_sub(1),
                    Token::Sign('|') if tokens.last() == Some(&Token::LineEnd) => drop(tokens.pop()),
                    _ => {}
                }
                tokens.push(token);
            }
        }
    }
    Ok(tokens)
}

/// Returns the text between a literal's delimiters. A backslash escapes the next character.
fn literal(text: &str) -> Result<&str, String> {
    let mut escaped = false;
    let end = text.char_indices().skip(1).find(|(_, letter)| {
        let ends = !escaped && text.starts_with(*letter);
        escaped = !escaped && *letter == '\\';
        ends
    });
    end.map(|(end, _)| &text[1..end]).ok_or_else(|| "a string or a regular expression has no end".to_owned())
}

/// Parses `"text"` or `"text"i`; returns it with its length.
fn string(text: &str) -> Result<(Option<Token>, usize), String> {
    let inside = literal(text)?;
    let length = inside.len() + 2;
    // JSON's escapes plus `\xHH`.
    let mut json = String::from("\"");
    let mut letters = inside.chars();
    while let Some(letter) = letters.next() {
        json.push(letter);
        if letter == '\\' {
            match letters.next() {
                Some('x') => json.push_str("u00"),
                next => json.extend(next),
            }
        }
    }
    json.push('"');
    let meant: String = serde_json::from_str(&json).map_err(|_| "a string has an unknown escape".to_owned())?;
    Ok(if text[length..].starts_with('i') {
        (Some(Token::Expression(format!("(?i:{})", regex_syntax::escape(&meant)))), length + 1)
    } else {
        (Some(Token::Text(meant)), length)
    })
}

/// Parses `/expression/flags`; returns it with its length.
fn expression(text: &str) -> Result<(Option<Token>, usize), String> {
    let inside = literal(text)?;
    let after = &text[inside.len() + 2..];
    let flags = &after[..after.find(|letter: char| !letter.is_ascii_lowercase()).unwrap_or(after.len())];
    if flags.contains(|flag| !"imsu".contains(flag)) {
        return Err(format!("regular expressions can have no '{flags}' here"));
    }
    // Expressions match Unicode anyway.
    let kept = flags.replace('u', "");
    let expression = if kept.is_empty() { inside.to_owned() } else { format!("(?{kept}:{inside})") };
    Ok((Some(Token::Expression(expression)), inside.len() + 2 + flags.len()))
}
