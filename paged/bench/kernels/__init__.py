"""Kernels one by one, by size, beside dense attention and the device's own limits."""
