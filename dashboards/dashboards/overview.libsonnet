// Is it healthy, who leads, what waits and for how long, what is left of the error budgets, how much is done, what fails.
local p = import '../lib/panel.libsonnet';
local q = import '../lib/query.libsonnet';

function(config)
  local d = (import '../lib/dashboard.libsonnet')(config);
  local unexpected = 'reason!~"%s"' % std.join('|', config.expectedWaits);

  // What is left of an error budget over the time shown; all of it where nothing was done.
  local budget(slo, failed, all) =
    '1 - (%s / (%s > 0) or vector(0)) / %s' % [failed, all, '%.3f' % (1 - config.objectives[slo])];
  local slow(metric, matchers='') =
    local all = q.increase(q.of(metric + '_count', matchers));
    local good = q.increase(q.of(metric + '_bucket', (if matchers == '' then '' else matchers + ', ') + 'le=~"1(\\\\.0)?"'));
    ['(%s - %s)' % [all, good], all];
  local left(slo, title, description, pair) = p.stat(
    title,
    description,
    'percentunit',
    [p.target(budget(slo, pair[0], pair[1]), title)],
    size=[6, 4],
    good='red',
    thresholds=[[0, 'orange'], [0.5, 'green']],
    decimals=1
  );
  local writes(matchers) = q.increase(q.of('rest_client_requests_total', 'method=~"POST|PUT|PATCH|DELETE", code!="409"' + matchers));

  d.new('mooring-overview', 'mooring / Overview', 'Whether volumes reach the nodes that need them, and what prevents it.', [
    d.row('Is it healthy?', [
      p.stat('Leader',
             'The replica that writes. None for more than a minute: nothing is attached or bound. Two: see the runbook MooringTwoControllers.',
             'none',
             [p.target('max by (instance) (%s) == 1' % q.of('leader_election_master_status'), '{{instance}}')],
             show='name'),
      p.stat('Replicas up',
             'Processes that Prometheus can scrape. One is enough to work, two to survive the loss of a node.',
             'none',
             [p.target('sum(max by (instance) (%s))' % q.up, 'up')],
             good='red',
             thresholds=[[1, 'orange'], [2, 'green']]),
      p.stat('Alarms',
             'Conditions that need an operator at once, such as a second controller or a restore of etcd. /readyz?verbose names them.',
             'none',
             [p.target('sum(%s)' % q.leader(q.of('mooring_alarm'), 'alarm'), 'alarms')],
             thresholds=[[1, 'red']]),
      p.stat('Longest silence of a watch',
             'Time since the most silent watch last received anything. Bookmarks come each minute; above two minutes the caches may be stale.',
             's',
             [p.target('max(%s)' % q.of('mooring_watch_silence_seconds'), 'silence')],
             thresholds=[[90, 'orange'], [120, 'red']]),
      p.stat('Waiting',
             'Objects that wait for something that should happen soon. Normal waits (a claim without a pod, a retained volume) are left out.',
             'none',
             [p.target('sum(%s) or vector(0)' % q.leader(q.of('mooring_waiting', unexpected), 'kind, reason'), 'waiting')],
             thresholds=[[50, 'orange'], [500, 'red']]),
      p.stat('Oldest wait',
             'Time for which the oldest object has waited, without normal waits. The rows below show the reason.',
             's',
             [p.target('max(%s) or vector(0)' % q.of('mooring_waiting_oldest_seconds', unexpected), 'oldest')],
             thresholds=[[300, 'orange'], [1800, 'red']]),
    ]),
    d.row('Service levels: error budget left in the time shown', [
      left('attach', 'Attach', 'S-1: 99 % of the attaches take at most a second, without the driver’s own time. Below 0: the objective is missed.', slow('mooring_attach_overhead_seconds')),
      left('bind', 'Bind', 'S-2: 99 % of the claims that a volume fits are bound within a second. Claims that a provisioner has to serve are not counted.', slow('mooring_bind_e2e_seconds', 'mode=~"static|prebound"')),
      left('detach', 'Detach', 'S-3: 99 % of the detaches take at most a second, without the driver’s time and the kubelet’s unmounting.', slow('mooring_detach_overhead_seconds')),
      left('api-writes', 'API writes', 'S-4: 99.9 % of the writes are answered without a server error. Conflicts are not counted: they are part of the protocol.', [writes(', code=~"5..|<error>"') + ' or vector(0)', writes('')]),
    ]),
    d.row('What is done', [
      p.lines('Operations', 'Attaches, detaches and binds that were completed, per second.', 'ops', [
        p.target(q.rateOrZero(q.of('mooring_attach_overhead_seconds_count')), 'attach'),
        p.target(q.rateOrZero(q.of('mooring_detach_overhead_seconds_count')), 'detach'),
        p.target(q.rateOrZero(q.of('mooring_bind_e2e_seconds_count')), 'bind'),
      ], size=[12, 8]),
      p.lines('Own time, 99th percentile', 'What the daemon and the API server add to an operation, without drivers and kubelets. The objective is a second. No line where nothing was done.', 's', [
        p.target(q.quantile(0.99, q.of('mooring_attach_overhead_seconds_bucket')), 'attach'),
        p.target(q.quantile(0.99, q.of('mooring_detach_overhead_seconds_bucket')), 'detach'),
        p.target(q.quantile(0.99, q.of('mooring_bind_e2e_seconds_bucket', 'mode=~"static|prebound"')), 'bind'),
      ], size=[12, 8], thresholds=[[1, 'red']]),
    ]),
    d.row('What waits', [
      p.lines('Waiting, by reason',
              'Objects that wait, by the reason that the decision returned. The same code is in events, logs and on the debug pages.',
              'none',
              [p.target(q.orNone(q.leader(q.of('mooring_waiting'), 'kind, reason') + ' > 0', 'kind'), '{{kind}}: {{reason}}')],
              size=[12, 9],
              stack=true),
      p.lines('Oldest wait, by reason',
              'How long the oldest of them has waited. A line that rises steadily is one stuck object.',
              's',
              [p.target(q.orNone(q.leader(q.of('mooring_waiting_oldest_seconds', unexpected), 'kind, reason') + ' > 0', 'kind'), '{{kind}}: {{reason}}')],
              size=[12, 9],
              thresholds=[[1800, 'red']]),
    ]),
    d.row('What fails, and what it costs', [
      p.lines('Answers of the API server',
              'Requests per second by status code. Conflicts (409) are repeated on fresh state; 429 is honoured; 5xx and <error> count against S-4.',
              'reqps',
              [p.target(q.rate(q.of('rest_client_requests_total'), 'code'), '{{code}}')],
              stack=true),
      p.lines('Refusals of the guards',
              'Actions per second that a safety check prevented, by check. A volume that is still mounted or held by another node is normal; ForeignWriter and ObjectUnreadable are not.',
              'ops',
              [p.target(q.rate(q.of('mooring_guard_refusals_total'), 'guard'), '{{guard}}')]),
      p.lines('Memory',
              'Resident memory of each replica. The manifest’s limit is 512 MiB.',
              'bytes',
              [p.target('max by (instance) (%s)' % q.of('process_resident_memory_bytes'), '{{instance}}')],
              thresholds=[[450 * 1024 * 1024, 'red']]),
    ]),
  ])
