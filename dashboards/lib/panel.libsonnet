// Panels, each with a title, a sentence on what it shows and when that is bad, a unit, and what is drawn.
// Sizes are in Grafana's units: 24 across.
{
  local this = self,

  // One query and how its series are called.
  target(expr, legend='__auto'):: { expr: expr, legendFormat: legend },

  local datasource = { type: 'prometheus', uid: '$datasource' },
  local letters = 'ABCDEFGHIJ',

  // `thresholds` are pairs of the value from which on, and the colour; `good` is the colour below all of them.
  local panel(type, title, description, unit, targets, size, thresholds, good) = {
    type: type,
    title: title,
    description: description,
    datasource: datasource,
    gridPos: { w: size[0], h: size[1] },
    targets: [
      { refId: letters[number], datasource: datasource, range: true, instant: false } + targets[number]
      for number in std.range(0, std.length(targets) - 1)
    ],
    fieldConfig: {
      defaults: {
        unit: unit,
        thresholds: {
          mode: 'absolute',
          steps: [{ color: good, value: null }] + [{ value: step[0], color: step[1] } for step in thresholds],
        },
      },
      overrides: [],
    },
    options: {},
  },

  // One number, coloured by its thresholds. `words` says other things than numbers for some values.
  stat(title, description, unit, targets, size=[4, 4], thresholds=[], good='green', words={}, decimals=null, show='auto')::
    panel('stat', title, description, unit, targets, size, thresholds, good) + {
      targets: [target { instant: true, range: false } for target in super.targets],
      fieldConfig+: { defaults+: {
        color: { mode: 'thresholds' },
        noValue: '–',
        [if decimals != null then 'decimals']: decimals,
        [if std.length(words) > 0 then 'mappings']: [{
          type: 'value',
          options: { [value]: { text: words[value] } for value in std.objectFields(words) },
        }],
      } },
      options: {
        colorMode: 'value',
        graphMode: 'none',
        justifyMode: 'auto',
        orientation: 'auto',
        textMode: show,
        reduceOptions: { calcs: ['lastNotNull'], fields: '', values: false },
      },
    },

  // Lines over time; with `stack` one upon the other.
  lines(title, description, unit, targets, size=[8, 8], thresholds=[], stack=false, max=null)::
    panel('timeseries', title, description, unit, targets, size, thresholds, 'green') + {
      fieldConfig+: { defaults+: {
        color: { mode: 'palette-classic' },
        min: 0,
        [if max != null then 'max']: max,
        custom: {
          drawStyle: 'line',
          lineInterpolation: 'linear',
          lineWidth: 1,
          fillOpacity: if stack then 30 else 10,
          showPoints: 'never',
          spanNulls: false,
          stacking: { mode: if stack then 'normal' else 'none', group: 'A' },
          thresholdsStyle: { mode: if thresholds == [] then 'off' else 'line' },
        },
      } },
      options: {
        legend: { displayMode: 'table', placement: 'bottom', calcs: ['lastNotNull', 'max'], showLegend: true },
        tooltip: { mode: 'multi', sort: 'desc' },
      },
    },

  // The last values as rows, largest first. `columns` gives labels their headings, in order; others are hidden.
  table(title, description, unit, targets, columns, size=[12, 8], thresholds=[], value='Value')::
    panel('table', title, description, unit, targets, size, thresholds, 'text') + {
      targets: [target { format: 'table', instant: true, range: false } for target in super.targets],
      fieldConfig+: { defaults+: { custom: { align: 'auto', cellOptions: { type: if thresholds == [] then 'auto' else 'color-text' }, filterable: true } } },
      options: { showHeader: true, sortBy: [{ displayName: value, desc: true }], cellHeight: 'sm' },
      transformations: [{
        id: 'organize',
        options: {
          excludeByName: { Time: true },
          indexByName: { [columns[number][0]]: number for number in std.range(0, std.length(columns) - 1) } + { Value: std.length(columns) },
          renameByName: { [column[0]]: column[1] for column in columns } + { Value: value },
        },
      }],
    },
}
