//! A wire between a daemon and its API server: it can hold up requests and deliver them later.
//!
//! It passes bytes without interpreting them, with or without TLS, like a load balancer that freezes for some time
//! and then continues. It delivers the bytes of a client that has closed its connection in the meantime. The server
//! notices the close only after its answer, so it executes the request. A [`Balancer`] leads to two servers.

use std::sync::Arc;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::cluster::within_deadline;

/// What is held up of each connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Traffic {
    Flows,
    /// All but so many more chunks.
    HeldAfter(usize),
}

/// A wire; cut when dropped.
pub struct Wire {
    url: String,
    traffic: Arc<watch::Sender<Traffic>>,
    /// Connections of which something is held up.
    held: Arc<watch::Sender<usize>>,
    _stop: DropGuard,
}

impl Wire {
    /// A wire to a server of this machine.
    pub async fn to(server: &str) -> Self {
        let (scheme, address) = server.split_once("://").expect("a URL");
        let address = address.to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind the wire");
        let url = format!("{scheme}://{}", listener.local_addr().expect("a bound socket has an address"));
        let traffic = Arc::new(watch::Sender::new(Traffic::Flows));
        let held = Arc::new(watch::Sender::new(0));
        let stop = CancellationToken::new();
        let accepting = {
            let (traffic, held, stop) = (Arc::clone(&traffic), Arc::clone(&held), stop.clone());
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    let Ok(server) = TcpStream::connect(&address).await else { continue };
                    let (from_client, to_client) = client.into_split();
                    let (from_server, to_server) = server.into_split();
                    let (answers, answered) = watch::channel(());
                    let up = Up {
                        client: from_client,
                        server: to_server,
                        traffic: traffic.subscribe(),
                        held: Arc::clone(&held),
                        answered,
                    };
                    let stop = stop.clone();
                    tokio::spawn(async move { stop.run_until_cancelled(up.carry()).await });
                    tokio::spawn(carry_down(from_server, to_client, answers));
                }
            }
        };
        let stopped = stop.clone();
        tokio::spawn(async move { stopped.run_until_cancelled(accepting).await });
        Self { url, traffic, held, _stop: stop.drop_guard() }
    }

    /// Its address for clients.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Holds up what clients send from now on, but for the next so many chunks of each connection.
    pub fn hold_after(&self, chunks: usize) {
        self.traffic.send_replace(Traffic::HeldAfter(chunks));
    }

    /// Waits until something is held up on so many connections.
    pub async fn holds(&self, connections: usize) {
        self.reaches(&format!("{connections} connections are held up"), |held| held >= connections).await;
    }

    /// Delivers what was held up.
    pub async fn release(&self) {
        self.traffic.send_replace(Traffic::Flows);
        self.reaches("what was held up has been delivered", |held| held == 0).await;
    }

    async fn reaches(&self, what: &str, condition: impl Fn(usize) -> bool) {
        let mut held = self.held.subscribe();
        let reached = within_deadline(what, held.wait_for(|held| condition(*held))).await;
        reached.unwrap_or_else(|late| panic!("{late}")).expect("the wire is there");
    }
}

/// Counts a connection as held up.
struct Held<'a>(&'a watch::Sender<usize>);

impl<'a> Held<'a> {
    fn begin(held: &'a watch::Sender<usize>) -> Self {
        held.send_modify(|count| *count += 1);
        Self(held)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// One connection, on the way to the server.
struct Up {
    client: OwnedReadHalf,
    server: OwnedWriteHalf,
    traffic: watch::Receiver<Traffic>,
    held: Arc<watch::Sender<usize>>,
    /// Tells when the server says anything, and when it closes.
    answered: watch::Receiver<()>,
}

impl Up {
    async fn carry(mut self) {
        let mut chunk = vec![0; 1 << 16];
        let (mut since, mut passed) = (Traffic::Flows, 0);
        let mut was_held = false;
        while let Ok(length @ 1..) = self.client.read(&mut chunk).await {
            let now = *self.traffic.borrow_and_update();
            if now != since {
                (since, passed) = (now, 0);
            }
            passed += 1;
            was_held = matches!(now, Traffic::HeldAfter(chunks) if passed > chunks);
            let _held = was_held.then(|| Held::begin(&self.held));
            if was_held && self.traffic.wait_for(|traffic| *traffic == Traffic::Flows).await.is_err() {
                return;
            }
            self.answered.mark_unchanged();
            if self.server.write_all(&chunk[..length]).await.is_err() {
                return;
            }
        }
        if was_held {
            // Closed is as good as answered.
            let _ = self.answered.changed().await;
        }
        let _ = self.server.shutdown().await;
    }
}

async fn carry_down(mut server: OwnedReadHalf, mut client: OwnedWriteHalf, answers: watch::Sender<()>) {
    let mut chunk = vec![0; 1 << 16];
    let mut is_heard = true;
    while let Ok(length @ 1..) = server.read(&mut chunk).await {
        answers.send_replace(());
        // What a client that has hung up does not hear is read all the same, or the server would see that.
        is_heard = is_heard && client.write_all(&chunk[..length]).await.is_ok();
    }
    let _ = client.shutdown().await;
}

/// A balancer before two servers of this machine; cut when dropped.
pub struct Balancer {
    url: String,
    /// Whether it leads to the first server alone.
    is_out: Arc<watch::Sender<bool>>,
    _stop: DropGuard,
}

impl Balancer {
    /// Leads to these servers.
    pub async fn before(servers: [&str; 2]) -> Self {
        let addresses = servers.map(|server| server.rsplit('/').next().unwrap_or_default().to_owned());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind the balancer");
        let url = format!("https://{}", listener.local_addr().expect("a bound socket has an address"));
        let is_out = Arc::new(watch::Sender::new(false));
        let (state, stop) = (Arc::clone(&is_out), CancellationToken::new());
        let stopped = stop.clone();
        let accepting = async move {
            let mut count = 0_u64;
            while let Ok((mut client, _)) = listener.accept().await {
                count += 1;
                let mut out = state.subscribe();
                // Not in turn: to somebody who makes two connections for each look, it would always lead to the same one.
                let is_second = count.count_ones().is_multiple_of(2) && !*out.borrow_and_update();
                let address = addresses[usize::from(is_second)].clone();
                tokio::spawn(async move {
                    let Ok(mut server) = TcpStream::connect(address).await else { return };
                    let taken_out = async { drop(out.wait_for(|is_out| *is_out && is_second).await) };
                    tokio::select! {
                        _ = copy_bidirectional(&mut client, &mut server) => {}
                        () = taken_out => {}
                    }
                });
            }
        };
        tokio::spawn(async move { stopped.run_until_cancelled(accepting).await });
        Self { url, is_out, _stop: stop.drop_guard() }
    }

    /// Its address for clients.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Leads to the first server alone from now on, and ends the connections to the second, as when that does not answer.
    pub fn take_out(&self) {
        self.is_out.send_replace(true);
    }

    /// Leads to both again.
    pub fn put_back(&self) {
        self.is_out.send_replace(false);
    }
}
