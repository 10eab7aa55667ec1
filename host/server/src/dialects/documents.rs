//! Documents that are text: plain text, tables, markup and source code, inline in a request. They are decoded and put
//! into the prompt where they stand; a model that reads text needs nothing else. Others, such as PDFs, keep a note.

use std::{borrow::Cow, collections::HashSet};

use base64::{
    Engine as _,
    alphabet::{Alphabet, STANDARD, URL_SAFE},
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use percent_encoding::percent_decode_str;

use super::{ApiError, fields::Field};

/// Padding is optional, as in many clients' data URLs.
const BASE64: GeneralPurpose = lenient(&STANDARD);
/// The alphabet of Google's SDKs.
const BASE64_URL: GeneralPurpose = lenient(&URL_SAFE);

const fn lenient(alphabet: &Alphabet) -> GeneralPurpose {
    let config = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    GeneralPurpose::new(alphabet, config)
}

/// The title and the context of a document are attributes of its tag; a longer one is cut.
const TITLE_CHARS_MAX: usize = 256;
/// Media types of text outside of `text/`.
const TEXT_TYPES: [&str; 17] = [
    "application/json",
    "application/ld+json",
    "application/x-ndjson",
    "application/jsonl",
    "application/xml",
    "application/javascript",
    "application/x-javascript",
    "application/typescript",
    "application/yaml",
    "application/x-yaml",
    "application/toml",
    "application/sql",
    "application/graphql",
    "application/csv",
    "application/x-sh",
    "application/x-python",
    "application/x-tex",
];
/// Endings of file names that mean text where the media type says nothing.
const TEXT_ENDINGS: [&str; 50] = [
    "txt", "md", "markdown", "rst", "csv", "tsv", "json", "jsonl", "ndjson", "xml", "html", "htm", "css", "svg",
    "yaml", "yml", "toml", "ini", "cfg", "conf", "log", "tex", "sql", "sh", "bash", "zsh", "py", "js", "mjs", "ts",
    "tsx", "jsx", "rs", "go", "c", "h", "cc", "cpp", "hpp", "java", "kt", "swift", "rb", "php", "pl", "lua", "r", "cs",
    "diff", "patch",
];

/// Why a document that is named by its address or by an id has no content.
pub(super) const NOT_FETCHED: &str = "this server fetches no addresses and stores no files; send the document's data";

/// The content of a document as the client sends it.
pub(super) enum Content<'a> {
    /// A data URL, or base64 without one.
    DataUrl(&'a str),
    Base64 {
        media_type: &'a str,
        data: &'a str,
    },
}

/// True for a media type whose content is text. Parameters such as `charset` do not matter.
pub(super) fn is_text(media_type: &str) -> bool {
    let essence = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence.starts_with("text/")
        || TEXT_TYPES.contains(&essence.as_str())
        || ["+json", "+xml", "+yaml"].iter().any(|ending| essence.ends_with(ending) && !essence.starts_with("image/"))
}

/// The prompt's text for a document in `field`: its content if that is text, else a note. `title` may be empty.
pub(super) fn part(field: &Field<'_>, content: &Content<'_>, title: &str) -> Result<String, ApiError> {
    let (media_type, encoded) = match content {
        Content::Base64 { media_type, data } => (*media_type, Encoded::Base64(data)),
        Content::DataUrl(url) => data_url(url),
    };
    let is_readable = is_text(media_type) || is_unspecific(media_type) && has_text_ending(title);
    if !is_readable {
        return field.attachment("document");
    }
    let bytes = encoded.decode().map_err(|why| field.invalid(format_args!("the document's data {why}")))?;
    match String::from_utf8(bytes) {
        Ok(text) => Ok(titled(title, "", text.strip_prefix('\u{feff}').unwrap_or(&text))),
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            field.note(format_args!("the document is not UTF-8: byte {at} is not part of a character"));
            Ok("[a document was attached; its text is not in UTF-8, so it cannot be read]".to_owned())
        }
    }
}

/// A document's text between tags that say where it begins and ends. A text that has such an end gets a tag of its own.
pub(super) fn titled(title: &str, context: &str, text: &str) -> String {
    let attribute = |name: &str, value: &str| {
        let value: String = value.chars().filter(|char| !char.is_control()).take(TITLE_CHARS_MAX).collect();
        if value.is_empty() { String::new() } else { format!(" {name}=\"{}\"", value.replace('"', "'")) }
    };
    let (end, tag) = (if text.ends_with('\n') { "" } else { "\n" }, tag_for(text));
    format!("<{tag}{}{}>\n{text}{end}</{tag}>", attribute("title", title), attribute("context", context))
}

/// A tag whose end the text does not have: `document`, or else `document-1`, `document-2`, …
fn tag_for(text: &str) -> Cow<'static, str> {
    const END: &str = "</document";
    let mut taken = HashSet::new();
    for (place, _) in text.match_indices(END) {
        let rest = &text[place + END.len()..];
        let digits = rest.strip_prefix('-').unwrap_or("");
        let digits = &digits[..digits.bytes().take_while(u8::is_ascii_digit).count()];
        taken.insert(if rest.starts_with('-') { digits.parse::<usize>().ok() } else { Some(0) });
    }
    match (0..=taken.len()).find(|number| !taken.contains(&Some(*number))) {
        None | Some(0) => "document".into(),
        Some(number) => format!("document-{number}").into(),
    }
}

