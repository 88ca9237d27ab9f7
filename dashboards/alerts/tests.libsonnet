// What promtool plays: each alert is quiet, fires, and resolves, and a healthy cluster raises none. Values are one per
// minute, in promtool's notation.
local job = 'job="mooring"';
local all = { cluster: 'c', job: 'mooring' };
local series(name, labels, values) = {
  local merged = all + labels,
  series: '%s{%s}' % [name, std.join(', ', ['%s="%s"' % [label, merged[label]] for label in std.objectFields(merged)])],
  values: values,
};

// At `quiet` minutes the alert does not fire, at `fires` it does, once for each of `count`, at `resolved` no more.
local play(alert, quiet, fires, resolved, input, matchers='', count=1) = {
  name: alert,
  interval: '1m',
  input_series: input,
  local firing = 'count by (alertname) (ALERTS{alertname="%s", alertstate="firing"%s})' % [alert, matchers],
  promql_expr_test: [
    { expr: firing, eval_time: '%dm' % quiet, exp_samples: [] },
    { expr: firing, eval_time: '%dm' % fires, exp_samples: [{ labels: '{alertname="%s"}' % alert, value: count }] },
    { expr: firing, eval_time: '%dm' % resolved, exp_samples: [] },
  ],
};

local burn(alert, input) = play(alert, 50, 85, 100, input, ', long="1h", severity="critical"');
// Ten a minute; from the 60th to the 90th minute half of them take longer than a second.
local slow(metric, labels={}) = [
  series(metric + '_count', labels, '0+10x150'),
  series(metric + '_bucket', labels { le: '1' }, '0+10x60 605+5x30 765+10x60'),
];

// What a cluster shows in which nothing is wrong.
local healthy = [
  series('up', { instance: 'a' }, '1x120'),
  series('up', { instance: 'b' }, '1x120'),
  series('up', { job: 'kube-controller-manager', instance: 'k' }, '1x120'),
  series('leader_election_master_status', { name: 'mooring', instance: 'a' }, '1x120'),
  series('leader_election_master_status', { name: 'mooring', instance: 'b' }, '0x120'),
  series('running_managed_controllers', { name: 'persistentvolume-binder-controller', manager: 'mooring' }, '1x120'),
  series('running_managed_controllers', { job: 'kube-controller-manager', name: 'pod-garbage-collector-controller', manager: 'kube-controller-manager' }, '1x120'),
  series('mooring_alarm', { alarm: 'second_binder' }, '0x120'),
  series('mooring_alarm', { alarm: 'force_detach_timers' }, '0x120'),
  series('mooring_foreign_writes_total', { kind: 'phase_changed' }, '0x120'),
  series('mooring_serving_certificate_expiry_timestamp_seconds', { instance: 'a' }, '31536000x120'),
  series('mooring_watch_silence_seconds', { instance: 'a', resource: 'pods' }, '60x120'),
  series('mooring_watch_synced', { instance: 'a', resource: 'pods' }, '1x120'),
  series('mooring_watch_unreadable_objects', { resource: 'pods' }, '0x120'),
  series('mooring_guard_refusals_total', { guard: 'HeldByNode' }, '0+100x120'),
  series('mooring_force_detach_pending', { driver: 'd' }, '0x120'),
  series('attach_detach_controller_attachdetach_controller_forced_detaches', { reason: 'timeout' }, '3x120'),
  series('mooring_detach_oldest_seconds', { driver: 'd' }, '20x120'),
  series('mooring_attacher_backlog', { driver: 'd' }, '4x120'),
  series('mooring_attach_e2e_seconds_count', { driver: 'd', phase: 'attacher' }, '0+5x120'),
  series('mooring_waiting', { kind: 'claim', reason: 'LostMisbound' }, '0x120'),
  series('mooring_waiting_oldest_seconds', { kind: 'claim', reason: 'WaitingForFirstConsumer' }, '0+60x120'),
  series('mooring_waiting_oldest_seconds', { kind: 'attachment', reason: 'HeldByNode' }, '40x120'),
  series('mooring_attach_overhead_seconds_count', {}, '0+1000x120'),
  series('mooring_attach_overhead_seconds_bucket', { le: '1' }, '0+998x120'),
  series('rest_client_requests_total', { method: 'POST', code: '201' }, '0+1000x120'),
  series('rest_client_requests_total', { method: 'PATCH', code: '409' }, '0+500x120'),
];

