package main

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"time"

	cadvisorapi "github.com/google/cadvisor/info/v1"
	"go.opentelemetry.io/otel/trace/noop"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	remote "k8s.io/cri-client/pkg"
	"k8s.io/klog/v2"
	cadvisortest "k8s.io/kubernetes/pkg/kubelet/cadvisor/testing"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubemark"
	"k8s.io/kubernetes/pkg/volume/util/hostutil"
	"k8s.io/kubernetes/pkg/volume/util/subpath"
	"k8s.io/mount-utils"
)

// The kubelet tells a reboot by the boot ID that cAdvisor reads.
type cadvisor struct {
	cadvisortest.Fake
	bootID string
}

func (c *cadvisor) MachineInfo() (*cadvisorapi.MachineInfo, error) {
	info, err := c.Fake.MachineInfo()
	info.BootID = c.bootID
	return info, err
}

// runKubelet is kubemark's hollow kubelet with a real volume manager that leaves attaching to the control plane, the real
// mounter and host utilities, and real events. The container runtime is another process.
func runKubelet(m machine, kubeconfig string) {
	klog.InitFlags(nil)
	must(flag.Set("v", "2"))
	ctx := context.Background()

	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	must(err)
	config.UserAgent = "kubelet/" + m.node
	config.QPS, config.Burst = 50, 100
	client := clientset.NewForConfigOrDie(config)
	heartbeat := *config
	heartbeat.Timeout, heartbeat.QPS = 10*time.Second, -1

	flags, configuration := kubemark.GetHollowKubeletConfig(&kubemark.HollowKubeletOptions{
		NodeName: m.node, MaxPods: 110, NodeLabels: map[string]string{"kubernetes.io/hostname": m.node},
	})
	must(os.RemoveAll(flags.RootDirectory))
	flags.RootDirectory = m.root()
	configuration.StaticPodPath = ""
	configuration.PodLogsDir = filepath.Join(m.folder, m.node+".logs")
	configuration.EnableServer = false
	configuration.EnableControllerAttachDetach = true
	// Five times as quick as by default, so that minutes show as much as an hour does.
	configuration.NodeStatusUpdateFrequency.Duration = 2 * time.Second
	configuration.SyncFrequency.Duration = 10 * time.Second
	configuration.NodeLeaseDurationSeconds = 12

	endpoint := "unix://" + m.runtime()
	runtime, err := remote.NewRemoteRuntimeService(ctx, endpoint, 15*time.Second, noop.NewTracerProvider(), false)
	must(err)
	images, err := remote.NewRemoteImageService(ctx, endpoint, 15*time.Second, noop.NewTracerProvider(), false)
	must(err)
	bootID, err := os.ReadFile(m.bootID())
	must(err)

	hollow := kubemark.NewHollowKubelet(flags, configuration, client, clientset.NewForConfigOrDie(&heartbeat),
		&cadvisor{cadvisortest.Fake{NodeName: m.node}, strings.TrimSpace(string(bootID))}, images, runtime,
		cm.NewStubContainerManager())
	mounter := mount.New("")
	hollow.KubeletDeps.Mounter = mounter
	hollow.KubeletDeps.HostUtil = hostutil.NewHostUtil()
	hollow.KubeletDeps.Subpather = subpath.New(mounter)
	hollow.KubeletDeps.OSInterface = kubecontainer.RealOS{}
	hollow.KubeletDeps.EventClient = client.CoreV1()
	hollow.KubeletDeps.Recorder = nil
	hollow.Run(ctx)
}
