//! A daemon that is asked in place of the cluster: it knows timers, back-off and what was before.
//!
//! In: its address and who vouches for it. Out: its answer, the same value as the reader's; or why not, in a line, and then
//! the reader answers.

use std::{path::Path, time::Duration};

use http::{StatusCode, header::ACCEPT};
use http_body_util::{BodyExt, Limited};
use kube::{Client, client::Body};
use tokio::time::timeout;

use crate::{
    explain::{report::Explanation, subject::Subject},
    kube_api::{connect::ApiServer, error_chain},
};

/// Most of an answer, in bytes.
const LARGEST: usize = 16 << 20;
/// A daemon answers from what it has; one that takes longer is not there.
const PATIENCE: Duration = Duration::from_secs(10);

/// A daemon.
pub(super) struct Daemon {
    client: Client,
    url: String,
}

impl Daemon {
    /// One at this address. Nothing is asked yet.
    pub(super) fn new(api: &ApiServer, url: &str, authority: Option<&Path>) -> Result<Self, String> {
        let client = api.client_of(url, authority).map_err(|error| error.to_string())?;
        Ok(Self { client, url: url.to_owned() })
    }

    /// Its answer.
    pub(super) async fn ask(&self, subject: &Subject) -> Result<Explanation, String> {
        let failed = |why: String| format!("the daemon {} gives no answer: {why}", self.url);
        let request = http::Request::get(path(subject)).header(ACCEPT, "application/json");
        let request = request.body(Body::empty()).map_err(|error| failed(error.to_string()))?;
        let asking = async {
            let answer = self.client.send(request).await.map_err(|error| failed(error_chain(&error)))?;
            let (parts, body) = answer.into_parts();
            let body =
                Limited::new(body, LARGEST).collect().await.map_err(|error| failed(error.to_string()))?;
            Ok::<_, String>((parts.status, body.to_bytes()))
        };
        let late = || failed(format!("none within {} s", PATIENCE.as_secs()));
        let (status, body) = timeout(PATIENCE, asking).await.map_err(|_| late())??;
        match status {
            StatusCode::OK | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND => {
                serde_json::from_slice(&body).map_err(|error| failed(format!("{status}, and {error}")))
            }
            _ => Err(failed(format!("{status} {}", String::from_utf8_lossy(&body).trim()))),
        }
    }
}

/// Where a daemon answers about an object. Names were checked when they were parsed.
fn path(subject: &Subject) -> String {
    let root = "/explain/v1";
    match subject {
        Subject::Claim(key) => {
            format!("{root}/namespaces/{}/persistentvolumeclaims/{}", key.namespace(), key.name())
        }
        Subject::Pod(key) => format!("{root}/namespaces/{}/pods/{}", key.namespace(), key.name()),
        Subject::Volume(name) => format!("{root}/persistentvolumes/{name}"),
        Subject::Attachment(name) => format!("{root}/volumeattachments/{name}"),
        Subject::Node(name) => format!("{root}/nodes/{name}"),
        Subject::Class(name) => format!("{root}/storageclasses/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_place() {
        let cases = [
            ("pvc/data", "/explain/v1/namespaces/shop/persistentvolumeclaims/data"),
            ("pod/web-0", "/explain/v1/namespaces/shop/pods/web-0"),
            ("pv/v", "/explain/v1/persistentvolumes/v"),
            ("va/csi-1", "/explain/v1/volumeattachments/csi-1"),
            ("node/a", "/explain/v1/nodes/a"),
            ("sc/fast", "/explain/v1/storageclasses/fast"),
        ];
        for (words, expected) in cases {
            assert_eq!(path(&Subject::parse(&[words], "shop").unwrap()), expected);
        }
    }
}
