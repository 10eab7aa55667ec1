//! Pieces of content that both APIs need: pictures, and the text of results.

use base64::{Engine, engine::general_purpose::STANDARD};

use super::Addressee;
use crate::chat::{Image, PlacedImage};
use pensieve_protocol::job::{Failure, FailureCode};

/// A picture's media type and its content in base64.
pub(super) fn picture(to: &Addressee<'_>, item: u32) -> Result<(&'static str, String), Failure> {
    let image = to.images.get(item as usize).map(|image| &**image);
    let lost = || Failure::new(FailureCode::Internal, "an image of the conversation is not part of the request");
    let file = image.and_then(Image::file).ok_or_else(lost)?;
    Ok((media_type(&file.bytes), STANDARD.encode(&file.bytes)))
}

/// By the first bytes, as clients' types are often wrong.
fn media_type(bytes: &[u8]) -> &'static str {
    match bytes {
        [0xff, 0xd8, ..] => "image/jpeg",
        [b'G', b'I', b'F', ..] => "image/gif",
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => "image/webp",
        _ => "image/png",
    }
}

/// A piece of a text with pictures in it.
pub(super) enum Piece<'a> {
    Text(&'a str),
    Picture(u32),
}

/// Takes a text apart at its pictures; empty pieces are left out.
pub(super) fn pieces<'a>(text: &'a str, images: &[PlacedImage]) -> Vec<Piece<'a>> {
    let (mut pieces, mut from) = (Vec::new(), 0);
    for image in images {
        let at = text.floor_char_boundary(image.at as usize).max(from);
        if at > from {
            pieces.push(Piece::Text(&text[from..at]));
        }
        pieces.push(Piece::Picture(image.item));
        from = at;
    }
    if from < text.len() {
        pieces.push(Piece::Text(&text[from..]));
    }
    pieces
}
