//! Copies a plugin's description of the items that a checkpoint reads into plain data. Enforces limits, since the server
//! keeps it and plans memory with it.

use pensieve_plugin_api::{
    self as api, ArchitectureBox,
    ext::media::{DESCRIPTION_BYTES_MAX, Prepare},
};
use pensieve_protocol::media::{KindUse, MediaUse};
use serde_json::{Map, Value};

const TEXT_BYTES_MAX: usize = 4 << 10;
const ROWS_MAX: u32 = 1 << 20;
const ROW_BYTES_MAX: u64 = 1 << 26;
const ENCODER_BYTES_MAX: u64 = 1 << 44;
const RATE_MAX: u32 = 1 << 20;

/// Asks an architecture which items a checkpoint reads; `None` if it reads text alone.
pub fn ask(
    architecture: &ArchitectureBox,
    source: &api::Source<'_>,
    card: &api::Card,
) -> Result<Option<MediaUse>, String> {
    let Some(offered) = Prepare::of(architecture) else { return Ok(None) };
    let described = offered.and_then(|able| able.describe(source)).map_err(|error| error.to_string())?;
    if described.is_empty() {
        return Ok(None);
    }
    read(&described, card.vocabulary).map(Some)
}

/// Reads a description for a model with `vocabulary` tokens. The error names the member that is invalid.
fn read(text: &str, vocabulary: u32) -> Result<MediaUse, String> {
    if text.len() > DESCRIPTION_BYTES_MAX {
        return Err(format!("the description of its media has {} bytes", text.len()));
    }
    let object: Map<String, Value> = serde_json::from_str(text)
        .map_err(|error| format!("the description of its media is no JSON object: {error}"))?;
    let kind = |name: &'static str| match object.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(object)) => Description { name, object }.kind(vocabulary).map(Some),
        Some(_) => Err(format!("'{name}' in the description of its media is no object")),
    };
    let media = MediaUse { image: kind("image")?, audio: kind("audio")? };
    if media.kinds().next().is_none() {
        return Err("the description of its media has neither 'image' nor 'audio'".into());
    }
    Ok(media)
}

/// One kind's part of a description.
struct Description<'a> {
    name: &'static str,
    object: &'a Map<String, Value>,
}

impl Description<'_> {
    fn kind(&self, vocabulary: u32) -> Result<KindUse, String> {
        let placeholder = self.text("placeholder")?.ok_or_else(|| self.wrong("placeholder"))?;
        let text = self.text("text")?.unwrap_or_else(|| placeholder.clone());
        let processor = self.object.get("processor").unwrap_or(&Value::Null);
        let most =
            |key: &str, most: u32| self.number(key, u64::from(most)).map(|value| value.map(|value| value as u32));
        let kind = KindUse {
            slot: most("slot", vocabulary.saturating_sub(1))?.ok_or_else(|| self.wrong("slot"))?,
            whole: match self.object.get("whole") {
                None => false,
                Some(value) => value.as_bool().ok_or_else(|| self.wrong("whole"))?,
            },
            rows_max: most("rows_max", ROWS_MAX)?.ok_or_else(|| self.wrong("rows_max"))?,
            row_bytes: self.number("row_bytes", ROW_BYTES_MAX)?.ok_or_else(|| self.wrong("row_bytes"))?,
            encoder_bytes: self.number("encoder_bytes", ENCODER_BYTES_MAX)?.unwrap_or(0),
            rate: most("rate", RATE_MAX)?,
            processor: processor.to_string(),
            placeholder,
            text,
        };
        match () {
            () if kind.placeholder.is_empty() => Err(self.wrong("placeholder")),
            () if kind.rows_max == 0 => Err(self.wrong("rows_max")),
            () if self.name == "audio" && kind.rate.is_none_or(|rate| rate == 0) => Err(self.wrong("rate")),
            () => Ok(kind),
        }
    }

    fn wrong(&self, key: &str) -> String {
        format!("'{}.{key}' in the description of its media is missing or not what it should be", self.name)
    }

    fn text(&self, key: &str) -> Result<Option<String>, String> {
        let checked = |value: &Value| {
            let text = value.as_str().filter(|text| text.len() <= TEXT_BYTES_MAX);
            text.map(str::to_owned).ok_or_else(|| self.wrong(key))
        };
        self.object.get(key).map(checked).transpose()
    }

    fn number(&self, key: &str, most: u64) -> Result<Option<u64>, String> {
        let checked = |value: &Value| value.as_u64().filter(|n| *n <= most).ok_or_else(|| self.wrong(key));
        self.object.get(key).map(checked).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: &str = r#""placeholder": "<i>", "slot": 9, "rows_max": 64, "row_bytes": 256"#;

    #[test]
    fn a_description_is_copied_with_its_defaults() {
        let text = format!(r#"{{"image": {{{LEAST}, "processor": {{"size": 7}}, "new": 1}}, "video": 1}}"#);
        let media = read(&text, 10).unwrap();
        let image = KindUse {
            placeholder: "<i>".into(),
            text: "<i>".into(),
            slot: 9,
            whole: false,
            rows_max: 64,
            row_bytes: 256,
            encoder_bytes: 0,
            rate: None,
            processor: r#"{"size":7}"#.into(),
        };
        assert_eq!(media, MediaUse { image: Some(image), audio: None });
        let text = format!(r#"{{"audio": {{{LEAST}, "rate": 16000, "text": "<s>", "whole": true}}}}"#);
        let audio = read(&text, 10).unwrap().audio.unwrap();
        assert_eq!((audio.rate, audio.text.as_str(), audio.whole), (Some(16_000), "<s>", true));
        assert_eq!(audio.processor, "null");
    }

    #[test]
    fn a_description_that_cannot_be_is_refused_by_its_member() {
        let image = |more: &str| format!(r#"{{"image": {{{LEAST}{more}}}}}"#);
        let wrong = |member: &str| format!("'{member}' in the description of its media is missing or not");
        for (text, error) in [
            ("[]".into(), "the description of its media is no JSON object".into()),
            ("{}".into(), "the description of its media has neither".into()),
            (r#"{"image": 1}"#.into(), "'image' in the description of its media is no object".into()),
            (r#"{"image": {}}"#.into(), wrong("image.placeholder")),
            (image(r#", "placeholder": """#), wrong("image.placeholder")),
            (image(r#", "slot": 10"#), wrong("image.slot")),
            (image(r#", "rows_max": 0"#), wrong("image.rows_max")),
            (image(r#", "rows_max": 9999999999"#), wrong("image.rows_max")),
            (image(r#", "row_bytes": -1"#), wrong("image.row_bytes")),
            (image(r#", "encoder_bytes": 1e30"#), wrong("image.encoder_bytes")),
            (image(r#", "whole": 1"#), wrong("image.whole")),
            (format!(r#"{{"audio": {{{LEAST}}}}}"#), wrong("audio.rate")),
        ] {
            let refused = read(&text, 10).unwrap_err();
            assert!(refused.starts_with(&error), "{text}: {refused}");
        }
        assert!(read(&format!("{{\"x\": \"{}\"}}", "x".repeat(DESCRIPTION_BYTES_MAX)), 10).is_err());
    }
}
