//! The template of a reranker that reads a pair as one text, and what the pairs of a request take.

use super::rows_request::{RowText, RowsRequest};
use pensieve_protocol::{
    job::{Failure, FailureCode},
    prompt::Piece,
    rows::RowsUse,
};

/// Bytes of all pairs of a request, each with its query and what the model's template has around both.
const PAIRS_BYTES_MAX: usize = 64 << 20;
/// Stand for the texts in a template.
const QUERY: &str = "{query}";
const DOCUMENT: &str = "{document}";
pub(super) const INSTRUCTION: &str = "{instruction}";

/// Bounds what pairs take when they are written out: each has its query, the instruction and the template to itself.
pub(super) fn check_pairs(rows: &RowsUse, request: &RowsRequest) -> Result<(), Failure> {
    let instruction = instruction(rows, request);
    let pairs = request.texts.iter().map(|text| match text {
        RowText::Pair { query, document } => pair_bytes(rows, instruction, query, document.len()),
        _ => 0,
    });
    let bytes = pairs.fold(0, usize::saturating_add);
    if bytes <= PAIRS_BYTES_MAX {
        return Ok(());
    }
    let message =
        format!("the documents, each with its query and instruction, take {bytes} bytes, more than {PAIRS_BYTES_MAX}");
    let help = "send fewer documents at once, or a shorter query or instruction";
    Err(Failure::new(FailureCode::Invalid, message).with_help(help))
}

/// The instruction in a pair's template.
pub(super) fn instruction<'a>(rows: &'a RowsUse, request: &'a RowsRequest) -> &'a str {
    request.instruction.as_deref().or(rows.instruction.as_deref()).unwrap_or_default()
}

/// Bytes of a pair as it is tokenized.
pub(super) fn pair_bytes(rows: &RowsUse, instruction: &str, query: &str, document_bytes: usize) -> usize {
    let Some(template) = &rows.pair_template else { return query.len() + document_bytes };
    let texts = [(INSTRUCTION, instruction.len()), (QUERY, query.len()), (DOCUMENT, document_bytes)];
    texts.into_iter().fold(template.len(), |bytes, (mark, text_bytes)| {
        let count = template.matches(mark).count();
        (bytes - count * mark.len()).saturating_add(count.saturating_mul(text_bytes))
    })
}

/// The two sides of a pair's template around its document.
pub(super) fn sides(instruction: &str, template: &str, query: &str) -> Vec<Piece> {
    let (lead, tail) = template.split_once(DOCUMENT).unwrap_or((template, ""));
    [lead, tail].map(|side| filled_in(side, &[(INSTRUCTION, instruction), (QUERY, query)])).into()
}

/// A pair's template with its texts.
pub(super) fn filled(template: &str, instruction: &str, query: &str, document: &str) -> Piece {
    filled_in(template, &[(INSTRUCTION, instruction), (QUERY, query), (DOCUMENT, document)])
}

/// Fills in a template, noting where the client's texts are.
fn filled_in(template: &str, texts: &[(&str, &str)]) -> Piece {
    let (mut text, mut plain, mut rest) = (String::new(), Vec::new(), template);
    let first = |rest: &str| {
        let places = texts.iter().filter_map(|(mark, value)| Some((rest.find(mark)?, *mark, *value)));
        places.min_by_key(|(place, ..)| *place).map(|(place, mark, value)| (place, mark.len(), value.to_owned()))
    };
    while let Some((place, mark, value)) = first(rest) {
        text.push_str(&rest[..place]);
        plain.push((text.len(), text.len() + value.len()));
        text.push_str(&value);
        rest = &rest[place + mark..];
    }
    text.push_str(rest);
    Piece { text, plain }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use super::*;
    use pensieve_protocol::rows::{Activation, Kind, Matryoshka, Pooling};

    fn rows_use(template: Option<&str>) -> RowsUse {
        RowsUse {
            kind: Kind::Rank,
            made_for: true,
            generates: false,
            pooling: Pooling::Last,
            finish: None,
            normalize: false,
            dimensions: 1,
            matryoshka: Matryoshka::Unknown,
            activation: Activation::Sigmoid,
            open: Vec::new(),
            between: Vec::new(),
            close: Vec::new(),
            whole: false,
            prompts: BTreeMap::new(),
            prompt: None,
            labels: Vec::new(),
            pair_template: template.map(str::to_owned),
            instruction: None,
            maximum: None,
        }
    }

    #[test]
    fn a_template_is_filled_once_and_knows_what_a_client_wrote() {
        let texts = [(INSTRUCTION, "find"), (QUERY, "{document}"), (DOCUMENT, "é")];
        let piece = filled_in("<i>{instruction}\n<q>{query}<d>{document}!", &texts);
        assert_eq!(piece.text, "<i>find\n<q>{document}<d>é!");
        let parts: Vec<&str> = piece.plain.iter().map(|(start, end)| &piece.text[*start..*end]).collect();
        assert_eq!(parts, ["find", "{document}", "é"]);
    }

    #[test]
    fn the_sides_of_a_template_are_what_is_around_the_document() {
        let template = "<i>{instruction}<q>{query}<d>{document}<end>{query}";
        let made = sides("find", template, "{document}");
        let texts: Vec<&str> = made.iter().map(|side| &side.text[..]).collect();
        assert_eq!(texts, ["<i>find<q>{document}<d>", "<end>{document}"]);
    }

    #[test]
    fn the_bytes_of_a_pair_are_those_of_its_filled_template() {
        let template = "<i>{instruction}<q>{query}<d>{document}<q>{query}!";
        let rows = rows_use(Some(template));
        assert_eq!(
            pair_bytes(&rows, "find", "{document}", "é".len()),
            filled(template, "find", "{document}", "é").text.len()
        );
    }

    #[test]
    fn what_pairs_take_when_they_are_written_out_is_bounded() {
        let template = Some("<i>{instruction}<q>{query}<d>{document}");
        let check = |template: Option<&str>, instruction: usize, query: usize, documents: usize| {
            let query: Arc<str> = "q".repeat(query).into();
            let pair = RowText::Pair { query, document: "d".to_owned() };
            let texts = vec![pair; documents];
            let request = RowsRequest { texts, instruction: Some("i".repeat(instruction)), ..RowsRequest::default() };
            check_pairs(&rows_use(template), &request).is_ok()
        };
        assert!(check(None, 1 << 20, 1 << 20, 60), "without a place in a template, an instruction takes nothing");
        assert!(!check(None, 0, 1 << 20, 64));
        assert!(check(template, 0, 1 << 20, 60) && !check(template, 0, 1 << 20, 64));
        assert!(check(template, 1 << 15, 1, 2000) && !check(template, 1 << 18, 1, 2000));
    }
}
