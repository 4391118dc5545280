//go:build tools

// Package versitygw pins the S3 server that the testbed builds.
package versitygw

import _ "github.com/versity/versitygw/cmd/versitygw"