/// Bytes as JSON can carry them.
pub(super) enum Encoded<'a> {
    Base64(&'a str),
    Percent(&'a str),
}

impl Encoded<'_> {
    /// The error is a predicate.
    pub(super) fn decode(&self) -> Result<Vec<u8>, String> {
        match self {
            // Images are megabytes of plain base64, so that is tried before they are searched for anything.
            Self::Base64(data) => BASE64.decode(data).or_else(|_| {
                let engine = if data.contains(['-', '_']) { BASE64_URL } else { BASE64 };
                let decoded = engine.decode(without_breaks(data).as_bytes());
                decoded.map_err(|error| format!("is not base64: {error}"))
            }),
            Self::Percent(data) => Ok(percent_decode_str(data).collect()),
        }
    }
}

/// Splits `data:text/plain;charset=utf-8;base64,…`. Without the prefix all of it is base64 of an unknown type.
pub(super) fn data_url(url: &str) -> (&str, Encoded<'_>) {
    let is_url = url.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:"));
    let Some((head, data)) = url.get(5..).filter(|_| is_url).and_then(|rest| rest.split_once(',')) else {
        return ("", Encoded::Base64(url));
    };
    match head.rsplit_once(';') {
        Some((media_type, last)) if last.trim().eq_ignore_ascii_case("base64") => (media_type, Encoded::Base64(data)),
        _ if head.trim().eq_ignore_ascii_case("base64") => ("", Encoded::Base64(data)),
        // The default of RFC 2397.
        _ if head.is_empty() => ("text/plain", Encoded::Percent(data)),
        _ => (head, Encoded::Percent(data)),
    }
}

fn is_unspecific(media_type: &str) -> bool {
    let essence = media_type.split(';').next().unwrap_or_default().trim();
    essence.is_empty() || essence.eq_ignore_ascii_case("application/octet-stream")
}

fn has_text_ending(name: &str) -> bool {
    name.rsplit_once('.').is_some_and(|(_, ending)| TEXT_ENDINGS.contains(&ending.to_ascii_lowercase().as_str()))
}

/// Base64 in lines, as MIME writes it.
fn without_breaks(data: &str) -> Cow<'_, str> {
    let is_break = |char: char| matches!(char, '\r' | '\n' | ' ' | '\t');
    if data.contains(is_break) { data.replace(is_break, "").into() } else { data.into() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::dialects::fields::Document;

    fn read(content: &Content<'_>, title: &str) -> (Result<String, String>, Vec<String>) {
        let document = Document::of(&json!({}));
        let part = part(&document.root().get("file"), content, title).map_err(|error| error.message);
        (part, document.warnings())
    }

    #[test]
    fn text_is_decoded_and_the_rest_keeps_a_note() {
        let note = "[a document was attached; this model reads text only]";
        let broken = "[a document was attached; its text is not in UTF-8, so it cannot be read]";
        let table = [
            ("data:text/plain;base64,aGVsbG8=", "a.txt", "<document title=\"a.txt\">\nhello\n</document>"),
            ("data:text/plain;charset=utf-8;base64,aGVsbG8", "", "<document>\nhello\n</document>"),
            ("DATA:text/csv;BASE64,YSxiCg==", "t", "<document title=\"t\">\na,b\n</document>"),
            ("data:,a%20b", "", "<document>\na b\n</document>"),
            ("data:application/json,{}", "", "<document>\n{}\n</document>"),
            ("data:image/svg+xml,<svg/>", "", note),
            ("data:application/octet-stream;base64,Zm4=", "main.RS", "<document title=\"main.RS\">\nfn\n</document>"),
            ("Zm4=", "notes.md", "<document title=\"notes.md\">\nfn\n</document>"),
            ("Zm4=", "notes", note),
            ("data:application/pdf;base64,JVBERg==", "a.txt", note),
            ("data:text/plain;base64,77u/aGk=", "", "<document>\nhi\n</document>"),
            ("data:text/plain;base64,/w==", "", broken),
            ("data:text/plain,%ff", "", broken),
        ];
        for (url, title, expected) in table {
            let (part, notes) = read(&Content::DataUrl(url), title);
            assert_eq!(part.as_deref(), Ok(expected), "{url}");
            assert_eq!(notes.is_empty(), expected.starts_with('<'), "{url}: {notes:?}");
        }
        for data in ["Pz8/fn5+", "Pz8_fn5-"] {
            let either = Content::Base64 { media_type: "text/plain", data };
            assert_eq!(read(&either, "").0.as_deref(), Ok("<document>\n???~~~\n</document>"), "{data}");
        }
        let lines = Content::Base64 { media_type: "text/markdown", data: "aGVs\r\nbG8=" };
        assert_eq!(read(&lines, "").0.as_deref(), Ok("<document>\nhello\n</document>"));
        let wrong = Content::Base64 { media_type: "text/plain", data: "a!" };
        assert!(read(&wrong, "").0.unwrap_err().starts_with("file: the document's data is not base64"));
    }

    #[test]
    fn a_text_cannot_leave_its_tag() {
        for (text, tag) in [
            ("a <document> b", "document"),
            ("a </document> b", "document-1"),
            ("</document>\n<document>\n</document-1>", "document-2"),
            ("</document-2></document-x></document >", "document-1"),
            ("</document-1>", "document"),
        ] {
            assert_eq!(titled("", "", text), format!("<{tag}>\n{text}\n</{tag}>"), "{text}");
        }
    }

    #[test]
    fn a_title_cannot_leave_its_tag() {
        let text = titled("a\"\n>\u{7}b", &"c".repeat(1000), "x\n");
        assert_eq!(text, format!("<document title=\"a'>b\" context=\"{}\">\nx\n</document>", "c".repeat(256)));
    }
}
