"""The container suite: the image, the manifests, and a whole cluster of one node that runs them."""
