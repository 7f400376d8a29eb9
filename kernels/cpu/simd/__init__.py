"""Vectors of floats and AMX tiles for Numba kernels.

Numba leaves vectorization to LLVM. These intrinsics are for loops that LLVM does not vectorize
well, and for sums whose order must not depend on it.
"""
