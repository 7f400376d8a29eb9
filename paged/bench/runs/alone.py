"""Alone: rows that read their whole context for themselves, though they share it.

`--no-prefix-once` is not that. So that it gives the same bytes, it does the matrix products of
shared reading for one row at a time, which is several times slower than the kernel of rows that
have nothing to share. What reading once is worth must be measured against that kernel.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from pagedrun.kernels.attention import Attention, AttentionShape
from pagedrun.kernels.attention_inputs import AttentionInputs
from pagedrun.kernels.backend import Backend
from pagedrun.kernels.kv_layer import KVLayer
from pagedrun.kernels.prefix_groups import PrefixGroups, PrefixResult
from pagedrun.kernels.softmax import Softmax
from pagedrun.paged.bench.runs.backend_wrapper import BackendWrapper


class SharingSwitch:
    """A kernel backend in which attention over shared prefixes can be switched off.

    Give `kernels` to an engine in place of the backend. While `alone` holds, `Attention.prefix`
    answers that no row has a prefix behind it, and so `Attention.decode` reads all of it.
    """

    def __init__(self, backend: Backend) -> None:
        self.is_off = False
        self.kernels: Backend = _Switched(backend, self)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let every row read for itself until the context ends."""
        self.is_off = True
        try:
            yield
        finally:
            self.is_off = False


class _Switched(BackendWrapper):
    def __init__(self, backend: Backend, switch: SharingSwitch) -> None:
        super().__init__(backend)
        self._switch = switch

    def prepare(
        self, inputs: AttentionInputs, shape: AttentionShape, *, room: int = 0
    ) -> Attention:
        return _SwitchedAttention(super().prepare(inputs, shape, room=room), self._switch)


class _SwitchedAttention:
    def __init__(self, attention: Attention, switch: SharingSwitch) -> None:
        self._attention = attention
        self._switch = switch
        self.prefill = attention.prefill
        self.decode = attention.decode

    def prefix(self, q: Tensor, layer: KVLayer, softmax: Softmax) -> PrefixResult | None:
        return None if self._switch.is_off else self._attention.prefix(q, layer, softmax)

    def regroup(self, groups: PrefixGroups) -> None:
        self._attention.regroup(groups)
