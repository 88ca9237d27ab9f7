//! Force: when a volume may be detached although its kubelet reports it in use, or cannot be asked. Pure.
//!
//! In: the volume on the node, its node, the policy, the time. Out: yes and why, or no and until when. Force waives the
//! in-use check and nothing else: the volume is taken off the node's status first, and an exclusive
//! volume goes nowhere else before its attachment is gone (S1, S2, S4).

use apiserver::wire::rfc3339;
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use thiserror::Error;

use crate::attach_detach::{
    options::ForcePolicy,
    state::actual::{
        ForceReason, NodeVolume,
        node::{NodeDoubt, NodeState},
    },
};

/// Why a detach is not forced; printed, what is added to the sentence about the wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Error)]
#[serde(rename_all = "camelCase")]
pub enum Unforced {
    /// The node is Ready: its kubelet will unmount (S5).
    #[error("")]
    NodeReady,
    /// The node is Ready and does not report it in use, which proves nothing (S3).
    #[error("")]
    Distrusted(NodeDoubt),
    /// Time may not force.
    #[error("; nothing is forced because of time")]
    SwitchedOff,
    /// Not before this.
    #[error(": it is detached by force at {}", rfc3339(*.0))]
    Until(#[serde(serialize_with = "display")] Timestamp),
}

fn display<S: serde::Serializer>(at: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(at)
}

/// Whether the detach of an undesired volume may be forced now. `doubt` is why it counts as in use though its node does not
/// say so.
///
/// # Errors
/// The reason why not.
pub fn force(
    node_volume: &NodeVolume,
    (node, doubt): (Option<&NodeState>, Option<NodeDoubt>),
    policy: &ForcePolicy,
    wall: Timestamp,
) -> Result<ForceReason, Unforced> {
    let object = node.and_then(|state| state.node.as_deref());
    if object.is_some_and(apiserver::kinds::Node::is_out_of_service) {
        return Ok(ForceReason::OutOfService);
    }
    if object.is_some_and(apiserver::kinds::Node::is_ready) {
        return Err(doubt.map_or(Unforced::NodeReady, Unforced::Distrusted));
    }
    if !policy.on_timeout {
        return Err(Unforced::SwitchedOff);
    }
    let patience = match doubt {
        // It is another machine that is not Ready: of the first one nothing is heard, as of one that is gone.
        Some(NodeDoubt::AnotherMachine(_)) => policy.gone.max(policy.unready),
        _ if object.is_some() => policy.unready,
        _ => policy.gone,
    };
    let unready_since = node.and_then(|state| state.unready_since).unwrap_or(wall);
    let undesired_since = node_volume.undesired_since.unwrap_or(wall);
    // An instant that cannot be represented is one that does not come.
    let due = unready_since.max(undesired_since).checked_add(patience).unwrap_or(Timestamp::MAX);
    if wall < due { Err(Unforced::Until(due)) } else { Ok(ForceReason::Timeout) }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use apiserver::kinds::{Node, NodeCondition, Taint};

    use super::*;

    fn at(minute: i64) -> Timestamp {
        Timestamp::from_second(minute * 60).unwrap()
    }

    fn node(ready: &str, taint: Option<&str>) -> Node {
        let mut node = Node::default();
        node.status.conditions.push(NodeCondition {
            r#type: "Ready".into(),
            status: ready.into(),
            last_transition_time: None,
        });
        node.spec.taints.extend(taint.map(|key| Taint { key: key.into() }));
        node
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn s4_s5_s6_force_table() {
        let oos = Some("node.kubernetes.io/out-of-service");
        let on = ForcePolicy::default();
        let off = ForcePolicy { on_timeout: false, ..on };
        let patient = ForcePolicy { gone: Duration::from_hours(1), ..on };
        // name, node, unready since, undesired since, policy, minute, verdict
        let cases = [
            (
                "S5 a Ready node is never forced",
                Some(node("True", None)),
                None,
                0,
                on,
                999,
                Err(Unforced::NodeReady),
            ),
            (
                "R-13 not Ready, but not for long",
                Some(node("False", None)),
                Some(0),
                0,
                on,
                5,
                Err(Unforced::Until(at(6))),
            ),
            (
                "R-04 not Ready for six minutes",
                Some(node("Unknown", None)),
                Some(0),
                0,
                on,
                6,
                Ok(ForceReason::Timeout),
            ),
            (
                "S4 the desire began later",
                Some(node("False", None)),
                Some(0),
                3,
                on,
                8,
                Err(Unforced::Until(at(9))),
            ),
            (
                "S4 the node failed later",
                Some(node("False", None)),
                Some(4),
                0,
                on,
                9,
                Err(Unforced::Until(at(10))),
            ),
            (
                "R-15 switched off",
                Some(node("False", None)),
                Some(0),
                0,
                off,
                999,
                Err(Unforced::SwitchedOff),
            ),
            (
                "R-12 out of service forces at once",
                Some(node("True", oos)),
                None,
                0,
                on,
                0,
                Ok(ForceReason::OutOfService),
            ),
            (
                "R-15 out of service forces although time may not",
                Some(node("False", oos)),
                Some(0),
                0,
                off,
                0,
                Ok(ForceReason::OutOfService),
            ),
            (
                "H10 another taint does not",
                Some(node("True", Some("out-of-service"))),
                None,
                0,
                on,
                9,
                Err(Unforced::NodeReady),
            ),
            ("H9 a node that is gone waits as long", None, Some(0), 0, on, 5, Err(Unforced::Until(at(6)))),
            ("H9 and is then given up", None, Some(0), 0, on, 6, Ok(ForceReason::Timeout)),
            ("H9 or as long as configured", None, Some(0), 0, patient, 6, Err(Unforced::Until(at(60)))),
            (
                "S6 what is not known began now",
                Some(node("False", None)),
                None,
                0,
                on,
                7,
                Err(Unforced::Until(at(13))),
            ),
        ];
        for (name, node, unready, unwanted, policy, minute, expected) in cases {
            let node_volume = NodeVolume { undesired_since: Some(at(unwanted)), ..NodeVolume::default() };
            let mut state = NodeState::default();
            state.node = node.map(Arc::new);
            state.unready_since = unready.map(at);
            assert_eq!(force(&node_volume, (Some(&state), None), &policy, at(minute)), expected, "{name}");
        }
    }

    #[test]
    fn h9_a_machine_whose_name_another_one_has_waits_as_long_as_one_that_is_gone() {
        let node_volume = NodeVolume { undesired_since: Some(at(0)), ..NodeVolume::default() };
        let mut state = NodeState::default();
        state.node = Some(Arc::new(node("False", None)));
        state.unready_since = Some(at(0));
        let doubt = Some(NodeDoubt::AnotherMachine(None));
        for (gone, minutes) in [(60, 60), (1, 6)] {
            let policy = ForcePolicy { gone: Duration::from_mins(gone), ..ForcePolicy::default() };
            let forced = |minute| force(&node_volume, (Some(&state), doubt), &policy, at(minute));
            assert_eq!(forced(minutes - 1), Err(Unforced::Until(at(minutes))), "gone after {gone} min");
            assert_eq!(forced(minutes), Ok(ForceReason::Timeout), "gone after {gone} min");
        }
    }
}
