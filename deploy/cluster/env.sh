# shellcheck shell=bash disable=SC2034
# Settings that the scripts of this folder share; source it. All files are in K8S_DIR, and the network of the cluster
# is in network namespaces of its own.
here=$(cd "${BASH_SOURCE[0]%/*}" && pwd)
K8S_DIR=${K8S_DIR:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/tuplewire-k8s}
NODES=${NODES:-2}       # the first is the control plane, and runs pods, too
POLICY=${POLICY:-true}  # kube-router's firewall enforces NetworkPolicies
DUAL=${DUAL:-true}      # IPv6, too. kube-router 2.1 then writes no rules for IPv6: policies apply to IPv4 alone
PREFIX=${PREFIX:-k8s}   # of the names of namespaces and links
CLUSTER=$K8S_DIR/cluster
PATH=$K8S_DIR/bin:/usr/sbin:/sbin:$PATH
export KUBECONFIG=$CLUSTER/admin.conf
# 198.18.0.0/15 is reserved for tests and not routed. fd98::/16 is private.
node_ip() { echo "198.19.128.$1"; }
node_ip6() { echo "fd98:20::$1"; }
pods() { echo "198.18.$1.0/24"; }
pods6() { echo "fd98:18:0:$1::/64"; }
SERVICES=198.19.0.0/20 SERVICES6=fd98:19::/108 DNS=198.19.0.10 API=198.19.0.1
# Run a command in the namespace of node N. `ip netns exec` would mount another /sys, without cgroups.
at() { local n=$1; shift; nsenter --net="/run/netns/$PREFIX-$n" "$@"; }
