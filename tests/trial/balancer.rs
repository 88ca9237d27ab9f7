//! A TCP balancer before the API servers, with a line for each party, so that one party alone can be cut off.
//!
//! In: connections of a party. Out: the same bytes, to and from one of the servers in turn. A line passes, refuses, or holds
//! what it has; TLS goes through it untouched, unless the front answers in the place of the servers, or stands between.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_util::task::AbortOnDropHandle;

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

/// What holds for a line now.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    mode: Mode,
    /// How often all connections were cut.
    cuts: u64,
    /// Whether new connections bring no bookmarks.
    withholds: bool,
}

/// So much is carried at once.
const CHUNK: usize = 16 << 10;

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
        self.state.send_modify(|state| {
            state.cuts += u64::from(state.mode.breaks() || mode.breaks());
            state.mode = mode;
        });
    }

    /// Ends all connections. New ones pass.
    pub fn cut(&self) {
        self.state.send_modify(|state| state.cuts += 1);
    }

    /// Ends all connections, so that each watch begins anew without bookmarks.
    pub fn withhold_bookmarks(&self) {
        self.state.send_modify(|state| (state.cuts, state.withholds) = (state.cuts + 1, true));
    }

    /// What was opened meanwhile stays without them until it ends.
    pub fn bring_bookmarks(&self) {
        self.state.send_modify(|state| state.withholds = false);
    }
}

async fn carry(
    client: TcpStream,
    servers: Arc<[u16]>,
    turn: usize,
    front: Front,
    mut state: watch::Receiver<State>,
) {
    let State { mode, cuts, withholds } = *state.borrow_and_update();
    match mode {
        Mode::Refuse => return,
        Mode::Answer(code) => {
            tokio::select! {
                _ = state.wait_for(|now| now.cuts != cuts) => {}
                () = front.answer(client, code) => {}
            }
            return;
        }
        Mode::Pass | Mode::Hold => {}
    }
    let Some(server) = connect(&servers, turn).await else { return };
    if withholds {
        let (near, far) = tokio::io::duplex(CHUNK);
        let _between =
            AbortOnDropHandle::new(tokio::spawn(async move { front.stand_between(far, server).await }));
        pass(client, near, state, cuts).await;
    } else {
        pass(client, server, state, cuts).await;
    }
}

async fn pass<S>(client: TcpStream, server: S, mut state: watch::Receiver<State>, cuts: u64)
where
    S: AsyncRead + AsyncWrite,
{
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = tokio::io::split(server);
    let (there, back) = (state.clone(), state.clone());
    tokio::select! {
        _ = state.wait_for(|now| now.cuts != cuts) => {}
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
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut state: watch::Receiver<State>,
) -> io::Result<()> {
    let mut bytes = vec![0; CHUNK];
    loop {
        let count = from.read(&mut bytes).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        let _ = state.wait_for(|now| now.mode != Mode::Hold).await;
        to.write_all(&bytes[..count]).await?;
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use hyper::{body::Incoming, service::service_fn};
    use hyper_util::rt::TokioIo;
    use kube::{Client, client::Body};
    use test_support::{plain_config::plain_config, visitor::Authority};

    use super::*;
    use crate::front::acceptor;

    /// A server that answers each request with what was asked, and a front with its certificate.
    async fn server() -> (u16, Front) {
        let identity = Authority::of_the_test().vouch_for_server();
        let acceptor = acceptor(&identity.certificate, &identity.key);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let Ok(connection) = acceptor.accept(connection).await else { return };
                    let echo = service_fn(|request: Request<Incoming>| async move {
                        let asked = request.uri().to_string().into_bytes();
                        Ok::<_, Infallible>(Response::new(Body::from(asked)))
                    });
                    let server = hyper::server::conn::http1::Builder::new();
                    let _ = server.serve_connection(TokioIo::new(connection), echo).await;
                });
            }
        });
        let mut config = plain_config("https://127.0.0.1:1");
        config.accept_invalid_certs = true;
        let client = Client::try_from(config).unwrap();
        // Who asks trusts the authority alone.
        let chain = identity.certificate.with_extension("chain");
        let parts = [&identity.certificate, &Authority::of_the_test().file()];
        std::fs::write(&chain, parts.map(|file| std::fs::read_to_string(file).unwrap()).concat()).unwrap();
        (port, Front { certificates: chain, key: identity.key, client })
    }

    #[tokio::test]
    async fn bookmarks_are_withheld_from_connections_of_that_time() {
        const WATCH: &str = "/api/v1/pods?watch=true&allowWatchBookmarks=true";
        const BARE: &str = "/api/v1/pods?watch=true";
        let (port, front) = server().await;
        let line = Line::open([port].into(), front).await;
        let client = || {
            let mut config = plain_config(&line.url);
            config.accept_invalid_certs = true;
            Client::try_from(config).unwrap()
        };
        let asked = async |client: &Client| {
            client.request_text(Request::get(WATCH).body(Vec::new()).unwrap()).await.unwrap()
        };
        let before = client();
        assert_eq!(asked(&before).await, WATCH);
        line.withhold_bookmarks();
        let meanwhile = client();
        assert_eq!(asked(&meanwhile).await, BARE);
        line.bring_bookmarks();
        assert_eq!((asked(&client()).await.as_str(), asked(&meanwhile).await.as_str()), (WATCH, BARE));
    }
}
