//! Runaway templates, each under the time and memory limits of a rendering.

use std::time::{Duration, Instant};

use super::*;

/// Above every limit of a rendering, since the machine may be busy.
const TIME_MAX: Duration = Duration::from_secs(20);

fn run(source: &str) -> Result<String, Error> {
    let context = json!({ "messages": [{ "role": "user", "content": "Hi" }] });
    Machine::new(source)?.run(context_of(context.as_object().unwrap(), "", ""))
}

/// Runs on a stack as large as the one that prompts are rendered on.
fn on_a_deep_stack<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let builder = std::thread::Builder::new().stack_size(256 << 20);
    builder.spawn(work).unwrap().join().unwrap()
}

#[test]
fn what_runs_away_is_ended() {
    let grow = |start: &str, step: &str, end: &str| {
        format!(
            "{{% set ns = namespace(x={start}) %}}{{% for i in range(60) %}}{{% set ns.x = {step} %}}{{% endfor %}}{end}"
        )
    };
    let sources = vec![
        "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}".to_owned(),
        "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}".to_owned(),
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".to_owned(),
        "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}".to_owned(),
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}".to_owned(),
        grow("'aaaa'", "ns.x ~ ns.x", ""),
        grow("'aaaa'", "ns.x + ns.x", ""),
        grow("'aaaa'", "ns.x * 2", ""),
        grow("'aaaa'", "ns.x.replace('a', 'aa')", ""),
        grow("'aaaa'", "ns.x | replace('a', 'aa')", ""),
        grow("'aaaa'", "[ns.x, ns.x] | join", ""),
        grow("'aaaa'", "'%s%s' % (ns.x, ns.x)", ""),
        grow("'aaaa'", "'{0}{0}'.format(ns.x)", ""),
        grow("'a\\n'", "(ns.x ~ ns.x) | indent(100)", ""),
        grow("[1]", "ns.x + ns.x", ""),
        grow("[1]", "ns.x * 2", ""),
        grow("[1]", "[ns.x, ns.x]", "{{ ns.x }}"),
        grow("[1]", "[ns.x, ns.x]", "{{ ns.x | tojson }}"),
        grow("[1]", "[ns.x, ns.x]", "{{ ns.x == ns.x }}"),
        grow("{}", "{'a': ns.x, 'b': ns.x}", "{{ ns.x | string | length }}"),
        "{{ 'a' * 1000000000 }}".to_owned(),
        "{{ [0] * 1000000000 }}".to_owned(),
        "{{ '%1000000000d' % 1 }}".to_owned(),
        "{{ '{:>1000000000}'.format(1) }}".to_owned(),
        "{{ 'a'.center(1000000000) }}{{ 'a' | center(1000000000) }}".to_owned(),
        "{{ 'a'.zfill(1000000000) }}".to_owned(),
        "{{ 'a' | indent(1000000000, true) }}".to_owned(),
        "{{ [1] | tojson(indent=1000000000) }}".to_owned(),
        "{{ range(1000000000) | list | length }}".to_owned(),
        "{% set x %}{% for a in range(9999) %}{{ 'a' * 99999 }}{% endfor %}{% endset %}".to_owned(),
    ];
    let failed = on_a_deep_stack(move || {
        let mut failed = Vec::new();
        for source in sources {
            let begin = Instant::now();
            let outcome = run(&source);
            let time = begin.elapsed();
            if outcome.is_ok() || time > TIME_MAX {
                failed.push(format!("{source}: {time:?}, {:?}", outcome.map(|text| text.len())));
            }
        }
        failed
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn what_nests_too_deep_is_ended() {
    let deep = "{% set ns = namespace(x=[]) %}{% for i in range(2000) %}{% set ns.x = [ns.x] %}{% endfor %}";
    for end in ["{{ ns.x }}", "{{ ns.x | tojson }}", "{{ ns.x == ns.x }}", "{{ ns.x | string }}"] {
        let source = format!("{deep}{end}");
        assert!(on_a_deep_stack(move || run(&source).is_err()), "{end}");
    }
    let nested = |open: &str, close: &str| format!("{}{}", open.repeat(20_000), close.repeat(20_000));
    for source in
        [nested("{% if true %}", "{% endif %}"), format!("{{{{ {} }}}}", nested("(", ")")), nested("{{ [", "] }}")]
    {
        assert!(on_a_deep_stack(move || run(&source).is_err()));
    }
}

#[test]
fn nothing_is_loaded_and_nothing_beside_the_conversation_is_there() {
    for source in
        ["{% include 'a' %}", "{% import 'a' as a %}", "{% extends 'a' %}", "{% from 'a' import b %}", "{{ debug() }}"]
    {
        assert!(run(source).is_err(), "{source}");
    }
    assert_eq!(run("{{ self }}{{ config }}{{ ''.__class__ }}{{ messages.__class__ }}").unwrap_or_default(), "");
    assert!(Machine::new(&" ".repeat(machine::SOURCE_BYTES_MAX + 1)).is_err());
}

#[test]
fn what_is_wrong_with_a_template_is_told() {
    let broken = |source: &str| Template::read(source, &Specials::default(), None).unwrap_err().to_string();
    let told = broken("{% if %}\n");
    assert!(told.starts_with("the model's chat template cannot be used: ") && told.contains("line 1"), "{told}");
    let says = |source: &str| {
        let conversation = Conversation { turns: vec![turn(Role::User, "Hi")], ..Conversation::default() };
        template(source, "", "", &[]).render(&conversation, None, &[]).unwrap_err()
    };
    let refused = says("{{ raise_exception('not\ntoday') }}");
    assert_eq!(refused.code, FailureCode::Invalid);
    assert_eq!(refused.message, "the model's chat template refuses this conversation: not today (line 1)");
    let endless = says("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}");
    assert_eq!(endless.code, FailureCode::Unsupported);
    assert!(endless.message.starts_with("the model's chat template runs away: "), "{endless}");
    let long = says("{{ raise_exception('x' * 100000) }}");
    assert!(long.message.len() < 1000, "{}", long.message.len());
}
