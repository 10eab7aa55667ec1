//! Random answers in all formats, in random chunks.

use std::sync::Arc;

use pensieve_fuzz::Target;

use super::{families, parsing, *};

const ANSWERS: [&str; 9] = [
    "I look.\n\n<tool_call>\n{\"name\": \"Bash\", \"arguments\": {\"command\": \"ls \\\"{é}\\\"\"}}\n</tool_call>\nDone. ",
    "<think>\nHm, a <b>.\n\n</think>\n\nYes.\n",
    "<tool_call>[{\"name\":\"Bash\",\"arguments\":{}}, {\"name\":\"read_file\",\"arguments\":{\"p\":\"</tool_call>\"}}]</tool_call>",
    "<|python_tag|>{\"name\": \"Bash\", \"parameters\": {\"command\": \"ls\"}}; {\"name\": \"Bash\", \"parameters\": {}}",
    "[TOOL_CALLS][{\"name\": \"Bash\", \"arguments\": {\"a\": [1, null, true]}, \"id\": \"123456789\"}]",
    "[TOOL_CALLS]Bash[CALL_ID]123456789[ARGS]{\"a\": 1}[TOOL_CALLS]read_file[ARGS]{}",
    "<|tool_call|>[{\"name\": \"Bash\", \"arguments\": {}}]<|/tool_call|>",
    "<function=Bash>{\"a\": \"\\u00e9\"}</function>x",
    "text 日本 \u{1f600} < 3 <tool\n\n",
];

/// All formats with sample answers: those above, with and without reasoning, and those of the families.
fn conventions() -> Vec<(OutputFormat, Vec<String>)> {
    let plain = [hermes(), llama(), mistral(), new_mistral(), phi(), functionary()];
    let answers = || ANSWERS.map(str::to_owned).to_vec();
    let plain = plain.into_iter().flat_map(|format| [(format.clone(), answers()), (thinking(format), answers())]);
    plain.chain(families::written()).collect()
}

#[test]
fn a_damaged_answer_is_the_same_however_it_is_cut() {
    let conventions = conventions();
    let tools: Arc<[Signature]> = parsing::tools().iter().cloned().chain(families::signatures()).collect();
    // The first byte selects the format, the second the state of reasoning after the prompt and the chunks.
    let of = |(head, (_, answers)): (usize, &(OutputFormat, Vec<String>))| -> Vec<Vec<u8>> {
        answers.iter().map(|text| [&[head as u8, 0], text.as_bytes()].concat()).collect()
    };
    let corpus = conventions.iter().enumerate().flat_map(of).collect();
    Target { name: "tool-parser", corpus, memory_max: 16 << 20, input_max: 4096 }.run(|bytes| {
        let [head, how, answer @ ..] = bytes else { return "empty".to_owned() };
        let convention = usize::from(*head) % conventions.len();
        let format = &conventions[convention].0;
        let thoughts = [Thoughts::Possible, Thoughts::Begun, Thoughts::Never][usize::from(*how) / 8 % 3];
        let cut = *how >= 128;
        let read = |pieces: &[&[u8]]| parsing::read_calls_of(tools.clone(), format, thoughts, pieces, cut);
        let whole = read(&[answer]);
        let single: Vec<&[u8]> = answer.chunks(1).collect();
        assert_eq!(read(&single), whole, "by bytes");
        let uneven: Vec<&[u8]> = answer.chunks(usize::from(*how) % 13 + 2).collect();
        assert_eq!(read(&uneven), whole, "in pieces");
        // The kinds of the pieces, prefixed with a letter for the format.
        let kinds: String = whole.iter().map(|piece| &piece[..1]).collect();
        format!("{}: {kinds}", char::from(b'a' + convention as u8))
    });
}
