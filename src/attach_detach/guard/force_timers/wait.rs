//! One wait for force, and how the ConfigMap tells of it. Pure.
//!
//! What is written is how long the wait has lasted by the monotonic clock of who writes, never when it began: no
//! clock of one machine is compared with that of another, so none that is wrong, or steps, makes a wait shorter.

use std::{
    fmt::{self, Display},
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;

use crate::{
    attach_detach::desired::volume_name::{VolumeId, hashed},
    kube_api::{
        ids::{NodeName, Uid},
        kinds::Node,
    },
};

/// Bytes of a key.
pub(super) const KEY: usize = 32;

/// Bytes of a failure's name: two of one node differ in all likelihood.
const FAILURE: usize = 16;

/// What stands for a failure that no object tells from others.
const NO_FAILURE: &str = "-";

/// What a wait is known by: a volume on a node. It must be valid as a key of a ConfigMap, which a unique volume
/// name is not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitKey(String);

impl WaitKey {
    /// The key of a volume on a node.
    #[must_use]
    pub fn new(volume: &VolumeId, node: &NodeName) -> Self {
        let mut key = hashed("", &[volume.as_str(), "\0", node.as_str()]);
        key.truncate(KEY);
        Self(key)
    }

    /// The key as the ConfigMap has it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for WaitKey {
    fn from(key: &str) -> Self {
        Self(key.to_owned())
    }
}

/// One stretch of time in which a node was not Ready: of a node object, and since a transition of its condition. As
/// long as both are the same, the node has not been Ready in between, by any clock that wrote the time of the
/// transition: it is compared for equality alone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Failure(String);

impl Failure {
    /// That of a node; `None` if it is Ready, or does not tell since which transition it is not.
    #[must_use]
    pub fn of(node: &Node) -> Option<Self> {
        let ready = node.ready().filter(|_| !node.is_ready())?;
        let transition = ready.last_transition_time?.to_string();
        let uid = node.metadata.uid.to_string();
        let parts = [uid.as_str(), "\0", ready.status.as_str(), "\0", &transition];
        let mut failure = hashed("", &parts);
        failure.truncate(FAILURE);
        Some(Self(failure))
    }
}

/// A detach that waits for force, as the process knows it that waits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wait {
    /// Since when no pod has needed the volume, and the node has not been Ready, by this process' own clock.
    pub since: Timestamp,
    /// As what its node is not Ready.
    pub failure: Option<Failure>,
    /// The attachment that is to go, if there is more than an entry in the node's list.
    pub attachment: Option<Uid>,
}

impl Wait {
    /// The wait as the ConfigMap is to have it.
    #[must_use]
    pub fn as_of(&self, now: Timestamp, at_most: Duration) -> Waited {
        let elapsed = Duration::try_from(now.duration_since(self.since)).unwrap_or_default();
        // Less than it was, rather than more.
        let elapsed = Duration::from_secs(elapsed.min(at_most).as_secs());
        Waited { elapsed, failure: self.failure.clone(), attachment: self.attachment.clone() }
    }
}

/// A wait as the ConfigMap has it: the seconds that it had lasted when that was written, as what the node was not
/// Ready, and the UID of the attachment, if there was one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waited {
    /// For how long no pod had needed the volume and the node had not been Ready.
    pub elapsed: Duration,
    /// As what its node was not Ready.
    pub failure: Option<Failure>,
    /// The attachment that was to go.
    pub attachment: Option<Uid>,
}

impl Waited {
    /// Reads what the ConfigMap has; `None` for what no mooring wrote.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let elapsed = Duration::from_secs(words.next()?.parse().ok()?);
        let failure = words.next().filter(|word| !word.is_empty())?;
        let failure = (failure != NO_FAILURE).then(|| Failure(failure.to_owned()));
        let attachment = words.next().map(Uid::from);
        words.next().is_none().then_some(Self { elapsed, failure, attachment })
    }

    /// Whether it is about what is, or may be, attached now. With another attachment it is not: a pod may have
    /// desired that one. Without any it is: the attachment is gone, and the node's list is left.
    #[must_use]
    pub fn is_for(&self, attachment: Option<&Uid>) -> bool {
        attachment.is_none_or(|attachment| self.attachment.as_ref() == Some(attachment))
    }

    /// Whether the node has not been Ready for as long either, as it is now.
    #[must_use]
    pub fn is_of(&self, failure: Option<&Failure>) -> bool {
        failure.is_some() && self.failure.as_ref() == failure
    }
}

