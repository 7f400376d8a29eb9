"""Whatever the bytes of an input are: one output row for each row, or one sentence of refusal."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagedrun.paged.job.job import run_job
from pagedrun.paged.values.errors import UsageError
from tests.support.scripted_model import ScriptedModel, config_for

USAGE = {
    "prompt_tokens": int,
    "cached_tokens": int,
    "completion_tokens": int,
    "truncated_tokens": int,
    "max_tokens_clamped": bool,
}
COLUMNS = """
prompt messages prompt_token_ids id custom_id max_tokens temperature n stop top_k seed
sampling_params chat_template label method url body expected
"""
NAMES = st.sampled_from(COLUMNS.split())
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
OBJECTS = st.dictionaries(NAMES | st.text(max_size=6), VALUES, max_size=5)
GOOD = st.fixed_dictionaries({"prompt": st.text(min_size=1, max_size=20)})
LINES = st.one_of(
    (OBJECTS | GOOD | VALUES).map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=30),
    st.text(max_size=30).map(lambda text: text.encode("utf-8", "surrogatepass")),
    GOOD.map(lambda row: json.dumps(row).encode()[:-3]),
)


def answer(data: bytes, suffix: str) -> list[dict[str, Any]] | None:
    """Run a job on `data`; return its rows, None if the input is refused as a whole."""
    with TemporaryDirectory() as name:
        place = Path(name)
        (place / "model").mkdir()
        (place / "model" / "config.json").write_text("{}")
        source = place / f"in{suffix}"
        source.write_bytes(data)
        try:
            run_job(config_for(place, input=str(source)), None, ScriptedModel().open())
        except UsageError as error:
            sentence = str(error)
        else:
            sentence = ""
        if sentence:
            assert str(source) in sentence
            assert "\n" not in sentence
            assert not (place / "out.jsonl").exists()
            return None
        lines = (place / "out.jsonl").read_bytes().decode("utf-8").split("\n")
        assert lines.pop() == ""
        return [json.loads(line) for line in lines]


FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
MANY = settings(FEW, max_examples=5000)
FILES = st.tuples(st.lists(LINES, max_size=6), st.booleans())


@FEW
@given(FILES)
def test_every_line_that_is_not_blank_gets_a_row(file: tuple[list[bytes], bool]) -> None:
    check_file(*file)


@pytest.mark.long
@MANY
@given(FILES)
def test_every_line_of_thousands_of_files(file: tuple[list[bytes], bool]) -> None:
    check_file(*file)


def check_file(lines: list[bytes], ended: bool) -> None:
    data = b"\n".join(lines) + b"\n" * ended
    physical = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    num_rows = sum(bool(line.strip(b" \t\r\n")) for line in physical)
    rows = answer(data, ".jsonl")
    if rows is None:
        return
    assert sorted(row["index"] for row in rows) == list(range(num_rows))
    for row in rows:
        if "response" in row:
            continue  # in OpenAI's format
        assert {name: type(value) for name, value in row["usage"].items()} == USAGE
        assert isinstance(row["outputs"], list)
        assert (row["error"] is None) == isinstance(row["text"], str)
        assert (row["error"] is None) == (row["finish_reason"] in ("stop", "length"))


@pytest.mark.parametrize("suffix", [".json", ".csv", ".txt", ".jsonl.gz", ".json.zst", ".parquet"])
@settings(FEW, max_examples=20)
@given(data=st.data())
def test_nor_does_any_other_kind_of_input_crash(suffix: str, data: st.DataObject) -> None:
    raw = data.draw(
        st.binary(max_size=80)
        | st.lists(OBJECTS, max_size=4).map(lambda rows: json.dumps(rows).encode())
        | st.text(max_size=80).map(lambda text: text.encode("utf-8", "surrogatepass"))
    )
    rows = answer(raw, suffix)
    if rows is not None:
        assert sorted(row["index"] for row in rows) == list(range(len(rows)))


def test_a_column_with_a_line_end_in_its_name_leaves_a_refusal_one_line() -> None:
    assert answer(b'[{},{"\\n":null}]', ".json") is None
