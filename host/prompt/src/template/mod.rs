//! A model's chat template, run as transformers runs it.
//!
//! A template is a program that comes with a checkpoint. It is bounded in every way in which it could run away
//! (`meter`), and its output is what the model was trained on, byte for byte. Templates differ in what they accept, so
//! a conversation is converted to a form that this template accepts (`messages`), as trial renderings have determined
//! (`trials`). A client's text never becomes a special token (`marks`).

mod images;
mod json;
mod machine;
mod marks;
mod messages;
mod meter;
mod methods;
mod python;
mod traits;
mod trials;

#[cfg(test)]
mod tests;

use std::cell::Cell;

use minijinja::{Error, ErrorKind, Value};
use serde_json::{Map, Value as Json, json};

use self::{
    images::{ImageParts, ImageTraits},
    machine::Machine,
    marks::{Controls, Marks},
    traits::TemplateTraits,
};
use crate::{rendered::Rendered, tokens::Specials};
use pensieve_protocol::{
    conversation::{Conversation, Role},
    job::{Failure, FailureCode},
    prompt::ImageWords,
};

/// For a checkpoint without a template: names and colons, which a model trained only on plain text continues as well as
/// anything.
const PLAIN: &str = r"{{ bos_token }}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {{- message.content + '\n\n' }}
    {%- elif message.role == 'user' %}
        {{- 'User: ' + message.content + '\n\n' }}
    {%- else %}
        {{- 'Assistant: ' + message.content + '\n\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- 'Assistant:' }}
{%- endif %}";

/// A model's chat template and the traits determined by trial renderings.
#[derive(Debug)]
pub(crate) struct Template {
    machine: Machine,
    traits: TemplateTraits,
    controls: Controls,
    /// How it writes images, for a model that reads some.
    images: Option<(ImageWords, ImageTraits)>,
    bos: String,
    eos: String,
}

impl Template {
    /// Reads a template, or the plain one if the checkpoint has none.
    pub fn of(source: Option<&str>, specials: &Specials, images: Option<ImageWords>) -> Result<Self, Failure> {
        Self::read(source.unwrap_or(PLAIN), specials, images)
    }

    fn read(source: &str, specials: &Specials, images: Option<ImageWords>) -> Result<Self, Failure> {
        let broken = |message: &str| {
            Failure::new(FailureCode::Unsupported, format!("the model's chat template cannot be used: {message}"))
                .with_help("use another checkpoint, or complete plain text")
        };
        let machine = Machine::new(source).map_err(|error| broken(&machine::message(&error)))?;
        let controls = Controls::of(specials, source, images.as_ref().map(|images| images.placeholder.as_str()));
        let controls = controls.map_err(|error| broken(&error.to_string()))?;
        let (bos, eos) = (specials.bos.clone(), specials.eos.clone());
        // A template that runs away once does so every time, and there are two dozen trials.
        let is_spent = Cell::new(false);
        let trial = |messages: &[Json], tools: &Json| {
            if is_spent.get() {
                return None;
            }
            let mut context = Map::new();
            context.insert("messages".to_owned(), json!(messages));
            context.insert("tools".to_owned(), tools.clone());
            context.insert("add_generation_prompt".to_owned(), json!(true));
            let made = machine.run(context_of(&context, &bos, &eos));
            is_spent.set(made.as_ref().is_err_and(|error| error.kind() == ErrorKind::OutOfFuel));
            made.ok()
        };
        let traits = TemplateTraits::of(trial);
        let images = images.map(|words| {
            let found = ImageTraits::of(&words.placeholder, &traits, trial);
            (words, found)
        });
        Ok(Self { machine, traits, controls, images, bos, eos })
    }

    /// The token that stands for a row of an image, for a model that reads some.
    pub fn slot(&self) -> Option<u32> {
        self.images.as_ref().map(|(words, _)| words.slot)
    }

    /// True if the template renders tool definitions itself.
    pub fn takes_tools(&self) -> bool {
        self.traits.takes_tools
    }

    /// Renders up to where the model continues: the start of its turn or, if the last turn is the assistant's and has
    /// no calls, the end of that turn's text. `tools_in_words` is added to the system prompt, `items` are the texts of the
    /// images that the turns show.
    pub fn render(
        &self,
        conversation: &Conversation,
        tools_in_words: Option<&str>,
        items: &[String],
    ) -> Result<Rendered, Failure> {
        if conversation.items().next().is_none() {
            let mut images = ImageParts::new(None, ImageTraits::default());
            return self.render_with(conversation, tools_in_words, &mut images);
        }
        let Some((words, traits)) = &self.images else {
            return Err(Failure::new(FailureCode::Internal, "a text model was given images"));
        };
        let texts = serde_json::to_value((conversation, tools_in_words)).unwrap_or_default();
        let mark = Marks::absent_from(&[&texts]).ok_or_else(no_marks)?.open;
        let mut images = ImageParts::new(Some(mark), *traits);
        let rendered = self.render_with(conversation, tools_in_words, &mut images)?;
        let placed = images.place(rendered, words, items)?;
        images::check(&placed, conversation.items(), words)?;
        Ok(placed)
    }

    fn render_with(
        &self,
        conversation: &Conversation,
        tools_in_words: Option<&str>,
        images: &mut ImageParts,
    ) -> Result<Rendered, Failure> {
        let mut messages = messages::messages(conversation, tools_in_words, &self.traits, images);
        let tools = if self.traits.takes_tools { messages::tools(&conversation.tools) } else { Json::Null };
        let continues = conversation.turns.last().is_some_and(|turn| turn.role == Role::Assistant)
            && messages.last().is_some_and(|last| last["role"] == "assistant" && last["tool_calls"].is_null());
        let variables = variables(conversation);
        let text = Json::Array(std::mem::take(&mut messages));
        let prompt = Prompt { messages: text, tools, variables };
        let marks = Marks::absent_from(&[&prompt.messages, &prompt.tools, &prompt.variables]).ok_or_else(no_marks)?;
        self.render_prompt(prompt, marks, continues)
    }

    fn render_prompt(&self, prompt: Prompt, marks: Marks, continues: bool) -> Result<Rendered, Failure> {
        let exact = self.run(&prompt, continues.then_some(marks.end))?;
        if ![&prompt.messages, &prompt.tools, &prompt.variables].iter().any(|value| self.controls.are_in(value)) {
            return Ok(Rendered { text: exact, ..Rendered::default() });
        }
        let Prompt { mut messages, mut tools, mut variables } = prompt;
        if let Json::Array(messages) = &mut messages {
            messages.iter_mut().for_each(|message| self.controls.mark(message, marks));
        }
        self.controls.mark(&mut tools, marks);
        self.controls.mark(&mut variables, marks);
        let marked = self.run(&Prompt { messages, tools, variables }, continues.then_some(marks.end))?;
        Ok(self.controls.compare(exact, &marked, marks))
    }

    /// Renders messages as they are. With an end mark, the last message is left open there.
    fn run(&self, prompt: &Prompt, end: Option<char>) -> Result<String, Failure> {
        let mut context = match &prompt.variables {
            Json::Object(variables) => variables.clone(),
            _ => Map::new(),
        };
        let mut messages = prompt.messages.clone();
        // The space shows whether the template trims its input.
        if let (Some(end), Some(last)) = (end, messages.as_array_mut().and_then(|all| all.last_mut())) {
            let content = &mut last["content"];
            let text = if content.is_array() { &mut content[0]["text"] } else { content };
            *text = json!(format!("{}{end} ", text.as_str().unwrap_or_default()));
        }
        context.insert("messages".to_owned(), messages);
        context.insert("tools".to_owned(), prompt.tools.clone());
        context.insert("documents".to_owned(), Json::Null);
        context.insert("add_generation_prompt".to_owned(), json!(end.is_none()));
        let text = self.machine.run(context_of(&context, &self.bos, &self.eos)).map_err(|error| refusal(&error))?;
        let Some(end) = end else { return Ok(text) };
        let Some(at) = text.rfind(end) else { return self.run_and_append(prompt) };
        let is_trimmed = !text[at + end.len_utf8()..].starts_with(' ');
        let text = &text[..at];
        Ok(if is_trimmed { text.trim_end() } else { text }.to_owned())
    }

    /// For a template that does not render the last turn's text to its end: appends that text to the start of a turn.
    fn run_and_append(&self, prompt: &Prompt) -> Result<String, Failure> {
        let mut messages = prompt.messages.as_array().cloned().unwrap_or_default();
        let last = messages.pop().unwrap_or_default();
        let text = last["content"].as_str().or_else(|| last["content"][0]["text"].as_str()).unwrap_or_default();
        let before = Prompt {
            messages: Json::Array(messages),
            tools: prompt.tools.clone(),
            variables: prompt.variables.clone(),
        };
        Ok(self.run(&before, None)? + text)
    }
}

/// The client's part of a template's input.
struct Prompt {
    messages: Json,
    tools: Json,
    variables: Json,
}

fn variables(conversation: &Conversation) -> Json {
    let mut variables = conversation.variables.clone();
    if let Some(thinking) = conversation.thinking {
        // Templates know this variable under either name.
        for name in ["enable_thinking", "thinking"] {
            variables.entry(name).or_insert_with(|| json!(thinking));
        }
    }
    Json::Object(variables)
}

fn context_of(variables: &Map<String, Json>, bos: &str, eos: &str) -> Value {
    let tokens = [("bos_token", bos), ("eos_token", eos)].into_iter().filter(|(_, text)| !text.is_empty());
    let given = variables.iter().map(|(key, value)| (Value::from(key.as_str()), value_of(value)));
    // Later pairs win.
    Value::from_pairs(given.chain(tokens.map(|(name, text)| (Value::from(name), Value::from(text)))))
}

fn value_of(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(value), ..) => Value::from(value),
            (_, Some(value), _) => Value::from(value),
            (.., value) => Value::from(value.unwrap_or_default()),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::from(items.iter().map(value_of).collect::<Vec<_>>()),
        Json::Object(fields) => {
            Value::from_pairs(fields.iter().map(|(key, value)| (Value::from(key.as_str()), value_of(value))))
        }
    }
}

fn no_marks() -> Failure {
    Failure::new(FailureCode::Invalid, "the conversation uses all characters that Unicode keeps out of texts")
}

fn refusal(error: &Error) -> Failure {
    let told = machine::message(error);
    match error.kind() {
        ErrorKind::OutOfFuel => {
            Failure::new(FailureCode::Unsupported, format!("the model's chat template runs away: {told}"))
        }
        _ => Failure::new(FailureCode::Invalid, format!("the model's chat template refuses this conversation: {told}")),
    }
}
