"""The node suite: the real kubelet, containerd, runc and device cgroup around `gpuplug serve`."""
