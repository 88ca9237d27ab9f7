// All of it, under the names that tools for monitoring mixins look for.
(import 'config.libsonnet') +
(import 'alerts/alerts.libsonnet') +
(import 'rules/rules.libsonnet') +
{
  local config = self._config,
  grafanaDashboards+:: {
    'mooring-overview.json': (import 'dashboards/overview.libsonnet')(config),
    'mooring-attach-detach.json': (import 'dashboards/attach-detach.libsonnet')(config),
    'mooring-binder.json': (import 'dashboards/binder.libsonnet')(config),
    'mooring-api-client.json': (import 'dashboards/api-client.libsonnet')(config),
    'mooring-kcm-comparison.json': (import 'dashboards/kcm-comparison.libsonnet')(config),
  },
}
