//! The reader against a server that is played by the test.

use std::{collections::BTreeMap, convert::Infallible};

use apiserver::{
    ids::ClaimKey,
    kinds::{Narrow, ObjectRef, PersistentVolume, StorageClass},
};
use http::Response;

use super::*;
use crate::attach_detach::state::desired::volume_name::VolumeId;
use crate::explain::subject;

/// The server's time, an hour ago by any clock that runs these tests.
const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

/// What the server has, by path without query.
#[derive(Clone)]
enum Said {
    Object(Value),
    Items(Vec<Value>),
    No(u16, &'static str),
    Silence,
}

struct Played {
    reader: Reader,
    asked: Arc<Mutex<Vec<String>>>,
}

fn played(said: impl IntoIterator<Item = (&'static str, Said)>) -> Played {
    let said: BTreeMap<String, Said> = said.into_iter().map(|(path, said)| (path.to_owned(), said)).collect();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&asked);
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let uri = request.uri().to_string();
        let answer = said.get(request.uri().path()).cloned();
        let is_list = uri.contains("limit=")
            || uri.contains("fieldSelector")
            || uri.ends_with("leases")
            || uri.ends_with("classes");
        record.lock().push(uri);
        async move {
            let (code, body) = match answer {
                Some(Said::Object(object)) => (200, object),
                Some(Said::Items(items)) => {
                    (200, json!({ "kind": "List", "metadata": { "resourceVersion": "9" }, "items": items }))
                }
                Some(Said::No(code, reason)) => {
                    let message = format!("{reason}: not for you");
                    (code, json!({ "kind": "Status", "code": code, "reason": reason, "message": message }))
                }
                Some(Said::Silence) => {
                    std::future::pending::<()>().await;
                    (500, Value::Null)
                }
                None if is_list => {
                    (200, json!({ "kind": "List", "metadata": { "resourceVersion": "9" }, "items": [] }))
                }
                None => {
                    (404, json!({ "kind": "Status", "code": 404, "reason": "NotFound", "message": "gone" }))
                }
            };
            let answer = Response::builder().status(code).header(header::CONTENT_TYPE, "application/json");
            let answer = answer.header(header::DATE, DATE);
            Ok::<_, Infallible>(answer.body(Body::from(body.to_string().into_bytes())).unwrap())
        }
    });
    let api = ApiServer::in_process(Client::new(service, "default"));
    Played { reader: Reader::new(&api, Some(Duration::from_secs(5))).unwrap(), asked }
}

impl Played {
    async fn read(&self, subject: &str) -> Result<Snapshot, String> {
        let subject = subject::parse(&[subject], "shop").unwrap();
        self.reader.read(&Question::Object(subject)).await
    }

    /// Paths that were asked for, without `/version` and events.
    fn asked(&self) -> Vec<String> {
        let asked = self.asked.lock();
        let mut asked: Vec<String> = asked
            .iter()
            .map(|uri| uri.split('?').next().unwrap_or_default().to_owned())
            .filter(|path| path != "/version" && !path.ends_with("/events"))
            .collect();
        asked.sort();
        asked
    }
}

fn meta(name: &str, namespace: &str) -> Value {
    json!({ "name": name, "namespace": namespace, "uid": format!("u-{name}"), "resourceVersion": "7" })
}

fn version() -> (&'static str, Said) {
    ("/version", Said::Object(json!({ "major": "1", "minor": "36+" })))
}

const CLAIM: &str = "/api/v1/namespaces/shop/persistentvolumeclaims/data";

fn claim(volume: &str) -> (&'static str, Said) {
    (CLAIM, Said::Object(json!({ "metadata": meta("data", "shop"), "spec": { "volumeName": volume } })))
}

fn volume() -> (&'static str, Said) {
    let spec = json!({
        "accessModes": ["ReadWriteOnce"], "csi": { "driver": "d", "volumeHandle": "h" },
        "claimRef": { "namespace": "shop", "name": "data", "uid": "u-data" },
    });
    ("/api/v1/persistentvolumes/pv1", Said::Object(json!({ "metadata": meta("pv1", ""), "spec": spec })))
}

