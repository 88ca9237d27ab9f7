//! Every flag of kube-controller-manager 1.36, and what mooring does with it.
//!
//! A table, checked against the flags that its `--help` prints (`tests/control-plane/kcm-flags.txt`).
//! The rule: a flag that mooring has is *obeyed*; one that cannot change what the two loops do is
//! *ignored*, with a line in the log; any other is *refused*, with the reason. What is refused only with
//! some values names those that are let through. [`crate::cli::arguments`] applies the table, and
//! `docs/flags.md` is printed from it.

/// What mooring does with a flag that it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// It is a flag of `mooring run`, too.
    Obeyed,
    /// It cannot change what the two loops do, for this reason.
    Ignored(&'static str),
    /// It could, for this reason; only these values mean nothing.
    Refused {
        /// What to do instead, or why not.
        reason: &'static str,
        /// Values that change nothing.
        unless: &'static [&'static str],
    },
    /// Ignored, but for the gates in [`GATES`].
    FeatureGates,
}

/// Flags that are treated alike.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// How.
    pub treatment: Treatment,
    /// Those that take a value, as `--flag=value` or `--flag value`.
    pub values: &'static [&'static str],
    /// Booleans: `--flag` or `--flag=value`, never `--flag value`.
    pub switches: &'static [&'static str],
}

/// A feature gate that the two loops, or the election of the one that runs them, depend on.
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    /// Its name.
    pub name: &'static str,
    /// The value that mooring behaves as if it had.
    pub value: bool,
    /// Why it cannot have the other.
    pub reason: &'static str,
}

/// The gates that matter. Found where `pkg/controller/volume/{attachdetach,persistentvolume}` and what they
/// call outside the kubelet's part of `pkg/volume` ask for a gate, and where `controllermanager.go` elects.
pub const GATES: &[Gate] = &[
    Gate {
        name: "VolumeAttributesClass",
        value: true,
        reason: "claims and volumes are matched by their VolumeAttributesClass",
    },
    Gate { name: "CoordinatedLeaderElection", value: false, reason: "replicas agree by the Lease alone" },
    Gate { name: "AllAlpha", value: false, reason: "name the gates you mean" },
    Gate { name: "AllBeta", value: false, reason: "name the gates you mean" },
];

const OTHER_LOOP: Treatment = Treatment::Ignored("it is for a loop that stays in kube-controller-manager");
const CLOUD: Treatment = Treatment::Ignored("neither loop has code for a cloud");
const METRICS: Treatment = Treatment::Ignored("it is about kube-controller-manager's own metrics");
const LOG_BUFFERS: Treatment = Treatment::Ignored("the log is one stream, on stderr, written as it comes");
const NO_PROXY_HEADERS: Treatment =
    Treatment::Ignored("names in request headers are never believed, so no front proxy is needed or trusted");

