//! What a new process finds: every state that an exclusive volume on n1 can be in by its attachment, its node and its pods.
//!
//! In: the states, as the product of what each of these can be. Out: what a process makes of each at once, and the next one
//! of what that leaves. No state has an outcome written beside it: the laws below judge them all (safety, §3), and each law
//! convicts the wrongdoers of its table.

use std::{collections::BTreeSet, fmt};

use libtest_mimic::Trial;
use serde_json::{Value, json};

use super::story::{Look, looks};

/// What n1 is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Ready,
    NotReady,
    OutOfService,
    Gone,
}

/// A state. The volume is v1; p1 wants it on n1, p2 on n2.
#[derive(Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each is a dimension of its own")]
struct Found {
    /// The attachment on n1.
    attachment: Option<&'static str>,
    /// Whether n1 lists the volume.
    listed: bool,
    /// Whether its kubelet reports it in use.
    used: bool,
    here: bool,
    elsewhere: bool,
    health: Health,
}

impl Found {
    /// Whether a pod wants it on n1 that is there: of a node that is gone nothing is wanted.
    fn wanted_here(&self) -> bool {
        self.here && self.health != Health::Gone
    }
}

const ATTACHMENTS: [(Option<&str>, &str); 5] = [
    (None, "C-06 S43 no attachment"),
    (Some("attaching"), "C-08 S17 an attachment under way"),
    (Some("attached"), "C-07 L4 L5 an attachment"),
    (Some("failed"), "S17 an attachment that failed"),
    (Some("terminating"), "L9 an attachment that goes"),
];

pub fn trials() -> Vec<Trial> {
    let all = ATTACHMENTS.into_iter().map(|(attachment, name)| {
        let title = format!("start-up: {name}, in every state of its node and pods, is judged by the laws");
        Trial::test(title, move || {
            let broken: Vec<String> = states(attachment).filter_map(|found| judge(&found).err()).collect();
            if broken.is_empty() { Ok(()) } else { Err(broken.join("\n").into()) }
        })
    });
    all.chain([Trial::test("start-up: each law convicts its wrongdoers", || Ok(wrongdoers()?))]).collect()
}

fn states(attachment: Option<&'static str>) -> impl Iterator<Item = Found> {
    let health = [Health::Ready, Health::NotReady, Health::OutOfService, Health::Gone];
    let all = health.into_iter().flat_map(|health| (0..16u8).map(move |flags| (health, flags)));
    let state = move |(health, flags): (Health, u8)| {
        let [listed, used, here, elsewhere] = [1, 2, 4, 8].map(|flag| flags & flag != 0);
        Found { attachment, listed, used, here, elsewhere, health }
    };
    // A node that is gone reports nothing.
    all.map(state).filter(|found| found.health != Health::Gone || !(found.listed || found.used))
}

fn judge(found: &Found) -> Result<(), String> {
    let seen = looks(&serde_json::from_value(found.given()).unwrap());
    let [look, next] = seen.map_err(|broken| format!("{found}: {broken}"))?;
    let broken = laws(found, &look, &next);
    let Some((law, what)) = broken.first() else { return Ok(()) };
    let Look { sends, waits, says, .. } = &look;
    Err(format!("{found}: {law}: {what}\n  sends {sends:?}\n  waits {waits:?}\n  says  {says:?}"))
}

impl Found {
    fn given(&self) -> Value {
        let list = |is_there: bool| if is_there { json!(["v1"]) } else { json!([]) };
        let n1 = json!({
            "lists": list(self.listed),
            "uses": list(self.used),
            "ready": self.health == Health::Ready,
            "out_of_service": self.health == Health::OutOfService,
        });
        let mut given = json!({"nodes": {"n2": {}}, "volumes": {"v1": {}}, "pods": {}});
        if self.health != Health::Gone {
            given["nodes"]["n1"] = n1;
        }
        if let Some(state) = self.attachment {
            given["attachments"] = json!({"v1 on n1": state});
        }
        for (is_there, pod, node) in [(self.here, "p1", "n1"), (self.elsewhere, "p2", "n2")] {
            if is_there {
                given["pods"][pod] = json!({"on": node, "wants": ["v1"]});
            }
        }
        given
    }

