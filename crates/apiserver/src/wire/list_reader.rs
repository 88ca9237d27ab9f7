//! Takes a page of a list apart while it arrives: first what the list says of itself, then one object after the
//! other.
//!
//! In: the body in chunks of any size. Out: [`ListPart`]s. Of protobuf no more is held than one object, however long
//! the page is, so pages can be long: the API server looks at everything that is still to come for each page that it
//! serves from its cache. A page of JSON is held whole.
//!
//! kube-apiserver: `apimachinery/pkg/runtime/serializer/protobuf/collections.go` writes a list in this order, object
//! by object.

use bytes::{Buf, BytesMut};

use super::{DecodeError, Encoding, ListPart, MAX_FRAME, json, values::ListMeta};
use crate::protobuf::{PREFIX, TypeMeta, read};

/// Most bytes of a number on the wire.
const LONGEST_VARINT: usize = 10;

/// Reads one page.
#[derive(Debug)]
pub struct ListReader(Reader);

#[derive(Debug)]
enum Reader {
    /// What has arrived.
    Arriving(BytesMut),
    /// A page of JSON that was taken apart, the last part first.
    Apart(Vec<ListPart>),
    Protobuf(Protobuf),
}

impl ListReader {
    /// For a page in that encoding.
    pub fn new(encoding: Encoding) -> Self {
        Self(match encoding {
            Encoding::Json => Reader::Arriving(BytesMut::new()),
            Encoding::Protobuf => Reader::Protobuf(Protobuf::default()),
        })
    }

    /// How much of the page is held, in bytes.
    pub fn held(&self) -> usize {
        match &self.0 {
            Reader::Arriving(buffer) => buffer.len(),
            Reader::Apart(_) => 0,
            Reader::Protobuf(reader) => reader.buffer.len(),
        }
    }

    /// Takes the next chunk of the body. [`ListReader::next_part`] is then to be asked until there is none.
    pub fn push(&mut self, chunk: &[u8]) {
        match &mut self.0 {
            Reader::Arriving(buffer) => buffer.extend_from_slice(chunk),
            Reader::Apart(_) => {}
            Reader::Protobuf(reader) => reader.buffer.extend_from_slice(chunk),
        }
    }

    /// The next part that is complete.
    ///
    /// # Errors
    /// If it is no list, does not tell its revision, or cannot be taken apart: nothing may be concluded then from
    /// what it lacks.
    pub fn next_part(&mut self) -> Result<Option<ListPart>, DecodeError> {
        match &mut self.0 {
            Reader::Arriving(_) => Ok(None),
            Reader::Apart(parts) => Ok(parts.pop()),
            Reader::Protobuf(reader) => reader.next_part(),
        }
    }

    /// To be asked when the body has ended and before the last parts are: those of JSON come only then.
    ///
    /// # Errors
    /// As [`ListReader::next_part`], and if the body ended before the list did.
    pub fn end(&mut self) -> Result<(), DecodeError> {
        match &mut self.0 {
            Reader::Apart(_) => Ok(()),
            Reader::Protobuf(reader) => reader.end(),
            Reader::Arriving(buffer) => {
                let mut parts = json::list_parts(&std::mem::take(buffer).freeze())?;
                parts.reverse();
                self.0 = Reader::Apart(parts);
                Ok(())
            }
        }
    }
}

/// Where in a page of protobuf the next byte is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Position {
    /// In what all answers begin with.
    #[default]
    Prefix,
    /// In the `runtime.Unknown`, between two fields.
    Envelope,
    /// In the list, so many bytes before its end, between two fields.
    List(usize),
}

#[derive(Debug, Default)]
struct Protobuf {
    buffer: BytesMut,
    position: Position,
    /// So many bytes of a field that is not needed are still to come.
    skipped: usize,
    is_list: bool,
    has_revision: bool,
}

/// A field's number and length.
struct Field {
    number: u64,
    /// Size of what is before the value, in bytes.
    header: usize,
    /// Size of the value, in bytes.
    size: usize,
    /// Whether the value is a text, a message, or bytes.
    is_delimited: bool,
}

