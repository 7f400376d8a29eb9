"""CachedForward: the library's code on some tokens of one sequence, behind what its cache holds."""

import inspect
from typing import Any

import torch
from torch import Tensor

# What a forward pass returns its cache as, and takes it by.
CACHE_NAMES = ("past_key_values", "cache_params", "state")


class NoCache(Exception):
    """The model returns nothing to go on from."""


class CachedForward:
    """`causal_lm` is the library's; `cache_name` is how its cache goes in and out, None: to be
    found at the first call."""

    def __init__(self, causal_lm: Any, cache_name: str | None = None) -> None:
        self._causal_lm = causal_lm
        self._takes = inspect.signature(causal_lm.forward).parameters.keys()
        self.cache_name = cache_name

    def __call__(
        self, input_ids: Tensor, start: int, cache: object | None, num_logits: int
    ) -> tuple[Tensor, object]:
        """Return the logits of the last tokens and the cache behind them all, which may be the one
        that was given, changed.

        input_ids: [num_tokens], at the positions from `start` on. cache: behind the tokens before
        them, None at a sequence's beginning. Returns logits [num_logits, the library's vocabulary].
        Raises `NoCache` if there is nothing to go on from.
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
