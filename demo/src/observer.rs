//! Watches the cluster and the daemon's explanations: lines of what happens, a snapshot of how
//! things are.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    path::Path,
    time::Duration,
};

use futures::{StreamExt, stream::BoxStream};
use k8s_openapi::api::{
    core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::VolumeAttachment,
};
use kube::{Client, ResourceExt, runtime::watcher};
use serving::Router;

use testbed::{
    actors::{Mirror, events},
    troubles::stage::NAMESPACE,
};
use tokio::time::Instant;

use super::{
    lines::{Line, Told, condense, shorten},
    snapshot::{Count, NodeRow, Snapshot, Tally, WaitingRow},
    story, waits,
};

/// How many lines the view may look back.
const LINES: usize = 100;
/// A complaint is told if it is still true after this time: most end at once, as when a volume is
/// wanted on one node while it is being detached from another.
const HEARING: Duration = Duration::from_millis(1_500);

/// A change of one of the watched kinds.
enum Change {
    Node(watcher::Event<Node>),
    Pod(watcher::Event<Pod>),
    Claim(watcher::Event<PersistentVolumeClaim>),
    Volume(watcher::Event<PersistentVolume>),
    Attachment(watcher::Event<VolumeAttachment>),
    Event(watcher::Event<Event>),
}

/// What is seen.
pub struct Observer {
    begin: Instant,
    seed: u64,
    kubeconfig: String,
    page: String,
    changes: BoxStream<'static, Change>,
    explanations: Router,
    nodes: Mirror<Node>,
    pods: Mirror<Pod>,
    claims: Mirror<PersistentVolumeClaim>,
    volumes: Mirror<PersistentVolume>,
    attachments: Mirror<VolumeAttachment>,
    events: Mirror<Event>,
    /// The claim of each volume there ever was: its last attachment may be seen to go after it.
    claim_of: BTreeMap<String, String>,
    last_node: BTreeMap<String, String>,
    /// Attachments whose deletion was asked for although a kubelet may use the volume.
    forced: BTreeSet<String>,
    tally: Tally,
    /// Complaints that may be over soon.
    complaints: VecDeque<(Instant, Told)>,
    /// What happened since lines were taken last.
    fresh: Vec<Line>,
    lines: VecDeque<Line>,
}

impl Observer {
    /// Begins to watch; `explanations` are the daemon's pages, the rest is merely shown.
    pub fn new(client: &Client, explanations: Router, seed: u64, kubeconfig: &Path, page: &str) -> Self {
        let changes = futures::stream::select_all([
            events::<Node>(client).map(Change::Node).boxed(),
            events::<Pod>(client).map(Change::Pod).boxed(),
            events::<PersistentVolumeClaim>(client).map(Change::Claim).boxed(),
            events::<PersistentVolume>(client).map(Change::Volume).boxed(),
            events::<VolumeAttachment>(client).map(Change::Attachment).boxed(),
            events::<Event>(client).map(Change::Event).boxed(),
        ]);
        Self {
            begin: Instant::now(),
            seed,
            kubeconfig: kubeconfig.display().to_string(),
            page: page.to_owned(),
            changes: changes.boxed(),
            explanations,
            nodes: Mirror::default(),
            pods: Mirror::default(),
            claims: Mirror::default(),
            volumes: Mirror::default(),
            attachments: Mirror::default(),
            events: Mirror::default(),
            claim_of: BTreeMap::new(),
            last_node: BTreeMap::new(),
            forced: BTreeSet::new(),
            tally: Tally::default(),
            complaints: VecDeque::new(),
            fresh: Vec::new(),
            lines: VecDeque::new(),
        }
    }

    /// When it began.
    pub fn begin(&self) -> Instant {
        self.begin
    }

    /// Waits for a change and takes note of it. Cancel safe.
    pub async fn look(&mut self) {
        match self.changes.next().await {
            Some(change) => self.note(change),
            None => std::future::pending().await,
        }
    }

