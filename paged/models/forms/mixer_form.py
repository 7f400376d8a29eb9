"""MixerForm: what the layers of a family have in front of their feed-forward parts."""

from typing import Protocol

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.forms.norm_form import NormForm
from pagedrun.paged.models.network.attention_spec import AttentionSpec
from pagedrun.paged.models.network.recurrence.recurrent_spec import RecurrentSpec


class MixerForm(Protocol):
    """Attention in all layers, or recurrences in some."""

    @property
    def num_layers(self) -> int:
        """Layers of the decoder."""
        ...

    def layer(
        self, index: int, config: JsonObject, norm: NormForm
    ) -> AttentionSpec | RecurrentSpec:
        """Return the mixer of a layer."""
        ...
