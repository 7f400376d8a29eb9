"""Memory for blocks and states that are swapped out: of the host, or a file on disk."""

import mmap
import os
import tempfile
from collections.abc import Callable
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from pagedrun.paged.values.errors import UsageError, option

Allocate = Callable[[tuple[int, ...], torch.dtype], Tensor]


def of_host(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return unwritten memory of the host; the system allocates only written pages."""
    return torch.empty(shape, dtype=dtype)


def page_locked(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return unwritten memory of the host that a GPU can access."""
    return torch.empty(shape, dtype=dtype, pin_memory=True)


def on_disk(folder: Path) -> Allocate:
    """Return a function that maps memory in nameless files of a folder.

    The system writes pages to them when it has better use for the memory. Room is reserved first: a
    disk that fills up later would end the process. Raises `UsageError` for a folder that cannot
    hold a file.
    """

    def allocate(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        num_bytes = prod(shape) * dtype.itemsize
        if not num_bytes:
            return torch.empty(shape, dtype=dtype)
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                os.posix_fallocate(file.fileno(), 0, num_bytes)
                memory = mmap.mmap(file.fileno(), num_bytes)
        except OSError as error:
            raise UsageError(
                f"{option('swap_dir')} {folder}: it cannot hold a file of {num_bytes} bytes "
                f"({error.strerror}); name another folder, or pass less "
                f"{option('swap_space_bytes')}"
            ) from error
        return torch.frombuffer(memory, dtype=dtype).view(shape)

    return allocate
