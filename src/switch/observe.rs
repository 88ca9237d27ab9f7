//! How the cluster stands, read anew for each step.
//!
//! In: the API server. Out: a [`SwitchSeen`]. What only shows over time is kept from look to look: which servers were seen to
//! enforce the fence or to let the probe pass, whether a lease is still renewed.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use apiserver::{connect::ApiServer, ids::NodeName};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use tokio::time::Instant;

use super::{
    hold::{FREED, FREEING, LED_AT_STOP, LOCK, ManagerLease, holder},
    step::{
        DaemonStanding, Direction, FenceStanding, ManagerRestart, ManagerStanding, SwitchSeen, SwitchStep,
        longest_hold,
    },
};
use crate::{
    attach_detach::state::desired::{volume_name::VolumeId, volume_source::Sharing},
    config::{Controllers, StorageController},
    fence::{
        arguments::{self, controllers, is_on, is_rolling, of_deployment},
        ask::{NoAnswer, client, each, read, read_if_allowed, text},
        policies::Fence,
        probe::{hidden, look, made, raised},
        state::{FenceLook, FenceProof, FenceState, Proven},
        vigil::{DRAIN_LASTS, HEARD_WITHIN},
    },
    preflight::{
        Manager,
        facts::{DEPLOYMENT, MANAGER_LEASE, MANAGERS, items, sharing, unwritable},
    },
};

/// How the holder of a lease begins that a switch has taken.
pub(super) const SWITCH_HOLDER: &str = "mooring-switch_";
/// Between two looks.
pub(super) const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
/// Volumes and nodes are many: they are read this seldom, and not while KCM's lease is held, when nobody attaches.
const VOLUMES_EVERY: Duration = Duration::from_secs(5);

/// The word to the daemon to begin nothing new, as the looks of one run see it.
#[derive(Debug, Default)]
pub(super) struct DrainWord {
    /// Since when this run has said it.
    since: Option<Instant>,
    /// The last, and a time before it was written.
    last: Option<(String, Instant)>,
    /// When the look before ended.
    looked: Option<Instant>,
    /// Who leads: another has to hear it for itself.
    leader: String,
}

impl DrainWord {
    /// Takes what a look finds of this run. Returns whether the daemon has heard it by now.
    pub(super) fn note(&mut self, word: Option<String>, leader: &str, now: Instant) -> bool {
        self.since = self.since.filter(|_| self.leader == leader);
        leader.clone_into(&mut self.leader);
        self.since = word.as_ref().map(|_| self.since.unwrap_or(now));
        if self.last.as_ref().map(|(known, _)| known) != word.as_ref() {
            self.last = word.map(|word| (word, self.looked.unwrap_or(now)));
        }
        self.since.is_some_and(|since| now >= since + HEARD_WITHIN)
    }

    /// Ends a look. Returns whether the daemon held to the word until now; if not, it has to hear it anew.
    pub(super) fn holds(&mut self, now: Instant) -> bool {
        self.looked = Some(now);
        let holds = self.last.as_ref().is_some_and(|(_, written)| now < *written + DRAIN_LASTS);
        self.since = self.since.filter(|_| holds);
        holds
    }
}

/// Exclusive volumes with an attachment that its node does not list.
pub(super) struct Unlisted {
    pub(super) volumes: Vec<String>,
    pub(super) read_at: Instant,
    /// Whether mooring drained, and whether it ran, before it was read: what was read earlier says nothing of what it did then.
    pub(super) of: (bool, bool),
}

impl Unlisted {
    /// Nobody attaches anything while mooring stands still behind the fence, though a node may be made anew, with an empty list. Who
    /// waits for KCM to be started anew then sees at once who leads.
    pub(super) fn is_old(&self, of: (bool, bool), is_held: bool, now: Instant) -> bool {
        let is_still = !of.1 && self.volumes.is_empty();
        let every = if is_still { VOLUMES_EVERY * 6 } else { VOLUMES_EVERY };
        self.of != of || !is_held && now >= self.read_at + every
    }
}

