"""`pagedrun inspect-cache` as a user meets it: targets, screens, rows, texts, bad files."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagedrun.cli.main import main
from pagedrun.paged.engine_config import EngineConfig
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.manifest import JobStatus, Manifest
from pagedrun.paged.job.prompts import PromptConfig
from pagedrun.paged.job.reader import open_rows
from pagedrun.paged.report.snapshot import Snapshot
from pagedrun.paged.report.snapshot_tables import Preemptions, PrefixNodes
from pagedrun.recipes.demo import demo_model_folder
from tests.paged.small_runs import play

HEAVY = {"torch", "transformers", "numba", "numpy", "tokenizers", "huggingface_hub", "jinja2"}
HOSTILE = "\x1b[2J[/red]\u202e:smile:"
SYSTEM = "Answer in one word."
Run = Callable[..., tuple[int, str, str]]
TITLES = ["KV pool", "Prefix cache", "Block map", "Shared prefixes", "Block lifetimes"]
TITLES += ["Most shared blocks", "Preemptions"]
REPORT: dict[str, Any] = {
    "rows": {"total": 9, "ok": 9, "failed": 0, "skipped": 0},
    "tokens": {"prompt": 960},
    "kv": {"block_size": 4, "num_blocks": 6, "bytes_per_token": 64, "peak_blocks": 6},
    "prefix": {"hits": 30, "misses": 10, "hit_tokens": 480, "bytes_saved": 30720},
    "copy_on_write": {"forks": 2, "block_copies": 1},
    "preemptions": {"swap": 1, "recompute": 0},
    "timeline": [
        {"t": 1, "step": 9, "blocks_used": 5, "blocks_shared": 2, "blocks_cached": 1, "tokens": 15}
    ],
}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run_command(*args: str | Path, width: int = 100) -> tuple[int, str, str]:
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr("sys.argv", ["pagedrun", "inspect-cache", *map(str, args)])
        with pytest.raises(SystemExit) as caught:
            main()
        captured = capsys.readouterr()
        return int(caught.value.code or 0), captured.out, captured.err

    return run_command


def snapshot() -> Snapshot:
    gone = Preemptions.of(
        **{name: [1] for name in ("step", "row", "tokens", "blocks", "for_row", "needed")},
        sample=[0],
        swapped=[True],
        free=[0],
    )
    nodes = PrefixNodes.of(
        parent=[-1, 0], start=[0, 8], end=[8, 12], rows=[3, 2], row=[0, 1], saved=[16, 4]
    )
    return replace(play(4).snapshot(), preemptions=gone, prefixes=nodes)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """The files of a run of nine rows, whose manifest is that of a real job."""
    rows = tmp_path / "rows.jsonl"
    prompts = [f"Who works with Ann in room {number}? {HOSTILE}" for number in range(9)]
    ids = [HOSTILE, *(f"id-{number}" for number in range(1, 8)), 1234]
    lines = zip(ids, prompts, strict=True)
    rows.write_text("".join(json.dumps({"id": i, "prompt": p}) + "\n" for i, p in lines))
    output = tmp_path / "rows.out.jsonl"
    output.write_text(
        "".join(
            json.dumps({"index": index, "id": ids[index], "text": "id-9"}, ensure_ascii=False)
            + "\n"
            for index in reversed(range(9))
        )
    )
    config = JobConfig(
        input=str(rows),
        output=str(output),
        engine=EngineConfig(model=demo_model_folder()),
        prompts=PromptConfig(system=SYSTEM),
    )
    with open_rows(config.input) as source:
        for _ in source:
            pass
        manifest = Manifest.start(config, source.digest(whole=True), 1024)
    names = {".report.json": REPORT, ".run.json": manifest.to_json(JobStatus.FINISHED, {})}
    for suffix, value in names.items():
        (tmp_path / f"rows.out.jsonl{suffix}").write_text(json.dumps(value))
    (tmp_path / "rows.out.jsonl.snapshot.npz").write_bytes(snapshot().to_bytes())
    return output


def beside(output: Path, suffix: str) -> Path:
    return output.with_name(output.name + suffix)


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; sys.argv = ['pagedrun', 'inspect-cache', '--help']\n"
        "from pagedrun.cli.main import main\n"
        "try: main()\n"
        f"finally: print('heavy:', sorted({HEAVY!r} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "heavy: []" in done.stdout
    for flag in ("--at", "--row", "--top", "--show-text", "--json", "--quiet"):
        assert flag in done.stdout


class TestTarget:
    @pytest.mark.parametrize("suffix", ["", ".report.json", ".snapshot.npz", ".run.json"])
    def test_any_file_of_a_run_finds_the_others(self, run: Run, output: Path, suffix: str) -> None:
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

    def test_an_output_that_was_moved_away_is_not_needed(self, run: Run, output: Path) -> None:
        output.unlink()
        assert run(output)[0] == 0

    def test_without_a_snapshot_the_statistics_and_why(self, run: Run, output: Path) -> None:
        beside(output, ".snapshot.npz").unlink()
        status, out, err = run(output, "--json", "--row", "1")
        assert status == 0
        assert "hit rate" in err
        assert "No snapshot stands beside the report" in err
        assert "--row needs the snapshot" in err
        found = json.loads(out)
        assert (found["moment"]["step"], found["moment"]["private"]) == (9, 3)
        assert found["block_map"] is None

    def test_without_a_report_the_blocks_and_why(self, run: Run, output: Path) -> None:
        beside(output, ".report.json").unlink()
        status, _, err = run(output)
        assert status == 0
        assert "Block map" in err
        assert "hit rate" not in err
        assert "No report stands beside the snapshot" in err

    def test_files_by_other_names_stand_alone(self, run: Run, output: Path) -> None:
        for suffix, name in ((".report.json", "mine.json"), (".snapshot.npz", "mine.npz")):
            path = output.with_name(name)
            shutil.move(beside(output, suffix), path)
            assert run(path)[0] == 0

    def test_what_is_no_target_is_refused(self, run: Run, tmp_path: Path) -> None:
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
        self, run: Run, output: Path, suffix: str, data: bytes
    ) -> None:
        beside(output, suffix).write_bytes(data)
        status, out, err = run(output, "--json")
        assert (status, out, len(err.splitlines())) == (2, "", 1)
        assert err.startswith(f"Error: {output}{suffix} is not a ")


class TestScreen:
    @pytest.mark.parametrize("width", [40, 80, 140])
    def test_everything_is_there_and_fits(self, run: Run, output: Path, width: int) -> None:
        status, out, err = run(output, "--row", "0", "--row", "id-3", "--at", "3", width=width)
        assert (status, out) == (0, "")
        assert "\x1b" not in err  # no terminal, no colour
        for title in (*TITLES, "Block tables"):
            assert re.search(f"^{title}", err, re.MULTILINE), title
        longest = max(err.splitlines(), key=len)
        assert len(longest) <= max(width, 71), longest  # the widest table is this wide
        if width >= 80:
            assert [line for line in err.splitlines() if line != line.rstrip()] == []

    def test_facts_are_those_of_snapshot_and_report(self, run: Run, output: Path) -> None:
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

    def test_block_tables_say_where_each_block_lies(self, run: Run, output: Path) -> None:
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
                    where = "found" if block["found"] else "computed"
                    assert (
                        f"{block['logical']} → {block['physical']} {letter} "
                        f"×{block['ref_count']} {block['tokens']}/4 {where}"
                    ) in flat
                    entries += 1
        assert entries >= 3

    def test_a_terminal_gets_colour_and_no_color_takes_it(
        self, output: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from io import StringIO

        from rich.console import Console

        from pagedrun.cli.inspect_cache_report import draw_inspection
        from pagedrun.paged.report.inspection import Question, inspect_run

        found = inspect_run(Snapshot.read(beside(output, ".snapshot.npz")), None, Question())

        def drawn() -> str:
            stream = StringIO()
            console = Console(file=stream, force_terminal=True, width=80, _environ=os.environ)
            draw_inspection({**found, "notes": ["a note"]}, console)
            return stream.getvalue()

        monkeypatch.delenv("NO_COLOR", raising=False)
        coloured = drawn()
        assert re.search(r"\x1b\[[0-9;]*3[0-9]m", coloured)
        monkeypatch.setenv("NO_COLOR", "1")
        plain = drawn()
        assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", plain)
        strip = re.compile(r"\x1b\[[0-9;]*m")
        assert strip.sub("", plain) == strip.sub("", coloured)

    def test_top_bounds_the_lists(self, run: Run, output: Path) -> None:
        _, out, _ = run(output, "--json", "--quiet", "--top", "1")
        found = json.loads(out)
        assert [len(found[name]) for name in ("most_shared",)] == [1]
        assert len(found["prefixes"]["top"]) == 1
        assert found["prefixes"]["count"] == 2

    def test_a_part_of_the_rows_is_said_to_be_one(self, run: Run, output: Path) -> None:
        part = replace(play(4).snapshot(row_stride=2), num_steps=20)
        beside(output, ".snapshot.npz").write_bytes(part.to_bytes())
        _, _, err = run(output, "--row", "3")
        flat = " ".join(err.split())
        assert flat.count("the holdings of one row in 2 were kept") == 2
        assert "row 2 is the nearest of them" in flat


class TestRow:
    @pytest.mark.parametrize(
        ("name", "index"),
        [("5", 5), ("id-5", 5), ("id:id-5", 5), ("id:1234", 8), (HOSTILE, 0), ("id:id-1", 1)],
    )
    def test_is_named_by_index_or_id(self, run: Run, output: Path, name: str, index: int) -> None:
        status, out, err = run(output, "--row", name, "--json")
        assert status == 0
        (row,) = json.loads(out)["rows"]
        assert row["row"] == index
        assert "\x1b" not in err
        assert "\u202e" not in err

    @pytest.mark.parametrize("name", ["id-9", "id:5", "id:", "", HOSTILE + "x", "1234567890123"])
    def test_an_id_that_is_not_there_is_refused(self, run: Run, output: Path, name: str) -> None:
        status, out, err = run(output, "--row", name)
        assert (status, out, len(err.splitlines())) == (2, "", 1)
        assert "no row of" in err
        assert "\x1b" not in err

    def test_an_id_needs_the_output(self, run: Run, output: Path) -> None:
        output.unlink()
        assert run(output, "--row", "3")[0] == 0
        status, _, err = run(output, "--row", "id-3")
        assert status == 2
        assert "its index" in err

    def test_lines_that_are_no_rows_are_passed_over(self, run: Run, output: Path) -> None:
        good = output.read_text()
        output.write_text('id-3\n"id-3"\n{"id": "id-3"}\n{"id": "id-3", "index": -4}\n' + good)
        status, out, _ = run(output, "--row", "id-3", "--json")
        assert status == 0
        assert json.loads(out)["rows"][0]["row"] == 3


class TestText:
    def test_is_shown_on_demand_only_and_made_safe(self, run: Run, output: Path) -> None:
        _, out, err = run(output, "--row", "2", "--json")
        assert "Ann" not in err + out
        status, out, err = run(
            output, "--row", "2", "--json", "--show-text", "--system", SYSTEM, "--top", "5"
        )
        assert status == 0
        found = json.loads(out)
        assert SYSTEM in found["rows"][0]["text"]
        assert f"room 2? {HOSTILE}" in found["rows"][0]["text"]
        assert found["prefixes"]["top"][0]["text"]
        assert found["notes"] == []
        assert "Ann" in err
        assert "\x1b" not in err
        assert "\u202e" not in err

    def test_of_a_prefix_is_what_its_tokens_say(self, run: Run, output: Path) -> None:
        from pagedrun.paged.tokenizer import Tokenizer

        tokenizer = Tokenizer.from_folder(demo_model_folder())
        chat = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"Who works with Ann in room 1? {HOSTILE}"},
        ]
        (ids,) = tokenizer.encode_batch([tokenizer.render_chat(chat)], add_special_tokens=False)
        _, out, _ = run(output, "--json", "--quiet", "--show-text", "--system", SYSTEM)
        nodes = json.loads(out)["prefixes"]["top"]
        assert [node["text"] for node in nodes] == [
            tokenizer.decode(ids[:8], skip_special_tokens=False),
            tokenizer.decode(ids[8:12], skip_special_tokens=False),
        ]

    def spoil(self, output: Path, what: str) -> list[str]:
        """Make the texts unobtainable; return the flags to ask for them all the same."""
        rows, manifest = output.with_name("rows.jsonl"), beside(output, ".run.json")
        saved = json.loads(manifest.read_text())
        if what == "the input of the run":
            rows.unlink()
        elif what == "it has changed since":
            rows.write_text(rows.read_text() + '{"prompt": "one more"}\n')
        elif what == "no manifest":
            manifest.unlink()
        elif what == "is not a manifest of":
            manifest.write_text(json.dumps({**saved, "parameters": {}}))
        elif what == "the model of the run":
            manifest.write_text(json.dumps({**saved, "model": {"path": "/nowhere"}}))
        elif what == "are not those of the run":
            model = {**saved["model"], "files_sha256": "0"}
            manifest.write_text(json.dumps({**saved, "model": model}))
        elif what == "standard input":
            manifest.write_text(json.dumps({**saved, "input": {**saved["input"], "path": "-"}}))
        elif what == "pass it again":
            return []
        elif what == "--system is not what":
            return ["--system", "another"]
        return ["--system", SYSTEM]

    @pytest.mark.parametrize(
        "what",
        [
            "the input of the run",
            "it has changed since",
            "no manifest",
            "is not a manifest of",
            "the model of the run",
            "are not those of the run",
            "standard input",
            "pass it again",
            "--system is not what",
        ],
    )
    def test_that_cannot_be_had_is_one_warning(self, run: Run, output: Path, what: str) -> None:
        flags = self.spoil(output, what)
        status, out, err = run(output, "--row", "1", "--show-text", "--json", *flags)
        assert status == 0
        found = json.loads(out)
        assert what in " ".join(found["notes"])
        assert err.count("Warning: no texts are shown") == 1
        assert "Ann" not in out + err
        assert "text" not in found["rows"][0]


@pytest.mark.parametrize("flags", [["--at", "soon"], ["--top", "0"], ["--top", "x"]])
def test_a_wrong_flag_is_refused(run: Run, output: Path, flags: list[str]) -> None:
    status, out, err = run(output, *flags)
    assert (status, out) == (2, "")
    assert flags[0] in err
