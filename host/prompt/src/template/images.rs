//! Images in messages. Where the template knows them, a message's content is a list of parts, and the template writes a
//! placeholder for each; elsewhere the text that stands for an image is put into the message's text.
//!
//! Until the messages are made, an image is its index between two characters that the conversation does not use. What
//! becomes of a placeholder, the host decides alone: a client's text that contains one stays text.

use pensieve_protocol::{
    job::{Failure, FailureCode},
    prompt::ImageWords,
};
use serde_json::{Value, json};

use super::{marks::overlaps, traits::TemplateTraits};
use crate::rendered::{Rendered, RenderedItem};

const ASKED: &str = "zqasked";
const AGAIN: &str = "zqagain";

/// The messages in which a template writes images where they stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ImageTraits {
    pub user: bool,
    pub tool: bool,
}

/// The images of a conversation on their way into messages.
#[derive(Debug)]
pub(super) struct ImageParts {
    /// `None` without images.
    pub mark: Option<char>,
    traits: ImageTraits,
    /// Images that the template writes, in order.
    listed: Vec<u32>,
}

impl ImageTraits {
    /// Tries a template that writes this placeholder. `render` returns `None` if the template raises.
    pub fn of(placeholder: &str, traits: &TemplateTraits, render: impl Fn(&[Value], &Value) -> Option<String>) -> Self {
        let image = json!({ "type": "image" });
        let text = |text: &str| json!({ "type": "text", "text": text });
        let parts = json!([image, text(ASKED), image, text(AGAIN)]);
        let user = |content: &Value| json!({ "role": "user", "content": content });
        let bare = json!([text(ASKED), text(AGAIN)]);
        // Between the words, and nowhere else.
        let shows = |made: Option<String>, without: Option<String>| {
            let (Some(made), Some(without)) = (made, without) else { return false };
            let places = |word: &str| made.match_indices(word).map(|(at, _)| at).collect::<Vec<_>>();
            let before = without.matches(placeholder).count();
            let (images, asked, again) = (places(placeholder), places(ASKED), places(AGAIN));
            let (&[asked], &[again]) = (asked.as_slice(), again.as_slice()) else { return false };
            images.len() == before + 2
                && images.iter().any(|at| *at < asked)
                && images.iter().filter(|at| (asked..again).contains(*at)).count() == 1
        };
        let none = Value::Null;
        let user_shows = shows(render(&[user(&parts)], &none), render(&[user(&bare)], &none));
        let tool = |content: &Value| {
            let question = json!({ "role": "user", "content": traits.content("zq") });
            let (call, result) = traits.calls.as_ref()?.example(traits, content);
            render(&[question, call, result], &none)
        };
        Self { user: user_shows, tool: shows(tool(&parts), tool(&bare)) }
    }
}

impl ImageParts {
    pub fn new(mark: Option<char>, traits: ImageTraits) -> Self {
        Self { mark, traits, listed: Vec::new() }
    }

    /// The text that stands for an item until messages are made.
    pub fn word(&self, item: u32) -> String {
        self.mark.map_or_else(String::new, |mark| format!("{mark}{item}{mark}"))
    }

    /// A message's content, a list of parts if there are images in it that the template writes.
    pub fn content(&mut self, role: &str, text: &str, traits: &TemplateTraits) -> Value {
        let writes = match role {
            "user" => self.traits.user,
            "tool" => self.traits.tool,
            _ => false,
        };
        let Some(mark) = self.mark.filter(|mark| writes && text.contains(*mark)) else {
            return traits.content(text);
        };
        // Every second piece is an index.
        let pieces = text.split(mark).enumerate().filter_map(|(place, piece)| match place % 2 {
            0 => (!piece.is_empty()).then(|| json!({ "type": "text", "text": piece })),
            _ => {
                self.listed.extend(piece.parse::<u32>());
                Some(json!({ "type": "image" }))
            }
        });
        pieces.collect()
    }

    /// Puts the texts of items in the place of placeholders and marks.
    pub fn place(self, rendered: Rendered, words: &ImageWords, items: &[String]) -> Result<Rendered, Failure> {
        let Rendered { text, plain, .. } = rendered;
        let mut made = Rendered::default();
        let (mut done, mut listed) = (0, self.listed.iter());
        let shift = |made: &mut Rendered, until: usize, done: usize| {
            let at = made.text.len();
            let within = plain.iter().filter(|range| range.start >= done && range.end <= until);
            made.plain.extend(within.map(|range| range.start - done + at..range.end - done + at));
            made.text.push_str(&text[done..until]);
        };
        let mut count = 0;
        for place in self.places(&text, &words.placeholder, &plain) {
            shift(&mut made, place.start, done);
            done = place.end;
            let found = &text[place.start..place.end];
            let (item, frame) = match self.mark.and_then(|mark| found.strip_prefix(mark)?.strip_suffix(mark)) {
                Some(index) => (index.parse().ok(), words.text.split_once(&words.placeholder)),
                None => {
                    count += 1;
                    (listed.next().copied(), None)
                }
            };
            let Some((item, content)) = item.and_then(|item: u32| Some((item, items.get(item as usize)?))) else {
                break;
            };
            let (before, after) = frame.unwrap_or_default();
            made.text.push_str(before);
            let start = made.text.len();
            made.text.push_str(content);
            made.items.push(RenderedItem { item, range: start..made.text.len() });
            made.text.push_str(after);
        }
        if count != self.listed.len() {
            return Err(mismatch(&words.placeholder, count, self.listed.len()));
        }
        shift(&mut made, text.len(), done);
        Ok(made)
    }

    /// The placeholders that the template wrote, and the marks, in order.
    fn places(&self, text: &str, placeholder: &str, plain: &[std::ops::Range<usize>]) -> Vec<std::ops::Range<usize>> {
        let written = text.match_indices(placeholder).map(|(at, found)| at..at + found.len());
        let mut places: Vec<_> = written.filter(|place| !overlaps(plain, place)).collect();
        if let Some(mark) = self.mark {
            let marks: Vec<usize> = text.match_indices(mark).map(|(at, _)| at).collect();
            places.extend(marks.chunks_exact(2).map(|pair| pair[0]..pair[1] + mark.len_utf8()));
        }
        places.sort_by_key(|place| place.start);
        places
    }
}

/// Checks that every image of a conversation is in its prompt once.
pub(super) fn check(rendered: &Rendered, shown: impl Iterator<Item = u32>, words: &ImageWords) -> Result<(), Failure> {
    let mut shown: Vec<u32> = shown.collect();
    let mut written: Vec<u32> = rendered.items.iter().map(|item| item.item).collect();
    shown.sort_unstable();
    written.sort_unstable();
    if shown == written { Ok(()) } else { Err(mismatch(&words.placeholder, written.len(), shown.len())) }
}

fn mismatch(placeholder: &str, written: usize, shown: usize) -> Failure {
    let message = format!(
        "the model's chat template writes {written} placeholders ('{placeholder}') for the {shown} images of this conversation"
    );
    Failure::new(FailureCode::Unsupported, message)
        .with_help("the template does not fit the model's description of images")
}
