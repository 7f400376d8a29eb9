"""Memory of a model's weights and inputs of its linear layers, computed before it is loaded."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.kernels.quantized_form import CodeKernels
from pagedrun.paged.execution.device_facts import DeviceFacts, probe_device
from pagedrun.paged.metrics.report_sections import WeightFigures, weight_figures
from pagedrun.paged.models.checkpoint.header import (
    CheckpointHeader,
    StoredNetwork,
    stored_bytes_of,
)
from pagedrun.paged.models.checkpoint.tensors import NO_QUANTIZED, HeldCodes
from pagedrun.paged.models.linear_layers import LinearLayers
from pagedrun.paged.models.model_config import ModelConfig, describe_model
from pagedrun.paged.models.runnable_config import RunnableConfig
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
        self.linears = LinearLayers.of(network, codes)
        self.held_bytes = network.held_bytes(
            DTYPE_BYTES[dtype], packs=device.packs_weights, codes=codes
        )

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
        supported: Sequence[KernelSet] | None = None,
    ) -> "WeightExpansion | None":
        """Return the expansion of a run; None if its weights stay low-bit or are unknown.

        device: that of the run, None for the default. supported: the processor's kernel sets,
        fastest first, None to ask for them.
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
        for settings in _alternatives(dtype, device, supported):
            chosen = dict(settings)
            kernels = device.code_kernels
            if "kernel_set" in chosen:
                kernels = KernelSet(chosen["kernel_set"]).code_kernels
            other = replace(device, code_kernels=kernels)
            held = PlannedWeights(model, header, chosen.get("dtype", dtype), other).held_bytes
            if held < WORTH_SAVING * (found.least_bytes or found.held_bytes):
                found = replace(found, settings=settings, least_bytes=held)
        return found


def _alternatives(
    dtype: str, device: DeviceFacts, supported: Sequence[KernelSet] | None
) -> list[tuple[tuple[str, str], ...]]:
    """Return the settings to try, the smallest change first."""
    of_dtype = (("dtype", "bfloat16"),) if dtype == "float32" else ()
    others: dict[CodeKernels, KernelSet] = {}
    if device.memory is None:
        for each in KernelSet.supported() if supported is None else supported:
            others.setdefault(each.code_kernels, each)
        others.pop(device.code_kernels, None)
    of_kernels = [(("kernel_set", each.value),) for each in others.values()]
    tried = [of_dtype, *of_kernels, *(of_dtype + each for each in of_kernels)]
    return [each for each in tried if each]
