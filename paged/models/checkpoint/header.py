"""Headers of checkpoints, read without torch, and the network as a checkpoint holds it.

`plan` needs the bytes of a model without its weights: names, shapes and dtypes of all tensors are
in the headers of safetensors and GGUF files. Checkpoints of one family may store the same
matrices in different tensors (experts one by one or stacked, quantized or not); `StoredNetwork`
is the network in the layout of one checkpoint.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pagedrun.paged.files.gguf import GgufFile, is_gguf
from pagedrun.paged.models.checkpoint.gguf_architectures import named_tensors
from pagedrun.paged.models.checkpoint.safetensors_files import open_file, weight_files
from pagedrun.paged.models.checkpoint.tensor_names import TensorNames
from pagedrun.paged.models.checkpoint.tensors import Parameter, StoredTensor
from pagedrun.paged.models.decoder_spec import DecoderSpec
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
    return {
        name: StoredTensor(tensor.shape, tensor.type.name)
        for name, (_, tensor) in named_tensors(GgufFile.open(path)).items()
    }


def _of_folder(folder: Path) -> dict[str, StoredTensor]:
    found = {}
    for name in weight_files(folder).names:
        file = open_file(folder / name, "np")
        for tensor in file.keys():  # noqa: SIM118 - safe_open is not a mapping
            header = file.get_slice(tensor)
            found[tensor] = StoredTensor(tuple(header.get_shape()), header.get_dtype())
    return found


class Header(Protocol):
    """Header of a checkpoint, by its own tensor names."""

    @property
    def names(self) -> Set[str]:
        """All names."""
        ...

    def stored(self, name: str) -> StoredTensor:
        """Return a tensor's shape and dtype."""
        ...


@dataclass(frozen=True, slots=True)
class RenamedHeader:
    """Header under the names of a network; implements `StoredTensors`."""

    header: Header
    names: TensorNames

    def get(self, name: str) -> StoredTensor | None:
        """Return the tensor stored under a name, if any."""
        theirs = self.names.of(name)
        return self.header.stored(theirs) if theirs in self.header.names else None


def stored_bytes_of(header: Header) -> int:
    """Return the bytes of all tensors of a checkpoint."""
    return sum(header.stored(name).num_bytes for name in header.names)


@dataclass(frozen=True, slots=True)
class StoredNetwork:
    """Network in the layout of a checkpoint, with its tensor names and stored tensors.

    `parameters` are all tensors to read, some of which may be missing.
    """

    network: DecoderSpec
    names: TensorNames
    stored: RenamedHeader
    parameters: tuple[Parameter, ...]

    @classmethod
    def of(cls, network: DecoderSpec, header: Header) -> "StoredNetwork":
        """Return a network as the checkpoint with this header holds it."""
        names = network.tensors.layout(network.embedding.weight.name, header.names)
        stored = RenamedHeader(header, names)
        held = network.stored_as(stored)
        return cls(held, names, stored, held.parameters(stored))

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensors that are read, in their file."""
        found = (self.stored.get(each.name) for each in self.parameters)
        return sum(each.num_bytes for each in found if each is not None)
