//! What the daemon runs with: flags whose combination makes sense.
//!
//! In: [`RunArgs`]. Out: a [`Config`], or one [`ConfigError`] that names the flag. Nothing here touches
//! the network, or any file but those that describe recycler pods and tracing.

pub mod error;
mod recyclers;
mod trace_file;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

pub use crate::fence::controllers::{Controllers, StorageController};
pub use error::ConfigError;
pub use trace_file::TracingConfig;

use apiserver::{
    call::{RateLimit, deadline::LONGEST_REQUEST},
    lease::{LEAST_RESERVE, Timing},
    wire::Encoding,
};
use error::refuse;

use crate::{
    attach_detach::{AttachDetachOptions, options::ForcePolicy},
    binder::BinderOptions,
    cli::RunArgs,
    host_plugins::{self, options::PluginOptions},
    telemetry::{LogConfig, filter},
};

/// KCM's lease. Who copies its arguments must not make the two wait for each other.
const LEASE_OF_KCM: &str = "kube-controller-manager";

/// KCM's default of `--kube-api-burst`.
const DEFAULT_BURST: usize = 30;

/// A valid configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Kubeconfig file, if named.
    pub kubeconfig: Option<PathBuf>,
    /// Name of the lease, with which the names of all objects begin that the daemon keeps for itself.
    pub own_name: String,
    /// Namespace of these; `None` means the pod's own, or kube-system outside a cluster.
    pub own_namespace: Option<String>,
    /// Durations of leader election, unless it is switched off.
    pub election: Option<Timing>,
    /// How long the API server may take over a request.
    pub request_timeout: Duration,
    /// Client-side limit, if asked for.
    pub rate_limit: Option<RateLimit>,
    /// How objects are read from the API server.
    pub content_type: Encoding,
    /// Threads that run tasks.
    pub worker_threads: usize,
    /// How to serve.
    pub serving: serving::Options,
    /// Log output.
    pub log: LogConfig,
    /// Where traces go, if they do.
    pub tracing: Option<TracingConfig>,
    /// Whether an operator may change the log, and take profiles, while the daemon runs.
    pub profiling: bool,
    /// Choices for attach/detach.
    pub attach_detach: AttachDetachOptions,
    /// Choices for the binder.
    pub binder: BinderOptions,
    /// The plugins of the binder that are asked for.
    pub host_plugins: PluginOptions,
    /// Which controllers run.
    pub controllers: Controllers,
    /// Whether it leads only where kube-controller-manager's loops are fenced off.
    pub fence: bool,
    /// The flags that all this came from, each with its value.
    pub flags: BTreeMap<String, String>,
}

impl TryFrom<RunArgs> for Config {
    type Error = ConfigError;

    fn try_from(args: RunArgs) -> Result<Self, ConfigError> {
        let election = if args.leader_elect { Some(election(&args)?) } else { None };
        let request_timeout = request_timeout(args.request_timeout, election.as_ref())?;
        let rate_limit = rate_limit(args.kube_api_qps, args.kube_api_burst)?;
        let filter = log_filter(&args)?;
        let tracing = args.tracing_config_file.as_deref().map(tracing).transpose()?;
        let attach_detach = attach_detach(&args)?;
        let (binder, host_plugins) = (binder(&args)?, plugins(&args)?);
        let serving = serving::Options::try_from(args.serving)?;
        let controllers = Controllers::parse(&args.controllers.join(","))
            .map_err(|problem| ConfigError::new("controllers", problem))?;
        Ok(Self {
            kubeconfig: args.kubeconfig,
            own_name: args.leader_elect_resource_name,
            own_namespace: args.leader_elect_resource_namespace,
            election,
            request_timeout,
            rate_limit,
            content_type: args.kube_api_content_type,
            worker_threads: args.worker_threads,
            serving,
            log: LogConfig { format: args.logging_format, filter },
            tracing,
            profiling: args.profiling,
            attach_detach,
            binder,
            host_plugins,
            controllers,
            fence: args.fence,
            flags: args.values,
        })
    }
}

