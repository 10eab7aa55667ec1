//! A server that speaks chat completions as a test tells it to: well, badly, or maliciously.

use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener},
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Its way with a request for an answer.
#[derive(Clone, Debug)]
pub enum Behaviour {
    /// Streams these pieces.
    Say(Vec<Value>),
    /// Streams these pieces, each after a pause.
    Slowly(Vec<Value>, Duration),
    /// Streams this many pieces, each after a pause; each is the time at which it was written ([`now_us`]).
    Stamped(usize, Duration),
    /// Takes this long to begin, and streams these pieces.
    Late(Vec<Value>, Duration),
    /// Streams these pieces, and hangs up instead on a connection that it has been asked on before, also for something else.
    Once(Vec<Value>),
    /// Streams the first pieces as a whole response, and the second ones as another one, to one request, after this pause.
    Twice(Vec<Value>, Vec<Value>, Duration),
    /// Streams these pieces, and closes the connection without an end.
    Drop(Vec<Value>),
    /// Streams these pieces, and then nothing for ever.
    Hang(Vec<Value>),
    /// Sends these bytes instead of a response.
    Raw(Vec<u8>),
    /// Sends the first bytes, and then the second ones until it is disconnected.
    Flood(Vec<u8>, Vec<u8>),
    /// Takes the request, and never answers.
    Silent,
    /// Answers nothing, probes included, as a process that has been stopped.
    Stopped,
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Value,
}

pub struct Fake {
    pub address: SocketAddr,
    behaviour: Arc<Mutex<Behaviour>>,
    seen: Arc<Mutex<Vec<Seen>>>,
    /// Connections on which it was disconnected in the middle of an answer.
    pub abandoned: Arc<AtomicUsize>,
}

impl Fake {
    pub fn start(behaviour: Behaviour) -> Self {
        Self::listen(TcpListener::bind("127.0.0.1:0").unwrap(), behaviour, None)
    }

    /// One that is reached over TLS, at [`Self::secure_url`].
    pub fn secure(behaviour: Behaviour, tls: ServerConfig) -> Self {
        Self::listen(TcpListener::bind("127.0.0.1:0").unwrap(), behaviour, Some(Arc::new(tls)))
    }

    fn listen(listener: TcpListener, behaviour: Behaviour, tls: Option<Arc<ServerConfig>>) -> Self {
        let fake = Self {
            address: listener.local_addr().unwrap(),
            behaviour: Arc::new(Mutex::new(behaviour)),
            seen: Arc::default(),
            abandoned: Arc::default(),
        };
        let (behaviour, seen, abandoned) = (fake.behaviour.clone(), fake.seen.clone(), fake.abandoned.clone());
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (behaviour, seen, abandoned) = (behaviour.clone(), seen.clone(), abandoned.clone());
                stream.set_nodelay(true).unwrap();
                let tls = tls.clone().map(|tls| ServerConnection::new(tls).unwrap());
                thread::spawn(move || {
                    let served = match tls {
                        None => serve(stream, &behaviour, &seen),
                        Some(tls) => serve(StreamOwned::new(tls, stream), &behaviour, &seen),
                    };
                    if served.is_none() {
                        abandoned.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
        });
        fake
    }

    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    pub fn secure_url(&self, host: &str) -> String {
        format!("https://{host}:{}/v1", self.address.port())
    }

    pub fn set(&self, behaviour: Behaviour) {
        *self.behaviour.lock().unwrap() = behaviour;
    }

    /// The requests for answers so far.
    pub fn asked(&self) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| seen.path.ends_with("completions")).collect()
    }

    /// The number of requests for answers so far.
    pub fn asked_count(&self) -> usize {
        self.seen.lock().unwrap().iter().filter(|seen| seen.path.ends_with("completions")).count()
    }

    /// All requests so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// Microseconds since the first call.
pub fn now_us() -> u64 {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(BEGAN.elapsed().as_micros()).unwrap()
}

/// A chunk with more of the answer's text.
pub fn text(text: &str) -> Value {
    json!({ "id": "c", "choices": [{ "index": 0, "delta": { "content": text }, "finish_reason": null }] })
}

/// The last chunks of an answer.
pub fn end(reason: &str) -> [Value; 2] {
    let usage = json!({ "prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14,
        "prompt_tokens_details": { "cached_tokens": 8 } });
    [
        json!({ "id": "c", "choices": [{ "index": 0, "delta": {}, "finish_reason": reason }] }),
        json!({ "id": "c", "choices": [], "usage": usage }),
    ]
}

