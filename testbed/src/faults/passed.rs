//! An answer that has passed here, and its body.

use http::Response;
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::body::Bytes;
use tower::BoxError;

/// An answer that has passed here.
pub type Passed = Response<UnsyncBoxBody<Bytes, BoxError>>;

/// A body that is all there.
pub(super) fn whole(bytes: Bytes) -> UnsyncBoxBody<Bytes, BoxError> {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}
