//! Second writers: tells a controller that does our work beside us from all others who write to the same objects
//! (S14). Pure; each controller has one, over its own kinds of objects.
//!
//! In: writes that only this controller should make and that it did not make, one at a time, and what a live read says
//! of who made each. Out: objects to read, one signal, and what there is to tell. The signal says that a controller of
//! the same role was at work on several objects of late: while it lasts, nothing is taken away. What people, populators,
//! backup tools and kubelets do raises no signal, however often: our write is repeated later each time (S46).

mod news;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    fmt::{self, Display},
    mem,
    time::Duration,
};

use educe::Educe;
use tokio::time::Instant;

pub use news::{News, Role, Teller};

use apiserver::ids::Uid;

/// What was seen within this time counts together, and after this long without any more the signal ends. Longer than the
/// pauses of a stock controller on a quiet object (resync 15 s, back-off up to 2 min), so that one that is there is seen
/// again before it ends.
pub const MEMORY: Duration = Duration::from_mins(10);

/// As what it counts that kube-controller-manager's loops are no longer kept from writing ([`apiserver::unfenced`]).
pub const UNFENCED: &str = "the fence is gone, and kube-controller-manager may write again";

/// So many objects are read per [`READ_WINDOW`], each once, however large the cluster is.
const READS: usize = 15;
/// See [`READS`].
const READ_WINDOW: Duration = Duration::from_secs(30);

/// For this long after a process has taken over, what bears its name may be its predecessor's last writes, which the
/// watch tells of late.
const HAND_OVER: Duration = Duration::from_mins(1);

/// Managers under whose name the loops of kube-controller-manager write: its own, and those of programs of which it
/// is a part.
const CONTROLLERS: [&str; 4] = ["kube-controller-manager", "hyperkube", "k3s", "kubelite"];

/// The manager that the server makes of our user agent: another process of ours, or, shortly after a take-over, the one that
/// led before.
const OUR_NAME: &str = "mooring";

/// How many objects that a manager wrote to prove that a controller of our role is at work, if any do. Under the name of
/// kube-controller-manager only a field counts that nothing else in it writes: it also writes finalizers, sizes and conditions
/// with those loops off. Of our own name it takes more: a write of ours whose answer was lost may look like another's.
fn objects_that_prove(manager: &str) -> Option<usize> {
    match manager {
        OUR_NAME => Some(3),
        _ => CONTROLLERS.contains(&manager).then_some(2),
    }
}

/// An object that only this controller should write to in one way: which, each controller has a table of.
pub trait WrittenObject: Clone + Ord + Display {
    /// The field whose owner has written, as people name it.
    fn field(&self) -> &'static str;

    /// Where a set of fields (`fieldsV1`) has it.
    fn pointer(&self) -> String {
        format!("/f:{}", self.field().replace('.', "/f:"))
    }

    /// How that is counted: a label of the metric.
    fn kind(&self) -> &'static str;
}

/// A write of another, as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignWrite {
    /// Kind and name of the object.
    pub object: String,
    /// Its field.
    pub field: &'static str,
    /// Who wrote it, of its managers the one that matters most; none if the field has no owner.
    pub manager: Option<String>,
    /// Until when it counts.
    pub until: Instant,
}

impl ForeignWrite {
    fn objects_that_prove(&self) -> Option<usize> {
        objects_that_prove(self.manager.as_deref()?)
    }

    /// Who wrote which field, without the object, which may be of another namespace (S41).
    pub(crate) fn act(&self) -> String {
        format!("{} wrote {}", self.manager.as_deref().unwrap_or("an unknown manager"), self.field)
    }
}

/// Who wrote what: `kube-controller-manager wrote status.volumesAttached of node/n1`.
impl Display for ForeignWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.act(), self.object)
    }
}

/// What others wrote of late, and what follows from it.
#[derive(Clone, Debug, Educe)]
#[educe(Default(bound(false)))]
pub struct SecondWriters<T> {
    led_since: Option<Instant>,
    to_read: BTreeMap<T, Uid>,
    /// When each object was asked about.
    asked: BTreeMap<T, Instant>,
    seen: BTreeMap<T, ForeignWrite>,
    signal: Option<ForeignWrite>,
    news: News,
}

impl<T: WrittenObject> SecondWriters<T> {
    /// Forgets everything: what others did while this process did not lead is no act against it.
    pub fn lead(&mut self, now: Instant) {
        *self = Self { led_since: Some(now), ..Self::default() };
    }

    /// Whether writes of the process that led before this one may still come to light.
    fn led_another_just_now(&self, now: Instant) -> bool {
        self.led_since.is_some_and(|since| now < since + HAND_OVER)
    }

