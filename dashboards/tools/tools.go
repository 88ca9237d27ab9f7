//go:build tools

// Package tools names the programs that dashboards/generate uses, and the module whose CustomResourceDefinitions the monitors and
// rules are held against, so that go.mod pins them.
package tools

import (
	_ "github.com/google/go-jsonnet/cmd/jsonnet"
	_ "github.com/google/go-jsonnet/cmd/jsonnetfmt"
	_ "github.com/prometheus-operator/prometheus-operator/pkg/versionutil"
)
