"""What runs inside the virtual machine: tests on a real kernel, and the hands that plug and bind for them."""
