package main

import (
	"fmt"
	"sort"
	"time"

	v1 "k8s.io/api/core/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
)

// kubelet is one life of a kubelet: from its start to its stop.
type kubelet struct {
	manager *devicemanager.ManagerImpl
	pods    *activePods
}

func startKubelet(pods *activePods) (*kubelet, error) {
	manager, err := newManager()
	if err != nil {
		return nil, err
	}
	if err := startManager(manager, pods.list); err != nil {
		return nil, err
	}
	return &kubelet{manager: manager, pods: pods}, nil
}

func (k *kubelet) stop() error      { return stopManager(k.manager) }
func (k *kubelet) forgetEndedPods() { forgetEndedPods(k.manager) }

func numbers(list v1.ResourceList) map[string]int64 {
	out := make(map[string]int64, len(list))
	for name, quantity := range list {
		out[string(name)] = quantity.Value()
	}
	return out
}

// capacity is what a kubelet puts into its node's status every few seconds.
func (k *kubelet) capacity() any {
	capacity, allocatable, removed := k.manager.GetCapacity()
	return map[string]any{
		"capacity":    numbers(capacity),
		"allocatable": numbers(allocatable),
		"removed":     append([]string{}, removed...),
	}
}

// device is one healthy device. Numa is null when the plugin named no topology, which is not
// the same as an empty list: that one makes the kubelet refuse pods.
type device struct {
	ID   string  `json:"id"`
	Numa []int64 `json:"numa"`
}

func numaNodes(topology *pluginapi.TopologyInfo) []int64 {
	if topology == nil {
		return nil
	}
	nodes := []int64{}
	for _, node := range topology.Nodes {
		nodes = append(nodes, node.ID)
	}
	return nodes
}

func (k *kubelet) devices() any {
	out := map[string][]device{}
	for resource, instances := range k.manager.GetAllocatableDevices() {
		list := make([]device, 0, len(instances))
		for id, instance := range instances {
			list = append(list, device{ID: id, Numa: numaNodes(instance.Topology)})
		}
		sort.Slice(list, func(i, j int) bool { return list[i].ID < list[j].ID })
		out[resource] = list
	}
	return map[string]any{"devices": out}
}

type deviceNode struct {
	Host        string `json:"host"`
	Container   string `json:"container"`
	Permissions string `json:"permissions"`
}

type mount struct {
	Host      string `json:"host"`
	Container string `json:"container"`
	ReadOnly  bool   `json:"read_only"`
}

// admitted is what the container runtime would be told about one container.
type admitted struct {
	Name    string              `json:"name"`
	Devices map[string][]string `json:"devices"`
	Nodes   []deviceNode        `json:"nodes"`
	Mounts  []mount             `json:"mounts"`
	Envs    map[string]string   `json:"envs"`
	Micros  int64               `json:"micros"`
}

// admit does what the kubelet does for a new pod: devices for its init containers first, in
// order, then for the others. A pod that is refused at any of them is no longer on the node.
func (k *kubelet) admit(spec podSpec) (any, error) {
	pod := spec.build()
	k.pods.add(pod)
	all := append(append([]v1.Container{}, pod.Spec.InitContainers...), pod.Spec.Containers...)
	micros := make([]int64, len(all))
	for i := range all {
		begin := time.Now()
		if err := allocate(k.manager, pod, &all[i]); err != nil {
			k.pods.remove(pod.Name)
			k.forgetEndedPods()
			return nil, fmt.Errorf("container %s: %w", all[i].Name, err)
		}
		micros[i] = time.Since(begin).Microseconds()
	}
	out := make([]admitted, 0, len(all))
	for i := range all {
		container, err := k.describe(pod, &all[i])
		if err != nil {
			return nil, fmt.Errorf("container %s: %w", all[i].Name, err)
		}
		container.Micros = micros[i]
		out = append(out, container)
	}
	return map[string]any{"containers": out}, nil
}

func (k *kubelet) describe(pod *v1.Pod, container *v1.Container) (admitted, error) {
	out := admitted{
		Name:    container.Name,
		Devices: map[string][]string{},
		Nodes:   []deviceNode{},
		Mounts:  []mount{},
		Envs:    map[string]string{},
	}
	for resource, instances := range k.manager.GetDevices(string(pod.UID), container.Name) {
		for id := range instances {
			out.Devices[resource] = append(out.Devices[resource], id)
		}
		sort.Strings(out.Devices[resource])
	}
	options, err := runOptions(k.manager, pod, container)
	if err != nil || options == nil { // nil: the container asked for nothing of any plugin
		return out, err
	}
	for _, node := range options.Devices {
		out.Nodes = append(out.Nodes, deviceNode{node.PathOnHost, node.PathInContainer, node.Permissions})
	}
	sort.Slice(out.Nodes, func(i, j int) bool { return out.Nodes[i].Container < out.Nodes[j].Container })
	for _, m := range options.Mounts {
		out.Mounts = append(out.Mounts, mount{m.HostPath, m.ContainerPath, m.ReadOnly})
	}
	for _, env := range options.Envs {
		out.Envs[env.Name] = env.Value
	}
	return out, nil
}
