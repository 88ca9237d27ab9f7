//! `startup.yaml` and `controller.yaml`: the real controller over a small API server, step by step. Requests
//! are carried out in the order in which they are sent, and what they change is seen at once; disorder is
//! the business of the random histories.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    path::Path,
    sync::Arc,
    time::Duration,
};

use apiserver::{
    call::CallError,
    ids::ResourceVersion,
    kinds::{CsiDriver, Node, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttachment},
    tables::{ChangeSet, Objects, Stored},
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use libtest_mimic::{Failed, Trial};
use mooring::{
    attach_detach::{
        AttachDetachOptions, backlog,
        calls::{Answer, Call},
        clock::Clock,
        controller::AttachDetach,
        metrics::AttachDetachMetrics,
        options::ForcePolicy,
        reasons::AttachDetachKey,
    },
    controller::{
        Controller as _,
        report::{Reason as _, events::Keyed},
        reporting::Reporting,
    },
    metrics::{Alarms, Metrics},
};
use serde::Deserialize;
use serde_json::{Value, json};
use test_support::cases::comparison::{Comparison, in_place};
use tokio::time::Instant;

use super::{
    said::{Written, line, pair_of, sum, words},
    world::{Forms, Key, World, apply, decode},
};

/// Looks at one moment, above which something goes in circles.
const ENOUGH: usize = 200;
/// How long a window may collect changes before they are sent: part of a step.
const WINDOW: Duration = Duration::from_millis(50);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    pub name: String,
    #[serde(default)]
    options: Options,
    #[serde(default)]
    given: Forms,
    #[serde(default)]
    sends: Vec<String>,
    #[serde(default)]
    waits: Option<BTreeMap<String, String>>,
    #[serde(default)]
    counts: Option<Counts>,
    #[serde(default)]
    says: Vec<String>,
    #[serde(default)]
    when: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    /// `--disable-force-detach-on-timeout` says false.
    force_on_timeout: bool,
    /// Whether this process leads; if not, it keeps its state and sends nothing.
    leads: bool,
    /// Seconds between looks at everything.
    sweep: Option<u64>,
    /// Requests for pairs under way at once, at most.
    attachment_calls: Option<usize>,
    /// Whether a lease carries the waits for force.
    lease: bool,
    /// The manager under whose name others write; none if nobody owns what they wrote.
    others: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        let (sweep, attachment_calls, others) = Default::default();
        Self { force_on_timeout: true, leads: true, lease: false, sweep, attachment_calls, others }
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Step {
    set: Forms,
    /// From now on such requests are answered so.
    answer: BTreeMap<String, Option<Reply>>,
    pass: Option<u64>,
    /// These change as given and go, and are seen next when what is `set` is there.
    ends: Forms,
    restart: bool,
    /// The clock of the machine where the next process starts shows so many seconds more than it should.
    clock_ahead: i64,
    /// Somebody has the lease say this of waits for force.
    lease_says: Option<String>,
    /// Somebody replaces the one by the other in what it says.
    lease_edited: Option<[String; 2]>,
    /// What it says afterwards.
    lease_is: Option<String>,
    /// The lease comes or goes.
    leads: Option<bool>,
    /// From now on the watches of these kinds deliver nothing.
    blind: BTreeSet<String>,
    /// They begin anew, with a list.
    relist: bool,
    sends: Vec<String>,
    waits: Option<BTreeMap<String, String>>,
    looks: Option<BTreeMap<String, u64>>,
    lists: Option<BTreeMap<String, BTreeSet<String>>>,
    counts: Option<Counts>,
    says: Vec<String>,
    /// There is no room for the events of this step: they are lost.
    loses_events: bool,
    metrics: BTreeMap<String, f64>,
}

/// Pairs in the desired and in the actual state.
#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Counts {
    desired: i32,
    actual: i32,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Reply {
    Refused,
    /// Answered as if it were done, without the change.
    Unchanged,
    Conflict,
    /// Another writer has written to the attachment just before.
    Overtaken,
    RequestLost,
    AnswerLost,
    /// Answered when what is left by then has gone, and watches that were blind have listed.
    Late,
    Busy,
    Never,
}

pub fn trials(table: &'static str, file: &Path) -> Vec<Trial> {
    super::each(table, file, |case: &Case| &case.name, run)
}

fn run(case: &Case, compared: &mut Comparison) -> Result<(), Failed> {
    let mut play = Play::new(&case.options);
    let start = Step {
        sends: case.sends.clone(),
        waits: case.waits.clone(),
        counts: case.counts,
        says: case.says.clone(),
        ..Step::default()
    };
    play.world.set(&case.given);
    play.start();
    play.follow(&start, compared).map_err(|error| format!("at the start: {error}"))?;
    for (number, next) in case.when.iter().enumerate() {
        compared.step(number);
        play.follow(next, compared).map_err(|error| format!("step {}: {error}", number + 1))?;
    }
    Ok(())
}

/// What a step has led to.
#[derive(Default)]
struct Seen {
    /// Requests as words. One that is repeated as time passes, with no other between, is there once.
    sends: Vec<String>,
    events: Vec<Keyed<AttachDetachKey>>,
}

/// A story under way.
struct Play<'a> {
    options: &'a Options,
    world: World,
    /// What the watches have delivered.
    delivered: BTreeMap<Key, Value>,
    /// Kinds whose watches deliver nothing.
    blind: BTreeSet<String>,
    objects: Arc<Objects>,
    changes: Arc<ChangeSet>,
    controller: AttachDetach,
    of_ours: AttachDetachMetrics,
    reporting: Reporting<AttachDetach>,
    metrics: Metrics,
    now: Instant,
    /// By how much the clock of the process is ahead.
    ahead: SignedDuration,
    answers: BTreeMap<String, Reply>,
    /// Requests that are never answered.
    unanswered: usize,
    /// Whether the lease is ours.
    lease: bool,
    /// A request was refused because it is not: nothing is planned until it is again.
    suspended: bool,
    /// How often a process was started anew.
    starts: usize,
    /// What the lease says of waits for force.
    note: String,
    /// Events on the server.
    written: Written,
    /// Whether there is reason to look although no object changed and no time has come.
    due: bool,
}

