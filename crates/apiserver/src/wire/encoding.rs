//! How answers are encoded, and which encodings are asked for.

use clap::ValueEnum;

/// Media type of protobuf.
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// Media type of JSON.
const JSON: &str = "application/json";

/// How an answer is encoded, or asked for, also as a flag says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Encoding {
    /// Kubernetes' protobuf, where the server has it; single answers and objects of events are in an envelope, a watch is
    /// length-delimited.
    #[default]
    #[value(name = "application/vnd.kubernetes.protobuf")]
    Protobuf,
    /// JSON; a watch is one document a line.
    #[value(name = "application/json")]
    Json,
}

impl Encoding {
    /// Its media type.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Protobuf => PROTOBUF,
            Self::Json => JSON,
        }
    }

    /// `Accept` of a list, a read or a write. (client-go sends the same for its built-in types.)
    pub fn single(self) -> &'static str {
        match self {
            Self::Protobuf => "application/vnd.kubernetes.protobuf,application/json",
            Self::Json => JSON,
        }
    }

    /// `Accept` of a watch. The API server adds `stream=watch` to its answer in any case; naming it is what its
    /// documentation asks for.
    pub fn watch(self) -> &'static str {
        match self {
            Self::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch,application/json",
            Self::Json => JSON,
        }
    }

    /// The encoding of an answer by its headers.
    pub fn of(headers: &http::HeaderMap) -> Option<Self> {
        Self::from_content_type(headers.get(http::header::CONTENT_TYPE)?.to_str().ok()?)
    }

    /// The encoding of an answer by its `Content-Type`; `None` for any other (a page of a proxy).
    pub(crate) fn from_content_type(value: &str) -> Option<Self> {
        let media = value.split(';').next().unwrap_or_default().trim();
        [Self::Protobuf, Self::Json].into_iter().find(|it| media.eq_ignore_ascii_case(it.media_type()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_says_how_it_is_encoded() {
        let cases = [
            ("application/json", Some(Encoding::Json)),
            ("Application/JSON; charset=utf-8", Some(Encoding::Json)),
            ("application/vnd.kubernetes.protobuf", Some(Encoding::Protobuf)),
            ("application/vnd.kubernetes.protobuf;stream=watch", Some(Encoding::Protobuf)),
            ("application/json;stream=watch", Some(Encoding::Json)),
            ("application/apply-patch+yaml", None),
            ("text/plain; charset=utf-8", None),
            ("application/vnd.kubernetes.protobuffer", None),
            ("", None),
        ];
        for (value, expected) in cases {
            assert_eq!(Encoding::from_content_type(value), expected, "{value}");
        }
    }
}
