//go:build tools

// Package tools names the programs that dashboards/generate uses, so that go.mod pins them.
package tools

import (
	_ "github.com/google/go-jsonnet/cmd/jsonnet"
	_ "github.com/google/go-jsonnet/cmd/jsonnetfmt"
)
