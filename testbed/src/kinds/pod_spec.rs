//! The spec of a pod: its defaults, its validation, its quality of service.
//!
//! The server checks containers (name, image, mounts), volumes and the policies. It accepts probes,
//! ports, resources, affinity and security contexts without a check; the list of deliberate differences
//! names this.

use serde_json::{Value, json};

use crate::{
    json,
    schema::quantity,
    status::Causes,
    validate::{is_label, one_of, subdomain},
};

const CONTAINERS: [&str; 2] = ["/spec/containers", "/spec/initContainers"];
/// Files of a mounted secret or config map are readable for all, in decimal.
const FILE_MODE: i64 = 0o644;
/// Life of a projected token, in seconds.
const TOKEN_SECONDS: i64 = 3600;

/// Fills in what decoding fills in.
// kube-apiserver: pkg/apis/core/v1/defaults.go, SetDefaults_Pod and those of its parts.
pub fn default(object: &mut Value) {
    for (path, value) in [
        ("/spec/dnsPolicy", "ClusterFirst"),
        ("/spec/restartPolicy", "Always"),
        ("/spec/schedulerName", "default-scheduler"),
    ] {
        json::set_default(object, path, value);
    }
    if !json::is_set(object, "/spec/securityContext") {
        json::set(object, "/spec/securityContext", json!({}));
    }
    if !json::is_set(object, "/spec/terminationGracePeriodSeconds") {
        json::set(object, "/spec/terminationGracePeriodSeconds", 30);
    }
    if !json::is_set(object, "/spec/enableServiceLinks") {
        json::set(object, "/spec/enableServiceLinks", true);
    }
    default_account(object);
    // kube-apiserver: pkg/apis/core/v1/conversion.go: the first of podIPs is also podIP.
    json::pair_first(object, "/status/podIP", "/status/podIPs", "/ip");
    let is_host_network = object.pointer("/spec/hostNetwork") == Some(&Value::Bool(true));
    for list in CONTAINERS {
        for container in json::elements_mut(object, list) {
            default_container(container, is_host_network);
        }
    }
    for volume in json::elements_mut(object, "/spec/volumes") {
        default_volume(volume);
    }
}

/// The account has an old name and a new one, and both are always there.
fn default_account(object: &mut Value) {
    let (new, old) = ("/spec/serviceAccountName", "/spec/serviceAccount");
    let account = match json::text(object, new) {
        "" => json::text(object, old).to_owned(),
        name => name.to_owned(),
    };
    if !account.is_empty() {
        json::set(object, new, account.clone());
        json::set(object, old, account);
    }
}

fn default_container(container: &mut Value, is_host_network: bool) {
    let image = json::text(container, "/image");
    let name = image.rsplit('/').next().unwrap_or_default();
    let is_latest = name.ends_with(":latest") || !(name.is_empty() || name.contains([':', '@']));
    json::set_default(container, "/imagePullPolicy", if is_latest { "Always" } else { "IfNotPresent" });
    json::set_default(container, "/terminationMessagePath", "/dev/termination-log");
    json::set_default(container, "/terminationMessagePolicy", "File");
    for port in json::elements_mut(container, "/ports") {
        json::set_default(port, "/protocol", "TCP");
        if is_host_network
            && !json::is_set(port, "/hostPort")
            && let Some(number) = json::number(port, "/containerPort")
        {
            json::set(port, "/hostPort", number);
        }
    }
    if let Some(limits) = json::map(container, "/resources/limits").cloned() {
        for (resource, amount) in limits {
            let path = format!("/resources/requests/{}", resource.replace('~', "~0").replace('/', "~1"));
            if !json::is_set(container, &path) {
                json::set(container, &path, amount);
            }
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let path = format!("/{probe}");
        if !json::is_set(container, &path) {
            continue;
        }
        for (field, value) in
            [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)]
        {
            if json::number(container, &format!("{path}/{field}")).unwrap_or(0) == 0 {
                json::set(container, &format!("{path}/{field}"), value);
            }
        }
        if json::is_set(container, &format!("{path}/httpGet")) {
            json::set_default(container, &format!("{path}/httpGet/path"), "/");
            json::set_default(container, &format!("{path}/httpGet/scheme"), "HTTP");
        }
    }
    for variable in json::elements_mut(container, "/env") {
        if json::is_set(variable, "/valueFrom/fieldRef") {
            json::set_default(variable, "/valueFrom/fieldRef/apiVersion", "v1");
        }
    }
}

