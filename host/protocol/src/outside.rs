//! Escapes untrusted text before it is shown: file names, and strings from clients, plugins, workers and the hub.
//!
//! Such text must not control the terminal, forge log lines or break headers. Control characters, bidirectional overrides and
//! invisible characters are shown as `\u{1b}`, and long text is cut. Letters of any script, accents and emoji stay as they are.

use std::{borrow::Cow, fmt, path::Path};

/// Default limit in characters: enough for a sentence.
const CHARS_MAX: usize = 400;

/// Untrusted text whose `Display` is escaped, bounded and on one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outside<'a> {
    text: Cow<'a, str>,
    chars_max: usize,
}

impl<'a> Outside<'a> {
    pub fn new(text: impl Into<Cow<'a, str>>) -> Self {
        Self { text: text.into(), chars_max: CHARS_MAX }
    }

    /// A path, with the system's `PATH_MAX` as its limit.
    pub fn path(path: &'a (impl AsRef<Path> + ?Sized)) -> Self {
        const PATH_CHARS_MAX: usize = 4096;
        Self { text: path.as_ref().to_string_lossy(), chars_max: PATH_CHARS_MAX }
    }

    /// Changes the limit of characters.
    #[must_use]
    pub fn at_most(self, chars_max: usize) -> Self {
        Self { chars_max, ..self }
    }
}

impl fmt::Display for Outside<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.text.char_indices().nth(self.chars_max).map(|(end, _)| end);
        escape(f, &self.text[..end.unwrap_or(self.text.len())], is_hidden)?;
        if end.is_some() { f.write_str("…") } else { Ok(()) }
    }
}

/// Escapes text of several lines for a terminal; newlines and tabs stay, and nothing is cut.
pub fn lines(text: &str) -> Cow<'_, str> {
    let is_escaped = |letter| is_hidden(letter) && !matches!(letter, '\n' | '\t');
    if !text.contains(is_escaped) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 16);
    // Writing to a string does not fail.
    let _ = escape(&mut shown, text, is_escaped);
    shown.into()
}

/// Escapes what [`lines`] would, with JSON's `\\uXXXX`; such characters occur only within JSON strings.
pub fn json(text: &str) -> Cow<'_, str> {
    let is_escaped = |letter: char| is_hidden(letter) && !letter.is_ascii_control() || letter == '\u{7f}';
    if !text.contains(is_escaped) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        if is_escaped(letter) {
            let units =
                letter.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect::<String>();
            shown.push_str(&units);
        } else {
            shown.push(letter);
        }
    }
    shown.into()
}

/// Strips control characters from a model's text for a terminal, except newlines and tabs.
pub fn answer(text: &str) -> Cow<'_, str> {
    let is_control = |letter: char| letter.is_control() && !matches!(letter, '\n' | '\t');
    if text.contains(is_control) { text.replace(is_control, "").into() } else { text.into() }
}

/// Replaces quoted parts of a message by `…`, which removes what a client wrote.
pub fn without_quoted(text: &str) -> String {
    const SENTENCE_CHARS_MAX: usize = 300;
    let (mut shown, mut quote, mut previous) = (String::new(), None, ' ');
    let mut letters = text.chars().take(SENTENCE_CHARS_MAX).peekable();
    while let Some(letter) = letters.next() {
        let is_mark = matches!(letter, '\'' | '"');
        match quote {
            None => {
                shown.push(letter);
                // A mark within a word is an apostrophe.
                if is_mark && !previous.is_alphanumeric() {
                    quote = Some(letter);
                    shown.push('…');
                }
            }
            Some(mark) if mark == letter && letters.peek().is_none_or(|next| !next.is_alphanumeric()) => {
                shown.push(letter);
                quote = None;
            }
            Some(_) => {}
        }
        previous = letter;
    }
    shown
}

fn escape(to: &mut impl fmt::Write, text: &str, is_escaped: impl Fn(char) -> bool) -> fmt::Result {
    let mut rest = text;
    while let Some((at, letter)) = rest.char_indices().find(|(_, letter)| is_escaped(*letter)) {
        to.write_str(&rest[..at])?;
        match letter {
            '\n' => to.write_str("\\n")?,
            '\r' => to.write_str("\\r")?,
            '\t' => to.write_str("\\t")?,
            letter => write!(to, "\\u{{{:x}}}", u32::from(letter))?,
        }
        rest = &rest[at + letter.len_utf8()..];
    }
    to.write_str(rest)
}