/// Looks again and again.
pub(super) struct Observer<'a> {
    api: &'a ApiServer,
    fences: &'a [&'static Fence],
    /// What writes KCM's lease, if anything is to be done.
    hold: Option<ManagerLease>,
    /// Volumes that need not come to rest.
    leave: &'a [String],
    fence: FenceView,
    /// How long KCM's lease lasted before it was held.
    lasts: Duration,
    /// Those of mooring's lease.
    renewals: Renewals,
    /// Those of KCM's lease, and whether a process of KCM was ever seen to renew it.
    manager_renewals: (Renewals, bool),
    drain: DrainWord,
    /// Back: whether this run has stopped the daemon, or seen its Deployment without replicas.
    pub(super) was_stopped: bool,
    /// Whether the Deployment has had replicas in this run.
    pub(super) has_run: bool,
    /// Whether this run has raised the fence.
    pub(super) has_raised: bool,
    /// None are looked for on the way over.
    unlisted: Option<Unlisted>,
}

impl<'a> Observer<'a> {
    pub(super) fn new(
        api: &'a ApiServer,
        fences: &'a [&'static Fence],
        hold: Option<ManagerLease>,
        (to, leave): (Direction, &'a [String]),
    ) -> Self {
        Self {
            api,
            fences,
            hold,
            leave,
            fence: FenceView::new(to),
            lasts: Duration::ZERO,
            renewals: Renewals::default(),
            manager_renewals: Default::default(),
            drain: DrainWord::default(),
            was_stopped: false,
            has_run: false,
            has_raised: false,
            unlisted: None,
        }
    }

    /// Notes a step that was done.
    pub(super) fn took(&mut self, step: &SwitchStep) {
        self.was_stopped |= *step == SwitchStep::StopDaemon;
        self.has_raised |= *step == SwitchStep::RaiseFence;
    }

