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
{{- $range := untilStep (int (mul $index $size)) (int (mul (add1 $index) $size)) 1 -}}
{{- if $.Values.program.reference -}}
{{- /* Dealt out by turns: a topology has few tasks, and one worker would run all of them. */ -}}
{{- $count := int $.Values.workers.replicas -}}
{{- $range = untilStep $index (int (mul $count $size)) $count -}}
{{- end -}}
{{- range $task := $range -}}
{{- $tasks = append $tasks $task -}}
{{- end -}}
{{- $address := printf "%s.tuplewire-workers:6700" $name -}}
{{- $workers = append $workers (dict "worker_id" $name "address" $address "tasks" $tasks) -}}
{{- end -}}
{{- $workers = .Values.assignment.items | default $workers -}}
{{- dict "version" .Values.assignment.version "topology" .Values.settings.topology "workers" $workers | toJson -}}
{{- end -}}
