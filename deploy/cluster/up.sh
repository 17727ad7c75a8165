#!/usr/bin/env bash
# Start the cluster that build.sh has built: etcd, control plane, CoreDNS, and NODES nodes, each in a network namespace.
# As root. The images in K8S_DIR/images are on every node.
set -euo pipefail
# shellcheck source=env.sh
source "$(dirname "$0")/env.sh"
[[ ! -e $CLUSTER/pids ]] || { echo "up.sh: $CLUSTER is there already; down.sh first" >&2; exit 1; }
mkdir -p "$CLUSTER"/{pki,log,run}
say() { printf '%s %s\n' "$(date -u +%H:%M:%S)" "$*" >&2; }
# start NODE NAME COMMAND...: in the background, its id in pids.
start() {
    local node=$1 name=$2
    shift 2
    nsenter --net="/run/netns/$PREFIX-$node" setsid "$@" >"$CLUSTER/log/$name.log" 2>&1 </dev/null &
    echo "$! $name" >>"$CLUSTER/pids"
}
eventually() { # SECONDS WHAT COMMAND...
    local end=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < end)) || { echo "up.sh: no $what" >&2; exit 1; }
        sleep 0.5
    done
    say "$what"
}

# --- network: a namespace for each node, all on a bridge in another one -----------------------------------------
say "network"
ip netns add "$PREFIX-lan"
nsenter --net="/run/netns/$PREFIX-lan" bash -c 'sysctl -qw net.ipv6.conf.all.disable_ipv6=0; ip link add lan type bridge; ip link set lo up; ip link set lan up'
for ((n = 1; n <= NODES; n++)); do
    ip netns add "$PREFIX-$n"
    ip link add "$PREFIX-a$n" netns "$PREFIX-lan" type veth peer name eth0 netns "$PREFIX-$n"
    nsenter --net="/run/netns/$PREFIX-lan" bash -c "ip link set $PREFIX-a$n master lan; ip link set $PREFIX-a$n up"
    at "$n" ip link set lo up
    at "$n" ip link set eth0 up
    at "$n" ip address add "$(node_ip "$n")/24" dev eth0
    at "$n" ip -6 address add "$(node_ip6 "$n")/64" dev eth0 nodad
    at "$n" sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.bridge.bridge-nf-call-iptables=1 net.bridge.bridge-nf-call-ip6tables=1
    # No traffic leaves: other ranges are unreachable. kube-proxy needs a default route.
    at "$n" ip route add unreachable default metric 4000
done
for ((n = 1; n <= NODES; n++)); do
    for ((m = 1; m <= NODES; m++)); do
        ((n == m)) && continue
        at "$n" ip route add "$(pods "$m")" via "$(node_ip "$m")"
        at "$n" ip -6 route add "$(pods6 "$m")" via "$(node_ip6 "$m")"
    done
done

# --- certificates ---------------------------------------------------------------------------------------------
say "certificates"
cd "$CLUSTER/pki"
ca() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj "/CN=$1" -keyout "$1.key" -out "$1.crt" \
        -addext keyUsage=critical,keyCertSign,cRLSign 2>/dev/null
}
cert() { # FILE SUBJECT CA [NAMES]
    # RSA: Spark's Kubernetes client cannot read an EC key in PKCS 8.
    openssl req -new -newkey rsa:2048 -nodes -subj "$2" -keyout "$1.key" -out "$1.csr" 2>/dev/null
    openssl x509 -req -in "$1.csr" -CA "$3.crt" -CAkey "$3.key" -CAcreateserial -days 30 -out "$1.crt" \
        -extfile <(printf 'extendedKeyUsage=serverAuth,clientAuth\n%s\n' "${4:+subjectAltName=$4}") 2>/dev/null
    rm "$1.csr"
}
ca cluster-ca
ca front-ca
openssl genrsa -out sa.key 2048 2>/dev/null
openssl rsa -in sa.key -pubout -out sa.pub 2>/dev/null
cert apiserver /CN=kube-apiserver cluster-ca "IP:$(node_ip 1),IP:$API,IP:127.0.0.1,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local"
cert kubelet-client /O=system:masters/CN=apiserver-kubelet-client cluster-ca
cert front-client /CN=front-proxy-client front-ca
cert admin /O=system:masters/CN=admin cluster-ca
cert manager /CN=system:kube-controller-manager cluster-ca
cert scheduler /CN=system:kube-scheduler cluster-ca
cert proxy /CN=system:kube-proxy cluster-ca
for ((n = 1; n <= NODES; n++)); do
    cert "node$n" "/O=system:nodes/CN=system:node:node$n" cluster-ca "IP:$(node_ip "$n"),DNS:node$n"
