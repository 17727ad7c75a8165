{{- define "tuplewire.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- /* Labels of what belongs to workers outside Spark; what selects them goes by these, too. */ -}}
{{- define "tuplewire.worker.labels" -}}
app.kubernetes.io/name: tuplewire
app.kubernetes.io/component: worker
{{- end -}}

{{- /* With certificates the port carries TLS of its own: a mesh that took it for plain gRPC would wait for a preface. */ -}}
{{- define "tuplewire.port.name" -}}
{{ .Values.secure | ternary "tls-grpc" "grpc" }}
{{- end -}}

{{- /* Keeps messages out of a mesh (Istio, linkerd), as they have certificates of their own. Takes the directions. */ -}}
{{- define "tuplewire.mesh.annotations" -}}
{{- range . }}
traffic.sidecar.istio.io/exclude{{ title . }}Ports: "6700"
config.linkerd.io/skip-{{ trimSuffix "bound" . }}bound-ports: "6700"
{{- end }}
{{- end -}}

{{- define "tuplewire.pod.security" -}}
# The socket's directory belongs to this group, which every container is in, whatever its user.
fsGroup: 185
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- /* Takes the user. */ -}}
{{- define "tuplewire.container.security" -}}
runAsNonRoot: true
runAsUser: {{ . }}
runAsGroup: 185
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- /* Where a pod may run. Takes the part of the values that says so, and the chart's root. */ -}}
{{- define "tuplewire.scheduling" -}}
imagePullSecrets: {{ toJson .root.Values.image.pullSecrets }}
nodeSelector: {{ toJson .values.nodeSelector }}
tolerations: {{ toJson .values.tolerations }}
affinity: {{ toJson .values.affinity }}
{{- end -}}

{{- /* The assignment in the form that a worker reads. Its version grows with each release, and is another one where
the tasks are other ones: a worker refuses a second content under a version that it knows. */ -}}
{{- define "tuplewire.assignment" -}}
{{- $size := int .Values.assignment.tasksPerWorker -}}
{{- $workers := list -}}
{{- range $index := until (int .Values.workers.replicas) -}}
{{- $name := printf "tuplewire-worker-%d" $index -}}
{{- $range := untilStep (int (mul $index $size)) (int (mul (add1 $index) $size)) 1 -}}
{{- if $.Values.program.reference -}}
{{- /* Dealt out by turns: a topology has few tasks, and one worker would run all of them. */ -}}
{{- $count := int $.Values.workers.replicas -}}
{{- $range = untilStep $index (int (mul $count $size)) $count -}}
{{- end -}}
{{- $tasks := list -}}
{{- range $task := $range -}}
{{- $tasks = append $tasks $task -}}
{{- end -}}
{{- $address := printf "%s.tuplewire-workers:6700" $name -}}
{{- $workers = append $workers (dict "worker_id" $name "address" $address "tasks" $tasks) -}}
{{- end -}}
{{- $workers = .Values.assignment.workers | default $workers -}}
{{- $digest := mod (dict "topology" .Values.settings.topology "workers" $workers | toJson | adler32sum | int64) 1000000 -}}
{{- $version := add (mul (.Values.assignment.version | default .Release.Revision) 1000000) $digest -}}
{{- dict "version" $version "topology" .Values.settings.topology "workers" $workers | toJson -}}
{{- end -}}
