//! Answers in a schema's form whose limit is near: they stay JSON, whatever the model was about to write.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn lists_of_long_records_are_completed_at_any_limit() {
    let names: Vec<String> = (0..25).map(|number| format!("a_rather_long_name_{number}")).collect();
    let fields: serde_json::Map<_, _> = names.iter().map(|name| (name.clone(), json!({ "type": "string" }))).collect();
    let record = json!({ "type": "object", "properties": fields, "required": names });
    let record_of =
        |text: &str| -> serde_json::Map<_, _> { names.iter().map(|name| (name.clone(), json!(text))).collect() };
    let written =
        json!([record_of("some text"), record_of("more text"), record_of("and so on"), record_of("to the end")]);
    let rows = json!({ "rows": written });
    let script = [("list", written.to_string()), ("rows", rows.to_string())];
    let script = script.each_ref().map(|(asked, said)| (*asked, said.as_str()));
    let home = Home::open(|config| scripted::checkpoint(&config.models[0].source, &script)).await;
    let list = json!({ "type": "array", "items": record });
    let object = json!({ "type": "object", "properties": { "rows": list }, "required": ["rows"] });
    for (text, schema, tools) in
        [("list", &list, Vec::new()), ("rows", &object, Vec::new()), ("rows", &object, tools())]
    {
        for max_tokens in (150..=900).step_by(150) {
            let grammar = Grammar::json_schema(schema.to_string(), true);
            let format = ResponseFormat::Grammar { grammar, field: "format".into() };
            let asked = request(Conversation { tools: tools.clone(), ..asked(text) });
            let answer = home.ask(Request { format, max_tokens: Some(max_tokens), ..asked }).await.unwrap();
            let value: serde_json::Value =
                serde_json::from_str(&answer.text).unwrap_or_else(|error| panic!("{error}: {answer:?}"));
            let rows = if text == "list" { &value } else { &value["rows"] };
            let rows = rows.as_array().unwrap_or_else(|| panic!("{value}"));
            assert!(rows.iter().all(|row| names.iter().all(|name| row[name].is_string())), "{value}");
            assert!(max_tokens < 600 || !rows.is_empty(), "there is room for one: {value}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_would_not_fit_is_not_begun() {
    let names: Vec<String> = (0..25).map(|number| format!("a_rather_long_name_{number}")).collect();
    let fields: serde_json::Map<_, _> = names.iter().map(|name| (name.clone(), json!({ "type": "string" }))).collect();
    let large = json!({ "type": "object", "properties": fields, "required": names });
    let small = json!({ "type": "object", "properties": { "id": { "type": "integer", "minimum": 1 } },
        "required": ["id"], "additionalProperties": false });
    let written: serde_json::Map<_, _> = names.iter().map(|name| (name.clone(), json!("some text"))).collect();
    let written = json!({ "rows": [written, written] }).to_string();
    let home = Home::open(|config| scripted::checkpoint(&config.models[0].source, &[("", &written)])).await;
    let schema = json!({ "type": "object", "required": ["rows"],
        "properties": { "rows": { "type": "array", "items": { "anyOf": [small, large] } } } });
    for max_tokens in (100..=800).step_by(100) {
        let grammar = Grammar::json_schema(schema.to_string(), true);
        let format = ResponseFormat::Grammar { grammar, field: "format".into() };
        let asked = Request { format, max_tokens: Some(max_tokens), ..request(asked("Rows?")) };
        let answer = home.ask(asked).await.unwrap();
        let value: serde_json::Value = serde_json::from_str(&answer.text)
            .unwrap_or_else(|error| panic!("{error} within {max_tokens}: {answer:?}"));
        assert!(value["rows"].is_array(), "{value}");
    }
}
