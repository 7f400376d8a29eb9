"""Lines that are no rows, and rows that look like none: inputs 1 to 13."""

import io
import json
import resource
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.inputs.json_line import MAX_DEPTH
from pagedrun.paged.job.inputs.line_source import LineSource
from pagedrun.paged.job.job import run_job
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.support.jsonl import read_jsonl, write_jsonl

Run = Callable[..., Any]
OK: dict[str, Any] = {"prompt": "a"}
# NUL, clear the screen, set the clipboard, a link, C1, right to left, and Rich's own markup.
CONTROLS = "\x00\x1b[2J\x1b]52;c;aGk=\x07\x1b]8;;http://evil\x1b\\\x9b31m\x85\u202etxt\u2066"
MARKUP = "[/red][bold[link=http://evil]:smile:"


@pytest.mark.parametrize("data", [b"", b"\n\r\n \t\n", b"\xef\xbb\xbf\n"])
def test_01_an_empty_input_is_refused(generate: Run, data: bytes) -> None:
    done = generate(data)
    assert (done.status, done.rows) == (2, [])
    assert "in.jsonl: empty input" in done.err


def test_02_the_last_line_needs_no_newline(generate: Run) -> None:
    done = generate(b'{"prompt":"a"}\n{"prompt":"b"}')
    assert (done.status, done.codes) == (0, [None, None])


def test_03_a_torn_line_fails_with_line_and_column(generate: Run) -> None:
    done = generate(b'{"prompt":"a"}\n{"prompt":"b')
    assert (done.status, done.codes) == (3, [None, "invalid_json_line"])
    message = "not valid JSON: Unterminated string starting at column 11"
    assert done.error(1) == {
        "code": "invalid_json_line",
        "message": message,
        "param": None,
        "line": 2,
    }


def test_04_only_a_newline_ends_a_line(generate: Run) -> None:
    text = '\ufeff{"prompt":"a\u2028b"}\r\n{"prompt":"a\x85b"}\r\n{"prompt":\r"a\\r"}\n'
    done = generate(text.encode())
    assert (done.status, done.codes) == (0, [None] * 3)


def test_05_bytes_that_are_not_utf8_fail_their_row(generate: Run) -> None:
    done = generate([b'{"prompt":"\xff\xfe"}', b'{"prompt":"\xc0\xaf"}', OK])
    assert (done.status, done.codes) == (3, ["invalid_utf8", "invalid_utf8", None])
    assert (done.error(0)["line"], "byte 11 of the input" in done.error(0)["message"]) == (1, True)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("in.jsonl", '{"prompt":"a"}\n'),
        ("in.jsonl", '  {"prompt":"a"}\n'),
        ("in.csv", "prompt\nhello\n"),
        ("in.json", '[{"prompt":"a"}]'),
        ("in.txt", "hello\nthere\n"),
    ],
)
def test_05_another_encoding_is_found_by_its_mark_or_refused_with_the_way_out(
    generate: Run, encoding: str, name: str, text: str
) -> None:
    done = generate(text.encode(encoding), name=name)
    if encoding in ("utf-16", "utf-32"):  # with a byte order mark
        assert (done.status, set(done.codes)) == (0, {None})
        return
    assert done.status == 2
    assert f"{name} is UTF-16 text; pass --encoding {encoding}" in " ".join(done.err.split())


def test_05_blank_lines_hide_no_encoding_and_one_zero_is_no_encoding(generate: Run) -> None:
    for encoding in ("utf-16-le", "utf-16-be"):
        done = generate('\n\n{"prompt":"a"}\n'.encode(encoding))
        assert (done.status, "UTF-16 text" in done.err) == (2, True)
    done = generate(b"a\0b\n\x1b[2J\n<|im_end|>\n", name="in.txt")
    assert (done.status, done.codes) == (0, [None] * 3)


def test_06_half_a_surrogate_pair_fails_its_row(generate: Run, tmp_path: Path) -> None:
    done = generate([rb'{"prompt":"\ud800"}', rb'{"id":"\udfff","prompt":"a"}', OK])
    assert (done.status, done.codes) == (3, ["invalid_unicode", "invalid_unicode", None])
    (tmp_path / "out.jsonl").read_bytes().decode("utf-8")