{
  rule_files: ['rules.yaml'],
  evaluation_interval: '1m',
  tests: [
    {
      name: 'a healthy cluster',
      interval: '1m',
      input_series: healthy,
      promql_expr_test: [{ expr: 'ALERTS', eval_time: '120m', exp_samples: [] }],
    },
    play('MooringDown', 6, 12, 20, [series('up', {}, '1x5 0x10 1x20')]),
    // At 12 minutes one of the two is still there.
    play('MooringAndKubeControllerManagerDown', 12, 18, 24, [
      series('up', {}, '1x5 0x20 1x20'),
      series('up', { job: 'kube-controller-manager' }, '1x12 0x8 1x20'),
    ]),
    play('MooringLeaderAbsent', 6, 9, 20, [
      series('leader_election_master_status', { name: 'mooring', instance: 'a' }, '1x5 0x10 1x20'),
      series('leader_election_master_status', { name: 'mooring', instance: 'b' }, '0x40'),
    ]),
    play('MooringTwoControllers', 5, 7, 13, [series('mooring_alarm', { alarm: 'second_binder' }, '0x5 1x5 0x20')]),
    play('MooringTwoControllers', 5, 7, 13, [
      series('running_managed_controllers', { name: 'persistentvolume-binder-controller', manager: 'mooring' }, '1x40'),
      series('running_managed_controllers', { job: 'kube-controller-manager', name: 'persistentvolume-binder-controller', manager: 'kube-controller-manager' }, '0x5 1x5 0x20'),
    ]),
    play('MooringForeignWriter', 5, 7, 15, [series('mooring_foreign_writes_total', { kind: 'list_changed' }, '0x5 3x30')]),
    play('MooringAlarm', 8, 13, 20, [series('mooring_alarm', { alarm: 'force_detach_timers' }, '0x5 1x10 0x20')]),
    // A week and ten minutes are left; renewed after half an hour.
    play('MooringCertificateExpires', 9, 25, 40, [series('mooring_serving_certificate_expiry_timestamp_seconds', { instance: 'a' }, '605400x30 31536000x20')]),
    play('MooringWatchSilent', 6, 9, 13, [series('mooring_watch_silence_seconds', { instance: 'a', resource: 'pods' }, '30x5 150x5 10x10')]),
    play('MooringNotSynced', 3, 8, 13, [series('mooring_watch_synced', { instance: 'a', resource: 'pods' }, '0x10 1x10')]),
    play('MooringUnreadableObjects', 8, 13, 20, [series('mooring_watch_unreadable_objects', { resource: 'pods' }, '0x5 2x10 0x10')]),
    play('MooringGuardRefusals', 5, 25, 60, [series('mooring_guard_refusals_total', { guard: 'RestoreGrace' }, '0+2x30 60x40')]),
    play('MooringForceDetachPending', 4, 7, 13, [series('mooring_force_detach_pending', { driver: 'd' }, '0x5 3x5 0x10')]),
    play('MooringForceDetached', 5, 8, 25, [series('attach_detach_controller_attachdetach_controller_forced_detaches', { reason: 'timeout' }, '0x5 2x30')]),
    play('MooringDetachStuck', 14, 18, 26, [series('mooring_detach_oldest_seconds', { driver: 'd' }, '0+60x20 0x10')]),
    play('MooringAttacherNotAnswering', 15, 35, 50, [
      series('mooring_attacher_backlog', { driver: 'd' }, '5x60'),
      series('mooring_attach_e2e_seconds_count', { driver: 'd', phase: 'attacher' }, '0+1x10 10x30 11+1x20'),
      // Another driver that answers.
      series('mooring_attacher_backlog', { driver: 'other' }, '5x60'),
      series('mooring_detach_e2e_seconds_count', { driver: 'other', phase: 'attacher', forced: 'false' }, '0+1x60'),
    ]),
    play('MooringProvisionerNotSeen', 15, 25, 45, [series('mooring_waiting_oldest_seconds', { kind: 'claim', reason: 'WaitingForProvisioner' }, '0+60x40 0x10')]),
    play('MooringClaimsLost', 6, 9, 13, [series('mooring_waiting', { kind: 'claim', reason: 'LostMisbound' }, '0x5 2x5 0x10')]),
    play('MooringWaitingLong', 33, 40, 65, [
      series('mooring_waiting_oldest_seconds', { kind: 'attachment', reason: 'HeldByNode' }, '0+60x60 0x10'),
      series('mooring_waiting_oldest_seconds', { kind: 'volume', reason: 'Retained' }, '0+60x70'),
    ]),
    burn('MooringAttachBudgetBurn', slow('mooring_attach_overhead_seconds')),
    burn('MooringDetachBudgetBurn', slow('mooring_detach_overhead_seconds')),
    burn('MooringBindBudgetBurn', slow('mooring_bind_e2e_seconds', { mode: 'static' })),
    burn('MooringAPIWriteBudgetBurn', [
      series('rest_client_requests_total', { method: 'POST', code: '201' }, '0+10x60 605+5x30 765+10x60'),
      series('rest_client_requests_total', { method: 'POST', code: '500' }, '0x60 5+5x29 150x60'),
    ]),
    // Half of all, but of next to nothing: no alert.
    {
      name: 'a quiet cluster with two slow attaches',
      interval: '1m',
      input_series: [
        series('mooring_attach_overhead_seconds_count', {}, '0x60 4x60'),
        series('mooring_attach_overhead_seconds_bucket', { le: '1' }, '0x60 2x60'),
      ],
      promql_expr_test: [{ expr: 'ALERTS{alertname="MooringAttachBudgetBurn"}', eval_time: '65m', exp_samples: [] }],
    },
  ],
}
