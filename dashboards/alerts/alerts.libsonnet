// Alerts: one for each cause that an operator has to know, and one for each service level. `critical` wakes a person, because the
// problem needs one at once; `warning` is for working hours, `info` is for the record. One cause raises one alert. A problem that
// users have to solve (a class that does not exist, two pods with one disk) raises none. Each alert has a page in docs/runbooks.
{
  local config = self._config,
  local job = 'job="%s"' % config.job,
  // Health checks are scraped under the same job.
  local up = 'up{%s, metrics_path!="/metrics/slis"}' % job,
  local kcm = 'job="%s"' % config.kcmJob,
  local by(labels) = 'by (%s)' % std.join(', ', ['cluster'] + labels),
  local on(labels) = 'on (%s)' % std.join(', ', ['cluster'] + labels),
  local list(words) = std.join('|', words),

  local alert(name, severity, hold, expr, summary, description) = {
    alert: name,
    expr: expr,
    [if hold != '0m' then 'for']: hold,
    labels: { severity: severity },
    annotations: { summary: summary, description: description, runbook_url: config.runbookURL % name },
  },

  // Slowness is for working hours. These are the second and the last window of Kubernetes' own KubeAPIErrorBudgetBurn. The short
  // window ends the alert soon after the problem. A minimum number of operations must have missed the objective, because a few slow
  // ones in a quiet cluster may be half of all. For writes it is higher: mooring ends up repeating a failing write of one object
  // every two minutes, and one object must not raise the alert.
  local burn(name, level, summary, what) = [
    alert(
      name,
      'warning',
      window.hold,
      |||
        mooring_slo:errors:ratio_rate%(long)s{slo="%(level)s", %(job)s} > %(limit).5f
        and mooring_slo:errors:ratio_rate%(short)s{slo="%(level)s", %(job)s} > %(limit).5f
        and mooring_slo:errors:increase%(long)s{slo="%(level)s", %(job)s} >= %(least)d
      ||| % (window {
               level: level,
               job: job,
               limit: window.factor * (1 - config.objectives[level]),
               least: if level == 'api-writes' then 60 * window.hours else 20,
             }),
      summary,
      '{{ $value | humanizePercentage }} of %s in the last %s. At this pace the error budget of 30 days is gone in %s.' % [what, window.long, window.gone]
    ) + { labels+: { slo: level, long: window.long, short: window.short } }
    for window in [
      { long: '6h', short: '30m', factor: 6, hours: 6, hold: '15m', gone: 'five days' },
      { long: '3d', short: '6h', factor: 1, hours: 72, hold: '3h', gone: '30 days' },
    ]
  ],

  // The operator's monitors give each replica the name of its pod.
  local replica = { by: by(['job', 'instance', 'pod']), on: on(['job', 'instance']), job: job },
  local who = '{{ with $labels.pod }}{{ . }}{{ else }}{{ $labels.instance }}{{ end }}',
  // A replica that holds the lease and receives nothing at all. One that still receives some kinds continues to write.
  local deaf = 'min %(by)s (mooring_watch_silence_seconds{%(job)s}) > 180' % replica,
  local leads = 'max %(by)s (leader_election_master_status{%(job)s}) == 1' % replica,
  // The time limit of each request is far below this.
  local endless = 'max %(by)s (workqueue_longest_running_processor_seconds{%(job)s}) > 300' % replica,

  // One pod's claim that is refused while others are created is its user's: a quota, for instance.
  local refused = 'kind="ephemeral_volumes", reason="RetryBackoff", ' + job,

  // kube-controller-manager's loops want to write, and the API server denies it. Each replica of mooring asks for such a denial
  // every five seconds, too.
  local fenced = 'sum %s (increase(apiserver_validating_admission_policy_check_total{policy=~"mooring-fence-.+", enforcement_action="deny"}[3m])) > 0' % by([]),

  // An error is an answer. A try without an answer counts neither as an answer nor as a new wait: mooring gives each try two
  // minutes.
  local noAnswers = |||
    max %(by)s (mooring_attacher_backlog{%(job)s}) > 0
    and %(on)s max %(by_job)s (mooring_waiting_oldest_seconds{kind="attachment", reason=~"WaitingForAttacher|DetachWaitingForAttacher", %(job)s}) > 600
    unless (
      sum %(by)s (increase(mooring_attach_e2e_seconds_count{phase="attacher", %(job)s}[10m])) > 0
      or sum %(by)s (increase(mooring_detach_e2e_seconds_count{phase="attacher", %(job)s}[10m])) > 0
    )
  ||| % { by: by(['job', 'driver']), by_job: by(['job']), on: on(['job']), job: job },

  prometheusAlerts+:: { groups: [
    {
      name: 'mooring-availability',
      rules: [
        alert(
          'MooringDown',
          'critical',
          '3m',
          |||
            (
              max %(by)s (max_over_time(%(up)s[1d]))
              unless max %(by)s (%(up)s == 1)
            )
            unless on (cluster) %(fenced)s
          ||| % { by: by([]), up: up, fenced: fenced },
          'mooring is down.',
          'Prometheus has not reached any replica of mooring for three minutes. Running pods are not affected; no volume is bound, attached or detached.'
        ),
        alert(
          'MooringLeaderAbsent',
          'critical',
          '3m',
          // Before the switch there is no fence, and kube-controller-manager rules, unless the one that leads has neither queue: its
          // flags switch both loops off.
          |||
            sum %(by)s (leader_election_master_status{%(job)s}) == 0
            unless %(on)s (
              max %(by)s (mooring_fence{state=~"absent|refused", %(job)s}) == 1
              unless on (cluster) (
                max %(by_cluster)s (leader_election_master_status{%(kcm)s}) == 1
                unless on (cluster) workqueue_depth{name=~"claims|pvcs", %(kcm)s}
              )
            )
            unless on (cluster) %(fenced)s
          ||| % { by: by(['job']), by_cluster: by([]), on: on(['job']), job: job, kcm: kcm, fenced: fenced },
          'No replica of mooring leads.',
          'Replicas run, but none has held the lease for three minutes: no volume is bound, attached or detached.'
        ),
        // The API server alone tells of it. A switch leaves it so for some thirty seconds.
        alert(
          'MooringFencedWithoutRuler',
          'critical',
          '4m',
          |||
            %s
            unless on (cluster) max %s (leader_election_master_status{%s}) == 1
          ||| % [fenced, by([]), job],
          'kube-controller-manager is fenced off, and mooring does not lead.',
          'The API server denies the writes of kube-controller-manager’s storage loops, and no replica of mooring that Prometheus reaches has held the lease for four minutes: nobody binds, attaches or detaches a volume.'
        ),
        alert(
          'MooringLeaderStuck',
          'critical',
          '2m',
          |||
            (%(deaf)s or %(endless)s)
            and %(on)s %(leads)s
          ||| % { deaf: deaf, endless: endless, on: replica.on, leads: leads },
          'The leader of mooring does nothing.',
          who + ' holds the lease, but receives nothing from the API server or does not complete a request ({{ $value | humanizeDuration }}). No volume is bound, attached or detached until another replica leads.'
        ),
        alert(
          'MooringTwoControllers',
          'critical',
          '0m',
          // Behind the fence kube-controller-manager has its queues, and writes nothing. For ten minutes after the fence is lost,
          // mooring takes nothing away, and MooringAlarm tells of it.
          |||
            max %(by_alarm)s (mooring_alarm{alarm=~"second_(attach_detach_controller|binder)", %(job)s}) == 1
            or on (cluster) (
              (
                count %(by_name)s (workqueue_depth{name="claims", %(kcm)s}) and on (cluster) workqueue_depth{name="claims", %(job)s}
                or count %(by_name)s (workqueue_depth{name="pvcs", %(kcm)s}) and on (cluster) workqueue_depth{name="attach", %(job)s}
              )
              and on (cluster) (
                leader_election_master_status{%(job)s} == 1
                unless %(on)s max_over_time(mooring_fence{state="enforced", %(job)s}[10m]) == 1
              )
            )
          ||| % { job: job, kcm: kcm, on: replica.on, by_alarm: by(['alarm']), by_name: by(['name']) },
          'Two controllers manage the same volumes.',
          'Another attach/detach controller or binder is at work beside mooring ({{ with $labels.alarm }}{{ . }}{{ end }}{{ with $labels.name }}kube-controller-manager’s work queue {{ . }}{{ end }}). Until it is quiet, mooring detaches or releases nothing. Turn one of them off.'
        ),
        alert(
          'MooringReplicasMissing',
          'warning',
          '15m',
          '(sum %s (%s) < %d) > 0' % [by(['job']), up, config.replicas],
          'Replicas of mooring are missing.',
          'Prometheus reaches {{ $value }} of %d replicas. mooring works, but the loss of one more node is an outage.' % config.replicas
        ),
        alert(
          'MooringRestarting',
          'warning',
          '0m',
          'max %(by)s (changes(process_start_time_seconds{%(job)s}[1h])) > 2' % replica,
          'A replica of mooring restarts repeatedly.',
          who + ' has started {{ $value }} times in an hour.'
        ),
        alert(
          'MooringMemoryNearLimit',
          'warning',
          '15m',
          |||
            max %(by)s (container_memory_working_set_bytes{%(container)s})
            / max %(by)s (kube_pod_container_resource_limits{resource="memory", %(container)s}) > 0.9
          ||| % { by: by(['namespace', 'pod']), container: 'namespace="%s", container="mooring"' % config.namespace },
          'mooring uses nearly all the memory that it may use.',
          '{{ $labels.pod }} uses {{ $value | humanizePercentage }} of its limit. Above the limit the kernel kills it, and its successor needs as much memory.'
        ),
        alert(
          'MooringForeignWriter',
          'warning',
          '0m',
          |||
            sum %(by_kind)s (increase(mooring_foreign_writes_total{%(job)s}[15m])) > 5
            unless %(on)s max %(by)s (
              max_over_time(mooring_alarm{alarm=~"etcd_restored|second_(attach_detach_controller|binder)", %(job)s}[30m])
            ) == 1
          ||| % { by_kind: by(['job', 'kind']), by: by(['job']), on: on(['job']), job: job },
          'Another writer changes what only mooring should write.',
          '{{ $value | humanize }} writes of kind {{ $labels.kind }} in 15 minutes came from another writer: a script, a backup tool, or a second controller.'
        ),
        alert(
          'MooringAlarm',
          'warning',
          '1m',
          |||
            max %(by_alarm)s (mooring_alarm{alarm!~"second_(attach_detach_controller|binder)", %(job)s}) == 1
            or label_replace(max %(by)s (changes(mooring_requests_timed_out_total{%(job)s}[10m])) >= 3, "alarm", "requests_time_out", "", "")
          ||| % { by_alarm: by(['job', 'alarm']), by: by(['job']), job: job },
          'mooring raises the alarm {{ $labels.alarm }}.',
          'A condition needs an operator: {{ $labels.alarm }}. /readyz?verbose or the runbook has the details.'
        ),
        alert(
          'MooringCertificateExpires',
          'warning',
          '10m',
          |||
            min %(by)s (mooring_serving_certificate_expiry_timestamp_seconds{%(job)s}) - time() < 7 * 86400
            or min %(by)s (mooring_client_certificate_expiry_timestamp_seconds{%(job)s}) - time() < 7 * 86400 >= 86400
          ||| % replica,
          'A certificate of mooring expires within a week.',
          'The serving or client certificate of ' + who + ' expires in {{ $value | humanizeDuration }}. After that it cannot be scraped, or cannot reach the API server.'
        ),
        alert(
          'MooringCertificateExpires',
          'critical',
          '10m',
          'min %(by)s (mooring_client_certificate_expiry_timestamp_seconds{%(job)s}) - time() < 86400' % replica,
          'The client certificate of mooring expires within a day.',
          'The certificate that ' + who + ' presents to the API server expires in {{ $value | humanizeDuration }}. After that mooring cannot do anything.'
        ),
      ],
    },
    {
      name: 'mooring-view',
      rules: [
        alert(
          'MooringWatchSilent',
          'warning',
          '2m',
          |||
            count %(by)s (mooring_watch_silence_seconds{%(job)s} > 180)
            unless %(on)s (%(deaf)s and %(on)s %(leads)s)
          ||| % (replica { deaf: deaf, leads: leads }),
          'A watch of mooring is silent.',
          who + ' has received nothing on its watches of {{ $value }} kinds for three minutes; the API server sends a bookmark each minute. Its view of them may be stale.'
        ),
        alert(
          'MooringNotSynced',
          'warning',
          '5m',
          'min %(by)s (mooring_watch_synced{%(job)s}) == 0' % replica,
          'mooring is not synced.',
          who + ' lacks the complete list of a kind since its start. It is not ready and does not lead.'
        ),
        alert(
          'MooringUnreadableObjects',
          'warning',
          '15m',
          'max %s (mooring_watch_unreadable_objects{%s}) > 0' % [by(['job', 'resource']), job],
          'mooring cannot read some objects.',
          'The newest revision of {{ $value }} {{ $labels.resource }} cannot be decoded. Each of these objects waits; nothing else is affected.'
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
          |||
            max %(by_driver)s (mooring_force_detach_pending{%(job)s}) > 0
            and %(on)s min %(by)s (mooring_next_force_detach_timestamp_seconds{%(job)s}) - time() < 120
          ||| % { by_driver: by(['job', 'driver']), by: by(['job']), on: on(['job']), job: job },
          'Volumes will be detached by force.',
          '{{ $value }} volumes of {{ $labels.driver }} are on nodes that have not been Ready for minutes and have not unmounted them, or that have no object any more. The next one is detached by force within two minutes.'
        ),
        alert(
          'MooringForceDetached',
          'info',
          '0m',
          'sum %s (increase(attach_detach_controller_attachdetach_controller_forced_detaches{%s}[10m])) > 0' % [by(['job', 'reason']), job],
          'Volumes were detached by force.',
          '{{ $value | humanize }} volumes were detached in ten minutes although their node had not unmounted them, or from a node with the taint out-of-service (reason: {{ $labels.reason }}).'
        ),
        alert(
          'MooringDetachStuck',
          'warning',
          '1m',
          |||
            max %(by)s (mooring_detach_oldest_seconds{%(job)s}) > 900
            unless %(on)s (
            %(noAnswers)s)
          ||| % { by: by(['job', 'driver']), on: on(['job', 'driver']), job: job, noAnswers: std.strReplace('  ' + noAnswers, '\n', '\n  ') },
          'The deletion of a VolumeAttachment is stuck.',
          'The oldest deletion of a VolumeAttachment of {{ $labels.driver }} has been in progress for {{ $value | humanizeDuration }}. Its volume cannot be attached to another node.'
        ),
        alert(
          'MooringAttacherNotAnswering',
          'warning',
          '1m',
          noAnswers,
          'An external-attacher does not answer.',
          '{{ $value }} VolumeAttachments wait for the external-attacher of {{ $labels.driver }}, which has answered none for ten minutes.'
        ),
        alert(
          'MooringProvisionerNotSeen',
          'warning',
          '10m',
          |||
            max %(by_reason)s (mooring_waiting_oldest_seconds{kind="claim", reason="WaitingForProvisioner", %(job)s}) > 1800
            unless %(on)s (
              sum %(by)s (increase(volume_operation_total_seconds_count{operation_name="provision", %(job)s}[30m])) > 0
              unless max %(by)s (mooring_waiting{kind="claim", reason="WaitingForProvisioner", %(job)s}) >= %(many)d
            )
          ||| % { by_reason: by(['job', 'reason']), by: by(['job']), on: on(['job']), job: job, many: config.manyClaims },
          'Claims wait for a provisioner that does not answer.',
          'The oldest claim that waits for its provisioner has done so for {{ $value | humanizeDuration }}, and either no volume was provisioned in that time, or at least %d claims wait. See %s for what that means.' % [config.manyClaims, config.reasonURL]
        ),
        alert(
          'MooringResizerNotSeen',
          'warning',
          '5m',
          'max %s (mooring_waiting_oldest_seconds{kind="expanding_claim", reason="Resizing", %s}) > 1800' % [by(['job', 'reason']), job],
          'Claims wait for a resizer that does not answer.',
          'The oldest claim whose volume is to become larger has waited for {{ $value | humanizeDuration }}, and its driver has not expanded the volume. See %s for what that means.' % config.reasonURL
        ),
        alert(
          'MooringEphemeralClaimsRefused',
          'warning',
          '5m',
          |||
            max %(by_reason)s (mooring_waiting_oldest_seconds{%(refused)s}) > 900
            unless %(on)s (
              sum %(by)s (increase(ephemeral_volume_controller_create_total{%(job)s}[15m]))
              - sum %(by)s (increase(ephemeral_volume_controller_create_failures_total{%(job)s}[15m])) > 0
            )
          ||| % { by_reason: by(['job', 'reason']), by: by(['job']), on: on(['job']), job: job, refused: refused },
          'Claims of generic ephemeral volumes cannot be created.',
          'The oldest pod whose claim is refused has waited for {{ $value | humanizeDuration }}, and no such claim was created in 15 minutes. See %s for what that means.' % config.reasonURL
        ),
        alert(
          'MooringAttributesClassInUse',
          'info',
          '5m',
          'max %s (mooring_waiting_oldest_seconds{kind="protected_vac", reason="Terminating", %s}) > 3600' % [by(['job', 'reason']), job],
          'A VolumeAttributesClass is being deleted and still used.',
          'The oldest deletion of a VolumeAttributesClass has waited for {{ $value | humanizeDuration }}, because claims or volumes name the class. See %s for what that means.' % config.reasonURL
        ),
        alert(
          'MooringClaimsLost',
          'warning',
          '15m',
          'max %s (mooring_waiting{kind="claim", reason=~"Lost.*", %s}) > 0' % [by(['job', 'reason']), job],
          'Claims have lost their volume.',
          '{{ $value }} claims are Lost ({{ $labels.reason }}). Nothing was deleted because of this, and the data is usually still there. See %s for what the reason means.' % config.reasonURL
        ),
        alert(
          'MooringWaitingLong',
          'warning',
          '5m',
          |||
            max %(by)s (mooring_waiting_oldest_seconds{reason!~"%(others)s", %(job)s}) > 1800
            unless max %(by)s (mooring_waiting_oldest_seconds{%(refused)s})
          ||| % {
            by: by(['job', 'kind', 'reason']),
            others: list(config.expectedWaits + config.usersWaits + config.alertedWaits),
            job: job,
            refused: refused,
          },
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
