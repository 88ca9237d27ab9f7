//! The work of one event does not grow with the cluster, but for selectors that no index serves; and no plan goes on
//! for long without a look at what has come in, however much there is to look at. Work is counted, not timed: looks
//! at claims and volumes, and how many of them are held against each other in a look.

use std::{sync::Arc, time::Duration};

use apiserver::{
    kinds::{PersistentVolume, PersistentVolumeClaim},
    tables::{ChangeSet, Objects, Stored},
};
use libtest_mimic::{Failed, Trial};
use mooring::{
    binder::{BinderOptions, controller::Planner},
    controller::report::ReportKey,
};
use serde_json::{Value, json};
use tokio::time::Instant;

/// Claims that wait, and free volumes.
type Size = (usize, usize);
const SMALL: Size = (20, 1_000);
const LARGE: Size = (200, 10_000);

/// For what is done in turns: so many claims go through all of so many volumes.
const MANY: Size = (1_000, 10_000);

/// No plan looks at more: so many, and what comes with the last of them.
const LOOKS: usize = 500 + 2;

/// No plan holds more volumes and claims against each other: so many, and those of the last look.
const COMPARED: usize = 20_000;

/// Through what an event may go that grows with the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Through {
    Nothing,
    Volumes,
    Claims,
}

type Put = fn(&mut Cluster);

/// An event, what happens, so many looks it may cost, so many comparisons, and through what it goes besides.
const EVENTS: [(&str, Put, usize, usize, Through); 10] = [
    (
        "a claim comes whose labels no volume bears",
        |it| it.claim("new1", &labels("x")),
        1,
        0,
        Through::Nothing,
    ),
    (
        "a claim comes for which all are too small",
        |it| it.claim("new2", &sized("9Gi")),
        1,
        0,
        Through::Nothing,
    ),
    ("a claim comes whose modes none has", |it| it.claim("new3", &of_mode()), 1, 0, Through::Nothing),
    ("a claim comes of another class", |it| it.claim("new4", &of_class()), 1, 0, Through::Nothing),
    (
        "a claim comes whose expressions none meets",
        |it| it.claim("new5", &nowhere(0)),
        1,
        0,
        Through::Volumes,
    ),
    ("such a claim changes", |it| it.claim("c0", &nowhere(1)), 1, 0, Through::Volumes),
    ("a claim comes that a volume fits", |it| it.claim("new6", &labels("z0")), 1, 1, Through::Nothing),
    ("a volume comes that no claim takes", |it| it.volume("new7", "z0", None), 2, 0, Through::Claims),
    (
        "a volume that is reserved for none there comes",
        |it| it.volume("new8", "z0", Some("d")),
        2,
        0,
        Through::Nothing,
    ),
    ("a claim goes", |it| it.end("c0"), 1, 0, Through::Nothing),
];

pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("cost: C-B1 C-B2 the work of an event does not grow with the cluster", events),
        Trial::test("cost: L15 a take-over and a resync are done in turns", turns),
        Trial::test("cost: L15 what comes in meanwhile is looked at before the rest", meanwhile),
    ]
}

// What it says goes to the person who runs the tests.
#[allow(clippy::print_stdout)]
fn events() -> Result<(), Failed> {
    println!("looks and comparisons per event, with (claims, volumes) {SMALL:?} and {LARGE:?}");
    let [mut small, mut large] = [SMALL, LARGE].map(Cluster::with);
    small.run();
    large.run();
    for (event, put, looks, compared, through) in EVENTS {
        for (cluster, size) in [(&mut small, SMALL), (&mut large, LARGE)] {
            put(cluster);
            let work = cluster.run();
            println!("  {event:50} {} {}", work.looks, work.compared);
            let grows = match through {
                Through::Nothing => 0,
                Through::Volumes => size.1,
                Through::Claims => size.0,
            };
            // Those that came before are there, too.
            if work.looks > looks || work.compared > compared + grows + EVENTS.len() {
                return Err(format!("{event}, {size:?}: {work:?}").into());
            }
        }
    }
    Ok(())
}

fn turns() -> Result<(), Failed> {
    for (size, resync) in [(MANY, false), (LARGE, true)] {
        let (claims, volumes) = size;
        let mut cluster = Cluster::with(size);
        in_turns(&mut cluster, "a take-over", claims + volumes, size)?;
        if resync {
            cluster.now += BinderOptions::default().sync_period;
            in_turns(&mut cluster, "a resync", claims, size)?;
        }
    }
    Ok(())
}

// What it says goes to the person who runs the tests.
#[allow(clippy::print_stdout)]
fn in_turns(cluster: &mut Cluster, name: &str, looks: usize, (claims, volumes): Size) -> Result<(), Failed> {
    let one_search = volumes;
    let work = cluster.run();
    println!("{name}, {claims} claims and {volumes} volumes: {work:?}");
    if work.longest > LOOKS || work.most_compared >= COMPARED + one_search {
        return Err(format!("{name}: {work:?}").into());
    }
    // Each search is made once, and to its end.
    if (work.looks, work.claims) != (looks, claims) || work.compared < claims * volumes {
        return Err(format!("{name}: {work:?}, expected {looks} looks").into());
    }
    Ok(())
}

