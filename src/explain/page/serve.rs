//! The page for one person, on loopback (`mooring explain --serve`).
//!
//! In: a port, and a [`PageSource`]. Out: answers over plain HTTP to whom the [`Guard`] admits, until the one who started it has
//! enough.

use std::{io, net::Ipv4Addr};

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{guard::Guard, routes::router, source::PageSource};

/// A place to serve at.
#[derive(Debug)]
pub struct PagePlace {
    listener: TcpListener,
    guard: Guard,
}

impl PagePlace {
    /// Takes a port of the loopback address; 0 is any.
    ///
    /// # Errors
    /// The port is taken, or there are no random bytes for the secret.
    pub async fn take(port: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        let guard = Guard::new(listener.local_addr()?).map_err(io::Error::other)?;
        Ok(Self { listener, guard })
    }

    /// What is printed for the one who may read.
    pub fn url(&self) -> String {
        self.guard.url()
    }

    /// Answers until it is told to stop.
    pub async fn serve(self, source: PageSource, stop: CancellationToken) {
        let serving = axum::serve(self.listener, router(source, self.guard));
        // By itself it does not end.
        let _ = stop.run_until_cancelled(serving.into_future()).await;
    }
}
