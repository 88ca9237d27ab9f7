//! The log: one line for each change of an object's state, with fields that stay.

use std::collections::{BTreeMap, BTreeSet};

use crate::stage::{Stage, Story, story};

pub fn stories() -> Vec<Story> {
    vec![story("log_says_each_change_of_state_once", each_change_once)]
}

/// A line about a change of state, by its fields.
type Line = BTreeMap<String, String>;

fn parse(line: &str) -> Option<Line> {
    let (_, fields) = line.split_once(" mooring::state: state changed ")?;
    let pair = |field: &str| field.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    fields.split(' ').map(pair).collect()
}

/// The states that an object has gone through, without those in which only the reason changed.
fn states(lines: &[Line], object: &str) -> Vec<String> {
    let mut states: Vec<String> = Vec::new();
    for line in lines.iter().filter(|line| line["object"] == object) {
        if let Some(last) = states.last() {
            assert_eq!(*last, line["from"], "{object} was something else before: {line:?}");
        } else {
            states.push(line["from"].clone());
        }
        if line["from"] != line["to"] {
            states.push(line["to"].clone());
        }
    }
    states
}

/// A bind, an attach, a move, a detach and a release.
async fn each_change_once(stage: Stage) {
    let (_attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    let daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.node("n2").await;
    cluster.volume("v1").await;
    cluster.volume_phase("v1", "Available").await;
    cluster.claim("c1").await;
    cluster.bound("c1", "v1").await;
    cluster.pod("p1", "n1", &["c1"]).await;
    cluster.running("p1").await;
    cluster.delete_pod("p1").await;
    cluster.pod("p2", "n2", &["c1"]).await;
    cluster.running("p2").await;
    cluster.delete_pod("p2").await;
    cluster.detached("v1", "n2").await;
    cluster.delete_claim("c1").await;
    cluster.volume_phase("v1", "Released").await;

    let log = stage.log_of(&daemon);
    // The last of them; the log is written by a thread of its own.
    let released = log.find(|line| parse(line).filter(|line| line["to"] == "Released")).await;
    let released = released.expect("a line about the release");
    let lines: Vec<Line> = log.lines().iter().filter_map(|line| parse(line)).collect();

    let name = |node: &str| {
        let of_node = |line: &&Line| line.get("node").is_some_and(|of| of == node);
        lines.iter().find(of_node).unwrap_or_else(|| panic!("nothing about {node}: {lines:#?}"))["object"]
            .clone()
    };
    let there_and_back = ["Detached", "Attaching", "Attached", "Detaching", "Detached"];
    for node in ["n1", "n2"] {
        let object = name(node);
        assert!(object.starts_with("VolumeAttachment/csi-"), "{object}");
        assert_eq!(states(&lines, &object), there_and_back, "on {node}: {lines:#?}");
    }
    assert_eq!(states(&lines, "PersistentVolumeClaim/c1"), ["Pending", "Bound"], "{lines:#?}");
    let of_volume = states(&lines, "PersistentVolume/v1");
    assert_eq!(of_volume, ["Pending", "Available", "Bound", "Released"], "{lines:#?}");

    assert_eq!((released["reason"].as_str(), released["claim"].as_str()), ("Retained", "default/c1"));
    let bound = lines.iter().find(|line| line["to"] == "Bound" && line["object"].ends_with("Claim/c1"));
    let bound = bound.expect("a line about the bind");
    assert_eq!((bound["namespace"].as_str(), bound["volume"].as_str()), ("default", "v1"));
    let mut seen = BTreeSet::new();
    for line in &lines {
        assert_eq!(line["attempt"], "1", "nothing failed: {line:?}");
        assert!(line["reason"].chars().all(char::is_alphanumeric), "{line:?}");
        assert!(
            line.get("took").is_none_or(|took| took.parse::<f64>().is_ok_and(|took| took >= 0.0)),
            "{line:?}"
        );
        assert!(line.get("revision").is_none_or(|revision| revision.parse::<u64>().is_ok()), "{line:?}");
        let change = ["object", "from", "to", "reason"].map(|field| line[field].clone());
        assert!(seen.insert(change), "said twice: {line:?}");
    }
}
