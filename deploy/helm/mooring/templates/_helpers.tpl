{{/* Labels of every object. */}}
{{- define "mooring.labels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: {{ eq .Values.mode "rule" | ternary "controller" "observer" }}
app.kubernetes.io/part-of: mooring
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
{{- end }}

{{/* Metadata of an object of the release's namespace: (list . name). */}}
{{- define "mooring.metadata" -}}
name: {{ index . 1 }}
namespace: {{ (index . 0).Release.Namespace }}
labels:
  {{- include "mooring.labels" (index . 0) | nindent 2 }}
{{- end }}

{{/* Metadata of an object of the cluster: (list . name). */}}
{{- define "mooring.clusterMetadata" -}}
name: {{ index . 1 }}
labels:
  {{- include "mooring.labels" (index . 0) | nindent 2 }}
{{- end }}

{{/* The account of the daemon, as a subject. */}}
{{- define "mooring.subjects" -}}
- kind: ServiceAccount
  name: mooring
  namespace: {{ .Release.Namespace }}
{{- end }}

{{- define "mooring.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* The flags that components add, in the order in which they are named. */}}
{{- define "mooring.componentArgs" -}}
{{- $flags := dict
  "recycler" (list "--enable-recycler")
  "host-path" (list "--enable-hostpath-provisioner")
  "protection" (list "--controllers=*,persistentvolumeclaim-protection-controller,persistentvolume-protection-controller")
  "vac-protection" (list "--controllers=*,volumeattributesclass-protection-controller")
  "ephemeral-volume" (list "--controllers=*,ephemeral-volume-controller")
  "expander" (list "--controllers=*,persistentvolume-expander-controller")
  "fence" (list "--fence")
  "serving-certificate" (list "--tls-cert-file=/etc/mooring/serving/tls.crt" "--tls-private-key-file=/etc/mooring/serving/tls.key")
-}}
{{- range .Values.components }}
{{- range get $flags . | default list }}
- {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}
