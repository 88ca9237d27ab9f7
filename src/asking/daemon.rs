//! A daemon that is asked in place of the cluster: it knows timers, back-off and what was before.
//!
//! In: its address and who vouches for it. Out: its answer, the same value as the reader's; or why not, in a line, and then
//! the reader answers.

use std::{path::Path, time::Duration};

use http::{
    Response, StatusCode,
    header::{ACCEPT, ETAG},
};
use http_body_util::{BodyExt, Limited};
use kube::{Client, client::Body};
use tokio::time::timeout;

use crate::{
    explain::{report::Explanation, subject::Subject},
    kube_api::{
        connect::{ApiServer, Authority},
        error_chain,
    },
};

/// Most of an answer, in bytes.
pub(super) const LARGEST: usize = 16 << 20;
/// A daemon answers from what it has; one that takes longer is not there.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// A daemon.
pub(super) struct Daemon {
    client: Client,
    url: String,
}

impl Daemon {
    /// One at this address, verified by the authority of a file, or else by the one that is published in the cluster. The
    /// daemon is not asked yet.
    pub(super) async fn find(api: &ApiServer, url: &str, file: Option<&Path>) -> Result<Self, String> {
        let finding = async {
            api.check_other(url)?;
            let authority = match file {
                Some(file) => Authority::of_file("--daemon-ca", file)?,
                None => api.published_authority().await?,
            };
            api.client_of(url, &authority)
        };
        let client = timeout(PATIENCE, finding).await.map_err(|_| {
            format!(
                "--daemon: the API server does not say within {} s who vouches for it",
                PATIENCE.as_secs()
            )
        })?;
        let client = client.map_err(|error| error.to_string())?;
        Ok(Self { client, url: url.to_owned() })
    }

    /// One that is reached otherwise.
    #[cfg(test)]
    pub(super) fn of(client: Client, url: &str) -> Self {
        Self { client, url: url.to_owned() }
    }

    /// Its address.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// That there is no answer.
    pub(super) fn gives_none(&self, why: &str) -> String {
        format!("the daemon {} gives no answer: {why}", self.url)
    }

    /// Its answer, and the name by which it is known again.
    pub(super) async fn ask(&self, subject: &Subject) -> Result<(String, Explanation), String> {
        let asking = async {
            let (parts, body) = self.send(subject, "", "application/json").await?.into_parts();
            let body = Limited::new(body, LARGEST).collect().await.map_err(|error| error.to_string())?;
            Ok((parts, body.to_bytes()))
        };
        let (parts, body) = timeout(PATIENCE, asking).await.unwrap_or_else(|_| Err(late()))?;
        match parts.status {
            StatusCode::OK | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND => {
                let explanation = serde_json::from_slice(&body);
                let name = parts.headers.get(ETAG).and_then(|name| name.to_str().ok()).unwrap_or_default();
                let explanation = explanation.map_err(|error| format!("{}, and {error}", parts.status))?;
                Ok((name.to_owned(), explanation))
            }
            status => Err(format!("{status} {}", String::from_utf8_lossy(&body).trim())),
        }
    }

    /// Begins to ask for its answer again whenever it changes.
    pub(super) async fn watch(&self, subject: &Subject) -> Result<Response<Body>, String> {
        let sending = self.send(subject, "?watch=1", "text/event-stream");
        timeout(PATIENCE, sending).await.unwrap_or_else(|_| Err(late()))
    }

    async fn send(&self, subject: &Subject, query: &str, form: &str) -> Result<Response<Body>, String> {
        let request = http::Request::get(path(subject) + query).header(ACCEPT, form);
        let request = request.body(Body::empty()).map_err(|error| error.to_string())?;
        self.client.send(request).await.map_err(|error| error_chain(&error))
    }
}

fn late() -> String {
    format!("none within {} s", PATIENCE.as_secs())
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