    /// Takes note of what there is to tell, if anything.
    pub fn tell(&mut self, told: Option<Told>) {
        let Some((verb, subject, text)) = told else { return };
        let line = Line { at: self.begin.elapsed(), verb, subject, text };
        self.tally.count(&line);
        self.fresh.push(line);
    }

    fn note(&mut self, change: Change) {
        match change {
            Change::Node(event) => drop(self.nodes.apply(event)),
            Change::Pod(event) => {
                for (_, now) in self.pods.apply(event) {
                    let told = story::of_pod(now.as_deref(), &mut self.last_node);
                    self.tell(told);
                }
            }
            Change::Claim(event) => {
                for (before, now) in self.claims.apply(event) {
                    self.tell(story::of_claim(before.as_deref(), now.as_deref()));
                }
            }
            Change::Volume(event) => {
                for (before, now) in self.volumes.apply(event) {
                    let volume = now.as_ref().or(before.as_ref());
                    let claim =
                        volume.and_then(|volume| volume.spec.as_ref()?.claim_ref.as_ref()?.name.clone());
                    if let (Some(volume), Some(claim)) = (volume, claim) {
                        self.claim_of.insert(volume.name_any(), claim);
                    }
                    self.tell(story::of_volume(before.as_deref(), now.as_deref()));
                }
            }
            Change::Attachment(event) => {
                for (before, now) in self.attachments.apply(event) {
                    self.note_attachment(before.as_deref(), now.as_deref());
                }
            }
            Change::Event(event) => {
                for (before, now) in self.events.apply(event) {
                    let told = story::of_event(before.as_deref(), now.as_deref());
                    self.complaints.extend(told.map(|told| (Instant::now() + HEARING, told)));
                }
            }
        }
    }

    fn note_attachment(&mut self, before: Option<&VolumeAttachment>, now: Option<&VolumeAttachment>) {
        let Some(attachment) = now.or(before) else { return };
        let name = attachment.name_any();
        let is_going = attachment.metadata.deletion_timestamp.is_some();
        if is_going && now.is_some() && self.may_be_in_use(attachment) {
            self.forced.insert(name.clone());
        }
        let was_forced = now.is_none() && self.forced.remove(&name);
        let subject = self.people_call(volume_of(attachment));
        self.tell(story::of_attachment(before, now, subject, was_forced));
    }

    /// Whether a node does not answer, and was last heard of with the volume in use.
    fn may_be_in_use(&self, attachment: &VolumeAttachment) -> bool {
        let Some(node) = self.nodes.get("", &attachment.spec.node_name) else { return true };
        let in_use = node.status.iter().flat_map(|status| status.volumes_in_use.iter().flatten());
        !testbed::actors::is_ready(node)
            && in_use.into_iter().any(|name| name.ends_with(&format!("^{}", volume_of(attachment))))
    }

    /// A volume by its claim's name, if it has one.
    fn people_call(&self, volume: &str) -> String {
        self.claim_of.get(volume).cloned().unwrap_or_else(|| shorten(volume))
    }

    /// Whether there is a pod or claim of this name that is not well yet.
    fn waits(&self, name: &str) -> bool {
        let pod = self.pods.get(NAMESPACE, name).map(|pod| pod_state(pod) == "Pending");
        let claim = self.claims.get(NAMESPACE, name).map(|claim| !story::is_bound(claim));
        pod.or(claim).unwrap_or(false)
    }

    /// What happened since this was asked last, many of a kind in one line.
    pub fn take_lines(&mut self) -> Vec<Line> {
        while let Some((_, told)) = self.complaints.pop_front_if(|(at, _)| *at <= Instant::now()) {
            self.tell(Some(told).filter(|(_, subject, _)| self.waits(subject)));
        }
        let lines = condense(std::mem::take(&mut self.fresh));
        self.lines.extend(lines.iter().cloned());
        let surplus = self.lines.len().saturating_sub(LINES);
        self.lines.drain(..surplus);
        lines
    }

