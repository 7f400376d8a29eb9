"""The host's work now against that of the first edition (commit e9beff8), in turns.

    git worktree add ../first e9beff8
    python benchmarks/host.py ../first --seats 128,1024,4096 --turns 3

Both run the same rows with kernels that cost nothing (see `pagedrun bench host`), each turn in a
process of its own. `first_edition` below is what such kernels are there. With `--as-gpu` it is the
steps of a GPU that are compared, with any commit from 1db5d1a on; the processor's seconds are
taken beside the clock's, since those of others do not count in them.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ("tokens_per_s", "decode_us_per_row", "admission_step_ms")
GPU_FIGURES = (
    *("tokens_per_s", "tokens_per_cpu_s", "step_ms", "step_cpu_ms", "steps", "with_prompts"),
    *("replayed", "eager_decode", "captures", "copies_per_step", "kb_per_step"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("first", type=Path, help="a checkout of e9beff8")
    parser.add_argument("--seats", default="1024")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--as-gpu", action="store_true", help="compare the steps of a GPU")
    parser.add_argument("--measure", choices=[*MEASURES], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(MEASURES[given.measure](int(given.seats))))
        return
    figures = GPU_FIGURES if given.as_gpu else FIGURES
    sides = ("gpu", "gpu") if given.as_gpu else ("first", "now")
    for seats in given.seats.split(","):
        turns = [
            (in_process(given.first, sides[0], seats), in_process(ROOT, sides[1], seats))
            for _ in range(given.turns)
        ]
        for name in figures:
            before, after = (median(turn[side][name] for turn in turns) for side in (0, 1))
            is_rate = name.startswith("tokens_per")
            ratios = [
                last[name] / first[name] if is_rate else first[name] / last[name]
                for first, last in turns
                if first[name] and last[name]
            ]
            gain = f"{median(ratios):.1f}x" if ratios else ""
            print(f"{seats:>5} seats  {name:18} {before:12,.2f} {after:12,.2f}  {gain}")


def in_process(root: Path, which: str, seats: str) -> dict[str, float]:
    """Measure one of the two; return its figures."""
    command = (sys.executable, __file__, str(root), "--measure", which, "--seats", seats)
    env = os.environ | {"PYTHONPATH": str(root.resolve() / "src")}
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def now(seats: int) -> dict[str, float]:
    """Return the figures of this checkout."""
    from pagedrun.kernels.environment.threads import prepare_environment

    prepare_environment()
    from pagedrun.paged.bench.host.host import HostBench

    [point] = HostBench(seats=(seats,)).run(lambda _: None)["points"]
    # None of the three is None: so many rows have steps of both kinds.
    spreads = (point["tokens_per_s"], point["decode_s_per_row"], point["admission_step_s"])
    rate, decode, admission = (spread["median"] for spread in spreads if spread is not None)
    return {
        "tokens_per_s": rate,
        "decode_us_per_row": 1e6 * decode,
        "admission_step_ms": 1e3 * admission,
    }


def as_gpu(seats: int) -> dict[str, float]:
    """Return the figures of a checkout whose steps are driven as on a GPU."""
    from pagedrun.kernels.environment.threads import prepare_environment

    prepare_environment()
    from pagedrun.paged.bench.host.host import HostBench

    HostBench(seats=(16,), as_gpu=True).run(lambda _: None)  # what a process does once
    bench = HostBench(seats=(seats,), rows_per_seat=4, as_gpu=True)
    began = time.process_time()
    [point] = bench.run(lambda _: None)["points"]
    cpu_s = time.process_time() - began
    rate, step_s = point["tokens_per_s"], point["step_s"]
    steps, asked = point["steps"], point["asked"]
    assert rate is not None, "a run has a rate"
    assert step_s is not None, "a run has steps"
    return {
        "tokens_per_s": rate["median"],
        "tokens_per_cpu_s": point["generated_tokens"] / cpu_s,
        "step_ms": 1e3 * step_s["median"],
        "step_cpu_ms": 1e3 * cpu_s / steps,
        "steps": steps,
        "with_prompts": asked["prefills"] / steps,
        "replayed": asked["replays"] / steps,
        "eager_decode": asked["decodes"] / steps,
        "captures": asked["captures"],
        "copies_per_step": asked["copies"] / steps,
        "kb_per_step": asked["bytes_copied"] / steps / 1e3,
    }


def first_edition(seats: int) -> dict[str, float]:
    """Return the figures of the first edition, whose modules lie elsewhere."""
    from pagedrun.kernels.threads import prepare_environment  # type: ignore[import-not-found]

    prepare_environment()
    from dataclasses import replace

    import torch

    from pagedrun.paged.bench.lengths import Lengths  # type: ignore[import-not-found]
    from pagedrun.paged.bench.model import BenchModel  # type: ignore[import-not-found]
    from pagedrun.paged.bench.workload import Workload  # type: ignore[import-not-found]

    model = BenchModel.from_shape("tiny", 1)
    engine = model.engine(
        costless_module(torch, model.config.vocab_size),
        device="cpu",
        dtype="float32",
        max_num_batched_tokens=8192,
    )
    for count in (16, seats):  # the first run of a process imports
        rows = Workload(count * 8, 1024, 64, Lengths(32, 256)).requests(model.config.vocab_size)
        engine.config = replace(engine.config, max_num_seqs=count)
        log: list[tuple[float, Any]] = []
        run = engine.start(rows, on_step=lambda r, log=log: log.append((time.perf_counter(), r)))
        began = time.perf_counter()
        for _ in run:
            pass
        seconds = time.perf_counter() - began
    steps = [(now - then, last, record) for (then, last), (now, record) in pairwise(log)]
    admission = [s for s, last, record in steps if record.prompt_tokens > last.prompt_tokens]
    decode = [
        s / seats
        for s, last, record in steps
        if record.prompt_tokens == last.prompt_tokens and record.running == seats
    ]
    return {
        "tokens_per_s": log[-1][1].generated_tokens / seconds,
        "decode_us_per_row": 1e6 * median(decode),
        "admission_step_ms": 1e3 * median(admission),
    }


def costless_module(torch: Any, vocab_size: int) -> ModuleType:
    """Return a backend as the first edition has them: a module of ops."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(2, vocab_size, (1 << 16,), generator=generator)
    given = [0]

    class PackedLinear:
        is_packed = False

        def __init__(self, weight: Any, *_: Any, **__: Any) -> None:
            self._value, self._num_out = weight.new_empty(1), len(weight)

        def __call__(self, x: Any) -> Any:
            return self._value.expand(len(x), self._num_out)

    def sample(logits: Any, **_: Any) -> Any:
        first = given[0] if given[0] + len(logits) <= len(drawn) else 0
        given[0] = first + len(logits)
        return drawn[first : given[0]].clone()

    ops: dict[str, Any] = {
        "PackedLinear": PackedLinear,
        "rms_norm": lambda x, *_: x,
        "add_rms_norm": lambda x, *_: x,
        "silu_mul": lambda x: x[:, : x.shape[1] // 2],
        "rotary_store": lambda qkv, heads, _, size, *__, **___: qkv[:, : heads * size].reshape(
            -1, heads, size
        ),
        "prefill_attention": lambda q, *_, **__: q,
        "prefix_attention": lambda *_, **__: None,
        "decode_attention": lambda q, *_, **__: q,
        "sample": sample,
        "copy_blocks": lambda *_: None,
        "swap_blocks": lambda *_: None,
    }
    module = ModuleType("costless")
    for name, op in ops.items():
        setattr(module, name, op)
    return module


MEASURES: dict[str, Callable[[int], dict[str, float]]] = {
    "first": first_edition,
    "now": now,
    "gpu": as_gpu,
}

if __name__ == "__main__":
    main()
