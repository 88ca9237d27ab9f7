//! The judgement: one function for each check, over the facts alone.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{
    Level, Line,
    facts::{FLEX_VOLUME, PreflightFacts, PreflightTopic, foreign_source, is_recycler, sharing},
    manager::Manager,
};
use crate::{
    attach_detach::state::desired::volume_source::Sharing,
    fence::{
        arguments::{is_on, is_rolling, of_deployment},
        ask::{lacks_right, text},
        policies::Fence,
    },
};

/// Versions of the API server on which this was tried.
const TRIED: std::ops::RangeInclusive<u64> = 33..=36;
/// A driver that has not answered for so long is silent.
const SILENT: SignedDuration = SignedDuration::from_mins(2);
/// A detach that takes so long is stuck.
const STUCK: SignedDuration = SignedDuration::from_mins(6);
/// A lease that nobody has renewed for so long is left over, however wrong the clocks are.
const LEFT_OVER: SignedDuration = SignedDuration::from_mins(2);
/// As many names as fit on a line.
const NAMES_TOLD: usize = 5;
/// What is to be done where KCM's arguments are not to be seen.
const ASK_THE_PROVIDER: &str = "find out whether the provider runs it with --use-service-account-credentials";
/// What is to be done with the audit rule.
const AUDIT_RULE: &str =
    "to leave these entries out, put the rule first in the audit policy: docs/adopting.md#the-fence";

