// Recorded: for each service level the share of operations that missed it, over the windows of the burn-rate alerts,
// and how many those were.
{
  local config = self._config,
  local by = 'sum by (cluster, job)',
  local job = 'job="%s"' % config.job,
  local of(metric, matchers, window) = '%s (rate(%s{%s}[%s]))' % [by, metric, std.join(', ', [job] + matchers), window],

  // A histogram, of which the operations within a second are good. Prometheus 3 writes the bound as 1.0.
  local within_a_second(metric, matchers=[]) = {
    all(window):: of(metric + '_count', matchers, window),
    bad(window):: '(%s - %s)' % [of(metric + '_count', matchers, window), of(metric + '_bucket', matchers + ['le=~"1(\\\\.0)?"'], window)],
  },

  local levels = {
    attach: within_a_second('mooring_attach_overhead_seconds'),
    bind: within_a_second('mooring_bind_e2e_seconds', ['mode=~"static|prebound"']),
    detach: within_a_second('mooring_detach_overhead_seconds'),
    'api-writes': {
      local writes(matchers, window) = of('rest_client_requests_total', ['method=~"POST|PUT|PATCH|DELETE"', 'code!="409"'] + matchers, window),
      all(window):: writes([], window),
      // A code that never came has no series, and is no failure.
      bad(window):: '(%s or 0 * %s)' % [writes(['code=~"5..|<error>"'], window), writes([], window)],
    },
  },

  local seconds = { '6h': 21600, '3d': 259200 },

  prometheusRules+:: { groups: [
    {
      name: 'mooring-slo-' + level,
      rules: [
        {
          record: 'mooring_slo:errors:ratio_rate' + window,
          labels: { slo: level },
          expr: '%s / (%s > 0)' % [levels[level].bad(window), levels[level].all(window)],
        }
        for window in ['30m', '6h', '3d']
      ] + [
        {
          record: 'mooring_slo:errors:increase' + window,
          labels: { slo: level },
          expr: '%s * %d' % [levels[level].bad(window), seconds[window]],
        }
        for window in std.objectFields(seconds)
      ],
    }
    for level in std.objectFields(levels)
  ] },
}
