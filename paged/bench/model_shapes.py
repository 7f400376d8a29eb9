"""Model shapes: config.json files of well-known models, measured with random weights.

`model_shapes.json` has the fields of their public config.json files, and `tiny`, which is not a
published model: for tests, and to see a command work at once. `mistral-small-3.1-24b` is the
decoder of a model that also reads images.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.values.errors import UsageError, option
from pagedrun.paged.values.json_value import JSONValue

VOCAB_MULTIPLE = 64
_CONFIGS: Mapping[str, dict[str, JSONValue]] = json.loads(
    Path(__file__).with_suffix(".json").read_bytes()
)
SHAPE_NAMES = tuple(_CONFIGS)


@dataclass(frozen=True, slots=True)
class Shape:
    """A model without weights: its name and the fields of its config.json."""

    name: str
    fields: Mapping[str, JSONValue]

    @classmethod
    def named(cls, name: str, num_layers: int | None = None) -> "Shape":
        """Return a shape of `SHAPE_NAMES`, cut to `num_layers` if given.

        A cut shape keeps the proportions of the whole: its vocabulary shrinks with its depth, so
        that the embedding and the head weigh what they weigh in the whole model. Raises
        `UsageError` for a name that is not known, or more layers than the model has.
        """
        fields = _CONFIGS.get(name)
        if fields is None:
            raise UsageError(
                f"{option('shape')} {name} is not known; choose one of {', '.join(SHAPE_NAMES)}, "
                f"or give a model folder with {option('model')}"
            )
        model = cls(name, fields)
        whole = model.config.num_layers
        if num_layers is None or num_layers == whole:
            return model
        if not 1 <= num_layers <= whole:
            raise UsageError(
                f"{option('layers')} is {num_layers}; {name} has {whole} layers to choose from"
            )
        vocab_size = max(round(model.config.vocab_size * num_layers / whole / VOCAB_MULTIPLE), 1)
        changes: dict[str, JSONValue] = {
            "num_hidden_layers": num_layers,
            "vocab_size": vocab_size * VOCAB_MULTIPLE,
            "bos_token_id": 0,  # the model's own may lie past the smaller vocabulary
            "eos_token_id": 1,
            **_cut_lists(fields, num_layers, model.config.windows),
        }
        return cls(name, {**fields, **changes})

    @property
    def config(self) -> ModelConfig:
        """Parsed config of the shape."""
        return ModelConfig.from_json(JsonObject(f"shape {self.name}", self.fields))


def _cut_lists(
    fields: Mapping[str, JSONValue], num_layers: int, windows: Sequence[int | None]
) -> dict[str, JSONValue]:
    """Return other fields with a value per layer, for fewer layers; windows: of all layers."""
    changes: dict[str, JSONValue] = {}
    kinds = fields.get("layer_types")
    if isinstance(kinds, list):
        changes["layer_types"] = kinds[:num_layers]
    shared = fields.get("num_kv_shared_layers")
    if isinstance(shared, int):
        # Keeps a layer of each kind whose keys other layers read.
        most = num_layers - windows.index(None) - 1
        changes["num_kv_shared_layers"] = max(min(shared * num_layers // len(windows), most), 0)
    return changes
