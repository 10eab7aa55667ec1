//! Templates in the styles of many families, compared with transformers by `tests/reference/templates.py`: as they are,
//! and with conversations that they would reject.

use super::*;
use crate::template::traits::Calls;

/// A template from the fixtures and transformers' output for it.
struct Case {
    name: String,
    template: Template,
    facts: Json,
    rendered: Json,
}

fn cases() -> Vec<Case> {
    let all = json_file("rendered.json");
    let case = |(name, of): (&String, &Json)| {
        let facts = of["facts"].clone();
        let special: Vec<String> = facts["special"].as_array().unwrap().iter().map(text).collect();
        let special: Vec<&str> = special.iter().map(String::as_str).collect();
        let source = file(&format!("{name}.jinja"));
        let template = template(&source, &text(&facts["bos"]), &text(&facts["eos"]), &special);
        Case { name: name.clone(), template, facts, rendered: of["cases"].clone() }
    };
    all.as_object().unwrap().iter().map(case).collect()
}

/// Describes the first difference, if any.
fn difference(found: &str, expect: &str) -> Option<String> {
    let same = found.chars().zip(expect.chars()).take_while(|(found, expect)| found == expect).count();
    let rest = |text: &str| text.chars().skip(same.saturating_sub(20)).take(120).collect::<String>();
    (found != expect).then(|| format!("found {:?}, expected {:?}", rest(found), rest(expect)))
}

fn none_differ(differences: &[String]) {
    assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n"));
}

#[test]
fn messages_become_the_text_that_transformers_renders_or_are_refused_in_the_same_words() {
    let given = json_file("conversations.json");
    let mut differences = Vec::new();
    let mut rendered = 0;
    for Case { name, template, rendered: expected, .. } in cases() {
        for (title, expect) in expected.as_object().unwrap() {
            let conversation = &given["conversations"][title];
            let plain = &given["plain"][title];
            let messages = if plain.is_null() { &given["raw"][title] } else { plain };
            let mut context = given["variables"].as_object().unwrap().clone();
            context.extend(conversation["variables"].as_object().cloned().unwrap_or_default());
            let tools = if conversation["tools"] == true { given["tools"].clone() } else { Json::Null };
            let ends = title == "ended"
                || !plain.is_null() && messages.as_array().unwrap().last().unwrap()["role"] == "assistant";
            context.extend([
                ("messages".to_owned(), messages.clone()),
                ("tools".to_owned(), tools),
                ("documents".to_owned(), Json::Null),
                ("add_generation_prompt".to_owned(), json!(!ends)),
            ]);
            let found = template.machine.run(context_of(&context, &template.bos, &template.eos));
            let difference = match (found, &expect["text"]) {
                (Ok(found), Json::String(expect)) => difference(&found, expect),
                (Ok(found), _) => Some(format!("refused by transformers, and found {found:?}")),
                (Err(error), Json::String(_)) => Some(machine::message(&error)),
                (Err(error), _) => {
                    let told = machine::message(&error);
                    expect["raises"].as_str().filter(|words| !told.starts_with(words)).map(|_| told)
                }
            };
            rendered += 1;
            differences.extend(difference.map(|difference| format!("{name}, {title}: {difference}")));
        }
    }
    none_differ(&differences);
    assert!(rendered > 400, "{rendered}");
}

#[test]
fn trials_find_out_what_a_template_takes() {
    for Case { name, template, facts, .. } in cases() {
        let is = |value: &Json, key: &str| value[key].as_bool().unwrap();
        let calls = &facts["calls"];
        let expect = TemplateTraits {
            takes_system: is(&facts, "system"),
            content_parts: is(&facts, "parts"),
            alternates: is(&facts, "alternates"),
            user_first: is(&facts, "user_first"),
            takes_tools: is(&facts, "tools"),
            calls: (!calls.is_null()).then(|| Calls {
                short_ids: is(calls, "short_ids"),
                arguments_as_text: is(calls, "arguments_as_text"),
                parallel: is(calls, "parallel"),
                beside_text: is(calls, "beside_text"),
                beside_both: is(calls, "beside_both"),
                user_after_result: is(calls, "user_after_result"),
            }),
        };
        assert_eq!(template.traits, expect, "{name}");
    }
}

#[test]
fn every_conversation_is_rendered_in_a_form_that_the_template_takes() {
    let given = json_file("conversations.json");
    let mut differences = Vec::new();
    for Case { name, template, facts, rendered } in cases() {
        for (title, conversation) in given["conversations"].as_object().unwrap() {
            let expect = &rendered[title];
            let expect = expect["folded"].as_str().or(expect["text"].as_str()).unwrap();
            let words = (conversation["tools"] == true && facts["tools"] == false).then(|| text(&given["words"]));
            let conversation = read(conversation, &given);
            let difference = match template.render(&conversation, words.as_deref(), &[]) {
                Ok(found) => difference(&found.text, expect),
                Err(failure) => Some(failure.to_string()),
            };
            differences.extend(difference.map(|difference| format!("{name}, {title}: {difference}")));
        }
    }
    none_differ(&differences);
}

/// Parses a conversation from the reference script's format.
fn read(conversation: &Json, given: &Json) -> Conversation {
    let turns = conversation["turns"].as_array().unwrap().iter().map(|turn| {
        let role = match turn["role"].as_str().unwrap() {
            "system" => Role::System,
            "user" => Role::User,
            _ => Role::Assistant,
        };
        Turn { role, parts: turn["parts"].as_array().unwrap().iter().map(part).collect() }
    });
    let mut variables = given["variables"].as_object().unwrap().clone();
    variables.extend(conversation["variables"].as_object().cloned().unwrap_or_default());
    let tool = |tool: &Json| {
        let function = &tool["function"];
        let (name, description) = (text(&function["name"]), text(&function["description"]));
        Tool { name, description, schema: function["parameters"].clone(), ..Tool::default() }
    };
    let tools = given["tools"].as_array().unwrap().iter().filter(|_| conversation["tools"] == true).map(tool).collect();
    let system = conversation["system"].as_str().unwrap_or_default().to_owned();
    Conversation { system, turns: turns.collect(), tools, variables, ..Conversation::default() }
}

fn part(part: &Json) -> Part {
    let (kind, value) = part.as_object().unwrap().iter().next().unwrap();
    match kind.as_str() {
        "text" => Part::Text(text(value)),
        "thinking" => Part::Thinking(text(value)),
        "call" => {
            Part::ToolCall { id: text(&value["id"]), name: text(&value["name"]), arguments: value["arguments"].clone() }
        }
        _ => Part::ToolResult {
            id: text(&value["id"]),
            text: text(&value["text"]),
            images: Vec::new(),
            is_error: value["is_error"] == true,
        },
    }
}
