"""Forecast: tokens, memory and sharing of a run, computed before it starts.

Gathers windows of requests as they are planned, and combines them with a simulation. Keys
that have a counterpart in the memory report of a run have its names. `BlockSizes` compares
other block sizes on the same rows: small blocks share prefixes to the last tokens and leave few
empty slots, but make long block tables and many keys. `run_time` estimates the duration from
the costs of an earlier run.
"""

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Seq

import numpy as np

from pagedrun.kernels.array_types import Int64s
from pagedrun.paged.cache.cache_spec import KVCacheSpec
from pagedrun.paged.metrics.report_sections import groups_part, section_of
from pagedrun.paged.metrics.step_costs import USUAL_NEW_TOKEN, USUAL_STEP, StepCosts
from pagedrun.paged.metrics.timeline import StepRecord
from pagedrun.paged.planning.forecast_sections import (
    BlockSizeComparison,
    BlockSizeFigures,
    ForecastFigures,
    ForecastKV,
    ForecastSavings,
    ForecastTokens,
    RunTime,
    SharedPrefix,
    SimulatedPoint,
)
from pagedrun.paged.planning.plan import Plan
from pagedrun.paged.planning.prefix_tree import PrefixTree
from pagedrun.paged.planning.simulation import Simulation, common_with_previous
from pagedrun.paged.values.engine_config import EngineConfig, PreemptionMode
from pagedrun.paged.values.request import Request

TOP_PREFIXES = 12
TOO_LARGE = "kv_cache_too_small"  # error code of a row larger than the pool


