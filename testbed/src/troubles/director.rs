//! Executes the script on the cluster.

use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{
    script::Act,
    stage::{NAMESPACE, QUARANTINE, Stage, TOLERATION, make_node, node_status},
};
use crate::actors::SEAT;

const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// What befell a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The node.
    pub node: String,
    /// The rest of the sentence that begins with its name.
    pub text: String,
}

/// Does an act. Returns what befell a node; everything else shows in its consequences.
///
/// # Errors
/// The API server refuses. What an act is about may be gone by then, which is no failure.
pub async fn act(client: &Client, stage: &Stage, act: Act) -> Result<Option<Trouble>, kube::Error> {
    let (node, text) = match act {
        Act::DeletePod(seat) => {
            delete_pod(client, &seat).await?;
            return Ok(None);
        }
        Act::GiveUp(seat) => {
            stage.workload.change(|workload| drop(workload.seats.remove(&seat)));
            return Ok(None);
        }
        Act::Take(name, seat) => {
            stage.workload.change(|workload| drop(workload.seats.insert(name, seat)));
            return Ok(None);
        }
        Act::Taint(node) => {
            let taint = json!([{ "key": "maintenance", "effect": "NoExecute" }]);
            taint_node(client, &node, taint).await?;
            (node, " is tainted for maintenance: its pods have to leave".to_owned())
        }
        Act::Untaint(node) => {
            taint_node(client, &node, Value::Null).await?;
            (node, " is open again".to_owned())
        }
        Act::Die(node) => {
            stage.kubelets.change(|kubelets| kubelets.silent.extend([node.clone()]));
            set_ready(client, &node, "Unknown").await?;
            taint_node(client, &node, unreachable()).await?;
            let text = format!(
                " dies: its pods are told to end after {} s, but nobody there ends them",
                TOLERATION.as_secs()
            );
            (node, text)
        }
        Act::OutOfService(node) => {
            let mut taints = unreachable();
            if let Some(taints) = taints.as_array_mut() {
                taints.push(json!({ "key": OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute" }));
            }
            taint_node(client, &node, taints).await?;
            (node, " is tainted out-of-service: its operator knows it to be off".to_owned())
        }
        Act::Remove(node) => {
            let nodes: Api<Node> = Api::all(client.clone());
            absent_is_fine(nodes.delete(&node, &DeleteParams::default()).await.map(|_| ()))?;
            let text = format!(" is removed from the cluster: pods go after {} s", QUARANTINE.as_secs());
            (node, text)
        }
        Act::Return(node) => {
            let nodes: Api<Node> = Api::all(client.clone());
            if nodes.get_opt(&node).await?.is_none() {
                make_node(client, &node).await?;
            } else {
                set_ready(client, &node, "True").await?;
                taint_node(client, &node, Value::Null).await?;
            }
            stage.kubelets.change(|kubelets| kubelets.silent.retain(|silent| *silent != node));
            (node, " is back".to_owned())
        }
    };
    Ok(Some(Trouble { node, text }))
}

fn unreachable() -> Value {
    let key = "node.kubernetes.io/unreachable";
    json!([{ "key": key, "effect": "NoSchedule" }, { "key": key, "effect": "NoExecute" }])
}

async fn delete_pod(client: &Client, seat: &str) -> Result<(), kube::Error> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let of_seat = ListParams::default().labels(&format!("{SEAT}={seat}"));
    for pod in pods.list(&of_seat).await? {
        if pod.metadata.deletion_timestamp.is_none() {
            absent_is_fine(pods.delete(&pod.name_any(), &DeleteParams::default()).await.map(|_| ()))?;
        }
    }
    Ok(())
}

async fn taint_node(client: &Client, node: &str, taints: Value) -> Result<(), kube::Error> {
    let nodes: Api<Node> = Api::all(client.clone());
    let patch = Patch::Merge(json!({ "spec": { "taints": taints } }));
    absent_is_fine(nodes.patch(node, &PatchParams::default(), &patch).await.map(|_| ()))
}

async fn set_ready(client: &Client, node: &str, status: &str) -> Result<(), kube::Error> {
    let nodes: Api<Node> = Api::all(client.clone());
    let patch = Patch::Merge(json!({ "status": node_status(status) }));
    absent_is_fine(nodes.patch_status(node, &PatchParams::default(), &patch).await.map(|_| ()))
}

fn absent_is_fine(result: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        result => result,
    }
}

/// Deletes all but the newest events about gone things, as the API server's own expiry does after
/// an hour, so that a demo left alone does not grow.
///
/// # Errors
/// The API server refuses.
pub async fn expire_events(client: &Client, keep: usize) -> Result<(), kube::Error> {
    let events: Api<Event> = Api::namespaced(client.clone(), NAMESPACE);
    let mut all = events.list(&ListParams::default()).await?.items;
    all.sort_by_key(|event| event.last_timestamp.clone().map(|time| time.0));
    let surplus = all.len().saturating_sub(keep);
    for event in all.into_iter().take(surplus) {
        absent_is_fine(events.delete(&event.name_any(), &DeleteParams::default()).await.map(|_| ()))?;
    }
    Ok(())
}
