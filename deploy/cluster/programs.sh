# shellcheck shell=bash disable=SC2154
# The programs that cluster-check.sh runs in the cluster, as manifests; source it. Uses its variables image, home,
# secure, own and space, and its function run.

# A certificate and a key of a CA: FOLDER FILE NAME. The CA is made first.
certificate() {
    local signed=()
    [[ $2 == ca ]] || signed=(-CA "$1/ca.crt" -CAkey "$1/ca.key" -addext "subjectAltName=DNS:$3")
    run openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj "/CN=$3" \
        -keyout "$1/$2.key" -out "$1/$2.crt" "${signed[@]}"
}

# What a program needs to reach workers with certificates and tokens (docs/how-to/deploy.md, "A driver elsewhere").
program_volumes() {
    ! $secure || cat <<'END'
        - {name: tls, secret: {secretName: tuplewire-client-tls, defaultMode: 0440}}
        - {name: token, secret: {secretName: tuplewire-driver-token, defaultMode: 0440}}
END
}
program_mounts() {
    ! $secure || cat <<'END'
            - {name: tls, mountPath: /etc/tuplewire/tls, readOnly: true}
            - {name: token, mountPath: /etc/tuplewire/token, readOnly: true}
END
}
program_environment() {
    ! $secure || cat <<'END'
            - {name: TUPLEWIRE_TLS_CERTIFICATE, value: /etc/tuplewire/tls/tls.crt}
            - {name: TUPLEWIRE_TLS_KEY, value: /etc/tuplewire/tls/tls.key}
            - {name: TUPLEWIRE_TLS_CA, value: /etc/tuplewire/tls/ca.crt}
            - {name: TUPLEWIRE_TLS_WORKER_NAMES, value: worker.tuplewire}
            - {name: TUPLEWIRE_TOKEN_FILE, value: /etc/tuplewire/token/token}
END
}

# A program of the image: NAME LABELS WORD...
job() {
    local name=$1 labels=$2 words
    shift 2
    printf -v words '"%s", ' "$@"
    cat <<END
apiVersion: batch/v1
kind: Job
metadata: {name: $name}
spec:
  backoffLimit: 0
  template:
    metadata:
      labels: $labels
    spec:
      restartPolicy: Never
      automountServiceAccountToken: false
END
    # Not on the node that is drained.
    ! $own || echo "      nodeName: $home"
    cat <<END
      securityContext: {runAsNonRoot: true, runAsUser: 185, fsGroup: 185, seccompProfile: {type: RuntimeDefault}}
      volumes:
        - {name: job, configMap: {name: cluster-job}}
        - {name: tmp, emptyDir: {}}
END
    program_volumes
    cat <<END
      containers:
        - name: program
          image: $image
          command: [${words%, }]
          securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
          volumeMounts:
            - {name: job, mountPath: /job}
            - {name: tmp, mountPath: /tmp}
END
    program_mounts
    echo "          env:"
    echo "            - {name: PYTHONUNBUFFERED, value: '1'}"
    program_environment
}

# The account of Spark's drivers, which start executors.
spark_account() {
    cat deploy/spark-account.yaml
}

# A job of spark_job.py: NAME MODE. In cluster mode a pod submits it, and waits for its end; in client mode that pod is
# the driver, with no worker beside it.
spark_job() {
    local name=$1 mode=$2 labels='{app: submit}' conf='' each
    local more=("kubernetes.authenticate.driver.serviceAccountName=spark" "kubernetes.driver.pod.name=spark-$name")
    if [[ $mode == client ]]; then
        labels='{spark-role: driver}'
        more=("driver.host=\$(POD_IP)" "kubernetes.driver.pod.name=\$(POD_NAME)")
    fi
    for each in "kubernetes.namespace=$space" kubernetes.container.image=localhost/spark:dev executor.instances=2 \
        executor.memory=512m driver.memory=512m driver.memoryOverhead=1g executor.memoryOverhead=1g executor.cores=2 \
        kubernetes.executor.request.cores=100m kubernetes.driver.request.cores=100m "${more[@]}"; do
        conf+=", \"--conf\", \"spark.$each\""
    done
    cat <<END
apiVersion: batch/v1
kind: Job
metadata: {name: submit-$name}
spec:
  backoffLimit: 0
  template:
    metadata: {labels: $labels}
    spec:
      restartPolicy: Never
      serviceAccountName: spark
      securityContext: {runAsNonRoot: true, runAsUser: 185, fsGroup: 185, seccompProfile: {type: RuntimeDefault}}
      volumes:
        - {name: tmp, emptyDir: {}}
        - name: conf
          projected:
            sources:
              - configMap: {name: spark-conf}
END
    program_volumes
    cat <<END
      containers:
        - name: submit
          image: localhost/spark:dev
          args: ["/opt/spark/bin/spark-submit", "--master", "k8s://https://kubernetes.default.svc", "--deploy-mode",
            "$mode", "--properties-file", "/conf/spark-defaults.conf"$conf, "local:///opt/spark_job.py", "$name"]
          workingDir: /conf
          securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
          volumeMounts:
            - {name: conf, mountPath: /conf}
            - {name: tmp, mountPath: /tmp}
END
    program_mounts
    cat <<'END'
          env:
            - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
            - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
END
    program_environment
}

# The kinds of the Prometheus operator, without the operator: the chart makes objects of them.
monitor_kinds() {
    local kind plural
    for kind in PodMonitor PrometheusRule; do
        plural=${kind,,}s
        cat <<END
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: $plural.monitoring.coreos.com
spec:
  group: monitoring.coreos.com
  names: {kind: $kind, plural: $plural}
  scope: Namespaced
  versions:
    - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
END
    done
}

# A custom-metrics API in the namespace `monitoring`, whose pods the policy lets in at 9464.
metrics_api() {
    cat <<END
apiVersion: v1
kind: Pod
metadata:
  name: metrics-api
  labels: {app.kubernetes.io/name: prometheus}
spec:
  automountServiceAccountToken: false
  securityContext: {runAsNonRoot: true, runAsUser: 185, fsGroup: 185, seccompProfile: {type: RuntimeDefault}}
  volumes:
    - {name: job, configMap: {name: metrics-api}}
    - {name: tls, secret: {secretName: metrics-api, defaultMode: 0440}}
  containers:
    - name: metrics-api
      image: $image
      command: [python, /job/metrics_api.py, tuplewire-workers.$space, /tls]
      readinessProbe: {tcpSocket: {port: 6443}, periodSeconds: 1}
      securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
      volumeMounts:
        - {name: job, mountPath: /job}
        - {name: tls, mountPath: /tls, readOnly: true}
---
apiVersion: v1
kind: Service
metadata: {name: metrics-api}
spec:
  selector: {app.kubernetes.io/name: prometheus}
  ports: [{port: 443, targetPort: 6443}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta2.custom.metrics.k8s.io}
spec:
  group: custom.metrics.k8s.io
  version: v1beta2
  groupPriorityMinimum: 100
  versionPriority: 100
  insecureSkipTLSVerify: true
  service: {name: metrics-api, namespace: monitoring}
END
}
