//! `pensieve plugins check` on samplers and adapter formats, on a model with an adapter, and with a reference that it
//! computes itself.

use safetensors::{Dtype, tensor::TensorView};
use serde_json::Value;
use std::path::Path;

use super::{
    Desk, Said,
    check::{check, flat},
    said,
};
use crate::{
    artifacts::{plugin, test_plugin, write_script},
    driver::{Driver, Options},
    reference::{Reference, fixture},
    zoo::changed,
};

#[test]
fn our_samplers_break_no_law() {
    let said = check(&plugin("pensieve-samplers"), &["--samplers"]);
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""), "{said:?}");
    assert!(said.stdout.ends_with("\nno law is broken\n"), "{said:?}");
    for sampler in ["bias", "penalties", "dry", "temperature", "top_k", "typical", "top_p", "min_p", "xtc", "mirostat"]
    {
        let (_, rest) = said.stdout.split_once(&format!("\nsampler '{sampler}'\nok     made ")).unwrap();
        assert!(rest.contains("\nok     seed "), "{said:?}");
    }
    let given = r#"--samplers={"top_k": {"k": 3}, "top_p": {"p": 0.1}, "temperature": {"temperature": 0.01}}"#;
    let said = check(&plugin("pensieve-samplers"), &[given, "--json"]);
    let found: Value = serde_json::from_str(said.stdout.trim_end()).unwrap();
    assert_eq!((said.code, &found["passed"], &found["model"]), (Some(0), &true.into(), &Value::Null), "{found}");
    let first = &found["laws"][0];
    assert_eq!((&first["subject"], &first["law"]), (&"sampler 'bias'".into(), &"made".into()), "{found}");
}

#[test]
fn a_wrong_sampler_is_told_which_law_it_breaks() {
    let said = check(&test_plugin("panics"), &["--samplers"]);
    let broken = "pensieve: 2 laws are broken; begin with the first, 'parameters' of sampler 'panics', as it may have caused the others";
    assert!(said.code == Some(1) && said.stderr.starts_with(broken), "{said:?}");
    assert!(flat(&said.stdout).contains("named seen: { is taken they come from a client"), "{said:?}");
    let said = check(&test_plugin("faults"), &["--samplers", "--timeout", "2s"]);
    let words = "while law 'own' of sampler 'endless' was tested, plugin 'faults' did not answer within 2 s";
    assert!(said.code == Some(1) && said.stderr.contains(words), "{said:?}");
}

#[test]
fn our_adapter_formats_break_no_law() {
    for (adapter, format) in [("lora/rank1", "peft"), ("lora/rank1/adapter.gguf", "gguf"), ("lora/patterns", "peft")] {
        let adapter = fixture(adapter);
        let said = check(&plugin("pensieve-lora"), &["--adapter", adapter.to_str().unwrap()]);
        assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""), "{said:?}");
        let (_, rest) = said.stdout.split_once(&format!("adapter format '{format}'\n")).unwrap();
        for law in ["declines", "shapes", "same", "damaged"] {
            assert!(rest.contains(&format!("ok     {law} ")), "{law}: {said:?}");
        }
        assert!(rest.contains("pairs of a rank of up to"), "{said:?}");
    }
}

#[test]
fn a_wrong_adapter_format_is_told_which_law_it_breaks() {
    let adapter = fixture("lora/rank1");
    let said = check(&test_plugin("faults"), &["--adapter", adapter.to_str().unwrap()]);
    assert!(said.code == Some(1) && said.stderr.contains("'declines' of adapter format 'folders'"), "{said:?}");
    let words = "an empty folder is read as an adapter; the folder of a model is read as an adapter";
    assert!(flat(&said.stdout).contains(words), "{said:?}");
}

#[test]
fn a_model_is_tried_with_an_adapter_that_fits() {
    let (model, adapter, lora) = (fixture("llama/gqa"), fixture("lora/rank16"), plugin("pensieve-lora"));
    let arguments = ["--model", model.to_str().unwrap(), "--device", "cpu", "--adapter", adapter.to_str().unwrap()];
    let formats = ["--formats", lora.to_str().unwrap()];
    let said = check(&plugin("pensieve-llama"), &[&arguments[..], &formats].concat());
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""), "{said:?}");
    for law in ["\nnote   adapter-fits ", "\nok     adapter-scale ", "\nok     adapter-apart "] {
        assert!(said.stdout.contains(law), "{law}: {said:?}");
    }
    let said = check(&plugin("pensieve-llama"), &arguments);
    assert!(said.code == Some(9) && said.stderr.contains("there are none); --formats FILE names"), "{said:?}");
}

