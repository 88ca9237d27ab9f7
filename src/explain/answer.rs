//! The answer about one object, put together from the links of its chain.
//!
//! In: a snapshot, a subject, and what is assumed of the controllers. Out: an [`Explanation`]. The link that decides is the
//! last of those that stand worst: what it waits for is what everything before it waits for.

use std::collections::BTreeSet;

use apiserver::{
    ids::{AttachmentName, Uid, VolumeName},
    kinds::{
        ClaimPhase, ClaimRef, CsiDriver, Narrow, ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod,
        PodPhase, VolumeAttachment,
    },
};
use serde_json::{Value, json};

use super::{
    attachment, attributes_class, claim, class,
    evidence::{evidence, timeline},
    foreign,
    links::{Link, missing, set_well},
    node, pod,
    read::requests::Read,
    reasons,
    report::{API_VERSION, Action, Explanation, Next, Observed, Risk, Step, Verdict},
    said::last_word,
    sheet::next_condition,
    snapshot::{NOT_SERVED, Snapshot},
    subject,
    view::{MANY_NODES, View, get},
    volume,
};
use crate::attach_detach::{dry_run::volume_of, state::desired::volume_name::VolumeKind};

/// What no object says of a forced detach.
pub(super) const TIMER: &str = "Only the controller knows when a pod there last had the volume; no object shows it. After a restart it \
    counts again, unless the lease carries the time.";

/// What is not known where the flags of who rules are not to be seen.
pub(super) const FLAGS: &str = "Whether time forces a detach at all: the flags of the controller that rules were not seen, and with \
    --disable-force-detach-on-timeout it never does.";

/// Explains one object.
pub fn explain(snapshot: &Snapshot, subject: &ObjectRef) -> Explanation {
    answer(&View::new(snapshot), subject)
}

/// All reads that the answer looks at, as far as that is known by now.
pub(super) fn needed(subject: &ObjectRef, seen: &Snapshot) -> BTreeSet<Read> {
    View::noted(seen, |view| answer(view, subject))
}

fn answer(view: &View<'_>, subject: &ObjectRef) -> Explanation {
    let snapshot = view.snapshot;
    view.want(|| Read::events_about(subject));
    let mut links = links(view, subject);
    if is_well_as_far_as_seen(view, subject, &links) {
        set_well(&mut links, |link| link.verdict == Verdict::Forbidden);
    }
    let whole = snapshot.details.get(subject);
    let is_missing = snapshot.is_absent(subject) && whole.is_none() && !matches!(subject, ObjectRef::Node(_));
    // Of what is being deleted people ask why it is still there, not why its volume gets nowhere.
    let is_own = |link: &Link| {
        link.step.reason == claim::TERMINATING
            && match subject {
                ObjectRef::Claim(_) => true,
                ObjectRef::Volume(name) => {
                    get::<PersistentVolume>(view, name).is_some_and(|volume| volume::is_kept(&volume))
                }
                _ => false,
            }
    };
    let last_of_worst = links.iter().enumerate().max_by_key(|(_, link)| link.verdict);
    let own = links.first().filter(|link| is_own(link)).map(|link| (0, link));
    let (deciding, worst) =
        own.or(last_of_worst).map_or((0, Verdict::Healthy), |(at, link)| (at, link.verdict));
    let is_well = worst == Verdict::Healthy;
    for (index, link) in links.iter_mut().enumerate() {
        link.step.is_blocker = !is_well && index == deciding;
        link.step.docs = docs(&link.step.reason);
    }
    let verdict = if is_missing { Verdict::NotFound } else { worst };
    // What is well is told from its own end of the chain.
    let told = match subject {
        ObjectRef::Pod(_) if is_well && links.first().is_some_and(|link| link.step.reason != "PodEnded") => {
            links.last()
        }
        _ if is_well => links.first(),
        _ => links.get(deciding),
    };
    let (reason, mut summary) =
        told.map_or_else(Default::default, |link| (link.step.reason.clone(), sentence(&link.step)));
    let mut actions = actions(&links);
    if verdict == Verdict::Forbidden {
        let uid = whole.and_then(|object| object.pointer("/metadata/uid")?.as_str());
        if let Some(word) = uid.and_then(|uid| last_word(view, &Uid::from(uid))) {
            summary = format!("{summary}; {word}");
        }
        // What the server does not serve, nobody may read.
        if !snapshot.unseen.iter().all(|unseen| unseen.why == NOT_SERVED) || snapshot.unseen.is_empty() {
            let text = "ask a user who may read these, or request the rights: deploy/optional/explain-reader has a role with all of them";
            actions.push(Action { risk: Risk::Safe, text: text.to_owned(), command: Vec::new() });
        }
    }
    let candidates = match subject {
        ObjectRef::Claim(key) => claim::candidates(view, key),
        _ => Vec::new(),
    };
    let chain = chain(subject, &links);
    let mut unknown = unknown(view, subject, &links);
    if matches!(subject, ObjectRef::Class(_)) && verdict != Verdict::NotFound {
        unknown
            .push("Which claims of the class wait is not told here: mooring doctor reports them.".to_owned());
    }
    Explanation {
        api_version: API_VERSION,
        kind: "Explanation",
        subject: with_uid(whole, subject),
        headline: links.first().map_or_else(String::new, |link| link.step.detail.clone()),
        verdict,
        reason,
        summary,
        observed: Observed::of(snapshot),
        candidates,
        evidence: evidence(view, &chain),
        timeline: timeline(view, &chain),
        actions,
        unseen: snapshot.unseen.clone(),
        unknown,
        steps: links.into_iter().map(|link| link.step).collect(),
    }
}