    pub(super) async fn look(&mut self) -> Result<SwitchSeen, NoAnswer> {
        let client = client(self.api)?;
        let mut look = look(self.api, self.fences, |_| {}).await;
        let (drain, raised_at) = (look.drain.clone(), look.raised);
        let is_back = self.fence.is_back;
        if is_back {
            // What refuses every probe would hide, once the fence is down, a server that still denies.
            look.states.extend(hidden(&client).await.map(FenceState::Unknown));
        }
        let (fence, servers) = self.fence.take(&look, Instant::now());
        let deployment = read(&client, DEPLOYMENT).await?;
        let daemon_lease = read(&client, &daemon_lease(deployment.as_ref())).await?.unwrap_or_default();
        let manager_lease = read(&client, MANAGER_LEASE).await?.unwrap_or_default();
        let now = Instant::now();
        let (leads, may_lead) = self.renewals.note(&daemon_lease, now);
        let mut daemon = DaemonStanding { leads, may_lead, ..daemon(deployment.as_ref()) };
        daemon.is_asked = drain.is_some();
        self.was_stopped |= self.fence.is_back && daemon.replicas == Some(0);
        // A Deployment that was made after the fence may be the successor of one that led.
        let is_older =
            deployment.as_ref().and_then(made).zip(raised_at).is_some_and(|(made, raised)| made <= raised);
        self.has_run |= is_older && daemon.replicas.is_some_and(|replicas| replicas > 0);
        daemon.is_restored = self.was_stopped && daemon.replicas.is_some_and(|replicas| replicas > 0);
        let identity = self.hold.as_ref().map(ManagerLease::identity);
        let is_ours = drain.as_ref().zip(identity).is_some_and(|(asks, identity)| asks.starts_with(identity));
        let is_heard = self.drain.note(drain.filter(|_| is_ours), holder(&daemon_lease), now);
        let mut manager = self.manager(&manager_lease, unwritable(&client, &manager_lease).await?, now).await;
        if is_back {
            let own = read(&client, LOCK).await?.unwrap_or_default();
            let annotations = own.pointer("/metadata/annotations");
            let noted = |key: &str| annotations.and_then(|all| all.get(key)?.as_str());
            daemon.has_led = has_led(&daemon_lease, noted(FREED));
            let stop = text(&daemon_lease, "/metadata/resourceVersion");
            if manager.held.is_none() {
                (manager.off, manager.is_on) = switched_off(&client, deployment.as_ref()).await?;
            }
            manager.mark = format!("{} {stop}", holder(&manager_lease));
            manager.is_being_freed = noted(FREEING) == Some(manager.mark.as_str());
            manager.restart = restart(noted(LED_AT_STOP), &manager.mark, manager.may_lead);
        }
        let of = (is_heard, daemon.may_lead || daemon.running > 0);
        let denies = |state: &FenceState| matches!(state, FenceState::Enforced | FenceState::Other(_));
        let mut states = self.fences.iter().zip(&look.states).filter(|(fence, _)| fence.has_memory());
        let runs_attaches = runs(deployment.as_ref(), StorageController::AttachDetach.name());
        let attaches =
            daemon.replicas != Some(0) && runs_attaches || states.clone().any(|(_, state)| denies(state));
        let remembers = runs_attaches || states.any(|(_, state)| *state != FenceState::Absent);
        let is_old = |known: &Unlisted| known.is_old(of, manager.held.is_some(), now);
        // Where KCM attaches, what is under way is KCM's own. Without a fence, whoever rules by flags is handed over by hand: what
        // that would attach twice is told.
        // So it is where mooring never came to lead: that is no worse than a fail-over of KCM. A lease that is gone may have been
        // deleted after mooring ended.
        let has_no_lease = text(&daemon_lease, "/spec/renewTime").is_empty();
        let may_have_led = daemon.has_led || daemon.replicas == Some(0) && has_no_lease && !self.has_run;
        let is_asked_for = is_back && (attaches && may_have_led || daemon.rules_by_flags());
        if is_asked_for && self.unlisted.as_ref().is_none_or(is_old) {
            let volumes = unlisted(&client, self.leave).await?;
            self.unlisted = Some(Unlisted { volumes, read_at: Instant::now(), of });
        }
        let unlisted = self.unlisted.as_ref().map(|known| known.volumes.clone()).unwrap_or_default();
        daemon.drains = self.drain.holds(Instant::now()) && is_heard;
        if is_heard && !daemon.drains {
            // It was read while the daemon began anew.
            self.unlisted = None;
        }
        // Back, all are lowered.
        let unneeded = if is_back { Vec::new() } else { raised(&client, Fence::others(self.fences)).await? };
        // Back, also those are looked at that mooring does not run.
        let mut needed = self.fences.iter().zip(&look.states);
        let holds = needed.all(|(it, state)| denies(state) || !runs(deployment.as_ref(), it.controller));
        // A look at many volumes takes long.
        manager.led = manager.led.map(|led| led + now.elapsed());
        let is_by_time = self.fence.is_by_time;
        Ok(SwitchSeen { fence, is_by_time, daemon, manager, unlisted, holds, servers, remembers, unneeded })
    }

    /// Whether KCM's lease was held for as long as it may be, whatever the looks show.
    pub(super) async fn has_held_on(&self) -> bool {
        let held = match &self.hold {
            Some(hold) => hold.held().await,
            None => None,
        };
        held.is_some_and(|held| held >= longest_hold(self.lasts))
    }

