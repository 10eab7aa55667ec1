//! Listens, accepts connections, and shuts down gracefully.

use futures_util::FutureExt;
use std::{
    future::poll_fn,
    io,
    net::SocketAddr,
    sync::Arc,
    task::Poll,
    time::{Duration, Instant},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    time::{sleep, timeout},
};

use super::{
    Keyring, Settings, connection,
    connections::{self, Connections},
    heap,
    service::Service,
};
use crate::{keys::check_secret, requests::Chats};
use pensieve_protocol::{
    refusal::{Refusal, RefusalKind},
    share::ONLY_CLIENT,
};

/// Time for connections to send their last bytes at shutdown.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Concurrent connections that are being refused with a response.
const REFUSALS_MAX: usize = 32;

/// Listening sockets that are not served yet.
#[derive(Debug)]
pub struct Server {
    /// Listeners with their addresses; the first one is the server's main address.
    listeners: Vec<(TcpListener, SocketAddr)>,
    settings: Settings,
    keyring: Arc<Keyring>,
}

impl Server {
    /// Binds the addresses, so that a taken port is reported before anything is started.
    pub async fn bind(settings: Settings) -> Result<Self, Refusal> {
        let mut listeners = Vec::new();
        for listen in &settings.listen {
            let refusal = |error: io::Error| match error.kind() {
                io::ErrorKind::AddrInUse => {
                    let reason = format!("{listen} is taken by another program, perhaps another pensieve");
                    Refusal::new(RefusalKind::Taken, reason, "end it, or choose another port with --listen")
                }
                _ => Refusal::new(
                    RefusalKind::Listen,
                    format!("cannot listen on {listen}: {error}"),
                    "choose another address",
                ),
            };
            let addresses: Vec<SocketAddr> = tokio::net::lookup_host(listen).await.map_err(refusal)?.collect();
            if let Some(reachable) = addresses.iter().find(|address| !address.ip().to_canonical().is_loopback()) {
                check_secret(&settings.keys, &settings.named_keys, &reachable.ip().to_string())?;
            }
            let listener = TcpListener::bind(addresses.as_slice()).await.map_err(refusal)?;
            let address = listener.local_addr().map_err(refusal)?;
            listeners.push((listener, address));
        }
        if listeners.is_empty() {
            return Err(Refusal::new(
                RefusalKind::Listen,
                "there is no address to listen on",
                "name one with --listen",
            ));
        }
        // Other machines can connect.
        let is_open = listeners.iter().any(|(_, address)| !address.ip().to_canonical().is_loopback());
        let keyring = Arc::new(Keyring::new(&settings.keys, &settings.named_keys, is_open));
        Ok(Self { listeners, settings, keyring })
    }

    /// The keys that it accepts, which can be replaced while it runs.
    pub fn keyring(&self) -> &Arc<Keyring> {
        &self.keyring
    }

    pub fn address(&self) -> SocketAddr {
        self.listeners[0].1
    }

    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.listeners.iter().map(|(_, address)| *address)
    }

    async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        poll_fn(|context| {
            let accepted = self.listeners.iter().find_map(|(listener, _)| match listener.poll_accept(context) {
                Poll::Ready(accepted) => Some(accepted),
                Poll::Pending => None,
            });
            accepted.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Serves until `stop`, drains running answers, and shuts the fleet down.
    pub async fn run(self, chats: Arc<Chats>, stop: impl Future<Output = ()>) {
        heap::prepare();
        let limits = self.settings.limits;
        let is_open = self.keyring.is_open();
        let service = Service::new(chats.clone(), &self.settings, self.address(), self.keyring.clone());
        let connections = Connections::new(limits.connections_max);
        let refusals = Arc::new(Semaphore::new(REFUSALS_MAX));
        let (stopping, told) = watch::channel(false);
        let upkeep = tokio::spawn(service.upkeep());
        let mut stop = std::pin::pin!(stop.fuse());
        loop {
            let accepted = tokio::select! {
                accepted = self.accept() => accepted,
                () = &mut stop => break,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // If descriptors run out, all that helps is to wait.
                    tracing::warn!("a connection cannot be accepted: {error}");
                    sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let network = if is_open { connections::network(peer.ip()) } else { ONLY_CLIENT };
            if let Some(place) = connections.admit(network).await {
                tokio::spawn(connection::serve(stream, peer.ip(), place, service.clone(), told.clone()));
            } else if let Ok(permit) = refusals.clone().try_acquire_owned() {
                metrics::counter!("pensieve_http_connections_refused_total").increment(1);
                tokio::spawn(connection::refuse(stream).map(|()| drop(permit)));
            }
        }
        drop(self.listeners);
        tracing::info!("shutting down: no more requests are accepted");
        let _ = stopping.send(true);
        service.close();
        // Accepted requests are answered, even if their model is still loading; after the drain time the rest gets an
        // error.
        let started = Instant::now();
        let _ = timeout(limits.drain, connections.all_ended()).await;
        // Idle workers still write their caches to disk.
        chats.fleet().shutdown(limits.drain.saturating_sub(started.elapsed())).await;
        // Do not wait for clients that do not read the last event.
        let _ = timeout(LAST_WORDS, connections.all_ended()).await;
        upkeep.abort();
        let _ = timeout(LAST_WORDS, service.keep_usage()).await;
    }
}
