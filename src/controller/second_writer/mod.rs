//! Second writers: tells a controller that does our work beside us from all others who write to the same objects
//! (S14). Pure; each subsystem has one, over its own kinds of objects.
//!
//! In: suspicious changes, one at a time, and what a live read says about who made them. Out: which object to read,
//! and the stand-offs: where nothing may be taken away, why and until when. What another controller is proven to
//! have changed is left alone at once, and everything is once it was at work at several
//! places. What people,
//! populators, backup tools and kubelets do concerns the object alone, and only if they do it again and again.

mod owner;
mod stand_off;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt::Display,
    mem,
    time::Duration,
};

use tokio::time::Instant;

pub use owner::Owner;
pub use stand_off::{StandOff, seconds};

use crate::kube_api::managed_fields::OwnedField;

/// Acts within this time count together, and after this long without any a stand-off ends. Longer than the pauses
/// of a stock controller on a quiet object (resync 15 s, back-off up to 2 min), so that one that is there is seen
/// again before it ends.
pub const MEMORY: Duration = Duration::from_mins(10);

/// So many acts on one object are a pattern, of any author: people do it once, and perhaps again.
const PATTERN: usize = 3;

/// A controller that was at work at so many places is at work at all.
const SEVERAL: usize = 2;

/// The same for one of our own name. A write of ours whose answer was lost may look like another's, so that takes
/// more.
const SEVERAL_OF_OUR_NAME: usize = 3;

/// An object is read no more often than this.
const READ_AGAIN: Duration = Duration::from_secs(30);

/// So many objects are read per [`READ_WINDOW`], however large the cluster is.
const READS: usize = 30;
/// See [`READS`].
const READ_WINDOW: Duration = Duration::from_mins(1);

/// So many objects are remembered; then the one with the oldest act is forgotten.
const OBJECTS: usize = 1_024;

/// So many objects stand off at once, of all that others than a controller write to. Beyond that the one that was to
/// end first ends: what is not a controller's is looked at again, as after [`MEMORY`], and it takes a pattern to stand
/// off once more. What a controller wrote to needs no bound of its own: it is read first, see [`READS`].
const STAND_OFFS: usize = 1_024;

/// For this long after a process has taken over, what bears its name may be its predecessor's last writes, which
/// the watch tells of late.
const HAND_OVER: Duration = Duration::from_mins(1);

/// What others write to.
pub trait Target: Clone + Ord + Display {
    /// Where that is. What is seen at one place is of one place, on however many objects.
    type Place: Ord;

    /// Its place.
    fn place(&self) -> Self::Place;

    /// Whether only one with rights at all places can write it. The name of a manager is the client's to choose,
    /// so what the agent of each place can write shows nothing of the other places.
    fn is_beyond_agents(&self) -> bool;
}

/// What is known of one object.
#[derive(Clone, Debug)]
struct Acts {
    field: OwnedField,
    /// The last of them, [`PATTERN`] at most.
    at: VecDeque<Instant>,
    /// So many of them wait for the answer.
    unjudged: u64,
    /// When it was asked who made them, if that is not answered yet.
    asked: Option<Instant>,
    /// What the last read said, and when.
    owner: Option<(Instant, Owner)>,
}

/// The suspicious acts of late and what follows from them, by object.
#[derive(Clone, Debug)]
pub struct SecondWriters<Object> {
    acts: BTreeMap<Object, Acts>,
    reads: VecDeque<Instant>,
    here: BTreeMap<Object, StandOff>,
    everywhere: Option<StandOff>,
    led_since: Option<Instant>,
}

/// What has changed about the stand-offs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes<Object> {
    /// Objects where nothing may be taken away from now on.
    pub begun: Vec<Object>,
    /// Objects where that is over.
    pub ended: Vec<Object>,
    /// Whether it begins or ends everywhere.
    pub everywhere: bool,
    /// So many acts have turned out to be another's.
    pub acts: u64,
}

impl<Object> Default for Changes<Object> {
    fn default() -> Self {
        Self { begun: Vec::new(), ended: Vec::new(), everywhere: false, acts: 0 }
    }
}

impl<Object> Changes<Object> {
    /// Whether nothing has, however many acts there were.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.begun.is_empty() && self.ended.is_empty() && !self.everywhere
    }
}

