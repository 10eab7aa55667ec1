//! `pensieve plugins check`: what a plugin is, and which law a faulty one breaks, in a message that tells its author
//! where to look.

use safetensors::{Dtype, tensor::TensorView};
use serde_json::Value;
use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use super::{Desk, Said};
use crate::{
    artifacts::{plugin, test_plugin},
    checkpoints,
    reference::fixture,
};

pub(super) fn check(plugin: &Path, more: &[&str]) -> Said {
    let arguments = [&["plugins", "check", plugin.to_str().unwrap()], more].concat();
    Desk::new().run(&arguments)
}

/// Checks a Llama with this fault.
fn wrong(fault: &str, more: &[&str]) -> Said {
    let model = fixture("llama/gqa");
    let options = format!(r#"{{"fault": "{fault}"}}"#);
    let arguments = ["--model", model.to_str().unwrap(), "--device", "cpu", "--options", &options];
    check(&test_plugin("wrong"), &[&arguments, more].concat())
}

/// Checks it against transformers' reference, too.
fn compared(fault: &str) -> Said {
    let reference = fixture("llama/gqa/reference.safetensors");
    wrong(fault, &["--reference", reference.to_str().unwrap(), "--tolerance", "0.0001"])
}

/// The text on one line, since it is wrapped for reading.
pub(super) fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn says_what_a_plugin_provides() {
    let said = check(&plugin("pensieve-llama"), &[]);
    assert_eq!(said.code, Some(0), "{said:?}");
    for words in ["llama 0.1.0: Llama 1 to 3.x", "built by rustc 1.", "with pensieve-sdk 0.1.0 for contract 1"] {
        assert!(said.stdout.contains(words), "{said:?}");
    }
    assert!(
        said.stdout.contains("architecture: llama\n    GGUF files that say: llama, smollm3, seed_oss\n"),
        "{said:?}"
    );
    assert!(said.stdout.contains("    folders of class: LlamaForCausalLM"), "{said:?}");
    assert!(said.stderr.contains("--model CHECKPOINT tests the contract's laws"), "{said:?}");
    let said = check(&plugin("pensieve-samplers"), &[]);
    assert!(said.stdout.contains("samplers: bias, penalties"), "{said:?}");
    let opened = "only its manifest was read; nothing that it provides was run";
    assert_eq!(said.stderr, format!("{opened}; --samplers tests the contract's laws on samplers\n"));
    let said = check(&plugin("pensieve-lora"), &[]);
    assert!(said.stdout.contains("adapter formats: peft, gguf"), "{said:?}");
    assert_eq!(said.stderr, format!("{opened}; --adapter PATH tests the contract's laws on adapter formats\n"));
}

#[test]
fn a_right_model_breaks_no_law() {
    let said = compared("none");
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""), "{said:?}");
    assert!(said.stdout.ends_with("\nno law is broken\n"), "{said:?}");
    for law in ["tokenizer", "chunked", "shuffled", "batched", "shared-prefix", "refuses", "adapters"] {
        assert!(said.stdout.contains(&format!("\nok     {law}")), "{law}: {said:?}");
    }
}

#[test]
fn a_wrong_model_is_told_which_law_it_breaks_and_where_to_look() {
    for (fault, law, words) in [
        (
            "rope",
            "reference",
            "the cause lies where tokens meet, as the first one does not differ: the rotation's pairing",
        ),
        (
            "epsilon",
            "reference",
            "where each token is by itself, as the first one differs already: embeddings, a norm's epsilon",
        ),
        ("window", "reach", "token 95 does not read token 0, though its card lists no window"),
        ("cache", "chunked", "the usual cause is a cache that is off by one"),
        ("positions", "positions", "they are not read the usual cause is a position encoding that is not applied"),
        ("leaks", "repeatable", "the usual cause is state left behind by an earlier sequence"),
        ("panics", "chunked", "forward panicked: index out of bounds, as it happens"),
    ] {
        let said = compared(fault);
        assert_eq!(said.code, Some(1), "{fault}: {said:?}");
        let (_, broken) = said.stdout.split_once("\nBROKEN ").unwrap_or_else(|| panic!("{fault}: {said:?}"));
        assert!(broken.starts_with(&format!("{law} ")), "{fault}: {said:?}");
        let next = broken.find("\nok ").or(broken.find("\nnote ")).unwrap_or(broken.len());
        assert!(flat(&broken[..next]).contains(words), "{fault}: {said:?}");
        assert!(said.stderr.contains(&format!("'{law}'")) && said.stderr.contains("broken"), "{fault}: {said:?}");
    }
}

