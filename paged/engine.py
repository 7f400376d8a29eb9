"""Engine: a loaded model, ready to start runs."""

import copy
import time
from collections.abc import Callable, Container, Iterable
from collections.abc import Sequence as Seq
from dataclasses import replace
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
from pagedrun.paged.execution.logits.logits_processor import LogitsProcessor
from pagedrun.paged.execution.logits.min_tokens import MinTokens
from pagedrun.paged.execution.logits.sampler import Sampler
from pagedrun.paged.execution.pool_memory import PoolMemory
from pagedrun.paged.models.model import Model
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.models.model_identity import model_identity
from pagedrun.paged.models.rotary_positions import num_rotary_positions
from pagedrun.paged.models.weight_source import ReadTensor, WeightSource
from pagedrun.paged.models.weights import Checkpoint
from pagedrun.paged.planning.ahead import Ahead
from pagedrun.paged.planning.memory import MemoryBudget
from pagedrun.paged.planning.planner import Planner, RequestLimits
from pagedrun.paged.planning.pool_sizing import PoolSizer
from pagedrun.paged.report.record.timeline import StepRecord
from pagedrun.paged.run import Run
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling import SamplingParams


class Engine:
    """Loads the weights once; every `start` plans its requests and sizes a pool for them.

    `device` overrides what `config.device` chooses, for instance with other kernels to check it.
    `read` gives the weights by name; None reads them from the folder `config.model`. `processors`
    change logits before tokens are chosen, in this order. `budget` is the memory that a pool may
    take; None looks at what the device has.
    Raises `ModelError` when the model folder cannot be used.
    """

    def __init__(
        self,
        config: EngineConfig,
        model_config: ModelConfig,
        tokenizer: Tokenizer,
        device: Device | None = None,
        read: ReadTensor | None = None,
        processors: Seq[LogitsProcessor] = (MinTokens(),),
        budget: MemoryBudget | None = None,
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
            self.model = self._load(read)
        else:
            with Checkpoint.open(config.model) as checkpoint:
                if config.prefix_store is not None:
                    self._prefix_store = PrefixStore(
                        Path(config.prefix_store), config.prefix_store_bytes, checkpoint.files
                    )
                network = model_config.network
                expected = {each.name: each.shape for each in network.parameters()}
                checkpoint.check(expected, network.ignored)
                self.model = self._load(checkpoint.tensor)
        self.read_once = self.device.read_once
        self._sampler = Sampler(model_config.eos_token_ids, self.device, processors)
        self._memory = PoolMemory(self.model, self._sampler, self.device, budget)
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
        on_window: Callable[[], None] | None = None,
    ) -> Run:
        """Plan the requests and return their run: iterate it for one completion per request.

        A request that cannot be run (too long, an id outside the vocabulary, larger than the pool)
        gets a completion with an error; the others are not affected. `more` are further windows
        of requests; indices rise through all of them. Each is asked for and planned in a thread of
        its own while the one before it runs, and `on_window` is called in the caller's when it is
        taken. A run with `more` that does not come to its end must be closed. `done` are indices of
        requests that are answered already: they get no completion, but what rows share is decided
        with them. `warn` takes what the user should know and that stops nothing. Raises
        `UsageError` if the kernels fail their self-check.
        """
        self.device.check(self.dtype)
        config, spec = self.config, self.kv_cache_spec
        budget = self._memory.budget(config, spec)
        sizer = PoolSizer(config, [spec], budget, self.max_model_len)
        sizer.check_max_model_len()
        planner = self._planner(sizer.most, done)
        first = planner.window(requests, has_next=more is not None)
        num_blocks = sizer.num_blocks(first.plan, is_whole=more is None)
        cache, graphs = self._memory.take(config, spec, num_blocks)
        return Run(
            engine_config=config,
            model=self.model,
            cache=cache,
            graphs=graphs,
            tokenizer=self.tokenizer,
            sampler=self._sampler,
            device=self.device,
            windows=iter([first]) if more is None else Ahead(first, planner.windows(more)),
            max_model_len=planner.reserved_len(requests),
            budget=budget,
            times=self._times,
            on_step=on_step,
            stored=self._stored_prefixes(cache, warn),
            on_window=on_window,
        )

    def _planner(self, max_blocks: int, done: Container[int]) -> Planner:
        num_stored = 0
        if self._prefix_store is not None:
            num_stored = self.config.prefix_store_bytes // self.kv_cache_spec.bytes_per_token
        return Planner(
            self.config,
            RequestLimits(self.max_model_len, self.model_config.vocab_size),
            max_blocks=max_blocks,
            read_once=self.read_once,
            done=done,
            max_stored_tokens=num_stored,
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
            model_identity=model_identity(self.model_config),
            dtype=self.dtype,
            reproducible=self.config.reproducible and not self.device.is_row_invariant,
            machine=self.device.machine(str(self.dtype).removeprefix("torch.")),
            warn=warn or (lambda message: None),
        )

    @property
    def max_model_len(self) -> int:
        """The most tokens a prompt and its answer may have together."""
        limit = self.model_config.max_position_embeddings
        return min(limit, self.config.max_model_len or limit)

    @property
    def kv_cache_spec(self) -> KVCacheSpec:
        """What a token takes in the pool."""
        dtype = self.device.cache_dtype(self.config.kv_cache_dtype, self.dtype)
        [spec] = self.model.kv_cache_specs(str(dtype).removeprefix("torch."))
        return spec

    def _load(self, read: ReadTensor) -> Model:
        config, device = self.model_config, self.device
        source = WeightSource(
            read,
            self.dtype,
            device.torch_device,
            device.kernels,
            row_invariant=self.config.reproducible,
        )
        num_positions = num_rotary_positions(config, self.max_model_len, self.config.model)
        return config.family.load(config.network, source, num_positions)
