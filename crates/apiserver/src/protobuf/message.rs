//! Messages as tables: which field of a narrow kind has which number.
//!
//! In: the bytes of a message. Out: a value, made by the table that [`message!`] takes beside the type. Fields that no
//! table names are skipped by their length, and texts are shared without a copy in between. An error names the field by
//! its path, as in JSON.

use std::borrow::Cow;

use arcstr::ArcStr;
use k8s_openapi::jiff::Timestamp;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use serde::de::{DeserializeOwned, value::StrDeserializer};

use crate::{
    ids::{DriverName, NodeName, ResourceVersion, Uid, VolumeName},
    text::{Text, TextList, TextMap, TextSet, share},
    wire::DecodeError,
};

/// What a field has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value<'a> {
    /// A number, or whether something is so.
    Number(u64),
    /// A text, or a message.
    Bytes(&'a [u8]),
    /// Something that no field of ours has.
    Other,
}

/// The fields of a message one after the other, until one cannot be read.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    fn field(&mut self) -> Option<(u32, Value<'a>)> {
        let (number, wire) = decode_key(&mut self.0).ok()?;
        let value = match wire {
            WireType::Varint => Value::Number(decode_varint(&mut self.0).ok()?),
            WireType::LengthDelimited => {
                let size = usize::try_from(decode_varint(&mut self.0).ok()?).ok()?;
                let (value, rest) = self.0.split_at_checked(size)?;
                self.0 = rest;
                Value::Bytes(value)
            }
            WireType::StartGroup | WireType::EndGroup | WireType::SixtyFourBit | WireType::ThirtyTwoBit => {
                skip_field(wire, number, &mut self.0, DecodeContext::default()).ok()?;
                Value::Other
            }
        };
        Some((number, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>), DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field.ok_or_else(|| DecodeError::value(".", "it is no protobuf")))
    }
}

/// A message whose fields have been told apart.
pub(crate) struct Message<'a>(Vec<(u32, Value<'a>)>);

impl<'a> Message<'a> {
    /// Tells the fields of a message apart, of which those with these numbers are wanted, each a bit.
    pub(crate) fn parse(raw: &'a [u8], wanted: u64) -> Result<Self, DecodeError> {
        let mut fields = Vec::new();
        for field in Fields(raw) {
            let field @ (number, _) = field?;
            if wanted.checked_shr(number).is_some_and(|bits| bits & 1 == 1) {
                fields.push(field);
            }
        }
        Ok(Self(fields))
    }

    /// The values of one field.
    pub(crate) fn of(&self, number: u32) -> Values<'_, 'a> {
        Values { fields: &self.0, number }
    }
}

/// The values of one field, of which a list has several.
#[derive(Clone, Copy)]
pub struct Values<'f, 'a> {
    fields: &'f [(u32, Value<'a>)],
    number: u32,
}

impl<'f, 'a> Values<'f, 'a> {
    /// Each value by itself.
    pub(crate) fn each(self) -> impl Iterator<Item = Self> + use<'f, 'a> {
        let Self { fields, number } = self;
        let those = fields.iter().filter(move |(of, _)| *of == number);
        those.map(move |field| Self { fields: std::slice::from_ref(field), number })
    }

    /// The value of a field that has one; of several the last counts.
    fn last(self) -> Option<Value<'a>> {
        self.fields.iter().rev().find(|(of, _)| *of == self.number).map(|(_, value)| *value)
    }

    /// Whether the field is missing.
    pub(crate) fn is_empty(self) -> bool {
        self.last().is_none()
    }

    /// A number; 0 if there is none.
    fn number(self) -> Result<u64, DecodeError> {
        match self.last() {
            Some(Value::Number(number)) => Ok(number),
            None => Ok(0),
            Some(_) => Err(DecodeError::value(".", "it is no number")),
        }
    }

    /// Bytes; none if there are none.
    pub(crate) fn bytes(self) -> Result<&'a [u8], DecodeError> {
        match self.last() {
            Some(Value::Bytes(bytes)) => Ok(bytes),
            None => Ok(&[]),
            Some(_) => Err(DecodeError::value(".", "it is neither a text nor a message")),
        }
    }

    /// A text; empty if there is none. protobuf's strings are UTF-8, but Go does not check. As in the server's JSON,
    /// U+FFFD stands for what is none, so that one such text of a stranger's does not make its object unreadable.
    pub(crate) fn text(self) -> Result<Cow<'a, str>, DecodeError> {
        self.bytes().map(String::from_utf8_lossy)
    }

    /// The value of an enumeration by its name.
    pub(crate) fn name<T: DeserializeOwned>(self) -> Result<T, DecodeError> {
        let name = self.text()?;
        let name: StrDeserializer<'_, serde::de::value::Error> = StrDeserializer::new(&name);
        T::deserialize(name).map_err(|_| DecodeError::value(".", "no value of the enumeration"))
    }

    /// A message with the wanted fields, as [`Message::parse`] has them; one without fields if there is none.
    pub(crate) fn message(self, wanted: u64) -> Result<Message<'a>, DecodeError> {
        Message::parse(self.bytes()?, wanted)
    }
}

