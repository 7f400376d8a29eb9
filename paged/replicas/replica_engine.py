"""ReplicaEngine: an engine whose runs several others compute, in other processes."""

import time
from collections.abc import Callable, Container, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace

from pagedrun.paged.planning.plan import EarlierAnswers
from pagedrun.paged.planning.pool_sizing import PoolDemand
from pagedrun.paged.planning.sizing import PlanBasis
from pagedrun.paged.planning.windows import Ahead
from pagedrun.paged.replicas.crew import Crew
from pagedrun.paged.replicas.replica_offer import ReplicaOffer
from pagedrun.paged.replicas.replica_run import ReplicaRun
from pagedrun.paged.replicas.run_terms import RunTerms
from pagedrun.paged.report.record.timeline import StepRecord
from pagedrun.paged.run_hooks import RunHooks
from pagedrun.paged.values.engine_config import Deadline, EngineConfig
from pagedrun.paged.values.request import Completion, Request


class ReplicaEngine:
    """Plans requests here and has a crew compute them; it starts one run."""

    def __init__(self, config: EngineConfig, crew: Crew) -> None:
        self.config = config
        self._crew = crew
        self._warnings: list[str] = []
        self._offers: list[ReplicaOffer] = []
        self._load_s = 0.0

    def warm_up(self, on_compile: Callable[[], None] = lambda: None) -> None:
        """Wait until the replicas have loaded their models and compiled their kernels.

        They do not say when they compile, so `on_compile` is not called.
        Raises `UsageError` or `EngineError` if one of them cannot.
        """
        if not self._offers:
            began = time.perf_counter()
            try:
                self._offers = self._crew.gather(self._warnings.append)
            except BaseException:
                self._crew.pool.close()
                raise
            self._load_s = time.perf_counter() - began
            self.config = replace(self.config, block_size=self._basis().block_size)

    def arithmetic(self) -> Mapping[str, object]:
        """Return what the last bits of every answer depend on, as the replicas have it."""
        self.warm_up()
        return self._offers[0].arithmetic

    def close(self) -> None:
        """End the replicas."""
        self._crew.pool.close()

    def start(
        self,
        requests: Seq[Request | Completion],
        on_step: Callable[[StepRecord], None] | None = None,
        more: Iterable[Seq[Request | Completion]] | None = None,
        done: Container[int] = frozenset(),
        warn: Callable[[str], None] | None = None,
        on_window: Callable[[], None] | None = None,
        earlier: EarlierAnswers | None = None,
        deadline: Deadline | None = None,
    ) -> ReplicaRun:
        """Plan the requests and return their run; see `Engine.start`.

        Which rows fit is decided by the smallest pool of all replicas.
        """
        self.warm_up()
        for message in self._warnings if warn is not None else ():
            warn(message)  # type: ignore[misc]
        basis = self._basis()
        planner = basis.planner(self.config, done, earlier, deadline)
        try:
            first = planner.window(requests, has_next=more is not None)
        except BaseException:
            self.close()
            raise
        return ReplicaRun(
            self._crew,
            self.config,
            iter([first]) if more is None else Ahead(first, planner.windows(more)),
            RunTerms(
                PoolDemand.of(first.plan, basis.windows, is_whole=False),
                planner.reserved_len(requests),
            ),
            RunHooks(on_step, on_window, warn),
            self._load_s,
            None if deadline is None else deadline.at,
        )

    @property
    def max_model_len(self) -> int:
        """The most tokens a prompt and its answer may have together."""
        self.warm_up()
        return self._basis().limits.max_model_len

    def _basis(self) -> PlanBasis:
        """Return what to plan for: the least that any replica has."""
        bases = [each.basis for each in self._offers]
        widths = [each.limits.max_beam_width for each in bases]
        known = [each for each in widths if each is not None]
        limits = replace(bases[0].limits, max_beam_width=min(known) if known else None)
        return replace(bases[0], limits=limits, max_blocks=min(each.max_blocks for each in bases))
