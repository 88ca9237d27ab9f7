//! The driver's log as a judge: what was done to disks, whatever the API server says about it.
//!
//! In: the lines of the log. Out: the violations, each with the acts that may have caused it; [`super::parties`] tells whose
//! they were. A machine without power has nothing mounted.

use std::collections::{BTreeMap, BTreeSet};

use crate::record::{Line, Op, Phase};

/// What is wrong with a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// An exclusive disk is given to a machine while another has it.
    TwoMachines { from: String, to: String },
    /// A disk is taken from a machine on which it is mounted.
    TakenAway { from: String },
    /// An exclusive disk is mounted on a machine while it is mounted on another.
    MountedTwice { from: String, to: String },
    /// A disk is deleted that is given to a machine. One that is mounted without that was taken away before.
    Destroyed { on: String },
}

impl Wrong {
    /// As the tables count it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::TwoMachines { .. } => "two-machines",
            Self::TakenAway { .. } => "taken-away",
            Self::MountedTwice { .. } => "mounted-twice",
            Self::Destroyed { .. } => "destroyed",
        }
    }
}

/// A violation of the driver's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub at: i64,
    pub disk: String,
    pub wrong: Wrong,
}

/// Which machines have a disk.
#[derive(Debug, Default)]
struct Disk {
    published: BTreeSet<String>,
    /// Mount points on each machine: the staging folder, and one for each pod.
    mounts: BTreeMap<String, BTreeSet<&'static str>>,
    /// The machines to which it is being given, each with those that had it when that began.
    giving: BTreeMap<String, BTreeSet<String>>,
    /// The machines that had it when they began to mount it.
    mounting: BTreeSet<String>,
}

/// Judges a log from its beginning.
pub fn judge(log: &[Line]) -> Vec<Violation> {
    let mut disks: BTreeMap<&str, Disk> = BTreeMap::new();
    let mut violations = Vec::new();
    let mut without_power = BTreeSet::new();
    for line in log {
        match line.op {
            Op::Off => {
                for disk in disks.values_mut() {
                    disk.mounts.remove(&line.node);
                    disk.mounting.remove(&line.node);
                }
                without_power.insert(&line.node);
                continue;
            }
            Op::Boot => {
                without_power.remove(&line.node);
                continue;
            }
            // A mount that was under way when the power was cut: the driver's process ends it, and the machine has nothing of it.
            Op::Stage | Op::Mount if without_power.contains(&line.node) => continue,
            _ => {}
        }
        let disk = disks.entry(&line.disk).or_default();
        let mut convict = |wrong| violations.push(Violation { at: line.at, disk: line.disk.clone(), wrong });
        let (node, begins) = (&line.node, line.phase == Phase::Begin);
        let was_its = matches!(line.op, Op::Stage | Op::Mount) && !begins && disk.mounting.remove(node);
        match line.op {
            Op::Publish if begins && line.exclusive => {
                for other in disk.published.iter().filter(|other| *other != node) {
                    convict(Wrong::TwoMachines { from: other.clone(), to: node.clone() });
                }
                disk.giving.insert(node.clone(), disk.published.clone());
            }
            // Another call may have ended since this one began.
            Op::Publish if line.done && line.exclusive => {
                let had = disk.giving.remove(node).unwrap_or_default();
                for other in disk.published.difference(&had).filter(|other| *other != node) {
                    convict(Wrong::TwoMachines { from: other.clone(), to: node.clone() });
                }
            }
            Op::Unpublish if begins && disk.mounts.contains_key(node) => {
                convict(Wrong::TakenAway { from: node.clone() });
                disk.mounting.remove(node);
            }
            Op::Stage | Op::Mount if begins => {
                for other in disk.mounts.keys().filter(|other| line.exclusive && *other != node) {
                    convict(Wrong::MountedTwice { from: other.clone(), to: node.clone() });
                }
                if disk.published.contains(node) {
                    disk.mounting.insert(node.clone());
                }
            }
            Op::Stage | Op::Mount if was_its && line.done && !disk.published.contains(node) => {
                convict(Wrong::TakenAway { from: node.clone() });
            }
            Op::DeleteVolume if begins => {
                for other in &disk.published {
                    convict(Wrong::Destroyed { on: other.clone() });
                }
            }
            _ => {}
        }
        if !line.done {
            continue;
        }
        match line.op {
            Op::Publish => _ = disk.published.insert(node.clone()),
            Op::Unpublish => _ = disk.published.remove(node),
            Op::Stage => _ = disk.mounts.entry(node.clone()).or_default().insert("staged"),
            Op::Mount => _ = disk.mounts.entry(node.clone()).or_default().insert("mounted"),
            Op::Unstage => unmount(disk, node, "staged"),
            Op::Unmount => unmount(disk, node, "mounted"),
            Op::DeleteVolume => *disk = Disk::default(),
            Op::CreateVolume | Op::Expand | Op::Off | Op::Boot => {}
        }
    }
    violations
}

fn unmount(disk: &mut Disk, node: &str, what: &str) {
    if let Some(mounts) = disk.mounts.get_mut(node) {
        mounts.remove(what);
        if mounts.is_empty() {
            disk.mounts.remove(node);
        }
    }
}

