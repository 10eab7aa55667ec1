//! A new configuration for a running fleet. Models keep their indices, which jobs and workers refer to: new ones follow
//! the others, and a removed one stays as an empty place, which its id gets again if it comes back. Pure.

use super::{AnswerSettings, Config, ModelConfig};
use pensieve_protocol::wire::{Limits, ModelSpec};

impl ModelConfig {
    /// True if a worker that was loaded with the other's settings can go on.
    pub(super) fn loads_like(&self, other: &Self) -> bool {
        let merged = |model: &Self| -> Vec<_> {
            let merged = model.adapters.iter().filter(|(_, adapter)| adapter.merged.is_some());
            merged.map(|(name, adapter)| (name.clone(), adapter.clone())).collect()
        };
        self.source == other.source && self.spec == other.spec && merged(self) == merged(other)
    }

    /// The differences, in the words of the configuration file. Structures are taken apart field by field, so that a new
    /// setting does not compile until it has a name here.
    fn changes(&self, other: &Self) -> Vec<&'static str> {
        let Self { id: _, removed: _, source, upstream, handover, aliases, adapters, samplers, answers, spec } = self;
        let AnswerSettings { open_schemas, efforts } = answers;
        let ModelSpec { device, context, kv_budget, threads, options, limits, adapter_memory, disk } = spec;
        let Limits { sequences_max, waiting_max, step_tokens_max, step_timeout, loop_tokens, thought_loop_tokens } =
            limits;
        let old = &other.spec;
        let differences = [
            ("source", *source != other.source),
            ("upstream", *upstream != other.upstream),
            ("handover", *handover != other.handover),
            ("aliases", *aliases != other.aliases),
            ("adapters", *adapters != other.adapters),
            ("samplers", *samplers != other.samplers),
            ("open_schemas", *open_schemas != other.answers.open_schemas),
            ("efforts", *efforts != other.answers.efforts),
            ("device", *device != old.device),
            ("context", *context != old.context),
            ("kv_budget", *kv_budget != old.kv_budget),
            ("threads", *threads != old.threads),
            ("options", *options != old.options),
            ("sequences_max", *sequences_max != old.limits.sequences_max),
            ("waiting_max", *waiting_max != old.limits.waiting_max),
            ("step_tokens_max", *step_tokens_max != old.limits.step_tokens_max),
            ("step_timeout", *step_timeout != old.limits.step_timeout),
            ("loop_tokens", *loop_tokens != old.limits.loop_tokens),
            ("thought_loop_tokens", *thought_loop_tokens != old.limits.thought_loop_tokens),
            ("adapter_memory", *adapter_memory != old.adapter_memory),
            ("the cache on disk", *disk != old.disk),
        ];
        differences.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
    }
}

impl Config {
    /// The configuration that follows this one, and what it changes, a line each. Settings of plugins and of the program
    /// stay as they are until a restart.
    pub(super) fn followed_by(&self, new: Self) -> (Self, Vec<String>) {
        let mut lines = Vec::new();
        let mut models: Vec<ModelConfig> = Vec::new();
        for old in &self.models {
            match new.models.iter().find(|model| model.id == old.id) {
                Some(model) => {
                    if old.removed {
                        lines.push(format!("model '{}' is back", old.id));
                    } else if model != old {
                        lines.push(changed(model, old));
                    }
                    models.push(model.clone());
                }
                None => {
                    if !old.removed {
                        lines.push(format!("model '{}' is removed; its running answers may finish", old.id));
                    }
                    let (id, source) = (old.id.clone(), old.source.clone());
                    models.push(ModelConfig {
                        id,
                        source,
                        removed: true,
                        spec: old.spec.clone(),
                        ..ModelConfig::default()
                    });
                }
            }
        }
        let is_new = |model: &&ModelConfig| !self.models.iter().any(|old| old.id == model.id);
        for model in new.models.iter().filter(is_new) {
            lines.push(format!("model '{}' is new; it loads on first request", model.id));
            models.push(model.clone());
        }
        let others = [
            ("other names of models", self.variants != new.variants),
            ("the default model", self.default_model != new.default_model),
            ("memory", self.memory_bytes != new.memory_bytes),
            ("idle_timeout", self.idle_timeout != new.idle_timeout),
            ("time limits of [fleet]", self.deadlines != new.deadlines),
            ("restarts of workers", self.restart != new.restart),
            ("where adapters may come from", self.sources != new.sources),
        ];
        lines.extend(others.into_iter().filter(|(_, differs)| *differs).map(|(what, _)| format!("{what} changed")));
        let Self { variants, sources, default_model, memory_bytes, idle_timeout, restart, deadlines, .. } = new;
        let kept = self.clone();
        (
            Self { models, variants, sources, default_model, memory_bytes, idle_timeout, restart, deadlines, ..kept },
            lines,
        )
    }
}

