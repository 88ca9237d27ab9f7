//! A TCP stream that is read in large pieces.
//!
//! rustls asks its socket for 4 KiB at a time: three or four system calls for each event of a node, and a quarter of a
//! million for the pods of a large cluster. [`ReadAhead`] asks once for what is there. Writes go through as they are.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use hyper_util::{
    client::legacy::connect::{Connected, Connection},
    rt::TokioIo,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, BufReader, ReadBuf},
    net::TcpStream,
};

/// One TLS record, which is what the API server sends at most at a time, with its header.
const PIECE: usize = 17 * 1024;

/// See the module.
#[derive(Debug)]
pub struct ReadAhead(BufReader<TcpStream>);

impl ReadAhead {
    /// Takes a connection over.
    pub fn over(stream: TokioIo<TcpStream>) -> TokioIo<Self> {
        TokioIo::new(Self(BufReader::with_capacity(PIECE, stream.into_inner())))
    }
}

impl Connection for ReadAhead {
    fn connected(&self) -> Connected {
        self.0.get_ref().connected()
    }
}

impl AsyncRead for ReadAhead {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for ReadAhead {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    #[tokio::test]
    async fn what_was_sent_is_read_whole_in_small_pieces_and_the_end_is_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let sent: Vec<u8> = (0..100_000_u32).map(|number| u8::try_from(number % 251).unwrap()).collect();
        let (stream, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (mut peer, _) = accepted.unwrap();
        let mut stream = ReadAhead::over(TokioIo::new(stream.unwrap())).into_inner();
        let (expected, writing) = (sent.clone(), async move {
            peer.write_all(&sent).await.unwrap();
            let mut said = [0; 4];
            peer.read_exact(&mut said).await.unwrap();
            said
        });
        let reading = async {
            let (mut all, mut piece) = (Vec::new(), [0; 4_096]);
            while all.len() < expected.len() {
                let read = stream.read(&mut piece).await.unwrap();
                all.extend_from_slice(&piece[..read]);
            }
            stream.write_all(b"done").await.unwrap();
            assert_eq!(stream.read(&mut piece).await.unwrap(), 0);
            all
        };
        let (all, said) = tokio::join!(reading, writing);
        assert!(all == expected);
        assert_eq!(&said, b"done");
    }
}
