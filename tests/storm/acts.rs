//! What people, machines, the attacher, the API server and the daemon's own misfortunes do to the small world: a script of
//! acts as data, made of a seed.
//!
//! An act names its object by a number; who plays it takes the one of those that are there, so that any part of a
//! script can be played alone.

mod draw;

use std::time::Duration;

/// One act, so long after the one before.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub pause: Duration,
    pub act: Act,
    /// The daemon is killed at the n-th of its next writes, and so.
    pub kill: Option<Kill>,
}

/// Where in a write the daemon is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kill {
    pub write: usize,
    pub point: usize,
}

/// When and how a machine comes back under the name of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Back {
    pub after: Duration,
    /// It has booted, so nothing is mounted there any more.
    pub has_booted: bool,
}

/// What a stubborn writer undoes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize)]
pub enum Undo {
    Attachment,
    List,
    ClaimRef,
    BindCompleted,
    Phase,
    Deletion,
    ClaimPhase,
    Provisioner,
    Protection,
}

/// What is done. Numbers choose among the objects that are there.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    /// A pod that uses a claim comes on a node.
    Pod {
        claim: usize,
        node: usize,
    },
    /// One comes and is deleted milliseconds later.
    BriefPod {
        claim: usize,
        node: usize,
        after: Duration,
    },
    /// Sixty pods share a claim that has no volume yet, and for a while no node takes any.
    Crowd {
        claim: usize,
    },
    /// A pod is deleted; by force without its kubelet.
    DeletePod {
        pod: usize,
        by_force: bool,
    },
    /// A pod is deleted by force, and one of its name with another claim comes at once.
    RemakePod {
        pod: usize,
        claim: usize,
        node: usize,
    },
    DeleteClaim {
        claim: usize,
        by_force: bool,
    },
    /// A claim that is not there is made; with the annotation of another provisioner.
    MakeClaim {
        claim: usize,
        class: usize,
        is_foreign: bool,
    },
    /// A claim, one in use on that node where there is one, is deleted by force and made again at once under its pods; for
    /// the new one there may be another volume.
    RemakeClaim {
        claim: usize,
        node: usize,
        has_volume: bool,
    },
    /// A volume, one whose claim does not name it yet where there is one, is deleted.
    DeleteVolume {
        volume: usize,
        by_force: bool,
    },
    /// A volume that is not there is made.
    MakeVolume {
        volume: usize,
        has_other_handle: bool,
    },
    /// A second volume of a disk that a volume leads to.
    MakeTwin {
        volume: usize,
    },
    /// A volume is deleted by force and made again at once.
    RemakeVolume {
        volume: usize,
        has_other_handle: bool,
        keeps_claim: bool,
    },
    /// The volume of a claim in use on that node is made anew with another handle; then a second pod of the claim comes there,
    /// and the first one goes.
    RemakeUsedVolume {
        claim: usize,
        node: usize,
    },
    ClearRef {
        volume: usize,
        is_uid_only: bool,
    },
    /// Its `claimRef` gets the name of that claim, and a UID that none has, as from the manifest of another cluster, or that of
    /// the claim, if it has a volume, or none.
    EditRef {
        volume: usize,
        claim: usize,
        lacks_uid: bool,
    },
    DeleteAttachment {
        attachment: usize,
        takes_finalizers: bool,
    },
    EmptyList {
        node: usize,
    },
    FalsifyList {
        node: usize,
        volume: usize,
    },
    EmptyInUse {
        node: usize,
    },
    /// The class of an unbound claim's twin: a class is deleted and made again.
    RemakeClass {
        class: usize,
    },
    /// A class names a provisioner that nobody runs, that long.
    SwapClass {
        class: usize,
        time: Duration,
    },
    /// A volume gets the name of the other class.
    EditVolume {
        volume: usize,
    },
    /// A node is deleted and its kubelet falls silent; both come back after a while.
    DeleteNode {
        node: usize,
        back: Back,
    },
    /// A node is deleted, and after a while another machine comes under its name. The first one lives on so long after that, with
    /// all that it has mounted. What ran there may go by force with the node, and then a pod of one of those claims comes.
    ReplaceMachine {
        node: usize,
        after: Duration,
        lives: Duration,
        is_emptied: bool,
    },
    /// A kubelet falls silent and its node is marked as out of service; both are well after a while.
    OutOfService {
        node: usize,
        back: Back,
    },
    /// The CSIDriver is deleted, and made anew as one that needs no attachment, if it is not gone for that long.
    SwapDriver {
        is_gone: bool,
        time: Duration,
    },
    /// The policy of a volume is Retain from now on, or Delete if it was that.
    EditPolicy {
        volume: usize,
    },
    /// A class becomes the default, or is it no more.
    SwapDefault {
        class: usize,
    },
    /// A claim is deleted by force and made again, of no class.
    MakeClassless {
        claim: usize,
    },
    /// What a pod runs is done, or fails.
    CompletePod {
        pod: usize,
        fails: bool,
    },
    /// A node is another's to attach to, that long.
    Unmanage {
        node: usize,
        time: Duration,
    },
    /// An attachment is made by hand, under the name that kubelets look for or another.
    MakeAttachment {
        volume: usize,
        node: usize,
        is_misnamed: bool,
    },
    /// A volume gets other labels, those of its zone among them.
    LabelVolume {
        volume: usize,
        zone: usize,
    },
    /// Undoes each write of a kind, that long.
    Stubborn {
        undo: Undo,
        target: usize,
        time: Duration,
    },
    /// The unmounts of a node hang.
    Hang {
        node: usize,
        time: Duration,
    },
    /// A kubelet falls silent; the node turns Unknown after a while.
    Silence {
        node: usize,
        time: Duration,
    },
    /// The driver fails to attach a volume, that long.
    FailAttach {
        volume: usize,
        time: Duration,
    },
    FailDetach {
        volume: usize,
        time: Duration,
    },
    /// Faults of requests, that long.
    Faults {
        seed: u64,
        time: Duration,
    },
    /// People ask for more room on a Bound claim; and the resizer of its driver is done.
    Enlarge {
        claim: usize,
        is_done: bool,
    },
    /// A pod with a generic ephemeral volume comes on a node, whose claim somebody else has made before.
    EphemeralPod {
        node: usize,
        is_taken: bool,
    },
    /// The claim of a generic ephemeral volume is deleted.
    DeleteEphemeralClaim {
        claim: usize,
        by_force: bool,
    },
    MakeAttributesClass {
        class: usize,
    },
    DeleteAttributesClass {
        class: usize,
        by_force: bool,
    },
    /// A claim names a class of attributes, as far as the API server allows it.
    UseAttributesClass {
        claim: usize,
        class: usize,
    },
    /// What one watch tells is late, or with none named what all do, as by an API server whose cache lags.
    DelayWatch {
        kind: Option<usize>,
        time: Duration,
    },
    RewindWatch {
        kind: usize,
        revisions: u64,
    },
    /// The daemon that writes reaches no API server, that long.
    Away {
        time: Duration,
    },
    /// The daemon that writes hears nothing that long, and reaches nobody, also for its lease; so many of its writes are
    /// carried out in any case then, as of a process or a machine that was stopped.
    Freeze {
        writes: usize,
        time: Duration,
    },
    /// The daemon is killed, or asked to end, and another goes on.
    Replace {
        in_order: bool,
        pause: Duration,
    },
}

