"""StoredNetwork: a network as a checkpoint holds it."""

from collections.abc import Set
from dataclasses import dataclass
from typing import Protocol

from pagedrun.paged.models.network.checkpoint.parameter import Parameter
from pagedrun.paged.models.network.checkpoint.stored_tensors import StoredTensor
from pagedrun.paged.models.network.checkpoint.tensor_names import TensorNames
from pagedrun.paged.models.network.decoder_spec import DecoderSpec
from pagedrun.paged.models.network.layer_spec import LayerSpec


class Header(Protocol):
    """What a checkpoint says of its tensors, by its own names."""

    @property
    def names(self) -> Set[str]:
        """All names."""
        ...

    def stored(self, name: str) -> StoredTensor:
        """Return a tensor's shape and dtype."""
        ...


@dataclass(frozen=True, slots=True)
class StoredUnderOurNames:
    """Implements `StoredTensors`; `names` is what the checkpoint calls the tensors."""

    header: Header
    names: TensorNames

    def get(self, name: str) -> StoredTensor | None:
        """Return what is stored under a name, None for nothing."""
        theirs = self.names.of(name)
        return self.header.stored(theirs) if theirs in self.header.names else None


def all_stored_bytes(header: Header) -> int:
    """Return the bytes of all tensors of a checkpoint."""
    return sum(header.stored(name).num_bytes for name in header.names)


@dataclass(frozen=True, slots=True)
class StoredNetwork:
    """`network` as it is held, `names` of its tensors in the checkpoint, and what is `stored`.

    `parameters` are all tensors that are read; one of them may be missing.
    """

    network: DecoderSpec[LayerSpec]
    names: TensorNames
    stored: StoredUnderOurNames
    parameters: tuple[Parameter, ...]

    @classmethod
    def of(cls, network: DecoderSpec[LayerSpec], header: Header) -> "StoredNetwork":
        """Return a network as the checkpoint with this header holds it."""
        names = network.tensors.layout(network.embedding.weight.name, header.names)
        stored = StoredUnderOurNames(header, names)
        held = network.stored_as(stored)
        return cls(held, names, stored, held.parameters(stored))

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensors that are read, in their file."""
        found = (self.stored.get(each.name) for each in self.parameters)
        return sum(each.num_bytes for each in found if each is not None)
