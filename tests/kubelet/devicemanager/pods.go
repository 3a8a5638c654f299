package main

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// podSpec is the part of a pod that decides about its devices.
type podSpec struct {
	Name       string          `json:"name"`
	Init       []containerSpec `json:"init"`
	Containers []containerSpec `json:"containers"`
}

// containerSpec names how many devices of which resource a container asks for.
// An init container that is a sidecar keeps running, and so keeps its devices.
type containerSpec struct {
	Name    string           `json:"name"`
	Asks    map[string]int64 `json:"asks"`
	Sidecar bool             `json:"sidecar"`
}

func (c containerSpec) build() v1.Container {
	asks := v1.ResourceList{}
	for name, count := range c.Asks {
		asks[v1.ResourceName(name)] = *resource.NewQuantity(count, resource.DecimalSI)
	}
	container := v1.Container{
		Name:      c.Name,
		Resources: v1.ResourceRequirements{Limits: asks, Requests: asks},
	}
	if c.Sidecar {
		always := v1.ContainerRestartPolicyAlways
		container.RestartPolicy = &always
	}
	return container
}

func (p podSpec) build() *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: "default", UID: types.UID(p.Name)}}
	for _, c := range p.Init {
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, c.build())
	}
	for _, c := range p.Containers {
		pod.Spec.Containers = append(pod.Spec.Containers, c.build())
	}
	return pod
}

// activePods are the pods of the node. They outlive a kubelet, as they do in the API server.
type activePods struct {
	mutex sync.Mutex
	pods  map[string]*v1.Pod
}

func newActivePods() *activePods { return &activePods{pods: map[string]*v1.Pod{}} }

func (a *activePods) add(pod *v1.Pod) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.pods[pod.Name] = pod
}

func (a *activePods) remove(name string) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	delete(a.pods, name)
}

func (a *activePods) list() []*v1.Pod {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	out := make([]*v1.Pod, 0, len(a.pods))
	for _, pod := range a.pods {
		out = append(out, pod)
	}
	return out
}
