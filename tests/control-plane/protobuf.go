//go:build ignore

// Prints what the Rust side's protobuf decoding (crates/apiserver/src/protobuf) is held against, as text:
//
//	go run protobuf.go cases <../cases/wire/objects.yaml >../cases/wire/encoded.txt
//	go run protobuf.go fields >../cases/wire/fields.txt
//
// The large objects of benches/decode are encoded anew from the JSON beside them:
//
//	sed 1d ../cases/wire/realistic.txt | awk -F'\t' '{ print "- name: " $1 "\n  object: " $3 }' |
//	  go run protobuf.go cases >anew && mv anew ../cases/wire/realistic.txt
//
// `cases` encodes each case by the API server's own serializers. A line per case, tab-separated: name, what it is
// (`object` and `list`: a single answer; `event`: a frame of a watch, with its length), JSON, protobuf in hexadecimal.
//
// `fields` prints the fields of the messages that are read, from the pinned modules' generated.proto. A message
// is `<name>:` and its fields, separated by `; `: name, number, type. Its further lines are indented.
package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sort"
	"strings"

	core "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"sigs.k8s.io/yaml"
)

func check(err error, what string) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
		os.Exit(1)
	}
}

type testCase struct {
	Name   string          `json:"name"`
	Event  string          `json:"event"`
	Object json.RawMessage `json:"object"`
}

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	check(core.AddToScheme(scheme), "core")
	check(storage.AddToScheme(scheme), "storage")
	meta.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	return scheme
}

func cases() {
	text, err := io.ReadAll(os.Stdin)
	check(err, "stdin")
	var all []testCase
	check(yaml.UnmarshalStrict(text, &all), "stdin")
	scheme := newScheme()
	asJSON := jsonserializer.NewSerializerWithOptions(jsonserializer.DefaultMetaFactory, scheme, scheme, jsonserializer.SerializerOptions{})
	asProtobuf := protobuf.NewSerializer(scheme, scheme)
	raw := protobuf.NewRawSerializer(scheme, scheme)
	fmt.Println("# Written by tests/control-plane/protobuf.go; see there for the format.")
	for _, one := range all {
		object, _, err := asJSON.Decode(one.Object, nil, nil)
		check(err, one.Name)
		inJSON, inProtobuf := encode(asJSON, object, one.Name), encode(asProtobuf, object, one.Name)
		what := "object"
		if strings.HasSuffix(object.GetObjectKind().GroupVersionKind().Kind, "List") {
			what = "list"
		}
		if one.Event != "" {
			what = "event"
			event := func(object []byte) *meta.WatchEvent {
				return &meta.WatchEvent{Type: one.Event, Object: runtime.RawExtension{Raw: object}}
			}
			line, err := json.Marshal(event(inJSON))
			check(err, one.Name)
			inJSON = line
			frame := bytes.Buffer{}
			_, err = protobuf.LengthDelimitedFramer.NewFrameWriter(&frame).Write(encode(raw, event(inProtobuf), one.Name))
			check(err, one.Name)
			inProtobuf = frame.Bytes()
		}
		fmt.Printf("%s\t%s\t%s\t%s\n", one.Name, what, bytes.TrimSpace(inJSON), hex.EncodeToString(inProtobuf))
	}
}

func encode(encoder runtime.Encoder, object runtime.Object, name string) []byte {
	buffer := bytes.Buffer{}
	check(encoder.Encode(object, &buffer), name)
	return buffer.Bytes()
}