/// The disks that a machine still has at the end of a log.
pub fn left_over(log: &[Line]) -> BTreeSet<(String, String)> {
    let mut left = BTreeSet::new();
    for line in log.iter().filter(|line| line.done) {
        let key = (line.disk.clone(), line.node.clone());
        match line.op {
            Op::Publish => _ = left.insert(key),
            Op::Unpublish => _ = left.remove(&key),
            _ => {}
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call, which may be `shared` or one that `fails`, or of which this is only the `begins` or `ends`, and its node.
    type Step = (&'static str, &'static str);

    /// The begin and the end of each call, all about one disk.
    fn log(lines: &[Step]) -> Vec<Line> {
        let mut log = Vec::new();
        for (at, (op, node)) in lines.iter().enumerate() {
            let (op, exclusive) = match op.strip_suffix(" shared") {
                Some(op) => (op, false),
                None => (*op, true),
            };
            let (op, failed) = match op.strip_suffix(" fails") {
                Some(op) => (op, true),
                None => (op, false),
            };
            let (op, phases) = match (op.strip_suffix(" begins"), op.strip_suffix(" ends")) {
                (Some(op), _) => (op, &["begin"][..]),
                (_, Some(op)) => (op, &["end"][..]),
                _ => (op, &["begin", "end"][..]),
            };
            for phase in phases {
                let line = serde_json::json!({
                    "wall": at, "op": op, "phase": phase, "disk": "d", "node": node, "exclusive": exclusive,
                    "done": *phase == "end" && !failed,
                });
                log.push(serde_json::from_value(line).unwrap());
            }
        }
        log
    }

    #[test]
    fn s1_s43_a_wrongdoer_of_the_driver_s_log_is_convicted() {
        let both = |from: &str, to: &str| (from.to_owned(), to.to_owned());
        let (from, to) = both("a", "b");
        let two = Wrong::TwoMachines { from: from.clone(), to: to.clone() };
        let twice = Wrong::MountedTwice { from: from.clone(), to: to.clone() };
        let taken = Wrong::TakenAway { from };
        let attached = ("Publish", "a");
        let cases: [(&[Step], Vec<Wrong>); 17] = [
            (&[attached, ("Publish", "b")], vec![two.clone()]),
            (
                &[
                    ("Publish begins", "b"),
                    ("Publish begins", "a"),
                    ("Publish ends", "a"),
                    ("Publish ends", "b"),
                ],
                vec![two.clone()],
            ),
            (
                &[attached, ("Stage begins", "a"), ("Unpublish", "a"), ("Stage ends", "a")],
                vec![taken.clone()],
            ),
            (&[attached, ("Stage begins", "a"), ("Unpublish", "a"), ("Stage ends fails", "a")], vec![]),
            (&[attached, ("Unpublish fails", "a"), ("Publish", "b")], vec![two]),
            (&[attached, ("Unpublish", "a"), ("Publish", "b")], vec![]),
            // It was never given.
            (&[("Publish fails", "a"), ("Publish", "b")], vec![]),
            (&[("Publish shared", "a"), ("Publish shared", "b")], vec![]),
            (&[attached, ("Stage", "a"), ("Unpublish", "a")], vec![taken.clone()]),
            (
                &[attached, ("Stage", "a"), ("Mount", "a"), ("Unstage", "a"), ("Unpublish", "a")],
                vec![taken.clone()],
            ),
            (
                &[
                    attached,
                    ("Stage", "a"),
                    ("Mount", "a"),
                    ("Unmount", "a"),
                    ("Unstage", "a"),
                    ("Unpublish", "a"),
                ],
                vec![],
            ),
            // Without power nothing is mounted.
            (
                &[
                    attached,
                    ("Stage", "a"),
                    ("Off", "a"),
                    ("Unpublish", "a"),
                    ("Publish", "b"),
                    ("Stage", "b"),
                ],
                vec![],
            ),
            (&[attached, ("Off", "a"), ("Stage", "a"), ("Unpublish", "a")], vec![]),
            (&[attached, ("Off", "a"), ("Boot", "a"), ("Stage", "a"), ("Unpublish", "a")], vec![taken]),
            (&[("Stage", "a"), ("Stage", "b")], vec![twice]),
            (&[attached, ("Unpublish", "a"), ("DeleteVolume", "")], vec![]),
            (&[attached, ("DeleteVolume", "")], vec![Wrong::Destroyed { on: "a".to_owned() }]),
        ];
        for (lines, expected) in cases {
            let told: Vec<Wrong> = judge(&log(lines)).into_iter().map(|violation| violation.wrong).collect();
            assert_eq!(told, expected, "{lines:?}");
        }
    }

    #[test]
    fn l1_what_a_machine_keeps_is_left_over() {
        let left = left_over(&log(&[("Publish", "a"), ("Publish", "b"), ("Unpublish", "a")]));
        assert_eq!(left.into_iter().collect::<Vec<_>>(), [("d".to_owned(), "b".to_owned())]);
    }
}
