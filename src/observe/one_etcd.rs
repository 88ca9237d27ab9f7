//! Whether what the watches tell has an order at all.
//!
//! In: requests for the revision of now. Out: the kinds that are in another etcd than the pods, whose revisions cannot be
//! compared with theirs (`--etcd-servers-overrides`).

use std::time::Duration;

use apiserver::{
    kinds::{
        CsiDriver, Narrow, Node, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass,
        VolumeAttachment, api_root,
    },
    tables::watch::page_uri,
};
use http::Method;
use kube::Client;
use tokio::time::sleep;

use crate::fence::ask::{NoAnswer, ask, text};

/// Until it is asked again what was not answered.
const AGAIN: Duration = Duration::from_secs(5);

/// The kinds that are in another etcd than the pods; asks until it is answered.
pub(super) async fn elsewhere(client: Client) -> Vec<&'static str> {
    loop {
        match look(&client).await {
            Ok(kinds) => return kinds,
            Err(_) => sleep(AGAIN).await,
        }
    }
}

/// In one etcd, revisions that are read one after the other do not go down.
async fn look(client: &Client) -> Result<Vec<&'static str>, NoAnswer> {
    let first = now::<Pod>(client).await?;
    let kinds = [
        (now::<Node>(client).await?, Node::PLURAL),
        (now::<PersistentVolume>(client).await?, PersistentVolume::PLURAL),
        (now::<PersistentVolumeClaim>(client).await?, PersistentVolumeClaim::PLURAL),
        (now::<VolumeAttachment>(client).await?, VolumeAttachment::PLURAL),
        (now::<StorageClass>(client).await?, StorageClass::PLURAL),
        (now::<CsiDriver>(client).await?, CsiDriver::PLURAL),
    ];
    let last = now::<Pod>(client).await?;
    let others = kinds.into_iter().filter(|(at, _)| !(first..=last).contains(at));
    Ok(others.map(|(_, kind)| kind).collect())
}

/// The revision of now, of a list at a quorum.
async fn now<T: Narrow>(client: &Client) -> Result<u64, NoAnswer> {
    let path = page_uri(&format!("{}/{}", api_root(T::GROUP), T::PLURAL), 1, None);
    let list = ask(client, Method::GET, &path, None).await?;
    let revision = text(&list, "/metadata/resourceVersion").parse();
    revision.map_err(|_| NoAnswer::Unknown("a list without revision".to_owned()))
}

#[cfg(test)]
mod tests {
    use std::{
        collections::VecDeque,
        convert::Infallible,
        sync::{Arc, Mutex, PoisonError},
    };

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    /// A server that answers one list after the other at these revisions; at 0 it does not.
    fn client(revisions: &[u64]) -> Client {
        let revisions = Arc::new(Mutex::new(VecDeque::from(revisions.to_vec())));
        let answer = move |request: Request<Body>| {
            assert_eq!(request.uri().query(), Some("limit=1"));
            let revision = revisions.lock().unwrap_or_else(PoisonError::into_inner).pop_front().unwrap();
            let list = json!({ "metadata": { "resourceVersion": revision.to_string() }, "items": [] });
            let status = if revision == 0 { 500 } else { 200 };
            let response = Response::builder().status(status).body(Body::from(list.to_string().into_bytes()));
            async move { Ok::<_, Infallible>(response.unwrap()) }
        };
        Client::new(tower::service_fn(answer), "default")
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_whose_revision_is_not_between_two_of_pods_is_in_another_etcd() {
        // Revisions of pods, nodes, volumes, claims, attachments, classes, drivers, and pods again.
        let cases = [
            ([7, 7, 7, 7, 7, 7, 7, 7].as_slice(), [].as_slice()),
            (&[7, 7, 8, 8, 9, 9, 9, 12], &[]),
            (&[7, 0, 7, 7, 7, 7, 7, 7, 7, 7], &[]),
            (&[7, 7, 3, 7, 7, 7, 7, 7], &["persistentvolumes"]),
            (&[7, 90, 7, 7, 7, 7, 95, 8], &["nodes", "csidrivers"]),
        ];
        for (revisions, expected) in cases {
            assert_eq!(elsewhere(client(revisions)).await, expected, "{revisions:?}");
        }
    }
}