@pytest.mark.parametrize("hostile", [CONTROLS, MARKUP], ids=["07", "08"])
@pytest.mark.parametrize("progress", ["plain", "rich", "json", "none"])
def test_07_08_data_is_kept_and_no_screen_obeys_it(
    command: Run, broken: Path, tmp_path: Path, hostile: str, progress: str
) -> None:
    name = hostile.replace("\x00", "").replace("/", "_")
    source, output = tmp_path / f"{name}.jsonl", tmp_path / f"{name}.out"
    rows = [
        {"id": hostile, "prompt": hostile, "extra": hostile},
        {"id": f"{hostile}!", "prompt": "a", hostile: 1},
        {"prompt": "a", "sampling_params": {hostile: 1}},
        {"prompt": "a", "messages": hostile},
        {"messages": [{"role": hostile, "content": hostile}]},
    ]
    write_jsonl(source, rows)
    model = broken.rename(tmp_path / f"model {name}")
    flags = ["--model", model, "--max-tokens", 2, "--json", "--progress", progress]
    done = command("generate", source, "-o", output, *flags)
    assert done.status == 3
    answered = sorted(map(json.loads, output.read_bytes().splitlines()), key=lambda r: r["index"])
    assert [row["error"] and row["error"]["code"] for row in answered] == [
        None,
        None,
        "invalid_param",
        "ambiguous_prompt",
        "unsupported_content",
    ]
    assert [row["id"] for row in answered[:2]] == [hostile, f"{hostile}!"]
    assert answered[0]["input"] == {"extra": hostile}
    assert_tame(done.out + done.err)
    if hostile == MARKUP and progress == "plain":
        assert f"{name}.out" in done.err  # shown as it is
    planned = command("plan", source, "--model", model, "--show-text", "--max-tokens", 2)
    assert planned.status == 0
    assert_tame(planned.out + planned.err)
    for way in ([], ["--json"]):
        inspected = command("inspect-cache", output, *way)
        assert inspected.status == 0
        assert_tame(inspected.out + inspected.err)
    missing = command("generate", f"{source}x", "-o", output, "--overwrite", "--model", model)
    assert missing.status == 2
    assert_tame(missing.err)


def assert_tame(screen: str) -> None:
    """Rich's live display of a terminal is not on here: any escape is somebody else's."""
    for char in "\x00\x1b\x07\x9b\x85\u202e\u2066":
        assert char not in screen


def test_09_a_line_too_long_fails_alone(model: Path, tmp_path: Path) -> None:
    """The job's own limit is 64 MiB; here it is smaller."""
    config = JobConfig(
        input=str(write_jsonl(tmp_path / "in.jsonl", [OK, {"prompt": "a" * 5000}, OK])),
        output=str(tmp_path / "out.jsonl"),
        engine=EngineConfig(model=model),
        sampling=SamplingParams(max_tokens=2),
        max_line_bytes=1000,
        ordered=True,
    )
    assert run_job(config).num_failed == 1
    before, error, after = (row["error"] for row in read_jsonl(config.output))
    assert (before, after) == (None, None)
    assert (error["code"], error["line"]) == ("line_too_long", 2)
    assert "1000 bytes" in error["message"]


class OneLine(io.RawIOBase):
    """A line of `num_bytes` that is never whole in memory, and then a row."""

    def __init__(self, num_bytes: int) -> None:
        self._left = num_bytes
        self._tail = io.BytesIO(b'\n{"prompt":"a"}\n')

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = min(len(buffer), self._left)
        if not size:
            return self._tail.readinto(buffer)
        self._left -= size
        buffer[:size] = b"x" * size
        return size


@pytest.mark.long
def test_09_two_gibibytes_on_one_line() -> None:
    tracemalloc.start()
    rows = list(LineSource(io.BufferedReader(OneLine(2**31)), "in", 2**26))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [row.error and row.error.code for row in rows] == ["line_too_long", None]
    assert peak < 3 * 2**26


