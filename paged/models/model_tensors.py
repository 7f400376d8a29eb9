"""ModelTensors: a checkpoint's tensors under the names that a network gives them."""

from torch import Tensor

from pagedrun.paged.models.base_checkpoint import BaseCheckpoint
from pagedrun.paged.models.network.checkpoint.parameter import Role
from pagedrun.paged.models.network.checkpoint.stored_tensors import FLOATS
from pagedrun.paged.models.network.decoder_spec import DecoderSpec
from pagedrun.paged.models.network.layer_spec import LayerSpec
from pagedrun.paged.models.network.stored_network import StoredNetwork


class ModelTensors:
    """The tensors of a network, all of which `checkpoint` has.

    `network` is the network as the checkpoint holds it, `stored` is what its header says of the
    tensors, `quantized` has the names of those that are not plain numbers, `num_bytes` is what all
    of them take in their file. Raises `ModelError` where one is missing, superfluous, or not of the
    shape and dtype that it must be of.
    """

    def __init__(self, checkpoint: BaseCheckpoint, network: DecoderSpec[LayerSpec]) -> None:
        held = StoredNetwork.of(network, checkpoint)
        names, parameters = held.names, held.parameters
        self.network, self.stored = held.network, held.stored
        self._checkpoint = checkpoint
        self._names = names
        self.quantized = tuple(each.name for each in parameters if each.role is Role.QUANTIZED)
        self._dtypes = {each.name: each.dtypes for each in parameters}
        checkpoint.check(
            {names.of(each.name): each.shape for each in parameters},
            network.ignored,
            network.tensors.dropped,
            {names.of(name): dtypes for name, dtypes in self._dtypes.items()},
        )
        self.num_bytes = held.num_bytes

    def read(self, name: str) -> Tensor:
        """Return a tensor as it is stored. Raises `ModelError` if that is not as it must be."""
        return self._checkpoint.tensor(self._names.of(name), self._dtypes.get(name, FLOATS))
