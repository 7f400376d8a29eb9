"""Engine: a loaded model, ready to start runs."""

import copy
import sys
import time
from collections.abc import Callable, Container, Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from pagedrun.kernels.environment import threads
from pagedrun.kernels.partition import PARTITION_TOKENS
from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.cache.kv_cache_spec import KVCacheSpec
from pagedrun.paged.cache.prefix_store.prefix_store import PrefixStore
from pagedrun.paged.cache.prefix_store.stored_prefixes import StoredPrefixes
from pagedrun.paged.execution.device import Device
from pagedrun.paged.execution.device_choice import choose_device
from pagedrun.paged.execution.pool_memory import PoolMemory
from pagedrun.paged.models.decoder import Decoder, ReadTensor
from pagedrun.paged.models.kv_cache_specs import kv_cache_specs
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.models.parameters import ignored_names, parameter_shapes
from pagedrun.paged.models.weights import Checkpoint
from pagedrun.paged.planning.memory import choose_num_blocks, most_blocks_in_use
from pagedrun.paged.planning.plan import Plan, PlanEnd
from pagedrun.paged.report.record.timeline import StepRecord
from pagedrun.paged.run import Run, Window
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import ModelError, RowError, UsageError
from pagedrun.paged.values.option_names import option
from pagedrun.paged.values.request import Completion, Request
from pagedrun.paged.values.sampling import SamplingParams

MAX_ROTARY_BYTES = 2**30  # two million positions at 128 dimensions a head


