"""Self-check of the products of a kernel set on this processor, before the first run.

An emulator, a microcode update or another compiler may sum in another order than the processors
that a set was developed on. Takes milliseconds, once for each version of kernels and processor: a
passed check is recorded in the user's cache.
"""

import hashlib
import json
import platform
from contextlib import suppress
from pathlib import Path

import numba
import torch
from torch import Tensor

from pagedrun.kernels.attention_inputs import KVLayer, PrefillInputs, Softmax
from pagedrun.kernels.cpu.attention.group_attention import prefill_attention
from pagedrun.kernels.cpu.jit import source_digest
from pagedrun.kernels.cpu.linears.amx_linear import AmxLinear
from pagedrun.kernels.cpu.linears.onednn_linear import CancellingOperands
from pagedrun.kernels.environment.code_folder import private_folder
from pagedrun.kernels.kernel_set import KernelSet, processor_name
from pagedrun.kernels.reference import attention as reference

# Tolerated error on random data, relative to the largest result.
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
_NUM_ROWS = 40  # more than a panel, so that blocks of all kinds are used
_SOME_ROWS = (1, 5, 17, 33)
_SOFTMAX = Softmax(0.125)


def check_products(kernel_set: KernelSet, dtype: torch.dtype) -> str | None:
    """Return a description of the first error, None if products are exact enough and row-invariant.

    Raises `ValueError` for a set that the processor cannot run.
    """
    kernel_set = KernelSet.usable(kernel_set)
    path = _kept(kernel_set, dtype)
    if path is not None and path.exists():
        return None
    wrong = _linear_error() if kernel_set is KernelSet.AMX and dtype is torch.bfloat16 else None
    wrong = wrong or _attention_error(kernel_set, dtype)
    if wrong is None and path is not None:
        with suppress(OSError):  # without a cache folder the check is repeated
            path.touch()
    return wrong


def _linear_error() -> str | None:
    operands = CancellingOperands.make(96, 1024, _NUM_ROWS, torch.bfloat16)
    layer = AmxLinear(operands.weight, None)
    together = layer(operands.x)
    for num_rows in _SOME_ROWS:
        if not torch.equal(layer(operands.x[:num_rows]), together[:num_rows]):
            return f"a row's bits change with the number of rows ({num_rows} of {_NUM_ROWS})"
    generator = torch.Generator().manual_seed(1)
    weight, x = (torch.randn(rows, 333, generator=generator).bfloat16() for rows in (48, 40))
    return _error(AmxLinear(weight, None)(x), x.double() @ weight.double().T, "linear layers")


def _attention_error(kernel_set: KernelSet, dtype: torch.dtype) -> str | None:
    """Check causal attention from the last rows of 200, in batches of several sizes."""
    generator = torch.Generator().manual_seed(2)
    keys, values = (torch.randn(13, 1, 16, 64, generator=generator).to(dtype) for _ in range(2))
    layer = KVLayer(keys, values)
    q = torch.randn(_NUM_ROWS, 2, 64, generator=generator).to(dtype)
    tables = torch.arange(13, dtype=torch.int32)[None]

    def chunk(num_rows: int) -> PrefillInputs:
        numbers = ([0, num_rows], [0], [150])
        starts, tables, firsts = (torch.tensor(each, dtype=torch.int32) for each in numbers)
        return PrefillInputs(starts, tables, firsts)

    def attend(num_rows: int) -> Tensor:
        return prefill_attention(
            q[:num_rows], layer, tables, chunk(num_rows), _SOFTMAX, None, kernel_set=kernel_set
        )

    together = attend(_NUM_ROWS)
    for num_rows in _SOME_ROWS:
        if not torch.equal(attend(num_rows), together[:num_rows]):
            return f"attention changes with the number of rows ({num_rows} of {_NUM_ROWS})"
    wide = KVLayer(keys.double(), values.double())
    exact = reference.prefill_attention(q.double(), wide, tables, chunk(_NUM_ROWS), _SOFTMAX, None)
    return _error(together, exact, "attention")


def _error(result: Tensor, exact: Tensor, what: str) -> str | None:
    error = (result.double() - exact).abs().max().item() / exact.abs().max().item()
    if error <= _TOLERANCE[result.dtype]:  # false for NaN
        return None
    return f"results of {what} are off by {error:.1e} of the largest"


def _kept(kernel_set: KernelSet, dtype: torch.dtype) -> Path | None:
    """Return the file that records a passed check on this processor."""
    folder = private_folder("self-checks")
    if folder is None:
        return None
    name = str(dtype).removeprefix("torch.")
    conditions = [
        *(kernel_set.describe(name), processor_name(), platform.release()),
        *(numba.__version__, name, source_digest()),
    ]
    return folder / hashlib.sha256(json.dumps(conditions).encode()).hexdigest()[:32]