/// client-go: tools/leaderelection/leaderelection.go, NewLeaderElector.
fn election(args: &RunArgs) -> Result<Timing, ConfigError> {
    const LEASE: &str = "leader-elect-lease-duration";
    const RENEW: &str = "leader-elect-renew-deadline";
    const RETRY: &str = "leader-elect-retry-period";
    const NAME: &str = "leader-elect-resource-name";
    const NAMESPACE: &str = "leader-elect-resource-namespace";
    let [lease, renew, retry] =
        [args.leader_elect_lease_duration, args.leader_elect_renew_deadline, args.leader_elect_retry_period];
    let timing = Timing { lease_duration: lease, renew_deadline: renew, retry_period: retry };
    for (flag, value) in [(LEASE, lease), (RENEW, renew), (RETRY, retry)] {
        refuse(value.is_zero(), flag, "must be greater than zero")?;
    }
    refuse(lease.subsec_nanos() != 0, LEASE, "must be whole seconds, as the Lease object records it")?;
    let is_too_long = lease.as_secs() > u64::from(i32::MAX.unsigned_abs());
    refuse(is_too_long, LEASE, "is longer than the Lease object can record")?;
    refuse(lease <= renew, LEASE, format!("must be longer than --{RENEW} ({renew:?})"))?;
    // Less leaves no time for a write that is sent in the last moment of a term.
    let reserve = format!(
        "must be at least {LEAST_RESERVE:?} shorter than --{LEASE} ({lease:?}), for writes under way when a term ends"
    );
    refuse(lease < renew + LEAST_RESERVE, RENEW, reserve)?;
    let pause = format!("must be longer than 1.2 times --{RETRY} ({retry:?})");
    refuse(renew <= timing.longest_pause(), RENEW, pause)?;
    let (name, namespace) = (&args.leader_elect_resource_name, &args.leader_elect_resource_namespace);
    refuse(name.is_empty(), NAME, "must not be empty")?;
    let of_kcm = "is the lease of kube-controller-manager, which runs beside mooring: choose another";
    refuse(name == LEASE_OF_KCM, NAME, of_kcm)?;
    refuse(namespace.as_deref() == Some(""), NAMESPACE, "must not be empty")?;
    Ok(timing)
}

/// As long as the lease allows. More is for who makes the lease longer.
fn request_timeout(asked: Option<Duration>, election: Option<&Timing>) -> Result<Duration, ConfigError> {
    const FLAG: &str = "request-timeout";
    let allowed = election.map_or(Duration::MAX, Timing::longest_write);
    let Some(asked) = asked else { return Ok(allowed.min(LONGEST_REQUEST)) };
    refuse(asked < Duration::from_secs(1), FLAG, "must be at least 1s")?;
    let longest =
        format!("must be at most {LONGEST_REQUEST:?}, which is all that an API server gives a write");
    refuse(asked > LONGEST_REQUEST, FLAG, longest)?;
    let lease = election.map_or(Duration::ZERO, |timing| timing.lease_duration);
    let needed = (lease + asked.saturating_sub(allowed)).as_secs_f64().ceil();
    let lease = format!(
        "a write may take {allowed:?} before another replica may lead: for {asked:?} set \
         --leader-elect-lease-duration to {needed}s or more"
    );
    refuse(asked > allowed, FLAG, lease)?;
    Ok(asked)
}

/// A negative rate means no limit, as in client-go.
fn rate_limit(qps: Option<f64>, burst: Option<usize>) -> Result<Option<RateLimit>, ConfigError> {
    refuse(burst == Some(0), "kube-api-burst", "must be greater than zero")?;
    let Some(qps) = qps else { return Ok(None) };
    let is_wrong = qps.is_nan() || (0.0..0.001).contains(&qps) || qps > 1e6;
    refuse(is_wrong, "kube-api-qps", "must be between 0.001 and 1000000, or -1 for no limit")?;
    let limit = RateLimit { qps, burst: burst.unwrap_or(DEFAULT_BURST) };
    Ok((qps >= 0.0).then_some(limit))
}

