//go:build ignore

// A CSI driver without storage, on a unix socket:
//
//	csi-driver <socket> <driver name>
//
// It answers as the mock driver of Kubernetes' own end-to-end tests does: volumes are entries in its memory, and
// every node whose ID is the driver's name is its node, so each CSINode says `nodeID: <driver name>`.
package main

import (
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/klog/v2"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/driver"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/mock/service"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: csi-driver <socket> <driver name>")
		os.Exit(2)
	}
	// So that it logs each call.
	klog.InitFlags(nil)
	if err := flag.Set("v", "3"); err != nil {
		panic(err)
	}
	all := service.New(service.Config{DriverName: os.Args[2]})
	csi := driver.NewCSIDriver(&driver.CSIDriverServers{Controller: all, Identity: all, Node: all})
	listener, err := net.Listen("unix", os.Args[1])
	if err == nil {
		err = csi.Start(listener, nil)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	<-stop
	csi.Stop()
}
