"""PagedAttention: what the library's layers get when they ask for attention, over the cache."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pagedrun.kernels.attention.softmax import Softmax
from pagedrun.paged.cache.cache_spec import KVPlace
from pagedrun.paged.cache.kv_cache import CacheDevice, KVCache
from pagedrun.paged.models.forward_batch import ForwardBatch
from pagedrun.paged.models.layers.attend import attend
from pagedrun.paged.models.layers.rotary_tables import RotaryTables
from pagedrun.paged.models.library.library_spec import LibraryAttention


class Step:
    """The batch that a model is computing, and the cache that it reads and writes."""

    def __init__(self) -> None:
        self.now: tuple[ForwardBatch, KVCache] | None = None


class PagedAttention:
    """Attention of one layer, whose keys and values are at `place`; an `interfaces.Attend`.

    Queries and keys come rotated: the kernel that stores them turns them by nothing.
    """

    def __init__(
        self, spec: LibraryAttention, place: KVPlace, device: CacheDevice, step: Step
    ) -> None:
        self._spec = spec
        self._place = place
        self._kernels = device.kernels
        self._step = step
        self._softmax = Softmax(spec.scale, spec.softcap)
        self._unturned = RotaryTables(1, 1, device.torch_device).table(None, spec.heads.head_dim)

    def __call__(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        kwargs: dict[str, Any],
    ) -> Tensor:
        """Store keys and values, then attend.

        query: [1, num_heads, num_tokens, head_dim], key [1, num_kv_heads, num_tokens, head_dim],
        value [1, num_kv_heads, num_tokens, value_dim], no wider: it is filled up with zeros.
        Returns [1, num_tokens, num_heads, value_dim]. What module, mask and the rest say was seen
        before, but for the sinks' numbers.
        """
        assert self._step.now is not None, "a layer attends outside of a step"
        batch, cache = self._step.now
        asked, layer = self._spec.heads, cache.layer(self._place)
        group = batch.groups[self._place.group]
        value_dim = value.shape[-1]
        filled = functional.pad(value, (0, asked.head_dim - value_dim))
        heads = torch.cat([query[0], key[0], filled[0]]).transpose(0, 1)
        q = self._kernels.rotary_store(
            heads.flatten(1),
            self._unturned,
            torch.zeros_like(batch.positions),
            group.slots,
            layer,
            None,
        )
        softmax, sinks = self._softmax, kwargs.get("s_aux")
        if sinks is not None:
            softmax = replace(softmax, sinks=sinks.float())
        attended = attend(q, batch, group, layer, softmax, asked.window)
        return attended.view(1, -1, asked.num_heads, asked.head_dim)[..., :value_dim]
