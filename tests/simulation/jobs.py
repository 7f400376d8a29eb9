"""Simulated jobs: a seed draws a job, where the power is cut, and what the disk keeps.

Every run of a job is recorded to its end, and what it wrote is checked; then the disk is put back
to a state after a cut at any call of the run, and the job is run again with `--resume`.
"""

import csv
import gzip
import json
import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

from pagedrun.paged.files import atomic
from pagedrun.paged.job.config import JobConfig
from pagedrun.paged.job.job import run_job
from pagedrun.paged.job.output import writer
from pagedrun.paged.job.output.writer import RowWriter
from pagedrun.paged.job.signals import SignalGuard
from pagedrun.paged.values.engine_config import EngineConfig, PreemptionMode, WindowSize
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.pooling import PoolingParams, Task
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams
from tests.simulation.disk import DiskModel, RecordedDisk
from tests.simulation.engine import (
    Pool,
    SimulatedEncoder,
    SimulatedModel,
    opener,
    right_outputs,
    right_vector,
)

# Names of outputs; the last two are of vectors.
OUTPUTS = ("out.jsonl", "out.csv", "out.jsonl.gz", "out.parquet", "vectors.npy", "vectors.parquet")
ACKNOWLEDGED = "acknowledged"
MOST_CUTS = 6
_PARAMS = ("n", "temperature", "max_tokens", "ignore_eos")
_TRUNKS = ("", "abcab", "abcabcabcab", "babab")
_MAX_TOKENS = 8
_TOO_LONG = 80  # tokens of a prompt, more than the model has positions
_TOO_LARGE = 60  # more than any pool holds


@dataclass(frozen=True, slots=True)
class JobRow:
    """A line of the input, and its right answer: (text, token ids) of each sample, or the numbers
    of a vector; None if it cannot have any."""

    line: str
    right: tuple[Any, ...] | None


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """A job; flaky: rows that fail until they are tried again."""

    rows: tuple[JobRow, ...]
    output: str
    flaky: frozenset[int]
    settings: dict[str, Any]

    @classmethod
    def drawn(cls, draw: random.Random, output: str) -> "SimulatedJob":
        """Draw a job with such an output."""
        is_vectors = output.startswith("vectors")
        make = _vector_row if is_vectors else _row
        count = draw.choice((1, 2, 3, 5, 8, 12))
        rows = [make(draw, index) for index in range(count)]
        if all(row.right is None for row in rows):  # such an input is refused as a whole
            rows[0] = make(random.Random(1), 0)
        good = [index for index, row in enumerate(rows) if row.right is not None]
        flaky = frozenset(index for index in good if draw.random() < 0.1)
        settings: dict[str, Any] = {"window": WindowSize(rows=draw.choice((2, 4, 100)))}
        if output == "out.jsonl":
            settings["ordered"] = draw.random() < 0.4
        elif draw.random() < 0.2:
            settings["shards"] = 2
        if is_vectors:
            settings["pooled"] = PoolingParams(task=Task.EMBED)
        return cls(tuple(rows), output, flaky, settings)

    def right(self, *, is_retried: bool) -> list[tuple[Any, ...] | None]:
        """Return the right answer of each row, None for one that fails."""
        failing = frozenset() if is_retried else self.flaky
        return [None if i in failing else row.right for i, row in enumerate(self.rows)]


def _row(draw: random.Random, index: int) -> JobRow:
    kind = draw.random()
    if kind < 0.04:
        return JobRow("torn {", None)
    row: dict[str, Any] = {"id": f"r{index}", "max_tokens": draw.randint(1, _MAX_TOKENS)}
    row["ignore_eos"] = draw.random() < 0.5  # such an answer is as long as it may be
    if kind < 0.1:
        size = draw.choice((0, _TOO_LARGE, _TOO_LONG))
        return JobRow(json.dumps(row | ({"prompt": "a" * size} if size else {})), None)
    row["prompt"] = draw.choice(_TRUNKS) + "".join(draw.choices("abc", k=draw.randint(1, 7)))
    if kind < 0.3:
        row |= {"n": 2, "temperature": float(draw.randint(0, 1))}
    params = {name: row[name] for name in _PARAMS if name in row}
    request = Request(index, tuple(map(ord, row["prompt"])), SamplingParams(**params))
    right = tuple((each.text, list(each.token_ids)) for each in right_outputs(request))
    return JobRow(json.dumps(row), right)


