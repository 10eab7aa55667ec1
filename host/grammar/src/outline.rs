//! Follows the brackets and quotes of a JSON text, to tell where it stands: within a string, or in a list that has grown
//! so long that it takes up the room that is needed for what must follow.

const DEPTH_MAX: usize = 128;
/// No list is ended before it has this many items.
const ITEMS_MIN: u32 = 256;

#[derive(Clone, Debug, Default)]
pub(crate) struct Outline {
    levels: Vec<Level>,
    in_text: bool,
    is_escaped: bool,
    /// The last byte belongs to a number.
    in_number: bool,
    /// The text is nested too deeply to be followed.
    is_lost: bool,
    /// Tokens so far.
    tokens: u32,
}

/// An object or a list that has begun and not ended.
#[derive(Clone, Debug)]
struct Level {
    is_list: bool,
    /// Number of commas in it.
    items: u32,
    /// Tokens before it.
    since: u32,
    fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Undecided,
    /// It may take all the room.
    Free,
    /// It gets no further items.
    Ended,
}

impl Outline {
    pub(crate) fn count_token(&mut self) {
        self.tokens = self.tokens.saturating_add(1);
    }

    /// Adds a byte. Returns the place of the list in which this byte begins another item, if it does.
    pub(crate) fn push(&mut self, byte: u8) -> Option<usize> {
        self.in_number = !self.in_text && is_numeric(byte) && (self.in_number || !matches!(byte, b'e' | b'E'));
        if self.is_lost {
            return None;
        }
        if self.in_text {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => self.in_text = false,
                _ => {}
            }
            return None;
        }
        match byte {
            b'"' => self.in_text = true,
            b'{' | b'[' if self.levels.len() == DEPTH_MAX => *self = Self { is_lost: true, ..Self::default() },
            b'{' | b'[' => {
                let (is_list, since) = (byte == b'[', self.tokens);
                self.levels.push(Level { is_list, items: 0, since, fate: Fate::Undecided });
            }
            b'}' | b']' => drop(self.levels.pop()),
            b',' => {
                let place = self.levels.len().checked_sub(1)?;
                let level = self.levels.get_mut(place)?;
                level.items = level.items.saturating_add(1);
                return level.is_list.then_some(place);
            }
            _ => {}
        }
        None
    }

    /// True behind a byte of a number.
    pub(crate) fn in_number(&self) -> bool {
        self.in_number
    }

    /// Number of objects and lists that are open.
    pub(crate) fn depth(&self) -> usize {
        self.levels.len()
    }

    /// True within a string.
    pub(crate) fn in_text(&self) -> bool {
        self.in_text
    }

    /// The place of a list that is to be decided upon: it has many items and takes more than half of the room.
    pub(crate) fn overlong(&self, room: u32) -> Option<usize> {
        self.levels.iter().position(|level| {
            let tokens = self.tokens.saturating_sub(level.since);
            level.is_list && level.fate == Fate::Undecided && level.items >= ITEMS_MIN && tokens > room / 2
        })
    }

    /// Ends a list if something has to follow it, as the shortest way to the text's end tells.
    pub(crate) fn decide(&mut self, place: usize, ending: Option<&[u8]>) {
        let is_followed = ending.is_some_and(|ending| self.is_followed(place, ending));
        if let Some(level) = self.levels.get_mut(place) {
            level.fate = if is_followed { Fate::Ended } else { Fate::Free };
        }
    }

    fn is_followed(&self, place: usize, ending: &[u8]) -> bool {
        let (mut outline, mut bytes) = (self.clone(), ending.iter());
        while outline.levels.len() > place {
            let Some(byte) = bytes.next() else { return false };
            if outline.push(*byte) == Some(place) {
                // It has fewer items than it must have.
                return false;
            }
        }
        bytes.find(|byte| !byte.is_ascii_whitespace()) == Some(&b',')
    }

    /// The place of a list that gets no further items.
    pub(crate) fn ended(&self) -> Option<usize> {
        self.levels.iter().position(|level| level.fate == Fate::Ended)
    }

    /// True if these bytes begin another item of a list.
    pub(crate) fn adds_item(&self, place: usize, bytes: &[u8]) -> bool {
        if !bytes.contains(&b',') {
            return false;
        }
        let mut outline = self.clone();
        bytes.iter().any(|byte| outline.push(*byte) == Some(place))
    }
}

pub(crate) fn is_numeric(byte: u8) -> bool {
    byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'+' | b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outline(text: &str) -> Outline {
        let mut outline = Outline::default();
        for byte in text.bytes() {
            outline.push(byte);
            outline.count_token();
        }
        outline
    }

    #[test]
    fn strings_are_told_from_what_is_between_them() {
        for (text, in_text) in [
            ("", false),
            ("\"", true),
            ("\"a\\\"", true),
            ("\"a\\\\\"", false),
            ("{\"a\": [\"b", true),
            ("{\"a\": [\"b\", 1", false),
        ] {
            assert_eq!(outline(text).in_text(), in_text, "{text}");
        }
        assert!(!outline(&format!("{}\"", "[".repeat(DEPTH_MAX + 1))).in_text(), "it is lost");
    }

    #[test]
    fn a_long_list_is_ended_if_something_has_to_follow() {
        let begun = format!("{{\"list\": [{}", "1,".repeat(ITEMS_MIN as usize));
        for (room, ending, is_ended) in [
            (600, Some("1],\"more\":0}"), true),
            (600, Some("1], \"more\":0}"), true),
            (600, Some("1]}"), false),
            (600, Some("1,1],\"more\":0}"), false),
            (600, None, false),
            (6_000, Some("1],\"more\":0}"), false),
        ] {
            let mut outline = outline(&begun);
            if let Some(place) = outline.overlong(room) {
                outline.decide(place, ending.map(str::as_bytes));
                assert_eq!(outline.overlong(room), None, "it is decided");
            }
            assert_eq!(outline.ended().is_some(), is_ended, "{room}, {ending:?}");
        }
        let mut outline = outline(&begun);
        outline.decide(1, Some(b"1],\"more\":0}"));
        assert_eq!(outline.ended(), Some(1));
        for (bytes, adds) in [
            ("7", false),
            ("7,", true),
            ("{\"a\":1,", false),
            ("{\"a\":1},", true),
            ("\", \"", false),
            ("], \"more", false),
        ] {
            assert_eq!(outline.adds_item(1, bytes.as_bytes()), adds, "{bytes}");
        }
    }
}
