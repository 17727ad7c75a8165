# shellcheck shell=bash disable=SC2154,SC2034
# The steps of cluster-check.sh, in their order; source it. Each is a function that says what it shows, and runs
# commands. Uses what cluster-check.sh defines: step, run, kube, apply, chart, values and so on.

make_secrets() {
    certificate "$folder" ca cluster-check
    certificate "$folder" tls worker.tuplewire
    certificate "$folder" program program.tuplewire
    guide 'secret() {'
}

install() {
    step "Workers" "admission by the standard 'restricted', probes, names in DNS, workers that reach each other"
    # Not `apply`: a namespace that is there already is somebody's.
    run_with "${all[@]}" create --filename - <<END
apiVersion: v1
kind: Namespace
metadata: {name: $space, labels: {pod-security.kubernetes.io/enforce: restricted}}
END
    made=${made:-$space}
    if $secure; then
        make_secrets
        guide 'helm upgrade --install tuplewire deploy/helm/tuplewire --set'
    else
        apply_from helm template tuplewire deploy/helm/tuplewire "${values[@]}"
        ready
    fi
    guide 'for role in executor driver'
    run "${kube[@]}" create configmap cluster-job --from-file deploy/cluster_job.py \
        --from-file deploy/cluster/scaling_job.py
}

beside_an_executor() {
    step "A worker beside an executor" \
        "that it starts before the program and ends after it, and that another user of its group reaches its socket"
    apply_from "${kubectl[@]}" patch --local --filename "$folder/executor-template.yaml" --type json --output yaml --patch '[
  {"op": "add", "path": "/spec/restartPolicy", "value": "Never"},
  {"op": "add", "path": "/spec/containers/0/image", "value": "'"$image"'"},
  {"op": "add", "path": "/spec/containers/0/args", "value": ["status", "--json"]}]'
    run "${kube[@]}" wait '--for=jsonpath={.status.phase}=Succeeded' pod/tuplewire-executor --timeout=180s
    run "${kube[@]}" logs tuplewire-executor --container spark-kubernetes-executor
    run "${kube[@]}" delete pod tuplewire-executor
}

label='{tuplewire/program: "true"}'
program=(python /job/cluster_job.py)
near=tuplewire-worker-0.tuplewire-workers far=tuplewire-worker-1.tuplewire-workers

reach() {
    job "$1" "$2" "${program[@]}" reach $near "$3" 9464=closed | run_with "${apply[@]}"
    completed "$1" 120
}
strangers() {
    step "A stranger" "that the network lets a pod with the label tuplewire/program in at 6700, and no other one anywhere"
    reach friend "$label" 6700=open
    reach stranger '{app: stranger}' 6700=closed
    if $nodes && $secure; then
        step "A stranger over IPv6" "that a certificate and a token are needed where no policy keeps anyone out"
        local ip
        ip=$(output_of ADDRESS "${kube[@]}" get pod tuplewire-worker-0 --output 'jsonpath={.status.podIPs[1].ip}')
        job stranger-6 '{app: stranger}' "${program[@]}" refused "[$ip]:6700" | run_with "${apply[@]}"
        completed stranger-6 120
    fi
}

start_flow() {
    step "A job" "messages by way of worker 0 to worker 1, which go on through the steps that follow"
    job recv "$label" "${program[@]}" recv $far:6700 4 | run_with "${apply[@]}"
    job send "$label" "${program[@]}" send $near:6700 4 /tmp/stop | run_with "${apply[@]}"
    local each
    for each in recv send; do
        run "${kube[@]}" wait --for=condition=Ready pod --selector "job-name=$each" --timeout=120s
    done
}

receive_elsewhere() {
    step "A task elsewhere" "that a program receives the messages of worker 1 by way of worker 0, with its own credentials"
    job elsewhere "$label" "${program[@]}" elsewhere $near:6700 5 | run_with "${apply[@]}"
    completed elsewhere 120
}

watch_it() {
    step "A page" "that a browser elsewhere sees the whole cluster, through a port-forward"
    guide 'kubectl exec tuplewire-worker-0 -- tuplewire top'
}

