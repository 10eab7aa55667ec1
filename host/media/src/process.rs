//! The process around an open plugin: questions and answers over its standard streams, as in a prompt process.
//!
//! Answers go to the original standard output, while that of the process leads nowhere, so that a plugin that prints
//! cannot write frames. One thread reads questions and ends the process as soon as the server is gone.

use std::{
    fs::File,
    io::{self, Read, Write},
    panic::{self, AssertUnwindSafe, catch_unwind},
    sync::mpsc::{Receiver, sync_channel},
    thread,
};

use pensieve_protocol::{
    decoding::{MediaAnswer, MediaQuestion},
    job::{Failure, FailureCode},
    prompt::{Numbered, PANICKED},
    wire::{self, WireError},
};

use crate::items::ItemPreparer;

/// Of the thread that decodes and runs the plugin.
const STACK_BYTES: usize = 16 << 20;

/// Answers questions from standard input until the server has gone.
pub fn serve() -> io::Result<()> {
    // What a stranger's file makes fail must not fill the log; the server learns of a panic from the exit status.
    panic::set_hook(Box::new(|_| {}));
    let mut output = File::from(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?);
    rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
    let mut input = io::stdin().lock();
    let (tell, told) = sync_channel(1);
    thread::Builder::new().name("media".to_owned()).stack_size(STACK_BYTES).spawn(move || {
        let ended = answer_all(&told, &mut output);
        std::process::exit(i32::from(ended.is_err()));
    })?;
    while let Some(question) = read(&mut input)? {
        if tell.send(question).is_err() {
            break;
        }
    }
    Ok(())
}

fn read(input: &mut impl Read) -> io::Result<Option<Numbered<MediaQuestion>>> {
    wire::read(input).map_err(|error| match error {
        WireError::Io(error) => error,
        error => io::Error::other(error.to_string()),
    })
}

fn answer_all(questions: &Receiver<Numbered<MediaQuestion>>, output: &mut impl Write) -> Result<(), WireError> {
    let mut opened = None;
    while let Ok(Numbered { number, message }) = questions.recv() {
        let Ok(answer) = catch_unwind(AssertUnwindSafe(|| answer(&mut opened, message))) else {
            std::process::exit(PANICKED);
        };
        wire::write(output, &Numbered { number, message: answer.unwrap_or_else(MediaAnswer::Failed) })?;
    }
    Ok(())
}

fn answer(opened: &mut Option<ItemPreparer>, question: MediaQuestion) -> Result<MediaAnswer, Failure> {
    let out_of_order = |what: &str| Failure::new(FailureCode::Internal, format!("a media process {what}"));
    match (question, opened) {
        (MediaQuestion::Open(opening), opened @ None) => {
            *opened = Some(ItemPreparer::open(*opening)?);
            Ok(MediaAnswer::Opened)
        }
        (MediaQuestion::Open(_), Some(_)) => Err(out_of_order("serves one plugin only")),
        (MediaQuestion::Measure(file), Some(preparer)) => preparer.measure(&file),
        (MediaQuestion::Prepare(file), Some(preparer)) => preparer.prepare(&file),
        (_, None) => Err(out_of_order("has no plugin yet")),
    }
}
