"""Instructions for Numba kernels that Numba does not offer: vectors of floats, and AMX tiles.

Numba leaves vector code to LLVM's guess. Where the guess costs a factor, or where the order of a
sum must not depend on it, a kernel says it here, instruction by instruction.
"""
