//! Media processes that answer, hang and die: scripts in place of the program.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::{fs, path::PathBuf};

use super::*;
use crate::{fleet::fence, rendering::tests::Program};
use pensieve_protocol::{prompt::Numbered, wire};

const WAITS: &str = "exec sleep 60";

fn size() -> ItemSize {
    ItemSize { kind: ItemKind::Image, width: 3, height: 2 }
}

fn measured() -> MediaAnswer {
    MediaAnswer::Measured(MeasuredItem { size: size(), text: "<image>".to_owned(), rows: 1, layout: Vec::new() })
}

/// A program that says these answers one after the other, whatever it is asked, and waits.
fn answering(before: &str, answers: &[MediaAnswer]) -> Program {
    let program = Program::new(&format!("{before}\ncat answers\n{WAITS}"), &[]);
    let frames = (1..).zip(answers).flat_map(|(number, message)| wire::encode(&Numbered { number, message }).unwrap());
    fs::write(program.folder.path().join("answers"), frames.collect::<Vec<u8>>()).unwrap();
    program
}

/// Measures so many pictures, each in a request of its own.
async fn measure(program: &Program, pictures: u8) -> Vec<Result<Vec<Arc<ReadItem>>, Failure>> {
    let pool = MediaPool::new(PathBuf::new(), ImageLimits::default());
    let image = KindUse {
        placeholder: "<image>".to_owned(),
        text: "<image>".to_owned(),
        slot: 1,
        whole: false,
        rows_max: 4,
        row_bytes: 4,
        encoder_bytes: 0,
        rate: None,
        processor: "{}".to_owned(),
    };
    let path = program.path();
    let start = || async { Ok(Process::start(&path, "media", &fence::prompt(0)).unwrap()) };
    let reader = Reader { pool: &pool, image: &image, owner: [0; 32], client: 1, start };
    let mut all = Vec::new();
    for picture in 0..pictures {
        let bytes = Bytes::from(vec![picture]);
        let file = ImageSource { field: "images.0", bytes: &bytes, digest: [picture; 32] };
        all.push(reader.read(&[file], Depth::Measured).await);
    }
    all
}

#[tokio::test]
async fn a_process_that_refuses_a_picture_reads_the_next_one() {
    let refused = MediaAnswer::Failed(Failure::new(FailureCode::Invalid, "too wide"));
    let program = answering("", &[MediaAnswer::Unreadable("is empty".to_owned()), refused, measured()]);
    let read = measure(&program, 3).await;
    let [Err(unreadable), Err(refused), Ok(items)] = &read[..] else { panic!("{read:?}") };
    assert_eq!((unreadable.message.as_str(), unreadable.field.as_str()), ("the image is empty", "images.0"));
    assert_eq!((refused.message.as_str(), refused.field.as_str()), ("too wide", "images.0"));
    assert_eq!(items[0].size, size());
    assert_eq!(program.started().len(), 1, "the process goes on");
}

#[tokio::test]
async fn a_picture_that_takes_too_long_is_read_again_by_another_process() {
    let program = answering(&format!("[ $(wc -l < started) = 1 ] && {WAITS}"), &[measured()]);
    let read = measure(&program, 1).await;
    assert!(read[0].is_ok(), "{read:?}");
    assert_eq!(program.started().len(), 2);
}

#[tokio::test]
async fn a_picture_that_takes_too_long_twice_finds_the_server_busy() {
    let program = answering(WAITS, &[]);
    let read = measure(&program, 1).await;
    let failure = read[0].as_ref().unwrap_err();
    assert_eq!((failure.code, failure.field.as_str()), (FailureCode::Busy, "images.0"), "{failure}");
    assert_eq!(program.started().len(), 2);
}

#[tokio::test]
async fn a_picture_that_ends_its_process_fails_and_the_next_one_gets_another() {
    let program = answering("[ $(wc -l < started) = 1 ] && exit 3", &[measured()]);
    let read = measure(&program, 2).await;
    let failure = read[0].as_ref().unwrap_err();
    assert!(failure.code == FailureCode::Invalid && failure.message.contains("ended"), "{failure}");
    assert!(read[1].is_ok(), "{read:?}");
}

#[tokio::test]
async fn what_a_process_says_is_bounded_and_escaped() {
    let long = "\u{1b}[2J".repeat(1000);
    let failed = MediaAnswer::Failed(Failure::new(FailureCode::Plugin, long.clone()).with_help(long.clone()));
    let program = answering("", &[failed, MediaAnswer::Unreadable(long)]);
    for failure in measure(&program, 2).await.into_iter().map(Result::unwrap_err) {
        for text in [&failure.message, &failure.help] {
            assert!(text.chars().count() < 4000 && !text.contains('\u{1b}'), "{text}");
        }
    }
}
