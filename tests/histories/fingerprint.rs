//! What tells two states of a history apart: everything that has a say in what can happen next, or in what the
//! checks find wrong with it, and nothing else.
//!
//! Values are printed as they are but for three kinds, of which only the order means anything: revisions of one
//! object, made-up UIDs, and the moments at which something becomes due. Each field that is left out is named here
//! with its reason; a field that is new is printed. Of two states that differ only in how far apart two future moments
//! are, one is explored.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::{Debug, Write as _},
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use mooring::{
    attach_detach::{
        actual::{
            node::NodeState,
            state::{Deletion, KnownAttachment, NodeVolume, Uncertain, WhyRead},
            unpublishing::Unpublishing,
        },
        calls::{Answer, AttachmentRequest, Call},
        decide::node_list::WINDOW,
        desired::volume_name::VolumeId,
    },
    controller::{in_doubt::InDoubt, retry::Retry},
    kube_api::{
        ids::{NodeName, ResourceVersion, Uid},
        kinds::{Narrow, Node, NodeCondition, Pod, VolumeAttachment},
    },
};
use tokio::time::Instant;

use super::{
    daemon::{Daemon, KINDS, Outcome, kind},
    server::{NODES, Object, PATIENCE, Server, VOLUMES, id},
};

/// A state in print.
pub struct Print<'a> {
    server: &'a Server,
    daemon: &'a Daemon,
    text: String,
    /// Object whose revisions come next.
    of: arcstr::ArcStr,
    revisions: Vec<(arcstr::ArcStr, ResourceVersion)>,
    uids: Vec<Uid>,
    /// From now, in nanoseconds.
    moments: Vec<i128>,
}

impl<'a> Print<'a> {
    /// Prints a state, and more that belongs to it.
    pub fn of(server: &'a Server, daemon: &'a Daemon, more: &impl Debug) -> Self {
        let text = String::with_capacity(8_192);
        let (of, revisions, uids, moments) = (arcstr::ArcStr::new(), Vec::new(), Vec::new(), Vec::new());
        let mut print = Self { server, daemon, text, of, revisions, uids, moments };
        print.write(more);
        print
    }

