{{- /* The settings of every worker, outside Spark and beside executors and drivers. What pods and ports depend on is
fixed. What differs between pods (worker_id, advertise, assignment_file) is in their arguments. */ -}}
{{- define "tuplewire.settings" -}}
# Every address of the pod, IPv6 and IPv4.
listen = "[::]:6700"
listen_unix = "/run/tuplewire/worker.sock"
listen_admin = "[::]:9464"
# In the pod's emptyDir, which outlives the container: after a crash, the next one says what died.
state_file = "/run/tuplewire/state.json"
staging_directory = "/run/tuplewire"
{{- range $name, $value := .Values.settings }}
{{- if not (kindIs "invalid" $value) }}
{{ $name }} = {{ $value | toJson }}
{{- end }}
{{- end }}
{{- if .Values.secure }}
tls_certificate = "/etc/tuplewire/tls/tls.crt"
tls_key = "/etc/tuplewire/tls/tls.key"
tls_ca = "/etc/tuplewire/tls/ca.crt"
# The name in the workers' certificates, and in no program's.
tls_worker_names = "worker.tuplewire"
token_file = "/etc/tuplewire/token/token"
permissions_file = "/etc/tuplewire/permissions/permissions.toml"
{{- else }}
allow_plaintext = true
{{- end }}
{{- end }}

