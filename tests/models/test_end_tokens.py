"""What ends an answer: generation_config.json, config.json and the decoder's part together."""

from typing import Any

import pytest

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.values.errors import ModelError
from tests.models.configs import SHAPE

DECODER: dict[str, Any] = {**SHAPE, "vocab_size": 300_000}


def plain(**fields: Any) -> dict[str, Any]:
    return {**DECODER, "model_type": "qwen3", **fields}


def nested(outer: dict[str, Any], **inner: Any) -> dict[str, Any]:
    return {"model_type": "gemma3", "text_config": {**DECODER, **inner}, **outer}


def end_tokens(config: dict[str, Any], generation: dict[str, Any] | None) -> tuple[int, ...]:
    said = None if generation is None else JsonObject("generation_config.json", generation)
    return ModelConfig.from_json(JsonObject("config.json", config), said).eos_token_ids


QWEN3_5 = nested({}, eos_token_id=248_044)
GEMMA = nested({"eos_token_id": [1, 106]}, eos_token_id=1)


# As the files of the hub differ: the end of a turn is missing in one, the end of a text in another.
@pytest.mark.parametrize(
    ("config", "generation", "ids"),
    [
        # Qwen3.5
        (
            nested({}, eos_token_id=248_044),
            {"eos_token_id": [248_046, 248_044]},
            (248_046, 248_044),
        ),
        (GEMMA, None, (1, 106)),
        (GEMMA, {"eos_token_id": [1, 106]}, (1, 106)),
        (GEMMA, {"eos_token_id": [1, 106, 50]}, (1, 106, 50)),  # Gemma 4
        # gpt-oss
        (
            plain(eos_token_id=200_002),
            {"eos_token_id": [200_002, 199_999, 200_012]},
            (200_002, 199_999, 200_012),
        ),
        # Each file says another one, or nothing.
        (nested({"eos_token_id": 7}, eos_token_id=8), {"eos_token_id": 9}, (9, 7, 8)),
        (nested({"eos_token_id": None}, eos_token_id=8), {"eos_token_id": None}, (8,)),
        (nested({}, eos_token_id=[8, 8]), {}, (8,)),
        (plain(), {"eos_token_id": 9}, (9,)),
        (plain(eos_token_id=None), None, ()),
        (plain(model_type="llama"), None, (2,)),  # the default of Transformers
    ],
)
def test_every_file_counts_the_generation_config_first(
    config: dict[str, Any], generation: dict[str, Any] | None, ids: tuple[int, ...]
) -> None:
    assert end_tokens(config, generation) == ids


@pytest.mark.parametrize("bad", [-1, 300_000, "106", [1, None], [[1]], True, 1.0, [1] * 1025])
@pytest.mark.parametrize("place", ["generation", "outer", "text"])
def test_what_is_no_token_is_refused_wherever_it_is(place: str, bad: Any) -> None:
    outer = {"eos_token_id": bad} if place == "outer" else {}
    inner = {"eos_token_id": bad} if place == "text" else {}
    generation = {"eos_token_id": bad} if place == "generation" else {}
    with pytest.raises(ModelError, match="eos_token_id") as caught:
        end_tokens(nested(outer, **inner), generation)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
