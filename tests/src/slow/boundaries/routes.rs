//! The routes that take a body, and every field that each of them reads.

use serde_json::{Value, json};

use super::fields::{Field, count, flag, integer, list, number, seed, stops, text, words};

/// A route with a body that it accepts.
pub struct Route {
    pub path: &'static str,
    pub body: Value,
    pub fields: Vec<Field>,
}

/// All of them.
pub fn routes() -> Vec<Route> {
    let hello = json!([{"role": "user", "content": "hello"}]);
    let chat = json!({"model": "scripted", "max_tokens": 1, "messages": hello});
    let uncounted = json!({"model": "scripted", "messages": hello});
    let text = json!({"model": "scripted", "prompt": "hello", "max_tokens": 1});
    let input = json!({"model": "scripted", "input": "hello", "max_output_tokens": 1});
    let options = json!({"num_predict": 1});
    let line_chat = json!({"model": "scripted", "messages": hello, "options": options});
    let line_prompt = json!({"model": "scripted", "prompt": "hello", "options": options});
    let contents = json!([{"role": "user", "parts": [{"text": "hello"}]}]);
    let contents = json!({"contents": contents, "generationConfig": {"maxOutputTokens": 1}});
    let query = json!({"query": "hello", "max_tokens": 1});
    let prompt = json!({"prompt": "hello", "max_tokens": 1});
    let route = |path, body: &Value, fields: Vec<Vec<Field>>| Route {
        path,
        body: body.clone(),
        fields: fields.into_iter().flatten().collect(),
    };
    vec![
        route("/v1/messages", &chat, vec![conversation(), message(), pensieve()]),
        route("/v1/messages/stream", &chat, vec![conversation(), message()]),
        route("/v1/messages/count_tokens", &uncounted, vec![conversation()]),
        route("/v1/chat/completions", &chat, vec![completion(), chat_completion(), pensieve()]),
        route("/v1/completions", &text, vec![completion(), text_completion(), pensieve()]),
        route("/v1/responses", &input, vec![response(), pensieve()]),
        route("/api/chat", &line_chat, vec![ollama(), ollama_chat(), pensieve()]),
        route("/api/generate", &line_prompt, vec![ollama(), ollama_prompt(), pensieve()]),
        route("/v1beta/models/scripted:generateContent", &contents, vec![gemini(), pensieve()]),
        route("/v1beta/models/scripted:streamGenerateContent?alt=sse", &contents, vec![gemini()]),
        route("/token_stream", &query, vec![plain(), vec![words("query")], pensieve()]),
        route("/execute", &prompt, vec![plain(), vec![words("prompt")], pensieve()]),
    ]
}

/// Fields that every dialect reads.
fn pensieve() -> Vec<Field> {
    let samplers = |place: usize| if place == 0 { json!({"sampler": "top_k", "k": 3}) } else { json!("greedy") };
    let wrong = json!([1, "", {}, "no-such-sampler", {"sampler": "x".repeat(129)}, []]);
    let long = "x".repeat(70_000);
    let wrong_grammars = json!([{}, [], "a", {"gbnf": "a"}, {"regex": 1}, {"regex": "a", "lark": "b"}, {"lark": long}]);
    let adapter = json!({"pensieve": {"adapter": "a"}});
    vec![
        list("pensieve.samplers", 32, samplers, wrong),
        seed("pensieve.seed"),
        number("pensieve.adapter_scale", -16.0, 16.0).beside(adapter).with_good(json!([])),
        text("pensieve.adapter", 128).with_good(json!([])),
        Field::new("pensieve.grammar", json!([{"regex": "[a-z]+"}, null]), wrong_grammars),
        Field::new("pensieve", json!([{}, null]), json!([1, [], "a", {"unknown": 1}, {"template": 1}])),
    ]
}

