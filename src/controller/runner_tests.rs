//! The loop, with a controller that asks for what it is told to.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{
        Arc, Mutex,
        mpsc::{self, Receiver},
    },
    time::Duration,
};

use apiserver::{
    events::{Event, EventQueue, EventType, EventWriter, Involved, Novelty},
    ids::ClaimKey,
    kinds::{CsiDriver, Node, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass, VolumeAttachment},
    leadership::{Leadership, Term},
    tables::Objects,
};
use tokio::{sync::Semaphore, task::JoinHandle, task::yield_now, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{runner::CHANGES_AT_ONCE, *};
use crate::{
    controller::finalizer::reasons::ProtectionReason,
    metrics::{Alarms, Metrics},
};

type Log = Arc<Mutex<Vec<String>>>;

/// What is measured of the last answers.
const AT_THE_END: usize = usize::MAX;

/// Asks for one request per answer, as long as there is something to ask for.
struct Asks {
    log: Log,
    leads: bool,
    is_busy: bool,
    to_ask: VecDeque<&'static str>,
    to_tell: usize,
    /// Reads the tables until it is told that they are read, but not for ever.
    reads: Option<Receiver<()>>,
}

impl Asks {
    fn log(&self, line: impl Into<String>) {
        self.log.lock().unwrap().push(line.into());
    }

    fn read(&self, line: &str) {
        let patience = Duration::from_secs(5);
        let is_told = self.reads.as_ref().is_none_or(|reads| reads.recv_timeout(patience).is_ok());
        self.log(if is_told { line } else { "nobody tells" });
    }
}

impl Controller for Asks {
    const IDENTITY: Identity = Identity { name: "test", component: "test", queues: &[], role: None };
    type Key = ClaimKey;
    type Reason = ProtectionReason;
    type Call = &'static str;
    type Answer = ();
    type Measures = usize;

    fn load(&mut self, _: Instant) {
        self.read("load");
    }

    fn changed(&mut self, objects: BTreeSet<ObjectRef>, _: Instant) {
        self.log(format!("{} changed", objects.len()));
    }

    fn answered(&mut self, call: &'static str, result: Result<(), CallError>, _: Instant, jitter: f64) {
        assert!((0.0..1.0).contains(&jitter));
        self.is_busy = false;
        self.log(format!("{call} answered {}", result.is_ok()));
        if result.is_err() {
            self.to_ask.push_front(call);
        }
    }

    fn lead(&mut self, _: Instant) {
        self.leads = true;
        self.read("lead");
    }

    fn plan(&mut self, _: Instant) -> Plan<Self> {
        let call = if self.leads && !self.is_busy { self.to_ask.pop_front() } else { None };
        self.is_busy |= call.is_some();
        let event = Event {
            involved: Involved::object(&Node::default()),
            r#type: EventType::Normal,
            reason: "Reason",
            message: String::new(),
            novelty: Novelty::New,
            subject: None,
        };
        let number = |number: usize| Event { message: number.to_string(), ..event.clone() };
        let key = ClaimKey::new("ns", "c");
        let to_tell = Some(std::mem::take(&mut self.to_tell)).filter(|count| *count > 0);
        let events = to_tell.map(|count| EventUpdate::Hold(key, "test", (0..count).map(number).collect()));
        let events = events.into_iter().collect();
        Plan { calls: call.into_iter().collect(), events, ..plan_with(0) }
    }

    fn unplanned(&mut self) -> Option<Plan<Self>> {
        Some(plan_with(AT_THE_END))
    }
}

/// A plan that does nothing, with this measure.
fn plan_with(measures: usize) -> Plan<Asks> {
    let (calls, events, reports, counts) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    Plan { calls, events, reports, others: None, counts, measures, wake_at: None }
}

/// Answers one request at a time, when it is let; without the right to write at once.
struct Answers {
    log: Log,
    leadership: Leadership,
    gate: Arc<Semaphore>,
    measured: Arc<Mutex<usize>>,
}

impl Executor<Asks> for Answers {
    fn perform(
        &self,
        call: &'static str,
    ) -> impl Future<Output = (&'static str, Result<(), CallError>)> + Send + 'static {
        self.log.lock().unwrap().push(format!("{call} begins"));
        let (gate, may_write) = (Arc::clone(&self.gate), self.leadership.may_write(Instant::now()));
        async move {
            if !may_write {
                return (call, Err(CallError::NotLeader));
            }
            gate.acquire().await.unwrap().forget();
            assert_ne!(call, "panic");
            (call, Ok(()))
        }
    }

    fn planned(&mut self, _: &Asks, measured: usize, _: Instant) {
        *self.measured.lock().unwrap() = measured;
    }

    fn work(_: &&'static str) -> Option<(usize, String)> {
        None
    }

    fn ends(&mut self, _: &Asks, call: &&'static str, _: &Result<(), CallError>) {
        self.log.lock().unwrap().push(format!("{call} ends"));
    }
}

struct Stage {
    log: Log,
    objects: Arc<Objects>,
    leadership: Leadership,
    gate: Arc<Semaphore>,
    measured: Arc<Mutex<usize>>,
    metrics: Metrics,
    shutdown: CancellationToken,
    running: JoinHandle<()>,
    /// Never runs, so that the queue fills.
    _writer: EventWriter,
}

impl Stage {
    fn new(to_ask: &[&'static str], to_tell: usize) -> Self {
        Self::reading(to_ask, to_tell, None)
    }

    fn reading(to_ask: &[&'static str], to_tell: usize, reads: Option<Receiver<()>>) -> Self {
        let log = Log::default();
        let (objects, gate) = (Arc::new(Objects::default()), Arc::new(Semaphore::new(0)));
        let (leadership, metrics) = (Leadership::new(Term::None), Metrics::default());
        let (events, writer) = EventQueue::new(&metrics).unwrap();
        let measured = Arc::default();
        let controller = Asks {
            log: Arc::clone(&log),
            leads: false,
            is_busy: false,
            to_ask: to_ask.iter().copied().collect(),
            to_tell,
            reads,
        };
        let executor = Answers {
            log: Arc::clone(&log),
            leadership: leadership.clone(),
            gate: Arc::clone(&gate),
            measured: Arc::clone(&measured),
        };
        let parts = (controller, executor);
        let (events, alarms) = (events.for_component("test"), Alarms::new(&metrics).unwrap());
        let runner =
            Runner::new(parts, Arc::clone(&objects), leadership.clone(), events, (&metrics, alarms)).unwrap();
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(runner.run(shutdown.clone()));
        Self { log, objects, leadership, gate, measured, metrics, shutdown, running, _writer: writer }
    }

    fn is_synced(&self) {
        self.objects.reset::<Node>(Vec::new());
        self.objects.reset::<Pod>(Vec::new());
        self.objects.reset::<PersistentVolume>(Vec::new());
        self.objects.reset::<PersistentVolumeClaim>(Vec::new());
        self.objects.reset::<VolumeAttachment>(Vec::new());
        self.objects.reset::<StorageClass>(Vec::new());
        self.objects.reset::<CsiDriver>(Vec::new());
    }

    fn leads(&self) {
        self.leadership.set(Term::Until(Instant::now() + Duration::from_hours(1)));
    }

    /// What happened since this was last asked.
    async fn happens(&self) -> Vec<String> {
        for _turn in 0..100 {
            yield_now().await;
        }
        // This waits for what is done on other threads, too.
        tokio::time::sleep(Duration::from_millis(1)).await;
        std::mem::take(&mut *self.log.lock().unwrap())
    }
}

#[tokio::test(start_paused = true)]
async fn s36_nothing_is_known_before_all_is_listed_and_nothing_is_sent_before_this_process_leads() {
    let stage = Stage::new(&["a"], 0);
    stage.objects.apply(Node::default());
    assert_eq!(stage.happens().await, [""; 0]);
    stage.is_synced();
    let [loads, news] = &stage.happens().await[..] else { panic!("loaded, and told what came meanwhile") };
    assert_eq!((&**loads, news.ends_with("changed")), ("load", true));
    assert!(!stage.metrics.text().unwrap().contains("running_managed_controllers{"));
    let mut pod = Pod::default();
    pod.metadata.name = "p".into();
    pod.metadata.resource_version = apiserver::ids::ResourceVersion(1);
    stage.objects.reset::<Pod>(vec![pod]);
    stage.leads();
    // What the tables show is known when it begins to lead.
    let happens = stage.happens().await;
    let lead = happens.iter().position(|line| line == "lead").unwrap();
    assert_eq!(happens[lead..], ["lead", "a begins"]);
    let running = "running_managed_controllers{manager=\"mooring\",name=\"test\"} 1\n";
    assert!(stage.metrics.text().unwrap().contains(running));
}

/// In a large cluster that takes seconds. If this thread stood still, the lease would be given back.
#[tokio::test]
async fn l15_this_thread_goes_on_while_the_tables_are_read() {
    let (is_read, reads) = mpsc::channel();
    let stage = Stage::reading(&["a"], 0, Some(reads));
    stage.is_synced();
    stage.leads();
    for line in ["load", "lead"] {
        let before = stage.happens().await;
        assert!(!before.iter().any(|it| it == line || it == "nobody tells"), "{before:?}");
        is_read.send(()).unwrap();
        let mut happens = Vec::new();
        while !happens.iter().any(|happened| happened == line) {
            happens.extend(stage.happens().await);
        }
    }
}

/// After the tables of a large cluster were read, all that has changed meanwhile is looked at.
#[tokio::test]
async fn l15_this_thread_goes_on_while_much_that_changed_is_looked_at() {
    const MANY: usize = 10 * CHANGES_AT_ONCE;
    let stage = Stage::new(&[], 0);
    stage.is_synced();
    let node = |number: usize| {
        let mut node = Node::default();
        node.metadata.name = number.to_string().as_str().into();
        node
    };
    stage.objects.reset((0..MANY).map(node).collect());
    let log = Arc::clone(&stage.log);
    let other = tokio::spawn(async move {
        loop {
            log.lock().unwrap().push("another task".to_owned());
            yield_now().await;
        }
    });
    let (mut looked_at, mut largest) = (0, 0);
    while looked_at < MANY {
        let happens = stage.happens().await;
        for turn in happens.split(|line| line == "another task") {
            let counts = turn.iter().filter_map(|line| line.strip_suffix(" changed")?.parse::<usize>().ok());
            let count = counts.sum::<usize>();
            looked_at += count;
            largest = largest.max(count);
        }
    }
    other.abort();
    // What is left is looked at with the plan.
    assert!(largest <= 2 * CHANGES_AT_ONCE, "{largest}");
}

#[tokio::test]
async fn l14_the_end_of_the_process_waits_for_no_tables_that_are_being_read() {
    let (is_read, reads) = mpsc::channel();
    let mut stage = Stage::reading(&[], 0, Some(reads));
    stage.is_synced();
    assert_eq!(stage.happens().await, Vec::<String>::new());
    stage.shutdown.cancel();
    (&mut stage.running).await.unwrap();
    assert_eq!(stage.happens().await, Vec::<String>::new(), "they are not read yet");
    is_read.send(()).unwrap();
}

/// The machine was suspended for a moment: its lease may have been taken, or not.
#[tokio::test(start_paused = true)]
async fn s36_a_refused_request_ends_planning_until_the_term_goes_on() {
    let stage = Stage::new(&["a", "b"], 0);
    stage.is_synced();
    stage.leads();
    assert_eq!(stage.happens().await.last().unwrap(), "a begins");
    stage.leadership.set(Term::None);
    stage.gate.add_permits(1);
    let refused = ["a ends", "a answered true", "b begins", "b ends", "b answered false"];
    assert_eq!(stage.happens().await, refused, "asked once in vain");
    stage.objects.apply(PersistentVolume::default());
    assert_eq!(stage.happens().await, ["1 changed"]);
    stage.leads();
    assert_eq!(stage.happens().await, ["b begins"], "and it does not lead anew");
}

#[tokio::test(start_paused = true)]
async fn l14_on_shutdown_the_answers_to_what_was_asked_are_awaited_and_nothing_more_is_asked() {
    let mut stage = Stage::new(&["a", "b"], 0);
    stage.is_synced();
    stage.leads();
    stage.happens().await;
    stage.shutdown.cancel();
    stage.objects.apply(PersistentVolume::default());
    stage.happens().await;
    assert!(!stage.running.is_finished());
    stage.gate.add_permits(1);
    (&mut stage.running).await.unwrap();
    assert_eq!(*stage.measured.lock().unwrap(), AT_THE_END, "what the answers came to is noted");
    assert_eq!(stage.happens().await, ["a ends", "a answered true"]);
}

#[tokio::test(start_paused = true)]
async fn who_is_told_to_end_before_all_is_listed_ends() {
    let stage = Stage::new(&["a"], 0);
    stage.shutdown.cancel();
    stage.running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_event_that_finds_no_room_is_recorded_again_later() {
    let stage = Stage::new(&["a"], 10_000);
    let dropped = || {
        let text = stage.metrics.text().unwrap();
        let mut lines = text.lines();
        let line = lines.find_map(|line| {
            line.strip_prefix("mooring_events_dropped_total{cause=\"queue_full\"} ").map(str::to_owned)
        });
        line.unwrap().parse::<usize>().unwrap()
    };
    stage.is_synced();
    stage.leads();
    stage.happens().await;
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert_eq!(dropped(), 0, "none is lost yet");
    // Nothing has been taken out of the queue.
    stage.shutdown.cancel();
    stage.gate.add_permits(1);
    stage.happens().await;
    assert!((1..10_000).contains(&dropped()), "{}", dropped());
}

/// The keys of the request would be held for ever.
#[tokio::test(start_paused = true)]
async fn a_panic_of_a_request_ends_the_process() {
    let stage = Stage::new(&["panic"], 0);
    stage.is_synced();
    stage.leads();
    stage.gate.add_permits(1);
    assert!(stage.running.await.unwrap_err().is_panic());
}