    async fn manager(&mut self, lease: &Value, unwritable: Option<String>, now: Instant) -> ManagerStanding {
        let holder = holder(lease);
        let held_since = match &self.hold {
            Some(hold) => hold.note(lease, now).await,
            None => None,
        };
        if held_since.is_none() {
            self.lasts = lasts(lease).max(self.lasts);
        }
        let leads = !holder.is_empty() && !holder.starts_with(SWITCH_HOLDER);
        let (renewals, renews) = &mut self.manager_renewals;
        let (is_renewed, may_lead) = renewals.note(lease, now);
        *renews |= is_renewed && leads;
        ManagerStanding {
            leads,
            renews: *renews,
            held: held_since.map(|since| now.duration_since(since)),
            may_lead,
            led: renewals.led(lease, now),
            lasts: self.lasts,
            unwritable,
            ..ManagerStanding::default()
        }
    }
}

/// What was seen of the fence.
#[derive(Debug, Default)]
pub(super) struct FenceView {
    is_back: bool,
    /// Whether only time speaks for what the last look was taken to prove.
    pub(super) is_by_time: bool,
    up: FenceProof,
    open: FenceProof,
}

impl FenceView {
    pub(super) fn new(to: Direction) -> Self {
        Self { is_back: to == Direction::KubeControllerManager, ..Self::default() }
    }

    /// Over, each server has to enforce it, or to let the probe pass. Back, a server that answers is enough while anything of
    /// it is there: no process of KCM goes on that was denied a write, whoever has denied it.
    pub(super) fn take(&mut self, look: &FenceLook, now: Instant) -> (FenceStanding, (usize, usize)) {
        let is_down = look.is_absent();
        let is_up = if self.is_back {
            !is_down && !look.states.iter().any(FenceState::is_unread)
        } else {
            look.is_enforced()
        };
        let up = self.up.note(is_up, look, now);
        let open = self.open.note(is_down, look, now);
        let servers = if is_down { self.open.seen() } else { self.up.seen() };
        self.is_by_time = [up, open].contains(&Proven::ByTime);
        let why = |is_it: fn(&FenceState) -> bool| {
            look.states.iter().find(|state| is_it(state)).map(|state| state.why().to_owned())
        };
        let lingers = |state: &FenceState| matches!(state, FenceState::Absent | FenceState::Lingering);
        let standing = if is_down {
            FenceStanding::Absent { proven: open != Proven::No }
        } else if self.is_back && look.states.iter().all(lingers) {
            // That each server denies is not to be proven any more: one does, and the others may let KCM write.
            FenceStanding::Partial(FenceState::Lingering.why().to_owned())
        } else if is_up {
            FenceStanding::Up { proven: up != Proven::No }
        } else if let Some(why) = why(FenceState::is_unread) {
            FenceStanding::Unknown(why)
        } else if let Some(why) = why(|state| matches!(state, FenceState::Other(_))) {
            FenceStanding::Other(why)
        } else if let Some(why) =
            why(|state| matches!(state, FenceState::Absent | FenceState::Lingering | FenceState::Gone(_)))
        {
            FenceStanding::Partial(why)
        } else {
            FenceStanding::Up { proven: false }
        };
        (standing, servers)
    }
}

/// Whether mooring led since a switch freed KCM last, or may have: the process of KCM that leads may have been denied writes.
/// What was noted then is its [mark](ManagerStanding::mark).
pub(super) fn has_led(daemon_lease: &Value, freed: Option<&str>) -> bool {
    let revision = text(daemon_lease, "/metadata/resourceVersion");
    !text(daemon_lease, "/spec/renewTime").is_empty() && freed.and_then(stop_of) != Some(revision)
}

/// The renewals of a lease, as far as they were seen.
#[derive(Debug, Default)]
pub(super) struct Renewals {
    /// The last one, and when it was seen first.
    last: Option<(String, Instant)>,
    /// Whether the holder was seen to renew it, and not only to have done so before.
    is_alive: bool,
}

