// What promtool plays of the burn-rate alerts' windows.
//
// All is well for as long as the window is. Then operations miss the objective at four times the rate that the alert allows:
// the short window is full of it soon, and the alert stays quiet until the long one is, after a quarter of its length, and the
// alert has held. When the trouble ends, so does the alert, although the long window is still full of it. So a window that is
// shorter or longer, another factor or another hold is seen.
local config = (import '../config.libsonnet')._config;
// Minutes from one value to the next: less than the five after which Prometheus takes no value for the present one.
local step = 4;
local steps(hours) = std.round(hours * 60 / step);

// `hours` is the long window, and after the trouble began (`quiet`, `fires`, `ends`), and after it ended (`resolved`).
local windows = [
  { long: '6h', factor: 6, hours: 6, quiet: 1.6, fires: 2, ends: 2.4, resolved: 0.6 },
  { long: '3d', factor: 1, hours: 72, quiet: 20, fires: 22, ends: 22.4, resolved: 5 },
];

local all = { cluster: 'c', job: 'mooring' };
local name(metric, labels) = '%s{%s}' % [metric, std.join(', ', ['%s="%s"' % [label, labels[label]] for label in std.objectFields(labels)])];
// A counter that grows by `per` a step, and by `troubled` while there is trouble.
local counter(window, metric, labels, per, troubled) = {
  local well = steps(window.hours),
  local trouble = steps(window.ends),
  series: name(metric, all + labels),
  values: '0+%dx%d %d+%dx%d %d+%dx%d' % [
    per,
    well,
    per * well + troubled,
    troubled,
    trouble - 1,
    per * well + troubled * trouble + per,
    per,
    steps(window.resolved) + 12,
  ],
};

// Operations in a step: enough that a thousandth of them is one.
local operations = 1000;
local histogram(metric, labels={}) = function(window, failing) [
  counter(window, metric + '_count', labels, operations, operations),
  counter(window, metric + '_bucket', labels { le: '1' }, operations, operations - failing),
];
local levels = [
  { alert: 'MooringAttachBudgetBurn', slo: 'attach', series: histogram('mooring_attach_overhead_seconds') },
  { alert: 'MooringBindBudgetBurn', slo: 'bind', series: histogram('mooring_bind_e2e_seconds', { mode: 'static' }) },
  { alert: 'MooringDetachBudgetBurn', slo: 'detach', series: histogram('mooring_detach_overhead_seconds') },
  {
    alert: 'MooringAPIWriteBudgetBurn',
    slo: 'api-writes',
    series(window, failing): [
      counter(window, 'rest_client_requests_total', { method: 'PATCH', code: '200' }, operations, operations - failing),
      counter(window, 'rest_client_requests_total', { method: 'PATCH', code: '500' }, 0, failing),
    ],
  },
];

{
  rule_files: ['rules.yaml'],
  evaluation_interval: '%dm' % step,
  tests: [
    {
      local failing = std.round(operations * 4 * window.factor * (1 - config.objectives[level.slo])),
      local firing = 'count by (alertname) (ALERTS{alertname="%s", alertstate="firing", long="%s"})' % [level.alert, window.long],
      local at(hours) = '%dm' % std.round((window.hours + hours) * 60),
      name: '%s over %s' % [level.alert, window.long],
      interval: '%dm' % step,
      input_series: level.series(window, failing),
      promql_expr_test: [
        { expr: firing, eval_time: at(window.quiet), exp_samples: [] },
        { expr: firing, eval_time: at(window.fires), exp_samples: [{ labels: '{alertname="%s"}' % level.alert, value: 1 }] },
        { expr: firing, eval_time: at(window.ends + window.resolved), exp_samples: [] },
      ],
    }
    // A level has its windows of the same list as the others: what is long to play is played of one.
    for level in levels
    for window in (if level.slo == 'attach' then windows else windows[:1])
  ],
}
