"""Every sampling field by every kind of row: what is asked arrives, what is bad names the field."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from pagedrun.paged.job.inputs.arrow_source import ArrowRows
from pagedrun.paged.job.inputs.byte_streams import CountedStream
from pagedrun.paged.job.inputs.csv_source import CsvSource
from pagedrun.paged.job.inputs.line_source import LineSource
from pagedrun.paged.job.inputs.row import Row
from pagedrun.paged.job.prompts.prompt_builder import PromptBuilder, request_keys
from pagedrun.paged.job.prompts.prompt_config import PromptConfig
from pagedrun.paged.job.prompts.requests import JobRow, RequestBuilder
from pagedrun.paged.text.prompt_encoder import Limits, PromptEncoder
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.json_value import JSONValue
from pagedrun.paged.values.sampling_params import FIELD_NAMES, SamplingParams
from tests.conftest import save_byte_tokenizer
from tests.support.every_field import CASES, SCHEMA

MAX_BYTES = 1_000_000


def as_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


ASKED = Mapping[str, Any]
# Columns of a CSV file whose cells are text as they are; an empty one counts as absent.
TEXT_CELLS = {"expected", "stop", "regex", "grammar", "reasoning_tags", "vote", "early_stopping"}
# What a row may say beside the sampling fields: a value to ask for, and bad ones.
MORE: dict[str, tuple[Any, list[Any]]] = {
    "continuations": (["b", "c d"], [[], "b", [""], [1], {"a": 1}]),
    "response_format": (
        as_format(SCHEMA),
        ["json", {"type": "xml"}, {"type": "json_schema"}, [1]],
    ),
    "priority": (-3, ["high", 1.5, True, [1], {"a": 1}, 2**31]),
    "raw": (True, ["yes", 1, [1], {"a": 1}]),
}
ALIASES = {"max_new_tokens", "max_completion_tokens"}


def of_line(asked: ASKED) -> Iterator[Row]:
    data = json.dumps({"prompt": "a", **asked}).encode()
    return iter(LineSource(io.BytesIO(data), "in.jsonl", MAX_BYTES))


def of_nested(asked: ASKED) -> Iterator[Row]:
    return of_line({"sampling_params": asked})


def of_csv(asked: ASKED) -> Iterator[Row]:
    text = io.StringIO(newline="")
    cells = [_cell(name, value) for name, value in asked.items()]
    csv.writer(text).writerows([["prompt", *asked], ["a", *cells]])
    return iter(CsvSource(CountedStream(io.BytesIO(text.getvalue().encode())), "in.csv", MAX_BYTES))


def _cell(name: str, value: Any) -> str:
    if name in TEXT_CELLS and isinstance(value, str):
        return value
    return json.dumps(value)


def of_record(asked: ASKED) -> Iterator[Row]:
    return iter(ArrowRows([pyarrow.Table.from_pylist([{"prompt": "a", **asked}])], MAX_BYTES))


def of_completion(asked: ASKED) -> Iterator[Row]:
    return of_call("/v1/completions", {"prompt": "a", **asked})


def of_chat(asked: ASKED) -> Iterator[Row]:
    return of_call(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], **asked}
    )


def of_call(url: str, body: ASKED) -> Iterator[Row]:
    call = {"custom_id": "c", "method": "POST", "url": url, "body": body}
    return iter(LineSource(io.BytesIO(json.dumps(call).encode()), "b.jsonl", MAX_BYTES))


WAYS: dict[str, Callable[[ASKED], Iterator[Row]]] = {
    each.__name__: each for each in (of_line, of_nested, of_csv, of_record, of_completion, of_chat)
}


class Builder:
    """What a row becomes in a job with these sampling parameters."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.from_folder(folder)

    def __call__(self, rows: Iterator[Row], default: SamplingParams | None = None) -> JobRow:
        (row,) = self.all(rows, default)
        return row

    def all(self, rows: Iterable[Row], default: SamplingParams | None = None) -> list[JobRow]:
        prompts = PromptBuilder(PromptConfig(), default or SamplingParams(), self._tokenizer)
        limits = Limits(max_model_len=512, vocab_size=320)
        return list(RequestBuilder(prompts, PromptEncoder(self._tokenizer, limits)).build(rows))


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    folder = tmp_path_factory.mktemp("every_field")
    save_byte_tokenizer(folder, adds_bos=True)
    return Builder(folder)


def in_words_of(way: str, name: str, value: Any) -> dict[str, Any]:
    """Return how this way asks for a field: a chat of OpenAI's has two keys for one."""
    if way == "of_chat" and name == "logprobs":
        return {"logprobs": True, "top_logprobs": value}
    return {name: value}


def has_form(way: str, name: str, value: Any) -> bool:
    """Whether a bad value can be said this way, where cells are text and empty ones absent."""
    return way != "of_csv" or name not in TEXT_CELLS or (isinstance(value, str) and value != "")


