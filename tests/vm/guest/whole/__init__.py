"""What needs a machine of its own, with room for a whole Kubernetes node."""
