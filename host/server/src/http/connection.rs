//! One connection: HTTP/1.1 with limits on everything that a client could delay.

use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{
    convert::Infallible,
    future::poll_fn,
    io,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::TcpStream,
    sync::watch,
    time::{Sleep, sleep, timeout},
};

use super::{
    BYTES_PER_SECOND_MIN, Limits,
    connections::{ConnectionHandle, ConnectionSlot},
    service::{Ends, Service},
    upgrade::Upgraded,
};

/// Time and bytes for which the server keeps reading unwanted input. Closing at once would reset the connection, and a
/// client that is still sending would not see the response.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES_MAX: usize = 64 << 20;

const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
    content-length: 102\r\nconnection: close\r\n\r\n\
    {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"too many connections; try again later\"}}";

/// Serves a connection until it ends or is evicted for another one.
pub(super) async fn serve(
    stream: TcpStream,
    peer: IpAddr,
    place: ConnectionSlot,
    service: Arc<Service>,
    stopping: watch::Receiver<bool>,
) {
    tokio::select! {
        () = serve_requests(stream, peer, place.handle().clone(), service, stopping) => {}
        () = place.evicted() => metrics::counter!("pensieve_http_connections_evicted_total").increment(1),
    }
}

/// Serves requests one after the other. On shutdown the current answer is the last one.
async fn serve_requests(
    stream: TcpStream,
    peer: IpAddr,
    handle: ConnectionHandle,
    service: Arc<Service>,
    mut stopping: watch::Receiver<bool>,
) {
    let Ok(local) = stream.local_addr() else { return };
    let ends = Ends { local: local.ip(), peer };
    // Tokens are small and must be sent at once.
    let _ = stream.set_nodelay(true);
    let limits = *service.limits();
    let upgrading = handle.clone();
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let (service, handle) = (service.clone(), handle.clone());
        // hyper gives the socket back only if this future is Unpin.
        let answer = async move { Ok::<_, Infallible>(service.answer(request, ends, handle).await) };
        Box::pin(answer)
    });
    let socket = TokioIo::new(StallTimeout::new(stream, limits.write_stall));
    let mut connection = builder(&limits).serve_connection(socket, service);
    let mut is_stopping = *stopping.borrow_and_update();
    if is_stopping {
        Pin::new(&mut connection).graceful_shutdown();
    }
    let ended = loop {
        tokio::select! {
            ended = poll_fn(|context| connection.poll_without_shutdown(context)) => break ended,
            changed = stopping.changed(), if !is_stopping => {
                is_stopping = true;
                if changed.is_ok() {
                    Pin::new(&mut connection).graceful_shutdown();
                }
            }
        }
    };
    if let Err(error) = &ended {
        tracing::debug!("a connection ended early: {error}");
    }
    let parts = connection.into_parts();
    let socket = parts.io.into_inner();
    if let Some(upgrade) = upgrading.take_upgrade() {
        if ended.is_ok() {
            upgrade.serve(Upgraded { stream: Box::new(socket), read: parts.read_buf, stopping }).await;
        }
        return;
    }
    let stream = socket.stream;
    if ended.is_ok() && !is_stopping {
        linger(stream).await;
    }
}

/// Refuses a connection with a 503.
pub(super) async fn refuse(mut stream: TcpStream) {
    if timeout(LINGER, stream.write_all(FULL)).await.is_ok_and(|written| written.is_ok()) {
        linger(stream).await;
    }
}

fn builder(limits: &Limits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_headers(limits.headers_max)
        .max_header_size(limits.header_bytes_max)
        .max_buf_size((limits.header_bytes_max * 2).max(64 << 10))
        // A client that closes its half of the connection counts as disconnected.
        .half_close(false)
        .keep_alive(true);
    builder
}

/// Closes a connection in a way that lets the last answer arrive.
async fn linger(mut stream: TcpStream) {
    let closed = async {
        stream.shutdown().await?;
        let (mut buffer, mut read) = (vec![0; 16 << 10], 0);
        while read < LINGER_BYTES_MAX {
            match stream.read(&mut buffer).await? {
                0 => break,
                more => read += more,
            }
        }
        Ok::<(), io::Error>(())
    };
    // Slower clients are cut off.
    let _ = timeout(LINGER, closed).await;
}

/// A socket that fails when the peer reads too slowly or not at all. Waiting to write consumes a time budget, and
/// written bytes refill it.
struct StallTimeout {
    stream: TcpStream,
    limit: Duration,
    left: Duration,
    stall: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl StallTimeout {
    fn new(stream: TcpStream, limit: Duration) -> Self {
        Self { stream, limit, left: limit, stall: None }
    }

    fn wait(&mut self, context: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(result) = &written {
            let waited = self.stall.take().map_or(Duration::ZERO, |(since, _)| since.elapsed());
            let bytes = result.as_ref().map_or(0, |bytes| *bytes);
            self.left = left_after(self.left, waited, bytes, self.limit);
            return written;
        }
        let left = self.left;
        let (_, stall) = self.stall.get_or_insert_with(|| (Instant::now(), Box::pin(sleep(left))));
        ready!(stall.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read, or too slowly")))
    }
}

fn left_after(left: Duration, waited: Duration, bytes: usize, limit: Duration) -> Duration {
    let earned = Duration::from_secs_f64(bytes as f64 / BYTES_PER_SECOND_MIN);
    (left.saturating_sub(waited) + earned).min(limit)
}

impl AsyncRead for StallTimeout {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for StallTimeout {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wait(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.wait(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn who_reads_too_slowly_is_cut_off() {
        let second = Duration::from_secs(1);
        let (mut slow, mut fair) = (60 * second, 60 * second);
        for _ in 0..20 {
            slow = left_after(slow, 10 * second, 4 << 10, 60 * second);
            fair = left_after(fair, 10 * second, 16 << 10, 60 * second);
        }
        assert_eq!((slow.as_secs(), fair), (4, 60 * second));
    }

    #[test]
    fn the_refusal_is_as_long_as_it_says() {
        let text = std::str::from_utf8(FULL).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{}", body.len());
        serde_json::from_str::<serde_json::Value>(body).unwrap();
    }
}
