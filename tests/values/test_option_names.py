"""Options in messages: as arguments to Python, as flags to a shell."""

import pickle

import pytest

from pagedrun.paged.values.errors import (
    ModelError,
    PagedrunError,
    RowError,
    UsageError,
    as_argument,
    as_flag,
    first_option,
    option,
    spelled,
    turned_off,
)

MESSAGE = f"{option('max_model_len')} is 9; leave out {turned_off('prefix_caching')}"


def test_a_message_is_spelled_for_whoever_reads_it() -> None:
    assert spelled(MESSAGE, as_argument) == "max_model_len is 9; leave out prefix_caching=False"
    assert spelled(MESSAGE, as_flag) == "--max-model-len is 9; leave out --no-prefix-caching"
    assert spelled("--max-model-len of a file name", str.upper) == "--max-model-len of a file name"


@pytest.mark.parametrize("kind", [PagedrunError, UsageError, ModelError])
def test_an_error_shows_arguments_and_names_the_option_that_is_wrong(
    kind: type[PagedrunError],
) -> None:
    error = kind(MESSAGE)
    assert str(error) == f"{error}" == spelled(MESSAGE, as_argument)
    assert error.shown(as_flag) == spelled(MESSAGE, as_flag)
    assert error.field == "max_model_len"
    assert kind(MESSAGE, field="block_size").field == "block_size"
    assert kind("no such file").field is None
    again = pickle.loads(pickle.dumps(error))
    assert (again.field, again.shown(as_flag)) == (error.field, error.shown(as_flag))


def test_one_error_takes_in_another() -> None:
    outer = UsageError(f"line 3: {UsageError(MESSAGE).marked}")
    assert outer.shown(as_flag) == f"line 3: {spelled(MESSAGE, as_flag)}"


def test_a_rows_error_is_written_with_flags() -> None:
    error = RowError("prompt_too_long", MESSAGE, param="prompt", line=3)
    assert error.message == spelled(MESSAGE, as_argument)
    assert error.to_dict(as_flag)["message"] == spelled(MESSAGE, as_flag)
    assert error.field == "prompt"
    long = RowError("x", f"{option('n')} " + "é" * 2000)
    assert len(long.shown(as_flag).encode()) <= RowError.MAX_MESSAGE


def test_the_option_that_is_turned_off_is_the_switch() -> None:
    assert first_option(f"leave out {turned_off('prefix_once')}") == "prefix_once"
    assert first_option("nothing") is None
