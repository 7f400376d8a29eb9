"""What Hugging Face says of a bad config.json comes to a sentence that names the key."""

import json
from pathlib import Path

import pytest

from pagedrun.paged.models.transformers_backend.config import TransformersConfig
from pagedrun.paged.models.transformers_backend.config_fields import error_summary
from pagedrun.paged.values.errors import ModelError
from tests.conftest import MakeModel


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("hidden_size", "x", "hidden_size must be an integer"),
        ("hidden_size", None, "hidden_size must be an integer"),
        ("rms_norm_eps", [1], "rms_norm_eps must be a number"),
        ("hidden_act", 3, "hidden_act must be a string"),
        ("rope_parameters", 3, "rope_parameters must be an object or null"),
        ("tie_word_embeddings", "no", "tie_word_embeddings must be true or false"),
        (
            "num_hidden_layers",
            -1,
            "num_hidden_layers (-1) must be equal to the number of layer_types",
        ),
    ],
)
def test_a_field_of_the_wrong_type(
    name: str, value: object, wanted: str, make_model: MakeModel, tmp_path: Path
) -> None:
    config = json.loads((make_model("qwen3", "plan") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, name: value}))
    with pytest.raises(ModelError) as caught:
        TransformersConfig.from_folder(tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'config.json'}: ")
    assert wanted in message
    assert "alidation" not in message
    assert "\n" not in message


def test_any_other_error_has_its_kind_and_first_line() -> None:
    assert error_summary(ValueError(" no such thing\nand more")) == "ValueError: no such thing"
    assert error_summary(RuntimeError()) == "RuntimeError: "
    assert len(error_summary(RuntimeError("x" * 999))) < 250
