//! The judge: it plays what the watches tell in the order of etcd, and holds each act of the ruler against the laws and
//! against what mooring wanted.
//!
//! In: what was told, wishes, and how far the watches are. Out: differences, each once, and the summary. Nothing is judged
//! before all watches have passed its revision: only then the world right before it is known.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use apiserver::{
    call::Wish,
    ids::{ResourceVersion, VolumeName},
    kinds::{BindingMode, ObjectRef, PersistentVolume},
    tables::{Objects, Told, Way},
};
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::{
    acts::{Shape, acts},
    agreement::{Agreement, agrees},
    audit::Authors,
    laws::{self, Judged},
    mutation::{Mutation, MutationKind},
    pairing::{First, HOLD, Pairing},
    past::Earlier,
    situations::{situation, wanted_elsewhere},
    summary::{Difference, DifferenceKind, Summary},
    wished::wished,
};
use crate::config::StorageController;

/// What mooring wants in this time after the start, it wanted before.
const BEGINNING: Duration = Duration::from_secs(3);
/// So much of what was told last is kept, to know what had been told when a wish was made.
const REMEMBERED_REVISIONS: usize = 4_096;

/// A write that waits for the ruler.
#[derive(Debug)]
struct HeldWish {
    wish: Wish,
    mutations: Vec<Mutation>,
    until: Instant,
}

/// Where an act is in the history, and whose it is, if that is known.
struct Made {
    revision: ResourceVersion,
    user: Option<String>,
}

/// The judge.
#[derive(Debug)]
pub struct Judge {
    /// What an audit log has told.
    pub(super) authors: Authors,
    /// The cluster up to the last revision that was judged.
    world: Arc<Objects>,
    past: Earlier,
    running: BTreeSet<StorageController>,
    begun: Instant,
    /// Told, and not judged yet.
    waiting: BTreeMap<(ResourceVersion, u64), Told>,
    count: u64,
    /// Acts up to this revision are not judged: a watch had a gap, so the world right before them is not known.
    unjudged_until: ResourceVersion,
    /// Up to which revision was told when.
    newest: VecDeque<(Instant, ResourceVersion)>,
    held: Vec<HeldWish>,
    pairing: Pairing,
    summary: Summary,
    /// What has come to light and was not taken yet.
    news: Vec<Difference>,
}

impl Judge {
    /// A judge of what these controllers do.
    pub fn new(running: BTreeSet<StorageController>, now: Instant) -> Self {
        Self {
            authors: Authors::default(),
            world: Arc::default(),
            past: Earlier::default(),
            running,
            begun: now,
            waiting: BTreeMap::new(),
            count: 0,
            unjudged_until: ResourceVersion::default(),
            newest: VecDeque::new(),
            held: Vec::new(),
            pairing: Pairing::default(),
            summary: Summary::new(Timestamp::now()),
            news: Vec::new(),
        }
    }

    /// The first lists are complete: what mooring wants from now on, it comes to want.
    pub fn begins(&mut self, now: Instant) {
        self.begun = now;
    }

    /// Takes what a watch told. Whoever wants to write to that object decides anew.
    pub fn told(&mut self, told: Told) {
        let (at, object) = (told.at, told.object.clone());
        let newest = self.newest.back().map(|(_, revision)| *revision).unwrap_or_default();
        self.newest.push_back((at, newest.max(told.revision)));
        if self.newest.len() > REMEMBERED_REVISIONS {
            self.newest.pop_front();
        }
        if matches!(told.way, Way::List | Way::Absence) && !self.is_watched(&told) {
            self.unjudged_until = self.unjudged_until.max(told.revision);
        }
        self.count += 1;
        self.waiting.insert((told.revision, self.count), told);
        self.release(at, |held| held.mutations.iter().any(|it| concerns(it, &object)));
    }

    /// Notes that the API server would refuse a write of mooring.
    pub(super) fn refused(&mut self, message: String) {
        self.differs(DifferenceKind::Refused, None, None, message);
    }

    /// Notes which kinds are in another etcd than the pods. What was first is not known then, nor the world right before an act.
    pub(super) fn are_elsewhere(&mut self, kinds: &[&str]) {
        if kinds.is_empty() {
            return;
        }
        self.unjudged_until = ResourceVersion(u64::MAX);
        let kinds = kinds.join(", ");
        let message = format!(
            "nothing: {kinds} are in another etcd than pods, and revisions of two cannot be compared"
        );
        self.differs(DifferenceKind::NotJudged, None, None, message);
    }

