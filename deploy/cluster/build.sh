#!/usr/bin/env bash
# Build Kubernetes from Go modules, and install Debian's containerd and runc, as root on Debian. It takes about 20
# minutes of CPU once, and nothing where all of it is in K8S_DIR already.
#   K8S_DIR  where it goes (env.sh has the default)    K8S_VERSION  1.34.4    JOBS  2
set -euo pipefail
# shellcheck source=env.sh
source "$(dirname "$0")/env.sh"
dir=$K8S_DIR
version=${K8S_VERSION:-1.34.4}
packages=(containerd runc containernetworking-plugins iptables ipset conntrack nftables umoci openssl iproute2 gcc libc6-dev mmdebstrap
    buildah skopeo)
if ! dpkg --status "${packages[@]}" >/dev/null 2>&1; then
    apt-get update -qq
    apt-get install -qq -y --no-install-recommends "${packages[@]}" >/dev/null
fi
export GOFLAGS="-p=${JOBS:-2} -buildvcs=false -trimpath" CGO_ENABLED=0
mkdir -p "$dir/bin" "$dir/src/kube" "$dir/src/coredns"
cd "$dir"
say() { printf '%s %s\n' "$(date -u +%H:%M:%S)" "$*" >&2; }

# --- Kubernetes: all of its programs in one binary ---------------------------------------------------------------
# Its go.mod replaces the staging modules with folders that the module does not contain: require the published ones.
if [[ ! -x bin/kube-all ]]; then
    say "download k8s.io/kubernetes v$version"
    cd "$dir/src/kube"
    src=$(go mod download -json "k8s.io/kubernetes@v$version" | sed -n 's/^\t"Dir": "\(.*\)",/\1/p')
    {
        echo 'module example.invalid/kube'
        sed -n '/^go /p;/^godebug /p;/^require (/,/^)/p' "$src/go.mod" | sed "s/ v0\.0\.0\( \|$\)/ v0.${version#1.}\1/"
        echo "require k8s.io/kubernetes v$version"
    } >go.mod
    cp "$src/go.sum" go.sum
    cat >main.go <<'END'
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	var command *cobra.Command
	switch name := filepath.Base(os.Args[0]); name {
	case "kube-apiserver":
		command = apiserver.NewAPIServerCommand()
	case "kube-controller-manager":
		command = manager.NewControllerManagerCommand()
	case "kube-scheduler":
		command = scheduler.NewSchedulerCommand()
	case "kube-proxy":
		command = proxy.NewProxyCommand()
	case "kubelet":
		command = kubelet.NewKubeletCommand(context.Background())
	case "kubectl":
		command = kubectl.NewDefaultKubectlCommand()
		if err := cli.RunNoErrOutput(command); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	default:
		fmt.Fprintln(os.Stderr, "unknown program", name)
		os.Exit(64)
	}
	os.Exit(cli.Run(command))
}
END
    time go mod tidy -e >"$dir/tidy.log" 2>&1 || true
    say "build kubernetes"
    v=k8s.io/component-base/version
    time go build -tags=grpcnotrace,selinux -o "$dir/bin/kube-all" -ldflags "-s -w -X $v.gitVersion=v$version \
        -X $v.gitMajor=1 -X $v.gitMinor=$(cut -d. -f2 <<<"$version") -X $v.gitTreeState=clean \
        -X $v.buildDate=2026-01-01T00:00:00Z -X $v.gitCommit=unknown" .
fi
cd "$dir/bin"
for name in kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl; do ln -sf kube-all $name; done