def _vector_row(draw: random.Random, index: int) -> JobRow:
    if draw.random() < 0.1:
        return JobRow(draw.choice((f'{{"id": "r{index}"}}', "torn {")), None)
    tokens = draw.choices(range(1, 200), k=draw.randint(1, 9))
    line = json.dumps({"id": f"r{index}", "prompt_token_ids": tokens})
    return JobRow(line, tuple(right_vector(tokens).tolist()))


def drawn_pool(draw: random.Random) -> Pool:
    """Draw settings that change no answer; a pool may hold little more than one row."""
    block_size = draw.choice((2, 4))
    return Pool(
        block_size,
        draw.randint(28, 35) // block_size,
        draw.choice((0, 4)),
        draw.choice((2, 8)),
        draw.choice((5, 16, 64)),
        draw.choice((PreemptionMode.SWAP, PreemptionMode.RECOMPUTE)),
        prefix_caching=draw.random() < 0.8,
    )


@dataclass(slots=True)
class Figures:
    """Counts of simulated jobs."""

    jobs: int = 0
    runs: int = 0
    cuts: int = 0
    rows: int = 0
    preemptions: int = 0

    def __add__(self, other: "Figures") -> "Figures":
        both = ((getattr(self, each.name), getattr(other, each.name)) for each in fields(self))
        return Figures(*map(sum, both))


@dataclass
class Simulation:
    """A job of a seed in a folder, from its first run until it is done."""

    seed: int
    folder: Path
    output: str | None = None  # drawn, if it is not given
    figures: Figures = field(default_factory=lambda: Figures(jobs=1))

    def __post_init__(self) -> None:
        self._draw = draw = random.Random(self.seed)
        self._disk = RecordedDisk(self.folder / "disk")
        self._disk.root.mkdir(parents=True, exist_ok=True)
        self._job = SimulatedJob.drawn(draw, self.output or draw.choice(OUTPUTS))
        (self.folder / "model").mkdir(exist_ok=True)
        (self.folder / "model" / "config.json").write_text("{}")
        self._config = self._config_of(self._job, "in.jsonl")
        if draw.random() < 0.3:
            self._config = replace(self._config, out_dir=self._disk.root / "made" / "here")
            place = self._disk.root / "made" / "here" / self._job.output
            self._config = replace(self._config, output=str(place))
        self._right = self._job.right(is_retried=False)
        self._kept: set[int] = set()  # rows that the disk was said to keep

    def _config_of(self, job: SimulatedJob, name: str) -> JobConfig:
        source = self.folder / name
        source.write_text("".join(f"{row.line}\n" for row in job.rows))
        return JobConfig(
            input=str(source),
            output=str(self._disk.root / job.output),
            engine=EngineConfig(model=self.folder / "model"),
            **job.settings,
        )

    def run(self) -> Figures:
        """Run the job, with cuts, until it is done; raise `AssertionError` if anything is wrong."""
        draw = self._draw
        self._disk.restore({})
        config = self._config
        if draw.random() < 0.15:  # over the output of another job
            self._run(self._config_of(SimulatedJob.drawn(draw, self._job.output), "old.jsonl"))
            config = replace(config, overwrite=True)
        self._until_done(config)
        if self._job.flaky:
            self._right = self._job.right(is_retried=True)
            self._until_done(replace(self._config, resume=True, retry_errors=True), frozenset())
        return self.figures

    def _until_done(self, config: JobConfig, flaky: frozenset[int] | None = None) -> None:
        """Run a job, cut the power and run it again, until a run ends without a cut."""
        draw, disk = self._draw, self._disk
        resumed, replaces = replace(config, overwrite=False, resume=True), config.overwrite
        for number in range(MOST_CUTS + 1):
            try:
                self._run(config, flaky)
            except UsageError:
                # Of a job that was to replace another one, nothing is kept before it begins.
                if not replaces or self._kept or not config.resume:
                    raise
                config = replace(config, overwrite=True, resume=False)
                continue
            if number == MOST_CUTS or (number and draw.random() < 0.4):
                return
            self.figures.cuts += 1
            place, model = disk.drawn_place(draw), draw.choice([*DiskModel, DiskModel.SUBSET])
            marks = [each for each in disk.calls[:place] if each.kind == ACKNOWLEDGED]
            if marks:
                self._kept |= _answered(marks[-1].data or b"")
            disk.restore(disk.after_cut(place, model, draw))
            config = resumed

    def _run(self, config: JobConfig, flaky: frozenset[int] | None = None) -> None:
        """Run a job to its end, and check what it wrote."""
        failing = self._job.flaky if flaky is None else flaky
        is_own = config.input == self._config.input
        model: SimulatedEncoder | SimulatedModel
        if config.pooled is not None:
            model = SimulatedEncoder(failing)
        else:
            model = SimulatedModel(drawn_pool(self._draw), failing)
        with quick_jobs(self._draw, self._disk), self._disk.recording():
            report = run_job(config, None, opener(model), SignalGuard()).report
            answered = [index for index, right in enumerate(self._right) if right is not None]
            lines = [f'{{"index":{index},"error":null}}\n' for index in answered]
            self._disk.mark(ACKNOWLEDGED, "".join(lines).encode())
        self.figures.runs += 1
        if not is_own:
            return
        run = model.run
        self.figures.preemptions += 0 if run is None else run.num_preemptions
        assert run is None or not self._kept.intersection(run.answered), "computed again"
        counts = report["rows"]
        total = len(self._right)
        assert counts["total"] == counts["ok"] + counts["failed"] + counts["skipped"] == total
        manifest = json.loads(Path(f"{config.output}.run.json").read_text())
        assert manifest["status"] == "finished"
        assert found_rows(config) == [_shown(row, config) for row in self._right]
        self.figures.rows += total
        assert not list(self._disk.root.rglob(".*.tmp")), "files are left over"


