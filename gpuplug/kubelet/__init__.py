"""The only speakers of gRPC: everything between gpuplug and the kubelet."""
