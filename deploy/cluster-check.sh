#!/usr/bin/env bash
# Check Tuplewire in a real cluster, step by step. --help says more.
set -euo pipefail
shopt -s inherit_errexit
cd "${0%/*}/.."

usage() {
    cat <<'END'
Check Tuplewire in a real cluster, step by step; each step says what it shows.

  deploy/cluster-check.sh [--kind] [--chart] [--secure] [--keep] [--print]
  deploy/cluster-check.sh --yes --image IMAGE [--chart] [--secure] [--keep] [--print]

  By default: in a cluster of its own with two nodes, built from Go modules and Debian packages by deploy/cluster, as
  root on Debian. The first build takes 20 minutes of CPU; K8S_DIR (~/.cache/tuplewire-k8s) keeps it.
  --kind         in a cluster of its own with three nodes, made by kind
  --yes          in the cluster of the current kubectl context, in a namespace of its own, tuplewire-check. No node
                 is drained there.
  --image IMAGE  what workers run, with its tag. With --yes: one that the cluster has or can pull; into k3s comes one
                 by docker save IMAGE | k3s ctr images import -. With --kind: one that docker has; by default it is
                 built.
  --chart        install the Helm chart, in place of applying what it renders
  --secure       with certificates, tokens and permissions
  --keep         leave cluster or namespace as they are in the end
  --print        print what would be run, and run nothing

Needs helm 3.14 or newer (make deploy-tools); kubectl 1.29 or newer, with --yes or --kind; kind 0.24 or newer and
docker, with --kind; Go, with neither.
Exit codes: 0 all was shown; 1 a step failed, which is named; 64 wrong usage; 69 a tool is missing, nothing was run.
END
}

wrong() {
    echo "cluster-check.sh: $1; see --help" >&2
    exit 64
}

