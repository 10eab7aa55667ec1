//! Finds out what a template supports by rendering small conversations.
//!
//! Names say nothing: two templates of one family differ in what they raise on, and finetunes bring their own. So each
//! template is tried once, when it is read, with words that occur in no template, and the findings are stored as data.

use serde_json::{Value, json};

use super::{
    messages,
    traits::{Calls, TemplateTraits},
};
use pensieve_protocol::conversation::Tool;

const SYSTEM: &str = "zqsystem";
const ASKED: &str = "zqasked";
const AGAIN: &str = "zqagain";
const SAID: &str = "zqsaid";
const TOOL: &str = "zqtool";
const OTHER: &str = "zqother";
const KEY: &str = "zqkey";
const VALUE: &str = "zqvalue";
const CAME: &str = "zqcame";
const THOUGHT: &str = "zqthought";
const BACK: &str = "zqback";
/// Ids of calls: as APIs produce them, and as some templates require them.
const LONG_IDS: [&str; 2] = ["call_zq0123456789", "call_zq9876543210"];
const SHORT_IDS: [&str; 2] = ["zq0123456", "zq6543210"];

/// Renders messages and tools; `None` if the template raises.
pub(super) trait Trial: Fn(&[Value], &Value) -> Option<String> {}

impl<T: Fn(&[Value], &Value) -> Option<String>> Trial for T {}

impl TemplateTraits {
    pub fn of(render: impl Trial) -> Self {
        let none = Value::Null;
        let mut traits = Self {
            takes_system: false,
            content_parts: false,
            alternates: false,
            user_first: false,
            takes_tools: false,
            calls: None,
        };
        let shows = |messages: &[Value], words: &[&str]| has_all(&render(messages, &none), words);
        if !shows(&[traits.user(ASKED)], &[ASKED]) {
            traits.content_parts = true;
            traits.content_parts = shows(&[traits.user(ASKED)], &[ASKED]);
        }
        let say = |role: &str, text: &str| json!({ "role": role, "content": traits.content(text) });
        let (asked, again, said) = (say("user", ASKED), say("user", AGAIN), say("assistant", SAID));
        let system = say("system", SYSTEM);
        let is_fine = |messages: &[Value], words: &[&str]| shows(messages, words);
        let alternates = !is_fine(&[asked.clone(), again.clone()], &[ASKED, AGAIN])
            || !is_fine(&[asked.clone(), said.clone(), say("assistant", AGAIN)], &[ASKED, SAID, AGAIN]);
        let user_first = !is_fine(&[said.clone(), asked.clone()], &[SAID, ASKED]);

        let tool = |name: &str| Tool {
            name: name.to_owned(),
            description: "Looks something up.".to_owned(),
            schema: json!({
                "type": "object",
                "properties": { KEY: { "type": "string", "description": "What to look up." } },
                "required": [KEY],
            }),
            ..Tool::default()
        };
        let tools = messages::tools(&[tool(TOOL), tool(OTHER)]);
        let takes_tools = has_all(&render(std::slice::from_ref(&asked), &tools), &[ASKED, TOOL, OTHER]);
        let offered = if takes_tools { &tools } else { &none };
        let calls = calls(&render, offered, &asked, &say);

        // The text before the first user message must not depend on anything after it.
        let before = |messages: &[Value]| {
            let text = render(messages, offered)?;
            let (before, _) = text.split_once(ASKED)?;
            before.contains(SYSTEM).then(|| before.to_owned())
        };
        let opening = before(&[system.clone(), asked.clone()]);
        let mut longer = vec![vec![system.clone(), asked.clone(), said, again]];
        if let Some(form) = &calls {
            longer.push(vec![
                system,
                asked,
                form.answer(say("assistant", ""), &[(0, TOOL)]),
                form.result(say("tool", CAME), 0, TOOL),
            ]);
        }
        let takes_system = opening.is_some() && longer.iter().all(|messages| before(messages) == opening);
        Self { takes_system, alternates, user_first, takes_tools, calls, ..traits }
    }