class Forecast:
    """Gathers plans with `add`; `to_dict` combines them with a simulation.

    `show` converts the first tokens of a prompt to text for the tree, None to leave texts out.
    """

    def __init__(
        self,
        config: EngineConfig,
        specs: Seq[KVCacheSpec],
        sizes: Seq[int],
        show: Callable[[tuple[int, ...]], str] | None = None,
    ) -> None:
        self._config = config
        self._specs = specs
        self._bytes_per_token = sum(spec.bytes_per_token for spec in specs)
        self._sizes = sizes
        self._show = show
        self._block_sizes = BlockSizes(config.block_size, prefix_caching=config.prefix_caching)
        self._totals: Counter[str] = Counter()
        self._depth = 0
        self._longest = 0
        self._needed = 0
        self._prefixes: dict[tuple[int, ...], list[int]] = {}  # tokens → rows, tokens saved
        self._rows_at_once: list[Int64s] = []

    def add(self, plan: Plan) -> None:
        """Count a window."""
        tree, duplicates = plan.tree, plan.duplicates
        copied = duplicates.num_copied_tokens(without=plan.too_large)
        left_out = {request.index for request in plan.too_large}
        asked = {i: all_ for i, all_ in duplicates.asked.items() if i not in left_out}
        num_copies = sum(len(each) - 1 for each in asked.values())
        too_large = sum(len(duplicates.asked.get(index, [0])) for index in left_out)
        lengths = tree.num_tokens + plan.max_tokens
        self._totals.update(
            planned=len(plan) + num_copies,
            duplicates=num_copies,
            too_large=too_large,
            prompt=int(tree.num_tokens.sum()) + copied,
            copied=copied,
            distinct=tree.num_distinct_tokens,
            generated=plan.max_num_generated + _num_copied_answers(asked),
            achievable=plan.sharing.achievable_hit_tokens,
            block_hits=plan.sharing.block_hit_tokens,
            groups=tree.num_groups,
            shared_blocks=plan.sharing.num_shared_blocks,
        )
        self._needed = max(self._needed, plan.num_blocks_needed(self._config.max_num_seqs))
        self._depth = max(self._depth, tree.depth)
        self._longest = max(self._longest, int(lengths.max(initial=0)))
        self._block_sizes.add(tree, copied)
        self._rows_at_once.append(_rows_at_once(plan, self._specs, self._sizes))
        self._note_prefixes(plan)

    def _note_prefixes(self, plan: Plan) -> None:
        for shared in plan.tree.top_prefixes(TOP_PREFIXES):
            prompt = plan.request(shared.row).prompt_token_ids
            known = self._prefixes.setdefault(prompt[: shared.num_tokens], [0, 0])
            known[0] += shared.num_rows
            known[1] += shared.num_tokens_saved

    def to_dict(self, simulation: Simulation, refused: Counter[str], total: int) -> ForecastFigures:
        """Return the forecast of `total` rows; refused: counts of refused rows by code."""
        totals, preemptions = self._totals, simulation.counts.preemptions
        refused = refused + Counter({TOO_LARGE: totals["too_large"]})
        figures: ForecastFigures = {
            "rows": {
                "total": total,
                "planned": totals["planned"],
                "refused": dict(refused.most_common()),
                "duplicates": totals["duplicates"],
                "simulated": simulation.num_rows,
                "is_simulated_whole": self._is_whole(simulation),
            },
            "tokens": self._tokens(simulation),
            "tree": {
                "depth": self._depth,
                "groups": totals["groups"],
                "distinct_tokens": totals["distinct"],
                "shared_blocks": totals["shared_blocks"],
                "top_prefixes": self._top_prefixes(),
            },
            "prefix": self._savings(simulation),
            "kv": self._memory(simulation),
            "block_sizes": self._compared_block_sizes(simulation),
            "steps": {"count": simulation.num_steps, "max_running": simulation.max_running},
            "preemptions": {
                "swap": preemptions[PreemptionMode.SWAP],
                "recompute": preemptions[PreemptionMode.RECOMPUTE],
            },
            "timeline": [_point(record) for record in simulation.timeline],
        }
        if simulation.states is not None:
            figures["states"] = simulation.states
        return figures

    def _is_whole(self, simulation: Simulation) -> bool:
        return simulation.num_rows == self._totals["planned"] - self._totals["duplicates"]

    def _cached(self, simulation: Simulation) -> int:
        """Return the prompt tokens that need not be computed.

        As simulated if all rows were; else for a pool without evictions.
        """
        if self._is_whole(simulation):
            return simulation.counts.cached_tokens + self._totals["copied"]
        return self._totals["block_hits"]

    def _tokens(self, simulation: Simulation) -> ForecastTokens:
        prompt, cached = self._totals["prompt"], self._cached(simulation)
        return {
            "prompt": prompt,
            "cached": cached,
            "computed": prompt - cached,
            "generated": self._totals["generated"],
            "preempted_recomputed": simulation.counts.recomputed_tokens,
            "longest_row": self._longest,
        }

    def _savings(self, simulation: Simulation) -> ForecastSavings:
        prompt, cached = max(self._totals["prompt"], 1), self._cached(simulation)
        return {
            "hit_tokens": cached,
            "hit_rate": cached / prompt,
            "achievable_hit_rate": self._totals["achievable"] / prompt,
            "bytes_saved": cached * self._bytes_per_token,
            "attention_bytes_read": simulation.reads_with_sharing,
            "attention_bytes_without_sharing": simulation.reads_without_sharing,
        }

    def _memory(self, simulation: Simulation) -> ForecastKV:
        rows_at_once = np.concatenate([*self._rows_at_once, np.zeros(0, dtype=np.int64)])
        return {
            **simulation.kv,
            **groups_part(simulation.groups),
            "dtype": self._dtype_name(),
            "bytes_per_token_as": {
                name: sum(spec.stored_as(name).bytes_per_token for spec in self._specs)
                for name in ("float32", "bfloat16", "fp8", "int8")
            },
            "blocks_needed": self._needed,
            "peak_bytes": sum(group["peak_bytes"] for group in simulation.groups),
            "rows_at_once_everywhere": int(rows_at_once.min()) if len(rows_at_once) else 0,
            "rows_at_once_typical": int(np.median(rows_at_once)) if len(rows_at_once) else 0,
        }

    def _dtype_name(self) -> str:
        """Return the storage format of keys and values, by its flag value."""
        asked = self._config.kv_cache_dtype
        first = self._specs[0]
        return asked if first.is_quantized else first.dtype

    def _compared_block_sizes(self, simulation: Simulation) -> BlockSizeComparison:
        figures = self._block_sizes.figures(simulation.at_peak, self._specs)
        most_hits = max(figures, key=lambda each: (each["hit_tokens"], each["block_size"]))
        least_memory = min(figures, key=lambda each: (each["peak_bytes"], -each["block_size"]))
        return {
            "best": best_block_size(figures, self._totals["generated"])["block_size"],
            "most_hits": most_hits["block_size"],
            "least_memory": least_memory["block_size"],
            "sizes": figures,
        }

    def _top_prefixes(self) -> list[SharedPrefix]:
        """Return the prefixes with the largest savings; `parent` is the index in this list of the
        longest one that each continues, None if there is none."""
        best = sorted(self._prefixes.items(), key=lambda item: -item[1][1])[:TOP_PREFIXES]
        told: list[SharedPrefix] = []
        for place, (tokens, (num_rows, num_saved)) in enumerate(best):
            around = [
                (len(other), index)
                for index, (other, _) in enumerate(best)
                if index != place and len(other) < len(tokens) and tokens[: len(other)] == other
            ]
            parent = max(around, default=None)
            prefix: SharedPrefix = {
                "tokens": len(tokens),
                "rows": num_rows,
                "tokens_saved": num_saved,
                "parent": None if parent is None else parent[1],
            }
            if self._show is not None:
                prefix["text"] = self._show(tokens[parent[0] if parent else 0 :])
            told.append(prefix)
        return told


