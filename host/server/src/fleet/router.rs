//! The router: resolves a client's model name to a model, by ids, aliases with wildcards, adapters after a colon, and
//! the default for anything else.

use super::{ModelConfig, Variant, adapter_registry};
use crate::wildcard::fits;
use pensieve_protocol::job::{AdapterUse, Failure, FailureCode};

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Route {
    /// Index of the model in the configuration.
    pub(super) model: usize,
    /// Index of the variant, if the name is one.
    pub(super) variant: Option<usize>,
    pub(super) adapter: Option<AdapterUse>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Names<'a> {
    pub(super) models: &'a [ModelConfig],
    pub(super) variants: &'a [Variant],
    pub(super) adapters: &'a [adapter_registry::AdaptersByName],
    pub(super) default: Option<&'a str>,
}

impl<'a> Names<'a> {
    /// Resolves a name: the id of a model or variant, either of them followed by one of the model's adapters, an alias
    /// (the longest match, but a wildcard does not swallow an adapter), or the default.
    pub(super) fn resolve(&self, name: &str) -> Result<Route, Failure> {
        if let Some(route) = self.named(name)? {
            return Ok(route);
        }
        // The default model answers for unknown names, with the named adapter if it has one.
        let default = self.default.and_then(|id| self.by_id(id)).map(|route| {
            let adapter = name.rsplit_once(':').map(|(_, adapter)| adapter);
            match adapter.filter(|adapter| {
                self.adapters[route.model].get(*adapter).is_some_and(|adapter| adapter.merged.is_none())
            }) {
                Some(name) => Route { adapter: Some(AdapterUse { name: name.to_owned(), scale: 1.0 }), ..route },
                None => route,
            }
        });
        default.ok_or_else(|| {
            let ids = self.models.iter().filter(|model| !model.removed).map(|model| &model.id);
            let known = listed(ids.chain(self.variants.iter().map(|variant| &variant.id)));
            let message = format!("there is no model '{name}' (there are: {known})");
            Failure::new(FailureCode::NotFound, message).with_help("name one of them, or set a default model")
        })
    }

    /// Resolves a name without the default: `None` if it is no model's, an error for a model's unknown adapter.
    pub(super) fn named(&self, name: &str) -> Result<Option<Route>, Failure> {
        if let Some(route) = self.by_id(name) {
            return Ok(Some(route));
        }
        let split = name.rsplit_once(':').and_then(|(base, adapter)| {
            let route = self.by_id(base).or_else(|| self.by_alias(base))?;
            Some((route, adapter))
        });
        if let Some((route, adapter)) = &split
            && self.adapters[route.model].get(*adapter).is_some_and(|adapter| adapter.merged.is_none())
        {
            let adapter = Some(AdapterUse { name: (*adapter).to_owned(), scale: 1.0 });
            return Ok(Some(Route { adapter, ..route.clone() }));
        }
        // After an id, an unknown adapter is an error. After an alias, the text may be part of the alias.
        let is_id = name.rsplit_once(':').is_some_and(|(base, _)| self.by_id(base).is_some());
        if let Some(route) = self.by_alias(name).filter(|_| !is_id) {
            return Ok(Some(route));
        }
        match split {
            Some((route, adapter)) => {
                Err(adapter_registry::unknown(&self.models[route.model].id, &self.adapters[route.model], adapter))
            }
            None => Ok(None),
        }
    }

    /// All names without wildcards, each model's before those of variants.
    pub(super) fn all(self) -> impl Iterator<Item = (String, &'a ModelConfig)> {
        let exact = |aliases: &'a [String]| aliases.iter().filter(|alias| !alias.contains('*')).cloned();
        let present = self.models.iter().zip(self.adapters).filter(|(model, _)| !model.removed);
        let own = present.flat_map(move |(model, adapters)| {
            let chosen = adapters.iter().filter(|(_, adapter)| adapter.merged.is_none());
            let chosen = chosen.map(|(name, _)| format!("{}:{name}", model.id));
            let names = std::iter::once(model.id.clone()).chain(chosen).chain(exact(&model.aliases));
            names.map(move |name| (name, model))
        });
        let variants = self.variants.iter().filter_map(move |variant| {
            let model = &self.models[self.position(&variant.base)?];
            Some(std::iter::once(variant.id.clone()).chain(exact(&variant.aliases)).map(move |name| (name, model)))
        });
        own.chain(variants.flatten())
    }

    fn position(&self, id: &str) -> Option<usize> {
        self.models.iter().position(|model| model.id == id && !model.removed)
    }

    fn by_id(&self, name: &str) -> Option<Route> {
        let model = self.position(name);
        model.map(|model| Route { model, variant: None, adapter: None }).or_else(|| {
            let variant = self.variants.iter().position(|variant| variant.id == name)?;
            self.variant(variant)
        })
    }

