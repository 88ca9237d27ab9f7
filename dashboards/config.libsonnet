// What differs from one monitoring system to the next. Overridden as in any mixin:
//   (import 'mixin.libsonnet') + { _config+:: { job: 'storage/mooring' } }
{
  _config+:: {
    // The job under which Prometheus scrapes mooring, as a matcher's value. deploy/optional/pod-monitor sets it.
    job: 'mooring',
    // The same of kube-controller-manager, for the alert that neither of both is there, and for the comparison.
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
      'UsedByPods',
      'WaitingForFirstConsumer',
    ],
    // Waits that have an alert of their own.
    alertedWaits: ['ProvisionerUnknown', 'WaitingForProvisioner', 'LostMisbound', 'LostReference', 'LostVolumeMissing'],
    // Refusals that no orderly cluster causes. The others (a volume that is still mounted, one that another node holds)
    // are the guards' daily work.
    unusualGuards: ['ForeignWriter', 'ObjectUnreadable', 'RestoreGrace'],

    tags: ['mooring', 'storage'],
    // As Grafana takes it.
    refresh: '30s',
    from: 'now-1h',
  },
}
