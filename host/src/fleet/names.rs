//! Which model a client means: ids, aliases with wildcards, adapters behind a colon, and the default for the rest.

use super::ModelConfig;
use crate::job::{Failure, FailureCode};

/// What a client's model id stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Meant {
    /// The model's place in the configuration.
    pub(super) model: usize,
    /// The adapter.
    pub(super) adapter: Option<String>,
}

/// Finds the model: by its id, by either kind of name with one of its adapters behind it, by an alias (the longest that
/// fits, but a wildcard does not swallow an adapter), or the default.
pub(super) fn resolve(models: &[ModelConfig], default: Option<&str>, name: &str) -> Result<Meant, Failure> {
    if let Some(model) = by_id(models, name) {
        return Ok(Meant { model, adapter: None });
    }
    let split = name.rsplit_once(':').and_then(|(base, adapter)| Some((find(models, base)?, adapter)));
    if let Some((model, adapter)) = split
        && models[model].adapters.contains_key(adapter)
    {
        return Ok(Meant { model, adapter: Some(adapter.to_owned()) });
    }
    if let Some(model) = by_alias(models, name) {
        return Ok(Meant { model, adapter: None });
    }
    if let Some((model, adapter)) = split {
        let known = listed(models[model].adapters.keys());
        let message = format!("model '{}' has no adapter '{adapter}' (it has: {known})", models[model].id);
        return Err(Failure::new(FailureCode::NotFound, message).with_help("add it to [models.adapters]"));
    }
    let default = default.and_then(|id| models.iter().position(|model| model.id == id));
    default.map(|model| Meant { model, adapter: None }).ok_or_else(|| {
        let message =
            format!("there is no model '{name}' (there are: {})", listed(models.iter().map(|model| &model.id)));
        Failure::new(FailureCode::NotFound, message).with_help("name one of them, or set a default model")
    })
}

fn find(models: &[ModelConfig], name: &str) -> Option<usize> {
    by_id(models, name).or_else(|| by_alias(models, name))
}

fn by_id(models: &[ModelConfig], name: &str) -> Option<usize> {
    models.iter().position(|model| model.id == name)
}

fn by_alias(models: &[ModelConfig], name: &str) -> Option<usize> {
    let aliases = models.iter().enumerate().flat_map(|(place, model)| {
        model.aliases.iter().filter(|alias| fits(alias, name)).map(move |alias| (alias.len(), place))
    });
    // Of equally long aliases, the one of the first model.
    aliases.max_by_key(|&(len, place)| (len, std::cmp::Reverse(place))).map(|(_, place)| place)
}

/// Whether a name fits a pattern in which each `*` stands for any text.
fn fits(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(head) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let tail = parts.pop().unwrap_or_default();
    for part in parts {
        let Some(place) = name.find(part) else { return false };
        name = &name[place + part.len()..];
    }
    name.ends_with(tail)
}

fn listed<'a>(names: impl Iterator<Item = &'a String>) -> String {
    let names: Vec<&str> = names.map(String::as_str).collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn models() -> Vec<ModelConfig> {
        let model = |id: &str, aliases: &[&str], adapters: &[&str]| ModelConfig {
            id: id.into(),
            aliases: aliases.iter().map(|alias| (*alias).into()).collect(),
            adapters: adapters.iter().map(|name| ((*name).into(), "x".into())).collect(),
            ..ModelConfig::default()
        };
        vec![
            model("small", &["claude-*", "gpt-*-mini"], &[]),
            model("large", &["claude-opus-*", "small-*"], &["poet"]),
            model("a:b", &[], &[]),
        ]
    }

    fn check(name: &str, expect: Option<(&str, Option<&str>)>) {
        let models = models();
        let found = resolve(&models, None, name).ok();
        let found = found.as_ref().map(|meant| (models[meant.model].id.as_str(), meant.adapter.as_deref()));
        assert_eq!(found, expect, "{name}");
    }

    #[test]
    fn ids_come_before_aliases_and_long_aliases_before_short_ones() {
        check("small", Some(("small", None)));
        check("claude-haiku-9", Some(("small", None)));
        check("claude-opus-9", Some(("large", None)));
        check("small-1", Some(("large", None)));
        check("gpt-9-mini", Some(("small", None)));
        check("gpt-9-minimal", None);
        check("gpt--min", None);
        check("unknown", None);
    }

    #[test]
    fn adapters_stand_behind_a_colon() {
        check("large:poet", Some(("large", Some("poet"))));
        check("claude-opus-9:poet", Some(("large", Some("poet"))));
        check("claude-opus-9:0", Some(("large", None)));
        check("a:b", Some(("a:b", None)));
        check("large:painter", None);
        let failure = resolve(&models(), Some("small"), "large:painter").unwrap_err();
        assert_eq!(failure.message, "model 'large' has no adapter 'painter' (it has: poet)");
    }

    #[test]
    fn the_default_answers_for_unknown_ids() {
        let meant = resolve(&models(), Some("large"), "gpt-9").unwrap();
        assert_eq!(meant, Meant { model: 1, adapter: None });
        let failure = resolve(&models(), None, "gpt-9").unwrap_err();
        assert_eq!(
            failure.to_string(),
            "there is no model 'gpt-9' (there are: small, large, a:b); name one of them, or set a default model"
        );
    }
}
