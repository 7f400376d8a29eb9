"""Run: the loop. Schedule a step, compute it, sample, update; yield what is finished."""

import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import asdict
from types import ModuleType
from typing import Any

from pagedrun.paged.block_pool import BlockPool
from pagedrun.paged.engine_config import EngineConfig
from pagedrun.paged.errors import EngineError, RowError
from pagedrun.paged.kv_cache import KVCache
from pagedrun.paged.memory import HostMemory
from pagedrun.paged.model_runner import ModelRunner
from pagedrun.paged.models.decoder import Decoder
from pagedrun.paged.plan import Plan
from pagedrun.paged.report.memory_report import memory_report
from pagedrun.paged.report.run_statistics import RunStatistics
from pagedrun.paged.report.timeline import StepRecord
from pagedrun.paged.request import Completion, SampleOutput
from pagedrun.paged.sampler import NO_TOKEN, Sampler
from pagedrun.paged.scheduler import PreemptionMode, Scheduler, SchedulerLimits
from pagedrun.paged.sequence import Sequence
from pagedrun.paged.stopping import StopRule
from pagedrun.paged.swap_space import SwapSpace
from pagedrun.paged.tokenizer import Tokenizer


class Run:
    """One planned batch of requests with its own pool. Iterate it once."""

    def __init__(
        self,
        *,
        engine_config: EngineConfig,
        model: Decoder,
        tokenizer: Tokenizer,
        kernels: ModuleType,
        plan: Plan,
        refused: Seq[Completion],
        num_blocks: int,
        num_host_blocks: int,
        max_model_len: int,
        memory: HostMemory,
        times: Mapping[str, float],
        on_step: Callable[[StepRecord], None] | None,
    ) -> None:
        config = engine_config
        eos_token_ids = model.config.eos_token_ids
        layout = model.kv_layout
        self._config = config
        self._model = model
        self._plan = plan
        self._refused = refused
        self._memory = memory
        self._times = times
        self._on_step = on_step
        self.pool = BlockPool(num_blocks, config.block_size)
        self.cache = KVCache(layout, config.block_size, num_blocks, num_host_blocks, kernels)
        self.scheduler = Scheduler(
            self.pool,
            SwapSpace(num_host_blocks),
            SchedulerLimits(config.max_num_seqs, config.max_num_batched_tokens),
            PreemptionMode(config.preemption_mode),
        )
        self.statistics = RunStatistics(
            block_size=config.block_size,
            num_blocks=num_blocks,
            bytes_per_token=layout.bytes_per_token,
            max_model_len=max_model_len,
            achievable_hit_tokens=plan.achievable_hit_tokens,
            num_shared_blocks_planned=plan.num_shared_blocks,
        )
        self._runner = ModelRunner(model, self.cache, prefix_once=config.prefix_once)
        self._sampler = Sampler(eos_token_ids, kernels)
        self._stop_rule = StopRule(tokenizer, eos_token_ids)
        self._outputs: dict[int, list[SampleOutput]] = {}
        self._num_finished = 0
        self._num_steps = 0

    def __iter__(self) -> Iterator[Completion]:
        """Yield one completion per request, as they finish."""
        began = time.perf_counter()
        for completion in self._refused:
            yield self._completed(completion)
        for sequence in self._plan.sequences:
            if self.scheduler.fits(sequence):
                self.scheduler.add(sequence)
            else:
                yield self._completed(Completion(sequence.request, error=self._too_large(sequence)))
        while self.scheduler.has_work:
            yield from self._step()
            self.statistics.run_s = time.perf_counter() - began
            self._record_step()

    def _step(self) -> Iterator[Completion]:
        batch = self.scheduler.schedule()
        if not batch.chunks:
            raise EngineError(
                f"no sequence can go on: {len(self.scheduler.running)} running, "
                f"{len(self.scheduler.waiting)} waiting, {self.pool.num_free} of "
                f"{self.pool.num_blocks} blocks free; please report this"
            )
        logits = self._runner.run(batch)
        self.statistics.note_step(batch, self.pool)
        tokens = self._sampler.sample(
            logits, [chunk.sequence for chunk in batch.chunks if chunk.samples]
        )
        failed: set[int] = set()
        grown = self.scheduler.update(batch, tokens)
        for sequence in grown:
            if sequence.output_token_ids[-1] == NO_TOKEN:
                failed.add(sequence.request.index)
                continue
            self.statistics.generated_tokens += 1
            output = self._stop_rule.output(sequence)
            if output is not None:
                self.scheduler.finish(sequence)
                yield from self._collect(sequence, output)
        for index in failed:
            yield self._fail(index)

    def _collect(self, sequence: Sequence, output: SampleOutput) -> Iterator[Completion]:
        """Keep a finished sample; yield the completion when it is its request's last one."""
        request = sequence.request
        outputs = self._outputs.setdefault(request.index, [])
        outputs.append(output)
        if len(outputs) == request.params.n:
            del self._outputs[request.index]
            outputs.sort(key=lambda each: each.index)
            yield self._completed(Completion(request, tuple(outputs), sequence.num_cached_tokens))

    def _fail(self, index: int) -> Completion:
        """End every sample of a request whose logits hold no choice.

        What it published is retracted first: keys and values that led to NaN must not be shared.
        """
        everyone = [*self.scheduler.running, *self.scheduler.waiting]
        members = [sequence for sequence in everyone if sequence.request.index == index]
        for sequence in members:
            own = slice(sequence.num_hit_blocks, sequence.num_published_blocks)
            for block_id in sequence.block_table[own]:
                self.pool.retract(block_id)
            self.scheduler.finish(sequence)
        self._outputs.pop(index, None)
        error = RowError(
            "nan_logits",
            "the model's output holds NaN or infinity, so no token can be chosen; "
            "try --dtype float32",
        )
        return self._completed(Completion(members[0].request, error=error))

    def _completed(self, completion: Completion) -> Completion:
        self._num_finished += 1
        self.statistics.note_completion(completion)
        return completion

    def _too_large(self, sequence: Sequence) -> RowError:
        needed = self.pool.num_blocks_for(sequence.max_num_tokens)
        return RowError(
            "kv_cache_too_small",
            f"the row needs {needed} blocks for its prompt and max_tokens, but the pool has "
            f"{self.pool.num_blocks}; raise --num-blocks or --kv-cache-memory-bytes, or lower "
            "--max-tokens",
        )

    def _record_step(self) -> None:
        scheduler, pool, statistics = self.scheduler, self.pool, self.statistics
        self._num_steps += 1
        wanted = statistics.timeline.wants(self._num_steps)
        if not wanted and self._on_step is None:
            return
        record = StepRecord(
            t=statistics.run_s,
            step=self._num_steps,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            blocks_total=pool.num_blocks,
            blocks_used=pool.num_held,
            blocks_shared=pool.num_shared,
            blocks_cached=pool.num_cached,
            tokens=pool.num_tokens_held,
            finished=self._num_finished,
            total=len(self._plan.sequences) + len(self._refused),
            prompt_tokens=scheduler.counts.prompt_tokens,
            cached_tokens=scheduler.counts.cached_tokens,
            generated_tokens=statistics.generated_tokens,
            preemptions=sum(scheduler.counts.preemptions.values()),
        )
        if wanted:
            statistics.timeline.add(record)
        if self._on_step is not None:
            self._on_step(record)

    def report(self) -> dict[str, Any]:
        """Return what happened so far, in the report's shape; the job adds `rows`."""
        reads = self._runner.reads
        bytes_per_layer = self.statistics.bytes_per_token // self._model.config.num_layers
        return memory_report(
            attention_bytes={
                "read": reads.layer_tokens * bytes_per_layer,
                "without_sharing": reads.layer_tokens_without_sharing * bytes_per_layer,
            },
            statistics=self.statistics,
            scheduler=self.scheduler.counts,
            pool=self.pool.counts,
            times=self._times,
            memory={
                "weights": self._model.num_bytes,
                "kv_pool": self.cache.num_bytes,
                "activations_peak": self._model.activation_bytes(
                    self.statistics.max_step_tokens, self.statistics.max_step_logits
                ),
                "device_total": self._memory.total,
            },
            config=asdict(self._config),
        )
