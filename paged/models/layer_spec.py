"""Layers of decoders and modules for multi-token prediction: interfaces and descriptions.

An MTP module is in checkpoints of many models; see `MtpSpec`. pagedrun drafts tokens by it.
"""

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Protocol, Self

from pagedrun.paged.cache.cache_spec import StateSpec
from pagedrun.paged.models.checkpoint.tensors import Part, StoredTensors
from pagedrun.paged.models.modules.attention import AttentionSpec
from pagedrun.paged.models.modules.linear import LinearSpec, Projection
from pagedrun.paged.models.modules.norm import NormForm, NormSpec
from pagedrun.paged.models.quant.linear_methods import Dense


class RecurrentSpec(Protocol):
    """Description of a recurrent layer.

    The layer passes the tokens of a sequence in order, each with the state after the one before;
    splitting a sequence between two tokens does not change a bit of the result.
    """

    @property
    def parts(self) -> tuple[Part, ...]:
        """Parts with parameters."""
        ...

    @property
    def width(self) -> int:
        """Peak numbers of activation of a token."""
        ...

    def state_spec(self, dtype: str) -> StateSpec:
        """Return the state of a sequence, in a model of `dtype`, a name of torch."""
        ...


class LayerSpec(Protocol):
    """Description of a decoder layer; a hashable value, equal for one layer used several times."""

    @property
    def attention(self) -> AttentionSpec | None:
        """Its attention; None for a recurrent layer."""
        ...

    @property
    def recurrent(self) -> RecurrentSpec | None:
        """Its recurrence; None for a layer with attention."""
        ...

    @property
    def intermediate_size(self) -> int:
        """Inner width of the feed-forward part."""
        ...

    @property
    def parts(self) -> tuple[Part, ...]:
        """Parts with parameters."""
        ...

    @property
    def width(self) -> int:
        """Peak numbers of activation of a token, without the residual stream."""
        ...

    def stored_as(self, stored: StoredTensors) -> Self:
        """Return the layer in the layout of a checkpoint that has the tensors `stored`."""
        ...


@dataclass(frozen=True, slots=True)
class MtpSpec:
    """Description of a module for multi-token prediction (MTP).

    It takes the hidden state of the decoder at a token and the embedding of the next token, each
    normalized, side by side, the embedding first unless `hidden_first`. Their projection passes a
    layer with keys and values of its own, and `norm`; the head of the decoder gives logits of the
    token after the next. The hidden state is that behind the last norm of the decoder, that before
    it if `takes_stream`. Applied to its own results, the module predicts further tokens: those
    behind `norm` if `repeats_normed`, else those before it.
    """

    embedding_norm: NormSpec
    hidden_norm: NormSpec
    projection: LinearSpec
    layer: LayerSpec
    norm: NormSpec
    hidden_first: bool = False
    takes_stream: bool = False
    repeats_normed: bool = False

    @property
    def parts(self) -> tuple[Part, ...]:
        """Parts with parameters."""
        norms = self.embedding_norm, self.hidden_norm, self.norm
        return *norms, self.projection, *self.layer.parts

    def stored_as(self, stored: StoredTensors) -> Self:
        """Return the module in the layout of a checkpoint that has the tensors `stored`."""
        return replace(self, layer=self.layer.stored_as(stored))


@dataclass(frozen=True, slots=True)
class MtpForm:
    """Tensor names of an MTP module, which begin with `prefix`, and its variant as in `MtpSpec`.

    names: of the norms of embedding and hidden state, the projection, and the last norm. layer:
    prefix of the tensors of its layer behind that of the module.
    """

    prefix: str
    names: tuple[str, str, str, str]
    layer: str = ""
    hidden_first: bool = False
    takes_stream: bool = False
    repeats_normed: bool = False

    def module(self, layer: LayerSpec, named: str, norm: NormForm, size: int) -> MtpSpec:
        """Return the module of a decoder of hidden size `size`.

        layer: described under names that begin with `named`. norm: form of all norms. The
        projection is unquantized in every checkpoint.
        """
        names = [f"{self.prefix}.{name}" for name in self.names]
        projection = (Projection(names[2], size),)
        return MtpSpec(
            norm.named(names[0], size),
            norm.named(names[1], size),
            LinearSpec(projection, 2 * size, has_bias=False, method=Dense()),
            _renamed(layer, f"{named}.", f"{self.prefix}.{self.layer}"),
            norm.named(names[3], size),
            self.hidden_first,
            self.takes_stream,
            self.repeats_normed,
        )


def _renamed(value: Any, old: str, new: str) -> Any:
    """Return a description whose tensor names begin with `new` where they began with `old`."""
    if isinstance(value, str):
        return new + value.removeprefix(old) if value.startswith(old) else value
    if isinstance(value, tuple):
        return tuple(_renamed(each, old, new) for each in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    names = [field.name for field in fields(value)]
    return replace(value, **{name: _renamed(getattr(value, name), old, new) for name in names})
