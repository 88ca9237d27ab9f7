//! The settings that `/configz` shows.
//!
//! In: the configuration in force. Out: JSON. No file's content is in it, but names of files alone, so there are no
//! secrets.

use std::time::Duration;

use serde_json::{Value, json};

use crate::config::Config;

/// The configuration in force, with the names of KCM's KubeControllerManagerConfiguration where it has the setting.
pub fn configz(config: &Config) -> Value {
    let timing = config.election;
    let (serving, force) = (&config.serving, &config.attach_detach.force);
    let sweep = config.attach_detach.sweep_period;
    let binder = &config.binder;
    json!({
        "Generic": {
            "Address": serving.address,
            "Port": serving.port,
            "Debugging": { "EnableProfiling": config.profiling },
            "ClientConnection": {
                "kubeconfig": config.kubeconfig,
                "contentType": config.content_type.media_type(),
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
                "EnableHostPathProvisioning": config.host_plugins.enable_hostpath_provisioner,
                "EnableDynamicProvisioning": binder.enable_dynamic_provisioning,
            },
        },
        "Mooring": {
            "EnableRecycler": config.host_plugins.recyclers.is_some(),
            "ForceDetachGoneNodeAfter": duration(force.gone),
            "LogFilter": config.log.filter,
            "RequestTimeout": duration(config.request_timeout),
            "WorkerThreads": config.worker_threads,
        },
    })
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
    use serving::{Router, zpages};

    use super::*;
    use crate::{
        build_info::{COMPONENT, VERSION},
        cli::{self, Command},
    };

    fn config(arguments: &[&str]) -> Config {
        let Command::Run(args) = cli::parse(["mooring", "run"].iter().chain(arguments)).unwrap().command
        else {
            panic!("it is run")
        };
        Config::try_from(*args).unwrap()
    }

    #[test]
    fn pages_say_what_runs_with_what() {
        let config =
            config(&["--leader-elect-lease-duration=1m30s", "--kube-api-qps=50", "--kubeconfig=/etc/k"]);
        let router = Router::default().json("/debug/watches", || json!({}));
        let router = zpages::add(router, COMPONENT, config.flags.clone(), configz(&config));
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
    fn durations_are_written_as_go_does() {
        for (millis, expected) in
            [(0, "0s"), (500, "0.5s"), (11_500, "11.5s"), (60_000, "1m0s"), (3_661_000, "1h1m1s")]
        {
            assert_eq!(duration(Duration::from_millis(millis)), expected);
        }
    }
}
