"""Linear layers in bfloat16 through oneDNN, in row-invariant heights: numbers of rows of a product.

oneDNN selects its kernel, and with it the order of summation, by processor, shape, number of rows
and threads. The heights with equal bits are probed when weights are packed; no timing is involved,
so the bytes are reproducible. Operands of the probes cancel: with random data, rounding to bfloat16
hides most changes of the order, while here the exact value of every sum is 0 and the result is the
rounding noise of one order of summation.
"""

import ctypes
import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from pagedrun.kernels.environment.code_folder import private_folder
from pagedrun.kernels.kernel_set import processor_name
from pagedrun.kernels.stored_layers import Refilled

# The packed layout hardly depends on the hint for the number of rows. Measured on a Zen 5 with
# AVX512-BF16, weights 1024 x 1024 and 6144 x 1024: hints 1, 8, 64 and 256 agree within noise at
# 1, 4, 16, 64 and 256 rows.
PACKED_FOR_ROWS = 64

Multiply = Callable[[Tensor, Tensor], Tensor]  # (x, packed weight) -> y

Pack = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class RowHeights:
    """Row-invariant heights of a shape.

    cuts: those of `CUTS` with equal bits, ascending. all_agree: all other heights agree too.
    """

    cuts: tuple[int, ...]
    all_agree: bool

    @classmethod
    def of(cls, multiply: Multiply, pack: Pack, shape: torch.Size) -> "RowHeights":
        """Return the heights for weights of a shape, from the user's cache if present."""
        path = _kept(shape)
        if path is not None:
            with suppress(OSError, ValueError, KeyError, TypeError):
                kept = json.loads(path.read_text())
                return cls(tuple(int(cut) for cut in kept["cuts"]), bool(kept["all_agree"]))
        heights = cls.tried(multiply, pack, shape)
        if path is not None:
            _keep(path, {"cuts": heights.cuts, "all_agree": heights.all_agree})
        return heights

    @classmethod
    def tried(cls, multiply: Multiply, pack: Pack, shape: torch.Size) -> "RowHeights":
        """Probe the heights for weights [out_features, in_features].

        A height agrees if all of its rows have the bits of a product of 32 rows on one thread: so
        the number of threads does not matter either.
        """
        operands = CancellingOperands.make(shape[0], shape[1], _PATTERN, torch.bfloat16)
        packed, x = pack(operands.weight), operands.x.repeat(CUTS[-1] // _PATTERN, 1)
        parts = torch.split(operands.x, _REFERENCE)
        reference = _on_one_thread(lambda: torch.cat([multiply(part, packed) for part in parts]))

        def agrees(height: int) -> bool:
            y = multiply(x[:height], packed)
            return all(
                torch.equal(part, reference[: len(part)]) for part in torch.split(y, _PATTERN)
            )

        is_large = operands.weight.numel() >= _LARGE
        cuts = tuple(cut for cut in (_LARGE_CUTS if is_large else CUTS) if agrees(cut))
        all_agree = cuts == CUTS and all(agrees(height) for height in OTHERS)
        return cls(cuts, all_agree)

    def pieces(self, num_rows: int) -> Iterator[tuple[int, int]]:
        """Yield (rows, height) of the products of a batch.

        A height above the number of rows means padding.
        """
        if self.all_agree or num_rows == 0:
            yield num_rows, max(num_rows, MIN_ROWS)
            return
        while num_rows > 0:
            fitting = [cut for cut in self.cuts if cut <= num_rows]
            above = [cut for cut in self.cuts if cut >= num_rows]
            # A little padding costs less than two products.
            height = above[0] if above and (not fitting or above[0] <= 64) else fitting[-1]
            yield min(num_rows, height), height
            num_rows -= height


class PackedCopy:
    """Weight in oneDNN's layout, and the stored bytes that were copied to it last, if any.

    shape: [out_features, in_features]. A copy of stored bytes has no memory before the first.
    """

    def __init__(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        self.shape = tuple(shape)
        self.dtype = dtype
        self.copied: NDArray[np.uint8] | None = None

    @cached_property
    def weight(self) -> Tensor:
        """The weight, zeros before it is written."""
        return pack(torch.zeros(self.shape, dtype=self.dtype))


class OneDnnLinear:
    """`y = x @ weight.T + bias`, in products of row-invariant heights.

    weight: [out_features, in_features] bfloat16, not kept. bias: [out_features] bfloat16 or None.
    heights: those of this shape, with at least one cut.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, heights: RowHeights) -> None:
        self._packed = PackedCopy(weight.shape, weight.dtype)
        self._packed.weight = pack(weight)
        self._bias = bias
        self._heights = heights
        self.stored = np.empty(0, np.uint8)

    def __getstate__(self) -> dict[str, Any]:
        """Return shape and bytes of the packed weight; its layout is known to oneDNN alone."""
        return {
            "shape": list(self._packed.shape),
            "dtype": str(self._packed.dtype).removeprefix("torch."),
            "packed": _memory_of(self._packed.weight).copy(),
            "bias": self._bias,
            "heights": self._heights,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._packed = PackedCopy(state["shape"], getattr(torch, state["dtype"]))
        self.stored = state["packed"]
        self._bias, self._heights = state["bias"], state["heights"]

    @property
    def is_filled(self) -> bool:
        """See `Refilled`."""
        return self._packed.copied is self.stored

    def refill(self) -> None:
        """Copy the stored bytes to the packed weight, with the threads of torch."""
        torch.from_numpy(_memory_of(self._packed.weight)).copy_(torch.from_numpy(self.stored))
        self._packed.copied = self.stored

    def share(self, other: Refilled) -> bool:
        """See `Refilled`."""
        if not isinstance(other, OneDnnLinear):
            return False
        if (self._packed.shape, self._packed.dtype) != (other._packed.shape, other._packed.dtype):
            return False
        self._packed = other._packed
        return True

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [num_rows, in_features] to [num_rows, out_features], both bfloat16."""
        products, start = [], 0
        for num_rows, height in self._heights.pieces(len(x)):
            rows = x[start : start + num_rows]
            if height > num_rows:
                rows = functional.pad(rows, (0, 0, 0, height - num_rows))
            products.append(multiply(rows, self._packed.weight, self._bias)[:num_rows])
            start += num_rows
        return products[0] if len(products) == 1 else torch.cat(products)


def _memory_of(packed: Tensor) -> NDArray[np.uint8]:
    """Return the bytes of a packed weight, in place."""
    address = torch.ops.mkldnn.data_ptr(packed)
    size = torch.ops.mkldnn._nbytes(packed)
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


def can_pack() -> bool:
    """Return True if oneDNN is available and packs bfloat16 on this processor."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack(weight: Tensor) -> Tensor:
    """Return a weight [out_features, in_features] in oneDNN's layout."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKED_FOR_ROWS)
    return packed


def multiply(x: Tensor, packed: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `x @ weight.T + bias` for a packed weight."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return product


# Fewer rows use another kernel (seen for 1 row on Zen 5 and Xeons).
MIN_ROWS = 4
# Heights of the products of a batch, where not all heights agree.
CUTS = (16, 32, 64, 128, 256, 512)
# If these agree as well, every height is assumed to agree.
OTHERS = (4, 5, 7, 12, 17, 24, 31, 33, 47, 48, 63, 65, 96, 127, 129, 192, 255, 257, 300, 384)
_REFERENCE = 32
_PATTERN = 64  # rows of operands, which repeat
_LARGE = 1 << 25  # weights with more elements are probed at few heights, to save time
_LARGE_CUTS = (16, 32, 64, 128)


def _on_one_thread(compute: Callable[[], Tensor]) -> Tensor:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return compute()
    finally:
        torch.set_num_threads(threads)


def _kept(shape: torch.Size) -> Path | None:
    """Return the cache file of heights for all conditions of oneDNN's kernel selection."""
    folder = private_folder("row-heights")
    if folder is None:
        return None
    conditions = [
        *(torch.__version__, torch.backends.cpu.get_cpu_capability(), processor_name()),
        *(os.environ.get("ONEDNN_MAX_CPU_ISA"), os.environ.get("DNNL_MAX_CPU_ISA")),
        *(torch.get_num_threads(), list(shape), _source_digest()),
    ]
    return folder / hashlib.sha256(json.dumps(conditions).encode()).hexdigest()[:32]


@functools.cache
def _source_digest() -> str:
    """Return a digest of this file: heights probed by another version are invalid."""
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


def _keep(path: Path, heights: dict[str, object]) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    with suppress(OSError):  # without a cache folder the probe is repeated
        temporary.write_text(json.dumps(heights))
        temporary.replace(path)


class CancellingOperands(NamedTuple):
    """Operands whose exact product is 0.

    weight: [out_features, in_features], with equal rows. x: [num_rows, in_features].
    """

    weight: Tensor
    x: Tensor

    @classmethod
    def make(
        cls, out_features: int, in_features: int, num_rows: int, dtype: torch.dtype, seed: int = 0
    ) -> "CancellingOperands":
        """Pair positions at random: weights of a pair are equal, inputs opposite.

        Magnitudes of the inputs spread over 2^-6 to 2^6, so that partial sums are rounded.
        """
        generator = torch.Generator().manual_seed(seed)
        half = in_features // 2
        places = torch.randperm(in_features, generator=generator)
        one, other = places[:half], places[half : 2 * half]
        factors = torch.zeros(in_features)
        factors[one] = factors[other] = torch.randn(half, generator=generator)
        scale = torch.randint(-6, 7, (num_rows, half), generator=generator).float().exp2()
        values = torch.randn(num_rows, half, generator=generator) * scale
        x = torch.zeros(num_rows, in_features)
        x[:, one], x[:, other] = values, -values
        weight = factors.to(dtype).expand(out_features, in_features).contiguous()
        return cls(weight, x.to(dtype))
