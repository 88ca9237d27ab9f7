//! `mooring switch` over and back on the real API server, with a real kube-controller-manager. A stand-in starts and ends the
//! daemon as its Deployment says, and another one starts kube-controller-manager again when it has exited.

use std::{collections::BTreeSet, path::PathBuf, process::Stdio, time::Duration};

use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    apps::v1::Deployment,
    coordination::v1::Lease,
};
use kube::{
    Api, Client, Config,
    api::{DeleteParams, Patch, PatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use mooring::fence::policies::{FENCES, Fence};
use serde_json::{Value, json};
use test_support::{
    cluster::{create, patch, patch_status, until},
    daemon::{Daemon, Launch},
};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
    task::JoinHandle,
    time::sleep,
};

use crate::{
    fence::{stock, the_two},
    stage::{DAEMON_NAMESPACE, PROGRAM, Stage, Story, story},
};

pub fn stories() -> Vec<Story> {
    let why = "kube-controller-manager exits when its lease is taken, and policies deny what it writes.";
    vec![
        story("switch_over_and_back_under_churn", over_and_back).only_real(why),
        story("switch_takes_loops_one_at_a_time", one_at_a_time).only_real_if_all(why),
    ]
}

/// Runs the daemon as the Deployment says.
async fn kubelet_of_the_daemon(stage: Stage) {
    let deployments: Api<Deployment> = Api::namespaced(stage.cluster.client.clone(), DAEMON_NAMESPACE);
    let mut running: Option<(Daemon, Vec<String>)> = None;
    loop {
        let deployment = deployments.get("mooring").await.expect("the Deployment");
        let generation = deployment.metadata.generation;
        let spec = deployment.spec.expect("a spec");
        let template = spec.template.spec.expect("a template").containers.remove(0);
        let flags = template.args.expect("arguments").split_off(1);
        let wanted = spec.replicas.unwrap_or_default() > 0;
        let is_other = running.as_ref().is_some_and(|(_, known)| *known != flags);
        let ready = match (running.take(), wanted && !is_other) {
            (None, true) => {
                let launch =
                    flags.iter().fold(Launch::replica(DAEMON_NAMESPACE), |launch, flag| launch.with(flag));
                running = Some((stage.start_daemon(&launch, &stage.proxy).await, flags));
                Some(1)
            }
            (Some((daemon, _)), false) => {
                assert_eq!(daemon.terminate().await, Some(0));
                Some(0)
            }
            (before, _) => {
                running = before;
                None
            }
        };
        if let Some(ready) = ready {
            let status = json!({ "status": {
                "observedGeneration": generation,
                "replicas": ready, "updatedReplicas": ready, "readyReplicas": ready,
            } });
            patch_status(&deployments, "mooring", status).await;
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Runs kube-controller-manager, again and again.
async fn kubelet_of_the_manager(stage: Stage) {
    let loops: Vec<&str> = FENCES.iter().map(|fence| fence.controller).collect();
    loop {
        stock(&stage, &loops, &["--leader-elect=true"]).ended().await;
    }
}

/// What the program says, as somebody with the rights of deploy/switcher and no others.
async fn switch(kubeconfig: &PathBuf, words: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(PROGRAM).arg("switch").args(words).arg("--kubeconfig").arg(kubeconfig).output();
    let output = output.await.unwrap();
    let said = [output.stdout, output.stderr].map(|said| String::from_utf8(said).unwrap()).concat();
    (output.status.code(), said)
}

/// Kills it (SIGKILL) when it says this.
async fn killed_at(kubeconfig: &PathBuf, words: &[&str], line: &str) {
    let mut command = Command::new(PROGRAM);
    command.arg("switch").args(words).arg("--kubeconfig").arg(kubeconfig).stderr(Stdio::piped());
    let mut running = command.spawn().unwrap();
    let mut lines = BufReader::new(running.stderr.take().unwrap()).lines();
    while !lines.next_line().await.unwrap().expect("it says it").contains(line) {}
    running.kill().await.unwrap();
}

/// An account with these rights alone; its kubeconfig.
async fn switcher(stage: &Stage) -> PathBuf {
    let cluster = &stage.cluster;
    cluster.apply(include_str!("../../deploy/switcher/rbac.yaml")).await;
    let account = json!({ "kind": "ServiceAccount", "name": "switcher", "namespace": DAEMON_NAMESPACE });
    let made = json!({ "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": { "name": "switcher", "namespace": DAEMON_NAMESPACE } });
    cluster.apply(&made.to_string()).await;
    let binding = |kind: &str, role: &str, namespace: Option<&str>| {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind,
            "metadata": { "name": "switcher", "namespace": namespace },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": "mooring-switcher" },
            "subjects": [account],
        })
    };
    for binding in [
        binding("ClusterRoleBinding", "ClusterRole", None),
        binding("RoleBinding", "Role", Some("kube-system")),
        binding("RoleBinding", "Role", Some(DAEMON_NAMESPACE)),
    ] {
        cluster.apply(&binding.to_string()).await;
    }
    let plane = &stage.real().plane;
    plane.kubeconfig(plane.url(), &plane.service_account_token(DAEMON_NAMESPACE, "switcher").await)
}

/// The Deployment, without replicas.
pub fn deployment() -> Value {
    let labels = json!({ "app": "mooring" });
    let container = json!({ "name": "mooring", "image": "mooring", "args": ["run", "--fence"] });
    json!({
        "metadata": { "name": "mooring" },
        "spec": {
            "replicas": 1, "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": { "containers": [container] } },
        },
    })
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

/// Pods come with their volumes, move, and go.
async fn churn(stage: &Stage, round: usize) {
    let cluster = &stage.cluster;
    for number in 0..3 {
        let name = |kind: &str| format!("{kind}{round}-{number}");
        let (volume, claim, pod) = (name("v"), name("c"), name("p"));
        cluster.bound_pair(&volume, &claim).await;
        for node in ["n1", "n2"] {
            cluster.pod(&pod, node, &[&claim]).await;
            cluster.running(&pod).await;
            cluster.delete_pod(&pod).await;
            cluster.pod_gone(&pod).await;
            cluster.detached(&volume, node).await;
        }
    }
}

/// Two nodes, the Deployment, and kube-controller-manager, which leads. Returns the Deployments, the account that switches, and
/// who runs what is there.
async fn installed(stage: &Stage, deployment: Value) -> (Api<Deployment>, PathBuf, [JoinHandle<()>; 2]) {
    let cluster = &stage.cluster;
    let leases = |namespace: &str| Api::<Lease>::namespaced(cluster.client.clone(), namespace);
    leases(DAEMON_NAMESPACE).delete("mooring", &DeleteParams::default()).await.ok();
    leases("kube-system").delete("kube-controller-manager", &DeleteParams::default()).await.ok();
    let deployments: Api<Deployment> = Api::namespaced(cluster.client.clone(), DAEMON_NAMESPACE);
    deployments.delete("mooring", &DeleteParams::default()).await.ok();
    create(&deployments, deployment).await;
    let kubeconfig = switcher(stage).await;
    let hands = [
        tokio::spawn(kubelet_of_the_daemon(stage.clone())),
        tokio::spawn(kubelet_of_the_manager(stage.clone())),
    ];
    cluster.node("n1").await;
    cluster.node("n2").await;
    (deployments, kubeconfig, hands)
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
    let (deployments, kubeconfig, hands) = installed(&stage, running(&[binder.controller])).await;
    let leases = Api::<Lease>::namespaced(stage.cluster.client.clone(), "kube-system");
    let holder = async || {
        let lease = leases.get("kube-controller-manager").await.unwrap();
        lease.spec.and_then(|spec| spec.holder_identity).unwrap()
    };
    churn(&stage, 1).await;
    let before = holder().await;
    let [over, back] = ["mooring", "kube-controller-manager"].map(|to| ["--to", to, "--yes"]);
    let done = async |words: &[&str], says: &str| {
        let (code, said) = switch(&kubeconfig, words).await;
        assert!(code == Some(0) && said.contains(says) && !said.contains("stood still"), "{code:?} {said}");
    };
    done(&over, "raise the fence").await;
    churn(&stage, 2).await;
    let (code, plan) = switch(&kubeconfig, &["--to", "kube-controller-manager"]).await;
    assert!(code == Some(1) && !plan.contains("lease until"), "{code:?} {plan}");
    done(&back, "take the fence down").await;
    churn(&stage, 3).await;
    done(&over, "start mooring").await;

    let roll_out = async |controllers: &[&str]| {
        patch(&deployments, "mooring", json!({ "spec": running(controllers)["spec"] })).await;
    };
    roll_out(&[attach_detach.controller, binder.controller]).await;
    done(&over, "raise the fence").await;
    churn(&stage, 4).await;
    roll_out(&[attach_detach.controller]).await;
    done(&over, "take the fences down of loops that mooring does not run: persistentvolume-binder").await;
    churn(&stage, 5).await;
    assert_eq!(holder().await, before, "no process of kube-controller-manager had to end");
    roll_out(&[binder.controller]).await;
    let (code, said) = switch(&kubeconfig, &over).await;
    assert!(code == Some(2) && said.contains("attach-detach-controller is fenced off"), "{code:?} {said}");
    let (code, said) = switch(&kubeconfig, &back).await;
    assert!(code == Some(0) && said.contains("stood still for"), "{code:?} {said}");
    churn(&stage, 6).await;
    assert_ne!(holder().await, before);
    for hand in hands {
        hand.abort();
    }
    deployments.delete("mooring", &DeleteParams::default()).await.unwrap();
}

async fn over_and_back(stage: Stage) {
    let (_attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    let cluster = stage.cluster.clone();
    let (deployments, kubeconfig, hands) = installed(&stage, deployment()).await;
    is_no_way_to_another_image(&kubeconfig).await;
    // A pod that stays.
    cluster.bound_pair("v", "c").await;
    cluster.pod("p", "n1", &["c"]).await;
    cluster.running("p").await;
    churn(&stage, 1).await;

    // Where nobody leads, one that waits for the fence is ready after a while.
    let is_ready = |found: Option<&Deployment>| {
        found
            .is_some_and(|found| found.status.as_ref().is_some_and(|status| status.ready_replicas == Some(1)))
    };
    until(deployments.clone(), "mooring", "a replica that is ready", is_ready).await;
    let (code, said) = switch(&kubeconfig, &["--to", "mooring"]).await;
    assert!(code == Some(1) && said.contains("next: raise the fence"), "{code:?} {said}");
    let over = ["--to", "mooring", "--yes"];
    let ((code, said), ()) = tokio::join!(switch(&kubeconfig, &over), churn(&stage, 2));
    assert!(code == Some(0) && said.contains("nobody ruled for"), "{code:?} {said}");
    eprintln!("over: {said}");
    let (code, said) = switch(&kubeconfig, &["--to", "mooring", "--yes"]).await;
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
        let (code, said) = switch(&kubeconfig, &over).await;
        assert_eq!((code, said.contains("done")), (Some(0), true), "{said}");
        let spec = bindings.get(&name).await.unwrap().spec.unwrap();
        assert_eq!(spec.validation_actions, Some(vec!["Deny".to_owned()]));
    }

    // A fence of another version is not.
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(cluster.client.clone());
    let other = json!([{ "expression": "false", "message": "(fence 0000)", "reason": "Forbidden" }]);
    patch(&policies, &name, json!({ "spec": { "validations": other } })).await;
    let (code, said) = switch(&kubeconfig, &over).await;
    assert!(code == Some(2) && said.contains("of another version, (fence 0000)"), "{code:?} {said}");
    let (code, said) = switch(&kubeconfig, &[&over[..], &["--replace-fence"]].concat()).await;
    assert_eq!((code, said.contains("done")), (Some(0), true), "{said}");

    let (code, said) = switch(&kubeconfig, &["--to", "kube-controller-manager"]).await;
    assert!(code == Some(1) && said.contains("next: let mooring finish"), "{code:?} {said}");
    let back = ["--to", "kube-controller-manager", "--yes"];
    let (code, said) = switch(&kubeconfig, &[&back[..], &["--max-pause", "20s"]].concat()).await;
    assert!(code == Some(2) && said.contains("its lease lasts 15 s"), "{code:?} {said}");
    // A switch that is gone asks for nothing any more, and the next one takes its word back.
    killed_at(&kubeconfig, &back, "let mooring finish").await;
    let (code, said) = switch(&kubeconfig, &over).await;
    assert_eq!((code, said.contains("done\n")), (Some(0), true), "{said}");
    killed_at(&kubeconfig, &back, "hold kube-controller-manager's lease").await;
    let (code, said) = switch(&kubeconfig, &back).await;
    assert!(code == Some(0) && said.contains("stood still for"), "{code:?} {said}");
    eprintln!("back: {said}");
    churn(&stage, 3).await;
    // And over again, where it stopped.
    let (code, said) = switch(&kubeconfig, &["--to", "mooring", "--yes"]).await;
    assert!(code == Some(0) && said.contains("start mooring"), "{code:?} {said}");
    churn(&stage, 4).await;
    assert!(cluster.attachment_now("v", "n1").await.is_some(), "nobody has touched what is in use");
    for hand in hands {
        hand.abort();
    }
    deployments.delete("mooring", &DeleteParams::default()).await.unwrap();
    rights_are_those_that_are_used(&stage);
}

/// deploy/switcher is enough, as it has worked with that alone, and no more. Of policies it has those of the fence alone.
fn rights_are_those_that_are_used(stage: &Stage) {
    let account = format!("system:serviceaccount:{DAEMON_NAMESPACE}:switcher");
    let requests = stage.requests();
    let mut used: BTreeSet<(String, String)> = requests
        .iter()
        .filter(|entry| entry.user == account && !entry.resource.is_empty() && entry.code != 403)
        .map(|entry| (entry.resource.clone(), entry.verb.clone()))
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
