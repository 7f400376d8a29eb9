"""OpTimer: where a run's time goes, op by op, from between the model and its kernels."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from time import perf_counter
from types import ModuleType
from typing import Any

OpSeconds = Mapping[str, float]
ATTENTION = "attention"  # in the name of every op that reads keys and values


class OpTimer:
    """A kernel backend that passes every call on and adds up the time until it returns.

    Give `kernels` to an engine in place of the backend; `seconds` and `calls` grow as it runs. Only
    for backends whose ops are done when they return.
    """

    def __init__(self, backend: ModuleType) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()
        self.kernels = ModuleType(f"{backend.__name__}.timed")
        for name in backend.__all__:
            op = getattr(backend, name)
            timed = self._timed_class(name, op) if isinstance(op, type) else self._timed(name, op)
            setattr(self.kernels, name, timed)

    def snapshot(self) -> OpSeconds:
        """Return the seconds of each op so far."""
        return dict(self.seconds)

    def since(self, snapshot: OpSeconds) -> OpSeconds:
        """Return the seconds of each op since a snapshot, of those that were called."""
        grown = {name: value - snapshot.get(name, 0.0) for name, value in self.seconds.items()}
        return {name: value for name, value in grown.items() if value > 0.0}

    def _timed(self, name: str, op: Callable[..., Any]) -> Callable[..., Any]:
        seconds, calls = self.seconds, self.calls

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = perf_counter()
            result = op(*args, **kwargs)
            seconds[name] += perf_counter() - began
            calls[name] += 1
            return result

        return timed

    def _timed_class(self, name: str, kind: type) -> type:
        """Return `kind` with its instances timed when called: an op that keeps its weights."""
        call = self._timed(name, kind.__call__)
        return type(kind.__name__, (kind,), {"__call__": lambda *args: call(*args)})


def attention_seconds(seconds: OpSeconds) -> float:
    """Return the seconds of all ops that are attention."""
    return sum(value for name, value in seconds.items() if ATTENTION in name)
