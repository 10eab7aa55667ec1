//! A hub that a test can make fail: the two Hugging Face hub requests that a download needs, over plain sockets.

use serde_json::{Value, json};
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::{
    collections::VecDeque,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What goes wrong with one response.
#[derive(Clone, Debug)]
pub enum Fault {
    /// A different status, with a header.
    Status(u16, &'static str),
    /// Cuts the connection after this many bytes of the body.
    Cut(usize),
    /// Sends nothing after this many bytes, but keeps the connection open.
    Stall(usize),
    /// Pieces of this many bytes, with a pause after each.
    Trickle(usize, Duration),
    /// The whole file, although a range was requested.
    WholeFile,
    /// A different range from the requested one.
    OtherPart,
    /// The right number of wrong bytes.
    OtherBytes,
    /// Redirects to this address.
    Elsewhere(String),
}

/// A request that was received.
#[derive(Clone, Debug)]
pub struct Asked {
    pub path: String,
    pub range: Option<String>,
    pub authorization: Option<String>,
    pub host: String,
}

/// A hub with one repository, `owner/repo`. Its threads end with the test run.
pub struct Hub {
    pub port: u16,
    state: Arc<State>,
}

struct State {
    files: Vec<(String, Vec<u8>)>,
    listing: Mutex<Value>,
    faults: Mutex<VecDeque<(&'static str, Fault)>>,
    asked: Mutex<Vec<Asked>>,
}

impl Hub {
    /// Serves these files; large ones, or those named so, are stored as the hub stores large files.
    pub fn serve(files: &[(&str, Vec<u8>)]) -> Self {
        let files: Vec<(String, Vec<u8>)> =
            files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.clone())).collect();
        let listed: Vec<Value> = files.iter().map(|(name, bytes)| sibling(name, bytes)).collect();
        let listing = Mutex::new(json!({"sha": COMMIT, "siblings": listed}));
        let state = Arc::new(State { files, listing, faults: Mutex::default(), asked: Mutex::default() });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let serving = state.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = serving.clone();
                // Clients that disconnect midway are part of the test.
                thread::spawn(move || drop(answer(&stream, &state)));
            }
        });
        Self { port, state }
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Makes the next request whose path contains `path` fail this way; further calls apply to later requests.
    pub fn fail(&self, path: &'static str, fault: Fault) {
        self.state.faults.lock().unwrap().push_back((path, fault));
    }

    /// Changes the hub's listing of the repository.
    pub fn relist(&self, change: impl FnOnce(&mut Value)) {
        change(&mut self.state.listing.lock().unwrap());
    }

    /// The requests whose path contains `path`, so far.
    pub fn asked(&self, path: &str) -> Vec<Asked> {
        self.state.asked.lock().unwrap().iter().filter(|asked| asked.path.contains(path)).cloned().collect()
    }
}

/// The SHA-256 in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn sibling(name: &str, bytes: &[u8]) -> Value {
    let git = hex(&Sha1::new().chain_update(format!("blob {}\0", bytes.len())).chain_update(bytes).finalize());
    if name.ends_with(".gguf") || name.ends_with(".safetensors") {
        let lfs = json!({"sha256": sha256(bytes), "size": bytes.len(), "pointerSize": 130});
        return json!({"rfilename": name, "size": bytes.len(), "blobId": git, "lfs": lfs});
    }
    json!({"rfilename": name, "size": bytes.len(), "blobId": git})
}

fn answer(mut stream: &TcpStream, state: &State) -> std::io::Result<()> {
    let Some(asked) = read(stream)? else { return Ok(()) };
    state.asked.lock().unwrap().push(asked.clone());
    let fault = {
        let mut faults = state.faults.lock().unwrap();
        let place = faults.iter().position(|(path, _)| asked.path.contains(path));
        place.and_then(|place| faults.remove(place)).map(|(_, fault)| fault)
    };
    if let Some(Fault::Status(status, header)) = fault {
        return write!(
            stream,
            "HTTP/1.1 {status} Failed\r\n{header}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        );
    }
    if let Some(Fault::Elsewhere(host)) = fault {
        let place = format!("location: {host}/elsewhere{}", asked.path);
        return write!(stream, "HTTP/1.1 302 Found\r\n{place}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    }
    if asked.path == "/api/models/owner/repo/revision/main?blobs=true" {
        let text = state.listing.lock().unwrap().to_string();
        return write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{text}", text.len());
    }
    let name =
        asked.path.split_once(&format!("/owner/repo/resolve/{COMMIT}/")).map(|(_, name)| name.replace("%20", " "));
    let file = name.and_then(|name| state.files.iter().find(|(known, _)| *known == name));
    let Some((_, bytes)) = file else {
        return write!(stream, "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    };
    send(stream, bytes, asked.range.as_deref(), fault)
}

fn send(mut stream: &TcpStream, bytes: &[u8], range: Option<&str>, fault: Option<Fault>) -> std::io::Result<()> {
    let from = range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    let other;
    let (bytes, from) = match fault {
        Some(Fault::WholeFile) => (bytes, None),
        Some(Fault::OtherBytes) => {
            other = bytes.iter().map(|byte| !byte).collect::<Vec<_>>();
            (&other[..], from)
        }
        _ => (bytes, from),
    };
    let body = &bytes[from.unwrap_or(0).min(bytes.len())..];
    let told = if matches!(fault, Some(Fault::OtherPart)) { 1 } else { from.unwrap_or(0) };
    let status = match from {
        Some(_) => format!("206 Partial Content\r\ncontent-range: bytes {told}-{}/{}", bytes.len() - 1, bytes.len()),
        None => "200 OK".to_owned(),
    };
    write!(stream, "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len())?;
    match fault {
        Some(Fault::Cut(count)) => stream.write_all(&body[..count]),
        Some(Fault::Stall(count)) => {
            stream.write_all(&body[..count])?;
            thread::sleep(Duration::from_secs(600));
            Ok(())
        }
        Some(Fault::Trickle(count, pause)) => body.chunks(count).try_for_each(|piece| {
            thread::sleep(pause);
            stream.write_all(piece)
        }),
        _ => stream.write_all(body),
    }
}

fn read(stream: &TcpStream) -> std::io::Result<Option<Asked>> {
    let mut lines = BufReader::new(stream).lines();
    let Some(first) = lines.next().transpose()? else { return Ok(None) };
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut asked = Asked { path, range: None, authorization: None, host: String::new() };
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "range" => asked.range = Some(value.to_owned()),
            "authorization" => asked.authorization = Some(value.to_owned()),
            "host" => value.clone_into(&mut asked.host),
            _ => {}
        }
    }
    Ok(Some(asked))
}
