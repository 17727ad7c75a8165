#!/usr/bin/env bash
# Check Tuplewire in a real cluster, step by step. --help says more.
set -euo pipefail
shopt -s inherit_errexit
cd "${0%/*}/.."

usage() {
    cat <<'END'
Check Tuplewire in a real cluster, step by step; each step says what it shows.

  deploy/cluster-check.sh [--kind] [--only plain|secure] [--keep] [--print]
  deploy/cluster-check.sh --yes --image IMAGE [--only plain|secure] [--keep] [--print]

  There are two rounds, each in a namespace of its own: `plain` applies manifests, `secure` installs the Helm chart
  with certificates, tokens and permissions.
  By default: in a cluster of its own with two nodes, built from Go modules and Debian packages by deploy/cluster, as
  root on Debian. The first build takes 20 minutes of CPU; K8S_DIR (~/.cache/tuplewire-k8s) keeps it.
  --kind         in a cluster of its own with three nodes, made by kind. No Spark, no IPv6
  --yes          in the cluster of the current kubectl context, in the namespaces tuplewire-plain and -secure. No
                 node is drained there, and nothing is installed for the whole cluster, so nothing scales by itself.
  --image IMAGE  what workers run, with its tag. With --yes: one that the cluster has or can pull; into k3s comes one
                 by docker save IMAGE | k3s ctr images import -. With --kind: one that docker has; by default it is
                 built. It has to be made of this clone.
  --only ROUND   that round alone
  --keep         leave cluster or namespaces as they are in the end
  --print        print what would be run, and run nothing

Example: deploy/cluster-check.sh --only secure --keep

Needs helm 3.14 or newer and kubectl 1.29 or newer, with --yes or --kind; kind 0.24 or newer and docker, with --kind;
Go, with neither.
Exit codes: 0 all was shown; 1 a step failed, which is named; 64 wrong usage; 69 a tool is missing, nothing was run.
END
}

wrong() {
    echo "cluster-check.sh: $1; see --help" >&2
    exit 64
}

