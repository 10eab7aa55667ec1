//! A small HTTP/1.1 client that shows everything: what was sent, byte for byte, and what came back, piece by piece.

use serde_json::Value;
use std::{
    fmt,
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    time::{Duration, Instant},
};

/// Time limit of anything here on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Time limit for a refusal.
const REFUSAL_TIME_MAX: Duration = Duration::from_millis(50);

pub struct Connection {
    reader: BufReader<TcpStream>,
}

/// The head of an answer.
#[derive(Clone, Debug)]
pub struct Head {
    pub status: u16,
    headers: Vec<(String, String)>,
}

/// An answer.
#[derive(Clone)]
pub struct Reply {
    /// Status and headers.
    pub head: Head,
    /// The whole body.
    pub body: Vec<u8>,
}

/// An event of a stream.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerEvent {
    /// Its name; empty for none.
    pub name: String,
    pub data: String,
}

/// The body of a response that is still arriving.
pub struct Incoming {
    connection: Connection,
    /// The head before it.
    pub head: Head,
    pending: Vec<u8>,
    ended: bool,
}

impl Connection {
    /// Connects.
    pub fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("a server that listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        stream.set_nodelay(true).expect("no delay");
        Self { reader: BufReader::new(stream) }
    }

    pub fn socket(&self) -> &TcpStream {
        self.reader.get_ref()
    }

    /// Sends raw bytes. A server that has closed the connection need not accept them.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        self.reader.get_mut().write_all(bytes).is_ok()
    }

    /// Sends a request. Adds `Host` and the length of a body unless the headers have them.
    pub fn ask(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let has = |name: &str| headers.iter().any(|(known, _)| known.eq_ignore_ascii_case(name));
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        if !has("host") {
            let address = self.socket().peer_addr().expect("an address");
            head.push_str(&format!("host: {address}\r\n"));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !has("content-length") && !has("transfer-encoding") && (method == "POST" || !body.is_empty()) {
            head.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        self.send(head.as_bytes());
        self.send(body);
    }

    /// The head of the next response; `None` if the connection ends instead.
    pub fn head(&mut self) -> Option<Head> {
        let status_line = self.line()?;
        let status = status_line.split(' ').nth(1)?.parse().ok()?;
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Some(Head { status, headers });
            }
            let (name, value) = line.split_once(':')?;
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }

    /// The next response, to a request with this method; `None` if the connection ends instead.
    pub fn reply(&mut self, method: &str) -> Option<Reply> {
        let head = self.head()?;
        let mut body = Vec::new();
        if method != "HEAD" && head.status != 204 {
            if head.header("transfer-encoding") == Some("chunked") {
                while let Some(chunk) = self.piece() {
                    body.extend(chunk);
                }
            } else if let Some(length) = head.header("content-length") {
                body = vec![0; length.parse().ok()?];
                self.reader.read_exact(&mut body).ok()?;
            } else {
                self.reader.read_to_end(&mut body).ok()?;
            }
        }
        Some(Reply { head, body })
    }

    /// The next piece of a streamed body, as the server wrote it; `None` at its end, or if the connection ends.
    pub fn piece(&mut self) -> Option<Vec<u8>> {
        let length = usize::from_str_radix(self.line()?.split(';').next()?.trim(), 16).ok()?;
        let mut chunk = vec![0; length];
        self.reader.read_exact(&mut chunk).ok()?;
        self.line()?;
        Some(chunk).filter(|chunk| !chunk.is_empty())
    }

    /// This many bytes of a body; `None` if the connection ends first.
    pub fn bytes(&mut self, count: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.reader.read_exact(&mut bytes).ok()?;
        Some(bytes)
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(read) if read > 0 => Some(line.trim_end_matches(['\r', '\n']).to_owned()),
            _ => None,
        }
    }

    /// True if the server closes the connection without another word.
    pub fn is_closed(&mut self) -> bool {
        matches!(self.reader.read(&mut [0; 1]), Ok(0)) || self.socket().take_error().is_ok_and(|error| error.is_some())
    }

    /// Disconnects immediately, in the middle of anything.
    pub fn leave(self) {
        let _ = self.socket().shutdown(Shutdown::Both);
    }
}

