// What promtool plays: for each alert the outage that it is for, in which it fires and nothing else does; and the ordinary events
// nearest to it, in which nothing fires at all. Everything happens in the cluster `c` of a Prometheus that watches another, healthy
// cluster and a program that is not mooring. Values are one per minute, in promtool's notation.
local series(metric, labels, values) = {
  series: '%s{%s}' % [metric, std.join(', ', ['%s="%s"' % [label, labels[label]] for label in std.objectFields(labels)])],
  values: values,
};

// A cluster in which nothing is wrong, by what each series is about; an outage gives some of them other values, or takes them
// away, and adds its own.
local well = {
  'a up': ['up', { instance: 'a', metrics_path: '/metrics' }, '1x300'],
  'b up': ['up', { instance: 'b', metrics_path: '/metrics' }, '1x300'],
  'a slis': ['up', { instance: 'a', metrics_path: '/metrics/slis' }, '1x300'],
  'b slis': ['up', { instance: 'b', metrics_path: '/metrics/slis' }, '1x300'],
  'a leads': ['leader_election_master_status', { name: 'mooring', instance: 'a' }, '1x300'],
  'b leads': ['leader_election_master_status', { name: 'mooring', instance: 'b' }, '0x300'],
  'a began': ['process_start_time_seconds', { instance: 'a' }, '100x300'],
  'b began': ['process_start_time_seconds', { instance: 'b' }, '100x300'],
  'a loop': ['running_managed_controllers', { instance: 'a', name: 'persistentvolume-binder-controller', manager: 'mooring' }, '1x300'],
  'a claims': ['workqueue_depth', { instance: 'a', name: 'claims' }, '3x300'],
  'b claims': ['workqueue_depth', { instance: 'b', name: 'claims' }, '0x300'],
  'a attach': ['workqueue_depth', { instance: 'a', name: 'attach' }, '3x300'],
  'b attach': ['workqueue_depth', { instance: 'b', name: 'attach' }, '0x300'],
  'a longest': ['workqueue_longest_running_processor_seconds', { instance: 'a', name: 'attach' }, '2x300'],
  // kube-controller-manager without the two loops.
  'k up': ['up', { job: 'kube-controller-manager', instance: 'k' }, '1x300'],
  'k leads': ['leader_election_master_status', { job: 'kube-controller-manager', instance: 'k', name: 'kube-controller-manager' }, '1x300'],
  'k loop': ['running_managed_controllers', { job: 'kube-controller-manager', instance: 'k', name: 'node-ipam-controller', manager: 'kube-controller-manager' }, '1x300'],
  'k queue': ['workqueue_depth', { job: 'kube-controller-manager', instance: 'k', name: 'pvcprotection' }, '1x300'],
  'second attach/detach': ['mooring_alarm', { instance: 'a', alarm: 'second_attach_detach_controller' }, '0x300'],
  'second binder': ['mooring_alarm', { instance: 'a', alarm: 'second_binder' }, '0x300'],
  restored: ['mooring_alarm', { instance: 'a', alarm: 'etcd_restored' }, '0x300'],
  late: ['mooring_requests_timed_out_total', { instance: 'a', verb: 'create', resource: 'volumeattachments' }, '0x300'],
  'foreign creates': ['mooring_foreign_writes_total', { instance: 'a', kind: 'attachment_created' }, '0x300'],
  'foreign phases': ['mooring_foreign_writes_total', { instance: 'a', kind: 'phase_changed' }, '0x300'],
  'a serves': ['mooring_serving_certificate_expiry_timestamp_seconds', { instance: 'a' }, '31536000x300'],
  'a client': ['mooring_client_certificate_expiry_timestamp_seconds', { instance: 'a' }, '31536000x300'],
  'a pods silent': ['mooring_watch_silence_seconds', { instance: 'a', resource: 'pods' }, '60x300'],
  'a nodes silent': ['mooring_watch_silence_seconds', { instance: 'a', resource: 'nodes' }, '5x300'],
  'b pods silent': ['mooring_watch_silence_seconds', { instance: 'b', resource: 'pods' }, '60x300'],
  'a synced': ['mooring_watch_synced', { instance: 'a', resource: 'pods' }, '1x300'],
  'b synced': ['mooring_watch_synced', { instance: 'b', resource: 'pods' }, '1x300'],
  unreadable: ['mooring_watch_unreadable_objects', { instance: 'a', resource: 'pods' }, '0x300'],
  'held elsewhere': ['mooring_guard_refusals_total', { instance: 'a', guard: 'HeldByNode' }, '0+100x300'],
  'force pending': ['mooring_force_detach_pending', { instance: 'a', driver: 'd' }, '0x300'],
  forced: ['attach_detach_controller_attachdetach_controller_forced_detaches', { instance: 'a', reason: 'timeout' }, '3x300'],
  'oldest detach': ['mooring_detach_oldest_seconds', { instance: 'a', driver: 'd' }, '20x300'],
  backlog: ['mooring_attacher_backlog', { instance: 'a', driver: 'd' }, '4x300'],
  attached: ['mooring_attach_e2e_seconds_count', { instance: 'a', driver: 'd', phase: 'attacher' }, '0+5x300'],
  detached: ['mooring_detach_e2e_seconds_count', { instance: 'a', driver: 'd', phase: 'attacher', forced: 'false' }, '0+5x300'],
  'attach failed': ['storage_operation_duration_seconds_count', { instance: 'a', volume_plugin: 'kubernetes.io/csi:d', operation_name: 'volume_attach', status: 'fail-unknown', migrated: 'false' }, '0x300'],
  provisioned: ['volume_operation_total_seconds_count', { instance: 'a', plugin_name: 'd', operation_name: 'provision' }, '0+1x300'],
  'claims at provisioner': ['mooring_waiting', { instance: 'a', kind: 'claim', reason: 'WaitingForProvisioner' }, '1x300'],
  'oldest at provisioner': ['mooring_waiting_oldest_seconds', { instance: 'a', kind: 'claim', reason: 'WaitingForProvisioner' }, '20x300'],
  lost: ['mooring_waiting', { instance: 'a', kind: 'claim', reason: 'LostMisbound' }, '0x300'],
  // What may wait for ever, and needs no operator.
  'first consumer': ['mooring_waiting_oldest_seconds', { instance: 'a', kind: 'claim', reason: 'WaitingForFirstConsumer' }, '0+60x300'],
  retained: ['mooring_waiting_oldest_seconds', { instance: 'a', kind: 'volume', reason: 'Retained' }, '0+60x300'],
  unmount: ['mooring_waiting_oldest_seconds', { instance: 'a', kind: 'attachment', reason: 'DetachWaitingForUnmount' }, '40x300'],
  attaches: ['mooring_attach_overhead_seconds_count', { instance: 'a', driver: 'd' }, '0+1000x300'],
  'attaches in time': ['mooring_attach_overhead_seconds_bucket', { instance: 'a', driver: 'd', le: '1' }, '0+998x300'],
  posts: ['rest_client_requests_total', { instance: 'a', method: 'POST', code: '201' }, '0+1000x300'],
  conflicts: ['rest_client_requests_total', { instance: 'a', method: 'PATCH', code: '409' }, '0+500x300'],
  // Of the kubelet and of kube-state-metrics.
  memory: ['container_memory_working_set_bytes', { job: 'kubelet', instance: 'n1', namespace: 'mooring-system', pod: 'mooring-a', container: 'mooring' }, '100000000x300'],
  limit: ['kube_pod_container_resource_limits', { job: 'kube-state-metrics', instance: 's', namespace: 'mooring-system', pod: 'mooring-a', container: 'mooring', resource: 'memory', unit: 'byte' }, '536870912x300'],
};

