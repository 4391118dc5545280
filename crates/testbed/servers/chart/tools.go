//go:build tools

// Package chart pins the tools that check the chart and the image.
package chart

import (
	_ "github.com/google/go-containerregistry/cmd/crane"
	_ "github.com/yannh/kubeconform/cmd/kubeconform"
	_ "github.com/zegl/kube-score/cmd/kube-score"
)
