"""llama.cpp as a peer of `bench throughput`, measured by its own llama-batched-bench.

The program computes random tokens of its own and reports the seconds of its phases, from which
the time of the rows follows. It shares either whole prompts or nothing. With a shared beginning,
the phases are therefore, from two runs of it:

- the first prompt, shared and own part, and decoding with this prompt shared by all rows, in one
  unified cache (`-pps -kvu`);
- the own parts of the other rows, without the shared part before them.

Attention of the latter to the shared part is left out, in favour of llama.cpp.
"""

import json
import os
import subprocess
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

import torch

from benchmarks.peers.other_process import (
    ask,
    environment,
    last_line,
    peak_memory,
    peer_path,
    require_cpu,
)
from benchmarks.peers.saved_model import check_gguf, save_gguf
from pagedrun.kernels.environment.threads import cpu_quota
from pagedrun.paged.bench.contender import OtherProcessRun, Tokens
from pagedrun.paged.bench.result import Neighbours, Spread
from pagedrun.paged.bench.workload import BenchModel, Lengths, Workload
from pagedrun.paged.files.gguf import is_gguf
from pagedrun.paged.values.errors import UsageError, option
from pagedrun.paged.values.request import Request

PROGRAM = "llama-batched-bench"
VARIABLE = "PAGEDRUN_LLAMA_CPP"
MOST_ROWS = 256  # sequences of a context
CELLS = 256  # a sequence's part of the cache is a multiple of this
LOOK_S = 0.05
# Its last line is lost if the process ends before its thread for logs has printed it.
ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Phases:
    """Seconds of the prompts and of decoding of a batch."""

    prompt_s: float
    decode_s: float


