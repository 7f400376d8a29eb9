"""HybridForm: layers of which some attend and the others are recurrent."""

from collections.abc import Callable
from dataclasses import dataclass

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.forms.attention_form import AttentionForm
from pagedrun.paged.models.forms.norm_form import NormForm
from pagedrun.paged.models.network.attention_spec import AttentionSpec
from pagedrun.paged.models.network.recurrence.recurrent_spec import RecurrentSpec


@dataclass(frozen=True, slots=True)
class HybridForm:
    """`attends` says of each layer which it is; `recurrent` describes one by its index."""

    attends: tuple[bool, ...]
    attention: AttentionForm
    recurrent: Callable[[int], RecurrentSpec]

    @property
    def num_layers(self) -> int:
        """Layers of the decoder."""
        return len(self.attends)

    def layer(
        self, index: int, config: JsonObject, norm: NormForm
    ) -> AttentionSpec | RecurrentSpec:
        """Return the mixer of a layer. Raises `ModelError` for a rotation that cannot be."""
        if self.attends[index]:
            return self.attention.layer(index, config, norm)
        return self.recurrent(index)


def layers_that_attend(config: JsonObject, recurrent: str, default: object) -> tuple[bool, ...]:
    """Return which layers attend: those of which `layer_types` says so, and not `recurrent`.

    `default` stands for `layer_types` where config.json is silent. Raises `ModelError` for a list
    of another length, for other kinds, and where no layer attends.
    """
    num_layers = config.integer("num_hidden_layers", 1, 4096)
    given = config.get("layer_types") if config.has("layer_types") else default
    kinds = given if isinstance(given, list) else []
    attends = tuple(each == "full_attention" for each in kinds)
    known = all(each in ("full_attention", recurrent) for each in kinds)
    if not known or len(kinds) != num_layers or not any(attends):
        raise config.error(
            "layer_types",
            f'a list of "full_attention", at least one, or "{recurrent}" for each of '
            f"{num_layers} layers",
        )
    return attends