type Reporters = (AttachDetachMetrics, Reporting<AttachDetach>);

fn tables(
    options: &Options,
    shown: Timestamp,
    now: Instant,
) -> (Arc<Objects>, Arc<ChangeSet>, AttachDetach, Reporters, Metrics) {
    let objects = Arc::new(Objects::default());
    let changes = objects.subscribe();
    let metrics = Metrics::default();
    let force = ForcePolicy { on_timeout: options.force_on_timeout, ..ForcePolicy::default() };
    let sweep_period = options.sweep.map(Duration::from_secs);
    let options = AttachDetachOptions { force, sweep_period, attachment_calls: options.attachment_calls };
    let of_ours = AttachDetachMetrics::new(&metrics).unwrap();
    let controller = AttachDetach::new(Arc::clone(&objects), options, Clock::new(shown, now));
    let reporting = Reporting::new(&metrics, Alarms::new(&metrics).unwrap()).unwrap();
    backlog::register(reporting.reporter.board(), &objects, &metrics).unwrap();
    (objects, changes, controller, (of_ours, reporting), metrics)
}

impl<'a> Play<'a> {
    fn new(options: &'a Options) -> Self {
        // Pauses are as long in each run.
        fastrand::seed(0);
        let (mut world, now) = (World::new(), Instant::now());
        world.others.clone_from(&options.others);
        let (objects, changes, controller, (of_ours, reporting), metrics) = tables(options, world.wall, now);
        Self {
            options,
            world,
            delivered: BTreeMap::new(),
            blind: BTreeSet::new(),
            objects,
            changes,
            controller,
            of_ours,
            reporting,
            metrics,
            now,
            ahead: SignedDuration::ZERO,
            answers: BTreeMap::new(),
            unanswered: 0,
            lease: options.leads,
            suspended: false,
            starts: 0,
            note: String::new(),
            written: Written::default(),
            due: true,
        }
    }