/// Anthropic's, which also apply to token counting.
fn conversation() -> Vec<Field> {
    let tool = |place: usize| json!({"name": format!("t{place}"), "input_schema": {"type": "object"}});
    let wrong_tools = json!([
        1,
        {},
        {"name": "a b", "input_schema": {}},
        {"name": "t0", "input_schema": {}},
        {"name": "a", "input_schema": []},
    ]);
    let block = json!([{"type": "text", "text": "a"}]);
    let long = "x".repeat(20_000);
    vec![
        text("model", 256).required(),
        number("temperature", 0.0, 1.0),
        number("top_p", 0.0, 1.0),
        count("top_k", 0),
        count("thinking.budget_tokens", 1).beside(json!({"thinking": {"type": "enabled"}})).required(),
        stops("stop_sequences", 32),
        list("tools", 512, tool, wrong_tools).with_good(json!([[], [tool(0)]])),
        Field::new(
            "tool_choice",
            json!([{"type": "auto"}, null]),
            json!(["auto", {}, {"type": "any"}, {"type": "tool", "name": "a"}]),
        ),
        messages().required(),
        Field::new(
            "system",
            json!(["", [], "a", block, null]),
            json!([1, {}, [1], [{"type": "text"}], [{"type": "video"}]]),
        ),
        Field::new("metadata", json!([{}, {"user_id": "a"}]), json!([1, [], {"user_id": 1}, {"user_id": long}])),
        Field::new(
            "output_config",
            json!([{}, {"effort": "low"}]),
            json!([1, {"effort": 1}, {"format": 1}, {"format": {"type": "json_schema"}}]),
        ),
    ]
}

fn message() -> Vec<Field> {
    vec![count("max_tokens", 1).required(), flag("stream")]
}

/// Messages in either API. Their maximum number has a separate test.
fn messages() -> Field {
    let hello = json!({"role": "user", "content": "hello"});
    let mut field = Field::new("messages", json!([[hello]]), json!([[], 1, {}, "a"]));
    let wrong = [
        json!(1),
        json!({}),
        json!({"role": "robot", "content": "a"}),
        json!({"role": "user", "content": 1}),
        json!({"role": "user"}),
        json!({"role": "user", "content": [{"type": "video"}]}),
    ];
    field.bad.extend(wrong.map(|wrong| json!([hello, wrong])));
    field
}

/// OpenAI's fields for both endpoints.
fn completion() -> Vec<Field> {
    let biases = |count: usize| Value::Object((0..count).map(|id| (id.to_string(), json!(1))).collect());
    let strange = json!([
        biases(1025), {"2048": 1}, {"4294967296": 1}, {"-1": 1}, {"x": 1}, {"5": 100.5}, {"5": "1"}, {"5": null}, [5], 1,
    ]);
    vec![
        text("model", 256).required(),
        number("temperature", 0.0, 2.0),
        number("top_p", 0.0, 1.0),
        number("presence_penalty", -2.0, 2.0),
        number("frequency_penalty", -2.0, 2.0),
        number("min_p", 0.0, 1.0),
        number("repetition_penalty", 0.01, 100.0),
        count("top_k", 0).with_good(json!([0, -1, u64::MAX, null])).without_bad(-1),
        Field::new("guided_regex", json!(["[A-Z][a-z]+\\?", null]), json!([1, []])),
        Field::new("guided_choice", json!([["What?"], null]), json!([1, "a", [], [1], [""]])),
        Field::new("guided_json", json!([{"type": "string"}, "{}", null]), json!([1, [], "[]", "{"])),
        Field::new("grammar", json!(["root ::= \"What?\"", null, ""]), json!([1, "root ::= a"])),
        Field::new(
            "structured_outputs",
            json!([{"regex": "[A-Z]"}, {"json_object": false}]),
            json!([1, {}, {"choice": 1}, {"structural_tag": {}}]),
        ),
        integer("n", 1, 8),
        // The model says "What?" and would continue.
        count("max_tokens", 1).beside(json!({"stop": ["t"]})),
        seed("seed"),
        stops("stop", 4),
        Field::new("logit_bias", json!([biases(1024), {"2047": -100}, {"5": 100.0}, null]), strange),
        flag("stream"),
        Field::new("stream_options", json!([{"include_usage": true}]), json!([1, [], {"include_usage": 1}]))
            .beside(json!({"stream": true})),
    ]
}

