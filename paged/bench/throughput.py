"""Throughput of the same rows, by pagedrun, with other settings and by other programs."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass, field
from typing import Any, NotRequired, TypedDict

from pagedrun.paged.bench.contender import (
    ComparedRun,
    Contender,
    DeviceProfile,
    EngineContender,
    Peer,
    Tokens,
    reading_alone,
)
from pagedrun.paged.bench.op_timer import OpTimer
from pagedrun.paged.bench.result import (
    BenchDevice,
    Measured,
    Spread,
    plain_config,
)
from pagedrun.paged.bench.workload import BenchModel, Workload
from pagedrun.paged.execution.device import choose_device
from pagedrun.paged.execution.engine import FIXED, Engine
from pagedrun.paged.values.errors import UsageError, option
from pagedrun.paged.values.request import Request

Spreads = Mapping[str, Spread | None]


class ContenderFigures(TypedDict):
    """One entry of `contenders`: its runs, and the spread over them by figure.

    `version` only of another program, `device_profile` only of a profiled run on a GPU.
    """

    name: str
    version: NotRequired[str | None]
    summary: Spreads
    runs: Seq[ComparedRun]
    device_profile: NotRequired[DeviceProfile]


class ContenderRatio(TypedDict):
    """One entry of `ratios`: times of a contender divided by the engine's, and equal answers.

    The numbers of equal rows are None for a program that does not give its tokens.
    """

    name: str
    end_to_end: Spread | None
    prefill: Spread | None
    decode: Spread | None
    rows_alike: int | None
    first_tokens_alike: int | None
    rows: int


class ThroughputBenchFigures(Measured):
    """The whole of `bench throughput`; `config` are the engine's settings."""

    model: Mapping[str, Any]
    workload: Workload
    config: dict[str, object]
    repeat: int
    profile: bool
    contenders: list[ContenderFigures]
    ratios: list[ContenderRatio]


