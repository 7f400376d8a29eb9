"""PrefixTile: how one program of prefix attention walks."""

from dataclasses import dataclass

import torch
import triton

from pagedrun.kernels.gpu.chip import Chip

# The Tritons whose Gluon the specialised kernel was written for: it is young, and changes names.
OLDEST_GLUON, NEWEST_GLUON = (3, 6), (3, 9)


@dataclass(frozen=True, slots=True)
class PrefixTile:
    """Rows of the query matrix, and keys at a time. is_specialised: by `specialised_prefix`, whose
    programs have four warps for each 64 rows and one that copies, whatever `num_warps` says."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int
    is_specialised: bool = False


def can_specialise(
    head_dim: int,
    block_size: int,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    on: Chip,
    version: str = triton.__version__,
) -> bool:
    """Return whether the specialised kernel can attend so, on this chip with this Triton."""
    release = tuple(int(part) for part in version.split(".")[:2])
    return (
        on.backend == "cuda"
        and on.arch == 90  # its instructions are of that chip alone, not of those after it
        and OLDEST_GLUON <= release <= NEWEST_GLUON
        and dtype is cache_dtype is torch.bfloat16
        and head_dim in (64, 128)
        and block_size >= 64
        and block_size & (block_size - 1) == 0
    )
