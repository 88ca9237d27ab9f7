//! What a look reads from objects.

use std::{convert::Infallible, time::Duration};

use apiserver::connect::ApiServer;
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::time::{Instant, advance};

use super::{
    hold::ManagerLease,
    observe::{Observer, Renewals, Unlisted, UnlistedVolumes, daemon, daemon_lease, has_led, switched_off},
    step::{DaemonStanding, Direction, SwitchStep, next},
    tests::{order, ruled_by_the_manager},
};
use crate::fence::policies::{FENCES, Fence};

#[tokio::test(start_paused = true)]
async fn no_look_that_fails_keeps_the_managers_lease_held() {
    let service =
        tower::service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::empty())));
    let client = Client::new(service, "default");
    let hold = ManagerLease::new(client.clone(), "mooring-switch_1".to_owned());
    let api = ApiServer::in_process(client);
    let observer = Observer::new(&api, &[], Some(hold.clone()), (Direction::KubeControllerManager, &[]));
    assert!(!observer.has_held_on().await);
    hold.note(&json!({ "spec": { "holderIdentity": "mooring-switch_1" } }), Instant::now()).await;
    for (seconds, expected) in [(0, false), (180, false), (5, true)] {
        advance(Duration::from_secs(seconds)).await;
        assert_eq!(observer.has_held_on().await, expected, "{seconds}");
    }
}

