package main

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/config"
)

// Every call whose signature differs between Kubernetes releases is here and nowhere else, so
// that another release means a new go.mod and, at most, a change of this file.
// This is the shape of 1.35 and 1.36.

func newManager() (*devicemanager.ManagerImpl, error) {
	// No NUMA nodes and a topology manager without a policy: the kubelet's default.
	return devicemanager.NewManagerImpl(nil, topologymanager.NewFakeManager())
}

func startManager(m *devicemanager.ManagerImpl, pods func() []*v1.Pod) error {
	// The sources are ready at once and nothing is said to be running already: a steady node.
	ready := config.NewSourcesReady(func(sets.Set[string]) bool { return true })
	return m.Start(klog.Background(), pods, ready, containermap.NewContainerMap(), sets.New[string]())
}

func stopManager(m *devicemanager.ManagerImpl) error { return m.Stop(klog.Background()) }

func allocate(m *devicemanager.ManagerImpl, pod *v1.Pod, container *v1.Container) error {
	return m.Allocate(pod, container)
}

func runOptions(m *devicemanager.ManagerImpl, pod *v1.Pod, container *v1.Container) (*devicemanager.DeviceRunContainerOptions, error) {
	return m.GetDeviceRunContainerOptions(context.Background(), pod, container)
}

func forgetEndedPods(m *devicemanager.ManagerImpl) { m.UpdateAllocatedDevices() }
