"""The only readers of the machine: sysfs, devfs and the folder of the kubelet."""
