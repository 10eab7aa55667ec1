//! Rejected formats and their messages. Values are tested where the kernels are.

use serde_json::{Value, json};

use crate::{
    Checkpoint, Code,
    fixture::{folder, safetensors},
};

fn open(quantization: &Value, header: &Value, data: &[u8]) -> crate::Result<Checkpoint> {
    let config = json!({ "architectures": ["LlamaForCausalLM"], "quantization_config": quantization }).to_string();
    let file = safetensors(&header.to_string(), data);
    let folder = folder(&[("config.json", config.as_bytes()), ("model.safetensors", &file)]);
    Checkpoint::open(folder.path())
}

#[test]
fn a_method_that_is_not_read_is_refused_by_name() {
    let header = json!({ "x.weight": { "dtype": "F32", "shape": [1], "data_offsets": [0, 4] } });
    for (config, name) in [
        (json!({ "quant_method": "bitsandbytes", "load_in_4bit": true }), "'bitsandbytes'"),
        (json!({ "quant_method": "gptq", "bits": 3 }), "GPTQ of 3 bits"),
        (json!({ "quant_method": "awq", "bits": 4, "version": "gemv" }), "AWQ in the version 'gemv' of 4 bits"),
        (
            json!({ "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized" }),
            "compressed-tensors in the format 'nvfp4-pack-quantized'",
        ),
        (json!({ "group_size": 64, "bits": 4 }), "MLX"),
    ] {
        let error = open(&config, &header, &[0; 4]).unwrap_err();
        let expected = format!("the weights are quantized by {name}, which is not read");
        assert!(error.message.ends_with(&expected), "{error}");
        assert_eq!(error.code, Code::Unsupported);
        assert!(error.help.starts_with("choose a GGUF file"), "{error}");
    }
}

#[test]
fn parts_that_do_not_fit_are_refused_when_the_weight_is_used() {
    let header = json!({
        "a.qweight": { "dtype": "I32", "shape": [4, 8], "data_offsets": [0, 128] },
        "a.scales": { "dtype": "F16", "shape": [1, 8], "data_offsets": [128, 144] },
        "a.qzeros": { "dtype": "I32", "shape": [2, 1], "data_offsets": [144, 152] },
        "b.qweight": { "dtype": "I32", "shape": [4, 8], "data_offsets": [152, 280] },
        "norm.weight": { "dtype": "F32", "shape": [1], "data_offsets": [280, 284] },
    });
    let config = json!({ "quant_method": "gptq", "bits": 4, "group_size": 32 });
    let checkpoint = open(&config, &header, &[0; 284]).unwrap();
    assert!(checkpoint.weights().get("norm.weight").is_ok());
    let error = checkpoint.weights().get("a.weight").unwrap_err();
    assert!(error.message.starts_with("tensor 'a.weight': its parts do not fit each other"), "{error}");
    let error = checkpoint.weights().get("b.weight").unwrap_err();
    assert_eq!(error.message, "tensor 'b.weight': the checkpoint has no 'b.scales'");
}

#[test]
fn no_damage_to_a_packed_folder_is_a_crash() {
    let header = json!({
        "a.qweight": { "dtype": "I32", "shape": [8, 8], "data_offsets": [0, 256] },
        "a.qzeros": { "dtype": "I32", "shape": [2, 1], "data_offsets": [256, 264] },
        "a.scales": { "dtype": "F16", "shape": [2, 8], "data_offsets": [264, 296] },
        "a.g_idx": { "dtype": "I32", "shape": [64], "data_offsets": [296, 552] },
    })
    .to_string();
    let config = json!({ "quant_method": "gptq", "bits": 4, "group_size": 32 });
    let mut opened = 0;
    for at in 0..header.len() {
        for byte in [b'0', b'9', b'1'] {
            let mut damaged = header.clone().into_bytes();
            if damaged[at].is_ascii_digit() {
                damaged[at] = byte;
                let damaged: Value = serde_json::from_slice(&damaged).unwrap_or_default();
                if let Ok(checkpoint) = open(&config, &damaged, &[1; 552]) {
                    opened += 1;
                    let _ = checkpoint.weights().get("a.weight");
                }
            }
        }
    }
    assert!(opened > 0);
}
