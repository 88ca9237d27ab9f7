//! The controller on the cases of tests/cases/vac_protection, and on what they have no words for.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    convert::Infallible,
    sync::Arc,
    time::Duration,
};

use apiserver::{
    call::{CallError, Caller},
    ids::{AttributesClassName, ResourceVersion},
    kinds::{PersistentVolume, PersistentVolumeClaim, VolumeAttributesClass},
    leadership::{Leadership, Term},
    tables::{Objects, Stored},
};
use http::{Request, Response};
use kube::{Client, client::Body};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    AttributesClassProtection,
    users::{ClaimsAndVolumes, ClassUsers},
};
use crate::{
    controller::{
        Controller as _, Plan,
        finalizer::{
            Protected as _, Users as _,
            calls::{Answer, Call},
            reasons::ProtectionReason,
            step::FinalizerStep,
        },
    },
    metrics::{ApiMetrics, Metrics},
};

type VacCall = Call<AttributesClassName>;

#[derive(Deserialize)]
struct VacCases {
    cases: Vec<VacCase>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VacCase {
    name: String,
    kcm: Option<usize>,
    class: String,
    #[serde(default)]
    uses: BTreeMap<String, Use>,
    then: Option<BTreeMap<String, Use>>,
    #[serde(default)]
    lists: BTreeSet<String>,
    #[serde(default)]
    fails: Fails,
    expect: VecDeque<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Fails {
    patches: usize,
    lists: usize,
}

#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum Use {
    Claim(Vec<String>),
    Volume(String),
}

/// A class of that name, with or without the finalizer, being deleted or not.
fn class(name: &str, has: bool, is_going: bool, revision: u64) -> VolumeAttributesClass {
    let mut class = VolumeAttributesClass::default();
    class.metadata.name = name.into();
    class.metadata.uid = format!("uid-{name}").into();
    class.metadata.resource_version = ResourceVersion(revision);
    class.metadata.deletion_timestamp = is_going.then(Box::default);
    let finalizers = if has { vec!["a", AttributesClassName::FINALIZER] } else { vec!["a"] };
    class.metadata.finalizers = finalizers.into_iter().collect();
    class
}

/// The controller over tables, with what the server does for it.
struct VacStage {
    objects: Arc<Objects>,
    controller: AttributesClassProtection,
    now: Instant,
    revision: u64,
}

impl VacStage {
    fn new() -> Self {
        let (objects, now) = (Arc::new(Objects::default()), Instant::now());
        let controller = AttributesClassProtection::new(Arc::clone(&objects));
        Self { objects, controller, now, revision: 1 }
    }

    /// It leads from now on.
    fn leading() -> Self {
        let mut stage = Self::new();
        stage.lead();
        stage
    }

    fn lead(&mut self) {
        self.controller.load(self.now);
        assert!(self.controller.plan(self.now).calls.is_empty(), "another process leads");
        self.controller.lead(self.now);
    }

    fn apply<T: Stored>(&mut self, object: T) {
        let changed = T::object_ref(object.key());
        self.objects.apply(object);
        self.controller.changed([changed].into(), self.now);
    }

    fn gone<T: Stored>(&mut self, object: T) {
        let changed = T::object_ref(object.key());
        self.objects.delete(object);
        self.controller.changed([changed].into(), self.now);
    }

