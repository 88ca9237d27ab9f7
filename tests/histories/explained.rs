//! What explanations say about the states of histories is what happens then.
//!
//! In some states of a random history everything there is is asked about, as a reader would who has just listed it all:
//! - each write that is named comes next from a process that begins there, and no other write does; the leader, which
//!   knows more, sends no write that was not named, unless its time was told;
//! - where no user has to act, none does, and all pods get what they want;
//! - what is called safe, and what is right when a machine is proven off, breaks no law.

use std::{collections::BTreeSet, time::Duration};

use apiserver::{
    ids::{NodeName, PodKey},
    kinds::{
        CsiDriver, Node, ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass, Taint,
        VolumeAttachment,
    },
};
use fastrand::Rng;
use mooring::{
    attach_detach::calls::{AttachmentRequest, Call},
    explain::{
        explain,
        report::{Explanation, Risk, Verdict},
        snapshot::Snapshot,
    },
};

use super::{
    History, ROUND, STEPS,
    clocks::Machine,
    daemon::Daemon,
    server::{NODES, OUT_OF_SERVICE, Server},
};

/// Steps between two looks.
const PAUSE: usize = 15;
/// Longer than a change of a node's list waits for others to be written with it.
const GATHERING: Duration = Duration::from_secs(2);
/// Rounds in which what waits for time alone is over: six minutes, and what follows.
const ROUNDS: usize = 90;
/// Waits of which no object tells: of the process itself.
const OWN: [&str; 12] = [
    "DetachWaitingForSettlement",
    // For a report that is newer than what it has seen.
    "DetachWaitingForUnmount",
    "ForeignAttachment",
    "ForeignWriter",
    "HandOver",
    "NodeStatusRefused",
    "Publishing",
    "RestoreGrace",
    "RetryBackoff",
    "Uncertain",
    "WaitingForDeletion",
    "WriteUndone",
];