# --- CoreDNS with the plugins of the Corefile -------------------------------------------------------------------
if [[ ! -x $dir/bin/coredns ]]; then
    say "build CoreDNS"
    mkdir -p "$dir/src/coredns" && cd "$dir/src/coredns"
    coredns=v${COREDNS_VERSION:-1.12.4}
    src=$(go mod download -json "github.com/coredns/coredns@$coredns" | sed -n 's/^\t"Dir": "\(.*\)",/\1/p')
    {
        echo 'module example.invalid/coredns'
        sed -n '/^go /p;/^require (/,/^)/p;/^replace /p' "$src/go.mod"
        echo "require github.com/coredns/coredns $coredns"
    } >go.mod
    cp "$src/go.sum" go.sum
    cat >main.go <<'END'
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/ready"
)

func main() {
	dnsserver.Directives = []string{"ready", "health", "errors", "log", "cache", "loadbalance", "kubernetes"}
	coremain.Run()
}
END
    go mod tidy -e >"$dir/tidy-coredns.log" 2>&1 || true
    time go build -tags=grpcnotrace -ldflags '-s -w' -o "$dir/bin/coredns" .
fi

# --- kube-router: its firewall enforces NetworkPolicies ---------------------------------------------------------
if [[ ! -x $dir/bin/kube-router ]]; then
    say "build kube-router"
    mkdir -p "$dir/src/kube-router" && cd "$dir/src/kube-router"
    router=v${KUBE_ROUTER_VERSION:-2.1.0}
    src=$(go mod download -json "github.com/cloudnativelabs/kube-router/v2@$router" | sed -n 's/^\t"Dir": "\(.*\)",/\1/p')
    {
        echo 'module example.invalid/router'
        sed -n '/^go /p;/^require (/,/^)/p;/^replace /p' "$src/go.mod"
        echo "require github.com/cloudnativelabs/kube-router/v2 $router"
    } >go.mod
    cp "$src/go.sum" go.sum
    time go build -mod=mod -tags=grpcnotrace -ldflags '-s -w' -o "$dir/bin/kube-router" github.com/cloudnativelabs/kube-router/v2/cmd/kube-router
fi

# --- etcd: Debian's 3.4 has no RequestWatchProgress, which Spark's watch of its pods needs ----------------------
if [[ ! -x $dir/bin/etcd ]]; then
    say "build etcd"
    mkdir -p "$dir/src/etcd" && cd "$dir/src/etcd"
    etcd=v${ETCD_VERSION:-3.6.14}
    src=$(go mod download -json "go.etcd.io/etcd/server/v3@$etcd" | sed -n 's/^\t"Dir": "\(.*\)",/\1/p')
    {
        echo 'module example.invalid/etcd'
        sed -n '/^go /p;/^require (/,/^)/p' "$src/go.mod" | grep -v 'go.etcd.io/etcd/\(api\|pkg\|client/pkg\|client/v3\|client/v2\)'
        echo "require go.etcd.io/etcd/server/v3 $etcd"
    } >go.mod
    time go build -mod=mod -tags=grpcnotrace -ldflags '-s -w' -o "$dir/bin/etcd" go.etcd.io/etcd/server/v3
fi

# --- Helm, where there is none ----------------------------------------------------------------------------------
if ! command -v helm >/dev/null; then
    say "build Helm"
    GOBIN=$dir/bin go install helm.sh/helm/v4/cmd/helm@v4.2.3
fi

# --- the program of the pause image -----------------------------------------------------------------------------
if [[ ! -x $dir/bin/pause ]]; then
    mkdir -p "$dir/src/pause" && cd "$dir/src/pause"
    cat >pause.c <<'END'
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static void end(int s) { _exit(0); }
static void reap(int s) { while (waitpid(-1, NULL, WNOHANG) > 0) {} }
int main(void) {
    struct sigaction r = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};
    signal(SIGINT, end); signal(SIGTERM, end); sigaction(SIGCHLD, &r, NULL);
    for (;;) pause();
}
END
    gcc -Os -static -s -o "$dir/bin/pause" pause.c
fi
say "built: $(cd "$dir/bin" && du -ch --apparent-size kube-all coredns kube-router etcd pause | tr '\n' ' ')"
