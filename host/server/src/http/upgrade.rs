//! Connections that stop speaking HTTP.

use std::fmt;

use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
};

/// Serves a connection after its last HTTP response.
pub(super) struct Upgrade(Box<dyn FnOnce(Upgraded) -> BoxFuture<'static, ()> + Send>);

/// A connection that does not speak HTTP any more.
pub(super) struct Upgraded {
    pub(super) stream: Box<dyn Duplex>,
    /// Bytes that have been read already.
    pub(super) read: Bytes,
    pub(super) stopping: watch::Receiver<bool>,
}

pub(super) trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Duplex for S {}

impl Upgrade {
    pub(super) fn to<F: Future<Output = ()> + Send + 'static>(
        serve: impl FnOnce(Upgraded) -> F + Send + 'static,
    ) -> Self {
        Self(Box::new(move |upgraded| serve(upgraded).boxed()))
    }

    pub(super) async fn serve(self, upgraded: Upgraded) {
        (self.0)(upgraded).await;
    }
}

impl fmt::Debug for Upgrade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Upgrade(…)")
    }
}
