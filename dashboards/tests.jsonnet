// What `promtool test rules` plays, beside the rules that it plays: `generate --tests` writes them. They are long, and no
// Prometheus takes them, so they are not committed.
local files = import 'files.jsonnet';

{
  'rules.yaml': files['alerts/rules.yaml'],
  'tests.yaml': std.manifestYamlDoc(import 'alerts/tests.libsonnet'),
  'windows.yaml': std.manifestYamlDoc(import 'alerts/windows.libsonnet'),
}
