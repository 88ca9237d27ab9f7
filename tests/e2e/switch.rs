//! `mooring switch` over and back on the real API server, with a real kube-controller-manager.

use std::{collections::BTreeSet, path::PathBuf};

use k8s_openapi::{
    api::{
        admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
        apps::v1::Deployment,
        coordination::v1::Lease,
    },
    jiff::{SignedDuration, Timestamp},
};
use kube::{
    Api, Client, Config,
    api::{Patch, PatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use mooring::fence::policies::{FENCES, Fence, RAISED};
use serde_json::{Value, json};
use test_support::{
    cluster::{Cluster, patch, until},
    history::Change,
};

use crate::{
    fence::the_two,
    stage::{DAEMON_NAMESPACE, Stage, Story, story},
    switching::{Installed, Movers, Site, churn, deployment, rights_used},
};

/// For how long a process of kube-controller-manager may have led that is freed.
const MOST_LED: SignedDuration = SignedDuration::from_secs(5);

pub fn stories() -> Vec<Story> {
    let why = "kube-controller-manager exits when its lease is taken, and policies deny what it writes.";
    vec![
        story("switch_over_and_back_under_churn", over_and_back).only_real(why),
        story("switch_takes_loops_one_at_a_time", one_at_a_time).only_real_if_all(why),
        story("switch_goes_one_way_and_back_by_a_restart", one_way).only_real_if_all(why),
    ]
}

/// Whoever may switch may not say what runs with mooring's rights.
async fn is_no_way_to_another_image(kubeconfig: &PathBuf) {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    let theirs: Api<Deployment> = Api::namespaced(Client::try_from(config).unwrap(), DAEMON_NAMESPACE);
    let container = json!([{ "name": "mooring", "image": "another" }]);
    let image = json!({ "spec": { "template": { "spec": { "containers": container } } } });
    let refused = theirs.patch("mooring", &PatchParams::default(), &Patch::Merge(image)).await;
    assert!(matches!(refused, Err(kube::Error::Api(status)) if status.code == 403));
}

/// The Deployment with these controllers.
fn running(controllers: &[&str]) -> Value {
    let mut deployment = deployment();
    let flag = format!("--controllers={}", controllers.join(","));
    deployment["spec"]["template"]["spec"]["containers"][0]["args"] = json!(["run", "--fence", flag]);
    deployment
}

/// Only attach/detach of kube-controller-manager goes on from what it remembers: the binder alone comes and goes without its lease.
async fn one_at_a_time(stage: Stage) {
    let (_attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    let [attach_detach, binder] = the_two();
    let site = Site { deployment: running(&[binder.controller]), ..Site::default() };
    let installed = Installed::at(&stage, site).await;
    churn(&stage, 1).await;
    let before = installed.holder().await;
    let [over, back] = ["mooring", "kube-controller-manager"].map(|to| ["--to", to, "--yes"]);
    let done = async |words: &[&str], says: &str| {
        let (code, said) = installed.switch(words).await;
        assert!(code == Some(0) && said.contains(says) && !said.contains("stood still"), "{code:?} {said}");
    };
    done(&over, "raise the fence").await;
    churn(&stage, 2).await;
    let (code, plan) = installed.switch(&["--to", "kube-controller-manager"]).await;
    assert!(code == Some(1) && !plan.contains("lease until"), "{code:?} {plan}");
    done(&back, "take the fence down").await;
    churn(&stage, 3).await;
    done(&over, "start mooring").await;

    let roll_out = async |controllers: &[&str]| {
        patch(&installed.deployments, "mooring", json!({ "spec": running(controllers)["spec"] })).await;
    };
    roll_out(&[attach_detach.controller, binder.controller]).await;
    done(&over, "raise the fence").await;
    churn(&stage, 4).await;
    roll_out(&[attach_detach.controller]).await;
    done(&over, "take the fences down of loops that mooring does not run: persistentvolume-binder").await;
    churn(&stage, 5).await;
    assert_eq!(installed.holder().await, before, "no process of kube-controller-manager had to end");
    roll_out(&[binder.controller]).await;
    let (code, said) = installed.switch(&over).await;
    assert!(code == Some(2) && said.contains("attach-detach-controller is fenced off"), "{code:?} {said}");
    let (code, said) = installed.switch(&back).await;
    assert!(code == Some(0) && said.contains("stood still for"), "{code:?} {said}");
    churn(&stage, 6).await;
    assert_ne!(installed.holder().await, before);
    installed.ends_well().await;
}

async fn over_and_back(stage: Stage) {
    let (_attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    let cluster = stage.cluster.clone();
    let installed = Installed::at(&stage, Site::default()).await;
    is_no_way_to_another_image(&installed.kubeconfig).await;
    // A pod that stays.
    cluster.bound_pair("v", "c").await;
    cluster.pod("p", "n1", &["c"]).await;
    cluster.running("p").await;
    churn(&stage, 1).await;
    let mut movers = Movers::start(&stage).await;

    // Where nobody leads, one that waits for the fence is ready after a while.
    let is_ready = |found: Option<&Deployment>| {
        found
            .is_some_and(|found| found.status.as_ref().is_some_and(|status| status.ready_replicas == Some(1)))
    };
    until(installed.deployments.clone(), "mooring", "a replica that is ready", is_ready).await;
    installed.hide_manager().await;
    let (code, said) = installed.switch(&["--to", "mooring"]).await;
    assert!(code == Some(1) && said.contains("next: raise the fence"), "{code:?} {said}");
    assert!(said.contains("but no pod of it is seen"), "{said}");
    let over = ["--to", "mooring", "--yes"];
    let ((code, said), ()) = tokio::join!(installed.switch(&over), churn(&stage, 2));
    assert!(code == Some(0) && said.contains("nobody ruled for"), "{code:?} {said}");
    eprintln!("over: {said}");
    tells_who_has_raised_it(&cluster).await;
    let (code, said) = installed.switch(&["--to", "mooring", "--yes"]).await;
    assert_eq!((code, said.contains("done\n")), (Some(0), true), "again, nothing is left to do: {said}");

    // What somebody has changed of the fence is repaired.
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(cluster.client.clone());
    let [_, binder] = the_two();
    let name = binder.name();
    for changed in [json!(["Audit"]), json!(["Warn"])] {
        let matched = json!({ "namespaceSelector": { "matchLabels": { "a": "b" } } });
        patch(
            &bindings,
            &name,
            json!({ "spec": { "validationActions": changed, "matchResources": matched } }),
        )
        .await;
        let (code, said) = installed.switch(&over).await;
        assert_eq!((code, said.contains("done")), (Some(0), true), "{said}");
        let spec = bindings.get(&name).await.unwrap().spec.unwrap();
        assert_eq!(spec.validation_actions, Some(vec!["Deny".to_owned()]));
    }

    // A fence of another version is not.
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(cluster.client.clone());
    let other = json!([{ "expression": "false", "message": "(fence 0000)", "reason": "Forbidden" }]);
    patch(&policies, &name, json!({ "spec": { "validations": other } })).await;
    let (code, said) = installed.switch(&over).await;
    assert!(code == Some(2) && said.contains("of another version, (fence 0000)"), "{code:?} {said}");
    let (code, said) = installed.switch(&[&over[..], &["--replace-fence"]].concat()).await;
    assert_eq!((code, said.contains("done")), (Some(0), true), "{said}");

    let (code, said) = installed.switch(&["--to", "kube-controller-manager"]).await;
    assert!(code == Some(1) && said.contains("next: let mooring finish"), "{code:?} {said}");
    let back = ["--to", "kube-controller-manager", "--yes"];
    let (code, said) = installed.switch(&[&back[..], &["--max-pause", "20s"]].concat()).await;
    assert!(code == Some(2) && said.contains("its lease lasts 15 s"), "{code:?} {said}");
    // A switch that is gone asks for nothing any more, and the next one takes its word back.
    installed.begin(&back).killed_at("let mooring finish").await;
    let (code, said) = installed.switch(&over).await;
    assert_eq!((code, said.contains("done\n")), (Some(0), true), "{said}");
    installed.begin(&back).killed_at("hold kube-controller-manager's lease").await;
    let mut going = installed.begin(&back);
    while going.line().await.is_some() {
        movers.go().await;
    }
    let (code, said) = going.ended().await;
    assert!(code == Some(0) && said.contains("stood still for"), "{code:?} {said}");
    eprintln!("back: {said}");
    movers.arrive().await;
    churn(&stage, 3).await;
    // And over again, where it stopped.
    let (code, said) = installed.switch(&["--to", "mooring", "--yes"]).await;
    assert!(code == Some(0) && said.contains("start mooring"), "{code:?} {said}");
    churn(&stage, 4).await;
    assert!(cluster.attachment_now("v", "n1").await.is_some(), "nobody has touched what is in use");
    installed.ends_well().await;
    rights_are_those_that_are_used(&stage);
}

/// The fence says who has raised it, when and with which versions, and an event does.
async fn tells_who_has_raised_it(cluster: &Cluster) {
    let server = cluster.client.apiserver_version().await.unwrap().git_version;
    let who = format!(
        "by system:serviceaccount:{DAEMON_NAMESPACE}:switcher with mooring {} and API server {server}",
        env!("CARGO_PKG_VERSION")
    );
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(cluster.client.clone());
    for fence in the_two() {
        let annotations = policies.get(&fence.name()).await.unwrap().metadata.annotations.unwrap();
        let raised = annotations.get(RAISED).unwrap_or_else(|| panic!("{annotations:?}"));
        let time = raised.strip_suffix(&who).unwrap_or_else(|| panic!("{raised}"));
        assert!(time.trim().parse::<Timestamp>().is_ok(), "{raised}");
    }
    cluster.event_with("mooring", "Switched", &format!("Fenced kube-controller-manager off, {who}")).await;
}

/// When a holder of the lease has taken it, and when it has renewed it.
fn times(lease: &Lease) -> Option<[Timestamp; 2]> {
    let spec = lease.spec.as_ref()?;
    Some([spec.acquire_time.as_ref()?.0, spec.renew_time.as_ref()?.0])
}

/// Whoever cannot write kube-controller-manager's lease goes back by a restart of kube-controller-manager while it is fenced off. The
/// fence goes for a process alone that has just begun to lead.
async fn one_way(stage: Stage) {
    let (_attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    let site = Site { account: "one-way", writes_lease: false, ..Site::default() };
    let installed = Installed::at(&stage, site).await;
    churn(&stage, 1).await;
    let over = ["--to", "mooring", "--yes"];
    let (code, said) = installed.switch(&over).await;
    assert!(code == Some(2) && said.contains("there is no way back"), "{code:?} {said}");
    let (code, said) = installed.switch(&[&over[..], &["--one-way"]].concat()).await;
    assert!(code == Some(0) && said.contains("nobody ruled for"), "{code:?} {said}");
    churn(&stage, 2).await;

    // Its manifest is read, too.
    let back = ["--to", "kube-controller-manager", "--yes"];
    let [attach_detach, _] = the_two();
    let all = installed.manifest.borrow().clone().unwrap();
    let without = all.iter().copied().filter(|controller| *controller != attach_detach.controller);
    installed.follows_manifest(without.collect()).await;
    let (code, said) = installed.switch(&back).await;
    assert!(code == Some(2) && said.contains("switched off by its --controllers"), "{code:?} {said}");
    installed.follows_manifest(all).await;

    let by_restart = [&back[..], &["--manager-was-restarted"]].concat();
    let (code, said) = installed.switch(&by_restart).await;
    assert!(
        code == Some(2) && said.contains("a restart counts after mooring has stopped"),
        "{code:?} {said}"
    );
    let mut movers = Movers::start(&stage).await;
    let mut going = installed.begin(&back);
    while going.line().await.is_some() {
        movers.go().await;
    }
    let (code, said) = going.ended().await;
    let is_recorded = said.contains("record which process of kube-controller-manager leads");
    assert!(code == Some(2) && is_recorded && said.contains("cannot be held"), "{code:?} {said}");

    // One that has led behind the fence for longer was denied writes.
    let leases: Api<Lease> = Api::namespaced(stage.cluster.client.clone(), "kube-system");
    let recorded = installed.holder().await;
    installed.kill_manager().await;
    let has_led = |lease: Option<&Lease>| {
        let Some(lease) = lease else { return false };
        let is_new = lease.spec.as_ref().is_some_and(|spec| spec.holder_identity.as_ref() != Some(&recorded));
        is_new && times(lease).is_some_and(|[acquired, renewed]| renewed.duration_since(acquired) > MOST_LED)
    };
    until(leases.clone(), "kube-controller-manager", "another process leads for a while", has_led).await;
    let was_denied = installed.holder().await;
    let mut going = installed.begin(&by_restart);
    while let Some(line) = going.line().await {
        movers.go().await;
        if line.contains("wait until another process of kube-controller-manager leads") {
            installed.kill_manager().await;
        }
    }
    let (code, said) = going.ended().await;
    assert!(code == Some(0) && said.contains("done"), "{code:?} {said}");
    movers.arrive().await;
    churn(&stage, 3).await;
    let freed = installed.holder().await;
    assert!(freed != was_denied && freed != recorded, "{freed} was denied writes: {said}");
    let led = led_behind_the_fence(&stage.history().await, &freed);
    assert!(led.is_none_or(|led| led <= MOST_LED), "{led:?}");
    installed.ends_well().await;
}

/// For how long a process had led when it renewed its lease last before the first binding went, if it led then.
fn led_behind_the_fence(history: &[Change], holder: &str) -> Option<SignedDuration> {
    let is_gone =
        |change: &&Change| change.resource == "validatingadmissionpolicybindings" && change.after.is_none();
    let freed = history.iter().rev().take_while(|change| !is_gone(change)).count();
    let before = &history[..history.len() - freed];
    let lease = before
        .iter()
        .rev()
        .find(|change| change.resource == "leases" && change.name == "kube-system/kube-controller-manager");
    let lease: Lease = serde_json::from_value(lease?.after.clone()?).ok()?;
    let is_held = lease.spec.as_ref()?.holder_identity.as_deref() == Some(holder);
    let [acquired, renewed] = times(&lease).filter(|_| is_held)?;
    Some(renewed.duration_since(acquired))
}

/// deploy/switcher is enough, as it has worked with that alone, and no more. Of policies it has those of the fence alone.
fn rights_are_those_that_are_used(stage: &Stage) {
    let mut used: BTreeSet<(String, String)> = rights_used(stage, "switcher")
        .into_iter()
        // What is applied and not there yet takes the right to create it, too.
        .flat_map(|(resource, verb)| {
            let creates =
                (verb == "patch" && resource.starts_with("validating")).then(|| "create".to_owned());
            [Some(verb), creates].into_iter().flatten().map(move |verb| (resource.clone(), verb))
        })
        // Every user may ask who it is.
        .filter(|(resource, _)| resource != "selfsubjectreviews")
        .collect();
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(include_str!("../../deploy/switcher/rbac.yaml")).unwrap();
    let list = |rule: &Value, field: &str| -> Vec<String> {
        rule[field].as_array().into_iter().flatten().map(|item| item.as_str().unwrap().to_owned()).collect()
    };
    let mut granted = BTreeSet::new();
    for rule in documents.iter().flat_map(|document| document["rules"].as_array().unwrap()) {
        for resource in list(rule, "resources") {
            if resource.starts_with("validating") {
                assert_eq!(list(rule, "resourceNames"), FENCES.each_ref().map(Fence::name), "{resource}");
            }
            granted.extend(list(rule, "verbs").into_iter().map(|verb| (resource.clone(), verb)));
        }
    }
    // Whether it is exclusive is asked of a volume that its node does not list; here there may be none at the time.
    used.insert(("persistentvolumes".to_owned(), "list".to_owned()));
    assert_eq!(used, granted);
}