    /// Whether n1 may be asked to give it up at once: nobody wants it there, and it is not used or the node is out of service.
    fn may_go(&self) -> bool {
        !self.wanted_here() && (!self.used || self.health == Health::OutOfService)
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is = |is: bool, what: &str| if is { format!(", {what}") } else { String::new() };
        write!(f, "{}", self.attachment.unwrap_or("no attachment"))?;
        write!(f, "{}{}", is(self.listed, "listed"), is(self.used, "in use"))?;
        write!(f, "{}{}", is(self.here, "wanted here"), is(self.elsewhere, "wanted elsewhere"))?;
        write!(f, ", n1 {:?}", self.health)
    }
}

/// A law that is broken, and how.
type Broken = (&'static str, String);

fn laws(found: &Found, look: &Look, next: &Look) -> Vec<Broken> {
    let mut broken = requests(found, look);
    broken.extend(progress(found, look));
    broken.extend(telling(found, look));
    broken.extend(rest(look, next));
    broken
}

/// What may be sent, in the order in which it is.
fn requests(found: &Found, look: &Look) -> Vec<Broken> {
    let mut broken = Vec::new();
    let mut convict = |law, what: &str| broken.push((law, what.to_owned()));
    let Found { attachment, elsewhere, used, health, .. } = *found;
    let here = found.wanted_here();
    let (mut listed, mut asked, mut created) = (found.listed, false, false);
    for sent in &look.sends {
        match sent.as_str() {
            "read n1" => asked = true,
            "create v1 on n1" | "create v1 on n2" => {
                let is_here = sent.ends_with("n1");
                if created || attachment.is_some() {
                    convict("S1", "a second attachment is made");
                }
                if !is_here && (listed || !found.may_go()) && (listed || used) {
                    convict("S43", "what n1 lists or uses goes to n2");
                }
                if (is_here && !here) || (!is_here && !elsewhere) {
                    convict("S8", "it is attached where nobody wants it, or where no node is");
                }
                created = true;
            }
            "delete v1 on n1" => {
                if listed {
                    convict("S2", "it is detached while listed");
                }
                if !asked && health != Health::OutOfService {
                    convict("S3", "it is detached without a look at the node");
                }
                if here {
                    convict("S15", "it is detached from where it is wanted");
                }
                if used && health != Health::OutOfService {
                    convict("S4", "it is detached while in use");
                }
                if health == Health::Gone {
                    convict("S6", "it is detached from a node that went just now");
                }
            }
            "list on n1: [v1]" => {
                if attachment != Some("attached") {
                    convict("S10", "it is listed and not attached");
                }
                (listed, asked) = (true, true);
            }
            "list on n1: []" => {
                if used && !found.may_go() {
                    convict("S43", "the entry of what is in use is dropped");
                }
                if here && attachment == Some("attached") {
                    convict("S11", "the entry of what is wanted and attached is dropped");
                }
                (listed, asked) = (false, true);
            }
            other => convict("S39", &format!("nothing calls for {other:?}")),
        }
    }
    broken
}

/// What nothing stands against is done at once; for the rest, a reason names who has to act.
fn progress(found: &Found, look: &Look) -> Vec<Broken> {
    let mut broken = Vec::new();
    let mut want = |law, holds: bool, what: &str| {
        if !holds {
            broken.push((law, what.to_owned()));
        }
    };
    let Found { attachment, elsewhere, used, health, .. } = *found;
    let here = found.wanted_here();
    let sent = |request: &str| look.sends.iter().any(|sent| sent == request);
    let waits = |pair: &str| look.waits.get(pair).copied();
    let (n1, n2) = (waits("v1 on n1"), waits("v1 on n2"));
    let listed = look.lists.get("n1").is_some_and(|list| list.contains("v1"));
    let gone = health == Health::Gone;
    let yields = sent("create v1 on n2");
    let acts = match attachment {
        _ if here && yields => "HeldByNode",
        Some("terminating") if here => "WaitingForDeletion",
        Some("failed") if here => "AttachError",
        Some("attached") if here => "",
        _ if here => "WaitingForAttacher",
        Some("terminating") => "DetachWaitingForAttacher",
        Some(_) if gone => "DetachWaitingForNode",
        Some(_) if found.may_go() => "DetachWaitingForAttacher",
        None if found.may_go() => "",
        _ => "DetachWaitingForUnmount",
    };
    want("L18", n1.unwrap_or_default() == acts, &format!("n1 waits for {n1:?}, and who acts is {acts:?}"));
    if here {
        let is_made = attachment.is_some() || yields || sent("create v1 on n1");
        want("L3", is_made, "what is wanted on n1 is not attached");
        want("L4", attachment != Some("attached") || listed, "what is attached is not listed");
    }
    if found.may_go() && !gone {
        let is_going = attachment.is_none_or(|state| state == "terminating") || sent("delete v1 on n1");
        // Nothing is taken from a kubelet that uses it before a deletion of ours is to be sent.
        let is_spared = used && attachment == Some("terminating");
        want("L9", is_going && (!listed || is_spared), "what nobody wants stays");
    }
    if elsewhere {
        let is_held = attachment.is_some() || (used && !found.may_go()) || sent("create v1 on n1");
        let expected = if is_held { "HeldByNode" } else { "WaitingForAttacher" };
        want("L18", n2 == Some(expected), &format!("n2 waits for {n2:?}, and who acts is {expected}"));
        want("L3", is_held || yields, "what nothing holds is not attached on n2");
    } else {
        want("L18", n2.is_none(), "nothing is to be done on n2");
    }
    broken
}

/// Who waits is told why, once; nothing else is told.
fn telling(found: &Found, look: &Look) -> Vec<Broken> {
    let mut broken = Vec::new();
    let Found { attachment, used, health, .. } = *found;
    let here = found.wanted_here();
    let held = |node: &str| look.waits.get(&format!("v1 on {node}")) == Some(&"HeldByNode");
    let user = |is_there: bool, pod: &str| if is_there { format!(" {pod}") } else { String::new() };
    let mut owed = Vec::new();
    if held("n1") {
        owed.push(format!("p1 Multi-Attach v1{}", user(found.elsewhere, "p2")));
    }
    if held("n2") {
        owed.push(format!("p2 Multi-Attach v1{}", user(here, "p1")));
    }
    if here && attachment == Some("failed") {
        owed.push("p1 FailedAttachVolume v1 no".to_owned());
    }
    // It was attached while nobody led, or its event may be lost: the server knows whether it stands.
    if here && attachment == Some("attached") && !found.listed {
        owed.push("p1 SuccessfulAttachVolume v1".to_owned());
    }
    for line in owed.iter().filter(|line| !look.says.contains(line)) {
        broken.push(("S48", format!("{line:?} is not told")));
    }
    let mut told = BTreeSet::new();
    let twice = look.says.iter().filter(|line| !told.insert(*line));
    broken.extend(twice.map(|line| ("S47", format!("{line:?} is told twice"))));
    for line in look.says.iter().filter(|line| !owed.contains(line)) {
        // It was held, and made way at once.
        let pod = line.split(' ').next().unwrap_or_default();
        let passed = look.says.contains(&format!("{pod} MultiAttachResolved v1 0"));
        let is_over = passed && (line.contains(" Multi-Attach ") || line.contains(" MultiAttachResolved "));
        let is_forced = line.contains(" ForcedDetach") && health == Health::OutOfService && used && !here;
        if !is_over && !is_forced {
            broken.push(("S47", format!("{line:?} is told, and nothing of it happened")));
        }
    }
    let forced = look.sends.iter().any(|sent| sent == "delete v1 on n1") && used;
    if forced && !look.says.iter().any(|line| line.starts_with("n1 ForcedDetach ")) {
        broken.push(("S48", "a detach by force is not told".to_owned()));
    }
    broken
}

/// The next process finds nothing to do, to say or to think otherwise.
fn rest(look: &Look, next: &Look) -> Vec<Broken> {
    let mut broken = Vec::new();
    if let Some(sent) = next.sends.iter().find(|sent| !sent.starts_with("read ")) {
        broken.push(("S39", format!("the next process sends {sent:?}")));
    }
    if let Some(line) = next.says.first() {
        broken.push(("S47", format!("the next process says {line:?}")));
    }
    if next.waits != look.waits {
        broken.push(("S37", format!("the next process waits for {:?}", next.waits)));
    }
    broken
}

/// What a wrongdoer makes of a state: what it does beside what the process does, and the law that convicts it. A request or
/// line with `!` before it is left out.
struct Wrongdoer {
    found: Found,
    sends: &'static [&'static str],
    says: &'static [&'static str],
    waits: Option<(&'static str, &'static str)>,
    law: &'static str,
}