own=true kind=false image='' chart=false secure=false keep=false print=false
while (($#)); do
    case $1 in
        -h | --help) usage && exit ;;
        --yes) own=false ;;
        --kind) kind=true ;;
        --chart) chart=true ;;
        --secure) secure=true ;;
        --keep) keep=true ;;
        --print) print=true ;;
        --image)
            (($# > 1)) || wrong "--image needs a value"
            image=$2
            shift
            ;;
        *) wrong "unknown argument $1" ;;
    esac
    shift
done
$own || [[ -n $image ]] || wrong "--yes needs --image, one that the cluster can pull or has"
! $own || $kind || [[ -z $image ]] || wrong "--image is for --yes and --kind: the image is built from this clone"
[[ -z $image || ${image##*/} == *:* ]] || wrong "--image needs a tag"
build=false
[[ -n $image ]] || build=true image=localhost/tuplewire:dev

# --- what must be here ------------------------------------------------------------------------------------------

name=tuplewire-check context=CONTEXT
missing=()
need() {
    command -v "$1" >/dev/null || missing+=("$1 ($2)")
}
PATH=$PATH:$PWD/build/bin:$PWD/build/go/bin  # of make deploy-tools
need helm "3.14 or newer: make deploy-tools"
! $secure || need openssl "3 or newer, for --secure"
kubectl=(kubectl) helm=(helm) home=tuplewire-check-control-plane
if $own && ! $kind; then
    # shellcheck source=cluster/env.sh
    source deploy/cluster/env.sh
    context=local home=node1
    # The cluster's network is in a namespace of its own.
    kubectl=(nsenter "--net=/run/netns/$PREFIX-1" kubectl) helm=(nsenter "--net=/run/netns/$PREFIX-1" helm)
    need go "to build Kubernetes"
    need apt-get "Debian, to install containerd and runc"
    $print || ((EUID == 0)) || missing+=("root, to start nodes")
elif $own; then
    context=kind-$name
    need kubectl "1.29 or newer"
    need kind "0.24 or newer, for a cluster of its own; or --yes for the current context"
    need docker "for kind"
    ! command -v docker >/dev/null || $print || docker info >/dev/null 2>&1 || missing+=("an engine of docker that answers")
else
    need kubectl "1.29 or newer"
    if ! $print && command -v kubectl >/dev/null; then
        context=$(kubectl config current-context 2>/dev/null) || missing+=("a current kubectl context")
    fi
fi
if ! $print && ((${#missing[@]})); then
    echo "cluster-check.sh: NOT CHECKED, nothing was run. Missing:" >&2
    printf '  %s\n' "${missing[@]}" >&2
    exit 69
fi

# --- how a step is run --------------------------------------------------------------------------------------------

steps=0 title=''
step() {
    title=$1
    steps=$((steps + 1))
    printf '\n== %d. %s\n   shows: %s\n' "$steps" "$1" "$2"
}

# Print a command, and run it.
run() {
    printf '$'
    printf ' %q' "$@"
    echo
    $print || "$@"
}
# The same with an input: `job ... | run_with kubectl ...`.
run_with() {
    local text
    text=$(</dev/stdin)
    printf '$ %s <<END\n%s\nEND\n' "$*" "$text"
    $print || "$@" <<<"$text"
}

all=("${kubectl[@]}" --context "$context")
kube=("${all[@]}" --namespace "$name")
apply=("${kube[@]}" apply --filename -)

# Apply the output of a command, changed by `through`.
through=(cat)
apply_from() {
    printf '$'
    printf ' %q' "$@"
    printf ' |'
    printf ' %q' "${through[@]}"
    echo " | ${apply[*]}"
    $print || "$@" | "${through[@]}" | "${apply[@]}"
}
values=(--values deploy/helm/dev.yaml --set-string "image.repository=${image%:*},image.tag=${image##*:}"
    --set workers.resources.requests.cpu=100m)
operator=()
if $secure; then
    values+=(--set secure=true --set-file permissions=deploy/cluster/permissions.toml)
    operator=(env TUPLEWIRE_TOKEN_FILE=/etc/tuplewire/token/token)
fi

# What a worker's own command line says in its pod: POD WORD...
inside() {
    run "${kube[@]}" exec "$1" -- "${operator[@]}" tuplewire "${@:2}" unix:///run/tuplewire/worker.sock
}

# A certificate and a key of a CA: FOLDER FILE NAME. The CA is made first.
certificate() {
    local signed=()
    [[ $2 == ca ]] || signed=(-CA "$1/ca.crt" -CAkey "$1/ca.key" -addext "subjectAltName=DNS:$3")
    run openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj "/CN=$3" \
        -keyout "$1/$2.key" -out "$1/$2.crt" "${signed[@]}"
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
    # Away from the node that is drained.
    ! $own || echo "      nodeName: $home"
    cat <<END
      securityContext: {runAsNonRoot: true, runAsUser: 185, fsGroup: 185, seccompProfile: {type: RuntimeDefault}}
      volumes:
        - {name: job, configMap: {name: cluster-job}}
        - {name: tmp, emptyDir: {}}
END
    ! $secure || cat <<END
        - {name: tls, secret: {secretName: tuplewire-client-tls, defaultMode: 0440}}
        - {name: token, secret: {secretName: tuplewire-driver-token, defaultMode: 0440}}
END
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
    ! $secure || cat <<END
            - {name: tls, mountPath: /etc/tuplewire/tls, readOnly: true}
            - {name: token, mountPath: /etc/tuplewire/token, readOnly: true}
          env:
            - {name: TUPLEWIRE_TLS_CERTIFICATE, value: /etc/tuplewire/tls/tls.crt}
            - {name: TUPLEWIRE_TLS_KEY, value: /etc/tuplewire/tls/tls.key}
            - {name: TUPLEWIRE_TLS_CA, value: /etc/tuplewire/tls/ca.crt}
            - {name: TUPLEWIRE_TLS_WORKER_NAMES, value: worker.tuplewire}
            - {name: TUPLEWIRE_TOKEN_FILE, value: /etc/tuplewire/token/token}
END
}

# A job of spark_job.py in cluster mode: NAME. A pod with Spark submits it, and waits for its end.
spark_job() {
    local name=$1 conf='' each
    for each in kubernetes.namespace=tuplewire-check kubernetes.container.image=localhost/spark:dev \
        kubernetes.authenticate.driver.serviceAccountName=spark executor.instances=2 executor.memory=512m \
        driver.memory=512m driver.memoryOverhead=1g executor.memoryOverhead=1g executor.cores=1 \
        kubernetes.executor.request.cores=100m kubernetes.driver.request.cores=100m \
        kubernetes.driver.pod.name="spark-$name"; do
        conf+=", \"--conf\", \"spark.$each\""
    done
    cat <<END
apiVersion: batch/v1
kind: Job
metadata: {name: submit-$name}
spec:
  backoffLimit: 0
  template:
    metadata: {labels: {app: submit}}
    spec:
      restartPolicy: Never
      serviceAccountName: spark
      securityContext: {runAsNonRoot: true, runAsUser: 185, fsGroup: 185, seccompProfile: {type: RuntimeDefault}}
      containers:
        - name: submit
          image: localhost/spark:dev
          args: ["/opt/spark/bin/spark-submit", "--master", "k8s://https://kubernetes.default.svc", "--deploy-mode",
            "cluster", "--properties-file", "/conf/spark-defaults.conf"$conf, "local:///opt/spark_job.py", "$name"]
          workingDir: /conf
          securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
          volumeMounts: [{name: conf, mountPath: /conf}, {name: tmp, mountPath: /tmp}]
      volumes:
        - name: tmp
          emptyDir: {}
        - name: conf
          projected:
            sources:
              - configMap: {name: spark-defaults}
              - configMap: {name: tuplewire-executor-template}
              - configMap: {name: tuplewire-driver-template}
END
}

ready() {
    run "${kube[@]}" rollout status statefulset/tuplewire-worker --timeout=300s
}

node_of() {
    if $print; then echo "NODE-OF-$1"; else "${kube[@]}" get pod "$1" --output 'jsonpath={.spec.nodeName}'; fi
}

# What this script has made goes in the end, and nothing else.
made=''
ended() {
    local code=$?
    if ((code)) && ! $print; then
        echo "cluster-check.sh: step $steps FAILED: $title" >&2
        [[ -z $made ]] || {
            "${kube[@]}" get pods,jobs,events || true
            "${kube[@]}" logs --all-containers --prefix --tail=20 --selector app.kubernetes.io/name=tuplewire || true
        } >&2
    fi
    $keep || case $made in
        cluster) run kind delete cluster --name "$name" || true ;;
        nodes) run deploy/cluster/down.sh || true ;;
        namespace) run "${all[@]}" delete namespace "$name" --wait=false || true ;;
    esac
    ! $print || printf '\nNothing was run.\n'
    ((code == 0)) || exit 1
}
trap ended EXIT

# --- the steps ----------------------------------------------------------------------------------------------------

if $own && ! $kind; then
    step "The image" "that it is built of this clone, without an engine"
    run make image
    run mkdir -p "$K8S_DIR/images"
    run tar -C build/image/oci -cf "$K8S_DIR/images/tuplewire.tar" .
    step "A cluster" "which Kubernetes this is"
    run deploy/cluster/build.sh
    run deploy/cluster/spark-image.sh
    made=nodes
    run deploy/cluster/up.sh
    run "${all[@]}" version
elif $own; then
    step "A cluster" "which Kubernetes this is"
    run_with kind create cluster --name "$name" --wait 180s --config - <<'END'
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
nodes: [{role: control-plane}, {role: worker}, {role: worker}]
END
    made=cluster
    run "${all[@]}" version
    step "The image" "that docker builds it of this clone, and that nodes take it"
    $build && run docker build --quiet --file deploy/Dockerfile --tag "$image" .
    run kind load docker-image "$image" --name "$name"
else
    step "The cluster" "which one this is: the context $context"
    run "${all[@]}" version
fi

step "Workers" "admission by the standard 'restricted', probes, names in DNS, workers that reach each other"
# Not `apply`: a namespace that is there already is somebody's.
run_with "${all[@]}" create --filename - <<END
apiVersion: v1
kind: Namespace
metadata: {name: $name, labels: {pod-security.kubernetes.io/enforce: restricted}}
END
made=${made:-namespace}
if $secure; then
    folder=FOLDER
    $print || folder=$(mktemp -d)
    certificate "$folder" ca cluster-check
    certificate "$folder" worker worker.tuplewire
    certificate "$folder" client program.tuplewire
    for each in worker client; do
        secret=tuplewire-tls
        [[ $each == worker ]] || secret=tuplewire-client-tls
        run "${kube[@]}" create secret generic $secret "--from-file=tls.crt=$folder/$each.crt" \
            "--from-file=tls.key=$folder/$each.key" "--from-file=ca.crt=$folder/ca.crt"
    done
    $print || {
        echo "check $(openssl rand -hex 32)" >"$folder/tuplewire-token"
        echo "check/driver $(openssl rand -hex 32)" >"$folder/tuplewire-driver-token"
        cat "$folder"/tuplewire-{driver-token,token} >"$folder/tuplewire-worker-tokens"
    }
    for each in tuplewire-token tuplewire-driver-token tuplewire-worker-tokens; do
        run "${kube[@]}" create secret generic $each "--from-file=token=$folder/$each"
    done
    $print || rm -r "$folder"
fi
if $chart; then
    run "${helm[@]}" install tuplewire deploy/helm/tuplewire --kube-context "$context" --namespace "$name" "${values[@]}"
else
    apply_from helm template tuplewire deploy/helm/tuplewire "${values[@]}"
fi
ready

step "A worker beside an executor" \
    "that it starts before the program and ends after it, and that another user of its group reaches its socket"
through=("${kubectl[@]}" patch --local --filename - --type json --output yaml --patch '[
  {"op": "add", "path": "/spec/restartPolicy", "value": "Never"},
  {"op": "add", "path": "/spec/containers/0/image", "value": "'"$image"'"},
  {"op": "add", "path": "/spec/containers/0/args", "value": ["status", "--json"]}]')
apply_from "${kube[@]}" get configmap tuplewire-executor-template \
    --output 'go-template={{index .data "executor-template.yaml"}}'
through=(cat)
run "${kube[@]}" wait '--for=jsonpath={.status.phase}=Succeeded' pod/tuplewire-executor --timeout=180s
run "${kube[@]}" logs tuplewire-executor --container spark-kubernetes-executor
run "${kube[@]}" delete pod tuplewire-executor

step "A stranger" "that the network lets a pod with the label tuplewire/program in at 6700, and no other one anywhere"
run "${kube[@]}" create configmap cluster-job --from-file deploy/cluster_job.py
label='{tuplewire/program: "true"}'
program=(python /job/cluster_job.py)
near=tuplewire-worker-0.tuplewire-workers
reach() {
    job "$1" "$2" "${program[@]}" reach $near "$3" 9464=closed | run_with "${apply[@]}"
    run "${kube[@]}" wait --for=condition=Complete "job/$1" --timeout=120s
    run "${kube[@]}" logs "job/$1"
}
reach friend "$label" 6700=open
reach stranger '{app: stranger}' 6700=closed

step "A job" "messages by way of worker 0 to worker 1, which go on through the steps that follow"
job recv "$label" "${program[@]}" recv tuplewire-worker-1.tuplewire-workers:6700 4 | run_with "${apply[@]}"
job send "$label" "${program[@]}" send $near:6700 4 /tmp/stop |
    run_with "${apply[@]}"
for each in recv send; do
    run "${kube[@]}" wait --for=condition=Ready pod --selector "job-name=$each" --timeout=120s
done

step "A drain" "that a worker under load ends with 0, and that its tasks wait for the kubelet to start it again"
# The container may end before kubectl has its answer.
inside tuplewire-worker-1 drain || true
exited='{.status.containerStatuses[0].lastState.terminated.exitCode}'
run "${kube[@]}" wait "--for=jsonpath=$exited=0" pod/tuplewire-worker-1 --timeout=120s
ready

step "A roll" "SIGTERM and the grace period: each worker is replaced under load, one after the other"
run "${kube[@]}" rollout restart statefulset/tuplewire-worker
ready

if $own; then
    step "A node" "that a worker's node is drained under load, and the worker comes back on another, at its name"
    node=$(node_of tuplewire-worker-1)
    [[ $node != "$home" ]] || node=$(node_of tuplewire-worker-0)  # the job is at home
    [[ $node != "$home" ]] || { echo "both workers are on $home" >&2 && exit 1; }
    run "${kube[@]}" drain "$node" --ignore-daemonsets --delete-emptydir-data --timeout=180s
    ready
    run "${kube[@]}" uncordon "$node"
fi

if $own && ! $kind; then
    step "Spark" "in cluster mode: a shuffle through the policy, a topology, an exactly-once write through a membership"
    run_with "${apply[@]}" <<'END'
apiVersion: v1
kind: ServiceAccount
metadata: {name: spark}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: spark}
rules:
  - apiGroups: ["", networking.k8s.io]
    resources: [pods, services, configmaps, persistentvolumeclaims, networkpolicies]
    verbs: [get, list, watch, create, update, patch, delete, deletecollection]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: spark}
subjects: [{kind: ServiceAccount, name: spark}]
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: spark}
END
    run "${kube[@]}" create configmap spark-defaults --from-file deploy/spark-defaults.conf
    for each in topology sink; do
        spark_job "$each" | run_with "${apply[@]}"
        run "${kube[@]}" wait --for=condition=Complete "job/submit-$each" --timeout=300s
        run "${kube[@]}" wait '--for=jsonpath={.status.phase}=Succeeded' "pod/spark-$each" --timeout=10s
    done
fi

step "An upgrade" "that workers take other tasks under a new version, without a restart"
if $chart; then
    run "${helm[@]}" upgrade tuplewire deploy/helm/tuplewire --kube-context "$context" --namespace "$name" \
        "${values[@]}" --set assignment.tasksPerWorker=3
else
    apply_from helm template tuplewire deploy/helm/tuplewire "${values[@]}" \
        --set assignment.tasksPerWorker=3,assignment.version=2
fi
job upgraded "$label" "${program[@]}" holds tuplewire-worker-1.tuplewire-workers:6700 3 | run_with "${apply[@]}"
run "${kube[@]}" wait --for=condition=Complete job/upgraded --timeout=200s

step "The end" "that every message has arrived, once and in order, and that the books balance"
run "${kube[@]}" exec job/send -- python -c 'open("/tmp/stop", "w")'
run "${kube[@]}" wait --for=condition=Complete job/send job/recv --timeout=300s
run "${kube[@]}" logs job/send
run "${kube[@]}" logs job/recv
for each in 0 1; do
    inside "tuplewire-worker-$each" status
done
$print || printf '\nThe %d steps are through.\n' "$steps"
