//! How the fence of one loop stands, judged from what was seen; and when that is proven for all API servers. Pure.
//!
//! In: the objects, the answer to the probe, and which server gave it. Out: a [`FenceState`], and a [`FenceProof`]. Policy
//! objects show what is meant, but each server reads them by itself, so nothing is believed without its own denial, which
//! carries the content's hash. Anything else than our own content counts as gone: `Warn` for `Deny`, a changed condition.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use tokio::time::Instant;

use super::{
    ask::{NoAnswer, lacks_right},
    policies::{Fence, MARK, NAME_BEGINS, RAISED},
};

/// Where the servers cannot be told apart or counted, so long it has to be denied without a break.
pub const UNBROKEN: Duration = Duration::from_mins(2);

/// A server renews its lease every ten seconds. One that was not seen to for so long is gone.
const SERVER_IS_GONE: Duration = Duration::from_mins(1);

/// What was seen of the fence of one loop.
#[derive(Clone, Debug, PartialEq)]
pub struct FenceSeen {
    /// The policy; why it could not be read.
    pub policy: Result<Option<Value>, NoAnswer>,
    /// The binding, likewise.
    pub binding: Result<Option<Value>, NoAnswer>,
    /// The answer to the probe: the object, if it would have been made.
    pub probe: Result<Value, NoAnswer>,
}

/// How it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FenceState {
    /// This server denies, and the objects are ours. Its finalizer keeps one that somebody has deleted.
    Enforced,
    /// There is no such fence.
    Absent,
    /// Its objects are gone, and this server denies yet.
    Lingering,
    /// The objects are ours, but this server does not enforce them, or not this content of them yet.
    NotEnforced,
    /// The loop can write, or soon can: why.
    Gone(String),
    /// There is no policy, so the loop can write or soon can, and whether there is a binding was not read: why.
    HalfRead(String),
    /// The policy is that of another version of mooring: which, and who has raised it.
    Other(String),
    /// There is no such fence, and the probe shows nothing of this server, as it is refused by something else: why.
    Unprobed(String),
    /// It cannot be told: why. If something else than the fence refuses the probe, that shows nothing of this server.
    Unknown(String),
}

impl FenceState {
    /// Whether the loop cannot write.
    pub fn is_enforced(&self) -> bool {
        *self == Self::Enforced
    }

    /// Whether it cannot be told what this server does.
    pub fn is_untold(&self) -> bool {
        matches!(self, Self::Unknown(_) | Self::Unprobed(_))
    }

    /// Whether something of it was not read, so that nothing is to be done about it.
    pub fn is_unread(&self) -> bool {
        self.is_untold() || matches!(self, Self::HalfRead(_))
    }

    /// What is wrong with it, for people.
    pub fn why(&self) -> &str {
        match self {
            Self::Enforced => "it is enforced",
            Self::Absent => "there is no fence",
            Self::Lingering => "its objects are gone, and this API server denies yet",
            Self::NotEnforced => "the API server does not enforce this content of the fence",
            Self::Gone(why)
            | Self::HalfRead(why)
            | Self::Other(why)
            | Self::Unprobed(why)
            | Self::Unknown(why) => why,
        }
    }

    /// Judges what was seen.
    pub fn of(fence: &Fence, seen: &FenceSeen) -> Self {
        let name = fence.name();
        if let (Ok(None), Ok(None)) = (&seen.policy, &seen.binding) {
            match &seen.probe {
                Ok(_) => return Self::Absent,
                Err(NoAnswer::Refused(_, words)) if words.contains(MARK) => return Self::Lingering,
                // A fence could not be proven here.
                Err(answer) => return Self::Unprobed(untold(&name, answer)),
            }
        }
        if let (Ok(None), Err(why)) = (&seen.policy, &seen.binding) {
            return Self::HalfRead(format!(
                "the policy {name} does not exist, and its binding cannot be read: {why}"
            ));
        }
        if let Ok(Some(policy)) = &seen.policy
            && let Some(other) = mark_of(policy).filter(|mark| *mark != fence.mark())
        {
            let raised = policy.pointer("/metadata/annotations").and_then(|all| all.get(RAISED)?.as_str());
            let raised = raised.map(|raised| format!(", raised {raised}")).unwrap_or_default();
            let ours = fence.mark();
            return Self::Other(format!(
                "the policy {name} is of another version, {other} for {ours}{raised}"
            ));
        }
        for (kind, object, spec) in
            [("policy", &seen.policy, fence.policy()), ("binding", &seen.binding, fence.binding())]
        {
            match object {
                Err(why) => return Self::Unknown(format!("the {kind} {name} cannot be read: {why}")),
                Ok(None) => return Self::Gone(format!("the {kind} {name} does not exist")),
                Ok(Some(object)) if object.get("spec") != Some(&spec) => {
                    return Self::Gone(format!("the {kind} {name} has another content than this version's"));
                }
                Ok(Some(_)) => {}
            }
        }
        match &seen.probe {
            Err(NoAnswer::Refused(_, words)) if words.contains(&fence.mark()) => Self::Enforced,
            // Another content of it.
            Err(NoAnswer::Refused(_, words)) if words.contains(MARK) => Self::NotEnforced,
            Ok(_) => Self::NotEnforced,
            Err(answer) => Self::Unknown(untold(&name, answer)),
        }
    }
}

fn untold(name: &str, answer: &NoAnswer) -> String {
    match answer {
        NoAnswer::Refused(_, words) => refused_by_others(name, words),
        NoAnswer::Unknown(why) => format!("the probe {name} was not answered: {why}"),
    }
}

