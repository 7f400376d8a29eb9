"""Engine: a loaded model, ready to start runs.

`Engine.start` is the one path from requests to a `Run`: it plans the first window, sizes the pools
for that plan within the available memory, and allocates them. Replicas call the same parts
separately (`sizing`, `basis`, `run`), because another process makes their plans.
"""

import time
from collections.abc import Callable, Container, Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

from pagedrun.kernels.partition import PARTITION_TOKENS, ReadOnce
from pagedrun.paged.cache.cache_spec import KVCacheSpec
from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.cache.prefix_store.stored_prefixes import StoredPrefixes
from pagedrun.paged.execution.loaded_model import LoadedModel
from pagedrun.paged.execution.run import DEFAULT_POLICY, Run, RunPolicy
from pagedrun.paged.metrics.report_sections import LoadTimes
from pagedrun.paged.metrics.timeline import NO_HOOKS, RunHooks
from pagedrun.paged.models.runnable_config import model_identity
from pagedrun.paged.planning.passes import fitted_to_pass
from pagedrun.paged.planning.plan_part import EarlierAnswers, PlannedPart
from pagedrun.paged.planning.pool_sizing import longest_row
from pagedrun.paged.planning.prefix_reuse import NO_ROOM, StoreRoom
from pagedrun.paged.planning.sizing import (
    PlanBasis,
    RunSizes,
    RunSizing,
    fitted_to_device,
)
from pagedrun.paged.planning.windows import BackgroundPlanner, PlannedWindow
from pagedrun.paged.values.engine_config import Deadline, EngineConfig
from pagedrun.paged.values.request import Completion, Request
from pagedrun.paged.values.sampling_params import SamplingParams

# Settings that decide the loaded weights, and the files opened with them.
FIXED = frozenset(
    {
        *("model", "model_impl", "device", "dtype", "quantization", "reproducible", "kernel_set"),
        *("activations", "prefix_store", "prefix_store_bytes", "jump_ahead"),
        *("weights_memory", "packed_dir", "packed_bytes"),
    }
)

_WARM_UP_TOKENS = 2  # that are generated for each row of a warm-up
_MANY_TOKENS = 2048  # of the prompts of a step