NAME = "pagedrun"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Other settings for the same rows: changed fields of `EngineConfig`.

    With `alone`, every row reads shared prefixes itself (see `reading_alone`).
    """

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    alone: bool = False


@dataclass(frozen=True, slots=True)
class ThroughputBench:
    """Rows to run on a model; `flags` are fields of `EngineConfig`.

    `comparison` adds a second engine, on the same weights unless they depend on its setting, `peer`
    another program. All take turns, `repeat` times, in an order that is reversed each time.
    `profile` asks for times by operation; on a GPU for one more run of each engine under the
    profiler. Raises `UsageError` for a model or rows that `peer` cannot be measured with.
    """

    model: BenchModel
    workload: Workload
    flags: Mapping[str, Any] = field(default_factory=dict)
    comparison: Comparison | None = None
    peer: Peer | None = None
    repeat: int = 1
    profile: bool = False

    def __post_init__(self) -> None:
        if self.peer is not None:
            self.peer.check(self.model, self.workload)

    def run(self, say: Say) -> ThroughputBenchFigures:
        """Measure, reporting progress to `say`; return the result in JSON's types.

        Raises `UsageError` for settings that cannot be and a peer that fails, `ModelError` for a
        model that cannot be. Closes the peer.
        """
        try:
            return self._measure(say)
        finally:
            if self.peer is not None:
                self.peer.close()

    def _measure(self, say: Say) -> ThroughputBenchFigures:
        say(f"Loading {self.model.name}")
        engine, timer = self._loaded(self.flags)
        device = engine.loaded.device
        contenders: list[Contender] = [EngineContender(NAME, engine, timer)]
        if self.comparison is not None:
            name, alone = self.comparison.name, self.comparison.alone
            other, its_timer = self._other(engine, timer, self.comparison.changes)
            if other.config == engine.config and not alone:
                raise UsageError(f"{option('compare')}: {name} is already set by the other flags")
            other = reading_alone(other) if alone else other
            contenders.append(EngineContender(name, other, its_timer))
        if self.peer is not None:
            say(f"Building the same model in {self.peer.name}")
            dtype = engine.loaded.dtype
            self.peer.load(self.model, dtype, device.torch_device)
            contenders.append(self.peer)
        requests = self.workload.requests(self.model.config.vocab_size)
        for contender in contenders:
            say(f"Warming up {contender.name}")
            contender.warm_up(self.workload)
        runs: dict[str, list[ComparedRun]] = {contender.name: [] for contender in contenders}
        tokens: dict[str, Tokens] = {}
        for turn in range(self.repeat):
            for contender in contenders if turn % 2 == 0 else reversed(contenders):
                figures, tokens[contender.name] = contender.run(requests)
                runs[contender.name].append(figures)
                say(f"{contender.name}, {turn + 1} of {self.repeat}: {figures.total_s:.2f} s")
        profiles = self._profiles(contenders, requests, say)
        return {
            "model": self.model.describe(engine.loaded.dtype),
            "device": BenchDevice(device).to_dict(),
            "workload": self.workload,
            "config": plain_config(asdict(engine.config)),
            "repeat": self.repeat,
            "profile": self.profile,
            "contenders": [
                _contender(
                    contender.name,
                    runs[contender.name],
                    profiles.get(contender.name),
                    self.peer if contender is self.peer else None,
                )
                for contender in contenders
            ],
            "ratios": [
                _ratio(name, runs[NAME], figures, tokens[NAME], tokens[name])
                for name, figures in runs.items()
                if name != NAME
            ],
        }

    def _profiles(
        self, contenders: Seq[Contender], requests: Seq[Request], say: Say
    ) -> dict[str, DeviceProfile]:
        """Return profiles of one more run of each engine on a GPU, none unless asked for."""
        profiles: dict[str, DeviceProfile] = {}
        for contender in contenders if self.profile else ():
            if isinstance(contender, EngineContender):
                profile = contender.profile(requests)
                if profile is not None:
                    say(f"{contender.name}, profiled: {profile.seconds:.2f} s")
                    profiles[contender.name] = profile
        return profiles

    def _other(
        self, engine: Engine, timer: OpTimer, changes: Mapping[str, Any]
    ) -> tuple[Engine, OpTimer]:
        """Return the engine with `changes` and its timer, on the same weights if possible."""
        if changes.keys() & FIXED:
            return self._loaded({**self.flags, **changes})
        return engine.reconfigured(**changes), timer

    def _loaded(self, flags: Mapping[str, Any]) -> tuple[Engine, OpTimer]:
        """Load the model; return its engine, and the timer of its kernels."""
        asked = (flags.get(name, "auto") for name in ("device", "kernel_set", "activations"))
        timer = OpTimer(choose_device(*asked).kernels)
        return self.model.engine(timer.kernels, **flags), timer


_SUMMARIZED: Mapping[str, Callable[[ComparedRun], float | None]] = {
    "total_s": lambda run: run.total_s,
    "prefill_s": lambda run: run.prefill_s,
    "prompt_tokens_per_s": lambda run: run.prompt_tokens_per_s,
    "generated_tokens_per_s": lambda run: run.generated_tokens_per_s,
    "decode_step_s": lambda run: run.decode_step.median if run.decode_step else None,
}


def _contender(
    name: str, runs: Seq[ComparedRun], profile: DeviceProfile | None, peer: Peer | None
) -> ContenderFigures:
    summary = {each: Spread.of_known(map(figure, runs)) for each, figure in _SUMMARIZED.items()}
    result: ContenderFigures = {"name": name, "summary": summary, "runs": runs}
    if peer is not None:
        result["version"] = peer.version
    if profile is not None:
        result["device_profile"] = profile
    return result


def _ratio(
    name: str,
    ours: Seq[ComparedRun],
    theirs: Seq[ComparedRun],
    our_tokens: Tokens,
    their_tokens: Tokens,
) -> ContenderRatio:
    """Return the ratios of the times, turn by turn, and the number of equal answers.

    `their_tokens` is empty for a program that does not give its tokens.
    """

    def spread(key: Callable[[ComparedRun], float | None]) -> Spread | None:
        return Spread.of_ratios([*map(key, theirs)], [*map(key, ours)])

    pairs = list(zip(our_tokens, their_tokens, strict=True)) if their_tokens else []
    return {
        "name": name,
        "end_to_end": spread(lambda each: each.total_s),
        "prefill": spread(lambda each: each.prefill_s),
        "decode": spread(_decode_seconds_per_token),
        "rows_alike": sum(mine == other for mine, other in pairs) if pairs else None,
        "first_tokens_alike": (
            sum(mine[:1] == other[:1] for mine, other in pairs) if pairs else None
        ),
        "rows": len(our_tokens),
    }


def _decode_seconds_per_token(figures: ComparedRun) -> float | None:
    return figures.decode_step.median / figures.decode_rows if figures.decode_step else None