fn changed(new: &ModelConfig, old: &ModelConfig) -> String {
    let what = new.changes(old).join(", ");
    let when = if new.loads_like(old) { "" } else { "; it is loaded anew, and its running answers may finish" };
    format!("model '{}' changed ({what}){when}", new.id)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::fleet::Adapter;
    use std::{path::Path, time::Duration};

    fn config(models: &[(&str, &str)]) -> Config {
        let mut config = Config::new(&[], Path::new("/home"));
        let model = |(id, source): &(&str, &str)| ModelConfig {
            id: (*id).into(),
            source: source.into(),
            ..ModelConfig::default()
        };
        config.models = models.iter().map(model).collect();
        config
    }

    #[test]
    fn models_keep_their_places_whatever_comes_and_goes() {
        let places = |config: &Config| -> Vec<(String, bool)> {
            config.models.iter().map(|model| (model.id.clone(), model.removed)).collect()
        };
        let place = |id: &str, removed: bool| (id.to_owned(), removed);
        let (next, lines) = config(&[("a", "1"), ("b", "2")]).followed_by(config(&[("c", "3"), ("b", "9")]));
        assert_eq!(places(&next), [place("a", true), place("b", false), place("c", false)]);
        assert_eq!(
            lines,
            [
                "model 'a' is removed; its running answers may finish",
                "model 'b' changed (source); it is loaded anew, and its running answers may finish",
                "model 'c' is new; it loads on first request",
            ]
        );
        let (next, lines) = next.followed_by(config(&[("a", "1"), ("b", "9"), ("c", "3")]));
        assert_eq!(places(&next), [place("a", false), place("b", false), place("c", false)]);
        assert_eq!(lines, ["model 'a' is back"]);
        assert_eq!(next.clone().followed_by(config(&[("a", "1"), ("b", "9"), ("c", "3")])).1, [""; 0]);
    }

    #[test]
    fn only_what_a_worker_was_loaded_with_makes_it_load_anew() {
        let before = config(&[("a", "1")]);
        let told = |change: &dyn Fn(&mut Config)| {
            let mut after = before.clone();
            change(&mut after);
            before.followed_by(after).1
        };
        assert_eq!(told(&|config| config.models[0].aliases = vec!["x".into()]), ["model 'a' changed (aliases)"]);
        let anew = told(&|config| config.models[0].spec.threads = 3);
        assert_eq!(anew, ["model 'a' changed (threads); it is loaded anew, and its running answers may finish"]);
        let chosen = |merged| Adapter { merged, ..Adapter::at("/poet") };
        let add = |merged| {
            told(&move |config: &mut Config| drop(config.models[0].adapters.insert("poet".into(), chosen(merged))))
        };
        assert_eq!(add(None), ["model 'a' changed (adapters)"]);
        assert!(add(Some(1.0))[0].contains("loaded anew"));
        assert_eq!(told(&|config| config.models[0].answers.open_schemas = true), ["model 'a' changed (open_schemas)"]);
        assert_eq!(told(&|config| config.models[0].answers.efforts[0] = 0.9), ["model 'a' changed (efforts)"]);
        let anew = told(&|config| config.models[0].spec.limits.loop_tokens = 9);
        assert_eq!(anew, ["model 'a' changed (loop_tokens); it is loaded anew, and its running answers may finish"]);
        assert_eq!(told(&|config| config.memory_bytes = 7), ["memory changed"]);
        assert_eq!(told(&|config| config.idle_timeout = Some(Duration::from_secs(7))), ["idle_timeout changed"]);
        assert_eq!(told(&|config| config.cards = "/elsewhere".into()), [""; 0]);
    }
}