drain_and_roll() {
    step "A drain" "that a worker under load ends with 0, and that its tasks wait for the kubelet to start it again"
    # The container may end before kubectl has its answer.
    inside tuplewire-worker-1 drain || true
    local exited='{.status.containerStatuses[0].lastState.terminated.exitCode}' node
    run "${kube[@]}" wait "--for=jsonpath=$exited=0" pod/tuplewire-worker-1 --timeout=120s
    ready
    step "A roll" "SIGTERM and the grace period: each worker is replaced under load, one after the other"
    run "${kube[@]}" rollout restart statefulset/tuplewire-worker
    ready
    $own || return 0
    step "A node" "that a worker's node is drained under load, and the worker comes back on another, at its name"
    node=$(output_of NODE node_of tuplewire-worker-1)
    [[ $node != "$home" ]] || node=$(output_of NODE node_of tuplewire-worker-0)  # the job is at home
    [[ $node != "$home" ]] || fail "both workers are on $home"
    run "${kube[@]}" drain "$node" --ignore-daemonsets --delete-emptydir-data --timeout=180s
    ready
    run "${kube[@]}" uncordon "$node"
}
node_of() { "${kube[@]}" get pod "$1" --output 'jsonpath={.spec.nodeName}'; }

delete_a_pod() {
    step "A pod" "that a worker whose pod is deleted under load comes back with its tasks, and nothing is lost"
    run "${kube[@]}" delete pod tuplewire-worker-1
    ready
}

# A job of spark_job.py: NAME MODE.
start_spark() { spark_job "$1" "$2" | run_with "${apply[@]}"; }
spark_passed() {
    completed "submit-$1" 300
    local pod=pod/spark-$1
    [[ $2 == cluster ]] || pod=job/submit-$1
    until_it_says 10 "passed: $1, code $code" "${kube[@]}" logs "$pod"
}
prepare_spark() {
    spark_account | run_with "${apply[@]}"
    # A Team has to be on two nodes, and the scheduler sometimes puts both executors on one.
    run sed --in-place '/^spec:/a\  topologySpreadConstraints: [{maxSkew: 1, topologyKey: kubernetes.io/hostname,\
    whenUnsatisfiable: DoNotSchedule, nodeTaintsPolicy: Honor, labelSelector: {matchLabels: {spark-role: executor}}}]' \
        "$folder/executor-template.yaml"
    run "${kube[@]}" create configmap spark-conf --from-file "$folder/conf/spark-defaults.conf" \
        --from-file "$folder/executor-template.yaml" --from-file "$folder/driver-template.yaml"
}
spark_topology() {
    step "Spark in cluster mode" "a shuffle through the policy, and a topology in the executors"
    start_spark topology cluster
    spark_passed topology cluster
}
spark_team() {
    step "A Team" "four tasks of a barrier stage, on two nodes, that sum arrays together"
    start_spark team cluster
    until_it_says 180 "the team is at work" "${kube[@]}" logs pod/spark-team
    local found
    found=$(output_of 'NODE-1 NODE-2' "${kube[@]}" get pod --selector spark-role=executor \
        --output 'jsonpath={.items[*].spec.nodeName}')
    [[ $found =~ ^([^ ]+)\ ([^ ]+)$ && ${BASH_REMATCH[1]} != "${BASH_REMATCH[2]}" ]] || fail "the team is on: $found"
    spark_passed team cluster
}
spark_sink() {
    step "Spark in client mode" "a shuffle through the policy, and an exactly-once write through a membership"
    start_spark sink client
    spark_passed sink client
}
spark_stream() {
    step "A stream" "that a query loses nothing while an executor's pod is deleted"
    start_spark stream cluster
    until_it_says 180 "numbers are being sent" "${kube[@]}" logs pod/spark-stream
    local pod
    pod=$(output_of pod/EXECUTOR "${kube[@]}" get pod --selector spark-role=executor --output name)
    run "${kube[@]}" delete "${pod%%$'\n'*}"
    spark_passed stream cluster
}

upgrade() {
    step "An upgrade" "that workers take other tasks under a new version, without a restart"
    if $secure; then
        run "${chart[@]}" upgrade tuplewire deploy/helm/tuplewire --reset-then-reuse-values --set assignment.tasksPerWorker=3
    else
        apply_from helm template tuplewire deploy/helm/tuplewire "${values[@]}" \
            --set assignment.tasksPerWorker=3,assignment.version=2
    fi
    job upgraded "$label" "${program[@]}" holds $far:6700 3 | run_with "${apply[@]}"
    completed upgraded 200
}

