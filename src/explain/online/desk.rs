//! Where answers are made: each subject at most once a second, and few at once.
//!
//! In: a subject. Out: an [`Answer`] for all who may ask about it. It is made on a thread for what takes long, from a copy, so that
//! neither the planner nor a probe waits for it; who asks for the same one meanwhile shares it.

use std::{
    collections::HashMap,
    num::NonZeroUsize,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use lru::LruCache;
use tokio::{
    sync::{Mutex as AsyncMutex, OwnedSemaphorePermit, Semaphore},
    task::spawn_blocking,
    time::{Instant, timeout},
};

use super::{
    Knowledge, boards,
    copy::part,
    redact::{Answer, mentioned},
    signs::signs,
};
use crate::{
    explain::{
        drain::{DrainView, drain},
        explain,
        report::{Explanation, Observed, Source},
        snapshot::Snapshot,
        subject::Subject,
    },
    kube_api::{ids::NodeName, kinds::ObjectRef},
    state::{Objects, Stored},
};

/// How long an answer is the same for all, as pages are.
const FRESH: Duration = Duration::from_secs(1);
/// Answers kept for those who ask for the same: some ten kilobytes each.
const KEPT: NonZeroUsize = NonZeroUsize::new(64).unwrap();
/// Answers made at once. One looks through the tables of pods and attachments, which is some ten milliseconds of a core on
/// 5 000 nodes.
const AT_ONCE: usize = 2;
/// How long one waits for others' answers to be made.
const QUEUE: Duration = Duration::from_secs(5);

/// Too many ask at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Busy;

/// The last answers, and when each was made.
type Fresh = LruCache<Subject, (Instant, Arc<Answer>)>;

/// See the module.
#[derive(Debug)]
pub(super) struct Desk {
    knowledge: Knowledge,
    fresh: Arc<Mutex<Fresh>>,
    /// Whose turn it is to make the answer about a subject that is being asked about.
    turns: Mutex<HashMap<Subject, Weak<AsyncMutex<()>>>>,
    making: Arc<Semaphore>,
}

impl Desk {
    pub fn new(knowledge: Knowledge) -> Self {
        let fresh = Arc::new(Mutex::new(LruCache::new(KEPT)));
        Self { knowledge, fresh, turns: Mutex::default(), making: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    pub fn knowledge(&self) -> &Knowledge {
        &self.knowledge
    }

    /// The answer about a subject, at most a second old.
    pub async fn answer(&self, subject: &Subject) -> Result<Arc<Answer>, Busy> {
        if let Some(answer) = self.fresh(subject) {
            return Ok(answer);
        }
        let turn = timeout(QUEUE, self.turn(subject).lock_owned()).await.map_err(|_| Busy)?;
        // The one before may have made it.
        if let Some(answer) = self.fresh(subject) {
            return Ok(answer);
        }
        let place = self.place().await?;
        let (asked, fresh) = (subject.clone(), Arc::clone(&self.fresh));
        self.make(place, move |knowledge| {
            let answer = Arc::new(answer(&asked, knowledge));
            let mut fresh = fresh.lock().unwrap_or_else(PoisonError::into_inner);
            fresh.put(asked, (Instant::now(), Arc::clone(&answer)));
            // Also if the one who asked has left.
            drop(turn);
            answer
        })
        .await
    }

    fn turn(&self, subject: &Subject) -> Arc<AsyncMutex<()>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, turn| turn.strong_count() > 0);
        if let Some(turn) = turns.get(subject).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::<AsyncMutex<()>>::default();
        turns.insert(subject.clone(), Arc::downgrade(&turn));
        turn
    }

    /// What a node holds.
    pub async fn node(&self, name: &NodeName) -> Result<DrainView, Busy> {
        let name = name.clone();
        self.slowly(move |knowledge| {
            let part = part(&Subject::Node(name.clone()), &knowledge.objects, Timestamp::now());
            let mut view = drain(&part.snapshot, &knowledge.assumptions, &name, None);
            view.observed = observed(knowledge, &part.snapshot);
            view
        })
        .await
    }

    /// Makes something that takes a while.
    pub async fn slowly<T: Send + 'static>(
        &self,
        make: impl FnOnce(&Knowledge) -> T + Send + 'static,
    ) -> Result<T, Busy> {
        let place = self.place().await?;
        self.make(place, make).await
    }

    async fn make<T: Send + 'static>(
        &self,
        place: OwnedSemaphorePermit,
        make: impl FnOnce(&Knowledge) -> T + Send + 'static,
    ) -> Result<T, Busy> {
        let knowledge = self.knowledge.clone();
        let making = spawn_blocking(move || {
            let answer = make(&knowledge);
            // Kept until it is made, also if the one who asked has left.
            drop(place);
            answer
        });
        making.await.map_err(|_| Busy)
    }

    async fn place(&self) -> Result<OwnedSemaphorePermit, Busy> {
        let place = timeout(QUEUE, Arc::clone(&self.making).acquire_owned()).await;
        place.map_err(|_| Busy)?.map_err(|_| Busy)
    }

    fn fresh(&self, subject: &Subject) -> Option<Arc<Answer>> {
        let mut fresh = self.fresh.lock().unwrap_or_else(PoisonError::into_inner);
        let (made, answer) = fresh.get(subject)?;
        (made.elapsed() < FRESH).then(|| Arc::clone(answer))
    }
}