impl Renewals {
    /// Takes a look. Returns whether somebody holds it and was seen to renew it, and whether somebody may hold it: a lease
    /// that was not seen for as long as it lasts may be alive as well as left by the dead.
    pub(super) fn note(&mut self, lease: &Value, now: Instant) -> (bool, bool) {
        if text(lease, "/spec/holderIdentity").is_empty() {
            *self = Self::default();
            return (false, false);
        }
        let renewed = text(lease, "/spec/renewTime");
        let (known, since) = self.last.get_or_insert_with(|| (renewed.to_owned(), now));
        if *known != renewed {
            (*known, *since) = (renewed.to_owned(), now);
            self.is_alive = true;
        }
        let may_lead = now < *since + lasts(lease);
        self.is_alive &= may_lead;
        (self.is_alive, may_lead)
    }

    /// For how long the holder has led: both times are its own, and the rest is since it was seen to renew.
    pub(super) fn led(&self, lease: &Value, now: Instant) -> Option<Duration> {
        let (_, since) = self.last.as_ref().filter(|_| self.is_alive)?;
        Some(led_at_renewal(lease)? + now.duration_since(*since))
    }
}

/// For how long the holder had led when it renewed last.
pub(super) fn led_at_renewal(lease: &Value) -> Option<Duration> {
    let [acquired, renewed] =
        ["/spec/acquireTime", "/spec/renewTime"].map(|at| text(lease, at).parse::<Timestamp>().ok());
    Duration::try_from(renewed?.duration_since(acquired?)).ok()
}

fn lasts(lease: &Value) -> Duration {
    let seconds = lease.pointer("/spec/leaseDurationSeconds").and_then(Value::as_u64);
    Duration::from_secs(seconds.unwrap_or(15))
}

/// Whether a Deployment runs a controller; as far as its flags can be read.
fn runs(deployment: Option<&Value>, name: &str) -> bool {
    let ours = Controllers::parse(&controllers(&of_deployment(deployment)));
    ours.map_or(true, |ours| ours.running.iter().any(|controller| controller.name() == name))
}

/// Where the daemon has its lease.
pub(super) fn daemon_lease(deployment: Option<&Value>) -> String {
    let [namespace, name] = arguments::daemon_lease(&of_deployment(deployment));
    format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}")
}

pub(super) fn daemon(deployment: Option<&Value>) -> DaemonStanding {
    let arguments = of_deployment(deployment);
    let Some(deployment) = deployment else { return DaemonStanding::default() };
    let number = |at: &str| deployment.pointer(at).and_then(Value::as_u64);
    DaemonStanding {
        replicas: Some(number("/spec/replicas").unwrap_or(1)),
        ready: number("/status/readyReplicas").unwrap_or_default(),
        running: number("/status/replicas").unwrap_or_default(),
        is_fenced: is_on(&arguments, "--fence", false),
        has_no_lease: !is_on(&arguments, "--leader-elect", true),
        rolls: is_rolling(deployment),
        ..DaemonStanding::default()
    }
}

/// Controllers of the daemon that a pod of KCM has switched off, and whether each pod has another on. Where no pod is to be seen,
/// none is known.
pub(super) async fn switched_off(
    client: &kube::Client,
    deployment: Option<&Value>,
) -> Result<(Vec<&'static str>, bool), NoAnswer> {
    let Ok(ours) = Controllers::parse(&controllers(&of_deployment(deployment))) else {
        return Ok(Default::default());
    };
    let manager = Manager::of_pods(&read_if_allowed(client, MANAGERS).await?.unwrap_or_default());
    let names = ours.running.iter().map(|controller| controller.name());
    let off: Vec<&str> = names.filter(|name| manager.may_have_off(name)).collect();
    let is_on = manager.pods > 0 && off.len() < ours.running.len();
    Ok((off, is_on))
}