impl Display for Waited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failure = self.failure.as_ref().map_or(NO_FAILURE, |failure| failure.0.as_str());
        write!(f, "{} {failure}", self.elapsed.as_secs())?;
        if let Some(uid) = &self.attachment {
            write!(f, " {uid}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::kube_api::kinds::NodeCondition;

    fn node(uid: &str, status: &str, second: Option<i64>) -> Node {
        let mut node = Node::default();
        node.metadata.uid = uid.into();
        node.status.conditions.push(NodeCondition {
            r#type: "Ready".into(),
            status: status.into(),
            last_transition_time: second.map(|second| Timestamp::from_second(second).unwrap()),
        });
        node
    }

    #[test]
    fn the_key_of_a_wait_is_one_of_a_config_map_and_its_own() {
        let mut keys = HashSet::new();
        for (volume, node) in [("a", "n"), ("b", "n"), ("a", "m"), ("an", "")] {
            let volume = VolumeId::iscsi("10.0.0.1:3260", volume, 0);
            let key = WaitKey::new(&volume, &node.into());
            assert_eq!(key.as_str().len(), KEY);
            assert!(key.as_str().bytes().all(|byte| byte.is_ascii_alphanumeric()));
            assert_eq!(key, WaitKey::new(&volume, &node.into()), "a successor finds it again");
            assert!(keys.insert(key));
        }
    }

    #[test]
    fn s4_e10_a_failure_is_of_one_object_and_one_transition() {
        let failed = Failure::of(&node("1", "Unknown", Some(5)));
        assert!(failed.is_some());
        assert_eq!(Failure::of(&node("1", "Unknown", Some(5))), failed);
        let others = [
            ("Ready", node("1", "True", Some(5))),
            ("nothing tells the transition", node("1", "Unknown", None)),
            ("no condition", Node::default()),
            ("another object", node("2", "Unknown", Some(5))),
            ("it may have been Ready in between", node("1", "Unknown", Some(6))),
            ("and so here", node("1", "False", Some(5))),
        ];
        for (name, node) in others {
            let other = Failure::of(&node);
            assert_ne!(other, failed, "{name}");
            let waited = Waited { elapsed: Duration::ZERO, failure: other.clone(), attachment: None };
            assert!(!waited.is_of(failed.as_ref()), "{name}");
            assert_eq!(waited.is_of(other.as_ref()), other.is_some(), "{name}");
        }
    }

    #[test]
    fn s4_what_is_written_is_read_again_and_nothing_else_is() {
        let failure = Failure::of(&node("1", "Unknown", Some(5)));
        for failure in [failure, None] {
            for attachment in [Some("uid".into()), None] {
                let waited =
                    Waited { elapsed: Duration::from_secs(77), failure: failure.clone(), attachment };
                assert_eq!(Waited::parse(&waited.to_string()), Some(waited));
            }
        }
        // Among them what 0.1.0 wrote: a time.
        let others =
            ["", "77", "77 ", "-1 -", "1.5 -", "77 - uid more", "1970-01-01T00:01:00Z uid", "x - uid"];
        for other in others {
            assert_eq!(Waited::parse(other), None, "{other:?}");
        }
    }

    #[test]
    fn s4_e10_a_wait_is_never_written_as_longer_than_it_is() {
        let at = |millisecond| Timestamp::from_millisecond(millisecond).unwrap();
        let wait = Wait { since: at(10_000), failure: None, attachment: None };
        let most = Duration::from_mins(6);
        for (now, expected) in [(9_000, 0), (10_000, 0), (10_999, 0), (11_000, 1), (10_000_000, 360)] {
            assert_eq!(wait.as_of(at(now), most).elapsed, Duration::from_secs(expected), "at {now}");
        }
    }
}
