//! The controllers that kube-controller-manager has, by the names that its `--controllers` takes.
//!
//! Copied arguments name controllers that mooring does not run; a name that is none is a slip, which would leave a
//! controller off, or on, that the operator meant otherwise. A test holds the names to what `--help` lists.

/// KCM: cmd/kube-controller-manager/names/controller_names.go, and of the cloud provider's module what
/// `NewControllerDescriptors` has of it.
const NAMES: &str = "
    bootstrap-signer-controller certificatesigningrequest-approving-controller
    certificatesigningrequest-cleaner-controller certificatesigningrequest-signing-controller
    cloud-node-lifecycle-controller clusterrole-aggregation-controller cronjob-controller
    daemonset-controller deployment-controller device-taint-eviction-controller disruption-controller
    endpoints-controller endpointslice-controller endpointslice-mirroring-controller
    ephemeral-volume-controller garbage-collector-controller horizontal-pod-autoscaler-controller
    job-controller kube-apiserver-serving-clustertrustbundle-publisher-controller
    legacy-serviceaccount-token-cleaner-controller namespace-controller node-ipam-controller
    node-lifecycle-controller node-route-controller persistentvolume-attach-detach-controller
    persistentvolume-binder-controller persistentvolume-expander-controller
    persistentvolume-protection-controller persistentvolumeclaim-protection-controller
    pod-garbage-collector-controller podcertificaterequest-cleaner-controller
    podgroup-protection-controller replicaset-controller replicationcontroller-controller
    resourceclaim-controller resourcepoolstatusrequest-controller resourcequota-controller
    root-ca-certificate-publisher-controller selinux-warning-controller service-cidr-controller
    service-lb-controller serviceaccount-controller serviceaccount-token-controller
    statefulset-controller storage-version-migrator-controller
    storageversion-garbage-collector-controller taint-eviction-controller token-cleaner-controller
    ttl-after-finished-controller ttl-controller validatingadmissionpolicy-status-controller
    volumeattributesclass-protection-controller
";

/// Their names before 1.28.
///
/// KCM: cmd/kube-controller-manager/app, `aliases` of each descriptor.
const ALIASES: &str = "
    attachdetach bootstrapsigner cloud-node-lifecycle clusterrole-aggregation cronjob csrapproving
    csrcleaner csrsigning daemonset deployment disruption endpoint endpointslice endpointslicemirroring
    ephemeral-volume garbagecollector horizontalpodautoscaling job legacy-service-account-token-cleaner
    namespace nodeipam nodelifecycle persistentvolume-binder persistentvolume-expander podgc
    pv-protection pvc-protection replicaset replicationcontroller resource-claim-controller
    resourcequota root-ca-cert-publisher route service serviceaccount serviceaccount-token statefulset
    storage-version-gc svm tokencleaner ttl ttl-after-finished
";

/// Whether it is the name of a controller of kube-controller-manager.
pub(super) fn is_known(name: &str) -> bool {
    NAMES.split_whitespace().chain(ALIASES.split_whitespace()).any(|known| known == name)
}