def test_every_field_has_a_case() -> None:
    """A new one needs a value to ask for and bad ones, for each way in."""
    assert set(CASES) == FIELD_NAMES
    assert set(CASES) | set(MORE) >= request_keys() - ALIASES
    plain = SamplingParams()
    assert [n for n, each in CASES.items() if SamplingParams(**{n: each.good}) == plain] == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_what_is_asked_arrives(build: Builder, name: str, way: str) -> None:
    case = CASES[name]
    row = build(WAYS[way]({**case.beside, **in_words_of(way, name, case.good)}))
    assert row.error is None
    assert row.request is not None
    assert row.request.params == SamplingParams(**{**case.beside, name: case.good})
    assert way in ("of_chat", "of_completion") or row.input == {}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_what_is_bad_names_the_field(build: Builder, name: str, way: str) -> None:
    case = CASES[name]
    bad = [value for value in case.bad if has_form(way, name, value)]
    assert bad
    for value in bad:
        row = build(WAYS[way]({**case.beside, **in_words_of(way, name, value)}))
        shown = "top_logprobs" if way == "of_chat" and name == "logprobs" else name
        assert row.error is not None, value
        assert (row.error.code, row.error.param) == ("invalid_param", shown), value
        assert shown in row.error.message
        assert row.error.line is not None
        assert row.request is None


@pytest.mark.parametrize("name", CASES)
def test_a_row_goes_over_the_job_and_null_leaves_it(build: Builder, name: str) -> None:
    case, plain = CASES[name], SamplingParams()
    job = SamplingParams(**{**case.beside, name: case.good})
    kept = build(of_line({name: None}), job)
    assert kept.request is not None
    assert kept.request.params == job
    off = False if name in ("logprobs", "prompt_logprobs") else as_json(getattr(plain, name))
    if off is None:
        return  # null: a row cannot take back what the job asks
    off = {} if name == "logit_bias" else off
    for way in (of_line, of_nested, of_csv, of_completion, of_chat):
        if way is of_csv and off in ([], {}) and name in TEXT_CELLS:
            continue  # an empty cell is as if it were not there
        own = build(way({name: off}), job)
        assert own.request is not None, own.error
        assert getattr(own.request.params, name) == getattr(plain, name), way.__name__


def as_json(value: Any) -> JSONValue:
    found: JSONValue = json.loads(json.dumps(value))
    return found


@pytest.mark.parametrize("name", MORE)
def test_what_else_a_row_may_say(build: Builder, name: str) -> None:
    good, bad = MORE[name]
    ways: list[Callable[[ASKED], Iterator[Row]]] = [of_line, of_csv, of_record, of_chat]
    for way in ways:
        row = build(way({name: good}))
        if way is of_chat and name in ("continuations", "raw"):
            assert row.error is not None
            assert (row.error.code, row.error.param) == ("invalid_param", name)
            continue
        assert row.request is not None, row.error
        assert name not in row.input
        for value in bad:
            row = build(way({name: value}))
            assert row.error is not None, value
            assert (row.error.code, row.error.param) == ("invalid_param", name), value


def test_what_each_of_them_comes_to(build: Builder) -> None:
    scored = build(of_csv({"continuations": ["b", "c d"], "expected": "b"}))
    assert scored.request is not None
    assert [each.text for each in scored.request.continuations] == ["b", "c d"]
    assert (scored.expected, scored.input) == ("b", {"expected": "b"})
    urgent = build(of_csv({"priority": -3}))
    scored = build(of_record({"priority": 2, "continuations": ["b"]}))
    asked = [each.request.priority for each in (urgent, scored) if each.request is not None]
    assert asked == [-3, 2]
    shaped = build(of_record({"response_format": MORE["response_format"][0]}))
    assert shaped.request is not None
    assert shaped.request.params.structure == SamplingParams(json_schema=SCHEMA).structure  # type: ignore[arg-type]


def test_records_of_one_table_keep_their_own_objects(build: Builder) -> None:
    """A table has each key for all rows; a schema must not get those of another one, with null."""
    one = {"type": "object", "properties": {"a": {"const": "x"}}, "required": ["a"]}
    other = {"properties": {"a": {"enum": ["y", None]}, "b": {"type": "integer"}}}
    columns = [
        {"prompt": "a", "json_schema": one, "response_format": None},
        {"prompt": "a", "json_schema": other},
        {"prompt": "a", "response_format": {"type": "json_object"}},
        {"prompt": "a", "response_format": as_format(one)},
    ]
    rows = ArrowRows([pyarrow.Table.from_pylist(columns)], MAX_BYTES)
    params = [row.request.params if row.request else row.error for row in build.all(rows)]
    plain = SamplingParams()
    assert params == [
        plain.override({"json_schema": one}),
        plain.override({"json_schema": other}),
        plain.override({"json_object": True}),
        plain.override({"json_schema": one}),
    ]


@pytest.mark.parametrize(
    ("name", "value", "instead"),
    [
        ("use_beam_search", True, "beam_width"),
        ("best_of", 3, "use n, the number of answers"),
        ("guided_json", {"type": "object"}, "json_schema"),
        ("guided_choice", ["a"], "choice"),
        ("structured_outputs", {"regex": "a"}, "regex"),
        ("tools", [{"type": "function"}], ""),
    ],
)
def test_parameters_of_other_tools_are_refused_with_the_way_out(
    build: Builder, name: str, value: Any, instead: str
) -> None:
    for way in (of_line, of_nested, of_record, of_chat, of_completion):
        row = build(way({name: value}))
        assert row.error is not None
        assert (row.error.code, row.error.param) == ("invalid_param", name)
        assert row.error.message.startswith(f"{name} is not supported")
        assert instead in row.error.message


def test_echo_of_a_call_is_refused_with_the_way_out(build: Builder) -> None:
    row = build(of_completion({"echo": True}))
    assert row.error is not None
    assert (row.error.param, "prompt_logprobs" in row.error.message) == ("echo", True)
    assert build(of_completion({"echo": False})).error is None
