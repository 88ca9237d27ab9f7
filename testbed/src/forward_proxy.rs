//! A proxy on loopback, for programs that reach a server through one: CONNECT and SOCKS5 on one port.
//!
//! In: the names that it alone knows, with their addresses. Out: bytes, passed on as they are, and a record of what was asked: the
//! protocol, the target, and the credentials that were shown. A target that it does not know is refused.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
};
use tokio_util::sync::{CancellationToken, DropGuard};

/// A running proxy; it and its connections end when it is dropped.
#[derive(Debug)]
pub struct ForwardProxy {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
    _stop: DropGuard,
}

impl ForwardProxy {
    /// One that knows these targets (`name:port`).
    ///
    /// # Errors
    /// No port is free.
    pub async fn start(known: &[(&str, SocketAddr)]) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let known = known.iter().map(|(target, address)| ((*target).to_owned(), *address));
        let known: Arc<BTreeMap<String, SocketAddr>> = Arc::new(known.collect());
        let stop = CancellationToken::new();
        let (noted, stopped) = (Arc::clone(&asked), stop.clone());
        tokio::spawn(stop.clone().run_until_cancelled_owned(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let relaying = relay(stream, Arc::clone(&known), Arc::clone(&noted));
                tokio::spawn(stopped.clone().run_until_cancelled_owned(relaying));
            }
        }));
        Ok(Self { address, asked, _stop: stop.drop_guard() })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it was asked since the last time: `CONNECT api:443`, or `SOCKS5 api:443 user:password`.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().map(|mut asked| std::mem::take(&mut *asked)).unwrap_or_default()
    }
}

async fn relay(
    mut stream: TcpStream,
    known: Arc<BTreeMap<String, SocketAddr>>,
    asked: Arc<Mutex<Vec<String>>>,
) -> io::Result<()> {
    let first = stream.read_u8().await?;
    let is_socks = first == 5;
    let (target, credentials) = match first {
        5 => socks_target(&mut stream).await?,
        b'C' => connect_target(&mut stream, first).await?,
        _ => return Err(io::Error::other("neither CONNECT nor SOCKS5")),
    };
    let protocol = if is_socks { "SOCKS5" } else { "CONNECT" };
    let line = format!("{protocol} {target} {credentials}").trim_end().to_owned();
    if let Ok(mut asked) = asked.lock() {
        asked.push(line);
    }
    let (yes, no): (&[u8], &[u8]) = if is_socks {
        (&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0], &[5, 4, 0, 1, 0, 0, 0, 0, 0, 0])
    } else {
        (b"HTTP/1.1 200 Connection established\r\n\r\n", b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
    };
    let Some(address) = known.get(&target) else { return stream.write_all(no).await };
    let mut server = TcpStream::connect(address).await?;
    stream.write_all(yes).await?;
    copy_bidirectional(&mut stream, &mut server).await.map(drop)
}

async fn connect_target(stream: &mut TcpStream, first: u8) -> io::Result<(String, String)> {
    let mut head = vec![first];
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let target = head.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next());
    let target = target.ok_or_else(|| io::Error::other(format!("no CONNECT: {head}")))?;
    let credentials = head.lines().find_map(|line| line.strip_prefix("Proxy-Authorization: "));
    Ok((target.to_owned(), credentials.unwrap_or_default().to_owned()))
}

/// RFC 1928, and RFC 1929 if the client offers it.
async fn socks_target(stream: &mut TcpStream) -> io::Result<(String, String)> {
    let methods = text(stream).await?;
    let mut credentials = String::new();
    if methods.contains('\u{2}') {
        stream.write_all(&[5, 2]).await?;
        stream.read_u8().await?;
        credentials = format!("{}:{}", text(stream).await?, text(stream).await?);
        stream.write_all(&[1, 0]).await?;
    } else {
        stream.write_all(&[5, 0]).await?;
    }
    let mut request = [0; 4];
    stream.read_exact(&mut request).await?;
    if request != [5, 1, 0, 3] {
        return Err(io::Error::other(format!("no connection to a name: {request:?}")));
    }
    let name = text(stream).await?;
    Ok((format!("{name}:{}", stream.read_u16().await?), credentials))
}

/// A length and as many bytes.
async fn text(stream: &mut TcpStream) -> io::Result<String> {
    let mut bytes = vec![0; stream.read_u8().await?.into()];
    stream.read_exact(&mut bytes).await?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
