"""From flags to a job."""

from pathlib import Path
from typing import Any

import pytest

from pagedrun.cli.options.job_flags import job_config
from pagedrun.cli.options.reading import text_or_file
from pagedrun.cli.options.settings import Settings, default_output
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.sampling_params import SamplingParams
from pagedrun.recipes.demo import demo_model_folder


def config(**given: Any) -> Any:
    return job_config(Settings({"input_name": "in.jsonl", "model": "demo", **given}))


def test_without_flags_everything_is_the_default() -> None:
    job = config()
    assert job.engine == EngineConfig.fitting(model=demo_model_folder())
    assert job.sampling == SamplingParams()
    assert (job.input, job.output) == ("in.jsonl", "in.out.jsonl")
    assert "max_tokens" not in job.origins


def test_flags_reach_their_place_and_are_marked() -> None:
    job = config(
        max_tokens=3,
        temperature=0.5,
        stop=["a", "b"],
        stop_token_ids=["1,2", "3"],
        logit_bias='{"7": -100, "3": 0.5}',
        allowed_token_ids=["3,4"],
        bad_words=["x", " y"],
        block_size=8,
        dtype="float32",
        prefix_caching=False,
        system="S",
        prompt_field="q",
        limit=2,
    )
    assert job.sampling == SamplingParams(
        max_tokens=3,
        temperature=0.5,
        stop=("a", "b"),
        stop_token_ids=(1, 2, 3),
        logit_bias=((3, 0.5), (7, -100.0)),
        allowed_token_ids=(3, 4),
        bad_words=("x", " y"),
    )
    assert job.engine == EngineConfig.fitting(
        model=demo_model_folder(), block_size=8, dtype="float32", prefix_caching=False
    )
    assert type(job.engine.dtype) is str
    assert (job.prompts.system, job.prompts.field, job.limit) == ("S", "q", 2)
    assert job.origins["prefix_caching"] == job.origins["stop"] == "flag"


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"top_p": 2.0}, "^top_p must be"),
        ({"temperature": float("nan")}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
        ({"stop": [""]}, "stop"),
        ({"stop_token_ids": ["x"]}, "stop_token_ids"),
        ({"stop_token_ids": ["1,,2"]}, "stop_token_ids"),
        ({"stop_token_ids": ["-1"]}, "stop_token_ids"),
        ({"allowed_token_ids": ["x"]}, "allowed_token_ids"),
        ({"logit_bias": "{"}, "^logit_bias takes JSON: not valid JSON"),
        ({"logit_bias": '{"1": 1, "1": 2}'}, "^logit_bias takes JSON: the key '1' occurs twice"),
        ({"logit_bias": "[1]"}, "^logit_bias must be an object"),
        ({"bad_words": [" "]}, "^bad_words must be"),
        ({"frequency_penalty": 3.0}, "^frequency_penalty must be a number from -2 to 2"),
        ({"block_size": 0}, "block_size"),
        ({"model": "no/such/folder/here"}, "no such folder"),
        ({"revision": "main"}, "revision needs model"),
        ({"tokenizer": "./missing"}, "no such folder"),
        ({"prompt_template": "{{ x"}, "prompt_template"),
        ({"prompt_template": "x", "prompt_field": "y"}, "exclude each other"),
        ({"system": "@missing.txt"}, "system @missing.txt: the file cannot be read"),
        ({"output": "-", "json_report": True}, "both write to stdout"),
        ({"max_tokens": -3}, r"^max_tokens must be an integer from 1 to"),
        ({"n": 0}, r"^n must be an integer from 1 to"),
        ({"min_tokens": 9, "max_tokens": 3}, r"^min_tokens 9 exceeds max_tokens 3"),
    ],
)
def test_a_flag_that_cannot_be_used_is_named(given: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        config(**given)


def test_text_may_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "system.txt"
    path.write_bytes("\ufeffBe kind.\n\n".encode())
    assert text_or_file(f"@{path}", "system") == "Be kind.\n"
    assert text_or_file("Be kind.", "system") == "Be kind."
    path.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="not UTF-8"):
        text_or_file(f"@{path}", "system")


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("x.jsonl", "x.out.jsonl"),
        ("/data/a.b.jsonl", "a.b.out.jsonl"),
        ("-", "stdin.out.jsonl"),
    ],
)
def test_the_default_output_is_in_this_folder(name: str, wanted: str) -> None:
    assert default_output((name,)) == wanted
