"""Triton twins of `pagedrun.kernels.reference`, for NVIDIA and AMD GPUs.

Every launch is safe to capture in a CUDA graph: its grid follows from the shapes of its arguments,
what the tensors hold is read on the device alone, and nothing waits for the device. Launches go to
the current stream of the current device. Which tile sizes a chip gets stands in one table at the
top of each file, as a function of shapes, dtypes and chip: nothing is tuned while running.

With TRITON_INTERPRET=1 in the environment before Triton is imported, the same kernels run on CPU
tensors: slowly, but with the same result.
"""

from pagedrun.kernels.gpu.rms_norm import rms_norm

__all__ = [
    "rms_norm",
]
