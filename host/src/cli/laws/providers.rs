//! Tests samplers and adapter formats, in the child of `plugins check`.

use std::path::Path;

use pensieve_laws::SamplerOptions;
use pensieve_plugin_api::{AdapterBox, AdapterData, ErrorCode};
use serde_json::{Map, Value};

use super::{
    super::error::{CliError, Exit},
    LawEvent, tell,
};
use pensieve_protocol::outside::Outside;
use pensieve_worker::plugin::LoadedPlugin;

/// Parses `--samplers`: a JSON object from sampler names to their parameters.
pub(super) fn parameters(text: &str) -> Result<Map<String, Value>, CliError> {
    let wrong = |what: String| {
        let help = r#"it takes a JSON object of each sampler's parameters, such as {"top_k": {"k": 40}}"#;
        CliError::new(Exit::Usage, format!("--samplers={text}: {help}; {what}"))
    };
    let parameters: Map<String, Value> = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
    match parameters.iter().find(|(_, value)| !value.is_object()) {
        Some((name, value)) => Err(wrong(format!("those of '{name}' are {value}"))),
        None => Ok(parameters),
    }
}

/// Tests every sampler of the plugin.
pub(super) fn try_samplers(plugin: &LoadedPlugin, given: &str, say: &mut dyn FnMut(LawEvent)) -> Result<(), CliError> {
    let parameters_of = parameters(given)?;
    let names = &plugin.manifest().samplers;
    if let Some(unknown) = parameters_of.keys().find(|name| !names.contains(name)) {
        let line = format!("--samplers: the plugin has no sampler '{unknown}' (it has: {})", names.join(", "));
        return Err(CliError::new(Exit::Usage, line));
    }
    for name in names {
        let sampler = plugin.sampler(name);
        let sampler = sampler.map_err(|error| CliError::new(Exit::Failed, format!("sampler '{name}': {error}")))?;
        let parameters = parameters_of.get(name).map_or(String::new(), Value::to_string);
        let subject = format!("sampler '{name}'");
        say(LawEvent::Subject { subject: subject.clone() });
        let options = SamplerOptions { parameters, ..SamplerOptions::default() };
        pensieve_laws::check_sampler(&sampler, &options, &mut |progress| tell(progress, Some(&subject), say));
    }
    Ok(())
}

/// Tests every adapter format of the plugin.
pub(super) fn try_formats(
    plugin: &LoadedPlugin,
    adapter: &Path,
    say: &mut dyn FnMut(LawEvent),
) -> Result<(), CliError> {
    for (name, format) in formats(plugin)? {
        let scratch = tempfile::tempdir().map_err(|error| CliError::system("a temporary folder", &error))?;
        let subject = format!("adapter format '{name}'");
        say(LawEvent::Subject { subject: subject.clone() });
        pensieve_laws::check_format(&format, adapter, scratch.path(), &mut |progress| {
            tell(progress, Some(&subject), say);
        });
    }
    Ok(())
}

/// Reads an adapter with the first format that claims it and does not decline.
pub(super) fn read_adapter(plugins: &[&LoadedPlugin], adapter: &Path) -> Result<AdapterData, CliError> {
    let shown = Outside::path(&adapter);
    let text =
        adapter.to_str().ok_or_else(|| CliError::new(Exit::Usage, format!("'{shown}' is not UTF-8; rename it")))?;
    let mut known = Vec::new();
    for plugin in plugins {
        for (name, format) in formats(plugin)? {
            if format.claims(text.into()) {
                match format.open(text.into()).into_result() {
                    Ok(data) => return Ok(data),
                    Err(error) if error.code == ErrorCode::DECLINED => {}
                    Err(error) => return Err(CliError::new(Exit::Failed, format!("adapter '{shown}': {error}"))),
                }
            }
            known.push(name);
        }
    }
    let known = if known.is_empty() { "there are none".into() } else { format!("there are: {}", known.join(", ")) };
    let help = "--formats FILE names the plugin that reads it";
    Err(CliError::new(Exit::Plugin, format!("no format reads the adapter '{shown}' ({known}); {help}")))
}

fn formats(plugin: &LoadedPlugin) -> Result<Vec<(String, AdapterBox)>, CliError> {
    let formats = plugin.manifest().adapter_formats.iter().map(|name| {
        let format = plugin.adapter_format(name);
        let format =
            format.map_err(|error| CliError::new(Exit::Failed, format!("adapter format '{name}': {error}")))?;
        Ok((name.clone(), format))
    });
    formats.collect()
}
