"""Several inputs are read as one: no row is lost between two, and each says where it is from."""

import gzip
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.job.config import SIDE_SUFFIXES, JobConfig
from pagedrun.paged.job.inputs.input_names import expand
from pagedrun.paged.job.inputs.reader import InputFormat, Reading, inputs_stem, open_rows
from pagedrun.paged.job.job import run_job
from pagedrun.paged.values.engine_config import WindowSize
from pagedrun.paged.values.errors import UsageError
from tests.support.heard import Heard
from tests.support.jsonl import read_jsonl, write_jsonl
from tests.support.scripted_model import ScriptedModel, config_for


@pytest.fixture
def inputs(place: Path) -> tuple[str, ...]:
    """Three files of different kinds, the second one without rows."""
    write_jsonl(place / "a.jsonl", [{"prompt": "a"}, {"prompt": "b", "file": "mine"}])
    (place / "b.jsonl").write_text("\n")
    (place / "c.csv").write_text("prompt,category\nc,x\nd,y\n")
    return tuple(str(place / name) for name in ("a.jsonl", "b.jsonl", "c.csv"))


def job(place: Path, inputs: tuple[str, ...], **changes: Any) -> JobConfig:
    return config_for(place, input=inputs[0], more_inputs=inputs[1:], ordered=True, **changes)


def answers(config: JobConfig) -> list[dict[str, Any]]:
    run_job(config, None, ScriptedModel().open())
    return read_jsonl(config.output)


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_rows_of_all_inputs(rows: int, place: Path, inputs: tuple[str, ...]) -> None:
    """Rows between two windows, of which one begins in another file, and ids that are there twice
    since every file counts from 0."""
    found = answers(job(place, inputs, window=WindowSize(rows=rows)))
    assert [row["index"] for row in found] == [0, 1, 2, 3]
    assert [row["id"] for row in found] == ["row-0", "row-1", "row-2", "row-3"]
    assert [row["text"] for row in found] == ["a!", "b!", "c!", "d!"]
    assert [row["input"] for row in found] == [
        {"file": inputs[0]},
        {"file": "mine", "input_file": inputs[0]},
        {"category": "x", "file": inputs[2]},
        {"category": "y", "file": inputs[2]},
    ]


def test_one_input_has_no_name_in_its_rows(place: Path, inputs: tuple[str, ...]) -> None:
    assert answers(job(place, inputs[:1]))[0]["input"] == {}


def test_ids_are_unique_over_all_inputs(place: Path) -> None:
    """The answers of two rows, joined to one."""
    names = ("a.jsonl", "b.jsonl")
    for name in names:
        write_jsonl(place / name, [{"id": 7, "prompt": name}])  # on the same line of each
    with pytest.raises(UsageError, match=r"'7' on .*a.jsonl, line 1 and .*b.jsonl, line 1"):
        answers(job(place, tuple(str(place / name) for name in names)))


def test_messages_name_the_file(place: Path, inputs: tuple[str, ...]) -> None:
    """A line number that could be of any file."""
    Path(inputs[1]).write_text("torn {\n")
    heard = Heard()
    run_job(job(place, inputs), heard, ScriptedModel().open())
    assert any("b.jsonl, line 1" in warning for warning in heard.warnings)
    with pytest.raises(UsageError, match=r"b\.jsonl, line 1: .*strict"):
        answers(job(place, inputs, strict=True, overwrite=True))


@pytest.mark.parametrize("changed", [0, 2])
def test_every_input_is_that_of_the_run(changed: int, place: Path, inputs: tuple[str, ...]) -> None:
    """A resume that goes on with rows of another file than the first that changed."""
    config = job(place, inputs)
    answers(config)
    manifest = json.loads(Path(f"{config.output}.run.json").read_text())
    assert manifest["input"]["path"] == inputs[0]
    assert manifest["input"]["more_paths"] == list(inputs[1:])
    result = run_job(replace(config, resume=True), None, ScriptedModel().open())
    assert result.report["rows"]["skipped"] == 4
    path = Path(inputs[changed])
    path.write_text(path.read_text().replace("a", "z"))
    with pytest.raises(UsageError, match="started with another input"):
        answers(replace(config, resume=True))


def test_an_input_that_is_not_there_is_found_at_once(place: Path, inputs: tuple[str, ...]) -> None:
    """A misspelt name, found after the hours that the files before it took."""
    model = ScriptedModel()
    for name, sentence in (("none.jsonl", "cannot be read"), ("a.xml", "an unknown ending")):
        (place / "a.xml").write_text("<a/>")
        config = job(place, (*inputs, str(place / name)))
        with pytest.raises(UsageError, match=rf"{name}.*{sentence}"):
            run_job(config, None, model.open())
    assert model.num_loads == 0
    with pytest.raises(UsageError, match="is the input itself"):
        answers(job(place, inputs, output=inputs[2], overwrite=True))
    empty = tuple(str(place / f"{n}.jsonl") for n in range(2))
    for name in empty:
        Path(name).write_text("")
    with pytest.raises(UsageError, match="empty input"):
        answers(job(place, empty))