    /// What the clock of a process shows that starts now.
    fn shown(&self) -> Timestamp {
        self.world.wall.checked_add(self.ahead).unwrap()
    }

    /// A new process: it lists everything.
    fn start(&mut self) {
        self.starts += 1;
        (self.objects, self.changes, self.controller, (self.of_ours, self.reporting), self.metrics) =
            tables(self.options, self.shown(), self.now);
        self.delivered.clear();
        self.deliver();
        let _listed = self.changes.take();
        self.controller.load(self.now);
        self.unanswered = 0;
        (self.due, self.suspended) = (true, false);
    }

    fn follow(&mut self, step: &Step, compared: &mut Comparison) -> Result<(), String> {
        let mut seen = Seen::default();
        for (request, reply) in &step.answer {
            match reply {
                Some(reply) => self.answers.insert(request.clone(), *reply),
                None => self.answers.remove(request),
            };
        }
        self.lease = step.leads.unwrap_or(self.lease);
        self.pass(Duration::from_secs(step.pass.unwrap_or_default()), &mut seen)?;
        self.end(&step.ends);
        self.world.set(&step.set);
        self.blind.extend(step.blind.iter().cloned());
        if step.relist {
            self.relist();
        }
        if let Some(says) = &step.lease_says {
            self.note.clone_from(says);
        }
        if let Some([old, new]) = &step.lease_edited {
            assert!(self.note.contains(old), "{}", self.note);
            self.note = self.note.replace(old, new);
        }
        if step.restart {
            self.ahead = SignedDuration::from_secs(step.clock_ahead);
            self.start();
        }
        self.settle(&mut seen)?;
        if step.loses_events {
            for event in &seen.events {
                self.written.lose(&event.1);
                self.reporting.events.lost(event.clone(), self.now);
            }
        }
        self.check(step, &seen, compared);
        Ok(())
    }

