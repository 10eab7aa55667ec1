//! Copies a plugin's description of its hidden rows into plain data. Enforces limits, since the server keeps it and
//! computes with it.

use std::collections::BTreeMap;

use pensieve_plugin_api::{
    self as api, ArchitectureBox,
    ext::rows::{DESCRIPTION_BYTES_MAX, Describe},
};
use pensieve_protocol::rows::{Activation, Kind, Matryoshka, Pooling, RowsUse};
use serde_json::{Map, Value};

/// Maximum number of tokens around a text.
const MARKS_MAX: usize = 64;
/// Maximum number of prompts, labels and widths.
const NAMES_MAX: usize = 4096;
const WIDTH_MAX: u32 = 1 << 16;

/// Asks an architecture what the hidden rows of a checkpoint are for; `None` if it offers none.
pub fn ask(
    architecture: &ArchitectureBox,
    source: &api::Source<'_>,
    card: &api::Card,
) -> Result<Option<RowsUse>, String> {
    let Some(offered) = Describe::of(architecture) else { return Ok(None) };
    let described = offered.and_then(|able| able.describe(source)).map_err(|error| error.to_string())?;
    if described.is_empty() || card.hidden == 0 {
        return Ok(None);
    }
    read(&described, card.hidden, card.vocabulary).map(Some)
}

/// Reads a description for a model with rows of `hidden` values and `vocabulary` tokens. The error names the member that
/// is invalid.
fn read(text: &str, hidden: u32, vocabulary: u32) -> Result<RowsUse, String> {
    if text.len() > DESCRIPTION_BYTES_MAX {
        return Err(format!("the description of its rows has {} bytes", text.len()));
    }
    let object: Map<String, Value> = serde_json::from_str(text)
        .map_err(|error| format!("the description of its rows is no JSON object: {error}"))?;
    let description = Description { object, vocabulary };
    let kind = match description.word("kind")? {
        Some("embed") => Kind::Embed,
        Some("rank") => Kind::Rank,
        Some("classify") => Kind::Classify,
        other => return Err(format!("its rows are of the kind {other:?}, which is not known")),
    };
    let pooling = match description.word("pooling")? {
        Some("last") => Pooling::Last,
        Some("first") => Pooling::First,
        Some("mean") => Pooling::Mean,
        other => return Err(format!("its rows are pooled by {other:?}, which is not known")),
    };
    let activation = match (description.word("activation")?, kind) {
        (Some("none"), _) | (None, Kind::Embed) => Activation::None,
        (Some("sigmoid"), _) | (None, Kind::Rank) => Activation::Sigmoid,
        (Some("softmax"), _) | (None, Kind::Classify) => Activation::Softmax,
        (Some(other), _) => return Err(format!("the activation {other:?} of its rows is not known")),
    };
    let (finish, dimensions) = (description.number("finish", WIDTH_MAX)?, description.number("dimensions", WIDTH_MAX)?);
    let width = finish.unwrap_or(hidden);
    let rows = RowsUse {
        kind,
        made_for: description.flag("made_for", true)?,
        generates: description.flag("generates", true)?,
        pooling,
        finish,
        normalize: description.flag("normalize", false)?,
        dimensions: dimensions.unwrap_or(width),
        matryoshka: description.matryoshka(width)?,
        activation,
        open: description.tokens("open")?,
        between: description.tokens("between")?,
        close: description.tokens("close")?,
        whole: description.flag("whole", false)?,
        prompts: description.prompts()?,
        prompt: description.word("prompt")?.map(str::to_owned),
        labels: description.labels()?,
        pair_template: description.word("pair_template")?.map(str::to_owned),
        instruction: description.word("instruction")?.map(str::to_owned),
        maximum: description.number("maximum", u32::MAX)?,
    };
    if rows.dimensions == 0 || rows.dimensions > width || finish == Some(0) {
        return Err(format!("its rows of {width} values give {} dimensions", rows.dimensions));
    }
    if rows.prompt.as_ref().is_some_and(|name| !rows.prompts.contains_key(name)) {
        return Err("the usual prompt of its rows is not among its prompts".into());
    }
    if kind == Kind::Rank && rows.dimensions != 1 {
        return Err(format!("its rows rank with {} scores instead of one", rows.dimensions));
    }
    if !rows.labels.is_empty() && kind == Kind::Classify && rows.labels.len() != rows.dimensions as usize {
        return Err(format!("its rows have {} labels and {} scores", rows.labels.len(), rows.dimensions));
    }
    Ok(rows)
}

struct Description {
    object: Map<String, Value>,
    vocabulary: u32,
}

impl Description {
    fn wrong(key: &str) -> String {
        format!("'{key}' in the description of its rows is not what it should be")
    }

