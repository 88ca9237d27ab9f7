//! What an answer other than success means for the request.
//!
//! In: status, headers, body, and the name of the object asked for. Out: a [`CallError`]. This is the only
//! place that reads `Status` objects of answers to requests.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, header::RETRY_AFTER};

use super::CallError;
use crate::wire::{Encoding, Status};

/// The body of an answer, and how it is encoded, if it says so.
pub(super) type Answer = (Option<Encoding>, Bytes);

/// The longest pause that a server may ask for. An API server asks for seconds; a header of some proxy must not
/// silence an object for a day.
pub(crate) const LONGEST_RETRY_AFTER: Duration = Duration::from_mins(1);

/// What is waited where a server that is too busy names no time.
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(1);

/// How long the server asks to wait, at most [`LONGEST_RETRY_AFTER`]. A date is not read, as by client-go.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(LONGEST_RETRY_AFTER))
}

/// What an answer other than success means, to a request about the object of that name. A 5xx may come
/// after the write was committed, so it proves nothing; a 4xx is sent instead of writing, but for those that a
/// proxy sends when it has lost one of its sides. That an object is gone is believed only if the API server says
/// so of that very object: a proxy on the way answers 404, too, and a namespace or a kind may be what was not
/// found (S23, S24).
pub(crate) fn classify(code: u16, retry_after: Option<Duration>, status: &Status, object: &str) -> CallError {
    let message = if status.message.is_empty() {
        format!("the API server answered {code}")
    } else {
        status.message.clone()
    };
    match (code, status.reason.as_str()) {
        (404, "NotFound") if status.details.name == object => CallError::NotFound(message),
        // The API server always gives a reason.
        (404, "")
        // Request timeout, too early, client closed request.
        | (408 | 425 | 499, _) => CallError::Unknown(told(code, &status.reason, &status.message)),
        // Who answers so does not do what `Expect` asks for, and has not taken the body.
        (417, _) => CallError::NotSent(message),
        (409, "AlreadyExists") => CallError::AlreadyExists(message),
        // A creation names no revision: a quota that lost its races, or a webhook, refuses it.
        (409, _) if !object.is_empty() => CallError::Conflict(message),
        (429, _) => {
            let after =
                retry_after.or(status.retry_after()).unwrap_or(DEFAULT_RETRY_AFTER).min(LONGEST_RETRY_AFTER);
            CallError::Throttled { message, after }
        }
        // A patch that names another UID is an attempt to change an immutable field.
        (422, _) if message.contains("metadata.uid") => CallError::Conflict(message),
        (400..=499, _) => CallError::Refused { code, message },
        _ => CallError::Unknown(told(code, &status.reason, &status.message)),
    }
}

