//! The members of a JSON object, each parsed when it is first read. Unread members are only checked to be valid JSON:
//! clients send fields that mean nothing here, and a hostile client sends millions of them.

use std::{
    fmt,
    ops::Range,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Value, value::RawValue};

use super::{
    super::{ApiError, ErrorCode, memory::RequestMemory},
    value,
};

/// Far more than any API here has.
const MEMBERS_MAX: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Members {
    text: Bytes,
    list: Vec<Member>,
    memory: RequestMemory,
}

#[derive(Debug)]
struct Member {
    name: String,
    span: Range<usize>,
    value: OnceLock<Result<Value, ApiError>>,
    /// Something has asked for it by its name.
    is_known: AtomicBool,
}

impl Members {
    /// Finds the members of an object. Error messages lack the subject, which the caller adds.
    pub(crate) fn parse(text: Bytes, memory: RequestMemory) -> Result<Self, ApiError> {
        let invalid = |why: String| ApiError::new(ErrorCode::InvalidRequest, why);
        let letters = std::str::from_utf8(&text).map_err(|error| {
            invalid(format!("is not UTF-8: byte {} is not part of a character", error.valid_up_to()))
        })?;
        let not_json = |error: serde_json::Error| invalid(format!("is not JSON: {error}"));
        let mut reader = serde_json::Deserializer::from_str(letters);
        if let Some(other) = kind_of(letters).filter(|kind| *kind != OBJECT) {
            serde_json::from_str::<IgnoredAny>(letters).map_err(not_json)?;
            return Err(invalid(format!("should be a JSON object, not {other}")));
        }
        let mut is_full = false;
        let list = reader.deserialize_map(MembersVisitor { text: letters, is_full: &mut is_full });
        if is_full {
            return Err(invalid(format!("has more than {MEMBERS_MAX} fields")));
        }
        let list = list.and_then(|list| reader.end().map(|()| list)).map_err(not_json)?;
        Ok(Self { text, list, memory })
    }

    /// The value of a member, parsed at the first call; `None` if there is no such member.
    pub(super) fn get(&self, name: &str) -> Option<Result<&Value, &ApiError>> {
        let member = self.find(name)?;
        let read = || {
            value::read(self.text(&member.span), &self.memory).map_err(|error| match error.code {
                ErrorCode::InvalidRequest => ApiError::field(name, error.message),
                _ => error,
            })
        };
        Some(member.value.get_or_init(read).as_ref())
    }

    /// The members' names and JSON texts as received.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.list.iter().map(|member| (member.name.as_str(), self.text(&member.span)))
    }

    /// The members that nothing has asked for, with their JSON texts.
    pub(super) fn unknown(&self) -> impl Iterator<Item = (&str, &str)> {
        let unknown = self.list.iter().filter(|member| !member.is_known.load(Ordering::Relaxed));
        unknown.map(|member| (member.name.as_str(), self.text(&member.span)))
    }

    /// The JSON text of a member.
    pub(super) fn json_of(&self, name: &str) -> Option<&str> {
        self.find(name).map(|member| self.text(&member.span))
    }

    fn find(&self, name: &str) -> Option<&Member> {
        let member = self.list.iter().find(|member| member.name == name)?;
        member.is_known.store(true, Ordering::Relaxed);
        Some(member)
    }

    /// A member's JSON text, as a slice of the shared body.
    pub(crate) fn bytes(&self, name: &str) -> Option<Bytes> {
        let member = self.find(name)?;
        Some(self.text.slice(member.span.clone()))
    }

    fn text(&self, span: &Range<usize>) -> &str {
        // The whole text is UTF-8, and a member starts and ends at character boundaries.
        std::str::from_utf8(&self.text[span.clone()]).unwrap_or_default()
    }
}

const OBJECT: &str = "an object";

