//! Plays cases of a small controller: steps over values, without client and clock.
//!
//! In: a file of `tests/cases`, whose top explains its keys. Out: a panic that names each step that went otherwise.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use apiserver::{
    call::CallError,
    kinds::{ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod},
    tables::{Objects, Stored},
    wire::Encoding,
};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use super::{
    Controller,
    report::{Reason as _, events::RecordedEvents},
};

/// A case.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    /// The row of kube-controller-manager's unit test that it plays.
    kcm: Option<usize>,
    #[serde(default)]
    given: Vec<Value>,
    steps: Vec<Step>,
}

/// What happens, and what follows.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
#[derive(Default)]
struct Step {
    standby: bool,
    add: Vec<Value>,
    change: Vec<Value>,
    delete: Vec<Value>,
    unreadable: Vec<String>,
    answer: Option<Value>,
    wait: bool,
    minutes: u64,
    calls: Vec<Value>,
    events: Vec<String>,
    stands: Vec<String>,
}

/// What a case has to know of a controller.
pub(crate) trait Played: Controller {
    /// A call as the case has it.
    fn shown(call: &Self::Call) -> Value;

    /// What the API server answers, as the case says it, with an object of that revision.
    fn answer(call: &Self::Call, said: &Value, revision: u64) -> Result<Self::Answer, CallError>;
}

/// An error as cases have it: `conflict`, `exists`, `gone`, `lost`, or `{refused: words}`.
pub(crate) fn error(said: &Value) -> CallError {
    match said.as_str() {
        Some("conflict") => CallError::Conflict("the object has been modified".to_owned()),
        Some("exists") => CallError::AlreadyExists("it already exists".to_owned()),
        Some("gone") => CallError::NotFound("not found".to_owned()),
        Some("lost") => CallError::Unknown("no answer".to_owned()),
        Some("busy") => {
            CallError::Throttled { message: "too many requests".to_owned(), after: Duration::from_secs(9) }
        }
        _ => CallError::Refused { code: 403, message: said["refused"].as_str().expect("words").to_owned() },
    }
}

/// The cases of a file.
fn cases(file: &str) -> Vec<Case> {
    serde_saphyr::from_str(file).expect("cases")
}

#[test]
fn each_row_of_the_unit_tests_of_kube_controller_manager_is_a_case() {
    let expander = include_str!("../../tests/cases/expander/controller.yaml");
    let ephemeral = include_str!("../../tests/cases/ephemeral/controller.yaml");
    for (file, rows) in [(expander, 4), (ephemeral, 7)] {
        let played: BTreeSet<usize> = cases(file).iter().filter_map(|case| case.kcm).collect();
        assert_eq!(played, (1..=rows).collect());
    }
}

/// Plays all cases of a file.
pub(crate) fn play<C: Played>(file: &str, make: impl Fn(Arc<Objects>) -> C) {
    for case in cases(file) {
        Course::new(&case, &make).play(&case);
    }
}

struct Course<C: Controller> {
    objects: Arc<Objects>,
    controller: C,
    now: Instant,
    wake_at: Option<Instant>,
    revision: u64,
    under_way: VecDeque<C::Call>,
    events: RecordedEvents<C::Key>,
}

/// Does something with the typed object.
macro_rules! of_kind {
    ($object:expr, $do:ident($($argument:expr),*)) => {
        match $object["kind"].as_str().expect("a kind") {
            "Pod" => $do::<Pod>($($argument),*),
            "PersistentVolume" => $do::<PersistentVolume>($($argument),*),
            "PersistentVolumeClaim" => $do::<PersistentVolumeClaim>($($argument),*),
            other => panic!("kind {other}"),
        }
    };
}

fn raw(object: &Value) -> Bytes {
    Bytes::from(object.to_string())
}

fn add<T: Stored>(objects: &Objects, object: &Value) -> ObjectRef {
    let (raw, read) = (raw(object), Encoding::Json.object::<T>(&raw(object)).unwrap());
    let key = read.key();
    objects.add(read, (Encoding::Json, &raw));
    T::object_ref(key)
}

