"""RowHeights: at which numbers of rows oneDNN gives a row the same bits, found by trying.

oneDNN picks its kernel, and with it the order of summation, by processor, shape, number of rows and
threads. Which heights agree is tried with cancelling operands when weights are packed; time never
enters, so the bytes follow no noise.
"""

import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from pagedrun.kernels.cpu.linears.cancelling import CancellingOperands
from pagedrun.kernels.environment.code_folder import private_folder
from pagedrun.kernels.processor import processor_name

Pack = Callable[[Tensor], Tensor]
Multiply = Callable[[Tensor, Tensor], Tensor]  # (x, packed weight) -> y

# Fewer rows take other kernels: 1 row of bfloat16, up to 15 of float32 (seen on Zen 5 and Xeons).
MIN_ROWS = {torch.bfloat16: 4, torch.float32: 16}
# The heights that a batch is cut into where not all agree.
CUTS = (16, 32, 64, 128, 256, 512)
# If these agree as well, every height is taken to do so.
OTHERS = (4, 5, 7, 12, 17, 24, 31, 33, 47, 48, 63, 65, 96, 127, 129, 192, 255, 257, 300, 384)
_REFERENCE = 32
_PATTERN = 64  # rows of operands, which repeat
_LARGE = 1 << 25  # weights with more elements are tried at few heights, which takes long enough
_LARGE_CUTS = (16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class RowHeights:
    """`cuts`: heights that agree, ascending; none if none does. `all_agree`: all others do too."""

    cuts: tuple[int, ...]
    all_agree: bool

    @classmethod
    def of(
        cls, multiply: Multiply, pack: Pack, shape: torch.Size, dtype: torch.dtype
    ) -> "RowHeights":
        """Return the heights for weights of a shape, from the user's cache if they are known."""
        path = _kept(shape, dtype)
        if path is not None:
            with suppress(OSError, ValueError, KeyError, TypeError):
                kept = json.loads(path.read_text())
                return cls(tuple(int(cut) for cut in kept["cuts"]), bool(kept["all_agree"]))
        heights = cls.tried(multiply, pack, shape, dtype)
        if path is not None:
            _keep(path, {"cuts": heights.cuts, "all_agree": heights.all_agree})
        return heights

    @classmethod
    def tried(
        cls, multiply: Multiply, pack: Pack, shape: torch.Size, dtype: torch.dtype
    ) -> "RowHeights":
        """Return the heights for weights [out_features, in_features], by trying.

        A height is kept if all of its rows have the bits that one thread gives them among 32 rows:
        so threads do not matter either.
        """
        operands = CancellingOperands.make(shape[0], shape[1], _PATTERN, dtype)
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
        lowest = MIN_ROWS[dtype]
        all_agree = cuts == CUTS and all(agrees(height) for height in OTHERS if height >= lowest)
        return cls(cuts, all_agree)

    def pieces(self, num_rows: int, min_rows: int) -> Iterator[tuple[int, int]]:
        """Yield (rows, height) of the products that a batch is computed in.

        A height above the number of rows means padding. `min_rows`: the least where all agree.
        """
        if self.all_agree or num_rows == 0:
            yield num_rows, max(num_rows, min_rows)
            return
        while num_rows > 0:
            fitting = [cut for cut in self.cuts if cut <= num_rows]
            above = [cut for cut in self.cuts if cut >= num_rows]
            # A little padding costs less than two products.
            height = above[0] if above and (not fitting or above[0] <= 64) else fitting[-1]
            yield min(num_rows, height), height
            num_rows -= height


def _on_one_thread(compute: Callable[[], Tensor]) -> Tensor:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return compute()
    finally:
        torch.set_num_threads(threads)


def _kept(shape: torch.Size, dtype: torch.dtype) -> Path | None:
    """Return where the heights are kept for what oneDNN picks its kernel by."""
    folder = private_folder("row-heights")
    if folder is None:
        return None
    conditions = [
        *(torch.__version__, torch.backends.cpu.get_cpu_capability(), processor_name()),
        *(os.environ.get("ONEDNN_MAX_CPU_ISA"), os.environ.get("DNNL_MAX_CPU_ISA")),
        *(torch.get_num_threads(), list(shape), str(dtype), _source_digest()),
    ]
    return folder / hashlib.sha256(json.dumps(conditions).encode()).hexdigest()[:32]


@functools.cache
def _source_digest() -> str:
    """Return a digest of how heights are tried: what another version found does not count."""
    sources = (Path(__file__).with_name(name) for name in ("row_heights.py", "cancelling.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()


def _keep(path: Path, heights: dict[str, object]) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    with suppress(OSError):  # without a place on disk it is tried again
        temporary.write_text(json.dumps(heights))
        temporary.replace(path)
