//go:build tools

// Package nats pins the NATS server that the testbed builds. It is a module of its own, because Kubernetes
// and NATS need not agree on the versions of what both use.
package nats

import _ "github.com/nats-io/nats-server/v2"