/// What can be read from the API server's protobuf.
pub trait FromProtobuf: Sized {
    /// Reads the value of a field, which has the default of its type where it is missing.
    ///
    /// # Errors
    /// A field that is kept cannot be read.
    fn from_values(values: Values<'_, '_>) -> Result<Self, DecodeError>;
}

/// Reads a message without envelope.
pub(crate) fn read<T: FromProtobuf>(raw: &[u8]) -> Result<T, DecodeError> {
    T::from_values(Values { fields: &[(0, Value::Bytes(raw))], number: 0 })
}

/// Makes a type readable as a message: each field from that of its number, some `by` a function of their own. What such a
/// table leaves out has its default, until the function behind `..` has filled it in from the message.
macro_rules! message {
    ($type:ident { $($field:ident: $number:literal $(by $how:path)?),+ $(,)? } $(.. $rest:path)?) => {
        impl $crate::protobuf::FromProtobuf for $type {
            #[allow(unused_mut, reason = "of a message without rest")]
            fn from_values(
                values: $crate::protobuf::Values<'_, '_>,
            ) -> Result<Self, $crate::wire::DecodeError> {
                let wanted = 0 $(| (1 << $number))+ $(| $crate::protobuf::message!(@all $rest))?;
                let message = values.message(wanted)?;
                let mut object = Self {
                    $($field: $crate::protobuf::message!(@read message.of($number) $(, $how)?)
                        .map_err(|error| error.within(stringify!($field)))?,)+
                    $(..$crate::protobuf::message!(@default $rest))?
                };
                $($rest(&mut object, &message)?;)?
                Ok(object)
            }
        }
    };
    (@read $values:expr) => { $crate::protobuf::FromProtobuf::from_values($values) };
    (@read $values:expr, $how:path) => { $how($values) };
    (@default $rest:path) => { Self::default() };
    (@all $rest:path) => { u64::MAX };
}
pub(crate) use message;

/// Types that are made of a text.
macro_rules! texts {
    ($($type:ty: $of:expr;)+) => {$(
        impl FromProtobuf for $type {
            fn from_values(values: Values<'_, '_>) -> Result<Self, DecodeError> {
                values.text().map(|text| $of(&*text))
            }
        }
    )+};
}

texts! {
    String: str::to_owned;
    Box<str>: Box::from;
    ArcStr: share;
    Text: Text::from;
    Uid: Uid::from;
    NodeName: NodeName::shared;
    VolumeName: VolumeName::shared;
    DriverName: DriverName::shared;
}

/// Makes an enumeration readable, by the same names as in JSON.
macro_rules! enumeration {
    ($type:ty) => {
        impl $crate::protobuf::FromProtobuf for $type {
            fn from_values(
                values: $crate::protobuf::Values<'_, '_>,
            ) -> Result<Self, $crate::wire::DecodeError> {
                values.name()
            }
        }
    };
}
pub(crate) use enumeration;

impl FromProtobuf for bool {
    fn from_values(values: Values<'_, '_>) -> Result<Self, DecodeError> {
        values.number().map(|number| number != 0)
    }
}

impl FromProtobuf for i32 {
    fn from_values(values: Values<'_, '_>) -> Result<Self, DecodeError> {
        #[expect(clippy::cast_possible_truncation, reason = "negative ones are written with 64 bits")]
        values.number().map(|number| number as Self)
    }
}

