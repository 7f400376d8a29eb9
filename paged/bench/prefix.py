"""Cost of a shared prefix, by its length and by the number of rows that share it."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, TypedDict

from pagedrun.paged.bench.contender import EngineContender, RunFigures, reading_alone
from pagedrun.paged.bench.op_timer import OpTimer
from pagedrun.paged.bench.result import (
    BenchDevice,
    Budget,
    Measured,
    Spread,
    plain_config,
)
from pagedrun.paged.bench.workload import BenchModel, Lengths, Workload
from pagedrun.paged.execution.device import choose_device
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.values.engine_config import OFF
from pagedrun.paged.values.errors import UsageError, option


class ModeFigures(TypedDict):
    """The runs of a point in one mode."""

    rows_per_s: Spread | None
    total_s: Spread | None
    prefill_s: Spread | None
    decode_step_s: Spread | None
    decode_attention_s: Spread | None
    hit_rate: float
    peak_blocks: int
    others_busy: float


class ModeRatio(TypedDict):
    """Ratio of the times of two modes."""

    end_to_end: Spread | None
    decode_step: Spread | None
    decode_attention: Spread | None


class SkippedMode(TypedDict):
    """A mode that the budget did not allow."""

    mode: str
    estimated_s: float


class PrefixPointFigures(TypedDict):
    """One entry of `points`: a prefix and the rows that share it; modes and ratios by name."""

    prefix: int
    group: int
    modes: dict[str, ModeFigures]
    ratios: dict[str, ModeRatio]
    skipped: list[SkippedMode]


class PrefixBenchFigures(Measured):
    """The whole of `bench prefix`.

    `workload`: tokens of a row after the prefix, and of its answer. `config`: engine settings.
    """

    model: Mapping[str, Any]
    workload: dict[str, int]
    config: dict[str, object]
    repeat: int
    budget_s: float
    points: list[PrefixPointFigures]


Say = Callable[[str], None]


class Mode(StrEnum):
    """Modes of sharing a prefix; for separate reads see `reading_alone`."""

    ONCE = "prefix once"  # computed once, and read once per step
    REREAD = "re-read"  # computed once, read by every row for itself
    UNCACHED = "no caching"  # computed, stored and read by every row for itself


# Pairs of a slower and a faster mode, by the name of their ratio.
_COMPARED = {
    "once_over_reread": (Mode.REREAD, Mode.ONCE),
    "caching_over_none": (Mode.UNCACHED, Mode.ONCE),
}


@dataclass(frozen=True, slots=True)
class PrefixBench:
    """Every prefix length with every group size: one group of that many concurrent rows.

    Each row has `unique` tokens of its own and gets `output` tokens. The modes take turns,
    `repeat` times. Cheap points come first; a point estimated to exceed the rest of `budget_s`
    seconds, or a tenth of all of them, is skipped and listed. `flags` are fields of `EngineConfig`.
    """

    model: BenchModel
    prefix_lengths: Seq[int]
    group_sizes: Seq[int]
    unique: int = 16
    output: int = 16
    repeat: int = 2
    budget_s: float = 240.0
    flags: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for flag, values in (
            (option("prefix"), self.prefix_lengths),
            (option("group"), self.group_sizes),
        ):
            if not values:
                raise UsageError(f"{flag} needs at least one value")
        if min(self.group_sizes) < 1:
            raise UsageError(f"{option('group')} is {min(self.group_sizes)}; it must be at least 1")
        for length in self.prefix_lengths:
            for group_size in self.group_sizes:
                self._workload(length, group_size)

    def run(self, say: Say) -> PrefixBenchFigures:
        """Measure, reporting progress to `say`; return the result in JSON's types.

        Raises `UsageError` for settings that cannot be, `ModelError` for a model that cannot.
        """
        asked = (self.flags.get(name, "auto") for name in ("device", "kernel_set", "activations"))
        device = choose_device(*asked)
        timer = OpTimer(device.kernels)
        say(f"Loading {self.model.name}")
        engine = self.model.engine(
            timer.kernels,
            **{"max_num_seqs": max(self.group_sizes), "speculate": OFF, **self.flags},
        )
        uncached = engine.reconfigured(prefix_caching=False)
        modes = {
            Mode.ONCE: EngineContender(Mode.ONCE, engine, timer),
            Mode.REREAD: EngineContender(Mode.REREAD, reading_alone(engine), timer),
            Mode.UNCACHED: EngineContender(Mode.UNCACHED, reading_alone(uncached), timer),
        }
        longest = self._workload(max(self.prefix_lengths), max(self.group_sizes))
        for contender in modes.values():
            say(f"Warming up: {contender.name}")
            contender.warm_up(longest)
        budget = Budget(self.budget_s)
        points: list[PrefixPointFigures] = []
        for workload in self._workloads():
            point = self._measure(workload, modes, budget)
            points.append(point)
            took = {mode: each["total_s"] for mode, each in point["modes"].items()}
            ran = ", ".join(f"{mode} {s.median:.2f} s" for mode, s in took.items() if s)
            say(f"prefix {workload.shared} x {workload.rows} rows: {ran or 'skipped'}")
        points.sort(key=lambda point: (point["prefix"], point["group"]))
        return {
            "model": self.model.describe(engine.loaded.dtype),
            "device": BenchDevice(device).to_dict(),
            "workload": {"unique": self.unique, "output": self.output},
            "config": plain_config(asdict(engine.config)),
            "repeat": self.repeat,
            "budget_s": self.budget_s,
            "points": points,
        }

    def _workload(self, length: int, group_size: int) -> Workload:
        return Workload(group_size, length, self.unique, self.output)

    def _workloads(self) -> list[Workload]:
        """Return a workload per point, cheap ones first."""
        pairs = {(length, size) for length in self.prefix_lengths for size in self.group_sizes}
        each = [self._workload(*pair) for pair in pairs]
        return sorted(each, key=lambda one: _work(self.model.config, one, Mode.ONCE))

    def _measure(
        self, workload: Workload, modes: Mapping[Mode, EngineContender], budget: Budget
    ) -> PrefixPointFigures:
        """Return the point: the modes that the budget allows, run in turns, and their ratios."""
        config = self.model.config
        work = {mode: _work(config, workload, mode) for mode in modes}
        skipped = budget.too_much({mode: each * self.repeat for mode, each in work.items()})
        runs: dict[Mode, list[RunFigures]] = {mode: [] for mode in modes if mode not in skipped}
        requests = workload.requests(config.vocab_size)
        for turn in range(self.repeat):
            for mode in list(runs) if turn % 2 == 0 else reversed(list(runs)):
                figures, _ = modes[mode].run(requests)
                budget.note(work[mode], figures.total_s)
                runs[mode].append(figures)
        return {
            "prefix": workload.shared,
            "group": workload.rows,
            "modes": {mode.value: _mode(each) for mode, each in runs.items()},
            "ratios": {
                name: _ratio(runs[slow], runs[fast])
                for name, (slow, fast) in _COMPARED.items()
                if slow in runs and fast in runs
            },
            "skipped": [{"mode": mode.value, "estimated_s": s} for mode, s in skipped.items()],
        }


def _work(config: ModelConfig, workload: Workload, mode: Mode) -> float:
    """Return the approximate number of multiplications of a run; only proportions count."""
    size = config.num_heads * config.head_dim
    weights = config.num_layers * config.hidden_size * (3 * size + 3 * config.intermediate_size)
    rows, shared, unique = workload.rows, workload.shared, Lengths.of(workload.unique).mean
    copies = rows if mode is Mode.UNCACHED else 1
    decoded = rows * Lengths.of(workload.output).mean
    prompt = copies * shared + rows * unique
    head = decoded * config.hidden_size * config.vocab_size
    pairs = copies * shared**2 / 2 + (rows * unique + decoded) * workload.prompt_tokens
    return (prompt + decoded) * weights + head + 2 * config.num_layers * size * pairs


def _mode(runs: Seq[RunFigures]) -> ModeFigures:
    return {
        "rows_per_s": Spread.of(run.rows / run.total_s for run in runs),
        "total_s": Spread.of(run.total_s for run in runs),
        "prefill_s": Spread.of(run.prefill_s for run in runs),
        "decode_step_s": Spread.of_known(map(_step, runs)),
        "decode_attention_s": Spread.of_known(map(_attention, runs)),
        "hit_rate": runs[-1].hit_rate,
        "peak_blocks": runs[-1].peak_blocks,
        "others_busy": max((run.others_busy or 0.0) for run in runs),
    }


def _ratio(slow: Seq[RunFigures], fast: Seq[RunFigures]) -> ModeRatio:
    """Return the ratios of the times, turn by turn."""

    def spread(key: Callable[[RunFigures], float | None]) -> Spread | None:
        return Spread.of_ratios([*map(key, slow)], [*map(key, fast)])

    return {
        "end_to_end": spread(lambda run: run.total_s),
        "decode_step": spread(_step),
        "decode_attention": spread(_attention),
    }


def _step(run: RunFigures) -> float | None:
    return run.decode_step.median if run.decode_step and _is_full(run) else None


def _attention(run: RunFigures) -> float | None:
    return run.decode_attention.median if run.decode_attention and _is_full(run) else None


def _is_full(run: RunFigures) -> bool:
    """True if all rows decoded in one step; some may end before others begin."""
    return run.decode_rows == run.rows