class Engine:
    """Loads the weights once; every `start` plans its requests and sizes a pool for them.

    `device` overrides what `config.device` chooses, for instance with other kernels to check it.
    `read` gives the weights by name; None reads them from the folder `config.model`.
    Raises `ModelError` when the model folder cannot be used.
    """

    def __init__(
        self,
        config: EngineConfig,
        model_config: ModelConfig,
        tokenizer: Tokenizer,
        device: Device | None = None,
        read: ReadTensor | None = None,
    ) -> None:
        model_config.check_tokenizer(tokenizer.vocab_size, config.model)
        threads.configure()
        began = time.perf_counter()
        self.config = config
        self.model_config = model_config
        self.tokenizer = tokenizer
        self.device = device or choose_device(config.device, config.kernel_set)
        self.dtype = self.device.dtype(config.dtype, model_config.dtype)
        self._prefix_store: PrefixStore | None = None
        if read is not None:
            self.model = self._decoder(read)
        else:
            with Checkpoint.open(config.model) as checkpoint:
                if config.prefix_store is not None:
                    self._prefix_store = PrefixStore(
                        Path(config.prefix_store), config.prefix_store_bytes, checkpoint.files
                    )
                checkpoint.check(parameter_shapes(model_config), ignored_names(model_config))
                self.model = self._decoder(checkpoint.tensor)
        self.read_once = self.device.read_once
        self._memory = PoolMemory(self.model, self.device)
        self._times = {"load_s": time.perf_counter() - began}

    def reconfigured(self, **changes: Any) -> "Engine":
        """Return an engine with other settings and the same weights, not loaded again.

        `changes` are fields of `EngineConfig`; raises `UsageError` for a value out of range.
        What is part of the weights as they are held cannot change.
        """
        assert not changes.keys() & {"model", "device", "dtype", "reproducible", "kernel_set"}, (
            "the weights would have to be loaded again"
        )
        other = copy.copy(self)
        other.config = replace(self.config, **changes)
        other._times = dict(self._times)
        return other

    def warm_up(self) -> None:
        """Compile the kernels that runs will use, by samples enough to read their prompt together.

        The first use on a machine takes tens of seconds; the machine code is kept on disk.
        """
        began = time.perf_counter()
        rule = replace(self.read_once, min_work=0)
        params = SamplingParams(max_tokens=2, ignore_eos=True, temperature=1.0, n=rule.min_rows)
        prompt = (0,) * max(1, min(PARTITION_TOKENS + 1, self.max_model_len - 2))
        eager = copy.copy(self)
        eager.read_once = rule
        eager._prefix_store = None
        for _ in eager.start([Request(0, prompt, params)]):
            pass
        self._times["compile_s"] = time.perf_counter() - began

    def start(
        self,
        requests: Seq[Request],
        on_step: Callable[[StepRecord], None] | None = None,
        more: Iterable[Seq[Request]] | None = None,
        done: Container[int] = frozenset(),
        warn: Callable[[str], None] | None = None,
    ) -> Run:
        """Plan the requests and return their run: iterate it for one completion per request.

        A request that cannot be run (too long, an id outside the vocabulary, larger than the pool)
        gets a completion with an error; the others are not affected. `more` are further windows
        of requests, each asked for and planned when the sequences before it have begun; indices
        rise through all of them. `done` are indices of requests that are answered already: they get
        no completion, but what rows share is told with them. `warn` takes what the user should
        know and that stops nothing. Raises `UsageError` if the kernels fail their self-check.
        """
        self.device.check(self.dtype)
        config = self.config
        bytes_per_block = self.kv_cache_spec.bytes_per_token * config.block_size
        budget = self._memory.budget(config, self.kv_cache_spec)

        def num_blocks(num_needed: int) -> int:
            return choose_num_blocks(
                bytes_per_block=bytes_per_block,
                num_needed=max(num_needed, 1),
                num_blocks=config.num_blocks,
                kv_cache_memory_bytes=config.kv_cache_memory_bytes,
                budget=budget,
            )

        most = num_blocks(sys.maxsize)
        self._check_fit(most)
        first = self._window(requests, most, done, after=None, has_next=more is not None)
        # What later windows need is not known yet.
        needed = first.plan.num_blocks_needed(config.max_num_seqs) if more is None else most
        if self.device.has_own_memory:
            needed = most  # so that the next run can have the same memory, and its graphs
        usable = most_blocks_in_use(config.max_num_seqs, self.max_model_len, config.block_size)
        needed = min(needed, usable)
        cache, graphs = self._memory.take(config, self.kv_cache_spec, num_blocks(needed))
        return Run(
            engine_config=config,
            model=self.model,
            cache=cache,
            graphs=graphs,
            tokenizer=self.tokenizer,
            device=self.device,
            # An iterator, not a list: `chain` holds what it is given to its end.
            windows=chain(iter([first]), self._windows(more or (), most, done, first.plan.end)),
            max_model_len=self._longest(requests),
            budget=budget,
            times=self._times,
            on_step=on_step,
            stored=self._stored_prefixes(cache, warn),
        )

    def _stored_prefixes(
        self, cache: KVCache, warn: Callable[[str], None] | None
    ) -> StoredPrefixes | None:
        """Return what a run with this cache may take from the prefix store, if there is one."""
        if self._prefix_store is None:
            return None
        return self._prefix_store.for_run(
            cache,
            model_folder=self.config.model,
            model_config=self.model_config,
            dtype=self.dtype,
            reproducible=self.config.reproducible and not self.device.is_row_invariant,
            machine=self.device.machine(str(self.dtype).removeprefix("torch.")),
            warn=warn or (lambda message: None),
        )

    def _check_fit(self, num_blocks: int) -> None:
        """Raise `UsageError` if the pool cannot hold one row of the length that was asked for."""
        size, asked = self.config.block_size, self.config.max_model_len
        fits = num_blocks * size + 1  # the last token is never stored
        if asked is not None and min(asked, self.max_model_len) > fits:
            raise UsageError(
                f"{option('max_model_len')} {asked} does not fit: the KV pool has room for "
                f"{num_blocks} blocks of {size} tokens; the largest that fits is "
                f"{option('max_model_len')} {fits}"
            )

    def _windows(
        self,
        more: Iterable[Seq[Request]],
        max_blocks: int,
        done: Container[int],
        after: PlanEnd,
    ) -> Iterator[Window]:
        """Plan one window after the other, each when it is asked for."""

        def plan_next(requests: Seq[Request]) -> Window:
            nonlocal after
            window = self._window(requests, max_blocks, done, after=after, has_next=True)
            after = window.plan.end
            return window

        return map(plan_next, more)  # unlike a loop it lets go of a window before it asks for more

    def _window(
        self,
        requests: Seq[Request],
        max_blocks: int,
        done: Container[int],
        after: PlanEnd | None,
        has_next: bool,
    ) -> Window:
        began = time.perf_counter()
        accepted, refused = self._accept(requests)
        plan = Plan(
            accepted,
            self.config.block_size,
            prefix_caching=self.config.prefix_caching,
            max_blocks=max_blocks,
            after=after,
            has_next=has_next,
            read_once=self.read_once,
            done=done,
            max_stored_tokens=self._max_stored_tokens(),
        )
        refused = [each for each in refused if each.request.index not in done]
        return Window(plan, refused, time.perf_counter() - began)

    def _max_stored_tokens(self) -> int:
        """Return how many tokens of prompts the prefix store has room for, 0 if there is none."""
        if self._prefix_store is None:
            return 0
        return self.config.prefix_store_bytes // self.kv_cache_spec.bytes_per_token

    @property
    def max_model_len(self) -> int:
        """The most tokens a prompt and its answer may have together."""
        limit = self.model_config.max_position_embeddings
        return min(limit, self.config.max_model_len or limit)

    @property
    def kv_cache_spec(self) -> KVCacheSpec:
        """What a token takes in the pool."""
        dtype = self.device.cache_dtype(self.config.kv_cache_dtype, self.dtype)
        [spec] = kv_cache_specs(self.model_config, str(dtype).removeprefix("torch."))
        return spec

    def _decoder(self, read: ReadTensor) -> Decoder:
        config = self.model_config
        return Decoder(
            config,
            read,
            self.dtype,
            self._num_positions(),
            self.device.kernels,
            self.device.torch_device,
            row_invariant=self.config.reproducible,
        )

    def _num_positions(self) -> int:
        """Return how many positions get their rotations: the model's, if they are not absurd."""
        most = self.model_config.max_position_embeddings
        num_fit = MAX_ROTARY_BYTES // (4 * self.model_config.head_dim)
        if most > num_fit and self.max_model_len > num_fit:
            raise ModelError(
                f"{self.config.model}/config.json: max_position_embeddings is {most}, more than "
                f"the {num_fit} positions that pagedrun keeps rotations of; pass "
                f"{option('max_model_len')} with at most that"
            )
        return most if most <= num_fit else self.max_model_len

    def _longest(self, requests: Seq[Request]) -> int:
        """Return what a contiguous engine would reserve for each of these requests."""
        limit = self.max_model_len
        lengths = (len(request.prompt_token_ids) for request in requests)
        totals = [
            min(length + request.params.max_tokens, limit)
            for length, request in zip(lengths, requests, strict=True)
            if length < limit
        ]
        return self.config.max_model_len or max(totals, default=1)

    def _accept(self, requests: Seq[Request]) -> tuple[list[Request], list[Completion]]:
        accepted: list[Request] = []
        refused: list[Completion] = []
        for request in requests:
            try:
                accepted.append(request.fitted(self.max_model_len, self.model_config.vocab_size))
            except RowError as error:
                refused.append(Completion(request, error=error))
        return accepted, refused
