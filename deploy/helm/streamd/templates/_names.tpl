{{- define "streamd.name" -}}
{{- if contains "streamd" .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ printf "%s-streamd" .Release.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}
{{- define "streamd.selector" -}}
app.kubernetes.io/name: streamd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "streamd.labels" -}}
{{ include "streamd.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