    /// Notes a write of another to the object of this UID. If it was not read of late, it is to be read.
    pub fn note(&mut self, target: &T, uid: &Uid, now: Instant) {
        self.asked.retain(|_, asked| now < *asked + READ_WINDOW);
        if self.asked.contains_key(target) || self.asked.len() >= READS {
            return self.news.count(target.kind());
        }
        self.asked.insert(target.clone(), now);
        self.to_read.insert(target.clone(), uid.clone());
    }

    /// Whether an object has to be read before it is written to, which would hide who changed it.
    pub(crate) fn has_to_read(&self, target: &T) -> bool {
        self.to_read.contains_key(target)
    }

    /// An object to read now, of those that may be. The answer goes to [`Self::learn`].
    pub fn take_read(&mut self, may_be_read: impl Fn(&T) -> bool) -> Option<(T, Uid)> {
        let target = self.to_read.keys().find(|target| may_be_read(target))?.clone();
        self.to_read.remove_entry(&target)
    }

    /// The read of an object has failed: it is read again.
    pub fn not_read(&mut self, target: T, uid: Uid) {
        // One of a later object of that name goes before it.
        self.to_read.entry(target).or_insert(uid);
    }

    /// The object is gone.
    pub fn gone(&mut self, target: &T) {
        self.to_read.remove(target);
    }

    /// Takes the managers that own the field; none if it has no owner. Returns whether the signal begins.
    pub fn learn(&mut self, target: &T, managers: &[String], now: Instant) -> bool {
        let manager =
            managers.iter().min_by_key(|manager| objects_that_prove(manager).unwrap_or(usize::MAX)).cloned();
        if manager.as_deref() == Some(OUR_NAME) && self.led_another_just_now(now) {
            return false;
        }
        let object = target.to_string();
        let write = ForeignWrite { object, field: target.field(), manager, until: now + MEMORY };
        let needed = write.objects_that_prove();
        self.news.read(target.kind(), write.clone());
        self.seen.retain(|_, known| now < known.until);
        let known = self.seen.get(target).and_then(ForeignWrite::objects_that_prove);
        // What a controller of our role wrote is not forgotten because one wrote there, too, whose writes prove less.
        if known.is_none_or(|known| needed.is_some_and(|needed| needed <= known)) {
            self.seen.insert(target.clone(), write.clone());
        }
        let Some(needed) = needed else { return false };
        let is_alike = |known: &&ForeignWrite| known.objects_that_prove() == Some(needed);
        if !self.signal.iter().any(|signal| is_alike(&signal))
            && self.seen.values().filter(is_alike).count() < needed
        {
            return false;
        }
        // One that proves less does not take its place, and has it last.
        if let Some(signal) = &mut self.signal
            && signal.objects_that_prove().is_some_and(|of_it| of_it < needed)
        {
            signal.until = write.until;
            return false;
        }
        let begins = self.signal.replace(write).is_none();
        if begins {
            self.news.turned = Some(true);
        }
        begins
    }

    /// Forgets what is past. Returns whether the signal ends.
    pub fn settle(&mut self, now: Instant) -> bool {
        let before = self.seen.len();
        self.seen.retain(|_, known| now < known.until);
        self.news.is_changed |= self.seen.len() < before;
        let ends = self.signal.take_if(|write| write.until <= now).is_some();
        if ends {
            self.news.turned = Some(false);
        }
        ends
    }

    /// When something is past, unless more is seen.
    pub(crate) fn ends_at(&self) -> Option<Instant> {
        self.seen.values().chain(&self.signal).map(|write| write.until).min()
    }

    /// That a controller of our role is at work: the last write of it that was seen. Until then nothing is taken away.
    pub fn signal(&self) -> Option<&ForeignWrite> {
        self.signal.as_ref()
    }

    /// The objects that controllers of our role wrote to of late.
    pub fn evidence(&self) -> impl Iterator<Item = &T> {
        let of_our_role = self.seen.iter().filter(|(_, write)| write.objects_that_prove().is_some());
        of_our_role.map(|(target, _)| target)
    }

    /// Who wrote to an object last, if that was read of late and is known.
    pub(crate) fn manager(&self, target: &T) -> Option<&str> {
        self.seen.get(target)?.manager.as_deref()
    }

    /// What there is to tell since this was last asked for.
    pub fn take_news(&mut self) -> Option<News> {
        if self.news == News::default() {
            return None;
        }
        let mut news = mem::take(&mut self.news);
        news.signal.clone_from(&self.signal);
        news.seen = self.seen.values().cloned().collect();
        Some(news)
    }
}