type Check = fn(&PreflightFacts, &[&Fence]) -> Result<CheckResult, String>;
/// How it stands, the evidence, and what to do.
pub type CheckResult = (Level, String, &'static str);

/// Each check, in the order in which they are printed.
const CHECKS: [(&str, Check); 18] = [
    ("version", version),
    ("policies", policies),
    ("users", users),
    ("arguments", arguments),
    ("lease", lease),
    ("fence", fence),
    ("manifests", |facts, _| dry_runs(facts, PreflightTopic::Manifests, "the objects of deploy")),
    ("node-status", |facts, _| {
        dry_runs(facts, PreflightTopic::NodeStatus, "a patch of nodes/status as the daemon")
    }),
    ("daemon", daemon),
    ("rights", rights),
    ("recyclers", recyclers),
    ("flexvolume", flex_volume),
    ("sources", sources),
    ("drivers", drivers),
    ("attachments", attached_twice),
    ("detaches", stuck),
    ("attachers", silent),
    ("cost", cost),
];

/// One line for each check. What cannot be read is a warning with the server's words.
pub fn judge(facts: &PreflightFacts, fences: &[&Fence]) -> Vec<Line> {
    let line = |(check, judge): (&'static str, Check)| {
        let (level, evidence, todo) = judge(facts, fences).unwrap_or_else(|why| untold(&why));
        Line { check, level, evidence, todo: todo.to_owned() }
    };
    CHECKS.map(line).to_vec()
}

fn fine(evidence: impl Into<String>) -> CheckResult {
    (Level::Ok, evidence.into(), "")
}

fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

/// Its name, behind its namespace if it has one.
fn place(object: &Value) -> String {
    [text(object, "/metadata/namespace"), name(object)].join("/").trim_start_matches('/').to_owned()
}

/// Some names, and how many more there are.
fn some(names: &BTreeSet<impl AsRef<str>>) -> String {
    some_of(names.iter().map(AsRef::as_ref), NAMES_TOLD)
}

/// The first of some names, and how many more there are.
pub fn some_of<'a>(names: impl ExactSizeIterator<Item = &'a str>, most: usize) -> String {
    let more = names.len().saturating_sub(most);
    let shown = names.take(most).collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

fn version(facts: &PreflightFacts, _: &[&Fence]) -> Result<CheckResult, String> {
    let version = facts.of(PreflightTopic::Version)?;
    let minor = text(version, "/minor").trim_end_matches('+').parse::<u64>();
    let evidence = format!("API server {}", text(version, "/gitVersion"));
    if minor.is_ok_and(|minor| TRIED.contains(&minor)) {
        return Ok(fine(evidence));
    }
    Ok((Level::Warn, evidence, "mooring was tried with 1.33 to 1.36: try it in a test cluster first"))
}

fn policies(facts: &PreflightFacts, _: &[&Fence]) -> Result<CheckResult, String> {
    let kinds = facts.of(PreflightTopic::Policies)?.get("resources").and_then(Value::as_array);
    let is_it = |kind: &&Value| text(kind, "/name") == "validatingadmissionpolicies";
    if kinds.into_iter().flatten().find(is_it).is_some() {
        return Ok(fine("the API server has ValidatingAdmissionPolicy v1"));
    }
    let todo = "switch kube-controller-manager's loops off by flags instead: docs/operating.md";
    Ok((Level::Stop, "the API server has no ValidatingAdmissionPolicy v1".to_owned(), todo))
}

#[expect(clippy::unnecessary_wraps, reason = "as the other checks")]
fn users(facts: &PreflightFacts, fences: &[&Fence]) -> Result<CheckResult, String> {
    let pods = facts.of(PreflightTopic::Managers).unwrap_or(&Value::Null);
    let accounts = facts.items(PreflightTopic::Accounts);
    let missing = accounts.map_err(str::to_owned).map(|accounts| {
        let accounts: BTreeSet<&str> = accounts.map(name).collect();
        fences.iter().map(|fence| fence.account).filter(|account| !accounts.contains(account)).collect()
    });
    Ok(loop_users(pods, missing))
}

/// Whether each loop writes as a user of its own, by KCM's pods; where none is seen, by those of the loops' ServiceAccounts that
/// are missing. KCM makes these itself, and only then, each when its loop starts.
pub fn loop_users(pods: &Value, missing: Result<BTreeSet<&str>, String>) -> CheckResult {
    let manager = Manager::of_pods(pods);
    let todo = "start kube-controller-manager with --use-service-account-credentials, or switch its loops off by flags: \
        docs/operating.md (mooring has no fence for a user that all loops share)";
    if manager.shares_a_user() {
        let evidence = "kube-controller-manager runs without --use-service-account-credentials: all its loops are one user";
        return (Level::Stop, evidence.to_owned(), todo);
    }
    match missing {
        _ if manager.pods > 0 => {
            fine("each loop of kube-controller-manager writes as a ServiceAccount of its own")
        }
        Err(why) => untold(&why),
        Ok(missing) if !missing.is_empty() => {
            (Level::Stop, format!("no ServiceAccount in kube-system: {}", some(&missing)), todo)
        }
        Ok(_) => {
            let evidence = "kube-controller-manager's loops have ServiceAccounts, but no pod of it is seen, so it is unknown whether it uses them";
            (Level::Warn, evidence.to_owned(), ASK_THE_PROVIDER)
        }
    }
}

fn untold(why: &str) -> CheckResult {
    let todo = if lacks_right(why) {
        "ask somebody who has the right to read it"
    } else {
        "run this again: the API server did not answer it"
    };
    (Level::Warn, format!("it cannot be told: {why}"), todo)
}

fn arguments(facts: &PreflightFacts, fences: &[&Fence]) -> Result<CheckResult, String> {
    let manager = Manager::of(facts)?;
    if manager.pods == 0 {
        let evidence = "no pod of kube-controller-manager is to be seen";
        return Ok((Level::Warn, evidence.to_owned(), ASK_THE_PROVIDER));
    }
    let evidence = format!("{} pods of kube-controller-manager: {}", manager.pods, manager.seen.join("; "));
    if manager.differs() {
        let todo = "start them alike: which of them leads is chance";
        return Ok((Level::Warn, evidence, todo));
    }
    if are_off(facts, fences) {
        let todo = "no fence is needed: its loops are switched off by flags";
        return Ok((Level::Ok, format!("{evidence}, with its loops off"), todo));
    }
    Ok(fine(evidence))
}

/// Whether each replica of KCM is seen to have these loops switched off.
fn are_off(facts: &PreflightFacts, fences: &[&Fence]) -> bool {
    Manager::of(facts).is_ok_and(|manager| fences.iter().all(|fence| manager.has_off(fence.controller)))
}

fn lease(facts: &PreflightFacts, _: &[&Fence]) -> Result<CheckResult, String> {
    let lease = facts.of(PreflightTopic::Lease)?;
    let todo = "switch over needs --one-way, and on the way back somebody has to restart kube-controller-manager while it is \
        fenced: docs/adopting.md#restart";
    if lease.is_null() {
        return Ok((Level::Warn, "kube-controller-manager has no lease in kube-system".to_owned(), todo));
    }
    let evidence =
        format!("kube-controller-manager's lease is held by {}", text(lease, "/spec/holderIdentity"));
    if age(facts, lease, "/spec/renewTime") > LEFT_OVER {
        let todo = "see whether it runs, and under which --leader-elect-resource-name: switch ends no process by a lease that \
            nobody renews (docs/switching-cases.md#over)";
        return Ok((Level::Warn, format!("{evidence}, who does not renew it"), todo));
    }
    match facts.of(PreflightTopic::LeaseRight)?.as_str() {
        Some(why) => Ok((Level::Warn, format!("{evidence}; {why}"), todo)),
        None => Ok(fine(format!("{evidence}; you may write it"))),
    }
}

fn fence(facts: &PreflightFacts, _: &[&Fence]) -> Result<CheckResult, String> {
    let Some(why) = facts.of(PreflightTopic::Fence)?.as_str() else {
        return Ok(fine("a dry run of the policies and their bindings was accepted"));
    };
    if lacks_right(why) {
        let todo = "ask for the rights in deploy/switcher";
        return Ok((Level::Warn, format!("a dry run of the fence was not checked, because {why}"), todo));
    }
    let todo = "see what refuses it: switch could not raise the fence";
    Ok((Level::Stop, format!("a dry run of the fence was refused: {why}"), todo))
}

fn dry_runs(facts: &PreflightFacts, topic: PreflightTopic, what: &str) -> Result<CheckResult, String> {
    let answers = facts.of(topic)?;
    let told = |field: &str| -> BTreeSet<&str> {
        let list = answers.get(field).and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_str).collect()
    };
    let (refused, unchecked) = (told("refused"), told("unchecked"));
    if !refused.is_empty() {
        let todo = "see which admission policy, webhook or quota refuses it: mooring would be refused, too";
        return Ok((Level::Stop, format!("a dry run was refused: {}", some(&refused)), todo));
    }
    if !unchecked.is_empty() {
        let todo = "run this again once that is no longer so: with these rights, or when the namespace or a node exists";
        return Ok((Level::Warn, format!("not checked: {}", some(&unchecked)), todo));
    }
    Ok(fine(format!("a dry run of {what} was accepted")))
}