/// The name of an attachment, and what is done with it.
type Write = (String, &'static str);

/// Plays the history of a seed, and asks. The error is the first answer that was wrong.
pub fn play(seed: u64) -> Result<(), String> {
    let mut history = History::begin(seed)?;
    for step in 0..STEPS {
        history.step(false)?;
        history.server.judge(&mut history.daemon)?;
        if step % PAUSE == PAUSE - 1 {
            let told = |error: String| format!("after step {step}: {error}");
            ask(&history).map_err(told)?;
        }
    }
    Ok(())
}

fn ask(history: &History) -> Result<(), String> {
    let server = &history.server;
    let answers = Answers::about(server);
    answers.names_what_a_new_process_does(server)?;
    answers.names_what_the_leader_does(history)?;
    answers.comes_to_rest_where_nobody_has_to_act(server)?;
    answers.advises_what_breaks_no_law(server)
}

/// Everything there is, asked about.
struct Answers {
    pods: Vec<(PodKey, Explanation)>,
    others: Vec<Explanation>,
}

impl Answers {
    fn about(server: &Server) -> Self {
        let snapshot = listed(server);
        let ask = |subject: &ObjectRef| explain(&snapshot, subject);
        let pods = server.pods.keys().map(|key| (key.clone(), ask(&ObjectRef::Pod(key.clone())))).collect();
        let nodes = NODES.map(|node| ObjectRef::Node(NodeName::from(node)));
        let attachments = server.attachments.keys().map(|name| ObjectRef::Attachment(name.clone()));
        let volumes = server.volumes.keys().map(|name| ObjectRef::Volume(name.clone()));
        let others = nodes.into_iter().chain(attachments).chain(volumes).map(|it| ask(&it)).collect();
        Self { pods, others }
    }

    fn all(&self) -> impl Iterator<Item = &Explanation> {
        self.pods.iter().map(|(_, answer)| answer).chain(&self.others)
    }

    /// Writes to attachments that are said to come next.
    fn named(&self) -> BTreeSet<Write> {
        let steps = self.all().flat_map(|answer| &answer.steps);
        let writes = steps.filter_map(|step| {
            let write = match step.next.as_ref()?.action.as_str() {
                "CreateVolumeAttachment" => "create",
                "DeleteVolumeAttachment" => "delete",
                _ => return None,
            };
            Some((step.object["name"].as_str()?.to_owned(), write))
        });
        writes.collect()
    }

    /// What is said of an attachment.
    fn told_of(&self, name: &str) -> BTreeSet<(&str, &str)> {
        let steps = self.all().flat_map(|answer| &answer.steps).filter(|step| step.object["name"] == name);
        steps.map(|step| (step.reason.as_str(), step.message.as_str())).collect()
    }

    /// Attachments of which it is said that time decides: until when, or by a condition that only the leader can tell.
    fn timed(&self) -> BTreeSet<&str> {
        let steps = self.all().flat_map(|answer| &answer.steps);
        let timed = steps.filter(|step| {
            step.next.as_ref().is_some_and(|next| next.at.is_some() || next.action == "ForceDetach")
        });
        timed.filter_map(|step| step.object["name"].as_str()).collect()
    }

    fn names_what_a_new_process_does(&self, server: &Server) -> Result<(), String> {
        let mut daemon = Daemon::start(server);
        let (named, done) = (self.named(), writes(&mut daemon, server)?);
        if named == done {
            return Ok(());
        }
        Err(format!("named is {named:?}, and a new process does {done:?}"))
    }

    /// Only of a leader that has heard of everything: what is on its way to it may change its mind.
    fn names_what_the_leader_does(&self, history: &History) -> Result<(), String> {
        let (server, mut daemon) = (&history.server, history.daemon.clone());
        if daemon.under_way() != [0; 3] {
            return Ok(());
        }
        // What it is about to write or has no answer to, no object tells: the node of that may have the volume.
        let mut known = daemon.volumes_waiting_for(&OWN);
        daemon.watch_delivers_all(server)?;
        known.extend(daemon.volumes_waiting_for(&OWN));
        let known: BTreeSet<String> = known
            .iter()
            .flat_map(|volume| {
                NODES.map(|node| volume.attachment_name(&NodeName::from(node)).as_str().to_owned())
            })
            .collect();
        let done = writes(&mut daemon, server)?;
        let (named, timed) = (self.named(), self.timed());
        // Its volume is another by now, or gone, and only a process that saw the earlier one knows what it was for.
        let is_foreign = |name: &str| {
            self.told_of(name)
                .iter()
                .any(|(reason, _)| ["ForeignAttachment", "VolumeMissing"].contains(reason))
        };
        // A list that the leader has no reason to write proves by a read what another process writes first.
        let is_unpublished = |(name, write): &Write| {
            *write == "delete"
                && self.told_of(name).iter().any(|(reason, _)| *reason == "DetachWaitingForUnpublish")
        };
        let is_told = |write: &Write| {
            let name = &write.0;
            let is_said = named.contains(write) || timed.contains(name.as_str()) || is_unpublished(write);
            is_said || is_foreign(name) || known.contains(name)
        };
        if let Some(sudden) = done.iter().find(|write| !is_told(write)) {
            let told = self.told_of(&sudden.0);
            return Err(format!(
                "the leader does {sudden:?}; named is {named:?}; told is {told:?}; it waited for {}",
                history.daemon.waits_for()
            ));
        }
        let own: BTreeSet<String> = daemon.waiting_for(&OWN);
        let is_own = |name: &String| own.contains(name) || known.contains(name);
        match named.iter().find(|write| !done.contains(*write) && !is_own(&write.0)) {
            Some(idle) if !daemon.is_alarmed() => Err(format!(
                "named is {idle:?}, and the leader does {done:?}; it waits for {}",
                daemon.waits_for()
            )),
            _ => Ok(()),
        }
    }

    fn comes_to_rest_where_nobody_has_to_act(&self, server: &Server) -> Result<(), String> {
        let free = self.pods.iter().filter(|(_, it)| {
            matches!(it.verdict, Verdict::Healthy | Verdict::Waiting) && !waits_for_binder(it)
        });
        let free: Vec<&PodKey> = free.map(|(key, _)| key).collect();
        if free.is_empty() {
            return Ok(());
        }
        let mut server = server.clone();
        let mut daemon = Daemon::start(&server);
        rounds(&mut server, &mut daemon)?;
        let later = Self::about(&server);
        let stuck = later.pods.iter().find(|(key, it)| free.contains(&key) && it.verdict != Verdict::Healthy);
        let Some((key, later)) = stuck else { return Ok(()) };
        let before = self.pods.iter().find(|(pod, _)| pod == key).map(|(_, answer)| answer);
        Err(format!(
            "nobody had to act for {key} ({:?}), and then: {} {}",
            before.map(|answer| (&answer.reason, &answer.summary)),
            later.reason,
            later.summary
        ))
    }

    fn advises_what_breaks_no_law(&self, server: &Server) -> Result<(), String> {
        for answer in self.all() {
            for action in answer.actions.iter().filter(|action| action.risk == Risk::Safe) {
                let verb: Vec<&str> = action.command.iter().take(2).map(String::as_str).collect();
                let reads = [
                    ["kubectl", "get"],
                    ["kubectl", "describe"],
                    ["kubectl", "logs"],
                    ["mooring", "explain"],
                ];
                if !verb.is_empty() && !reads.iter().any(|read| verb == read) {
                    return Err(format!("S1: called safe, and it writes: {:?}", action.command));
                }
            }
        }
        for node in NODES.map(NodeName::from) {
            let is_advised = |start: &str| {
                self.all().flat_map(|answer| &answer.actions).any(|action| action.text.starts_with(start))
            };
            if is_advised(&format!("bring {node} back")) && server.nodes.contains_key(&node) {
                let mut server = server.clone();
                let mut daemon = Daemon::start(&server);
                server.node_recovers(&node);
                rounds(&mut server, &mut daemon)?;
            }
            if is_advised(&format!("only if {node} is proven off")) && server.nodes.contains_key(&node) {
                let mut server = server.clone();
                let mut daemon = Daemon::start(&server);
                server.is_proven_off(&node);
                rounds(&mut server, &mut daemon)?;
            }
        }
        Ok(())
    }
}

/// Whether the binder has something to do first, who is not here.
fn waits_for_binder(answer: &Explanation) -> bool {
    let kinds = ["PersistentVolume", "PersistentVolumeClaim"];
    let is_its = |kind: &str| kinds.contains(&kind);
    let of_binder = answer.steps.iter().filter(|step| step.object["kind"].as_str().is_some_and(is_its));
    of_binder.into_iter().any(|step| step.reason != "Bound")
}

/// The daemon and all other actors do all there is to do, until what waits for time alone is over. The server checks
/// each write.
fn rounds(server: &mut Server, daemon: &mut Daemon) -> Result<(), String> {
    let mut rng = Rng::with_seed(server.revision());
    for _ in 0..ROUNDS {
        server.everyone_acts();
        daemon.watch_delivers_all(server)?;
        server.judge(daemon)?;
        daemon.requests_and_replies(server, &mut rng)?;
        server.time_passes(ROUND);
        daemon.time_passes(ROUND)?;
        server.judge(daemon)?;
    }
    Ok(())
}

/// What a process does next: reads are answered, and writes are not.
fn writes(daemon: &mut Daemon, server: &Server) -> Result<BTreeSet<Write>, String> {
    // Reads change nothing.
    let mut server = server.clone();
    for wait in [Duration::ZERO, GATHERING] {
        daemon.time_passes(wait)?;
        while let Some(read) = daemon.on_their_way.iter().position(|(_, call)| !is_write(call)) {
            daemon.arrive(&mut server, read)?;
            daemon.hear(0)?;
        }
    }
    let calls = daemon.on_their_way.iter().filter_map(|(_, call)| match call {
        Call::Attachment(volume, node, AttachmentRequest::Create(_)) => {
            Some((volume.attachment_name(node).to_string(), "create"))
        }
        Call::Attachment(volume, node, AttachmentRequest::Delete(..)) => {
            Some((volume.attachment_name(node).to_string(), "delete"))
        }
        _ => None,
    });
    Ok(calls.collect())
}

fn is_write(call: &Call) -> bool {
    let is_read = matches!(
        call,
        Call::Attachment(_, _, AttachmentRequest::Read(_)) | Call::ReadNode(_) | Call::ReadOwner(..)
    );
    !is_read
}

/// All objects, as of a reader who has just listed them, by the clock of the API server's machine.
fn listed(server: &Server) -> Snapshot {
    let mut snapshot = Snapshot::new(server.clocks.show(Machine::ApiServer, server.wall()));
    let objects = &snapshot.objects;
    objects.reset::<Node>(server.nodes.values().cloned().collect());
    objects.reset::<Pod>(server.pods.values().cloned().collect());
    objects.reset::<VolumeAttachment>(server.attachments.values().cloned().collect());
    objects.reset::<PersistentVolume>(server.volumes.values().cloned().collect());
    objects.reset::<PersistentVolumeClaim>(server.claims.values().cloned().collect());
    objects.reset::<CsiDriver>(server.drivers.values().cloned().collect());
    snapshot.note_listed::<Node>();
    snapshot.note_listed::<Pod>();
    snapshot.note_listed::<VolumeAttachment>();
    snapshot.note_listed::<PersistentVolume>();
    snapshot.note_listed::<PersistentVolumeClaim>();
    snapshot.note_listed::<CsiDriver>();
    snapshot.note_listed::<StorageClass>();
    snapshot
}

impl Server {
    /// A machine is off for certain, and declared so as the advice says.
    fn is_proven_off(&mut self, name: &NodeName) {
        self.reboots(name);
        self.silent.insert(name.clone());
        let mut node = self.nodes[name].clone();
        node.spec.taints.push(Taint { key: OUT_OF_SERVICE.into() });
        self.put_node(node);
        self.everybody_leaves(name);
    }
}