#[test]
fn what_cannot_be_tried_on_providers_is_said_with_its_code() {
    let adapter = fixture("lora/rank1");
    let adapter = adapter.to_str().unwrap();
    for (plugin, arguments, code, words) in [
        ("pensieve-llama", &["--samplers"][..], 2, "plugin 'llama' has no sampler, so --samplers has nothing to test"),
        (
            "pensieve-llama",
            &["--adapter", adapter],
            2,
            "plugin 'llama' has no adapter format, so --adapter has nothing to test",
        ),
        ("pensieve-lora", &["--adapter", "/nowhere"], 3, "'/nowhere'"),
        ("pensieve-samplers", &["--samplers=["], 2, "it takes a JSON object of each sampler's parameters"),
        ("pensieve-samplers", &[r#"--samplers={"top_k": 3}"#], 2, "those of 'top_k' are 3"),
        ("pensieve-samplers", &[r#"--samplers={"top": {}}"#], 2, "the plugin has no sampler 'top' (it has: bias,"),
        ("pensieve-samplers", &["--timeout", "9s"], 2, "--samplers"),
        ("pensieve-lora", &["--adapter", adapter, "--formats", adapter], 2, "--model <SOURCE>"),
    ] {
        let said = check(&self::plugin(plugin), arguments);
        assert_eq!(said.code, Some(code), "{arguments:?}: {said:?}");
        assert!(said.stderr.contains(words), "{arguments:?}: {said:?}");
    }
}

/// Checks a correct Llama against the output of this Python script.
fn computed(python: &str) -> Said {
    let (desk, model) = (Desk::new(), fixture("llama/gqa"));
    let path = desk.path("python");
    write_script(&path, python);
    let (llama, model) = (plugin("pensieve-llama"), model.to_str().unwrap().to_owned());
    let arguments = ["plugins", "check", llama.to_str().unwrap(), "--model", &model, "--device", "cpu", "--reference"];
    said(desk.command(&arguments).env("PENSIEVE_PYTHON", path).output().unwrap())
}

/// Writes a reference: the logits of `tokens` times `factor`.
fn write_reference(file: &Path, tokens: &[u32], logits: &[Vec<f32>], factor: f32) {
    let ids: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    let values: Vec<u8> = logits.iter().flatten().flat_map(|logit| (logit * factor).to_le_bytes()).collect();
    let views = [
        ("tokens", TensorView::new(Dtype::U32, vec![tokens.len()], &ids).unwrap()),
        ("logits", TensorView::new(Dtype::F32, vec![tokens.len(), logits[0].len()], &values).unwrap()),
    ];
    safetensors::serialize_to_file(views, None, file).unwrap();
}

/// References of one and of both layers stand in for transformers; the model differs from some.
#[test]
fn the_first_layer_that_differs_is_named() {
    let (folder, tokens) = (tempfile::tempdir().unwrap(), Reference::of("llama/gqa").tokens("tokens"));
    let logits = |layers: u32| {
        let cut = changed("llama/gqa", |config| drop(config.insert("num_hidden_layers".into(), layers.into())));
        let mut driver = Driver::load(&plugin("pensieve-llama"), cut.path(), &Options::default()).unwrap();
        driver.logits(&tokens).unwrap()
    };
    let logits = [logits(1), logits(2)];
    let python = format!(
        "cp {}/$(sed -n 's/.*\"num_hidden_layers\": *\\([0-9]*\\).*/\\1/p' $2/config.json).safetensors reference.safetensors\n",
        folder.path().display()
    );
    for (factors, words) in [
        ([1.0, -1.0], "with 1 of its 2 layers the model agrees: layer 1, the next one, is the first that differs"),
        ([-1.0, -1.0], "with one of its 2 layers the model differs already: look at layer 0"),
    ] {
        for (layers, (logits, factor)) in logits.iter().zip(factors).enumerate() {
            let file = folder.path().join(format!("{}.safetensors", layers + 1));
            write_reference(&file, &tokens, logits, factor);
        }
        let said = computed(&python);
        assert!(said.code == Some(1) && said.stderr.contains("1 law is broken: 'reference'"), "{said:?}");
        assert!(flat(&said.stdout).contains(words), "{said:?}");
    }
}

#[test]
fn one_command_has_a_reference_computed_and_compares_it() {
    let there = fixture("llama/gqa/reference.safetensors");
    // The script, the checkpoint's folder, no file in it, and a text; the rest stands in for transformers.
    let python = format!(
        "grep -q 'family.from_pretrained(folder' $1 && test -f \"$2/config.json\" && test -z \"$3\" && \
         test -n \"$4\" && cp {} reference.safetensors\n",
        there.display()
    );
    let said = computed(&python);
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""), "{said:?}");
    assert!(said.stdout.contains("\nok     reference ") && said.stdout.ends_with("\nno law is broken\n"), "{said:?}");
    let said = computed("echo \"ModuleNotFoundError: No module named 'torch'\" >&2\nexit 1\n");
    let words =
        "exit status: 1: ModuleNotFoundError: No module named 'torch'; it needs a Python with torch, transformers";
    assert!(said.code == Some(1) && said.stderr.contains(words), "{said:?}");
    let said = computed("exit 0\n");
    assert!(said.stderr.contains("the script wrote no file"), "{said:?}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens.safetensors");
    let tokens = [("tokens", TensorView::new(Dtype::U32, vec![1], &[0; 4]).unwrap())];
    safetensors::serialize_to_file(tokens, None, &file).unwrap();
    let said = computed(&format!("cp {} reference.safetensors\n", file.display()));
    assert!(said.stderr.contains("has neither 'logits' nor 'hidden' beside 'tokens'"), "{said:?}");
}
