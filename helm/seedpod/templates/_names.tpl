{{/* Names, labels and images. */}}

{{- define "seedpod.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* Short enough for a component, a number and the hash that a StatefulSet's pods are labelled with. */}}
{{- define "seedpod.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "seedpod.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "seedpod.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* The components that are installed, separated by spaces. */}}
{{- define "seedpod.components" -}}
learner actor{{ if .Values.evaluator.enabled }} evaluator{{ end }}{{ if eq (include "seedpod.algorithm" .) "r2d2" }} replay{{ end }}
{{- end }}

{{/* The experiment with the defaults that templates calculate with. */}}
{{- define "seedpod.experiment" -}}
{{- mergeOverwrite (.Files.Get "files/defaults.json" | fromJson) (deepCopy .Values.experiment) | toYaml }}
{{- end }}

{{- define "seedpod.algorithm" -}}
{{- (include "seedpod.experiment" . | fromYaml).learner.algorithm }}
{{- end }}

{{/* Never changes for a release: these are the selectors. Takes root and component. */}}
{{- define "seedpod.selector" -}}
app.kubernetes.io/name: {{ include "seedpod.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Takes root and component. */}}
{{- define "seedpod.labels" -}}
{{ include "seedpod.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Takes root and component. */}}
{{- define "seedpod.image" -}}
{{- $image := (index .root.Values .component).image }}
{{- $variant := "" }}
{{- if and (eq .component "learner") (ne .root.Values.learner.accelerator.type "none") }}
{{- $variant = printf "-%s" .root.Values.learner.accelerator.type }}
{{- end }}
{{- $tag := $image.tag | default (printf "%s%s" .root.Chart.AppVersion $variant) }}
{{- $registry := $image.registry | default .root.Values.global.imageRegistry }}
{{- with $registry }}{{ . | trimSuffix "/" }}/{{ end }}{{ $image.repository }}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $tag }}{{ end }}
{{- end }}

{{/* Takes root and component. */}}
{{- define "seedpod.serviceAccountName" -}}
{{- $account := (index .root.Values .component).serviceAccount }}
{{- if $account.create }}
{{- $account.name | default (printf "%s-%s" (include "seedpod.fullname" .root) .component) }}
{{- else }}
{{- $account.name | default "default" }}
{{- end }}
{{- end }}

{{/* host:port at which the learner serves; of several learners all, each pod by its own name. */}}
{{- define "seedpod.learnerAddress" -}}
{{- if gt (int .Values.learner.replicas) 1 }}
{{- include "seedpod.learnerHosts" (dict "root" . "port" 50051) | fromYamlArray | join "," }}
{{- else }}
{{- include "seedpod.fullname" . }}-learner.{{ .Release.Namespace }}.svc:50051
{{- end }}
{{- end }}

{{/* host:port of the learner that writes checkpoints and reports evaluations. */}}
{{- define "seedpod.chiefAddress" -}}
{{- splitList "," (include "seedpod.learnerAddress" .) | first }}
{{- end }}

{{/* host:port of each learner's pod. Takes root and port. */}}
{{- define "seedpod.learnerHosts" -}}
{{- $service := printf "%s-learner" (include "seedpod.fullname" .root) }}
{{- range $learner := until (int .root.Values.learner.replicas) }}
- {{ printf "%s-%d.%s.%s.svc:%v" $service $learner $service $.root.Release.Namespace $.port }}
{{- end }}
{{- end }}

{{/* [host:port, ...] of the replay shards, each pod by its own name. */}}
{{- define "seedpod.replayAddresses" -}}
{{- $service := printf "%s-replay" (include "seedpod.fullname" .) }}
{{- $addresses := list }}
{{- range $shard := until (int .Values.replay.replicas) }}
{{- $addresses = append $addresses (printf "%s-%d.%s.%s.svc:50052" $service $shard $service $.Release.Namespace) }}
{{- end }}
{{- printf "[%s]" (join "," $addresses) }}
{{- end }}

{{/* Where the components keep what they write. */}}
{{- define "seedpod.dataFolder" -}}
/var/lib/seedpod/{{ .Values.experiment.name | default "experiment" }}
{{- end }}

{{/* The part of the experiment that a component reads: when it changes, its pods are replaced. Takes root and component. */}}
{{- define "seedpod.experimentChecksum" -}}
{{- $experiment := .root.Values.experiment }}
{{- $learner := $experiment.learner | default dict }}
{{- if eq .component "learner" }}
{{- /* Its checkpoints name the environment that they were trained on. */}}
{{- list $experiment.name $learner (pick $experiment.actor "environment" "environment_arguments") | toJson | sha256sum }}
{{- else if eq .component "replay" }}
{{- list ($experiment.replay | default dict) | toJson | sha256sum }}
{{- else }}
{{- list $experiment.actor (pick $learner "keepalive_seconds") | toJson | sha256sum }}
{{- end }}
{{- end }}