    fn set(&mut self, uses: &BTreeMap<String, Use>) {
        for (name, use_) in uses {
            self.revision += 1;
            let metadata = json!({
                "name": name, "namespace": "ns", "uid": name, "resourceVersion": self.revision.to_string(),
            });
            let object = |rest: Value| {
                let mut object = json!({ "metadata": metadata });
                object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
                object
            };
            let claim = |rest| serde_json::from_value::<PersistentVolumeClaim>(object(rest)).unwrap();
            match use_ {
                Use::Claim(names) => {
                    let of = |index: usize| names.get(index);
                    self.apply(claim(json!({
                        "spec": { "volumeAttributesClassName": of(0) },
                        "status": {
                            "currentVolumeAttributesClassName": of(1),
                            "modifyVolumeStatus":
                                of(2).map(|target| json!({ "targetVolumeAttributesClassName": target })),
                        },
                    })));
                }
                Use::Volume(gone) if gone == "gone" && matches!(name.as_str(), "c" | "d") => {
                    self.gone(claim(json!({})));
                }
                Use::Volume(name) => {
                    let spec = json!({ "spec": { "volumeAttributesClassName": name } });
                    let mut volume: PersistentVolume = serde_json::from_value(object(spec)).unwrap();
                    volume.metadata.namespace = "".into();
                    if name == "gone" { self.gone(volume) } else { self.apply(volume) }
                }
            }
        }
    }

    fn plan(&mut self) -> Plan<AttributesClassProtection> {
        self.controller.plan(self.now)
    }

    fn only(&mut self) -> VacCall {
        let plan = self.plan();
        let [call] = &plan.calls[..] else { panic!("{:?}", plan.calls) };
        call.clone()
    }

    fn answer(&mut self, call: VacCall, result: Result<Answer<AttributesClassName>, CallError>) {
        self.controller.answered(call, result, self.now, 0.0);
    }

    /// Both lists show that these are used.
    fn listed(&mut self, call: VacCall, names: &[&str]) {
        let names = names.iter().map(|name| AttributesClassName::from(*name)).collect();
        self.answer(call, Ok(Answer::Users(names)));
    }

    /// Plans and answers until nothing happens for ten minutes, or so many requests were sent.
    fn play(&mut self, case: &mut VacCase, most: usize) -> Vec<&'static str> {
        let (mut sent, end) = (Vec::new(), self.now + Duration::from_mins(10));
        loop {
            let plan = self.plan();
            let has_called = !plan.calls.is_empty();
            for call in plan.calls {
                let failure = CallError::Refused { code: 500, message: "no".to_owned() };
                match &call {
                    Call::Patch(_, step, request) => {
                        sent.push(if *step == FinalizerStep::Add { "add" } else { "remove" });
                        let body = request.body.clone().unwrap();
                        let metadata = &body["metadata"];
                        assert_eq!(metadata["uid"], "uid-gold");
                        let known = self.objects.attributes_classes.get(&"gold".into()).unwrap();
                        let revision = known.metadata.resource_version.to_string();
                        assert_eq!(metadata["resourceVersion"], revision);
                        if case.fails.patches > 0 {
                            case.fails.patches -= 1;
                            self.answer(call, Err(failure));
                            continue;
                        }
                        self.revision += 1;
                        let (has, is_going) = (*step == FinalizerStep::Add, known.metadata.is_terminating());
                        let patched = class("gold", has, is_going, self.revision);
                        assert_eq!(metadata["finalizers"], json!(patched.metadata.finalizers));
                        self.answer(call, Ok(Answer::Object(patched.clone())));
                        self.apply(patched);
                    }
                    Call::Users(ClaimsAndVolumes, _) => {
                        sent.push("list");
                        if case.fails.lists > 0 {
                            case.fails.lists -= 1;
                            self.answer(call, Err(failure));
                        } else {
                            let names: Vec<&str> = case.lists.iter().map(String::as_str).collect();
                            self.listed(call, &names);
                        }
                    }
                }
            }
            match plan.wake_at {
                _ if sent.len() >= most => break,
                // What was answered is planned upon first.
                _ if has_called => {}
                Some(at) if at <= end => self.now = self.now.max(at),
                _ => break,
            }
        }
        sent
    }
}