// KCM: cmd/kube-controller-manager/app/options/attachdetachcontroller.go, Validate.
fn attach_detach(args: &RunArgs) -> Result<AttachDetachOptions, ConfigError> {
    let period = args.attach_detach_reconcile_sync_period;
    refuse(period < Duration::from_secs(1), "attach-detach-reconcile-sync-period", "must be at least 1s")?;
    Ok(AttachDetachOptions {
        force: ForcePolicy {
            on_timeout: !args.disable_force_detach_on_timeout,
            gone: args.force_detach_gone_node_after,
            ..ForcePolicy::default()
        },
        sweep_period: (!args.disable_attach_detach_reconcile_sync).then_some(period),
        attachment_calls: None,
    })
}

fn binder(args: &RunArgs) -> Result<BinderOptions, ConfigError> {
    let sync_period = args.pvclaimbinder_sync_period;
    refuse(sync_period < Duration::from_secs(1), "pvclaimbinder-sync-period", "must be at least 1s")?;
    Ok(BinderOptions { enable_dynamic_provisioning: args.enable_dynamic_provisioning, sync_period })
}

fn plugins(args: &RunArgs) -> Result<PluginOptions, ConfigError> {
    let asked = [
        ("enable-hostpath-provisioner", args.enable_hostpath_provisioner),
        ("enable-recycler", args.enable_recycler),
    ];
    if let Some((flag, _)) = asked.into_iter().find(|(_, is_on)| *is_on && !host_plugins::ARE_COMPILED_IN) {
        return Err(ConfigError::new(flag, host_plugins::ABSENT));
    }
    let recyclers = if args.enable_recycler { Some(recyclers::recyclers(args)?) } else { None };
    Ok(PluginOptions { enable_hostpath_provisioner: args.enable_hostpath_provisioner, recyclers })
}

/// Where traces go, as a file says.
fn tracing(file: &Path) -> Result<TracingConfig, ConfigError> {
    let mistake =
        |problem: String| ConfigError::new("tracing-config-file", format!("{}: {problem}", file.display()));
    if !cfg!(feature = "tracing-otlp") {
        return Err(mistake("this build has no traces: build it with the feature tracing-otlp".to_owned()));
    }
    let text = std::fs::read_to_string(file).map_err(|error| mistake(error.to_string()))?;
    TracingConfig::parse(&text).map_err(mistake)
}