def _answered(lines: bytes) -> set[int]:
    rows = map(json.loads, lines.splitlines())
    return {row["index"] for row in rows if row["error"] is None}


def found_rows(config: JobConfig) -> list[Any]:
    """Return the answers in an output, as its readers see them, in input order."""
    path = Path(config.output)
    stem, ending = path.name.split(".", 1)
    paths = [path]
    if config.shards is not None:
        names = [f"{stem}-{i:05}-of-{config.shards:05}.{ending}" for i in range(config.shards)]
        paths = [path.with_name(name) for name in names]
    match ending:
        case "csv":
            cells = [row for each in paths for row in csv.DictReader(each.open(newline=""))]
            return [None if row["error"] else row["answer"] for row in cells]
        case "parquet":
            tables = [row for each in paths for row in parquet.read_table(each).to_pylist()]
            name = "answer" if config.pooled is None else "embedding"
            found = [None if row["error"] is not None else row[name] for row in tables]
            return found if config.pooled is None else [each and tuple(each) for each in found]
        case "npy":
            vectors = [tuple(row) for each in paths for row in np.load(each).tolist()]
            return [row if row and not math.isnan(row[0]) else None for row in vectors]
    read = gzip.decompress if ending == "jsonl.gz" else bytes
    rows = [json.loads(line) for each in paths for line in read(each.read_bytes()).splitlines()]
    if ending == "jsonl" and not (config.ordered or config.shards):
        rows.sort(key=lambda row: int(row["index"]))
    indices = [row["index"] for row in rows]
    assert indices == list(range(len(rows))), "a row is missing, there twice, or out of order"
    return [
        None
        if row["error"] is not None
        else tuple((each["text"], each["token_ids"]) for each in row["outputs"])
        for row in rows
    ]


def _shown(right: tuple[Any, ...] | None, config: JobConfig) -> Any:
    """Return an answer as the output has it: tables have the first text alone."""
    is_table = config.pooled is None and config.output.endswith((".csv", ".parquet"))
    return right[0][0] if is_table and right is not None else right


@contextmanager
def quick_jobs(draw: random.Random, disk: RecordedDisk) -> Iterator[None]:
    """Sync after a few rows and never by the clock, say when, and write JSON in one line, which
    takes a third of the time."""
    real_sync = RowWriter.sync

    def sync(rows: RowWriter) -> None:
        real_sync(rows)
        disk.mark(ACKNOWLEDGED, Path(rows._output.path).read_bytes())

    compact = SimpleNamespace(dumps=lambda *of, indent=None, **more: json.dumps(*of, **more))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "SYNC_ROWS", draw.choice((1, 3, 100)))
        patch.setattr(writer, "SYNC_SECONDS", math.inf)
        patch.setattr(RowWriter, "sync", sync)
        patch.setattr(atomic, "json", compact)
        yield
