{{- define "ppo-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* A release's name may have dots, which a Service's may not. */}}
{{- define "ppo-operator.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- $name := include "ppo-operator.name" . }}
{{- $release := .Release.Name | replace "." "-" }}
{{- if contains $name $release }}
{{- $release | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" $release $name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "ppo-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "ppo-operator.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end }}

{{/* Without the component: the chart has objects that are not the operator. */}}
{{- define "ppo-operator.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/name: {{ include "ppo-operator.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- if not (hasKey (default dict .Values.commonLabels) "app.kubernetes.io/part-of") }}
app.kubernetes.io/part-of: ppo-operator
{{- end }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The labels of an object that is given more: theirs count, and no key comes twice, which kustomize and strict parsers refuse. */}}
{{- define "ppo-operator.labelsWith" -}}
{{- toYaml (mergeOverwrite (include "ppo-operator.labels" .root | fromYaml) (default dict .more)) }}
{{- end }}

{{- define "ppo-operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "ppo-operator.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.create is false: set serviceAccount.name to the account that the operator shall run as" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* An image reference from (dict "image" {registry, repository, tag, digest} "tag" DEFAULT). */}}
{{- define "ppo-operator.image" -}}
{{- $name := .image.repository }}
{{- with .image.registry }}{{ $name = printf "%s/%s" (trimSuffix "/" .) $name }}{{ end }}
{{- if .image.digest }}
{{- printf "%s@%s" $name .image.digest }}
{{- else }}
{{- printf "%s:%s" $name (default .tag .image.tag) }}
{{- end }}
{{- end }}

{{/* What podSecurityContext says, without the ids where the cluster chooses them. */}}
{{- define "ppo-operator.podSecurityContext" -}}
{{- $context := .Values.podSecurityContext }}
{{- if .Values.idsFromCluster }}{{ $context = omit $context "runAsUser" "runAsGroup" "fsGroup" }}{{ end }}
{{- toYaml $context }}
{{- end }}

{{/* For the flag --pod-user. */}}
{{- define "ppo-operator.podUser" -}}
{{- $user := .Values.worker.user }}
{{- if or (kindIs "invalid" $user) (eq (toString $user) "") }}none{{ else }}{{ int64 $user }}{{ end }}
{{- end }}

{{- define "ppo-operator.workerImage" -}}
{{- $tag := .Chart.AppVersion }}
{{- if eq .Values.worker.image.variant "cuda" }}{{ $tag = printf "%s-cuda" $tag }}{{ end }}
{{- include "ppo-operator.image" (dict "image" .Values.worker.image "tag" $tag) }}
{{- end }}

{{- define "ppo-operator.operatorImage" -}}
{{- include "ppo-operator.image" (dict "image" .Values.image "tag" .Chart.AppVersion) }}
{{- end }}

{{/* Milliseconds of a duration such as 1m30s. */}}
{{- define "ppo-operator.milliseconds" -}}
{{- $units := dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000 "d" 86400000 }}
{{- $sum := 0 }}
{{- range regexFindAll "[0-9]+[a-z]+" . -1 }}
{{- $sum = add $sum (mul (regexFind "[0-9]+" .) (get $units (regexFind "[a-z]+" .))) }}
{{- end }}
{{- $sum }}
{{- end }}

{{/* How often a monitor asks and how long it waits. Where it waits longer, prometheus-operator leaves the whole monitor out, unseen. */}}
{{- define "ppo-operator.scrape" -}}
{{- $interval := .of.interval }}
{{- $timeout := .of.scrapeTimeout }}
{{- if and $interval $timeout }}
{{- if gt (include "ppo-operator.milliseconds" $timeout | int64) (include "ppo-operator.milliseconds" $interval | int64) }}
{{- $wrong := printf "%s.scrapeTimeout is %s and interval is %s: Prometheus refuses a timeout above the interval" .value $timeout $interval }}
{{- fail (printf "%s; lower scrapeTimeout or raise interval" $wrong) }}
{{- end }}
{{- end }}
{{- with $interval }}
interval: {{ . }}
{{- end }}
{{- with $timeout }}
scrapeTimeout: {{ . }}
{{- end }}
{{- end }}
