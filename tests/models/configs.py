"""config.json files of small decoders: written, read, and refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.models.decoder_spec import DecoderLayerSpec
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.models.modules.moe import MoeSpec
from pagedrun.paged.values.errors import ModelError

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
SHAPE: dict[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}


def write(folder: Path, **fields: Any) -> Path:
    """Write a config.json of `SHAPE` and these fields; "absent" removes one of the shape."""
    given = {name: value for name, value in {**SHAPE, **fields}.items() if value != "absent"}
    (folder / "config.json").write_text(json.dumps(given), encoding="utf-8")
    return folder


def read(folder: Path, **fields: Any) -> ModelConfig:
    return ModelConfig.from_folder(write(folder, **fields))


def refusal(folder: Path) -> str:
    """Return the one line that says why a folder is refused."""
    with pytest.raises(ModelError) as caught:
        ModelConfig.from_folder(folder)
    message = str(caught.value)
    assert "\n" not in message
    return message


def moe_layers(config: ModelConfig) -> list[MoeSpec | None]:
    """Return each layer's MoE, None where it is dense."""
    layers = config.network.layers
    ffns = [layer.ffn for layer in layers if isinstance(layer, DecoderLayerSpec)]
    assert len(ffns) == len(layers)
    return [each if isinstance(each, MoeSpec) else None for each in ffns]
