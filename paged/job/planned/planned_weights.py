"""PlannedWeights: what the weights of a model that is not loaded take."""

from pagedrun.paged.execution.devices.device_facts import DeviceFacts
from pagedrun.paged.models.checkpoint_header import CheckpointHeader
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.models.network.checkpoint.held_codes import NOTHING_HELD, HeldCodes
from pagedrun.paged.models.network.stored_network import StoredNetwork, all_stored_bytes
from pagedrun.paged.models.runnable_config import RunnableConfig
from pagedrun.paged.report.record.weight_figures import WeightFigures, weight_figures
from pagedrun.paged.values.precision import DTYPE_BYTES


class PlannedWeights:
    """Of `model` run in `dtype` on a device; `header` is that of its files, None: not there.

    Weights whose files are not there are taken for plain ones.
    """

    def __init__(
        self,
        model: RunnableConfig,
        header: CheckpointHeader | None,
        dtype: str,
        device: DeviceFacts,
    ) -> None:
        self._count = model.network.num_weights
        self._stored_bytes: int | None = None
        codes, network = NOTHING_HELD, model.network
        if header is not None and isinstance(model, ModelConfig):
            stored = StoredNetwork.of(model.network, header)
            self._stored_bytes = stored.num_bytes
            network = stored.network  # whose experts are in the layout that the files have
            codes = HeldCodes(stored.stored, device.code_kernels, dtype)
        elif header is not None:
            self._stored_bytes = all_stored_bytes(header)
        self.held_bytes = network.held_bytes(
            DTYPE_BYTES[dtype], packs=device.packs_weights, codes=codes
        )

    @property
    def figures(self) -> WeightFigures:
        """What a report says of them."""
        return weight_figures(self._count, self._stored_bytes, self.held_bytes)