impl FromProtobuf for i64 {
    fn from_values(values: Values<'_, '_>) -> Result<Self, DecodeError> {
        values.number().map(u64::cast_signed)
    }
}

impl FromProtobuf for ResourceVersion {
    fn from_values(values: Values<'_, '_>) -> Result<Self, DecodeError> {
        match &*values.text()? {
            "" => Ok(Self::default()),
            text => text.parse().map(Self).map_err(|_| DecodeError::value(".", "it is no integer")),
        }
    }
}

impl<T: FromProtobuf> FromProtobuf for Option<T> {
    fn from_values(values: Values<'_, '_>) -> Result<Self, DecodeError> {
        values.last().map(|_| T::from_values(values)).transpose()
    }
}

impl<T: FromProtobuf> FromProtobuf for Box<T> {
    fn from_values(values: Values<'_, '_>) -> Result<Self, DecodeError> {
        T::from_values(values).map(Self::new)
    }
}

impl<T: FromProtobuf> FromProtobuf for Vec<T> {
    fn from_values(values: Values<'_, '_>) -> Result<Self, DecodeError> {
        values.each().map(T::from_values).collect()
    }
}

impl FromProtobuf for TextList {
    fn from_values(values: Values<'_, '_>) -> Result<Self, DecodeError> {
        values.each().map(Text::from_values).collect()
    }
}

impl FromProtobuf for TextSet {
    fn from_values(values: Values<'_, '_>) -> Result<Self, DecodeError> {
        values.each().map(Text::from_values).collect()
    }
}

/// A map of texts.
impl FromProtobuf for TextMap {
    fn from_values(values: Values<'_, '_>) -> Result<Self, DecodeError> {
        entries(values, |_, _| true)
    }
}

/// Key and value of an entry of a map.
const ENTRY: u64 = (1 << 1) | (1 << 2);

/// The entries of a map of texts that are kept.
pub(crate) fn entries(
    values: Values<'_, '_>,
    mut is_kept: impl FnMut(&str, &str) -> bool,
) -> Result<TextMap, DecodeError> {
    let mut kept = Vec::new();
    for entry in values.each() {
        let entry = entry.message(ENTRY)?;
        let (key, value) = (entry.of(1).text()?, entry.of(2).text()?);
        if is_kept(&key, &value) {
            kept.push((Text::from(&*key), Text::from(&*value)));
        }
    }
    Ok(kept.into_iter().collect())
}

/// A map of quantities, as written.
pub(crate) fn quantities(values: Values<'_, '_>) -> Result<TextMap, DecodeError> {
    let mut quantities = Vec::new();
    for entry in values.each() {
        let entry = entry.message(ENTRY)?;
        quantities
            .push((Text::from_values(entry.of(1))?, Text::from_values(entry.of(2).message(1 << 1)?.of(1))?));
    }
    Ok(quantities.into_iter().collect())
}

/// A text that stands nowhere else.
pub(crate) fn own(values: Values<'_, '_>) -> Result<ArcStr, DecodeError> {
    values.text().map(|text| ArcStr::from(&*text))
}

/// What can be read of a field; none if it is empty, too.
#[expect(clippy::unnecessary_wraps, reason = "as functions of a table are")]
pub(crate) fn lenient<T: FromProtobuf + Default + PartialEq>(
    values: Values<'_, '_>,
) -> Result<Option<T>, DecodeError> {
    Ok(T::from_values(values).ok().filter(|value| *value != T::default()))
}

/// `meta.v1.Time`. Parts of a second are not read, as in Go. The zero time, which JSON writes as `null`, is an empty
/// message. A time that is out of range counts as the last or first one: anybody may write one into a status, and Go reads it.
pub(crate) fn time<T: From<Timestamp>>(values: Values<'_, '_>) -> Result<Option<T>, DecodeError> {
    let time = values.message((1 << 1) | (1 << 2))?;
    let [seconds, nanos] = [time.of(1), time.of(2)];
    if seconds.is_empty() && nanos.is_empty() {
        return Ok(None);
    }
    let seconds = seconds.number()?.cast_signed();
    let last = if seconds < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Ok(Some(Timestamp::from_second(seconds).unwrap_or(last).into()))
}