fn default_volume(volume: &mut Value) {
    let has_source = volume.as_object().is_some_and(|fields| fields.keys().any(|name| name != "name"));
    if !has_source {
        json::set(volume, "/emptyDir", json!({}));
    }
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if json::is_set(volume, &format!("/{source}"))
            && !json::is_set(volume, &format!("/{source}/defaultMode"))
        {
            json::set(volume, &format!("/{source}/defaultMode"), FILE_MODE);
        }
    }
    for source in json::elements_mut(volume, "/projected/sources") {
        let seconds = "/serviceAccountToken/expirationSeconds";
        if json::is_set(source, "/serviceAccountToken") && !json::is_set(source, seconds) {
            json::set(source, seconds, TOKEN_SECONDS);
        }
    }
    if json::is_set(volume, "/hostPath") && !json::is_set(volume, "/hostPath/type") {
        json::set(volume, "/hostPath/type", "");
    }
    if json::is_set(volume, "/iscsi") {
        json::set_default(volume, "/iscsi/iscsiInterface", "default");
    }
    if json::is_set(volume, "/ephemeral/volumeClaimTemplate") {
        json::set_default(volume, "/ephemeral/volumeClaimTemplate/spec/volumeMode", "Filesystem");
    }
}

/// How the pod's resources are guaranteed.
// kube-apiserver: pkg/apis/core/helper/qos/qos.go, ComputePodQOS.
pub fn quality_of_service(object: &Value) -> &'static str {
    let mut has_any = false;
    let mut is_guaranteed = true;
    for container in CONTAINERS.iter().flat_map(|list| json::list(object, list)) {
        for resource in ["cpu", "memory"] {
            let amount = |of: &str| {
                let text = json::text(container, &format!("/resources/{of}/{resource}"));
                quantity::number(text).filter(|number| *number > 0)
            };
            let (request, limit) = (amount("requests"), amount("limits"));
            has_any |= request.is_some() || limit.is_some();
            is_guaranteed &= limit.is_some() && request == limit;
        }
    }
    match (has_any, is_guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// Checks the spec.
pub fn validate(object: &Value, causes: &mut Causes) {
    let volumes = validate_volumes(object, causes);
    if json::list(object, "/spec/containers").is_empty() {
        causes.required("spec.containers", "");
    }
    let mut names: Vec<&str> = Vec::new();
    for (path, field) in
        [("/spec/containers", "spec.containers"), ("/spec/initContainers", "spec.initContainers")]
    {
        for (index, container) in json::list(object, path).iter().enumerate() {
            let field = format!("{field}[{index}]");
            let name = json::text(container, "/name");
            check_label(name, &format!("{field}.name"), causes);
            if names.contains(&name) {
                causes.duplicate(format!("{field}.name"), &name.into());
            }
            names.push(name);
            validate_container(container, &field, &volumes, causes);
        }
    }
    let policies = ["Always", "OnFailure", "Never"];
    one_of(json::text(object, "/spec/restartPolicy"), &policies, "spec.restartPolicy", causes);
    let policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    one_of(json::text(object, "/spec/dnsPolicy"), &policies, "spec.dnsPolicy", causes);
    let node = json::text(object, "/spec/nodeName");
    if !node.is_empty() {
        subdomain(node, "spec.nodeName", causes);
    }
    let account = json::text(object, "/spec/serviceAccountName");
    if !account.is_empty() {
        subdomain(account, "spec.serviceAccountName", causes);
    }
    if json::number(object, "/spec/activeDeadlineSeconds").is_some_and(|seconds| seconds < 1) {
        causes.invalid("spec.activeDeadlineSeconds", &Value::Null, "must be greater than zero");
    }
    if !json::list(object, "/spec/schedulingGates").is_empty() && !node.is_empty() {
        causes.forbidden("spec.nodeName", "cannot be set until all schedulingGates have been cleared");
    }
}

fn check_label(name: &str, field: &str, causes: &mut Causes) {
    if name.is_empty() {
        causes.required(field, "");
    } else if !is_label(name) {
        causes.invalid(field, &name.into(), "a lowercase RFC 1123 label is needed");
    }
}

fn validate_volumes<'a>(object: &'a Value, causes: &mut Causes) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for (index, volume) in json::list(object, "/spec/volumes").iter().enumerate() {
        let field = format!("spec.volumes[{index}]");
        let name = json::text(volume, "/name");
        check_label(name, &format!("{field}.name"), causes);
        if names.contains(&name) {
            causes.duplicate(format!("{field}.name"), &name.into());
        }
        names.push(name);
        let sources = volume.as_object().into_iter().flatten().filter(|(key, _)| *key != "name");
        for (key, _) in sources.skip(1) {
            causes.forbidden(format!("{field}.{key}"), "may not specify more than 1 volume type");
        }
        if json::is_set(volume, "/persistentVolumeClaim")
            && json::text(volume, "/persistentVolumeClaim/claimName").is_empty()
        {
            causes.required(format!("{field}.persistentVolumeClaim.claimName"), "");
        }
        if json::is_set(volume, "/csi") {
            super::volume::driver_name(
                json::text(volume, "/csi/driver"),
                &format!("{field}.csi.driver"),
                causes,
            );
        }
        if json::is_set(volume, "/hostPath") && json::text(volume, "/hostPath/path").is_empty() {
            causes.required(format!("{field}.hostPath.path"), "");
        }
        if json::is_set(volume, "/ephemeral") && !json::is_set(volume, "/ephemeral/volumeClaimTemplate") {
            causes.required(format!("{field}.ephemeral.volumeClaimTemplate"), "");
        }
    }
    names
}

