"""`pagedrun inspect-cache` as a user meets it: targets, screens, rows, texts, bad files."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pagedrun.paged.metrics.snapshot import Branchings
from pagedrun.paged.metrics.snapshot_file import read_snapshot
from tests.cli.finished_run import HOSTILE, REPORT, beside
from tests.cli.inspect.conftest import InspectCache
from tests.cli.light_command import light_command
from tests.cli.report.replicas import dead, replica
from tests.support.small_runs import play

TITLES = ["KV pool", "Prefix cache", "Block map", "Shared prefixes", "Block lifetimes"]
TITLES += ["Most shared blocks", "Preemptions"]


def test_help_imports_nothing_heavy() -> None:
    out = light_command("inspect-cache", "--help")
    for flag in ("--at", "--row", "--top", "--show-text", "--json", "--quiet"):
        assert flag in out


class TestTarget:
    @pytest.mark.parametrize("suffix", ["", ".report.json", ".snapshot.npz", ".run.json"])
    def test_any_file_of_a_run_finds_the_others(
        self, run: InspectCache, output: Path, suffix: str
    ) -> None:
        status, out, err = run(beside(output, suffix), "--json", "--quiet")
        assert (status, err) == (0, "")
        found = json.loads(out)
        assert found["files"] == {
            "output": str(output),
            "report": f"{output}.report.json",
            "snapshot": f"{output}.snapshot.npz",
            "manifest": f"{output}.run.json",
        }
        assert found["statistics"]["hit_rate"] == 0.75
        assert found["moment"]["allocated"] == 6
        assert found["notes"] == []

    def test_an_output_that_was_moved_away_is_not_needed(
        self, run: InspectCache, output: Path
    ) -> None:
        output.unlink()
        assert run(output)[0] == 0

    def test_without_a_snapshot_the_statistics_and_why(
        self, run: InspectCache, output: Path
    ) -> None:
        beside(output, ".snapshot.npz").unlink()
        status, out, err = run(output, "--json", "--row", "1")
        assert status == 0
        assert "hit rate" in err
        assert "There is no snapshot beside the report" in err
        assert "--row needs the snapshot" in err
        found = json.loads(out)
        assert (found["moment"]["step"], found["moment"]["private"]) == (9, 3)
        assert found["block_map"] is None

    def test_without_a_report_the_blocks_and_why(self, run: InspectCache, output: Path) -> None:
        beside(output, ".report.json").unlink()
        status, _, err = run(output)
        assert status == 0
        assert "Block map" in err
        assert "hit rate" not in err
        assert "There is no report beside the snapshot" in err

    def test_a_run_of_replicas_has_their_table_and_says_how_to_see_one(
        self, run: InspectCache, output: Path
    ) -> None:
        report = beside(output, ".report.json")
        replicas = [replica(0), dead(1, "SIGKILL")]
        # Together they had more blocks than the one that lived to the end.
        timeline = [{**each, "blocks_used": 7000} for each in REPORT["timeline"]]
        report.write_text(json.dumps({**REPORT, "timeline": timeline, "replicas": replicas}))
        snapshot = beside(output, ".snapshot.npz")
        snapshot.rename(beside(output, ".replica-0.snapshot.npz"))
        status, out, err = run(output, "--json")
        assert status == 0
        assert "Replicas" in err
        assert "replica 1 died: SIGKILL" in err
        assert "--replica K shows" in " ".join(err.split())
        assert "There is no snapshot" not in err
        assert json.loads(out)["replicas"] == replicas
        status, out, err = run(output, "--json", "--replica", "0")
        assert status == 0
        assert "Block map" in err
        assert "counted for all replicas together" in " ".join(err.split())
        assert json.loads(out)["replicas"] is None
        report.write_text(json.dumps({**REPORT, "replicas": [5]}))
        assert run(output)[0] == 2

    def test_files_of_different_runs_are_said_to_be(self, run: InspectCache, output: Path) -> None:
        kv = {**REPORT["kv"], "num_blocks": 7}
        beside(output, ".report.json").write_text(json.dumps({**REPORT, "kv": kv}))
        assert "describe pools of different shapes" in " ".join(run(output)[2].split())
        manifest = beside(output, ".run.json")
        for status in ("running", "interrupted", "failed"):
            manifest.write_text(json.dumps({"status": status}))
            told = " ".join(run(output)[2].split())
            assert f"the last run of this output is {status}" in told
        for text in ('{"status": ["x"]}', '{"status": "\\u001b"}', "[]", "{", "[" * 10**5):
            manifest.write_text(text)
            assert "the last run of this output" not in run(output)[2]

    def test_a_run_that_was_cut_off_says_how_to_finish_it(
        self, run: InspectCache, output: Path
    ) -> None:
        for suffix in (".report.json", ".snapshot.npz"):
            beside(output, suffix).unlink()
        beside(output, ".run.json").write_text(json.dumps({"status": "interrupted"}))
        status, _, err = run(output)
        assert status == 2
        assert "its run was not finished" in err
        assert "--resume" in err
        beside(output, ".run.json").write_text(json.dumps({"status": "finished"}))
        assert f"neither {output.name}.report.json nor" in run(output)[2]

    def test_a_run_that_reached_no_engine_has_an_empty_pool(
        self, run: InspectCache, output: Path
    ) -> None:
        kv = dict.fromkeys(REPORT["kv"], 0)
        empty = {**REPORT, "kv": kv, "timeline": []}
        beside(output, ".report.json").write_text(json.dumps(empty))
        beside(output, ".snapshot.npz").unlink()
        status, _, err = run(output)
        assert status == 0
        assert "no row reached the engine" in err

    def test_files_by_other_names_stand_alone(self, run: InspectCache, output: Path) -> None:
        for suffix, name in ((".report.json", "mine.json"), (".snapshot.npz", "mine.npz")):
            path = output.with_name(name)
            shutil.move(beside(output, suffix), path)
            assert run(path)[0] == 0

    def test_a_name_that_is_no_text_is_none_in_json(self, output: Path) -> None:
        copy = os.fsencode(output.parent) + b"/\xff.out.jsonl.snapshot.npz"
        shutil.copy(os.fsencode(beside(output, ".snapshot.npz")), copy)
        done = subprocess.run(
            [sys.executable, "-m", "pagedrun", "inspect-cache", copy, "--json", "--quiet"],
            env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
            capture_output=True,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["files"]["snapshot"].endswith(
            "\ufffd.out.jsonl.snapshot.npz"
        )

    def test_what_is_no_target_is_refused(self, run: InspectCache, tmp_path: Path) -> None:
        (tmp_path / "alone.out.jsonl").write_text("{}\n")
        os.mkfifo(tmp_path / "pipe.json")
        names = ("absent", "alone.out.jsonl", "pipe.json", ".", ".snapshot.npz")
        for name in names:
            status, out, err = run(f"{tmp_path}/{name}")
            assert (status, out, len(err.splitlines())) == (2, "", 1), name
            assert err.startswith("Error: ")

    @pytest.mark.parametrize("suffix", [".report.json", ".snapshot.npz"])
    @pytest.mark.parametrize("data", [b"", b"{}", b"PK\x03\x04", b"\x00" * 99, b"[" * 10**5])
    def test_a_spoilt_file_is_one_sentence(
        self, run: InspectCache, output: Path, suffix: str, data: bytes
    ) -> None:
        beside(output, suffix).write_bytes(data)
        status, out, err = run(output, "--json")
        assert (status, out, len(err.splitlines())) == (2, "", 1)
        assert err.startswith(f"Error: {output}{suffix} is not a ")


class TestScreen:
    @pytest.mark.parametrize("width", [40, 80, 140])
    def test_everything_is_there_and_fits(
        self, run: InspectCache, output: Path, width: int
    ) -> None:
        status, out, err = run(output, "--row", "0", "--row", "id-3", "--at", "3", width=width)
        assert (status, out) == (0, "")
        assert "\x1b" not in err  # no terminal, no colour
        for title in (*TITLES, "Block tables"):
            assert re.search(f"^{title}", err, re.MULTILINE), title
        longest = max(err.splitlines(), key=len)
        assert len(longest) <= max(width, 71), longest  # the widest table is this wide
        if width >= 80:
            assert [line for line in err.splitlines() if line != line.rstrip()] == []

    def test_facts_are_those_of_snapshot_and_report(self, run: InspectCache, output: Path) -> None:
        _, out, err = run(output, "--at", "7", "--json")
        found, flat = json.loads(out), " ".join(err.split())
        moment = found["moment"]
        free = moment["free"] + moment["cached"]
        for fact in (
            "blocks 6 of 4 tokens, 256 B each; 1.5 KiB",
            f"at step 7 0.88 s into the run allocated {moment['allocated']}",
            f"free {free} of these {moment['cached']} cached",
            "hits 30",
            "misses 10",
            "hit rate 75.0%",
            "in tokens 50.0% of prompt tokens",
            "KV not computed again 30.0 KiB",
            "copy on write 1",
            "preemptions 1 1 by swap, 0 by recompute",
            f"Block map, step 7 of 20 0 {found['block_map']['blocks']}",
            f"S shared {moment['shared']} P private {moment['private']} C cached "
            f"{moment['cached']} . free {moment['free']}",
            "8 tokens × 3 rows, saves 16 (1.0 KiB)",
            "12 tokens × 2 rows, saves 4 (256 B)",
            f"longest {found['lifetimes']['longest']} steps",
            "step 1: row 1 gave up 1 block (1 token) by swap to host memory, because it needed 1 "
            "block and 0 were free",
        ):
            assert fact in flat, fact

    def test_block_tables_say_where_each_block_lies(self, run: InspectCache, output: Path) -> None:
        _, out, _ = run(output, "--at", "5", "--json", "--quiet", "--top", "99")
        rows = json.loads(out)["rows_held"]["first"]
        _, out, err = run(output, "--at", "5", "--json", *(f"--row={row}" for row in rows))
        flat = " ".join(err.split())
        found = json.loads(out)
        entries = 0
        for row in found["rows"]:
            assert f"row {row['row']} held blocks in step" in flat
            for table in row["tables"]:
                last = table["last_token"]
                assert last["slot"] == last["physical"] * 4 + last["offset"]
                formula = f"has slot {last['physical']} × 4 + {last['offset']} = {last['slot']}"
                assert formula in flat
                for block in table["blocks"]:
                    letter = block["state"][0].upper()
                    assert not block["copied"]
                    where = "found" if block["found"] else "filled"
                    assert (
                        f"{block['logical']} → {block['physical']} {letter} "
                        f"×{block['ref_count']} {block['tokens']}/4 {where}"
                    ) in flat
                    entries += 1
        assert entries >= 3

    def test_beams_are_called_so_and_what_they_share_is_said(
        self, run: InspectCache, output: Path
    ) -> None:
        played = play(4)
        step, row, shared = next(
            (step, row, sum((row, 1) in holders for holders in blocks))
            for step, blocks in enumerate(played.holders)
            for row in range(9)
            if any({(row, 0), (row, 1)} <= holders for holders in blocks)
        )
        beams = Branchings.of(step=[step], row=[row], forked=[1], died=[2], freed=[3])
        for branchings in (beams, Branchings.of()):
            snapshot = replace(played.snapshot(), branchings=branchings)
            beside(output, ".snapshot.npz").write_bytes(snapshot.to_bytes())
            _, _, err = run(output, "--at", str(step), "--row", str(row))
            flat, word = " ".join(err.split()), "beam" if len(branchings) else "sample"
            places = "block 0" if shared == 1 else f"blocks 0 to {shared - 1}"
            assert f"{word}s 0, 1 share {places}" in flat
            assert f"{word} 1: " in flat
            dead = ("beams dropped 2", "1 beam forked and 2 were dropped, which freed 3 blocks")
            assert [words in flat for words in dead] == [bool(len(branchings))] * 2

    def test_a_terminal_gets_colour_and_no_color_takes_it(
        self, output: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from io import StringIO

        from rich.console import Console

        from pagedrun.cli.report.inspection import draw_inspection
        from pagedrun.paged.metrics.inspection import InspectionQuery, inspect_run

        found = inspect_run(read_snapshot(beside(output, ".snapshot.npz")), None, InspectionQuery())

        def drawn() -> str:
            stream = StringIO()
            console = Console(file=stream, force_terminal=True, width=80, _environ=os.environ)
            draw_inspection({**found, "files": {}, "notes": ["a note"], "replicas": None}, console)
            return stream.getvalue()

        monkeypatch.delenv("NO_COLOR", raising=False)
        coloured = drawn()
        assert re.search(r"\x1b\[[0-9;]*3[0-9]m", coloured)
        monkeypatch.setenv("NO_COLOR", "1")
        plain = drawn()
        assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", plain)
        strip = re.compile(r"\x1b\[[0-9;]*m")
        assert strip.sub("", plain) == strip.sub("", coloured)

    def test_an_ascii_terminal_gets_no_bars_that_it_cannot_show(self, output: Path) -> None:
        settings = {"PYTHONIOENCODING": "ascii", "COLUMNS": "80"}
        done = subprocess.run(
            [sys.executable, "-m", "pagedrun", "inspect-cache", str(output)],
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert "#" in done.stderr
        assert "\\u25" not in done.stderr

    def test_top_bounds_the_lists(self, run: InspectCache, output: Path) -> None:
        _, out, _ = run(output, "--json", "--quiet", "--top", "1")
        found = json.loads(out)
        assert [len(found[name]) for name in ("most_shared",)] == [1]
        assert len(found["prefixes"]["top"]) == 1
        assert found["prefixes"]["count"] == 2

    def test_a_part_of_the_rows_is_said_to_be_one(self, run: InspectCache, output: Path) -> None:
        part = replace(play(4).snapshot(row_stride=2), num_steps=20)
        beside(output, ".snapshot.npz").write_bytes(part.to_bytes())
        _, _, err = run(output, "--row", "3")
        flat = " ".join(err.split())
        assert flat.count("of this run has") == 2
        assert "row 2 is the nearest" in flat


class TestRow:
    @pytest.mark.parametrize(
        ("name", "index"),
        [("5", 5), ("id-5", 5), ("id:id-5", 5), ("id:1234", 8), (HOSTILE, 0), ("id:id-1", 1)],
    )
    def test_is_named_by_index_or_id(
        self, run: InspectCache, output: Path, name: str, index: int
    ) -> None:
        status, out, err = run(output, "--row", name, "--json")
        assert status == 0
        (row,) = json.loads(out)["rows"]
        assert row["row"] == index
        assert "\x1b" not in err
        assert "\u202e" not in err

    def test_id_takes_an_id_that_is_a_number_as_it_is(
        self, run: InspectCache, output: Path
    ) -> None:
        status, out, _ = run(output, "--id", "1234", "--id", "id-5", "--row", "5", "--json")
        assert status == 0
        assert [row["row"] for row in json.loads(out)["rows"]] == [5, 8]
        assert run(output, "--id", "5")[0] == 2

    @pytest.mark.parametrize("name", ["id-9", "id:5", "id:", "", HOSTILE + "x", "1234567890123"])
    def test_an_id_that_is_not_there_is_refused(
        self, run: InspectCache, output: Path, name: str
    ) -> None:
        status, out, err = run(output, "--row", name)
        assert (status, out, len(err.splitlines())) == (2, "", 1)
        assert "no row of" in err
        assert "\x1b" not in err

    def test_an_id_needs_the_output(self, run: InspectCache, output: Path) -> None:
        output.unlink()
        assert run(output, "--row", "3")[0] == 0
        status, _, err = run(output, "--row", "id-3")
        assert status == 2
        assert "its index" in err

    def test_lines_that_are_no_rows_are_passed_over(self, run: InspectCache, output: Path) -> None:
        good = output.read_text()
        output.write_text('id-3\n"id-3"\n{"id": "id-3"}\n{"id": "id-3", "index": -4}\n' + good)
        status, out, _ = run(output, "--row", "id-3", "--json")
        assert status == 0
        assert json.loads(out)["rows"][0]["row"] == 3


@pytest.mark.parametrize("flags", [["--at", "soon"], ["--top", "0"], ["--top", "x"]])
def test_a_wrong_flag_is_refused(run: InspectCache, output: Path, flags: list[str]) -> None:
    status, out, err = run(output, *flags)
    assert (status, out) == (2, "")
    assert flags[0] in err
