"""What --model_args may say: names of the harness and of the engine; a sentence for the rest."""

from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.evaluation.model_args import ModelArgs
from pagedrun.paged.values.errors import UsageError


def test_names_of_the_harness_mean_those_of_the_engine() -> None:
    args = ModelArgs.of(
        {
            "pretrained": "./model",
            "max_length": 512,
            "max_batch_size": 8,
            "dtype": "float32",
            "device": "cuda:0",
            "prefix_store": "kept",
            "batch_size": 4,
            "tokenizer": None,
            "revision": 3,
            "trust_remote_code": False,
        }
    )
    assert (args.pretrained, args.revision, args.tokenizer) == ("./model", "3", None)
    assert args.engine == {
        "max_model_len": 512,
        "max_num_seqs": 8,
        "dtype": "float32",
        "device": "auto",
        "prefix_store": Path("kept"),
    }


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "the model is missing; give pretrained=FOLDER"),
        (
            {"max_lenght": 3},
            "max_lenght is not an argument of this model; it takes activations, add_bos_token, ",
        ),
        ({"model": "y"}, "model and pretrained are the same argument; give one"),
        (
            {"max_length": 9, "max_model_len": 9},
            "max_model_len and max_length are the same argument",
        ),
        ({"max_gen_toks": 0}, "max_gen_toks is 0; it must be an integer of at least 1"),
        ({"add_bos_token": "yes"}, "add_bos_token is 'yes'; it must be True or False"),
        ({"chat_template_args": "a"}, "chat_template_args is 'a'; it must be a mapping"),
        ({"trust_remote_code": True}, "pagedrun never runs code from a model folder"),
        ({"enable_thinking": True}, "enable_thinking needs think_end_token, such as </think>"),
    ],
    ids=str,
)
def test_a_bad_one_is_refused_by_name(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        ModelArgs.of({"pretrained": "x", **given} if given else {})
    assert str(caught.value).startswith(sentence)


def test_variables_of_the_chat_template() -> None:
    given: dict[str, Any] = {"pretrained": "x", "chat_template_args": {"tone": "dry"}}
    assert ModelArgs.of(given).template_variables == {"tone": "dry"}
    given["enable_thinking"] = False
    assert ModelArgs.of(given).template_variables == {"tone": "dry", "enable_thinking": False}
