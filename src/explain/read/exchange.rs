//! One request and its answer, of which only so much is read.

use apiserver::error_chain;
use bytes::Bytes;
use http::{Request, response::Parts};
use http_body_util::{BodyExt, Limited};
use kube::{Client, client::Body};

/// Most of an answer, in bytes: far more than the largest object that etcd takes.
const LARGEST: usize = 16 << 20;

/// Sends a request and reads the answer.
///
/// # Errors
/// Why there is no answer.
pub async fn exchange(client: &Client, request: Request<Body>) -> Result<(Parts, Bytes), String> {
    let answer = client.send(request).await.map_err(|error| error_chain(&error))?;
    let (parts, body) = answer.into_parts();
    let body = Limited::new(body, LARGEST).collect().await.map_err(|error| error.to_string())?;
    Ok((parts, body.to_bytes()))
}
