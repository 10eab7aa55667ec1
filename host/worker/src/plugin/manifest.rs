//! Copies a plugin's manifest out of its memory into plain data, and enforces the limits of the protocol.

use pensieve_plugin_api::{self as api, abi_stable::std_types::RString};
use pensieve_protocol::manifest::{Claim, Manifest};

/// Samplers that are asked for their descriptions.
const SAMPLERS_MAX: usize = 256;

/// Copies and validates a plugin's manifest. The error names the field that is invalid.
/// `describe` returns the description of the sampler with an index, if the plugin has any.
pub(super) fn read(
    manifest: &api::Manifest,
    describe: Option<impl Fn(u32) -> Result<String, String>>,
) -> Result<Manifest, String> {
    // More samplers than are allowed are refused below.
    let known = manifest.samplers.iter().zip(0..).take(SAMPLERS_MAX);
    let describe = describe.filter(|_| !manifest.samplers.is_empty());
    let described = describe.map(|describe| known.map(|(_, index)| describe(index)).collect::<Result<Vec<_>, _>>());
    let sampler_descriptions = described.transpose()?.unwrap_or_default();
    let texts = |texts: &[RString]| texts.iter().map(RString::to_string).collect::<Vec<String>>();
    let claim = |claim: &api::Claim| Claim {
        architecture: claim.architecture.to_string(),
        gguf: texts(&claim.gguf),
        classes: texts(&claim.classes),
    };
    let manifest = Manifest {
        id: manifest.id.to_string(),
        version: manifest.version.to_string(),
        description: manifest.description.to_string(),
        toolchain: manifest.toolchain.to_string(),
        sdk: manifest.sdk.to_string(),
        architectures: manifest.architectures.iter().map(claim).collect(),
        samplers: texts(&manifest.samplers),
        sampler_descriptions,
        adapter_formats: texts(&manifest.adapter_formats),
        // The library's header and its functions have these, not this table.
        contract: String::new(),
        extensions: Vec::new(),
    };
    manifest.check().map(|()| manifest)
}

#[cfg(test)]
#[allow(clippy::expect_used)]
mod tests {
    use super::*;
    use pensieve_plugin_api::abi_stable::std_types::RVec;

    const UNDESCRIBED: Option<fn(u32) -> Result<String, String>> = None;

    #[test]
    fn descriptions_of_samplers_are_objects_or_nothing() {
        let described = |text: &'static str| read(&manifest(), Some(move |_| Ok(text.to_owned())));
        assert_eq!(described(r#"{"text": "a"}"#).expect("an object").sampler_descriptions.len(), 2);
        assert!(described("").is_ok());
        for text in ["[]", "{", "1"] {
            assert!(described(text).expect_err(text).contains("not a JSON object"), "{text}");
        }
        let n = |more: &str| format!(r#"{{"parameters": [{{"name": "n", "type": "integer"{more}}}]}}"#);
        for (text, wrong) in [
            (r#"{"text": 1}"#.to_owned(), "'text' is not a text"),
            (r#"{"picks": "yes"}"#.to_owned(), "'picks' is neither true nor false"),
            (r#"{"parameters": {"n": 1}}"#.to_owned(), "'parameters' is not a list"),
            (r#"{"parameters": [1]}"#.to_owned(), "parameter 0 is not an object with the texts 'name' and 'type'"),
            (r#"{"parameters": [{"name": "n"}]}"#.to_owned(), "parameter 0 is not an object with the texts"),
            (n(r#", "text": []"#), "the 'text' of parameter 'n' is not a text"),
            (n(r#", "minimum": "0""#), "the 'minimum' of parameter 'n' is not a number"),
            (n(r#", "default": null"#), "the 'default' of parameter 'n' is not a number"),
        ] {
            let refused = read(&manifest(), Some(|_| Ok(text.clone()))).expect_err(&text);
            assert!(
                refused.contains("in the description of sampler 'top_k', ") && refused.contains(wrong),
                "{refused}"
            );
        }
        for text in ["{}".to_owned(), n(r#", "minimum": 0, "maximum": 9, "default": 4, "text": "a", "more": []"#)] {
            assert!(read(&manifest(), Some(|_| Ok(text.clone()))).is_ok(), "{text}");
        }
        let failing = read(&manifest(), Some(|_| Err("a defect".to_owned())));
        assert_eq!(failing.expect_err("a defect"), "a defect");
    }

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

    /// Reads the manifest after a change, and checks that the error mentions it.
    fn check(change: impl FnOnce(&mut api::Manifest), expect: &str) {
        let mut manifest = manifest();
        change(&mut manifest);
        let refusal = read(&manifest, UNDESCRIBED).expect_err(expect);
        assert!(refusal.contains(expect), "{refusal:?} does not speak of {expect:?}");
    }

    #[test]
    fn copies_a_legal_manifest() {
        let read = read(&manifest(), UNDESCRIBED).expect("a legal manifest");
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
        check(|manifest| manifest.samplers.push("top k".into()), "sampler 'top k'");
        check(|manifest| manifest.samplers.push("top_k".into()), "sampler 'top_k' is listed twice");
        check(|manifest| manifest.architectures[0].architecture = "".into(), "architecture ''");
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