end_flow() {
    step "The end" "that every message has arrived, once and in order, that the books balance, and whose code it was"
    run "${kube[@]}" exec job/send -- python -c 'open("/tmp/stop", "w")'
    completed send 300
    completed recv 300
    local each
    for each in 0 1; do
        inside "tuplewire-worker-$each" status
        runs_this_commit "tuplewire-worker-$each"
    done
}

outgrow_memory() {
    step "A memory limit" "that a worker which the kernel ends comes back, and that its sender says how much died with it"
    apply_from helm template tuplewire deploy/helm/tuplewire "${values[@]}" \
        --set assignment.version=3,settings.receive_queue_bytes=1073741824
    ready
    job outgrow "$label" "${program[@]}" outgrow $near:6700 0 | run_with "${apply[@]}"
    completed outgrow 200
    run "${kube[@]}" wait pod/tuplewire-worker-0 --timeout=10s \
        '--for=jsonpath={.status.containerStatuses[0].lastState.terminated.reason}=OOMKilled'
}

change_it() {
    step "The release" "that it changes, and goes back to what it was"
    if $own; then
        monitor_kinds | run_with "${all[@]}" apply --filename -
        guide "helm upgrade tuplewire deploy/helm/tuplewire --reset-then-reuse-values \\"
    fi
    guide 'helm upgrade tuplewire deploy/helm/tuplewire --reset-then-reuse-values --set'
}

scale() {
    step "Two memberships" "that they assign the tasks to the workers without harm to each other"
    run "${chart[@]}" upgrade tuplewire deploy/helm/tuplewire --reset-then-reuse-values \
        --set membership.enabled=true,membership.tasks=0-7,autoscaling.kind=hpa,autoscaling.minReplicas=2,autoscaling.maxReplicas=3
    ready
    run "${kube[@]}" scale deployment/tuplewire-membership --replicas=2
    run "${kube[@]}" rollout status deployment/tuplewire-membership --timeout=120s

    step "Autoscaling" "full queues within the memory limit, a third worker by a custom metric, which drains before it goes"
    local folder=FOLDER restarts pod
    $print || folder=$(mktemp -d)
    certificate "$folder" ca metrics
    certificate "$folder" tls metrics-api.monitoring.svc
    local -a there=("${all[@]}" --namespace monitoring)
    run "${all[@]}" create namespace monitoring
    run "${there[@]}" create secret generic metrics-api "--from-file=$folder/tls.crt" "--from-file=$folder/tls.key"
    $print || rm -r "$folder"
    run "${there[@]}" create configmap metrics-api --from-file deploy/cluster/metrics_api.py
    metrics_api | run_with "${there[@]}" apply --filename -
    run "${all[@]}" wait --for=condition=Available apiservice/v1beta2.custom.metrics.k8s.io --timeout=120s
    # Five minutes of quiet before a worker goes would be too long here.
    run "${kube[@]}" patch hpa tuplewire-worker --type merge --patch \
        '{"spec": {"behavior": {"scaleUp": {"stabilizationWindowSeconds": 0}, "scaleDown": {"stabilizationWindowSeconds": 0}}}}'
    job scaling "$label" python /job/scaling_job.py tuplewire-workers 8 6000 | run_with "${apply[@]}"
    until_it_says 240 "^full" "${kube[@]}" logs job/scaling
    for pod in tuplewire-worker-0 tuplewire-worker-1; do
        run "${kube[@]}" exec "$pod" -- grep VmRSS /proc/1/status
    done
    completed scaling 400
    restarts=$(output_of 0 "${kube[@]}" get pods --selector app.kubernetes.io/component=worker \
        --output 'jsonpath={.items[*].status.containerStatuses[*].restartCount}')
    [[ $restarts =~ ^(0 )*0$ ]] || fail "workers were started again: $restarts times"
}

remove_it() {
    step "The default manifests" "that they are admitted and run, with an image put in, and the Secrets that are there"
    guide 'helm uninstall'
    guide 'kubectl apply -f deploy/manifests.yaml'
    ready
}

follow_the_guide() {
    step "The guide" "that the first commands of docs/how-to/deploy.md do what it says"
    run_with "${kube[@]}" delete --ignore-not-found --filename - < <(output_of MANIFESTS helm template tuplewire \
        deploy/helm/tuplewire "${values[@]}")
    guide 'helm upgrade --install tuplewire deploy/helm/tuplewire --values'
    guide 'kubectl exec tuplewire-worker-0 -- tuplewire send'
    run "${chart[@]}" uninstall tuplewire
}
