{{- /* Made of deploy/kustomize by `make chart`; change it there. */ -}}
{{- define "tuplewire.settings" -}}
listen = "[::]:6700"
listen_unix = "/run/tuplewire/worker.sock"
admin = "[::]:9464"
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
tls_worker_names = "worker.tuplewire"
token_file = "/etc/tuplewire/token/token"
permissions_file = "/etc/tuplewire/permissions/permissions.toml"
{{- else }}
allow_plaintext = true
{{- end }}
{{- end }}
