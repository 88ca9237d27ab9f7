// A dashboard: its variables, the links to the others, and its rows of panels, laid out from left to right.
function(config) {
  local datasource = { type: 'prometheus', uid: '$datasource' },

  // `all` is what All stands for: of null what is listed, and then only a word of that list is ever asked for.
  local variable(name, label, query, all, one=false) = {
    type: 'query',
    name: name,
    label: label,
    datasource: datasource,
    query: { query: query, refId: 'Variable-' + name },
    definition: query,
    // When the time range changes.
    refresh: 2,
    sort: 1,
    multi: !one,
    includeAll: !one,
    allValue: all,
    current: if one then {} else { selected: true, text: ['All'], value: ['$__all'] },
    options: [],
    regex: '',
    hide: 0,
  },

  // `of` is the metric, with its own matchers, by which targets are found: one that all of them show.
  local variables(of) =
    local seen(known) = '%s{%s}' % [of.metric, std.join(', ', of.matchers + ['%s=~"$%s"' % [name, name] for name in known])];
    [
      {
        type: 'datasource',
        name: 'datasource',
        label: 'Data source',
        query: 'prometheus',
        current: {},
        options: [],
        refresh: 1,
        regex: '',
        hide: 0,
        includeAll: false,
        multi: false,
      },
      // One at a time: what two leaders decide does not add up. Empty where there is no such label.
      variable('cluster', 'Cluster', 'label_values(%s, cluster)' % seen([]), null, one=true),
      // `.*` also matches what does not have the label.
      variable('namespace', 'Namespace', 'label_values(%s, namespace)' % seen(['cluster']), '.*'),
      // `.+` would be every target of Prometheus.
      variable('job', 'Job', 'label_values(%s, job)' % seen(['cluster', 'namespace']), null),
      variable('instance', 'Instance', 'label_values(%s, instance)' % seen(['cluster', 'namespace', 'job']), '.+'),
      variable('driver', 'Driver', 'label_values(mooring_attach_e2e_seconds_count{cluster=~"$cluster", namespace=~"$namespace", job=~"$job"}, driver)', '.*'),
    ],

  // Panels get their places, and the rows their headings.
  local place(rows) =
    local put(state, panel) =
      local fits = state.x + panel.gridPos.w <= 24;
      local x = if fits then state.x else 0;
      local y = if fits then state.y else state.y + state.h;
      {
        x: x + panel.gridPos.w,
        y: y,
        h: if fits then std.max(state.h, panel.gridPos.h) else panel.gridPos.h,
        panels: state.panels + [panel { id: std.length(state.panels) + 1, gridPos+: { x: x, y: y } }],
      };
    local row(state, row) =
      local y = state.y + state.h;
      local heading = {
        type: 'row',
        title: row.title,
        id: std.length(state.panels) + 1,
        gridPos: { x: 0, y: y, w: 24, h: 1 },
        collapsed: false,
        panels: [],
      };
      std.foldl(put, row.panels, { x: 0, y: y + 1, h: 0, panels: state.panels + [heading] });
    std.foldl(row, rows, { x: 0, y: 0, h: 0, panels: [] }).panels,

  row(title, panels):: { title: title, panels: panels },

  new(uid, title, description, rows, of={ metric: 'mooring_build_info', matchers: [] }, more=[]):: {
    uid: uid,
    title: title,
    description: description,
    tags: config.tags,
    editable: false,
    graphTooltip: 1,
    schemaVersion: 39,
    version: 1,
    refresh: config.refresh,
    time: { from: config.from, to: 'now' },
    timezone: 'browser',
    links: [{
      type: 'dashboards',
      title: 'mooring',
      tags: config.tags,
      asDropdown: true,
      includeVars: true,
      keepTime: true,
      icon: 'external link',
      targetBlank: false,
      tooltip: 'The other dashboards of mooring',
      url: '',
    }],
    annotations: { list: [{
      name: 'Change of leader',
      datasource: datasource,
      enable: true,
      iconColor: 'purple',
      expr: 'changes(leader_election_master_status{cluster=~"$cluster", namespace=~"$namespace", job=~"$job"}[$__rate_interval]) > 0',
      titleFormat: 'Leadership changed',
      textFormat: '{{instance}}',
    }] },
    templating: { list: variables(of) + [
      variable(one.name, one.label, one.query, '.*')
      for one in more
    ] },
    panels: place(rows),
  },
}
