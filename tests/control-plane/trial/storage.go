package main

import (
	"context"
	"encoding/json"
	"math/rand"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A line of the driver's log. Nothing of the control plane writes it.
type entry struct {
	// Nanoseconds of the monotonic clock since the driver has started, and the time of day then and now.
	At    int64  `json:"at"`
	Wall  int64  `json:"wall"`
	Op    string `json:"op"`
	Phase string `json:"phase"`
	Disk  string `json:"disk,omitempty"`
	Node  string `json:"node,omitempty"`
	// Whether the volume is for one node alone, as the access mode of the call says.
	Exclusive bool   `json:"exclusive,omitempty"`
	Code      string `json:"code,omitempty"`
	// Whether the storage system has done what was asked, whatever the answer.
	Done bool `json:"done,omitempty"`
}

// The storage system. It does what it is told: it fences nothing, so that what is told wrongly is on record.
type storage struct {
	csi.UnimplementedControllerServer
	csi.UnimplementedIdentityServer
	driver string
	start  time.Time

	lock  sync.Mutex
	log   *os.File
	disks map[string]int64
	dice  *rand.Rand
}

func newStorage(folder, driver string, seed int64) *storage {
	log, err := os.OpenFile(filepath.Join(folder, "driver.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	must(err)
	return &storage{driver: driver, start: time.Now(), log: log, disks: map[string]int64{}, dice: rand.New(rand.NewSource(seed))}
}

func (s *storage) record(line entry) {
	s.lock.Lock()
	defer s.lock.Unlock()
	line.At, line.Wall = int64(time.Since(s.start)), time.Now().UnixMilli()
	text, err := json.Marshal(line)
	must(err)
	_, err = s.log.Write(append(text, '\n'))
	must(err)
}

// call does one thing with the latencies and failures of a storage system. One in 25 fails: half of these before it has begun,
// half after it is done, as when the answer is lost.
func (s *storage) call(line entry, do func() error) error {
	s.lock.Lock()
	pause := time.Duration(20+s.dice.Intn(280)) * time.Millisecond
	if s.dice.Intn(40) == 0 {
		pause = time.Duration(1+s.dice.Intn(3)) * time.Second
	}
	fate := s.dice.Intn(50)
	s.lock.Unlock()

	line.Phase = "begin"
	s.record(line)
	time.Sleep(pause)
	line.Phase = "end"
	var err error
	switch fate {
	case 0:
		err = status.Error(codes.Internal, "the storage system is busy")
	default:
		err = do()
		line.Done = err == nil
		if fate == 1 && err == nil {
			err = status.Error(codes.DeadlineExceeded, "the storage system has not answered in time")
		}
	}
	line.Code = status.Code(err).String()
	s.record(line)
	return err
}

func nothing() error { return nil }

func exclusive(capability *csi.VolumeCapability) bool {
	switch capability.GetAccessMode().GetMode() {
	case csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER:
		return false
	}
	return true
}

func (s *storage) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: s.driver, VendorVersion: "1"}, nil
}

func (s *storage) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	service := func(kind csi.PluginCapability_Service_Type) *csi.PluginCapability {
		return &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: kind}}}
	}
	expansion := &csi.PluginCapability{Type: &csi.PluginCapability_VolumeExpansion_{
		VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: csi.PluginCapability_VolumeExpansion_ONLINE}}}
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
		service(csi.PluginCapability_Service_CONTROLLER_SERVICE), expansion}}, nil
}

func (s *storage) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (s *storage) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	answer := &csi.ControllerGetCapabilitiesResponse{}
	for _, kind := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		answer.Capabilities = append(answer.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: kind}}})
	}
	return answer, nil
}

func (s *storage) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	size := max(r.GetCapacityRange().GetRequiredBytes(), 1<<20)
	err := s.call(entry{Op: "CreateVolume", Disk: r.Name}, func() error {
		s.lock.Lock()
		defer s.lock.Unlock()
		s.disks[r.Name] = size
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: r.Name, CapacityBytes: size}}, nil
}

func (s *storage) DeleteVolume(_ context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	err := s.call(entry{Op: "DeleteVolume", Disk: r.VolumeId}, func() error {
		s.lock.Lock()
		defer s.lock.Unlock()
		delete(s.disks, r.VolumeId)
		return nil
	})
	return &csi.DeleteVolumeResponse{}, err
}

func (s *storage) ControllerPublishVolume(_ context.Context, r *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	line := entry{Op: "Publish", Disk: r.VolumeId, Node: r.NodeId, Exclusive: exclusive(r.VolumeCapability)}
	return &csi.ControllerPublishVolumeResponse{}, s.call(line, nothing)
}

func (s *storage) ControllerUnpublishVolume(_ context.Context, r *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	return &csi.ControllerUnpublishVolumeResponse{}, s.call(entry{Op: "Unpublish", Disk: r.VolumeId, Node: r.NodeId}, nothing)
}

func (s *storage) ValidateVolumeCapabilities(_ context.Context, r *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	return &csi.ValidateVolumeCapabilitiesResponse{
		Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{VolumeCapabilities: r.VolumeCapabilities}}, nil
}

func (s *storage) ControllerExpandVolume(_ context.Context, r *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	size := r.GetCapacityRange().GetRequiredBytes()
	err := s.call(entry{Op: "Expand", Disk: r.VolumeId}, nothing)
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: size}, err
}