/// The kind of a JSON text by its first character; `None` if no value starts with it.
fn kind_of(text: &str) -> Option<&'static str> {
    Some(match text.trim_start().bytes().next()? {
        b'{' => OBJECT,
        b'[' => "a list",
        b'"' => "a string",
        b't' => "true",
        b'f' => "false",
        b'n' => "null",
        b'-' | b'0'..=b'9' => "a number",
        _ => return None,
    })
}

struct MembersVisitor<'a, 'b> {
    text: &'a str,
    /// Set if there are too many members.
    is_full: &'b mut bool,
}

impl<'de> Visitor<'de> for MembersVisitor<'de, '_> {
    type Value = Vec<Member>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(OBJECT)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut list: Vec<Member> = Vec::new();
        let mut count = 0;
        while let Some(name) = members.next_key::<String>()? {
            count += 1;
            if count > MEMBERS_MAX {
                *self.is_full = true;
                return Err(de::Error::custom("too many fields"));
            }
            let text = members.next_value::<&'de RawValue>()?.get();
            let start = text.as_ptr().addr() - self.text.as_ptr().addr();
            let span = start..start + text.len();
            match list.iter_mut().find(|member| member.name == name) {
                // The last of several members with one name wins, as within values.
                Some(member) => member.span = span,
                None => {
                    let (value, is_known) = (OnceLock::new(), AtomicBool::new(false));
                    list.push(Member { name, span, value, is_known });
                }
            }
        }
        Ok(list)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn members(text: &str) -> Result<Members, String> {
        Members::parse(Bytes::copy_from_slice(text.as_bytes()), RequestMemory::default()).map_err(|error| error.message)
    }

    #[test]
    fn members_are_parsed_on_demand() {
        let found = members(" {\"a\": [1, 2], \"b\": 1e999, \"\\u0061\": {\"c\": null}, \"deep\": [[1]]} ").unwrap();
        assert_eq!(found.get("a").unwrap().unwrap().to_string(), "{\"c\":null}");
        let error = found.get("b").unwrap().unwrap_err();
        assert!(error.message.starts_with("b: is not JSON: number out of range"), "{error}");
        assert!(found.get("c").is_none());
        let all: Vec<_> = found.iter().collect();
        assert_eq!(all, [("a", "{\"c\": null}"), ("b", "1e999"), ("deep", "[[1]]")]);
        assert_eq!(found.bytes("deep").unwrap(), "[[1]]");
    }

    #[test]
    fn texts_other_than_objects_are_refused() {
        for (text, expected) in [
            ("", "is not JSON: EOF"),
            ("[]", "should be a JSON object, not a list"),
            ("\"a\"", "should be a JSON object, not a string"),
            ("[1,", "is not JSON: EOF"),
            ("{\"a\":NaN}", "is not JSON: "),
            ("{\"a\":1} 2", "is not JSON: trailing characters"),
            ("x", "is not JSON: expected value"),
        ] {
            let error = members(text).unwrap_err();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
        assert!(members(&"[".repeat(1 << 20)).unwrap_err().starts_with("is not JSON: EOF"));
        let fields = |count: usize| {
            let fields: Vec<String> = (0..count).map(|place| format!("\"f{place}\":0")).collect();
            members(&format!("{{{}}}", fields.join(",")))
        };
        assert!(fields(MEMBERS_MAX).is_ok());
        assert_eq!(fields(MEMBERS_MAX + 1).unwrap_err(), "has more than 1024 fields");
    }

    #[test]
    fn unread_members_take_no_memory() {
        let text = format!(
            "{{\"a\":[{}{{}}],\"b\":{}{}}}",
            "{\"\":0},".repeat(50_000),
            "[".repeat(100_000),
            "]".repeat(100_000)
        );
        let text = Bytes::from(text);
        let (found, peak) = pensieve_fuzz::peak_of(|| Members::parse(text, RequestMemory::default()));
        assert_eq!(found.unwrap().iter().count(), 2);
        assert!(peak < 1 << 20, "{peak}");
    }
}
