"""RunFigures: what one measured run did and how long it took."""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from time import perf_counter
from typing import NotRequired, TypedDict

from pagedrun.paged.bench.neighbours import Neighbours
from pagedrun.paged.bench.result import plain_spread
from pagedrun.paged.bench.runs.op_timer import OpSeconds, OpTimer, attention_seconds
from pagedrun.paged.bench.runs.step_log import StepLog
from pagedrun.paged.bench.spread import Spread, SpreadFigures
from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.planning.memory import peak_resident_bytes
from pagedrun.paged.values.errors import UsageError
from pagedrun.paged.values.request import Completion, Request


class AnyRun(TypedDict):
    """What is measured of any program's run."""

    total_s: float
    prefill_s: float
    rows: int
    prompt_tokens: int
    generated_tokens: int
    decode_rows: int
    decode_step: SpreadFigures | None
    peak_memory: int
    others_busy: float | None
    rows_per_s: float
    prompt_tokens_per_s: float
    generated_tokens_per_s: float


class RunRecord(AnyRun):
    """A run as `RunFigures` has it; a peer's lacks what only pagedrun lets see."""

    decode_s: NotRequired[float]
    cached_tokens: NotRequired[int]
    decode_attention: NotRequired[SpreadFigures | None]
    hit_rate: NotRequired[float]
    peak_blocks: NotRequired[int]
    block_size: NotRequired[int]
    pool_bytes: NotRequired[int]
    preemptions: NotRequired[int]
    ops: NotRequired[Mapping[str, float]]
    decode_ops: NotRequired[Mapping[str, float]]
    batch_rows: NotRequired[int]


@dataclass(frozen=True, slots=True)
class RunFigures:
    """Seconds, tokens, blocks and bytes of one run, from planning to the last token.

    `prefill_s` is the time of the steps that worked on a prompt, `decode_s` that of the others.
    `decode_step` is over the steps in which `decode_rows` rows, the most of the run, each got a
    token and nothing else was done; `decode_attention` the attention within those steps. `ops` and
    `decode_ops` are seconds by op, of the run and of those steps. `peak_memory` is the most that
    the process has held so far, earlier runs included; `others_busy` how many CPUs other processes
    kept busy meanwhile: on a quiet machine, none. On a GPU there are no seconds by op.
    """

    total_s: float
    prefill_s: float
    decode_s: float
    rows: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    decode_rows: int
    decode_step: Spread | None
    decode_attention: Spread | None
    hit_rate: float
    peak_blocks: int
    block_size: int
    pool_bytes: int
    preemptions: int
    peak_memory: int
    others_busy: float | None
    ops: OpSeconds
    decode_ops: OpSeconds

    def to_dict(self) -> RunRecord:
        """Return the fields and the rates that follow from them, as a result states them."""
        return {
            "total_s": self.total_s,
            "prefill_s": self.prefill_s,
            "decode_s": self.decode_s,
            "rows": self.rows,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "generated_tokens": self.generated_tokens,
            "decode_rows": self.decode_rows,
            "decode_step": plain_spread(self.decode_step),
            "decode_attention": plain_spread(self.decode_attention),
            "hit_rate": self.hit_rate,
            "peak_blocks": self.peak_blocks,
            "block_size": self.block_size,
            "pool_bytes": self.pool_bytes,
            "preemptions": self.preemptions,
            "peak_memory": self.peak_memory,
            "others_busy": self.others_busy,
            "ops": self.ops,
            "decode_ops": self.decode_ops,
            "rows_per_s": self.rows / self.total_s,
            "prompt_tokens_per_s": self.prompt_tokens / self.total_s,
            "generated_tokens_per_s": self.generated_tokens / self.total_s,
        }


def measure(
    engine: Engine, requests: Seq[Request], timer: OpTimer
) -> tuple[RunFigures, list[Completion]]:
    """Run the requests and return what was measured, and the answers in the requests' order.

    `timer` is the one whose kernels the engine has. Raises `UsageError` if a row cannot be run.
    """
    before = timer.snapshot()
    neighbours = Neighbours()
    began = perf_counter()
    log = StepLog(timer, async_scheduling=engine.loaded.device.async_scheduling)
    run = engine.start(requests, log)
    answers = sorted(run, key=lambda each: each.request.index)
    total_s = perf_counter() - began
    others_busy = neighbours.cpus_busy()
    for answer in answers:
        if answer.error is not None:
            raise UsageError(f"row {answer.request.index} cannot be run: {answer.error.marked}")
    report = run.report()
    tokens, kv = report["tokens"], report["kv"]
    decode_steps = log.decode_steps
    is_timed = not engine.loaded.device.is_asynchronous
    decode_s = sum(step.seconds for step in log.steps if step.only_decodes)
    figures = RunFigures(
        total_s=total_s,
        prefill_s=sum(step.seconds for step in log.steps) - decode_s,
        decode_s=decode_s,
        rows=len(answers),
        prompt_tokens=tokens["prompt"],
        cached_tokens=tokens["cached"],
        generated_tokens=tokens["generated"],
        decode_rows=decode_steps[0].generated_tokens if decode_steps else 0,
        decode_step=Spread.of(step.seconds for step in decode_steps),
        decode_attention=Spread.of(
            attention_seconds(step.op_seconds) for step in decode_steps if is_timed
        ),
        hit_rate=report["prefix"]["hit_rate"],
        peak_blocks=kv["peak_blocks"],
        block_size=kv["block_size"],
        pool_bytes=kv["pool_bytes"],
        preemptions=report["preemptions"]["swap"] + report["preemptions"]["recompute"],
        peak_memory=peak_resident_bytes(),
        others_busy=others_busy,
        ops=timer.since(before) if is_timed else {},
        decode_ops=_sum(step.op_seconds for step in decode_steps if is_timed),
    )
    return figures, answers


def _sum(each_step: Iterable[OpSeconds]) -> OpSeconds:
    total: dict[str, float] = {}
    for step in each_step:
        for name, seconds in step.items():
            total[name] = total.get(name, 0.0) + seconds
    return total
