//! Every flag of kube-controller-manager 1.36, and what mooring does with it.
//!
//! A list, checked against what its `--help` prints, and a table of those that are not for another loop.
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
    /// First what to do instead, or why not, then values that change nothing.
    Refused(&'static str, &'static [&'static str]),
}
use Treatment::{Ignored, Obeyed, Refused};

/// All flags, as `kube-controller-manager --help` lists them: name, type and default.
pub(super) const LISTED: &str = include_str!("kcm_flags.txt");

/// Of the flags that are not in the table.
const OF_OTHER_LOOPS: Treatment = Ignored("it is for a loop that mooring does not have, or has without it");

/// The table: what is done with flags, their names with spaces between them.
pub(super) const TREATED: &[(Treatment, &str)] = &[
    (
        Obeyed,
        "attach-detach-reconcile-sync-period authentication-kubeconfig \
         authentication-token-webhook-cache-ttl authorization-always-allow-paths \
         authorization-kubeconfig authorization-webhook-cache-authorized-ttl \
         authorization-webhook-cache-unauthorized-ttl bind-address cert-dir client-ca-file controllers \
         kube-api-burst kube-api-content-type kube-api-qps kubeconfig leader-elect-lease-duration \
         leader-elect-renew-deadline leader-elect-resource-lock leader-elect-resource-name \
         leader-elect-resource-namespace leader-elect-retry-period logging-format \
         pv-recycler-increment-timeout-nfs pv-recycler-minimum-timeout-hostpath \
         pv-recycler-minimum-timeout-nfs pv-recycler-pod-template-filepath-hostpath \
         pv-recycler-pod-template-filepath-nfs pv-recycler-timeout-increment-hostpath \
         pvclaimbinder-sync-period secure-port tls-cert-file tls-cipher-suites tls-min-version \
         tls-private-key-file v authentication-skip-lookup disable-attach-detach-reconcile-sync \
         disable-force-detach-on-timeout enable-dynamic-provisioning enable-hostpath-provisioner help \
         leader-elect profiling version",
    ),
    (
        Refused("mooring behaves as 1.36 does and cannot pretend to be older", &["", "1.36", "kube=1.36"]),
        "emulated-version",
    ),
    (
        Refused(
            "leader migration says which process holds which lease: mooring has one, named by \
             --leader-elect-resource-name",
            &["", "false"],
        ),
        "leader-migration-config enable-leader-migration",
    ),
    (Refused("name the server in the file of --kubeconfig", &[""]), "master"),
    (
        Refused("the curves are those of the TLS library and cannot be chosen", &["", "[]"]),
        "tls-curve-preferences",
    ),
    (Refused("one certificate is served, that of --tls-cert-file", &["", "[]"]), "tls-sni-cert-key"),
    (
        Ignored("a user that cannot be looked up is refused, and the loops run on"),
        "authentication-tolerate-lookup-failure",
    ),
    (
        Ignored("names in request headers are never believed, so no front proxy is needed or trusted"),
        "requestheader-allowed-names requestheader-client-ca-file requestheader-extra-headers-prefix \
         requestheader-group-headers requestheader-uid-headers requestheader-username-headers",
    ),
    (Ignored("the port speaks HTTP/1.1"), "http2-max-streams-per-connection disable-http2-serving"),
    (
        Ignored("the port is bound once, when the process starts"),
        "permit-address-sharing permit-port-sharing",
    ),
    (Ignored("there is no Go mutex to profile"), "contention-profiling"),
    (
        Ignored(
            "nothing is resynchronised: --attach-detach-reconcile-sync-period and \
             --pvclaimbinder-sync-period are the safety nets",
        ),
        "min-resync-period",
    ),
    // VolumeAttributesClass, the one that the loops ask for, is locked since 1.36; CoordinatedLeaderElection is for the election.
    (
        Ignored(
            "no feature gate that can be set changes what the two loops do, and replicas agree by the Lease alone",
        ),
        "feature-gates min-compatibility-version",
    ),
    (
        Ignored("FlexVolume is not supported, and pods with volumes of that kind wait"),
        "flex-volume-plugin-dir",
    ),
    (
        Ignored("both loops run under the one service account they are given"),
        "use-service-account-credentials",
    ),
    (
        Ignored("the two loops start when they have seen the cluster, without a pause"),
        "controller-start-interval",
    ),
    (
        Ignored("at the end, requests under way are waited for as long as they may take"),
        "controller-shutdown-timeout",
    ),
    (Ignored("it names files of Go code"), "vmodule"),
    (
        Ignored("the log is one stream, on stderr, written as it comes"),
        "log-flush-frequency log-json-info-buffer-size log-text-info-buffer-size log-json-split-stream \
         log-text-split-stream",
    ),
    (
        Ignored("it is about kube-controller-manager's own metrics"),
        "allow-metric-labels allow-metric-labels-manifest disabled-metrics \
         show-hidden-metrics-for-version",
    ),
    (
        Ignored("neither loop has code for a cloud"),
        "cloud-config cloud-provider cluster-name external-cloud-volume-plugin",
    ),
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

/// All flags.
pub fn all() -> impl Iterator<Item = Flag> {
    LISTED.lines().map(|line| {
        let mut words = line.split(' ');
        let name = words.next().unwrap_or_default();
        let is_it = |(_, names): &&(Treatment, &str)| names.split_whitespace().any(|it| it == name);
        let treatment = TREATED.iter().find(is_it).map_or(OF_OTHER_LOOPS, |(treatment, _)| *treatment);
        Flag { name, takes_value: words.next() != Some("bool"), treatment }
    })
}

/// The flag of this name.
pub fn find(name: &str) -> Option<Flag> {
    all().find(|flag| flag.name == name)
}
