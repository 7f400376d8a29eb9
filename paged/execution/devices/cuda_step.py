"""CudaStep: a step in a CUDA graph."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class CudaStep:
    """Implements `CapturedStep`."""

    graph: torch.cuda.CUDAGraph
    ids: Tensor

    @classmethod
    def of(cls, step: Callable[[], Tensor], memory: Any) -> "CudaStep":
        """Record a step on torch's current GPU; see `Device.capture`."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=memory):
            ids = step()
        return cls(graph, ids)

    def replay(self) -> None:
        """Launch the graph."""
        self.graph.replay()