fn chat_completion() -> Vec<Field> {
    let tool = |place: usize| json!({"type": "function", "function": {"name": format!("t{place}")}});
    let wrong_tools =
        json!([1, {}, {"type": "function"}, {"type": "code"}, {"type": "function", "function": {"name": "a b"}}]);
    vec![
        count("max_completion_tokens", 1),
        integer("top_logprobs", 0, 20).beside(json!({"logprobs": true})),
        flag("logprobs"),
        flag("parallel_tool_calls"),
        list("tools", 128, tool, wrong_tools).with_good(json!([[], [tool(0)]])),
        Field::new(
            "response_format",
            json!([{"type": "text"}]),
            json!(["json", {}, {"type": "xml"}, {"type": "json_schema"}]),
        ),
        Field::new("reasoning_effort", json!(["low"]), json!(["huge", 1])),
        messages().required(),
    ]
}

fn text_completion() -> Vec<Field> {
    let strange = json!([[1, 2048], [u64::MAX], [-1], [1.5], [[1], [2048]], [], [[]]]);
    vec![
        integer("logprobs", 0, 5),
        integer("best_of", 1, 8),
        flag("echo"),
        list("prompt", 64, |_| json!("hello"), json!([1, null, {}])).required(),
        Field::new("prompt", json!([[1, 2047], [[1], [2]]]), strange),
    ]
}

/// OpenAI's responses.
fn response() -> Vec<Field> {
    let tool = |place: usize| json!({"type": "function", "name": format!("t{place}")});
    let wrong_tools = json!([
        1,
        {},
        {"type": "function"},
        {"type": "function", "name": "a b"},
        {"type": "function", "name": "a", "parameters": []},
        {"type": "custom", "name": "a", "format": {"type": "grammar", "syntax": "gbnf", "definition": "x"}},
        {"type": "namespace", "name": "a"},
    ]);
    let hello = json!({"role": "user", "content": "hello"});
    let part = |part: Value| json!([{"role": "user", "content": [part]}]);
    let wrong_items = json!([
        [], 1, {}, null, [1], [{}], [{"role": "robot", "content": "a"}], [{"role": "user"}], [{"role": "user", "content": 1}],
        [{"type": "function_call", "name": "a", "arguments": "{}"}],
        [{"type": "function_call", "call_id": "1", "arguments": "{}"}],
        [{"type": "function_call", "call_id": "1", "name": "a", "arguments": {}}],
        [{"type": "function_call_output", "call_id": "1"}],
        [{"type": "function_call_output", "output": "a"}],
        [{"type": "custom_tool_call", "call_id": "1", "name": "a"}],
        part(json!(1)), part(json!({})), part(json!({"type": "input_text"})), part(json!({"type": "input_text", "text": 1})),
    ]);
    let right_items = json!([
        "hello", [hello], [hello, {"type": "web_search_call", "id": "ws_1"}, hello],
        part(json!({"type": "input_image", "image_url": "data:"})), part(json!({"type": "from_the_future"})),
    ]);
    let formats =
        json!([1, {"format": 1}, {"format": {"type": "xml"}}, {"format": {"type": "json_schema", "name": "a"}}]);
    vec![
        text("model", 256).required(),
        number("temperature", 0.0, 2.0),
        number("top_p", 0.0, 1.0),
        count("max_output_tokens", 1),
        flag("stream"),
        flag("store"),
        flag("parallel_tool_calls"),
        list("tools", 512, tool, wrong_tools).with_good(json!([[], [tool(0)], [{"type": "web_search"}]])),
        Field::new("input", right_items, wrong_items),
        Field::new("instructions", json!(["", "a", null]), json!([1, [], {}])),
        Field::new("truncation", json!(["auto", "disabled", null]), json!(["never", 1])),
        Field::new("reasoning", json!([{}, {"effort": "low"}, {"summary": "auto"}]), json!([1, {"effort": "huge"}])),
        Field::new("text", json!([{}, {"format": {"type": "text"}}, {"verbosity": "low"}]), formats),
        Field::new("include", json!([[], ["reasoning.encrypted_content"]]), json!([1, "a", [1]])),
        Field::new("metadata", json!([{}, {"a": "b"}]), json!([1, []])),
        Field::new("tool_choice", json!(["auto", "none"]), json!(["any", 1, {}, {"type": "function", "name": "a"}])),
        Field::new("background", json!([false, true, null]), json!([1, "yes"])),
        Field::new("conversation", json!([null]), json!(["conv_1", {}])),
        Field::new("prompt", json!([null]), json!([{"id": "pmpt_1"}])),
    ]
}

