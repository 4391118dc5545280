//go:build tools

// Package helm pins the program that installs the chart.
package helm

import _ "helm.sh/helm/v4/cmd/helm"
