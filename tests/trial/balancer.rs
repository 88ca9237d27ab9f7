//! A TCP balancer before the API servers, with a line for each party, so that one party alone can be cut off.
//!
//! In: connections of a party. Out: the same bytes, to and from one of the servers in turn. A line passes, refuses, or holds
//! what it has; TLS goes through it untouched, unless the front answers in the place of the servers.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};

use crate::front::Front;

/// What a line does with what it carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    #[default]
    Pass,
    /// Ends each connection, and each new one at once: a firewall that rejects.
    Refuse,
    /// Keeps all bytes back until it passes again: a firewall that drops.
    Hold,
    /// Answers each request with this status, but those to leases.
    Answer(u16),
}

/// A mode, and how often all connections were cut.
type State = (Mode, u64);

impl Mode {
    /// Whether connections from before are of no use.
    fn breaks(self) -> bool {
        matches!(self, Self::Refuse | Self::Answer(_))
    }
}

/// One party's way to the API servers.
#[derive(Clone, Debug)]
pub struct Line {
    pub url: String,
    state: Arc<watch::Sender<State>>,
}

impl Line {
    /// Listens for a party, and carries its connections to these ports in turn.
    pub async fn open(servers: Arc<[u16]>, front: Front) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind a line");
        let url = format!("https://{}", listener.local_addr().expect("a bound socket has an address"));
        let state = Arc::new(watch::Sender::new(State::default()));
        let of_line = Arc::clone(&state);
        tokio::spawn(async move {
            let turn = AtomicUsize::new(0);
            while let Ok((client, _)) = listener.accept().await {
                let turn = turn.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(carry(client, Arc::clone(&servers), turn, front.clone(), of_line.subscribe()));
            }
        });
        Self { url, state }
    }

    pub fn set(&self, mode: Mode) {
        self.state.send_modify(|(now, cuts)| {
            *cuts += u64::from(now.breaks() || mode.breaks());
            *now = mode;
        });
    }

    /// Ends all connections. New ones pass.
    pub fn cut(&self) {
        self.state.send_modify(|(_, cuts)| *cuts += 1);
    }
}

async fn carry(
    client: TcpStream,
    servers: Arc<[u16]>,
    turn: usize,
    front: Front,
    mut state: watch::Receiver<State>,
) {
    let (mode, cuts) = *state.borrow_and_update();
    match mode {
        Mode::Refuse => return,
        Mode::Answer(code) => {
            tokio::select! {
                _ = state.wait_for(|(_, now)| *now != cuts) => {}
                () = front.answer(client, code) => {}
            }
            return;
        }
        Mode::Pass | Mode::Hold => {}
    }
    let Some(server) = connect(&servers, turn).await else { return };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let (there, back) = (state.clone(), state.clone());
    tokio::select! {
        _ = state.wait_for(|(_, now)| *now != cuts) => {}
        _ = pump(from_client, to_server, there) => {}
        _ = pump(from_server, to_client, back) => {}
    }
}

/// The server whose turn it is, or the next that takes connections.
async fn connect(servers: &[u16], turn: usize) -> Option<TcpStream> {
    for offset in 0..servers.len() {
        let port = servers[(turn + offset) % servers.len()];
        if let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await {
            return Some(server);
        }
    }
    None
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut state: watch::Receiver<State>,
) -> io::Result<()> {
    let mut bytes = vec![0; 16 << 10];
    loop {
        let count = from.read(&mut bytes).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        let _ = state.wait_for(|(mode, _)| *mode != Mode::Hold).await;
        to.write_all(&bytes[..count]).await?;
    }
}