fn daemon(facts: &PreflightFacts, fences: &[&Fence]) -> Result<CheckResult, String> {
    let deployment = facts.of(PreflightTopic::Deployment)?;
    if deployment.is_null() {
        let todo = "roll it out first, with the component optional/fence: deploy/README.md";
        return Ok((Level::Warn, "there is no Deployment mooring in mooring-system".to_owned(), todo));
    }
    let ready = deployment.pointer("/status/readyReplicas").and_then(Value::as_u64).unwrap_or_default();
    let words = of_deployment(Some(deployment));
    let evidence = format!("{ready} replicas of mooring are ready");
    let (is_fenced, are_off) = (is_on(&words, "--fence", false), are_off(facts, fences));
    if !is_fenced && !are_off {
        let evidence = format!("{evidence}, and run without --fence");
        let todo = "scale it to 0, then add the component optional/fence: a replica without it rules on as long as it lives";
        return Ok((Level::Stop, evidence, todo));
    }
    if !is_on(&words, "--leader-elect", true) {
        let evidence = format!("{evidence}, and run with --leader-elect=false");
        let todo = "take the flag out: without a lease, switch cannot see whether mooring rules";
        return Ok((Level::Stop, evidence, todo));
    }
    if is_fenced && are_off {
        let evidence = format!("{evidence}, and run with --fence beside loops that are off");
        let todo = "unless the fence is up, nobody rules: take --fence out, or run mooring switch --to mooring --yes";
        return Ok((Level::Warn, evidence, todo));
    }
    if !are_off && is_rolling(deployment) {
        let evidence = format!("{evidence}, and some may be of an earlier template");
        let todo =
            "if that had no --fence, two rule now: mooring switch --to mooring --yes, or scale mooring to 0";
        return Ok((Level::Warn, evidence, todo));
    }
    if ready == 0 {
        return Ok((Level::Warn, evidence, "wait until one is: kubectl -n mooring-system get pods"));
    }
    Ok(fine(evidence))
}

