{{/* Single-host TPU slices of GKE: accelerator -> topologies. */}}
{{- define "seedpod.tpuTopologies" -}}
tpu-v4-podslice: [2x2x1]
tpu-v5-lite-podslice: [1x1, 2x2, 2x4]
tpu-v5p-slice: [2x2x1]
tpu-v6e-slice: [1x1, 2x2, 2x4]
{{- end }}

{{/* nodeSelector, tolerations and resources that the learner's accelerator asks for. */}}
{{- define "seedpod.accelerator" -}}
{{- $accelerator := .Values.learner.accelerator }}
{{- if eq $accelerator.type "gpu" }}
{{- with $accelerator.gpu.product }}
nodeSelector: {cloud.google.com/gke-accelerator: {{ . }}}
{{- end }}
tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]
resources: {nvidia.com/gpu: {{ $accelerator.gpu.count }}}
{{- else if eq $accelerator.type "tpu" }}
nodeSelector:
  cloud.google.com/gke-tpu-accelerator: {{ $accelerator.tpu.accelerator }}
  cloud.google.com/gke-tpu-topology: {{ $accelerator.tpu.topology }}
tolerations: [{key: google.com/tpu, operator: Equal, value: present, effect: NoSchedule}]
resources: {google.com/tpu: {{ $accelerator.tpu.chips }}}
{{- end }}
{{- end }}
