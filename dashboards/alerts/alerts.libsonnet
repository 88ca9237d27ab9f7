// Alerts: one per cause that an operator has to know of, and one per service level. `critical` wakes a person,
// `warning` is for the day, `info` is for the record. Each has a page in docs/runbooks.
{
  local config = self._config,
  local job = 'job="%s"' % config.job,
  local kcm = 'job="%s"' % config.kcmJob,
  local by(labels) = 'by (%s)' % std.join(', ', ['cluster'] + labels),
  local list(words) = std.join('|', words),

  local alert(name, severity, hold, expr, summary, description) = {
    alert: name,
    expr: expr,
    [if hold != '0m' then 'for']: hold,
    labels: { severity: severity },
    annotations: { summary: summary, description: description, runbook_url: config.runbookURL % name },
  },

  // As the burn-rate alerts of Kubernetes' API server: a fast burn wakes a person, a slow one can wait for the day. The
  // short window ends the alert soon after the trouble. Five operations that missed the objective are the least: in a quiet
  // cluster a single slow one would otherwise be half of all.
  local burn(name, level, summary, what) = [
    alert(
      name,
      window.severity,
      window.hold,
      |||
        mooring_slo:errors:ratio_rate%(long)s{slo="%(level)s", %(job)s} > %(limit).5f
        and mooring_slo:errors:ratio_rate%(short)s{slo="%(level)s", %(job)s} > %(limit).5f
        and mooring_slo:errors:increase%(long)s{slo="%(level)s", %(job)s} >= 5
      ||| % (window { level: level, job: job, limit: window.factor * (1 - config.objectives[level]) }),
      summary,
      '{{ $value | humanizePercentage }} of %s in the last %s. At this pace the error budget of 30 days is gone in %s.' % [what, window.long, window.gone]
    ) + { labels+: { slo: level, long: window.long, short: window.short } }
    for window in [
      { long: '1h', short: '5m', factor: 14.4, hold: '2m', severity: 'critical', gone: 'two days' },
      { long: '6h', short: '30m', factor: 6, hold: '15m', severity: 'critical', gone: 'five days' },
      { long: '1d', short: '2h', factor: 3, hold: '1h', severity: 'warning', gone: 'ten days' },
      { long: '3d', short: '6h', factor: 1, hold: '3h', severity: 'warning', gone: '30 days' },
    ]
  ],

  prometheusAlerts+:: { groups: [
    {
      name: 'mooring-availability',
      rules: [
        alert(
          'MooringDown',
          'critical',
          '3m',
          'absent(up{%s} == 1)' % job,
          'mooring is down.',
          'Prometheus has not reached any replica of mooring for three minutes. Running pods are not affected; no volume is bound, attached or detached.'
        ),
        alert(
          'MooringAndKubeControllerManagerDown',
          'critical',
          '3m',
          'absent(up{%s} == 1) and absent(up{%s} == 1)' % [job, kcm],
          'mooring and kube-controller-manager are both down.',
          'Prometheus reaches neither of them. No volume is bound, attached or detached in this cluster, and nothing can take over.'
        ),
        alert(
          'MooringLeaderAbsent',
          'critical',
          '1m',
          'sum %s (leader_election_master_status{%s}) == 0' % [by(['job']), job],
          'No replica of mooring leads.',
          'Replicas run, but none has held the lease for a minute: no volume is bound, attached or detached.'
        ),
        alert(
          'MooringTwoControllers',
          'critical',
          '0m',
          |||
            max %(by_alarm)s (mooring_alarm{alarm=~"second_.*", %(job)s}) == 1
            or count %(by_name)s (
              max %(by_manager)s (running_managed_controllers{name=~"persistentvolume-attach-detach-controller|persistentvolume-binder-controller"} == 1)
            ) > 1
          ||| % { job: job, by_alarm: by(['alarm']), by_name: by(['name']), by_manager: by(['name', 'job']) },
          'Two controllers manage the same volumes.',
          'Another attach/detach controller or binder is at work beside mooring ({{ $labels.alarm }}{{ $labels.name }}). mooring has paused everything destructive. Turn one of them off.'
        ),
        alert(
          'MooringForeignWriter',
          'critical',
          '0m',
          'sum %s (increase(mooring_foreign_writes_total{%s}[5m])) > 0' % [by(['job', 'kind']), job],
          'Another writer changes what only mooring should write.',
          '{{ $value | humanize }} writes of kind {{ $labels.kind }} in five minutes were made by another writer: a script, a restore or a second controller.'
        ),
        alert(
          'MooringAlarm',
          'warning',
          '5m',
          'max %s (mooring_alarm{alarm!~"second_.*", %s}) == 1' % [by(['job', 'alarm']), job],
          'mooring raises the alarm {{ $labels.alarm }}.',
          'A condition needs an operator: {{ $labels.alarm }}. /readyz?verbose has the details.'
        ),
        alert(
          'MooringCertificateExpires',
          'warning',
          '10m',
          |||
            min %(by)s ({__name__=~"mooring_(serving|client)_certificate_expiry_timestamp_seconds", %(job)s}) - time() < 7 * 86400
          ||| % { by: by(['job', 'instance']), job: job },
          'A certificate of mooring expires within a week.',
          'The serving or client certificate of {{ $labels.instance }} expires in {{ $value | humanizeDuration }}. After that it cannot be scraped, or cannot reach the API server.'
        ),
      ],
    },
    {
      name: 'mooring-view',
      rules: [
        alert(
          'MooringWatchSilent',
          'warning',
          '1m',
          'max %s (mooring_watch_silence_seconds{%s}) > 120' % [by(['job', 'instance', 'resource']), job],
          'A watch of mooring is silent.',
          '{{ $labels.instance }} has received nothing on its watch of {{ $labels.resource }} for {{ $value | humanizeDuration }}; the API server sends a bookmark each minute. Its view of them may be stale.'
        ),
        alert(
          'MooringNotSynced',
          'warning',
          '5m',
          'min %s (mooring_watch_synced{%s}) == 0' % [by(['job', 'instance', 'resource']), job],
          'mooring is not synced.',
          '{{ $labels.instance }} has had no complete list of {{ $labels.resource }} since its start. It is not ready and does not lead.'
        ),
        alert(
          'MooringUnreadableObjects',
          'warning',
          '5m',
          'max %s (mooring_watch_unreadable_objects{%s}) > 0' % [by(['job', 'resource']), job],
          'mooring cannot read some objects.',
          'The newest revision of {{ $value }} {{ $labels.resource }} cannot be decoded. Each of these objects waits; nothing else is affected.'
        ),
        alert(
          'MooringGuardRefusals',
          'warning',
          '10m',
          'sum %s (increase(mooring_guard_refusals_total{guard=~"%s", %s}[15m])) > 10' % [by(['job', 'guard']), list(config.unusualGuards), job],
          'A safety check of mooring keeps refusing actions.',
          'The guard {{ $labels.guard }} refused {{ $value | humanize }} times in 15 minutes. A healthy cluster never triggers it.'
        ),
      ],
    },
    {
      name: 'mooring-volumes',
      rules: [
        alert(
          'MooringForceDetachPending',
          'warning',
          '0m',
          'max %s (mooring_force_detach_pending{%s}) > 0' % [by(['job', 'driver']), job],
          'Volumes will be detached by force.',
          '{{ $value }} volumes of {{ $labels.driver }} are on nodes that are not Ready and have not unmounted them. They are force-detached when the timeout ends. The dashboard “Attach and detach” shows when the next one is due.'
        ),
        alert(
          'MooringForceDetached',
          'info',
          '0m',
          'sum %s (increase(attach_detach_controller_attachdetach_controller_forced_detaches{%s}[10m])) > 0' % [by(['job', 'reason']), job],
          'Volumes were detached by force.',
          '{{ $value | humanize }} volumes were detached in ten minutes although their node had not unmounted them (reason: {{ $labels.reason }}).'
        ),
        alert(
          'MooringDetachStuck',
          'warning',
          '1m',
          'max %s (mooring_detach_oldest_seconds{%s}) > 900' % [by(['job', 'driver']), job],
          'The deletion of a VolumeAttachment is stuck.',
          'The oldest deletion of a VolumeAttachment of {{ $labels.driver }} has been under way for {{ $value | humanizeDuration }}. Its volume cannot be attached to another node.'
        ),
        alert(
          'MooringAttacherNotAnswering',
          'warning',
          '10m',
          |||
            max %(by)s (mooring_attacher_backlog{%(job)s}) > 0
            unless (
              sum %(by)s (increase(mooring_attach_e2e_seconds_count{phase="attacher", %(job)s}[10m])) > 0
              or sum %(by)s (increase(mooring_detach_e2e_seconds_count{phase="attacher", %(job)s}[10m])) > 0
            )
          ||| % { by: by(['job', 'driver']), job: job },
          'An external-attacher does not answer.',
          '{{ $value }} VolumeAttachments wait for the external-attacher of {{ $labels.driver }}, which has finished none for ten minutes.'
        ),
        alert(
          'MooringProvisionerNotSeen',
          'warning',
          '10m',
          'max %s (mooring_waiting_oldest_seconds{kind="claim", reason=~"ProvisionerUnknown|WaitingForProvisioner", %s}) > 600' % [by(['job', 'reason']), job],
          'A claim waits for a provisioner that does not answer.',
          'The oldest claim with the reason {{ $labels.reason }} has waited for {{ $value | humanizeDuration }}: its external-provisioner does not run or does not serve the class. See %s for what the reason means.' % config.reasonURL
        ),
        alert(
          'MooringClaimsLost',
          'warning',
          '1m',
          'max %s (mooring_waiting{kind="claim", reason=~"Lost.*", %s}) > 0' % [by(['job', 'reason']), job],
          'Claims have lost their volume.',
          '{{ $value }} claims are Lost ({{ $labels.reason }}). Nothing was deleted because of this, and the data is usually still there. See %s for what the reason means.' % config.reasonURL
        ),
        alert(
          'MooringWaitingLong',
          'warning',
          '5m',
          'max %s (mooring_waiting_oldest_seconds{reason!~"%s", %s}) > 1800' % [by(['job', 'kind', 'reason']), list(config.expectedWaits + config.alertedWaits), job],
          'Something waits for more than half an hour.',
          'The oldest {{ $labels.kind }} with the reason {{ $labels.reason }} has waited for {{ $value | humanizeDuration }}. See %s for what the reason means.' % config.reasonURL
        ),
      ],
    },
    {
      name: 'mooring-slo',
      rules:
        burn('MooringAttachBudgetBurn', 'attach', 'Attaches are slow, without the driver’s time (S-1).', 'the attaches took more than a second, without the driver’s time,') +
        burn('MooringBindBudgetBurn', 'bind', 'Claims are bound slowly (S-2).', 'the claims that a volume fits were bound after more than a second') +
        burn('MooringDetachBudgetBurn', 'detach', 'Detaches are slow, without the driver’s and the kubelet’s time (S-3).', 'the detaches took more than a second, without the driver’s time and the kubelet’s,') +
        burn('MooringAPIWriteBudgetBurn', 'api-writes', 'The API server fails mooring’s writes (S-4).', 'the writes ended in a server error or without an answer'),
    },
  ] },
}
