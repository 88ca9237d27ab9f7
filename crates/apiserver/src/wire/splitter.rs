//! Cuts the body of a watch, which comes in chunks of any size, into frames: lines of JSON, or protobuf after
//! a length of four bytes, the highest first.
//!
//! Nothing is allocated for a frame that has only been announced: the buffer grows with what arrived, and a
//! frame larger than the limit ends the watch.

use bytes::{Buf, Bytes, BytesMut};

use super::{DecodeError, Encoding};

/// Largest frame that is taken, in bytes. etcd takes requests of 1.5 MiB unless told otherwise; as JSON the
/// same object is larger by a factor of two or so.
pub(crate) const MAX_FRAME: usize = 16 << 20;

/// A buffer that has grown beyond this many bytes for one large object is given back when it is empty.
const KEPT_BUFFER: usize = 64 << 10;

/// Size of the length before a frame of protobuf, in bytes.
const PREFIX: usize = 4;

/// Cuts one watch into frames.
#[derive(Debug)]
pub struct Splitter {
    encoding: Encoding,
    limit: usize,
    buffer: BytesMut,
    /// How much of the buffer is known to hold no end of a line.
    searched: usize,
}

impl Splitter {
    /// Takes frames of `limit` bytes at most.
    pub(super) fn new(encoding: Encoding, limit: usize) -> Self {
        Self { encoding, limit, buffer: BytesMut::new(), searched: 0 }
    }

    /// Takes the next chunk of the body. [`Splitter::next_frame`] is then to be asked until there is none.
    pub fn push(&mut self, chunk: &[u8]) {
        self.buffer.extend_from_slice(chunk);
    }

    /// The next frame that is complete.
    ///
    /// # Errors
    /// If the next frame is too large. The watch cannot be read further then.
    pub fn next_frame(&mut self) -> Result<Option<Bytes>, DecodeError> {
        let frame = match self.encoding {
            Encoding::Json => self.next_line()?,
            Encoding::Protobuf => self.next_delimited()?,
        };
        if self.buffer.is_empty() && self.buffer.capacity() > KEPT_BUFFER {
            self.buffer = BytesMut::new();
        }
        Ok(frame)
    }

    /// To be asked when the body has ended.
    ///
    /// # Errors
    /// If it ended inside a frame.
    pub fn finish(&self) -> Result<(), DecodeError> {
        if self.buffer.iter().all(u8::is_ascii_whitespace) {
            return Ok(());
        }
        Err(DecodeError::CutOff(self.buffer.len()))
    }

    fn next_line(&mut self) -> Result<Option<Bytes>, DecodeError> {
        loop {
            let unsearched = self.buffer.get(self.searched..).unwrap_or_default();
            let Some(end) = unsearched.iter().position(|byte| *byte == b'\n') else {
                self.searched = self.buffer.len();
                self.check(self.searched)?;
                return Ok(None);
            };
            let end = self.searched + end;
            self.searched = 0;
            self.check(end)?;
            let line = self.buffer.split_to(end).freeze();
            self.buffer.advance(1);
            if !line.iter().all(u8::is_ascii_whitespace) {
                return Ok(Some(line));
            }
        }
    }

    fn next_delimited(&mut self) -> Result<Option<Bytes>, DecodeError> {
        let Some(prefix) = self.buffer.first_chunk::<PREFIX>() else { return Ok(None) };
        let size = usize::try_from(u32::from_be_bytes(*prefix)).unwrap_or(usize::MAX);
        self.check(size)?;
        if self.buffer.len() - PREFIX < size {
            return Ok(None);
        }
        self.buffer.advance(PREFIX);
        Ok(Some(self.buffer.split_to(size).freeze()))
    }

    fn check(&self, size: usize) -> Result<(), DecodeError> {
        if size > self.limit { Err(DecodeError::TooLarge { size, limit: self.limit }) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delimited(frames: &[&str]) -> Vec<u8> {
        let frame =
            |text: &&str| [&u32::try_from(text.len()).unwrap().to_be_bytes()[..], text.as_bytes()].concat();
        frames.iter().flat_map(frame).collect()
    }

    fn drain(splitter: &mut Splitter) -> Result<Vec<Bytes>, DecodeError> {
        let mut frames = Vec::new();
        while let Some(frame) = splitter.next_frame()? {
            frames.push(frame);
        }
        Ok(frames)
    }

    /// What comes out of a body that comes in chunks of that size.
    fn split(encoding: Encoding, body: &[u8], chunk: usize) -> Result<Vec<Bytes>, DecodeError> {
        let mut splitter = Splitter::new(encoding, 8);
        let mut frames = Vec::new();
        for chunk in body.chunks(chunk) {
            splitter.push(chunk);
            frames.extend(drain(&mut splitter)?);
        }
        splitter.finish()?;
        Ok(frames)
    }

    #[test]
    fn frames_come_out_whole_however_the_body_is_chunked() {
        let frames = ["{}", "{\"a\":1}", "12345678"];
        let lines = b"{}\n{\"a\":1}\n\n \r\n12345678\n";
        for chunk in 1..=lines.len() {
            assert_eq!(split(Encoding::Json, lines, chunk).unwrap(), frames, "lines by {chunk}");
            let body = delimited(&frames);
            assert_eq!(split(Encoding::Protobuf, &body, chunk).unwrap(), frames, "delimited by {chunk}");
        }
        assert_eq!(split(Encoding::Protobuf, &delimited(&["", "a"]), 3).unwrap(), ["", "a"]);
    }

    #[test]
    fn a_frame_beyond_the_limit_ends_the_watch_before_it_is_taken() {
        let too_large = DecodeError::TooLarge { size: 9, limit: 8 };
        for (encoding, body) in [
            (Encoding::Json, b"123456789".to_vec()),
            (Encoding::Json, b"123456789\n".to_vec()),
            (Encoding::Protobuf, delimited(&["123456789"])),
        ] {
            assert_eq!(split(encoding, &body, 100), Err(too_large.clone()));
        }
        let mut splitter = Encoding::Protobuf.splitter();
        splitter.push(&(16_u32 << 20).to_be_bytes());
        assert_eq!(splitter.next_frame(), Ok(None));
        assert!(splitter.buffer.capacity() < 1024, "an announcement allocates nothing");
    }

    #[test]
    fn a_body_that_ends_inside_a_frame_says_so() {
        assert_eq!(split(Encoding::Json, b"{}\n{\"a", 100), Err(DecodeError::CutOff(3)));
        assert_eq!(split(Encoding::Protobuf, &delimited(&["abc"])[..6], 100), Err(DecodeError::CutOff(6)));
    }

    #[test]
    fn what_one_large_frame_took_is_given_back() {
        for encoding in [Encoding::Json, Encoding::Protobuf] {
            let mut splitter = encoding.splitter();
            let large = "x".repeat(4 * KEPT_BUFFER);
            let body = match encoding {
                Encoding::Json => format!("{large}\n").into_bytes(),
                Encoding::Protobuf => delimited(&[&large]),
            };
            splitter.push(&body);
            assert_eq!(drain(&mut splitter).unwrap(), [large]);
            assert!(splitter.buffer.capacity() <= KEPT_BUFFER);
        }
    }
}
