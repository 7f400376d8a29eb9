"""CheckpointHeader: what a checkpoint says of its tensors, read without them and without torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pagedrun.paged.files.gguf.gguf_file import GgufFile
from pagedrun.paged.files.gguf.gguf_path import is_gguf
from pagedrun.paged.files.safetensors_files import open_file, weight_files
from pagedrun.paged.models.gguf.architectures import architecture_of
from pagedrun.paged.models.gguf.tensor_names import our_name
from pagedrun.paged.models.network.checkpoint.stored_tensors import StoredTensor
from pagedrun.paged.values.errors import ModelError


@dataclass(frozen=True, slots=True)
class CheckpointHeader:
    """The tensors of a model folder, or a GGUF file, by name; a `Header`."""

    tensors: Mapping[str, StoredTensor]

    @property
    def names(self) -> frozenset[str]:
        """All names."""
        return frozenset(self.tensors)

    def stored(self, name: str) -> StoredTensor:
        """Return a tensor's shape and dtype."""
        return self.tensors[name]

    @classmethod
    def read(cls, path: Path) -> "CheckpointHeader | None":
        """Read the headers; None where weights are missing, as they may be, or damaged."""
        try:
            return cls(_of_gguf(path) if is_gguf(path) else _of_folder(path))
        except ModelError:
            return None


def _of_gguf(path: Path) -> dict[str, StoredTensor]:
    file = GgufFile.open(path)
    architecture = architecture_of(file)
    return {
        our_name(name, architecture): StoredTensor(each.shape, each.type.name)
        for name, each in file.tensors.items()
    }


def _of_folder(folder: Path) -> dict[str, StoredTensor]:
    found = {}
    for name in weight_files(folder).names:
        file = open_file(folder / name, "np")
        for tensor in file.keys():  # noqa: SIM118 - safe_open is not a mapping
            header = file.get_slice(tensor)
            found[tensor] = StoredTensor(tuple(header.get_shape()), header.get_dtype())
    return found
