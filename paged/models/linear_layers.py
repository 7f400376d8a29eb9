"""LinearLayers: linear layers of a model by their weights and inputs on a device, without torch."""

from dataclasses import dataclass, replace

from pagedrun.kernels.quantized_form import Activations, CodeKernels
from pagedrun.paged.models.checkpoint.header import CheckpointHeader, StoredNetwork
from pagedrun.paged.models.checkpoint.tensors import NO_TENSORS, HeldCodes, StoredLinear
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.models.network import Network
from pagedrun.paged.models.runnable_config import RunnableConfig


@dataclass(frozen=True, slots=True)
class LinearLayers:
    """Numbers of linear layers, counted as in a `StoredLinear`; `num_layers` is that of all.

    num_quantized: with quantized weights in memory. num_int8: with inputs rounded to int8.
    activations: inputs of the layers that `Activations` is about; AUTO if they differ, None without
    such layers.
    """

    num_layers: int = 0
    num_quantized: int = 0
    num_int8: int = 0
    activations: Activations | None = None

    @property
    def counts(self) -> tuple[int, int, int]:
        """The three numbers, in order."""
        return self.num_layers, self.num_quantized, self.num_int8

    @classmethod
    def of(cls, network: Network, codes: HeldCodes) -> "LinearLayers":
        """Return the layers of a network whose weights in `codes` stay quantized."""
        linears = network.linears(codes.stored)
        return cls(
            len(linears),
            sum(each.has_int8_inputs or codes.holds(each) for each in linears),
            sum(each.has_int8_inputs or codes.rounds(each) for each in linears),
            _activations([_in_blocks(each) for each in linears], codes),
        )

    @classmethod
    def of_checkpoint(
        cls,
        model: RunnableConfig,
        header: CheckpointHeader | None,
        kernels: CodeKernels,
        dtype: str,
        activations: Activations,
    ) -> "LinearLayers":
        """Return the layers of a model in `dtype`; `header` describes its files, None without."""
        if header is None or not isinstance(model, ModelConfig):
            return cls.of(model.network, HeldCodes(NO_TENSORS, kernels, dtype, activations))
        found = StoredNetwork.of(model.network, header)
        return cls.of(found.network, HeldCodes(found.stored, kernels, dtype, activations))

    def arithmetic(self) -> dict[str, str]:
        """Return the inputs that the bytes of answers depend on, by the name of their setting."""
        return {} if self.activations is None else {"activations": self.activations.value}


def _in_blocks(linear: StoredLinear) -> StoredLinear:
    """Return a layer as if its groups were contiguous: stored as scattered, they still may be."""
    if linear.form is None:
        return linear
    return replace(linear, form=replace(linear.form, is_scattered=False))


def _activations(linears: list[StoredLinear], codes: HeldCodes) -> Activations | None:
    rounded = replace(codes, activations=Activations.INT8)
    found = {codes.rounds(each) for each in linears if rounded.rounds(each)}
    if not found:
        return None
    if len(found) > 1:
        return Activations.AUTO
    return Activations.INT8 if found.pop() else Activations.EXACT