class ManyLines(io.RawIOBase):
    """`num_lines` short rows."""

    def __init__(self, num_lines: int) -> None:
        self._left = num_lines * 3
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = min(len(buffer), self._left)
        shifted = b"{}\n" * (size // 3 + 2)
        buffer[:size] = shifted[self._at % 3 : self._at % 3 + size]
        self._at += size
        self._left -= size
        return size


def test_09_many_lines_are_read_one_by_one() -> None:
    rows = iter(LineSource(io.BufferedReader(ManyLines(10_000)), "in", 2**20))
    next(rows)
    tracemalloc.start()
    assert sum(1 for _ in rows) == 9_999
    assert tracemalloc.get_traced_memory()[1] < 2**19
    tracemalloc.stop()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_09_ten_million_lines_take_no_more_memory_than_few() -> None:
    rows = iter(LineSource(io.BufferedReader(ManyLines(10_000_000)), "in", 2**20))
    for _ in range(100_000):
        next(rows)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert sum(1 for _ in rows) == 9_900_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024  # KiB


def test_10_11_nesting_and_digits_without_end(generate: Run) -> None:
    deep = b'{"a":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}"
    rows = [b"[" * 100_000, b'{"a":' * 100_000, deep, b'{"prompt":"a","x":' + b"9" * 5000 + b"}"]
    done = generate([*rows, OK])
    assert (done.status, done.codes) == (3, ["invalid_json_line"] * 4 + [None])
    assert [done.error(index)["message"] for index in range(4)] == [
        *[f"nested deeper than {MAX_DEPTH} levels"] * 3,
        "an integer has too many digits",
    ]


def test_12_numbers_that_json_does_not_have(generate: Run) -> None:
    names = {"temperature": "NaN", "top_p": "Infinity", "min_p": "-Infinity", "seed": "1e999"}
    rows = [f'{{"prompt":"a","{name}":{value}}}'.encode() for name, value in names.items()]
    done = generate([*rows, b'{"prompt":"a","sampling_params":{"temperature":1e999}}', OK])
    assert (done.status, done.codes) == (3, ["invalid_param"] * 5 + [None])
    params = [done.error(index)["param"] for index in range(5)]
    assert params == [*names, "temperature"]
    names = {"prompt": "NaN", "messages": '[{"content":NaN}]', "id": "NaN", "tools": "NaN"}
    rows = [f'{{"prompt":"a","{name}":{value}}}'.encode() for name, value in names.items()]
    rows[0] = b'{"prompt":NaN}'
    read = generate(rows)
    assert read.codes == ["invalid_json_line"] * 2 + ["invalid_id", "invalid_json_line"]
    call = '"method":"POST","url":"/v1/completions","body":{"prompt":"a","user":NaN}'
    asked = generate(
        [f'{{"custom_id":{each},{call}}}'.encode() for each in ("NaN", "1e999", '"a"')]
    )
    codes = [row["response"]["body"]["error"]["code"] for row in asked.rows]
    assert codes == ["invalid_id"] * 2 + ["invalid_json_line"]


def test_12_numbers_that_json_does_not_have_in_other_columns(generate: Run) -> None:
    text = '"score":NaN,"inner":{"temperature":[Infinity,-Infinity,-1e999]},"more":1.5'
    done = generate([f'{{"prompt":"a",{text}}}'.encode(), f'{{"top_p":NaN,{text}}}'.encode()])
    assert (done.status, done.codes) == (3, [None, "invalid_param"])
    expected = {"temperature": ["Infinity", "-Infinity", "-1e999"]}
    for row in done.rows:
        assert row["input"] == {"score": "NaN", "inner": expected, "more": 1.5}


def test_13_a_key_that_stands_twice(generate: Run) -> None:
    done = generate([b'{"prompt":"a","prompt":"b"}', b'{"prompt":"a","x":{"k":1,"k":1}}', OK])
    assert (done.status, done.codes) == (3, ["duplicate_key", "duplicate_key", None])
    assert [done.error(index)["param"] for index in (0, 1)] == ["prompt", "k"]
