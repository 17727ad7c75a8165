#!/usr/bin/env bash
# Check Tuplewire in a real cluster, step by step. --help says more.
set -euo pipefail
shopt -s inherit_errexit
cd "${0%/*}/.."

usage() {
    cat <<'END'
Check Tuplewire in a real cluster, step by step; each step says what it shows.

  deploy/cluster-check.sh [--chart] [--keep] [--print]
  deploy/cluster-check.sh --yes --image IMAGE [--chart] [--keep] [--print]

  Without --yes: in a cluster of its own with three nodes, tuplewire-check, made by kind and removed in the end.
  --yes          in the cluster of the current kubectl context, in a namespace of its own, tuplewire-check. No node
                 is drained there.
  --image IMAGE  what workers run, with its tag. With --yes: one that the cluster has or can pull; into k3s comes one
                 by docker save IMAGE | k3s ctr images import -. Else one that docker has; by default it is built.
  --chart        install the Helm chart, in place of applying what it renders; both without certificates
  --keep         leave cluster or namespace as they are in the end
  --print        print what would be run, and run nothing

Needs kubectl 1.29 or newer and helm 3.14 or newer; kind 0.24 or newer and docker, without --yes.
Exit codes: 0 all was shown; 1 a step failed, which is named; 64 wrong usage; 69 a tool is missing, nothing was run.
END
}

wrong() {
    echo "cluster-check.sh: $1; see --help" >&2
    exit 64
}

own=true image='' chart=false keep=false print=false
while (($#)); do
    case $1 in
        -h | --help) usage && exit ;;
        --yes) own=false ;;
        --chart) chart=true ;;
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
[[ -z $image || ${image##*/} == *:* ]] || wrong "--image needs a tag"
build=false
[[ -n $image ]] || build=true image=localhost/tuplewire:dev

# --- what must be here ------------------------------------------------------------------------------------------

name=tuplewire-check context=CONTEXT
missing=()
need() {
    command -v "$1" >/dev/null || missing+=("$1 ($2)")
}
need kubectl "1.29 or newer"
need helm "3.14 or newer"
if $own; then
    context=kind-$name
    need kind "0.24 or newer, for a cluster of its own; or --yes for the current context"
    need docker "for kind"
    ! command -v docker >/dev/null || $print || docker info >/dev/null 2>&1 || missing+=("an engine of docker that answers")
elif ! $print && command -v kubectl >/dev/null; then
    context=$(kubectl config current-context 2>/dev/null) || missing+=("a current kubectl context")
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

kube=(kubectl --context "$context" --namespace "$name")
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
    $own && echo "      nodeName: tuplewire-check-control-plane"
    cat <<END
      securityContext: {runAsNonRoot: true, runAsUser: 185, seccompProfile: {type: RuntimeDefault}}
      containers:
        - name: program
          image: $image
          command: [${words%, }]
          securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
          volumeMounts: [{name: job, mountPath: /job}, {name: tmp, mountPath: /tmp}]
      volumes: [{name: job, configMap: {name: cluster-job}}, {name: tmp, emptyDir: {}}]
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
    case $made in
        cluster) $keep || run kind delete cluster --name "$name" || true ;;
        namespace) $keep || run kubectl --context "$context" delete namespace "$name" --wait=false || true ;;
    esac
    ! $print || printf '\nNothing was run.\n'
    ((code == 0)) || exit 1
}
trap ended EXIT

# --- the steps ----------------------------------------------------------------------------------------------------

if $own; then
    step "A cluster" "which Kubernetes this is"
    run_with kind create cluster --name "$name" --wait 180s --config - <<'END'
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
nodes: [{role: control-plane}, {role: worker}, {role: worker}]
END
    made=cluster
    run kubectl --context "$context" version
    step "The image" "that docker builds it of this clone, and that nodes take it"
    $build && run docker build --quiet --file deploy/Dockerfile --tag "$image" .
    run kind load docker-image "$image" --name "$name"
else
    step "The cluster" "which one this is: the context $context"
    run kubectl --context "$context" version
fi