/// What somebody is told whose probe something else than the fence refuses.
pub fn refused_by_others(name: &str, words: &str) -> String {
    let todo = if lacks_right(words) {
        "get the right to create VolumeAttachments (deploy/switcher)".to_owned()
    } else {
        format!("exempt VolumeAttachments from what refuses them whose names begin with {NAME_BEGINS}")
    };
    format!("the probe {name} is refused, and not by the fence: {words} ({todo})")
}

/// The mark within the message of a policy.
fn mark_of(policy: &Value) -> Option<&str> {
    let message = policy.pointer("/spec/validations/0/message")?.as_str()?;
    message.get(message.find(MARK)?..)?.split_inclusive(')').next()
}

/// For so long an API server may carry out a request that it has admitted: its time limit for requests.
pub const LONGEST_REQUEST: SignedDuration = SignedDuration::from_mins(1);

/// So far the clocks of two API servers may differ.
const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_secs(10);

/// One look at all of them.
#[derive(Clone, Debug, Default)]
pub struct FenceLook {
    /// How each fence stands, in the order in which they were asked for.
    pub states: Vec<FenceState>,
    /// When the process of the server that answered began, as its metrics have it, if it can be told: no other has the same.
    pub server: Option<String>,
    /// What a policy says that asks for nothing new to be begun ([`super::policies::DRAIN`]).
    pub drain: Option<String>,
    /// The leases of the servers and when each was renewed, by the clock of its server, if they can be read.
    pub leases: Option<BTreeMap<String, String>>,
    /// When the newest of the policies and bindings was made, by the clock of an API server, as far as they were read.
    pub raised: Option<Timestamp>,
    /// Which write of the daemon's is refused, so that nobody is to be fenced off for it yet.
    pub refused: Option<String>,
}

impl FenceLook {
    /// Whether each is enforced.
    pub fn is_enforced(&self) -> bool {
        self.states.iter().all(FenceState::is_enforced)
    }

    /// Whether there is none of them, and each probe was let pass.
    pub fn is_absent(&self) -> bool {
        self.states.iter().all(|state| *state == FenceState::Absent)
    }

    /// Whether a request may be carried out yet that was admitted before the fence. Without leases nothing is known of the time,
    /// and the proof takes longer than that.
    pub fn is_new(&self) -> bool {
        let renewed = self.leases.iter().flat_map(BTreeMap::values).filter_map(|at| at.parse().ok()).max();
        let age =
            self.raised.zip(renewed).map(|(raised, now): (Timestamp, Timestamp)| now.duration_since(raised));
        age.is_some_and(|age| age < LONGEST_REQUEST + CLOCKS_DIFFER)
    }

    /// Whether there is none of them, whatever became of the probes: nobody is kept from ruling.
    pub fn is_down(&self) -> bool {
        self.states.iter().all(|state| matches!(state, FenceState::Absent | FenceState::Unprobed(_)))
    }

    /// What is wrong with the first that is not; of one of which nothing can be told only if nothing is known of another.
    pub fn wrong(&self) -> Option<&FenceState> {
        let wrong = || self.states.iter().filter(|state| !state.is_enforced());
        wrong().find(|state| !state.is_untold()).or_else(|| wrong().next())
    }
}

/// How sure it is that every API server enforces the fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proven {
    /// Not yet.
    No,
    /// Each server was seen to.
    ByEachServer,
    /// All that was asked did, for [`UNBROKEN`]; which servers these were, or how many there are, is not known.
    ByTime,
}

/// What was seen, look by look, each on a fresh connection. Only the clock of this process is asked.
#[derive(Clone, Debug, Default)]
pub struct FenceProof {
    /// Since when all was as it should be, and no look showed both its server and how many there are.
    since: Option<Instant>,
    /// Each process of a server that was as it should be: when it was seen first and last.
    servers: BTreeMap<String, (Instant, Instant)>,
    /// Each lease: its last renewal, and when that was seen first.
    leases: BTreeMap<String, (String, Instant)>,
    /// How many of them are renewed.
    count: usize,
}

impl FenceProof {
    /// Takes one look, and whether all was as it should be. A look that shows anything else begins the proof anew.
    pub fn note(&mut self, holds: bool, look: &FenceLook, now: Instant) -> Proven {
        let FenceLook { server, leases, .. } = look;
        if let Some(leases) = leases {
            self.leases.retain(|name, _| leases.contains_key(name));
            for (name, renewed) in leases {
                let (known, since) =
                    self.leases.entry(name.clone()).or_insert_with(|| (renewed.clone(), now));
                if known != renewed {
                    (*known, *since) = (renewed.clone(), now);
                }
            }
        }
        self.count = self.leases.values().filter(|(_, since)| now < *since + SERVER_IS_GONE).count();
        if !holds {
            (self.since, self.servers) = (None, BTreeMap::new());
            return Proven::No;
        }
        if let Some(server) = server {
            self.servers.entry(server.clone()).or_insert((now, now)).1 = now;
        }
        let is_counted = leases.is_some() && self.count > 0;
        if is_counted && server.is_some() {
            self.since = None;
        }
        let since = *self.since.get_or_insert(now);
        if is_counted && self.most_at_once() >= self.count {
            Proven::ByEachServer
        } else if now >= since + UNBROKEN {
            Proven::ByTime
        } else {
            Proven::No
        }
    }

    /// How many servers were seen at one time, of how many.
    pub fn seen(&self) -> (usize, usize) {
        (self.most_at_once(), self.count)
    }

    /// How many processes of servers are known to have run at one time. One that has restarted is two, which never run at once.
    fn most_at_once(&self) -> usize {
        let seen = || self.servers.values();
        let at = |time: Instant| seen().filter(|(first, last)| *first <= time && time <= *last).count();
        seen().map(|(first, _)| at(*first)).max().unwrap_or_default()
    }
}