impl Protobuf {
    fn next_part(&mut self) -> Result<Option<ListPart>, DecodeError> {
        loop {
            let skipped = self.skipped.min(self.buffer.len());
            self.buffer.advance(skipped);
            self.skipped -= skipped;
            if self.skipped > 0 {
                return Ok(None);
            }
            let left = match self.position {
                Position::Prefix => {
                    let some = self.buffer.len().min(PREFIX.len());
                    if self.buffer.get(..some) != PREFIX.get(..some) {
                        return Err(DecodeError::Envelope("there is none"));
                    }
                    if some < PREFIX.len() {
                        return Ok(None);
                    }
                    self.buffer.advance(some);
                    self.position = Position::Envelope;
                    continue;
                }
                Position::List(0) => {
                    self.position = Position::Envelope;
                    continue;
                }
                Position::Envelope => None,
                Position::List(left) => Some(left),
            };
            let Some(field) = field(&self.buffer)? else { return Ok(None) };
            let whole = field.header.saturating_add(field.size);
            if left.is_some_and(|left| whole > left) {
                return Err(DecodeError::value("items", "one ends after the list"));
            }
            if left.is_none() && field.is_delimited && field.number == 2 {
                if !self.is_list {
                    return Err(DecodeError::Kind("list"));
                }
                self.buffer.advance(field.header);
                self.position = Position::List(field.size);
                continue;
            }
            if !(field.is_delimited && (1..=3).contains(&field.number)) {
                self.pass(left, whole);
                self.skipped = whole;
                continue;
            }
            if field.size > MAX_FRAME {
                return Err(DecodeError::TooLarge { size: field.size, limit: MAX_FRAME });
            }
            if self.buffer.len() < whole {
                return Ok(None);
            }
            self.pass(left, whole);
            self.buffer.advance(field.header);
            let value = self.buffer.split_to(field.size).freeze();
            match (left, field.number) {
                (None, 1) => {
                    self.is_list = read::<TypeMeta>(&value)?.kind.ends_with("List");
                }
                (None, 3) if !value.is_empty() => {
                    return Err(DecodeError::Envelope("it has a content encoding"));
                }
                (Some(_), 1) => return self.meta(&value).map(Some),
                (Some(_), 2) if !self.has_revision => {
                    return Err(DecodeError::value("metadata", "it is missing"));
                }
                (Some(_), 2) => return Ok(Some(ListPart::Item(value))),
                _ => {}
            }
        }
    }

    fn pass(&mut self, left: Option<usize>, size: usize) {
        if let Some(left) = left {
            self.position = Position::List(left - size);
        }
    }

    fn meta(&mut self, value: &[u8]) -> Result<ListPart, DecodeError> {
        let meta: ListMeta = read(value)?;
        self.has_revision = true;
        meta.part()
    }

    fn end(&self) -> Result<(), DecodeError> {
        match self.position {
            Position::Prefix => Err(DecodeError::Envelope("there is none")),
            Position::Envelope if self.buffer.is_empty() && self.skipped == 0 => {
                if self.has_revision {
                    return Ok(());
                }
                let no_metadata = DecodeError::value("metadata", "it is missing");
                Err(if self.is_list { no_metadata } else { DecodeError::Kind("list") })
            }
            _ => Err(DecodeError::CutOff(self.buffer.len())),
        }
    }
}

/// The field that the bytes begin with, once it is known how long it is.
fn field(bytes: &[u8]) -> Result<Option<Field>, DecodeError> {
    let Some((key, key_size)) = varint(bytes)? else { return Ok(None) };
    let rest = bytes.get(key_size..).unwrap_or_default();
    let (header, size, is_delimited) = match key & 7 {
        0 => match varint(rest)? {
            None => return Ok(None),
            Some((_, size)) => (key_size, size, false),
        },
        1 => (key_size, 8, false),
        2 => match varint(rest)? {
            None => return Ok(None),
            Some((size, length)) => (key_size + length, usize::try_from(size).unwrap_or(usize::MAX), true),
        },
        5 => (key_size, 4, false),
        _ => return Err(DecodeError::value("list", "a field of an unknown form")),
    };
    Ok(Some(Field { number: key >> 3, header, size, is_delimited }))
}

