//! Sessions of many turns: what the scripted model says in them, and what the server's log says of their requests.

use serde_json::{Value, json};
use std::{
    fmt::Write as _,
    io::{BufRead, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, Instant},
};

use crate::{
    artifacts::{plugin, test_plugin},
    http::server::{Options, PATIENCE, Server},
    scripted,
};

/// Steps that the model can be asked for, three with each prompt.
const STEPS: usize = 30;
/// Turns of the model for each prompt: three calls, and an answer.
pub const TURNS: usize = 4;
/// An answer long enough to be interrupted.
const LONG: usize = 1000;
/// Tokens at the end of a prompt that are not in the cache even if a request only repeats it.
const BLOCK: u64 = 32;

/// The image of the sessions: one pixel, as PNG.
pub const IMAGE: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mP4z8AAAAMBAQD3A0FDAAAAAElFTkSuQmCC";

/// The tool with which a client runs commands.
pub struct Shell {
    pub tool: &'static str,
    pub argument: &'static str,
}

impl Shell {
    pub fn call(&self, command: &str) -> String {
        call(self.tool, json!({ self.argument: command }))
    }
}

/// An answer that calls a tool.
pub fn call(tool: &str, arguments: Value) -> String {
    format!("I shall.\n<tool_call>\n{}\n</tool_call>", json!({ "name": tool, "arguments": arguments }))
}

/// The prompt for the three steps after this one.
pub fn steps_after(step: usize) -> String {
    format!("Go on from step-{step:02}.")
}

/// The answer after the last of the three.
pub fn done(step: usize) -> String {
    format!("Steps up to {step} are done.")
}

/// Serves a model that takes three steps with each prompt, looks at an image, asks a subagent by `ask` and counts for a
/// while, besides its `own` lines. The latest prompt counts, as compaction may put earlier ones before it.
pub fn serve(root: &Path, shell: &Shell, ask: &str, own: &[(&str, &str)], context: u32) -> Server {
    let step = |step: usize| shell.call(&format!("echo result-{step:02}."));
    let mut script: Vec<(String, String)> = own.iter().map(|(when, say)| ((*when).into(), (*say).into())).collect();
    let much = shell.call("seq 1 900 | tr '\\n' ' '; echo much-is-read.");
    let long: String = (0..LONG).fold(String::new(), |mut text, number| {
        let _ = write!(text, "{number} ");
        text
    });
    for last in (1..=STEPS).rev() {
        let next = if last.is_multiple_of(3) { done(last) } else { step(last + 1) };
        script.push((format!("result-{last:02}."), next));
    }
    script
        .extend((0..STEPS).rev().step_by(3).map(|after| after - 2).map(|after| (steps_after(after), step(after + 1))));
    let rest = [
        ("much-is-read.", "I have read much."),
        ("Read much", &much),
        ("What is in this picture", "A pixel."),
        ("Count slowly", &long),
        ("seven things", "The subagent has counted seven."),
        ("count the things", "There are seven things."),
        ("Ask a subagent", ask),
        ("", "Background."),
    ];
    script.extend(rest.map(|(when, say)| (when.into(), say.into())));
    let source = root.join("scripted");
    let script: Vec<(&str, &str)> = script.iter().map(|(when, say)| (when.as_str(), say.as_str())).collect();
    scripted::checkpoint(&source, &script);
    let config = format!(
        "[[models]]\nid = \"scripted\"\nsource = \"{}\"\ncontext = {context}\nthreads = 1\noptions = {{ step_us = 2000 }}\n",
        source.display()
    );
    let plugins = vec![test_plugin("scripted"), plugin("pensieve-samplers")];
    Options { plugins, config, ..Options::default() }.start()
}

/// Waits until the model counts.
pub fn until_writing(server: &Server) {
    let deadline = Instant::now() + PATIENCE;
    while server.get("/v1/usage").json()["running"][0]["pieces"].as_u64().is_none_or(|pieces| pieces < 5) {
        assert!(Instant::now() < deadline, "nothing is written: {}", server.log());
        thread::sleep(Duration::from_millis(20));
    }
}

/// A request for an answer, as the log has it.
#[derive(Clone, Debug)]
pub struct Turn {
    pub outcome: String,
    pub prompt: u64,
    pub reused: u64,
    /// Why not all of it was cached.
    pub miss: Option<String>,
}

/// The answered requests of a log, in order.
pub fn turns(log: &str) -> Vec<Turn> {
    let field = |line: &str, name: &str| {
        let rest = line.split_once(&format!(" {name}="))?.1;
        let quoted = rest.strip_prefix('"').and_then(|rest| rest.split('"').next());
        Some(quoted.unwrap_or_else(|| rest.split([' ', '}']).next().unwrap_or_default()).to_owned())
    };
    let number = |line: &str, name: &str| field(line, name)?.parse::<u64>().ok();
    let ended = log.lines().filter(|line| line.contains("}: answered") || line.contains("the client has gone"));
    let turn = |line: &str| {
        Some(Turn {
            outcome: field(line, "outcome")?,
            prompt: number(line, "prompt_tokens")?,
            reused: number(line, "reused_tokens")?,
            miss: field(line, "cache_miss"),
        })
    };
    ended.filter_map(turn).collect()
}