// Where the messages are, and which of each file are read.
var files = []struct{ module, path, messages string }{
	{"k8s.io/apimachinery", "pkg/api/resource", "Quantity"},
	{"k8s.io/apimachinery", "pkg/apis/meta/v1", "FieldsV1 LabelSelector LabelSelectorRequirement ListMeta ManagedFieldsEntry ObjectMeta OwnerReference Status StatusCause StatusDetails Time WatchEvent"},
	{"k8s.io/apimachinery", "pkg/runtime", "RawExtension TypeMeta Unknown"},
	{"k8s.io/apimachinery", "pkg/util/intstr", "IntOrString"},
	{"k8s.io/api", "core/v1", "AWSElasticBlockStoreVolumeSource AttachedVolume AzureDiskVolumeSource AzureFilePersistentVolumeSource AzureFileVolumeSource " +
		"CSIPersistentVolumeSource CinderPersistentVolumeSource CinderVolumeSource ContainerState ContainerStatus FCVolumeSource FlexPersistentVolumeSource " +
		"FlexVolumeSource GCEPersistentDiskVolumeSource HostPathVolumeSource ISCSIPersistentVolumeSource ISCSIVolumeSource ModifyVolumeStatus NFSVolumeSource Node NodeCondition " +
		"NodeSpec NodeStatus NodeSystemInfo ObjectReference PersistentVolume PersistentVolumeClaim PersistentVolumeClaimCondition PersistentVolumeClaimSpec PersistentVolumeClaimStatus " +
		"PersistentVolumeClaimVolumeSource PersistentVolumeSource PersistentVolumeSpec PersistentVolumeStatus Pod PodList PodSpec PodStatus PortworxVolumeSource Taint " +
		"Volume VolumeResourceRequirements VolumeSource VsphereVirtualDiskVolumeSource " +
		// Of these nothing is read. The benchmark of a simulated cluster writes them.
		"Capabilities ConfigMapProjection ConfigMapVolumeSource Container ContainerImage ContainerPort ContainerStateRunning DaemonEndpoint DownwardAPIProjection " +
		"DownwardAPIVolumeFile EnvVar EnvVarSource HTTPGetAction HostIP KeyToPath LocalObjectReference NodeAddress NodeDaemonEndpoints NodeSelector NodeSelectorRequirement " +
		"NodeSelectorTerm ObjectFieldSelector PodCondition PodIP PodSecurityContext Probe ProbeHandler ProjectedVolumeSource ResourceRequirements SecurityContext " +
		"ServiceAccountTokenProjection Toleration VolumeMount VolumeNodeAffinity VolumeProjection"},
	{"k8s.io/api", "storage/v1", "CSIDriver CSIDriverSpec CSINode CSINodeDriver CSINodeSpec StorageClass VolumeAttachment VolumeAttachmentSource VolumeAttachmentSpec VolumeAttachmentStatus VolumeAttributesClass VolumeError VolumeNodeResources"},
}

var comment = regexp.MustCompile(`(?m)//.*$`)
var message = regexp.MustCompile(`(?ms)^message (\w+) \{(.*?)^\}`)
var field = regexp.MustCompile(`(?:optional |repeated )?(map<[^>]*>|[\w.]+) (\w+) = (\d+);`)

func fields() {
	fmt.Println("# Written by tests/control-plane/protobuf.go; see there for the format.")
	for _, file := range files {
		dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", file.module).Output()
		check(err, file.module)
		text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), file.path, "generated.proto"))
		check(err, file.path)
		wanted := map[string]bool{}
		for _, name := range strings.Fields(file.messages) {
			wanted[name] = true
		}
		found := map[string]string{}
		for _, match := range message.FindAllStringSubmatch(comment.ReplaceAllString(string(text), ""), -1) {
			if !wanted[match[1]] {
				continue
			}
			lines, width := match[1]+":", len(match[1])+1
			for _, one := range field.FindAllStringSubmatch(match[2], -1) {
				repeated := ""
				if strings.HasPrefix(one[0], "repeated ") {
					repeated = "[]"
				}
				entry := " " + one[2] + " " + one[3] + " " + repeated + one[1] + ";"
				if width+len(entry) > 118 {
					lines, width = lines+"\n ", 1
				}
				lines, width = lines+entry, width+len(entry)
			}
			found[match[1]] = strings.TrimSuffix(lines, ";") + "\n"
			delete(wanted, match[1])
		}
		if len(wanted) > 0 {
			check(fmt.Errorf("not found: %v", wanted), file.path)
		}
		names := []string{}
		for name := range found {
			names = append(names, name)
		}
		sort.Strings(names)
		for _, name := range names {
			fmt.Print(found[name])
		}
	}
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "cases" {
		cases()
	} else if len(os.Args) == 2 && os.Args[1] == "fields" {
		fields()
	} else {
		fmt.Fprintln(os.Stderr, "usage: protobuf.go cases|fields")
		os.Exit(2)
	}
}
