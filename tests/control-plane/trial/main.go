// The Go parts of the field trial (tests/trial):
//
//	trial-parts machines <folder> <driver> <seed> <node>...
//	trial-parts kubelet <folder> <driver> <node> <kubeconfig>
//
// `machines` is everything that is pretended: the storage system with its CSI controller service, and for each node the CSI
// node service, the registration socket and the container runtime. It outlives each kubelet, as a machine does.
// `kubelet` is one real kubelet.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// Where a machine keeps its things. Paths of sockets are short: the kernel allows 107 bytes.
type machine struct{ folder, node string }

func (m machine) root() string     { return filepath.Join(m.folder, m.node) }
func (m machine) registry() string { return filepath.Join(m.root(), "plugins_registry") }
func (m machine) runtime() string  { return filepath.Join(m.folder, m.node+".cri") }
func (m machine) bootID() string   { return filepath.Join(m.folder, m.node+".boot") }

func main() {
	arguments := os.Args[1:]
	switch {
	case len(arguments) >= 5 && arguments[0] == "machines":
		runMachines(arguments[1], arguments[2], arguments[3], arguments[4:])
	case len(arguments) == 5 && arguments[0] == "kubelet":
		runKubelet(machine{arguments[1], arguments[3]}, arguments[4])
	default:
		fmt.Fprintln(os.Stderr, "usage: trial-parts machines <folder> <driver> <seed> <node>... | kubelet <folder> <driver> <node> <kubeconfig>")
		os.Exit(2)
	}
}

// must ends the program: the trial reports its last lines.
func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
