//! Does one step: each is one write or a few, and does no harm if it is repeated.

use std::time::Duration;

use apiserver::connect::ApiServer;
use http::Method;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{
    observe::{BETWEEN_LOOKS, DEPLOYMENT, MANAGER_LEASE, SWITCH_HOLDER},
    step::{SwitchSeen, SwitchStep},
};
use crate::fence::{
    ask::{NoAnswer, ask, read},
    policies::{API, BINDINGS, FINALIZER, Fence, POLICIES, RAISED, apply_path},
};

/// The lease that keeps a second switch out.
const LOCKS: &str = "/apis/coordination.k8s.io/v1/namespaces/mooring-system/leases";
const LOCK: &str = "/apis/coordination.k8s.io/v1/namespaces/mooring-system/leases/mooring-switch";
/// Whoever has not renewed the lock for so long is gone.
const LOCK_LASTS: Duration = Duration::from_secs(30);
/// How many replicas the Deployment had before it was stopped.
const REPLICAS: &str = "mooring.dev/replicas";

/// What writes.
pub(super) struct Switcher<'a> {
    client: Client,
    fences: &'a [&'static Fence],
    identity: String,
    /// Who, and with which versions.
    who: String,
}

impl<'a> Switcher<'a> {
    pub(super) async fn new(api: &ApiServer, fences: &'a [&'static Fence]) -> Result<Self, NoAnswer> {
        let client = api.client().map_err(|error| NoAnswer::Unknown(error.to_string()))?;
        let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
        let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
        let review = ask(&client, Method::POST, path, Some(&review)).await?;
        let version = read(&client, "/version").await?.unwrap_or_default();
        let text = |object: &Value, at: &str| -> String {
            object.pointer(at).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let who = format!(
            "{} with mooring {} and API server {}",
            text(&review, "/status/userInfo/username"),
            env!("CARGO_PKG_VERSION"),
            text(&version, "/gitVersion"),
        );
        let identity = format!("{SWITCH_HOLDER}{:016x}", fastrand::u64(..));
        Ok(Self { client, fences, identity, who })
    }

    pub(super) fn identity(&self) -> &str {
        &self.identity
    }

    async fn send(&self, method: Method, path: &str, body: &Value) -> Result<Value, NoAnswer> {
        ask(&self.client, method, path, Some(body)).await
    }

    /// Takes or renews the lock; waits as long as a dead one may still hold it.
    pub(super) async fn lock(&self, tell: &impl Fn(&str)) -> Result<(), NoAnswer> {
        let mut waits_for: Option<(Value, Instant)> = None;
        loop {
            let Some(lease) = read(&self.client, LOCK).await? else {
                let lease = json!({
                    "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                    "metadata": { "name": "mooring-switch" }, "spec": self.held(LOCK_LASTS),
                });
                self.send(Method::POST, LOCKS, &lease).await?;
                return Ok(());
            };
            let holder = lease.pointer("/spec/holderIdentity").and_then(Value::as_str).unwrap_or_default();
            let seen = lease.pointer("/spec/renewTime").cloned().unwrap_or_default();
            let is_dead = waits_for
                .as_ref()
                .is_some_and(|(known, since)| *known == seen && since.elapsed() >= LOCK_LASTS);
            if holder.is_empty() || holder == self.identity || is_dead {
                return self.hold(LOCK, &lease, LOCK_LASTS).await;
            }
            match &waits_for {
                Some((known, _)) if *known == seen => {}
                Some(_) => {
                    return Err(NoAnswer::Refused(409, format!("another switch is at work: {holder}")));
                }
                None => {
                    tell(&format!("wait until the lock of {holder} has expired"));
                    waits_for = Some((seen, Instant::now()));
                }
            }
            sleep(BETWEEN_LOOKS).await;
        }
    }

    /// Gives the lock up.
    pub(super) async fn unlock(&self) -> Result<(), NoAnswer> {
        self.send(Method::PATCH, LOCK, &json!({ "spec": { "holderIdentity": "" } })).await?;
        Ok(())
    }

    /// What a lease says that is held from now on.
    fn held(&self, lasts: Duration) -> Value {
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
        json!({
            "holderIdentity": self.identity, "leaseDurationSeconds": lasts.as_secs(), "renewTime": now,
        })
    }

    /// Writes ourselves into a lease as it was read.
    async fn hold(&self, path: &str, lease: &Value, lasts: Duration) -> Result<(), NoAnswer> {
        let revision = lease.pointer("/metadata/resourceVersion");
        let ours = json!({ "metadata": { "resourceVersion": revision }, "spec": self.held(lasts) });
        self.send(Method::PATCH, path, &ours).await?;
        Ok(())
    }

    /// Takes a step; those that only wait need nothing.
    pub(super) async fn take(&self, step: &SwitchStep, seen: &SwitchSeen) -> Result<(), NoAnswer> {
        match step {
            SwitchStep::RaiseFence => self.raise().await,
            SwitchStep::StartDaemon => self.start().await,
            SwitchStep::StopDaemon => self.scale_down(seen.daemon.replicas.unwrap_or(1)).await,
            SwitchStep::HoldLease | SwitchStep::ProveOpen => self.hold_manager(seen.manager.lasts).await,
            SwitchStep::LowerFence => {
                self.hold_manager(seen.manager.lasts).await?;
                self.lower().await
            }
            SwitchStep::GiveLeaseUp => {
                let free = json!({ "spec": { "holderIdentity": "", "leaseDurationSeconds": 1 } });
                self.send(Method::PATCH, MANAGER_LEASE, &free).await?;
                self.event("Handed over to kube-controller-manager").await
            }
            _ => Ok(()),
        }
    }

    async fn raise(&self) -> Result<(), NoAnswer> {
        let raised = format!("{} by {}", Timestamp::now(), self.who);
        for fence in self.fences {
            for (mut object, (_, plural)) in fence.objects().into_iter().zip([POLICIES, BINDINGS]) {
                if let Some(annotations) =
                    object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut)
                {
                    annotations.insert(RAISED.to_owned(), json!(raised));
                }
                self.send(Method::PATCH, &apply_path(plural, &fence.name()), &object).await?;
            }
        }
        self.event("Fenced kube-controller-manager off").await
    }

    async fn lower(&self) -> Result<(), NoAnswer> {
        for fence in self.fences {
            for (_, plural) in [BINDINGS, POLICIES] {
                let path = format!("/apis/{API}/{plural}/{}", fence.name());
                let Some(object) = read(&self.client, &path).await? else { continue };
                let finalizers = object.pointer("/metadata/finalizers").and_then(Value::as_array);
                let left: Vec<&Value> =
                    finalizers.into_iter().flatten().filter(|finalizer| *finalizer != FINALIZER).collect();
                let freed = json!({ "metadata": { "finalizers": left } });
                self.send(Method::PATCH, &path, &freed).await?;
                match ask(&self.client, Method::DELETE, &path, None).await {
                    Ok(_) | Err(NoAnswer::Refused(404, _)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    async fn scale_down(&self, replicas: u64) -> Result<(), NoAnswer> {
        let patch = json!({
            "metadata": { "annotations": { REPLICAS: replicas.to_string() } }, "spec": { "replicas": 0 },
        });
        self.send(Method::PATCH, DEPLOYMENT, &patch).await?;
        Ok(())
    }

    async fn start(&self) -> Result<(), NoAnswer> {
        let deployment = read(&self.client, DEPLOYMENT).await?.unwrap_or_default();
        let annotations = deployment.pointer("/metadata/annotations");
        let before =
            annotations.and_then(|annotations| annotations.get(REPLICAS)?.as_str()?.parse::<u64>().ok());
        let replicas = before.filter(|replicas| *replicas > 0).unwrap_or(2);
        self.send(Method::PATCH, DEPLOYMENT, &json!({ "spec": { "replicas": replicas } })).await?;
        Ok(())
    }

    /// Takes or renews KCM's lease. Its old leader exits when it cannot renew it.
    async fn hold_manager(&self, lasts: Duration) -> Result<(), NoAnswer> {
        let lease = read(&self.client, MANAGER_LEASE).await?;
        let lease = lease.ok_or_else(|| {
            let why = "kube-controller-manager has no lease: restart it by hand while it is fenced (docs/adopting.md)";
            NoAnswer::Refused(404, why.to_owned())
        })?;
        match self.hold(MANAGER_LEASE, &lease, lasts).await {
            // The old leader has renewed it in between.
            Err(NoAnswer::Refused(409, _)) => Ok(()),
            other => other,
        }
    }

    async fn event(&self, what: &str) -> Result<(), NoAnswer> {
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let event = json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": { "generateName": "mooring-switch.", "namespace": "mooring-system" },
            "involvedObject": {
                "apiVersion": "apps/v1", "kind": "Deployment", "namespace": "mooring-system", "name": "mooring",
            },
            "type": "Normal", "reason": "Switched", "message": format!("{what}, by {}", self.who),
            "source": { "component": "mooring-switch" }, "count": 1,
            "firstTimestamp": now, "lastTimestamp": now,
        });
        self.send(Method::POST, "/api/v1/namespaces/mooring-system/events", &event).await?;
        Ok(())
    }
}
