package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	fakeremote "k8s.io/cri-client/pkg/fake"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// A machine as its CSI node service knows it: what is mounted where.
type node struct {
	csi.UnimplementedNodeServer
	registration.UnimplementedRegistrationServer
	*storage
	machine
	runtime *fakeremote.RemoteRuntime
	boots   int

	mounts sync.Mutex
	// The disk at each mount point.
	mounted map[string]string
}

func serve(socket string, register func(*grpc.Server)) {
	_ = os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	must(err)
	server := grpc.NewServer()
	register(server)
	go func() { must(server.Serve(listener)) }()
}

// runMachines serves for ever. Lines that it takes from the socket of orders: `off <node>` cuts the power of a machine,
// `boot <node>` gives it back. It answers each with a line `done`, one connection after the other.
func runMachines(folder, driver, seed string, names []string) {
	number, err := strconv.ParseInt(seed, 10, 64)
	must(err)
	all := newStorage(folder, driver, number)
	serve(filepath.Join(folder, "csi.sock"), func(server *grpc.Server) {
		csi.RegisterIdentityServer(server, all)
		csi.RegisterControllerServer(server, all)
	})
	nodes := map[string]*node{}
	for _, name := range names {
		n := &node{storage: all, machine: machine{folder, name}, mounted: map[string]string{}}
		nodes[name] = n
		must(os.MkdirAll(n.registry(), 0o755))
		n.boot()
		serve(filepath.Join(n.registry(), "csi.sock"), func(server *grpc.Server) {
			registration.RegisterRegistrationServer(server, n)
			csi.RegisterIdentityServer(server, all)
			csi.RegisterNodeServer(server, n)
		})
	}
	listener, err := net.Listen("unix", filepath.Join(folder, "orders.sock"))
	must(err)
	fmt.Println("ready")
	for {
		connection, err := listener.Accept()
		must(err)
		orders := bufio.NewScanner(connection)
		for orders.Scan() {
			order, name, _ := strings.Cut(orders.Text(), " ")
			obey(nodes[name], order)
			fmt.Fprintln(connection, "done")
		}
		_ = connection.Close()
	}
}

func obey(n *node, order string) {
	switch {
	case n == nil:
		must(errors.New("there is no such machine"))
	case order == "off":
		n.off()
	case order == "boot":
		n.boot()
	default:
		must(fmt.Errorf("what is %q", order))
	}
}

func (n *node) boot() {
	n.boots++
	must(os.WriteFile(n.bootID(), []byte(fmt.Sprintf("%s-boot-%d\n", n.node, n.boots)), 0o644))
	_ = os.Remove(n.machine.runtime())
	n.runtime = fakeremote.NewFakeRemoteRuntime()
	must(n.runtime.Start("unix://" + n.machine.runtime()))
	n.record(entry{Op: "Boot", Phase: "end", Node: n.machine.node, Done: true})
}

// off leaves nothing mounted and nothing running.
func (n *node) off() {
	n.runtime.Stop()
	n.mounts.Lock()
	defer n.mounts.Unlock()
	for path := range n.mounted {
		_ = unix.Unmount(path, unix.MNT_DETACH)
	}
	n.mounted = map[string]string{}
	n.record(entry{Op: "Off", Phase: "end", Node: n.machine.node, Done: true})
}

func (n *node) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: n.driver,
		Endpoint: filepath.Join(n.registry(), "csi.sock"), SupportedVersions: []string{"1.0.0"}}, nil
}

func (n *node) NotifyRegistrationStatus(_ context.Context, r *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if !r.PluginRegistered {
		fmt.Fprintln(os.Stderr, n.machine.node, "does not register the driver:", r.Error)
	}
	return &registration.RegistrationStatusResponse{}, nil
}

func (n *node) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: n.machine.node, MaxVolumesPerNode: 60}, nil
}

func (n *node) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	answer := &csi.NodeGetCapabilitiesResponse{}
	for _, kind := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		answer.Capabilities = append(answer.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: kind}}})
	}
	return answer, nil
}

// bind mounts really: what the kubelet finds is what is there.
func (n *node) bind(disk, from, to string) error {
	n.mounts.Lock()
	defer n.mounts.Unlock()
	if _, is := n.mounted[to]; is {
		return nil
	}
	if err := errors.Join(os.MkdirAll(from, 0o755), os.MkdirAll(to, 0o755)); err != nil {
		return err
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	n.mounted[to] = disk
	return nil
}

func (n *node) unbind(path string) error {
	n.mounts.Lock()
	defer n.mounts.Unlock()
	if _, is := n.mounted[path]; !is {
		return nil
	}
	if err := unix.Unmount(path, 0); err != nil {
		return err
	}
	delete(n.mounted, path)
	return nil
}

func (n *node) entry(op, disk string, capability *csi.VolumeCapability) entry {
	return entry{Op: op, Disk: disk, Node: n.machine.node, Exclusive: capability != nil && exclusive(capability)}
}

func (n *node) NodeStageVolume(_ context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	disk := filepath.Join(n.folder, "disks", r.VolumeId)
	err := n.call(n.entry("Stage", r.VolumeId, r.VolumeCapability), func() error {
		return n.bind(r.VolumeId, disk, r.StagingTargetPath)
	})
	return &csi.NodeStageVolumeResponse{}, err
}

func (n *node) NodeUnstageVolume(_ context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	err := n.call(n.entry("Unstage", r.VolumeId, nil), func() error { return n.unbind(r.StagingTargetPath) })
	return &csi.NodeUnstageVolumeResponse{}, err
}

func (n *node) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	err := n.call(n.entry("Mount", r.VolumeId, r.VolumeCapability), func() error {
		return n.bind(r.VolumeId, r.StagingTargetPath, r.TargetPath)
	})
	return &csi.NodePublishVolumeResponse{}, err
}

func (n *node) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	err := n.call(n.entry("Unmount", r.VolumeId, nil), func() error { return n.unbind(r.TargetPath) })
	return &csi.NodeUnpublishVolumeResponse{}, err
}

func (n *node) NodeExpandVolume(_ context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	return &csi.NodeExpandVolumeResponse{CapacityBytes: r.GetCapacityRange().GetRequiredBytes()}, nil
}
