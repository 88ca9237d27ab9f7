//go:build ignore

// Puts a whole cluster into etcd, as the API server stores it, before that is started:
//
//	seed --etcd <address> --nodes <number> [--pods 30] [--attached 12] [--spare 8]
//
// Objects of the size that real ones have: pods with env and managed fields, nodes with images and conditions.
// Everything is as its controllers leave it, so that there is nothing for them to do: each attached volume is
// mounted by a running pod, and spare ones are bound and used by nobody. It prints what it has put there.
package main

import (
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
)

const (
	// The driver of the tests' stand-ins.
	driver = "csi.example.com"
	class  = "standard"
	// Pods and claims are spread over so many namespaces.
	namespaces = 100
	// etcd takes 128 operations in one transaction, and 1.5 MiB.
	batch   = 64
	writers = 8
)

var (
	address  = flag.String("etcd", "", "address of etcd")
	nodes    = flag.Int("nodes", 500, "number of nodes")
	pods     = flag.Int("pods", 30, "pods of each node")
	attached = flag.Int("attached", 12, "of those, pods with an attached volume")
	spare    = flag.Int("spare", 8, "pairs of a claim and a volume for each node that no pod uses")
	// Half a year ago, to the second: that is all the API keeps.
	born = metav1.NewTime(time.Now().Add(-4380 * time.Hour).Truncate(time.Second))
)

type entry struct {
	key    string
	object runtime.Object
}

func main() {
	flag.Parse()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{*address}, DialTimeout: 10 * time.Second})
	if err != nil {
		return err
	}
	defer client.Close()
	if err := await(client); err != nil {
		return err
	}
	entries := make(chan entry, writers*batch)
	failed := make(chan error, writers)
	written := make([]map[string][2]int, writers)
	var all sync.WaitGroup
	for writer := range writers {
		written[writer] = map[string][2]int{}
		all.Go(func() {
			if err := write(client, entries, written[writer]); err != nil {
				failed <- err
				for range entries { // Lets the producer end.
				}
			}
		})
	}
	produce(entries)
	close(entries)
	all.Wait()
	close(failed)
	if err := <-failed; err != nil {
		return err
	}
	report(written)
	return nil
}