/// Whether an object says itself that it has what it needs: a claim that is bound, a pod that runs.
fn is_well_as_far_as_seen(view: &View<'_>, subject: &ObjectRef, links: &[Link]) -> bool {
    match subject {
        ObjectRef::Claim(key) => {
            let claim = get::<PersistentVolumeClaim>(view, key);
            claim.is_some_and(|claim| {
                claim.status.phase == ClaimPhase::Bound && !claim.metadata.is_terminating()
            }) && links.first().is_some_and(|link| link.verdict == Verdict::Healthy)
        }
        ObjectRef::Pod(key) => get::<Pod>(view, key)
            .is_some_and(|pod| pod.status.phase == PodPhase::Running && !pod.metadata.is_terminating()),
        _ => false,
    }
}

/// Where the page about a reason is.
pub(super) fn docs(reason: &str) -> Option<String> {
    reasons::page(reason).map(|_| format!("docs/reasons/{reason}.md"))
}

fn links(view: &View<'_>, subject: &ObjectRef) -> Vec<Link> {
    match subject {
        ObjectRef::Pod(key) => pod::links(view, key),
        ObjectRef::Claim(key) if get::<PersistentVolumeClaim>(view, key).is_none() => {
            let mut link = claim::link(view, key);
            if view.snapshot.is_absent(subject) {
                link.verdict = Verdict::NotFound;
            }
            vec![link]
        }
        ObjectRef::Claim(key) => {
            view.want(|| Read::pods_in(key.namespace()));
            pod::of_claim(view, key, None)
        }
        ObjectRef::Volume(name) => {
            who_has(view, name);
            // Another one of the same name is not its claim, unless that says so.
            let is_its = |reference: &ClaimRef| {
                get::<PersistentVolumeClaim>(view, &reference.key()).is_some_and(|claim| {
                    reference.uid.is_empty()
                        || reference.uid == claim.metadata.uid
                        || claim.spec.volume_name == *name
                })
            };
            let claim = get::<PersistentVolume>(view, name)
                .and_then(|volume| volume.spec.claim_ref.clone())
                .filter(is_its)
                .map(|reference| reference.key());
            let mut links = pod::of_volume(view, name, None);
            links.extend(claim.map(|key| claim::link(view, &key)));
            links
        }
        ObjectRef::Attachment(name) => of_attachment(view, name),
        ObjectRef::Node(name) => node::links(view, name),
        ObjectRef::Class(name) => vec![class::link(view, name)],
        ObjectRef::AttributesClass(name) => vec![attributes_class::link(view, name)],
        // None is asked about.
        ObjectRef::Driver(_) => Vec::new(),
    }
}

/// Looks at whose a volume is, which only claims tell, if none has it; and at where it is.
fn who_has(view: &View<'_>, name: &VolumeName) {
    let Some(volume) = volume::read(view, name) else { return };
    let key = volume.spec.claim_ref.as_ref().map(ClaimRef::key);
    if let Some(key) = &key {
        view.want(|| Read::pods_in(key.namespace()));
    }
    let claim = key.as_ref().and_then(|key| get::<PersistentVolumeClaim>(view, key));
    let is_nobodys = key.is_none_or(|key| view.snapshot.is_absent(&ObjectRef::Claim(key)));
    let elsewhere = claim.filter(|claim| claim.spec.volume_name != *name);
    if is_nobodys || elsewhere.is_some() {
        view.list::<PersistentVolumeClaim>();
    }
    if let Some(claim) = elsewhere.filter(|_| view.is_noted()) {
        // What it waits for, or has in this one's place.
        claim::link(view, &claim.key());
    }
    if let Some(id) = volume_of(view.objects(), name).filter(|id| id.kind() == VolumeKind::Csi) {
        attachment::holders(view, &id);
        if volume.spec.claim_ref.is_none() {
            // Nobody's claim says whose pods.
            view.nodes_of(&id).take(MANY_NODES).for_each(|(node, _)| view.want(|| Read::pods_on(node)));
        }
    }
}