#[test]
fn without_a_reference_the_check_says_what_it_cannot_see() {
    // Consistently wrong.
    let said = wrong("rope", &[]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.stdout.contains("no law is broken; whether the numbers are right"), "{said:?}");
}

#[test]
fn a_plugin_that_ends_or_stalls_its_process_has_that_laid_to_a_law() {
    for (fault, words) in [
        ("crashes", "crashed the process that looked at it, by SIGSEGV; it said: about to crash"),
        ("exits", "ended the process that looked at it, with exit status: 3"),
    ] {
        let said = wrong(fault, &[]);
        assert_eq!(said.code, Some(1), "{said:?}");
        let line = format!("pensieve: while law 'chunked' was tested, plugin 'wrong' {words}\n");
        assert_eq!(said.stderr, line, "{said:?}");
        assert!(said.stdout.contains("\nok     causal"), "what was found before is lost: {said:?}");
    }
    let start = Instant::now();
    let said = wrong("hangs", &["--timeout", "2s"]);
    assert!(said.stderr.contains("law 'chunked' was tested, plugin 'wrong' did not answer within 2 s"), "{said:?}");
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn programs_get_all_of_it_as_one_line() {
    let said = wrong("cache", &["--json"]);
    assert_eq!(said.code, Some(1), "{said:?}");
    let found: Value = serde_json::from_str(said.stdout.trim_end()).unwrap();
    assert_eq!((&found["plugin"]["id"], &found["passed"]), (&"wrong".into(), &false.into()));
    assert_eq!((&found["model"]["device"], &found["stopped"]), (&"cpu".into(), &Value::Null));
    let laws = found["laws"].as_array().unwrap();
    let outcome = |law: &str| laws.iter().find(|verdict| verdict["law"] == law).unwrap()["outcome"].clone();
    assert_eq!((outcome("causal"), outcome("chunked")), ("exact".into(), "broken".into()));
    assert_eq!((outcome("counts"), outcome("positions")), ("not_tried".into(), "noted".into()));
    let said = wrong("exits", &["--json"]);
    let found: Value = serde_json::from_str(said.stdout.trim_end()).unwrap();
    assert_eq!((&found["passed"], &found["stopped_at"]), (&false.into(), &"chunked".into()));
    assert!(found["stopped"].as_str().unwrap().contains("exit status: 3"), "{found}");
}

#[test]
fn a_reference_that_was_not_compared_is_no_pass() {
    let reference = fixture("llama/gqa/reference.safetensors");
    let reference = reference.to_str().unwrap();
    let said = wrong("none", &["--reference", reference, "--context", "16"]);
    assert_eq!((said.code, said.stderr.as_str()), (Some(1), "pensieve: 1 law is broken: 'reference'\n"), "{said:?}");
    let words =
        "tokens, more than the context of 16 take a reference of a shorter text, or load the model for a longer";
    assert!(flat(&said.stdout).contains("seen: reference 0 was not compared: it has "), "{said:?}");
    assert!(flat(&said.stdout).contains(words) && !said.stdout.contains("no law is broken"), "{said:?}");
    let said = wrong("none", &["--reference", reference, "--context", "16", "--json"]);
    let found: Value = serde_json::from_str(said.stdout.trim_end()).unwrap();
    assert_eq!((said.code, &found["passed"], &found["stopped"]), (Some(1), &false.into(), &Value::Null));
}

#[test]
fn a_reference_that_cannot_be_held_against_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("reference.safetensors");
    let vocabulary = 264;
    let check = |logits: Vec<f32>, more: &[&str], words: &str| {
        let bytes: Vec<u8> = logits.iter().flat_map(|logit| logit.to_le_bytes()).collect();
        let tokens: Vec<u8> = [1_u32, 2].iter().flat_map(|token| token.to_le_bytes()).collect();
        let tensors = [
            ("tokens", TensorView::new(Dtype::U32, vec![2], &tokens).unwrap()),
            ("logits", TensorView::new(Dtype::F32, vec![2, vocabulary], &bytes).unwrap()),
        ];
        safetensors::serialize_to_file(tensors, None, &path).unwrap();
        let said = wrong("none", &[&["--reference", path.to_str().unwrap()], more].concat());
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(said.stderr.contains(words), "{said:?}");
    };
    let mut logits: Vec<f32> = (0..2 * vocabulary).map(|place| place as f32).collect();
    for value in [f32::NAN, f32::INFINITY] {
        logits[vocabulary + 3] = value;
        check(logits.clone(), &[], &format!("has {value} among its 'logits', in row 1, column 3"));
    }
    check(vec![1.0; 2 * vocabulary], &[], "has 'logits' from 1 to 1, from which no tolerance can be derived");
    for tolerance in ["0", "-1", "nan", "inf"] {
        let tolerance = format!("--tolerance={tolerance}");
        check(vec![1.0; 2 * vocabulary], &[&tolerance], "it takes a number above 0");
    }
}

