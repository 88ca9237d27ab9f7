// The names that kube-controller-manager and mooring share, each line with its job: for the days of a migration.
local p = import '../lib/panel.libsonnet';
local q = import '../lib/query.libsonnet';

function(config)
  local d = (import '../lib/dashboard.libsonnet')(config);
  local queues = 'name=~"pvcs|claims|volumes|ephemeral_volume|volume_expand|.*protection"';
  // mooring says which loops it leads; a standby has their queues, too.
  local runs(loop, queue) = 'max by (job) (%s) or count by (job) (%s unless on (job, instance) %s)' % [
    q.of('running_managed_controllers', 'name="%s"' % loop),
    q.of('workqueue_depth', 'name="%s"' % queue),
    q.of('mooring_build_info'),
  ];
  local quantile(bucket, labels) = q.quantile(0.99, bucket, 'job, ' + labels);

  d.new('mooring-kcm-comparison', 'mooring / Compared with kube-controller-manager', 'Only metrics that both have, under kube-controller-manager’s names. Choose both jobs during a migration: each line is labelled with its job.', [
    d.row('Who is at work', [
      p.lines('Up', 'Processes that Prometheus can scrape, by job.', 'none', [p.target('sum by (job) (max by (job, instance) (%s))' % q.up, '{{job}}')], size=[8, 6]),
      p.lines('Leaders',
              'Holders of each lease, by job. Each line is 1, or 0 for a moment.',
              'none',
              [p.target('sum by (job, name) (%s)' % q.of('leader_election_master_status'), '{{job}}: {{name}}')],
              size=[8, 6],
              thresholds=[[2, 'red']]),
      p.lines('Who runs the two loops',
              'A line at 1 for each loop and job that runs it; the loop’s work queue is the only sign of kube-controller-manager. Two lines for one loop: both are at work, runbook MooringTwoControllers. Behind the fence both lines are normal.',
              'none',
              [
                p.target(runs('persistentvolume-attach-detach-controller', 'pvcs'), '{{job}}: attach/detach'),
                p.target(runs('persistentvolume-binder-controller', 'claims'), '{{job}}: binder'),
              ],
              size=[8, 6]),
    ]),
    d.row('Volumes', [
      p.lines('Attach and detach, 99th percentile',
              'Time of the operation as kube-controller-manager measures it. Most of it is the driver’s time.',
              's',
              [p.target(quantile(q.of('storage_operation_duration_seconds_bucket', 'operation_name=~"volume_attach|volume_detach"'), 'operation_name'), '{{job}}: {{operation_name}}')],
              size=[12, 8],
              thresholds=[[60, 'orange']]),
      p.lines('Operations',
              'Per second, by outcome.',
              'ops',
              [p.target(q.rate(q.of('storage_operation_duration_seconds_count', 'operation_name=~"volume_attach|volume_detach"'), 'job, operation_name, status'), '{{job}}: {{operation_name}} {{status}}')],
              size=[12, 8]),
      p.lines('Volumes wanted and attached',
              'Desired and actual state of the world. The two lines of a job should be close to each other.',
              'none',
              [p.target('sum by (job, state) (%s)' % q.of('attachdetach_controller_total_volumes'), '{{job}}: {{state}}')]),
      p.lines('Forced detaches',
              'In the time shown, by reason.',
              'none',
              [p.target(q.increase(q.of('attach_detach_controller_attachdetach_controller_forced_detaches'), 'job, reason'), '{{job}}: {{reason}}')]),
      p.lines('In use, by job',
              'Volumes that pods use, over all nodes.',
              'none',
              [p.target('sum by (job, volume_plugin) (%s)' % q.of('storage_count_attachable_volumes_in_use'), '{{job}}: {{volume_plugin}}')]),
      p.lines('Provision and delete, 99th percentile',
              'Time of provisioners’ answers.',
              's',
              [p.target(quantile(q.of('volume_operation_total_seconds_bucket'), 'operation_name'), '{{job}}: {{operation_name}}')],
              thresholds=[[60, 'orange']]),
      p.lines('Claims of ephemeral volumes',
              'Requests per second to create one.',
              'ops',
              [p.target(q.orNone(q.rate(q.of('ephemeral_volume_controller_create_total'), 'job'), 'job'), '{{job}}')]),
      p.lines('Volumes bound', 'PersistentVolumes in phase Bound.', 'none', [p.target('sum by (job) (%s)' % q.of('pv_collector_bound_pv_count'), '{{job}}')]),
      p.lines('Claims unbound', 'Claims without a volume.', 'none', [p.target(q.orNone('sum by (job) (%s)' % q.of('pv_collector_unbound_pvc_count'), 'job'), '{{job}}')]),
    ]),
    d.row('Work queues', [
      p.lines('Adds', 'Keys added per second.', 'ops', [p.target(q.rate(q.of('workqueue_adds_total', queues), 'job, name'), '{{job}}: {{name}}')]),
      p.lines('Depth', 'Keys that wait.', 'none', [p.target('sum by (job, name) (%s)' % q.of('workqueue_depth', queues), '{{job}}: {{name}}')]),
      p.lines('Time in the queue, 99th percentile',
              'Time until a key is processed.',
              's',
              [p.target(quantile(q.of('workqueue_queue_duration_seconds_bucket', queues), 'name'), '{{job}}: {{name}}')],
              thresholds=[[10, 'orange']]),
    ]),
    d.row('API server and process', [
      p.lines('Requests', 'Per second, by class of the answer.', 'reqps', [
        p.target(q.rate(q.of('rest_client_requests_total', 'code=~"2.."'), 'job'), '{{job}}: 2xx'),
        p.target(q.orNone(q.rate(q.of('rest_client_requests_total', 'code=~"4.."'), 'job'), 'job'), '{{job}}: 4xx'),
        p.target(q.orNone(q.rate(q.of('rest_client_requests_total', 'code=~"5..|<error>"'), 'job'), 'job'), '{{job}}: 5xx'),
      ]),
      p.lines('Latency of writes, 99th percentile',
              'Until the API server’s answer to a POST.',
              's',
              [p.target(quantile(q.of('rest_client_request_duration_seconds_bucket', 'verb="POST"'), 'verb'), '{{job}}')],
              thresholds=[[1, 'orange']]),
      p.lines('Latency of reads, 99th percentile',
              'Until the API server’s answer to a GET. kube-controller-manager’s includes all its other loops.',
              's',
              [p.target(quantile(q.of('rest_client_request_duration_seconds_bucket', 'verb="GET"'), 'verb'), '{{job}}')],
              thresholds=[[1, 'orange']]),
      p.lines('Memory', 'Resident memory. kube-controller-manager’s is for all its loops.', 'bytes', [p.target('max by (job, instance) (%s)' % q.of('process_resident_memory_bytes'), '{{job}}: {{instance}}')], size=[12, 7]),
      p.lines('CPU', 'Cores in use.', 'none', [p.target('sum by (job, instance) (rate(%s[$__rate_interval]))' % q.of('process_cpu_seconds_total'), '{{job}}: {{instance}}')], size=[12, 7]),
    ]),
  ], of={ metric: 'up', matchers: ['job=~"%s|%s"' % [config.job, config.kcmJob]] })
