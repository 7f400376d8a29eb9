"""The output: what is refused before any work, and what is in it when writing fails."""

import errno
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.job.output.output_file import OutputError, OutputFile
from pagedrun.paged.job.output.writer import RowWriter
from pagedrun.paged.values.errors import EngineError, UsageError


@dataclass(frozen=True)
class Line:
    index: int
    text: str = ""


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def claim(path: Path | str, *, overwrite: bool = False, input_name: str = "none") -> OutputFile:
    return OutputFile.claim(str(path), overwrite=overwrite, input_name=input_name)


def begun(output: OutputFile, **settings: Any) -> RowWriter:
    writer = RowWriter(output, **settings)
    writer.begin()
    return writer


def rows_in(path: Path) -> list[object]:
    data = path.read_bytes()
    assert data == b"" or data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


class TestClaim:
    def test_a_new_file_is_private(self, out: Path) -> None:
        output = claim(out)
        assert stat.S_IMODE(out.stat().st_mode) == 0o600
        output.close()

    def test_one_that_was_never_begun_leaves_no_trace(self, out: Path) -> None:
        claim(out).close()
        assert not out.exists()

    def test_what_a_killed_run_left_beside_it_is_removed(self, out: Path) -> None:
        mine = [f".out.jsonl{suffix}.{'0a' * 8}.tmp" for suffix in ("", ".run.json")]
        others = [f".other.jsonl.{'0a' * 8}.tmp", f".out.jsonl.b.{'0a' * 8}.tmp", ".out.jsonl.tmp"]
        for name in mine + others:
            (out.parent / name).touch()
        output = claim(out)
        output.begin()
        output.close()
        assert {path.name for path in out.parent.iterdir()} == {"out.jsonl", *others}

    def test_an_existing_file_is_refused_and_untouched(self, out: Path) -> None:
        out.write_text("precious")
        with pytest.raises(UsageError, match="exists; pass resume to continue it, overwrite"):
            claim(out)
        assert out.read_text() == "precious"

    def test_overwrite_destroys_nothing_before_the_job_begins(self, out: Path) -> None:
        out.write_text("precious")
        claim(out, overwrite=True).close()
        assert out.read_text() == "precious"
        output = claim(out, overwrite=True)
        output.begin()
        output.close()
        assert out.read_text() == ""

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_the_input_is_refused_by_any_name(self, tmp_path: Path, overwrite: bool) -> None:
        source = tmp_path / "in.jsonl"
        source.write_text("{}\n")
        (tmp_path / "link.jsonl").symlink_to(source)
        os.link(source, tmp_path / "hard.jsonl")
        for name in ("in.jsonl", "link.jsonl", "hard.jsonl", "./in.jsonl"):
            with pytest.raises(UsageError, match="is the input itself"):
                claim(tmp_path / name, overwrite=overwrite, input_name=str(source))
        assert source.read_text() == "{}\n"

    def test_folders_and_pipes_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="is a folder"):
            claim(tmp_path, overwrite=True)
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(UsageError, match="pipe"):
            claim(tmp_path / "pipe", overwrite=True)

    def test_a_missing_folder_and_odd_names_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="folder does not exist"):
            claim(tmp_path / "missing" / "out.jsonl")
        with pytest.raises(UsageError, match="cannot be written"):
            claim("a\0b")
        with pytest.raises(UsageError, match="cannot be written"):
            claim(tmp_path / ("x" * 300))
        (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
        with pytest.raises(UsageError, match="broken link"):
            claim(tmp_path / "dangling")

    def test_a_file_that_may_not_be_written_is_refused(
        self, out: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*args: object) -> int:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

        monkeypatch.setattr("pagedrun.paged.job.output.output_file.os.open", refuse)
        with pytest.raises(UsageError, match="Permission denied"):
            claim(out)

    def test_any_number_of_runs_may_write_to_a_device(self) -> None:
        first, second = claim("/dev/null"), claim("/dev/null")
        first.close()
        second.close()

    def test_two_runs_cannot_write_one_file(self, out: Path) -> None:
        first = claim(out)
        with pytest.raises(UsageError, match="another run is writing"):
            claim(out, overwrite=True)
        first.begin()
        first.close()
        claim(out, overwrite=True).close()

    def test_nor_one_that_is_rewritten(self, out: Path) -> None:
        first = claim(out)
        first.begin()
        first.rewrite([b"kept\n"])
        with pytest.raises(UsageError, match="another run is writing"):
            claim(out, overwrite=True)
        first.close()
        assert out.read_bytes() == b"kept\n"


class TestRowWriter:
    def test_rows_are_lines_of_utf8(self, out: Path) -> None:
        output = claim(out)
        writer = begun(output)
        texts = ["é\u2028\x85", "line\nbreak", "\x1b[2J\u202e", "half \ud800"]
        for index, text in enumerate(texts):
            writer.write(Line(index, text))
        writer.finish(4)
        output.close()
        lines = out.read_bytes().decode("utf-8").split("\n")
        assert len(lines) == 5
        assert [json.loads(line)["text"] for line in lines[:4]] == [*texts[:3], "half ?"]

    def test_each_row_is_one_write(self, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        writes: list[bytes] = []
        real = os.write

        def spy(descriptor: int, data: bytes) -> int:
            writes.append(data)
            return real(descriptor, data)

        monkeypatch.setattr("pagedrun.paged.job.output.output_file.os.write", spy)
        writer = begun(claim(out))
        writer.write(Line(0, "x" * 1_000_000))
        writer.write(Line(1))
        assert [data[-1:] for data in writes] == [b"\n", b"\n"]

    def test_short_writes_are_completed(self, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        real = os.write
        monkeypatch.setattr(
            "pagedrun.paged.job.output.output_file.os.write", lambda fd, data: real(fd, data[:3])
        )
        writer = begun(claim(out))
        writer.write(Line(0, "abc"))
        writer.finish(1)
        assert rows_in(out) == [{"index": 0, "text": "abc"}]

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
    def test_a_torn_row_is_cut_off(
        self, out: Path, monkeypatch: pytest.MonkeyPatch, code: int
    ) -> None:
        writer = begun(claim(out))
        writer.write(Line(0))
        real, calls = os.write, []

        def fail_in_the_middle(descriptor: int, data: bytes) -> int:
            calls.append(data)
            if len(calls) > 1:
                raise OSError(code, os.strerror(code))
            return real(descriptor, data[:4])

        monkeypatch.setattr("pagedrun.paged.job.output.output_file.os.write", fail_in_the_middle)
        with pytest.raises(OutputError, match=os.strerror(code)) as caught:
            writer.write(Line(1, "long enough to tear"))
        assert caught.value.errno == code
        assert rows_in(out) == [{"index": 0}]

    def test_a_full_device_is_an_output_error(self) -> None:
        writer = begun(claim("/dev/full"))
        with pytest.raises(OutputError, match="No space left"):
            writer.write(Line(0))

    def test_rows_are_made_durable_by_time_and_at_the_end(
        self, out: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now: list[float] = [0.0]
        synced: list[float] = []
        writer = begun(claim(out), clock=lambda: now[0])
        real = os.fsync

        def spy(descriptor: int) -> None:
            synced.append(now[0])
            real(descriptor)

        monkeypatch.setattr("pagedrun.paged.job.output.output_file.os.fsync", spy)
        for moment in (0.1, 0.9, 1.0, 1.9, 2.5):
            now[0] = moment
            writer.write(Line(0))
        assert synced == [1.0, 2.5]
        writer.finish(5)
        assert len(synced) == 3

    def test_a_single_row_is_made_durable_by_time(
        self, out: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now: list[float] = [0.0]
        synced: list[int] = []
        writer = begun(claim(out), clock=lambda: now[0])
        writer.write(Line(0))
        monkeypatch.setattr("pagedrun.paged.job.output.output_file.os.fsync", synced.append)
        for moment in (0.9, 1.0, 9.0):
            now[0] = moment
            writer.sync_if_due()
            assert len(synced) == (moment >= 1.0)

    @pytest.mark.parametrize("num_rows", [0, 2])
    def test_rows_that_are_missing_or_too_many_are_noticed(self, out: Path, num_rows: int) -> None:
        writer = begun(claim(out))
        writer.write(Line(0))
        with pytest.raises(EngineError, match=f"^{num_rows} rows .*, but 1 were written"):
            writer.finish(num_rows)

    def test_lines_of_another_program_are_noticed(self, out: Path) -> None:
        writer = begun(claim(out))
        writer.write(Line(0))
        with out.open("ab") as file:
            file.write(b"{}\n")
        with pytest.raises(OutputError, match="was changed by another program"):
            writer.finish(1)

    def test_a_failing_fsync_is_an_output_error(
        self, out: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writer = begun(claim(out))

        def fail(descriptor: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr("pagedrun.paged.job.output.output_file.os.fsync", fail)
        with pytest.raises(OutputError):
            writer.finish(0)

    def test_ordered_sorts_by_index_and_keeps_the_bytes(self, out: Path) -> None:
        output = claim(out)
        writer = begun(output, ordered=True)
        for index in (2, 10, 0, 1):
            writer.write(Line(index, "é" * index))
        before = sorted(out.read_bytes().splitlines(), key=lambda line: json.loads(line)["index"])
        writer.finish(4)
        output.close()
        assert out.read_bytes().splitlines() == before
        assert [path.name for path in out.parent.iterdir()] == ["out.jsonl"]

    def test_ordered_leaves_every_row_where_sorting_fails(
        self, out: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writer = begun(claim(out), ordered=True)
        writer.write(Line(1))
        writer.write(Line(0))

        def fail(source: object, target: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr("pagedrun.paged.files.atomic.os.replace", fail)
        with pytest.raises(OutputError, match="in the order in which they finished"):
            writer.finish(2)
        assert rows_in(out) == [{"index": 1}, {"index": 0}]
        assert [path.name for path in out.parent.iterdir()] == ["out.jsonl"]
