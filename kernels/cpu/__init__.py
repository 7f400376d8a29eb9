"""Operations of `pagedrun.kernels.ops`, fast on a CPU: Numba, and oneDNN through torch.

Same names, signatures and meaning. float32 and bfloat16.
A row's result is the same bytes whatever other rows are in the call: every kernel gives a row, or
a (row, kv head), to one thread, and sums in an order that the row alone decides.

Call `pagedrun.kernels.environment.threads.prepare_environment()` before torch or numba is imported.
"""
