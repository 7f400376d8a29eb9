"""Time of a run by operation.

The timer wraps the kernels between the model and the device, and adds up the seconds until each
call returns. It suits backends whose operations are finished when they return; on a GPU the
device profile takes its place.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any, ParamSpec, TypeVar

from torch import Tensor

from pagedrun.kernels.attention import Attention, AttentionShape
from pagedrun.kernels.attention_inputs import (
    AttentionInputs,
    KVLayer,
    PrefixGroups,
    PrefixResult,
    Softmax,
)
from pagedrun.kernels.ops import Backend, GroupedLinear, Linear, RecordedStep

OpSeconds = Mapping[str, float]
ATTENTION = "attention"  # part of the name of every operation that reads keys and values

Given = ParamSpec("Given")
Returned = TypeVar("Returned")


class OpTimer:
    """Seconds and calls of each operation of a kernel backend.

    Give `kernels` to an engine in place of the backend; `seconds` and `calls` grow as it runs. Only
    for backends whose operations are finished when they return. Replays are timed as well.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._begun: list[float] = []  # times of operations that have not returned
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()
        self.kernels: Backend = _Timed(backend, self)

    def snapshot(self) -> OpSeconds:
        """Return the seconds of each operation so far."""
        return dict(self.seconds)

    def since(self, snapshot: OpSeconds) -> OpSeconds:
        """Return the seconds of each operation called since a snapshot."""
        grown = {name: value - snapshot.get(name, 0.0) for name, value in self.seconds.items()}
        return {name: value for name, value in grown.items() if value > 0.0}

    def timed(self, name: str, op: Callable[Given, Returned]) -> Callable[Given, Returned]:
        """Return an operation that adds its calls and their seconds to those of `name`."""

        def timed(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
            self.begin()
            result = op(*args, **kwargs)
            self.end(name)
            return result

        return timed

    def begin(self) -> None:
        """Note the time, now and in replays."""
        self._backend.call_on_host(self._begin)

    def end(self, name: str | None) -> None:
        """Count one call of an operation since the last time that was noted; None: of none."""
        self._backend.call_on_host(partial(self._end, name))

    def _begin(self) -> None:
        self._begun.append(perf_counter())

    def _end(self, name: str | None) -> None:
        began = self._begun.pop()
        if name is not None:
            self.seconds[name] += perf_counter() - began
            self.calls[name] += 1


class BackendWrapper(Backend):
    """Passes every call to another backend; subclasses override the hooks.

    Hooks run in `__init__`: a subclass sets the attributes that they read before calling it.
    Methods that a subclass defines itself are kept.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.name, self.code_kernels = backend.name, backend.code_kernels
        self.activations, self.records = backend.activations, backend.records
        own = vars(type(self))
        for name in self.OPS:
            if name not in own:
                setattr(self, name, self.wrap_op(name, getattr(backend, name)))
        for name in self.PACKS:
            if name not in own:
                setattr(self, name, self.wrap_pack(name, getattr(backend, name)))

    def wrap_op(self, name: str, op: Callable[Given, Returned]) -> Callable[Given, Returned]:
        """Return the operation to call in place of `op`."""
        return op

    def wrap_pack(self, name: str, pack: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method to call in place of one of `PACKS`."""
        return pack

    def prepare(
        self, inputs: AttentionInputs, shape: AttentionShape, *, room: int = 0
    ) -> Attention:
        """Return the attention of a step."""
        return self._backend.prepare(inputs, shape, room=room)

    def record(self, step: Callable[[], Returned]) -> RecordedStep[Returned]:
        """Compute a step and return it as it can be replayed."""
        return self._backend.record(step)

    def call_on_host(self, function: Callable[[], None]) -> None:
        """Call a function now and in replays."""
        self._backend.call_on_host(function)


# Operations on weights while a model loads; not timed.
_LOADING = {"quantize_rows", "split_blocks", "unpack_codes", "unpack_pairs", "dequantize"}
_LINEARS = {
    "pack_linear": "PackedLinear",
    "pack_int8": "Int8Linear",
    "pack_quantized": "QuantizedLinear",
}


class _Timed(BackendWrapper):
    def __init__(self, backend: Backend, timer: OpTimer) -> None:
        self._timer = timer
        super().__init__(backend)

    def wrap_op(self, name: str, op: Callable[Given, Returned]) -> Callable[Given, Returned]:
        return op if name in _LOADING else self._timer.timed(name, op)

    def wrap_pack(self, name: str, pack: Callable[..., Any]) -> Callable[..., Any]:
        def packed(*args: Any, **kwargs: Any) -> _TimedLayer:
            layer = _LINEARS.get(name, "PackedGroupedLinear")
            return _TimedLayer(pack(*args, **kwargs), self._timer, layer)

        return packed

    def prepare(
        self, inputs: AttentionInputs, shape: AttentionShape, *, room: int = 0
    ) -> Attention:
        return _TimedAttention(super().prepare(inputs, shape, room=room), self._timer)


class _TimedAttention:
    def __init__(self, attention: Attention, timer: OpTimer) -> None:
        self._attention = attention
        self._timer = timer
        self.prefill = timer.timed("prefill_attention", attention.prefill)
        self.decode = timer.timed("decode_attention", attention.decode)

    def prefix(self, q: Tensor, layer: KVLayer, softmax: Softmax) -> PrefixResult | None:
        """Count it only if rows share a prefix."""
        self._timer.begin()
        result = self._attention.prefix(q, layer, softmax)
        self._timer.end(None if result is None else "prefix_attention")
        return result

    def regroup(self, groups: PrefixGroups) -> None:
        self._attention.regroup(groups)


class _TimedLayer:
    """Linear layer, or layers of experts, whose calls are timed."""

    def __init__(self, layer: Linear | GroupedLinear, timer: OpTimer, name: str) -> None:
        self._layer = layer
        self._multiply = timer.timed(name, layer.__call__)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)

    def __call__(self, *args: Any) -> Tensor:
        return self._multiply(*args)


def attention_seconds(seconds: OpSeconds) -> float:
    """Return the seconds of all attention operations."""
    return sum(value for name, value in seconds.items() if ATTENTION in name)