own=true kind=false image='' rounds=(plain secure) keep=false print=false
while (($#)); do
    case $1 in
        -h | --help) usage && exit ;;
        --yes) own=false ;;
        --kind) kind=true ;;
        --keep) keep=true ;;
        --print) print=true ;;
        --image | --only)
            (($# > 1)) || wrong "$1 needs a value"
            if [[ $1 == --image ]]; then image=$2; else rounds=("$2"); fi
            shift
            ;;
        *) wrong "unknown argument $1" ;;
    esac
    shift
done
[[ ${rounds[0]} == plain || ${rounds[0]} == secure ]] || wrong "--only is plain or secure, not ${rounds[0]}"
$own || [[ -n $image ]] || wrong "--yes needs --image, one that the cluster can pull or has"
! $own || $kind || [[ -z $image ]] || wrong "--image is for --yes and --kind: the image is built from this clone"
[[ -z $image || ${image##*/} == *:* ]] || wrong "--image needs a tag"
build=false
[[ -n $image ]] || build=true image=localhost/tuplewire:dev
nodes=false  # a cluster of deploy/cluster
! $own || $kind || nodes=true

# --- what must be here ------------------------------------------------------------------------------------------

name=tuplewire-check context=CONTEXT
missing=()
need() {
    command -v "$1" >/dev/null || missing+=("$1 ($2)")
}
PATH=$PATH:$PWD/build/bin:$PWD/build/go/bin  # of make deploy-tools
need openssl "3 or newer, for certificates"
need python3 "3.11 or newer"
kubectl=(kubectl) helm=(helm) home=$name-control-plane
if $nodes; then
    # shellcheck source=cluster/env.sh
    source deploy/cluster/env.sh
    context=local home=node1
    # The cluster's network is in a namespace of its own.
    kubectl=(nsenter "--net=/run/netns/$PREFIX-1" kubectl) helm=(nsenter "--net=/run/netns/$PREFIX-1" helm)
    need go "to build Kubernetes"
    need apt-get "Debian, to install containerd and runc"
    $print || ((EUID == 0)) || missing+=("root, to start nodes")
else
    need helm "3.14 or newer: make deploy-tools"
    need kubectl "1.29 or newer"
fi
if $kind; then
    context=kind-$name
    need kind "0.24 or newer, for a cluster of its own; or --yes for the current context"
    need docker "for kind"
    ! command -v docker >/dev/null || $print || docker info >/dev/null 2>&1 || missing+=("an engine of docker that answers")
elif ! $own && ! $print && command -v kubectl >/dev/null; then
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
    title="$round: $1"
    steps=$((steps + 1))
    printf '\n== %d. %s\n   shows: %s\n' "$steps" "$title" "$2"
}

fail() {
    echo "cluster-check.sh: $1" >&2
    exit 1
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
# Run a command until its output has a text: SECONDS TEXT COMMAND...
until_it_says() {
    local end=$((SECONDS + $1)) text=$2
    shift 2
    printf '$'
    printf ' %q' "$@"
    printf '  # until it says: %s\n' "$text"
    $print || until "$@" 2>&1 | grep -q -- "$text"; do
        ((SECONDS < end)) || fail "it never said: $text"
        sleep 1
    done
}
# What a command prints, or a word in its place where nothing is run: WORD COMMAND...
output_of() {
    if $print; then echo "$1"; else "${@:2}"; fi
}

# shellcheck source=cluster/programs.sh
source deploy/cluster/programs.sh
# shellcheck source=cluster/steps.sh
source deploy/cluster/steps.sh
all=("${kubectl[@]}" --context "$context") kube=("${all[@]}")
folder=FOLDER  # the folder where the guide's commands run; not this clone

# Which cluster namespace and flags the functions below use, from here on.
begin_round() {
    round=$1 secure=false
    $print || {
        folder=$(mktemp -d)
        ln -s "$PWD/deploy" "$folder/deploy"
        mkdir "$folder/conf"
    }
    space=tuplewire-$round
    kube=("${all[@]}" --namespace "$space")
    apply=("${kube[@]}" apply --filename -)
    chart=("${helm[@]}" --kube-context "$context" --namespace "$space")
    values=(--values deploy/helm/dev.yaml --set-string "image.repository=${image%:*},image.tag=${image##*:}"
        --set workers.resources.requests.cpu=100m)
    [[ $round == plain ]] || {
        secure=true
        values+=(--set secure=true --set-file permissions=deploy/cluster/permissions.toml)
    }
}

# Apply the output of a command.
apply_from() {
    printf '$'
    printf ' %q' "$@"
    echo " | ${apply[*]}"
    $print || "$@" | "${apply[@]}"
}

# Run commands of docs/how-to/deploy.md as they are there: from the line that begins with TEXT to the end of its block.
guide() {
    local commands='' line found=false
    while IFS= read -r line; do
        [[ $line != '```'* ]] || found=false
        [[ $line != "$1"* ]] || found=true
        ! $found || commands+=$line$'\n'
    done <docs/how-to/deploy.md
    [[ -n $commands ]] || fail "docs/how-to/deploy.md has no command that begins with: $1"
    printf '$ %s' "$commands"
    [[ $commands != 'helm upgrade --install'* ]] || echo "# helm upgrade --install ... ${values[*]}"
    $print || (
        cd "$folder"
        # In this check's cluster and namespace, with its image and sizes. Nothing is removed before it runs.
        # shellcheck disable=SC2329  # eval calls it
        kubectl() {
            case "$*" in
                'apply -f -') command "${kube[@]}" "$@" ;;
                apply*) sed "s|registry.example.com/tuplewire:[^\"]*|$image|" "$3" | command "${kube[@]}" apply --filename - ;;
                *--web) exec "${kube[@]}" "$@" >page-link ;;  # in a shell of its own, by &
                port-forward*) read_page "$@" ;;
                *) command "${kube[@]}" "$@" ;;
            esac
        }
        # shellcheck disable=SC2329
        helm() {
            case "$1 $2" in
                'upgrade --install') command "${chart[@]}" "$@" "${values[@]}" ;;
                *) command "${chart[@]}" "$@" ;;
            esac
            case $1 in upgrade | rollback)
                command "${kube[@]}" rollout status statefulset/tuplewire-worker --timeout=300s ;;
            esac
        }
        export SPARK_HOME=$folder
        eval "$commands"
    )
}
# Read what the page of `tuplewire top --web` shows, through its port, until both workers are there: port-forward POD PORT.
read_page() {
    local end=$((SECONDS + 60)) found=''
    exec "${kube[@]}" "$@" &
    until found=$("${kubectl[@]::${#kubectl[@]}-1}" python3 -c '
import json, urllib.request
url, token = open("page-link").read().split()[1].split("/#token=")
request = urllib.request.Request(url + "/live.json", headers={"Authorization": "Bearer " + token})
print(*(each["state"] for each in json.load(urllib.request.urlopen(request))["workers"]))' 2>&1) && [[ $found == "ready ready" ]]; do
        ((SECONDS < end)) || fail "the page does not show two workers that are ready: $found"
        sleep 1
    done
    echo "the page shows two workers: $found"
    # shellcheck disable=SC2046
    kill $(jobs -p) || true  # one of them may have ended
}

# What a worker's own command line says in its pod: POD WORD...
inside() {
    run "${kube[@]}" exec "$1" -- tuplewire "${@:2}"
}

ready() {
    run "${kube[@]}" rollout status statefulset/tuplewire-worker --timeout=300s
}

# Wait for the end of a job, and print what it says: NAME SECONDS.
completed() {
    run "${kube[@]}" wait --for=condition=Complete "job/$1" "--timeout=$2s"
    run "${kube[@]}" logs "job/$1"
}

# The digest of Tuplewire's Python files, as a pod has them: POD. It must be this clone's.
runs_this_commit() {
    local found
    found=$(output_of CODE "${kube[@]}" exec --stdin "$1" -- python - <deploy/cluster/code_digest.py)
    [[ $found == "$code" ]] || fail "$1 does not run this commit: its code is $found, not $code"
}

# What this script has made goes in the end, and nothing else.
made=''
ended() {
    local exit_code=$?
    if ((exit_code)) && ! $print; then
        echo "cluster-check.sh: step $steps FAILED: $title" >&2
        [[ -z $made ]] || {
            "${kube[@]}" get pods,jobs,events || true
            "${kube[@]}" logs --all-containers --prefix --tail=20 --selector app.kubernetes.io/name=tuplewire || true
        } >&2
    fi
    $keep || case $made in
        cluster) run kind delete cluster --name "$name" || true ;;
        nodes) run deploy/cluster/down.sh || true ;;
        tuplewire-*) run "${all[@]}" delete namespace "$made" --wait=false || true ;;
    esac
    ! $print || printf '\nNothing was run.\n'
    ((exit_code == 0)) || exit 1
}
trap ended EXIT