    /// Reason codes of the pairs that wait.
    fn waits(&self) -> BTreeMap<String, &'static str> {
        let waits = self.reporting.reporter.board().waits().into_iter();
        waits.filter_map(|(key, wait)| Some((pair_of(&key)?, wait.reason.code()))).collect()
    }

    /// Time passes as it does for the process: from one moment at which it wants to wake to the next.
    fn pass(&mut self, time: Duration, seen: &mut Seen) -> Result<(), String> {
        let end = self.now + time;
        while let Some(at) = self.wake_at().filter(|at| *at <= end) {
            self.advance(at);
            self.settle(seen)?;
        }
        self.advance(end);
        Ok(())
    }

    fn wake_at(&self) -> Option<Instant> {
        let wake_at = self.controller.wake_at().into_iter().chain(self.reporting.events.next_due());
        let wake_at = wake_at.chain(self.of_ours.next_due()).min();
        wake_at.filter(|_| !self.suspended)
    }

    fn advance(&mut self, to: Instant) {
        let time = to.saturating_duration_since(self.now);
        self.now += time;
        self.world.wall = self.world.wall.checked_add(time).unwrap();
    }

    /// Objects change for the last time, and go; only their end is told.
    fn end(&mut self, forms: &Forms) {
        let before = self.world.store.objects.clone();
        self.world.set(forms);
        let changed =
            self.world.store.objects.iter().filter(|(key, object)| before.get(*key) != Some(*object));
        let changed: Vec<Key> = changed.map(|(key, _)| key.clone()).collect();
        for key in changed {
            let last = self.world.store.objects.remove(&key).unwrap();
            self.delivered.remove(&key);
            self.tell(key.0, &last, true);
        }
    }

    /// The watches that were blind list everything.
    fn relist(&mut self) {
        fn reset<T: Stored>(objects: &Objects, revision: u64, all: Vec<Value>) {
            // A list has the server's revision, whatever is in it.
            T::table(objects).advance(ResourceVersion(revision));
            objects.reset::<T>(all.into_iter().map(decode).collect());
        }
        let revision = self.world.store.revision();
        for blind in mem::take(&mut self.blind) {
            self.delivered.retain(|(kind, _), _| *kind != blind);
            let listed = self.world.store.objects.iter().filter(|((kind, _), _)| *kind == blind);
            self.delivered.extend(listed.clone().map(|(key, object)| (key.clone(), object.clone())));
            let all = listed.map(|(_, object)| object.clone()).collect();
            match blind.as_str() {
                "node" => reset::<Node>(&self.objects, revision, all),
                "pod" => reset::<Pod>(&self.objects, revision, all),
                "attachment" => reset::<VolumeAttachment>(&self.objects, revision, all),
                kind => panic!("no case goes blind for {kind}"),
            }
        }
    }

    /// The watches deliver what has changed.
    fn deliver(&mut self) {
        let mut seen = self.world.store.objects.clone();
        seen.retain(|(kind, _), _| !self.blind.contains(*kind));
        let unseen = self.delivered.iter().filter(|((kind, _), _)| self.blind.contains(*kind));
        seen.extend(unseen.map(|(key, object)| (key.clone(), object.clone())));
        let before = mem::replace(&mut self.delivered, seen);
        for (key, object) in &self.delivered {
            if before.get(key) != Some(object) {
                self.tell(key.0, object, false);
            }
        }
        for ((kind, name), mut last) in before {
            if !self.delivered.contains_key(&(kind, name)) {
                let revision = last["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
                last["metadata"]["resourceVersion"] = json!((revision + 1).to_string());
                self.tell(kind, &last, true);
            }
        }
        for last in std::mem::take(&mut self.world.strays) {
            self.tell("node", &last, true);
        }
    }

    fn tell(&self, kind: &str, object: &Value, deleted: bool) {
        match kind {
            "node" => apply::<Node>(&self.objects, object, deleted),
            "pod" => apply::<Pod>(&self.objects, object, deleted),
            "volume" => apply::<PersistentVolume>(&self.objects, object, deleted),
            "claim" => apply::<PersistentVolumeClaim>(&self.objects, object, deleted),
            "attachment" => apply::<VolumeAttachment>(&self.objects, object, deleted),
            _ => apply::<CsiDriver>(&self.objects, object, deleted),
        }
    }

    /// Everything that follows without time passing. As in the real loop, nobody looks without a reason.
    fn settle(&mut self, seen: &mut Seen) -> Result<(), String> {
        let end = self.now + WINDOW;
        let mut asked = Vec::new();
        for _look in 0..ENOUGH {
            self.deliver();
            let changed = self.changes.take();
            let is_to_lead = self.lease && !self.controller.leads();
            self.due |= self.lease && mem::take(&mut self.suspended);
            let wake_at = self.wake_at();
            let is_time = wake_at.is_some_and(|at| at <= self.now);
            if changed.is_empty() && !is_to_lead && !is_time && !mem::take(&mut self.due) {
                let Some(at) = wake_at.filter(|at| *at <= end) else {
                    seen.add(asked);
                    let (unanswered, in_flight) = (self.unanswered, self.controller.dispatcher().in_flight());
                    let is_right = unanswered == in_flight;
                    return is_right.then_some(()).ok_or(format!("in flight: {in_flight}, not {unanswered}"));
                };
                self.advance(at);
                continue;
            }
            self.controller.changed(changed, self.now);
            if is_to_lead && self.options.lease {
                self.controller.succeed(Some(self.note.as_str()));
            }
            if is_to_lead {
                self.controller.lead(self.now);
                self.reporting.reporter.board().lead(self.now);
            }
            if self.suspended {
                continue;
            }
            let plan = self.controller.plan(self.now);
            if let Some(note) = plan.measures.note.filter(|_| self.lease) {
                self.note = note;
            }
            let (of_ours, now) = (&mut self.of_ours, self.now);
            let noted = |before: Option<&_>, report: &_| of_ours.reported(before, report, now);
            let events = self.reporting.take(plan.reports, plan.events, plan.others.as_ref(), now, noted);
            for (key, event) in events {
                if self.written.is_new(&event, self.starts, self.now) {
                    seen.events.push((key, event));
                }
            }
            self.of_ours.take(plan.measures.facts, self.now);
            for (sent, call) in plan.calls {
                let text = words(&call);
                let result = self.answer(&text, &call)?;
                asked.push(text);
                self.deliver();
                self.due = true;
                self.suspended |= matches!(result, Some(Err(CallError::NotLeader)));
                match result {
                    Some(result) => {
                        self.controller.answered((sent, call), result, self.now, fastrand::f64());
                    }
                    None => self.unanswered += 1,
                }
            }
        }
        Err(format!("S39: looks without end; requests {asked:?}"))
    }

    fn answer(&mut self, text: &str, call: &Call) -> Result<Option<Result<Answer, CallError>>, String> {
        let reply = self.answers.iter().find(|(request, _)| text.starts_with(request.as_str()));
        if let Some((_, Reply::Overtaken)) = reply {
            self.world.overtake(call);
        }
        let error = match reply.map(|(_, reply)| *reply) {
            _ if !self.lease => CallError::NotLeader,
            None | Some(Reply::Overtaken) => return Ok(Some(self.world.perform(call)?)),
            Some(Reply::Never) => return Ok(None),
            Some(Reply::Late) => {
                self.answers.retain(|request, _| !text.starts_with(request.as_str()));
                let answer = self.world.perform(call)?;
                let left = match &answer {
                    Ok(Answer::Attachment(left)) => Some(("attachment", left.metadata.name.to_string())),
                    Ok(Answer::Node(left)) => Some(("node", left.metadata.name.to_string())),
                    _ => None,
                };
                left.map(|left| self.world.store.objects.remove(&left));
                self.relist();
                return Ok(Some(answer));
            }
            Some(Reply::Unchanged) => return Ok(Some(self.world.leave(call)?)),
            Some(Reply::Refused) => CallError::Refused { code: 403, message: "forbidden".to_owned() },
            Some(Reply::Conflict) => CallError::Conflict("modified".to_owned()),
            Some(Reply::Busy) => {
                CallError::Throttled { message: "busy".to_owned(), after: Duration::from_secs(30) }
            }
            Some(Reply::RequestLost) => CallError::Unknown("cut".to_owned()),
            Some(Reply::AnswerLost) => {
                let _lost = self.world.perform(call)?;
                CallError::Unknown("cut".to_owned())
            }
        };
        Ok(Some(Err(error)))
    }

    fn check(&self, step: &Step, Seen { sends, events }: &Seen, compared: &mut Comparison) {
        compared.same(&["sends"], &step.sends, sends);
        if let Some(waits) = &step.waits {
            compared.same(&["waits"], waits, &self.waits());
        }
        if let Some(looks) = &step.looks {
            let waits = self.reporting.reporter.board().waits().into_iter();
            let time = |next: Instant| next.duration_since(self.now).as_secs();
            let seen = waits.filter_map(|(key, wait)| Some((pair_of(&key)?, time(wait.next?))));
            compared.same(&["looks"], looks, &seen.collect::<BTreeMap<_, _>>());
        }
        if let Some(note) = &step.lease_is {
            compared.same(&["lease_is"], note, &self.note);
        }
        if let Some(lists) = &step.lists {
            compared.same(&["lists"], lists, &self.world.lists());
        }
        if let Some(counts) = &step.counts {
            for (key, expected) in [("desired", counts.desired), ("actual", counts.actual)] {
                let state = format!("state=\"{key}_state_of_world\"");
                let seen =
                    sum(&self.metrics.text().unwrap(), "attachdetach_controller_total_volumes", &state);
                compared.same(&["counts", key], &expected, &seen);
            }
        }
        let lines: Vec<String> = events.iter().map(|(_, event)| line(event)).collect();
        compared.same(&["says"], &step.says, &in_place(&step.says, &lines));
        for (metric, expected) in &step.metrics {
            let (name, labels) = metric.split_once('{').unwrap_or((metric, ""));
            compared.same(
                &["metrics", metric],
                expected,
                &sum(&self.metrics.text().unwrap(), name, labels.trim_end_matches('}')),
            );
        }
    }
}

impl Seen {
    /// Adds the requests of one moment.
    fn add(&mut self, asked: Vec<String>) {
        if !self.sends.ends_with(&asked) {
            self.sends.extend(asked);
        }
    }
}