#[tokio::test]
async fn a_bound_claim_is_read_by_name_and_nothing_is_listed_but_its_namespaces_pods() {
    let pod = json!({
        "metadata": meta("p", "shop"),
        "spec": {
            "nodeName": "a", "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "data" } }],
        },
    });
    let attachment = VolumeId::csi(&"d".into(), "h").attachment_name(&"a".into());
    let path: &'static str = format!("/apis/storage.k8s.io/v1/volumeattachments/{attachment}").leak();
    let attached = json!({
        "metadata": meta(attachment.as_str(), ""),
        "spec": { "attacher": "d", "nodeName": "a", "source": { "persistentVolumeName": "pv1" } },
        "status": { "attached": true },
    });
    let driver = json!({ "metadata": meta("d", ""), "spec": {} });
    let listed =
        json!({ "volumesAttached": [{ "name": VolumeId::csi(&"d".into(), "h"), "devicePath": "" }] });
    let server = played([
        version(),
        claim("pv1"),
        volume(),
        ("/api/v1/namespaces/shop/pods", Said::Items(vec![pod])),
        ("/apis/storage.k8s.io/v1/csidrivers/d", Said::Object(driver)),
        (path, Said::Object(attached)),
        ("/api/v1/nodes/a", Said::Object(json!({ "metadata": meta("a", ""), "status": listed }))),
    ]);
    let snapshot = server.read("pvc/data").await.unwrap();
    assert_eq!(
        server.asked(),
        [
            "/api/v1/namespaces/shop/persistentvolumeclaims/data",
            "/api/v1/namespaces/shop/pods",
            "/api/v1/nodes/a",
            "/api/v1/persistentvolumes/pv1",
            "/apis/storage.k8s.io/v1/csidrivers/d",
            "/apis/storage.k8s.io/v1/csinodes/a",
            path,
        ]
    );
    assert_eq!(snapshot.unseen, []);
    assert!(snapshot.objects.attachments.get(&attachment).is_some_and(|it| it.status.attached));
    assert!(snapshot.details.contains_key(&ObjectRef::Node("a".into())));
    // The server's clock counts.
    assert_eq!(snapshot.taken_at.to_string(), "1994-11-06T08:49:37Z");
}

#[tokio::test]
async fn s42_what_is_forbidden_is_said_and_nothing_is_concluded_from_it() {
    let server = played([
        version(),
        claim(""),
        ("/api/v1/persistentvolumes", Said::No(403, "Forbidden")),
        ("/apis/coordination.k8s.io/v1/leases", Said::No(403, "Forbidden")),
        // A page of a proxy, and a server in trouble.
        ("/apis/storage.k8s.io/v1/storageclasses", Said::No(404, "")),
    ]);
    let snapshot = server.read("pvc/data").await.unwrap();
    let unseen: Vec<_> =
        snapshot.unseen.iter().map(|unseen| (unseen.what.as_str(), unseen.forbidden)).collect();
    assert_eq!(unseen, [("leases", true), ("persistentvolumes", true), ("storageclasses", false)]);
    assert_eq!(snapshot.unseen[1].why, "Forbidden: not for you");
    assert!(!snapshot.is_listed::<PersistentVolume>() && !snapshot.is_listed::<StorageClass>());
    assert!(!snapshot.is_absent(&ObjectRef::Volume("pv1".into())));
    // Who may not see all leases may see those of the drivers.
    assert!(
        server.asked().contains(&"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases".to_owned())
    );
}

