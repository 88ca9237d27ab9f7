//! What explanations say about the states of histories is what happens then: in some states of a random history everything
//! there is is asked about, as a reader would who has just listed it all. Each write to an attachment that is named comes
//! next from a process that begins there, and no other does.

use std::{collections::BTreeSet, time::Duration};

use apiserver::{
    ids::NodeName,
    kinds::{
        CsiDriver, Node, ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass,
        VolumeAttachment,
    },
};
use mooring::{
    attach_detach::calls::{AttachmentRequest, Call},
    explain::{explain, snapshot::Snapshot},
};

use super::{
    History, STEPS,
    clocks::Machine,
    daemon::Daemon,
    server::{NODES, Server},
};

/// Steps between two looks.
const PAUSE: usize = 15;
/// Longer than a change of a node's list waits for others to be written with it.
const GATHERING: Duration = Duration::from_secs(2);

/// The name of an attachment, and what is done with it.
type Write = (String, &'static str);

/// Plays the history of a seed, and asks. The error is the first answer that was wrong.
pub fn play(seed: u64) -> Result<(), String> {
    let mut history = History::begin(seed)?;
    for step in 0..STEPS {
        history.step(false)?;
        history.server.judge(&mut history.daemon)?;
        if step % PAUSE == PAUSE - 1 {
            let server = &history.server;
            let (named, done) = (named(server), writes(&mut Daemon::start(server), server)?);
            if named != done {
                return Err(format!(
                    "after step {step}: named is {named:?}, and a new process does {done:?}"
                ));
            }
        }
    }
    Ok(())
}

/// Writes to attachments that are said to come next, whatever is asked about.
fn named(server: &Server) -> BTreeSet<Write> {
    let snapshot = listed(server);
    let subjects = (server.pods.keys().cloned().map(ObjectRef::Pod))
        .chain(NODES.map(|node| ObjectRef::Node(NodeName::from(node))))
        .chain(server.attachments.keys().cloned().map(ObjectRef::Attachment))
        .chain(server.volumes.keys().cloned().map(ObjectRef::Volume));
    let steps = subjects.flat_map(|subject| explain(&snapshot, &subject).steps);
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
    !matches!(
        call,
        Call::Attachment(_, _, AttachmentRequest::Read(_)) | Call::ReadNode(_) | Call::ReadOwner(..)
    )
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