#[test]
fn cases() {
    let text = include_str!("../../tests/cases/vac_protection/classes.yaml");
    let VacCases { cases } = serde_saphyr::from_str(text).unwrap();
    let rows: BTreeSet<usize> = cases.iter().filter_map(|case| case.kcm).collect();
    assert_eq!(rows, (1..=16).collect(), "each row of kube-controller-manager's unit tests");
    for mut case in cases {
        let mut stage = VacStage::new();
        let (has, is_going) = match case.class.as_str() {
            "bare" => (false, false),
            "kept" => (true, false),
            "going" => (true, true),
            "gone-on" => (false, true),
            other => panic!("{other}"),
        };
        stage.apply(class("gold", has, is_going, 1));
        stage.set(&case.uses.clone());
        stage.lead();
        let expected: Vec<String> = case.expect.drain(..).collect();
        let before = expected.iter().position(|word| word == "|").unwrap_or(expected.len());
        // One request too many shows, unless what is shown would be asked for without end.
        let is_endless = case.then.is_some() || !case.lists.is_empty();
        let most = before + usize::from(!is_endless);
        let mut sent = stage.play(&mut case, most);
        if let Some(then) = case.then.take() {
            sent.push("|");
            stage.set(&then);
            let rest = expected.len() - before;
            sent.extend(stage.play(&mut case, rest));
        }
        assert_eq!(sent, expected, "{}", case.name);
    }
}

/// However many classes go at once, the claims and volumes of the cluster are listed once for them.
#[test]
fn classes_share_a_pair_of_lists_that_was_asked_for_after_they_were_seen_to_be_deleted() {
    let mut stage = VacStage::leading();
    for name in ["gold", "silver"] {
        stage.apply(class(name, true, true, 1));
    }
    let first = stage.only();
    let Call::Users(_, waiting) = &first else { panic!("{first:?}") };
    assert_eq!(waiting.len(), 2);
    stage.apply(class("late", true, true, 2));
    assert!(stage.plan().calls.is_empty(), "one pair at a time");
    stage.listed(first, &["silver"]);
    let calls = stage.plan().calls;
    let [Call::Patch(gold, FinalizerStep::Remove, _), Call::Users(_, waiting)] = &calls[..] else {
        panic!("{calls:?}")
    };
    assert_eq!(gold.as_str(), "gold");
    assert_eq!(*waiting, [("late".into(), "uid-late".into())]);
}

/// A claim may name it that began behind the pages that were read.
#[test]
fn s34_a_class_made_anew_during_the_lists_keeps_its_finalizer_until_lists_of_its_own() {
    let mut stage = VacStage::leading();
    stage.apply(class("gold", true, true, 1));
    let list = stage.only();
    stage.gone(class("gold", true, true, 2));
    let mut anew = class("gold", true, true, 3);
    anew.metadata.uid = "anew".into();
    stage.apply(anew);
    stage.listed(list, &[]);
    let next = stage.only();
    assert!(
        matches!(&next, Call::Users(_, waiting) if *waiting == [("gold".into(), "anew".into())]),
        "{next:?}"
    );
}

#[test]
fn s49_lists_that_were_answered_while_a_patch_was_under_way_prove_nothing_after_its_failure() {
    let mut stage = VacStage::leading();
    stage.apply(class("gold", true, true, 1));
    let first = stage.only();
    let mut changed = class("gold", true, true, 2);
    changed.metadata.finalizers = ["b", AttributesClassName::FINALIZER].into_iter().collect();
    stage.apply(changed);
    assert!(stage.plan().calls.is_empty());
    stage.listed(first, &[]);
    let Ok([patch, second]) = <[VacCall; 2]>::try_from(stage.plan().calls) else { panic!("two requests") };
    stage.listed(second, &[]);
    stage.answer(patch, Err(CallError::Refused { code: 500, message: "no".to_owned() }));
    let plan = stage.plan();
    assert!(plan.calls.is_empty());
    stage.now = plan.wake_at.unwrap();
    let next = stage.only();
    assert!(matches!(next, Call::Users(..)), "what was proven is old: {next:?}");
}

#[test]
fn a_use_that_the_watch_tells_of_during_the_lists_keeps_the_class() {
    let mut stage = VacStage::leading();
    stage.apply(class("gold", true, true, 1));
    let list = stage.only();
    stage.set(&BTreeMap::from([("c".to_owned(), Use::Claim(vec!["gold".to_owned()]))]));
    stage.listed(list, &[]);
    let plan = stage.plan();
    assert!(plan.calls.is_empty(), "{:?}", plan.calls);
    let [report] = &plan.reports[..] else { panic!("{:?}", plan.reports) };
    assert_eq!(report.reason, Some(ProtectionReason::InUse("a claim names it")));
}

