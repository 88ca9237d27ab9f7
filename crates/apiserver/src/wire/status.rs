//! `meta/v1.Status`: how the API server says no, in an error answer or at the end of a watch.

use std::time::Duration;

use serde::Deserialize;

use crate::protobuf::message;

/// A `Status`, as far as we read it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// HTTP code.
    pub code: i32,
    /// Reason in one word, such as `NotFound`; the API server always gives one for a failure.
    pub reason: String,
    /// What people read.
    pub message: String,
    /// Details; the default where there are none.
    #[serde(deserialize_with = "or_default")]
    pub details: StatusDetails,
}
message!(Status { message: 3, reason: 4, details: 5, code: 6 });

/// `details` of a [`Status`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusDetails {
    /// Name of the object that it is about.
    pub name: String,
    /// When to come back, in seconds; 0 where the server does not say.
    pub retry_after_seconds: i32,
}
message!(StatusDetails { name: 1, retry_after_seconds: 5 });

impl Status {
    /// When the server asks to come back, if it does.
    pub fn retry_after(&self) -> Option<Duration> {
        let seconds = u64::try_from(self.details.retry_after_seconds).ok().filter(|seconds| *seconds > 0);
        seconds.map(Duration::from_secs)
    }

    /// Whether a revision or `continue` token is too old: only a new list helps.
    pub fn is_expired(&self) -> bool {
        self.code == 410 || self.reason == "Expired" || self.reason == "Gone"
    }
}

fn or_default<'de, D: serde::Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}
