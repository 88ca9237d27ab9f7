//! `/configz`, `/flagz`, `/statusz` and `/version`, as Kubernetes' components have them.
//!
//! In: the flags with their values, the configuration that came of them, what is running. Out: answers in the form
//! that is asked for. No file's content is in any of it, but names of files alone, so there are no secrets.
//!
//! Upstream: apiserver's pkg/server/flagz and pkg/server/statusz, component-base's configz.

use std::{collections::BTreeMap, fmt::Write, sync::LazyLock, time::Duration};

use http::StatusCode;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    build_info::{COMMIT, RUSTC, TARGET, VERSION},
    cli::ContentType,
    config::Config,
    http::{Answer, Router},
};

/// Name of the component.
const COMPONENT: &str = "mooring";

/// The API group of the structured forms.
const GROUP: &str = "config.k8s.io";

/// Their version. Upstream also has v1alpha1, which it warns of.
const GROUP_VERSION: &str = "v1beta1";

/// When the process started, once that was asked.
static STARTED: LazyLock<Timestamp> = LazyLock::new(Timestamp::now);

/// Adds the pages, the last of all: one of them lists the others.
#[must_use]
pub fn add(router: Router, config: &Config) -> Router {
    let started = *STARTED;
    let (flags, settings) = (config.flags.clone(), configz(config));
    let router = router
        .json("/configz", move || settings.clone())
        .negotiated("/flagz", move |accept| flagz(&flags, accept))
        .json("/version", version);
    let mut paths: Vec<String> = router.paths().chain(["/statusz"]).map(first_segment).collect();
    paths.sort_unstable();
    paths.dedup();
    router.negotiated("/statusz", move |accept| statusz(started, Timestamp::now(), &paths, accept))
}

/// `/debug/watches` is below `/debug`.
fn first_segment(path: &str) -> String {
    let name = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    format!("/{name}")
}

/// In which form an answer is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text,
    Json,
}

/// The form that a request for a page of that kind accepts, if there is one: text unless something else is asked for,
/// JSON if the kind and its version are named.
// apiserver: pkg/server/flagz/negotiate/negotiation.go.
fn negotiated(accept: &str, kind: &str) -> Option<Form> {
    if accept.trim().is_empty() {
        return Some(Form::Text);
    }
    let mut accepted: Vec<(f32, Form)> = Vec::new();
    for clause in accept.split(',') {
        let mut parts = clause.split(';').map(str::trim);
        let media_type = parts.next().unwrap_or_default();
        let parameters: BTreeMap<&str, &str> = parts.filter_map(|part| part.split_once('=')).collect();
        let asked = ["as", "g", "v"].map(|name| parameters.get(name).copied());
        let form = match (media_type, asked) {
            ("*/*" | "text/*" | "text/plain", [None, None, None]) => Form::Text,
            ("*/*" | "application/*" | "application/json", asked)
                if asked == [Some(kind), Some(GROUP), Some(GROUP_VERSION)] =>
            {
                Form::Json
            }
            _ => continue,
        };
        let quality = parameters.get("q").and_then(|quality| quality.parse().ok()).unwrap_or(1.0);
        accepted.push((quality, form));
    }
    // The first of the best.
    let best = accepted.iter().map(|(quality, _)| *quality).fold(0.0, f32::max);
    accepted.into_iter().find(|(quality, _)| *quality > 0.0 && *quality >= best).map(|(_, form)| form)
}

fn not_acceptable(kind: &str) -> Answer {
    let text = format!(
        "only the following media types are accepted: text/plain, \
         application/json;v={GROUP_VERSION};g={GROUP};as={kind}\n"
    );
    Answer::text(StatusCode::NOT_ACCEPTABLE, text)
}

fn header(page: &str) -> String {
    format!(
        "\n{COMPONENT} {page}\nWarning: This endpoint is not meant to be machine parseable, has no formatting \
         compatibility guarantees and is for debugging purposes only.\n"
    )
}

fn structured(kind: &str, content: Value) -> Answer {
    let mut object = json!({
        "kind": kind,
        "apiVersion": format!("{GROUP}/{GROUP_VERSION}"),
        "metadata": { "name": COMPONENT },
    });
    if let (Some(object), Value::Object(content)) = (object.as_object_mut(), content) {
        object.extend(content);
    }
    Answer::json(&object)
}

fn flagz(flags: &BTreeMap<String, String>, accept: &str) -> Answer {
    const KIND: &str = "Flagz";
    match negotiated(accept, KIND) {
        None => not_acceptable(KIND),
        Some(Form::Json) => structured(KIND, json!({ "flags": flags })),
        Some(Form::Text) => {
            let mut text = header("flagz");
            for (flag, value) in flags {
                // Writing to a string cannot fail.
                let _ = writeln!(text, "{flag}={value}");
            }
            Answer::text(StatusCode::OK, text)
        }
    }
}

