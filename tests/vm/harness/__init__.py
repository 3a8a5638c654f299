"""What the vm suite is made of on the host's side: kernels, a module for them, machines that boot them."""
