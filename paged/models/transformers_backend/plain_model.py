"""PlainModel: a model that Transformers computes sequence by sequence, with its own caches."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from pagedrun.paged.cache.kv_cache import KVCache, OpaqueStates
from pagedrun.paged.models.model import ForwardBatch, Model
from pagedrun.paged.models.transformers_backend.checks import (
    LENGTHS,
    LogitsComparison,
    LogitsMismatch,
    expected_logits,
    random_row,
)
from pagedrun.paged.models.transformers_backend.config_fields import error_summary
from pagedrun.paged.models.transformers_backend.specs import PlainSpec
from pagedrun.paged.values.errors import EngineError, option
from pagedrun.paged.values.report_parts import TransformersFigures

_NO_SLOT = -1  # no slot is read, or written


class PlainModel(Model):
    """A Transformers model with its own caches, one per sequence.

    `causal_lm` has its weights on the device. A prompt is computed in one piece and an answer token
    by token, also after preemption, and sequences one by one: results do not depend on the batch.
    """

    def __init__(self, network: PlainSpec, causal_lm: Any) -> None:
        """Compare logits with and without the cache.

        Raises `LogitsMismatch` if they differ by more than rounding.
        """
        self.network: PlainSpec = network
        self.dtype: torch.dtype = causal_lm.dtype
        self.num_bytes = sum(each.nbytes for each in causal_lm.parameters())
        self._forward = CachedForward(causal_lm, network.cache_name)
        largest, depends = check_plain(causal_lm, self._forward, network)
        self.library: TransformersFigures = {
            "computed_by": network.computed_by,
            "path": "plain",
            "why_plain": network.why,
            "largest_difference": largest,
            "rows_depend_on_batch": depends,
        }

    def hidden(self, batch: ForwardBatch, cache: KVCache) -> Tensor:
        """Compute the sequences of the batch one by one, and return their logits.

        Returns [num_logits, vocab_size] in the model's dtype, one row per `batch.logits_rows`.
        """
        states, inputs = cache.states, batch.states
        assert isinstance(states, OpaqueStates) and inputs is not None, "made without caches"
        wanted = set(batch.logits_rows.tolist())
        logits: dict[int, Tensor] = {}
        writes = [int(each[-1]) for each in inputs.writes()]
        slots = zip(inputs.read_slots.tolist(), writes, strict=True)
        for tokens, (read, write) in zip(inputs.chunks(), slots, strict=True):
            indices = tokens.tolist()
            num_prompt = sum(index < batch.num_prefill_tokens for index in indices)
            if num_prompt and read != _NO_SLOT:
                raise _too_large(int(batch.positions[indices[-1]]) + 1)
            own = None if read == _NO_SLOT else states.take(read, write)
            ends = [num_prompt, *range(num_prompt + 1, len(indices) + 1)]
            begin = 0
            for end in ends if num_prompt else ends[1:]:
                part = indices[begin:end]
                first = next((i for i, index in enumerate(part) if index in wanted), len(part))
                found, own = self._run(batch, tokens[begin:end], own, len(part) - first)
                logits |= zip(part[first:], found, strict=True)
                begin = end
            if write != _NO_SLOT:
                states.put(write, own)
        rows = [logits[index] for index in batch.logits_rows.tolist()]
        return torch.stack(rows) if rows else self._nothing(batch.input_ids)

    def head(self, hidden: Tensor) -> Tensor:
        """Return `hidden`, which are logits already."""
        return hidden

    def _run(
        self, batch: ForwardBatch, tokens: Tensor, own: object | None, num_logits: int
    ) -> tuple[Tensor, object]:
        """Compute tokens of one sequence, and return the last logits and the cache."""
        positions = batch.positions[tokens]
        start = int(positions[0])
        try:
            found, after = self._forward(batch.input_ids[tokens], start, own, num_logits)
        except Exception as error:  # any error of its code; the cache may be half changed
            if isinstance(error, MemoryError | torch.OutOfMemoryError):
                raise _too_large(start + len(tokens)) from error
            raise EngineError(
                f"Transformers' code fails on token {start + len(tokens)} of a row "
                f"({error_summary(error)})"
            ) from error
        return found[:, : self.network.vocab_size].to(self.dtype), after

    def _nothing(self, like: Tensor) -> Tensor:
        size = self.network.vocab_size
        return torch.empty(0, size, dtype=self.dtype, device=like.device)


def _too_large(num_tokens: int) -> EngineError:
    return EngineError(
        f"out of memory with a row of {num_tokens} tokens, whose prompt Transformers' "
        "code computes in one piece; free some memory, or pass a smaller "
        f"{option('max_model_len')} or {option('max_num_seqs')}"
    )


# Names of the cache among arguments and outputs of a forward pass.
CACHE_NAMES = ("past_key_values", "cache_params", "state")


class NoCache(Exception):
    """The model returns no cache to continue from."""


class CachedForward:
    """Forward pass with the cache of Transformers under `cache_name`; None: found at first call."""

    def __init__(self, causal_lm: Any, cache_name: str | None = None) -> None:
        self._causal_lm = causal_lm
        self._takes = inspect.signature(causal_lm.forward).parameters.keys()
        self.cache_name = cache_name

    def __call__(
        self, input_ids: Tensor, start: int, cache: object | None, num_logits: int
    ) -> tuple[Tensor, object]:
        """Return the logits of the last tokens and the cache after all of them.

        input_ids: [num_tokens], at positions from `start` on. cache: after the tokens before them,
        None at the beginning of a sequence; it may be changed and returned. Returns logits
        [num_logits, vocabulary of Transformers]. Raises `NoCache` if none is returned.
        """
        asked: dict[str, Any] = {"input_ids": input_ids[None], "use_cache": True}
        if "position_ids" in self._takes:
            end = start + len(input_ids)
            asked["position_ids"] = torch.arange(start, end, device=input_ids.device)[None]
        if "logits_to_keep" in self._takes:
            asked["logits_to_keep"] = max(num_logits, 1)  # 0 would be all
        if cache is not None:
            assert self.cache_name is not None, "a cache before the first call"
            asked[self.cache_name] = cache
        output = self._causal_lm(**asked)
        if self.cache_name is None:
            given = (name for name in CACHE_NAMES if getattr(output, name, None) is not None)
            self.cache_name = next((name for name in given if name in self._takes), None)
        after = None if self.cache_name is None else getattr(output, self.cache_name, None)
        if after is None:
            raise NoCache
        logits: Tensor = output.logits[0]
        return logits[len(logits) - num_logits :], after


def num_cached(cache: object) -> int:
    """Return the number of elements of all tensors reachable from an object."""
    seen: set[int] = set()
    found: list[object] = [cache]
    count = 0
    while found:
        each = found.pop()
        if id(each) in seen or isinstance(each, type | nn.Module):
            continue
        seen.add(id(each))
        if isinstance(each, Tensor):
            count += each.numel()
        elif isinstance(each, dict):
            found += each.values()
        elif isinstance(each, list | tuple | set):
            found += each
        elif hasattr(each, "__dict__"):
            found += vars(each).values()
    return count


_NUM_GENERATED = 3


@torch.inference_mode()
def check_plain(causal_lm: Any, forward: CachedForward, network: PlainSpec) -> tuple[float, bool]:
    """Compute two rows side by side and the first of them alone.

    Returns the largest difference from logits without a cache, relative to the largest logit, and
    whether the row alone had other bits. Raises `LogitsMismatch` if logits differ by more than
    rounding, or if a cache is larger than in the trace.
    """
    vocab_size = network.vocab_size
    expected = expected_logits(causal_lm, vocab_size)
    differences = LogitsComparison(expected, "with its cache", causal_lm.dtype)
    ids = [
        random_row(row, length, vocab_size).to(causal_lm.device)
        for row, length in enumerate(LENGTHS)
    ]
    together = _compute_rows(forward, ids, network)
    for row, logits in enumerate(together):
        num_prompt = len(logits) - _NUM_GENERATED
        differences.add(row, 0, logits[:num_prompt], is_prompt=True)
        differences.add(row, num_prompt, logits[num_prompt:], is_prompt=False)
    [alone] = _compute_rows(forward, ids[:1], network)
    return differences.largest(), not torch.equal(alone, together[0])


def _compute_rows(forward: CachedForward, rows: list[Tensor], network: PlainSpec) -> list[Tensor]:
    """Return all logits of rows, with the last tokens computed one by one, row after row."""
    begun = []
    for ids in rows:
        num_prompt = len(ids) - _NUM_GENERATED
        logits, cache = forward(ids[:num_prompt], 0, None, num_prompt)
        begun.append(([logits], cache))
    for behind in range(_NUM_GENERATED, 0, -1):
        for row, (ids, (found, cache)) in enumerate(zip(rows, begun, strict=True)):
            at = len(ids) - behind
            logits, cache = forward(ids[at : at + 1], at, cache, 1)
            begun[row] = ([*found, logits], cache)
    for ids, (_, cache) in zip(rows, begun, strict=True):
        expected = network.num_state_numbers + len(ids) * network.num_token_numbers
        if num_cached(cache) > expected:
            raise LogitsMismatch(
                f"its cache of {len(ids)} tokens holds {num_cached(cache)} numbers instead of "
                f"{expected}"
            )
    return [torch.cat(found)[:, : network.vocab_size].float() for found, _ in begun]