    fn word(&self, key: &str) -> Result<Option<&str>, String> {
        match self.object.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value.as_str().map(Some).ok_or_else(|| Self::wrong(key)),
        }
    }

    fn flag(&self, key: &str, usual: bool) -> Result<bool, String> {
        self.object.get(key).map_or(Ok(usual), |value| value.as_bool().ok_or_else(|| Self::wrong(key)))
    }

    fn number(&self, key: &str, most: u32) -> Result<Option<u32>, String> {
        let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
        let checked = |value: &Value| number(value).filter(|n| *n <= most).ok_or_else(|| Self::wrong(key));
        self.object.get(key).map(checked).transpose()
    }

    fn list(&self, key: &str, most: usize) -> Result<&[Value], String> {
        match self.object.get(key) {
            None => Ok(&[]),
            Some(Value::Array(items)) if items.len() <= most => Ok(items),
            Some(_) => Err(Self::wrong(key)),
        }
    }

    fn tokens(&self, key: &str) -> Result<Vec<u32>, String> {
        let token = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let known = |value: &Value| token(value).filter(|id| *id < self.vocabulary).ok_or_else(|| Self::wrong(key));
        self.list(key, MARKS_MAX)?.iter().map(known).collect()
    }

    fn labels(&self) -> Result<Vec<String>, String> {
        let text = |value: &Value| value.as_str().map(str::to_owned).ok_or_else(|| Self::wrong("labels"));
        self.list("labels", NAMES_MAX)?.iter().map(text).collect()
    }

    fn prompts(&self) -> Result<BTreeMap<String, String>, String> {
        let wrong = || Self::wrong("prompts");
        let Some(value) = self.object.get("prompts") else { return Ok(BTreeMap::new()) };
        let prompts = value.as_object().filter(|prompts| prompts.len() <= NAMES_MAX).ok_or_else(wrong)?;
        let text = |(name, text): (&String, &Value)| Ok((name.clone(), text.as_str().ok_or_else(wrong)?.to_owned()));
        prompts.iter().map(text).collect()
    }

    fn matryoshka(&self, width: u32) -> Result<Matryoshka, String> {
        let wrong = || Self::wrong("matryoshka");
        match self.object.get("matryoshka") {
            None | Some(Value::Bool(false)) => Ok(Matryoshka::Unknown),
            Some(Value::Bool(true)) => Ok(Matryoshka::Any),
            Some(_) => {
                let each = |value: &Value| value.as_u64().filter(|each| *each > 0).ok_or_else(wrong);
                let widths: Result<Vec<u64>, _> = self.list("matryoshka", NAMES_MAX)?.iter().map(each).collect();
                // A row cannot be cut to more than it has.
                let fits =
                    widths?.into_iter().filter_map(|each| u32::try_from(each).ok().filter(|each| *each <= width));
                let fits: Vec<u32> = fits.collect();
                Ok(if fits.is_empty() { Matryoshka::Unknown } else { Matryoshka::Widths(fits) })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_is_copied_with_its_defaults() {
        let rows =
            read(r#"{"kind": "embed", "pooling": "mean", "open": [1], "prompts": {"query": "q: "}, "new": 1}"#, 64, 10);
        let rows = rows.unwrap();
        assert_eq!((rows.dimensions, rows.made_for, rows.generates, rows.normalize), (64, true, true, false));
        assert_eq!((rows.pooling, rows.activation, rows.whole), (Pooling::Mean, Activation::None, false));
        assert_eq!((&rows.open[..], rows.prompts["query"].as_str()), (&[1][..], "q: "));
        let rank = read(r#"{"kind": "rank", "pooling": "first", "finish": 1}"#, 64, 10).unwrap();
        assert_eq!((rank.dimensions, rank.activation), (1, Activation::Sigmoid));
    }

    #[test]
    fn widths_above_a_rows_own_are_left_out() {
        let widths = |widths: &str| {
            let text = format!(r#"{{"kind": "embed", "pooling": "last", "matryoshka": {widths}}}"#);
            read(&text, 64, 10).unwrap().matryoshka
        };
        assert_eq!(widths("[16, 64, 128, 5000000000]"), Matryoshka::Widths(vec![16, 64]));
        assert_eq!(widths("[128]"), Matryoshka::Unknown);
        assert_eq!(widths("true"), Matryoshka::Any);
    }

    #[test]
    fn a_description_that_cannot_be_is_refused_by_its_member() {
        for (text, error) in [
            ("[]", "the description of its rows is no JSON object"),
            (r#"{"pooling": "last"}"#, "its rows are of the kind None"),
            (r#"{"kind": "embed", "pooling": "max"}"#, "its rows are pooled by Some(\"max\")"),
            (r#"{"kind": "embed", "pooling": "last", "open": [10]}"#, "'open' in the description"),
            (r#"{"kind": "embed", "pooling": "last", "dimensions": 65}"#, "its rows of 64 values give 65 dimensions"),
            (r#"{"kind": "embed", "pooling": "last", "dimensions": 0}"#, "its rows of 64 values give 0 dimensions"),
            (r#"{"kind": "embed", "pooling": "last", "whole": 1}"#, "'whole' in the description"),
            (r#"{"kind": "embed", "pooling": "last", "matryoshka": [0]}"#, "'matryoshka' in the description"),
            (r#"{"kind": "embed", "pooling": "last", "matryoshka": ["32"]}"#, "'matryoshka' in the description"),
            (r#"{"kind": "embed", "pooling": "last", "prompt": "x"}"#, "the usual prompt of its rows"),
            (r#"{"kind": "rank", "pooling": "last"}"#, "its rows rank with 64 scores instead of one"),
            (
                r#"{"kind": "classify", "pooling": "first", "finish": 2, "labels": ["a"]}"#,
                "its rows have 1 labels and 2 scores",
            ),
        ] {
            let refused = read(text, 64, 10).unwrap_err();
            assert!(refused.starts_with(error), "{text}: {refused}");
        }
        assert!(read(&format!("{{\"x\": \"{}\"}}", "x".repeat(DESCRIPTION_BYTES_MAX)), 64, 10).is_err());
    }
}
