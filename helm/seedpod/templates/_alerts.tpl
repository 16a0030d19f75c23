{{/* The alerts. Takes release (label matchers), rules (values), and value, how an annotation shows the number. */}}
{{- define "seedpod.alerts" -}}
- alert: SeedpodLearnerStalled
  expr: >-
    sum by (namespace, release) (increase(seedpod_updates_total{ {{- .release -}} }[{{ .rules.stalledAfter }}])) == 0
    or absent(seedpod_updates_total{ {{- .release -}} })
  for: 5m
  annotations:
    summary: The learner makes no updates.
    description: Is its pod running, are actors connected (seedpod_actors), does replay answer?
- alert: SeedpodLearnersMissing
  expr: max by (namespace, release) (seedpod_learners_missing{ {{- .release -}} }) > 0
  for: 5m
  annotations:
    summary: '{{ .value }} learners are missing; the others wait for them.'
    description: Nothing is trained meanwhile. Are their pods scheduled, do they find their devices?
- alert: SeedpodNoActors
  expr: sum by (namespace, release) (seedpod_actors{ {{- .release -}} }) == 0
  for: 10m
  annotations:
    summary: No actor is connected to the learner.
    description: The actors' logs say what they wait for, or why they end.
- alert: SeedpodActorsFailing
  expr: sum by (namespace, release) (increase(seedpod_actor_environment_restarts_total{ {{- .release -}} }[15m])) > {{ .rules.maxEnvironmentRestarts }}
  for: 1m
  annotations:
    summary: '{{ .value }} environments were replaced in 15 minutes.'
    description: They raise, hang or return what does not fit; the actors' logs have the tracebacks.
- alert: SeedpodActorsDisconnected
  expr: >-
    sum by (namespace, release) (seedpod_actor_workers{ {{- .release -}} })
    - sum by (namespace, release) (seedpod_actor_connected_workers{ {{- .release -}} }) > 0
  for: 15m
  annotations:
    summary: '{{ .value }} workers of actors are not connected to the learner.'
    description: Their logs say why; too few env slots (learner.max_slots) are a common reason.
- alert: SeedpodReplayAtItsLimit
  expr: >-
    seedpod_replay_bytes{ {{- .release -}} } > 0.98 * seedpod_replay_capacity_bytes
    and seedpod_replay_items < 0.9 * seedpod_replay_capacity_items
  for: 10m
  annotations:
    summary: Replay is full of bytes before it has its number of sequences.
    description: The oldest leave early. Raise max_bytes and the memory, lower max_items, or add shards.
- alert: SeedpodSequencesDropped
  expr: sum by (namespace, release) (increase(seedpod_sequences_dropped_total{ {{- .release -}} }[10m])) > 0
  for: 1m
  annotations:
    summary: '{{ .value }} sequences were dropped in 10 minutes, because replay was away.'
    description: Is a replay pod down or recovering (seedpod_replay_ready)?
- alert: SeedpodPolicyLagOverBound
  expr: seedpod_policy_lag{ {{- .release -}} } > {{ .rules.policyLagFactor }} * seedpod_policy_lag_bound
  for: 10m
  annotations:
    summary: 'Records are {{ .value }} updates old when they are trained on.'
    description: That is more than slots of equal speed can have. Some environments are much slower than others.
- alert: SeedpodNoCheckpoint
  expr: time() - seedpod_checkpoint_timestamp_seconds{ {{- .release -}} } > {{ .rules.maxCheckpointAgeSeconds }}
  for: 1m
  annotations:
    summary: 'The newest checkpoint is {{ .value }} seconds old.'
    description: Is the volume full, or has training stalled? The learner's log has the error.
- alert: SeedpodUpdatesSkipped
  expr: sum by (namespace, release) (increase(seedpod_skipped_updates_total{ {{- .release -}} }[10m])) > 0
  for: 1m
  annotations:
    summary: '{{ .value }} updates were skipped in 10 minutes, because loss or gradients were not finite.'
    description: 20 in a row end the run. Lower the learning rate, or look at rewards and observations.
{{- end }}