/// Ollama's fields for both endpoints.
fn ollama() -> Vec<Field> {
    vec![
        text("model", 256).required(),
        number("options.temperature", 0.0, 10.0),
        number("options.top_p", 0.0, 1.0),
        number("options.min_p", 0.0, 1.0),
        number("options.presence_penalty", -2.0, 2.0),
        number("options.frequency_penalty", -2.0, 2.0),
        count("options.top_k", 0),
        seed("options.seed"),
        stops("options.stop", 16),
        flag("stream"),
        Field::new("options", json!([{"num_predict": 1, "num_ctx": 8, "mirostat": 1}]), json!([1, [], "a"])),
        Field::new("format", json!(["json", "", {"type": "object"}]), json!([1, [], "yaml", true])),
        Field::new("think", json!([true, false, "low", null]), json!([1, "huge", []])),
        integer("top_logprobs", 0, 20).beside(json!({"logprobs": true})),
        flag("logprobs"),
        Field::new("keep_alive", json!(["5m", -1, null]), json!([[], {}, "soon", true])),
    ]
}

fn ollama_chat() -> Vec<Field> {
    let tool = |place: usize| json!({"type": "function", "function": {"name": format!("t{place}")}});
    let wrong_tools =
        json!([1, {}, {"type": "function"}, {"function": {"name": 1}}, {"function": {"name": "a", "parameters": 1}}]);
    let wrong = json!([
        1, {}, "a", [1], [{}], [{"role": "robot"}], [{"role": "user", "content": 1}], [{"role": "user", "images": 1}],
        [{"role": "assistant", "tool_calls": 1}], [{"role": "assistant", "tool_calls": [{}]}],
        [{"role": "assistant", "tool_calls": [{"function": {"arguments": {}}}]}],
    ]);
    let right = json!([[], [{"role": "user", "content": "hello"}], [{"role": "tool", "content": "stray"}]]);
    vec![list("tools", 512, tool, wrong_tools).with_good(json!([[], [tool(0)]])), Field::new("messages", right, wrong)]
}

fn ollama_prompt() -> Vec<Field> {
    vec![
        Field::new("prompt", json!(["hello", "", null]), json!([1, [], {}])),
        Field::new("system", json!(["a", null]), json!([1, []])),
        // The scripted model was not trained to fill in the middle.
        Field::new("suffix", json!(["", null]), json!(["a", 1])),
        Field::new("images", json!([["iVBOR"], []]), json!([1, "a"])),
        flag("raw"),
    ]
}

