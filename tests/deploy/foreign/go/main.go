// Sends or receives the numbers 0, 1, 2, ... of each task: `client send --address ...`, `client recv ...`.
// docs/reference/wire.md has the rules.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	health "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const (
	firstWait   = 50 * time.Millisecond
	longestWait = 2 * time.Second
)

var fatal = map[string]bool{
	"PROTOCOL_VERSION": true, "WRONG_TOPOLOGY": true, "STALE_INCARNATION": true, "SUPERSEDED": true,
	"UNKNOWN_TASK": true, "TASK_NOT_LOCAL": true,
}

type settings struct {
	address, topology, id, ca, cert, key string
	tasks                                []int32
	count                                int
	incarnation                          uint64 // grows with every start
}

func main() {
	var set settings
	var tasks string
	flags := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	flags.StringVar(&set.address, "address", "", "host:port or unix:///path")
	flags.StringVar(&set.topology, "topology", "", "")
	flags.StringVar(&set.id, "id", "", "")
	flags.StringVar(&tasks, "tasks", "", "1,2")
	flags.IntVar(&set.count, "count", 0, "")
	flags.StringVar(&set.ca, "ca", "", "a file, as cert and key")
	flags.StringVar(&set.cert, "cert", "", "")
	flags.StringVar(&set.key, "key", "", "")
	check(flags.Parse(os.Args[2:]))
	for _, task := range strings.Split(tasks, ",") {
		number, err := strconv.ParseInt(task, 10, 32)
		check(err)
		set.tasks = append(set.tasks, int32(number))
	}
	set.incarnation = uint64(time.Now().UnixNano())
	channel, err := grpc.NewClient(set.address, grpc.WithTransportCredentials(set.credentials()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 2 * time.Second, Timeout: 2 * time.Second}),
		grpc.WithDisableRetry()) // a session resumes by itself
	check(err)
	defer channel.Close()
	programs := map[string]func(settings, *grpc.ClientConn) any{"send": send, "recv": receive}
	check(json.NewEncoder(os.Stdout).Encode(programs[os.Args[1]](set, channel)))
}

func (set settings) credentials() credentials.TransportCredentials {
	if set.ca == "" {
		return insecure.NewCredentials()
	}
	authority, err := os.ReadFile(set.ca)
	check(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	own, err := tls.LoadX509KeyPair(set.cert, set.key)
	check(err)
	return credentials.NewTLS(&tls.Config{RootCAs: roots, Certificates: []tls.Certificate{own}})
}

// keepUp opens one stream after the other until done says that no further one is wanted; it returns how many it
// took. Before each it asks the standard health service whether the worker is there. It ends the process where the
// same request would be refused again.
func keepUp(channel *grpc.ClientConn, done func() bool, carry func(context.Context) (metadata.MD, error)) int {
	wait := firstWait
	for connections := 1; ; connections++ {
		ctx, cancel := context.WithCancel(context.Background())
		var trailer metadata.MD
		_, err := health.NewHealthClient(channel).Check(ctx, &health.HealthCheckRequest{})
		if err == nil {
			trailer, err = carry(ctx)
			wait = firstWait
		}
		cancel()
		if done() {
			return connections
		}
		code := strings.Join(trailer.Get("tuplewire-error"), "")
		fmt.Fprintf(os.Stderr, "stream ended: %s: %s\n", code, status.Convert(err).Message())
		if fatal[code] {
			os.Exit(1)
		}
		time.Sleep(time.Duration(rand.Int63n(int64(wait))))
		wait = min(2*wait, longestWait)
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