/// Makes the answer about a subject.
pub(super) fn answer(subject: &Subject, knowledge: &Knowledge) -> Answer {
    let part = part(subject, &knowledge.objects, Timestamp::now());
    let snapshot = &part.snapshot;
    let mut explanation = explain(snapshot, subject, &knowledge.assumptions);
    explanation.observed = observed(knowledge, snapshot);
    if let (Some(uid), Some(fields)) =
        (uid(&snapshot.objects, &subject.object()), explanation.subject.as_object_mut())
    {
        fields.insert("uid".to_owned(), uid.into());
    }
    boards::add(&mut explanation, snapshot, knowledge);
    note_limits(&mut explanation, knowledge, part.is_cut);
    let timeline = boards::past(&explanation, snapshot, knowledge);
    let mentioned = mentioned(&explanation, snapshot);
    let signs = signs(&explanation, snapshot, knowledge);
    Answer { explanation, past: timeline, mentioned, signs }
}

pub(super) fn observed(knowledge: &Knowledge, snapshot: &Snapshot) -> Observed {
    Observed {
        resource_version: snapshot.revision.map(|revision| revision.to_string()),
        at: snapshot.taken_at,
        source: Source::Daemon,
        leader: knowledge.leader(),
    }
}

/// What this replica cannot know.
fn note_limits(explanation: &mut Explanation, knowledge: &Knowledge, is_cut: bool) {
    if !knowledge.leads() {
        let leader = knowledge.leader().unwrap_or_else(|| "not known".to_owned());
        explanation.unknown.push(format!(
            "This replica stands by: timers, pauses and the past are known to the leader alone, which is {leader}."
        ));
    }
    if explanation.steps.iter().flat_map(|step| &step.blocked_by).any(is_program) {
        explanation.unknown.push(
            "Whether the driver's program runs: the daemon reads no leases; mooring explain without --daemon does."
                .to_owned(),
        );
    }
    if is_cut {
        explanation.unknown.push("More pods use the claim than were looked at.".to_owned());
    }
}

fn is_program(blocker: &crate::explain::report::Blocker) -> bool {
    let kind = blocker.object.get("kind").and_then(serde_json::Value::as_str);
    matches!(kind, Some("Attacher" | "Provisioner"))
}

/// Its UID, as it is printed.
fn uid(objects: &Objects, object: &ObjectRef) -> Option<String> {
    fn of<T: Stored>(objects: &Objects, key: &T::Key) -> Option<String> {
        objects.get::<T>(key).map(|object| object.metadata().uid.to_string())
    }
    by_kind!(object, of(objects))
}
