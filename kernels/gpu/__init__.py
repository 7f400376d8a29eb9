"""Operations of `pagedrun.kernels.ops` in Triton, for NVIDIA and AMD GPUs.

Every launch is safe to capture in a CUDA graph: its grid follows from the shapes of its arguments,
values of tensors are read on the device only, and nothing waits for the device. Launches go to the
current stream of the current device. Tile sizes are a function of shapes, dtypes and chip at the
top of each file: nothing is tuned while running. Each launch sets `enable_fp_fusion`, True in
matrix products only, because the default depends on the version of Triton.

With TRITON_INTERPRET=1 in the environment before Triton is imported, the same kernels run on CPU
tensors: slowly, but with the same result.
"""
