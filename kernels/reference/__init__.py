"""Longer reference operations in plain PyTorch; `pagedrun.kernels.ops.Backend` lists them all.

Written to be read, not to be fast. Arithmetic is float32 for narrower inputs and float64 for
float64 inputs.
"""