    fn by_alias(&self, name: &str) -> Option<Route> {
        let fitting = |aliases: &[String]| aliases.iter().filter(|alias| fits(alias, name)).map(String::len).max();
        let models = self.models.iter().enumerate().filter_map(|(model, config)| {
            Some((fitting(&config.aliases)?, Route { model, variant: None, adapter: None }))
        });
        let variants = self.variants.iter().enumerate();
        let variants = variants.filter_map(|(place, variant)| Some((fitting(&variant.aliases)?, self.variant(place)?)));
        // Among equally long aliases, the first model's wins.
        let found = models.chain(variants).reduce(|first, other| if other.0 > first.0 { other } else { first });
        found.map(|(_, route)| route)
    }

    fn variant(&self, place: usize) -> Option<Route> {
        let variant = &self.variants[place];
        let model = self.position(&variant.base)?;
        Some(Route { model, variant: Some(place), adapter: variant.adapter.clone() })
    }
}

fn listed<'a>(names: impl Iterator<Item = &'a String>) -> String {
    let names: Vec<&str> = names.map(String::as_str).collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::fleet::Adapter;

    fn models() -> Vec<ModelConfig> {
        let model = |id: &str, aliases: &[&str], adapters: &[&str]| ModelConfig {
            id: id.into(),
            aliases: aliases.iter().map(|alias| (*alias).into()).collect(),
            adapters: adapters.iter().map(|name| ((*name).into(), Adapter::at("x"))).collect(),
            ..ModelConfig::default()
        };
        vec![
            model("small", &["claude-*", "gpt-*-mini"], &[]),
            model("large", &["claude-opus-*", "small-*"], &["poet"]),
            model("a:b", &[], &[]),
        ]
    }

    fn variants() -> Vec<Variant> {
        let adapter = Some(AdapterUse { name: "poet".into(), scale: 0.5 });
        vec![Variant {
            id: "muse".into(),
            base: "large".into(),
            aliases: vec!["verse-*".into(), "rhyme".into()],
            adapter,
            samplers: None,
        }]
    }

    fn resolve(default: Option<&str>, name: &str) -> Result<Route, Failure> {
        let models = models();
        let adapters: Vec<_> = models.iter().map(|model| model.adapters.clone()).collect();
        Names { models: &models, variants: &variants(), adapters: &adapters, default }.resolve(name)
    }

    fn check(name: &str, expect: Option<(&str, Option<&str>)>) {
        let (models, found) = (models(), resolve(None, name).ok());
        let adapter = |route: &Route| route.adapter.as_ref().map(|adapter| adapter.name.clone());
        let found = found.as_ref().map(|route| (models[route.model].id.as_str(), adapter(route)));
        assert_eq!(found, expect.map(|(model, adapter)| (model, adapter.map(str::to_owned))), "{name}");
    }

    #[test]
    fn what_is_no_adapter_is_a_mistake_behind_an_id_alone() {
        let mut models = models();
        models[1].aliases.push("large*".into());
        let adapters: Vec<_> = models.iter().map(|model| model.adapters.clone()).collect();
        let names = Names { models: &models, variants: &[], adapters: &adapters, default: Some("large") };
        let route = |name: &str| names.resolve(name).ok().map(|route| (route.model, route.adapter.map(|own| own.name)));
        assert_eq!(route("large:poe"), None);
        assert_eq!(route("larger:poe"), Some((1, None)));
        // No model has that name, so the default model answers, with that adapter if it has one.
        assert_eq!(route("unknown:poet"), Some((1, Some("poet".into()))));
        assert_eq!(route("unknown:7b"), Some((1, None)));
    }

    #[test]
    fn names_without_wildcards_are_listed() {
        let (models, variants) = (models(), variants());
        let adapters: Vec<_> = models.iter().map(|model| model.adapters.clone()).collect();
        let names = Names { models: &models, variants: &variants, adapters: &adapters, default: None };
        let all: Vec<String> = names.all().map(|(name, model)| format!("{name}={}", model.id)).collect();
        assert_eq!(all, ["small=small", "large=large", "large:poet=large", "a:b=a:b", "muse=large", "rhyme=large"]);
        assert!(names.all().all(|(name, _)| names.resolve(&name).is_ok()));
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
        let failure = resolve(Some("small"), "large:painter").unwrap_err();
        assert_eq!(failure.message, "model 'large' has no adapter 'painter' (it has: poet)");
    }

    #[test]
    fn the_default_answers_for_unknown_ids() {
        let route = resolve(Some("large"), "gpt-9").unwrap();
        assert_eq!(route, Route { model: 1, variant: None, adapter: None });
        let failure = resolve(None, "gpt-9").unwrap_err();
        assert_eq!(
            failure.to_string(),
            "there is no model 'gpt-9' (there are: small, large, a:b, muse); name one of them, or set a default model"
        );
    }

    #[test]
    fn a_variant_brings_its_adapter() {
        check("muse", Some(("large", Some("poet"))));
        check("verse-1", Some(("large", Some("poet"))));
        let route = resolve(None, "muse").unwrap();
        assert_eq!((route.variant, route.adapter.unwrap().scale), (Some(0), 0.5));
        assert_eq!(resolve(None, "muse:poet").unwrap().adapter.unwrap().scale, 1.0);
        assert!(resolve(None, "muse:painter").is_err());
    }
}
