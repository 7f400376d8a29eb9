"""Names of a decoder's tensors in checkpoints.

pagedrun calls tensors `model.…` and `lm_head.…`. Checkpoints of models with a vision tower put
other prefixes before the decoder's names, and hold tensors of other parts, which are ignored by
prefix.
"""

from collections.abc import Collection
from dataclasses import dataclass

HEAD = "lm_head"
_MODEL, _HEAD = "model.", f"{HEAD}."


@dataclass(frozen=True, slots=True)
class TensorNames:
    """Prefixes of a checkpoint for `model.` and `lm_head.`."""

    model: str = _MODEL
    head: str = _HEAD

    def of(self, name: str) -> str:
        """Return the name in the checkpoint of our tensor `name`."""
        for ours, theirs in ((_MODEL, self.model), (_HEAD, self.head)):
            if name.startswith(ours):
                return theirs + name.removeprefix(ours)
        return name


@dataclass(frozen=True, slots=True)
class NamedTensors:
    """Naming schemes of checkpoints, tried in order, and prefixes of tensors to ignore.

    `dropped`: prefixes of parts that a decoder does not have, such as a vision tower.
    """

    layouts: tuple[TensorNames, ...] = (TensorNames(),)
    dropped: tuple[str, ...] = ()

    def layout(self, name: str, names: Collection[str]) -> TensorNames:
        """Return the first layout in which a checkpoint with `names` has our tensor `name`."""
        for layout in self.layouts:
            if layout.of(name) in names:
                return layout
        return self.layouts[0]


# Multi-token prediction heads.
_MTP = "mtp."
PLAIN_TENSORS = NamedTensors()
# Of folders with such heads, as the hub has them.
MTP_TENSORS = NamedTensors(dropped=(_MTP,))
# Of folders with parts for images: as the hub's older ones are, then as transformers 5 writes them.
MULTIMODAL_TENSORS = NamedTensors(
    (
        TensorNames("language_model.model.", "language_model.lm_head."),
        TensorNames("model.language_model."),
    ),
    dropped=(
        "model.visual.",
        "visual.",
        "vision_tower.",
        "model.vision_tower.",
        _MTP,
        "multi_modal_projector.",
        "model.multi_modal_projector.",
        "audio_tower.",
        "model.audio_tower.",
        "embed_vision.",
        "model.embed_vision.",
        "embed_audio.",
        "model.embed_audio.",
        "model.vision_embedder.",
    ),
)
