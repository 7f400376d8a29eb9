"""Memory of a model's weights and inputs of its linear layers, computed before it is loaded."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pagedrun.paged.execution.device_facts import DeviceFacts, probe_device
from pagedrun.paged.execution.device_options import choose_kernel_set, cpu_arithmetic
from pagedrun.paged.metrics.report_sections import WeightFigures, weight_figures
from pagedrun.paged.models.checkpoint.header import (
    CheckpointHeader,
    StoredNetwork,
    checkpoint_files,
    stored_bytes_of,
)
from pagedrun.paged.models.checkpoint.tensors import NO_QUANTIZED, HeldCodes
from pagedrun.paged.models.decoder_spec import DecoderSpec
from pagedrun.paged.models.linear_layers import LinearLayers
from pagedrun.paged.models.model_config import ModelConfig, describe_model
from pagedrun.paged.models.runnable_config import RunnableConfig
from pagedrun.paged.models.streaming.packed_folder import PackedFolder
from pagedrun.paged.models.streaming.residency import (
    PAGE_BYTES,
    Residency,
    entry_names,
    too_little_memory,
)
from pagedrun.paged.planning.memory import HostMemory, memory_for_weights
from pagedrun.paged.planning.passes import PassCosts
from pagedrun.paged.values.engine_config import DTYPE_BYTES, EngineConfig
from pagedrun.paged.values.errors import UsageError

LOW_BITS = 12.0  # of a stored weight; below it, weights are codes that must be expanded
MANY_TIMES = 2.0  # minimum expansion in memory for a warning
WORTH_SAVING = 0.8  # of the bytes; a setting that leaves more is not suggested


class PlannedWeights:
    """Weights of `model` in `dtype` on a device; `header` describes its files, None without files.

    Weights of missing files are assumed to be plain.
    """

    def __init__(
        self,
        model: RunnableConfig,
        header: CheckpointHeader | None,
        dtype: str,
        device: DeviceFacts,
    ) -> None:
        self._model, self._dtype = model, dtype
        self._count = model.network.num_weights
        self._stored_bytes: int | None = None
        codes, network = NO_QUANTIZED, model.network
        if header is not None and isinstance(model, ModelConfig):
            stored = StoredNetwork.of(model.network, header)
            self._stored_bytes = stored.num_bytes
            network = stored.network  # with experts in the layout of the files
            codes = HeldCodes(stored.stored, device.code_kernels, dtype, device.activations)
        elif header is not None:
            self._stored_bytes = stored_bytes_of(header)
        self._packed_sizes: tuple[int, ...] = ()
        self._entry_names: list[str] = []
        self._device = device
        if isinstance(network, DecoderSpec):
            self._packed_sizes = network.packed_sizes(DTYPE_BYTES[dtype], codes)
            num_own, has_head = len(network.own_layers), network.has_head
            self._entry_names = entry_names(num_own, has_head=has_head)
            self._hidden_bytes = network.hidden_bytes(DTYPE_BYTES[dtype])
            self._mapped_bytes = network.mapped_bytes(DTYPE_BYTES[dtype], codes)
        self.linears = LinearLayers.of(network, codes)
        self.held_bytes = network.held_bytes(
            DTYPE_BYTES[dtype], packs=device.packs_weights, codes=codes
        )

    @property
    def packed_bytes(self) -> int:
        """Bytes of the weights that can be streamed; 0 if none can."""
        return sum(self._packed_sizes)

    def passes(self, config: EngineConfig) -> PassCosts | None:
        """Return the costs of a pass, None if all weights are in memory.

        Sizes and speeds are those of packed weights, if there are any yet. Raises `UsageError` if
        the memory is too small.
        """
        if not self._packed_sizes:
            return None
        memory = self._device.memory
        asked, sizes_in_memory = config.weights_memory, self._packed_sizes
        if memory is None:
            num_bytes = memory_for_weights(asked, sizes_in_memory, mapped=self._mapped_bytes)
        else:
            most = config.gpu_memory_utilization
            num_bytes = memory_for_weights(asked, sizes_in_memory, memory.free, most=most)
        if num_bytes is None:
            return None
        sizes: Sequence[int] | None = None
        speeds = None
        if self._stored_bytes is not None:
            files = checkpoint_files(config.model)
            arithmetic = self._device.gpu_arithmetic
            if memory is None:
                arithmetic = cpu_arithmetic(choose_kernel_set(config.kernel_set), self._dtype)
            packed = PackedFolder.of_model(config, self._model, files, arithmetic, create=False)
            sizes = packed.sizes(self._entry_names)
            speeds = packed.speeds()
        if sizes is None:
            sizes = [-(-size // PAGE_BYTES) * PAGE_BYTES for size in self._packed_sizes]
        residency = Residency.within(sizes, num_bytes)
        if residency is None:
            raise too_little_memory(num_bytes, sizes)
        self.held_bytes += residency.pinned_bytes + residency.ring_bytes - sum(sizes)
        on_host = None
        if memory is not None:
            places = zip(sizes, residency.places, strict=True)
            streamed = [size for size, place in places if place is not None]
            on_host = Residency.on_host(streamed, HostMemory.read().available)
        return PassCosts(residency, speeds, self._hidden_bytes, on_host)

    @property
    def figures(self) -> WeightFigures:
        """Section of the report."""
        counts = self.linears.counts
        return weight_figures(self._count, self._stored_bytes, self.held_bytes, counts)


@dataclass(frozen=True, slots=True)
class WeightExpansion:
    """Low-bit weights that a run in `dtype` expands to plain numbers.

    `settings` are those of `EngineConfig` that keep them in `least_bytes`; empty if none do.
    """

    stored_bytes: int
    held_bytes: int
    dtype: str
    settings: tuple[tuple[str, str], ...] = ()
    least_bytes: int = 0

    @classmethod
    def of(
        cls,
        config: EngineConfig,
        device: DeviceFacts | None = None,
    ) -> "WeightExpansion | None":
        """Return the expansion of a run; None if its weights stay low-bit or are unknown.

        device: that of the run, None for the default.
        """
        try:
            device = device or probe_device(config.device, config.kernel_set, config.activations)
            model = describe_model(config.model, config.model_impl)
            dtype = device.dtypes.of_model(config.dtype, model.dtype, by_torch=model.by_torch)
        except UsageError:
            return None
        header = CheckpointHeader.read(config.model)
        weights = PlannedWeights(model, header, dtype, device)
        stored_bits = weights.figures["stored_bits"]
        stored = weights.figures["stored_bytes"]
        if not stored or stored_bits is None or stored_bits >= LOW_BITS:
            return None  # 0 bytes: no tensor is present, which loading refuses
        if weights.held_bytes < MANY_TIMES * stored:
            return None
        found = cls(stored, weights.held_bytes, dtype)
        if dtype == "float32":
            held = PlannedWeights(model, header, "bfloat16", device).held_bytes
            if held < WORTH_SAVING * found.held_bytes:
                found = replace(found, settings=(("dtype", "bfloat16"),), least_bytes=held)
        return found