step "Workers" "admission by the standard 'restricted', probes, names in DNS, workers that reach each other"
# Not `apply`: a namespace that is there already is somebody's.
run_with kubectl --context "$context" create --filename - <<END
apiVersion: v1
kind: Namespace
metadata: {name: $name, labels: {pod-security.kubernetes.io/enforce: restricted}}
END
made=${made:-namespace}
if $chart; then
    run helm install tuplewire deploy/helm/tuplewire --kube-context "$context" --namespace "$name" "${values[@]}"
else
    apply_from helm template tuplewire deploy/helm/tuplewire "${values[@]}"
fi
ready

step "A worker beside an executor" \
    "that it starts before the program and ends after it, and that another user of its group reaches its socket"
through=(kubectl patch --local --filename - --type json --output yaml --patch '[
  {"op": "add", "path": "/spec/restartPolicy", "value": "Never"},
  {"op": "add", "path": "/spec/containers/0/image", "value": "'"$image"'"},
  {"op": "add", "path": "/spec/containers/0/args", "value": ["status", "--json"]}]')
apply_from "${kube[@]}" get configmap tuplewire-executor-template \
    --output 'go-template={{index .data "executor-template.yaml"}}'
run "${kube[@]}" wait '--for=jsonpath={.status.phase}=Succeeded' pod/tuplewire-executor --timeout=180s
run "${kube[@]}" logs tuplewire-executor --container spark-kubernetes-executor
run "${kube[@]}" delete pod tuplewire-executor

step "A stranger" "that the network lets a pod with the label tuplewire/program in at 6700, and no other one anywhere"
run "${kube[@]}" create configmap cluster-job --from-file deploy/cluster_job.py
label='{tuplewire/program: "true"}'
program=(python /job/cluster_job.py)
near=tuplewire-worker-0.tuplewire-workers
job friend "$label" "${program[@]}" reach $near 6700=open 9464=closed | run_with "${apply[@]}"
job stranger '{app: stranger}' "${program[@]}" reach $near 6700=closed 9464=closed | run_with "${apply[@]}"
for each in friend stranger; do
    run "${kube[@]}" wait --for=condition=Complete "job/$each" --timeout=120s
    run "${kube[@]}" logs "job/$each"
done

step "A job" "messages by way of worker 0 to worker 1, which go on through the steps that follow"
job recv "$label" "${program[@]}" recv tuplewire-worker-1.tuplewire-workers:6700 4 | run_with "${apply[@]}"
job send "$label" "${program[@]}" send $near:6700 4 /tmp/stop |
    run_with "${apply[@]}"
for each in recv send; do
    run "${kube[@]}" wait --for=condition=Ready pod --selector "job-name=$each" --timeout=120s
done

step "A drain" "that a worker under load ends with 0, and that its tasks wait for the kubelet to start it again"
# The container may end before kubectl has its answer.
run "${kube[@]}" exec tuplewire-worker-1 -- tuplewire drain 127.0.0.1:6700 || true
exited='{.status.containerStatuses[0].lastState.terminated.exitCode}'
run "${kube[@]}" wait "--for=jsonpath=$exited=0" pod/tuplewire-worker-1 --timeout=120s
ready

step "A roll" "SIGTERM and the grace period: each worker is replaced under load, one after the other"
run "${kube[@]}" rollout restart statefulset/tuplewire-worker
ready

if $own; then
    step "A node" "that a worker's node is drained under load, and the worker comes back on another, at its name"
    node=$(node_of tuplewire-worker-1)
    if [[ $node == "$(node_of tuplewire-worker-0)" ]]; then
        echo "NOT SHOWN: both workers are on $node, and would go at once"
    else
        run "${kube[@]}" drain "$node" --ignore-daemonsets --delete-emptydir-data --timeout=180s
        ready
        run "${kube[@]}" uncordon "$node"
    fi
fi

step "The end" "that every message has arrived, once and in order, and that the books balance"
run "${kube[@]}" exec job/send -- python -c 'open("/tmp/stop", "w")'
run "${kube[@]}" wait --for=condition=Complete job/send job/recv --timeout=300s
run "${kube[@]}" logs job/send
run "${kube[@]}" logs job/recv
for each in 0 1; do
    run "${kube[@]}" exec "tuplewire-worker-$each" -- tuplewire status 127.0.0.1:6700
done
$print || printf '\nThe %d steps are through.\n' "$steps"