    /// Takes a write that mooring would make. Returns whether it wants something new.
    pub fn wish(&mut self, wish: Wish, objects: &Objects) -> bool {
        let mutations = wished(&wish.request, &self.world, objects);
        let told = self.newest.iter().rev().find(|(at, _)| *at <= wish.made);
        let revision = told.map(|(_, revision)| *revision).unwrap_or_default();
        let is_old = wish.made < self.begun + BEGINNING;
        let mut is_new = false;
        for mutation in &mutations {
            is_new |= self.pairing.wish(mutation, revision, wish.made, is_old);
        }
        let holds = mutations.iter().map(|it| self.pairing.hold(it, wish.made));
        let until = wish.made + holds.min().unwrap_or(HOLD);
        self.held.push(HeldWish { wish, mutations, until });
        is_new
    }

    /// Whether a watch has told of it, too.
    fn is_watched(&self, told: &Told) -> bool {
        let mut same = self.waiting.range((told.revision, 0)..=(told.revision, u64::MAX));
        same.any(|(_, known)| known.way == Way::Watch && known.object == told.object)
    }

    fn release(&mut self, now: Instant, is_due: impl Fn(&HeldWish) -> bool) {
        let due: Vec<HeldWish> = self.held.extract_if(.., |held| is_due(held)).collect();
        for HeldWish { wish, mutations, .. } in due {
            for mutation in &mutations {
                self.pairing.released(mutation, now);
            }
            wish.release();
        }
    }

    /// Judges what all watches have passed. Returns since when something waits for them.
    pub fn pass(&mut self, passed: ResourceVersion, now: Instant) -> Option<Instant> {
        // What is not judged waits for no watch.
        let passed = if self.unjudged_until.0 == u64::MAX { self.unjudged_until } else { passed };
        while let Some(entry) = self.waiting.first_entry()
            && entry.key().0 <= passed
        {
            let told = entry.remove();
            self.judge(&told);
        }
        self.release(now, |held| held.until <= now);
        let oldest = self.waiting.values().map(|told| told.at).min();
        for (mutation, since) in self.pairing.due(now, oldest.unwrap_or(now)) {
            let lasted = now.saturating_duration_since(since).as_secs();
            let message = format!("mooring {mutation}; the ruler has not for {lasted} s");
            self.differs(DifferenceKind::Wait, None, None, message);
        }
        oldest
    }

    /// The observation ends: what still waits for a watch is not judged.
    pub(super) fn ends(&mut self, now: Instant) {
        self.unjudged_until = ResourceVersion(u64::MAX);
        self.pass(self.unjudged_until, now);
    }

    /// What has come to light since this was last asked for.
    pub fn news(&mut self) -> Vec<Difference> {
        std::mem::take(&mut self.news)
    }

    /// The counts so far.
    pub(super) fn counts(&self) -> &Summary {
        &self.summary
    }

    /// The summary as of now.
    pub fn summary(&self, now: Instant) -> Summary {
        let mut summary = self.summary.clone();
        summary.moot = self.pairing.moot;
        summary.waited_before = u64::try_from(self.pairing.old()).unwrap_or_default();
        summary.ends(now.saturating_duration_since(self.begun));
        summary
    }

    fn judge(&mut self, told: &Told) {
        if told.way != Way::FirstList {
            if let ObjectRef::Pod(_) = told.object {
                self.look_at_pod(told);
            } else {
                self.look(told);
            }
        }
        told.play(&self.world);
    }

    fn look_at_pod(&mut self, told: &Told) {
        let ObjectRef::Pod(key) = &told.object else { return };
        let pod = alone(told).pods.get(key);
        // When it ended in a gap is not known.
        if let Some(was) = self.world.pods.get(key).filter(|_| told.way == Way::Watch) {
            self.past.pod(&self.world, &was, pod.as_deref(), wall(told));
        }
        let Some(pod) = pod else { return };
        if let Some(situation) = wanted_elsewhere(&self.world, &told.object, &pod) {
            self.summary.seen(situation);
        }
    }