{{- /* A worker's container. Takes root, user, resources, advertise, and arguments and mounts that others do not have. */ -}}
{{- define "tuplewire.worker.container" -}}
name: tuplewire
image: {{ include "tuplewire.image" .root | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
args:
  - worker
  - --config=/etc/tuplewire/worker.toml
  - --worker-id=$(POD_NAME)
  - --advertise={{ .advertise }}
  {{- range .arguments }}
  - {{ . | quote }}
  {{- end }}
env:
  - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
  - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
  # For commands that an operator runs in this container. By the socket, where the token says what they may do.
  - {name: TUPLEWIRE_ADDRESS, value: "unix:///run/tuplewire/worker.sock"}
  {{- include "tuplewire.command.env" .root | nindent 2 }}
ports:
  - {name: {{ include "tuplewire.port.name" .root }}, containerPort: 6700}
  - {name: metrics, containerPort: 9464}
# Over HTTP to the admin port, which has no TLS. Spark's container starts once this has succeeded, so it asks for
# /livez: a worker beside it is ready only later, when the driver has seen it and assigned tasks.
startupProbe:
  httpGet: {path: /livez, port: metrics}
  periodSeconds: 1
  timeoutSeconds: 3
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /livez, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 3
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 3
# No limit of CPU: throttling delays messages. The memory is what the settings can come to (docs/how-to/tune.md).
resources: {{ toJson .resources }}
securityContext:
  {{- include "tuplewire.container.security" .user | nindent 2 }}
volumeMounts:
  - {name: tuplewire-config, mountPath: /etc/tuplewire/worker.toml, subPath: worker.toml, readOnly: true}
  - {name: tuplewire-socket, mountPath: /run/tuplewire}
  {{- if .root.Values.secure }}
  - {name: tuplewire-tls, mountPath: /etc/tuplewire/tls, readOnly: true}
  - {name: tuplewire-worker-tokens, mountPath: /etc/tuplewire/token, readOnly: true}
  - {name: tuplewire-permissions, mountPath: /etc/tuplewire/permissions, readOnly: true}
  {{- end }}
  {{- range .mounts }}
  - {name: tuplewire-{{ . }}, mountPath: /etc/tuplewire/{{ . }}, readOnly: true}
  {{- end }}
{{- end -}}

{{- define "tuplewire.worker.volumes" -}}
- {name: tuplewire-config, configMap: {name: tuplewire-config}}
- {name: tuplewire-socket, emptyDir: {}}
{{- if .Values.secure }}
- {name: tuplewire-tls, secret: {secretName: tuplewire-tls, defaultMode: 0440}}
- {name: tuplewire-worker-tokens, secret: {secretName: tuplewire-worker-tokens, defaultMode: 0440}}
- {name: tuplewire-permissions, configMap: {name: tuplewire-permissions}}
{{- end }}
{{- end -}}

{{- /* What a program has to know where workers ask for certificates and tokens. */ -}}
{{- define "tuplewire.program.env" -}}
- {name: TUPLEWIRE_TLS_CERTIFICATE, value: /etc/tuplewire/tls/tls.crt}
- {name: TUPLEWIRE_TLS_KEY, value: /etc/tuplewire/tls/tls.key}
- {name: TUPLEWIRE_TLS_CA, value: /etc/tuplewire/tls/ca.crt}
# A certificate has no pod's address in it, so workers are known by the name of worker.toml.
- {name: TUPLEWIRE_TLS_WORKER_NAMES, value: worker.tuplewire}
- {name: TUPLEWIRE_TOKEN_FILE, value: /etc/tuplewire/token/token}
{{- end -}}

{{- /* What a command has to know that asks workers at other pods' addresses. */ -}}
{{- define "tuplewire.command.env" -}}
{{- if .Values.secure -}}
{{ include "tuplewire.program.env" . }}
{{- else -}}
- {name: TUPLEWIRE_ALLOW_PLAINTEXT, value: "true"}
{{- end -}}
{{- end -}}

{{- /* Takes the Secret with the program's token. */ -}}
{{- define "tuplewire.program.mounts" -}}
- {name: tuplewire-client-tls, mountPath: /etc/tuplewire/tls, readOnly: true}
- {name: {{ . }}, mountPath: /etc/tuplewire/token, readOnly: true}
{{- end -}}

{{- define "tuplewire.program.volumes" -}}
- {name: tuplewire-client-tls, secret: {secretName: tuplewire-client-tls, defaultMode: 0440}}
- {name: {{ . }}, secret: {secretName: {{ . }}, defaultMode: 0440}}
{{- end -}}

{{- /* The pod of an executor or a driver, for Spark. Takes root, role, and the Secret with the program's token. Spark
fills in image, command, resources and ports, and replaces the name, and an executor's grace period. */ -}}
{{- define "tuplewire.spark.pod" -}}
apiVersion: v1
kind: Pod
metadata:
  name: tuplewire-{{ .role }}
  labels:
    app.kubernetes.io/name: tuplewire
    app.kubernetes.io/component: {{ .role }}
  annotations:
    tuplewire/sized-for: {{ .root.Values.sidecar.sizedFor | quote }}
    {{- if .root.Values.secure }}
    {{- include "tuplewire.mesh.annotations" (list "inbound" "outbound") | nindent 4 }}
    {{- end }}
spec:
  {{- if eq .role "executor" }}
  # Neither an executor nor a worker talks to the Kubernetes API; a driver does.
  automountServiceAccountToken: false
  {{- else }}
  terminationGracePeriodSeconds: {{ add (int (ceil .root.Values.settings.drain_seconds)) 20 }}
  {{- end }}
  enableServiceLinks: false
  securityContext:
    {{- include "tuplewire.pod.security" . | nindent 4 }}
  initContainers:
    # A native sidecar: it is up before the program starts, ends after it, and does not keep the pod alive. Another
    # user than the program's, in the same group: code of the program is not the worker.
    - restartPolicy: Always
      {{- dict "root" .root "user" 186 "resources" .root.Values.sidecar.resources "advertise" "$(POD_IP)" | include "tuplewire.worker.container" | nindent 6 }}
  containers:
    - name: spark-kubernetes-{{ .role }}
      env:
        - {name: TUPLEWIRE_ADDRESS, value: "unix:///run/tuplewire/worker.sock"}
        {{- if .root.Values.secure }}
        {{- include "tuplewire.program.env" . | nindent 8 }}
        {{- end }}
      # The socket is its owner's and its group's (0660): the program is user 185, as in Spark's images.
      securityContext:
        runAsNonRoot: true
        runAsUser: 185
        allowPrivilegeEscalation: false
        capabilities: {drop: [ALL]}
      volumeMounts:
        # To connect takes no right to write: so the program can replace neither the socket nor the state file.
        - {name: tuplewire-socket, mountPath: /run/tuplewire, readOnly: true}
        {{- if .root.Values.secure }}
        {{- include "tuplewire.program.mounts" .token | nindent 8 }}
        {{- end }}
  volumes:
    {{- include "tuplewire.worker.volumes" .root | nindent 4 }}
    {{- if .root.Values.secure }}
    {{- include "tuplewire.program.volumes" .token | nindent 4 }}
    {{- end }}
{{- end -}}
