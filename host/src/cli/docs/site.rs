//! The site in a folder, or for a browser on this machine.
//!
//! Some systems hide folders that begin with a dot from browsers, and a file in a cache is one; a port on loopback is open to
//! all of them. What is served is the same for everybody, and no secret.

use std::{
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use crate::cli::error::{CliError, CliResult};
use pensieve_docs::START;

const REQUEST_BYTES_MAX: u64 = 16 << 10;
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections at once; a browser has six for one server.
const CONNECTIONS_MAX: usize = 64;

/// Writes all files, and returns the path of the first page.
pub(super) fn write(folder: &Path) -> Result<PathBuf, CliError> {
    for file in pensieve_docs::site() {
        let path = folder.join(&file.name);
        let made = path.parent().map_or(Ok(()), fs::create_dir_all);
        let written = made.and_then(|()| fs::write(&path, &file.content));
        written.map_err(|error| CliError::system(format!("'{}'", path.display()), &error))?;
    }
    Ok(folder.join(START))
}

/// Answers until the process ends.
pub(super) fn serve(listener: &TcpListener) -> CliResult {
    static OPEN: AtomicUsize = AtomicUsize::new(0);
    for connection in listener.incoming() {
        let Ok(connection) = connection else { continue };
        if OPEN.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            OPEN.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let answered = thread::Builder::new().spawn(move || {
            // A browser that has gone needs no answer.
            let _ = answer(&connection);
            OPEN.fetch_sub(1, Ordering::Relaxed);
        });
        answered.map_err(|error| CliError::system("threads cannot be started", &error))?;
    }
    Ok(())
}

/// Reads one request, and writes its answer.
fn answer(mut connection: &TcpStream) -> io::Result<()> {
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.set_write_timeout(Some(PATIENCE))?;
    let mut lines = BufReader::new(connection.take(REQUEST_BYTES_MAX)).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    // The rest of the head: a socket that is closed with bytes to read is reset.
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let mut words = first.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let name = target.split(['?', '#']).next().unwrap_or_default().trim_start_matches('/');
    let name = if name.is_empty() { START } else { name };
    let (status, media_type, content): (_, _, &[u8]) = match (method, pensieve_docs::find(name)) {
        ("GET" | "HEAD", Some(file)) => ("200 OK", file.media_type, &file.content[..]),
        ("GET" | "HEAD", None) => ("404 Not Found", "text/plain", &b"The documentation has no such page.\n"[..]),
        _ => ("405 Method Not Allowed", "text/plain", &b"These pages are only read.\n"[..]),
    };
    write!(
        connection,
        "HTTP/1.1 {status}\r\ncontent-type: {media_type}\r\ncontent-length: {}\r\nconnection: close\r\n\
         x-content-type-options: nosniff\r\ncontent-security-policy: default-src 'none'; script-src 'self'; \
         style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n\r\n",
        content.len()
    )?;
    connection.write_all(if method == "HEAD" { &[] } else { content })?;
    connection.flush()
}
