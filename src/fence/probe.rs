//! Asks one API server how it holds the fence: one look, on a connection of its own.
//!
//! In: a server's address. Out: what was seen of each fence ([`super::state`]), which server answered, and how many there are.
//! Which server it was shows the time at which its process started, asked for on the same connection (`/metrics/slis`);
//! how many there are show the leases by which they identify themselves, as far as they are renewed. Without the rights to
//! both, neither is known.

use std::{collections::BTreeMap, time::Duration};

use apiserver::connect::ApiServer;
use http::{Method, Request};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout, timeout_at};

use super::{
    ask::{NoAnswer, ask, read},
    policies::{BINDINGS, DRAIN, Fence, NAME_BEGINS, POLICIES, path_of},
    state::{FenceLook, FenceSeen, FenceState, refused_by_others},
};

/// How long a look may take, however many requests it has.
pub const LONGEST_LOOK: Duration = Duration::from_secs(20);
/// How much of that to read the policies.
pub const LONGEST_HEARING: Duration = Duration::from_secs(10);
const SERVERS: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases?labelSelector=\
    apiserver.kubernetes.io%2Fidentity%3Dkube-apiserver";

/// Looks once, on a fresh connection: another one may lead to another server. Before anything is probed, `hear` is given what a
/// policy asks for ([`DRAIN`]); `Ok(None)` is that none of them does, and an error that this is not known.
pub async fn look(
    api: &ApiServer,
    fences: &[&Fence],
    hear: impl FnOnce(Result<Option<&str>, ()>),
) -> FenceLook {
    let end = Instant::now() + LONGEST_LOOK;
    let client = match api.client() {
        Ok(client) => client,
        Err(error) => {
            let states = vec![FenceState::Unknown(error.to_string())];
            return FenceLook { states, ..FenceLook::default() };
        }
    };
    // One request after the other: side by side, each would have a connection of its own.
    let late = |limit: Duration| NoAnswer::Unknown(format!("no answer within {limit:?}"));
    let unread = || FenceSeen {
        policy: Err(late(LONGEST_HEARING)),
        binding: Err(late(LONGEST_LOOK)),
        probe: Err(late(LONGEST_LOOK)),
    };
    let mut seen: Vec<FenceSeen> = fences.iter().map(|_| unread()).collect();
    let hearing = async {
        for (fence, seen) in fences.iter().zip(&mut seen) {
            seen.policy = object(&client, POLICIES.1, fence).await;
        }
    };
    let _ = timeout(LONGEST_HEARING, hearing).await;
    let policies = seen.iter().map(|seen| &seen.policy);
    let drain = policies.clone().flatten().flatten().find_map(|policy| {
        let annotations = policy.pointer("/metadata/annotations")?;
        Some(annotations.get(DRAIN)?.as_str()?.to_owned())
    });
    let is_known = drain.is_some() || policies.clone().all(Result::is_ok);
    hear(if is_known { Ok(drain.as_deref()) } else { Err(()) });
    let probing = async {
        for (fence, seen) in fences.iter().zip(&mut seen) {
            seen.binding = object(&client, BINDINGS.1, fence).await;
            seen.probe = probe(&client, &fence.name()).await;
        }
        (started(&client).await, leases(&client).await)
    };
    // What was answered until then counts.
    let (server, leases) = timeout_at(end, probing).await.unwrap_or_default();
    let states = fences.iter().zip(&seen).map(|(fence, seen)| FenceState::of(fence, seen)).collect();
    let raised =
        seen.iter().flat_map(|seen| [&seen.policy, &seen.binding]).flatten().flatten().filter_map(made).max();
    FenceLook { states, server, drain, leases, raised, refused: None }
}

/// When an object was made.
pub fn made(object: &Value) -> Option<Timestamp> {
    object.pointer("/metadata/creationTimestamp")?.as_str()?.parse().ok()
}

/// Those of these fences that have a policy.
///
/// # Errors
/// One cannot be read.
pub async fn raised(
    client: &Client,
    fences: impl Iterator<Item = &'static Fence>,
) -> Result<Vec<&'static Fence>, NoAnswer> {
    let mut raised = Vec::new();
    for fence in fences {
        if object(client, POLICIES.1, fence).await?.is_some() {
            raised.push(fence);
        }
    }
    Ok(raised)
}

async fn object(client: &Client, plural: &str, fence: &Fence) -> Result<Option<Value>, NoAnswer> {
    read(client, &path_of(plural, &fence.name())).await
}

/// What refuses the probes, apart from fences: no fence denies this one.
pub async fn hidden(client: &Client) -> Option<String> {
    let name = format!("{NAME_BEGINS}nobody");
    match probe(client, &name).await {
        Err(NoAnswer::Refused(_, words)) => Some(refused_by_others(&name, &words)),
        Ok(_) | Err(NoAnswer::Unknown(_)) => None,
    }
}

/// The dry run of a create that the fence of that name denies to everybody.
async fn probe(client: &Client, name: &str) -> Result<Value, NoAnswer> {
    let attachment = json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "VolumeAttachment",
        "metadata": { "name": name },
        "spec": { "attacher": "mooring.dev", "nodeName": name, "source": { "persistentVolumeName": name } },
    });
    let path = "/apis/storage.k8s.io/v1/volumeattachments?dryRun=All";
    ask(client, Method::POST, path, Some(&attachment)).await
}

/// When the process of the server began, as its metrics have it.
async fn started(client: &Client) -> Option<String> {
    let request = Request::get("/metrics/slis").body(Vec::new()).ok()?;
    let text = client.request_text(request).await.ok()?;
    text.lines().find_map(|line| line.strip_prefix("process_start_time_seconds ")).map(str::to_owned)
}

/// The leases of the servers, and when each was renewed.
async fn leases(client: &Client) -> Option<BTreeMap<String, String>> {
    let list = read(client, SERVERS).await.ok()??;
    let text = |lease: &Value, at: &str| Some(lease.pointer(at)?.as_str()?.to_owned());
    let items = list.get("items").and_then(Value::as_array).into_iter().flatten();
    let renewed = |lease: &Value| Some((text(lease, "/metadata/name")?, text(lease, "/spec/renewTime")?));
    Some(items.filter_map(renewed).collect())
}