done
conf() { # FILE CERTIFICATE
    local ca crt key
    ca=$(base64 -w0 cluster-ca.crt) crt=$(base64 -w0 "$2.crt") key=$(base64 -w0 "$2.key")
    cat >"$CLUSTER/$1" <<END
apiVersion: v1
kind: Config
clusters: [{name: local, cluster: {server: "https://$(node_ip 1):6443", certificate-authority-data: $ca}}]
users: [{name: me, user: {client-certificate-data: $crt, client-key-data: $key}}]
contexts: [{name: local, context: {cluster: local, user: me}}]
current-context: local
END
}
conf admin.conf admin
conf manager.conf manager
conf scheduler.conf scheduler
conf proxy.conf proxy
for ((n = 1; n <= NODES; n++)); do conf "node$n.conf" "node$n"; done
cd "$CLUSTER"

# --- control plane --------------------------------------------------------------------------------------------
pki=$CLUSTER/pki
start 1 etcd etcd --data-dir "$CLUSTER/etcd" --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
    --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 \
    --initial-cluster default=http://127.0.0.1:2380 --unsafe-no-fsync 
start 1 apiserver kube-apiserver --etcd-servers=http://127.0.0.1:2379 --advertise-address="$(node_ip 1)" --secure-port=6443 \
    --service-cluster-ip-range="$SERVICES$($DUAL && echo ",$SERVICES6")" --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
    --allow-privileged=true --client-ca-file="$pki/cluster-ca.crt" --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" \
    --kubelet-client-certificate="$pki/kubelet-client.crt" --kubelet-client-key="$pki/kubelet-client.key" \
    --kubelet-preferred-address-types=InternalIP \
    --service-account-issuer=https://kubernetes.default.svc.cluster.local --service-account-key-file="$pki/sa.pub" \
    --service-account-signing-key-file="$pki/sa.key" --requestheader-client-ca-file="$pki/front-ca.crt" \
    --requestheader-allowed-names=front-proxy-client --requestheader-extra-headers-prefix=X-Remote-Extra- \
    --requestheader-group-headers=X-Remote-Group --requestheader-username-headers=X-Remote-User \
    --proxy-client-cert-file="$pki/front-client.crt" --proxy-client-key-file="$pki/front-client.key" --enable-aggregator-routing=true
eventually 120 "apiserver is ready" at 1 kubectl get --raw /readyz
start 1 manager kube-controller-manager --kubeconfig=manager.conf --authentication-kubeconfig=manager.conf --authorization-kubeconfig=manager.conf \
    --use-service-account-credentials=true --service-account-private-key-file="$pki/sa.key" --root-ca-file="$pki/cluster-ca.crt" \
    --cluster-signing-cert-file="$pki/cluster-ca.crt" --cluster-signing-key-file="$pki/cluster-ca.key" --leader-elect=false \
    --allocate-node-cidrs=false --node-monitor-grace-period=40s
start 1 scheduler kube-scheduler --kubeconfig=scheduler.conf --authentication-kubeconfig=scheduler.conf --authorization-kubeconfig=scheduler.conf --leader-elect=false

# --- images ------------------------------------------------------------------------------------------------------
if [[ ! -f $K8S_DIR/images/pause.tar ]]; then
    say "images of pause and coredns"
    mkdir -p "$K8S_DIR/images"
    for name in pause coredns; do
        umoci init --layout "$CLUSTER/run/$name"
        umoci new --image "$CLUSTER/run/$name:1"
        umoci insert --image "$CLUSTER/run/$name:1" "$K8S_DIR/bin/$name" "/$name"
        umoci config --image "$CLUSTER/run/$name:1" --config.entrypoint "/$name"
        tar -C "$CLUSTER/run/$name" -cf "$K8S_DIR/images/$name.tar" .
    done
fi