/// True for characters that control a terminal, are invisible or change the writing direction. The joiners U+200C and U+200D
/// are not among them, as words and emoji need them.
fn is_hidden(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            // Invisible spaces and letters.
            '\u{ad}' | '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180e}' | '\u{200b}' | '\u{3164}' | '\u{feff}'
            | '\u{ffa0}' | '\u{2060}'..='\u{2064}' | '\u{206a}'..='\u{206f}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}'
            // Bidirectional controls.
            | '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            // Line and paragraph separators.
            | '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        for (text, shown) in [
            ("\u{1b}]0;owned\u{7}", "\\u{1b}]0;owned\\u{7}"),
            ("a\u{9b}31mb\u{7f}", "a\\u{9b}31mb\\u{7f}"),
            ("exe.\u{202e}fdp", "exe.\\u{202e}fdp"),
            ("a\u{2066}b\u{2069}\u{200e}\u{200f}\u{61c}", "a\\u{2066}b\\u{2069}\\u{200e}\\u{200f}\\u{61c}"),
            ("one\ntwo\r\tthree\u{2028}\u{feff}\u{200b}", "one\\ntwo\\r\\tthree\\u{2028}\\u{feff}\\u{200b}"),
            ("\u{e0041}", "\\u{e0041}"),
        ] {
            assert_eq!(Outside::new(text).to_string(), shown);
            // Escaping twice changes nothing.
            assert_eq!(Outside::new(shown).to_string(), shown);
        }
    }

    #[test]
    fn letters_of_any_script_are_left_alone() {
        for text in
            ["Modell für Größe", "模型 v2", "モデル", "ابجد", "नमस्ते", "👩\u{200d}💻 🇩🇪 ❤\u{fe0f}", "a\\b 'c' \"d\""]
        {
            assert_eq!(Outside::new(text).to_string(), text);
            assert_eq!(lines(text), text);
            assert_eq!(json(text), text);
            assert_eq!(answer(text), text);
        }
    }

    #[test]
    fn long_text_is_cut_with_an_ellipsis() {
        let long = "é".repeat(1000);
        assert_eq!(Outside::new(&*long).to_string(), format!("{}…", "é".repeat(CHARS_MAX)));
        assert_eq!(Outside::new("abc").at_most(2).to_string(), "ab…");
        assert_eq!(Outside::new("abc").at_most(3).to_string(), "abc");
    }

    #[test]
    fn lines_keep_newlines_and_json_stays_valid() {
        assert_eq!(lines("a\tb\n\u{1b}[2Jc\n"), "a\tb\n\\u{1b}[2Jc\n");
        let value = "\u{1b}\u{7f}\u{9b}\u{202e}\u{e0041}ä\n";
        let shown = serde_json::to_string(value).unwrap_or_default();
        let shown = json(&shown);
        assert_eq!(shown, "\"\\u001b\\u007f\\u009b\\u202e\\udb40\\udc41ä\\n\"");
        assert_eq!(serde_json::from_str::<String>(&shown).ok().as_deref(), Some(value));
    }

    #[test]
    fn an_answer_loses_control_characters_only() {
        assert_eq!(answer("\u{1b}[31mred\u{9b}\u{7}\n\tnext\r\n"), "[31mred\n\tnext\n");
        assert_eq!(answer("\u{202b}عربي\u{202c}"), "\u{202b}عربي\u{202c}");
    }

    #[test]
    fn quoted_parts_are_replaced() {
        for (text, shown) in [
            ("tool 'secret' isn't \"known\"", "tool '…' isn't \"…\""),
            ("no sampler is called 'it's mine' here", "no sampler is called '…' here"),
            ("set the server's key for OpenAI's clients", "set the server's key for OpenAI's clients"),
            ("a regex \"(a\" and 'open", "a regex \"…\" and '…"),
        ] {
            assert_eq!(without_quoted(text), shown);
        }
    }
}