fn rights(facts: &PreflightFacts, _: &[&Fence]) -> Result<CheckResult, String> {
    let missing = facts.of(PreflightTopic::MissingRights)?.as_array().cloned().unwrap_or_default();
    if missing.is_empty() {
        return Ok(fine(
            "the ServiceAccount of mooring has all rights of deploy/rbac.yaml, deploy/optional/fence and its controllers",
        ));
    }
    let missing: BTreeSet<&str> = missing.iter().filter_map(Value::as_str).collect();
    let evidence = format!("the ServiceAccount of mooring may not {}", some(&missing));
    Ok((
        Level::Stop,
        evidence,
        "apply deploy/rbac.yaml, and rbac.yaml of deploy/optional/fence and of the components of its controllers",
    ))
}

/// The pods that are not over.
fn running(facts: &PreflightFacts) -> Result<impl Iterator<Item = &Value>, &str> {
    let is_over = |pod: &&Value| matches!(text(pod, "/status/phase"), "Succeeded" | "Failed");
    Ok(facts.items(PreflightTopic::Pods)?.filter(move |pod| !is_over(pod)))
}

/// A pod of KCM's recycler goes on wiping whatever is fenced off.
fn recyclers(facts: &PreflightFacts, _: &[&Fence]) -> Result<CheckResult, String> {
    let running: BTreeSet<String> = running(facts)?.filter(|pod| is_recycler(pod)).map(place).collect();
    if running.is_empty() {
        return Ok(fine("no recycler pod runs"));
    }
    let todo = "wait until they are done: they go on wiping whoever rules";
    Ok((Level::Stop, format!("recycler pods run: {}", some(&running)), todo))
}

/// The objects with a source that mooring does not attach, by source: PersistentVolumes, and pods without one. And why one of
/// the two was not read, which matters where nothing is found.
fn by_source(facts: &PreflightFacts) -> (BTreeMap<&'static str, BTreeSet<String>>, Result<(), &str>) {
    let mut found: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    let (volumes, pods) = (facts.items(PreflightTopic::Volumes), running(facts));
    let unread = volumes.as_ref().map(|_| ()).and(pods.as_ref().map(|_| ())).map_err(|why| *why);
    for object in volumes.into_iter().flatten().chain(pods.into_iter().flatten()) {
        if let Some(source) = foreign_source(object) {
            found.entry(source).or_default().insert(place(object));
        }
    }
    (found, unread)
}

fn flex_volume(facts: &PreflightFacts, _: &[&Fence]) -> Result<CheckResult, String> {
    let (mut found, unread) = by_source(facts);
    let Some(found) = found.remove(FLEX_VOLUME) else {
        unread?;
        return Ok(fine("no PersistentVolume and no pod has a FlexVolume"));
    };
    let todo =
        "keep kube-controller-manager: it attaches these without the API server, so no fence holds it up";
    Ok((Level::Stop, format!("FlexVolume: {}", some(&found)), todo))
}

fn sources(facts: &PreflightFacts, _: &[&Fence]) -> Result<CheckResult, String> {
    let (mut found, unread) = by_source(facts);
    found.remove(FLEX_VOLUME);
    if found.is_empty() {
        unread?;
        return Ok(fine("mooring knows the source of each PersistentVolume and of each volume of a pod"));
    }
    let told: Vec<String> =
        found.iter().map(|(source, names)| format!("{source}: {}", some(names))).collect();
    let todo = "mooring binds these and attaches none: make sure that they need no attaching";
    Ok((Level::Warn, told.join("; "), todo))
}

fn drivers(facts: &PreflightFacts, _: &[&Fence]) -> Result<CheckResult, String> {
    let known: BTreeSet<&str> = facts.items(PreflightTopic::Drivers)?.map(name).collect();
    let used = facts.items(PreflightTopic::Volumes)?.map(|volume| text(volume, "/spec/csi/driver"));
    let missing: BTreeSet<&str> =
        used.filter(|driver| !driver.is_empty() && !known.contains(driver)).collect();
    if missing.is_empty() {
        return Ok(fine("the driver of each PersistentVolume has a CSIDriver"));
    }
    let todo = "see that they are installed: without it their volumes are attached, also of drivers that need no attaching";
    Ok((Level::Warn, format!("no CSIDriver of {}", some(&missing)), todo))
}