    fn look(&mut self, told: &Told) {
        let before = Shape::of(&self.world, &told.object);
        let after = Shape::of(&alone(told), &told.object);
        if let Some(situation) = situation(before.as_ref(), after.as_ref()) {
            self.summary.seen(situation);
        }
        if let ObjectRef::Node(name) = &told.object {
            let [was, is] = [&*self.world, &alone(told)].map(|world| world.nodes.get(name));
            self.past.node(was.as_deref(), is.as_deref(), wall(told));
        }
        let found = acts(before.as_ref(), after.as_ref());
        for act in &found {
            self.past.act(&self.world, act, wall(told));
        }
        if told.revision <= self.unjudged_until {
            self.summary.gaps += u64::try_from(found.len()).unwrap_or_default();
            return;
        }
        if found.is_empty() {
            return;
        }
        let wall = wall(told);
        let user = self.authors.of(&told.object, told.revision, before.is_none(), wall);
        let made = Made { revision: told.revision, user };
        for act in found {
            if let Some(user) = &made.user {
                *self.summary.users.entry(user.clone()).or_default() += 1;
            }
            let judged =
                laws::judge((self.world.as_ref(), &self.past), &act, (before.as_ref(), after.as_ref()), wall);
            self.held_against(&act, &judged, &made);
            if self.running.contains(&act.controller()) {
                self.compare(&act, &judged, (&made, told.at), wall);
            } else {
                let tally = self.summary.mutations.entry(act.kind).or_default();
                (tally.acts, tally.not_judged) = (tally.acts + 1, tally.not_judged + 1);
                self.summary.not_asked += 1;
            }
        }
    }

    fn held_against(&mut self, act: &Mutation, judged: &Judged, made: &Made) {
        self.summary.held_against(&judged.laws, judged.breach.as_ref());
        // What comes off the list and is held against no law is detached next.
        let is_first = act.kind == MutationKind::Unlist && judged.laws.is_empty();
        if let Some(situation) = judged.named.filter(|_| !is_first) {
            self.summary.seen(situation);
        }
        if let Some(breach) = &judged.breach {
            let (law, message) = (Some(breach.law), breach.told.clone());
            self.differs(DifferenceKind::Unsafe, law, Some(made), message);
        }
    }

    /// Compares an act with what mooring wanted. An act that breaks a law is told as that alone, and of a detach by force
    /// only who has waited as long can tell whether it was due.
    fn compare(&mut self, act: &Mutation, judged: &Judged, (made, told): (&Made, Instant), wall: Timestamp) {
        let kind = act.kind;
        self.summary.mutations.entry(kind).or_default().acts += 1;
        match self.pairing.act(act, made.revision, told) {
            Some((first, volume)) => {
                self.summary.paired(kind, first);
                if let Some(ours) = volume {
                    self.chosen(act, &ours, made);
                }
            }
            None if judged.breach.is_some() || judged.named.is_some() => {
                self.summary.paired(kind, First::NotJudged);
            }
            None => match agrees(&self.world, act, &self.running, wall) {
                Some(Agreement::Same) => self.summary.paired(kind, First::Ruler(None)),
                Some(Agreement::OtherVolume(ours)) => {
                    self.summary.paired(kind, First::Ruler(None));
                    self.chosen(act, &ours, made);
                }
                Some(Agreement::No) if !is_of_another(&self.world, act) => {
                    let message = format!("the ruler {act}; mooring would not have");
                    self.differs(DifferenceKind::Unexplained, None, Some(made), message);
                }
                Some(Agreement::No) | None => self.summary.paired(kind, First::NotJudged),
            },
        }
    }

    /// The ruler has chosen a volume; mooring would have chosen this one.
    fn chosen(&mut self, act: &Mutation, ours: &VolumeName, made: &Made) {
        if let Some(theirs) = act.volume.as_ref().filter(|it| !is_of_equal_rank(&self.world, ours, it)) {
            let message = format!("the ruler {act} with pv/{theirs}; mooring would have chosen pv/{ours}");
            self.differs(DifferenceKind::OtherVolume, None, Some(made), message);
        }
    }