// All series of a cluster; of a series that `changed` has, too, its values are taken, or the series left out for null.
local cluster(name, changed) = [
  local value = (well + changed)[key];
  local one = if std.isString(value) then well[key][:2] + [value] else value;
  series(one[0], { cluster: name, job: 'mooring' } + one[1], one[2])
  for key in std.objectFields(well + changed)
  if (well + changed)[key] != null
];

// A program that is not mooring, and of which everything is wrong: its metrics have the same names as mooring's or
// kube-controller-manager's.
local stranger = [
  series(metric[0], { cluster: 'c', job: 'stranger', instance: 'z' } + metric[1], metric[2])
  for metric in [
    ['up', {}, '0x300'],
    ['leader_election_master_status', { name: 'stranger' }, '0x300'],
    ['process_start_time_seconds', {}, '0+60x300'],
    ['workqueue_depth', { name: 'claims' }, '500x300'],
    ['workqueue_longest_running_processor_seconds', { name: 'claims' }, '9000x300'],
    ['running_managed_controllers', { name: 'persistentvolume-binder-controller', manager: 'stranger' }, '1x300'],
    ['rest_client_requests_total', { method: 'POST', code: '500' }, '0+1000x300'],
    ['container_memory_working_set_bytes', { namespace: 'strange', pod: 'z', container: 'z' }, '536870912x300'],
    ['kube_pod_container_resource_limits', { namespace: 'strange', pod: 'z', container: 'z', resource: 'memory' }, '536870912x300'],
  ]
];