/// What shows that KCM was started anew: who led when mooring had stopped, if that was recorded, and who leads now, each with
/// the last write of mooring's lease. Each process of KCM has an identity of its own. KCM: cmd/kube-controller-manager/app,
/// controllermanager.go, Run.
pub(super) fn restart(recorded: Option<&str>, mark: &str, may_lead: bool) -> ManagerRestart {
    match recorded {
        // mooring has led since.
        Some(recorded) if stop_of(recorded) != stop_of(mark) => ManagerRestart::Unrecorded,
        None => ManagerRestart::Unrecorded,
        // Also if nobody did: one that leads later was started anew.
        _ if !may_lead => ManagerRestart::Unseen,
        Some(recorded) if recorded == mark => ManagerRestart::Same,
        _ => ManagerRestart::Other,
    }
}

/// Of a mark, the revision at which mooring had written its lease last.
fn stop_of(mark: &str) -> Option<&str> {
    mark.rsplit_once(' ').map(|(_, stop)| stop)
}

/// Exclusive volumes with an attachment that its node does not list: a fresh KCM would take it for uncertain, and attach the
/// volume elsewhere.
async fn unlisted(client: &kube::Client, leave: &[String]) -> Result<Vec<String>, NoAnswer> {
    let mut found = UnlistedVolumes::default();
    each(client, "/apis/storage.k8s.io/v1/volumeattachments", |object| found.attachment(object)).await?;
    if !found.attachments.is_empty() {
        each(client, "/api/v1/nodes", |object| found.node(object)).await?;
    }
    // Of all volumes, which may be a hundred thousand, only these matter.
    for name in found.volumes() {
        let path = format!("/api/v1/persistentvolumes?fieldSelector=metadata.name%3D{name}");
        let list = read(client, &path).await?.unwrap_or_default();
        items(&list).for_each(|volume| found.volume(volume));
    }
    Ok(found.names(leave))
}

/// Attachments, as volume and node, of which those go that are listed or shared. The name of an attachment is a hash of volume
/// and node, so a node's list gives the names of what it lists.
#[derive(Debug, Default)]
pub(super) struct UnlistedVolumes {
    attachments: BTreeMap<String, (String, String)>,
}

impl UnlistedVolumes {
    pub(super) fn attachment(&mut self, attachment: &Value) {
        let own = attachment.pointer("/spec/source/inlineVolumeSpec");
        if own.is_some_and(is_shared) {
            return;
        }
        let [name, volume, node] = ["/metadata/name", "/spec/source/persistentVolumeName", "/spec/nodeName"]
            .map(|at| text(attachment, at).to_owned());
        self.attachments.insert(name, (volume, node));
    }

    pub(super) fn node(&mut self, node: &Value) {
        let name = NodeName::from(text(node, "/metadata/name"));
        let entries = node.pointer("/status/volumesAttached").and_then(Value::as_array).into_iter().flatten();
        for id in entries.filter_map(|entry| VolumeId::parse_csi(text(entry, "/name"))) {
            self.attachments.remove(id.attachment_name(&name).as_str());
        }
    }

    /// The volumes that may be exclusive.
    fn volumes(&self) -> BTreeSet<String> {
        let names = self.attachments.values().map(|(volume, _)| volume.clone());
        names.filter(|name| !name.is_empty()).collect()
    }

    /// What is not known to be shared is taken for exclusive.
    pub(super) fn volume(&mut self, volume: &Value) {
        let name = text(volume, "/metadata/name");
        if volume.get("spec").is_some_and(is_shared) {
            self.attachments.retain(|_, (of, _)| of != name);
        }
    }

    /// All but those volumes. One without a PersistentVolume is named by its attachment.
    pub(super) fn names(&self, leave: &[String]) -> Vec<String> {
        let named = self
            .attachments
            .iter()
            .map(|(name, (volume, node))| (if volume.is_empty() { name } else { volume }, node));
        let remaining = named.filter(|(volume, _)| !leave.contains(volume));
        remaining.map(|(volume, node)| format!("{volume} on {node}")).collect()
    }
}

fn is_shared(spec: &Value) -> bool {
    sharing(spec) == Some(Sharing::Shared)
}
