//! The routes that give vectors and scores, and every field that each of them reads.

use serde_json::{Value, json};

use super::{
    fields::{Field, count, flag, integer, list, text, words},
    routes::Route,
};

/// All of them, for a server with the models `embed`, `rank` and `classify`.
pub fn row_routes() -> Vec<Route> {
    let route = |path, body: Value, fields: Vec<Vec<Field>>| Route {
        path,
        body,
        fields: fields.into_iter().flatten().collect(),
    };
    let classified = json!({"model": "classify", "input": "a fox"});
    let content = json!({"content": {"parts": [{"text": "a fox"}]}});
    let contents = json!({"requests": [content, content]});
    let texts = json!({"model": "rank", "query": "a", "texts": ["b", "c"]});
    vec![
        route("/v1/embeddings", json!({"model": "embed", "input": "a fox"}), vec![openai(), named("embed"), common()]),
        route("/v1/classify", classified, vec![vec![inputs()], unnamed("classify"), common()]),
        route(
            "/v1/rerank",
            json!({"model": "rank", "query": "a", "documents": ["b", "c"]}),
            vec![rank(), unnamed("rank"), scores()],
        ),
        route("/rerank", texts, vec![bare(), unnamed("rank"), scores()]),
        route(
            "/v1/score",
            json!({"model": "rank", "text_1": "a", "text_2": ["b", "c"]}),
            vec![pairs(), unnamed("rank"), scores()],
        ),
        route("/api/embed", json!({"model": "embed", "input": "a fox"}), vec![ollama()]),
        route("/v1beta/models/embed:embedContent", content, vec![google()]),
        route("/v1beta/models/embed:batchEmbedContents", contents, vec![googles_batch()]),
    ]
}

/// vLLM's, where 0 would leave nothing of a text.
fn truncation() -> Field {
    let mut field = integer("truncate_prompt_tokens", -1, 1 << 20).with_good(json!([-1, 1 << 20, 5, null]));
    field.bad.push(json!(0));
    field
}

fn dimensions(path: &'static str) -> Field {
    // The model's vectors have 64 values.
    integer(path, 1, 65_536).with_good(json!([1, 64, null]))
}

fn named(model: &str) -> Vec<Field> {
    vec![text("model", 256).with_good(json!([model])).required()]
}

/// Without a model, the only one that does what is asked is taken.
fn unnamed(model: &str) -> Vec<Field> {
    vec![text("model", 256).with_good(json!([model, null]))]
}

/// Fields of a request for one row for each text.
fn common() -> Vec<Field> {
    vec![
        // The model has no prompts that could be named.
        text("prompt_name", 256).with_good(json!([null])),
        text("input_type", 256),
        text("task", 256),
        truncation(),
    ]
}

/// The texts or token ids of OpenAI's form.
fn inputs() -> Field {
    let good = json!(["a", ["a", "b"], [5, 6], [[5], [6, 7]], ["a", [5]]]);
    let bad = json!([
        "",
        [],
        {},
        true,
        [{}],
        [null],
        ["a", 1],
        ["a", true],
        [[-1]],
        [-1],
        [1.5],
        [[1.5]],
        [["a"]],
        [u64::MAX],
        [5, "a"],
        vec!["a"; 2049],
    ]);
    Field::new("input", good, bad).required()
}

fn openai() -> Vec<Field> {
    let formats = Field::new("encoding_format", json!(["float", "base64", null]), json!(["int8", "", 1, []]));
    vec![inputs(), dimensions("dimensions"), formats]
}

/// Fields of every request for scores.
fn scores() -> Vec<Field> {
    vec![
        Field::new("instruction", json!(["a", "", null]), json!([1, [], {}, true, "x".repeat((16 << 10) + 1)])),
        flag("truncate"),
        truncation(),
    ]
}

fn documents(path: &'static str) -> Field {
    let wrong = json!([1, null, true, [], {}, {"text": 1}, {"text": null}]);
    let mut field = list(path, 2048, |place| json!(format!("document {place}")), wrong);
    field.good = vec![json!(["a"]), json!(["a", {"text": "b"}, ""])];
    field.bad.push(json!([]));
    field.bad.push(json!("a"));
    field
}

fn rank() -> Vec<Field> {
    let query = words("query").with_good(json!(["x"]));
    vec![query, documents("documents").required(), count("top_n", 1), flag("return_documents")]
}

/// As in text-embeddings-inference.
fn bare() -> Vec<Field> {
    vec![words("query").with_good(json!(["x"])), documents("texts"), flag("return_text")]
}

fn pairs() -> Vec<Field> {
    vec![
        Field::new("text_1", json!(["a", ["a"], ["a", "b"]]), json!([1, {}, true, [1], [null]])).required(),
        Field::new("text_2", json!(["a", ["a", "b"]]), json!([1, {}, true, [1], [null], []])).required(),
    ]
    .into_iter()
    .map(|field| match field.path {
        // Texts in pairs.
        "text_1" => field.beside(json!({"text_2": ["a", "b"]})),
        _ => field,
    })
    .collect()
}

fn ollama() -> Vec<Field> {
    vec![
        text("model", 256).with_good(json!(["embed", "embed:latest"])).required(),
        Field::new("input", json!(["a", "", ["a", "b"], null]), json!([1, {}, true, [1], [null], [[]]])),
        flag("truncate"),
        dimensions("dimensions"),
        Field::new("keep_alive", json!(["5m", -1, null]), json!([[], {}, "soon", true])),
        Field::new("pensieve", json!([{}, {"task": "x"}, null]), json!([5, [], "a", {"seed": 1}, {"task": 1}])),
    ]
}

fn google() -> Vec<Field> {
    let parts = |parts: Value| json!({ "parts": parts });
    let wrong = json!([
        1,
        [],
        "a",
        {},
        parts(json!(1)),
        parts(json!("a")),
        parts(json!([1])),
        parts(json!([{}])),
        parts(json!([{"text": 1}])),
        parts(json!([{"text": null}])),
    ]);
    vec![
        Field::new("content", json!([parts(json!([{"text": "a"}, {"text": "b"}]))]), wrong).required(),
        dimensions("outputDimensionality"),
        Field::new("taskType", json!(["RETRIEVAL_QUERY", "from the future", null]), json!([1, [], {}, true])),
    ]
}

fn googles_batch() -> Vec<Field> {
    let one = json!({"content": {"parts": [{"text": "a"}]}});
    let other = json!({"content": {"parts": [{"text": "a"}]}, "taskType": "RETRIEVAL_QUERY"});
    let wrong = json!([[], 1, {}, "a", [1], [{}], [one, {"content": 1}], [one, other]]);
    vec![Field::new("requests", json!([[one], [other, other]]), wrong).required()]
}