fn change<T: Stored>(objects: &Objects, object: &Value) -> ObjectRef {
    let read = Encoding::Json.object::<T>(&raw(object)).unwrap();
    let key = read.key();
    objects.apply(read);
    T::object_ref(key)
}

fn delete<T: Stored>(objects: &Objects, object: &Value) -> ObjectRef {
    let read = Encoding::Json.object::<T>(&raw(object)).unwrap();
    let key = read.key();
    objects.delete(read);
    T::object_ref(key)
}

impl<C: Played> Course<C> {
    fn new(case: &Case, make: impl Fn(Arc<Objects>) -> C) -> Self {
        let (objects, now) = (Arc::new(Objects::default()), Instant::now());
        let controller = make(Arc::clone(&objects));
        let mut course = Self {
            objects,
            controller,
            now,
            wake_at: None,
            revision: 100,
            under_way: VecDeque::new(),
            events: RecordedEvents::default(),
        };
        for object in &case.given {
            let object = course.revised(object);
            of_kind!(object, change(&course.objects, &object));
        }
        course.controller.load(now);
        if !case.steps.first().is_some_and(|step| step.standby) {
            course.controller.lead(now);
        }
        course
    }

    /// The object at the next revision.
    fn revised(&mut self, object: &Value) -> Value {
        self.revision += 1;
        let mut object = object.clone();
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        object
    }

    fn play(mut self, case: &Case) {
        for (number, step) in case.steps.iter().enumerate() {
            let place = format!("{}, step {}", case.name, number + 1);
            if step.wait {
                self.now = self.wake_at.unwrap_or_else(|| panic!("{place}: it waits for nothing"));
            }
            self.now += Duration::from_mins(step.minutes);
            let mut changed = BTreeSet::new();
            for object in &step.add {
                let object = self.revised(object);
                changed.insert(of_kind!(object, add(&self.objects, &object)));
            }
            for object in &step.change {
                let object = self.revised(object);
                changed.insert(of_kind!(object, change(&self.objects, &object)));
            }
            for object in &step.delete {
                let object = self.revised(object);
                changed.insert(of_kind!(object, delete(&self.objects, &object)));
            }
            for name in &step.unreadable {
                let known = (None, None, apiserver::wire::AttachmentNames::default());
                if let Some((namespace, name)) = name.split_once('/') {
                    let key = apiserver::ids::ClaimKey::new(namespace, name);
                    self.objects.note_unreadable::<PersistentVolumeClaim>(None, &key, known, "odd".into());
                    changed.insert(ObjectRef::Claim(key));
                } else {
                    let name = name.as_str().into();
                    self.objects.note_unreadable::<PersistentVolume>(None, &name, known, "odd".into());
                    changed.insert(ObjectRef::Volume(name));
                }
            }
            if let Some(said) = &step.answer {
                let call = self.under_way.pop_front().unwrap_or_else(|| panic!("{place}: nothing was asked"));
                self.revision += 1;
                let answer = C::answer(&call, said, self.revision);
                self.controller.answered(call, answer, self.now, 0.0);
            }
            if !changed.is_empty() {
                self.controller.changed(changed, self.now);
            }
            self.plan(&place, step);
        }
    }

    fn plan(&mut self, place: &str, step: &Step) {
        let plan = self.controller.plan(self.now);
        self.wake_at = plan.wake_at;
        let calls: Vec<Value> = plan.calls.iter().map(C::shown).collect();
        assert_eq!(calls, step.calls, "{place}: calls");
        self.under_way.extend(plan.calls);
        let events: Vec<String> = self
            .events
            .take(plan.events, |_| None, self.now)
            .into_iter()
            .map(|(_, event)| format!("{:?} {} {}", event.r#type, event.reason, event.message))
            .collect();
        assert_eq!(events, step.events, "{place}: events");
        let stands: Vec<String> = plan
            .reports
            .iter()
            .map(|report| report.reason.as_ref().map_or("Gone", |reason| reason.code()).to_owned())
            .collect();
        assert_eq!(stands, step.stands, "{place}: stands");
    }
}
