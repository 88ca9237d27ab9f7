//! Does one step: each is one write or a few, and does no harm if it is repeated.

use std::time::Duration;

use apiserver::{connect::ApiServer, wire::rfc3339};
use http::Method;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use super::{
    hold::{FREED, FREEING, LED_AT_STOP, LOCK, ManagerLease, held, holder},
    observe::{BETWEEN_LOOKS, SWITCH_HOLDER, led_at_renewal},
    step::{MOST_LED, ManagerStanding, SwitchSeen, SwitchStep},
};
use crate::{
    fence::{
        ask::{NoAnswer, apply, ask, client, if_there, patch, read, text, try_delete},
        policies::{BINDINGS, DRAIN, FINALIZER, Fence, POLICIES, RAISED, apply_path, path_of},
    },
    preflight::facts::{DEPLOYMENT, MANAGER_LEASE},
};

/// Where the lock is created.
const LOCKS: &str = "/apis/coordination.k8s.io/v1/namespaces/mooring-system/leases";
/// Whoever has not renewed the lock for so long is gone.
const LOCK_LASTS: Duration = Duration::from_secs(30);
/// What the event says at the end of the way back.
const HANDED_OVER: &str = "Handed over to kube-controller-manager";
/// The same where nobody held its lease.
const BY_HAND: &str = "Handed over to a kube-controller-manager that was started anew by hand";
/// How many replicas the Deployment had before it was stopped, an annotation of the lock.
const REPLICAS: &str = "mooring.dev/replicas";

/// What writes.
pub(super) struct Switcher<'a> {
    client: Client,
    fences: &'a [&'static Fence],
    manager: ManagerLease,
    /// Renews KCM's lease while it is held, until this is dropped.
    keeper: Option<AbortOnDropHandle<()>>,
    /// Who, and with which versions.
    who: String,
}

