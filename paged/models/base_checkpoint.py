"""BaseCheckpoint: the tensors of a model by name, whatever files they are in."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from pagedrun.paged.models.network.checkpoint.stored_tensors import FLOATS, StoredTensor
from pagedrun.paged.values.errors import ModelError, listed


class BaseCheckpoint(ABC):
    """Tensors are read when asked for. Close it, or use it in a `with` statement.

    `path` is the model's folder or file, `described_by` what says which tensors there must be.
    """

    def __init__(self, path: Path, described_by: str) -> None:
        self.path = path
        self._described_by = described_by

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    @abstractmethod
    def names(self) -> frozenset[str]:
        """All names."""

    @property
    @abstractmethod
    def files(self) -> tuple[Path, ...]:
        """The files that hold tensors, in a fixed order."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the files. Tensors already handed out keep their memory mapped."""

    @abstractmethod
    def stored(self, name: str) -> StoredTensor:
        """Return a tensor's shape and dtype, from the header."""

    @abstractmethod
    def tensor(self, name: str, dtypes: tuple[str, ...] = FLOATS) -> torch.Tensor:
        """Return a tensor on the CPU as it is stored, backed by the file: do not write to it.

        Raises `ModelError` if there is none of that name or it is stored as none of `dtypes`.
        """

    @abstractmethod
    def file_of(self, name: str) -> Path:
        """Return the file that a tensor is in."""

    def check(
        self,
        expected: Mapping[str, tuple[int, ...]],
        optional: Collection[str] = (),
        dropped: tuple[str, ...] = (),
        dtypes: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        """Check that the checkpoint holds the `expected` tensors, with those shapes, and no others.

        A tensor that is not expected is let pass if its name, or the end of it after a dot, is in
        `optional`: "rotary_emb.inv_freq" passes in every layer; or if its name begins with one of
        `dropped`. `dtypes` has what a tensor may be stored as, where that is not a float. Raises
        one `ModelError` that lists the first few of what is missing, extra or misshapen, or a dtype
        that is not supported.
        """
        allowed = tuple(f".{name}" for name in optional)
        missing = sorted(expected.keys() - self.names)
        extra = sorted(
            name
            for name in self.names - expected.keys()
            if not f".{name}".endswith(allowed) and not name.startswith(dropped)
        )
        present = [name for name in expected if name in self.names]
        misshapen = [
            f"{name} is {list(self.stored(name).shape)} and must be {list(expected[name])}"
            for name in present
            if self.stored(name).shape != tuple(expected[name])
        ]
        problems = [
            f"{word}: {listed(found)}"
            for word, found in (("missing", missing), ("extra", extra), ("misshapen", misshapen))
            if found
        ]
        if problems:
            raise ModelError(
                f"{self.path}: the weights do not fit {self._described_by} "
                f"({'; '.join(problems)}); check that both come from the same model, or "
                "download it again"
            )
        for name in present:
            self.check_dtype(name, (dtypes or {}).get(name, FLOATS))

    def check_dtype(self, name: str, dtypes: tuple[str, ...]) -> None:
        """Raise `ModelError` if a tensor is stored as none of `dtypes`."""
        stored = self.stored(name).dtype
        if stored not in dtypes:
            *others, last = dtypes
            read = f"{', '.join(others)} and {last}" if others else last
            raise ModelError(
                f"{self.file_of(name)}: tensor {name} is stored as {stored}, but "
                f"pagedrun reads {read} there; use a version of the model that is not quantized"
            )
