//go:build tools

// Package promtool pins the tool that runs the tests of alerting rules.
package promtool

import _ "github.com/prometheus/prometheus/cmd/promtool"
