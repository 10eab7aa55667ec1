//! Results of tools without their calls. Memories that keep only the last messages of a conversation cut between the
//! two, so this is no error: the result becomes a text of the user's, where it stands.

use super::fields::Field;
use crate::chat::{Part, PlacedImage};

pub(super) fn parts(result: &Field<'_>, text: &str, images: &[PlacedImage]) -> Vec<Part> {
    result.note("there is no call for this result; it becomes a text");
    let text = Part::Text(format!("[output of a tool: {text}]"));
    std::iter::once(text).chain(images.iter().map(|image| Part::Image(image.item))).collect()
}