fn statusz(started: Timestamp, now: Timestamp, paths: &[String], accept: &str) -> Answer {
    const KIND: &str = "Statusz";
    let up = now.as_second().saturating_sub(started.as_second()).max(0);
    match negotiated(accept, KIND) {
        None => not_acceptable(KIND),
        Some(Form::Json) => structured(
            KIND,
            json!({
                "startTime": second(started),
                "uptimeSeconds": up,
                // There is none; upstream's type wants the field.
                "goVersion": "",
                "binaryVersion": VERSION,
                "paths": paths,
            }),
        ),
        Some(Form::Text) => {
            let text = format!(
                "{}\nStarted: {}\nUp: {} hr {:02} min {:02} sec\nRust version: {RUSTC}\nBinary version: {VERSION}\n\n\
                 Paths: {}\n",
                header("statusz"),
                second(started),
                up / 3600,
                up / 60 % 60,
                up % 60,
                paths.join(" "),
            );
            Answer::text(StatusCode::OK, text)
        }
    }
}

fn second(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}

/// With the fields of apimachinery's `version.Info`. What is built from equal sources is equal, so it has no date.
fn version() -> Value {
    let mut numbers = VERSION.split('.');
    let platform = TARGET.split('-').next().map(|architecture| match architecture {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    });
    json!({
        "major": numbers.next(),
        "minor": numbers.next(),
        "gitVersion": format!("v{VERSION}"),
        "gitCommit": COMMIT,
        "gitTreeState": "",
        "buildDate": "",
        "goVersion": "",
        "compiler": format!("rustc {RUSTC}"),
        "platform": format!("linux/{}", platform.unwrap_or_default()),
    })
}

/// The configuration in force, with the names of KCM's KubeControllerManagerConfiguration where it has the setting.
fn configz(config: &Config) -> Value {
    let content_type = match config.content_type {
        ContentType::Protobuf => "application/vnd.kubernetes.protobuf",
        ContentType::Json => "application/json",
    };
    let timing = config.election.as_ref().map(|election| election.timing);
    let (serving, force) = (&config.serving, &config.attach_detach.force);
    let sweep = config.attach_detach.sweep_period;
    let binder = &config.binder;
    json!({ COMPONENT: {
        "Generic": {
            "Address": serving.address,
            "Port": serving.port,
            "Debugging": { "EnableProfiling": config.profiling },
            "ClientConnection": {
                "kubeconfig": config.kubeconfig,
                "contentType": content_type,
                "qps": config.rate_limit.map(|limit| limit.qps),
                "burst": config.rate_limit.map(|limit| limit.burst),
            },
            "LeaderElection": {
                "leaderElect": timing.is_some(),
                "leaseDuration": timing.map(|timing| duration(timing.lease_duration)),
                "renewDeadline": timing.map(|timing| duration(timing.renew_deadline)),
                "retryPeriod": timing.map(|timing| duration(timing.retry_period)),
                "resourceLock": "leases",
                "resourceName": config.own_name,
                "resourceNamespace": config.own_namespace,
            },
        },
        "AttachDetachController": {
            "DisableAttachDetachReconcilerSync": sweep.is_none(),
            "ReconcilerSyncLoopPeriod": sweep.map(duration),
            "DisableForceDetachOnTimeout": !force.on_timeout,
        },
        "PersistentVolumeBinderController": {
            "PVClaimBinderSyncPeriod": duration(binder.sync_period),
            "VolumeConfiguration": {
                "EnableHostPathProvisioning": binder.enable_hostpath_provisioner,
                "EnableDynamicProvisioning": binder.enable_dynamic_provisioning,
            },
        },
        "Mooring": {
            "EnableRecycler": binder.recyclers.is_some(),
            "ForceDetachGoneNodeAfter": duration(force.gone),
            "LogFilter": config.log.filter,
            "RequestTimeout": duration(config.request_timeout),
            "WorkerThreads": config.worker_threads,
        },
    } })
}