local world(changed) = cluster('c', changed) + cluster('d', {}) + stranger;
local firing = 'count by (alertname, cluster, severity) (ALERTS{alertstate="firing"})';

// At the minute `quiet` nothing fires, at `fires` the alert alone does, `count` times, at `resolved` nothing.
local outage(alert, severity, quiet, fires, resolved, changed, name='', count=1) = {
  name: alert + (if name == '' then '' else ': ' + name),
  interval: '1m',
  input_series: world(changed),
  promql_expr_test: [
    { expr: firing, eval_time: '%dm' % quiet, exp_samples: [] },
    {
      expr: firing,
      eval_time: '%dm' % fires,
      exp_samples: [{ labels: '{alertname="%s", cluster="c", severity="%s"}' % [alert, severity], value: count }],
    },
    { expr: firing, eval_time: '%dm' % resolved, exp_samples: [] },
  ],
};

// Nothing fires at any of these minutes, of the alerts that are nearest to it neither.
local ordinary(near, name, changed, minutes=120) = {
  name: 'not %s: %s' % [std.join(' nor ', near), name],
  interval: '1m',
  input_series: world(changed),
  promql_expr_test: [{
    expr: 'count by (alertname, cluster) (count_over_time(ALERTS{alertstate="firing"}[%dm]))' % minutes,
    eval_time: '%dm' % minutes,
    exp_samples: [],
  }],
};

// A level of which from the 30th minute on, for two hours, so many of 10 each minute miss the objective.
local slow(metric, labels, missed) = {
  [metric]: [metric + '_count', { instance: 'a' } + labels, '0+10x300'],
  [metric + ' in time']: [metric + '_bucket', { instance: 'a', le: '1' } + labels, '0+10x30 %d+%dx119 %d+10x150' % [310 - missed, 10 - missed, 310 - missed + 119 * (10 - missed) + 10]],
};
// A level with twenty operations in an hour, of which half missed the objective.
local quiet(metric, labels) = {
  [metric]: [metric + '_count', { instance: 'a' } + labels, '0x60 20x300'],
  [metric + ' in time']: [metric + '_bucket', { instance: 'a', le: '1' } + labels, '0x60 10x300'],
};
// Something waits from the tenth minute on.
local oldest(kind, reason, minutes) = {
  [kind]: ['mooring_waiting_oldest_seconds', { instance: 'a', kind: kind, reason: reason }, '0x10 0+60x%d 0x300' % minutes],
};
// Claims of ephemeral volumes are refused for fifty minutes; those that are created.
local refused(created) = oldest('ephemeral_volumes', 'RetryBackoff', 50) + {
  'claims created': ['ephemeral_volume_controller_create_total', { instance: 'a' }, created],
  'claims failed': ['ephemeral_volume_controller_create_failures_total', { instance: 'a' }, '0x300'],
};
// kube-controller-manager with the two loops, and a mooring with `--fence`: how the fence stands to both replicas.
local beside(fence) = {
  'k claims': ['workqueue_depth', { job: 'kube-controller-manager', instance: 'k', name: 'claims' }, '3x300'],
  'k pvcs': ['workqueue_depth', { job: 'kube-controller-manager', instance: 'k', name: 'pvcs' }, '3x300'],
} + {
  [instance + ' fence ' + state]: ['mooring_fence', { instance: instance, state: state }, ({ absent: '0x300', refused: '0x300', waiting: '0x300', enforced: '0x300', lost: '0x300' } + fence)[state]]
  for instance in ['a', 'b']
  for state in ['absent', 'refused', 'waiting', 'enforced', 'lost']
};
// kube-controller-manager's loops are fenced off, and denied something from time to time.
local fenced(values) = { denied: ['apiserver_validating_admission_policy_check_total', { job: 'apiserver', instance: 's', policy: 'mooring-fence-attachdetach-controller', policy_binding: 'mooring-fence-attachdetach-controller', enforcement_action: 'deny', error_type: 'no_error' }, values] };
local gone(values) = { 'b up': values, 'b slis': values, 'b leads': null, 'b began': null, 'b claims': null, 'b pods silent': null, 'b synced': null };

