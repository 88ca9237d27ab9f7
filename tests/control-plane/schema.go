//go:build ignore

// Prints the shape of the API types that the embedded API server serves, as text:
//
//	go run schema.go >../../testbed/src/schema/types.txt
//
// A line `type <group>/<version>.<Name>`, then one line per field: its JSON name, its type
// (`*` pointer, `[]` list, `{}` map with string keys) and, where they apply, `omitempty` (left out when empty),
// `merge=<key>` (strategic merge by that key; `merge` alone is a set), `retainKeys`.
package main

import (
	"fmt"
	"reflect"
	"sort"
	"strings"

	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var named = map[string]string{
	"k8s.io/apimachinery/pkg/apis/meta/v1.Time":       "time",
	"k8s.io/apimachinery/pkg/apis/meta/v1.MicroTime":  "microtime",
	"k8s.io/apimachinery/pkg/apis/meta/v1.FieldsV1":   "any",
	"k8s.io/apimachinery/pkg/runtime.RawExtension":    "any",
	"k8s.io/apimachinery/pkg/api/resource.Quantity":   "quantity",
	"k8s.io/apimachinery/pkg/util/intstr.IntOrString": "int-or-string",
}

var pending []reflect.Type
var seen = map[string]reflect.Type{}

func name(t reflect.Type) string {
	path := t.PkgPath()
	path = strings.TrimPrefix(path, "k8s.io/api/")
	path = strings.TrimPrefix(path, "k8s.io/apimachinery/pkg/apis/")
	slash := strings.LastIndex(path, "/")
	return path[:slash] + "/" + path[slash+1:] + "." + t.Name()
}

func typeOf(t reflect.Type) string {
	if text, ok := named[t.PkgPath()+"."+t.Name()]; ok {
		return text
	}
	switch t.Kind() {
	case reflect.Pointer:
		return "*" + typeOf(t.Elem())
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "bytes"
		}
		return "[]" + typeOf(t.Elem())
	case reflect.Map:
		return "{}" + typeOf(t.Elem())
	case reflect.Struct:
		if seen[name(t)] == nil {
			seen[name(t)] = t
			pending = append(pending, t)
		}
		return name(t)
	default:
		return t.Kind().String()
	}
}

func fields(t reflect.Type, lines *[]string) {
	for i := 0; i < t.NumField(); i++ {
		field := t.Field(i)
		tag := strings.Split(field.Tag.Get("json"), ",")
		has := func(option string) bool {
			for _, part := range tag[1:] {
				if part == option {
					return true
				}
			}
			return false
		}
		if tag[0] == "-" {
			continue
		}
		if tag[0] == "" {
			inner := field.Type
			if inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			fields(inner, lines)
			continue
		}
		line := tag[0] + " " + typeOf(field.Type)
		if has("omitzero") || has("omitempty") && field.Type.Kind() != reflect.Struct {
			line += " omitempty"
		}
		strategy, key := field.Tag.Get("patchStrategy"), field.Tag.Get("patchMergeKey")
		for _, part := range strings.Split(strategy, ",") {
			if part == "merge" && key != "" {
				line += " merge=" + key
			} else if part != "" {
				line += " " + part
			}
		}
		*lines = append(*lines, line)
	}
}

func main() {
	for _, root := range []any{
		core.Pod{}, core.Node{}, core.PersistentVolume{}, core.PersistentVolumeClaim{}, core.Event{}, core.ConfigMap{}, core.Namespace{}, core.Binding{},
		storage.StorageClass{}, storage.VolumeAttachment{}, storage.VolumeAttributesClass{}, storage.CSINode{}, storage.CSIDriver{}, coordination.Lease{}, meta.DeleteOptions{},
	} {
		typeOf(reflect.TypeOf(root))
	}
	texts := map[string][]string{}
	for len(pending) > 0 {
		t := pending[0]
		pending = pending[1:]
		lines := []string{}
		fields(t, &lines)
		texts[name(t)] = lines
	}
	names := []string{}
	for n := range texts {
		names = append(names, n)
	}
	sort.Strings(names)
	fmt.Println("# Written by tests/control-plane/schema.go; see there for the format.")
	for _, n := range names {
		fmt.Println("type " + n)
		for _, line := range texts[n] {
			fmt.Println("  " + line)
		}
	}
}
