"""Unknown arguments in Python are refused with the name that was meant."""

import inspect
from typing import Any

import pytest

from pagedrun.paged.llm import LLM
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import PagedrunError, UsageError
from pagedrun.paged.values.sampling_params import FIELD_NAMES, SamplingParams

GONE = "no/such-model"  # what is wrong with the arguments is told before the model is looked for


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"max_num_seq": 3}, "did you mean max_num_seqs?"),
        ({"replica": 3}, "did you mean replicas?"),
        ({"chat_templat": "x"}, "did you mean chat_template?"),
        ({"enable_prefix_caching": True}, "is called prefix_caching here"),
        ({"num_gpu_blocks_override": 7}, "is called num_blocks here"),
        ({"tensor_parallel_size": 2}, "a run uses one device"),
        ({"trust_remote_code": True}, "never runs code from a model folder"),
        ({"fitted": ("block_size",)}, "no argument fitted"),  # a field, but no option
    ],
    ids=str,
)
def test_of_the_engine(given: dict[str, Any], meant: str) -> None:
    (name,) = given
    with pytest.raises(UsageError, match=name) as caught:
        LLM(GONE, **given)
    assert meant in str(caught.value)
    assert caught.value.field == name
    assert "--" not in str(caught.value)  # of a shell's spelling


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"temprature": 0.5}, "did you mean temperature?"),
        ({"max_new_tokens": 5}, "is called max_tokens here"),
        ({"best_of": 5}, "n draws several answers and vote chooses among them"),
    ],
    ids=str,
)
def test_of_sampling(given: dict[str, Any], meant: str) -> None:
    (name,) = given
    with pytest.raises(UsageError, match=name) as caught:
        SamplingParams(**given)
    assert meant in str(caught.value)
    assert caught.value.field == name


def test_editors_and_help_see_the_arguments_themselves() -> None:
    assert set(inspect.signature(SamplingParams).parameters) == FIELD_NAMES
    assert "progress" in inspect.signature(LLM.generate).parameters
    with pytest.raises(TypeError, match="positional"):  # as of any function
        SamplingParams(*range(99))


@pytest.mark.parametrize(
    "given",
    [
        {"max_num_seqs": "64"},
        {"max_num_seqs": True},
        {"prefix_caching": "no"},
        {"enforce_eager": 1},
        {"swap_space_bytes": "4GiB"},
        {"gpu_memory_utilization": 2},
        {"dtype": "fp16"},
    ],
    ids=str,
)
def test_a_value_of_the_wrong_type_is_refused(given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(UsageError, match=f"^{name} is ") as caught:
        EngineConfig(GONE, **given)  # type: ignore[arg-type]
    assert caught.value.field == name


@pytest.mark.parametrize(
    "given", [{"replicas": "2"}, {"replicas": 0}, {"push_model": "yes", "replicas": 2}], ids=str
)
def test_of_replicas_too(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"^{next(iter(given))} is "):
        LLM(GONE, **given)


@pytest.mark.parametrize(
    "given",
    [
        {"model": None},
        {"model": 3},
        {"model": GONE, "chat_template": 3},
        {"model": GONE, "revision": 1},
    ],
    ids=str,
)
def test_texts_are_texts(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="must be text") as caught:
        LLM(**given)
    assert caught.value.field == list(given)[-1]
    assert isinstance(caught.value, PagedrunError)