/// An answer of two pieces.
pub fn hello() -> Behaviour {
    let [end, usage] = end("stop");
    Behaviour::Say(vec![text("Hel"), text("lo"), end, usage])
}

pub fn response(status: &str, headers: &str, body: &str) -> Behaviour {
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n{headers}\r\n");
    Behaviour::Raw([head.as_bytes(), body.as_bytes()].concat())
}

/// Serves a connection; `None` if it ends in the middle of an answer.
fn serve(stream: impl Read + Write, behaviour: &Mutex<Behaviour>, seen: &Mutex<Vec<Seen>>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut requests = 0;
    loop {
        let Some(request) = read(&mut reader) else { return Some(()) };
        let path = request.path.clone();
        requests += 1;
        seen.lock().unwrap().push(request);
        if matches!(*behaviour.lock().unwrap(), Behaviour::Stopped) {
            return gone(reader.get_mut());
        }
        if path == "/health" {
            let head = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
            reader.get_mut().write_all(head.as_bytes()).ok()?;
            continue;
        }
        if path == "/v1/models" {
            let model = json!({ "id": "org/Big", "object": "model", "owned_by": "vllm", "max_model_len": 4096 });
            let body = json!({ "object": "list", "data": [model] }).to_string();
            let length = body.len();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n");
            reader.get_mut().write_all(&[head.as_bytes(), body.as_bytes()].concat()).ok()?;
            continue;
        }
        let behaviour = behaviour.lock().unwrap().clone();
        let stream = reader.get_mut();
        match behaviour {
            Behaviour::Say(chunks) => whole(stream, &chunks)?,
            Behaviour::Late(chunks, pause) => {
                thread::sleep(pause);
                whole(stream, &chunks)?;
            }
            Behaviour::Once(chunks) => {
                if requests > 1 {
                    return Some(());
                }
                whole(stream, &chunks)?;
            }
            Behaviour::Twice(first, second, pause) => {
                whole(stream, &first)?;
                thread::sleep(pause);
                whole(stream, &second)?;
            }
            Behaviour::Slowly(chunks, pause) => {
                begin(stream)?;
                for chunk in &chunks {
                    thread::sleep(pause);
                    event(stream, &chunk.to_string())?;
                }
                event(stream, "[DONE]")?;
                stream.write_all(b"0\r\n\r\n").ok()?;
            }
            Behaviour::Stamped(count, pause) => {
                begin(stream)?;
                for _ in 0..count {
                    thread::sleep(pause);
                    event(stream, &text(&format!("{} ", now_us())).to_string())?;
                }
                end("stop").iter().try_for_each(|chunk| event(stream, &chunk.to_string()))?;
                event(stream, "[DONE]")?;
                stream.write_all(b"0\r\n\r\n").ok()?;
            }
            Behaviour::Drop(chunks) => {
                begin(stream)?;
                chunks.iter().try_for_each(|chunk| event(stream, &chunk.to_string()))?;
                return Some(());
            }
            Behaviour::Hang(chunks) => {
                begin(stream)?;
                chunks.iter().try_for_each(|chunk| event(stream, &chunk.to_string()))?;
                return gone(stream);
            }
            Behaviour::Raw(bytes) => stream.write_all(&bytes).ok()?,
            Behaviour::Flood(first, more) => {
                stream.write_all(&first).ok()?;
                while stream.write_all(&more).is_ok() {}
                return None;
            }
            Behaviour::Silent | Behaviour::Stopped => return gone(stream),
        }
    }
}

/// Waits until the other side has gone.
fn gone(stream: &mut impl Read) -> Option<()> {
    let _ = stream.read(&mut [0]);
    None
}

/// A response with these pieces.
fn whole(stream: &mut impl Write, chunks: &[Value]) -> Option<()> {
    begin(stream)?;
    chunks.iter().try_for_each(|chunk| event(stream, &chunk.to_string()))?;
    event(stream, "[DONE]")?;
    stream.write_all(b"0\r\n\r\n").ok()
}

fn begin(stream: &mut impl Write) -> Option<()> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).ok()
}

fn event(stream: &mut impl Write, data: &str) -> Option<()> {
    let event = format!("data: {data}\n\n");
    stream.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()).ok()
}

fn read(reader: &mut impl BufRead) -> Option<Seen> {
    let mut line = || {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        Some(line.trim_end().to_owned())
    };
    let path = line()?.split(' ').nth(1)?.to_owned();
    let mut headers = Vec::new();
    loop {
        let line = line()?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':')?;
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let length =
        headers.iter().find(|(name, _)| name == "content-length").map_or(0, |(_, value)| value.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Seen { path, headers, body: serde_json::from_slice(&body).unwrap_or(Value::Null) })
}
