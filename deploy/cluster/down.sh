#!/usr/bin/env bash
# End the processes that up.sh started, and remove its mounts, cgroups and namespaces. Keeps bin/ and images/.
set -uo pipefail
# shellcheck source=env.sh
source "$(dirname "$0")/env.sh"
[[ -d $CLUSTER ]] || exit 0
# Containers first: only their runtime knows the processes.
[[ ! -f $CLUSTER/pids ]] || grep -E ' (kubelet|manager|scheduler|router|proxy)' "$CLUSTER/pids" | while read -r pid _; do kill "$pid" 2>/dev/null; done
sleep 1
for sock in "$CLUSTER"/node*/run/containerd.sock; do
    [[ -S $sock ]] || continue
    ctr --address "$sock" --namespace k8s.io tasks list --quiet 2>/dev/null | while read -r id; do
        ctr --address "$sock" --namespace k8s.io tasks kill --signal SIGKILL "$id" >/dev/null 2>&1
    done
    sleep 1
    ctr --address "$sock" --namespace k8s.io tasks list --quiet 2>/dev/null | xargs -r -n1 ctr --address "$sock" --namespace k8s.io tasks delete --force >/dev/null 2>&1
    ctr --address "$sock" --namespace k8s.io containers list --quiet 2>/dev/null | xargs -r -n1 ctr --address "$sock" --namespace k8s.io containers delete >/dev/null 2>&1
done
[[ ! -f $CLUSTER/pids ]] || while read -r pid _; do kill "$pid" 2>/dev/null; done <"$CLUSTER/pids"
for _ in {1..40}; do
    alive=false
    [[ ! -f $CLUSTER/pids ]] || while read -r pid _; do kill -0 "$pid" 2>/dev/null && alive=true; done <"$CLUSTER/pids"
    $alive || break
    sleep 0.25
done
[[ ! -f $CLUSTER/pids ]] || while read -r pid _; do kill -KILL "$pid" 2>/dev/null; done <"$CLUSTER/pids"  # the API server waits for a minute
awk -v d="$CLUSTER/" 'index($2, d) == 1 {print $2}' /proc/mounts | sort -r | while read -r mount; do umount -l "$mount"; done
for ns in /run/netns/"$PREFIX"-*; do [[ -e $ns ]] && ip netns delete "${ns##*/}"; done
find /sys/fs/cgroup/*/ -maxdepth 1 -name "$PREFIX-node*" | while read -r group; do
    find "$group" -depth -type d -exec rmdir {} \; 2>/dev/null
done
rm -rf "$CLUSTER"
echo "down" >&2
