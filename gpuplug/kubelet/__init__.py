"""The only speakers of gRPC: registration, and the service that the kubelet calls back."""
