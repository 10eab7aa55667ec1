//! Round trips of frames, and malformed ones.

use std::time::Duration;

use serde::{Serialize, de::DeserializeOwned};

use super::*;
use crate::grammar::{Grammar, Marker, Reasoning, Rule, Spec, Then, Trigger};
use crate::job::{
    AdapterUse, Event, Failure, FailureCode, Finish, Job, RowWish, StageSpec, Thinking, TokenLogprobs, Tokens, Usage,
};
use crate::media::{ItemKind, ItemSize, PREPARED_BYTES_MAX, PromptItem};

fn job() -> Job {
    Job {
        id: u64::MAX,
        client: 7,
        salt: b"key".to_vec(),
        tokens: vec![1, 300, u32::MAX],
        media: vec![item(b"")],
        max_tokens: 5,
        deadline: Some(Duration::from_millis(1500)),
        seed: 42,
        stages: vec![StageSpec { sampler: "top_k".into(), parameters: r#"{"k": 4}"#.into(), ..StageSpec::default() }],
        stop_tokens: vec![2],
        ignore_end_of_turn: true,
        stops: vec![b"\xff\n".to_vec()],
        logprobs: Some(3),
        grammar: Some(Spec {
            reasoning: Some(Reasoning { begin: None, end: Marker::Token(5) }),
            rules: vec![Rule {
                field: "pensieve.grammar".into(),
                trigger: Trigger::After(Marker::Text("<t>".into())),
                open: None,
                grammar: Grammar::json_schema("{}", true),
                close: Some(Marker::Text("</t>".into())),
                then: Then::Resume,
            }],
        }),
        thinking: Some(Box::new(Thinking {
            close: "</t>".into(),
            budget: Some(9),
            conclusion: vec![4],
            ..Thinking::default()
        })),
        adapter: Some(AdapterUse { name: "a".into(), scale: 0.5 }),
        row: Some(RowWish { width: 64 }),
        timeline: true,
    }
}

fn item(prepared: &[u8]) -> PromptItem {
    PromptItem {
        start: 1,
        len: 2,
        size: ItemSize { kind: ItemKind::Audio, width: 70_000, height: 1 },
        layout: vec![4; 9],
        // Other items have other digests.
        digest: [prepared.len() as u8; 32],
        field: "messages[0].content[1]".into(),
        prepared: prepared.to_vec().into(),
    }
}

fn load() -> Load {
    Load {
        architecture: Provider { plugin: "/copies/x.so".into(), name: "bigram".into() },
        samplers: vec!["/copies/s.so".into()],
        adapter_formats: Vec::new(),
        merged: vec![MergedAdapter { name: "m".into(), path: "/adapters/m".into(), scale: 0.5 }],
        adapter_deadline: Duration::from_secs(300),
        source: "/models/m".into(),
        spec: ModelSpec {
            kv_budget: Some(1 << 40),
            disk: Some(DiskTier { folder: "/cache".into(), bytes: 1 << 33 }),
            ..ModelSpec::default()
        },
    }
}

fn commands() -> Vec<Command> {
    let name = "a".to_owned();
    let location = Location { path: "/adapters/a".into(), folders: vec!["/adapters".into()] };
    let attach = [Command::Attach { attempt: 7, name: name.clone(), location }, Command::Detach { name }];
    let first = [Command::Load(Box::new(load())), Command::Submit(job()), Command::Cancel { id: 3 }];
    let rest = [Command::Stats, Command::Drain, Command::Prepared { item: 3, bytes: vec![0, 255, 7].into() }];
    first.into_iter().chain(attach).chain(rest).collect()
}

fn reports() -> Vec<Report> {
    let failure = Failure::new(FailureCode::Plugin, "broke").with_help("mend it");
    let top = vec![(9, -0.5), (8, f32::NEG_INFINITY)];
    let tokens = Tokens { ids: vec![9], bytes: vec![0xe2, 0x82], logprobs: vec![TokenLogprobs { logprob: -0.5, top }] };
    let usage = Usage { prompt: 3, reused: 0, generated: 1 };
    let events = vec![
        (1, Event::Started { prompt_tokens: 3, reused_tokens: 0 }),
        (1, Event::Prompt { computed: 2, total: 3 }),
        (1, Event::Tokens(tokens)),
        (1, Event::Finished { reason: Finish::StopString(1), usage }),
        (2, Event::Failed(failure.clone())),
    ];
    vec![
        Report::Hello { protocol: PROTOCOL },
        Report::Progress { done: 1, total: 2, what: "tensors".into() },
        Report::Log { level: Level::Warn, message: "hm".into() },
        Report::Loaded(Box::default()),
        Report::LoadFailed(failure.clone()),
        Report::Events(events),
        Report::Attached { attempt: 7, result: Ok(AttachedAdapter { format: "peft".into(), pairs: 8, bytes: 64 }) },
        Report::Attached { attempt: 7, result: Err(failure.clone()) },
        Report::Detached { name: "a".into() },
        Report::Stats(Box::default()),
        Report::Heartbeat { steps: 5, step_ms: Some(12) },
        Report::Drained,
        Report::Dying(failure),
    ]
}

/// All messages as a byte stream.
fn stream<T: Serialize>(messages: &[T]) -> Vec<u8> {
    messages.iter().flat_map(|message| encode(message).unwrap()).collect()
}

fn all<T: DeserializeOwned>(mut bytes: &[u8]) -> Result<Vec<T>, WireError> {
    let mut messages = Vec::new();
    while let Some(message) = read(&mut bytes)? {
        messages.push(message);
    }
    Ok(messages)
}

#[test]
fn every_message_arrives_as_it_was_sent() {
    assert_eq!(all::<Command>(&stream(&commands())).unwrap(), commands());
    assert_eq!(all::<Report>(&stream(&reports())).unwrap(), reports());
}

#[test]
fn a_connection_that_ends_within_a_frame_is_an_error_and_between_frames_is_none() {
    for command in commands() {
        let frame = encode(&command).unwrap();
        assert!(read::<Command>(&mut &frame[..0]).unwrap().is_none());
        for end in 1..frame.len() {
            let result = read::<Command>(&mut &frame[..end]);
            assert!(matches!(result, Err(WireError::Io(_))), "{end} of {} bytes: {result:?}", frame.len());
        }
    }
}

#[test]
fn a_body_that_is_cut_or_too_long_is_no_message() {
    for report in reports() {
        let frame = encode(&report).unwrap();
        let body = &frame[HEADER_BYTES..];
        for end in 0..body.len() {
            assert!(decode::<Report>(&body[..end]).is_err(), "{end} of {} bytes of {report:?}", body.len());
        }
        let longer = [body, &[0]].concat();
        assert!(matches!(decode::<Report>(&longer), Err(WireError::Malformed(_))), "{report:?}");
    }
}

#[test]
fn a_frame_over_the_limit_is_refused_before_it_is_read() {
    let bytes = FRAME_BYTES_MAX + 1;
    let header = (bytes as u32).to_le_bytes();
    assert!(matches!(read::<Report>(&mut &header[..]), Err(WireError::TooLong { bytes: found, .. }) if found == bytes));
    assert!(matches!(report_len([0xff; 4]), Err(WireError::TooLong { .. })));
    assert_eq!(report_len((REPORT_BYTES_MAX as u32).to_le_bytes()).unwrap(), REPORT_BYTES_MAX);

    let long = Command::Submit(Job { salt: vec![0; FRAME_BYTES_MAX], ..Job::default() });
    let mut frames = vec![1];
    assert!(matches!(encode_into(&long, &mut frames), Err(WireError::TooLong { .. })));
    assert_eq!(frames, [1], "nothing of a refused message is left behind");
}

#[test]
fn events_that_are_too_many_for_one_frame_become_several() {
    let tokens = |id| (id, Event::Tokens(Tokens { bytes: vec![7; 100_000], ..Tokens::default() }));
    let events: Vec<(u64, Event)> = (0..100).map(tokens).collect();
    let mut frames = Vec::new();
    encode_report_into(&Report::Events(events.clone()), &mut frames).unwrap();
    let (mut reader, mut read_events) = (&frames[..], Vec::new());
    while let [a, b, c, d, ..] = *reader {
        report_len([a, b, c, d]).unwrap();
        match read::<Report>(&mut reader).unwrap() {
            Some(Report::Events(events)) => read_events.extend(events),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(read_events, events);

    let one =
        Report::Events(vec![(1, Event::Tokens(Tokens { bytes: vec![7; REPORT_BYTES_MAX], ..Tokens::default() }))]);
    let mut frames = vec![1];
    assert!(matches!(encode_report_into(&one, &mut frames), Err(WireError::TooLong { .. })));
    assert_eq!(frames, [1], "nothing of a refused report is left behind");
}

#[test]
fn items_go_ahead_of_their_job_in_pieces() {
    let long: Vec<u8> = (0..3_000_000_u32).map(|i| i as u8).collect();
    let media = vec![item(&long), item(b""), item(b"short")];
    let with_items = Command::Submit(Job { media, ..job() });
    let sent = [Command::Stats, with_items.clone(), Command::Drain, with_items];
    let (mut assembly, mut received, mut longest) = (ItemAssembly::default(), Vec::new(), 0);
    for frame in sent.iter().flat_map(command_frames) {
        let frame = frame.unwrap();
        longest = longest.max(frame.len());
        received.extend(assembly.take(decode(&frame[HEADER_BYTES..]).unwrap()).unwrap());
    }
    assert_eq!(received, sent);
    assert!(longest < 1 << 21, "a frame of {longest} bytes");
}

#[test]
fn items_without_a_job_and_items_that_are_too_long_are_refused() {
    let piece = |item, bytes: usize| Command::Prepared { item, bytes: vec![0; bytes].into() };
    let submit = |items: usize| Command::Submit(Job { media: vec![item(b""); items], ..Job::default() });
    for commands in [
        vec![piece(1, 9), submit(1)],
        vec![piece(0, 9), Command::Stats],
        vec![piece(1, 9), piece(0, 9)],
        vec![piece(u32::MAX, 9)],
        vec![piece(0, 9), submit(1), piece(2, 9), submit(2)],
    ] {
        let mut assembly = ItemAssembly::default();
        let refused = commands.into_iter().find_map(|command| assembly.take(command).err());
        assert!(matches!(refused, Some(WireError::StrayItem)), "{refused:?}");
    }
    let mut assembly = ItemAssembly::default();
    assembly.take(piece(0, PREPARED_BYTES_MAX)).unwrap();
    assert!(matches!(assembly.take(piece(0, 1)), Err(WireError::TooLong { .. })));
}

#[test]
fn jobs_whose_items_find_no_room_arrive_without_them() {
    let (mut assembly, mut number) = (ItemAssembly::default(), 0);
    let mut sent = |bytes: usize| {
        for bytes in [bytes, 1] {
            assembly.take(Command::Prepared { item: 0, bytes: vec![7; bytes].into() }).unwrap();
        }
        number += 1;
        let item = PromptItem { digest: [number; 32], ..item(b"") };
        match assembly.take(Command::Submit(Job { media: vec![item], ..Job::default() })) {
            Ok(Some(Command::Submit(job))) => job.media[0].prepared.clone(),
            other => panic!("{other:?}"),
        }
    };
    let half = PREPARED_BYTES_MAX / 2;
    let (first, second) = (sent(half), sent(half - 10));
    assert_eq!((first.len(), second.len()), (half + 1, half - 9));
    assert_eq!((sent(100).len(), sent(1).len()), (0, 2));
    drop(first);
    assert_eq!(sent(half).len(), half + 1);
}

#[test]
fn equal_items_are_sent_once_in_a_job_and_kept_once_for_all() {
    let picture = vec![7; PREPARED_BYTES_MAX / 2 + 9];
    let command = Command::Submit(Job { media: vec![item(&picture), item(b"other"), item(&picture)], ..job() });
    let mut assembly = ItemAssembly::default();
    let mut jobs = Vec::new();
    // Two of them would have no room beside each other.
    for _ in 0..3 {
        let frames: Vec<Vec<u8>> = command_frames(&command).map(Result::unwrap).collect();
        assert!(frames.iter().map(Vec::len).sum::<usize>() < picture.len() * 3 / 2);
        for frame in frames {
            jobs.extend(assembly.take(decode(&frame[HEADER_BYTES..]).unwrap()).unwrap());
        }
    }
    assert!(jobs.len() == 3 && jobs.iter().all(|job| *job == command));
}

#[test]
fn a_promise_of_many_elements_is_not_believed() {
    // A report of events whose list claims 2^63 elements.
    let body = [&[5][..], &[0xff; 8], &[0x7f]].concat();
    assert!(matches!(decode::<Report>(&body), Err(WireError::Malformed(_))));
}

#[test]
fn garbage_never_panics_and_is_hardly_ever_a_message() {
    let mut random = fastrand::Rng::with_seed(3);
    let mut understood = 0;
    for _ in 0..50_000 {
        let length = random.usize(8..80);
        let body: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(length).collect();
        understood += usize::from(decode::<Command>(&body).is_ok()) + usize::from(decode::<Report>(&body).is_ok());
    }
    assert!(understood < 100, "{understood} random frames were understood");
    for message in stream(&commands()).chunks(64).cycle().take(20_000) {
        let mut damaged = message.to_vec();
        let place = random.usize(..damaged.len());
        damaged[place] = random.u8(..);
        let _ = all::<Command>(&damaged);
    }
}
