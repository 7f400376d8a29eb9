"""A report as a small run leaves it, and the snapshot of an invented one."""

from dataclasses import replace
from typing import Any

from pagedrun.paged.metrics.snapshot import (
    Branchings,
    Lengths,
    Preemptions,
    PrefixNodes,
    Snapshot,
)
from tests.support.small_runs import SmallRun, play

NUM_BLOCKS = 48
PREFIXES = PrefixNodes.of(
    parent=[-1, 0, 0, -1, 1],
    start=[0, 21, 21, 0, 727],
    end=[21, 727, 455, 20, 730],
    rows=[40, 26, 14, 20, 9],
    row=[0, 1, 2, 3, 1],
    saved=[640, 17_000, 5_600, 300, 16],
)
BRANCHINGS = Branchings.of(step=[2, 2], row=[2, 4], forked=[1, 1], died=[0, 1], freed=[0, 1])
LENGTHS = Lengths.of(
    tokens=[3, 8, 200, 201, 340], prompts=[0, 0, 7, 9, 4], answers=[5, 15, 0, 0, 0]
)
PREEMPTIONS = Preemptions.of(
    step=[4, 9],
    row=[3, 17],
    sample=[0, 1],
    swapped=[True, False],
    tokens=[101, 230],
    blocks=[7, 15],
    for_row=[1, 2],
    needed=[2, 1],
    free=[1, 0],
)


def small_run(seed: int = 3) -> SmallRun:
    """A run in which blocks are free, cached, held and shared in turn."""
    return play(seed, num_blocks=NUM_BLOCKS, num_steps=24)


def with_tables(snapshot: Snapshot) -> Snapshot:
    return replace(
        snapshot,
        prefixes=PREFIXES,
        lengths=LENGTHS,
        preemptions=PREEMPTIONS,
        branchings=BRANCHINGS,
    )


def small_report(snapshot: Snapshot) -> dict[str, Any]:
    """The report that belongs to the snapshot, as far as the page reads it."""
    samples = snapshot.samples
    refs, fills = samples.ref_counts.astype(int), samples.fills.astype(int)
    timeline = [
        {
            "t": float(samples.times[each]),
            "step": int(samples.steps[each]),
            "running": 5,
            "waiting": 24 - each,
            "blocks_used": int((refs[each] > 0).sum()),
            "blocks_shared": int((refs[each] > 1).sum()),
            "blocks_cached": int(((refs[each] == 0) & (fills[each] > 0)).sum()),
            "tokens": int(fills[each][refs[each] > 0].sum()),
        }
        for each in range(len(samples))
    ]
    peak = max(each["blocks_used"] for each in timeline)
    memory = {"weights": 2**20, "kv_pool": 3 * 2**20, "activations_peak": 2**18, "other": 2**21}
    return {
        "rows": {"total": 60, "ok": 59, "failed": 1, "skipped": 0},
        "tokens": {"prompt": 1200, "cached": 900, "computed": 300, "generated": 450},
        "time": {"load_s": 0.25, "run_s": 1.5, "generated_tokens_per_s": 300.0},
        "kv": {
            "block_size": snapshot.block_size,
            "num_blocks": snapshot.num_blocks,
            "peak_blocks": peak,
            "utilization_at_peak": 0.75,
            "contiguous_utilization": 0.25,
            "contiguous_max_requests": 4,
            "paged_max_requests": 14,
        },
        "prefix": {
            "hit_rate": 0.75,
            "achievable_hit_rate": 0.8,
            "bytes_saved": 900 * 64,
            "seconds_saved": 1.25,
        },
        "copy_on_write": {"forks": 2, "block_copies": 1},
        "preemptions": {"swap": 1, "recompute": 1},
        "memory": {**memory, "free": 2**23, "device_total": sum(memory.values()) + 2**23},
        "finish_reasons": {"stop": 50, "length": 9},
        "errors": {"prompt_too_long": 1},
        "timeline": timeline,
        "config": {"model": "demo", "block_size": snapshot.block_size},
        "hardware": {"device": "cpu", "versions": {"torch": "2.13"}},
    }
