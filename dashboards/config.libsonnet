// What differs from one monitoring system to the next. Overridden as in any mixin:
//   (import 'mixin.libsonnet') + { _config+:: { job: 'storage/mooring' } }
{
  _config+:: {
    // The job under which Prometheus scrapes mooring, as a matcher's value. deploy/optional/pod-monitor sets it.
    job: 'mooring',
    // The same of kube-controller-manager, for the alert that it does the same work, and for the comparison.
    kcmJob: 'kube-controller-manager',
    // Where the runbooks are read: a base that a browser can open, such as
    // 'https://git.example/storage/mooring/blob/main/docs/runbooks'. As it is, the path in this repository.
    runbookBase: 'docs/runbooks',
    // The page of an alert, whose name is %s; for runbooks that are not kept under the repository's names.
    runbookURL: self.runbookBase + '/%s.md',
    // The same of the pages about reasons; what comes after the base is the reason's code.
    reasonBase: 'docs/reasons',
    reasonURL: self.reasonBase + '/{{ $labels.reason }}.md',

    // Share of the operations that is within its objective (S-1 to S-4).
    objectives: {
      attach: 0.99,
      bind: 0.99,
      detach: 0.99,
      'api-writes': 0.999,
    },

    // Waits that are as they should be, however long they take: no operator is needed.
    expectedWaits: [
      'Available',
      'Bound',
      'ClaimBindsNext',
      'ForeignAttachment',
      'LeftToProvisioner',
      'Reserved',
      'Retained',
      'Terminating',
      'UsedByPods',
      'WaitingForFirstConsumer',
    ],
    // Waits that end when a user changes a pod, claim, class or volume, which an event tells that user.
    usersWaits: [
      'ClaimMissing',
      'ClaimNotBound',
      'ClaimNotOwnedByPod',
      'ClassNotFound',
      'DynamicProvisioningDisabled',
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
    // Waits of which another alert tells: of what they wait for, or of the same.
    alertedWaits: [
      'DetachError',
      'DetachWaitingForAttacher',
      'ForeignWriter',
      'LostMisbound',
      'LostReference',
      'LostVolumeMissing',
      'ObjectUnreadable',
      'RestoreGrace',
      'WaitingForAttacher',
      'WaitingForDeletion',
      'WaitingForProvisioner',
    ],
    // So many claims that wait for a provisioner are not one user's mistake.
    manyClaims: 5,

    // What is installed: replicas of the Deployment, and their namespace.
    replicas: 2,
    namespace: 'mooring-system',

    tags: ['mooring', 'storage'],
    // As Grafana takes it.
    refresh: '30s',
    from: 'now-1h',
  },
}