#[tokio::test]
async fn what_kcm_has_under_way_is_no_matter_where_mooring_does_not_run_attach_detach() {
    let [attach_detach, binder, ..] = &FENCES;
    // The fence that is there, what the Deployment runs, its replicas, whether mooring has led.
    let cases = [
        (attach_detach, "*", 1, true, true),
        (attach_detach, "*", 1, false, false),
        // It denies nothing here.
        (attach_detach, "*", 0, true, false),
        (binder, "persistentvolume-binder-controller", 1, true, false),
        // Somebody has taken the fence of attach/detach down, and mooring goes on.
        (binder, "*", 1, true, true),
        (binder, "*", 0, true, false),
    ];
    let cases = cases.map(|it| (it, false));
    // Its lease is gone: it has led, or not; and the fence denies.
    let gone = [
        ((attach_detach, "*", 0, false, true), true),
        ((attach_detach, "*", 1, false, false), true),
        ((attach_detach, "*", 2, false, false), true),
    ];
    for ((there, controllers, replicas, has_led, is_asked_for), denies) in cases.into_iter().chain(gone) {
        let service = tower::service_fn(move |request: Request<Body>| async move {
            let path = request.uri().path();
            let of_it = path.ends_with(&format!("policies/{}", there.name()));
            let source = json!({ "persistentVolumeName": "v" });
            let attachment =
                json!({ "metadata": { "name": "a" }, "spec": { "source": source, "nodeName": "n" } });
            let (code, body) = match (request.method(), path.rsplit('/').next()) {
                (&Method::POST, _) if denies => {
                    let message = format!("denied request: {}", there.mark());
                    (403, json!({ "kind": "Status", "status": "Failure", "code": 403, "message": message }))
                }
                (&Method::POST, _) => (201, json!({})),
                _ if denies && path.ends_with(&format!("bindings/{}", there.name())) => {
                    (200, there.objects()[1].clone())
                }
                (_, Some("volumeattachments")) => (200, json!({ "items": [attachment] })),
                _ if of_it => {
                    let mut policy = there.objects()[0].clone();
                    policy["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z".into();
                    (200, policy)
                }
                (_, Some("mooring")) if path.contains("/leases/") && has_led => {
                    (200, json!({ "metadata": { "resourceVersion": "7" }, "spec": { "renewTime": "1" } }))
                }
                (_, Some("mooring")) if path.contains("/deployments/") => {
                    let container =
                        json!({ "args": ["run", "--fence", format!("--controllers={controllers}")] });
                    let template = json!({ "spec": { "containers": [container] } });
                    // One of two replicas here was made after the fence.
                    let made = format!("2026-01-0{}T00:00:00Z", 1 + replicas);
                    let metadata = json!({ "creationTimestamp": made });
                    (
                        200,
                        json!({ "metadata": metadata, "spec": { "replicas": replicas, "template": template } }),
                    )
                }
                _ => (404, json!({ "kind": "Status", "status": "Failure", "code": 404 })),
            };
            let answer = Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
            Ok::<_, Infallible>(answer.unwrap())
        });
        let api = ApiServer::in_process(Client::new(service, "default"));
        let fences: Vec<&'static Fence> = FENCES.iter().collect();
        let mut observer = Observer::new(&api, &fences, None, (Direction::KubeControllerManager, &[]));
        let seen = observer.look().await.unwrap();
        // Only attach/detach goes on from what it remembers.
        assert_eq!(seen.remembers, there.has_memory() || controllers == "*", "{controllers}");
        assert!(!seen.daemon.is_restored, "this run has not stopped it");
        observer.was_stopped = true;
        assert_eq!(observer.look().await.unwrap().daemon.is_restored, replicas > 0);
        assert_eq!(observer.has_run, replicas == 1, "the successor of one that led proves nothing");
        let asked_for = !seen.unlisted.is_empty();
        assert_eq!(asked_for, is_asked_for, "{} {controllers} {replicas} {has_led}", there.controller);
    }
}

/// Who has deleted mooring, or runs it where it is not looked for, is told so before kube-controller-manager is said to rule.
#[tokio::test]
async fn what_the_managers_flags_switch_off_is_seen_without_a_deployment() {
    let service = tower::service_fn(async |_: Request<Body>| {
        let command = ["kube-controller-manager", "--controllers=*,-persistentvolume-binder-controller"];
        let spec = json!({ "containers": [{ "command": command }] });
        let pods =
            json!({ "items": [{ "metadata": { "name": "kube-controller-manager-a" }, "spec": spec }] });
        Ok::<_, Infallible>(Response::new(Body::from(pods.to_string().into_bytes())))
    });
    let off = switched_off(&Client::new(service, "default"), None).await.unwrap();
    assert_eq!(off, (vec!["persistentvolume-binder-controller"], true));
    let unseen = tower::service_fn(async |_: Request<Body>| {
        Ok::<_, Infallible>(Response::new(Body::from(b"{\"items\":[]}".to_vec())))
    });
    let unseen = switched_off(&Client::new(unseen, "default"), None).await;
    assert_eq!(unseen, Ok((Vec::new(), false)), "no pod is to be seen");
    let mut seen = ruled_by_the_manager();
    (seen.daemon, seen.manager.off) = (DaemonStanding::default(), off.0);
    let SwitchStep::Stop(why) = next(order(Direction::KubeControllerManager), &seen) else {
        panic!("{seen:?}")
    };
    assert!(why.contains("persistentvolume-binder-controller; there is no Deployment"), "{why}");
}

/// Back, all fences are looked at, of which those are there that the Deployment needs.
#[tokio::test]
async fn mooring_may_lead_behind_the_fences_of_what_it_runs() {
    let needed = &FENCES[..2];
    // How many of them deny, and what the Deployment runs.
    let cases = [(2, "*", true), (1, "*", false), (1, "persistentvolume-attach-detach-controller", true)];
    for (denying, controllers, expected) in cases {
        let service = tower::service_fn(move |request: Request<Body>| async move {
            let path = request.uri().path().to_owned();
            let raised = needed[..denying].iter().find(|fence| path.ends_with(&format!("/{}", fence.name())));
            let probed = match request.into_body().collect().await.map(http_body_util::Collected::to_bytes) {
                Ok(body) => needed[..denying].iter().find(|fence| {
                    serde_json::from_slice::<Value>(&body)
                        .is_ok_and(|it| it["metadata"]["name"] == fence.name())
                }),
                Err(_) => None,
            };
            let status = |code: u16, message: &str| {
                (code, json!({ "kind": "Status", "status": "Failure", "code": code, "message": message }))
            };
            let (code, body) = match (raised, probed) {
                (Some(fence), _) if path.contains("bindings") => (200, fence.objects()[1].clone()),
                (Some(fence), _) => (200, fence.objects()[0].clone()),
                (_, Some(fence)) => status(403, &fence.mark()),
                _ if path.contains("/deployments/") => {
                    let container =
                        json!({ "args": ["run", "--fence", format!("--controllers={controllers}")] });
                    (200, json!({ "spec": { "template": { "spec": { "containers": [container] } } } }))
                }
                _ if path.ends_with("volumeattachments") => (201, json!({})),
                _ => status(404, ""),
            };
            let answer = Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
            Ok::<_, Infallible>(answer.unwrap())
        });
        let api = ApiServer::in_process(Client::new(service, "default"));
        let fences: Vec<&'static Fence> = FENCES.iter().collect();
        let mut observer = Observer::new(&api, &fences, None, (Direction::KubeControllerManager, &[]));
        let seen = observer.look().await.unwrap();
        assert_eq!(seen.holds, expected, "{denying} {controllers}: {seen:?}");
    }
}

#[test]
fn a_lease_is_led_by_whoever_was_seen_to_renew_it_and_free_when_it_has_expired() {
    let lease = |holder: &str, renewed: &str| json!({ "spec": { "holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15 } });
    // Second, holder, renewal, whether somebody was seen to lead, and whether somebody may lead.
    let course = [
        (0, "a", "1", (false, true)),
        (14, "a", "1", (false, true)),
        (15, "a", "1", (false, false)),
        (16, "b", "2", (true, true)),
        (30, "b", "2", (true, true)),
        (31, "b", "2", (false, false)),
        (32, "b", "3", (true, true)),
        (33, "", "3", (false, false)),
        (34, "c", "3", (false, true)),
    ];
    let (mut renewals, start) = (Renewals::default(), Instant::now());
    for (second, holder, renewed, expected) in course {
        let found = renewals.note(&lease(holder, renewed), start + Duration::from_secs(second));
        assert_eq!(found, expected, "{second}");
    }
}

#[test]
fn a_manager_that_was_freed_since_mooring_led_last_was_never_denied_anything() {
    let lease = json!({ "metadata": { "resourceVersion": "7" }, "spec": { "renewTime": "10:00:00" } });
    assert!(!has_led(&lease, Some("mooring-switch_1 7")));
    assert!(has_led(&lease, Some("mooring-switch_1 6")), "it has led since");
    assert!(has_led(&lease, None), "nobody has noted it, or somebody has deleted the note");
    assert!(!has_led(&json!({}), None), "it has never led");
}

#[test]
fn the_deployment_says_which_lease_the_daemon_takes() {
    let deployment = |arguments: &[&str]| {
        json!({
            "spec": { "replicas": 0, "template": { "spec": { "containers": [{ "args": arguments }] } } },
            "status": { "replicas": 2, "updatedReplicas": 2, "readyReplicas": 1 },
        })
    };
    let lease = |arguments: &[&str]| daemon_lease(Some(&deployment(arguments)));
    assert!(lease(&["run", "--fence"]).ends_with("/mooring-system/leases/mooring"));
    let named = ["--leader-elect-resource-name=ours", "--leader-elect-resource-namespace", "storage"];
    assert!(lease(&named).ends_with("/storage/leases/ours"));
    let expected = DaemonStanding {
        replicas: Some(0),
        ready: 1,
        running: 2,
        is_fenced: true,
        ..DaemonStanding::default()
    };
    assert_eq!(daemon(Some(&deployment(&["run", "--fence"]))), expected);
    let without = DaemonStanding { has_no_lease: true, ..expected };
    assert_eq!(daemon(Some(&deployment(&["run", "--fence", "--leader-elect=false"]))), without);
}

#[test]
fn volumes_are_seldom_read_again_while_mooring_stands_still_and_none_was_found() {
    let (drains, runs, held) = (true, true, true);
    // What was found, of when, what is so now, after how long, and whether it is read again.
    let cases = [
        (&["v"][..], (drains, runs), ((drains, runs), !held), 4, false),
        (&[], (drains, runs), ((drains, runs), !held), 5, true),
        (&[], (drains, runs), ((!drains, !runs), !held), 0, true),
        (&[], (!drains, !runs), ((!drains, !runs), !held), 29, false),
        (&[], (!drains, !runs), ((!drains, !runs), !held), 30, true),
        (&["v"], (!drains, !runs), ((!drains, !runs), !held), 5, true),
        (&["v"], (!drains, !runs), ((!drains, !runs), held), 5, false),
    ];
    for (volumes, of, (is, is_held), seconds, expected) in cases {
        let read_at = Instant::now();
        let known = Unlisted { volumes: volumes.iter().map(ToString::to_string).collect(), read_at, of };
        let now = read_at + Duration::from_secs(seconds);
        assert_eq!(known.is_old(is, is_held, now), expected, "{volumes:?} {of:?} {is:?}");
    }
}

#[test]
fn an_exclusive_volume_is_listed_by_the_node_that_it_is_attached_to() {
    let attachment = |name: &str, volume: &str, node: &str| {
        json!({
            "metadata": { "name": name },
            "spec": { "nodeName": node, "source": { "persistentVolumeName": volume } },
        })
    };
    let node = |name: &str, listed: &[&str]| {
        let entry = |handle: &&str| json!({ "name": format!("kubernetes.io/csi/d^{handle}") });
        let entries: Vec<_> = listed.iter().map(entry).collect();
        json!({ "metadata": { "name": name }, "status": { "volumesAttached": entries } })
    };
    let volume =
        |name: &str, mode: &str| json!({ "metadata": { "name": name }, "spec": { "accessModes": [mode] } });
    let named = |handle: &str, node: &str| {
        let id = crate::attach_detach::state::desired::volume_name::VolumeId::csi(&"d".into(), handle);
        id.attachment_name(&node.into()).to_string()
    };
    let mut found = UnlistedVolumes::default();
    for (name, volume, node) in [
        (named("h1", "n1"), "listed", "n1"),
        (named("h2", "n1"), "other-node", "n1"),
        (named("h3", "n1"), "shared", "n1"),
        (named("h4", "n1"), "gone", "n1"),
    ] {
        found.attachment(&attachment(&name, volume, node));
    }
    found.node(&node("n1", &["h1"]));
    found.node(&node("n2", &["h2"]));
    for (name, mode) in
        [("listed", "ReadWriteOnce"), ("other-node", "ReadWriteOnce"), ("shared", "ReadWriteMany")]
    {
        found.volume(&volume(name, mode));
    }
    assert_eq!(found.names(&[]), ["gone on n1", "other-node on n1"]);
    assert_eq!(found.names(&["gone".to_owned()]), ["other-node on n1"], "one that is left");
}