/// A Status as a line: `500 InternalError: etcd is down`.
pub fn told(code: u16, reason: &str, message: &str) -> String {
    let space = if reason.is_empty() { "" } else { " " };
    let colon = if message.is_empty() { "" } else { ": " };
    format!("{code}{space}{reason}{colon}{message}")
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use serde_json::json;

    use super::*;
    use crate::{
        call::{Request, Verb},
        wire::Encoding,
    };

    /// What a body says that claims to be JSON.
    fn classified(code: u16, after: Option<Duration>, body: &[u8], object: &str) -> CallError {
        let mut headers = HeaderMap::new();
        headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        classify(code, after, &Encoding::refusal(&headers, body), object)
    }

    fn body(reason: &str, message: &str) -> Vec<u8> {
        let details = json!({"name": "pv", "kind": "persistentvolumes"});
        json!({"kind": "Status", "reason": reason, "message": message, "details": details})
            .to_string()
            .into_bytes()
    }

    #[test]
    fn answers_are_classified_once() {
        let after = Some(Duration::from_secs(7));
        let cases: [(u16, &str, &str, CallError); 11] = [
            (404, "NotFound", "gone", CallError::NotFound("gone".into())),
            (409, "AlreadyExists", "there", CallError::AlreadyExists("there".into())),
            (409, "Conflict", "stale", CallError::Conflict("stale".into())),
            (
                422,
                "Invalid",
                "metadata.uid: field is immutable",
                CallError::Conflict("metadata.uid: field is immutable".into()),
            ),
            (422, "Invalid", "spec: no", CallError::Refused { code: 422, message: "spec: no".into() }),
            (
                429,
                "TooManyRequests",
                "busy",
                CallError::Throttled { message: "busy".into(), after: Duration::from_secs(7) },
            ),
            (504, "Timeout", "late", CallError::Unknown("504 Timeout: late".into())),
            (500, "InternalError", "", CallError::Unknown("500 InternalError".into())),
            (408, "", "slow", CallError::Unknown("408: slow".into())),
            (425, "", "early", CallError::Unknown("425: early".into())),
            (499, "", "", CallError::Unknown("499".into())),
        ];
        for (code, reason, message, expected) in cases {
            assert_eq!(classified(code, after, &body(reason, message), "pv"), expected, "{code} {reason}");
        }
        // A creation, which names no revision.
        let refused = CallError::Refused { code: 409, message: "quota".into() };
        assert_eq!(classified(409, None, &body("Conflict", "quota"), ""), refused);
    }

    #[test]
    fn only_silence_and_server_errors_leave_the_outcome_open() {
        assert!(!classified(500, None, b"boom", "pv").is_certain());
        assert!(classified(403, None, b"", "pv").is_certain());
    }

    #[test]
    fn m4_a_server_may_ask_for_a_minute_at_the_most_in_seconds() {
        let cases = [
            ("7", Some(7)),
            (" 7 ", Some(7)),
            ("86400", Some(60)),
            ("10000000000000000000", Some(60)),
            ("Sun, 06 Nov 1994 12:00:08 GMT", None),
            ("-1", None),
            ("soon", None),
            ("", None),
        ];
        for (asked, expected) in cases {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::from_static(asked));
            assert_eq!(retry_after(&headers), expected.map(Duration::from_secs), "{asked:?}");
        }
        assert_eq!(retry_after(&HeaderMap::new()), None);
    }

    #[test]
    fn m4_the_body_may_say_how_long_to_wait_too() {
        let throttled = |after, seconds: Option<u32>| {
            let details =
                json!({ "retryAfterSeconds": seconds.unwrap_or_default().min(i32::MAX.unsigned_abs()) });
            let body = json!({ "reason": "TooManyRequests", "message": "busy", "details": details });
            match classified(429, after, body.to_string().as_bytes(), "pv") {
                CallError::Throttled { after, .. } => after.as_secs(),
                other => panic!("{other}"),
            }
        };
        assert_eq!(throttled(None, None), 1);
        assert_eq!(throttled(None, Some(9)), 9);
        assert_eq!(throttled(None, Some(u32::MAX)), 60);
        assert_eq!(throttled(Some(Duration::from_secs(3)), Some(9)), 3);
    }

    #[test]
    fn s23_s24_only_the_api_server_proves_absence_and_only_of_the_object_asked_for() {
        let patch = |path: &str| Request { verb: Verb::Patch, path: path.to_owned(), body: None };
        let (spec, status) = ("/api/v1/persistentvolumes/pv", "/api/v1/persistentvolumes/pv/status");
        let other = "/api/v1/persistentvolumes/other";
        let named = |name: &str| {
            let details = json!({"name": name, "kind": "persistentvolumes"});
            json!({"kind": "Status", "reason": "NotFound", "details": details}).to_string().into_bytes()
        };
        // name, path asked for, answer, whether it proves the object gone, and whether it is certain
        let cases = [
            ("it is gone", spec, body("NotFound", "gone"), true, true),
            ("a subresource of it", status, body("NotFound", "gone"), true, true),
            (
                "one that is named as a subresource",
                "/api/v1/persistentvolumes/status",
                named("status"),
                true,
                true,
            ),
            ("its status", "/api/v1/persistentvolumes/status/status", named("status"), true, true),
            ("something else is gone", other, body("NotFound", "gone"), false, true),
            (
                "no such path",
                spec,
                br#"{"kind": "Status", "reason": "NotFound", "details": {}}"#.to_vec(),
                false,
                true,
            ),
            ("a proxy's object", spec, br#"{"message": "no route"}"#.to_vec(), false, false),
            ("a proxy's page", spec, b"404 page not found".to_vec(), false, false),
            ("nothing", spec, Vec::new(), false, false),
        ];
        for (name, path, answer, proves, is_certain) in cases {
            let error = classified(404, None, &answer, patch(path).target().name);
            assert_eq!(matches!(error, CallError::NotFound(_)), proves, "{name}: {error}");
            assert_eq!(error.is_certain(), is_certain, "{name}: {error}");
        }
    }
}