#[test]
fn programs_get_an_object_whatever_keeps_the_laws_from_being_tried() {
    let (model, plugin) = (fixture("llama/gqa"), test_plugin("wrong"));
    let model = model.to_str().unwrap();
    let said = check(Path::new("/nowhere.so"), &["--json"]);
    assert_eq!((said.code, said.stdout.contains(r#""kind":"not-found""#)), (Some(3), true), "{said:?}");
    for (file, arguments, opened, words) in [
        (Path::new("/nowhere.so"), &["--model", model][..], false, "was not found"),
        (&test_plugin("exits_at_start"), &["--model", model], false, "licence server not found"),
        (&plugin, &["--model", model, "--device", "gpu"], false, "--device gpu"),
        (&plugin, &["--model", "nowhere"], true, "there is no checkpoint"),
        (&plugin, &["--model", model, "--reference", "nowhere"], true, "the reference 'nowhere'"),
        (&plugin, &["--model", model, "--options", "{}"], true, "there is no such fault"),
    ] {
        let told = check(file, arguments);
        let said = check(file, &[arguments, &["--json"]].concat());
        assert_eq!((said.code, &said.stderr), (told.code, &told.stderr), "{said:?}");
        let found: Value = serde_json::from_str(said.stdout.trim_end()).unwrap_or_else(|_| panic!("{said:?}"));
        assert_eq!((&found["passed"], found["plugin"].is_object()), (&false.into(), opened), "{found}");
        assert!(found["stopped"].as_str().unwrap().contains(words), "{found}");
        assert_eq!((&found["laws"], &found["stopped_at"]), (&Value::Array(Vec::new()), &Value::Null), "{found}");
    }
}

#[test]
fn flags_that_need_a_model_are_not_read_over() {
    for flag in ["--device=cpu", "--context=64", "--longest=64", "--options={}", "--reference=x", "--timeout=9s"] {
        let said = check(&test_plugin("wrong"), &[flag]);
        assert_eq!((said.code, said.stdout.as_str()), (Some(2), ""), "{said:?}");
        assert!(said.stderr.contains("--model <SOURCE>"), "{said:?}");
    }
}

#[test]
fn flags_that_are_wrong_for_every_plugin_are_2() {
    for (flag, words) in [
        ("--device=gpu", "--device gpu: a device is auto, cpu, cuda:N or metal:N"),
        ("--options={", "--options {: it takes a JSON object"),
        ("--options=[]", "--options []: it takes a JSON object"),
        ("--context=3", "--context 3: the laws need at least 4 tokens; it takes 4 or more, or 0"),
    ] {
        let said = check(&test_plugin("wrong"), &["--model", "nowhere", flag]);
        assert_eq!((said.code, said.stdout.as_str()), (Some(2), ""), "{said:?}");
        assert!(said.stderr.starts_with(&format!("pensieve: {words}")), "{said:?}");
    }
    assert_eq!(wrong("none", &["--context", "4"]).code, Some(0));
}

#[test]
fn a_folder_of_gguf_files_alone_is_told_to_name_one() {
    let folder = fixture("families/qwen3").join("q8_0.gguf");
    let desk = Desk::new();
    fs::create_dir(desk.path("model")).unwrap();
    fs::copy(folder, desk.path("model/q8_0.gguf")).unwrap();
    let plugin = plugin("pensieve-qwen");
    for arguments in
        [&["plugins", "check", plugin.to_str().unwrap(), "--model", "model"][..], &["run", "--model", "model", "hello"]]
    {
        let said = desk.run(arguments);
        assert!(said.stderr.contains("/model': the folder has no config.json; name one of the GGUF files in it: '"));
        assert!(said.stderr.contains("/model/q8_0.gguf'"), "{said:?}");
    }
}

#[test]
fn what_cannot_be_tried_is_said_with_its_code() {
    let bigram = checkpoints::bigram(300, 512);
    let bigram = bigram.path().to_str().unwrap();
    let (llama, wrong_plugin) = (fixture("llama/gqa"), test_plugin("wrong"));
    let llama = llama.to_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("reference.safetensors");
    fs::write(&text, "no tensors").unwrap();
    let other = fixture("llama/head_dim/reference.safetensors");
    let (text, other) = (text.to_str().unwrap(), other.to_str().unwrap());
    let given = r#"{"fault": "none"}"#;
    for (plugin, arguments, code, words) in [
        (Path::new("/nowhere.so"), &[][..], 3, "plugin '/nowhere.so' was not found"),
        (Path::new("/nowhere.so"), &["--model", llama], 3, "plugin '/nowhere.so' was not found"),
        (&test_plugin("crashes_at_start"), &[], 1, "by SIGSEGV"),
        (&test_plugin("exits_at_start"), &[], 1, "it said: licence server not found"),
        (&plugin("pensieve-samplers"), &["--model", llama], 2, "plugin 'samplers' has no architecture"),
        (&wrong_plugin, &["--model", "nowhere"], 3, "there is no checkpoint at 'nowhere'"),
        (&wrong_plugin, &["--model", bigram], 9, "does not claim the checkpoint, which says 'BigramForCausalLM'"),
        (&wrong_plugin, &["--model", bigram], 9, "add 'BigramForCausalLM' to the CLASSES of its architecture"),
        (
            &wrong_plugin,
            &["--model", llama, "--options", "{}"],
            1,
            "does not load the checkpoint: there is no such fault",
        ),
        (&wrong_plugin, &["--model", llama, "--reference", "nowhere"], 3, "the reference 'nowhere'"),
        (&wrong_plugin, &["--model", llama, "--options", given, "--reference", text], 2, "is not a safetensors file"),
        (&wrong_plugin, &["--model", llama, "--options", given, "--reference", other], 2, "a row for each token"),
    ] {
        let said = check(plugin, arguments);
        assert_eq!(said.code, Some(code), "{arguments:?}: {said:?}");
        assert!(said.stderr.starts_with("pensieve: ") && said.stderr.contains(words), "{arguments:?}: {said:?}");
    }
    for arguments in [&["--timeout", "0s"][..], &["--tolerance", "0.1"]] {
        assert_eq!(check(&wrong_plugin, arguments).code, Some(2), "{arguments:?}");
    }
}
