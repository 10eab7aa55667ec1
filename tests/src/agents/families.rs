//! The scripted model in the manner of families whose calls are no JSON between two tags, as clients that call tools meet them.

use serde_json::json;
use std::{fs, path::Path};

use crate::scripted::checkpoint;

/// How a family writes its turns and its calls, as the fixtures' templates have it.
pub struct Family {
    /// The name of the template among the fixtures.
    pub template: &'static str,
    /// Special tokens that the fixture's tokenizer lacks.
    special: &'static [&'static str],
    /// Openings of a user's turn, a tool's turn and an answer.
    turns: (&'static [&'static str], &'static str),
    /// An answer with this thought, this text and one call, with `TOOL`, `KEY` and `VALUE` in the place of the call's.
    call: &'static str,
    /// An answer with a text in the place of `TEXT`.
    text: &'static str,
}

/// Families whose calls are no JSON between two tags.
pub const FAMILIES: [Family; 3] = [
    Family {
        template: "harmony",
        special: &["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>"],
        turns: (&["<|start|>user", "<|start|>functions."], "<|start|>assistant"),
        call: "<|channel|>analysis<|message|>I shall.<|end|><|start|>assistant<|channel|>commentary to=functions.TOOL \
               <|constrain|>json<|message|>{\"KEY\": VALUE}<|call|>",
        text: "<|channel|>analysis<|message|>It is done.<|end|><|start|>assistant<|channel|>final<|message|>TEXT<|return|>",
    },
    Family {
        template: "qwen3coder",
        special: &[],
        turns: (&["<|im_start|>user"], "<|im_start|>assistant\n"),
        call: "I shall.\n\n<tool_call>\n<function=TOOL>\n<parameter=KEY>\nRAW\n</parameter>\n</function>\n</tool_call>",
        text: "TEXT",
    },
    Family {
        template: "glm45",
        special: &["<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"],
        turns: (&["<|user|>", "<|observation|>"], "<|assistant|>"),
        call: "\n<think>I shall.</think>\n<tool_call>TOOL\n<arg_key>KEY</arg_key>\n<arg_value>RAW</arg_value>\n\
               </tool_call><|observation|>",
        text: "\n<think>It is done.</think>\nTEXT<|user|>",
    },
];

impl Family {
    /// An answer that calls a tool with one text.
    pub fn call(&self, tool: &str, key: &str, value: &str) -> String {
        let quoted = json!(value).to_string();
        self.call.replace("TOOL", tool).replace("KEY", key).replace("VALUE", &quoted).replace("RAW", value)
    }

    /// An answer that is a text.
    pub fn text(&self, text: &str) -> String {
        self.text.replace("TEXT", text)
    }

    /// Writes a checkpoint of the family, whose template is the fixture's.
    pub fn checkpoint(&self, folder: &Path, script: &[(&str, &str)]) {
        checkpoint(folder, script);
        let templates = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/templates");
        fs::copy(templates.join(format!("{}.jinja", self.template)), folder.join("chat_template.jinja")).unwrap();
        let path = folder.join("tokenizer.json");
        let mut tokenizer: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let added = tokenizer["added_tokens"].as_array_mut().unwrap();
        let first = added.iter().map(|token| token["id"].as_u64().unwrap()).max().unwrap() + 1;
        added.extend(self.special.iter().zip(first..).map(|(name, id)| {
            json!({ "id": id, "content": name, "special": true, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false })
        }));
        fs::write(path, tokenizer.to_string()).unwrap();
        let (user, answer) = self.turns;
        let config = json!({
            "architectures": ["ScriptedForCausalLM"], "turns": { "user": user, "answer": answer },
        });
        fs::write(folder.join("config.json"), config.to_string()).unwrap();
    }
}
