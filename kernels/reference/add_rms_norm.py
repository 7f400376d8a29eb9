"""Residual addition and the normalisation that follows it, as one op."""

from torch import Tensor

from pagedrun.kernels.reference.rms_norm import rms_norm


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add `x` to `residual` in place and return the normalised sum times `weight`.

    x: [num_tokens, hidden_size], model dtype. residual: [num_tokens, hidden_size], float32 and
    contiguous, updated in place: the residual stream is never rounded to the model dtype.
    weight: [hidden_size]. Returns [num_tokens, hidden_size] in the dtype of `x`.
    """
    residual += x
    return rms_norm(residual, weight, eps, x.dtype)
