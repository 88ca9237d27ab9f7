//! Bytes between a subject and the API server: a TCP proxy that counts what it carries.
//!
//! The bytes are those of TLS. The proxy takes time of the machine, so rates are measured without it.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    task::JoinSet,
};

/// What a connection reads at once.
const BUFFER: usize = 64 * 1024;

/// Bytes so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bytes {
    /// To the API server.
    pub sent: u64,
    /// From it.
    pub received: u64,
}

impl Bytes {
    /// What was carried since.
    pub fn since(self, before: Self) -> Self {
        Self { sent: self.sent - before.sent, received: self.received - before.received }
    }
}

/// The proxy; it ends when this is dropped.
pub struct Traffic {
    address: SocketAddr,
    sent: Arc<AtomicU64>,
    received: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

impl Traffic {
    /// A proxy before the server of this URL.
    pub async fn start(url: &str) -> Self {
        let server = url.rsplit('/').next().unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
        let address = listener.local_addr().unwrap();
        let (sent, received) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let mut tasks = JoinSet::new();
        let counters = (Arc::clone(&sent), Arc::clone(&received));
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((subject, _)) = listener.accept().await {
                let server = TcpStream::connect(&server).await.expect("connect to the API server");
                for stream in [&subject, &server] {
                    stream.set_nodelay(true).unwrap();
                }
                let (from_subject, to_subject) = subject.into_split();
                let (from_server, to_server) = server.into_split();
                connections.spawn(carry(from_subject, to_server, Arc::clone(&counters.0)));
                connections.spawn(carry(from_server, to_subject, Arc::clone(&counters.1)));
            }
        });
        Self { address, sent, received, _tasks: tasks }
    }

    /// Where a subject finds the API server.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// As of now.
    pub fn read(&self) -> Bytes {
        Bytes { sent: self.sent.load(Ordering::Relaxed), received: self.received.load(Ordering::Relaxed) }
    }
}

async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, counter: Arc<AtomicU64>) {
    let mut buffer = vec![0; BUFFER];
    while let Ok(count) = from.read(&mut buffer).await
        && count > 0
    {
        counter.fetch_add(count as u64, Ordering::Relaxed);
        if to.write_all(&buffer[..count]).await.is_err() {
            break;
        }
    }
    // Whoever has gone is gone for both.
    let _ = to.shutdown().await;
}
