{{/* A Service without an address of its own: gRPC streams go to the pods themselves. Takes root and component. */}}
{{- define "seedpod.headlessService" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "seedpod.fullname" .root }}-{{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "seedpod.labels" . | nindent 4 }}
spec:
  clusterIP: None
  # Clients wait for a pod that is not ready, and hear from itself why.
  publishNotReadyAddresses: true
  selector: {{- include "seedpod.selector" . | nindent 4 }}
  ports:
    {{- if not (has .component (list "actor" "evaluator")) }}
    - {name: grpc, port: {{ eq .component "learner" | ternary 50051 50052 }}, targetPort: grpc, appProtocol: kubernetes.io/h2c}
    {{- end }}
    - {name: metrics, port: 9100, targetPort: metrics}
{{- end }}