impl<Object> Default for SecondWriters<Object> {
    fn default() -> Self {
        Self {
            acts: BTreeMap::new(),
            reads: VecDeque::new(),
            here: BTreeMap::new(),
            everywhere: None,
            led_since: None,
        }
    }
}

impl<Object: Target> SecondWriters<Object> {
    /// Forgets everything: what others did while this process did not lead is no act against it.
    pub fn take_over(&mut self, now: Instant) {
        *self = Self { led_since: Some(now), ..Self::default() };
    }

    /// Notes an act. Returns whether the object has to be read, and the answer taken with [`Self::learn`].
    pub fn note(&mut self, object: &Object, field: OwnedField, now: Instant) -> Asks<Object> {
        self.forget(now);
        let acts = self.acts.entry(object.clone()).or_insert_with(|| Acts {
            field,
            at: VecDeque::new(),
            unjudged: 0,
            asked: None,
            owner: None,
        });
        acts.field = field;
        acts.at.push_back(now);
        if acts.at.len() > PATTERN {
            acts.at.pop_front();
        }
        acts.unjudged += 1;
        if acts.asked.is_some() {
            return Asks::Later;
        }
        let is_fresh = acts.owner.as_ref().is_some_and(|(read, _)| now < *read + READ_AGAIN);
        if !is_fresh && self.reads.len() < READS {
            self.reads.push_back(now);
            acts.asked = Some(now);
            return Asks::Read;
        }
        let owner = acts.owner.as_ref().map_or(Owner::Unknown, |(_, owner)| owner.clone());
        Asks::Judged(self.judge(object, &owner, now))
    }

    /// What the last read of an object said, if it was of late.
    #[must_use]
    pub fn owner(&self, object: &Object) -> Option<&Owner> {
        self.acts.get(object)?.owner.as_ref().map(|(_, owner)| owner)
    }

    /// Takes what a read said; [`Owner::Unknown`] if it failed.
    pub fn learn(&mut self, object: &Object, owner: &Owner, now: Instant) -> Changes<Object> {
        let Some(acts) = self.acts.get_mut(object) else { return Changes::default() };
        if acts.asked.take().is_none() {
            return Changes::default();
        }
        if self.is_predecessors(owner, now) {
            self.acts.remove(object);
            return Changes::default();
        }
        let acts = self.acts.get_mut(object);
        if let Some(acts) = acts {
            acts.owner = Some((now, owner.clone()));
        }
        self.judge(object, owner, now)
    }

    /// Whether what this owner did may have been done by the process that led before this one.
    fn is_predecessors(&self, owner: &Owner, now: Instant) -> bool {
        matches!(owner, Owner::OurName) && self.took_over_just_now(now)
    }

    /// Whether writes of the process that led before this one may still come to light.
    #[must_use]
    pub fn took_over_just_now(&self, now: Instant) -> bool {
        self.led_since.is_some_and(|since| now < since + HAND_OVER)
    }

    fn judge(&mut self, object: &Object, owner: &Owner, now: Instant) -> Changes<Object> {
        let Some(acts) = self.acts.get_mut(object) else { return Changes::default() };
        let mut changes = Changes { acts: mem::take(&mut acts.unjudged), ..Changes::default() };
        let proven = matches!(owner, Owner::Controller(_));
        let field = acts.field;
        let holds = proven || acts.at.len() >= PATTERN;
        let stand_off =
            || StandOff { object: object.to_string(), field, owner: owner.clone(), until: now + MEMORY };
        match self.here.get_mut(object) {
            // Only a controller prolongs it: what others write to is looked at again in between.
            Some(known) if proven => *known = stand_off(),
            None if holds => {
                self.here.insert(object.clone(), stand_off());
                changes.begun.push(object.clone());
                changes.ended.extend(self.give_way(object));
            }
            _ => {}
        }
        if self.is_everywhere(owner) {
            changes.everywhere = self.everywhere.is_none();
            self.everywhere = Some(stand_off());
        }
        changes
    }