impl<'a> Switcher<'a> {
    pub(super) async fn new(api: &ApiServer, fences: &'a [&'static Fence]) -> Result<Self, NoAnswer> {
        let client = client(api)?;
        let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
        let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
        let review = ask(&client, Method::POST, path, Some(&review)).await?;
        let version = read(&client, "/version").await?.unwrap_or_default();
        let who = format!(
            "{} with mooring {} and API server {}",
            text(&review, "/status/userInfo/username"),
            env!("CARGO_PKG_VERSION"),
            text(&version, "/gitVersion"),
        );
        let identity = format!("{SWITCH_HOLDER}{:016x}", fastrand::u64(..));
        let manager = ManagerLease::new(client.clone(), identity);
        Ok(Self { client, fences, manager, keeper: None, who })
    }

    pub(super) fn manager(&self) -> &ManagerLease {
        &self.manager
    }

    async fn send(&self, method: Method, path: &str, body: &Value) -> Result<Value, NoAnswer> {
        ask(&self.client, method, path, Some(body)).await
    }

    async fn patch(&self, path: &str, read: &Value, changes: Value) -> Result<(), NoAnswer> {
        patch(&self.client, path, read, changes).await
    }

    /// Takes or renews the lock; waits as long as a dead one may still hold it. Returns whether it has been ours until now: else what
    /// was seen before may be old.
    pub(super) async fn lock(&self, tell: &impl Fn(&str)) -> Result<bool, NoAnswer> {
        let mut waits_for: Option<(Value, Instant)> = None;
        loop {
            let Some(lease) = read(&self.client, LOCK).await? else {
                let lease = json!({
                    "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                    "metadata": { "name": "mooring-switch" }, "spec": self.lock_held(),
                });
                self.send(Method::POST, LOCKS, &lease).await?;
                return Ok(false);
            };
            let holder = holder(&lease);
            let seen = lease.pointer("/spec/renewTime").cloned().unwrap_or_default();
            let is_dead = waits_for
                .as_ref()
                .is_some_and(|(known, since)| *known == seen && since.elapsed() >= LOCK_LASTS);
            let is_ours = holder == self.manager.identity();
            if holder.is_empty() || is_ours || is_dead {
                self.patch(LOCK, &lease, json!({ "spec": self.lock_held() })).await?;
                return Ok(is_ours);
            }
            match &waits_for {
                Some((known, _)) if *known == seen => {}
                Some(_) => {
                    // Not a conflict that passes.
                    return Err(NoAnswer::Refused(423, format!("another switch is at work: {holder}")));
                }
                None => {
                    tell(&format!("wait until the lock of {holder} has expired"));
                    waits_for = Some((seen, Instant::now()));
                }
            }
            sleep(BETWEEN_LOOKS).await;
        }
    }

    fn lock_held(&self) -> Value {
        held(self.manager.identity(), LOCK_LASTS)
    }

    /// Gives the lock up, if it is ours.
    pub(super) async fn unlock(&self) -> Result<(), NoAnswer> {
        match read(&self.client, LOCK).await? {
            Some(lease) if holder(&lease) == self.manager.identity() => {
                self.patch(LOCK, &lease, json!({ "spec": { "holderIdentity": "" } })).await
            }
            _ => Ok(()),
        }
    }

    /// Takes a step; those that only wait need nothing.
    pub(super) async fn take(
        &mut self,
        step: &SwitchStep,
        seen: &SwitchSeen,
        tell: &impl Fn(&str),
    ) -> Result<(), NoAnswer> {
        // Without it, KCM was started anew by hand.
        let is_held = seen.manager.held.is_some();
        match step {
            SwitchStep::RaiseFence => self.raise(tell).await,
            SwitchStep::Resume => self.ask_to_drain(&Value::Null).await,
            SwitchStep::Drain(_) => {
                self.ask_to_drain(&json!(format!("{} {}", self.manager.identity(), Timestamp::now()))).await
            }
            SwitchStep::StartDaemon | SwitchStep::StartAgain(_) => {
                self.start().await?;
                self.event("Started mooring", tell).await;
                Ok(())
            }
            SwitchStep::StopDaemon => {
                self.annotate_lock(REPLICAS, &seen.daemon.replicas.unwrap_or(1).to_string()).await?;
                self.scale(0).await?;
                self.event("Stopped mooring", tell).await;
                Ok(())
            }
            SwitchStep::ProveOpen if !is_held => Ok(()),
            SwitchStep::HoldLease | SwitchStep::ProveOpen => {
                let is_take = *step == SwitchStep::HoldLease;
                let lasts = seen.manager.lasts;
                self.manager.write(is_take, &held(self.manager.identity(), lasts)).await?;
                let keep = || AbortOnDropHandle::new(tokio::spawn(self.manager.clone().keep(lasts)));
                self.keeper.get_or_insert_with(keep);
                Ok(())
            }
            SwitchStep::LowerFence => {
                if seen.remembers && !is_held && seen.fence.is_up() && !self.frees(&seen.manager).await? {
                    return Ok(());
                }
                // Nothing is denied without a binding, and a policy that is left shows that this has not ended.
                for (_, plural) in [BINDINGS, POLICIES] {
                    for fence in self.fences {
                        let spec = held(self.manager.identity(), seen.manager.lasts);
                        if is_held && !self.manager.write(false, &spec).await? {
                            return Ok(());
                        }
                        self.lower(fence, plural).await?;
                    }
                    if plural == BINDINGS.1 {
                        self.annotate_lock(FREED, &seen.manager.mark).await?;
                    }
                }
                if is_held {
                    // What follows tells it.
                    return Ok(());
                }
                self.event(if seen.remembers { BY_HAND } else { HANDED_OVER }, tell).await;
                Ok(())
            }
            SwitchStep::RecordManager => self.annotate_lock(LED_AT_STOP, &seen.manager.mark).await,
            SwitchStep::LowerUnneeded(fences) => {
                for fence in fences {
                    self.lower(fence, BINDINGS.1).await?;
                    self.lower(fence, POLICIES.1).await?;
                }
                self.event("Took down the fences of loops that mooring does not run", tell).await;
                Ok(())
            }
            SwitchStep::GiveLeaseUp => {
                let free = json!({ "holderIdentity": "", "leaseDurationSeconds": 1 });
                if self.manager.write(false, &free).await? {
                    self.event(HANDED_OVER, tell).await;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Whether the process that leads may still be freed: the look that found it, and the lock, may have taken long. Notes that it
    /// is about to be.
    async fn frees(&self, manager: &ManagerStanding) -> Result<bool, NoAnswer> {
        let lease = read(&self.client, MANAGER_LEASE).await?.unwrap_or_default();
        let is_same = manager.mark.starts_with(&format!("{} ", holder(&lease)));
        let is_new = manager.led.is_none() || led_at_renewal(&lease).is_some_and(|led| led <= MOST_LED);
        let frees = is_same && (is_new || manager.is_being_freed);
        if frees {
            self.annotate_lock(FREEING, &manager.mark).await?;
        }
        Ok(frees)
    }

    /// The lock, if no other has taken it: a step of many writes may have taken long.
    async fn own_lock(&self) -> Result<Value, NoAnswer> {
        let lock = read(&self.client, LOCK).await?.unwrap_or_default();
        match holder(&lock) {
            other if !other.is_empty() && other != self.manager.identity() => {
                Err(NoAnswer::Refused(423, format!("another switch has taken the lock meanwhile: {other}")))
            }
            _ => Ok(lock),
        }
    }

    /// Notes something on the lock, which is ours.
    async fn annotate_lock(&self, key: &str, value: &str) -> Result<(), NoAnswer> {
        let lock = self.own_lock().await?;
        self.patch(LOCK, &lock, json!({ "metadata": { "annotations": { key: value } } })).await
    }

    /// Whoever could not take it down again does not put it up: then nobody has a way back.
    async fn raise(&self, tell: &impl Fn(&str)) -> Result<(), NoAnswer> {
        for fence in self.fences {
            for (_, plural) in [POLICIES, BINDINGS] {
                try_delete(&self.client, &path_of(plural, &fence.name())).await?;
            }
        }
        let raised = format!("{} by {}", Timestamp::now(), self.who);
        for fence in self.fences {
            for (mut object, (_, plural)) in fence.objects().into_iter().zip([POLICIES, BINDINGS]) {
                if let Some(annotations) =
                    object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut)
                {
                    annotations.insert(RAISED.to_owned(), json!(raised));
                }
                self.own_lock().await?;
                self.replace_spec(&path_of(plural, &fence.name()), &object).await?;
                apply(&self.client, &apply_path(plural, &fence.name()), &object).await?;
            }
        }
        self.event("Fenced kube-controller-manager off", tell).await;
        Ok(())
    }

    /// Takes out of an object that is there what others have added to its spec. To apply it does not: what another owns of a
    /// set or of a map stays.
    async fn replace_spec(&self, path: &str, ours: &Value) -> Result<(), NoAnswer> {
        let Some(there) = read(&self.client, path).await? else { return Ok(()) };
        let spec = replacing(ours.get("spec"), there.get("spec"));
        self.patch(path, &there, json!({ "spec": spec })).await
    }

    /// Asks the daemon to begin nothing new, for a minute from now on; or, with nothing, to go on.
    pub(super) async fn ask_to_drain(&self, asked: &Value) -> Result<(), NoAnswer> {
        for fence in self.fences {
            let path = path_of(POLICIES.1, &fence.name());
            let Some(policy) = read(&self.client, &path).await? else { continue };
            self.patch(&path, &policy, json!({ "metadata": { "annotations": { DRAIN: asked } } })).await?;
        }
        Ok(())
    }

    async fn lower(&self, fence: &Fence, plural: &str) -> Result<(), NoAnswer> {
        let path = path_of(plural, &fence.name());
        let Some(object) = read(&self.client, &path).await? else { return Ok(()) };
        self.own_lock().await?;
        let finalizers = object.pointer("/metadata/finalizers").and_then(Value::as_array);
        let left: Vec<&Value> =
            finalizers.into_iter().flatten().filter(|finalizer| *finalizer != FINALIZER).collect();
        self.patch(&path, &object, json!({ "metadata": { "finalizers": left } })).await?;
        let same = json!({ "preconditions": { "uid": object.pointer("/metadata/uid") } });
        if_there(self.send(Method::DELETE, &path, &same).await).map(drop)
    }

    async fn start(&self) -> Result<(), NoAnswer> {
        let lock = read(&self.client, LOCK).await?.unwrap_or_default();
        let annotations = lock.pointer("/metadata/annotations");
        let before =
            annotations.and_then(|annotations| annotations.get(REPLICAS)?.as_str()?.parse::<u64>().ok());
        self.scale(before.filter(|replicas| *replicas > 0).unwrap_or(2)).await
    }

    /// Through the subresource: whoever may do no more changes nothing of what runs.
    async fn scale(&self, replicas: u64) -> Result<(), NoAnswer> {
        let deployment = read(&self.client, DEPLOYMENT).await?.unwrap_or_default();
        let path = format!("{DEPLOYMENT}/scale");
        self.patch(&path, &deployment, json!({ "spec": { "replicas": replicas } })).await
    }

    /// Tells what was done. Whoever refuses that undoes nothing.
    async fn event(&self, what: &str, tell: &impl Fn(&str)) {
        let now = rfc3339(Timestamp::now());
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
        let sent = self.send(Method::POST, "/api/v1/namespaces/mooring-system/events", &event).await;
        if let Err(why) = sent {
            tell(&format!("no event says that it was done: {why}"));
        }
    }
}

/// The merge patch that makes one value of another.
pub(super) fn replacing(ours: Option<&Value>, there: Option<&Value>) -> Value {
    match (ours, there) {
        (Some(Value::Object(ours)), Some(Value::Object(there))) => {
            let fields = there.keys().chain(ours.keys());
            let patch = fields.map(|field| (field.clone(), replacing(ours.get(field), there.get(field))));
            Value::Object(patch.collect())
        }
        (ours, _) => ours.cloned().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use kube::client::Body;

    use super::*;
    use crate::fence::policies::FENCES;

    #[test]
    fn what_others_have_added_to_a_spec_is_taken_out() {
        let ours = json!({ "actions": ["Deny"], "match": { "rules": [1] }, "fail": "Fail" });
        let there = json!({ "actions": ["Audit"], "match": { "rules": [1, 2], "except": [3] }, "more": {} });
        let patch = json!({
            "actions": ["Deny"], "match": { "rules": [1], "except": null }, "fail": "Fail", "more": null,
        });
        assert_eq!(replacing(Some(&ours), Some(&there)), patch);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_that_was_not_ours_all_the_time_is_taken_and_told_from_one_that_was() {
        // Who holds it (nothing is that there is none), and whether it was ours, or with which code it is refused.
        let cases = [
            (None, Ok(false)),
            (Some(""), Ok(false)),
            (Some("dead"), Ok(false)),
            (Some("us"), Ok(true)),
            (Some("alive"), Err(423)),
        ];
        for (holds, expected) in cases {
            let looks = std::sync::atomic::AtomicU32::new(0);
            let ours = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
            let identity = std::sync::Arc::clone(&ours);
            let service = tower::service_fn(move |request: Request<Body>| {
                let holder = holds.map(|holder| holder.replace("us", &identity.lock().unwrap()));
                let is_lock = request.uri().path() == LOCK;
                let is_gone = is_lock && request.method() == Method::GET && holds.is_none();
                let (code, body) = if is_gone {
                    (404, json!({ "kind": "Status", "status": "Failure", "code": 404 }))
                } else {
                    // Who is alive renews it.
                    let look = looks.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let renewed = if holds == Some("alive") { look.to_string() } else { "1".to_owned() };
                    (200, json!({ "spec": { "holderIdentity": holder, "renewTime": renewed } }))
                };
                let answer = Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
                async { Ok::<_, Infallible>(answer.unwrap()) }
            });
            let api = ApiServer::in_process(Client::new(service, "default"));
            let switcher = Switcher::new(&api, &[]).await.unwrap();
            switcher.manager().identity().clone_into(&mut ours.lock().unwrap());
            let taken = switcher.lock(&|_| {}).await.map_err(|error| match error {
                NoAnswer::Refused(code, _) => code,
                NoAnswer::Unknown(why) => panic!("{why}"),
            });
            assert_eq!(taken, expected, "{holds:?}");
        }
    }

    #[tokio::test]
    async fn who_leads_is_asked_again_and_noted_before_the_first_binding_goes() {
        let lease = |renewed: &str| {
            let time = |seconds: &str| format!("2020-01-01T00:00:{seconds}Z");
            let spec =
                json!({ "holderIdentity": "b", "acquireTime": time("00"), "renewTime": time(renewed) });
            json!({ "spec": spec })
        };
        // Who led in the look, when the process renewed last, whether it was being freed before, and what is written first.
        let lock = "PATCH mooring-switch";
        let cases = [
            ("b", "03", false, Some(lock)),
            ("b", "30", false, None),
            ("b", "30", true, Some(lock)),
            ("a", "03", false, None),
        ];
        for (led, renewed, is_being_freed, expected) in cases {
            let written = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
            let (writes, lease) = (std::sync::Arc::clone(&written), lease(renewed));
            let service = tower::service_fn(move |request: Request<Body>| {
                let name = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
                let body = if name == "kube-controller-manager" { lease.clone() } else { json!({}) };
                if matches!(*request.method(), Method::PATCH | Method::DELETE) {
                    writes.lock().unwrap().push(format!("{} {name}", request.method()));
                }
                let answer = Response::new(Body::from(body.to_string().into_bytes()));
                async { Ok::<_, Infallible>(answer) }
            });
            let api = ApiServer::in_process(Client::new(service, "default"));
            let fences = [&FENCES[0]];
            let mut switcher = Switcher::new(&api, &fences).await.unwrap();
            let mut seen = crate::switch::tests::ruled_by_mooring();
            let manager = &mut seen.manager;
            (manager.mark, manager.led) = (format!("{led} 7"), Some(Duration::ZERO));
            manager.is_being_freed = is_being_freed;
            switcher.take(&SwitchStep::LowerFence, &seen, &|_| {}).await.unwrap();
            assert_eq!(written.lock().unwrap().first().map(String::as_str), expected, "{led} {renewed}");
        }
    }

    #[tokio::test]
    async fn a_step_of_many_writes_ends_where_another_switch_takes_the_lock() {
        for step in [SwitchStep::RaiseFence, SwitchStep::LowerUnneeded(FENCES.iter().collect())] {
            let written = std::sync::Arc::new(std::sync::Mutex::new(std::collections::BTreeSet::new()));
            let writes = std::sync::Arc::clone(&written);
            let service = tower::service_fn(move |request: Request<Body>| {
                let path = request.uri().path().to_owned();
                let mut writes = writes.lock().unwrap();
                let is_tried = request.uri().query().is_some_and(|query| query.contains("dryRun"));
                if path.contains("validatingadmission") && request.method() != Method::GET && !is_tried {
                    writes.insert(path.clone());
                }
                // It changes hands after the first write.
                let holder = if writes.is_empty() { "" } else { "another" };
                let body = json!({ "spec": { "holderIdentity": holder } });
                async move { Ok::<_, Infallible>(Response::new(Body::from(body.to_string().into_bytes()))) }
            });
            let api = ApiServer::in_process(Client::new(service, "default"));
            let fences: Vec<&'static Fence> = FENCES.iter().collect();
            let mut switcher = Switcher::new(&api, &fences).await.unwrap();
            let taken = switcher.take(&step, &crate::switch::tests::ruled_by_mooring(), &|_| {}).await;
            assert!(matches!(taken, Err(NoAnswer::Refused(423, _))), "{step:?}: {taken:?}");
            assert_eq!(written.lock().unwrap().len(), 1, "{step:?}");
        }
    }

    #[tokio::test]
    async fn a_fence_that_this_user_could_not_take_down_is_not_put_up() {
        let service = tower::service_fn(|request: Request<Body>| async move {
            let code = match *request.method() {
                Method::DELETE => 403,
                Method::PATCH => panic!("{}", request.uri()),
                _ => 200,
            };
            let status = json!({ "kind": "Status", "status": "Failure", "message": "no", "code": code });
            let answer = Response::builder().status(code).body(Body::from(status.to_string().into_bytes()));
            Ok::<_, Infallible>(answer.unwrap())
        });
        let api = ApiServer::in_process(Client::new(service, "default"));
        let fences = [&FENCES[0]];
        let mut switcher = Switcher::new(&api, &fences).await.unwrap();
        let seen = crate::switch::tests::ruled_by_the_manager();
        let raised = switcher.take(&SwitchStep::RaiseFence, &seen, &|_| {}).await;
        assert_eq!(raised, Err(NoAnswer::Refused(403, "no".to_owned())));
    }

    #[tokio::test]
    async fn what_was_done_is_done_although_its_event_is_refused() {
        let service = tower::service_fn(|request: Request<Body>| async move {
            let code = match (request.method(), request.uri().path()) {
                (&Method::GET, "/version") | (&Method::PATCH, _) => 200,
                (&Method::POST, path) if path.ends_with("/selfsubjectreviews") => 201,
                (&Method::POST, _) => 403,
                _ => 404,
            };
            let status = json!({ "kind": "Status", "status": "Failure", "message": "no", "code": code });
            let answer = Response::builder().status(code).body(Body::from(status.to_string().into_bytes()));
            Ok::<_, Infallible>(answer.unwrap())
        });
        let api = ApiServer::in_process(Client::new(service, "default"));
        let fences = [&FENCES[0]];
        let mut switcher = Switcher::new(&api, &fences).await.unwrap();
        let seen = crate::switch::tests::ruled_by_the_manager();
        let told = std::cell::RefCell::new(String::new());
        let tell = |line: &str| told.borrow_mut().push_str(line);
        for step in [
            SwitchStep::RaiseFence,
            SwitchStep::StartDaemon,
            SwitchStep::StopDaemon,
            SwitchStep::LowerUnneeded(Vec::new()),
            SwitchStep::LowerFence,
        ] {
            assert_eq!(switcher.take(&step, &seen, &tell).await, Ok(()), "{step:?}");
            assert_eq!(told.take(), "no event says that it was done: no", "{step:?}");
        }
    }
}
