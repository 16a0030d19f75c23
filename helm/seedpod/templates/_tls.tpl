{{/* Takes root and component. */}}
{{- define "seedpod.tlsSecret" -}}
{{- $tls := .root.Values.tls }}
{{- $made := printf "%s-%s-tls" (include "seedpod.fullname" .root) .component }}
{{- coalesce $tls.existingSecret (get $tls.existingSecrets .component) $made }}
{{- end }}

{{/*
The setting that makes a component use its certificate. With a certificate for each component, each
may call only what it needs. Takes root and component.
*/}}
{{- define "seedpod.tlsArgument" -}}
{{- $clients := "" }}
{{- if not .root.Values.tls.existingSecret }}
{{- $role := dict "learner" "actor" "replay" "learner" | dig .component "" }}
{{- if $role }}
{{- $names := list }}
{{- range $caller := list $role "evaluator" "test" }}
{{- if or (ne $caller "evaluator") (and (eq $role "actor") $.root.Values.evaluator.enabled) }}
{{- $names = concat $names (include "seedpod.hostNames" (dict "root" $.root "component" $caller) | fromYamlArray) }}
{{- end }}
{{- end }}
{{- $clients = printf ", clients: {%s: %s}" $role (toJson $names) }}
{{- end }}
{{- end -}}
--set={{ eq .component "evaluator" | ternary "actor" .component }}.tls={certificate: /etc/seedpod-tls/tls.crt, key: /etc/seedpod-tls/tls.key, authority: /etc/seedpod-tls/ca.crt{{ $clients }}}
{{- end }}

{{/* Names that a component is called by. Takes root and component. */}}
{{- define "seedpod.hostNames" -}}
{{- $service := printf "%s-%s.%s.svc" (include "seedpod.fullname" .root) .component .root.Release.Namespace }}
{{- list $service (printf "*.%s" $service) | toYaml }}
{{- end }}

{{/*
A probe. The kubelet's own gRPC probes know no TLS: with it, a process in the container asks.
Takes root, component and probe.
*/}}
{{- define "seedpod.probe" -}}
{{- if and .root.Values.tls.enabled .probe.grpc }}
{{- $name := printf "%s-%s" (include "seedpod.fullname" .root) .component }}
exec:
  command:
    - python
    - -m
    - services.shared.probe
    - --address=localhost:{{ .probe.grpc.port }}
    - --service={{ .probe.grpc.service }}
    - --tls=/etc/seedpod-tls
    - --server-name={{ printf "%s-0.%s.%s.svc" $name $name .root.Release.Namespace }}
# Python's start takes most of it.
timeoutSeconds: {{ max 10 (.probe.timeoutSeconds | default 1) }}
{{ omit .probe "grpc" "timeoutSeconds" | toYaml }}
{{- else }}
{{- toYaml .probe }}
{{- end }}
{{- end }}