    /// Ends a stand-off if there is one too many now that another has begun at an object.
    fn give_way(&mut self, begun: &Object) -> Option<Object> {
        if self.here.len() <= STAND_OFFS {
            return None;
        }
        let others = self.here.iter().filter(|(object, by)| *object != begun && !by.is_proven());
        let object = others.min_by_key(|(_, by)| by.until).map(|(object, _)| object.clone())?;
        self.here.remove(&object);
        self.acts.remove(&object);
        Some(object)
    }

    /// Whether the owner has been at work at several places, this one included, and not only as their agents could.
    fn is_everywhere(&self, owner: &Owner) -> bool {
        let places = |is_it: fn(&Owner) -> bool| {
            let is_its = |acts: &Acts| acts.owner.as_ref().is_some_and(|(_, owner)| is_it(owner));
            let objects = || self.acts.iter().filter(|(_, acts)| is_its(acts)).map(|(object, _)| object);
            if !objects().any(Target::is_beyond_agents) {
                return 0;
            }
            objects().map(Target::place).collect::<BTreeSet<_>>().len()
        };
        match owner {
            Owner::Controller(_) => places(|owner| matches!(owner, Owner::Controller(_))) >= SEVERAL,
            Owner::OurName => places(|owner| matches!(owner, Owner::OurName)) >= SEVERAL_OF_OUR_NAME,
            Owner::Other(_) | Owner::Unknown => false,
        }
    }

    /// Why nothing may be taken away anywhere.
    #[must_use]
    pub fn everywhere(&self) -> Option<&StandOff> {
        self.everywhere.as_ref()
    }

    /// Why nothing may be taken away from an object, of what concerns it alone.
    #[must_use]
    pub fn here(&self, object: &Object) -> Option<&StandOff> {
        self.here.get(object)
    }

    /// Every object from which nothing may be taken away.
    pub fn stand_offs(&self) -> impl Iterator<Item = (&Object, &StandOff)> {
        self.here.iter()
    }

    /// The same, of this object and those that sort behind it.
    pub fn stand_offs_from(&self, first: &Object) -> impl Iterator<Item = (&Object, &StandOff)> {
        self.here.range(first..)
    }

    /// When the next stand-off ends, unless something is seen before.
    #[must_use]
    pub fn ends_at(&self) -> Option<Instant> {
        self.here.values().chain(&self.everywhere).map(|stand_off| stand_off.until).min()
    }

    /// Ends what is over.
    pub fn settle(&mut self, now: Instant) -> Changes<Object> {
        let mut changes = Changes::default();
        if self.ends_at().is_none_or(|end| now < end) {
            return changes;
        }
        let over: BTreeSet<Object> = self
            .here
            .iter()
            .filter(|(_, stand_off)| stand_off.until <= now)
            .map(|(object, _)| object.clone())
            .collect();
        for object in over {
            self.here.remove(&object);
            // After that it takes a pattern again.
            self.acts.remove(&object);
            changes.ended.push(object);
        }
        if self.everywhere.as_ref().is_some_and(|stand_off| stand_off.until <= now) {
            self.everywhere = None;
            changes.everywhere = true;
        }
        changes
    }

    /// Keeps what may still matter, and no more than [`OBJECTS`] of it.
    fn forget(&mut self, now: Instant) {
        while self.reads.front().is_some_and(|read| *read + READ_WINDOW <= now) {
            self.reads.pop_front();
        }
        for acts in self.acts.values_mut() {
            while acts.at.front().is_some_and(|at| *at + MEMORY <= now) {
                acts.at.pop_front();
            }
            // A read that never came back.
            acts.asked = acts.asked.filter(|asked| now < *asked + READ_WINDOW);
        }
        let here = &self.here;
        self.acts.retain(|object, acts| !acts.at.is_empty() || here.contains_key(object));
        while self.acts.len() >= OBJECTS {
            let oldest = self.acts.iter().min_by_key(|(_, acts)| acts.at.back().copied());
            let Some(oldest) = oldest.map(|(object, _)| object.clone()) else { break };
            self.acts.remove(&oldest);
        }
    }
}

/// What an act asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asks<Object> {
    /// The object has to be read live.
    Read,
    /// Nothing: a read is under way, which judges this act as well.
    Later,
    /// Nothing: this is what follows from it.
    Judged(Changes<Object>),
}
