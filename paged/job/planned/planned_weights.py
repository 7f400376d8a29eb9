"""Memory of a model's weights, computed before they are loaded."""

from dataclasses import dataclass, replace

from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.paged.execution.device_facts import DeviceFacts, probe_device
from pagedrun.paged.metrics.report_sections import WeightFigures, weight_figures
from pagedrun.paged.models.checkpoint.header import (
    CheckpointHeader,
    StoredNetwork,
    stored_bytes_of,
)
from pagedrun.paged.models.checkpoint.tensors import NO_QUANTIZED, HeldCodes
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
            codes = HeldCodes(stored.stored, device.code_kernels, dtype)
        elif header is not None:
            self._stored_bytes = stored_bytes_of(header)
        self.held_bytes = network.held_bytes(
            DTYPE_BYTES[dtype], packs=device.packs_weights, codes=codes
        )

    @property
    def figures(self) -> WeightFigures:
        """Section of the report."""
        return weight_figures(self._count, self._stored_bytes, self.held_bytes)


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
        best: KernelSet | None = None,
    ) -> "WeightExpansion | None":
        """Return the expansion of a run; None if its weights stay low-bit or are unknown.

        device: that of the run, None for the default. best: the processor's fastest kernels, None
        to ask for them.
        """
        try:
            device = device or probe_device(config.device, config.kernel_set)
            model = describe_model(config.model, config.model_impl)
            dtype = device.dtypes.of_model(config.dtype, model.dtype)
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
        for settings in _alternatives(dtype, device, best):
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
    dtype: str, device: DeviceFacts, best: KernelSet | None
) -> list[tuple[tuple[str, str], ...]]:
    """Return the settings to try, the smallest change first."""
    of_dtype = (("dtype", "bfloat16"),) if dtype == "float32" else ()
    of_kernels: tuple[tuple[str, str], ...] = ()
    if device.memory is None:
        best = best or KernelSet.supported()[0]
        if best.code_kernels is not device.code_kernels:
            of_kernels = (("kernel_set", best.value),)
    return [each for each in (of_dtype, of_kernels, of_dtype + of_kernels) if each]
