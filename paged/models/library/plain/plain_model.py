"""PlainModel: a model that Transformers computes sequence by sequence, with caches of its own."""

from typing import Any

import torch
from torch import Tensor

from pagedrun.kernels.attention.attention import AttentionShape
from pagedrun.paged.cache.cache_spec import KVCacheSpec, StateSpec
from pagedrun.paged.cache.kv_cache import KVCache, StateObjects
from pagedrun.paged.models.forward_batch import ForwardBatch
from pagedrun.paged.models.library.library_error import said
from pagedrun.paged.models.library.plain.cached_forward import CachedForward
from pagedrun.paged.models.library.plain.plain_agreement import look
from pagedrun.paged.models.library.plain.plain_spec import PlainSpec
from pagedrun.paged.values.errors import EngineError, option
from pagedrun.paged.values.report_parts import LibraryFigures

_NOWHERE = -1  # no slot is read, or written


class PlainModel:
    """`causal_lm` is the library's, with its weights on the device; implements `Model`.

    A prompt is computed in one piece, an answer token by token, also when it is computed again, and
    no two sequences together: what a sequence gets does not depend on what runs beside it.
    """

    mapped_bytes = 0

    def __init__(self, network: PlainSpec, causal_lm: Any) -> None:
        """Take the model over, and look whether it computes with its cache what it does without.

        Raises `Disagreement` if it does not.
        """
        self.network = network
        self.dtype: torch.dtype = causal_lm.dtype
        self.num_bytes = sum(each.nbytes for each in causal_lm.parameters())
        self._forward = CachedForward(causal_lm, network.cache_name)
        largest, depends = look(causal_lm, self._forward, network)
        self.library: LibraryFigures = {
            "computed_by": network.computed_by,
            "path": "plain",
            "why_plain": network.why,
            "largest_difference": largest,
            "rows_depend_on_batch": depends,
        }

    def attention_shape(self, group: int, cache_dtype: torch.dtype) -> AttentionShape:
        """Return the shape of attention that nothing asks for."""
        [spec] = self.kv_cache_specs(str(cache_dtype).removeprefix("torch."))
        return AttentionShape(1, spec.num_kv_heads, spec.head_dim, self.dtype, cache_dtype)

    def activation_bytes(self, num_tokens: int, num_logits: int) -> int:
        """Return the bytes that a step's tensors take at the widest point of the network."""
        return self.network.activation_bytes(self.dtype.itemsize, num_tokens, num_logits)

    def kv_cache_specs(self, dtype: str) -> tuple[KVCacheSpec, ...]:
        """Return one group without layers."""
        return self.network.kv_cache_specs(dtype)

    def state_specs(self) -> tuple[StateSpec, ...]:
        """Return what the library's cache of a sequence takes."""
        return self.network.state_specs(str(self.dtype).removeprefix("torch."))

    def hidden(self, batch: ForwardBatch, cache: KVCache) -> Tensor:
        """Compute the batch's sequences one by one; return the logits, which `head` hands on.

        Returns [num_logits, vocab_size] in the model's dtype, one row per `batch.logits_rows`.
        """
        states, inputs = cache.states, batch.states
        assert isinstance(states, StateObjects) and inputs is not None, "made without caches"
        wanted = set(batch.logits_rows.tolist())
        logits: dict[int, Tensor] = {}
        slots = zip(inputs.read_slots.tolist(), inputs.write_slots.tolist(), strict=True)
        for tokens, (read, write) in zip(inputs.chunks(), slots, strict=True):
            places = tokens.tolist()
            num_prompt = sum(place < batch.num_prefill_tokens for place in places)
            if num_prompt and read != _NOWHERE:
                raise _too_large(int(batch.positions[places[-1]]) + 1)
            own = None if read == _NOWHERE else states.take(read, write)
            ends = [num_prompt, *range(num_prompt + 1, len(places) + 1)]
            begin = 0
            for end in ends if num_prompt else ends[1:]:
                part = places[begin:end]
                first = next((i for i, place in enumerate(part) if place in wanted), len(part))
                found, own = self._run(batch, tokens[begin:end], own, len(part) - first)
                logits |= zip(part[first:], found, strict=True)
                begin = end
            if write != _NOWHERE:
                states.put(write, own)
        rows = [logits[place] for place in batch.logits_rows.tolist()]
        return torch.stack(rows) if rows else self._nothing(batch.input_ids)

    def head(self, hidden: Tensor) -> Tensor:
        """Return the logits of some rows of `hidden`, which they are already."""
        return hidden

    def _run(
        self, batch: ForwardBatch, tokens: Tensor, own: object | None, num_logits: int
    ) -> tuple[Tensor, object]:
        """Compute tokens of one sequence; return the logits of the last ones, and its cache."""
        positions = batch.positions[tokens]
        start = int(positions[0])
        try:
            found, after = self._forward(batch.input_ids[tokens], start, own, num_logits)
        except Exception as error:  # whatever its code raises; the cache may be half changed
            if isinstance(error, MemoryError | torch.OutOfMemoryError):
                raise _too_large(start + len(tokens)) from error
            raise EngineError(
                f"Transformers' code fails on token {start + len(tokens)} of a row ({said(error)})"
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