// Waits until etcd answers: it may only just have been started.
func await(client *clientv3.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for {
		_, err := client.Get(ctx, "/registry")
		if err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func report(written []map[string][2]int) {
	sum := map[string][2]int{}
	for _, counts := range written {
		for kind, count := range counts {
			sum[kind] = [2]int{sum[kind][0] + count[0], sum[kind][1] + count[1]}
		}
	}
	for kind, count := range sum {
		fmt.Printf("%s: %d objects of %d bytes\n", kind, count[0], count[1]/count[0])
	}
}

func write(client *clientv3.Client, entries <-chan entry, written map[string][2]int) error {
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok {
		return fmt.Errorf("no protobuf serializer")
	}
	versions := schema.GroupVersions{corev1.SchemeGroupVersion, storagev1.SchemeGroupVersion}
	encoder := scheme.Codecs.EncoderForVersion(info.Serializer, versions)
	var puts []clientv3.Op
	flush := func() error {
		if len(puts) == 0 {
			return nil
		}
		_, err := client.Txn(context.Background()).Then(puts...).Commit()
		puts = puts[:0]
		return err
	}
	for entry := range entries {
		value, err := runtime.Encode(encoder, entry.object)
		if err != nil {
			return fmt.Errorf("%s: %w", entry.key, err)
		}
		kind := strings.SplitN(entry.key, "/", 4)[2]
		written[kind] = [2]int{written[kind][0] + 1, written[kind][1] + len(value)}
		puts = append(puts, clientv3.OpPut(entry.key, string(value)))
		if len(puts) == batch {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

func produce(entries chan<- entry) {
	put := func(object runtime.Object, path ...string) {
		entries <- entry{"/registry/" + strings.Join(path, "/"), object}
	}
	for number := range namespaces {
		name := namespace(number)
		put(&corev1.Namespace{
			ObjectMeta: meta("", name),
			Spec:       corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}},
			Status:     corev1.NamespaceStatus{Phase: corev1.NamespaceActive},
		}, "namespaces", name)
	}
	put(storageClass(), "storageclasses", class)
	yes := true
	policy := storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
	put(&storagev1.CSIDriver{
		ObjectMeta: meta("", driver),
		Spec: storagev1.CSIDriverSpec{
			AttachRequired: &yes, PodInfoOnMount: new(bool), FSGroupPolicy: &policy,
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
		},
	}, "csidrivers", driver)
	volume := 0
	for node := range *nodes {
		name := nodeName(node)
		var handles []string
		for number := range *pods {
			claim := ""
			if number < *attached {
				claim = claimName(volume)
				put(volumeObject(volume), "persistentvolumes", volumeName(volume))
				put(claimObject(volume), "persistentvolumeclaims", namespace(volume), claim)
				attachment := attachmentObject(volume, name)
				put(attachment, "volumeattachments", attachment.Name)
				handles = append(handles, handle(volume))
				pod := podObject(node, number, namespace(volume), claim)
				put(pod, "pods", pod.Namespace, pod.Name)
				volume++
				continue
			}
			pod := podObject(node, number, namespace(node*(*pods)+number), claim)
			put(pod, "pods", pod.Namespace, pod.Name)
		}
		put(nodeObject(name, node, handles), "minions", name)
		put(csiNode(name), "csinodes", name)
	}
	for range *nodes * *spare {
		put(volumeObject(volume), "persistentvolumes", volumeName(volume))
		put(claimObject(volume), "persistentvolumeclaims", namespace(volume), claimName(volume))
		volume++
	}
}

// A UID that is the same in every run.
func uid(of ...string) types.UID {
	sum := sha256.Sum256([]byte(strings.Join(of, "/")))
	hex := fmt.Sprintf("%x", sum)
	return types.UID(hex[:8] + "-" + hex[8:12] + "-4" + hex[13:16] + "-a" + hex[17:20] + "-" + hex[20:32])
}

func nodeName(number int) string   { return fmt.Sprintf("n%03d", number) }
func namespace(number int) string  { return fmt.Sprintf("team-%02d", number%namespaces) }
func claimName(volume int) string  { return fmt.Sprintf("data-database-%05d", volume) }
func handle(volume int) string     { return fmt.Sprintf("vol-0%016x", volume) }
func volumeName(volume int) string { return "pvc-" + string(uid("claim", claimName(volume))) }

func meta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: uid("object", namespace, name), CreationTimestamp: born,
	}
}

func managed(manager, subresource, fields string) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{
		Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: &born,
		FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{Raw: []byte(fields)}, Subresource: subresource,
	}
}

func storageClass() *storagev1.StorageClass {
	reclaim, mode, yes := corev1.PersistentVolumeReclaimDelete, storagev1.VolumeBindingWaitForFirstConsumer, true
	return &storagev1.StorageClass{
		ObjectMeta: meta("", class), Provisioner: driver, Parameters: map[string]string{"type": "gp3", "encrypted": "true"},
		ReclaimPolicy: &reclaim, VolumeBindingMode: &mode, AllowVolumeExpansion: &yes,
	}
}

func volumeObject(volume int) *corev1.PersistentVolume {
	object := &corev1.PersistentVolume{ObjectMeta: meta("", volumeName(volume))}
	object.Annotations = map[string]string{
		"pv.kubernetes.io/provisioned-by":                            driver,
		"volume.kubernetes.io/provisioner-deletion-secret-name":      "",
		"volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
	}
	object.Finalizers = []string{
		"kubernetes.io/pv-protection", "external-attacher/" + strings.ReplaceAll(driver, ".", "-"),
	}
	object.ManagedFields = []metav1.ManagedFieldsEntry{
		managed("csi-provisioner", "", `{"f:metadata":{"f:annotations":{".":{},"f:pv.kubernetes.io/provisioned-by":{},`+
			`"f:volume.kubernetes.io/provisioner-deletion-secret-name":{},"f:volume.kubernetes.io/provisioner-deletion-secret-namespace":{}},`+
			`"f:finalizers":{".":{},"v:\"external-attacher/csi-example-com\"":{}}},"f:spec":{"f:accessModes":{},"f:capacity":{".":{},"f:storage":{}},`+
			`"f:claimRef":{".":{},"f:apiVersion":{},"f:kind":{},"f:name":{},"f:namespace":{},"f:resourceVersion":{},"f:uid":{}},"f:csi":{".":{},"f:driver":{},`+
			`"f:fsType":{},"f:volumeAttributes":{".":{},"f:storage.kubernetes.io/csiProvisionerIdentity":{}},"f:volumeHandle":{}},"f:nodeAffinity":{".":{},"f:required":{}},`+
			`"f:persistentVolumeReclaimPolicy":{},"f:storageClassName":{},"f:volumeMode":{}}}`),
		managed("kube-controller-manager", "status", `{"f:status":{"f:phase":{}}}`),
	}
	mode := corev1.PersistentVolumeFilesystem
	claim := claimName(volume)
	object.Spec = corev1.PersistentVolumeSpec{
		Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("20Gi")},
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
			Driver: driver, VolumeHandle: handle(volume), FSType: "ext4",
			VolumeAttributes: map[string]string{
				"storage.kubernetes.io/csiProvisionerIdentity": "1754000000000-1234-" + driver,
			},
		}},
		ClaimRef: &corev1.ObjectReference{
			APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: namespace(volume), Name: claim,
			UID: meta(namespace(volume), claim).UID, ResourceVersion: "1",
		},
		PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete, StorageClassName: class, VolumeMode: &mode,
		NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
				Key: "topology.csi.example.com/zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"zone-a"},
			}}}},
		}},
	}
	object.Status = corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound, LastPhaseTransitionTime: &born}
	return object
}