#[test]
fn e11_nothing_is_taken_off_during_the_grace_after_a_restore() {
    let mut stage = VacStage::leading();
    stage.apply(class("gold", true, true, 1));
    stage.objects.restore_grace().begin(stage.now);
    let plan = stage.plan();
    assert!(plan.calls.is_empty() && plan.wake_at.unwrap() > stage.now + Duration::from_mins(4));
}

#[test]
fn what_names_no_class_costs_nothing() {
    let mut stage = VacStage::new();
    stage.set(&BTreeMap::from([
        ("c".to_owned(), Use::Claim(Vec::new())),
        ("v".to_owned(), Use::Volume(String::new())),
    ]));
    assert_eq!(stage.controller.users, ClassUsers::default());
    stage.set(&BTreeMap::from([("d".to_owned(), Use::Claim(vec!["gold".to_owned()]))]));
    assert_ne!(stage.controller.users, ClassUsers::default());
    stage.set(&BTreeMap::from([("d".to_owned(), Use::Claim(Vec::new()))]));
    assert_eq!(stage.controller.users, ClassUsers::default());
}

/// One claim that nobody can mend would keep each class of the cluster.
#[tokio::test]
async fn s42_the_live_lists_read_of_an_object_what_names_classes_and_nothing_else() {
    let odd = |spec: Value, status: Value| json!({"metadata": {"namespace": "ns", "name": "odd", "finalizers": 7}, "spec": spec, "status": status});
    let names = |name: &str| {
        json!({
            "accessModes": "odd", "capacity": 7, "claimRef": [], "csi": "odd", "phase": [], "resources": 7,
            "volumeAttributesClassName": name,
        })
    };
    let status = json!({
        "phase": 7, "conditions": "odd", "currentVolumeAttributesClassName": "silver",
        "modifyVolumeStatus": {"targetVolumeAttributesClassName": "bronze", "status": 7},
    });
    let (user, other) = (odd(names("gold"), status), odd(json!({}), json!({})));
    // the claims, the volumes; what is named, if all names can be read
    let cases = [
        (vec![&user, &other], vec![], Some(vec!["bronze", "gold", "silver"])),
        (vec![], vec![&user, &other], Some(vec!["gold"])),
        (vec![], vec![&odd(json!({}), json!("odd"))], Some(vec![])),
        (vec![&odd(json!({"volumeAttributesClassName": 7}), json!({}))], vec![], None),
        (vec![&odd(json!({}), json!("odd"))], vec![], None),
        (vec![], vec![&odd(json!(7), json!({}))], None),
    ]
    .map(|(claims, volumes, expected)| (json!(claims), json!(volumes), expected));
    for (claims, volumes, expected) in cases {
        let place = format!("{claims} {volumes}");
        let server = tower::service_fn(move |request: Request<Body>| {
            let (kind, items) = match request.uri().path() {
                "/api/v1/persistentvolumeclaims" => ("PersistentVolumeClaimList", &claims),
                _ => ("PersistentVolumeList", &volumes),
            };
            let page = json!({"kind": kind, "metadata": {}, "items": items}).to_string();
            async { Ok::<_, Infallible>(Response::new(Body::from(page.into_bytes()))) }
        });
        let api = Arc::new(ApiMetrics::new(&Metrics::default(), "test").unwrap());
        let client = Client::new(server, "default");
        let caller = Caller::new(client, Leadership::new(Term::Unlimited), None, api);
        let shown = ClassUsers::send(&ClaimsAndVolumes, &caller).await;
        let expected = expected.map(|names| names.into_iter().map(AttributesClassName::from).collect());
        assert_eq!(shown.ok(), expected, "{place}");
    }
}
