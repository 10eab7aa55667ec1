//! The template language, expression by expression, compared with transformers.

use jiff::{civil::DateTime, tz::TimeZone};

use super::*;

#[test]
fn expressions_have_the_values_that_they_have_in_python() {
    let given = json_file("expressions.json");
    let mut context = given["data"].as_object().unwrap().clone();
    let messages = json!([{ "role": "user", "content": "Hi" }, { "role": "assistant", "content": "Yes?" }]);
    context.insert("messages".to_owned(), messages);
    let mut wrong = Vec::new();
    for row in given["expressions"].as_array().unwrap() {
        let source = text(&row[0]);
        let found = Machine::new(&source).and_then(|machine| machine.run(context_of(&context, "", "")));
        match (found, row[1].as_str()) {
            (Ok(found), Some(expect)) if found == expect => {}
            (Ok(found), Some(expect)) => wrong.push(format!("{source:?}\n  found    {found:?}\n  expected {expect:?}")),
            (Ok(found), None) => wrong.push(format!("{source:?} is an error in Python, and here {found:?}")),
            (Err(error), Some(_)) => wrong.push(format!("{source:?} fails: {}", machine::message(&error))),
            (Err(_), None) => {}
        }
    }
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn dates_are_written_as_python_writes_them() {
    for row in json_file("expressions.json")["dates"].as_array().unwrap() {
        let time: DateTime = text(&row[0]).parse().unwrap();
        let found = machine::date(&text(&row[1]), &time.to_zoned(TimeZone::UTC).unwrap()).unwrap();
        assert_eq!(found, text(&row[2]), "{row}");
    }
    let machine = Machine::new("{{ strftime_now('%Y') }}").unwrap();
    let year: u32 = machine.run(Value::from(())).unwrap().parse().unwrap();
    assert!((2025..2100).contains(&year), "{year}");
    assert!(machine::date("%", &jiff::Zoned::now()).is_err());
}
