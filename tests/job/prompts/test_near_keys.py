"""Keys of rows that are all but a parameter's name: found, and words that are data left alone."""

import pytest

from pagedrun.paged.job.prompts.prompt_builder import accepts_value, near_key, request_keys

KEYS = request_keys() | {"sampling_params", "continuations", "priority"}


@pytest.mark.parametrize(
    ("column", "key"),
    [
        ("max_token", "max_tokens"),
        ("max_tokens_", "max_tokens"),
        ("max_tokesn", "max_tokens"),
        ("maxTokens", "max_tokens"),
        ("max-tokens", "max_tokens"),
        ("MAX_TOKENS", "max_tokens"),
        ("max_new_token", "max_new_tokens"),
        ("temperatur", "temperature"),
        ("temprature", "temperature"),
        ("Temperature", "temperature"),
        ("topp", "top_p"),
        ("topK", "top_k"),
        ("stops", "stop"),
        ("seeds", "seed"),
        ("sede", "seed"),
        ("grammer", "grammar"),
        ("choices", "choice"),
        ("json-schema", "json_schema"),
        ("sampling_param", "sampling_params"),
        ("response_formats", "response_format"),
    ],
)
def test_one_letter_off_is_near(column: str, key: str) -> None:
    assert near_key(column, KEYS) == key


@pytest.mark.parametrize(
    "column",
    [
        *(
            "note",
            "step",
            "need",
            "feed",
            "id",
            "n",
            "k",
            "nn",
            "top",
            "text",
            "prompts",
            "question",
        ),
        *("max_rows", "temperature_outside", "", "東京", "x" * 10_000),
    ],
)
def test_other_words_are_data(column: str) -> None:
    assert near_key(column, KEYS) is None


@pytest.mark.parametrize("key", sorted(KEYS))
def test_a_key_is_not_near_another_one(key: str) -> None:
    assert near_key(key, KEYS) is None


@pytest.mark.parametrize(
    ("key", "value", "could"),
    [
        ("max_tokens", 5, True),
        ("max_tokens", "5", True),
        ("max_new_tokens", 5, True),
        ("max_tokens", "many", False),
        ("max_tokens", None, False),
        ("seed", [1], False),
        ("temperature", 0.5, True),
        ("temperature", True, False),
        ("ignore_eos", True, True),
        ("ignore_eos", "yes", False),
        ("vote", 17, False),
        ("vote", "(a|b)", True),
        ("choice", ["a"], True),
        ("stop", "\n", True),
        ("json_schema", {"type": "object"}, True),
    ],
)
def test_a_value_of_another_kind_is_data(key: str, value: object, could: bool) -> None:
    assert accepts_value(key, value) is could  # type: ignore[arg-type]