    fn differs(
        &mut self,
        kind: DifferenceKind,
        law: Option<&'static str>,
        made: Option<&Made>,
        message: String,
    ) {
        let revision = made.map(|made| made.revision.to_string());
        let user = made.and_then(|made| made.user.clone());
        let difference = Difference { at: Timestamp::now(), kind, law, revision, user, message };
        self.news.push(difference.clone());
        self.summary.differs(difference);
    }
}

/// Whether a change of the object may settle a wish.
fn concerns(wish: &Mutation, object: &ObjectRef) -> bool {
    let is_volume = |name: &VolumeName| *object == ObjectRef::Volume(name.clone());
    wish.object == *object || wish.volume.as_ref().is_some_and(is_volume)
}

/// Whether two volumes are of the same size and have as many access modes: which of them a claim gets is chance.
fn is_of_equal_rank(world: &Objects, one: &VolumeName, other: &VolumeName) -> bool {
    let rank = |volume: &PersistentVolume| {
        (volume.spec.capacity.get("storage").cloned(), volume.spec.access_modes.iter().count())
    };
    let [one, other] = [one, other].map(|name| world.volumes.get(name).map(|volume| rank(&volume)));
    one == other
}

/// A world of the object alone, as it is told.
fn alone(told: &Told) -> Objects {
    let objects = Objects::default();
    told.play(&objects);
    objects
}

/// When it was told, by the clock on the wall.
fn wall(told: &Told) -> Timestamp {
    let now = Timestamp::now();
    now.checked_sub(told.at.elapsed()).unwrap_or(now)
}

/// Whether somebody who is no storage loop makes such a change, too: people free a Released volume that is kept, the
/// scheduler gives volumes to claims that wait for their first consumer, and the provisioner to those that asked for one.
fn is_of_another(world: &Objects, act: &Mutation) -> bool {
    let key = match (act.kind, &act.object) {
        (MutationKind::Unreserve, ObjectRef::Volume(name)) => {
            let of = world.volumes.get(name).and_then(|volume| volume.spec.claim_ref.clone());
            let claim = of.as_ref().and_then(|of| world.claims.get(&of.key()));
            return of.is_some_and(|of| claim.is_none_or(|claim| claim.metadata.uid != of.uid));
        }
        (MutationKind::Reserve, ObjectRef::Claim(key)) => key,
        _ => return false,
    };
    let Some(claim) = world.claims.get(key) else { return false };
    let class = claim.spec.storage_class_name.as_ref().map(|name| name.as_str().into());
    let class = class.and_then(|name| world.classes.get(&name));
    class.is_some_and(|class| class.volume_binding_mode == Some(BindingMode::WaitForFirstConsumer))
}

#[cfg(test)]
mod tests {
    use apiserver::kinds::VolumeAttachment;
    use serde_json::{from_value, json};

    use super::*;
    use crate::{config::Controllers, explain::report::Verdict};

    #[test]
    fn where_kinds_are_in_two_etcds_acts_wait_for_no_watch_and_are_not_judged() {
        let attachment = json!({
            "metadata": { "name": "csi-1", "uid": "a", "resourceVersion": "90" },
            "spec": { "attacher": "d", "nodeName": "n1", "source": { "persistentVolumeName": "v1" } },
        });
        for (kinds, waits, gaps, verdict) in
            [([].as_slice(), true, 0, Verdict::NotFound), (&["nodes"], false, 1, Verdict::Waiting)]
        {
            let (objects, now) = (Objects::default(), Instant::now());
            let mut judge = Judge::new(Controllers::parse("storage").unwrap().running, now);
            let mut tells = objects.tell();
            objects.apply::<VolumeAttachment>(from_value(attachment.clone()).unwrap());
            let mut told = tells.try_recv().unwrap();
            told.way = Way::Watch;
            judge.told(told);
            judge.are_elsewhere(kinds);
            assert_eq!(judge.pass(ResourceVersion(7), now).is_some(), waits, "{kinds:?}");
            let summary = judge.summary(now);
            assert_eq!((summary.gaps, summary.exit()), (gaps, verdict), "{kinds:?}");
            let news: Vec<String> = judge.news().into_iter().map(|it| it.message).collect();
            let told =
                "nothing: nodes are in another etcd than pods, and revisions of two cannot be compared";
            assert_eq!(news, [told.to_owned()][..kinds.len()]);
        }
    }
}