/// Checks that of each turn from the second on all that had been sent before was cached, or that the log has the reason,
/// and that most turns had at least 95 % in the cache. Returns the turns.
pub fn check_cached(server: &Server) -> Vec<Turn> {
    let log = server.log();
    let turns = turns(&log);
    let mut high = 0;
    for pair in turns.windows(2) {
        let [before, turn] = pair else { continue };
        let is_high = turn.reused * 100 >= turn.prompt * 95;
        // A long result, or the instructions for a summary, have not been sent before.
        let is_continued = turn.reused + BLOCK >= before.prompt;
        assert!(is_high || is_continued || turn.miss.is_some(), "{turn:?}\n{log}");
        high += usize::from(is_high);
    }
    let sum = |part: fn(&Turn) -> u64| turns.iter().skip(1).map(part).sum::<u64>();
    println!(
        "{} turns, {high} with at least 95 % in the cache; {} of {} tokens in all",
        turns.len(),
        sum(|turn| turn.reused),
        sum(|turn| turn.prompt)
    );
    for turn in turns.iter().filter(|turn| turn.miss.is_some()) {
        println!("  {turn:?}");
    }
    assert!(high * 100 >= (turns.len() - 1) * 75, "{high} of {}: {log}", turns.len());
    assert!(turns.iter().any(|turn| turn.outcome == "cancelled"), "nothing was interrupted: {log}");
    turns
}

/// A client that is spoken to in lines of JSON.
pub struct Talk {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    /// Everything that it has said.
    pub said: Vec<Value>,
}

impl Talk {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { input: child.stdin.take(), child, lines, said: Vec::new() }
    }

    pub fn send(&mut self, message: &Value) {
        let input = self.input.as_mut().unwrap();
        writeln!(input, "{message}").and_then(|()| input.flush()).unwrap_or_else(|error| panic!("{error}: {self:?}"));
    }

    /// Reads until a message fits, and returns it.
    pub fn until(&mut self, fits: impl Fn(&Value) -> bool) -> Value {
        self.since(self.said.len(), fits)
    }

    /// The first message from this one on that fits, which may have been read already.
    pub fn since(&mut self, start: usize, fits: impl Fn(&Value) -> bool) -> Value {
        if let Some(message) = self.said[start..].iter().find(|message| fits(message)) {
            return message.clone();
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).unwrap_or_else(|error| panic!("{error}: {self:?}"));
            // What is no JSON is said to people.
            let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
            self.said.push(message.clone());
            if fits(&message) {
                return message;
            }
        }
    }

    /// Sends a request of JSON-RPC, and returns the response.
    pub fn ask(&mut self, id: usize, method: &str, parameters: Value) -> Value {
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": parameters }));
        self.response(id)
    }

    pub fn response(&mut self, id: usize) -> Value {
        let mut response = self.until(|message| message["id"] == id && message.get("method").is_none());
        assert!(response.get("error").is_none(), "{response}: {self:?}");
        response["result"].take()
    }

    /// Closes its input, and waits for it for a moment.
    pub fn close(mut self) {
        drop(self.input.take());
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.child.try_wait().unwrap().is_none() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl std::fmt::Debug for Talk {
    /// The end of what it has said.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let last = self.said.len().saturating_sub(20);
        self.said[last..].iter().try_for_each(|message| writeln!(f, "{message}"))
    }
}

#[test]
fn turns_are_read_from_the_log() {
    let log = concat!(
        "T INFO request{id=\"a\" path=\"/v1/messages\" cache_miss=\"first_time at token 0\" model=\"m\" outcome=\"end_of_turn\" ",
        "prompt_tokens=90 reused_tokens=0 generated_tokens=7}: answered status=200 duration_ms=3\n",
        "T WARN request{id=\"b\" path=\"/v1/messages\"}: a request was changed warning=\"x\"\n",
        "T INFO request{id=\"b\" path=\"/v1/messages\" model=\"m\" outcome=\"cancelled\" prompt_tokens=99 reused_tokens=80 ",
        "generated_tokens=7}: the client has gone\n",
    );
    let found = turns(log);
    let told = |turn: &Turn| (turn.outcome.clone(), turn.prompt, turn.reused, turn.miss.is_some());
    let expected = [("end_of_turn".to_owned(), 90, 0, true), ("cancelled".to_owned(), 99, 80, false)];
    assert_eq!(found.iter().map(told).collect::<Vec<_>>(), expected);
}
