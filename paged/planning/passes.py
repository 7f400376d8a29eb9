"""Passes over streamed weights: the size of steps, and the time and bytes of a run.

Each step is a pass: all weights that are not pinned are read once, however many tokens the step
has. Reading hides behind computing if a step computes for longer than it reads, so steps are made
larger for a slow disk. Both speeds are measured once, when the weights are packed, and decide no
byte of the output. Imports no torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pagedrun.paged.cache.cache_spec import KVCacheSpec
from pagedrun.paged.metrics.report_sections import WeightFigures
from pagedrun.paged.models.decoder_spec import DecoderSpec
from pagedrun.paged.models.network import Network
from pagedrun.paged.models.streaming.residency import PassSpeeds, Residency
from pagedrun.paged.planning.forecast_sections import Limit, PassForecast
from pagedrun.paged.planning.memory import HostMemory
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.request import Completion, Request

# A step computes for so many times as long as it reads, where memory allows.
HIDDEN = 8.0
MIN_STEP_TOKENS, MAX_STEP_TOKENS = 2_048, 65_536
UNKNOWN_STEP_TOKENS = 8_192  # before speeds are measured
STEP_TOKENS_UNIT = 1_024
TRANSIENT_STEP_TOKENS = 4_096  # of steps that share no prefix with others
MAX_STEP_S = 600.0  # a step writes its rows at its end, and a watchdog waits for it
NUM_SEQS = 1_024  # rows cost no reading; the pool limits them
HIDDEN_SHARE = 1 / 32  # of the memory, for the hidden states of a step


def fitted_to_pass(
    config: EngineConfig,
    network: Network,
    specs: tuple[KVCacheSpec, ...],
    requests: Sequence[Request | Completion],
    pool_bytes: int,
    longest: int,
) -> tuple[EngineConfig, tuple[KVCacheSpec, ...]]:
    """Return settings and specs of a run whose layers share the memory of one, where this is
    possible and needed; otherwise as they are.

    All rows must end with the pass that computes their prompts, as those of scores and of labels of
    one token do, in a model whose layers keep whole contexts of their own: then no layer needs keys
    and values of another step. Where the pool has room for a step in all layers, it keeps prefixes
    between steps instead.

    specs: of the model. requests: all of the run. pool_bytes: memory for the pool. longest: tokens
    of the longest row.
    """
    if config.num_blocks is not None or not _keeps_whole_contexts(network):
        return config, specs
    room = pool_bytes if config.kv_cache_memory_bytes is None else config.kv_cache_memory_bytes
    step_tokens = max(config.max_num_batched_tokens, longest)
    if step_tokens * sum(spec.bytes_per_token for spec in specs) <= room:
        return config, specs
    if not all(isinstance(each, Request) and _ends_with_its_prompt(each) for each in requests):
        return config, specs
    if "max_num_batched_tokens" in config.fitted:
        num_tokens = max(TRANSIENT_STEP_TOKENS, config.max_num_batched_tokens)
        config = replace(config, max_num_batched_tokens=num_tokens)
    return config, tuple(replace(spec, is_transient=True) for spec in specs)


def _keeps_whole_contexts(network: Network) -> bool:
    if not isinstance(network, DecoderSpec) or not network.is_capturable:
        return False
    attentions = network.attentions.values()
    return all(each.window is None and each.source is None for each in attentions)


def _ends_with_its_prompt(request: Request) -> bool:
    longest = max((len(each.token_ids) for each in request.continuations), default=1)
    return request.params.max_tokens == 1 and longest == 1 and not request.params.has_beams


@dataclass(frozen=True, slots=True)
class PassCosts:
    """Costs of a pass. speeds: None before they are measured. hidden_bytes: of a token's hidden
    states between layers. residency, on_host: see `StreamedWeights`."""

    residency: Residency
    speeds: PassSpeeds | None
    hidden_bytes: int
    on_host: Residency | None = None

    @property
    def read_s(self) -> float | None:
        """Seconds to read the weights of a pass; to a device they are copied meanwhile."""
        if self.speeds is None:
            return None
        streamed = self.residency.pass_bytes
        if self.on_host is None or self.speeds.copied_per_s is None:
            return streamed / self.speeds.bytes_per_s
        read_s = self.on_host.pass_bytes / self.speeds.bytes_per_s
        return max(read_s, streamed / self.speeds.copied_per_s)

    def compute_s(self, num_tokens: int) -> float | None:
        """Return the seconds to compute a step, None if unknown."""
        if self.speeds is None or self.speeds.tokens_per_s is None:
            return None
        return num_tokens / self.speeds.tokens_per_s

    def fitted(self, config: EngineConfig, memory_bytes: int | None = None) -> EngineConfig:
        """Return the configuration with steps so large that reading hides behind computing.

        Settings that were given are kept. memory_bytes: of the device that computes, None to read
        the host's.
        """
        memory_bytes = memory_bytes or HostMemory.read().total
        room = int(memory_bytes * HIDDEN_SHARE) // self.hidden_bytes
        num_tokens = UNKNOWN_STEP_TOKENS
        if self.speeds is not None and self.speeds.tokens_per_s is not None:
            assert self.read_s is not None, "measured together"
            hiding = min(HIDDEN * self.read_s, MAX_STEP_S) * self.speeds.tokens_per_s
            num_tokens = -(-int(hiding) // STEP_TOKENS_UNIT) * STEP_TOKENS_UNIT
        num_tokens = max(min(num_tokens, room, MAX_STEP_TOKENS), MIN_STEP_TOKENS)
        fitted: dict[str, Any] = {"max_num_seqs": NUM_SEQS, "max_num_batched_tokens": num_tokens}
        return replace(config, **{name: fitted[name] for name in fitted if name in config.fitted})

    def forecast(
        self,
        weights: WeightFigures,
        step_tokens: Mapping[int, int],
        scale: float,
        *,
        is_full: bool,
    ) -> tuple[PassForecast, WeightFigures]:
        """Return the figures of a run, and `weights` with its passes and bytes.

        step_tokens: number of simulated steps by their tokens, of which a run has `scale` times as
        many. is_full: rows wait for KV memory.
        """
        num_passes = round(scale * sum(step_tokens.values()))
        read_s, compute_s, run_s = self.read_s, None, None
        limit: Limit | None = None
        times = {count: self.compute_s(count) for count in step_tokens}
        if read_s is not None and None not in times.values():
            known = {count: seconds for count, seconds in times.items() if seconds is not None}
            compute_s = scale * sum(known[count] * steps for count, steps in step_tokens.items())
            run_s = scale * sum(
                max(known[count], read_s) * steps for count, steps in step_tokens.items()
            )
            limit = "arithmetic" if compute_s >= read_s * num_passes else "disk"
            if limit == "disk" and is_full:
                limit = "KV memory"
        weights = weights.copy()
        weights["resident_bytes"] -= self.residency.ring_bytes
        weights["streamed_bytes"], weights["passes"] = self.residency.pass_bytes, num_passes
        weights["bytes_read"] = num_passes * self.residency.pass_bytes
        weights["wait_share"] = None
        if run_s is not None and compute_s is not None:
            weights["wait_share"] = max(1 - compute_s / max(run_s, 1e-9), 0.0)
        figures: PassForecast = {
            "pinned_bytes": self.residency.pinned_bytes,
            "ring_bytes": self.residency.ring_bytes,
            "bytes_per_s": None if self.speeds is None else self.speeds.bytes_per_s,
            "tokens_per_s": None if self.speeds is None else self.speeds.tokens_per_s,
            "read_s": None if read_s is None else read_s * num_passes,
            "compute_s": compute_s,
            "run_s": run_s,
            "limit": limit,
        }
        return figures, weights
