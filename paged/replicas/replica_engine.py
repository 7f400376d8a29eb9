"""Engines whose runs are computed by replicas in other processes.

`start_replicas` starts or joins a Ray cluster and requests the replicas; the `ReplicaEngine` it
returns plans in this process and starts one run. `ReplicatedEngine` is the same for the Python API,
where each call starts replicas of its own.
"""

import time
from collections.abc import Callable, Container, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path

from pagedrun.kernels.environment.threads import cpu_quota
from pagedrun.paged.metrics.timeline import NO_HOOKS, RunHooks
from pagedrun.paged.models.runnable_config import RunnableConfig
from pagedrun.paged.planning.plan_part import EarlierAnswers
from pagedrun.paged.planning.pool_sizing import PoolDemand
from pagedrun.paged.planning.sizing import PlanBasis
from pagedrun.paged.planning.windows import BackgroundPlanner
from pagedrun.paged.replicas.ray_actor import PushedFolder, ReplicaModel
from pagedrun.paged.replicas.ray_cluster import RayCluster
from pagedrun.paged.replicas.ray_pool import RayPool
from pagedrun.paged.replicas.replica_messages import ReplicaOffer, RunTerms
from pagedrun.paged.replicas.replica_run import ReplicaRun
from pagedrun.paged.replicas.replica_set import ReplicaSet
from pagedrun.paged.values.engine_config import Deadline, EngineConfig, ReplicaConfig
from pagedrun.paged.values.errors import EngineError, option
from pagedrun.paged.values.pooling import PoolingParams
from pagedrun.paged.values.request import Completion, Request


class ReplicaEngine:
    """Plans requests in this process and has replicas compute them; starts one run."""

    def __init__(self, config: EngineConfig, replicas: ReplicaSet) -> None:
        self.config = config
        self._replicas = replicas
        self._warnings: list[str] = []
        self._offers: list[ReplicaOffer] = []
        self._load_s = 0.0

    def warm_up(self, on_compile: Callable[[], None] = lambda: None) -> None:
        """Wait until the replicas have loaded their models and compiled their kernels.

        They do not report compilation, so `on_compile` is not called. Raises `UsageError` or
        `EngineError` if a replica cannot start.
        """
        if not self._offers:
            began = time.perf_counter()
            try:
                self._offers = self._replicas.start_all(self._warnings.append)
            except BaseException:
                self._replicas.pool.close()
                raise
            self._load_s = time.perf_counter() - began
            self.config = replace(self.config, block_size=self._basis().rules.block_size)

    def arithmetic(self) -> Mapping[str, object]:
        """Return the facts that decide the last bits of answers, from the replicas."""
        self.warm_up()
        return self._offers[0].arithmetic

    def close(self) -> None:
        """End the replicas."""
        self._replicas.pool.close()

    def start(
        self,
        requests: Seq[Request | Completion],
        *,
        more: Iterable[Seq[Request | Completion]] | None = None,
        done: Container[int] = frozenset(),
        earlier: EarlierAnswers | None = None,
        deadline: Deadline | None = None,
        hooks: RunHooks = NO_HOOKS,
    ) -> ReplicaRun:
        """Plan the requests and return their run; see `Engine.start`.

        Rows must fit into the smallest pool of all replicas.
        """
        self.warm_up()
        for message in self._warnings if hooks.warn is not None else ():
            hooks.warn(message)  # type: ignore[misc]
        basis = self._basis()
        planner = basis.planner(self.config, done, earlier, deadline)
        try:
            first = planner.window(requests, has_next=more is not None)
        except BaseException:
            self.close()
            raise
        return ReplicaRun(
            self._replicas,
            self.config,
            iter([first]) if more is None else BackgroundPlanner(first, planner.windows(more)),
            RunTerms(
                PoolDemand.of(first.plan, basis.windows, is_whole=False),
                planner.reserved_len(requests),
            ),
            hooks,
            self._load_s,
            None if deadline is None else deadline.at,
        )

    @property
    def max_model_len(self) -> int:
        """Maximum number of tokens of a prompt and its answer."""
        self.warm_up()
        return self._basis().limits.max_model_len

    def _basis(self) -> PlanBasis:
        """Return the settings of the planner: the minimum over all replicas."""
        bases = [each.basis for each in self._offers]
        widths = [each.limits.max_beam_width for each in bases]
        known = [each for each in widths if each is not None]
        limits = replace(bases[0].limits, max_beam_width=min(known) if known else None)
        max_blocks = min(each.rules.max_blocks for each in bases)
        rules = replace(bases[0].rules, max_blocks=max_blocks)
        return replace(bases[0], limits=limits, rules=rules)