func claimObject(volume int) *corev1.PersistentVolumeClaim {
	object := &corev1.PersistentVolumeClaim{ObjectMeta: meta(namespace(volume), claimName(volume))}
	object.Labels = map[string]string{"app.kubernetes.io/name": "database", "app.kubernetes.io/instance": claimName(volume)}
	object.Annotations = map[string]string{
		"pv.kubernetes.io/bind-completed":               "yes",
		"pv.kubernetes.io/bound-by-controller":          "yes",
		"volume.beta.kubernetes.io/storage-provisioner": driver,
		"volume.kubernetes.io/selected-node":            "n000",
		"volume.kubernetes.io/storage-provisioner":      driver,
	}
	object.Finalizers = []string{"kubernetes.io/pvc-protection"}
	object.ManagedFields = []metav1.ManagedFieldsEntry{
		managed("kube-controller-manager", "", `{"f:metadata":{"f:annotations":{".":{},"f:pv.kubernetes.io/bind-completed":{},`+
			`"f:pv.kubernetes.io/bound-by-controller":{},"f:volume.beta.kubernetes.io/storage-provisioner":{},`+
			`"f:volume.kubernetes.io/storage-provisioner":{}},"f:labels":{".":{},"f:app.kubernetes.io/instance":{},"f:app.kubernetes.io/name":{}}},`+
			`"f:spec":{"f:accessModes":{},"f:resources":{"f:requests":{".":{},"f:storage":{}}},"f:storageClassName":{},"f:volumeMode":{},"f:volumeName":{}}}`),
		managed("kube-controller-manager", "status", `{"f:status":{"f:accessModes":{},"f:capacity":{".":{},"f:storage":{}},"f:phase":{}}}`),
		managed("kube-scheduler", "", `{"f:metadata":{"f:annotations":{"f:volume.kubernetes.io/selected-node":{}}}}`),
	}
	mode, of := corev1.PersistentVolumeFilesystem, class
	object.Spec = corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources: corev1.VolumeResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("20Gi")},
		},
		VolumeName: volumeName(volume), StorageClassName: &of, VolumeMode: &mode,
	}
	object.Status = corev1.PersistentVolumeClaimStatus{
		Phase: corev1.ClaimBound, AccessModes: object.Spec.AccessModes,
		Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("20Gi")},
	}
	return object
}