class Engine:
    """Plans requests, sizes pools for them and starts their runs, any number of times.

    `loaded` was loaded for `config`, or for one that differs in no setting in `FIXED`. `config` is
    then adjusted to the model and, in its fitted settings, to the device.
    """

    def __init__(
        self, config: EngineConfig, loaded: LoadedModel, policy: RunPolicy = DEFAULT_POLICY
    ) -> None:
        config = fitted_to_device(loaded.config.settings(config), loaded.device.memory_bytes)
        if loaded.passes is not None:
            config = loaded.passes.fitted(config, loaded.device.memory_bytes)
        self.config = config
        self.loaded = loaded
        self.policy = policy
        self._times: LoadTimes = {"load_s": loaded.load_s}

    def reconfigured(self, **changes: Any) -> "Engine":
        """Return an engine with other settings and the same weights, without loading.

        `changes`: fields of `EngineConfig` that are not in `FIXED`. Raises `UsageError` for a value
        out of range.
        """
        assert not changes.keys() & FIXED, "the weights would have to be loaded again"
        fitted = tuple(name for name in self.config.fitted if name not in changes)
        return Engine(replace(self.config, fitted=fitted, **changes), self.loaded, self.policy)

    def warm_up(self, on_compile: Callable[[], None] = lambda: None) -> None:
        """Compile the kernels that runs will use, with enough samples to read a prompt together.

        The first use on a machine takes tens of seconds; machine code is cached on disk.
        `on_compile` is called when a kernel is compiled, once or twice.
        """
        began = time.perf_counter()
        loaded, config = self.loaded, self.config
        loaded.finish_compiling(on_compile)
        rule = replace(self._read_once, min_work=0)
        longest = self.max_model_len - _WARM_UP_TOKENS
        if loaded.device.compiles_forms:
            runs = list(_runs_of_all_forms(rule, longest, config.max_num_seqs))
            config = self._with_small_pool(runs)
        else:
            runs = [[_of_zeros(rule, PARTITION_TOKENS + 1, longest)]]
        eager = Engine(
            config, replace(loaded, prefix_store=None), replace(self.policy, read_once=rule)
        )
        with loaded.device.notify_compiling(on_compile):
            for requests in runs:
                for _ in eager.start(requests):
                    pass
        self._times["compile_s"] = time.perf_counter() - began

    def _with_small_pool(self, runs: Seq[Seq[Request]]) -> EngineConfig:
        """Return the configuration with a pool for these runs, if that is less than it would be.

        The default takes nearly all memory of a GPU, and a third of a second to allocate. Rows are
        not limited to `max_model_len`, which a small pool need not hold.
        """
        num_rows = max(sum(request.params.n for request in requests) for requests in runs)
        num_tokens = max(
            sum(len(request.prompt_token_ids) for request in requests) for requests in runs
        )
        states = sum(spec.num_bytes_behind(0) for spec in self.loaded.model.state_specs())
        row_bytes = 2 * self.config.block_size * self.bytes_per_token + states
        pool = (num_rows + 2) * row_bytes + num_tokens * self.bytes_per_token
        explicit = self.config.kv_cache_memory_bytes or self.config.num_blocks
        budget = self.loaded.memory.budget(self.config, self.kv_cache_specs)
        if explicit is not None or pool >= budget.pool:
            return self.config
        return replace(self.config, kv_cache_memory_bytes=pool, max_model_len=None)

    def start(
        self,
        requests: Seq[Request | Completion],
        *,
        more: Iterable[Seq[Request | Completion]] | None = None,
        done: Container[int] = frozenset(),
        earlier: EarlierAnswers | None = None,
        deadline: Deadline | None = None,
        hooks: RunHooks = NO_HOOKS,
    ) -> Run:
        """Plan the requests and return their run: iterate it for one completion per request.

        A request that cannot be run (too long, an id outside the vocabulary, larger than the pool)
        gets a completion with an error; the others are not affected. A completion in place of a
        request is yielded unchanged. `more`: further windows of requests, with indices that rise
        through all windows; each is read and planned in another thread while the one before it
        runs. A run with `more` must be closed if it is not iterated to the end. `done`: indices of
        answered requests; they get no completion, but count in decisions about sharing. `earlier`:
        answers of an earlier run; requests that it answers wholly are copied, others are continued.
        With a `deadline` rows run in random order, and rows that would not finish in time are not
        started: the run is then `is_cut`. Raises `UsageError` if the kernels fail their self-check.
        """
        config, loaded = self.config, self.loaded
        loaded.finish_compiling()
        loaded.device.check(loaded.dtype)
        for notice in self.notices() if hooks.warn is not None else ():
            hooks.warn(notice)  # type: ignore[misc]
        is_whole, longest = more is None, self.max_model_len
        if is_whole:
            longest = longest_row(requests, longest)
        sizing = self.sizing(longest, requests if is_whole else None)
        planner = self.basis(sizing).planner(config, done, earlier, deadline)
        first = planner.window(requests, has_next=more is not None)
        windows = iter([first]) if more is None else BackgroundPlanner(first, planner.windows(more))
        return self.run(
            windows,
            sizing.sizes(first.plan, is_whole=is_whole),
            specs=sizing.specs,
            reserved_len=planner.reserved_len(requests),
            hooks=hooks,
            ends_at=None if deadline is None else deadline.at,
        )

    def run(
        self,
        windows: Iterator[PlannedWindow[PlannedPart]],
        sizes: RunSizes,
        *,
        specs: Seq[KVCacheSpec] | None = None,
        reserved_len: int,
        hooks: RunHooks = NO_HOOKS,
        ends_at: float | None = None,
    ) -> Run:
        """Return the run of planned windows.

        sizes: from `sizing`. specs: of the pools, None for those of the model. reserved_len: the
        tokens that one length for all rows would reserve. ends_at: see `Run`.
        """
        loaded, (config, budget, num_blocks, slots) = self.loaded, sizes
        room = budget.graphs if budget.is_filled else None
        cache, graphs = loaded.memory.take(
            config, specs or self.kv_cache_specs, num_blocks, slots, graph_room=room
        )
        return Run(
            loaded,
            windows,
            cache,
            graphs,
            budget,
            config=config,
            policy=self.policy,
            reserved_len=reserved_len,
            times=self._times,
            hooks=hooks,
            stored=self._stored_prefixes(cache, hooks.warn),
            ends_at=ends_at,
        )

    def sizing(self, longest: int, requests: Seq[Request | Completion] | None = None) -> RunSizing:
        """Return the sizing of a run within the memory that is free now.

        longest: the most tokens of a prompt and its answer together. requests: all of the run, None
        if there may be others.
        """
        config, specs, loaded = self.config, self.kv_cache_specs, self.loaded
        memory, network = loaded.memory.budget(config, specs), loaded.config.network
        keeps_blocks = loaded.prefix_store is not None or loaded.device.has_own_memory
        if requests is not None and not keeps_blocks:
            config, specs = fitted_to_pass(config, network, specs, requests, memory.pool, longest)
        return RunSizing(
            config,
            network,
            str(loaded.dtype).removeprefix("torch."),
            specs,
            loaded.model.state_specs(),
            memory,
            loaded.device.memory_bytes,
            self.max_model_len,
            longest,
        )

    def basis(self, sizing: RunSizing) -> PlanBasis:
        """Return the settings of a planner for this engine."""
        room, loaded = NO_ROOM, self.loaded
        if loaded.prefix_store is not None:
            size = self.bytes_per_token
            state_bytes = sum(spec.num_bytes_behind(0) for spec in loaded.model.state_specs())
            room = StoreRoom(self.config.prefix_store_bytes // size, state_bytes // size)
        return sizing.basis(loaded.config.vocab_size, self._read_once, room)

    def notices(self) -> Iterator[str]:
        """Yield messages for the user about the model."""
        library, notice = self.loaded.model.library, self.loaded.config.notice
        if notice is not None:
            yield notice
        if library is not None and library["rows_depend_on_batch"]:
            yield (
                f"with {library['computed_by']}, rows of this model depend on the other rows of "
                "a batch: another batch or pool may give other answers"
            )

    def _stored_prefixes(
        self, cache: KVCache, warn: Callable[[str], None] | None
    ) -> StoredPrefixes | None:
        """Return the prefix store as seen by a run with this cache, None without a store."""
        config, loaded, store = self.config, self.loaded, self.loaded.prefix_store
        if store is None:
            return None
        return store.for_run(
            cache,
            model_folder=config.model,
            model_identity=model_identity(loaded.config),
            dtype=loaded.dtype,
            reproducible=config.reproducible and not loaded.device.is_row_invariant,
            machine=loaded.machine,
            warn=warn or (lambda message: None),
        )

    @property
    def max_model_len(self) -> int:
        """Maximum number of tokens of a prompt and its answer."""
        limit = self.loaded.config.max_position_embeddings
        return min(limit, self.config.max_model_len or limit)

    @property
    def kv_cache_specs(self) -> tuple[KVCacheSpec, ...]:
        """KV cache specification of each group of layers."""
        loaded = self.loaded
        dtype = loaded.device.cache_dtype(self.config.kv_cache_dtype, loaded.dtype)
        return loaded.model.kv_cache_specs(str(dtype).removeprefix("torch."))

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values of one token in all layers."""
        return sum(spec.bytes_per_token for spec in self.kv_cache_specs)

    @property
    def _read_once(self) -> ReadOnce:
        """Rule for reading a shared prefix once for all of its rows."""
        return self.policy.read_once or self.loaded.device.read_once


def _of_zeros(rule: ReadOnce, num_tokens: int, longest: int, num_rows: int = 0) -> Request:
    """Return a prompt of zeros with samples enough to be read together, `num_rows` at least."""
    num_rows = max(num_rows, rule.min_rows if rule.row_counts else 1)
    params = SamplingParams(
        max_tokens=_WARM_UP_TOKENS, ignore_eos=True, temperature=1.0, n=num_rows
    )
    return Request(0, (0,) * max(1, min(num_tokens, longest)), params)


def _runs_of_all_forms(rule: ReadOnce, longest: int, max_num_seqs: int) -> Iterator[list[Request]]:
    """Yield runs that together launch each kernel in each form that a run may need.

    A kernel has forms for rows with shared prefixes and without, for few rows and for many that
    share one, for contexts that are read in parts, for steps of many prompt tokens, for filtered
    sampling and for log probabilities. A GPU compiles each at its first launch, within a second or
    two.
    """
    few, parts = PARTITION_TOKENS + 1, 4 * PARTITION_TOKENS + 1
    crowd = min(max_num_seqs, 65)  # more rows than the lower matrix of shared prefixes holds
    yield [_of_zeros(rule, few, longest)]
    yield [_of_zeros(rule, few, longest, crowd)]
    yield [_of_zeros(rule, parts, longest)]
    greedy = SamplingParams(max_tokens=_WARM_UP_TOKENS, ignore_eos=True)
    filtered = replace(greedy, temperature=0.7, top_p=0.9, logprobs=1)
    yield [Request(0, (0,) * max(1, min(parts, longest)), filtered)]
    yield [Request(0, (0,), greedy)]
    size = max(1, min(_MANY_TOKENS, longest))
    yield [
        Request(row, (row, *(0,) * (size - 1)), greedy) for row in range(-(-_MANY_TOKENS // size))
    ]
