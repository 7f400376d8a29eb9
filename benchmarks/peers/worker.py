"""Far side of a peer in a Python environment of its own: vLLM or OpenVINO GenAI.

    python worker.py vllm|openvino

Imports nothing of pagedrun. The first line of stdin is a JSON object with the model and its
limits; the answer is one line with the version of the engine. Each further line is a run: its
rows, as prompt token ids and numbers of tokens to generate. The answer has the generated tokens
and the seconds of the steps. Anything else that the engine prints goes to stderr.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple, Protocol

# Threads of OpenMP spin for a while after their work; pagedrun's next run must not notice.
REST_S = 0.3


class Row(NamedTuple):
    """Prompt token ids, and the number of tokens to generate."""

    prompt: list[int]
    max_tokens: int


class Engine(Protocol):
    """Continuous batching, a step at a time."""

    version: str
    leaders_first: bool
    """True if a prefix is only found in the cache after the step that computed it."""

    def begin(self) -> None:
        """Forget the prefixes of earlier runs."""
        ...

    def add(self, row_id: int, row: Row) -> None:
        """Queue a row."""
        ...

    def step(self) -> dict[int, list[int]]:
        """Compute a step; return the new tokens by row."""
        ...


class Vllm:
    """vLLM in this process, with prefix caching; all else is its default."""

    leaders_first = False

    def __init__(self, job: dict[str, Any]) -> None:
        os.environ |= {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # no second process: its messages cost time
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # OMP_NUM_THREADS decides, as for pagedrun
        }
        import vllm
        from vllm.sampling_params import RequestOutputKind

        self.version = vllm.__version__
        self._vllm = vllm
        self._delta = RequestOutputKind.DELTA
        self._engine = vllm.LLM(
            model=job["model"],
            skip_tokenizer_init=True,
            dtype=job["dtype"],
            max_model_len=job["max_model_len"],
            kv_cache_memory_bytes=job["cache_bytes"],
            enable_prefix_caching=True,
        ).llm_engine

    def begin(self) -> None:
        self._engine.reset_prefix_cache()

    def add(self, row_id: int, row: Row) -> None:
        params = self._vllm.SamplingParams(
            temperature=0.0,
            max_tokens=row.max_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=self._delta,
        )
        self._engine.add_request(str(row_id), {"prompt_token_ids": row.prompt}, params)

    def step(self) -> dict[int, list[int]]:
        outputs = self._engine.step()
        return {int(each.request_id): list(each.outputs[0].token_ids) for each in outputs}


def preload_libraries() -> None:
    """Start this process again with the libraries that vLLM's documentation preloads.

    These are OpenMP of Intel, which the wheel brings, and tcmalloc, if the machine has it.
    """
    found = [*Path(sys.prefix, "lib").glob("libiomp5.so")]
    found += sorted(Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4"))
    loaded = os.environ.get("LD_PRELOAD", "")
    missing = [str(path) for path in found if str(path) not in loaded]
    if missing:
        libraries = ":".join([*missing, *filter(None, [loaded])])
        # The last two are as vLLM sets them where it binds threads to CPUs.
        changes = {"LD_PRELOAD": libraries, "KMP_BLOCKTIME": "5", "KMP_TPAUSE": "0"}
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | changes)


class OpenVino:
    """OpenVINO GenAI with continuous batching and prefix caching.

    Weights and cache have the dtype of the job, as far as the processor computes with it.
    """

    leaders_first = True

    def __init__(self, job: dict[str, Any]) -> None:
        import openvino
        import openvino_genai

        self.version = openvino_genai.__version__
        self._genai = openvino_genai
        self._job = job
        self._folder = Path(job["scratch"]) / "openvino"
        export(job["model"], self._folder)
        capabilities = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        self._precision = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
        if job["dtype"] != "float32":
            # The capabilities are those of the processor, whatever oneDNN is held to.
            held_to = os.environ.get("ONEDNN_MAX_CPU_ISA", "BF16")
            can = "BF16" in capabilities and ("BF16" in held_to or "AMX" in held_to)
            has_bfloat16 = job["dtype"] == "bfloat16" and can
            self._precision["KV_CACHE_PRECISION"] = "bf16" if has_bfloat16 else "f16"
            if has_bfloat16:
                self._precision["INFERENCE_PRECISION_HINT"] = "bf16"
        self._handles: dict[int, Any] = {}
        self._pipeline: Any = None

    def begin(self) -> None:
        """Build the pipeline anew, since its prefixes cannot be forgotten, and warm it up."""
        self._pipeline = None
        scheduler = self._genai.SchedulerConfig()
        scheduler.cache_size = -(-self._job["cache_bytes"] // 2**30)  # in GiB
        scheduler.enable_prefix_caching = True
        options = {"INFERENCE_NUM_THREADS": self._job["threads"], **self._precision}
        self._pipeline = self._genai.ContinuousBatchingPipeline(
            str(self._folder), scheduler, "CPU", options
        )
        answer(self, [Row([1 + row, *range(40)], 3) for row in range(4)])

    def add(self, row_id: int, row: Row) -> None:
        import numpy as np
        import openvino

        config = self._genai.GenerationConfig()
        config.do_sample = False
        config.max_new_tokens = row.max_tokens
        config.ignore_eos = True
        ids = openvino.Tensor(np.array([row.prompt], dtype=np.int64))
        self._handles[row_id] = self._pipeline.add_request(row_id, ids, config)

    def step(self) -> dict[int, list[int]]:
        self._pipeline.step()
        found = {}
        for row_id, handle in list(self._handles.items()):
            if handle.can_read():
                (output,) = handle.read().values()
                found[row_id] = list(output.generated_ids)
            elif handle.get_status() != self._genai.GenerationStatus.RUNNING:
                del self._handles[row_id]
        return found


def export(model: str, folder: Path) -> None:
    """Convert a folder of Transformers for OpenVINO, its weights unchanged."""
    from optimum.intel import OVModelForCausalLM

    exported = OVModelForCausalLM.from_pretrained(
        model, export=True, compile=False, load_in_8bit=False
    )
    exported.save_pretrained(folder)


ENGINES: dict[str, type[Vllm | OpenVino]] = {"vllm": Vllm, "openvino": OpenVino}


class Step(NamedTuple):
    """Seconds of a step, the rows that got a token, and True if a prompt was still unanswered."""

    seconds: float
    rows: int
    has_prompts: bool


def answer(engine: Engine, rows: list[Row], shared: int = 0) -> tuple[list[list[int]], list[Step]]:
    """Answer the rows; return their tokens, and the steps.

    The first `shared` tokens of a prompt may be those of others.
    """
    tokens: list[list[int]] = [[] for _ in rows]
    waiting = dict(enumerate(rows))
    left: dict[int, int] = {}
    steps: list[Step] = []

    def add(row_ids: list[int]) -> None:
        for row_id in row_ids:
            left[row_id] = waiting[row_id].max_tokens
            engine.add(row_id, waiting.pop(row_id))

    began = time.perf_counter()
    if engine.leaders_first and shared:
        leaders = {tuple(row.prompt[:shared]): row_id for row_id, row in reversed(waiting.items())}
        add(sorted(leaders.values()))
    else:
        add(list(waiting))
    while left:
        has_prompts = bool(waiting) or not all(tokens)
        new = {row_id: ids for row_id, ids in engine.step().items() if ids}
        for row_id, ids in new.items():
            tokens[row_id] += ids
            left[row_id] -= len(ids)
            if left[row_id] <= 0:
                del left[row_id]
        if waiting and all(tokens[row_id] for row_id in range(len(rows)) if row_id not in waiting):
            add(list(waiting))
        now = time.perf_counter()
        steps.append(Step(now - began, len(new), has_prompts))
        began = now
    return tokens, steps


def run(engine: Engine, rows: list[Row], shared: int) -> dict[str, Any]:
    """Answer the rows; return tokens and figures, as JSON can hold them."""
    computed = time.process_time()
    engine.begin()
    began = time.perf_counter()
    tokens, steps = answer(engine, rows, shared)
    total_s = time.perf_counter() - began
    decoding = [step for step in steps if not step.has_prompts]
    decode_rows = max((step.rows for step in decoding), default=0)
    return {
        "total_s": total_s,
        "prefill_s": sum(step.seconds for step in steps if step.has_prompts),
        "decode_rows": decode_rows,
        "decode_s": [step.seconds for step in decoding if step.rows == decode_rows],
        "tokens": tokens,
        "cpu_s": time.process_time() - computed,
    }


def main() -> None:
    """Answer the lines of stdin until it ends."""
    (name,) = sys.argv[1:]
    if name == "vllm":
        preload_libraries()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # engines print to stdout

    def send(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    job = json.loads(sys.stdin.readline())
    engine: Engine = ENGINES[name](job)
    send({"version": engine.version})
    for line in sys.stdin:
        given = json.loads(line)
        figures = run(engine, [Row(*row) for row in given["rows"]], given["shared"])
        time.sleep(REST_S)
        send(figures)


if __name__ == "__main__":
    main()
