"""StoredShapes: a checkpoint of which only the tensors' shapes are known."""

from collections.abc import Mapping
from dataclasses import dataclass

from pagedrun.paged.models.checkpoint.tensors import StoredTensor


@dataclass(frozen=True)
class StoredShapes:
    """Implements `StoredTensors`."""

    shapes: Mapping[str, tuple[int, ...]]

    def get(self, name: str) -> StoredTensor | None:
        return StoredTensor(self.shapes[name], "F32") if name in self.shapes else None
