//! Requests through template, tokenizer, fleet and worker, and back as pieces of an answer, with the scripted model.

mod limits;

use pensieve_protocol::{
    grammar::Grammar,
    job::{Failure, FailureCode, Finish, StageSpec, Usage},
};
use pensieve_server::{
    answers::Generation,
    chat::{
        Conversation, Delta, Effort, Input, Part, Request, ResponseFormat, Role, SamplingParams, Tool, ToolChoice, Turn,
    },
    fleet::{Config, Fleet},
    requests::{Chats, ImageLimits},
};
use serde_json::json;
use std::{
    fs,
    sync::Arc,
    time::{Duration, Instant},
};
use tempfile::TempDir;

use crate::scripted;

const PATIENCE: Duration = Duration::from_secs(60);
const CALL: &str = "<tool_call>\n{\"name\": \"Bash\", \"arguments\": {\"command\": \"ls -la | wc\"}}\n</tool_call>";

/// Reasoning that goes on for longer than any budget here; the answer is what follows where it was concluded.
const PONDERING: &str = concat!(
    "<think>\nWell: one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen, fourteen, ",
    "fifteen, sixteen, seventeen, eighteen, nineteen, twenty, thirty, forty, fifty, sixty, seventy, eighty, ninety, ",
    "one hundred, two hundred, three hundred, four hundred, five hundred.\n</think>\n\nIt is six.",
);

const SCRIPT: [(&str, &str); 13] = [
    ("ponder", PONDERING),
    (
        "circle",
        "<think>\nhm, hm, hm, hm, hm, hm, hm, hm, hm, hm, hm, hm, hm, hm, hm, hm, hm, hm, hm, hm, hm, hm, hm, hm, hm",
    ),
    ("endless", "{\"city\": \"Bern, Bern, Basel, Bern, Chur, Bern, Thun, Bern, Olten, Bern, Zug, Bern, Biel, Bern"),
    ("loop", "Well, na na na na na na na na na na na na na na na na na na na na na na na na na na na."),
    ("<tool_response>", "There are three files."),
    (
        "call twice",
        "First.\n<tool_call>\n{\"name\": \"Bash\", \"arguments\": {\"command\": \"ls\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"Read\", \"arguments\": {\"path\": \"a é\"}}\n</tool_call>",
    ),
    ("call wrongly", "<tool_call>\n{\"name\": \"Bash\", \"arguments\": {\"wrong\": 1}}\n</tool_call>"),
    ("call", CALL),
    ("think", "<think>\nHm, 日本.\n</think>\n\nYes."),
    ("json", "{\"city\": \"Bern\", \"people\": 134000}"),
    ("stop", "One, two, STOP, three."),
    ("hello", "Hello! Größe and 日本 😀."),
    ("", "I do not know."),
];

struct Home {
    chats: Chats,
    _root: TempDir,
}

/// A whole answer.
#[derive(Debug, Default)]
struct Answer {
    text: String,
    thinking: String,
    /// Name and arguments.
    calls: Vec<(String, String)>,
    ids: Vec<String>,
    /// Number of pieces that the arguments arrived in.
    pieces: usize,
    deltas: Vec<Delta>,
    reason: Option<Finish>,
    usage: Usage,
}

impl Home {
    async fn open(prepare: impl FnOnce(&mut Config)) -> Self {
        let root = tempfile::tempdir().unwrap();
        let mut config = scripted::fleet(root.path(), "scripted", &SCRIPT);
        prepare(&mut config);
        let chats = Chats::new(Arc::new(Fleet::start(config).await.unwrap()), ImageLimits::default());
        Self { chats, _root: root }
    }

    async fn start(&self, request: Request) -> Result<Generation, Failure> {
        self.chats.prepare(request).await?.start("req_test")
    }

    async fn ask(&self, request: Request) -> Result<Answer, Failure> {
        answer(self.start(request).await?).await
    }
}