/// The links of a VolumeAttachment: its volume, and that on its node.
fn of_attachment(view: &View<'_>, name: &AttachmentName) -> Vec<Link> {
    let subject = ObjectRef::Attachment(name.clone());
    let Some(attachment) = view.read::<VolumeAttachment>(name) else {
        return vec![missing::<VolumeAttachment>(view, &subject, name, "NotFound")];
    };
    let node = &attachment.spec.node_name;
    view.node(node);
    view.want(|| Read::pods_on(node));
    let sees_node = !Read::pods_on(node).is_unseen(view.snapshot);
    view.read::<CsiDriver>(&attachment.spec.attacher);
    if !attachment::is_settled(&attachment) {
        view.sidecars();
    }
    let volume = attachment.spec.source.persistent_volume_name.as_ref();
    let object = volume.and_then(|volume| volume::read(view, volume));
    let claim = object.as_ref().and_then(|object| Some(object.spec.claim_ref.as_ref()?.key()));
    let exclusive = object.as_deref().filter(|object| attachment::is_exclusive(object));
    if let Some(id) = exclusive.and_then(|object| volume_of(view.objects(), &object.key())) {
        // The disk may be on a second node (S1).
        attachment::holders(view, &id);
    }
    let is_going = attachment.metadata.is_terminating();
    if let (Some(object), Some(claim)) = (object, claim.filter(|_| is_going || !sees_node)) {
        // Which pods wait for it to be gone; or use it, as far as the reader may see.
        view.want(|| Read::pods_in(claim.namespace()));
        attachment::look_at(view, &object, &view.nodes_using(&claim));
    }
    if let Some(link) = foreign::foreign(view, name) {
        return vec![link];
    }
    let id = volume.and_then(|volume| volume_of(view.objects(), volume));
    let links = id.map_or_else(Vec::new, |id| attachment::links(view, &id, node));
    if links.is_empty() {
        let link = Link::told(&subject, "VolumeMissing unread", &[("node", node)]);
        return vec![link.detail(format!("on {node}"))];
    }
    links
}

/// What a step says, and on which condition it goes on.
pub(super) fn sentence(step: &Step) -> String {
    match step.next.as_ref().and_then(next_condition) {
        Some(until) => format!("{}{until}", step.message.trim_end_matches('.')),
        None => step.message.clone(),
    }
}

/// What may be done, the safest first, each once.
fn actions(links: &[Link]) -> Vec<Action> {
    let told = links.iter().filter(|link| link.verdict != Verdict::Healthy || links.len() == 1);
    let mut all = subject::distinct(told.flat_map(|link| link.actions.iter().cloned()));
    all.sort_by_key(|action| action.risk);
    all
}

/// What only the controller knows, with what can be proven of it; and what was not read.
fn unknown(view: &View<'_>, subject: &ObjectRef, links: &[Link]) -> Vec<String> {
    let is_open = |next: &Next| next.action == "ForceDetach" && next.at.is_none();
    let is_forced = links.iter().filter_map(|link| link.step.next.as_ref()).any(is_open);
    let mut unknown: Vec<String> = is_forced.then(|| TIMER.to_owned()).into_iter().collect();
    unknown.extend(
        is_forced.then_some(FLAGS).filter(|_| view.snapshot.ruler_flags().is_none()).map(str::to_owned),
    );
    let volumes = links.iter().filter_map(|link| match subject::of(&link.step.object) {
        Some(volume) if volume == *subject => None,
        Some(ObjectRef::Volume(name)) if attachment::may_be_twice(view, &name) => Some(name),
        _ => None,
    });
    let volumes: BTreeSet<VolumeName> = volumes.collect();
    unknown.extend(volumes.iter().map(|name| {
        format!(
            "Whether the disk is attached to a second node, too, was not read: see mooring explain pv/{name}"
        )
    }));
    unknown
}

/// The objects of the chain, the subject first.
fn chain(subject: &ObjectRef, links: &[Link]) -> Vec<ObjectRef> {
    let objects = links.iter().flat_map(|link| {
        std::iter::once(&link.step.object).chain(link.step.blocked_by.iter().map(|blocker| &blocker.object))
    });
    subject::distinct(std::iter::once(subject.clone()).chain(objects.filter_map(subject::of)))
}

fn with_uid(whole: Option<&Value>, subject: &ObjectRef) -> Value {
    let mut object = subject::json(subject);
    let uid = whole.and_then(|whole| whole.pointer("/metadata/uid"));
    if let (Some(fields), Some(uid)) = (object.as_object_mut(), uid) {
        fields.insert("uid".to_owned(), json!(uid));
    }
    object
}