#[tokio::test]
async fn what_is_not_there_is_absent_only_by_the_servers_own_word() {
    let key = ObjectRef::Claim(ClaimKey::new("shop", "data"));
    let gone = played([version()]).read("pvc/data").await.unwrap();
    assert!(gone.is_absent(&key) && gone.unseen.is_empty());
    let proxy = played([version(), (CLAIM, Said::No(404, "page of a proxy"))]);
    let proxy = proxy.read("pvc/data").await.unwrap();
    assert!(!proxy.is_absent(&key));
    assert_eq!(proxy.unseen.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_does_not_come_is_not_seen_and_the_rest_is() {
    let server = played([version(), claim("pv1"), ("/api/v1/persistentvolumes/pv1", Said::Silence)]);
    let snapshot = server.read("pvc/data").await.unwrap();
    assert_eq!(snapshot.unseen.len(), 1);
    assert_eq!((snapshot.unseen[0].what.as_str(), snapshot.unseen[0].forbidden), ("pv/pv1", false));
    assert_eq!(snapshot.unseen[0].why, "no answer within 5s");
    assert!(!snapshot.is_absent(&ObjectRef::Volume("pv1".into())));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_or_does_not_know_the_user_cannot_be_read_at_all() {
    let silent = played([("/version", Said::Silence)]).read("pvc/data").await.unwrap_err();
    assert_eq!(silent, "cannot reach the API server in process: no answer within 5s");
    for path in ["/version", CLAIM] {
        let unknown = played([(path, Said::No(401, "Unauthorized"))]).read("pvc/data").await.unwrap_err();
        let expected = "the API server in process does not accept the credentials: Unauthorized: not for you";
        assert_eq!(unknown, expected);
    }
}

#[tokio::test]
async fn s42_an_object_of_a_list_that_cannot_be_read_is_named_and_the_others_are_taken() {
    let odd = json!({ "metadata": meta("odd", ""), "spec": { "capacity": 7 } });
    let fine = json!({ "metadata": meta("fine", ""), "spec": {} });
    let server = played([version(), claim(""), ("/api/v1/persistentvolumes", Said::Items(vec![odd, fine]))]);
    let snapshot = server.read("pvc/data").await.unwrap();
    assert!(snapshot.objects.volumes.get(&"fine".into()).is_some());
    assert_eq!(snapshot.unseen.len(), 1, "{:?}", snapshot.unseen);
    assert_eq!(snapshot.unseen[0].what, "pv/odd");
    assert!(!snapshot.is_absent(&ObjectRef::Volume("odd".into())));
    assert!(snapshot.is_absent(&ObjectRef::Volume("other".into())));
    assert_eq!(snapshot.revision, Some(ResourceVersion(9)));
    assert_eq!(snapshot.listed_at.get(PersistentVolume::PLURAL), Some(&ResourceVersion(9)));
}

#[tokio::test]
async fn a_kind_that_the_server_does_not_serve_is_not_taken_for_an_object_that_is_not_there() {
    let list = "/apis/storage.k8s.io/v1/volumeattributesclasses";
    for (said, code, verdict, told) in [
        (Said::No(404, "NotFound"), 6, "Forbidden", "does not serve this kind"),
        (Said::No(403, "Forbidden"), 6, "Forbidden", "you may not read it"),
        (Said::Items(Vec::new()), 3, "NotFound", "does not exist"),
    ] {
        let server = played([version(), (list, said)]);
        let snapshot = server.read("vac/gold").await.unwrap();
        let answer = crate::explain::explain(&snapshot, &ObjectRef::AttributesClass("gold".into()));
        assert_eq!((answer.verdict.exit_code(), answer.reason.as_str()), (code, verdict), "{told}");
        assert!(answer.summary.contains(told), "{}", answer.summary);
        let asks_for_rights = answer.actions.iter().any(|action| action.text.contains("request the rights"));
        assert_eq!(asks_for_rights, told == "you may not read it");
    }
}

/// Anybody who may write leases somewhere can make all of them too large, or write one that cannot be read.
#[tokio::test]
async fn where_not_all_leases_can_be_read_that_nobody_rules_behind_the_fence_is_told_by_those_of_mooring() {
    let policy = json!({
        "kind": "ValidatingAdmissionPolicy", "metadata": { "name": "mooring-fence-attachdetach-controller" },
    });
    let lease = |holder: &str| {
        let spec = json!({ "holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": "1994-11-06T08:49:30.000000Z" });
        json!({ "kind": "Lease", "metadata": meta("mooring", "mooring-system"), "spec": spec })
    };
    let deployment = |namespace: &str| {
        let arguments = ["run".to_owned(), format!("--leader-elect-resource-namespace={namespace}")];
        let template = json!({ "spec": { "containers": [{ "name": "mooring", "args": arguments }] } });
        let spec = json!({ "replicas": 2, "template": template });
        vec![json!({ "kind": "Deployment", "metadata": meta("mooring", "mooring-system"), "spec": spec })]
    };
    let here = "mooring-system";
    for (deployments, ours, is_told) in [
        (deployment(here), Said::Items(vec![lease("")]), true),
        (deployment(here), Said::Items(vec![lease("mooring-0")]), false),
        (deployment(here), Said::No(403, "Forbidden"), false),
        // Where its lease is, was not read.
        (deployment("elsewhere"), Said::Items(Vec::new()), false),
        (Vec::new(), Said::Items(Vec::new()), false),
    ] {
        let server = played([
            version(),
            ("/apis/coordination.k8s.io/v1/leases", Said::No(500, "TooLarge")),
            ("/apis/coordination.k8s.io/v1/namespaces/mooring-system/leases", ours),
            ("/apis/apps/v1/namespaces/mooring-system/deployments", Said::Items(deployments)),
            (
                "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
                Said::Items(vec![policy.clone()]),
            ),
            (
                "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
                Said::Items(Vec::new()),
            ),
        ]);
        let snapshot = server.reader.read(&Question::Cluster("shop".to_owned())).await.unwrap();
        let found = crate::explain::doctor::doctor(&snapshot, None);
        let told = json!(found.findings).to_string();
        assert_eq!(told.contains("FencedWithoutRuler"), is_told, "{told}");
    }
}