/// What kind of world a seed has, and what happens in it.
#[derive(Clone, Debug)]
// Each is a property of the world that the seed draws by itself.
#[allow(clippy::struct_excessive_bools)]
pub struct Script {
    pub seed: u64,
    /// Class of the claims binds when a pod comes.
    pub is_delayed: bool,
    /// Volumes are provisioned, else made beforehand.
    pub is_provisioned: bool,
    /// All seven controllers are on, and people give them work.
    pub has_all: bool,
    /// Two replicas with a lease, else one without.
    pub has_replicas: bool,
    /// Sixty pods share a claim, whose volume takes seconds to make.
    pub has_crowd: bool,
    /// One of the volumes is on iSCSI.
    pub has_iscsi: bool,
    /// One of the volumes may be shared.
    pub has_shared: bool,
    /// Names that other programs have a meaning for.
    pub has_odd_names: bool,
    /// The driver never attaches this volume, also in the calm.
    pub broken: Option<usize>,
    /// How long a kubelet takes to report again what people have taken out of its report.
    pub report_after: Duration,
    /// The last three claims have the names of the first three, in a second namespace.
    pub has_namespaces: bool,
    /// How late the watch caches of the API servers are, of which each request of the daemon goes to one; empty for one
    /// that is never late.
    pub lags: Vec<Duration>,
    pub steps: Vec<Step>,
}

/// Kinds that the daemon watches.
pub const WATCHED: [&str; 8] = [
    "pods",
    "nodes",
    "persistentvolumes",
    "persistentvolumeclaims",
    "volumeattachments",
    "storageclasses",
    "csidrivers",
    "volumeattributesclasses",
];
