"""The vm suite: what only a kernel can show, shown by kernels in virtual machines."""