# --- the cluster --------------------------------------------------------------------------------------------------

start_cluster() {
    round=cluster
    if $nodes; then
        step "The image" "that it is built of this clone, without an engine"
        run deploy/cluster/build.sh
        run make image ARGS=  # not those of `make cluster-check`
        run mkdir -p "$K8S_DIR/images"
        run rm -f "$K8S_DIR/images/tuplewire.tar"
        run skopeo copy --quiet oci:build/image/oci:dev "docker-archive:$K8S_DIR/images/tuplewire.tar:$image"
        run deploy/cluster/spark-image.sh
        step "The nodes" "which Kubernetes this is"
        made=nodes
        run deploy/cluster/up.sh
    elif $kind; then
        step "The nodes" "which Kubernetes this is"
        run_with kind create cluster --name "$name" --wait 180s --config - <<'END'
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
nodes: [{role: control-plane}, {role: worker}, {role: worker}]
END
        made=cluster
        step "The image" "that docker builds it of this clone, and that nodes take it"
        $build && run docker build --quiet --file deploy/Dockerfile --tag "$image" .
        run kind load docker-image "$image" --name "$name"
    else
        step "The nodes" "which Kubernetes this is: the context $context"
    fi
    run "${all[@]}" version
    code=$(PYTHONPATH=clients:service:topology output_of CODE python3 deploy/cluster/code_digest.py)
}

# --- all of it ----------------------------------------------------------------------------------------------------

start_cluster
for each in "${rounds[@]}"; do
    begin_round "$each"
    install
    ! $secure || beside_an_executor
    ! $secure || strangers
    start_flow
    receive_elsewhere
    watch_it
    ! $secure || drain_and_roll
    delete_a_pod
    if $nodes; then
        prepare_spark
        spark_topology
        spark_team
        ! $secure || spark_sink
        ! $secure || spark_stream
    fi
    upgrade
    end_flow
    if $secure; then
        change_it
        ! $own || scale
        remove_it
    else
        outgrow_memory
        follow_the_guide
    fi
    $print || rm -r "$folder"
    # Its CPU is needed for the next round.
    $keep || run "${all[@]}" delete namespace "$space" --wait=false
    [[ $made != tuplewire-* ]] || made=''
done
$print || printf '\nThe %d steps are through.\n' "$steps"