# --- nodes ----------------------------------------------------------------------------------------------------------
for ((n = 1; n <= NODES; n++)); do
    d=$CLUSTER/node$n
    mkdir -p "$d"/{cni,containerd,run,kubelet,ipam}
    for controller in /sys/fs/cgroup/*/; do
        mkdir -p "$controller/$PREFIX-node$n"
        [[ ! -f $controller/$PREFIX-node$n/cpuset.cpus ]] || {
            cat "$controller/cpuset.cpus" >"$controller/$PREFIX-node$n/cpuset.cpus"
            cat "$controller/cpuset.mems" >"$controller/$PREFIX-node$n/cpuset.mems"
        }
    done
    cat >"$d/cni/10-pods.conflist" <<END
{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "$d/ipam", "ranges": [[{"subnet": "$(pods "$n")"}]$($DUAL && echo ", [{\"subnet\": \"$(pods6 "$n")\"}]")],
            "routes": [{"dst": "0.0.0.0/0"}$($DUAL && echo ', {"dst": "::/0"}')]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
END
    cat >"$d/containerd.toml" <<END
version = 2
root = "$d/containerd"
state = "$d/run/containerd"
[grpc]
  address = "$d/run/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  disable_apparmor = true
  # A root user without CAP_SYS_RESOURCE cannot lower a score: runc then fails with "can't get final child's PID".
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$d/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
END
    printf 'nameserver %s\n' "$DNS" >"$d/resolv.conf"
    cat >"$d/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 0.0.0.0
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $pki/cluster-ca.crt}}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
cgroupRoot: /$PREFIX-node$n
failCgroupV1: false
clusterDNS: [$DNS]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix://$d/run/containerd.sock
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
failSwapOn: false
imageGCHighThresholdPercent: 100
podLogsDir: $d/logs
resolvConf: $d/resolv.conf
syncFrequency: 10s
tlsCertFile: $pki/node$n.crt
tlsPrivateKeyFile: $pki/node$n.key
volumePluginDir: $d/plugins
END
    cat >"$d/proxy.yaml" <<END
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
bindAddress: 0.0.0.0
mode: ${PROXY_MODE:-iptables}
clientConnection: {kubeconfig: $CLUSTER/proxy.conf}
clusterCIDR: 198.18.0.0/16$($DUAL && echo ,fd98:18::/48)
hostnameOverride: node$n
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
END
    start "$n" "containerd$n" containerd --config "$d/containerd.toml"
done
imports=()
for ((n = 1; n <= NODES; n++)); do
    d=$CLUSTER/node$n
    eventually 60 "containerd of node $n" ctr --address "$d/run/containerd.sock" version
    for image in "$K8S_DIR"/images/*.tar; do
        ctr --address "$d/run/containerd.sock" --namespace k8s.io images import --base-name "localhost/$(basename "$image" .tar)" "$image" >/dev/null &
        imports+=($!)
    done
done
wait "${imports[@]}"
say "images are imported"
for ((n = 1; n <= NODES; n++)); do
    d=$CLUSTER/node$n
    start "$n" "kubelet$n" kubelet --config="$d/kubelet.yaml" --kubeconfig="$CLUSTER/node$n.conf" --root-dir="$d/kubelet" \
        --hostname-override="node$n" --node-ip="$(node_ip "$n")$($DUAL && echo ",$(node_ip6 "$n")")" --v=2
done
for ((n = 1; n <= NODES; n++)); do
    eventually 120 "node $n is registered" at 1 kubectl get node "node$n"
    at 1 kubectl patch node "node$n" --type merge --patch "{\"spec\": {\"podCIDR\": \"$(pods "$n")\", \"podCIDRs\": [\"$(pods "$n")\"$($DUAL && echo ", \"$(pods6 "$n")\"")]}}" >/dev/null
    start "$n" "proxy$n" kube-proxy --config="$CLUSTER/node$n/proxy.yaml"
done
eventually 120 "every node is ready" at 1 kubectl wait --for=condition=Ready nodes --all --timeout=1s

if $POLICY; then
    for ((n = 1; n <= NODES; n++)); do
        start "$n" "router$n" kube-router --kubeconfig="$KUBECONFIG" --hostname-override="node$n" --run-router=false --run-service-proxy=false \
            --run-firewall=true --service-cluster-ip-range="$SERVICES" --enable-ipv4=true --enable-ipv6=false \
            --health-port=0 --v=1
    done
fi
at 1 kubectl apply -f "$here/coredns.yaml" >/dev/null
eventually 120 "CoreDNS" at 1 kubectl -n kube-system rollout status deployment/coredns --timeout=1s
say "up: export KUBECONFIG=$KUBECONFIG, and nsenter --net=/run/netns/$PREFIX-1 kubectl get nodes"
