//! What a plugin says of itself, copied out of its memory into plain data and held to limits.
//!
//! The host prints these strings, routes by them and puts ids into paths and metrics, so a plugin cannot choose them
//! freely: names are short and of few letters, texts have no control characters, lists have an end.

use pensieve_plugin_api::{
    self as api,
    abi_stable::std_types::{RString, RVec},
};
use pensieve_protocol::manifest::{Claim, Manifest};
use std::collections::HashSet;

const NAME_LEN_MAX: usize = 64;
const TEXT_LEN_MAX: usize = 512;
const PROVIDERS_MAX: usize = 256;
const CLAIMS_MAX: usize = 256;

/// Copies what a plugin says, or says which of its words breaks a rule.
pub(super) fn read(manifest: &api::Manifest) -> Result<Manifest, String> {
    if !is_name(&manifest.id, b"-") {
        let id = quoted(&manifest.id);
        return Err(format!("its id is {id}, not 1 to {NAME_LEN_MAX} of the characters a-z, 0-9 and '-'"));
    }
    Ok(Manifest {
        id: manifest.id.to_string(),
        version: text("version", &manifest.version, NAME_LEN_MAX)?,
        description: text("description", &manifest.description, TEXT_LEN_MAX)?,
        toolchain: text("toolchain", &manifest.toolchain, TEXT_LEN_MAX)?,
        sdk: text("sdk", &manifest.sdk, TEXT_LEN_MAX)?,
        architectures: architectures(&manifest.architectures)?,
        samplers: names("sampler", manifest.samplers.iter())?,
        adapter_formats: names("adapter format", manifest.adapter_formats.iter())?,
    })
}

fn architectures(claims: &RVec<api::Claim>) -> Result<Vec<Claim>, String> {
    let names = names("architecture", claims.iter().map(|claim| &claim.architecture))?;
    let claims = claims.iter().zip(names).map(|(claim, architecture)| {
        let gguf = values(&architecture, "GGUF names", &claim.gguf)?;
        let classes = values(&architecture, "class names", &claim.classes)?;
        Ok(Claim { architecture, gguf, classes })
    });
    claims.collect()
}

/// Names of providers: requests and configurations use them, so no two of a kind are equal.
fn names<'a>(kind: &str, names: impl ExactSizeIterator<Item = &'a RString>) -> Result<Vec<String>, String> {
    if names.len() > PROVIDERS_MAX {
        return Err(format!("it lists {} {kind}s, more than {PROVIDERS_MAX}", names.len()));
    }
    let mut seen = HashSet::new();
    let names = names.map(|name| {
        if !is_name(name, b"-_.") {
            let name = quoted(name);
            return Err(format!(
                "{kind} {name} is not named by 1 to {NAME_LEN_MAX} of the characters a-z, 0-9, '-', '_' and '.'"
            ));
        }
        if !seen.insert(name.as_str()) {
            return Err(format!("{kind} '{name}' is listed twice"));
        }
        Ok(name.to_string())
    });
    names.collect()
}

/// What an architecture claims: words of file formats, which the host only compares and prints.
fn values(architecture: &str, what: &str, values: &RVec<RString>) -> Result<Vec<String>, String> {
    if values.len() > CLAIMS_MAX {
        return Err(format!("architecture '{architecture}' claims {} {what}, more than {CLAIMS_MAX}", values.len()));
    }
    let values = values.iter().map(|value| {
        if value.is_empty() {
            return Err(format!("architecture '{architecture}' has an empty value among its {what}"));
        }
        text(what, value, TEXT_LEN_MAX)
    });
    values.collect()
}

fn text(what: &str, text: &RString, len_max: usize) -> Result<String, String> {
    if text.len() > len_max {
        return Err(format!("its {what} has {} bytes, more than {len_max}", text.len()));
    }
    if text.chars().any(char::is_control) {
        return Err(format!("its {what} {} has a control character", quoted(text)));
    }
    Ok(text.to_string())
}

fn is_name(name: &str, besides: &[u8]) -> bool {
    let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || besides.contains(&byte);
    (1..=NAME_LEN_MAX).contains(&name.len()) && name.bytes().all(legal)
}

/// Fit for a terminal: escaped and short.
fn quoted(text: &str) -> String {
    let short: String = text.chars().take(NAME_LEN_MAX).collect();
    format!("{short:?}")
}

#[cfg(test)]
#[allow(clippy::expect_used)]
mod tests {
    use super::*;

    fn manifest() -> api::Manifest {
        let claim = api::Claim {
            architecture: "llama".into(),
            gguf: vec!["llama".into()].into(),
            classes: vec!["LlamaForCausalLM".into()].into(),
        };
        api::Manifest {
            id: "llama".into(),
            version: "0.1.0".into(),
            description: "Llama and its kin".into(),
            toolchain: "rustc".into(),
            sdk: "".into(),
            architectures: vec![claim].into(),
            samplers: vec!["top_k".into(), "top_p".into()].into(),
            adapter_formats: RVec::new(),
        }
    }

    /// Reads the manifest after a change and checks that the refusal speaks of it.
    fn check(change: impl FnOnce(&mut api::Manifest), expect: &str) {
        let mut manifest = manifest();
        change(&mut manifest);
        let refusal = read(&manifest).expect_err(expect);
        assert!(refusal.contains(expect), "{refusal:?} does not speak of {expect:?}");
    }

    #[test]
    fn copies_a_legal_manifest() {
        let read = read(&manifest()).expect("a legal manifest");
        assert_eq!(read.id, "llama");
        assert_eq!(read.architectures[0].classes, ["LlamaForCausalLM"]);
        assert_eq!(read.samplers, ["top_k", "top_p"]);
    }

    #[test]
    fn refuses_ids_that_are_unfit_for_paths() {
        for id in ["", "Llama", "../llama", "a b", "a_b", &"x".repeat(65)] {
            check(|manifest| manifest.id = id.into(), "its id is");
        }
    }

    #[test]
    fn refuses_names_that_are_wrong_or_appear_twice() {
        check(|manifest| manifest.samplers.push("top k".into()), "sampler \"top k\"");
        check(|manifest| manifest.samplers.push("top_k".into()), "sampler 'top_k' is listed twice");
        check(|manifest| manifest.architectures[0].architecture = "".into(), "architecture \"\"");
    }

    #[test]
    fn refuses_texts_for_a_terminal_to_obey() {
        check(|manifest| manifest.description = "\u{1b}[2J".into(), "control character");
        check(|manifest| manifest.version = "1".repeat(65).into(), "version has 65 bytes");
    }

    #[test]
    fn refuses_lists_without_end() {
        let many = |count: usize| (0..count).map(|n| RString::from(format!("n{n}"))).collect::<RVec<_>>();
        check(|manifest| manifest.samplers = many(257), "257 samplers");
        check(|manifest| manifest.architectures[0].gguf = many(257), "claims 257 GGUF names");
        check(|manifest| manifest.architectures[0].classes.push("".into()), "empty value");
    }
}
