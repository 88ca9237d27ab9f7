// Settings that differ between monitoring systems. Override them as in any mixin:
//   (import 'mixin.libsonnet') + { _config+:: { job: 'storage/mooring' } }
{
  _config+:: {
    // The job under which Prometheus scrapes mooring, as a matcher's value. deploy/optional/pod-monitor sets it.
    job: 'mooring',
    // The same of kube-controller-manager, for the alert that it does the same work, and for the comparison.
    kcmJob: 'kube-controller-manager',
    // The same of mooring observe in the cluster, deploy/observe.
    observeJob: 'mooring-observe',
    // The place of the runbooks: a base that a browser can open, such as
    // 'https://git.example/storage/mooring/blob/main/docs/runbooks'. The default is the path in this repository.
    runbookBase: 'docs/runbooks',
    // The page of an alert, with %s for its name; for runbooks under other names than the repository's.
    runbookURL: self.runbookBase + '/%s.md',
    // The same for the pages about reasons; the reason's code follows the base.
    reasonBase: 'docs/reasons',
    reasonURL: self.reasonBase + '/{{ $labels.reason }}.md',

    // The share of the operations that must be within the objective (S-1 to S-4).
    objectives: {
      attach: 0.99,
      bind: 0.99,
      detach: 0.99,
      'api-writes': 0.999,
    },

    // Waits that are normal, however long they last: no operator is needed.
    expectedWaits: [
      'Available',
      'Bound',
      'ClaimBindsNext',
      'Reserved',
      'Retained',
      'Terminating',
      'UsedByPods',
      'WaitingForFirstConsumer',
    ],
    // Waits that end when a user changes a pod, claim, class or volume. An event reports that to the user.
    usersWaits: [
      'ClaimMissing',
      'ClaimNotBound',
      'ClaimNotOwnedByPod',
      'ClassNotFound',
      'DynamicProvisioningDisabled',
      'ExpansionUnsupported',
      'FlexVolumeUnsupported',
      'HeldByNode',
      'HoldsUnfitVolume',
      'MalformedClaim',
      'MalformedSource',
      'NamedVolumeMismatch',
      'NamedVolumeMissing',
      'NamedVolumeTaken',
      'NoCapacity',
      'NoClassAndNoMatch',
      'ProvisionerChanged',
      'ProvisionerUnknown',
      'ProvisioningUnsupported',
      'UnknownBindingMode',
      'VolumeBoundElsewhere',
      'VolumeMissing',
      'WaitingForScheduling',
    ],
    // Waits that another alert covers: it fires for their cause, or for the same wait.
    alertedWaits: [
      'DetachError',
      'DetachWaitingForAttacher',
      'ForeignWriter',
      'LostMisbound',
      'LostReference',
      'LostVolumeMissing',
      'ObjectUnreadable',
      'Resizing',
      'RestoreGrace',
      'WaitingForAttacher',
      'WaitingForDeletion',
      'WaitingForProvisioner',
    ],
    // If this many claims wait for a provisioner, the cause is not one user's mistake.
    manyClaims: 5,

    // What is installed: replicas of the Deployment, and their namespace.
    replicas: 2,
    namespace: 'mooring-system',

    tags: ['mooring', 'storage'],
    // In Grafana's format.
    refresh: '30s',
    from: 'now-1h',
  },
}
