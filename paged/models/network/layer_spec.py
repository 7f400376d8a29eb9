"""LayerSpec: one layer of a decoder, as a value."""

from dataclasses import dataclass, replace
from typing import Protocol, Self

from pagedrun.paged.models.network.attention_spec import AttentionSpec
from pagedrun.paged.models.network.checkpoint.stored_tensors import StoredTensors
from pagedrun.paged.models.network.ffn_spec import FfnSpec
from pagedrun.paged.models.network.layer_inputs_spec import InputGateSpec
from pagedrun.paged.models.network.mixtures.side_mixture_spec import SideMixtureSpec
from pagedrun.paged.models.network.norm_spec import NormSpec
from pagedrun.paged.models.network.part import Part
from pagedrun.paged.models.network.recurrence.recurrent_spec import RecurrentSpec
from pagedrun.paged.models.network.scale_spec import ScaleSpec


class LayerSpec(Protocol):
    """What the rest of the program asks of a layer, whatever it computes."""

    @property
    def attention(self) -> AttentionSpec | None:
        """What it keeps of each token, and how it reads it; None for a recurrent layer."""
        ...

    @property
    def recurrent(self) -> RecurrentSpec | None:
        """What it keeps of each sequence; None for a layer that attends."""
        ...

    @property
    def intermediate_size(self) -> int:
        """Inner width of its feed-forward part."""
        ...

    @property
    def parts(self) -> tuple[Part, ...]:
        """What has parameters."""
        ...

    @property
    def width(self) -> int:
        """Numbers that a token takes at the widest point, residual stream left out."""
        ...

    def stored_as(self, stored: StoredTensors) -> Self:
        """Return it as a checkpoint holds it, whose tensors are those `stored`."""
        ...


@dataclass(frozen=True, slots=True)
class DecoderLayerSpec:
    """Attention or a recurrence, then feed-forward, each between two norms that may be missing.

    The first normalises what it reads of the residual stream, the second what it gives. That is
    multiplied by `residual_multiplier` and added to the residual stream.

    Some layers have a mixture beside the feed-forward part, some add an input of their own behind
    it, and some multiply the whole residual stream by `scale` in the end.
    """

    attention_norm: NormSpec | None
    mixer: AttentionSpec | RecurrentSpec
    ffn_norm: NormSpec | None
    ffn: FfnSpec
    attention_out_norm: NormSpec | None = None
    ffn_out_norm: NormSpec | None = None
    residual_multiplier: float = 1.0
    side_mixture: SideMixtureSpec | None = None
    input_gate: InputGateSpec | None = None
    scale: ScaleSpec | None = None

    @property
    def attention(self) -> AttentionSpec | None:
        """The mixer, if it is attention."""
        return self.mixer if isinstance(self.mixer, AttentionSpec) else None

    @property
    def recurrent(self) -> RecurrentSpec | None:
        """The mixer, if it is a recurrence."""
        return None if isinstance(self.mixer, AttentionSpec) else self.mixer

    @property
    def intermediate_size(self) -> int:
        """Inner width of the feed-forward part."""
        beside = 0 if self.side_mixture is None else self.side_mixture.mixture.intermediate_size
        return self.ffn.intermediate_size + beside

    @property
    def parts(self) -> tuple[Part, ...]:
        """What has parameters."""
        parts = (
            *(self.attention_norm, *self.mixer.parts, self.attention_out_norm),
            *(self.ffn_norm, *self.ffn.parts, self.ffn_out_norm),
            *(() if self.side_mixture is None else self.side_mixture.parts),
            *(() if self.input_gate is None else self.input_gate.parts),
            self.scale,
        )
        return tuple(part for part in parts if part is not None)

    @property
    def width(self) -> int:
        """Numbers that a token takes at the widest point, residual stream left out."""
        beside = 0 if self.side_mixture is None else self.side_mixture.width
        return max(self.mixer.width, self.ffn.width + beside)

    def stored_as(self, stored: StoredTensors) -> Self:
        """Return it as a checkpoint holds it, whose tensors are those `stored`."""
        side_mixture = self.side_mixture and self.side_mixture.stored_as(stored)
        return replace(self, ffn=self.ffn.stored_as(stored), side_mixture=side_mixture)