/// Each law convicts its wrongdoers, and none without their deed.
fn wrongdoers() -> Result<(), String> {
    let none = Found {
        attachment: None,
        listed: false,
        used: false,
        here: false,
        elsewhere: false,
        health: Health::Ready,
    };
    let attached = Found { attachment: Some("attached"), ..none };
    let in_use = Found { listed: true, used: true, ..attached };
    let moving = Found { elsewhere: true, ..in_use };
    let going = Found { attachment: Some("terminating"), here: true, ..none };
    let gone = Found { health: Health::Gone, ..attached };
    let of_gone_machine = Found { attachment: None, ..moving };
    let failed = Found { attachment: Some("failed"), here: true, ..none };
    let forced = Found { health: Health::OutOfService, ..in_use };
    let sends = |found, sends, law| Wrongdoer { found, sends, says: &[], waits: None, law };
    let says = |found, says, law| Wrongdoer { found, sends: &[], says, waits: None, law };
    let waits =
        |found, pair, code, law| Wrongdoer { found, sends: &[], says: &[], waits: Some((pair, code)), law };
    let all = [
        sends(moving, &["create v1 on n2"], "S1"),
        sends(of_gone_machine, &["create v1 on n2"], "S43"),
        sends(of_gone_machine, &["list on n1: []", "create v1 on n2"], "S43"),
        sends(none, &["create v1 on n2"], "S8"),
        sends(in_use, &["delete v1 on n1"], "S2"),
        sends(Found { used: false, here: true, ..in_use }, &["list on n1: []", "delete v1 on n1"], "S15"),
        sends(in_use, &["list on n1: []", "delete v1 on n1"], "S4"),
        sends(attached, &["!read n1"], "S3"),
        sends(gone, &["read n1", "delete v1 on n1"], "S6"),
        sends(going, &["list on n1: [v1]"], "S10"),
        sends(Found { here: true, ..in_use }, &["list on n1: []"], "S11"),
        sends(moving, &["list on n1: []"], "S43"),
        sends(none, &["write something"], "S39"),
        sends(Found { here: true, ..none }, &["!create v1 on n1"], "L3"),
        sends(Found { elsewhere: true, ..none }, &["!create v1 on n2"], "L3"),
        sends(attached, &["!delete v1 on n1"], "L9"),
        waits(moving, "v1 on n2", "WaitingForAttacher", "L18"),
        waits(going, "v1 on n1", "WaitingForAttacher", "L18"),
        waits(none, "v1 on n2", "HeldByNode", "L18"),
        says(moving, &["!p2 Multi-Attach v1"], "S48"),
        says(failed, &["!p1 FailedAttachVolume v1 no"], "S48"),
        says(forced, &["!n1 ForcedDetach v1 n1 the node is marked as out of service"], "S48"),
        says(moving, &["p2 Multi-Attach v1"], "S47"),
        says(Found { here: true, ..attached }, &["!p1 SuccessfulAttachVolume v1"], "S48"),
        says(Found { here: true, ..in_use }, &["p1 SuccessfulAttachVolume v1"], "S47"),
        says(moving, &["n1 ForcedDetach v1 n1 the node is marked as out of service"], "S47"),
    ];
    for wrongdoer in all {
        let found = wrongdoer.found;
        let [mut look, next] = looks(&serde_json::from_value(found.given()).unwrap())?;
        if let Some((law, what)) = laws(&found, &look, &next).first() {
            return Err(format!("{found}: {law} convicts who did nothing: {what}"));
        }
        edit(&mut look.sends, wrongdoer.sends);
        edit(&mut look.says, wrongdoer.says);
        look.waits.extend(wrongdoer.waits.map(|(pair, code)| (pair.to_owned(), code)));
        if !laws(&found, &look, &next).iter().any(|(law, _)| *law == wrongdoer.law) {
            return Err(format!("{found}: {} does not convict {:?}", wrongdoer.law, look.sends));
        }
    }
    let used_here = Found { here: true, ..in_use };
    let deeds: [(Found, Deed, &str); 4] = [
        (used_here, |look, _| look.lists.clear(), "L4"),
        (moving, |_, next| next.sends.push("list on n1: [v1]".to_owned()), "S39"),
        (moving, |_, next| next.says.push("p2 Multi-Attach v1".to_owned()), "S47"),
        (moving, |_, next| next.waits.clear(), "S37"),
    ];
    for (found, deed, law) in deeds {
        let [mut look, mut next] = looks(&serde_json::from_value(found.given()).unwrap())?;
        deed(&mut look, &mut next);
        if !laws(&found, &look, &next).iter().any(|(broken, _)| *broken == law) {
            return Err(format!("{found}: {law} does not convict its wrongdoer"));
        }
    }
    Ok(())
}

/// What is changed of what a process and the next one made of a state.
type Deed = fn(&mut Look, &mut Look);

fn edit(lines: &mut Vec<String>, edits: &[&str]) {
    for edit in edits {
        match edit.strip_prefix('!') {
            Some(left_out) => lines.retain(|line| line != left_out),
            None => lines.push((*edit).to_owned()),
        }
    }
}
