"""Operations of `pagedrun.kernels.ops` in Triton, for NVIDIA and AMD GPUs.

Every launch is safe to capture in a CUDA graph: its grid follows from the shapes of its arguments,
what the tensors hold is read on the device alone, and nothing waits for the device. Launches go to
the current stream of the current device. Which tile sizes a chip gets is in one table at the
top of each file, as a function of shapes, dtypes and chip: nothing is tuned while running.
Each launch says whether products and sums may become one operation, in matrix products alone: what
it would be otherwise depends on the version of Triton.

With TRITON_INTERPRET=1 in the environment before Triton is imported, the same kernels run on CPU
tensors: slowly, but with the same result.
"""
