//go:build tools

// Package tools keeps the command that ../build-chain compiles in go.mod and go.sum.
package tools

import _ "github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer"