    /// How things are.
    pub fn snapshot(&mut self) -> Snapshot {
        let elapsed = self.begin.elapsed();
        Snapshot {
            elapsed,
            seed: self.seed,
            kubeconfig: self.kubeconfig.clone(),
            page: self.page.clone(),
            volumes: self.volumes_by_state(),
            claims: count(
                &["Bound", "Pending", "Lost"],
                self.claims.values().filter_map(|claim| claim.status.as_ref()?.phase.as_deref()),
            ),
            pods: count(&["Running", "Pending", "Ending"], self.pods.values().map(|pod| pod_state(pod))),
            rates: self.tally.rates(elapsed),
            nodes: self.node_rows(),
            waiting: self.waiting(),
            lines: self.lines.iter().cloned().collect(),
        }
    }

    fn volumes_by_state(&self) -> Vec<Count> {
        let mut states: BTreeMap<&str, &'static str> = BTreeMap::new();
        for volume in self.volumes.values() {
            let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
            let state = if phase == Some("Bound") { "detached" } else { "not bound" };
            states.insert(volume.metadata.name.as_deref().unwrap_or_default(), state);
        }
        for attachment in self.attachments.values() {
            let state = if attachment.metadata.deletion_timestamp.is_some() {
                "detaching"
            } else if story::is_attached(attachment) {
                "attached"
            } else {
                "attaching"
            };
            states.insert(volume_of(attachment), state);
        }
        count(&["attached", "attaching", "detaching", "detached", "not bound"], states.into_values())
    }

    fn node_rows(&self) -> Vec<NodeRow> {
        let mut attached: BTreeMap<&str, usize> = BTreeMap::new();
        for attachment in self.attachments.values().filter(|attachment| story::is_attached(attachment)) {
            *attached.entry(&attachment.spec.node_name).or_default() += 1;
        }
        let mut rows: Vec<NodeRow> = self
            .nodes
            .values()
            .map(|node| NodeRow {
                name: node.name_any(),
                state: node_state(node),
                attached: attached.remove(node.name_any().as_str()).unwrap_or(0),
            })
            .collect();
        let gone = attached.into_iter();
        rows.extend(gone.map(|(name, attached)| NodeRow { name: name.to_owned(), state: "gone", attached }));
        rows.sort_by_key(|row| (row.name.len(), row.name.clone()));
        rows
    }

    /// What the daemon says that it waits for.
    fn waiting(&self) -> Vec<WaitingRow> {
        let page = |path| {
            let (_, page) = self.explanations.here(path);
            serde_json::from_str(&page).unwrap_or_default()
        };
        waits::rows(&page("/debug/binder"), &page("/debug/attach-detach"), |volume| self.people_call(volume))
    }
}

fn volume_of(attachment: &VolumeAttachment) -> &str {
    attachment.spec.source.persistent_volume_name.as_deref().unwrap_or_default()
}

fn pod_state(pod: &Pod) -> &str {
    if pod.metadata.deletion_timestamp.is_some() {
        return "Ending";
    }
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn node_state(node: &Node) -> &'static str {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let has = |key: &str| taints.clone().any(|taint| taint.key.ends_with(key));
    if has("/out-of-service") {
        "out of service"
    } else if !testbed::actors::is_ready(node) {
        "not ready"
    } else if has("maintenance") {
        "maintenance"
    } else {
        "ready"
    }
}

/// How many of each name there are; other names do not count.
fn count<'a>(names: &[&'static str], found: impl Iterator<Item = &'a str>) -> Vec<Count> {
    let mut counts: Vec<Count> = names.iter().map(|name| (*name, 0)).collect();
    for name in found {
        if let Some((_, number)) = counts.iter_mut().find(|(other, _)| *other == name) {
            *number += 1;
        }
    }
    counts
}