    /// Hash of the state.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.text.hash(&mut hasher);
        let mut known: BTreeMap<&str, BTreeSet<ResourceVersion>> = BTreeMap::new();
        for (object, revision) in &self.revisions {
            known.entry(object).or_default().insert(*revision);
        }
        for (object, revision) in &self.revisions {
            known[&**object].range(..revision).count().hash(&mut hasher);
        }
        let mut order: HashMap<&Uid, usize> = HashMap::new();
        for uid in &self.uids {
            let next = order.len();
            order.entry(uid).or_insert(next).hash(&mut hasher);
        }
        let future: BTreeSet<i128> = self.future().collect();
        for moment in &self.moments {
            // What is past is past.
            (*moment > 0).then(|| future.range(..moment).count()).hash(&mut hasher);
        }
        hasher.finish()
    }

    fn future(&self) -> impl Iterator<Item = i128> {
        self.moments.iter().copied().filter(|moment| *moment > 0)
    }

    /// How long until the next moment that has a say.
    pub fn next_moment(&self) -> Option<Duration> {
        self.future().min().map(|moment| Duration::from_nanos(u64::try_from(moment).expect("in the future")))
    }

    fn plain(&mut self, value: impl Debug) {
        write!(self.text, "{value:?};").expect("a String takes everything");
    }

    fn revision(&mut self, revision: ResourceVersion) {
        self.text.push('#');
        self.revisions.push((self.of.clone(), revision));
    }

    fn uid(&mut self, uid: &Uid) {
        self.text.push('$');
        self.uids.push(uid.clone());
    }

    fn moment(&mut self, moment: Instant) {
        let from_now = match moment.checked_duration_since(self.daemon.now) {
            Some(ahead) => i128::try_from(ahead.as_nanos()),
            None => i128::try_from(self.daemon.now.duration_since(moment).as_nanos()).map(|past| -past),
        };
        self.text.push('@');
        self.moments.push(from_now.expect("not that far"));
    }

    /// When it has been so for long enough.
    fn patience_since(&mut self, since: Option<Timestamp>) {
        let from_now = since.map(|since| since.duration_since(self.server.wall()).as_nanos());
        self.text.push('@');
        self.moments.push(from_now.map_or(0, |from_now| from_now + PATIENCE.as_nanos()));
    }

    fn write(&mut self, more: &impl Debug) {
        let server = self.server;
        self.plain(more);
        for pod in server.pods.values() {
            self.pod(pod);
            // The oldest pod of a node speaks for it.
            let is_elder = |other: &&Pod| {
                let created = |pod: &Pod| pod.metadata.creation_timestamp;
                other.spec.node_name != pod.spec.node_name && created(other) < created(pod)
            };
            let elders: Vec<_> = server.pods.values().filter(is_elder).map(Narrow::key).collect();
            self.plain(elders);
        }
        for node in server.nodes.values() {
            self.node(node);
        }
        for attachment in server.attachments.values() {
            self.attachment(attachment);
        }
        self.plain((&server.mounted, &server.silent, &server.unpublished));
        self.plain((&server.overdue, &server.unreported, &server.unwitnessed));
        self.patience();
        self.undelivered();
        self.tables();
        let daemon = self.daemon;
        for (volume, _) in VOLUMES {
            let Some(state) = daemon.controller.actual().volume(&id(volume)) else { continue };
            self.plain((volume, &state.foreign));
            for (node, node_volume) in &state.nodes {
                self.node_volume(&id(volume), node, node_volume);
            }
        }
        for name in NODES.map(NodeName::from) {
            if let Some(state) = daemon.controller.actual().node(&name) {
                self.node_state(&name, state);
            }
        }
        self.under_way();
    }

    /// A pod never changes, so its UID says it all.
    fn pod(&mut self, pod: &Pod) {
        self.plain(pod.key());
        self.uid(&pod.metadata.uid);
    }

    fn node(&mut self, node: &Node) {
        self.of = node.metadata.name.clone();
        self.revision(node.metadata.resource_version);
        let status = &node.status;
        self.plain((&node.metadata.uid, &node.spec, &status.node_info));
        self.plain((&status.volumes_attached, &status.volumes_in_use));
        // Only a daemon that starts asks since when, and then the server's own note says the same.
        for NodeCondition { r#type, status, last_transition_time: _ } in &status.conditions {
            self.plain((r#type, status));
        }
    }

    fn attachment(&mut self, attachment: &VolumeAttachment) {
        // The name is a hash over the spec.
        let VolumeAttachment { metadata, spec: _, status } = attachment;
        self.of = metadata.name.clone();
        self.revision(metadata.resource_version);
        self.uid(&metadata.uid);
        self.plain((&metadata.name, &metadata.deletion_timestamp, &metadata.finalizers, status));
        let authors = &self.server.authors;
        self.plain((authors.created(&metadata.uid), authors.deleted(&metadata.uid)));
    }

    /// When the server would have a detach forced. Of a node that is well and has been so since nothing is said:
    /// if it fails, that is later than all that has happened so far.
    fn patience(&mut self) {
        let server = self.server;
        for since in [&server.unwanted_since, &server.seen_unwanted_since] {
            for (pair, unwanted_since) in since {
                let unready_since = server.unready_since.get(&pair.0);
                if unready_since.is_some() || server.unpublished.get(pair).is_some_and(|shown| shown.unready)
                {
                    self.plain(pair);
                    self.patience_since(unready_since.max(Some(unwanted_since)).copied());
                }
            }
        }
        for unready_since in server.unready_since.values() {
            self.patience_since(Some(*unready_since));
        }
    }

    fn undelivered(&mut self) {
        let (server, daemon) = (self.server, self.daemon);
        for wanted in KINDS {
            let undelivered = server.history.iter().skip(daemon.delivered[wanted]);
            for event in undelivered.filter(|event| kind(&event.key) == wanted) {
                self.plain(event.deleted);
                match &event.object {
                    Object::Node(node) => self.node(node),
                    Object::Pod(pod) => self.pod(pod),
                    Object::Attachment(attachment) => self.attachment(attachment),
                    object => self.plain(object),
                }
            }
            self.text.push(';');
        }
    }

    /// What the watches have told.
    fn tables(&mut self) {
        let (server, objects) = (self.server, &self.daemon.objects);
        for (key, pod) in objects.pods.snapshot() {
            let is_current =
                server.pods.get(&key).is_some_and(|there| there.metadata.uid == pod.metadata.uid);
            self.plain(is_current);
            self.pod(&pod);
        }
        for (key, node) in objects.nodes.snapshot() {
            self.known_node(&node, server.nodes.get(&key));
        }
        for (key, attachment) in objects.attachments.snapshot() {
            self.known_attachment(&attachment, server.attachments.get(&key));
            self.plain((objects.attachments.is_unconfirmed(&key), objects.attachments.is_missing(&key)));
            self.plain(self.daemon.deleted.contains(&attachment.metadata.uid));
        }
    }

    /// A node as known to one who looks at another's.
    fn known_node(&mut self, known: &Node, other: Option<&Node>) {
        if Some(known) != other {
            return self.node(known);
        }
        self.of = known.metadata.name.clone();
        self.revision(known.metadata.resource_version);
    }

    fn known_attachment(&mut self, known: &VolumeAttachment, other: Option<&VolumeAttachment>) {
        if Some(known) != other {
            return self.attachment(known);
        }
        self.of = known.metadata.name.clone();
        self.revision(known.metadata.resource_version);
    }

    fn node_volume(&mut self, volume: &VolumeId, name: &NodeName, node_volume: &NodeVolume) {
        let NodeVolume { known, may_be_listed, mount, in_use, call, uncertain, .. } = node_volume;
        let NodeVolume { why_read, unpublishing, retry, report_as_attached, .. } = node_volume;
        // And why it is forced; events that were recorded and what is measured are kept elsewhere.
        let (listed, undesired_since) = (node_volume.is_listed(), node_volume.undesired_since());
        let daemon = self.daemon;
        self.plain((volume, name, listed, may_be_listed, mount, in_use, call, report_as_attached));
        if let Some(KnownAttachment { object: attachment, .. }) = known {
            let known = daemon.objects.attachments.get(&attachment.key());
            self.known_attachment(attachment, known.as_deref());
        }
        let asked_at = || {
            asked_at(daemon, |call| matches!(call, Call::Attachment(of, on, _) if of == volume && on == name))
        };
        if let Some(Uncertain { until, read_absent }) = uncertain {
            // What is asked when it is over settles it.
            self.plain((read_absent, asked_at().map(|at| at >= *until)));
            self.moment(*until);
        }
        match node_volume.deletion() {
            Deletion::None => {}
            Deletion::InDoubt { until } => {
                self.plain(("doubt", asked_at().map(|at| at >= until)));
                self.moment(until);
            }
            Deletion::Accepted => self.plain("accepted"),
        }
        match why_read {
            Some(WhyRead::DeletionRefused(revision)) => self.revision(*revision),
            why_read => self.plain(why_read),
        }
        self.unpublishing(name, unpublishing);
        self.retry(retry);
        // A create that another undoes is not repeated at once.
        match node_volume.undone.as_ref().and_then(|undone| undone.pending(daemon.now)) {
            Some(at) => self.moment(at),
            None => self.text.push('-'),
        }
        // While the node is well, nothing is forced; and if it fails, that is later.
        let state = daemon.controller.actual().node(name);
        if state.is_none_or(|state| state.node.as_ref().is_none_or(|node| !node.is_ready())) {
            self.plain(undesired_since.is_some());
            self.patience_since(state.and_then(|state| state.unready_since).max(undesired_since));
        }
    }

    /// Of the order in which requests were sent nothing counts but whether one to the node that is under way was
    /// sent since.
    fn unpublishing(&mut self, node: &NodeName, unpublishing: &Unpublishing) {
        let Unpublishing::Since(since) = unpublishing else { return self.plain(unpublishing) };
        let daemon = self.daemon;
        let calls = daemon.on_their_way.iter().map(|(sent, call)| (*sent, call));
        let mut calls = calls.chain(daemon.answered.iter().map(|outcome| (outcome.sent, &outcome.call)));
        let counts = calls.any(|(sent, call)| {
            let (Call::PatchNode(name, ..) | Call::ReadNode(name)) = call else { return false };
            name == node && sent > *since
        });
        self.plain(("since", counts));
    }

    /// A pause that is over is none. How often it has been is left out: it says how long the next one lasts.
    fn retry(&mut self, retry: &Retry) {
        match retry.pending(self.daemon.now) {
            Some(at) => self.moment(at),
            None => self.text.push('-'),
        }
    }

    /// A node and our requests to it. What belongs to nodes that are made anew is left out: here none is.
    fn node_state(&mut self, name: &NodeName, state: &NodeState) {
        let NodeState { node, volumes, requests, unready_since, .. } = state;
        self.plain((name, volumes, requests.is_under_way(), requests.is_outdated()));
        if let Some(node) = node {
            let known = self.daemon.objects.nodes.get(name);
            self.known_node(node, known.as_deref());
        }
        // How long it is says how far apart moments are.
        let window = self.daemon.controller.dispatcher().window();
        self.plain(window.is_zero());
        if let Some(since) = requests.pending_since() {
            self.moment(since + window.max(WINDOW));
        }
        if let Some(last) = requests.last_patch() {
            self.moment(last + window);
        }
        if let Some(InDoubt { revision, until }) = requests.in_doubt() {
            self.revision(revision);
            let asked_at = asked_at(
                self.daemon,
                |call| matches!(call, Call::PatchNode(node, ..) | Call::ReadNode(node) if node == name),
            );
            self.plain(asked_at.map(|at| at >= until));
            self.moment(until);
        }
        self.retry(requests.retry());
        if let Some(since) = unready_since {
            self.patience_since(Some(*since));
        }
        if let Some(refused) = requests.refused() {
            self.plain("refused");
            self.revision(refused);
        }
        let is_late = |(_, call): &(Instant, Call)| matches!(call, Call::PatchNode(node, ..) if node == name);
        if self.daemon.late.iter().any(is_late) {
            // It tells the lists of others from ours: no other client writes any, and none of ours comes after it.
            self.plain(requests.own_list());
        }
    }

    /// The order in which they were sent does not matter: any can arrive next.
    fn under_way(&mut self) {
        let daemon = self.daemon;
        let mut on_their_way: Vec<_> =
            daemon.on_their_way.iter().map(|(_, call)| (place(call), call)).collect();
        on_their_way.sort_by(|one, other| one.0.cmp(&other.0));
        for (place, call) in on_their_way {
            self.plain(place);
            self.call(call);
        }
        self.text.push('/');
        let mut answered: Vec<_> =
            daemon.answered.iter().map(|answer| (place(&answer.call), answer)).collect();
        answered.sort_by(|one, other| one.0.cmp(&other.0));
        for (place, outcome) in answered {
            self.plain(place);
            self.outcome(outcome);
        }
        self.text.push('/');
        let mut late: Vec<_> = daemon.late.iter().map(|(until, call)| (place(call), *until, call)).collect();
        late.sort_by(|one, other| (&one.0, one.1).cmp(&(&other.0, other.1)));
        for (place, until, call) in late {
            self.plain(place);
            self.moment(until);
            self.call(call);
        }
    }

    /// A request, of which its place says what it is about.
    fn call(&mut self, call: &Call) {
        match call {
            Call::Attachment(_, _, AttachmentRequest::Delete(uid, revision, _)) => {
                self.uid(uid);
                self.revision(*revision);
            }
            Call::ReadOwner(_, uid) => self.uid(uid),
            // They say nothing more.
            Call::Attachment(_, _, AttachmentRequest::Create(_) | AttachmentRequest::Read(_))
            | Call::ReadNode(_) => {}
            Call::PatchNode(name, revision, request) => {
                self.of = name.as_str().into();
                self.revision(*revision);
                let list = request.body.as_ref().map(|body| &body["status"]);
                self.plain(list);
            }
        }
    }

    fn outcome(&mut self, Outcome { call, sent, result }: &Outcome) {
        let daemon = self.daemon;
        let answer = match result {
            Ok(answer) => answer,
            Err(error) => {
                self.call(call);
                return self.plain(error);
            }
        };
        if let Call::Attachment(_, _, AttachmentRequest::Delete(uid, ..)) = call {
            self.uid(uid);
        }
        match answer {
            Answer::Attachment(attachment) => {
                let revision = attachment.metadata.resource_version;
                if revision <= daemon.objects.attachments.observed() {
                    // The watch has told what became of it.
                    return;
                }
                // The watch will have told of so many before.
                let history = self.server.history.iter().skip(self.daemon.delivered["attachment"]);
                let earlier = history.filter(|event| {
                    kind(&event.key) == "attachment" && event.object.metadata().resource_version <= revision
                });
                self.plain(earlier.count());
                self.attachment(attachment);
            }
            Answer::Node(node) => {
                let name = node.key();
                let known = daemon.objects.nodes.get(&name);
                if known.is_none_or(|known| known.metadata.resource_version < node.metadata.resource_version)
                {
                    self.node(node);
                }
                if daemon
                    .controller
                    .actual()
                    .node(&name)
                    .is_some_and(|state| state.requests.refused().is_some())
                {
                    self.of = node.metadata.name.clone();
                    self.revision(node.metadata.resource_version);
                }
                // However old, it proves something of what was being unpublished when it was asked for.
                for volume in VOLUMES.map(|(volume, _)| id(volume)) {
                    let node_volume = daemon.controller.actual().node_volume(&volume, &name);
                    if node_volume.is_some_and(
                        |known| matches!(known.unpublishing, Unpublishing::Since(since) if since < *sent),
                    ) {
                        self.plain((node.lists(volume.as_str()), node.uses(volume.as_str())));
                    }
                }
            }
            Answer::Owners(managers) => self.plain(managers),
            Answer::Gone => {}
        }
    }
}

/// When a request was sent that is under way.
fn asked_at(daemon: &Daemon, is_it: impl Fn(&Call) -> bool) -> Option<Instant> {
    let calls = daemon.on_their_way.iter().map(|(sent, call)| (*sent, call));
    let mut calls = calls.chain(daemon.answered.iter().map(|outcome| (outcome.sent, &outcome.call)));
    let (sent, _) = calls.find(|(_, call)| is_it(call))?;
    daemon.controller.dispatcher().asked_at(sent)
}

/// What a request is about.
fn place(call: &Call) -> (&'static str, String) {
    match call {
        Call::Attachment(volume, node, AttachmentRequest::Create(_)) => {
            ("create", format!("{volume} {node}"))
        }
        Call::Attachment(volume, node, AttachmentRequest::Delete(..)) => {
            ("delete", format!("{volume} {node}"))
        }
        Call::Attachment(volume, node, AttachmentRequest::Read(_)) => ("read", format!("{volume} {node}")),
        Call::PatchNode(node, ..) => ("patch", node.to_string()),
        Call::ReadNode(node) => ("node", node.to_string()),
        Call::ReadOwner(suspect, _) => ("owner", suspect.to_string()),
    }
}
