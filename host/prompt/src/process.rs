//! The process around a model: questions and answers over its standard streams.
//!
//! One thread reads questions and ends the process as soon as the server has gone, whatever the other one does. The other
//! one answers, on a stack that is deep enough for nested templates. A panic ends the process with a status of its own, as the
//! memory limit and the end of the stack end it with a signal.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::AsFd,
    panic::{self, AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        mpsc::{Receiver, sync_channel},
    },
    thread,
};

use crate::model::Model;
use pensieve_protocol::{
    grammar::Spec,
    job::{Failure, FailureCode},
    prompt::{Answer, PANICKED, Question, STACK_BYTES},
    vocabulary::Vocabulary,
    wire::{self, WireError},
};

/// How a grammar is tried; the engine that compiles grammars is not of this crate.
pub type TryGrammar = fn(&Arc<Vocabulary>, &Spec) -> Result<(), Failure>;

/// Answers questions from standard input on standard output until the server has gone.
pub fn serve(try_grammar: TryGrammar) -> io::Result<()> {
    // Foreign code must not be able to fill the log; the server is told of a panic.
    panic::set_hook(Box::new(|_| {}));
    let mut output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let (tell, told) = sync_channel(1);
    thread::Builder::new().name("prompt".to_owned()).stack_size(STACK_BYTES).spawn(move || {
        let ended = answer_all(&told, &mut output, try_grammar);
        std::process::exit(i32::from(ended.is_err()));
    })?;
    let mut input = io::stdin().lock();
    while let Some(question) = read(&mut input)? {
        if tell.send(question).is_err() {
            break;
        }
    }
    Ok(())
}

fn read(input: &mut impl Read) -> io::Result<Option<Question>> {
    wire::read(input).map_err(|error| match error {
        WireError::Io(error) => error,
        error => io::Error::other(error.to_string()),
    })
}

fn answer_all(
    questions: &Receiver<Question>,
    output: &mut impl Write,
    try_grammar: TryGrammar,
) -> Result<(), WireError> {
    let mut model = None;
    while let Ok(question) = questions.recv() {
        let Ok(answer) = catch_unwind(AssertUnwindSafe(|| answer(&mut model, question, try_grammar))) else {
            std::process::exit(PANICKED);
        };
        wire::write(output, &answer.unwrap_or_else(Answer::Failed))?;
    }
    Ok(())
}

fn answer(model: &mut Option<Model>, question: Question, try_grammar: TryGrammar) -> Result<Answer, Failure> {
    if let Question::Tokenizer(tokenizer) = &question {
        let read = model.insert(Model::new(tokenizer)?);
        return Ok(Answer::Vocabulary(Box::new(Vocabulary::clone(read.vocabulary()))));
    }
    let missing = || Failure::new(FailureCode::Internal, "a prompt process has no tokenizer yet");
    let model = model.as_mut().ok_or_else(missing)?;
    match question {
        Question::Tokenizer(_) => Err(missing()),
        Question::Template(source) => {
            let takes_tools = model.read_template(source.as_deref())?;
            Ok(Answer::Template { takes_tools })
        }
        Question::Conversation { conversation, tools_in_words } => {
            model.conversation(&conversation, tools_in_words.as_deref()).map(Answer::Tokens)
        }
        Question::Text(text) => model.text(&text).map(Answer::Tokens),
        Question::Grammar(spec) => try_grammar(model.vocabulary(), &spec).map(|()| Answer::Compiles),
    }
}