/// Google's.
fn gemini() -> Vec<Field> {
    let config = |more: Value| {
        let mut config = json!({"maxOutputTokens": 1});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "generationConfig": config })
    };
    let part = |part: Value| json!([{"role": "user", "parts": [part]}]);
    let hello = json!({"text": "hello"});
    let result = json!({"functionResponse": {"name": "a", "response": {"output": "x"}}});
    let right = json!([
        part(hello.clone()), [{"parts": hello}], part(result), part(json!({"inlineData": {"mimeType": "image/png", "data": "x"}})),
        part(json!({"fileData": {"fileUri": "a"}})), [{"role": "model", "parts": []}, {"parts": [hello]}],
    ]);
    let wrong = json!([
        1, {}, [], "a", null, [1], [{}], [{"role": "robot", "parts": [hello]}], [{"parts": 1}], part(json!(1)), part(json!({"text": 1})),
        part(json!({"functionCall": {"name": "a"}})), part(json!({"inlineData": 1})), part(json!({"functionResponse": {"response": 1}})),
        part(json!({"inlineData": {"mimeType": "text/plain", "data": "!"}})),
    ]);
    let declared = |function: Value| json!([{"functionDeclarations": [function]}]);
    let wrong_tools = json!([
        1, [1], declared(json!(1)), declared(json!({})), declared(json!({"name": "a b"})), declared(json!({"name": "a", "parameters": 1})),
        declared(json!({"name": "a", "parameters": {"type": "TEXT"}})), [{"functionDeclarations": [{"name": "a"}, {"name": "a"}]}],
    ]);
    let right_tools =
        json!([[], [{}], [{"googleSearch": {}}], declared(json!({"name": "a", "parameters": {"type": "OBJECT"}}))]);
    vec![
        number("generationConfig.temperature", 0.0, 2.0),
        number("generationConfig.topP", 0.0, 1.0),
        number("generationConfig.presencePenalty", -2.0, 2.0),
        number("generationConfig.frequencyPenalty", -2.0, 2.0),
        count("generationConfig.topK", 0),
        count("generationConfig.maxOutputTokens", 0).beside(json!({"generationConfig": {"stopSequences": ["t"]}})),
        seed("generationConfig.seed"),
        integer("generationConfig.candidateCount", 1, 8),
        stops("generationConfig.stopSequences", 16),
        flag("generationConfig.responseLogprobs"),
        integer("generationConfig.logprobs", 0, 20).beside(config(json!({"responseLogprobs": true}))),
        integer("generationConfig.thinkingConfig.thinkingBudget", -1, i64::from(u32::MAX)),
        Field::new("generationConfig.responseModalities", json!([["TEXT"], [], null]), json!([1, ["IMAGE"], [1]])),
        Field::new("generationConfig.responseMimeType", json!(["text/plain", "", null]), json!([1, "text/xml"])),
        Field::new(
            "generationConfig.responseSchema",
            json!([{"type": "STRING"}, null]),
            json!([1, [], "a", {"type": "TEXT"}, {"properties": 1}, {"anyOf": 1}]),
        )
        .beside(config(json!({"responseMimeType": "application/json"}))),
        Field::new("contents", right, wrong),
        Field::new("systemInstruction", json!([{"parts": [{"text": "a"}]}, "a", null]), json!([1, [], {"parts": 1}])),
        Field::new("tools", right_tools, wrong_tools),
        Field::new(
            "toolConfig",
            json!([{}, {"functionCallingConfig": {"mode": "NONE"}}, null]),
            json!([{"functionCallingConfig": {"mode": "ANY"}}, {"functionCallingConfig": {"mode": "MUST"}},
                {"functionCallingConfig": {"allowedFunctionNames": ["a"]}}]),
        ),
        Field::new("cachedContent", json!([null]), json!(["cachedContents/a"])),
    ]
}

/// Fields of the small dialects.
fn plain() -> Vec<Field> {
    vec![
        text("model", 256),
        count("max_tokens", 1).beside(json!({"stop": ["t"]})),
        number("temperature", 0.0, 2.0),
        number("top_p", 0.0, 1.0),
        count("top_k", 0),
        number("repetition_penalty", 0.01, 100.0),
        seed("seed"),
        stops("stop", 16),
    ]
}