func attachmentObject(volume int, node string) *storagev1.VolumeAttachment {
	sum := sha256.Sum256([]byte(handle(volume) + driver + node))
	object := &storagev1.VolumeAttachment{ObjectMeta: meta("", fmt.Sprintf("csi-%x", sum))}
	object.Finalizers = []string{"external-attacher/" + strings.ReplaceAll(driver, ".", "-")}
	object.Annotations = map[string]string{"csi.alpha.kubernetes.io/node-id": "i-" + node}
	object.ManagedFields = []metav1.ManagedFieldsEntry{
		managed("kube-controller-manager", "", `{"f:spec":{"f:attacher":{},"f:nodeName":{},"f:source":{"f:persistentVolumeName":{}}}}`),
		managed("csi-attacher", "", `{"f:metadata":{"f:annotations":{".":{},"f:csi.alpha.kubernetes.io/node-id":{}},"f:finalizers":{".":{},`+
			`"v:\"external-attacher/csi-example-com\"":{}}}}`),
		managed("csi-attacher", "status", `{"f:status":{"f:attached":{},"f:attachmentMetadata":{".":{},"f:devicePath":{}}}}`),
	}
	for index := range object.ManagedFields {
		object.ManagedFields[index].APIVersion = "storage.k8s.io/v1"
	}
	name := volumeName(volume)
	object.Spec = storagev1.VolumeAttachmentSpec{
		Attacher: driver, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &name},
	}
	object.Status = storagev1.VolumeAttachmentStatus{
		Attached: true, AttachmentMetadata: map[string]string{"devicePath": "/dev/xvdba"},
	}
	return object
}

func csiNode(name string) *storagev1.CSINode {
	most := int32(39)
	object := &storagev1.CSINode{ObjectMeta: meta("", name)}
	object.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "Node", Name: name, UID: meta("", name).UID},
	}
	object.Spec.Drivers = []storagev1.CSINodeDriver{{
		Name: driver, NodeID: "i-" + name, TopologyKeys: []string{"topology.csi.example.com/zone"},
		Allocatable: &storagev1.VolumeNodeResources{Count: &most},
	}}
	return object
}