    fn user(&self, text: &str) -> Value {
        json!({ "role": "user", "content": self.content(text) })
    }
}

/// Finds the form in which the template renders calls and results, if there is one.
fn calls(render: &impl Trial, tools: &Value, asked: &Value, say: &impl Fn(&str, &str) -> Value) -> Option<Calls> {
    let forms = [(false, false), (true, false), (false, true), (true, true)];
    let mut form = forms.into_iter().find_map(|(short_ids, arguments_as_text)| {
        let form = Calls {
            short_ids,
            arguments_as_text,
            parallel: false,
            beside_text: false,
            beside_both: false,
            user_after_result: false,
        };
        let text = render(
            &[asked.clone(), form.answer(say("assistant", ""), &[(0, TOOL)]), form.result(say("tool", CAME), 0, TOOL)],
            tools,
        );
        // An object printed in Python's syntax is not JSON.
        let is_python = text.as_ref().is_some_and(|text| text.contains(&format!("'{KEY}'")));
        let after = text.as_ref().and_then(|text| text.split_once(ASKED)).map(|(_, after)| after.to_owned());
        (!is_python && has_all(&after, &[TOOL, KEY, VALUE, CAME])).then_some(form)
    })?;
    let tried = |messages: &[Value], words: &[&str]| {
        let all: Vec<_> = std::iter::once(asked).chain(messages).cloned().collect();
        let text = render(&all, tools);
        has_all(&text.and_then(|text| text.split_once(ASKED).map(|(_, after)| after.to_owned())), words)
    };
    let call = |text: &str| form.answer(say("assistant", text), &[(0, TOOL)]);
    let came = form.result(say("tool", CAME), 0, TOOL);
    let both = form.answer(say("assistant", ""), &[(0, TOOL), (1, OTHER)]);
    let back = form.result(say("tool", BACK), 1, OTHER);
    let parallel = tried(&[both, came.clone(), back], &[TOOL, OTHER, CAME, BACK]);
    let beside_text = tried(&[call(SAID), came.clone()], &[SAID, TOOL, CAME]);
    let mut thoughtful = call(SAID);
    messages::think(&mut thoughtful, THOUGHT);
    let beside_both = tried(&[thoughtful, came.clone()], &[SAID, TOOL, CAME]);
    let user_after_result = tried(&[call(""), came, say("user", AGAIN)], &[TOOL, CAME, AGAIN]);
    form = Calls { parallel, beside_text, beside_both, user_after_result, ..form };
    Some(form)
}

impl Calls {
    /// A call and its result with this content.
    pub(super) fn example(&self, traits: &TemplateTraits, content: &Value) -> (Value, Value) {
        let answer = json!({ "role": "assistant", "content": traits.content("") });
        let result = json!({ "role": "tool", "content": content });
        (self.answer(answer, &[(0, TOOL)]), self.result(result, 0, TOOL))
    }

    fn ids(&self) -> [&'static str; 2] {
        if self.short_ids { SHORT_IDS } else { LONG_IDS }
    }

    fn answer(&self, mut answer: Value, calls: &[(usize, &str)]) -> Value {
        let arguments = json!({ KEY: VALUE });
        let arguments = if self.arguments_as_text { json!(arguments.to_string()) } else { arguments };
        let calls = calls.iter().map(|(id, name)| {
            json!({
                "id": self.ids()[*id], "type": "function", "function": { "name": name, "arguments": arguments },
            })
        });
        answer["tool_calls"] = calls.collect();
        answer
    }

    fn result(&self, mut result: Value, id: usize, name: &str) -> Value {
        result["tool_call_id"] = json!(self.ids()[id]);
        result["name"] = json!(name);
        result
    }
}

fn has_all(text: &Option<String>, words: &[&str]) -> bool {
    text.as_ref().is_some_and(|text| words.iter().all(|word| text.contains(word)))
}