{
  rule_files: ['rules.yaml'],
  evaluation_interval: '1m',
  tests: [
    ordinary(['any'], 'a healthy cluster', {}),

    outage('MooringDown', 'critical', 6, 12, 20, { 'a up': '1x5 0x10 1x300', 'b up': '1x5 0x10 1x300', 'a slis': '1x5 0x10 1x300', 'b slis': '1x5 0x10 1x300', 'a leads': '1x5 _x11 1x300', 'b leads': '0x5 _x11 0x300' }),
    outage('MooringDown', 'critical', 6, 12, 20, { 'a up': '1x5 stale _x10 1x300', 'b up': '1x5 stale _x10 1x300', 'a slis': '1x5 stale _x10 1x300', 'b slis': '1x5 stale _x10 1x300', 'a leads': '1x5 _x11 1x300', 'b leads': '0x5 _x11 0x300' }, 'no targets are left'),
    // The health checks are asked for under the same job.
    outage('MooringDown', 'critical', 6, 12, 20, { 'a up': '1x5 0x10 1x300', 'b up': '1x5 0x10 1x300', 'a leads': '1x5 _x11 1x300', 'b leads': '0x5 _x11 0x300' }, 'only the metrics are not served'),
    // kube-controller-manager's absence has an alert of its own, which is not ours.
    outage('MooringDown', 'critical', 6, 12, 20, { 'a up': '1x5 0x10 1x300', 'b up': '1x5 0x10 1x300', 'a leads': '1x5 _x11 1x300', 'b leads': '0x5 _x11 0x300', 'k up': '1x5 0x10 1x300' }, 'with kube-controller-manager'),
    // Its series end in the fifth minute. What is not there for a day is not known to be wanted.
    {
      name: 'not MooringDown: a day after the way back to kube-controller-manager',
      interval: '1m',
      input_series: [series('up', { cluster: 'c', job: 'mooring', instance: 'a', metrics_path: '/metrics' }, '1x5 stale')],
      promql_expr_test: [
        { expr: firing, eval_time: '12m', exp_samples: [{ labels: '{alertname="MooringDown", cluster="c", severity="critical"}', value: 1 }] },
        { expr: firing, eval_time: '1460m', exp_samples: [] },
      ],
    },
    outage('MooringLeaderAbsent', 'critical', 7, 12, 20, { 'a leads': '1x5 0x10 1x300' }),
    // Who is in the way of kube-controller-manager's loops, too, while nobody leads, is a fence that somebody has put up.
    outage('MooringLeaderAbsent', 'critical', 7, 12, 20, beside({ waiting: '0x5 1x10 0x300', enforced: '1x5 0x10 1x300' }) + { 'a leads': '1x5 0x10 1x300' }, 'all replicas wait behind a fence of another content'),
    // Its loops are off by flags, and mooring waits for a fence that nobody raises.
    outage('MooringLeaderAbsent', 'critical', 7, 12, 20, {
      'a absent': ['mooring_fence', { instance: 'a', state: 'absent' }, '0x5 1x10 0x300'],
      'a leads': '1x5 0x10 1x300',
    }, 'no fence is needed, and it is waited for'),
    ordinary(['MooringLeaderAbsent', 'MooringTwoControllers'], 'standbys wait for the switch, while kube-controller-manager rules', beside({ absent: '1x60 0x300', enforced: '0x60 1x300' }) + { 'a leads': '0x60 1x300' }),
    ordinary(['MooringLeaderAbsent'], 'standbys wait for the switch, and a webhook refuses their writes or the probe', beside({ absent: '1x5 0x40 1x300', refused: '0x5 1x40 0x300' }) + { 'a leads': '0x300' }),
    outage('MooringFencedWithoutRuler', 'critical', 8, 13, 20, fenced('0+2x300') + { 'a up': '1x5 0x10 1x300', 'b up': '1x5 0x10 1x300', 'a slis': '1x5 0x10 1x300', 'b slis': '1x5 0x10 1x300', 'a leads': '1x5 stale _x10 1x300', 'b leads': '0x5 stale _x10 0x300' }),
    outage('MooringFencedWithoutRuler', 'critical', 8, 13, 20, fenced('0+2x300') + { 'a leads': '1x5 0x10 1x300' }, 'replicas run'),
    ordinary(['MooringFencedWithoutRuler', 'MooringDown', 'MooringLeaderAbsent'], 'a fence behind which mooring leads', fenced('0+2x300')),
    // mooring leads no more, a minute later the fence is down. It stands by here: scaled to 0, MooringDown would be true and is known.
    ordinary(['MooringFencedWithoutRuler'], 'the way back to kube-controller-manager', fenced('0+2x8 16x300') + {
      [key]: null
      for key in std.objectFields(well)
      if std.startsWith(key, 'a ') || std.startsWith(key, 'b ')
    } + {
      'a up': ['up', { instance: 'a', metrics_path: '/metrics' }, '1x300'],
      'b up': ['up', { instance: 'b', metrics_path: '/metrics' }, '1x300'],
      'a leads': ['leader_election_master_status', { name: 'mooring', instance: 'a' }, '1x7 stale'],
    }),
    ordinary(['MooringDown', 'MooringLeaderAbsent', 'MooringReplicasMissing', 'MooringRestarting', 'MooringNotSynced', 'MooringTwoControllers'], 'a rolling update, one replica after the other', {
      'a up': '1x10 0 1x300',
      'b up': '1x8 0 1x300',
      'a leads': '1x10 _x1 0x300',
      'b leads': '0x8 _x1 0 1x300',
      'a began': '100x10 _ 760x300',
      'b began': '100x8 _ 640x300',
      'a claims': '3x10 _ 0x300',
      'b claims': '0x8 _ 3x300',
      'a synced': '1x10 _ 0x2 1x300',
      'b synced': '1x8 _ 0x2 1x300',
    }),
    ordinary(['MooringLeaderAbsent', 'MooringReplicasMissing', 'MooringDown'], 'the node of the leader reboots', gone('1x10 0x5 1x300') + { 'b leads': null } + { 'a leads': '0x11 1x300', 'b leads': ['leader_election_master_status', { name: 'mooring', instance: 'b' }, '1x9 stale _x5 0x300'] }),
    outage('MooringReplicasMissing', 'warning', 20, 32, 62, gone('1x10 0x50 1x300')),
    outage('MooringReplicasMissing', 'warning', 20, 32, 62, gone('1x10 _x51 1x300'), 'it is not even scheduled'),
    // Killed every ten minutes, by the limit of its memory for instance.
    outage('MooringRestarting', 'warning', 25, 45, 140, { 'b began': '100x9 700x9 1300x9 1900x9 2500x300' }),

    // It holds the lease, and its requests do not end.
    outage('MooringLeaderStuck', 'critical', 13, 22, 45, { 'a longest': '2x10 0+60x29 2x300' }),
    // Or it hears nothing at all, and a standby does.
    outage('MooringLeaderStuck', 'critical', 12, 18, 45, { 'a pods silent': '60x10 60+60x29 60x300', 'a nodes silent': '5x10 5+60x29 5x300' }, 'it hears nothing'),
    outage('MooringWatchSilent', 'warning', 12, 20, 45, { 'b pods silent': '60x10 60+60x29 60x300' }),
    ordinary(['MooringWatchSilent', 'MooringLeaderStuck', 'MooringLeaderAbsent', 'MooringAPIWriteBudgetBurn'], 'the API server restarts', { 'a pods silent': '60x10 60 120 60x300', 'a nodes silent': '5x10 65 125 5x300', 'b pods silent': '60x10 60 120 60x300', 'a leads': '1x10 0x1 1x300', failed: ['rest_client_requests_total', { instance: 'a', method: 'POST', code: '500' }, '0x10 40 80x300'] }),

    outage('MooringTwoControllers', 'critical', 5, 7, 13, { 'second binder': '0x5 1x5 0x300' }),
    outage('MooringTwoControllers', 'critical', 5, 7, 13, { 'second attach/detach': '0x5 1x5 0x300' }, 'of attach/detach'),
    // What shows kube-controller-manager's loops is their queues: `running_managed_controllers` has neither.
    outage('MooringTwoControllers', 'critical', 5, 8, 14, { 'k claims': ['workqueue_depth', { job: 'kube-controller-manager', instance: 'k', name: 'claims' }, '_x6 0x5 stale'] }, 'its binder is back'),
    outage('MooringTwoControllers', 'critical', 5, 8, 14, { 'k pvcs': ['workqueue_depth', { job: 'kube-controller-manager', instance: 'k', name: 'pvcs' }, '_x6 0x5 stale'] }, 'its attach/detach is back'),
    ordinary(['MooringTwoControllers'], 'the way back to kube-controller-manager: mooring no longer leads', {
      [key]: null
      for key in std.objectFields(well)
      if std.startsWith(key, 'a ') || std.startsWith(key, 'b ')
    } + {
      'k claims': ['workqueue_depth', { job: 'kube-controller-manager', instance: 'k', name: 'claims' }, '0x300'],
      // Scaled to 0: that mooring is down would be true, and is known. It stands by here.
      'a up': ['up', { instance: 'a', metrics_path: '/metrics' }, '1x300'],
      'b up': ['up', { instance: 'b', metrics_path: '/metrics' }, '1x300'],
    }),
    ordinary(['MooringTwoControllers'], 'kube-controller-manager keeps attach/detach by flags, as for FlexVolumes', { 'k pvcs': ['workqueue_depth', { job: 'kube-controller-manager', instance: 'k', name: 'pvcs' }, '3x300'], 'a attach': null, 'b attach': null }),
    ordinary(['MooringTwoControllers'], 'kube-controller-manager keeps the binder by flags', { 'k claims': ['workqueue_depth', { job: 'kube-controller-manager', instance: 'k', name: 'claims' }, '3x300'], 'a claims': null, 'b claims': null }),
    ordinary(['MooringTwoControllers'], 'a whole kube-controller-manager behind the fence', beside({ enforced: '1x300' })),
    // The fence is down for long, and kube-controller-manager has its loops. From the first minute on there is the alarm, too.
    outage('MooringTwoControllers', 'critical', 14, 18, 32, beside({ enforced: '1x5 0x20 1x300', lost: '0x5 1x20 0x300' }), 'the fence is lost', count=2),
    outage('MooringAlarm', 'warning', 5, 11, 20, beside({ enforced: '1x5 0x8 1x300', lost: '0x5 1x8 0x300' }) + { 'fence lost': ['mooring_alarm', { instance: 'a', alarm: 'fence_lost' }, '0x5 1x8 0x300'] }, 'the fence of a new version, before its daemon'),
    outage('MooringForeignWriter', 'warning', 12, 16, 40, { 'foreign creates': '0x10 0+2x4 8x300' }),
    ordinary(['MooringForeignWriter', 'MooringTwoControllers'], 'kubectl create volumeattachment', { 'foreign creates': '0x10 1x300' }),
    // What a restore brings back is no other writer's work, and its grace is no refusal to look at: one alert says that it was.
    outage('MooringAlarm', 'warning', 5, 9, 45, { restored: '0x6 1x4 0x300', 'foreign phases': '0x6 40x300', 'restore grace': ['mooring_guard_refusals_total', { instance: 'a', guard: 'RestoreGrace' }, '0x6 0+50x4 200x300'] }, 'etcd was restored'),
    outage('MooringAlarm', 'warning', 5, 12, 25, { late: '0x6 0+1x6 6x300' }),
    // A stuck object is tried again every two minutes in the end.
    outage('MooringAlarm', 'warning', 5, 20, 40, { late: '0x6 1x1 2x1 3x1 4x1 5x1 6x1 7x1 8x300' }, 'a webhook hangs for one object'),
    ordinary(['MooringAlarm'], 'etcd stands still once, for ten requests', { late: '0x6 10x300' }),
    ordinary(['MooringAlarm'], 'an API server restarts: two requests are lost', { late: '0x6 2x300' }),
    // A week and ten minutes are left; renewed after half an hour.
    outage('MooringCertificateExpires', 'warning', 9, 25, 40, { 'a serves': '605400x30 31536000x300' }),
    outage('MooringCertificateExpires', 'warning', 9, 25, 40, { 'a client': '605400x30 31536000x300' }, 'the client’s'),
    outage('MooringCertificateExpires', 'critical', 2, 25, 40, { 'a client': '2000000x2 82800x28 31536000x300' }, 'the client’s within a day'),
    ordinary(['MooringCertificateExpires'], 'a serving certificate is renewed in its last third', { 'a serves': '864000x300' }),

    outage('MooringNotSynced', 'warning', 13, 18, 33, { 'b synced': '1x10 0x20 1x300', 'b nodes synced': ['mooring_watch_synced', { instance: 'b', resource: 'nodes' }, '1x10 0x20 1x300'] }),
    outage('MooringUnreadableObjects', 'warning', 8, 30, 50, { unreadable: '0x5 2x40 0x300' }),

    // Two minutes are left.
    outage('MooringForceDetachPending', 'warning', 12, 16, 22, { 'force pending': '0x10 3x8 0x300', 'next force': ['mooring_next_force_detach_timestamp_seconds', { instance: 'a' }, '_x11 1020x7 _x300'] }),
    // Its volumes are unmounted, and detached, before force is due.
    ordinary(['MooringForceDetachPending', 'MooringForceDetached', 'MooringDetachStuck', 'MooringWaitingLong'], 'a node reboots', {
      'force pending': '0x10 3x3 0x300',
      'next force': ['mooring_next_force_detach_timestamp_seconds', { instance: 'a' }, '_x11 1020x2 _x300'],
      unmount: '40x10 40+60x4 40x300',
      'oldest detach': '20x14 20+60x3 20x300',
    }),
    ordinary(['MooringForceDetached'], 'a leader that has forced detaches yesterday is followed by another', { forced: '40x20 stale', 'forced by b': ['attach_detach_controller_attachdetach_controller_forced_detaches', { instance: 'b', reason: 'timeout' }, '_x20 0x300'] }),
    ordinary(['MooringAlarm'], 'requests of a kind are answered too late for a moment', { late: '0x6 1 0x300' }),
    ordinary(['MooringUnreadableObjects'], 'an object that is corrected as soon as it is seen', { unreadable: '0x5 1x10 0x300' }),
    ordinary(['MooringDetachStuck'], 'a storage system that takes ten minutes for a detach', { 'oldest detach': '0x10 0+60x10 0x300' }),
    outage('MooringForceDetached', 'info', 5, 8, 25, { forced: '0x5 2x300' }),
    outage('MooringDetachStuck', 'warning', 24, 28, 50, { 'oldest detach': '0x10 0+60x30 0x300' }),
    outage('MooringAttacherNotAnswering', 'warning', 22, 45, 75, {
      attached: '0+1x10 10x50 11+1x300',
      detached: '0+1x10 10x50 11+1x300',
      // Each try ends after two minutes.
      'attach failed': '0x10 0+0.5x50 25x300',
      // It follows from the same that detaches last, and that attachments wait.
      'oldest detach': '20x10 0+60x50 0x300',
      'waiting for it': ['mooring_waiting_oldest_seconds', { instance: 'a', kind: 'attachment', reason: 'WaitingForAttacher' }, '20x10 0+60x50 0x300'],
      'waiting for it to detach': ['mooring_waiting_oldest_seconds', { instance: 'a', kind: 'attachment', reason: 'DetachWaitingForAttacher' }, '20x10 0+60x50 0x300'],
      // Another driver that answers.
      'other backlog': ['mooring_attacher_backlog', { instance: 'a', driver: 'other' }, '5x300'],
      'other detached': ['mooring_detach_e2e_seconds_count', { instance: 'a', driver: 'other', phase: 'attacher', forced: 'false' }, '0+1x300'],
    }),
    ordinary(['MooringAttacherNotAnswering', 'MooringDetachStuck'], 'a driver that answers with errors only, as to a volume without a disk, while new pods come', {
      attached: '9x300',
      detached: '9x300',
      backlog: '1x300',
      'attach failed': '0+1x300',
      'waiting for it': ['mooring_waiting_oldest_seconds', { instance: 'a', kind: 'attachment', reason: 'WaitingForAttacher' }, '20x300'],
    }),
    ordinary(['MooringAttacherNotAnswering'], 'an attacher is updated', {
      attached: '0+1x10 10x5 11+1x300',
      detached: '0+1x10 10x5 11+1x300',
      'waiting for it': ['mooring_waiting_oldest_seconds', { instance: 'a', kind: 'attachment', reason: 'WaitingForAttacher' }, '20x10 20+60x5 20x300'],
    }),
    outage('MooringProvisionerNotSeen', 'warning', 20, 55, 75, { provisioned: '0+1x10 10x50 11+1x300', 'oldest at provisioner': '0x10 0+60x50 0x300' }),
    // Its neighbour works, and many wait for it.
    outage('MooringProvisionerNotSeen', 'warning', 20, 55, 75, { 'claims at provisioner': '1x10 9x50 0x300', 'oldest at provisioner': '0x10 0+60x50 0x300' }, 'one of two'),
    ordinary(['MooringProvisionerNotSeen', 'MooringWaitingLong'], 'a claim with a parameter that its provisioner refuses', { 'oldest at provisioner': '0+60x300' }),
    ordinary(['MooringWaitingLong'], 'mistakes of users: a class that does not exist, a volume too few, two pods that share a disk', {
      [reason]: ['mooring_waiting_oldest_seconds', { instance: 'a', kind: 'claim', reason: reason }, '0+60x300']
      for reason in ['ClassNotFound', 'NoClassAndNoMatch', 'NamedVolumeMissing', 'ClaimMissing', 'FlexVolumeUnsupported', 'HeldByNode', 'ClaimNotBound']
    }),
    ordinary(['MooringWaitingLong', 'MooringProvisionerNotSeen'], 'local volumes, of which none is free', { none: ['mooring_waiting_oldest_seconds', { instance: 'a', kind: 'claim', reason: 'ProvisionerUnknown' }, '0+60x300'] }),
    outage('MooringResizerNotSeen', 'warning', 40, 55, 75, oldest('expanding_claim', 'Resizing', 50)),
    ordinary(['MooringResizerNotSeen', 'MooringWaitingLong'], 'a driver that takes twenty minutes to expand a volume', oldest('expanding_claim', 'Resizing', 20)),
    ordinary(['MooringResizerNotSeen', 'MooringWaitingLong'], 'a larger size for a volume of NFS, which nobody expands', { nobody: ['mooring_waiting_oldest_seconds', { instance: 'a', kind: 'expanding_claim', reason: 'ExpansionUnsupported' }, '0+60x300'] }),
    outage('MooringEphemeralClaimsRefused', 'warning', 25, 50, 75, refused('0+1x10 10x50 11+1x300')),
    ordinary(['MooringEphemeralClaimsRefused', 'MooringWaitingLong'], 'a namespace whose quota is used up, while claims of others are created', refused('0+1x300')),
    outage('MooringAttributesClassInUse', 'info', 60, 85, 100, oldest('protected_vac', 'Terminating', 80)),
    ordinary(['MooringAttributesClassInUse', 'MooringWaitingLong'], 'a class is deleted half an hour before its claims', oldest('protected_vac', 'Terminating', 35)),
    outage('MooringClaimsLost', 'warning', 18, 28, 40, { lost: '0x10 2x25 0x300' }),
    ordinary(['MooringClaimsLost'], 'a restore that brings claims before their volumes', { lost: '0x10 20x10 0x300' }),
    outage('MooringWaitingLong', 'warning', 40, 55, 80, { unmount: '0x10 0+60x60 0x300' }),
    // A pod waits for a VolumeAttachment that somebody else made, which its user may not delete.
    outage('MooringWaitingLong', 'warning', 40, 55, 80, oldest('attachment', 'ForeignAttachment', 60), 'an attachment of others in the way'),
    // A disk that nobody deletes costs money.
    outage('MooringWaitingLong', 'warning', 40, 55, 80, oldest('volume', 'LeftToProvisioner', 60), 'a volume whose provisioner is gone'),

    outage('MooringAttachBudgetBurn', 'warning', 35, 100, 200, slow('mooring_attach_overhead_seconds', {}, 5) + { attaches: null, 'attaches in time': null }),
    outage('MooringDetachBudgetBurn', 'warning', 35, 100, 200, slow('mooring_detach_overhead_seconds', {}, 5)),
    outage('MooringBindBudgetBurn', 'warning', 35, 100, 200, slow('mooring_bind_e2e_seconds', { mode: 'static' }, 5)),
    outage('MooringAPIWriteBudgetBurn', 'warning', 35, 100, 200, { posts: '0+10x300', failed: ['rest_client_requests_total', { instance: 'a', method: 'POST', code: '500' }, '0x30 10+10x119 1200x300'] }),
    // Half of all, but of next to nothing.
    ordinary(['MooringAttachBudgetBurn', 'MooringBindBudgetBurn', 'MooringDetachBudgetBurn'], 'a quiet cluster with some slow operations', { attaches: '0x60 20x300', 'attaches in time': '0x60 10x300' } + quiet('mooring_bind_e2e_seconds', { mode: 'static' }) + quiet('mooring_detach_overhead_seconds', {})),
    ordinary(['MooringAPIWriteBudgetBurn'], 'a quiet cluster in which a webhook refuses one claim for hours', { posts: '0x300', failed: ['rest_client_requests_total', { instance: 'a', method: 'PATCH', code: '500' }, '0x30 1+0.5x300'] }, minutes=300),

    outage('MooringMemoryNearLimit', 'warning', 18, 40, 60, { memory: '100000000x10 510000000x40 100000000x300' }),
    ordinary(['MooringMemoryNearLimit'], 'a first list that takes memory for a while', { memory: '100000000x10 510000000x5 100000000x300' }),
  ],
}