async fn answer(mut generation: Generation) -> Result<Answer, Failure> {
    let mut answer = Answer::default();
    while let Some(delta) = tokio::time::timeout(PATIENCE, generation.next()).await.expect("a piece in time") {
        assert!(answer.reason.is_none(), "{delta:?} after the end");
        answer.deltas.push(delta.clone());
        match delta {
            Delta::Text { text, .. } => answer.text.push_str(&text),
            Delta::Thinking(text) => answer.thinking.push_str(&text),
            Delta::ToolCall { id, name } => {
                answer.calls.push((name, String::new()));
                answer.ids.push(id);
            }
            Delta::ToolArguments(text) => {
                answer.calls.last_mut().unwrap().1.push_str(&text);
                answer.pieces += 1;
            }
            Delta::Finished { reason, usage } => (answer.reason, answer.usage) = (Some(reason), usage),
            Delta::Failed(failure) => return Err(failure),
            Delta::Loading { .. }
            | Delta::Started { .. }
            | Delta::Prompt { .. }
            | Delta::Unknown(_)
            | Delta::Compacted { .. }
            | Delta::Cache(_) => {}
        }
    }
    assert!(answer.reason.is_some(), "it has no end: {answer:?}");
    Ok(answer)
}

fn turn(role: Role, text: &str) -> Turn {
    Turn { role, parts: vec![Part::Text(text.into())] }
}

fn tools() -> Vec<Tool> {
    let bash = json!({ "type": "object", "properties": { "command": { "type": "string" } }, "required": ["command"], "additionalProperties": false });
    let read = json!({ "type": "object", "properties": { "path": { "type": "string" } }, "required": ["path"] });
    let tool = |name: &str, schema| Tool { name: name.into(), description: "A tool".into(), schema, ..Tool::default() };
    vec![tool("Bash", bash), tool("Read", read)]
}

fn request(conversation: Conversation) -> Request {
    let sampling = SamplingParams { temperature: Some(0.0), ..SamplingParams::default() };
    Request { model: "anything".into(), input: Input::Chat(conversation), sampling, ..Request::default() }
}

fn asked(text: &str) -> Conversation {
    Conversation { turns: vec![turn(Role::User, text)], ..Conversation::default() }
}

fn with_tools(text: &str) -> Conversation {
    Conversation { system: "Be brief.".into(), tools: tools(), ..asked(text) }
}

