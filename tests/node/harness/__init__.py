"""What the node suite is made of: programs built from source, a node in its own namespaces, its answers."""
