//go:build tools

// Package tools keeps the command that ../build-helm compiles in go.mod and go.sum.
package tools

import _ "helm.sh/helm/v3/cmd/helm"