class LlamaCppPeer:
    """llama-batched-bench with all rows in one batch, at most 256."""

    name = "llama.cpp"

    def __init__(self, program: Path) -> None:
        self._program = program
        status, output = ask([str(program), "--version"])
        if status != 0:
            raise UsageError(
                f"{program} does not run ({last_line(output)}); build it again as in "
                "docs/benchmarks.md"
            )
        self._scratch = TemporaryDirectory(prefix="pagedrun-")
        versions = [each for each in output.splitlines() if each.startswith("version:")]
        self._version = versions[0].partition(":")[2].strip() if versions else None
        self._peak = 0

    @property
    def version(self) -> str | None:
        """Version that the program reports."""
        return self._version

    def check(self, model: BenchModel, workload: Workload) -> None:
        """Raise `UsageError` for rows or a model that it cannot be measured with."""
        if not workload.has_one_length or workload.group_size not in (None, workload.rows):
            raise UsageError(
                f"{option('against')} {self.name} needs rows of one length in one group, since "
                f"{PROGRAM} measures nothing else; give {option('unique')} and {option('output')} "
                f"one number each, and no {option('group_size')}"
            )
        if model.folder is None:
            check_gguf(model)
        elif not is_gguf(model.folder):
            raise UsageError(
                f"{option('against')} {self.name} needs the model as a .gguf file, and "
                f"{model.folder} is none; convert it with llama.cpp's convert_hf_to_gguf.py, or "
                f"give a {option('shape')}"
            )

    def load(self, model: BenchModel, dtype: torch.dtype, device: torch.device) -> None:
        """Write random weights as GGUF; a model that is a GGUF file stays as it is."""
        require_cpu(self.name, device)
        path = model.folder or save_gguf(model, dtype, Path(self._scratch.name, "model.gguf"))
        self._model = path

    def warm_up(self, workload: Workload) -> None:
        """Run a short workload, and take the lengths of the rows."""
        self._workload = workload.warm_up()
        self.run(())
        self._workload = workload

    def run(self, requests: Seq[Request]) -> tuple[OtherProcessRun, Tokens]:
        """Measure the phases of rows like these; there are no tokens to return."""
        rows = self._workload
        own, output = Lengths.of(rows.unique).low, Lengths.of(rows.output).low
        batches = [MOST_ROWS] * (rows.rows // MOST_ROWS) + [rows.rows % MOST_ROWS]
        batches = [size for size in batches if size]
        steps = output - 1  # the first token is the prompt's
        neighbours, computed = Neighbours(), _computed_s()
        self._peak = 0
        if rows.shared:
            phases = self._measure(rows.shared + own, steps, batches, is_shared=True)
            others = [size for size in (batches[0] - 1, *batches[1:]) if size]
            owns = self._measure(own, 1, others, is_shared=False)
            prefill_s = phases[batches[0]].prompt_s + sum(owns[size].prompt_s for size in others)
        else:
            phases = self._measure(own, steps, batches, is_shared=False)
            prefill_s = sum(phases[size].prompt_s for size in batches)
        decode_s = sum(phases[size].decode_s for size in batches)
        return OtherProcessRun(
            total_s=prefill_s + decode_s,
            prefill_s=prefill_s,
            rows=rows.rows,
            prompt_tokens=rows.rows * (rows.shared + own),
            generated_tokens=rows.rows * output,
            decode_rows=batches[0],
            decode_step=Spread.of([phases[batches[0]].decode_s / steps]),
            peak_memory=self._peak,
            others_busy=neighbours.cpus_busy(_computed_s() - computed),
        ), []

    def close(self) -> None:
        """Remove the written model."""
        self._scratch.cleanup()

    def _measure(
        self, prompt: int, steps: int, batches: Seq[int], *, is_shared: bool
    ) -> dict[int, Phases]:
        """Return the phases by the rows of a batch; see the module for `is_shared`."""
        sizes = sorted(set(batches))
        if not sizes:
            return {}
        per_row = steps if is_shared else prompt + steps
        cells = (prompt if is_shared else 0) + sizes[-1] * _rounded(per_row)
        command = [
            *(str(self._program), "-m", str(self._model), "-c", str(_rounded(cells))),
            *("-t", str(cpu_quota()), "-tb", str(cpu_quota()), "-ngl", "0"),
            *("-npp", str(prompt), "-ntg", str(steps), "-npl", ",".join(map(str, sizes))),
            *("--output-format", "jsonl"),
            *(("-pps", "-kvu") if is_shared else ()),
        ]
        for _ in range(ATTEMPTS):
            status, output = self._run(command)
            phases = _read(output.splitlines())
            if status != 0:
                raise UsageError(f"{self._program} failed: {last_line(output)}")
            if set(phases) == set(sizes):
                return phases
        raise UsageError(
            f"{self._program} printed no results of {prompt} prompt tokens and {sizes} rows: "
            f"{last_line(output)}"
        )

    def _run(self, command: list[str]) -> tuple[int, str]:
        """Run the program; return its status and its output, and note its peak memory."""
        with TemporaryFile() as output:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment(command[0]),
                )
            except OSError as error:
                return -1, str(error)
            with process:
                while process.poll() is None:
                    self._peak = max(self._peak, peak_memory(process.pid))
                    try:
                        process.wait(LOOK_S)
                    except subprocess.TimeoutExpired:
                        continue
            output.seek(0)
            return process.returncode, output.read().decode(errors="replace")


def open_peer(path: Path | None, batch_rows: int | None) -> LlamaCppPeer:
    """Return llama.cpp with the program in the folder `path`; raises `UsageError` without it."""
    if batch_rows is not None:
        raise UsageError(f"{option('hf_batch')} belongs to {option('against')} transformers")
    needed = f"the folder with {PROGRAM}"
    folder = peer_path(LlamaCppPeer.name, path, VARIABLE, needed)
    program = folder / PROGRAM if folder.is_dir() else folder
    if not program.is_file():
        raise UsageError(f"{folder} has no {PROGRAM}; build it as in docs/benchmarks.md")
    return LlamaCppPeer(program)


def _read(lines: Iterable[str]) -> dict[int, Phases]:
    """Return the phases in the lines of the program that are JSON, by the rows of a batch."""
    found = {}
    for line in lines:
        if line.startswith("{"):
            try:
                point = json.loads(line)
                found[int(point["pl"])] = Phases(float(point["t_pp"]), float(point["t_tg"]))
            except (ValueError, KeyError, TypeError):
                continue
    return found


def _rounded(cells: int) -> int:
    return -(-cells // CELLS) * CELLS


def _computed_s() -> float:
    """Return the CPU seconds of all processes that this one started and that have ended."""
    times = os.times()
    return times.children_user + times.children_system