#[tokio::test(flavor = "multi_thread")]
async fn text_comes_in_whole_characters_and_counts_are_exact() {
    let home = Home::open(|_| ()).await;
    let prepared = home.chats.prepare(request(asked("hello"))).await.unwrap();
    let (input, model) = (prepared.input_tokens(), prepared.model().to_owned());
    assert_eq!(model, "scripted");
    assert_eq!(home.chats.count(request(asked("hello"))).await.unwrap().tokens, input);
    let answer = answer(prepared.start("req_test").unwrap()).await.unwrap();
    assert_eq!(answer.text, "Hello! Größe and 日本 😀.");
    assert_eq!((answer.reason, answer.usage.prompt), (Some(Finish::EndOfTurn), input));
    assert!(matches!(answer.deltas[0], Delta::Loading { .. }), "{:?}", answer.deltas[0]);
    assert!(answer.deltas.iter().any(|delta| matches!(delta, Delta::Started { reused_tokens: 0 })));
    // Sampled with the default chain, or with one by name, the scripted token is practically certain.
    for sampling in [
        SamplingParams {
            seed: Some(7),
            logit_bias: vec![(3, 5.0)],
            frequency_penalty: Some(0.5),
            ..SamplingParams::default()
        },
        SamplingParams {
            stages: Some(vec![StageSpec { sampler: "greedy".into(), ..StageSpec::default() }]),
            ..SamplingParams::default()
        },
    ] {
        let drawn = home.ask(Request { sampling, ..request(asked("hello")) }).await.unwrap();
        assert_eq!(drawn.text, answer.text);
    }
    let more = home.chats.count(request(with_tools("hello"))).await.unwrap().tokens;
    assert!(more > input + 100, "{more} tokens with tools, {input} without");
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_strings_and_limits_end_an_answer() {
    let home = Home::open(|_| ()).await;
    let stopped = Request { stops: vec!["never".into(), ", STOP".into()], ..request(asked("stop")) };
    let stopped = home.ask(stopped).await.unwrap();
    assert_eq!((stopped.text.as_str(), stopped.reason), ("One, two", Some(Finish::StopString(1))));
    let short = home.ask(Request { max_tokens: Some(3), ..request(asked("stop")) }).await.unwrap();
    assert_eq!((short.reason, short.usage.generated), (Some(Finish::Length), 3));
    assert!("One, two, STOP".starts_with(&short.text), "{}", short.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_without_a_chat_template_ends_where_it_goes_on_for_the_user() {
    let home = Home::open(|config| {
        let folder = &config.models[0].source;
        fs::remove_file(folder.join("chat_template.jinja")).unwrap();
        let turns = json!({ "user": ["User:"], "answer": "Assistant:" });
        let settings = json!({ "architectures": ["ScriptedForCausalLM"], "turns": turns });
        fs::write(folder.join("config.json"), settings.to_string()).unwrap();
        let endless = "It is six.\n\nUser: And what is four and four?\n\nAssistant: It is eight.";
        let script = json!([{ "when": "three and three", "say": endless }, { "when": "Go on", "say": "Well, STOP." }]);
        fs::write(folder.join("script.json"), script.to_string()).unwrap();
    })
    .await;
    let answer = home.ask(request(asked("What is three and three?"))).await.unwrap();
    assert_eq!((answer.text.as_str(), answer.reason), ("It is six.", Some(Finish::EndOfTurn)));
    // Indices that clients know stay valid.
    let stops = vec!["six".into(), "STOP".into()];
    let stopped = home.ask(Request { stops, ..request(asked("Go on.")) }).await.unwrap();
    assert_eq!((stopped.text.as_str(), stopped.reason), ("Well, ", Some(Finish::StopString(1))));
    let stopped = Request { stops: vec!["eight".into()], ..request(asked("three and three?")) };
    let stopped = home.ask(stopped).await.unwrap();
    assert_eq!((stopped.text.as_str(), stopped.reason), ("It is six.", Some(Finish::EndOfTurn)));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_repeats_itself_ends_at_loop_tokens() {
    let home = Home::open(|config| config.models[0].spec.limits.loop_tokens = 16).await;
    let cut = home.ask(request(asked("loop"))).await.unwrap();
    assert_eq!(cut.reason, Some(Finish::Repetition));
    assert!(cut.text.starts_with("Well, na na") && cut.usage.generated < 45, "{cut:?}");
    assert_eq!(home.ask(request(asked("stop"))).await.unwrap().reason, Some(Finish::EndOfTurn));
    let whole = Home::open(|_| ()).await.ask(request(asked("loop"))).await.unwrap();
    assert!(whole.text.ends_with("na."), "{whole:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tool_calls_stream_and_their_results_go_on_from_there() {
    let home = Home::open(|_| ()).await;
    let first = home.ask(request(with_tools("call a tool"))).await.unwrap();
    assert_eq!(first.text, "");
    assert_eq!(first.calls, [("Bash".into(), r#"{"command": "ls -la | wc"}"#.into())]);
    assert!(first.pieces > 3, "{} pieces", first.pieces);
    assert_eq!(first.reason, Some(Finish::EndOfTurn));
    let call = Part::ToolCall {
        id: first.ids[0].clone(),
        name: "Bash".into(),
        arguments: json!({ "command": "ls -la | wc" }),
    };
    let result = Part::ToolResult { id: first.ids[0].clone(), text: "3".into(), images: Vec::new(), is_error: false };
    let mut conversation = with_tools("call a tool");
    conversation.turns.push(Turn { role: Role::Assistant, parts: vec![call] });
    conversation.turns.push(Turn { role: Role::User, parts: vec![result] });
    let second = home.ask(request(conversation)).await.unwrap();
    assert_eq!((second.text.as_str(), second.calls.len()), ("There are three files.", 0));
    let reused = f64::from(second.usage.reused) / f64::from(first.usage.prompt);
    assert!(reused >= 0.95, "{reused} of the first prompt is reused");
}

#[tokio::test(flavor = "multi_thread")]
async fn several_calls_come_in_order_and_one_ends_the_answer_where_one_is_the_most() {
    let home = Home::open(|_| ()).await;
    let both = home.ask(request(with_tools("call twice"))).await.unwrap();
    assert_eq!(both.text, "First.");
    let expect = [("Bash".into(), r#"{"command": "ls"}"#.into()), ("Read".into(), r#"{"path": "a é"}"#.into())];
    assert_eq!(both.calls, expect);
    assert_ne!(both.ids[0], both.ids[1]);
    let single = home.ask(request(Conversation { single_call: true, ..with_tools("call twice") })).await.unwrap();
    assert_eq!((single.calls.as_slice(), single.reason), (&expect[..1], Some(Finish::GrammarDone)));
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_keep_to_the_tools_schema() {
    let home = Home::open(|_| ()).await;
    let answer = home.ask(request(with_tools("call wrongly"))).await.unwrap();
    let (name, arguments) = &answer.calls[0];
    let arguments: serde_json::Value = serde_json::from_str(arguments).unwrap();
    assert!(name == "Bash" && arguments["command"].is_string() && arguments.get("wrong").is_none(), "{arguments}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_are_forced_named_and_barred() {
    let home = Home::open(|_| ()).await;
    let ask = async |text: &str, tool_choice| {
        home.ask(request(Conversation { tool_choice, ..with_tools(text) })).await.unwrap()
    };
    let forced = ask("hello", ToolChoice::Any).await;
    assert!(forced.text.is_empty() && !forced.calls.is_empty(), "{forced:?}");
    serde_json::from_str::<serde_json::Value>(&forced.calls[0].1).unwrap();
    let named = ask("call", ToolChoice::Named("Read".into())).await;
    assert_eq!((named.calls[0].0.as_str(), named.text.as_str()), ("Read", ""));
    let arguments: serde_json::Value = serde_json::from_str(&named.calls[0].1).unwrap();
    assert!(arguments["path"].is_string(), "{arguments}");
    let barred = ask("call", ToolChoice::None).await;
    assert!(barred.calls.is_empty() && !barred.text.contains("<tool_call>"), "{barred:?}");
    // The prompt is the same, so it is reused.
    assert!(barred.usage.reused + 16 >= barred.usage.prompt, "{:?}", barred.usage);
    let missing = Conversation { tool_choice: ToolChoice::Named("rm".into()), ..with_tools("call") };
    assert_eq!(home.chats.prepare(request(missing)).await.unwrap_err().code, FailureCode::Invalid);
}

#[tokio::test(flavor = "multi_thread")]
async fn thoughts_are_told_apart() {
    let home = Home::open(|_| ()).await;
    let thought = home.ask(request(asked("think"))).await.unwrap();
    assert_eq!((thought.thinking.as_str(), thought.text.as_str()), ("Hm, 日本.", "Yes."));
    let quiet = home.ask(request(Conversation { thinking: Some(false), ..asked("hello") })).await.unwrap();
    assert_eq!((quiet.thinking.as_str(), quiet.text.as_str()), ("", "Hello! Größe and 日本 😀."));
}

#[tokio::test(flavor = "multi_thread")]
async fn reasoning_is_concluded_at_its_budget_and_an_answer_follows() {
    const CONCLUSION: &str = "I have thought about this long enough, so I answer now.";
    let home = Home::open(|_| ()).await;
    let whole = home.ask(request(asked("ponder"))).await.unwrap();
    assert_eq!((whole.thinking.ends_with("five hundred."), whole.text.as_str()), (true, "It is six."));
    // Each token of reasoning comes by itself.
    let tokens_of = |answer: &Answer| {
        u32::try_from(answer.deltas.iter().filter(|delta| matches!(delta, Delta::Thinking(_))).count()).unwrap()
    };
    let (less, more) = (tokens_of(&whole) * 3 / 4, tokens_of(&whole) * 9 / 10);
    for ((tokens, effort, max_tokens), budget) in [
        ((Some(less), None, None), less),
        ((Some(more), None, None), more),
        ((None, Some(Effort::Medium), Some(4 * less)), less),
        ((None, Some(Effort::High), Some(2 * more)), more),
        ((Some(less), Some(Effort::High), Some(4 * more)), less),
    ] {
        let asked = Request { thinking_tokens: tokens, effort, max_tokens, ..request(asked("ponder")) };
        let answer = home.ask(asked).await.unwrap();
        let spent = tokens_of(&answer);
        assert!(answer.thinking.starts_with("Well: one") && answer.thinking.ends_with(CONCLUSION), "{answer:?}");
        assert!(spent <= budget && spent + 32 > budget, "{spent} of {budget}: {answer:?}");
        assert!(!answer.text.is_empty(), "{answer:?}");
    }
    // A required call is still a call.
    let must = Conversation { tool_choice: ToolChoice::Named("Bash".into()), ..with_tools("ponder") };
    let called = home.ask(Request { thinking_tokens: Some(100), ..request(must) }).await.unwrap();
    assert!(called.thinking.ends_with(CONCLUSION) && called.calls.len() == 1, "{called:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reasoning_without_a_budget_leaves_room_for_json() {
    let words: String = (0..400).map(|word| format!("word {word} ")).collect();
    let endless = format!("<think>\n{words}\n</think>\n\n{{\"city\": \"Bern\"}}");
    let home = Home::open(|config| scripted::checkpoint(&config.models[0].source, &[("", &endless)])).await;
    let schema = json!({ "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"] });
    let grammar = Grammar::json_schema(schema.to_string(), true);
    let format = ResponseFormat::Grammar { grammar, field: "format".into() };
    let asked = request(asked("A city?"));
    let answer = home.ask(Request { format, max_tokens: Some(200), ..asked }).await.unwrap();
    assert!(answer.thinking.ends_with("so I answer now."), "{answer:?}");
    let value: serde_json::Value = serde_json::from_str(&answer.text).unwrap();
    assert!(value["city"].is_string(), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reasoning_in_circles_is_concluded() {
    let home = Home::open(|config| config.models[0].spec.limits.thought_loop_tokens = 40).await;
    let answer = home.ask(request(asked("circle"))).await.unwrap();
    assert!(answer.thinking.starts_with("hm, hm") && answer.thinking.ends_with("so I answer now."), "{answer:?}");
    assert!(answer.thinking.len() < 120, "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn json_that_nears_its_limit_is_completed() {
    let home = Home::open(|_| ()).await;
    let schema = json!({ "properties": { "city": { "type": "string" }, "people": { "type": "integer" } },
        "required": ["city", "people"] });
    let grammar = Grammar::json_schema(schema.to_string(), true);
    let format = ResponseFormat::Grammar { grammar, field: "format".into() };
    for max_tokens in [28, 40, 50, 60] {
        let asked = Request { format: format.clone(), max_tokens: Some(max_tokens), ..request(asked("endless")) };
        let answer = home.ask(asked).await.unwrap();
        let value: serde_json::Value = serde_json::from_str(&answer.text).unwrap();
        let is_whole = value["people"].as_f64().is_some_and(|number| number.fract() == 0.0);
        assert!(value["city"].is_string() && is_whole, "{value}");
        assert_eq!((answer.reason, answer.usage.generated <= max_tokens), (Some(Finish::Length), true), "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_string_of_json_that_loops_is_ended_long_before_an_answer_would_be() {
    let looping = format!("{{\"city\": \"{}", "Bern, Basel, ".repeat(200));
    let digits = format!("[{}1]", "0, ".repeat(300));
    let script = [("city", looping.as_str()), ("numbers", digits.as_str())];
    let home = Home::open(|config| scripted::checkpoint(&config.models[0].source, &script)).await;
    let ask = async |text: &str, schema: serde_json::Value| {
        let grammar = Grammar::json_schema(schema.to_string(), true);
        let format = ResponseFormat::Grammar { grammar, field: "format".into() };
        home.ask(Request { format, max_tokens: Some(2_000), ..request(asked(text)) }).await.unwrap()
    };
    let schema = json!({ "properties": { "city": { "type": "string" }, "size": { "type": "integer" } },
        "required": ["city", "size"] });
    let city = ask("city", schema).await;
    let value: serde_json::Value = serde_json::from_str(&city.text).unwrap();
    assert!(value["size"].is_number() && value["city"].is_string(), "{city:?}");
    assert_eq!((city.reason, city.usage.generated < 400), (Some(Finish::Repetition), true), "{city:?}");
    let numbers = ask("numbers", json!({ "type": "array", "items": { "type": "integer" } })).await;
    let value: serde_json::Value = serde_json::from_str(&numbers.text).unwrap();
    assert_eq!((value.as_array().unwrap().len(), numbers.reason), (301, Some(Finish::GrammarDone)), "{numbers:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_have_the_properties_that_their_schema_names_unless_it_is_opened() {
    let home = Home::open(|_| ()).await;
    let ask = async |schema: serde_json::Value, open_schemas| {
        let format =
            ResponseFormat::Grammar { grammar: Grammar::json_schema(schema.to_string(), true), field: "format".into() };
        let answer = home.ask(Request { format, open_schemas, ..request(asked("json")) }).await.unwrap();
        serde_json::from_str::<serde_json::Value>(&answer.text).unwrap()
    };
    let people = |schema: serde_json::Value| json!({ "properties": { "city": { "type": "string" } }, "required": ["city"], "additionalProperties": schema });
    let unsaid = json!({ "properties": { "city": { "type": "string" } }, "required": ["city"] });
    assert_eq!(ask(unsaid.clone(), None).await, json!({ "city": "Bern" }));
    assert_eq!(ask(unsaid.clone(), Some(false)).await, json!({ "city": "Bern" }));
    assert_eq!(ask(unsaid, Some(true)).await, json!({ "city": "Bern", "people": 134_000 }));
    assert_eq!(ask(people(true.into()), None).await, json!({ "city": "Bern", "people": 134_000 }));
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_have_the_form_that_was_asked_for() {
    let home = Home::open(|_| ()).await;
    let schema = json!({ "type": "object", "properties": { "city": { "type": "string" }, "people": { "type": "integer" } }, "required": ["city", "people"], "additionalProperties": false });
    let formed = |schema: String| {
        let (grammar, field) = (Grammar::json_schema(schema, false), "format.schema".to_owned());
        ResponseFormat::Grammar { grammar, field }
    };
    let format = formed(schema.to_string());
    for (text, tools, expect) in
        [("json", vec![], Some("Bern")), ("hello", vec![], None), ("json", tools(), Some("Bern"))]
    {
        let conversation = Conversation { tools, ..asked(text) };
        let answer = home.ask(Request { format: format.clone(), ..request(conversation) }).await.unwrap();
        let value: serde_json::Value = serde_json::from_str(&answer.text).unwrap();
        // JSON Schema accepts 2.0 as an integer.
        let whole = value["people"].as_f64().is_some_and(|people| people.fract() == 0.0);
        assert!(whole && expect.is_none_or(|city| value["city"] == city), "{value}");
    }
    let called = home.ask(Request { format: format.clone(), ..request(with_tools("call")) }).await.unwrap();
    assert_eq!(called.calls, [("Bash".into(), r#"{"command": "ls -la | wc"}"#.into())]);
    let impossible = formed(r#"{"type": "string", "format": "telepathy"}"#.into());
    let refused = home.ask(Request { format: impossible, ..request(asked("json")) }).await.unwrap_err();
    assert_eq!((refused.code, refused.field.as_str()), (FailureCode::Unsupported, "format.schema"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn schemas_that_cannot_be_enforced_do_so_no_harm_unless_they_are_strict() {
    let home = Home::open(|_| ()).await;
    let mut conversation = with_tools("call");
    conversation.tools[1].schema =
        json!({ "type": "object", "properties": { "x": { "$ref": "https://example.org" } } });
    let answer = home.ask(request(conversation.clone())).await.unwrap();
    assert_eq!(answer.calls[0].1, r#"{"command": "ls -la | wc"}"#);
    (conversation.tools[1].strict, conversation.tools[1].field) = (true, "tools.1.schema".into());
    let failure = home.ask(request(conversation)).await.unwrap_err();
    assert_eq!(failure.field, "tools.1.schema", "{failure}");
}

#[tokio::test(flavor = "multi_thread")]
async fn log_probabilities_come_with_the_text_of_their_tokens() {
    let home = Home::open(|_| ()).await;
    let answer = home.ask(Request { logprobs: Some(2), ..request(asked("hello")) }).await.unwrap();
    let likelihoods = answer.deltas.iter().flat_map(|delta| match delta {
        Delta::Text { logprobs, .. } => logprobs.clone(),
        _ => Vec::new(),
    });
    let likelihoods = likelihoods.collect::<Vec<_>>();
    let bytes: Vec<u8> = likelihoods.iter().flat_map(|likelihood| likelihood.bytes.clone()).collect();
    assert_eq!(String::from_utf8(bytes).unwrap(), answer.text);
    assert!(likelihoods.iter().all(|likelihood| likelihood.top.len() == 2 && likelihood.logprob > -0.01));
    assert!(likelihoods.iter().all(|likelihood| likelihood.top[0].id == likelihood.id));
    // Reasoning has none, nor has the marker that ends it.
    let answer = home.ask(Request { logprobs: Some(0), ..request(asked("think")) }).await.unwrap();
    let told = answer.deltas.iter().flat_map(|delta| match delta {
        Delta::Text { logprobs, .. } => logprobs.clone(),
        _ => Vec::new(),
    });
    let bytes: Vec<u8> = told.flat_map(|likelihood| likelihood.bytes).collect();
    assert_eq!((String::from_utf8(bytes).unwrap().trim_start(), answer.text.as_str()), ("Yes.", "Yes."));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_does_not_fit_is_refused_and_one_that_nearly_does_gets_the_room_left() {
    let home = Home::open(|config| config.models[0].spec.context = 600).await;
    let fits = home.chats.count(request(asked("hello"))).await.unwrap().tokens;
    let long = asked(&"word ".repeat(2000));
    let failure = home.chats.prepare(request(long.clone())).await.unwrap_err();
    assert_eq!(failure.code, FailureCode::TooLong);
    let count = home.chats.count(request(long)).await.unwrap().tokens;
    assert_eq!(
        failure.message,
        format!("prompt is too long: {count} tokens > 599 maximum; this model's maximum context length is 600 tokens")
    );
    assert!(fits < 599 && count > 599);
    // Leave room for three tokens.
    let mut words = 100;
    let near = loop {
        let conversation = asked(&format!("{}hello", "a ".repeat(words)));
        let count = home.chats.count(request(conversation.clone())).await.unwrap().tokens;
        if (595..600).contains(&count) {
            break conversation;
        }
        words += ((597 - i64::from(count)) / 2).clamp(-50, 50) as usize;
    };
    let answer = home.ask(Request { max_tokens: Some(32_000), ..request(near) }).await.unwrap();
    assert_eq!(answer.reason, Some(Finish::ContextFull));
    assert_eq!(answer.usage.prompt + answer.usage.generated, 600);
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_an_answer_cancels_it() {
    let home = Home::open(|config| config.models[0].spec.options = r#"{"step_us": 50000}"#.into()).await;
    let mut generation = home.start(request(asked("hello"))).await.unwrap();
    while !matches!(generation.next().await, Some(Delta::Text { .. })) {}
    drop(generation);
    let deadline = Instant::now() + PATIENCE;
    while home.chats.fleet().stats(true).await.models[0].streams > 0 {
        assert!(Instant::now() < deadline, "it goes on");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_texts_and_tokens_are_continued() {
    let home = Home::open(|_| ()).await;
    let ask = async |input| home.ask(Request { input, ..request(Conversation::default()) }).await;
    assert_eq!(ask(Input::Text("They say hello".into())).await.unwrap().text, "Hello! Größe and 日本 😀.");
    let failure = ask(Input::Tokens(vec![1, 99_999])).await.unwrap_err();
    assert_eq!((failure.code, failure.message.contains("99999")), (FailureCode::Invalid, true));
    assert_eq!(ask(Input::Tokens(vec![])).await.unwrap_err().code, FailureCode::Invalid);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_whose_template_knows_no_tools_is_told_in_words() {
    let home = Home::open(|config| {
        let template = "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
        fs::write(config.models[0].source.join("chat_template.jinja"), template).unwrap();
    });
    let home = home.await;
    let answer = home.ask(request(with_tools("call"))).await.unwrap();
    assert_eq!(answer.calls, [("Bash".into(), r#"{"command": "ls -la | wc"}"#.into())]);
    let bare =
        home.chats.count(request(Conversation { system: "Be brief.".into(), ..asked("call") })).await.unwrap().tokens;
    assert!(answer.usage.prompt > bare + 60, "{} and {bare}", answer.usage.prompt);
}

#[tokio::test(flavor = "multi_thread")]
async fn markers_that_are_special_tokens_are_seen() {
    let script = [("call", "Well.[TOOL_CALLS]Bash[ARGS]{\"command\": \"ls\"}[TOOL_CALLS]Read[ARGS]{\"path\": \"b\"}")];
    let template = "{{ tools }}{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% for call in message.tool_calls or [] %}{{ '[TOOL_CALLS]' + call.function.name + '[ARGS]' + (call.function.arguments | tojson) }}{% endfor %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
    let home = Home::open(|config| {
        let source = &config.models[0].source;
        scripted::checkpoint(source, &script);
        fs::write(source.join("chat_template.jinja"), template).unwrap();
    });
    let home = home.await;
    // Stop strings delay the bytes, but not the markers' position among them.
    let answer = home.ask(Request { stops: vec!["l.x".into()], ..request(with_tools("call")) }).await.unwrap();
    assert_eq!(answer.text, "Well.");
    let expect = [("Bash".into(), r#"{"command": "ls"}"#.into()), ("Read".into(), r#"{"path": "b"}"#.into())];
    assert_eq!(answer.calls, expect);
}