def _rows_at_once(plan: Plan, specs: Seq[KVCacheSpec], sizes: Seq[int]) -> Int64s:
    """Return, from each row on, the number of rows in run order that fit into the pools at full
    length.

    Starts near the end from which all rows would fit are left out, unless all rows do: [num_places]
    int64.
    """
    num_rows, size = len(plan), plan.tree.block_size
    private = plan.num_private_blocks
    ends = _ends(private, plan.num_blocks_found, sizes[0])
    for spec, num_blocks in zip(specs[1:], sizes[1:], strict=True):
        if spec.window is not None:  # shared or not: windows of few rows overlap at their ends
            whole = plan.num_blocks_at_full_length
            reached = np.minimum(whole, -(-(spec.window - 1) // size) + 1) * plan.num_samples
            ends = np.minimum(ends, _ends(reached, np.zeros_like(reached), num_blocks))
    full = ends < num_rows
    counts = ends - np.arange(num_rows)
    if not full.any():
        return np.full(min(num_rows, 1), num_rows, dtype=np.int64)
    return np.asarray(counts[full], dtype=np.int64)


def _ends(taken: Int64s, found: Int64s, num_blocks: int) -> Int64s:
    """Return, from each row on, the row behind which a pool is full: [num_rows] int64.

    taken: blocks of each row beside the one before. found: [num_rows] int64, blocks shared with
    that one, which the first row of a batch holds too.
    """
    sums = np.concatenate([[0], np.cumsum(taken)])
    return np.asarray(np.searchsorted(sums, num_blocks - found + sums[:-1], side="right") - 1)


def _num_copied_answers(asked: dict[int, list[Request]]) -> int:
    """Return the tokens of answers that are copied to duplicates, and samples of greedy rows."""
    return sum(
        sum(request.max_num_generated for request in each)
        - each[0].max_num_generated // each[0].params.n
        for each in asked.values()
    )


def _point(record: StepRecord) -> SimulatedPoint:
    return section_of(SimulatedPoint, lambda name: getattr(record, name))


CANDIDATES = (8, 16, 32, 64, 128, 256)
# A larger block is chosen where it costs no more than this share of tokens to compute, prompts and
# answers, and of memory.
TOLERANCE = 0.05


class BlockSizes:
    """Figures of other block sizes over a file's windows."""

    def __init__(self, block_size: int, *, prefix_caching: bool) -> None:
        """Compare `block_size`, the current one, with the usual ones."""
        self._sizes = sorted({*CANDIDATES, block_size})
        self._prefix_caching = prefix_caching
        self._hit_tokens = dict.fromkeys(self._sizes, 0)
        self._prompt_tokens = 0
        self._common = np.zeros(0, dtype=np.int32)

    def add(self, tree: PrefixTree, num_copied_tokens: int) -> None:
        """Count a window's rows; duplicates, not in the tree, have `num_copied_tokens`."""
        self._prompt_tokens += int(tree.num_tokens.sum()) + num_copied_tokens
        common = tree.common if self._prefix_caching else np.zeros_like(tree.common)
        self._common = np.concatenate([self._common, common])
        for size in self._sizes:
            hits = np.minimum(common.astype(np.int64) // size * size, tree.num_tokens - 1)
            self._hit_tokens[size] += int(hits.sum()) + num_copied_tokens

    def figures(self, at_peak: Int64s, specs: Seq[KVCacheSpec]) -> list[BlockSizeFigures]:
        """Return the figures, smallest blocks first; `at_peak` is `Simulation.at_peak`.

        specs: of the groups of layers; the blocks are those of the first.
        """
        tokens = at_peak[:, 1]
        common = self._common_at_peak(at_peak)
        found: list[BlockSizeFigures] = []
        for size in self._sizes:
            blocks = _num_blocks(tokens, common, size, None)
            peak_bytes = sum(
                _num_blocks(tokens, common, size, spec.window) * size * spec.bytes_per_token
                for spec in specs
            )
            shared_tokens = int((common // size * size).sum())
            stored = int(tokens.sum()) - shared_tokens
            found.append(
                {
                    "block_size": size,
                    "hit_tokens": self._hit_tokens[size],
                    "computed_tokens": self._prompt_tokens - self._hit_tokens[size],
                    "peak_blocks": blocks,
                    "peak_bytes": peak_bytes,
                    "tail_waste": 1.0 - stored / (blocks * size) if blocks else 0.0,
                }
            )
        return found

    def _common_at_peak(self, at_peak: Int64s) -> Int64s:
        """Return the tokens that each row at the peak has in common with the one before,
        [num_running]."""
        places, tokens, prompts = at_peak.T
        common = prompts.copy()  # samples of one row are side by side and share its prompt
        unique, first = np.unique(places, return_index=True)
        common[first[:1]] = 0
        common[first[1:]] = common_with_previous(self._common, unique)
        return np.asarray(np.minimum(common, tokens))


def _num_blocks(tokens: Int64s, common: Int64s, size: int, window: int | None) -> int:
    """Return the blocks of sequences of `tokens` tokens, as far as the next token sees a window.

    common: tokens in common with the previous sequence. A shared block counts once as far as it
    lies in both windows.
    """
    first = np.zeros_like(tokens)
    if window is not None:
        first = np.maximum(tokens - window + 1, 0) // size
    before = np.append(first[:1], first[:-1])
    shared = np.maximum(common // size - np.maximum(first, before), 0)
    return int((-(-tokens // size) - first - shared).sum())


def best_block_size(figures: list[BlockSizeFigures], generated_tokens: int) -> BlockSizeFigures:
    """Return the largest block with hardly more computed tokens and memory than the best one.

    Answers of `generated_tokens` are computed whatever the block size.
    """
    least_computed = min(each["computed_tokens"] for each in figures) + generated_tokens
    least_bytes = min(each["peak_bytes"] for each in figures)
    good = [
        each
        for each in figures
        if each["computed_tokens"] + generated_tokens <= least_computed * (1 + TOLERANCE)
        and each["peak_bytes"] <= least_bytes * (1 + TOLERANCE)
    ]
    fallback = min(figures, key=lambda each: (each["peak_bytes"], each["computed_tokens"]))
    return max(good, key=lambda each: each["block_size"], default=fallback)


# For other batches, context lengths and loads of the machine.
MARGIN = 1.5


def run_time(
    forecast: ForecastFigures,
    costs: StepCosts,
    *,
    read_s: float,
    load_s: float,
    compile_s: float,
    max_num_batched_tokens: int,
    ignore_eos: bool,
) -> RunTime:
    """Return lower and upper bounds of the time of a run: with `read_s` for reading the file and
    `load_s` for loading the model, and at most `compile_s` for its kernels.

    The lengths of answers are unknown before: they have at least one token each, and at most their
    limit, which they reach with `ignore_eos`: in the steps with drafts, if these are estimated.
    Costs of an earlier run are used both as fitted and in the usual proportions, whichever is less
    or more: a run with hardly any prompt tokens says little about prompts.
    """
    rows, tokens = forecast["rows"], forecast["tokens"]
    num_computed = tokens["computed"] + tokens["preempted_recomputed"]
    num_rows = rows["planned"] - rows["duplicates"]
    steps, scale = forecast["steps"], num_rows / max(rows["simulated"], 1)
    num_steps, num_wrong = steps["count"], 0
    if drafts := steps.get("drafts"):
        num_steps, num_wrong = drafts["count"], drafts["wrong"]
    most = num_steps * scale, num_computed, tokens["generated"] + round(num_wrong * scale)
    least = most if ignore_eos else (num_computed / max_num_batched_tokens, num_computed, num_rows)
    return bounded_time(costs, least, most, read_s=read_s, load_s=load_s, compile_s=compile_s)


def bounded_time(
    costs: StepCosts,
    least: tuple[float, int, int],
    most: tuple[float, int, int],
    *,
    read_s: float,
    load_s: float,
    compile_s: float,
) -> RunTime:
    """Return the bounds of `run_time` for the least and the most work: steps, prompt tokens and
    generated tokens."""
    low_s = min(_fitted_s(costs, *least), _usual_s(costs, *least))
    high_s = max(_fitted_s(costs, *most), _usual_s(costs, *most))
    return {
        "read_s": read_s,
        "load_s": load_s,
        "compile_s": compile_s,
        "low_s": (read_s + load_s + low_s) / MARGIN,
        "high_s": (read_s + load_s + compile_s + high_s) * MARGIN,
    }


def _fitted_s(costs: StepCosts, num_steps: float, num_prompt: int, num_new: int) -> float:
    prompts_s = num_prompt * costs["prompt_token_s"]
    return num_steps * costs["step_s"] + prompts_s + num_new * costs["generated_token_s"]


def _usual_s(costs: StepCosts, num_steps: float, num_prompt: int, num_new: int) -> float:
    num_tokens = num_steps * USUAL_STEP + num_prompt + num_new * USUAL_NEW_TOKEN
    return num_tokens * costs["usual_token_s"]