def test_patterns(place: Path, inputs: tuple[str, ...]) -> None:
    assert expand([str(place / "*.jsonl")]) == inputs[:2]
    (place / "[x].jsonl").write_text("{}")
    assert expand([str(place / "[x].jsonl")]) == (str(place / "[x].jsonl"),)
    with pytest.raises(UsageError, match=r"\*\.parquet: no file matches"):
        expand([str(place / "*.parquet")])
    with pytest.raises(UsageError, match=r"a\.jsonl is named twice"):
        expand([inputs[0], str(place / "a*")])
    with pytest.raises(UsageError, match="combined with other inputs"):
        expand(["-", inputs[0]])


def test_a_folder_of_files_of_one_kind(place: Path) -> None:
    """Files out of order, hidden ones, and the output of the run before taken for an input."""
    folder = place / "data"
    folder.mkdir()
    for name in ("b.csv.gz", "a.csv", "c.csv"):
        data = f"prompt,id\n{name[0]},{name}\n".encode()
        (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    for name in (".hidden.jsonl", "_SUCCESS", "out.csv", "out.csv.run.json", "old.report.json"):
        (folder / name).write_text("x")
    files = expand([str(folder)], side_suffixes=SIDE_SUFFIXES)
    assert files == tuple(str(folder / name) for name in ("a.csv", "b.csv.gz", "c.csv"))
    found = answers(job(place, files))
    assert [(row["index"], row["text"]) for row in found] == [(0, "a!"), (1, "b!"), (2, "c!")]
    assert [row["input"]["file"] for row in found] == list(files)
    assert inputs_stem([str(folder)]) == "data"


def test_a_folder_that_cannot_be_read_as_one_input(place: Path) -> None:
    """Rows that are left out, or read as what they are not."""
    folder = place / "data"
    folder.mkdir()
    with pytest.raises(UsageError, match="no file to read"):
        expand([str(folder)])
    (folder / "a.csv").write_text("prompt\nx\n")
    (folder / "b.jsonl").write_text("{}")
    with pytest.raises(UsageError, match=r"a\.csv and b\.jsonl; .*'.*/\*\.csv'"):
        expand([str(folder)])
    assert len(expand([str(folder)], Reading(format=InputFormat.TXT))) == 2
    (folder / "b.jsonl").unlink()
    (folder / "2024").mkdir()
    with pytest.raises(UsageError, match=r"contains .*2024, which is not a file"):
        expand([str(folder)])


def test_what_save_to_disk_wrote_stays_one_input(tmp_path: Path) -> None:
    """A dataset whose files are read as rows of their own."""
    folder = tmp_path / "saved"
    pytest.importorskip("datasets").Dataset.from_list([{"prompt": "a"}]).save_to_disk(folder)
    assert expand([str(folder)]) == (str(folder),)


def test_object_stores(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address taken for a folder of this machine."""
    fsspec = pytest.importorskip("fsspec")
    from fsspec.implementations.memory import MemoryFileSystem

    class Bucket(MemoryFileSystem):  # type: ignore[misc]
        protocol = "s3"
        store: dict[str, Any] = {}  # noqa: RUF012

    fsspec.register_implementation("s3", Bucket, clobber=True)
    for name in ("a", "b"):
        with fsspec.open(f"s3://bucket/{name}.jsonl", "wb") as file:
            file.write(json.dumps({"prompt": name}).encode())
    with open_rows("s3://bucket/a.jsonl") as source:
        assert [row.columns for row in source] == [{"prompt": "a"}]
    assert expand(["s3://bucket/*.jsonl"]) == ("s3://bucket/a.jsonl", "s3://bucket/b.jsonl")
    missing = pytest.raises(UsageError, match=r"s3://bucket/none\.jsonl: cannot be opened")
    with missing, open_rows("s3://bucket/none.jsonl"):
        pass
    assert inputs_stem(("s3://bucket/a.jsonl.gz",)) == "a"
    assert inputs_stem(("hf://datasets/org/name/b.csv", "c.csv")) == "b+1"
    config = config_for(place, [{"prompt": "a"}], output="s3://bucket/out.jsonl")
    with pytest.raises(UsageError, match="written to a local disk"):
        run_job(config, None, ScriptedModel().open())
    monkeypatch.setitem(sys.modules, "fsspec", None)
    unknown = pytest.raises(
        UsageError, match=r"packages fsspec and gcsfs: pip install fsspec gcsfs"
    )
    with unknown, open_rows("gs://bucket/a.jsonl"):
        pass