/// As Go writes it: `1h0m0s`, `5m0s`, `11.5s`.
fn duration(duration: Duration) -> String {
    let (minutes, hours) = (duration.as_secs() / 60, duration.as_secs() / 3600);
    let seconds = duration.saturating_sub(Duration::from_secs(minutes * 60)).as_secs_f64();
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m{seconds}s"),
        (hours, minutes) => format!("{hours}h{}m{seconds}s", minutes % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{self, Command};

    fn config(arguments: &[&str]) -> Config {
        let Command::Run(args) = cli::parse(["mooring", "run"].iter().chain(arguments)).unwrap().command
        else {
            panic!("it is run")
        };
        Config::try_from(*args).unwrap()
    }

    #[test]
    fn text_is_given_unless_the_structured_form_is_named_whole() {
        let named = "application/json;v=v1beta1;g=config.k8s.io;as=Flagz";
        for (accept, expected) in [
            ("", Some(Form::Text)),
            ("*/*", Some(Form::Text)),
            ("text/plain", Some(Form::Text)),
            ("text/html,application/xhtml+xml,*/*;q=0.8", Some(Form::Text)),
            (named, Some(Form::Json)),
            ("application/json; as=Flagz; v=v1beta1; g=config.k8s.io", Some(Form::Json)),
            ("text/plain;q=0.5,application/json;v=v1beta1;g=config.k8s.io;as=Flagz", Some(Form::Json)),
            ("text/plain,application/json;v=v1beta1;g=config.k8s.io;as=Flagz;q=0.5", Some(Form::Text)),
            ("application/json", None),
            ("application/json;v=v1beta1;g=config.k8s.io;as=Statusz", None),
            ("application/json;v=v1alpha1;g=config.k8s.io;as=Flagz", None),
            ("application/yaml;v=v1beta1;g=config.k8s.io;as=Flagz", None),
            ("text/plain;q=0", None),
        ] {
            assert_eq!(negotiated(accept, "Flagz"), expected, "{accept}");
        }
    }

    #[test]
    fn pages_say_what_runs_with_what() {
        let config =
            config(&["--leader-elect-lease-duration=1m30s", "--kube-api-qps=50", "--kubeconfig=/etc/k"]);
        let router = add(Router::default().json("/debug/watches", || json!({})), &config);
        let get = |path: &str| router.here(path).1;
        let flags = get("/flagz");
        for line in [
            "mooring flagz",
            "leader-elect-lease-duration=1m30s",
            "leader-elect=true",
            "kube-api-qps=50",
            "kube-api-burst=",
            "kubeconfig=/etc/k",
        ] {
            assert!(flags.lines().any(|shown| shown == line), "{line} is not in {flags}");
        }
        let settings: Value = serde_json::from_str(&get("/configz")).unwrap();
        let election = &settings["mooring"]["Generic"]["LeaderElection"];
        assert_eq!(election["leaseDuration"], "1m30s");
        assert_eq!(settings["mooring"]["AttachDetachController"]["ReconcilerSyncLoopPeriod"], "5m0s");
        assert_eq!(settings["mooring"]["Generic"]["ClientConnection"]["qps"], json!(50.0));
        let version: Value = serde_json::from_str(&get("/version")).unwrap();
        assert_eq!(version["gitVersion"], format!("v{VERSION}"));
        let status = get("/statusz");
        assert!(status.contains("\nPaths: /configz /debug /flagz /statusz /version\n"), "{status}");
    }

    #[test]
    fn the_structured_forms_are_upstreams() {
        let flags = BTreeMap::from([("v".to_owned(), "2".to_owned())]);
        let accept = |kind: &str| format!("application/json;v=v1beta1;g=config.k8s.io;as={kind}");
        let answer = flagz(&flags, &accept("Flagz"));
        assert_eq!(answer.content_type, "application/json");
        let object: Value = serde_json::from_str(&answer.body).unwrap();
        let expected = json!({
            "kind": "Flagz", "apiVersion": "config.k8s.io/v1beta1", "metadata": {"name": "mooring"},
            "flags": {"v": "2"},
        });
        assert_eq!(object, expected);
        let at = |second| Timestamp::from_second(second).unwrap();
        let paths = ["/metrics".to_owned()];
        let answer = statusz(at(10), at(3_735), &paths, &accept("Statusz"));
        let object: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(
            (&object["startTime"], &object["uptimeSeconds"], &object["paths"]),
            (&json!("1970-01-01T00:00:10Z"), &json!(3_725), &json!(["/metrics"]))
        );
        assert!(statusz(at(10), at(3_735), &paths, "").body.contains("\nUp: 1 hr 02 min 05 sec\n"));
        assert_eq!(statusz(at(10), at(9), &paths, "image/png").status, StatusCode::NOT_ACCEPTABLE);
    }

    #[test]
    fn durations_are_written_as_go_does() {
        for (millis, expected) in
            [(0, "0s"), (500, "0.5s"), (11_500, "11.5s"), (60_000, "1m0s"), (3_661_000, "1h1m1s")]
        {
            assert_eq!(duration(Duration::from_millis(millis)), expected);
        }
    }
}