/// A number and its size in bytes, if all of it is there.
fn varint(bytes: &[u8]) -> Result<Option<(u64, usize)>, DecodeError> {
    let some = bytes.get(..bytes.len().min(LONGEST_VARINT)).unwrap_or_default();
    let Some(last) = some.iter().position(|byte| byte & 0x80 == 0) else {
        if some.len() == LONGEST_VARINT {
            return Err(DecodeError::value("list", "a number that does not end"));
        }
        return Ok(None);
    };
    let number = some.get(..=last).unwrap_or_default();
    let value = number.iter().rev().fold(0, |value, byte| (value << 7) | u64::from(byte & 0x7f));
    Ok(Some((value, number.len())))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::ids::ResourceVersion;

    fn delimited(number: u8, value: &[u8]) -> Vec<u8> {
        assert!(value.len() < 128);
        [&[(number << 3) | 2, u8::try_from(value.len()).unwrap()], value].concat()
    }

    fn kind(kind: &str) -> Vec<u8> {
        delimited(1, &delimited(2, kind.as_bytes()))
    }

    fn meta(revision: &str, next: &str) -> Vec<u8> {
        delimited(1, &[delimited(2, revision.as_bytes()), delimited(3, next.as_bytes())].concat())
    }

    fn page(kind: Vec<u8>, list: &[Vec<u8>]) -> Vec<u8> {
        [PREFIX.to_vec(), kind, delimited(2, &list.concat()), delimited(3, b""), delimited(4, b"")].concat()
    }

    fn drain(reader: &mut ListReader) -> Result<Vec<ListPart>, DecodeError> {
        let mut parts = Vec::new();
        while let Some(part) = reader.next_part()? {
            parts.push(part);
        }
        Ok(parts)
    }

    fn read(encoding: Encoding, body: &[u8], chunk: usize) -> Result<Vec<ListPart>, DecodeError> {
        let mut reader = ListReader::new(encoding);
        let mut parts = Vec::new();
        for chunk in body.chunks(chunk) {
            reader.push(chunk);
            parts.extend(drain(&mut reader)?);
        }
        reader.end()?;
        parts.extend(drain(&mut reader)?);
        Ok(parts)
    }

    fn said(revision: u64, next: Option<&str>) -> ListPart {
        ListPart::Meta { revision: ResourceVersion(revision), next: next.map(str::to_owned) }
    }

    fn item(text: &'static str) -> ListPart {
        ListPart::Item(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn parts_come_out_whole_however_the_body_is_chunked() {
        let unknown =
            [delimited(9, b"new"), vec![10 << 3, 0x96, 0x01], vec![(11 << 3) | 5, 1, 2, 3, 4]].concat();
        let list = [meta("42", "more"), delimited(2, b"a"), unknown, delimited(2, b""), delimited(2, b"bc")];
        let body = page(kind("PodList"), &list);
        let json =
            br#"{"kind":"PodList","metadata":{"resourceVersion":"42","continue":"more"},"items":[1,22]}"#;
        for chunk in 1..=body.len().max(json.len()) {
            let expected = [said(42, Some("more")), item("a"), item(""), item("bc")];
            assert_eq!(read(Encoding::Protobuf, &body, chunk).unwrap(), expected, "by {chunk}");
            let expected = [said(42, Some("more")), item("1"), item("22")];
            assert_eq!(read(Encoding::Json, json, chunk).unwrap(), expected, "by {chunk}");
        }
        let empty = page(kind("PodList"), &[meta("42", "")]);
        assert_eq!(read(Encoding::Protobuf, &empty, 1).unwrap(), [said(42, None)]);
    }

    #[test]
    fn objects_come_out_before_the_page_has_ended_and_no_more_is_held_than_one() {
        let body = page(kind("PodList"), &[meta("42", ""), delimited(2, b"first"), delimited(2, b"second")]);
        let mut reader = ListReader::new(Encoding::Protobuf);
        let end = body.len() - b"second".len() - 4;
        reader.push(&body[..end]);
        assert_eq!(drain(&mut reader).unwrap(), [said(42, None), item("first")]);
        assert!(reader.held() <= 2, "{}", reader.held());
    }

    #[test]
    fn a_page_that_is_none_or_ends_too_early_lists_nothing() {
        let missing = DecodeError::value("metadata", "it is missing");
        let list = DecodeError::Kind("list");
        let too_long = {
            let mut body = page(kind("PodList"), &[meta("42", ""), delimited(2, b"a")]);
            let at = body.len() - 6;
            body[at] = 9;
            body
        };
        let cases: Vec<(&str, Vec<u8>, DecodeError)> = vec![
            ("nothing", vec![], DecodeError::Envelope("there is none")),
            ("a page of a proxy", b"404 page not found".to_vec(), DecodeError::Envelope("there is none")),
            ("a beginning", b"k8".to_vec(), DecodeError::Envelope("there is none")),
            ("another kind", page(kind("Pod"), &[meta("42", "")]), list.clone()),
            ("no kind", page(vec![], &[meta("42", "")]), list.clone()),
            ("kind alone", [PREFIX.to_vec(), kind("PodList")].concat(), missing.clone()),
            ("an empty list", page(kind("PodList"), &[]), missing.clone()),
            ("objects first", page(kind("PodList"), &[delimited(2, b"a"), meta("42", "")]), missing),
            (
                "no revision",
                page(kind("PodList"), &[meta("", "")]),
                DecodeError::value("metadata.resourceVersion", "it is no integer"),
            ),
            (
                "an object longer than the list",
                too_long,
                DecodeError::value("items", "one ends after the list"),
            ),
        ];
        for (case, body, error) in cases {
            for chunk in [1, 1000] {
                assert_eq!(read(Encoding::Protobuf, &body, chunk), Err(error.clone()), "{case}");
            }
        }
        let whole = page(kind("PodList"), &[meta("42", ""), delimited(2, b"abc")]);
        for cut in PREFIX.len() + kind("PodList").len() + 1..whole.len() - 4 {
            read(Encoding::Protobuf, &whole[..cut], 1000).expect_err(&format!("cut after {cut} bytes"));
        }
    }

    #[test]
    fn what_is_only_announced_is_not_allocated() {
        let head = [PREFIX.to_vec(), kind("PodList"), vec![(2 << 3) | 2, 0xff, 0xff, 0xff, 0x7f]].concat();
        let item = [&[(2 << 3) | 2][..], &[0xff, 0xff, 0xff, 0x0f]].concat();
        let body = [head, meta("42", ""), item].concat();
        let mut reader = ListReader::new(Encoding::Protobuf);
        reader.push(&body);
        assert_eq!(reader.next_part(), Ok(Some(said(42, None))));
        assert_eq!(reader.next_part(), Err(DecodeError::TooLarge { size: 0x1ff_ffff, limit: MAX_FRAME }));
        let endless = [PREFIX.to_vec(), vec![0xff; LONGEST_VARINT]].concat();
        read(Encoding::Protobuf, &endless, 1).unwrap_err();
    }
}