/// The filter that --log-level or -v asks for.
fn log_filter(args: &RunArgs) -> Result<String, ConfigError> {
    let of_verbosity = || filter::of_verbosity(i64::from(args.verbosity));
    let filter = args.log_level.as_deref().unwrap_or_else(of_verbosity);
    filter::checked(filter).map_err(|problem| ConfigError::new("log-level", problem))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cli::{self, Command},
        telemetry::LoggingFormat,
    };

    pub(super) fn config(arguments: &[&str]) -> Result<Config, ConfigError> {
        let Command::Run(args) = cli::parse(["mooring", "run"].iter().chain(arguments)).unwrap().command
        else {
            panic!("it is run")
        };
        Config::try_from(*args)
    }

    #[test]
    fn defaults_are_those_of_kcm_with_a_lease_of_our_own_and_no_limit() {
        let expected = Config {
            kubeconfig: None,
            election: Some(Timing {
                lease_duration: Duration::from_secs(15),
                renew_deadline: Duration::from_secs(10),
                retry_period: Duration::from_secs(2),
            }),
            own_name: "mooring".to_owned(),
            own_namespace: None,
            request_timeout: Duration::from_millis(11_500),
            rate_limit: None,
            content_type: Encoding::Protobuf,
            worker_threads: 1,
            serving: serving::Options {
                address: "::".parse().unwrap(),
                port: 10270,
                ..config(&[]).unwrap().serving
            },
            log: LogConfig { format: LoggingFormat::Text, filter: "info,kube_client=error".to_owned() },
            tracing: None,
            profiling: true,
            attach_detach: AttachDetachOptions {
                sweep_period: Some(Duration::from_mins(5)),
                ..AttachDetachOptions::default()
            },
            binder: BinderOptions::default(),
            host_plugins: PluginOptions::default(),
            controllers: Controllers::parse("*").unwrap(),
            fence: false,
            flags: config(&[]).unwrap().flags,
        };
        assert_eq!(config(&[]), Ok(expected));
    }

    #[test]
    fn what_cannot_be_is_named() {
        let cases: [(&[&str], &str); 21] = [
            (&["--pvclaimbinder-sync-period=0"], "--pvclaimbinder-sync-period: must be at least 1s"),
            (
                &["--attach-detach-reconcile-sync-period=500ms"],
                "--attach-detach-reconcile-sync-period: must be at least 1s",
            ),
            // Also where it does not matter, as with KCM.
            (
                &["--disable-attach-detach-reconcile-sync", "--attach-detach-reconcile-sync-period=0"],
                "--attach-detach-reconcile-sync-period: must be at least 1s",
            ),
            (
                &["--leader-elect-lease-duration=10s"],
                "--leader-elect-lease-duration: must be longer than --leader-elect-renew-deadline (10s)",
            ),
            (
                &["--leader-elect-retry-period=9s"],
                "--leader-elect-renew-deadline: must be longer than 1.2 times --leader-elect-retry-period (9s)",
            ),
            (&["--leader-elect-retry-period=0"], "--leader-elect-retry-period: must be greater than zero"),
            (
                &["--leader-elect-renew-deadline=0s"],
                "--leader-elect-renew-deadline: must be greater than zero",
            ),
            (
                &["--leader-elect-lease-duration=0"],
                "--leader-elect-lease-duration: must be greater than zero",
            ),
            (
                &["--leader-elect-lease-duration=15500ms"],
                "--leader-elect-lease-duration: must be whole seconds, as the Lease object records it",
            ),
            (
                &["--leader-elect-lease-duration=600000h"],
                "--leader-elect-lease-duration: is longer than the Lease object can record",
            ),
            (
                &["--leader-elect-resource-name=kube-controller-manager"],
                "--leader-elect-resource-name: is the lease of kube-controller-manager, which runs beside \
                 mooring: choose another",
            ),
            // m5: a write that is sent in the last moment needs time, too.
            (
                &["--leader-elect-renew-deadline=14999ms"],
                "--leader-elect-renew-deadline: must be at least 2s shorter than --leader-elect-lease-duration (15s), \
                 for writes under way when a term ends",
            ),
            (&["--request-timeout=999ms"], "--request-timeout: must be at least 1s"),
            (
                &["--request-timeout=35s", "--leader-elect=false"],
                "--request-timeout: must be at most 34s, which is all that an API server gives a write",
            ),
            (
                &["--request-timeout=20s"],
                "--request-timeout: a write may take 11.5s before another replica may lead: for 20s set \
                 --leader-elect-lease-duration to 24s or more",
            ),
            (&["--leader-elect-resource-name="], "--leader-elect-resource-name: must not be empty"),
            (&["--leader-elect-resource-namespace="], "--leader-elect-resource-namespace: must not be empty"),
            (&["--kube-api-qps=0"], "--kube-api-qps: must be between 0.001 and 1000000, or -1 for no limit"),
            (&["--kube-api-burst=0"], "--kube-api-burst: must be greater than zero"),
            (
                &["--log-level=inof"],
                "--log-level: \"inof\" is not a level (off, error, warn, info, debug, trace)",
            ),
            (
                &["--log-level=mooring=loud"],
                "--log-level: error parsing level filter: expected one of \"off\", \"error\", \"warn\", \"info\", \"debug\", \"trace\", or a number 0-5",
            ),
        ];
        for (arguments, expected) in cases {
            assert_eq!(config(arguments).unwrap_err().to_string(), expected, "{arguments:?}");
        }
    }

    #[test]
    fn l6_h9_what_may_be_forced_and_how_often_everything_is_looked_at_is_for_the_operator_to_say() {
        let options = |arguments: &[&str]| config(arguments).unwrap().attach_detach;
        assert_eq!(options(&["--disable-attach-detach-reconcile-sync"]).sweep_period, None);
        let period = options(&["--attach-detach-reconcile-sync-period=90s"]).sweep_period;
        assert_eq!(period, Some(Duration::from_secs(90)));
        let force = options(&["--disable-force-detach-on-timeout"]).force;
        assert_eq!(force, ForcePolicy { on_timeout: false, ..ForcePolicy::default() });
        let force = options(&["--force-detach-gone-node-after=1h30m"]).force;
        assert_eq!(force, ForcePolicy { gone: Duration::from_mins(90), ..ForcePolicy::default() });
    }

    #[test]
    fn how_much_is_logged_is_said_by_level_or_filter_and_the_client_library_is_quiet_unless_named() {
        let cases: [(&[&str], &str); 8] = [
            (&["-v=2"], "info,kube_client=error"),
            (&["--v", "4"], "info,mooring=debug,kube_client=error"),
            (&["-v5"], "info,mooring=trace,kube_client=error"),
            (&["-v9"], "debug,mooring=trace,kube_client=error"),
            (&["--v=-1"], "info,kube_client=error"),
            (&["--log-level=debug"], "debug,kube_client=error"),
            (&["--log-level=warn", "--v=5"], "warn,kube_client=error"),
            (&["--log-level=info,kube_client=trace"], "info,kube_client=trace"),
        ];
        for (arguments, expected) in cases {
            assert_eq!(config(arguments).unwrap().log.filter, expected, "{arguments:?}");
        }
    }

    #[test]
    fn without_election_its_durations_do_not_matter() {
        let config = config(&["--leader-elect=false", "--leader-elect-lease-duration=0"]).unwrap();
        assert_eq!(config.election, None);
        assert_eq!(config.request_timeout, LONGEST_REQUEST);
    }

    #[test]
    fn a_limit_only_when_asked_for() {
        let limit = |arguments: &[&str]| config(arguments).unwrap().rate_limit;
        assert_eq!(limit(&["--kube-api-burst=100"]), None);
        assert_eq!(limit(&["--kube-api-qps=-1"]), None);
        assert_eq!(limit(&["--kube-api-qps=20"]), Some(RateLimit { qps: 20.0, burst: 30 }));
        assert_eq!(
            limit(&["--kube-api-qps", "0.5", "--kube-api-burst", "2"]),
            Some(RateLimit { qps: 0.5, burst: 2 })
        );
    }

    #[test]
    fn m4_a_request_may_take_as_long_as_the_lease_allows_and_the_operator_may_allow_more() {
        let timeout = |arguments: &[&str]| config(arguments).unwrap().request_timeout.as_millis();
        assert_eq!(timeout(&["--leader-elect-renew-deadline=12s"]), 11_500);
        assert_eq!(timeout(&["--leader-elect-retry-period=8s"]), 5_500);
        assert_eq!(timeout(&["--request-timeout=3s"]), 3_000);
        assert_eq!(timeout(&["--request-timeout=20s", "--leader-elect-lease-duration=24s"]), 20_000);
        assert_eq!(timeout(&["--leader-elect-lease-duration=1m"]), 34_000);
        assert_eq!(timeout(&["--request-timeout=5s", "--leader-elect=false"]), 5_000);
    }
}