/// The table.
pub const FLAGS: &[Group] = &[
    Group {
        treatment: Treatment::Obeyed,
        values: &[
            "attach-detach-reconcile-sync-period",
            "authentication-kubeconfig",
            "authentication-token-webhook-cache-ttl",
            "authorization-always-allow-paths",
            "authorization-kubeconfig",
            "authorization-webhook-cache-authorized-ttl",
            "authorization-webhook-cache-unauthorized-ttl",
            "bind-address",
            "cert-dir",
            "client-ca-file",
            "controllers",
            "kube-api-burst",
            "kube-api-content-type",
            "kube-api-qps",
            "kubeconfig",
            "leader-elect-lease-duration",
            "leader-elect-renew-deadline",
            "leader-elect-resource-lock",
            "leader-elect-resource-name",
            "leader-elect-resource-namespace",
            "leader-elect-retry-period",
            "logging-format",
            "pv-recycler-increment-timeout-nfs",
            "pv-recycler-minimum-timeout-hostpath",
            "pv-recycler-minimum-timeout-nfs",
            "pv-recycler-pod-template-filepath-hostpath",
            "pv-recycler-pod-template-filepath-nfs",
            "pv-recycler-timeout-increment-hostpath",
            "pvclaimbinder-sync-period",
            "secure-port",
            "tls-cert-file",
            "tls-cipher-suites",
            "tls-min-version",
            "tls-private-key-file",
            "v",
        ],
        switches: &[
            "authentication-skip-lookup",
            "disable-attach-detach-reconcile-sync",
            "disable-force-detach-on-timeout",
            "enable-dynamic-provisioning",
            "enable-hostpath-provisioner",
            "help",
            "leader-elect",
            "profiling",
            "version",
        ],
    },
    Group { treatment: Treatment::FeatureGates, values: &["feature-gates"], switches: &[] },
    Group {
        treatment: Treatment::Refused {
            reason: "mooring behaves as 1.36 does and cannot pretend to be older",
            unless: &["", "1.36", "kube=1.36"],
        },
        values: &["emulated-version"],
        switches: &[],
    },
    Group {
        treatment: Treatment::Refused {
            reason: "leader migration says which process holds which lease: mooring has one, named by \
                     --leader-elect-resource-name",
            unless: &["", "false"],
        },
        values: &["leader-migration-config"],
        switches: &["enable-leader-migration"],
    },
    Group {
        treatment: Treatment::Refused {
            reason: "name the server in the file of --kubeconfig",
            unless: &[""],
        },
        values: &["master"],
        switches: &[],
    },
    Group {
        treatment: Treatment::Refused {
            reason: "the curves are those of the TLS library and cannot be chosen",
            unless: &["", "[]"],
        },
        values: &["tls-curve-preferences"],
        switches: &[],
    },
    Group {
        treatment: Treatment::Refused {
            reason: "one certificate is served, that of --tls-cert-file",
            unless: &["", "[]"],
        },
        values: &["tls-sni-cert-key"],
        switches: &[],
    },
    Group {
        treatment: Treatment::Ignored("who cannot be looked up is not let in, and the loops run on"),
        values: &[],
        switches: &["authentication-tolerate-lookup-failure"],
    },
    Group {
        treatment: NO_PROXY_HEADERS,
        values: &[
            "requestheader-allowed-names",
            "requestheader-client-ca-file",
            "requestheader-extra-headers-prefix",
            "requestheader-group-headers",
            "requestheader-uid-headers",
            "requestheader-username-headers",
        ],
        switches: &[],
    },
    Group {
        treatment: Treatment::Ignored("the port speaks HTTP/1.1"),
        values: &["http2-max-streams-per-connection"],
        switches: &["disable-http2-serving"],
    },
    Group {
        treatment: Treatment::Ignored("the port is bound once, when the process starts"),
        values: &[],
        switches: &["permit-address-sharing", "permit-port-sharing"],
    },
    Group {
        treatment: Treatment::Ignored("there is no Go mutex to profile"),
        values: &[],
        switches: &["contention-profiling"],
    },
    Group {
        treatment: Treatment::Ignored(
            "nothing is resynchronised: --attach-detach-reconcile-sync-period and \
             --pvclaimbinder-sync-period are the safety nets",
        ),
        values: &["min-resync-period"],
        switches: &[],
    },
    Group {
        treatment: Treatment::Ignored("no feature gate that the two loops ask for depends on it"),
        values: &["min-compatibility-version"],
        switches: &[],
    },
    Group {
        treatment: Treatment::Ignored(
            "FlexVolume is not supported, and volumes of that kind are told to wait",
        ),
        values: &["flex-volume-plugin-dir"],
        switches: &[],
    },
    Group {
        treatment: Treatment::Ignored("both loops run under the one service account they are given"),
        values: &[],
        switches: &["use-service-account-credentials"],
    },
    Group {
        treatment: Treatment::Ignored("the two loops start when they have seen the cluster, without a pause"),
        values: &["controller-start-interval"],
        switches: &[],
    },
    Group {
        treatment: Treatment::Ignored(
            "at the end, requests under way are waited for as long as they may take",
        ),
        values: &["controller-shutdown-timeout"],
        switches: &[],
    },
    Group { treatment: Treatment::Ignored("it names files of Go code"), values: &["vmodule"], switches: &[] },
    Group {
        treatment: LOG_BUFFERS,
        values: &["log-flush-frequency", "log-json-info-buffer-size", "log-text-info-buffer-size"],
        switches: &["log-json-split-stream", "log-text-split-stream"],
    },
    Group {
        treatment: METRICS,
        values: &[
            "allow-metric-labels",
            "allow-metric-labels-manifest",
            "disabled-metrics",
            "show-hidden-metrics-for-version",
        ],
        switches: &[],
    },
    Group {
        treatment: CLOUD,
        values: &["cloud-config", "cloud-provider", "cluster-name", "external-cloud-volume-plugin"],
        switches: &[],
    },
    Group {
        treatment: OTHER_LOOP,
        values: &[
            "cidr-allocator-type",
            "cluster-cidr",
            "cluster-signing-cert-file",
            "cluster-signing-duration",
            "cluster-signing-key-file",
            "cluster-signing-kube-apiserver-client-cert-file",
            "cluster-signing-kube-apiserver-client-key-file",
            "cluster-signing-kubelet-client-cert-file",
            "cluster-signing-kubelet-client-key-file",
            "cluster-signing-kubelet-serving-cert-file",
            "cluster-signing-kubelet-serving-key-file",
            "cluster-signing-legacy-unknown-cert-file",
            "cluster-signing-legacy-unknown-key-file",
            "concurrent-cron-job-syncs",
            "concurrent-daemonset-syncs",
            "concurrent-deployment-syncs",
            "concurrent-device-taint-eviction-syncs",
            "concurrent-endpoint-syncs",
            "concurrent-ephemeralvolume-syncs",
            "concurrent-gc-syncs",
            "concurrent-horizontal-pod-autoscaler-syncs",
            "concurrent-job-syncs",
            "concurrent-namespace-syncs",
            "concurrent-rc-syncs",
            "concurrent-replicaset-syncs",
            "concurrent-resource-quota-syncs",
            "concurrent-resourceclaim-syncs",
            "concurrent-service-endpoint-syncs",
            "concurrent-service-syncs",
            "concurrent-serviceaccount-token-syncs",
            "concurrent-statefulset-syncs",
            "concurrent-ttl-after-finished-syncs",
            "concurrent-validating-admission-policy-status-syncs",
            "endpoint-updates-batch-period",
            "endpointslice-updates-batch-period",
            "horizontal-pod-autoscaler-cpu-initialization-period",
            "horizontal-pod-autoscaler-downscale-stabilization",
            "horizontal-pod-autoscaler-initial-readiness-delay",
            "horizontal-pod-autoscaler-sync-period",
            "horizontal-pod-autoscaler-tolerance",
            "large-cluster-size-threshold",
            "legacy-service-account-token-clean-up-period",
            "max-endpoints-per-slice",
            "mirroring-concurrent-service-endpoint-syncs",
            "mirroring-endpointslice-updates-batch-period",
            "mirroring-max-endpoints-per-subset",
            "namespace-sync-period",
            "node-cidr-mask-size",
            "node-cidr-mask-size-ipv4",
            "node-cidr-mask-size-ipv6",
            "node-eviction-rate",
            "node-monitor-grace-period",
            "node-monitor-period",
            "node-startup-grace-period",
            "resource-quota-sync-period",
            "root-ca-file",
            "route-reconciliation-period",
            "secondary-node-eviction-rate",
            "service-account-private-key-file",
            "service-cluster-ip-range",
            "terminated-pod-gc-threshold",
            "unhealthy-zone-threshold",
        ],
        switches: &["allocate-node-cidrs", "configure-cloud-routes", "enable-garbage-collector"],
    },
];

/// A flag as the command line needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flag {
    /// Its name, without dashes.
    pub name: &'static str,
    /// Whether it takes a value from the next argument.
    pub takes_value: bool,
    /// What is done with it.
    pub treatment: Treatment,
}

/// All flags of the table.
pub fn all() -> impl Iterator<Item = Flag> {
    FLAGS.iter().flat_map(|group| {
        let flag =
            |takes_value| move |name: &&'static str| Flag { name, takes_value, treatment: group.treatment };
        group.values.iter().map(flag(true)).chain(group.switches.iter().map(flag(false)))
    })
}

/// The flag of this name.
#[must_use]
pub fn find(name: &str) -> Option<Flag> {
    all().find(|flag| flag.name == name)
}
