"""What a model folder advises on sampling."""

import json
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.models.generation_config import GenerationConfig
from pagedrun.paged.values.errors import ModelError


def read(folder: Path, **given: Any) -> GenerationConfig:
    (folder / "generation_config.json").write_text(json.dumps(given))
    return GenerationConfig.from_folder(folder)


def test_a_folder_without_the_file_advises_nothing(tmp_path: Path) -> None:
    assert GenerationConfig.from_folder(tmp_path) == GenerationConfig()


def test_values_are_taken_and_the_rest_is_named(tmp_path: Path) -> None:
    advice = read(
        tmp_path,
        do_sample=True,
        temperature=0.7,
        top_p=0.8,
        top_k=20,
        repetition_penalty=1.1,
        num_beams=1,
        no_repeat_ngram_size=0,
        suppress_tokens=[],
        max_new_tokens=2048,
        eos_token_id=[1, 2],
        transformers_version="5.3.0",
    )
    taken = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.1}
    assert advice.values == taken
    assert advice.not_taken == ("max_new_tokens",)


def test_sampling_without_a_temperature_is_at_one(tmp_path: Path) -> None:
    assert read(tmp_path, do_sample=True, top_k=5).values == {"top_k": 5, "temperature": 1.0}
    assert read(tmp_path, top_k=5).values == {"top_k": 5}


def test_no_sampling_is_greedy_and_what_does_not_apply_is_named(tmp_path: Path) -> None:
    advice = read(tmp_path, do_sample=False, temperature=0.7, top_p=0.9, repetition_penalty=1.1)
    taken = {"temperature": 0.0, "repetition_penalty": 1.1}
    assert advice == GenerationConfig(taken, ("temperature", "top_p"))


@pytest.mark.parametrize(
    "given",
    [
        {"temperature": -1},
        {"top_p": 0},
        {"repetition_penalty": 0},
        {"top_p": "high"},
        {"top_k": 1.5},
        {"do_sample": "yes"},
    ],
)
def test_a_value_out_of_range_is_refused(tmp_path: Path, given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(ModelError, match=rf"generation_config\.json: {name} is "):
        read(tmp_path, **given)
