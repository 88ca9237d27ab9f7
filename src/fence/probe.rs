//! Asks one API server how it holds the fence: one look, on a connection of its own.
//!
//! In: a server's address. Out: what was seen of each fence ([`super::state`]), which server answered, and how many there are.
//! Which server it was shows the time at which its process started, asked for on the same connection (`/metrics/slis`);
//! how many there are show the leases by which they identify themselves. Without the rights to both, neither is known.

use std::time::Duration;

use apiserver::connect::ApiServer;
use http::{Method, Request};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    ask::{NoAnswer, ask, read},
    policies::{API, BINDINGS, Fence, POLICIES},
    state::{FenceLook, FenceSeen, FenceServer, FenceState, ProbeAnswer},
};

/// How long metrics may take.
const LONGEST_ANSWER: Duration = Duration::from_secs(10);
/// A server renews its lease every ten seconds. One that is so far behind the newest is of a server that is gone.
const SERVER_IS_GONE: Duration = Duration::from_mins(1);
const SERVERS: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases?labelSelector=\
    apiserver.kubernetes.io%2Fidentity%3Dkube-apiserver";

/// Looks once, on a fresh connection: another one may lead to another server.
pub async fn look(api: &ApiServer, fences: &[&Fence]) -> FenceLook {
    let client = match api.client() {
        Ok(client) => client,
        Err(error) => {
            let states = vec![FenceState::Unknown(error.to_string())];
            return FenceLook { states, server: None, servers: None };
        }
    };
    let mut states = Vec::new();
    for fence in fences {
        let seen = FenceSeen {
            policy: object(&client, POLICIES.1, fence).await,
            binding: object(&client, BINDINGS.1, fence).await,
            probe: probe(&client, fence).await,
        };
        states.push(FenceState::of(fence, &seen));
    }
    let server = started(&client).await;
    FenceLook { states, server, servers: servers(&client).await }
}

async fn object(client: &Client, plural: &str, fence: &Fence) -> Result<Option<Value>, String> {
    let object = read(client, &format!("/apis/{API}/{plural}/{}", fence.name())).await;
    object.map_err(|error| error.to_string())
}

/// The dry run of a create that the fence denies to everybody.
async fn probe(client: &Client, fence: &Fence) -> ProbeAnswer {
    let name = fence.name();
    let attachment = json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "VolumeAttachment",
        "metadata": { "name": name },
        "spec": { "attacher": "mooring.dev", "nodeName": name, "source": { "persistentVolumeName": name } },
    });
    let path = "/apis/storage.k8s.io/v1/volumeattachments?dryRun=All";
    match ask(client, Method::POST, path, Some(&attachment)).await {
        Ok(_) => ProbeAnswer::Accepted,
        Err(NoAnswer::Refused(_, words)) => ProbeAnswer::Refused(words),
        Err(NoAnswer::Unknown(why)) => ProbeAnswer::None(why),
    }
}

/// When the process of the server began, as its metrics have it.
async fn started(client: &Client) -> Option<FenceServer> {
    let request = Request::get("/metrics/slis").body(Vec::new()).ok()?;
    let text = timeout(LONGEST_ANSWER, client.request_text(request)).await.ok()?.ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("process_start_time_seconds "))?;
    server(line, Timestamp::now())
}

fn server(started: &str, now: Timestamp) -> Option<FenceServer> {
    let seconds: f64 = started.parse().ok()?;
    let now = Duration::try_from(now.as_duration()).ok()?;
    let runs = now.saturating_sub(Duration::try_from_secs_f64(seconds).ok()?);
    Some(FenceServer { started: started.to_owned(), runs })
}

/// How many servers renew their leases.
async fn servers(client: &Client) -> Option<usize> {
    let leases = read(client, SERVERS).await.ok()??;
    Some(alive(&leases))
}

/// The servers whose leases are about as new as the newest.
fn alive(leases: &Value) -> usize {
    let renewed =
        |lease: &Value| -> Option<Timestamp> { lease.pointer("/spec/renewTime")?.as_str()?.parse().ok() };
    let items = leases.get("items").and_then(Value::as_array);
    let times: Vec<Timestamp> = items.into_iter().flatten().filter_map(renewed).collect();
    let newest = times.iter().max().copied().unwrap_or_default();
    let is_alive = |time: &&Timestamp| newest.duration_since(**time).unsigned_abs() < SERVER_IS_GONE;
    times.iter().filter(is_alive).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_tells_when_it_began() {
        let now = Timestamp::from_second(1_767_225_700).unwrap();
        let runs = |started: &str| server(started, now).map(|server| server.runs);
        assert_eq!(runs("1.7672256e+09"), Some(Duration::from_secs(100)));
        assert_eq!(runs("1.767225701e+09"), Some(Duration::ZERO), "its clock is ahead");
        assert_eq!(runs("soon"), None);
    }

    #[test]
    fn a_server_that_has_not_renewed_its_lease_for_a_minute_is_gone() {
        let lease = |time: &str| json!({ "spec": { "renewTime": time } });
        let leases = json!({ "items": [
            lease("2026-01-01T00:10:00.000000Z"), lease("2026-01-01T00:09:52.500000Z"),
            lease("2026-01-01T00:08:59.000000Z"), json!({ "spec": {} }),
        ]});
        assert_eq!(alive(&leases), 2);
        assert_eq!(alive(&json!({})), 0);
    }
}
