{{/*
A dashboard as Grafana's JSON, from dashboards/SLUG.yaml: title and panels, each with title,
description, unit and queries (expr, legend). SELECTOR in an expression becomes the labels of the
release. Takes root, slug and source.
*/}}
{{- define "seedpod.dashboard" -}}
{{- $datasource := dict "type" "prometheus" "uid" "${datasource}" }}
{{- $selector := `namespace="$namespace", release="$release"` }}
{{- $panels := list }}
{{- range $index, $panel := .source.panels }}
{{- $targets := list }}
{{- range $number, $query := $panel.queries }}
{{- $targets = append $targets (dict
  "refId" (printf "%c" (add 65 $number))
  "datasource" $datasource
  "expr" ($query.expr | replace "SELECTOR" $selector)
  "legendFormat" $query.legend) }}
{{- end }}
{{- $panels = append $panels (dict
  "id" (add1 $index)
  "type" "timeseries"
  "title" $panel.title
  "description" $panel.description
  "datasource" $datasource
  "gridPos" (dict "x" (mul 12 (mod $index 2)) "y" (mul 8 (div $index 2)) "w" 12 "h" 8)
  "fieldConfig" (dict "defaults" (dict "unit" $panel.unit) "overrides" list)
  "targets" $targets) }}
{{- end }}
{{- $prices := .root.Values.monitoring.dashboards }}
{{- $variables := list
  (dict "name" "datasource" "label" "Data source" "type" "datasource" "query" "prometheus")
  (dict "name" "namespace" "label" "Namespace" "type" "query" "datasource" $datasource "refresh" 2
    "query" "label_values(seedpod_frames_per_second, namespace)")
  (dict "name" "release" "label" "Release" "type" "query" "datasource" $datasource "refresh" 2
    "query" "label_values(seedpod_frames_per_second{namespace=\"$namespace\"}, release)")
  (dict "name" "learner_price" "label" "Learner, an hour" "type" "textbox" "query" (toString $prices.learnerPricePerHour))
  (dict "name" "actor_price" "label" "Actor pod, an hour" "type" "textbox" "query" (toString $prices.actorPricePerHour)) }}
{{- dict
  "uid" (printf "seedpod-%s" .slug)
  "title" (printf "seedpod: %s" .source.title)
  "tags" (list "seedpod")
  "schemaVersion" 39
  "editable" true
  "refresh" "30s"
  "time" (dict "from" "now-3h" "to" "now")
  "templating" (dict "list" $variables)
  "panels" $panels | toPrettyJson }}
{{- end }}