fn validate_container(container: &Value, field: &str, volumes: &[&str], causes: &mut Causes) {
    let image = json::text(container, "/image");
    if image.is_empty() {
        causes.required(format!("{field}.image"), "");
    } else if image.trim() != image {
        causes.invalid(
            format!("{field}.image"),
            &image.into(),
            "must not have leading or trailing whitespace",
        );
    }
    let policies = ["Always", "IfNotPresent", "Never"];
    one_of(json::text(container, "/imagePullPolicy"), &policies, format!("{field}.imagePullPolicy"), causes);
    for (list, place) in [("volumeMounts", "mountPath"), ("volumeDevices", "devicePath")] {
        let mut places: Vec<&str> = Vec::new();
        for (index, mount) in json::list(container, &format!("/{list}")).iter().enumerate() {
            let field = format!("{field}.{list}[{index}]");
            let name = json::text(mount, "/name");
            if name.is_empty() {
                causes.required(format!("{field}.name"), "");
            }
            if !volumes.contains(&name) {
                causes.0.push(crate::status::Cause {
                    reason: "FieldValueNotFound",
                    field: format!("{field}.name"),
                    message: format!("Not found: {name:?}"),
                });
            }
            let path = json::text(mount, &format!("/{place}"));
            if path.is_empty() {
                causes.required(format!("{field}.{place}"), "");
            }
            if places.contains(&path) {
                causes.invalid(format!("{field}.{place}"), &path.into(), "must be unique");
            }
            places.push(path);
        }
    }
}
