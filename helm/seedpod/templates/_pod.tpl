{{/*
The pod of a component, from its block of values. Takes root, component, and for the pod of
`helm test`, which is an actor in other clothes, args and resources.
*/}}
{{- define "seedpod.podSpec" -}}
{{- $root := .root }}
{{- $component := .component }}
{{- $values := index $root.Values $component }}
{{- $accelerator := dict }}
{{- if eq $component "learner" }}
{{- $accelerator = include "seedpod.accelerator" $root | fromYaml }}
{{- end }}
serviceAccountName: {{ include "seedpod.serviceAccountName" . }}
automountServiceAccountToken: {{ $values.serviceAccount.automountToken }}
enableServiceLinks: false
{{- with $root.Values.global.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
securityContext: {{- toYaml $values.podSecurityContext | nindent 2 }}
{{- with merge (dict) $values.nodeSelector ($accelerator.nodeSelector | default dict) }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with concat ($accelerator.tolerations | default list) $values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.topologySpreadConstraints }}
topologySpreadConstraints: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .args }}
restartPolicy: Never
{{- end }}
containers:
  - name: {{ .name | default $component }}
    image: {{ include "seedpod.image" . }}
    imagePullPolicy: {{ $values.image.pullPolicy }}
    {{- if .args }}
    command: [python, -m, services.actor.selftest]
    {{- end }}
    args:
      {{- .args | default (include (printf "seedpod.%sArguments" $component) $root) | trim | nindent 6 }}
      {{- if $root.Values.tls.enabled }}
      - {{ include "seedpod.tlsArgument" (dict "root" $root "component" $component) | quote }}
      {{- end }}
    env:
      - name: POD_NAME
        valueFrom: {fieldRef: {fieldPath: metadata.name}}
      {{- if eq $component "learner" }}
      {{- with include "seedpod.learnerEnvironment" $root | trim }}
      {{- . | nindent 6 }}
      {{- end }}
      {{- end }}
      {{- range $name, $value := $values.env }}
      - name: {{ $name }}
        value: {{ $value | quote }}
      {{- end }}
      {{- with $values.extraEnv }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    {{- if not .args }}
    ports: {{- include "seedpod.containerPorts" $component | trim | nindent 6 }}
    {{- range $kind := list "startup" "liveness" "readiness" }}
    {{- with index $values.probes $kind }}
    {{ $kind }}Probe: {{- include "seedpod.probe" (dict "root" $root "component" $component "probe" .) | trim | nindent 6 }}
    {{- end }}
    {{- end }}
    {{- end }}
    {{- $resources := .resources | default $values.resources }}
    {{- $requests := merge (dict) ($resources.requests | default dict) ($accelerator.resources | default dict) }}
    {{- $limits := merge (dict) ($resources.limits | default dict) ($accelerator.resources | default dict) }}
    resources:
      requests: {{- toYaml $requests | nindent 8 }}
      limits: {{- toYaml $limits | nindent 8 }}
    securityContext: {{- toYaml $values.securityContext | nindent 6 }}
    volumeMounts:
      - {name: experiment, mountPath: /etc/seedpod, readOnly: true}
      - {name: tmp, mountPath: /tmp}
      {{- if $root.Values.tls.enabled }}
      - {name: tls, mountPath: /etc/seedpod-tls, readOnly: true}
      {{- end }}
      {{- if $values.persistence }}
      - {name: data, mountPath: /var/lib/seedpod}
      {{- end }}
      {{- with $values.extraVolumeMounts }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
  {{- if and (eq $component "learner") $root.Values.learner.tensorboard.enabled }}
  - name: tensorboard
    image: {{ include "seedpod.image" . }}
    imagePullPolicy: {{ $values.image.pullPolicy }}
    command: [python, -m, tensorboard.main]
    # Reached through a forwarded port alone.
    args:
      - --logdir={{ include "seedpod.dataFolder" $root }}/tensorboard
      - --host=127.0.0.1
      - --port=6006
    ports:
      - {name: tensorboard, containerPort: 6006}
    resources: {{- toYaml $values.tensorboard.resources | nindent 6 }}
    securityContext: {{- toYaml $values.securityContext | nindent 6 }}
    volumeMounts:
      - {name: data, mountPath: /var/lib/seedpod, readOnly: true}
      - {name: tmp, mountPath: /tmp}
  {{- end }}
volumes:
  - name: experiment
    configMap: {name: {{ include "seedpod.fullname" $root }}-experiment}
  - name: tmp
    emptyDir: {}
  {{- if $root.Values.tls.enabled }}
  - name: tls
    secret: {secretName: {{ include "seedpod.tlsSecret" (dict "root" $root "component" (ternary "test" $component (hasKey . "args"))) }}, defaultMode: 0440}
  {{- end }}
  {{- with $values.persistence }}
  {{- if not .enabled }}
  - name: data
    emptyDir: {}
  {{- else if .existingClaim }}
  - name: data
    persistentVolumeClaim: {claimName: {{ .existingClaim }}}
  {{- end }}
  {{- end }}
  {{- with $values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* Pod labels and annotations. Takes root and component. */}}
{{- define "seedpod.podMetadata" -}}
{{- $values := index .root.Values .component }}
labels:
  {{- include "seedpod.selector" . | nindent 2 }}
  {{- with $values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  checksum/experiment: {{ include "seedpod.experimentChecksum" . }}
  {{- with $values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* Metadata of a component's workload. Takes root and component. */}}
{{- define "seedpod.workloadMetadata" -}}
{{- $values := index .root.Values .component }}
name: {{ include "seedpod.fullname" .root }}-{{ .component }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "seedpod.labels" . | nindent 2 }}
  {{- with $values.labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $values.annotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The claim that a StatefulSet makes for each pod; nothing with another kind of volume. */}}
{{- define "seedpod.volumeClaims" -}}
{{- if and .enabled (not .existingClaim) }}
persistentVolumeClaimRetentionPolicy: {whenDeleted: Retain, whenScaled: Retain}
volumeClaimTemplates:
  - apiVersion: v1
    kind: PersistentVolumeClaim
    metadata:
      name: data
      {{- with .annotations }}
      annotations: {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      accessModes: {{- toYaml .accessModes | nindent 8 }}
      {{- with .storageClassName }}
      storageClassName: {{ . }}
      {{- end }}
      resources: {requests: {storage: {{ .size }}}}
{{- end }}
{{- end }}

{{- define "seedpod.containerPorts" -}}
{{- if eq . "learner" }}
- {name: grpc, containerPort: 50051}
{{- else if eq . "replay" }}
- {name: grpc, containerPort: 50052}
{{- end }}
- {name: metrics, containerPort: 9100}
{{- end }}

{{/* Who the other learners are, and what TensorFlow wants to know of a TPU's host. */}}
{{- define "seedpod.learnerEnvironment" -}}
{{- if gt (int .Values.learner.replicas) 1 }}
- name: POD_INDEX
  valueFrom: {fieldRef: {fieldPath: "metadata.labels['apps.kubernetes.io/pod-index']"}}
- name: TF_CONFIG
  value: >-
    {"cluster": {"worker": {{ include "seedpod.learnerHosts" (dict "root" . "port" 50053) | fromYamlArray | toJson }}},
    "task": {"type": "worker", "index": $(POD_INDEX)}}
{{- end }}
{{- if eq .Values.learner.accelerator.type "tpu" }}
# A slice of one host.
- {name: TPU_WORKER_ID, value: "0"}
- {name: TPU_WORKER_HOSTNAMES, value: localhost}
{{- end }}
{{- end }}

{{- define "seedpod.learnerArguments" -}}
- --experiment=/etc/seedpod/experiment.yaml
- --set=learner.address=0.0.0.0:50051
- --set=learner.metrics_host=0.0.0.0
- --set=learner.metrics_port=9100
- --set=learner.checkpoint_directory={{ .Values.learner.checkpointDirectory | default (printf "%s/checkpoints" (include "seedpod.dataFolder" .)) }}
- --set=learner.log_directory={{ include "seedpod.dataFolder" . }}/tensorboard
- --set=learner.evaluation.results_path={{ include "seedpod.dataFolder" . }}/evaluations.jsonl
- --set=learner.evaluation.recordings_directory={{ include "seedpod.dataFolder" . }}/videos
{{- $accelerator := .Values.learner.accelerator }}
{{- if ne $accelerator.type "none" }}
- --set=learner.devices.kind={{ $accelerator.type }}
{{- end }}
{{- if eq $accelerator.type "gpu" }}
- --set=learner.devices.count={{ $accelerator.gpu.count }}
{{- end }}
{{- if eq (include "seedpod.algorithm" .) "r2d2" }}
- --set=learner.r2d2.replay_addresses={{ include "seedpod.replayAddresses" . }}
{{- end }}
{{- end }}

{{- define "seedpod.actorArguments" -}}
- --experiment=/etc/seedpod/experiment.yaml
- --set=actor.learner_address={{ include "seedpod.learnerAddress" . }}
- --set=actor.metrics_host=0.0.0.0
- --set=actor.metrics_port=9100
- --name=$(POD_NAME)
{{- end }}

{{- define "seedpod.evaluatorArguments" -}}
{{ include "seedpod.actorArguments" . | trim }}
{{- if gt (int .Values.learner.replicas) 1 }}
# All its episodes are reported by one learner.
- --set=actor.learner_address={{ include "seedpod.chiefAddress" . }}
{{- end }}
- --set=actor.role=evaluation
- --set=actor.workers=1
- --set=actor.groups=1
- --set=actor.environments_per_group={{ .Values.evaluator.environments }}
{{- end }}

{{- define "seedpod.replayArguments" -}}
- --experiment=/etc/seedpod/experiment.yaml
- --set=replay.address=0.0.0.0:50052
- --set=replay.metrics_host=0.0.0.0
- --set=replay.metrics_port=9100
{{- if .Values.replay.persistence.enabled }}
- --set=replay.persistence.directory={{ include "seedpod.dataFolder" . }}/replay
{{- end }}
{{- end }}
