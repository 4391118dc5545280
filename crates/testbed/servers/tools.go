//go:build tools

// Package servers pins the programs that the testbed builds: one module, so that
// `go build` of each needs nothing but this go.mod and go.sum.
package servers

import (
	_ "go.etcd.io/etcd/server/v3"
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kubectl"
)