fn attached_twice(facts: &PreflightFacts, _: &[&Fence]) -> Result<CheckResult, String> {
    // Several PersistentVolumes may stand for a disk, and several attachments for a disk on a node.
    let mut disks = BTreeMap::new();
    let mut exclusive = BTreeSet::new();
    for volume in facts.items(PreflightTopic::Volumes)? {
        let handle = text(volume, "/spec/csi/volumeHandle");
        let disk = (text(volume, "/spec/csi/driver"), if handle.is_empty() { name(volume) } else { handle });
        disks.insert(name(volume), disk);
        if volume.get("spec").and_then(sharing) == Some(Sharing::Exclusive) {
            exclusive.insert(disk);
        }
    }
    let (mut seen, mut twice) = (BTreeMap::new(), BTreeSet::new());
    for attachment in facts.items(PreflightTopic::Attachments)? {
        let volume = text(attachment, "/spec/source/persistentVolumeName");
        let Some(disk) = disks.get(volume).filter(|disk| exclusive.contains(*disk)) else { continue };
        let node = text(attachment, "/spec/nodeName");
        if *seen.entry(disk).or_insert(node) != node {
            twice.insert(volume);
        }
    }
    if twice.is_empty() {
        return Ok(fine("no exclusive volume has attachments on two nodes"));
    }
    let evidence = format!("exclusive volumes with attachments on two nodes: {}", some(&twice));
    Ok((Level::Stop, evidence, "see who uses each: mooring explain pv/NAME"))
}

/// How long ago a time in an object is.
fn age(facts: &PreflightFacts, object: &Value, at: &str) -> SignedDuration {
    let time: Option<Timestamp> = text(object, at).parse().ok();
    time.map(|time| facts.now.duration_since(time)).unwrap_or_default()
}

fn stuck(facts: &PreflightFacts, _: &[&Fence]) -> Result<CheckResult, String> {
    let is_stuck = |it: &&Value| age(facts, it, "/metadata/deletionTimestamp") > STUCK;
    let stuck: BTreeSet<&str> =
        facts.items(PreflightTopic::Attachments)?.filter(is_stuck).map(name).collect();
    if stuck.is_empty() {
        let count = facts.items(PreflightTopic::Attachments)?.count();
        return Ok(fine(format!("{count} VolumeAttachments, none stuck")));
    }
    let evidence = format!("being detached for more than six minutes: {}", some(&stuck));
    Ok((Level::Warn, evidence, "see why: mooring doctor"))
}

fn silent(facts: &PreflightFacts, _: &[&Fence]) -> Result<CheckResult, String> {
    let is_attached = |it: &Value| it.pointer("/status/attached") == Some(&json!(true));
    let waits = |it: &&Value| {
        let is_old = age(facts, it, "/metadata/creationTimestamp") > SILENT;
        is_old && !is_attached(it) && text(it, "/metadata/deletionTimestamp").is_empty()
    };
    let waiting = facts.items(PreflightTopic::Attachments)?.filter(waits);
    let silent: BTreeSet<&str> = waiting.map(|it| text(it, "/spec/attacher")).collect();
    if silent.is_empty() {
        return Ok(fine("no driver has kept an attachment waiting for two minutes"));
    }
    let evidence = format!("drivers that have not attached for two minutes: {}", some(&silent));
    Ok((Level::Warn, evidence, "see why: mooring doctor"))
}

/// KCM goes on trying.
fn cost(facts: &PreflightFacts, fences: &[&Fence]) -> Result<CheckResult, String> {
    let manager = Manager::of(facts)?;
    let users: Vec<String> = fences.iter().map(|fence| fence.user()).collect();
    let rule = json!({ "level": "None", "users": users, "verbs": ["create", "update", "patch", "delete"] });
    let (level, most) = match manager.pods {
        0 => (Level::Warn, "unknown: 20 a second by default, 150 on OpenShift,".to_owned()),
        _ => (Level::Ok, format!("at most {} a second", manager.qps)),
    };
    let evidence = format!(
        "kube-controller-manager's denied writes are {most} for each of {} loops, as many audit entries; audit rule: - {rule}",
        fences.len()
    );
    Ok((level, evidence, AUDIT_RULE))
}
