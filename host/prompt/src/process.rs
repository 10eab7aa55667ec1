//! The process around a model: questions and answers over its standard streams.
//!
//! One thread reads questions and ends the process as soon as the server is gone, whatever the other thread is doing.
//! The other answers, on a stack deep enough for nested templates and grammars. A panic ends the process with a status
//! code of its own; exceeding the memory limit or overflowing the stack ends it with a signal.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::AsFd,
    panic::{self, AssertUnwindSafe, catch_unwind},
    sync::mpsc::{Receiver, sync_channel},
    thread,
};

use crate::{heap, lark, model::Model};
use pensieve_protocol::{
    job::{Failure, FailureCode},
    prompt::{Answer, GRAMMAR_STACK_BYTES, Numbered, PANICKED, Question, STACK_BYTES},
    vocabulary::Vocabulary,
    wire::{self, WireError},
};

/// Answers questions from standard input on standard output until the server has gone.
pub fn serve() -> io::Result<()> {
    // Untrusted code must not be able to fill the log; the server learns of a panic from the exit status.
    panic::set_hook(Box::new(|_| {}));
    heap::prepare();
    let mut output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let mut input = io::stdin().lock();
    let Some(first) = read(&mut input)? else { return Ok(()) };
    // A grammar process's memory limit counts the whole stack, touched or not.
    let stack = if is_of_clients(&first.message) { GRAMMAR_STACK_BYTES } else { STACK_BYTES };
    let (tell, told) = sync_channel(1);
    thread::Builder::new().name("prompt".to_owned()).stack_size(stack).spawn(move || {
        let ended = answer_all(&told, &mut output);
        std::process::exit(i32::from(ended.is_err()));
    })?;
    let mut next = Some(first);
    while let Some(question) = next {
        if tell.send(question).is_err() {
            break;
        }
        next = read(&mut input)?;
    }
    Ok(())
}

/// The programs that a process interprets: those of one checkpoint or those of one client.
enum Role {
    Unknown,
    Model(Box<Model>),
    Grammars,
}

/// True for questions about a client's program. All others are about a checkpoint's.
fn is_of_clients(question: &Question) -> bool {
    matches!(question, Question::Grammar { .. } | Question::Expression { .. })
}

fn read(input: &mut impl Read) -> io::Result<Option<Numbered<Question>>> {
    wire::read(input).map_err(|error| match error {
        WireError::Io(error) => error,
        error => io::Error::other(error.to_string()),
    })
}

fn answer_all(questions: &Receiver<Numbered<Question>>, output: &mut impl Write) -> Result<(), WireError> {
    let mut role = Role::Unknown;
    while let Ok(Numbered { number, message }) = questions.recv() {
        let reads_model = matches!(message, Question::Tokenizer(_) | Question::Template { .. });
        let Ok(answer) = catch_unwind(AssertUnwindSafe(|| answer(&mut role, message))) else {
            std::process::exit(PANICKED);
        };
        wire::write(output, &Numbered { number, message: answer.unwrap_or_else(Answer::Failed) })?;
        if reads_model {
            heap::trim();
        }
    }
    Ok(())
}

fn answer(role: &mut Role, question: Question) -> Result<Answer, Failure> {
    match question {
        Question::Tokenizer(tokenizer) => role.begin(Model::new(&tokenizer)?),
        Question::Template { source, images } => {
            let takes_tools = role.model()?.read_template(source.as_deref(), images)?;
            Ok(Answer::Template { takes_tools })
        }
        Question::Conversation { conversation, tools_in_words, items, salt } => {
            let prompt = role.model()?.conversation(&conversation, tools_in_words.as_deref(), &items, &salt);
            prompt.map(Answer::Prompt)
        }
        Question::Text { text, salt } => role.model()?.text(&text, &salt).map(Answer::Tokens),
        Question::Texts { texts, salt } => role.model()?.texts(&texts, &salt).map(Answer::TokensOfEach),
        Question::Grammar { spec, alphabet } => {
            role.take_programs()?;
            pensieve_grammar::try_compile(alphabet, &spec).map(|()| Answer::Compiles)
        }
        Question::Expression { syntax, definition } => {
            role.take_programs()?;
            Ok(Answer::Expression(lark::expression(syntax, &definition)))
        }
    }
}

impl Role {
    fn begin(&mut self, model: Model) -> Result<Answer, Failure> {
        if let Self::Grammars = self {
            return Err(out_of_order("that has interpreted a client's programs takes no model"));
        }
        let vocabulary = Vocabulary::clone(model.vocabulary());
        *self = Self::Model(Box::new(model));
        Ok(Answer::Vocabulary(Box::new(vocabulary)))
    }

    fn model(&mut self) -> Result<&mut Model, Failure> {
        if let Self::Model(model) = self { Ok(model) } else { Err(out_of_order("has no tokenizer yet")) }
    }

    fn take_programs(&mut self) -> Result<(), Failure> {
        if let Self::Model(_) = self {
            return Err(out_of_order("that serves a model interprets no client's programs"));
        }
        *self = Self::Grammars;
        Ok(())
    }
}

fn out_of_order(what: &str) -> Failure {
    Failure::new(FailureCode::Internal, format!("a prompt process {what}"))
}