fn meanwhile() -> Result<(), Failed> {
    let mut cluster = Cluster::with(LARGE);
    for round in 0..5 {
        cluster.plan();
        let name = format!("new{round}");
        cluster.claim(&name, &labels("z0"));
        if !cluster.plan().1.iter().any(|subject| subject.ends_with(&name)) {
            return Err(format!("{name} is not bound at once").into());
        }
    }
    Ok(())
}

/// What was done until nothing was left to do.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    plans: usize,
    looks: usize,
    claims: usize,
    compared: usize,
    /// Most looks of a plan.
    longest: usize,
    most_compared: usize,
    /// For people.
    slowest: Duration,
}

struct Cluster {
    objects: Arc<Objects>,
    changes: Arc<ChangeSet>,
    planner: Planner,
    revision: usize,
    now: Instant,
}

fn object<T: Stored>(revision: usize, mut value: Value) -> T {
    value["metadata"]["resourceVersion"] = json!(revision.to_string());
    serde_json::from_value(value).expect("an object of the kind")
}

fn labels(zone: &str) -> Value {
    json!({"selector": {"matchLabels": {"zone": zone}}})
}

fn sized(size: &str) -> Value {
    json!({"resources": {"requests": {"storage": size}}})
}

fn of_mode() -> Value {
    json!({"accessModes": ["ReadWriteMany"]})
}

fn of_class() -> Value {
    json!({"storageClassName": "", "volumeAttributesClassName": "other"})
}

/// An expression that no volume meets, and no index of labels answers.
fn nowhere(number: usize) -> Value {
    let expressions = [
        json!({"key": "zone", "operator": "NotIn", "values": ["z0", "z1", "z2"]}),
        json!({"key": "zone", "operator": "DoesNotExist"}),
        json!({"key": "rack", "operator": "Exists"}),
        json!({"key": "zone", "operator": "In", "values": ["z3", "z4"]}),
    ];
    json!({"selector": {"matchExpressions": [expressions[number % expressions.len()]]}})
}

impl Cluster {
    /// A cluster of free volumes in three zones, and so many claims that none of them fits.
    fn with((claims, volumes): Size) -> Self {
        let objects = Arc::new(Objects::default());
        let planner = Planner::new(Arc::clone(&objects), BinderOptions::default());
        let changes = objects.subscribe();
        let mut cluster = Self { changes, objects, planner, revision: 1, now: Instant::now() };
        for number in 0..volumes {
            cluster.volume(&format!("v{number}"), &format!("z{}", number % 3), None);
        }
        for number in 0..claims {
            cluster.claim(&format!("c{number}"), &nowhere(number));
        }
        let _listed = cluster.changes.take();
        cluster.planner.load(cluster.now);
        cluster.planner.lead(cluster.now);
        cluster
    }

    fn put<T: Stored>(&mut self, value: Value) {
        self.revision += 1;
        self.objects.apply::<T>(object(self.revision, value));
    }

    fn volume(&mut self, name: &str, zone: &str, claim: Option<&str>) {
        let reference = claim.map(|name| json!({"namespace": "ns", "name": name}));
        self.put::<PersistentVolume>(json!({
            "metadata": {"name": name, "uid": name, "labels": {"zone": zone}},
            "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "claimRef": reference},
            "status": {"phase": "Available"},
        }));
    }

    /// A claim with these fields besides those that all have.
    fn claim(&mut self, name: &str, fields: &Value) {
        let mut spec =
            json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        for (field, value) in fields.as_object().expect("fields") {
            spec[field] = value.clone();
        }
        self.put::<PersistentVolumeClaim>(json!({
            "metadata": {"namespace": "ns", "name": name, "uid": name}, "spec": spec,
            "status": {"phase": "Pending"},
        }));
    }

    fn end(&mut self, name: &str) {
        self.revision += 1;
        let claim = json!({"metadata": {"namespace": "ns", "name": name, "uid": name}});
        self.objects.delete::<PersistentVolumeClaim>(object(self.revision, claim));
    }

    /// Plans once, as the binder does; requests are left without answer. Also returns whose they are, and when to plan
    /// again.
    fn plan(&mut self) -> (Work, Vec<String>, Option<Instant>) {
        let began = Instant::now();
        for change in self.changes.take() {
            self.planner.changed(&change, self.now);
        }
        let plan = self.planner.plan(self.now);
        let claims =
            plan.reports.iter().filter(|report| report.is_decision && report.key.kind() == "claim").count();
        let work = Work {
            plans: 1,
            looks: plan.measures.looks,
            claims,
            compared: plan.measures.compared,
            longest: plan.measures.looks,
            most_compared: plan.measures.compared,
            slowest: began.elapsed(),
        };
        (work, plan.calls.iter().map(|op| op.subject.to_string()).collect(), plan.wake_at)
    }

    /// Plans until there is nothing to look at now.
    fn run(&mut self) -> Work {
        let mut sum = Work::default();
        loop {
            let (work, _, wake_at) = self.plan();
            sum = Work {
                plans: sum.plans + 1,
                looks: sum.looks + work.looks,
                claims: sum.claims + work.claims,
                compared: sum.compared + work.compared,
                longest: sum.longest.max(work.longest),
                most_compared: sum.most_compared.max(work.most_compared),
                slowest: sum.slowest.max(work.slowest),
            };
            if wake_at.is_none_or(|at| at > self.now) {
                return sum;
            }
        }
    }
}
