{{- define "tuplewire.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "tuplewire.assignment" -}}
{{- $size := int .Values.assignment.tasksPerWorker -}}
{{- $workers := list -}}
{{- range $index := until (int .Values.workers.replicas) -}}
{{- $name := printf "tuplewire-worker-%d" $index -}}
{{- $tasks := list -}}
{{- range $task := untilStep (int (mul $index $size)) (int (mul (add1 $index) $size)) 1 -}}
{{- $tasks = append $tasks $task -}}
{{- end -}}
{{- $address := printf "%s.tuplewire-workers:6700" $name -}}
{{- $workers = append $workers (dict "worker_id" $name "address" $address "tasks" $tasks) -}}
{{- end -}}
{{- $workers = .Values.assignment.items | default $workers -}}
{{- dict "version" .Values.assignment.version "topology" .Values.settings.topology "workers" $workers | toJson -}}
{{- end -}}