class ReplicatedEngine:
    """Engine of the Python API that starts replicas for each run."""

    def __init__(
        self, config: EngineConfig, shape: RunnableConfig, tokenizer: Path, replicas: ReplicaConfig
    ) -> None:
        """tokenizer: its folder. Raises `ModelError` if the model cannot be quantized as
        requested."""
        self._config = shape.held_as(config.quantization, config.model).settings(config)
        self._limit = shape.max_position_embeddings
        self._tokenizer = tokenizer
        self._replicas = replicas

    @property
    def max_model_len(self) -> int:
        """Maximum number of tokens of a prompt and its answer."""
        return min(self._limit, self._config.max_model_len or self._limit)

    def start(
        self,
        requests: Seq[Request | Completion],
        *,
        more: Iterable[Seq[Request | Completion]] | None = None,
        hooks: RunHooks = NO_HOOKS,
    ) -> ReplicaRun:
        """Start the replicas, plan the requests and return their run; see `Engine.start`."""
        engine = start_replicas(self._config, self._tokenizer, self._replicas, 0.0)
        return engine.start(requests, more=more, hooks=hooks)


def start_replicas(
    config: EngineConfig,
    tokenizer: Path,
    replicas: ReplicaConfig,
    stall_timeout_s: float,
    pooled: PoolingParams | None = None,
) -> ReplicaEngine:
    """Start or join a cluster, and request the replicas.

    tokenizer: its folder. stall_timeout_s: maximum seconds of a step of a replica, 0 for no limit.
    pooled: the task of texts, None for answers.
    Raises `UsageError` if Ray is not installed or the cluster cannot be joined.
    """
    num_wanted = replicas.replicas or 1
    threads = replicas.cpus_per_replica or max(1, cpu_quota() // num_wanted)
    cluster = RayCluster(replicas, num_cpus=num_wanted * threads)
    if replicas.cpus_per_replica is None and not cluster.is_local:
        threads = _share_of_a_node(cluster, num_wanted)
    num_gpus = replicas.gpus_per_replica
    if num_gpus is None:
        num_gpus = float(_is_on_gpu(config))
    pushed: dict[Path, PushedFolder] = {}
    if replicas.push_model:
        pushed = _pushed(cluster, {config.model, tokenizer})
    model = ReplicaModel(config, tokenizer, threads, pushed, pooled)
    return ReplicaEngine(
        config, ReplicaSet(RayPool(cluster, model, num_wanted, num_gpus), stall_timeout_s)
    )


def _pushed(cluster: RayCluster, folders: Iterable[Path]) -> dict[Path, PushedFolder]:
    """Put folders into the object store."""
    try:
        return {each: PushedFolder.of(each, cluster.ray.put) for each in folders}
    except cluster.ray.exceptions.RayError as error:
        cluster.close()
        cause = str(error).strip().partition("\n")[0]
        raise EngineError(
            f"{option('push_model')}: the model does not fit into the cluster's object store "
            f"({cause}); put it on every node, in the same folder"
        ) from error


def _share_of_a_node(cluster: RayCluster, num_wanted: int) -> int:
    """Return the CPUs of the smallest node, divided by its number of replicas."""
    cpus = [int(node["CPU"]) for node in cluster.nodes() if node.get("CPU", 0) >= 1]
    if not cpus:
        return 1
    return max(1, min(cpus) // -(-num_wanted // len(cpus)))


def _is_on_gpu(config: EngineConfig) -> bool:
    """Return whether the model would run on a GPU of this machine."""
    if config.device != "auto":
        return config.device == "cuda"
    import torch

    return torch.cuda.is_available()
