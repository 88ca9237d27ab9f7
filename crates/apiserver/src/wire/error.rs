//! Why something on the wire cannot be read. The text names the place and never quotes what is there: it goes
//! into the log, and the bytes may be a secret's.

use serde::de::DeserializeOwned;
use thiserror::Error;

/// Why bytes cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// JSON that is broken, or of which a field has a value of a wrong type or form.
    #[error("{path}: {what} at line {line}, column {column}")]
    Json {
        /// Path of the field, `.` for the whole.
        path: String,
        /// What is wrong.
        what: &'static str,
        /// Where, from 1.
        line: usize,
        /// Where, in bytes from 1.
        column: usize,
    },
    /// Protobuf that is broken, or a value that the field cannot have.
    #[error("{path}: {what}")]
    Value {
        /// Path of the field, `.` for the whole.
        path: String,
        /// What is wrong.
        what: &'static str,
    },
    /// Protobuf that does not begin as the answers of an API server do, or uses what none of them uses.
    #[error("the envelope: {0}")]
    Envelope(&'static str),
    /// Something else than was asked for.
    #[error("it is no {0}")]
    Kind(&'static str),
    /// An event of a watch or an object of a list that is larger than is taken.
    #[error("an event or object has {size} bytes or more, {limit} at most are taken")]
    TooLarge {
        /// Size, in bytes.
        size: usize,
        /// What is taken at most, in bytes.
        limit: usize,
    },
    /// A watch or a list that ended inside an event or object.
    #[error("it ended inside an event or object, after {0} bytes of it")]
    CutOff(usize),
}

impl DecodeError {
    /// What is wrong with the field of that path.
    pub(crate) fn value(path: &str, what: &'static str) -> Self {
        Self::Value { path: path.to_owned(), what }
    }

    /// The same, of what is in that field. Its name is that of the field in the code, and is told as the API has it.
    pub(crate) fn within(self, field: &str) -> Self {
        let Self::Value { path, what } = self else { return self };
        let mut words = field.trim_start_matches("r#").split('_');
        let mut within = words.next().unwrap_or_default().to_owned();
        for word in words {
            let (first, rest) = word.split_at_checked(1).unwrap_or_default();
            within.extend([&*first.to_ascii_uppercase(), rest]);
        }
        if path != "." {
            within.extend([".", &*path]);
        }
        Self::Value { path: within, what }
    }

    /// What serde_json says, without the values that it quotes. It does not know the field; that is found by
    /// reading once more.
    pub(super) fn json<T: DeserializeOwned>(raw: &[u8], error: &serde_json::Error) -> Self {
        let mut again = serde_json::Deserializer::from_slice(raw);
        let path = match serde_path_to_error::deserialize::<_, T>(&mut again) {
            Err(error) => error.path().to_string(),
            Ok(_) => ".".to_owned(),
        };
        let what = match error.classify() {
            serde_json::error::Category::Data => "a value of a wrong type or form",
            serde_json::error::Category::Eof => "the end is missing",
            serde_json::error::Category::Syntax | serde_json::error::Category::Io => "no JSON",
        };
        Self::Json { path, what, line: error.line(), column: error.column() }
    }
}
