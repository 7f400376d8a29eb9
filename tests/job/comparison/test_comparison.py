"""Two outputs are compared by what their rows answer, and by nothing else."""

from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.job.compare import Comparison, compare
from pagedrun.paged.values.errors import UsageError
from tests.support.command import Command
from tests.support.jsonl import write_jsonl


def row(index: int, text: str | None = "yes", **changes: Any) -> dict[str, Any]:
    output = {"index": 0, "text": text, "token_ids": [1, 2], "finish_reason": "stop"}
    return {
        "index": index,
        "id": f"r{index}",
        "text": text,
        "finish_reason": "stop",
        "outputs": [output],
        "usage": {"cached_tokens": 0, "completion_tokens": 2},
        "input": {},
        "error": None,
    } | changes


def compared(folder: Path, a: list[dict[str, Any]], b: list[dict[str, Any]]) -> Comparison:
    paths = [write_jsonl(folder / name, rows) for name, rows in (("a", a), ("b", b))]
    return compare(paths[0], paths[1], 2)


def test_order_place_usage_and_input_are_no_part_of_an_answer(tmp_path: Path) -> None:
    moved = [row(5, id="r1", usage={"cached_tokens": 9}, input={"k": 1}), row(0)]
    found = compared(tmp_path, [row(0), row(1)], moved)
    assert found["same"]
    assert found["matched_by"] == "id"
    assert found["rows"] == {"same": 2, "changed": 0, "added": 0, "missing": 0}


def test_each_way_to_differ_is_told(tmp_path: Path) -> None:
    failed = row(3, None, outputs=[], error={"code": "nan_logits", "message": "m"})
    details = row(2)
    details["outputs"] = [{**details["outputs"][0], "token_ids": [1, 3]}]
    cut = row(1)
    cut["outputs"] = [{**cut["outputs"][0], "finish_reason": "length"}]
    rows = [row(index) for index in range(6)]
    found = compared(tmp_path, rows[:5], [row(0, "no"), cut, details, failed, rows[5]])
    assert found["changed_in"] == {"text": 1, "finish_reason": 1, "details": 1, "error": 1}
    assert found["rows"] == {"same": 0, "changed": 4, "added": 1, "missing": 1}
    assert (found["added"], found["missing"], len(found["changes"])) == (["r5"], ["r4"], 2)
    assert not found["same"]
    assert found["b"]["failed"] == 1


def test_the_first_difference_is_shown_where_it_is(tmp_path: Path) -> None:
    texts = ["x" * 1000 + " Paris", "x" * 1000 + " Lyon"]
    [change] = compared(tmp_path, [row(0, texts[0])], [row(0, texts[1])])["changes"]
    assert change["at"] == 1001
    shown = [change[side]["text"] or "" for side in ("a", "b")]
    assert shown[0].endswith("xx Paris")
    assert shown[1].endswith("xx Lyon")
    assert max(map(len, shown)) < 100


def test_accuracy_is_told_with_what_was_gained_and_lost(tmp_path: Path) -> None:
    def answers(*texts: str) -> list[dict[str, Any]]:
        return [row(i, text, input={"expected": "yes"}) for i, text in enumerate(texts)]

    found = compared(tmp_path, answers("yes", "no", "no"), answers("no", " yes", "yes "))
    assert (found["a"]["correct"], found["b"]["correct"], found["b"]["expected"]) == (1, 2, 3)
    assert (found["gained"], found["lost"]) == (2, 1)


def test_ids_that_repeat_leave_the_index_to_match_by(tmp_path: Path) -> None:
    found = compared(tmp_path, [row(0, id="x"), row(1, id="x")], [row(1, id="y"), row(0, id="y")])
    assert found["same"]
    assert found["matched_by"] == "index"


def test_answers_to_batch_files_are_compared(tmp_path: Path) -> None:
    def call(index: int, text: str) -> dict[str, Any]:
        choice = {"message": {"content": text}, "finish_reason": "stop"}
        body = {"id": f"chatcmpl-{index}", "choices": [choice], "usage": {"completion_tokens": 2}}
        response = {"status_code": 200, "request_id": f"req_{index}", "body": body}
        return {"index": index, "id": f"b{index}", "custom_id": "c", "response": response} | {
            "error": None
        }

    assert compared(tmp_path, [call(0, "yes")], [call(7, "yes")])["same"]
    [change] = compared(tmp_path, [call(0, "yes")], [call(7, "yeah")])["changes"]
    assert (change["id"], change["at"]) == ("c", 2)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b'{"index": 0}\n', "line 1 is not an output row"),
        (b"[" * 9999 + b"\n", "line 1 is not an output row"),
        (b'{"index":0,"id":"a","error":null}\n' * 2, "line 2 answers row 0 a second time"),
    ],
)
def test_what_is_no_output_is_refused(data: bytes, match: str, tmp_path: Path) -> None:
    good = write_jsonl(tmp_path / "good", [row(0)])
    bad = tmp_path / "bad"
    bad.write_bytes(data)
    with pytest.raises(UsageError, match=match):
        compare(good, bad, 1)


def test_exit_status_and_screen(pagedrun: Command, tmp_path: Path) -> None:
    a = write_jsonl(tmp_path / "a", [row(0), row(1, "\x1b[2Jred")])
    b = write_jsonl(tmp_path / "b", [row(0), row(1, "\x1b[2Jblue")])
    assert pagedrun("diff", a, a, "--quiet") == (0, "", "")
    status, out, told = pagedrun("diff", a, b)
    assert (status, out) == (1, "")
    assert "1 same, 1 changed" in told
    assert "from character 4 on" in told
    assert "\x1b[2J" not in told
    assert pagedrun("diff", a, tmp_path / "gone")[0] == 2
    status, out, _ = pagedrun("diff", a, b, "--json", "--quiet")
    assert status == 1
    assert '"changed": 1' in out
    assert "\x1b" not in out


def test_a_row_that_one_output_has_alone_is_a_difference(tmp_path: Path) -> None:
    one, two = [row(0)], [row(0), row(1)]
    assert not compared(tmp_path, one, two)["same"]
    assert not compared(tmp_path, two, one)["same"]


def test_a_line_without_its_end_is_told_and_no_row(tmp_path: Path) -> None:
    paths = [write_jsonl(tmp_path / name, [row(0), row(1)]) for name in ("a", "b")]
    paths[1].write_bytes(paths[1].read_bytes().removesuffix(b"\n"))
    found = compare(paths[0], paths[1], 2)
    assert (found["a"]["torn"], found["b"]["torn"]) == (False, True)
    assert (found["b"]["rows"], found["missing"]) == (1, ["r1"])