func nodeObject(name string, number int, handles []string) *corev1.Node {
	object := &corev1.Node{ObjectMeta: meta("", name)}
	object.Labels = map[string]string{
		"beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/instance-type": "m5.4xlarge", "beta.kubernetes.io/os": "linux",
		"kubernetes.io/arch": "amd64", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux",
		"node.kubernetes.io/instance-type": "m5.4xlarge", "topology.csi.example.com/zone": "zone-a",
		"topology.kubernetes.io/region": "region-1", "topology.kubernetes.io/zone": "zone-a",
	}
	object.Annotations = map[string]string{
		"csi.volume.kubernetes.io/nodeid":                        `{"` + driver + `":"i-` + name + `"}`,
		"node.alpha.kubernetes.io/ttl":                           "0",
		"volumes.kubernetes.io/controller-managed-attach-detach": "true",
	}
	object.ManagedFields = []metav1.ManagedFieldsEntry{
		managed("kubelet", "", `{"f:metadata":{"f:annotations":{".":{},"f:volumes.kubernetes.io/controller-managed-attach-detach":{}},`+
			`"f:labels":{".":{},"f:beta.kubernetes.io/arch":{},"f:beta.kubernetes.io/os":{},"f:kubernetes.io/arch":{},"f:kubernetes.io/hostname":{},"f:kubernetes.io/os":{}}}}`),
		managed("kube-controller-manager", "", `{"f:metadata":{"f:annotations":{"f:node.alpha.kubernetes.io/ttl":{}}},"f:spec":{"f:podCIDR":{},"f:podCIDRs":{".":{},"v:\"10.0.0.0/24\"":{}}}}`),
		managed("kube-controller-manager", "status", `{"f:status":{"f:volumesAttached":{}}}`),
		managed("kubelet", "status", `{"f:metadata":{"f:annotations":{"f:csi.volume.kubernetes.io/nodeid":{}}},"f:status":{"f:allocatable":{"f:ephemeral-storage":{}},`+
			`"f:conditions":{"k:{\"type\":\"DiskPressure\"}":{"f:lastHeartbeatTime":{}},"k:{\"type\":\"MemoryPressure\"}":{"f:lastHeartbeatTime":{}},`+
			`"k:{\"type\":\"PIDPressure\"}":{"f:lastHeartbeatTime":{}},"k:{\"type\":\"Ready\"}":{"f:lastHeartbeatTime":{},"f:lastTransitionTime":{},"f:message":{},"f:reason":{},"f:status":{}}},`+
			`"f:images":{},"f:nodeInfo":{"f:bootID":{}},"f:volumesInUse":{}}}`),
	}
	object.Spec = corev1.NodeSpec{PodCIDR: "10.0.0.0/24", PodCIDRs: []string{"10.0.0.0/24"}, ProviderID: "cloud:///zone-a/i-" + name}
	resources := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("16"), corev1.ResourceMemory: resource.MustParse("64Gi"),
		corev1.ResourcePods: resource.MustParse("110"), corev1.ResourceEphemeralStorage: resource.MustParse("200Gi"),
	}
	condition := func(of corev1.NodeConditionType, status corev1.ConditionStatus, reason, message string) corev1.NodeCondition {
		return corev1.NodeCondition{
			Type: of, Status: status, Reason: reason, Message: message, LastHeartbeatTime: born, LastTransitionTime: born,
		}
	}
	object.Status = corev1.NodeStatus{
		Capacity: resources, Allocatable: resources,
		Conditions: []corev1.NodeCondition{
			condition(corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
			condition(corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
			condition(corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
			condition(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady", "kubelet is posting ready status"),
		},
		Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("10.%d.%d.1", number/256, number%256)},
			{Type: corev1.NodeHostName, Address: name},
		},
		NodeInfo: corev1.NodeSystemInfo{
			MachineID: string(uid("machine", name)), SystemUUID: string(uid("system", name)), BootID: string(uid("boot", name)),
			KernelVersion: "6.12.0", OSImage: "Linux", ContainerRuntimeVersion: "containerd://2.1.0",
			KubeletVersion: "v1.36.3", OperatingSystem: "linux", Architecture: "amd64",
		},
	}
	for image := range 50 { // The kubelet's default limit.
		repository := fmt.Sprintf("registry.example.com/team-%02d/service-%02d", image%7, image)
		object.Status.Images = append(object.Status.Images, corev1.ContainerImage{
			Names:     []string{fmt.Sprintf("%s@sha256:%x", repository, sha256.Sum256([]byte(repository))), repository + ":v1.2.3"},
			SizeBytes: int64(50_000_000 + image),
		})
	}
	for _, handle := range handles {
		name := corev1.UniqueVolumeName("kubernetes.io/csi/" + driver + "^" + handle)
		object.Status.VolumesInUse = append(object.Status.VolumesInUse, name)
		object.Status.VolumesAttached = append(object.Status.VolumesAttached, corev1.AttachedVolume{Name: name})
	}
	return object
}

func podObject(node, number int, namespace, claim string) *corev1.Pod {
	application := fmt.Sprintf("service-%02d", number)
	name := fmt.Sprintf("%s-%s-%05d", application, string(uid("set", application))[:8], node)
	if claim != "" {
		name = strings.TrimPrefix(claim, "data-")
	}
	object := &corev1.Pod{ObjectMeta: meta(namespace, name)}
	object.GenerateName = application + "-"
	object.Labels = map[string]string{
		"app.kubernetes.io/name": application, "app.kubernetes.io/component": "backend", "pod-template-hash": "7d9c5b6f4d",
	}
	object.Annotations = map[string]string{"prometheus.io/scrape": "true", "checksum/config": fmt.Sprintf("%x", sha256.Sum256([]byte(application)))}
	yes := true
	object.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "apps/v1", Kind: "ReplicaSet", Name: application + "-7d9c5b6f4d", UID: uid("set", application),
		Controller: &yes, BlockOwnerDeletion: &yes,
	}}
	object.ManagedFields = []metav1.ManagedFieldsEntry{
		managed("kube-controller-manager", "", `{"f:metadata":{"f:annotations":{".":{},"f:checksum/config":{},"f:prometheus.io/scrape":{}},"f:generateName":{},`+
			`"f:labels":{".":{},"f:app.kubernetes.io/component":{},"f:app.kubernetes.io/name":{},"f:pod-template-hash":{}},"f:ownerReferences":{".":{},"k:{\"uid\":\"`+
			string(uid("set", application))+`\"}":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"main\"}":{".":{},"f:env":{".":{}`+strings.Repeat(`,"k:{\"name\":\"A_SETTING_OF_IT\"}":{".":{},"f:name":{},"f:value":{}}`, 8)+
			`},"f:image":{},"f:imagePullPolicy":{},"f:livenessProbe":{".":{},"f:failureThreshold":{},"f:httpGet":{".":{},"f:path":{},"f:port":{},"f:scheme":{}}},"f:name":{},"f:ports":{".":{}},"f:resources":{".":{},"f:limits":{},"f:requests":{}}}},`+
			`"f:dnsPolicy":{},"f:enableServiceLinks":{},"f:restartPolicy":{},"f:schedulerName":{},"f:securityContext":{},"f:terminationGracePeriodSeconds":{},"f:volumes":{".":{}}}}`),
		managed("kubelet", "status", `{"f:status":{"f:conditions":{"k:{\"type\":\"ContainersReady\"}":{".":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}},`+
			`"k:{\"type\":\"Ready\"}":{".":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}}},"f:containerStatuses":{},"f:hostIP":{},"f:phase":{},"f:podIP":{},"f:podIPs":{},"f:startTime":{}}}`),
	}
	grace, user, replace, priority := int64(30), int64(1000), corev1.PreemptLowerPriority, int32(0)
	token, mode := int64(3607), int32(420)
	main := corev1.Container{
		Name: "main", Image: "registry.example.com/team/" + application + ":v1.2.3", ImagePullPolicy: corev1.PullIfNotPresent,
		Args:  []string{"--config=/etc/service/config.yaml", "--listen=:8080"},
		Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}},
		Resources: corev1.ResourceRequirements{
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("512Mi")},
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("250m"), corev1.ResourceMemory: resource.MustParse("512Mi")},
		},
		VolumeMounts: []corev1.VolumeMount{
			{Name: "config", MountPath: "/etc/service", ReadOnly: true},
			{Name: "kube-api-access-x7k2p", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true},
		},
		TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: corev1.TerminationMessageReadFile,
	}
	for number := range 20 {
		main.Env = append(main.Env, corev1.EnvVar{
			Name: fmt.Sprintf("A_SETTING_OF_IT_%02d", number), Value: fmt.Sprintf("https://service-%02d.example.com:8443/path", number),
		})
	}
	object.Spec = corev1.PodSpec{
		NodeName: nodeName(node), Containers: []corev1.Container{main}, RestartPolicy: corev1.RestartPolicyAlways,
		TerminationGracePeriodSeconds: &grace, DNSPolicy: corev1.DNSClusterFirst, ServiceAccountName: "default",
		DeprecatedServiceAccount: "default", SecurityContext: &corev1.PodSecurityContext{FSGroup: &user},
		SchedulerName: "default-scheduler", EnableServiceLinks: &yes, PreemptionPolicy: &replace, Priority: &priority,
		Tolerations: []corev1.Toleration{
			{Key: "node.kubernetes.io/not-ready", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &grace},
			{Key: "node.kubernetes.io/unreachable", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &grace},
		},
		Volumes: []corev1.Volume{
			{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: application}, DefaultMode: &mode,
			}}},
			{Name: "kube-api-access-x7k2p", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
				DefaultMode: &mode, Sources: []corev1.VolumeProjection{
					{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{ExpirationSeconds: &token, Path: "token"}},
					{ConfigMap: &corev1.ConfigMapProjection{
						LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"},
						Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
					}},
				},
			}}},
		},
	}
	if claim != "" {
		main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: "data", MountPath: "/data"})
		object.Spec.Containers[0] = main
		object.Spec.Volumes = append(object.Spec.Volumes, corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
	}
	condition := func(of corev1.PodConditionType) corev1.PodCondition {
		return corev1.PodCondition{Type: of, Status: corev1.ConditionTrue, LastTransitionTime: born}
	}
	address := fmt.Sprintf("10.%d.%d.%d", node/256, node%256, number+2)
	image := "registry.example.com/team/" + application
	object.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, HostIP: fmt.Sprintf("10.%d.%d.1", node/256, node%256), PodIP: address,
		PodIPs: []corev1.PodIP{{IP: address}}, StartTime: &born, QOSClass: corev1.PodQOSBurstable,
		Conditions: []corev1.PodCondition{
			condition(corev1.PodReadyToStartContainers), condition(corev1.PodInitialized), condition(corev1.PodReady),
			condition(corev1.ContainersReady), condition(corev1.PodScheduled),
		},
		ContainerStatuses: []corev1.ContainerStatus{{
			Name: "main", Ready: true, Started: &yes, Image: image + ":v1.2.3",
			ImageID:     fmt.Sprintf("%s@sha256:%x", image, sha256.Sum256([]byte(image))),
			ContainerID: fmt.Sprintf("containerd://%x", sha256.Sum256([]byte(name))),
			State:       corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: born}},
		}},
	}
	return object
}