impl Head {
    /// A header by its lowercase name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

impl Reply {
    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("no JSON: {error}: {self:?}"))
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("UTF-8")
    }

    pub fn status(&self) -> u16 {
        self.head.status
    }

    /// A header by its lowercase name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.header(name)
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.head, String::from_utf8_lossy(&self.body))
    }
}

impl Incoming {
    /// Sends a request and waits for the head of the response.
    pub fn open(address: SocketAddr, path: &str, headers: &[(&str, &str)], body: &Value) -> Self {
        let headers = [&[("content-type", "application/json")], headers].concat();
        Self::ask(address, "POST", path, &headers, body.to_string().as_bytes())
    }

    /// Asks for a stream by `GET`, and waits for the head of the response.
    pub fn get(address: SocketAddr, path: &str) -> Self {
        Self::ask(address, "GET", path, &[], b"")
    }

    fn ask(address: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Self {
        let mut connection = Connection::open(address);
        connection.ask(method, path, headers, body);
        let head = connection.head().expect("an answer");
        Self { connection, head, pending: Vec::new(), ended: false }
    }

    /// The next piece, as the server wrote it; `None` at the end.
    pub fn piece(&mut self) -> Option<Vec<u8>> {
        if self.ended {
            return None;
        }
        let chunk = self.connection.piece();
        self.ended = chunk.is_none();
        chunk
    }

    /// The next event of an event stream; comments are skipped.
    pub fn event(&mut self) -> Option<ServerEvent> {
        loop {
            if let Some(end) = self.pending.windows(2).position(|window| window == b"\n\n") {
                let block: Vec<u8> = self.pending.drain(..end + 2).collect();
                let block = String::from_utf8(block).expect("UTF-8");
                let mut event = ServerEvent { name: String::new(), data: String::new() };
                for line in block.lines() {
                    if let Some(name) = line.strip_prefix("event: ") {
                        event.name = name.to_owned();
                    } else if let Some(data) = line.strip_prefix("data: ") {
                        event.data = data.to_owned();
                    }
                }
                if !event.name.is_empty() || !event.data.is_empty() {
                    return Some(event);
                }
                continue;
            }
            let more = self.piece()?;
            self.pending.extend(more);
        }
    }

    /// All remaining events.
    pub fn events(mut self) -> Vec<ServerEvent> {
        std::iter::from_fn(|| self.event()).collect()
    }

    /// Disconnects midway.
    pub fn leave(self) {
        self.connection.leave();
    }
}

impl ServerEvent {
    /// The data as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or_else(|error| panic!("no JSON: {error}: {self:?}"))
    }
}

/// The fastest of a few responses, one of which must come within 50 ms: the machine may be busy with other tests.
pub fn soon(ask: impl Fn() -> Reply) -> Reply {
    let mut quickest = Duration::MAX;
    for _ in 0..20 {
        let begin = Instant::now();
        let reply = ask();
        quickest = quickest.min(begin.elapsed());
        if quickest < REFUSAL_TIME_MAX {
            return reply;
        }
    }
    panic!("the quickest answer took {quickest:?}");
}

/// One request on a new connection.
pub fn request(address: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
    let mut connection = Connection::open(address);
    connection.ask(method, path, headers, body);
    connection.reply(method).expect("an answer")
}

/// Requests a page.
pub fn get(address: SocketAddr, path: &str) -> Reply {
    request(address, "GET", path, &[], b"")
}

/// Posts a JSON body.
pub fn post(address: SocketAddr, path: &str, body: &Value) -> Reply {
    request(address, "POST", path, &[("content-type", "application/json")], body.to_string().as_bytes())
}
